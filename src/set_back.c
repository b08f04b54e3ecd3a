/*-------------------------------------------------------------------------
 *
 * set_back.c
 *	  What a drain does with tables of disabled subscriptions.
 *
 * A table that the pool has half done cannot be finished while nothing may be
 * fetched for its subscription.  The server's own workers can begin it anew,
 * when the subscription is enabled again, if it is empty and in state 'i'.
 * Its slot is then an orphan, which is the cleaner's.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/set_back.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_subscription_rel.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

#include "catalog.h"
#include "compat.h"
#include "failure.h"
#include "pool.h"
#include "resync.h"
#include "session.h"
#include "set_back.h"
#include "staged.h"
#include "work_list.h"

/* The tables of one subscription that the pool has half done. */
static List *
half_done(Oid subid, MemoryContext context)
{
	List	   *relids = NIL;
	ListCell   *lc;

	StartTransactionCommand();
	foreach(lc, catalog_hold() ? GetSubscriptionRelations(subid, true) : NIL)
	{
		SubscriptionRelState *rel = lfirst(lc);
		TableProgress progress;

		if (catalog_resync_is_begun(subid, rel->relid) ||
			(rel->state == SUBREL_STATE_FINISHEDCOPY &&
			 catalog_get_progress(subid, rel->relid, &progress) &&
			 progress.slot_id != 0))
		{
			MemoryContext caller = MemoryContextSwitchTo(context);

			relids = lappend_oid(relids, rel->relid);
			MemoryContextSwitchTo(caller);
		}
	}
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	return relids;
}

static void
keep_error(Oid subid, Oid relid, const ErrorData *edata)
{
	TableProgress progress;

	StartTransactionCommand();
	if (catalog_hold() && catalog_get_progress(subid, relid, &progress))
	{
		progress.attempts++;
		progress.next_retry = failure_retry_time(progress.attempts);
		progress.last_error = edata->message;
		progress.last_error_time = GetCurrentTimestamp();
		catalog_put_progress(subid, relid, &progress);
	}
	CommitTransactionCommand();
}

/*
 * A table that the server's own worker has half done, and one of ours has
 * taken over, goes back as it is: with its slot.
 */
static bool
give_back_table(Session *session, Oid relid)
{
	Oid			subid = session->sub->oid;
	TableProgress progress;
	bool		theirs;

	StartTransactionCommand();
	theirs = catalog_hold() &&
		catalog_get_progress(subid, relid, &progress) &&
		progress.slot_id != 0 &&
		!TransactionIdIsValid(progress.copy_xid);
	if (theirs)
	{
		catalog_remove_slot(subid, progress.slot_id);
		progress.slot_id = 0;
		catalog_put_progress(subid, relid, &progress);
	}
	CommitTransactionCommand();
	return theirs;
}

static void
set_back_table(Session *session, Oid relid)
{
	MemoryContext context = CurrentMemoryContext;
	Oid			subid = session->sub->oid;

	if (pool_claim_tables(subid, &relid, 1, true) == 0)
		return;
	PG_TRY();
	{
		if (!give_back_table(session, relid))
		{
			staged_set_back(session, relid, false);
			resync_give_back(session, relid);
		}
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		if (edata->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN)
			PG_RE_THROW();
		EmitErrorReport();
		FlushErrorState();
		AbortOutOfAnyTransaction();
		QueryCancelPending = false;
		MemoryContextSwitchTo(context);
		if (!pool_let_go_requested())
			keep_error(subid, relid, edata);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	pool_release_tables();
}

void
set_back_disabled(void)
{
	MemoryContext context = CurrentMemoryContext;
	List	   *subscriptions = work_list_disabled(context);
	ListCell   *lc;
	bool		done = false;

	foreach(lc, subscriptions)
	{
		Oid			subid = lfirst_oid(lc);
		List	   *relids = half_done(subid, context);
		Session    *session = relids == NIL ? NULL :
		session_open(subid, false);
		ListCell   *lc2;

		if (session == NULL)
			continue;
		foreach(lc2, relids)
		{
			if (!pool_let_go_requested())
				set_back_table(session, lfirst_oid(lc2));
		}
		session_close(session);
		done = true;
	}
	if (done)
		pool_hint(MyDatabaseId, true);
}
