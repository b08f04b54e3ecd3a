/*-------------------------------------------------------------------------
 *
 * apply_row.h
 *	  Applies one INSERT, UPDATE or DELETE to a local table.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/apply_row.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_APPLY_ROW_H
#define REUSE_SYNC_APPLY_ROW_H

#include "nodes/nodes.h"
#include "replication/logicalproto.h"
#include "replication/logicalrelation.h"
#include "replication/origin.h"
#include "utils/acl.h"
#include "utils/rel.h"

typedef struct RowChange
{
	CmdType		operation;		/* CMD_INSERT, CMD_UPDATE or CMD_DELETE */
	LogicalRepRelMapEntry *entry;	/* the target, open */
	LogicalRepTupleData *key;	/* finds the old row; NULL for INSERT */
	LogicalRepTupleData *row;	/* the new row; NULL for DELETE */
	RepOriginId origin;			/* that of our own rows */

	/* Out, for error contexts: remote column being converted, or -1. */
	int			column;
} RowChange;

/*
 * Apply 'change'.  'key' and 'row' may be the same tuple.  Needs a transaction
 * with an active snapshot, ROW EXCLUSIVE on the target and a short-lived
 * current memory context: what is allocated there is left to its reset.  Locks
 * the partitions and indexes it touches.  A row to be updated or deleted that
 * does not exist is no error.
 */
extern void apply_row(RowChange *change);

/*
 * Throw unless the current user may do 'mode' with 'rel', and no row-level
 * security applies to it.
 */
extern void apply_check_rights(Relation rel, AclMode mode);

#endif							/* REUSE_SYNC_APPLY_ROW_H */
