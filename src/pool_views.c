/*-------------------------------------------------------------------------
 *
 * pool_views.c
 *	  What views show of shared memory.
 *
 * Workers note what they learn of a publisher as they go; nobody connects to
 * one for a view.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/pool_views.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"
#include "utils/timestamp.h"

#include "pool.h"
#include "pool_notes.h"
#include "settings.h"

PG_FUNCTION_INFO_V1(reuse_sync_pool_workers);
PG_FUNCTION_INFO_V1(reuse_sync_pool_copies);
PG_FUNCTION_INFO_V1(reuse_sync_pool_slots);
PG_FUNCTION_INFO_V1(reuse_sync_pool_problems);
PG_FUNCTION_INFO_V1(reuse_sync_show_percent);
PG_FUNCTION_INFO_V1(reuse_sync_show_work);

#define POOL_WORKERS_COLS	16
#define POOL_COPIES_COLS	10
#define POOL_SLOTS_COLS		8
#define POOL_PROBLEMS_COLS	3

/* Make rows of all live processes, the launcher first. */
static Datum
put_processes(FunctionCallInfo fcinfo,
			  void (*put) (ReturnSetInfo *rsinfo, const PoolWorker *w))
{
	InitMaterializedSRF(fcinfo, 0);
	for (int i = -1; pool_exists() && i < pool_size(); i++)
	{
		PoolWorker	copy;

		pool_lock(false);
		copy = *pool_entry(i);
		pool_unlock();
		if (copy.pid != 0)
			put((ReturnSetInfo *) fcinfo->resultinfo, &copy);
	}
	return (Datum) 0;
}

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
	return put_processes(fcinfo, put_worker);
}

static void
put_copy(ReturnSetInfo *rsinfo, const PoolWorker *w, int table)
{
	Datum		values[POOL_COPIES_COLS];
	bool		nulls[POOL_COPIES_COLS] = {0};
	const PoolCopied *copied = &w->copied[table];
	bool		done = copied->tuples >= 0;
	int			i = 0;

#define PUT(isset, datum) (nulls[i] = !(isset), values[i++] = (datum))
	PUT(true, Int32GetDatum(w->pid));
	PUT(true, ObjectIdGetDatum(w->dbid));
	PUT(true, ObjectIdGetDatum(w->subid));
	PUT(true, ObjectIdGetDatum(w->relids[table]));
	PUT(true, BoolGetDatum(done));
	PUT(true, Int64GetDatum(done ? copied->bytes :
							w->bytes_copied - w->bytes_before));
	PUT(done, Int64GetDatum(copied->tuples));
	PUT(!done && w->bytes_expected >= 0, Int64GetDatum(w->bytes_expected));
	PUT(!done && w->tuples_expected >= 0, Int64GetDatum(w->tuples_expected));
	PUT(!done, TimestampTzGetDatum(w->copy_start));
#undef PUT
	Assert(i == POOL_COPIES_COLS);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

static void
put_copies(ReturnSetInfo *rsinfo, const PoolWorker *w)
{
	for (int i = 0; OidIsValid(w->at) && i < w->nrelids; i++)
		if (w->relids[i] == w->at || w->copied[i].tuples >= 0)
			put_copy(rsinfo, w, i);
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
	return put_processes(fcinfo, put_copies);
}

static void
put_slot(ReturnSetInfo *rsinfo, const PoolWorker *w)
{
	Datum		values[POOL_SLOTS_COLS];
	bool		nulls[POOL_SLOTS_COLS];
	bool		adopted = w->nrelids > 0 && w->cleanup_slot_id != 0;
	int64		slot_id = adopted ? w->cleanup_slot_id : w->slot_id;
	bool		noted = w->restart_lsn != InvalidXLogRecPtr;
	int			i = 0;

	if (slot_id == 0)
		return;
#define PUT(isset, datum) (nulls[i] = !(isset), values[i++] = (datum))
	PUT(true, ObjectIdGetDatum(w->dbid));
	PUT(true, ObjectIdGetDatum(w->subid));
	PUT(true, Int64GetDatum(slot_id));
	PUT(noted, LSNGetDatum(w->restart_lsn));
	PUT(noted, Int64GetDatum((int64) (w->publisher_lsn - w->restart_lsn)));
	PUT(noted && TransactionIdIsValid(w->catalog_xmin),
		TransactionIdGetDatum(w->catalog_xmin));
	PUT(w->snapshot_xmin != 0, UInt64GetDatum(w->snapshot_xmin));
	PUT(noted, TimestampTzGetDatum(w->slot_noted));
#undef PUT
	Assert(i == POOL_SLOTS_COLS);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/*
 * pool_slots() returns setof record
 *
 * What live workers know of their slots, and of the snapshots they hold, on
 * the publisher.
 */
Datum
reuse_sync_pool_slots(PG_FUNCTION_ARGS)
{
	return put_processes(fcinfo, put_slot);
}

/*
 * pool_problems() returns setof record
 *
 * What workers have met, before they could touch a table, and nobody knows to
 * be over.
 */
Datum
reuse_sync_pool_problems(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	PoolProblem problem;

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; pool_exists() && pool_get_problem(i, &problem); i++)
	{
		Datum		values[POOL_PROBLEMS_COLS];
		bool		nulls[POOL_PROBLEMS_COLS] = {0};

		if (!pool_problem_is_shown(&problem))
			continue;
		values[0] = ObjectIdGetDatum(problem.subid);
		values[1] = CStringGetTextDatum(problem.message);
		values[2] = TimestampTzGetDatum(problem.noted);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values,
							 nulls);
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
