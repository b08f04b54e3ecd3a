/*-------------------------------------------------------------------------
 *
 * pool_apply.c
 *	  Which of the server's apply workers stand aside for the pool, and stream.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/pool_apply.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/timestamp.h"

#include "pool_apply.h"
#include "pool_shared.h"

static ApplyWorkerEntry *MyApplyEntry = NULL;

static void
unpublish_apply_worker(int code, Datum arg)
{
	pool_lock(true);
	if (MyApplyEntry->streams)
		MyApplyEntry->streamed_until = GetCurrentTimestamp();
	MyApplyEntry->streams = false;
	MyApplyEntry->pid = 0;
	MyApplyEntry = NULL;
	pool_unlock();
}

void
pool_publish_apply_worker(Oid subid, bool stands_aside)
{
	ApplyWorkerEntry *entry = NULL;

	/* In the place of its predecessor, or of who has not streamed for longest. */
	pool_lock(true);
	for (int i = 0; i < Pool->napply; i++)
	{
		ApplyWorkerEntry *other = &Pool->apply[i];

		if (other->pid == 0 &&
			(entry == NULL || other->subid == subid ||
			 (entry->subid != subid &&
			  other->streamed_until < entry->streamed_until)))
			entry = other;
	}
	if (entry != NULL)
	{
		if (entry->subid != subid)
			memset(entry, 0, sizeof(ApplyWorkerEntry));
		entry->pid = MyProcPid;
		entry->subid = subid;
		entry->stands_aside = stands_aside;
	}
	pool_unlock();
	if (entry == NULL)
		elog(ERROR, "more logical replication workers than max_logical_replication_workers");
	MyApplyEntry = entry;
	before_shmem_exit(unpublish_apply_worker, (Datum) 0);
}

void
pool_publish_streaming(bool streams)
{
	pool_lock(true);
	MyApplyEntry->streams = streams;
	MyApplyEntry->streamed_until = 0;
	pool_unlock();
}

bool
pool_apply_worker_streams(Oid subid, int grace)
{
	bool		result = false;
	TimestampTz now = GetCurrentTimestamp();

	pool_lock(false);
	for (int i = 0; i < Pool->napply; i++)
	{
		ApplyWorkerEntry *entry = &Pool->apply[i];

		if (entry->subid == subid &&
			(entry->streams ||
			 (entry->streamed_until != 0 &&
			  (grace < 0 ||
			   !TimestampDifferenceExceeds(entry->streamed_until, now,
										   grace)))))
			result = true;
	}
	pool_unlock();
	return result;
}

void
pool_note_apply_change(void)
{
	pool_lock(true);
	Pool->apply_change = GetCurrentTimestamp();
	pool_unlock();
}

TimestampTz
pool_last_apply_change(void)
{
	TimestampTz result;

	pool_lock(false);
	result = Pool->apply_change;
	pool_unlock();
	return result;
}

ApplyWorkerStanding
pool_apply_worker_standing(int pid)
{
	ApplyWorkerStanding standing = APPLY_UNKNOWN;

	pool_lock(false);
	for (int i = 0; i < Pool->napply; i++)
		if (Pool->apply[i].pid == pid)
			standing = Pool->apply[i].stands_aside ?
				APPLY_STANDS_ASIDE : APPLY_USES_OWN_WORKERS;
	pool_unlock();
	return standing;
}
