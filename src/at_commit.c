/*-------------------------------------------------------------------------
 *
 * at_commit.c
 *	  What the open transaction makes necessary once it has committed.
 *
 * At commit interrupts are held and no catalog can be read: what takes more
 * than a signal or a flag in shared memory is prepared just before.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/at_commit.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "catalog/pg_subscription.h"
#include "miscadmin.h"
#include "replication/worker_internal.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "utils/memutils.h"

#include "at_commit.h"
#include "pool.h"
#include "pool_apply.h"
#include "pool_notes.h"
#include "subscriptions.h"
#include "testing.h"

/* The lists live in the transaction's memory. */
static struct
{
	bool		hint;			/* there may be work */
	bool		cleanup;		/* and slots to drop */
	List	   *let_go;			/* subscriptions whose units are outdated */
	bool		apply_change;	/* apply workers begin */
	bool		restart_apply_workers;	/* the extension comes or goes */
	List	   *apply_pids;		/* those, collected before the commit */
}			at_commit;

void
at_commit_hint(bool cleanup)
{
	at_commit.hint = true;
	at_commit.cleanup |= cleanup;
}

void
at_commit_note_apply_change(void)
{
	at_commit.apply_change = true;
}

void
at_commit_restart_apply_workers(void)
{
	at_commit.restart_apply_workers = true;
}

bool
at_commit_restarts_apply_workers(void)
{
	return at_commit.restart_apply_workers;
}

void
at_commit_let_go(Oid subid)
{
	MemoryContext caller = MemoryContextSwitchTo(TopTransactionContext);

	at_commit.let_go = list_append_unique_oid(at_commit.let_go, subid);
	MemoryContextSwitchTo(caller);
}

/* The apply workers of this database. */
static List *
list_apply_workers(void)
{
	List	   *pids = NIL;
	ListCell   *lc;

	foreach(lc, subscriptions_of(MyDatabaseId))
	{
		Form_pg_subscription form = lfirst(lc);
		LogicalRepWorker *worker;
		int			pid = 0;

		LWLockAcquire(LogicalRepWorkerLock, LW_SHARED);
		worker = logicalrep_worker_find(form->oid, InvalidOid, true);
		if (worker != NULL && worker->proc != NULL)
			pid = worker->proc->pid;
		LWLockRelease(LogicalRepWorkerLock);
		if (pid != 0)
			pids = lappend_int(pids, pid);
	}
	return pids;
}

void
at_commit_prepare(void)
{
	MemoryContext caller;

	if (!at_commit.restart_apply_workers)
		return;
	caller = MemoryContextSwitchTo(TopTransactionContext);
	at_commit.apply_pids = list_apply_workers();
	MemoryContextSwitchTo(caller);
	test_point(POINT_apply_workers_listed, "");
}

void
at_commit_act(void)
{
	ListCell   *lc;

	if (at_commit.restart_apply_workers)
	{
		pool_set_draining(MyDatabaseId, false);
		pool_note_database(MyDatabaseId, DATABASE_UNKNOWN);
	}
	if (at_commit.apply_change || at_commit.restart_apply_workers)
		pool_note_apply_change();
	foreach(lc, at_commit.let_go)
		(void) pool_request_let_go(MyDatabaseId, lfirst_oid(lc));

	/* Without waiting; the server's launcher brings them back. */
	foreach(lc, at_commit.apply_pids)
	{
		if (kill(lfirst_int(lc), SIGTERM) < 0)
			elog(DEBUG1, "could not signal process %d: %m", lfirst_int(lc));
	}
	if (at_commit.hint || at_commit.cleanup ||
		at_commit.restart_apply_workers)
	{
		pool_hint(MyDatabaseId, at_commit.cleanup);
		pool_announce_change();
	}
	at_commit_forget();
}

void
at_commit_forget(void)
{
	memset(&at_commit, 0, sizeof(at_commit));
}
