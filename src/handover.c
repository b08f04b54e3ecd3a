/*-------------------------------------------------------------------------
 *
 * handover.c
 *	  The moment the apply worker becomes responsible for a table.
 *
 * design.md section 6.  The table is locked, a position P is made on the
 * publisher, everything that committed below P is applied, and the table is
 * set to 's' with P, all in one local transaction:
 *
 *		lock -> P -> apply what is below P -> check the claim -> 's' -> commit
 *
 * The order of the first two is what makes it exact.  The apply worker opens
 * the table in a mode that conflicts with our lock, for every change, and
 * reads its state only then.  A transaction in which it has already skipped a
 * change of the table had its commit flushed before we got the lock, so it
 * lies below P and is ours; one that it opens the table for after our commit
 * finds 's' and P, and is its own exactly if its commit is at or above P.
 *
 * The apply worker may have to wait for us meanwhile, so both the wait for
 * the lock and the time it is held end after handover_lock_timeout; then what
 * was applied is committed, and catch-up goes on without the lock.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/handover.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_subscription_rel.h"
#include "miscadmin.h"
#include "replication/worker_internal.h"
#include "storage/lmgr.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "catalog.h"
#include "handover.h"
#include "pool.h"
#include "settings.h"
#include "staged.h"
#include "testing.h"

/*
 * What is left to apply under the lock should take a fraction of the time the
 * lock may be held.
 */
#define CLOSE_FRACTION	4

/* After so many a table gives way to others that wait for a worker. */
#define PATIENT_ATTEMPTS	4

/* Longest time between two attempts, in ms. */
#define MAX_PAUSE		10000

/*
 * Catch up to a fresh position again and again until that takes but a
 * moment.
 */
static void
get_close(Stream *stream, bool first)
{
	Unit	   *unit = stream->unit;
	XLogRecPtr	target = unit->mark;
	int			close = reuse_sync_handover_lock_timeout / CLOSE_FRACTION;

	pool_set_phase(PHASE_CATCHING_UP);
	MemoryContextSwitchTo(unit->context);
	if (!first || XLogRecPtrIsInvalid(target))
		target = session_make_position(unit->session);
	for (;;)
	{
		TimestampTz start = GetCurrentTimestamp();

		catchup_to(stream, target);
		test_point(POINT_close, unit->tables[0].relname);
		if (!TimestampDifferenceExceeds(start, GetCurrentTimestamp(), close))
			return;
		target = session_make_position(unit->session);
	}
}

bool
handover_lock(Unit *unit)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	volatile bool locked = true;

	if (!guard_is_on("p_after_lock"))
		unit->mark = session_make_position(unit->session);
	test_point(POINT_lock, unit->tables[0].relname);

	/* A subtransaction, so that what the transaction has done stays. */
	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		if (guard_is_on("lock"))
			unit_lock_tables(unit, ShareRowExclusiveLock);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		if (edata->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE &&
			edata->sqlerrcode != ERRCODE_T_R_DEADLOCK_DETECTED)
			PG_RE_THROW();
		FlushErrorState();
		FreeErrorData(edata);
		RollbackAndReleaseCurrentSubTransaction();
		test_point(POINT_not_locked, unit->tables[0].relname);
		locked = false;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	if (locked)
		test_point(POINT_locked, unit->tables[0].relname);
	return locked;
}

/*
 * Release the lock and undo what was applied under it; it is streamed again.
 */
static void
undo(Stream *stream, const PoolCounters *before)
{
	AbortCurrentTransaction();
	unit_reset_origin();
	stream->unit->has_new_state = false;
	catalog_restore_counters(before);
	stream_end(stream);
}

/*
 * The time is over before all was applied.  Whole remote transactions stay;
 * the pieces of one go.
 */
static void
give_up_lock(Stream *stream, const PoolCounters *before)
{
	Unit	   *unit = stream->unit;

	test_point(POINT_lock_given_up, unit->tables[0].relname);
	if (stream->in_remote_transaction)
		undo(stream, before);
	else if (XLogRecPtrIsInvalid(stream->applied_end))
	{
		CommitTransactionCommand();
		unit_reset_origin();
	}
	else
	{
		unit_lock_claim(unit, true);
		unit_tag_origin(unit);
		(void) GetTopTransactionId();
		unit_commit(unit, stream->applied_end, stream->applied_time);
		unit->position = stream->applied_end;
	}
}

static void
wake_apply_worker(Oid subid)
{
	logicalrep_worker_wakeup(subid, InvalidOid);
}

TimestampTz
handover_deadline(void)
{
	return TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
									   guard_is_on("lock_bound") ?
									   reuse_sync_handover_lock_timeout / 4 * 3 :
									   INT_MAX);
}

TimestampTz
handover_timer(TimestampTz deadline)
{
	return TimestampTzPlusMilliseconds(deadline,
									   reuse_sync_handover_lock_timeout / 4);
}

bool
handover_commit(Stream *stream, TimestampTz deadline)
{
	Unit	   *unit = stream->unit;
	XLogRecPtr	p = unit->mark;

	/* P only now: what the apply worker has skipped lies below it. */
	if (guard_is_on("p_after_lock"))
		p = session_make_position(unit->session);
	test_point(POINT_position, unit->tables[0].relname);
	if (!catchup_in_transaction(stream, p, deadline))
		return false;
	test_point(POINT_caught_up, unit->tables[0].relname);

	unit_lock_claim(unit, true);
	unit_record_handover(unit);
	unit_set_state(unit, SUBREL_STATE_SYNCDONE, p);
	test_point(POINT_s_commit, unit->tables[0].relname);
	unit_commit(unit, p, 0);
	unit->position = p;
	return true;
}

void
handover_finish(Stream *stream)
{
	Unit	   *unit = stream->unit;

	wake_apply_worker(unit->session->sub->oid);

	/*
	 * Only when 's' is on disk may the slot forget what the tables would need
	 * again after a crash (section 7, Durability).
	 */
	test_point(POINT_handed_over, unit->tables[0].relname);
	if (guard_is_on("durable_reuse"))
		XLogFlush(XactLastCommitEnd);
	test_point(POINT_s_flushed, unit->tables[0].relname);
	catchup_confirm(stream, unit->position);
	test_point(POINT_confirmed, unit->tables[0].relname);
}

/*
 * One attempt; false if its time was over.  A timer ends what takes long
 * without looking at the clock: a change that waits for a lock, a trigger, a
 * sequential scan.  If it strikes while the publisher owes an answer, the
 * connection is of no more use and the unit fails; it goes on from 'f'.
 */
static bool
try_hand_over(Stream *stream)
{
	Unit	   *unit = stream->unit;
	MemoryContext context = CurrentMemoryContext;
	PoolCounters before = Counters;
	TimestampTz deadline;
	volatile bool done = false;

	pool_set_phase(PHASE_HANDING_OVER);
	StartTransactionCommand();
	if (!handover_lock(unit))
	{
		AbortCurrentTransaction();
		return false;
	}
	deadline = handover_deadline();
	enable_timeout_at(STATEMENT_TIMEOUT,
					  handover_timer(deadline));
	PG_TRY();
	{
		done = handover_commit(stream, deadline);
		if (!done)
			give_up_lock(stream, &before);
		disable_timeout(STATEMENT_TIMEOUT, false);
		/* It may have struck when all was done. */
		pool_forget_cancel();
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		disable_timeout(STATEMENT_TIMEOUT, false);
		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		if ((edata->sqlerrcode != ERRCODE_QUERY_CANCELED ||
			 pool_let_go_requested() || GetCurrentTimestamp() < deadline ||
			 !publisher_is_idle(unit->session->sql)) &&
			edata->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE &&
			edata->sqlerrcode != ERRCODE_T_R_DEADLOCK_DETECTED)
			PG_RE_THROW();
		FlushErrorState();
		FreeErrorData(edata);
		undo(stream, &before);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	return done;
}

void
hand_over(Stream *stream, bool (*others_wait) (void))
{
	Unit	   *unit = stream->unit;

	for (int attempt = 0;; attempt++)
	{
		get_close(stream, attempt == 0);
		if (try_hand_over(stream))
			break;
		if (attempt + 1 >= PATIENT_ATTEMPTS && others_wait())
			ereport(ERROR,
					errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					errmsg("table \"%s.%s\" could not be locked, or not be caught up with under the lock, within %d ms",
						   unit->tables[0].nspname, unit->tables[0].relname,
						   reuse_sync_handover_lock_timeout),
					errhint("A session holds a lock on it, see pg_locks, or its changes take long to apply; see also reuse_sync.handover_lock_timeout."));

		/*
		 * Whoever has the table may keep it for long; our request in the
		 * queue holds up the apply worker, so it is made ever more rarely.
		 */
		MemoryContextSwitchTo(unit->context);
		catchup_for(stream, Min((int64) MAX_PAUSE,
								(int64) attempt *
								reuse_sync_handover_lock_timeout));
	}

	handover_finish(stream);
	staged_drop_origin(unit);
}
