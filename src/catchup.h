/*-------------------------------------------------------------------------
 *
 * catchup.h
 *	  Catch-up: the stream of a unit's slot, applied to the unit's table.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/catchup.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_CATCHUP_H
#define REUSE_SYNC_CATCHUP_H

#include "unit.h"

/*
 * A slot's stream.  One stream serves one unit after the other: a stock
 * walsender cannot stream twice over a connection (it leaves its flags at
 * "done", see StartLogicalReplication), and need not: where one unit ends, at
 * its P, the next one's changes begin.
 */
typedef struct Stream
{
	MemoryContext context;		/* holds this and all below */
	MemoryContext message_context;	/* reset after each message */
	Session    *session;
	NameData	slot_name;
	Publisher  *conn;
	bool		started;
	ApplyStream *apply;

	/* The unit at hand. */
	Unit	   *unit;

	/* Every commit below this LSN has been delivered and processed. */
	XLogRecPtr	reached;

	/* A BEGIN that was received but belongs to the next unit. */
	bool		has_held;
	StringInfoData held;

	/* The remote transaction being received, between BEGIN and COMMIT. */
	bool		in_remote_transaction;
	bool		skipping;		/* the snapshot saw it, or the user skips it */
	bool		has_changes;	/* of the unit's table */

	/*
	 * Several remote transactions in one local one (the handover) are
	 * committed together: this is where the last whole one ended.
	 */
	bool		keep_open;
	XLogRecPtr	applied_end;
	TimestampTz applied_time;

	/* The local commit whose flush lets 'unflushed' be confirmed. */
	XLogRecPtr	local_end;
	XLogRecPtr	unflushed;
	XLogRecPtr	confirmed;		/* told to the publisher */

	TimestampTz last_received;
	TimestampTz last_status;
	TimestampTz last_check;		/* of the claim */
	bool		ping_sent;
} Stream;

/*
 * A stream from a slot, over 'conn' if that is not null (it is the stream's
 * from then on), else over a connection of its own.  Nothing is sent yet.
 */
extern Stream *stream_open(Session *session, const char *slot_name,
						   Publisher *conn);

/*
 * From now on the stream serves this unit, from the unit's position: where
 * the last unit ended, if there was one.
 */
extern void stream_serve(Stream *stream, Unit *unit);

/* Have the publisher end it: the slot is free when this returns. */
extern void stream_end(Stream *stream);

/* Give everything back, without a word to the publisher; null is fine. */
extern void stream_close(Stream *stream);

/*
 * Process everything with a commit LSN below 'target'.  Each remote
 * transaction with changes of the table is a local one; the unit's position
 * moves with them.  Starts the stream if it is not started; throws if the slot
 * cannot start there (design.md section 5, last paragraph).
 */
extern void catchup_to(Stream *stream, XLogRecPtr target);

/* Process what comes within so many ms. */
extern void catchup_for(Stream *stream, long ms);

/*
 * The same within the local transaction that is open, without a commit, and
 * without processing anything at or above 'target'.  False if 'deadline' has
 * passed first.
 */
extern bool catchup_in_transaction(Stream *stream, XLogRecPtr target,
								   TimestampTz deadline);

/*
 * Tell the publisher that the slot needs nothing below 'lsn' any more.  The
 * caller has flushed the local commit that makes this true (section 7,
 * Durability).
 */
extern void catchup_confirm(Stream *stream, XLogRecPtr lsn);

#endif							/* REUSE_SYNC_CATCHUP_H */
