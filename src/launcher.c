/*-------------------------------------------------------------------------
 *
 * launcher.c
 *	  The process that decides how many workers there are, and for whom.
 *
 * The launcher is connected to no database.  It sees which subscriptions there
 * are (pg_subscription is shared), but neither whether a database has the
 * extension nor whether a table of it is pending.  So it does not look; it is
 * told:
 *
 *	- by whoever commits a command that makes work, and by each apply worker
 *	  of a database with the extension when it starts (hooks.c): a hint that
 *	  names the database;
 *	- by every worker after each look: how many more tables could be served at
 *	  once, and when something is due again.
 *
 * A hint starts one worker for each owner of enabled subscriptions there; it
 * looks, says how much there is, and the launcher starts more.  Workers end by
 * themselves when idle, so a database without work costs no process.  When the
 * server starts, each database gets one look by a cleaner, which drops slots
 * of subscriptions that are gone.
 *
 * When the pool is full, a group (database and owner) that waits gets the next
 * worker of the group that has most.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/launcher.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_database.h"
#include "catalog/pg_subscription.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "launcher.h"
#include "pool.h"
#include "pool_notes.h"
#include "settings.h"
#include "subscriptions.h"
#include "testing.h"
#include "worker.h"

/* How long the only worker of a group may serve while others wait, in ms. */
#define TENURE		10000

/* Those that workers are started for: a database and an owner in it. */
typedef struct WorkerGroup
{
	Oid			dbid;
	Oid			owner;			/* InvalidOid: the database's cleaner */
	bool		known;			/* has been looked at, or will be */
	bool		seen;			/* in the last list of subscriptions */
	TimestampTz due;			/* look then; 0: when hinted */
	TimestampTz replace;		/* one has left or died: look then, whatever
								 * others report; 0: none has */
	int			pending;		/* tables more workers could take now */
} WorkerGroup;

static List *groups = NIL;
static MemoryContext launcher_context = NULL;

/* What was started, until it ends: to learn of what never came up. */
static BackgroundWorkerHandle **handles = NULL;

static bool no_process_reported = false;

void
launcher_register(void)
{
	BackgroundWorker worker = {0};

	strlcpy(worker.bgw_name, "reuse_sync launcher", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "reuse_sync launcher", BGW_MAXLEN);
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS |
		BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = 5;
	strlcpy(worker.bgw_library_name, EXTENSION_NAME, BGW_MAXLEN);
	strlcpy(worker.bgw_function_name, "reuse_sync_launcher_main",
			BGW_MAXLEN);
	RegisterBackgroundWorker(&worker);
}

/* --- groups --- */

static WorkerGroup *
get_group(Oid dbid, Oid owner)
{
	MemoryContext caller;
	WorkerGroup *group;
	ListCell   *lc;

	foreach(lc, groups)
	{
		group = lfirst(lc);
		if (group->dbid == dbid && group->owner == owner)
			return group;
	}
	caller = MemoryContextSwitchTo(launcher_context);
	group = palloc0(sizeof(WorkerGroup));
	group->dbid = dbid;
	group->owner = owner;
	groups = lappend(groups, group);
	MemoryContextSwitchTo(caller);
	return group;
}

static void
make_due(WorkerGroup *group)
{
	TimestampTz now = GetCurrentTimestamp();

	if (group->due == 0 || group->due > now)
		group->due = now;
}

/* Read the subscriptions that are served; those of a new group are looked at. */
static void
refresh_groups(void)
{
	ListCell   *lc;

	foreach(lc, groups)
		((WorkerGroup *) lfirst(lc))->seen = false;

	StartTransactionCommand();
	foreach(lc, subscriptions_of(InvalidOid))
	{
		Form_pg_subscription form = lfirst(lc);

		/* A drain has to do with what is disabled, too. */
		if (form->subenabled || pool_is_draining(form->subdbid))
		{
			WorkerGroup *group = get_group(form->subdbid, form->subowner);

			if (!group->known)
				make_due(group);
			group->known = group->seen = true;
		}
	}
	CommitTransactionCommand();

	foreach(lc, groups)
	{
		WorkerGroup *group = lfirst(lc);

		if (OidIsValid(group->owner) && !group->seen)
		{
			groups = foreach_delete_current(groups, lc);
			pfree(group);
		}
	}
}

/* Have every database looked at once; those that take connections. */
static void
look_everywhere(void)
{
	Relation	rel;
	SysScanDesc scan;
	HeapTuple	tuple;

	StartTransactionCommand();
	rel = table_open(DatabaseRelationId, AccessShareLock);
	scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_database form = (Form_pg_database) GETSTRUCT(tuple);

		if (form->datallowconn && !form->datistemplate)
			make_due(get_group(form->oid, InvalidOid));
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	CommitTransactionCommand();
}

/* Live processes of a group; '*idle' of them have nothing to do. */
static int
group_workers(const WorkerGroup *group, int *idle)
{
	int			n = 0;

	*idle = 0;
	pool_lock(false);
	for (int i = 0; i < pool_size(); i++)
	{
		PoolWorker *w = pool_entry(i);

		if (w->in_use && !w->finished && w->dbid == group->dbid &&
			w->userid == group->owner)
		{
			n++;
			if (w->phase == PHASE_IDLE || w->phase == PHASE_STARTING)
				(*idle)++;
		}
	}
	pool_unlock();
	return n;
}

/*
 * Nobody has called for long: one group that has no process looks, each in its
 * turn, in case a call was missed.
 */
static void
look_at_next(void)
{
	static int	turn = 0;
	int			idle;

	if (groups == NIL)
		return;
	turn = (turn + 1) % list_length(groups);
	if (OidIsValid(((WorkerGroup *) list_nth(groups, turn))->owner) &&
		group_workers(list_nth(groups, turn), &idle) == 0)
		make_due(list_nth(groups, turn));
}

/* The groups of a database, or all, are to look for work. */
static void
hint_groups(Oid dbid)
{
	ListCell   *lc;

	foreach(lc, groups)
	{
		WorkerGroup *group = lfirst(lc);

		if (OidIsValid(group->owner) &&
			(group->dbid == dbid || !OidIsValid(dbid)))
			make_due(group);
	}
	pool_wake_database(dbid);
}

static void
take_hints(void)
{
	Oid			dbid;
	bool		cleanup;

	while (pool_take_hint(&dbid, &cleanup))
	{
		refresh_groups();
		if (!OidIsValid(dbid))
			look_everywhere();
		else if (cleanup)
			make_due(get_group(dbid, InvalidOid));
		hint_groups(dbid);
	}
}

/* --- processes --- */

/* Free the entry of a process that has ended, or never came up. */
static void
reap(int index)
{
	pool_unreserve(index);
	if (handles[index] != NULL)
		pfree(handles[index]);
	handles[index] = NULL;
}

/*
 * Entries that a launcher before us reserved for processes that have not come
 * up: if they still do, their tickets are not valid any more.
 */
static void
reap_lost(void)
{
	for (int i = 0; i < pool_size(); i++)
	{
		bool		lost;

		pool_lock(false);
		lost = pool_entry(i)->in_use && pool_entry(i)->pid == 0;
		pool_unlock();
		if (lost)
			reap(i);
	}
}

/* Have somebody look then, in the place of one who has left or died. */
static void
replace_at(WorkerGroup *group, TimestampTz when)
{
	if (guard_is_on("replace"))
		group->replace = when;
	else
		group->due = when;
}

/*
 * Take in what workers report, and the entries of those that ended.  What a
 * worker found before it was last hinted says nothing.
 */
static void
take_reports(void)
{
	for (int i = 0; i < pool_size(); i++)
	{
		PoolWorker	copy;
		WorkerGroup *group;
		bool		left_idle;
		bool		never_came_up;
		pid_t		pid;

		pool_lock(true);
		copy = *pool_entry(i);
		pool_entry(i)->looked = false;
		pool_unlock();

		if (!copy.in_use)
			continue;
		group = get_group(copy.dbid, copy.userid);
		never_came_up = handles[i] != NULL && copy.pid == 0 &&
			!copy.finished &&
			GetBackgroundWorkerPid(handles[i], &pid) == BGWH_STOPPED;
		if (copy.looked && !copy.hinted)
		{
			group->pending = copy.pending;
			group->due = copy.next_look;
		}
		else if (copy.looked && !copy.finished &&
				 copy.phase != PHASE_IDLE && guard_is_on("hint"))
		{
			/* It may be at work for long before it looks again. */
			group->pending = copy.pending;
			make_due(group);
		}
		/* One that left and was idle has said when it would look again. */
		left_idle = copy.leave && copy.phase == PHASE_IDLE && !copy.hinted;

		/* It was asked to leave, or died: what it had to do is still there. */
		if (copy.finished && (copy.hinted || copy.leave) && !left_idle)
			replace_at(group, GetCurrentTimestamp());
		else if ((copy.finished && !copy.done && !left_idle) || never_came_up)
		{
			replace_at(group,
					   TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
												   wal_retrieve_retry_interval));
			pool_note_failure(copy.dbid, copy.userid);
		}
		if (copy.finished || never_came_up)
		{
			/* Of those that have as few, the others come first. */
			groups = lappend(list_delete_ptr(groups, group), group);
			reap(i);
		}
	}
}

/* Reads the heap: without a database there are no indexes. */
static bool
database_exists(Oid dbid)
{
	Relation	rel;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		exists = false;

	StartTransactionCommand();
	rel = table_open(DatabaseRelationId, AccessShareLock);
	scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	while (!exists && HeapTupleIsValid(tuple = systable_getnext(scan)))
		exists = ((Form_pg_database) GETSTRUCT(tuple))->oid == dbid;
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	CommitTransactionCommand();
	return exists;
}

/* Start a process for the group; false if there is no place or process. */
static bool
start_process(WorkerGroup *group)
{
	BackgroundWorker worker = {0};
	PoolWorkerType type =
	OidIsValid(group->owner) ? POOL_WORKER : POOL_CLEANER;
	uint64		ticket;
	int			index = pool_reserve(type, group->dbid, group->owner,
									 &ticket);
	MemoryContext caller;
	bool		ok;

	if (index < 0)
		return false;
	snprintf(worker.bgw_name, BGW_MAXLEN, "reuse_sync %s",
			 type == POOL_WORKER ? "worker" : "cleaner");
	strlcpy(worker.bgw_type, worker.bgw_name, BGW_MAXLEN);
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS |
		BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_notify_pid = MyProcPid;
	worker.bgw_main_arg = UInt64GetDatum(ticket);
	strlcpy(worker.bgw_library_name, EXTENSION_NAME, BGW_MAXLEN);
	strlcpy(worker.bgw_function_name, "reuse_sync_worker_main", BGW_MAXLEN);

	caller = MemoryContextSwitchTo(launcher_context);
	ok = RegisterDynamicBackgroundWorker(&worker, &handles[index]);
	MemoryContextSwitchTo(caller);
	if (!ok)
	{
		handles[index] = NULL;
		reap(index);
		if (!no_process_reported)
			ereport(LOG,
					errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
					errmsg("reuse_sync cannot start as many workers as it could use"),
					errhint("You might need to increase max_worker_processes."));
		no_process_reported = true;
		return false;
	}
	no_process_reported = false;
	return true;
}

/* Caller holds the lock. */
static void
ask_to_leave(PoolWorker *w)
{
	w->leave = true;
	if (w->latch != NULL)
		SetLatch(w->latch);
}

/*
 * The pool is full and 'group' has nobody: ask the group with most workers to
 * part with one after its unit.  The only worker of a group may stay for some
 * time, lest two groups take turns table by table.
 */
static void
make_room(const WorkerGroup *group)
{
	WorkerGroup *richest = NULL;
	int			most = 0;
	ListCell   *lc;
	TimestampTz now = GetCurrentTimestamp();

	foreach(lc, groups)
	{
		WorkerGroup *other = lfirst(lc);
		int			idle;
		int			n = group_workers(other, &idle);

		if (other != group && OidIsValid(other->owner) && n > most)
		{
			most = n;
			richest = other;
		}
	}
	if (richest == NULL)
		return;

	pool_lock(true);
	for (int i = 0; i < pool_size(); i++)
	{
		PoolWorker *w = pool_entry(i);

		if (!w->in_use || w->dbid != richest->dbid ||
			w->userid != richest->owner)
			continue;
		if (w->leave)
			break;				/* asked already */
		if (w->phase == PHASE_STARTING)
			continue;			/* it has not looked yet */
		if (most > 1 || w->phase == PHASE_IDLE ||
			TimestampDifferenceExceeds(w->backend_start, now, TENURE))
		{
			ask_to_leave(w);
			break;
		}
	}
	pool_unlock();
}

/*
 * The pool is full and 'group' could use more: as many workers of others as it
 * has tables for end before their time, if they have nothing to do.  False if
 * there are none.
 */
static bool
part_with_idle(const WorkerGroup *group)
{
	int			wanted = Max(group->pending, 1);
	int			n = 0;

	pool_lock(true);
	for (int i = 0; i < pool_size() && n < wanted; i++)
	{
		PoolWorker *w = pool_entry(i);

		if (!w->in_use || w->finished || w->type != POOL_WORKER ||
			w->phase != PHASE_IDLE || w->hinted ||
			(w->dbid == group->dbid && w->userid == group->owner))
			continue;
		ask_to_leave(w);
		n++;
	}
	pool_unlock();
	return n > 0;
}

/* Does the group want another process, beside the 'n' it has? */
static bool
wants_process(const WorkerGroup *group, int n, int idle)
{
	bool		wanted = group->pending > 0 ||
	(group->due != 0 && group->due <= GetCurrentTimestamp());

	/* An idle one has been woken and looks; a busy one may be at it for long. */
	return wanted && (n == 0 || (OidIsValid(group->owner) && idle == 0));
}

/* Idle workers of a group that is due look before another is started. */
static void
wake_idle(void)
{
	TimestampTz now = GetCurrentTimestamp();
	ListCell   *lc;

	foreach(lc, groups)
	{
		WorkerGroup *group = lfirst(lc);
		int			idle;

		if (group->replace != 0 && group->replace <= now)
		{
			group->replace = 0;
			make_due(group);
		}
		if (group->due == 0 || group->due > now)
			continue;
		(void) group_workers(group, &idle);
		if (idle > 0)
		{
			group->due = 0;
			pool_wake_database(group->dbid);
		}
	}
}

/* Start what is wanted, the groups with the fewest workers first. */
static void
start_processes(void)
{
	wake_idle();
	for (;;)
	{
		WorkerGroup *poorest = NULL;
		int			fewest = 0;
		ListCell   *lc;

		foreach(lc, groups)
		{
			WorkerGroup *group = lfirst(lc);
			int			idle;
			int			n = group_workers(group, &idle);

			if (wants_process(group, n, idle) &&
				(poorest == NULL || n < fewest))
			{
				poorest = group;
				fewest = n;
			}
		}
		if (poorest == NULL)
			return;
		if (!database_exists(poorest->dbid))
		{
			groups = list_delete_ptr(groups, poorest);
			pfree(poorest);
			continue;
		}
		if (!start_process(poorest))
		{
			if (!part_with_idle(poorest) && fewest == 0)
				make_room(poorest);
			return;
		}
		poorest->due = 0;
		if (poorest->pending > 0)
			poorest->pending--;
	}
}

/* Until when there is nothing to do unless somebody calls, in ms. */
static long
time_to_sleep(void)
{
	TimestampTz now = GetCurrentTimestamp();
	long		sleep = reuse_sync_naptime;
	ListCell   *lc;

	foreach(lc, groups)
	{
		WorkerGroup *group = lfirst(lc);

		if (group->due > now)
			sleep = Min(sleep,
						TimestampDifferenceMilliseconds(now, group->due));
		if (group->replace != 0)
			sleep = Min(sleep,
						TimestampDifferenceMilliseconds(now, group->replace));
	}
	return Max(sleep, 1);
}

void
reuse_sync_launcher_main(Datum arg)
{
	settings_follow_reloads();
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	pool_attach_launcher();
	pool_set_phase(PHASE_IDLE);

	launcher_context = AllocSetContextCreate(TopMemoryContext,
											 "reuse_sync launcher",
											 ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(launcher_context);
	handles = palloc0(pool_size() * sizeof(BackgroundWorkerHandle *));
	reap_lost();
	ereport(LOG, errmsg("reuse_sync launcher has started"));

	for (;;)
	{
		int			rc;

		CHECK_FOR_INTERRUPTS();
		take_hints();
		take_reports();
		start_processes();

		rc = WaitLatch(MyLatch,
					   WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					   time_to_sleep(), compat_wait_event());
		ResetLatch(MyLatch);
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			refresh_groups();
			hint_groups(InvalidOid);
		}
		if (rc & WL_TIMEOUT)
		{
			refresh_groups();
			look_at_next();
		}
	}
}
