/*-------------------------------------------------------------------------
 *
 * pool.c
 *	  Shared memory of the pool.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/pool.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "replication/logicallauncher.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "pool_shared.h"
#include "settings.h"
#include "testing.h"

PoolShared *Pool = NULL;
PoolWorker *MyPoolWorker = NULL;

static Size
pool_shmem_size(void)
{
	Size		size;

	size = add_size(offsetof(PoolShared, workers),
					mul_size(reuse_sync_max_workers, sizeof(PoolWorker)));
	return add_size(MAXALIGN(size),
					mul_size(max_logical_replication_workers,
							 sizeof(ApplyWorkerEntry)));
}

void
pool_shmem_request(void)
{
	RequestAddinShmemSpace(pool_shmem_size());
	RequestNamedLWLockTranche(EXTENSION_NAME, 1);
}

void
pool_shmem_startup(void)
{
	bool		found;
	Size		head;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	Pool = ShmemInitStruct(EXTENSION_NAME, pool_shmem_size(), &found);
	if (!found)
	{
		memset(Pool, 0, pool_shmem_size());
		Pool->lock = &(GetNamedLWLockTranche(EXTENSION_NAME))->lock;
		ConditionVariableInit(&Pool->changed);
		head = offsetof(PoolShared, workers) +
			reuse_sync_max_workers * sizeof(PoolWorker);
		Pool->apply_change = GetCurrentTimestamp();
		Pool->apply_change = GetCurrentTimestamp();
		Pool->napply = max_logical_replication_workers;
		Pool->apply = (ApplyWorkerEntry *) ((char *) Pool + MAXALIGN(head));
	}
	LWLockRelease(AddinShmemInitLock);
}

bool
pool_exists(void)
{
	return Pool != NULL;
}

void
pool_lock(bool exclusive)
{
	LWLockAcquire(Pool->lock, exclusive ? LW_EXCLUSIVE : LW_SHARED);
}

void
pool_unlock(void)
{
	LWLockRelease(Pool->lock);
}

int
pool_size(void)
{
	return reuse_sync_max_workers;
}

PoolWorker *
pool_entry(int index)
{
	return index < 0 ? &Pool->launcher : &Pool->workers[index];
}

/* Caller holds the lock, so that the latch's owner can't be gone. */
static void
wake_launcher(void)
{
	if (Pool->launcher.latch != NULL)
		SetLatch(Pool->launcher.latch);
}

/* --- life of a process of the pool --- */

/* At exit, all that this process held is free. */
static void
pool_detach(int code, Datum arg)
{
	PoolWorker *me = MyPoolWorker;

	if (me == NULL)
		return;
	pool_lock(true);
	me->pid = 0;
	me->latch = NULL;
	me->let_go = false;
	me->subid = me->cleanup_subid = InvalidOid;
	me->nrelids = 0;
	me->slot_id = me->cleanup_slot_id = 0;
	if (me == &Pool->launcher)
		me->in_use = false;
	else
	{
		me->finished = true;
		wake_launcher();
	}
	MyPoolWorker = NULL;
	pool_unlock();
	ConditionVariableBroadcast(&Pool->changed);
}

/* Caller holds the lock. */
static void
become(PoolWorker *me)
{
	me->in_use = true;
	me->pid = MyProcPid;
	me->latch = MyLatch;
	me->phase = PHASE_STARTING;
	me->backend_start = me->state_change = GetCurrentTimestamp();
	MyPoolWorker = me;
	before_shmem_exit(pool_detach, (Datum) 0);
}

bool
pool_attach(uint64 ticket)
{
	PoolWorker *me = &Pool->workers[ticket & 0xFFFF];
	bool		mine;

	pool_lock(true);
	mine = me->in_use && !me->finished && me->pid == 0 &&
		me->generation == (uint32) (ticket >> 16);
	if (mine)
		become(me);
	pool_unlock();
	return mine;
}

void
pool_attach_launcher(void)
{
	pool_lock(true);
	if (Pool->launcher.pid != 0)
	{
		pool_unlock();
		ereport(ERROR,
				errcode(ERRCODE_OBJECT_IN_USE),
				errmsg("the reuse_sync launcher is already running"));
	}
	Pool->launcher.type = POOL_LAUNCHER;
	become(&Pool->launcher);
	Pool->hint_all = true;
	pool_unlock();
}

int
pool_my_place(void)
{
	return (int) (MyPoolWorker - Pool->workers);
}

void
pool_set_phase(PoolPhase phase)
{
	pool_lock(true);
	if (MyPoolWorker->phase != phase)
	{
		MyPoolWorker->phase = phase;
		MyPoolWorker->state_change = GetCurrentTimestamp();
	}
	pool_unlock();
}

const char *
pool_phase_name(PoolPhase phase)
{
	switch (phase)
	{
		case PHASE_STARTING:
			return "starting";
		case PHASE_IDLE:
			return "idle";
		case PHASE_CONNECTING:
			return "connecting";
		case PHASE_SETTING_BACK:
			return "setting back";
		case PHASE_CREATING_SLOT:
			return "creating slot";
		case PHASE_WAITING_FOR_SNAPSHOT:
			return "waiting for snapshot";
		case PHASE_COPYING:
			return "copying";
		case PHASE_CATCHING_UP:
			return "catching up";
		case PHASE_HANDING_OVER:
			return "handing over";
		case PHASE_DROPPING_SLOTS:
			return "dropping slots";
	}
	return "unknown";
}

/* Has another process this table?  Caller holds the lock. */
static bool
claimed_by_another(Oid subid, Oid relid)
{
	for (int i = 0; i < pool_size(); i++)
	{
		PoolWorker *w = &Pool->workers[i];

		if (w == MyPoolWorker || !w->in_use || w->subid != subid)
			continue;
		for (int j = 0; j < w->nrelids; j++)
			if (w->relids[j] == relid)
				return true;
	}
	return false;
}

bool
pool_table_is_claimed(Oid subid, Oid relid)
{
	bool		result;

	pool_lock(false);
	result = claimed_by_another(subid, relid);
	pool_unlock();
	return result;
}

int
pool_claim_tables(Oid subid, Oid *relids, int nrelids, bool half_done)
{
	int			n = 0;

	Assert(nrelids <= POOL_MAX_BATCH && MyPoolWorker->subid == subid);
	pool_lock(true);
	if (half_done || !(reuse_sync_paused || pool_drains(MyPoolWorker->dbid)))
	{
		for (int i = 0; i < nrelids; i++)
			if (!claimed_by_another(subid, relids[i]))
				relids[n++] = relids[i];
		memcpy(MyPoolWorker->relids, relids, n * sizeof(Oid));
		for (int i = 0; i < n; i++)
			MyPoolWorker->copied[i].tuples = -1;
		MyPoolWorker->nrelids = n;
		MyPoolWorker->bytes_copied = 0;
		MyPoolWorker->bytes_total = -1;
		MyPoolWorker->unit_start = GetCurrentTimestamp();
		MyPoolWorker->at = InvalidOid;
	}
	pool_unlock();
	return n;
}

void
pool_release_tables(void)
{
	pool_lock(true);
	MyPoolWorker->nrelids = 0;
	pool_unlock();
	ConditionVariableBroadcast(&Pool->changed);
}

/* Others that serve a subscription.  Caller holds the lock. */
static int
others_serving(Oid subid)
{
	int			n = 0;

	for (int i = 0; i < pool_size(); i++)
	{
		PoolWorker *w = &Pool->workers[i];

		if (w != MyPoolWorker && w->in_use && !w->finished &&
			w->type == POOL_WORKER && w->subid == subid)
			n++;
	}
	return n;
}

bool
pool_join_subscription(Oid subid, int limit)
{
	bool		ok;

	pool_lock(true);
	ok = !OidIsValid(subid) || others_serving(subid) < limit;
	if (ok)
	{
		MyPoolWorker->subid = subid;
		MyPoolWorker->let_go = false;
	}
	pool_unlock();
	ConditionVariableBroadcast(&Pool->changed);
	return ok;
}

void
pool_set_slot(int64 slot_id, const char *slot_name)
{
	pool_lock(true);
	MyPoolWorker->slot_id = slot_id;
	namestrcpy(&MyPoolWorker->slot_name, slot_name);
	MyPoolWorker->restart_lsn = InvalidXLogRecPtr;
	MyPoolWorker->snapshot_xmin = 0;
	pool_unlock();
	ConditionVariableBroadcast(&Pool->changed);
}

void
pool_note_slot(XLogRecPtr restart_lsn, TransactionId catalog_xmin,
			   XLogRecPtr publisher_lsn)
{
	pool_lock(true);
	MyPoolWorker->restart_lsn = restart_lsn;
	MyPoolWorker->catalog_xmin = catalog_xmin;
	MyPoolWorker->publisher_lsn = publisher_lsn;
	MyPoolWorker->slot_noted = GetCurrentTimestamp();
	pool_unlock();
}

void
pool_note_snapshot(uint64 xmin)
{
	pool_lock(true);
	MyPoolWorker->snapshot_xmin = xmin;
	pool_unlock();
}

void
pool_set_offer(dsm_handle offer)
{
	pool_lock(true);
	MyPoolWorker->slot_offer = offer;
	pool_unlock();
}

dsm_handle
pool_find_offer(Oid subid, NameData *slot_name)
{
	dsm_handle	offer = DSM_HANDLE_INVALID;

	pool_lock(false);
	for (int i = 0; i < pool_size(); i++)
	{
		PoolWorker *w = &Pool->workers[i];

		if (w != MyPoolWorker && w->in_use && w->subid == subid &&
			w->slot_offer != DSM_HANDLE_INVALID)
		{
			offer = w->slot_offer;
			*slot_name = w->slot_name;
		}
	}
	pool_unlock();
	return offer;
}

/* Caller holds the lock. */
static bool
slot_is_held(Oid dbid, Oid subid, int64 slot_id)
{
	for (int i = 0; i < pool_size(); i++)
	{
		PoolWorker *w = &Pool->workers[i];

		if (w->in_use && w->dbid == dbid &&
			((w->subid == subid && w->slot_id == slot_id) ||
			 (w->cleanup_subid == subid && w->cleanup_slot_id == slot_id)))
			return true;
	}
	return false;
}

bool
pool_slot_is_held(Oid dbid, Oid subid, int64 slot_id)
{
	bool		result;

	if (!pool_exists())
		return false;
	pool_lock(false);
	result = slot_is_held(dbid, subid, slot_id);
	pool_unlock();
	return result;
}

bool
pool_claim_orphan(Oid subid, int64 slot_id, const char *slot_name)
{
	bool		ok;

	pool_lock(true);
	ok = !slot_is_held(MyPoolWorker->dbid, subid, slot_id);
	if (ok)
	{
		MyPoolWorker->cleanup_subid = subid;
		MyPoolWorker->cleanup_slot_id = slot_id;
		namestrcpy(&MyPoolWorker->cleanup_slot_name, slot_name);
	}
	pool_unlock();
	return ok;
}

void
pool_release_orphan(void)
{
	pool_lock(true);
	MyPoolWorker->cleanup_subid = InvalidOid;
	MyPoolWorker->cleanup_slot_id = 0;
	pool_unlock();
	ConditionVariableBroadcast(&Pool->changed);
}

int
pool_workers_of_subscription(Oid subid)
{
	int			n;

	pool_lock(false);
	n = others_serving(subid);
	pool_unlock();
	return n;
}

/* Single flags of our own entry: read without the lock. */
bool
pool_let_go_requested(void)
{
	return MyPoolWorker->let_go;
}

void
pool_forget_cancel(void)
{
	/* The flag is set before the signal is sent, so it is read after. */
	QueryCancelPending = false;
	pg_memory_barrier();
	if (MyPoolWorker->let_go && guard_is_on("let_go"))
	{
		QueryCancelPending = true;
		InterruptPending = true;
	}
}

void
pool_set_done(void)
{
	MyPoolWorker->done = true;
}

bool
pool_leave_requested(void)
{
	return MyPoolWorker->leave;
}

void
pool_begin_look(void)
{
	pool_lock(true);
	MyPoolWorker->hinted = false;
	pool_unlock();
}

void
pool_report_look(int pending, TimestampTz next_look)
{
	pool_lock(true);
	MyPoolWorker->looked = true;
	MyPoolWorker->pending = pending;
	MyPoolWorker->next_look = next_look;
	wake_launcher();
	pool_unlock();
}

void
pool_count_bytes(int64 bytes)
{
	/* A progress counter; a torn read shows a number that was never true. */
	MyPoolWorker->bytes_copied += bytes;
}

void
pool_set_bytes_total(int64 bytes)
{
	MyPoolWorker->bytes_total = bytes;
}

void
pool_begin_copy(Oid relid, int64 bytes_expected, int64 tuples_expected)
{
	pool_lock(true);
	MyPoolWorker->at = relid;
	MyPoolWorker->copy_start = GetCurrentTimestamp();
	MyPoolWorker->bytes_before = MyPoolWorker->bytes_copied;
	MyPoolWorker->bytes_expected = bytes_expected;
	MyPoolWorker->tuples_expected = tuples_expected;
	pool_unlock();
}

void
pool_end_copy(int64 bytes, int64 tuples)
{
	pool_lock(true);
	for (int i = 0; i < MyPoolWorker->nrelids; i++)
	{
		if (MyPoolWorker->relids[i] != MyPoolWorker->at)
			continue;
		MyPoolWorker->copied[i].bytes = bytes;
		MyPoolWorker->copied[i].tuples = tuples;
	}
	pool_unlock();
}

void
pool_count_tables(int n)
{
	pool_lock(true);
	MyPoolWorker->tables_synced += n;
	pool_unlock();
}

int
pool_rank_in_subscription(void)
{
	int			rank = 0;

	pool_lock(false);
	for (PoolWorker *w = Pool->workers; w < MyPoolWorker; w++)
		if (w->in_use && !w->finished && w->type == POOL_WORKER &&
			w->subid == MyPoolWorker->subid)
			rank++;
	pool_unlock();
	return rank;
}

/* --- hints to the launcher --- */

void
pool_hint(Oid dbid, bool cleanup)
{
	bool		known = false;

	pool_lock(true);
	for (int i = 0; i < Pool->nhints && !known; i++)
	{
		if (Pool->hints[i].dbid == dbid)
		{
			Pool->hints[i].cleanup |= cleanup;
			known = true;
		}
	}
	if (!known && Pool->nhints < MAX_HINTS)
		Pool->hints[Pool->nhints++] = (PoolHint) {dbid, cleanup};
	else if (!known)
		Pool->hint_all = true;
	wake_launcher();
	pool_unlock();
}

bool
pool_take_hint(Oid *dbid, bool *cleanup)
{
	bool		found = false;

	pool_lock(true);
	if (Pool->hint_all)
	{
		Pool->hint_all = false;
		*dbid = InvalidOid;
		*cleanup = true;
		found = true;
	}
	else if (Pool->nhints > 0)
	{
		Pool->nhints--;
		*dbid = Pool->hints[Pool->nhints].dbid;
		*cleanup = Pool->hints[Pool->nhints].cleanup;
		found = true;
	}
	pool_unlock();
	return found;
}

/* --- the launcher's view --- */

int
pool_reserve(PoolWorkerType type, Oid dbid, Oid userid, uint64 *ticket)
{
	int			index = -1;

	pool_lock(true);
	for (int i = 0; i < pool_size() && index < 0; i++)
	{
		PoolWorker *w = &Pool->workers[i];

		if (!w->in_use)
		{
			uint32		generation = w->generation + 1;

			memset(w, 0, sizeof(PoolWorker));
			w->generation = generation;
			w->in_use = true;
			w->type = type;
			w->dbid = dbid;
			w->userid = userid;
			*ticket = ((uint64) generation << 16) | i;
			index = i;
		}
	}
	pool_unlock();
	return index;
}

void
pool_unreserve(int index)
{
	pool_lock(true);
	Pool->workers[index].in_use = false;
	Pool->workers[index].finished = false;
	pool_unlock();
	ConditionVariableBroadcast(&Pool->changed);
}
