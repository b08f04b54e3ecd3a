/*-------------------------------------------------------------------------
 *
 * functions.c
 *	  The functions that SQL can call.
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
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/array.h"
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
PG_FUNCTION_INFO_V1(reuse_sync_pool_workers);
PG_FUNCTION_INFO_V1(reuse_sync_pool_copies);
PG_FUNCTION_INFO_V1(reuse_sync_show_percent);
PG_FUNCTION_INFO_V1(reuse_sync_show_work);
PG_FUNCTION_INFO_V1(reuse_sync_wakeup);
PG_FUNCTION_INFO_V1(reuse_sync_retry);
PG_FUNCTION_INFO_V1(reuse_sync_drain);
PG_FUNCTION_INFO_V1(reuse_sync_stats_reset);

/* The versions that scripts of this release lead to, one after the other. */
static const char *const script_versions[] = {"1.0", EXTENSION_VERSION};

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

/* --- pool_workers --- */

#define POOL_WORKERS_COLS	16

static const char *
worker_type_name(PoolWorkerType type)
{
	switch (type)
	{
		case POOL_LAUNCHER:
			return "launcher";
		case POOL_WORKER:
			return "worker";
		case POOL_CLEANER:
			return "cleaner";
	}
	return "unknown";
}

static void
put_worker(ReturnSetInfo *rsinfo, const PoolWorker *w)
{
	Datum		values[POOL_WORKERS_COLS];
	bool		nulls[POOL_WORKERS_COLS] = {0};
	bool		in_unit = w->nrelids > 0;
	Datum		relids[POOL_MAX_BATCH];
	int			i = 0;

	/* A slot that was taken over serves while its table is finished. */
	bool		adopted = in_unit && w->cleanup_slot_id != 0;
	int64		slot_id = adopted ? w->cleanup_slot_id : w->slot_id;
	const NameData *slot_name =
	adopted ? &w->cleanup_slot_name : &w->slot_name;

	for (int j = 0; j < w->nrelids; j++)
		relids[j] = ObjectIdGetDatum(w->relids[j]);

#define PUT(isset, datum) (nulls[i] = !(isset), values[i++] = (datum))
	PUT(true, Int32GetDatum(w->pid));
	PUT(true, CStringGetTextDatum(worker_type_name(w->type)));
	PUT(OidIsValid(w->dbid), ObjectIdGetDatum(w->dbid));
	PUT(OidIsValid(w->subid), ObjectIdGetDatum(w->subid));
	PUT(slot_id != 0, Int64GetDatum(slot_id));
	PUT(slot_id != 0, NameGetDatum(slot_name));
	PUT(true, CStringGetTextDatum(pool_phase_name(w->phase)));
	PUT(w->nrelids == 1, ObjectIdGetDatum(w->relids[0]));
	PUT(in_unit, PointerGetDatum(construct_array(relids, w->nrelids, OIDOID,
												 sizeof(Oid), true,
												 TYPALIGN_INT)));
	PUT(in_unit, Int32GetDatum(w->nrelids));
	PUT(true, Int64GetDatum(w->tables_synced));
	PUT(in_unit && w->bytes_total >= 0, Int64GetDatum(w->bytes_total));
	PUT(in_unit, Int64GetDatum(w->bytes_copied));
	PUT(in_unit, TimestampTzGetDatum(w->unit_start));
	PUT(true, TimestampTzGetDatum(w->backend_start));
	PUT(true, TimestampTzGetDatum(w->state_change));
#undef PUT
	Assert(i == POOL_WORKERS_COLS);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/*
 * pool_workers() returns setof record
 *
 * The live processes of the pool, the launcher first.  Without a pool
 * (reuse_sync.enabled = off) there is none.
 */
Datum
reuse_sync_pool_workers(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	if (!pool_exists())
		PG_RETURN_VOID();

	for (int i = -1; i < pool_size(); i++)
	{
		PoolWorker	copy;

		pool_lock(false);
		copy = *pool_entry(i);
		pool_unlock();
		if (copy.pid != 0)
			put_worker(rsinfo, &copy);
	}
	PG_RETURN_VOID();
}

/* --- pool_copies --- */

#define POOL_COPIES_COLS	9

static void
put_copy(ReturnSetInfo *rsinfo, const PoolWorker *w, Oid relid)
{
	Datum		values[POOL_COPIES_COLS];
	bool		nulls[POOL_COPIES_COLS] = {0};
	bool		done = relid < w->at;
	int			i = 0;

#define PUT(isset, datum) (nulls[i] = !(isset), values[i++] = (datum))
	PUT(true, Int32GetDatum(w->pid));
	PUT(true, ObjectIdGetDatum(w->dbid));
	PUT(true, ObjectIdGetDatum(w->subid));
	PUT(true, ObjectIdGetDatum(relid));
	PUT(true, BoolGetDatum(done));
	PUT(!done, Int64GetDatum(w->bytes_copied - w->bytes_before));
	PUT(!done && w->bytes_expected >= 0, Int64GetDatum(w->bytes_expected));
	PUT(!done && w->tuples_expected >= 0, Int64GetDatum(w->tuples_expected));
	PUT(!done, TimestampTzGetDatum(w->copy_start));
#undef PUT
	Assert(i == POOL_COPIES_COLS);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/*
 * pool_copies() returns setof record
 *
 * The tables that live workers have copied, or are copying, in the units they
 * are at.
 */
Datum
reuse_sync_pool_copies(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	if (!pool_exists())
		PG_RETURN_VOID();

	for (int i = 0; i < pool_size(); i++)
	{
		PoolWorker	copy;

		pool_lock(false);
		copy = *pool_entry(i);
		pool_unlock();
		for (int j = 0; copy.pid != 0 && OidIsValid(copy.at) &&
			 j < copy.nrelids; j++)
			if (copy.relids[j] <= copy.at)
				put_copy(rsinfo, &copy, copy.relids[j]);
	}
	PG_RETURN_VOID();
}

/*
 * show_percent(subid oid, run_start timestamptz, percent float8) returns float8
 *
 * What is to be shown, that nobody sees it go back.
 */
Datum
reuse_sync_show_percent(PG_FUNCTION_ARGS)
{
	double		percent = PG_GETARG_FLOAT8(2);

	if (pool_exists())
		percent = pool_show_percent(MyDatabaseId, PG_GETARG_OID(0),
									PG_GETARG_TIMESTAMPTZ(1), percent);
	PG_RETURN_FLOAT8(percent);
}

/*
 * show_work(subid oid, run_start timestamptz, work float8) returns float8
 *
 * The same of the work done in the run.
 */
Datum
reuse_sync_show_work(PG_FUNCTION_ARGS)
{
	double		work = PG_GETARG_FLOAT8(2);

	if (pool_exists())
		work = pool_show_work(MyDatabaseId, PG_GETARG_OID(0),
							  PG_GETARG_TIMESTAMPTZ(1), work);
	PG_RETURN_FLOAT8(work);
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
	functions_require_pool();
	orphans_forget_lost();
	if (!PG_ARGISNULL(0))
		deadline = DatumGetTimestampTz(DirectFunctionCall2(timestamptz_pl_interval,
														   TimestampTzGetDatum(GetCurrentTimestamp()),
														   PG_GETARG_DATUM(0)));
	if (!pool_set_draining(MyDatabaseId, true))
		ereport(ERROR,
				errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				errmsg("too many databases are being drained"));
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
	catalog_reset_counters();
	PG_RETURN_VOID();
}
