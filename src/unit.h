/*-------------------------------------------------------------------------
 *
 * unit.h
 *	  What a worker synchronizes at a time: one table, or a batch of small
 *	  ones, that share a snapshot of the publisher and a catch-up.
 *
 * This is what both ways of design.md section 7 have in common, the express
 * one (express.h) and the staged one (staged.h): the claim, the snapshot that
 * fits the slot, the copy, and the commit with an origin.
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
#include "storage/lockdefs.h"

#include "apply.h"
#include "remote_snapshot.h"
#include "remote_table.h"
#include "session.h"
#include "sync_slot.h"

typedef struct UnitTable
{
	Oid			relid;
	char	   *nspname;
	char	   *relname;

	/* The claim: the tuple of pg_subscription_rel as we left it (step 5). */
	char		state;
	ItemPointerData claim_tid;
	TransactionId claim_xmin;

	/* The claim as it will be if the transaction commits. */
	char		new_state;
	ItemPointerData new_tid;
	TransactionId new_xmin;

	bool		resync;			/* synchronized anew, see resync.h */
	bool		truncate;		/* and what it holds is to go */

	int64		bytes_total;	/* to be copied, -1: not known */
	int64		bytes_copied;
	int64		tuples_copied;
} UnitTable;

typedef struct Unit
{
	MemoryContext context;		/* holds this and all below */
	Session    *session;
	int			ntables;		/* 1 in the staged way */
	UnitTable  *tables;			/* in the order of their oids */
	ApplyTarget *targets;		/* the same, for the stream */
	RemoteTable *remotes;		/* the same, as the publisher has them */
	UnitTable  *at;				/* being copied: whose failure an error is */

	/* The slot it streams from: the worker's own, or one only it may use. */
	SyncSlot   *slot;			/* null if adopted */
	int64		slot_id;		/* its number in the catalog */
	NameData	slot_name;
	DeliveredXids *delivered;	/* the worker's slot's; null if adopted */

	Publisher  *conn;			/* the snapshot is on; null: none was taken */

	/* What the copy saw; null: a slot's own snapshot, nothing to filter. */
	RemoteSnapshot *snapshot;
	XLogRecPtr	filter_end;		/* the snapshot decides below this LSN */

	/*
	 * The publications of a stream that is taken up again; null: those
	 * subscribed.  One that was made after the slot is unknown to the stream.
	 */
	char	   *publications;

	NameData	origin_name;	/* of the table's own origin, or empty */
	RepOriginId origin;			/* what local changes are tagged with */
	XLogRecPtr	position;		/* commits below are applied and committed */
	XLogRecPtr	mark;			/* made after the copy; catch up to it first */

	bool		has_new_state;	/* set, and not yet committed */
	bool		empty_first;	/* its rows are of a copy that is lost */
	bool		refused;		/* the publisher does not let us have a table */
	bool		too_long;		/* the express way would hold locks too long */
	TimestampTz started;
	TimestampTz copied;			/* 0: not yet, or before it was resumed */
} Unit;

/* Why a snapshot was not used, or that it was. */
typedef enum SnapshotVerdict
{
	SNAPSHOT_FITS,
	SNAPSHOT_TOO_EARLY,			/* C1: take another in a moment */
	SNAPSHOT_NEEDS_NEW_SLOT		/* C2, C3 */
} SnapshotVerdict;

/*
 * Begin a unit for tables that this process has claimed in shared memory.
 * Leaves out those that there is nothing to do for (any more), and those that
 * are not what the plan took them for: half done, in state 'f', or not.  Null
 * if none are left.  Starts a transaction of its own; the current memory
 * context, which the unit is made in, must outlive that.
 */
extern Unit *unit_begin(Session *session, const Oid *relids, int nrelids,
						bool half_done);

/* The name of the slot of the server's own worker for this table. */
extern void unit_servers_slot(Unit *unit, UnitTable *table, NameData *name);

/*
 * Drop the slots that the server's own workers left for tables that are not
 * to be finished from them.  Throws if one cannot be dropped.
 */
extern void unit_drop_servers_slots(Unit *unit);

/* Make the unit use this slot of the worker. */
extern void unit_use_slot(Unit *unit, SyncSlot *slot);

/*
 * Open the publisher's transaction, lock the tables there, take the snapshot
 * (section 5) and read what describes the tables, in one round trip.  Leaves
 * the transaction open only if the snapshot fits.
 */
extern SnapshotVerdict unit_take_snapshot(Unit *unit);

/*
 * Lock the tables as a copy into them does (ROW EXCLUSIVE).  Whoever has one
 * for longer than handover_lock_timeout is not waited for: throws
 * ERRCODE_LOCK_NOT_AVAILABLE.
 */
extern void unit_lock_for_copy(Unit *unit);

/*
 * Empty those tables that are to be synchronized anew (apply_truncate.h).  The
 * tables are locked for the copy, and readers go on seeing the old rows until
 * the transaction commits.  A row that somebody else has changed is not waited for
 * longer than handover_lock_timeout.
 */
extern void unit_empty_tables(Unit *unit);

/*
 * Copy the tables in the local transaction that is open, end the publisher's,
 * and set the unit's mark.
 */
extern void unit_copy_tables(Unit *unit);

/*
 * Lock the claim and check that it still holds (step 5): takes the
 * subscription in ACCESS SHARE and pg_subscription_rel in ROW EXCLUSIVE mode,
 * in this order, until the end of the transaction.  Reads the catalog only if
 * 'always', or after an invalidation, which taking the locks brings in.
 * Deferred triggers run before.  Throws if the claim does not hold;
 * unit_is_outdated() then tells that this is nobody's failure.
 */
extern void unit_lock_claim(Unit *unit, bool always);
extern bool unit_is_outdated(void);

/* The same check without a lock, after invalidations; cheap if none came. */
extern void unit_check_claim(Unit *unit);

/*
 * Change the state of the claimed tuples; the claim must be locked.  It is
 * known to the unit only by unit_committed, after the commit.
 */
extern void unit_set_state(Unit *unit, char state, XLogRecPtr lsn);
extern void unit_committed(Unit *unit);

/* End lock waits of the open transaction after so many ms; 0: never. */
extern void unit_bound_lock_waits(int ms);

/*
 * Lock the tables in the order of their oids, lest two workers wait for each
 * other; all of them together may take handover_lock_timeout.
 */
extern void unit_lock_tables(Unit *unit, LOCKMODE lockmode);

/* The rows of our catalog that change when the tables reach 's'. */
extern void unit_record_handover(Unit *unit);

/*
 * Tag what follows with the unit's origin; hold it; and commit with its
 * position moved to 'lsn'.  The origin is held only within unit_commit, after
 * every lock has been taken (section 7, Origins).
 */
extern void unit_tag_origin(Unit *unit);
extern void unit_hold_origin(Unit *unit);
extern void unit_commit(Unit *unit, XLogRecPtr lsn, TimestampTz timestamp);

/* After an error: let go of the origin and of all that the unit held. */
extern void unit_reset_origin(void);

/* Give the memory back; null is fine. */
extern void unit_end(Unit *unit);

#endif							/* REUSE_SYNC_UNIT_H */
