/*-------------------------------------------------------------------------
 *
 * work_list.c
 *	  What there is to do in this database for this owner.
 *
 * Nothing of a subscription is eligible while its apply worker might start
 * table-sync workers of its own (design.md section 3) or does not stream
 * (lease.h), and no table that such a worker still has.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/work_list.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_subscription.h"
#include "catalog/pg_subscription_rel.h"
#include "miscadmin.h"
#include "replication/worker_internal.h"
#include "storage/lwlock.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "catalog.h"
#include "compat.h"
#include "failure.h"
#include "lease.h"
#include "pool.h"
#include "pool_notes.h"
#include "settings.h"
#include "slot_orphans.h"
#include "subscriptions.h"
#include "work_list.h"

typedef struct Postponed
{
	Oid			subid;
	TimestampTz until;
	TimestampTz orphans_until;
} Postponed;

static List *postponed = NIL;

static TimestampTz
sooner(TimestampTz a, TimestampTz b)
{
	return a == 0 ? b : (b == 0 ? a : Min(a, b));
}

static Postponed *
get_postponed(Oid subid)
{
	MemoryContext caller;
	ListCell   *lc;
	Postponed  *entry;

	foreach(lc, postponed)
	{
		entry = lfirst(lc);
		if (entry->subid == subid)
			return entry;
	}
	caller = MemoryContextSwitchTo(TopMemoryContext);
	entry = palloc0(sizeof(Postponed));
	entry->subid = subid;
	postponed = lappend(postponed, entry);
	MemoryContextSwitchTo(caller);
	return entry;
}

void
work_list_postpone(Oid subid, TimestampTz until)
{
	get_postponed(subid)->until = until;
}

void
work_list_postpone_orphans(Oid subid, TimestampTz until)
{
	get_postponed(subid)->orphans_until = until;
}

/* A time that has not come yet, or 0. */
static TimestampTz
future(TimestampTz t)
{
	return t > GetCurrentTimestamp() ? t : 0;
}

bool
work_list_is_postponed(Oid subid)
{
	return future(get_postponed(subid)->until) != 0;
}

/* Are there slots of it to be dropped, and is it time to? */
static bool
orphans_due(Oid subid, TimestampTz *next_look)
{
	TimestampTz until = future(get_postponed(subid)->orphans_until);

	if (!slot_has_orphans(subid))
		return false;
	*next_look = sooner(*next_look, until);
	return until == 0;
}

static bool
servers_worker(Oid subid, Oid relid)
{
	bool		found;

	LWLockAcquire(LogicalRepWorkerLock, LW_SHARED);
	found = logicalrep_worker_find(subid, relid, false) != NULL;
	LWLockRelease(LogicalRepWorkerLock);
	return found;
}

bool
work_list_is_due(Oid subid, Oid relid)
{
	TableProgress progress;

	if (servers_worker(subid, relid))
		return false;
	catalog_get_progress(subid, relid, &progress);
	return catalog_retry_time(subid, relid, &progress) == 0 ||
		pool_is_draining(MyDatabaseId);
}

/* What the rows of one table say together. */
typedef struct Resync
{
	bool		requested;		/* nobody has looked at it yet */
	bool		tried;
	bool		set_back;
	bool		begun;
} Resync;

static Resync
resync_of(const List *resyncs, Oid relid)
{
	Resync		result = {0};
	ListCell   *lc;

	foreach(lc, resyncs)
	{
		ResyncRow  *row = lfirst(lc);

		if (row->relid != relid)
			continue;
		result.requested |= row->stage == RESYNC_REQUESTED;
		result.tried |= row->stage == RESYNC_TRIED;
		result.set_back |= row->stage == RESYNC_SET_BACK;
		result.begun |= row->stage == RESYNC_BEGUN;
	}
	return result;
}

/*
 * May it begin now?  The step from 's' to 'r' is the apply worker's.  While
 * nothing new may begin, what is half done must go on all the same.  If it is
 * half done and in 'r', the server has synchronized it while the library was not
 * there: into what it held, so it has to begin again.
 */
static bool
may_begin(Oid subid, Oid relid, const Resync *resync, TimestampTz *next_look)
{
	TimestampTz soon = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
												   wal_retrieve_retry_interval);
	TableProgress progress;
	TimestampTz retry;
	XLogRecPtr	lsn;
	char		state;

	if (pool_table_is_claimed(subid, relid))
		return false;
	state = GetSubscriptionRelState(subid, relid, &lsn);
	if (resync->set_back ||
		(resync->begun && state == SUBREL_STATE_READY))
		return !reuse_sync_paused || pool_is_draining(MyDatabaseId);
	if (!(resync->requested || resync->tried) || reuse_sync_paused ||
		pool_is_draining(MyDatabaseId))
		return false;
	if (servers_worker(subid, relid) || state == SUBREL_STATE_SYNCDONE)
	{
		*next_look = sooner(*next_look, soon);
		return false;
	}
	catalog_get_progress(subid, relid, &progress);
	retry = catalog_retry_time(subid, relid, &progress);
	if (resync->requested || retry == 0)
		return true;
	*next_look = sooner(*next_look, retry);
	return false;
}

List *
work_list_resyncs(Oid subid, MemoryContext context, TimestampTz *next_look)
{
	List	   *resyncs = catalog_resyncs(subid);
	List	   *seen = NIL;
	List	   *relids = NIL;
	ListCell   *lc;

	foreach(lc, resyncs)
	{
		Oid			relid = ((ResyncRow *) lfirst(lc))->relid;
		Resync		resync;

		if (list_member_oid(seen, relid))
			continue;
		seen = lappend_oid(seen, relid);
		resync = resync_of(resyncs, relid);
		if (may_begin(subid, relid, &resync, next_look))
		{
			MemoryContext caller = MemoryContextSwitchTo(context);

			relids = lappend_oid(relids, relid);
			MemoryContextSwitchTo(caller);
		}
	}
	return relids;
}

List *
work_list_tables(Oid subid, MemoryContext context, TimestampTz *next_look)
{
	List	   *tables = NIL;
	List	   *resyncs = catalog_resyncs(subid);
	ListCell   *lc;
	bool		draining = pool_is_draining(MyDatabaseId);

	foreach(lc, GetSubscriptionRelations(subid, true))
	{
		SubscriptionRelState *rel = lfirst(lc);
		Resync		resync = resync_of(resyncs, rel->relid);
		TableProgress progress;
		TimestampTz retry;

		if (rel->state == SUBREL_STATE_SYNCDONE ||
			pool_table_is_claimed(subid, rel->relid))
			continue;
		/* Not before it has been begun, if it may be. */
		if (resync.set_back ||
			((resync.requested || resync.tried) &&
			 !(reuse_sync_paused || draining)))
			continue;
		if (servers_worker(subid, rel->relid))
		{
			*next_look = sooner(*next_look,
								TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
															wal_retrieve_retry_interval));
			continue;
		}
		catalog_get_progress(subid, rel->relid, &progress);
		retry = catalog_retry_time(subid, rel->relid, &progress);
		/* A drain tries once more at once; then the table is set back. */
		if (retry != 0 && !draining)
		{
			*next_look = sooner(*next_look, retry);
			continue;
		}
		if (rel->state == SUBREL_STATE_FINISHEDCOPY ||
			!(reuse_sync_paused || draining) || (draining && resync.begun))
		{
			MemoryContext caller = MemoryContextSwitchTo(context);
			WorkTable  *table = palloc(sizeof(WorkTable));

			table->relid = rel->relid;
			table->half_done = rel->state == SUBREL_STATE_FINISHEDCOPY;
			tables = lappend(tables, table);
			MemoryContextSwitchTo(caller);
		}
	}
	return tables;
}

/* The subscriptions of this database and owner that are enabled, or not. */
static List *
my_subscriptions(bool enabled)
{
	List	   *result = NIL;
	ListCell   *lc;

	foreach(lc, subscriptions_of(MyDatabaseId))
	{
		Form_pg_subscription form = lfirst(lc);

		if (form->subenabled == enabled && form->subowner == GetUserId())
			result = lappend_oid(result, form->oid);
	}
	return result;
}

List *
work_list_disabled(MemoryContext context)
{
	List	   *result;

	StartTransactionCommand();
	MemoryContextSwitchTo(context);
	result = my_subscriptions(false);
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	return result;
}

bool
work_list_another_waits(Oid current)
{
	bool		waits = false;
	ListCell   *lc;

	StartTransactionCommand();
	foreach(lc, catalog_hold() ? my_subscriptions(true) : NIL)
	{
		Oid			subid = lfirst_oid(lc);
		TimestampTz ignored = 0;

		if (subid != current && !waits &&
			pool_workers_of_subscription(subid) == 0 &&
			future(get_postponed(subid)->until) == 0 &&
			lease_is_held(subid))
			waits = work_list_tables(subid, CurrentMemoryContext,
									 &ignored) != NIL ||
				work_list_resyncs(subid, CurrentMemoryContext,
								  &ignored) != NIL;
	}
	CommitTransactionCommand();
	return waits;
}

WorkList *
work_list_look(Oid last, bool anothers_turn)
{
	MemoryContext caller = CurrentMemoryContext;
	WorkList   *work = palloc0(sizeof(WorkList));
	List	   *subscriptions;
	int			fewest = 0;
	ListCell   *lc;

	StartTransactionCommand();
	work->gone = !catalog_hold();
	MemoryContextSwitchTo(caller);
	subscriptions = work->gone ? NIL : my_subscriptions(true);
	work->nobody = (subscriptions == NIL);
	foreach(lc, subscriptions)
	{
		Oid			subid = lfirst_oid(lc);
		int			workers = pool_workers_of_subscription(subid);
		TimestampTz until = future(get_postponed(subid)->until);
		TimestampTz ignored = 0;
		List	   *tables;
		List	   *resyncs;

		work->next_look = sooner(work->next_look, until);
		if (until != 0)
			continue;
		if (!lease_is_held(subid))
		{
			if (work_list_tables(subid, caller, &ignored) != NIL ||
				work_list_resyncs(subid, caller, &ignored) != NIL)
				(void) pool_note_problem(subid, ERRCODE_OBJECT_IN_USE,
										 failure_with_hint("the subscription's apply worker does not stream from its replication slot",
														   "The server's log says why, and perhaps reuse_sync.check()."),
										 lease_patience());
			continue;
		}
		tables = work_list_tables(subid, caller, &work->next_look);
		resyncs = work_list_resyncs(subid, caller, &work->next_look);
		pool_end_problems(subid, tables == NIL && resyncs == NIL ?
						  0 : ERRCODE_OBJECT_IN_USE);
		if (workers >= reuse_sync_max_workers_per_subscription ||
			(tables == NIL && resyncs == NIL &&
			 !orphans_due(subid, &work->next_look)))
			continue;
		work->more += Min(list_length(tables) + list_length(resyncs),
						  reuse_sync_max_workers_per_subscription - workers);
		if (work->subid == InvalidOid || workers < fewest ||
			(workers == fewest &&
			 (anothers_turn ? work->subid == last : subid == last)))
		{
			work->subid = subid;
			work->tables = tables;
			fewest = workers;
		}
	}
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
	return work;
}
