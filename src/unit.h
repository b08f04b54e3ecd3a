/*-------------------------------------------------------------------------
 *
 * unit.h
 *	  A table being synchronized, and its steps up to state 'f'.
 *
 * design.md section 7, the staged way: 'i' (or 'd') is claimed and set to
 * 'd'; a snapshot is taken that fits the slot; the copy, the state 'f' and
 * all that a resumption needs are committed together.  catchup.h and
 * handover.h go on from there.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/unit.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_UNIT_H
#define REUSE_SYNC_UNIT_H

#include "access/xlogdefs.h"
#include "replication/origin.h"
#include "storage/itemptr.h"

#include "remote_snapshot.h"
#include "session.h"
#include "sync_slot.h"

typedef struct Unit
{
	MemoryContext context;		/* holds this and all below */
	Session    *session;
	Oid			relid;
	char	   *nspname;
	char	   *relname;

	/* The claim: the tuple of pg_subscription_rel as we left it (step 5). */
	char		state;
	ItemPointerData claim_tid;
	TransactionId claim_xmin;

	/* The slot it streams from: the worker's own, or one only it may use. */
	SyncSlot   *slot;			/* null if adopted */
	int64		slot_id;		/* 0: a slot of the server's own worker */
	NameData	slot_name;
	DeliveredXids *delivered;	/* the worker's slot's; null if adopted */

	/* What the copy saw; null: a slot's own snapshot, nothing to filter. */
	RemoteSnapshot *snapshot;
	XLogRecPtr	filter_end;		/* the snapshot decides below this LSN */

	RepOriginId origin;			/* pg_<subid>_<relid> */
	XLogRecPtr	position;		/* commits below are applied and committed */
	XLogRecPtr	mark;			/* made after the copy; catch up to it first */

	bool		empty_first;	/* its rows are of a copy that is lost */
	TimestampTz started;
	int64		bytes_copied;
	int64		tuples_copied;
} Unit;

/* Why a snapshot was not used, or that it was. */
typedef enum SnapshotVerdict
{
	SNAPSHOT_FITS,
	SNAPSHOT_TOO_EARLY,			/* C1: take another in a moment */
	SNAPSHOT_NEEDS_NEW_SLOT		/* C2, C3 */
} SnapshotVerdict;

/*
 * Begin a unit for a table that this process has claimed in shared memory.
 * Null if there is nothing to do for it (any more).  Starts a transaction of
 * its own.
 */
extern Unit *unit_begin(Session *session, Oid relid);

/*
 * For a table in 'f': find the slot it is linked to, of a worker of ours or
 * of the server's, and where to go on.  False if the slot is lost: the table
 * is to be copied anew, after its rows have been removed (a WARNING says so).
 */
extern bool unit_resume(Unit *unit);

/* Make the unit use this slot of the worker. */
extern void unit_use_slot(Unit *unit, SyncSlot *slot);

/*
 * Open the publisher's transaction, lock the table there and take the
 * snapshot (section 5).  Leaves the transaction open only if it fits.
 */
extern SnapshotVerdict unit_take_snapshot(Unit *unit);

/* Set state 'd', for all to see. */
extern void unit_announce(Unit *unit);

/* Copy, and commit it as state 'f'. */
extern void unit_copy(Unit *unit);

/*
 * Lock the claim and check that it still holds (step 5): takes the
 * subscription in ACCESS SHARE and pg_subscription_rel in ROW EXCLUSIVE mode,
 * in this order, until the end of the transaction.  Throws if it does not
 * hold; unit_is_outdated() then tells that this is nobody's failure.
 */
extern void unit_lock_claim(Unit *unit);
extern bool unit_is_outdated(void);

/* The same check without a lock, after invalidations; cheap if none came. */
extern void unit_check_claim(Unit *unit);

/* Change the state of the claimed tuple; the claim must be locked. */
extern void unit_set_state(Unit *unit, char state, XLogRecPtr lsn);

/*
 * Tag what follows with the table's origin; and commit with the origin's
 * position moved to 'lsn'.  The origin is held only within unit_commit, after
 * every lock has been taken (section 7, Origins).
 */
extern void unit_tag_origin(Unit *unit);
extern void unit_commit(Unit *unit, XLogRecPtr lsn, TimestampTz timestamp);

/* After an error: let go of the origin and of all that the unit held. */
extern void unit_reset_origin(void);

/* Give the memory back; null is fine. */
extern void unit_end(Unit *unit);

/*
 * Set a table back from 'f' to 'i', without its rows; does nothing if it is in
 * another state.  Starts a transaction of its own.
 */
extern void unit_set_back(Session *session, Oid relid);

#endif							/* REUSE_SYNC_UNIT_H */
