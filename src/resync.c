/*-------------------------------------------------------------------------
 *
 * resync.c
 *	  A table that is ready is synchronized anew: the worker's side.
 *
 * The function reuse_sync.resync_table() only writes a row.  It becomes
 * visible when the user's transaction commits, which wakes the pool, and is
 * gone if that rolls back.  All the rest is done by a worker of the pool, in
 * transactions of its own, with the table claimed as for any unit:
 *
 *		requested	asked for; nothing has happened to the table
 *		tried		the same, but what stands in the way is known: it is in
 *					reuse_sync.tables, and the table has its time to wait
 *		set back	'r' has become 'i', in the same transaction; there may be
 *					an apply worker that remembers 'r'
 *		begun		there is none; the table waits in 'i' like any other
 *
 * From there on it is a table in 'i' that goes either way of worker.c.  The
 * one difference is that the transaction that copies first empties the
 * table, row by row (unit_empty_tables), unless the user wants that kept.  So
 * readers see all the old rows until they see all the new ones; a copy that
 * fails leaves the old ones; a crash leaves either; no lock is held that
 * readers or the apply worker could meet; foreign keys that point at the table
 * stay and are not looked at, as in all that a replica applies; and what this
 * server publishes of the table is what has happened to it.  The row goes in
 * the transaction that sets 's' (unit_record_handover).
 *
 * A relation of its own that is swapped in would leave no dead rows.  But it
 * needs the table's strongest lock, which waits for every reader and has the
 * apply worker wait behind it; a snapshot taken before the swap finds the new
 * file, none of whose rows it sees, and takes the table to be empty; and whoever
 * replicates the table from this server is not told.
 *
 * Why no change is lost or applied twice.  Let A be an apply worker of the
 * subscription, S the commit that sets the table back, and G the moment when
 * every A that had read its state before S is gone.
 *
 * 1. What A has applied before G it has committed, or it never will: it lets
 *	  go of its place in the server's list of workers only after its open
 *	  transaction has been aborted.  So a delete that begins after G sees all
 *	  such rows, and so does the snapshot on the publisher: A had these
 *	  transactions from there.  One whose commit is streamed but not visible
 *	  yet on the publisher is C1's case, as for any other unit.
 * 2. After G the table is changed by the unit alone, until the handover.  An
 *	  apply worker that starts after S has read nothing before; it finds 'i'
 *	  and skips.  What it skips commits after the unit's snapshot, or is seen
 *	  by it, or by C1 and C2 is in the stream of the unit's slot: the same
 *	  three cases as for a table that has never been ready.
 * 3. The handover is that of any table (handover.c).
 *
 * G is why "set back" and "begun" are two stages: should we die between the
 * two, whoever comes next has to bring about G before the unit begins
 * (unit_begin refuses the one, work_list_tables leaves it out).  G comes
 * before the snapshot because only a table that is begun is planned for.
 *
 * Only 'r' is set back.  In 's' the apply worker has the table in its list,
 * and could turn an 'i' that was 's' a moment ago into 'r'.  In 'i' and 'd'
 * there is nothing to set back: the table has failed, or its turn has not
 * come.  In 'f' the copy is thrown away first.  A unit that is at work is
 * left to finish; what was asked for meanwhile then begins from 'r'.  So,
 * asked for twice, a table is copied at least once after the last time, and
 * each copy is a whole one.
 *
 * The lock under which the table is set back is not needed for any of this.
 * It makes us come when nobody is in the middle of a transaction with the
 * table: the apply worker, which is about to be ended, would have to do that
 * transaction again.
 *
 * With two_phase a transaction may be prepared while the table is skipped,
 * and committed above P: nobody would apply it.  The server refuses to copy
 * there as well.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/resync.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_subscription.h"
#include "catalog/pg_subscription_rel.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "replication/worker_internal.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "apply_truncate.h"
#include "catalog.h"
#include "compat.h"
#include "failure.h"
#include "lease.h"
#include "pool.h"
#include "pool_apply.h"
#include "resync.h"
#include "resync_check.h"
#include "settings.h"
#include "staged.h"
#include "target.h"
#include "testing.h"
#include "unit.h"
#include "work_list.h"

/* An error is being thrown because it can never be done. */
static bool refused = false;

/* What the rows of a table say together. */
static bool
is_to_be_emptied(Oid subid, Oid relid)
{
	ListCell   *lc;

	foreach(lc, catalog_resyncs(subid))
	{
		ResyncRow  *row = lfirst(lc);

		if (row->relid == relid && row->truncate)
			return true;
	}
	return false;
}

static bool
has_stage(Oid subid, Oid relid, ResyncStage stage)
{
	ListCell   *lc;

	foreach(lc, catalog_resyncs(subid))
	{
		ResyncRow  *row = lfirst(lc);

		if (row->relid == relid && row->stage == stage)
			return true;
	}
	return false;
}

/* --- from 'r' to 'i' --- */

/* What was true when it was asked for may not be so any more. */
static void
check_again(Session *session, Oid relid)
{
	Relation	rel = table_open(relid, NoLock);

	refused = true;
	resync_check_subscription(session->sub);
	if (is_to_be_emptied(session->sub->oid, relid))
		resync_check_emptied(session->sub->oid, rel);
	refused = false;
	table_close(rel, NoLock);
}

/*
 * The name on the publisher; null if the table is gone.  In a transaction of
 * its own.
 */
static char *
get_names(Oid relid, char **nspname)
{
	MemoryContext caller = CurrentMemoryContext;
	char	   *relname;

	StartTransactionCommand();
	relname = get_rel_name(relid);
	*nspname = get_namespace_name(get_rel_namespace(relid));
	relname = relname ? MemoryContextStrdup(caller, relname) : NULL;
	*nspname = *nspname ? MemoryContextStrdup(caller, *nspname) : NULL;
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
	return *nspname ? relname : NULL;
}

/*
 * Set a table back that is locked, in 'r'.  False if the subscription is not
 * what this session was opened for: then it is for the next one.
 */
static bool
set_back(Session *session, Oid relid, const char *nspname,
		 const char *relname)
{
	Oid			subid = session->sub->oid;
	TableProgress progress = {0};

	if (!session_is_current(session, true))
		return false;
	check_again(session, relid);
	compat_update_subscription_rel(subid, relid, SUBREL_STATE_INIT,
								   InvalidXLogRecPtr);
	progress.bytes_total = -1;
	catalog_put_progress(subid, relid, &progress);
	catalog_set_resyncs(subid, relid, guard_is_on("resync_stage") ?
						RESYNC_SET_BACK : RESYNC_BEGUN);
	ereport(LOG,
			errmsg("table \"%s.%s\" of subscription \"%s\" is synchronized anew",
				   nspname, relname, session->sub->name));
	return true;
}

/*
 * A table that has failed, perhaps, and waits: not any longer.  True if there
 * may be an apply worker that remembers 'r'.
 */
static bool
take_waiting(Oid subid, Oid relid)
{
	bool		is_set_back = has_stage(subid, relid, RESYNC_SET_BACK);
	TableProgress progress;

	catalog_set_resyncs(subid, relid,
						is_set_back ? RESYNC_SET_BACK : RESYNC_BEGUN);
	catalog_get_progress(subid, relid, &progress);
	progress.next_retry = 0;
	catalog_put_progress(subid, relid, &progress);
	return is_set_back;
}

/*
 * Take up one table, which is claimed; 'relname' is null if it is gone.
 * Returns true if it is in 'i' now and there may be an apply worker that
 * remembers 'r'.  If there is a half-done copy, only says so.
 */
static bool
take_up(Session *session, Oid relid, const char *nspname,
		const char *relname, bool *half_done, bool *with_rows)
{
	Oid			subid = session->sub->oid;
	char		state = SUBREL_STATE_UNKNOWN;
	XLogRecPtr	lsn;
	bool		result = false;

	*half_done = *with_rows = false;
	StartTransactionCommand();

	/* DROP EXTENSION comes before, or finds what is begun here. */
	if (guard_is_on("resync_hold") && !catalog_hold())
	{
		CommitTransactionCommand();
		return false;
	}
	unit_bound_lock_waits(reuse_sync_handover_lock_timeout);
	if (relname != NULL)
	{
		LockRelationOid(relid, ShareRowExclusiveLock);
		session_lock_subscription(subid);
		LockRelationOid(SubscriptionRelRelationId, RowExclusiveLock);
		state = GetSubscriptionRelState(subid, relid, &lsn);
	}
	if (state == SUBREL_STATE_UNKNOWN)
	{
		catalog_remove_resyncs(subid, relid, RESYNC_REQUESTED);
		ereport(LOG,
				errmsg("relation %u is not synchronized anew because it is not in subscription \"%s\" any more",
					   relid, session->sub->name));
	}
	else if (state == SUBREL_STATE_READY)
		result = set_back(session, relid, nspname, relname);
	else if (state == SUBREL_STATE_INIT || state == SUBREL_STATE_DATASYNC)
		result = take_waiting(subid, relid);
	*half_done = (state == SUBREL_STATE_FINISHEDCOPY);
	*with_rows = is_to_be_emptied(subid, relid);
	if (state == SUBREL_STATE_READY && result)
		test_point(POINT_resync_commit, relname);
	CommitTransactionCommand();
	return result;
}

/* --- what goes wrong --- */

/* It cannot be done, and the table stays as it is: say so, and forget it. */
static void
give_up(Session *session, Oid relid, const ErrorData *edata)
{
	Oid			subid = session->sub->oid;
	TableProgress progress;

	StartTransactionCommand();
	catalog_get_progress(subid, relid, &progress);
	progress.last_error = failure_with_hint(edata->message, edata->hint);
	progress.last_error_time = GetCurrentTimestamp();
	progress.next_retry = 0;
	catalog_put_progress(subid, relid, &progress);
	catalog_remove_resyncs(subid, relid, RESYNC_REQUESTED);
	Counters.errors++;
	catalog_write_counters();
	ereport(LOG,
			errmsg("table \"%s.%s\" of subscription \"%s\" is not synchronized anew",
				   get_namespace_name(get_rel_namespace(relid)),
				   get_rel_name(relid), session->sub->name),
			errdetail_internal("%s", edata->message));
	CommitTransactionCommand();
}

/* Not now: the table has its time to wait, as after any failure. */
static void
put_off(Session *session, Oid relid, const ErrorData *edata)
{
	if (failure_only_waits(edata))
		failure_put_off(session, relid, edata);
	else
		failure_record(session, relid, edata);
	StartTransactionCommand();
	if (!has_stage(session->sub->oid, relid, RESYNC_SET_BACK))
		catalog_set_resyncs(session->sub->oid, relid, RESYNC_TRIED);
	CommitTransactionCommand();
}

/* The same as take_up, throwing away a half-done copy first. */
static bool
take_up_anyway(Session *session, Oid relid)
{
	char	   *nspname;
	char	   *relname = get_names(relid, &nspname);
	bool		half_done;
	bool		with_rows;
	bool		result;

	if (relname != NULL &&
		!resync_is_published(session->sql, session->sub, nspname, relname))
	{
		refused = true;
		resync_report_unpublished(session->sub, nspname, relname);
	}
	result = take_up(session, relid, nspname, relname,
					 &half_done, &with_rows);
	if (half_done)
	{
		staged_set_back(session, relid, with_rows);
		result = take_up(session, relid, nspname, relname,
						 &half_done, &with_rows);
	}
	return result;
}

/* Is it for us to go on with other tables after this error? */
static bool
is_of_table(Session *session, const ErrorData *edata)
{
	return edata->sqlerrcode != ERRCODE_QUERY_CANCELED &&
		ERRCODE_TO_CATEGORY(edata->sqlerrcode) !=
		ERRCODE_CONNECTION_EXCEPTION &&
		!publisher_is_broken(session->sql) && !pool_let_go_requested();
}

/*
 * The same, and a table that cannot be taken up keeps no other waiting.
 */
static bool
try_to_take_up(Session *session, Oid relid)
{
	MemoryContext caller = CurrentMemoryContext;
	ErrorData  *volatile edata = NULL;
	volatile bool result = false;

	refused = false;
	PG_TRY();
	{
		result = take_up_anyway(session, relid);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(caller);
		edata = CopyErrorData();
		if (!is_of_table(session, edata))
			PG_RE_THROW();
		FlushErrorState();
		AbortOutOfAnyTransaction();
	}
	PG_END_TRY();

	MemoryContextSwitchTo(caller);
	if (edata != NULL && refused && !failure_only_waits(edata))
		give_up(session, relid, edata);
	else if (edata != NULL)
		put_off(session, relid, edata);
	MemoryContextSwitchTo(caller);
	return result;
}

/* --- all of a subscription --- */

/* Claim what there is to be taken up. */
static int
claim(Session *session, Oid *relids)
{
	Oid			subid = session->sub->oid;
	MemoryContext caller = CurrentMemoryContext;
	TimestampTz ignored = 0;
	int			n = 0;
	ListCell   *lc;

	StartTransactionCommand();
	session_lock_subscription(subid);
	if (catalog_hold() && session_is_current(session, false) &&
		lease_is_held(subid))
	{
		foreach(lc, work_list_resyncs(subid, caller, &ignored))
		{
			if (n < POOL_MAX_BATCH)
				relids[n++] = lfirst_oid(lc);
		}
		/* In a drain these are half done. */
		n = n == 0 ? 0 :
			pool_claim_tables(subid, relids, n,
							  pool_is_draining(MyDatabaseId));
	}
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
	return n;
}

void
resync_begin(Session *session)
{
	MemoryContext caller = CurrentMemoryContext;
	Oid			subid = session->sub->oid;
	Oid			relids[POOL_MAX_BATCH];
	int			n = claim(session, relids);
	int			nset_back = 0;

	if (n == 0)
		return;
	session_connect(session);
	pool_set_phase(PHASE_SETTING_BACK);
	for (int i = 0; i < n; i++)
		if (try_to_take_up(session, relids[i]))
			relids[nset_back++] = relids[i];
	if (nset_back > 0)
	{
		test_point(POINT_resync_set_back, session->sub->name);
		if (guard_is_on("resync_stop"))
			logicalrep_worker_stop(subid, InvalidOid);
		pool_note_apply_change();
		test_point(POINT_resync_stopped, session->sub->name);
		StartTransactionCommand();
		for (int i = 0; i < nset_back; i++)
			catalog_set_resyncs(subid, relids[i], RESYNC_BEGUN);
		CommitTransactionCommand();
		MemoryContextSwitchTo(caller);
		test_point(POINT_resync_begun, session->sub->name);
	}

	/* There may be enough for others. */
	if (n > 1)
		pool_hint(MyDatabaseId, false);
}

void
resync_give_back(Session *session, Oid relid)
{
	Oid			subid = session->sub->oid;
	XLogRecPtr	lsn;
	char		state;

	StartTransactionCommand();
	state = GetSubscriptionRelState(subid, relid, &lsn);
	if (!catalog_resync_is_begun(subid, relid))
		state = SUBREL_STATE_UNKNOWN;
	if (state == SUBREL_STATE_READY)
	{
		/* See work_list.c; nothing can be copied for a disabled one. */
		ereport(WARNING,
				errmsg("table \"%s.%s\" of subscription \"%s\" may hold rows twice",
					   get_namespace_name(get_rel_namespace(relid)),
					   get_rel_name(relid), session->sub->name),
				errdetail("The server has synchronized it while \"%s\", which was to do so, was not loaded.",
						  EXTENSION_NAME));
		catalog_remove_resyncs(subid, relid, RESYNC_REQUESTED);
	}
	else if (state == SUBREL_STATE_INIT || state == SUBREL_STATE_DATASYNC)
	{
		unit_bound_lock_waits(reuse_sync_handover_lock_timeout);
		if (is_to_be_emptied(subid, relid) &&
			!target_is_shared(subid, relid))
		{
			/* As the copy's, these changes are not to be sent back. */
			unit_tag_origin(NULL);
			PushActiveSnapshot(GetTransactionSnapshot());
			apply_empty(relid);
			PopActiveSnapshot();
		}
		catalog_remove_resyncs(subid, relid, RESYNC_REQUESTED);
	}
	CommitTransactionCommand();
}
