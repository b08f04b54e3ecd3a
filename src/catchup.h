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

#include "apply.h"
#include "unit.h"

typedef struct Stream
{
	Unit	   *unit;
	ApplyTarget target;
	MemoryContext message_context;	/* reset after each message */
	bool		started;

	/* Every commit below this LSN has been delivered and processed. */
	XLogRecPtr	reached;

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
 * Start streaming from the unit's position.  Throws if the slot cannot start
 * there (design.md section 5, last paragraph).
 */
extern Stream *catchup_start(Unit *unit);

/*
 * Process everything with a commit LSN below 'target'.  Each remote
 * transaction with changes of the table is a local one; the unit's position
 * moves with them.
 */
extern void catchup_to(Stream *stream, XLogRecPtr target);

/* Process what comes within so many ms. */
extern void catchup_for(Stream *stream, long ms);

/*
 * The same within the local transaction that is open, without a commit, and
 * without looking at anything at or above 'target'.  False if 'deadline' has
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

/* End the stream; the connection and the slot are free again. */
extern void catchup_stop(Stream *stream);

#endif							/* REUSE_SYNC_CATCHUP_H */
