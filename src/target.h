/*-------------------------------------------------------------------------
 *
 * target.h
 *	  What is to be known of a local table that is copied into.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/target.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_TARGET_H
#define REUSE_SYNC_TARGET_H

#include "replication/logicalproto.h"
#include "replication/logicalrelation.h"
#include "storage/lockdefs.h"

/* Where more is said of an error, but for check() itself. */
#define HINT_TO_CHECK \
	"See reuse_sync.check(), which also compares the table with the publisher's."

typedef enum TargetRows
{
	TARGET_EMPTY,
	TARGET_HAS_ROWS,
	TARGET_UNKNOWN				/* too large to look through, or not a plain
								 * table; empty or not */
} TargetRows;

/*
 * Has the table a row that the active snapshot sees, its partitions included?
 * Reads it without asking for rights, since nothing of it is shown to anybody;
 * a table without live rows is read up to a bound.  Takes ACCESS SHARE on it,
 * and gives that back.  Without 'wait' it is TARGET_UNKNOWN if somebody has it
 * locked, or if it is gone.
 */
extern TargetRows target_rows(Oid relid, bool wait);

/*
 * Has it for sure?  Reads all of it until there is one; takes ACCESS SHARE, and
 * keeps that until the end of the transaction.
 */
extern bool target_has_row(Oid relid);

/*
 * Open and lock the local table of a remote one, for logicalrep_rel_close().
 * Throws what the server throws if the two do not fit, with a hint.
 */
extern LogicalRepRelMapEntry *target_open(LogicalRepRelId remoteid,
										  LOCKMODE lockmode);

/*
 * Does another subscription write to the table as well, be it through the table
 * that this is a partition of, or to a partition of this one?
 */
extern bool target_is_shared(Oid subid, Oid relid);

#endif							/* REUSE_SYNC_TARGET_H */
