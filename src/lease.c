/*-------------------------------------------------------------------------
 *
 * lease.c
 *	  May this server act for a subscription?
 *
 * The apply worker has the lease from the moment the publisher has answered
 * its START_REPLICATION; then the slot is its own.  It loses it when it tries
 * to get the slot anew, and some time after it has ended: a worker that fails
 * again and again because of a conflict must not stop the synchronization of
 * other tables.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/lease.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>
#include <signal.h>

#include "miscadmin.h"
#include "pgstat.h"
#include "replication/walreceiver.h"
#include "replication/worker_internal.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "lease.h"
#include "pool.h"
#include "pool_apply.h"
#include "pool_notes.h"
#include "testing.h"

/*
 * How many starts an apply worker may miss before the lease has ended; the
 * server starts one at most every wal_retrieve_retry_interval.
 */
#define MISSED_STARTS		3

/* How long a process may take to start and connect all the same, in ms. */
#define LEAST_PATIENCE		5000

/* How long to wait for a slot that is active, and how often to ask, in ms. */
#define ACTIVE_PATIENCE		3000
#define ACTIVE_PAUSE		20

/* The pid of the subscription's apply worker, 0 if there is none. */
static int
apply_worker_pid(Oid subid)
{
	LogicalRepWorker *worker;
	int			pid = 0;

	LWLockAcquire(LogicalRepWorkerLock, LW_SHARED);
	worker = logicalrep_worker_find(subid, InvalidOid, true);
	if (worker != NULL && worker->proc != NULL)
		pid = worker->proc->pid;
	LWLockRelease(LogicalRepWorkerLock);
	return pid;
}

/*
 * Does the server leave the tables of this subscription to us?  An apply
 * worker that began before the extension was there is ended; its successor
 * finds the extension, and wakes us.
 */
static bool
server_stands_aside(Oid subid)
{
	int			pid = apply_worker_pid(subid);

	if (pid == 0)
		return true;
	switch (pool_apply_worker_standing(pid))
	{
		case APPLY_STANDS_ASIDE:
			return true;
		case APPLY_UNKNOWN:
			return !guard_is_on("publish");
		case APPLY_USES_OWN_WORKERS:
			if (kill(pid, SIGTERM) < 0)
				elog(DEBUG1, "could not signal process %d: %m", pid);
			break;
	}
	return false;
}

bool
lease_is_held(Oid subid)
{
	return server_stands_aside(subid) &&
		(pool_apply_worker_streams(subid, MISSED_STARTS *
								   wal_retrieve_retry_interval) ||
		 !guard_is_on("publish") || !guard_is_on("lease"));
}

int
lease_patience(void)
{
	return (int) Min(Max((int64) MISSED_STARTS * wal_retrieve_retry_interval,
						 LEAST_PATIENCE), INT_MAX);
}

/* --- in the apply worker --- */

static WalReceiverFunctionsType functions;
static walrcv_startstreaming_fn server_startstreaming = NULL;

/* In place of the server's, around it. */
static bool
start_streaming(WalReceiverConn *conn, const WalRcvStreamOptions *options)
{
	bool		streams;

	pool_publish_streaming(false);
	streams = server_startstreaming(conn, options);
	if (streams)
	{
		pool_publish_streaming(true);
		/* Workers may be too busy to find that out, see work_list_look. */
		pool_end_problems(MyLogicalRepWorker->subid, ERRCODE_OBJECT_IN_USE);
		pool_hint(MyDatabaseId, false);
	}
	return streams;
}

void
lease_follow_apply_worker(void)
{
	/* Set by the module that the worker has loaded first of all. */
	functions = *WalReceiverFunctions;
	server_startstreaming = functions.walrcv_startstreaming;
	functions.walrcv_startstreaming = start_streaming;
	WalReceiverFunctions = &functions;
}

/* --- without an apply worker --- */

bool
lease_is_free(Publisher *conn, const char *slot_name, char **reason)
{
	TimestampTz start = GetCurrentTimestamp();
	char	   *sql = psprintf("SELECT FROM pg_catalog.pg_replication_slots"
							   " WHERE slot_name = %s AND active",
							   publisher_literal(conn, slot_name));

	while (publisher_query(conn, sql)->nrows > 0)
	{
		if (TimestampDifferenceExceeds(start, GetCurrentTimestamp(),
									   ACTIVE_PATIENCE))
		{
			*reason = psprintf("replication slot \"%s\" of the subscription is in use by another server",
							   slot_name);
			return false;
		}
		publisher_pause(ACTIVE_PAUSE);
	}
	return true;
}
