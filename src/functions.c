/*-------------------------------------------------------------------------
 *
 * functions.c
 *	  The functions with which SQL acts on the pool.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/functions.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_subscription_rel.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"

#include "at_commit.h"
#include "catalog.h"
#include "compat.h"
#include "functions.h"
#include "orphans.h"
#include "pool.h"
#include "pool_notes.h"
#include "rights.h"
#include "settings.h"

PG_FUNCTION_INFO_V1(reuse_sync_require_library);
PG_FUNCTION_INFO_V1(reuse_sync_wakeup);
PG_FUNCTION_INFO_V1(reuse_sync_retry);
PG_FUNCTION_INFO_V1(reuse_sync_drain);
PG_FUNCTION_INFO_V1(reuse_sync_stats_reset);

/* The versions that scripts of this release lead to, one after the other. */
static const char *const script_versions[] = {"1.0", EXTENSION_VERSION};

/* Functions are not refused by themselves where nothing may be written. */
static void
require_writable(const char *function)
{
	PreventCommandDuringRecovery(function);
	PreventCommandIfReadOnly(function);
}

static void
require_preloaded(void)
{
	if (!reuse_sync_preloaded)
		ereport(ERROR,
				errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				errmsg("\"%s\" must be loaded via shared_preload_libraries",
					   EXTENSION_NAME),
				errhint("Add it to shared_preload_libraries and restart the server."));
}

void
functions_require_pool(void)
{
	require_preloaded();
	if (!pool_exists())
		ereport(ERROR,
				errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				errmsg("the pool of \"%s\" is not running", EXTENSION_NAME),
				errhint("Set reuse_sync.enabled to on and restart the server."));
	(void) catalog_exists(ERROR);
}

/*
 * require_library(version text) returns void
 *
 * Called by each script with the version it leads to: fails if this library
 * does not know it, or cannot serve any.
 */
Datum
reuse_sync_require_library(PG_FUNCTION_ARGS)
{
	char	   *version = text_to_cstring(PG_GETARG_TEXT_PP(0));

	require_preloaded();
	for (int i = 0; i < lengthof(script_versions); i++)
		if (strcmp(version, script_versions[i]) == 0)
			PG_RETURN_VOID();
	ereport(ERROR,
			errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			errmsg("the loaded library of \"%s\" is version %s, but its SQL objects are version %s",
				   EXTENSION_NAME, EXTENSION_VERSION, version),
			errhint("Install both from the same release, and restart the server."));
}

/*
 * wakeup() returns void
 *
 * Has the launcher look at this database now; ends a drain.
 */
Datum
reuse_sync_wakeup(PG_FUNCTION_ARGS)
{
	functions_require_pool();
	pool_set_draining(MyDatabaseId, false);
	pool_hint(MyDatabaseId, true);
	PG_RETURN_VOID();
}

/*
 * retry(subname name, relation regclass) returns void
 *
 * Has a failing table (null: all of the subscription) tried again once the
 * transaction commits, instead of at the time set.  A table that does not wait
 * is left as it is.
 */
Datum
reuse_sync_retry(PG_FUNCTION_ARGS)
{
	Oid			subid;
	XLogRecPtr	lsn;

	require_writable("reuse_sync.retry()");
	functions_require_pool();
	if (PG_ARGISNULL(0))
		ereport(ERROR,
				errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				errmsg("name of subscription must not be null"));
	subid = rights_to_subscription(NameStr(*PG_GETARG_NAME(0)), true);
	if (PG_ARGISNULL(1))
	{
		ListCell   *lc;

		foreach(lc, GetSubscriptionRelations(subid, true))
			(void) catalog_request_retry(subid, ((SubscriptionRelState *) lfirst(lc))->relid);
	}
	else
	{
		Oid			relid = PG_GETARG_OID(1);

		if (GetSubscriptionRelState(subid, relid, &lsn) == SUBREL_STATE_UNKNOWN)
			ereport(ERROR,
					errcode(ERRCODE_UNDEFINED_OBJECT),
					errmsg("relation \"%s\" is not in subscription \"%s\"",
						   get_rel_name(relid) ? get_rel_name(relid) :
						   psprintf("%u", relid),
						   NameStr(*PG_GETARG_NAME(0))),
					errhint("See reuse_sync.tables."));
		(void) catalog_request_retry(subid, relid);
	}
	at_commit_hint(false);
	PG_RETURN_VOID();
}

/* --- drain --- */

pg_noreturn static void
drain_timed_out(int slots, int busy, int resyncs)
{
	ereport(ERROR,
			errcode(ERRCODE_QUERY_CANCELED),
			errmsg("could not drain database within the time given"),
			errdetail("%d workers are still at work, %d replication slots remain and %d tables are being synchronized anew.",
					  busy, slots, resyncs),
			errhint("See reuse_sync.workers and reuse_sync.slots, and call drain() again; reuse_sync.wakeup() has the pool go on."));
}

/*
 * drain(timeout interval)
 *
 * From now on no unit begins in this database (until the extension is dropped,
 * wakeup() is called, or the server restarts).  Returns when what was half
 * done has been finished or set back and every slot is gone; one that nobody
 * knows how to reach is forgotten, with a warning.  Throws
 * ERRCODE_QUERY_CANCELED at the timeout (null: none); only superusers.
 */
Datum
reuse_sync_drain(PG_FUNCTION_ARGS)
{
	TimestampTz deadline = 0;

	if (!superuser())
		ereport(ERROR,
				errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				errmsg("must be superuser to drain a database"));
	require_writable("reuse_sync.drain()");
	functions_require_pool();
	orphans_forget_lost();
	if (!PG_ARGISNULL(0))
		deadline = DatumGetTimestampTz(DirectFunctionCall2(timestamptz_pl_interval,
														   TimestampTzGetDatum(GetCurrentTimestamp()),
														   PG_GETARG_DATUM(0)));
	if (!pool_set_draining(MyDatabaseId, true))
		ereport(ERROR,
				errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				errmsg("too many databases are being drained"),
				errhint("Drop the extension in those that are drained, or call reuse_sync.wakeup() there."));
	pool_hint(MyDatabaseId, true);

	pool_prepare_to_wait();
	for (;;)
	{
		int			busy = pool_busy_in_database(MyDatabaseId);
		int			slots = list_length(catalog_slots(InvalidOid));
		int			resyncs = catalog_begun_resyncs();
		long		wait = 1000;

		if (busy == 0 && slots == 0 && resyncs == 0)
			break;
		if (deadline != 0)
		{
			wait = TimestampDifferenceMilliseconds(GetCurrentTimestamp(),
												   deadline);
			if (wait <= 0)
				drain_timed_out(slots, busy, resyncs);
		}
		pool_wait_for_change(Min(wait, 1000));
	}
	pool_end_wait();
	PG_RETURN_VOID();
}

/*
 * stats_reset() returns void
 *
 * Sets the counters of this database, see reuse_sync.stats, to zero.
 */
Datum
reuse_sync_stats_reset(PG_FUNCTION_ARGS)
{
	require_writable("reuse_sync.stats_reset()");
	catalog_reset_counters();
	PG_RETURN_VOID();
}
