/*-------------------------------------------------------------------------
 *
 * pool_requests.c
 *	  What other backends ask of the processes of the pool, and wait for.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/pool_requests.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "storage/procarray.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "pool_shared.h"

int
pool_request_let_go(Oid dbid, Oid subid)
{
	int			holders = 0;

	pool_lock(true);
	for (int i = 0; i < pool_size(); i++)
	{
		PoolWorker *w = &Pool->workers[i];

		if (!w->in_use || w->pid == 0 || w->dbid != dbid ||
			(w->subid != subid && w->cleanup_subid != subid))
			continue;
		holders++;
		if (!w->let_go)
		{
			w->let_go = true;
			if (kill(w->pid, SIGINT) < 0)
				elog(DEBUG1, "could not signal process %d: %m", w->pid);
		}
	}
	pool_unlock();
	return holders;
}

void
pool_request_leave(Oid dbid, bool busy_too)
{
	pool_lock(true);
	for (int i = 0; i < pool_size(); i++)
	{
		PoolWorker *w = &Pool->workers[i];

		if (!w->in_use || w->dbid != dbid)
			continue;
		if (!busy_too && w->type == POOL_WORKER &&
			(OidIsValid(w->subid) || w->slot_id != 0))
			continue;
		w->leave = true;
		if (w->type == POOL_CLEANER && w->pid != 0)
		{
			if (kill(w->pid, SIGINT) < 0)
				elog(DEBUG1, "could not signal process %d: %m", w->pid);
		}
		else if (w->latch != NULL)
			SetLatch(w->latch);
	}
	pool_unlock();
}

/* The processes of a database; pids that are still those of processes. */
static List *
live_processes(Oid dbid, List *pids)
{
	int		   *entries = palloc(pool_size() * sizeof(int));
	int			n = 0;
	List	   *live = NIL;
	ListCell   *lc;

	pool_lock(false);
	for (int i = 0; i < pool_size(); i++)
	{
		PoolWorker *w = &Pool->workers[i];

		if (w->in_use && w->dbid == dbid && w->pid != 0)
			entries[n++] = w->pid;
	}
	pool_unlock();
	for (int i = 0; i < n; i++)
		live = lappend_int(live, entries[i]);
	pfree(entries);

	/* An entry is free a moment before its process is gone. */
	foreach(lc, pids)
	{
		if (BackendPidGetProc(lfirst_int(lc)) != NULL)
			live = list_append_unique_int(live, lfirst_int(lc));
	}
	return live;
}

void
pool_wait_until_left(Oid dbid, int ms)
{
	TimestampTz end = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), ms);
	List	   *pids = NIL;

	pool_prepare_to_wait();
	while ((pids = live_processes(dbid, pids)) != NIL &&
		   GetCurrentTimestamp() < end)
		pool_wait_for_change(10);
	pool_end_wait();
}

List *
pool_claimed_tables(Oid subid)
{
	Oid		   *relids = palloc(pool_size() * POOL_MAX_BATCH * sizeof(Oid));
	List	   *result = NIL;
	int			n = 0;

	/* No memory is asked for while the lock is held. */
	pool_lock(false);
	for (int i = 0; i < pool_size(); i++)
	{
		PoolWorker *w = &Pool->workers[i];

		if (!w->in_use || w->subid != subid)
			continue;
		memcpy(relids + n, w->relids, w->nrelids * sizeof(Oid));
		n += w->nrelids;
	}
	pool_unlock();
	for (int i = 0; i < n; i++)
		result = lappend_oid(result, relids[i]);
	pfree(relids);
	return result;
}

bool
pool_drains(Oid dbid)
{
	for (int i = 0; i < Pool->ndraining; i++)
		if (Pool->draining[i] == dbid)
			return true;
	return false;
}

bool
pool_set_draining(Oid dbid, bool set)
{
	bool		ok = true;

	pool_lock(true);
	if (set && !pool_drains(dbid))
	{
		ok = Pool->ndraining < MAX_DRAINING;
		if (ok)
			Pool->draining[Pool->ndraining++] = dbid;
	}
	else if (!set)
	{
		for (int i = 0; i < Pool->ndraining; i++)
			if (Pool->draining[i] == dbid)
				Pool->draining[i] = Pool->draining[--Pool->ndraining];
	}
	pool_unlock();
	return ok;
}

bool
pool_is_draining(Oid dbid)
{
	bool		result;

	pool_lock(false);
	result = pool_drains(dbid);
	pool_unlock();
	return result;
}

int
pool_busy_in_database(Oid dbid)
{
	int			n = 0;

	pool_lock(false);
	for (int i = 0; i < pool_size(); i++)
	{
		PoolWorker *w = &Pool->workers[i];

		if (w->in_use && w->dbid == dbid &&
			(w->nrelids > 0 || w->slot_id != 0 ||
			 w->cleanup_slot_id != 0))
			n++;
	}
	pool_unlock();
	return n;
}

void
pool_wake_database(Oid dbid)
{
	pool_lock(true);
	for (int i = 0; i < pool_size(); i++)
	{
		PoolWorker *w = &Pool->workers[i];

		if (!w->in_use || (OidIsValid(dbid) && w->dbid != dbid))
			continue;
		w->hinted = true;
		if (w->latch != NULL)
			SetLatch(w->latch);
	}
	pool_unlock();
}

void
pool_announce_change(void)
{
	ConditionVariableBroadcast(&Pool->changed);
}

void
pool_prepare_to_wait(void)
{
	ConditionVariablePrepareToSleep(&Pool->changed);
}

void
pool_wait_for_change(long timeout_ms)
{
	ConditionVariableTimedSleep(&Pool->changed, timeout_ms,
								compat_wait_event());
}

void
pool_end_wait(void)
{
	ConditionVariableCancelSleep();
}
