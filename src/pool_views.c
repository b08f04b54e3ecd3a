/*-------------------------------------------------------------------------
 *
 * pool_views.c
 *	  What views show of publishers: what holds them up, and what holds us up.
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
#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"
#include "utils/timestamp.h"

#include "pool.h"
#include "pool_notes.h"
#include "settings.h"

PG_FUNCTION_INFO_V1(reuse_sync_pool_slots);
PG_FUNCTION_INFO_V1(reuse_sync_pool_problems);

#define POOL_SLOTS_COLS		8
#define POOL_PROBLEMS_COLS	3

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
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; pool_exists() && i < pool_size(); i++)
	{
		PoolWorker	copy;

		pool_lock(false);
		copy = *pool_entry(i);
		pool_unlock();
		if (copy.pid != 0)
			put_slot(rsinfo, &copy);
	}
	PG_RETURN_VOID();
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

		if (!OidIsValid(problem.subid) || problem.over)
			continue;
		values[0] = ObjectIdGetDatum(problem.subid);
		values[1] = CStringGetTextDatum(problem.message);
		values[2] = TimestampTzGetDatum(problem.noted);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values,
							 nulls);
	}
	PG_RETURN_VOID();
}
