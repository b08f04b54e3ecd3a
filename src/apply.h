/*-------------------------------------------------------------------------
 *
 * apply.h
 *	  Applies the changes of a pgoutput stream to the tables of one unit.
 *
 * The caller reads the stream, decides which remote transactions count, and
 * begins and ends nothing but streams; apply.c opens the local transaction
 * at the first change that needs one and leaves it open, so that the caller
 * decides what is committed together.  Changes of tables outside the unit are
 * recognized without opening, locking or looking up anything local.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/apply.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_APPLY_H
#define REUSE_SYNC_APPLY_H

#include "lib/stringinfo.h"
#include "replication/logicalproto.h"
#include "replication/origin.h"

/* A table of the unit: changes are matched by name, as the server does. */
typedef struct ApplyTarget
{
	Oid			relid;			/* local relation */
	const char *nspname;		/* its schema, the same on the publisher */
	const char *relname;		/* its name, the same on the publisher */
	Oid			remoteid;		/* its oid there; InvalidOid: not known */
} ApplyTarget;

/* What one stream has said of remote relations, and whose changes count. */
typedef struct ApplyStream ApplyStream;

/* Begin a stream; it goes with 'parent'. */
extern ApplyStream *apply_open_stream(MemoryContext parent);

/* The stream starts again from nothing: forget what it has said. */
extern void apply_forget_relations(ApplyStream *stream);

/*
 * From now on changes of these tables are applied, with 'origin', that of their
 * copies.  'targets' must stay valid until the next call.  MySubscription must be set: the server's relation map
 * reads it.
 */
extern void apply_set_targets(ApplyStream *stream,
							  const ApplyTarget *targets, int ntargets,
							  RepOriginId origin);

/*
 * Name the origin whose position, pg_replication_origin_advance(), can pass
 * over a transaction that fails, for error messages; "" if there is none.
 */
extern void apply_set_origin_name(ApplyStream *stream, const char *name);

/*
 * Name the remote transaction that the next messages belong to, for error
 * contexts: its xid and the LSN of its commit.
 */
extern void apply_set_transaction(TransactionId xid, XLogRecPtr commit_lsn);

/*
 * Process one message other than BEGIN and COMMIT; 's' stands at the message
 * type.  With 'skip' set, changes are recognized but not applied.
 *
 * Returns true if the message is a change of a target.  If it was applied, a
 * local transaction is open on return (apply starts one if none was).
 *
 * Locks: ROW EXCLUSIVE on the table changed, ACCESS EXCLUSIVE for TRUNCATE,
 * both until the end of the local transaction.  Throws what the server's
 * apply worker throws for the same cause, with a context that names table,
 * column, xid and LSN; ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE for changes of
 * a target that is known by another name there now; ERRCODE_PROTOCOL_VIOLATION
 * for messages that a stream without streaming and two_phase cannot hold.
 */
extern bool apply_message(ApplyStream *stream, StringInfo s, bool skip);

#endif							/* REUSE_SYNC_APPLY_H */
