/*-------------------------------------------------------------------------
 *
 * wait.c
 *	  wait_for_sync(): waits until a subscription is synchronized.
 *
 * The pool tells those who wait when it has let go of a table, whichever way
 * that went; and the apply worker when it has committed, since it is it that
 * makes a table ready (hooks.c).  Where there is no pool, nobody tells.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/wait.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/pg_subscription.h"
#include "catalog/pg_subscription_rel.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "catalog.h"
#include "compat.h"
#include "pool.h"
#include "rights.h"
#include "testing.h"
#include "subscriptions.h"

PG_FUNCTION_INFO_V1(reuse_sync_wait_for_sync);

/*
 * How often to look again without being told, in ms: with a pool in case that
 * somebody has changed the subscription meanwhile, or else because there is no
 * other way.
 */
#define LOOK_INTERVAL			10000
#define LOOK_INTERVAL_NO_POOL	1000

/* What a look has found. */
typedef struct SyncStatus
{
	bool		enabled;
	int			unready;		/* tables that are not ready */
	Oid			example;		/* one of them */
	Oid			failed;			/* one that has failed, or InvalidOid */
	char	   *error;			/* of that one */
} SyncStatus;

static char *
table_name(Oid relid)
{
	char	   *nspname = get_namespace_name(get_rel_namespace(relid));
	char	   *relname = get_rel_name(relid);

	return nspname == NULL || relname == NULL ?
		psprintf("%u", relid) : psprintf("%s.%s", nspname, relname);
}

/*
 * Has this table failed: since we wait, or before, so that it waits for its
 * next turn?
 */
static bool
has_failed(Oid subid, Oid relid, TimestampTz since, char **error)
{
	TableProgress progress;

	if (!catalog_get_progress(subid, relid, &progress) ||
		progress.attempts == 0 ||
		(progress.last_error_time < since &&
		 catalog_retry_time(subid, relid, &progress) == 0))
		return false;
	*error = progress.last_error ? progress.last_error : "";
	return true;
}

/* A table to wait for. */
static void
count_unready(Oid subid, Oid relid, TimestampTz since, SyncStatus *status)
{
	status->unready++;
	status->example = relid;
	if (!OidIsValid(status->failed) &&
		has_failed(subid, relid, since, &status->error))
		status->failed = relid;
}

/* The tables that are to be synchronized anew, or are under way. */
static List *
anew(Oid subid)
{
	List	   *relids = NIL;
	ListCell   *lc;

	foreach(lc, catalog_resyncs(subid))
		relids = list_append_unique_oid(relids,
										((ResyncRow *) lfirst(lc))->relid);
	return relids;
}

/*
 * Look; false if the subscription is gone.
 *
 * The resyncs are read before the states: the transaction that ends a resync
 * also removes what asked for it, so that a table is found in one of the two
 * at least.  Read the other way round, one that is set back in between would
 * be in neither.  The subscription comes last, since one that was dropped has
 * nothing that is not ready.
 */
static bool
look(Oid subid, TimestampTz since, SyncStatus *status)
{
	Subscription *sub;
	bool		resyncs_first = guard_is_on("wait_order");
	List	   *resyncs = resyncs_first ? anew(subid) : NIL;
	List	   *states;
	ListCell   *lc;

	memset(status, 0, sizeof(SyncStatus));
	if (resyncs_first)
		test_point(POINT_half_looked, "");
	states = GetSubscriptionRelations(subid, true);
	if (!resyncs_first)
	{
		test_point(POINT_half_looked, "");
		resyncs = anew(subid);
	}
	foreach(lc, states)
	{
		SubscriptionRelState *rel = lfirst(lc);

		if (!list_member_oid(resyncs, rel->relid))
			count_unready(subid, rel->relid, since, status);
	}
	foreach(lc, resyncs)
		count_unready(subid, lfirst_oid(lc), since, status);

	if (!subscription_exists(subid) ||
		(sub = GetSubscription(subid, true)) == NULL)
		return false;
	status->enabled = sub->enabled;
	return true;
}

/* Was this row of pg_subscription_rel written by the open transaction? */
static bool
is_own_entry(Oid subid, Oid relid)
{
	HeapTuple	tuple = SearchSysCache2(SUBSCRIPTIONRELMAP,
										ObjectIdGetDatum(relid),
										ObjectIdGetDatum(subid));
	bool		own;

	if (!HeapTupleIsValid(tuple))
		return false;
	own = TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetRawXmin(tuple->t_data));
	ReleaseSysCache(tuple);
	return own;
}

/*
 * What the caller's own transaction has asked for nobody sees before it ends:
 * to wait for that would have no end.
 */
static void
refuse_own_work(Oid subid, const char *subname)
{
	FullTransactionId xid = GetTopFullTransactionIdIfAny();
	Oid			relid = InvalidOid;
	ListCell   *lc;

	if (!FullTransactionIdIsValid(xid))
		return;
	foreach(lc, catalog_resyncs(subid))
	{
		ResyncRow  *row = lfirst(lc);

		if (row->xid == (int64) U64FromFullTransactionId(xid))
			relid = row->relid;
	}
	foreach(lc, GetSubscriptionRelations(subid, true))
	{
		SubscriptionRelState *rel = lfirst(lc);

		if (is_own_entry(subid, rel->relid))
			relid = rel->relid;
	}
	if (OidIsValid(relid))
		ereport(ERROR,
				errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				errmsg("cannot wait for table \"%s\" of subscription \"%s\" in the transaction that has it synchronized",
					   table_name(relid), subname),
				errhint("Commit the transaction first."));
}

pg_noreturn static void
timed_out(const char *subname, const SyncStatus *status)
{
	ereport(ERROR,
			errcode(ERRCODE_QUERY_CANCELED),
			errmsg("subscription \"%s\" was not synchronized within the time given",
				   subname),
			errdetail_plural("%d table is not ready: \"%s\".",
							 "%d tables are not ready, for example \"%s\".",
							 status->unready, status->unready,
							 table_name(status->example)),
			errhint("See reuse_sync.tables and reuse_sync.check()."));
}

/* With fail_fast: is there no point in waiting on? */
static void
fail_if_failed(const char *subname, const SyncStatus *status)
{
	if (OidIsValid(status->failed))
		ereport(ERROR,
				errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				errmsg("synchronization of table \"%s\" of subscription \"%s\" has failed",
					   table_name(status->failed), subname),
				errdetail_internal("%s", status->error),
				errhint("Mend the cause and call reuse_sync.retry(), or wait for the next try; see reuse_sync.tables."));
	if (!status->enabled)
		ereport(ERROR,
				errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				errmsg("subscription \"%s\" is disabled", subname),
				errhint("Run ALTER SUBSCRIPTION %s ENABLE.",
						quote_identifier(subname)));
}

/* Until something has changed, or this time has passed. */
static void
wait_for_change(long timeout)
{
	if (pool_exists())
	{
		pool_wait_for_change(Min(timeout, LOOK_INTERVAL));
		return;
	}
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 Min(timeout, LOOK_INTERVAL_NO_POOL), compat_wait_event());
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

/*
 * wait_for_sync(subname name, timeout interval, fail_fast boolean)
 *
 * Returns when all tables of the subscription are ready.  Throws
 * ERRCODE_QUERY_CANCELED at the timeout (null: none); with fail_fast
 * ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE as soon as a table has failed or
 * the subscription is disabled; ERRCODE_UNDEFINED_OBJECT if the subscription
 * is dropped; ERRCODE_ACTIVE_SQL_TRANSACTION if the open transaction would have
 * to end first.
 */
Datum
reuse_sync_wait_for_sync(PG_FUNCTION_ARGS)
{
	TimestampTz start = GetCurrentTimestamp();
	TimestampTz deadline = 0;
	bool		fail_fast = !PG_ARGISNULL(2) && PG_GETARG_BOOL(2);
	char	   *subname;
	Oid			subid;
	MemoryContext context;
	MemoryContext caller;

	if (PG_ARGISNULL(0))
		ereport(ERROR,
				errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				errmsg("name of subscription must not be null"));
	subname = NameStr(*PG_GETARG_NAME(0));
	subid = rights_to_subscription(subname, false);
	if (!PG_ARGISNULL(1))
		deadline = DatumGetTimestampTz(DirectFunctionCall2(timestamptz_pl_interval,
														   TimestampTzGetDatum(start),
														   PG_GETARG_DATUM(1)));

	refuse_own_work(subid, subname);
	context = AllocSetContextCreate(CurrentMemoryContext, "wait_for_sync",
									ALLOCSET_SMALL_SIZES);
	caller = MemoryContextSwitchTo(context);
	if (pool_exists())
		pool_prepare_to_wait();
	for (;;)
	{
		SyncStatus	status;
		long		left = LOOK_INTERVAL;

		MemoryContextReset(context);
		if (!look(subid, start, &status))
			ereport(ERROR,
					errcode(ERRCODE_UNDEFINED_OBJECT),
					errmsg("subscription \"%s\" was dropped", subname));
		if (status.unready == 0)
			break;
		if (fail_fast)
			fail_if_failed(subname, &status);
		if (deadline != 0)
		{
			left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(),
												   deadline);
			if (left <= 0)
				timed_out(subname, &status);
		}
		wait_for_change(left);
	}
	if (pool_exists())
		pool_end_wait();
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
	PG_RETURN_VOID();
}
