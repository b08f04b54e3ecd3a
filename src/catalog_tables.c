/*-------------------------------------------------------------------------
 *
 * catalog_tables.c
 *	  What the catalog has of tables: progress, what is asked for, and sizes.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/catalog_tables.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/pg_subscription_rel.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/fmgroids.h"
#include "utils/pg_lsn.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "catalog.h"
#include "catalog_row.h"
#include "compat.h"
#include "pool.h"

enum
{
	PROGRESS_dbid, PROGRESS_subid, PROGRESS_relid, PROGRESS_slot_id,
	PROGRESS_copy_xid, PROGRESS_snapshot, PROGRESS_filter_end,
	PROGRESS_publications, PROGRESS_was_empty, PROGRESS_started_at,
	PROGRESS_bytes_total, PROGRESS_bytes_copied, PROGRESS_tuples_copied,
	PROGRESS_attempts, PROGRESS_next_retry, PROGRESS_last_error,
	PROGRESS_last_error_time, PROGRESS_natts
};

enum
{
	RETRY_dbid, RETRY_subid, RETRY_relid, RETRY_voids, RETRY_natts
};

enum
{
	RESYNC_dbid, RESYNC_subid, RESYNC_relid, RESYNC_xid, RESYNC_stage,
	RESYNC_truncate, RESYNC_requested_at, RESYNC_natts
};

enum
{
	SIZE_dbid, SIZE_subid, SIZE_relid, SIZE_bytes, SIZE_run_start, SIZE_natts
};

enum
{
	UNIT_dbid, UNIT_subid, UNIT_relid, UNIT_place, UNIT_pid, UNIT_slot_name,
	UNIT_slot_reused, UNIT_tables, UNIT_started_at, UNIT_copied_at,
	UNIT_finished_at, UNIT_bytes_copied, UNIT_tuples_copied, UNIT_natts
};

static const char *const resync_stage_names[] = {
	[RESYNC_REQUESTED] = "requested",
	[RESYNC_TRIED] = "tried",
	[RESYNC_SET_BACK] = "set back",
	[RESYNC_BEGUN] = "begun",
};

StaticAssertDecl(PROGRESS_natts <= MAX_NATTS && UNIT_natts <= MAX_NATTS &&
				 (int) PROGRESS_subid == (int) KEY_subid &&
				 (int) PROGRESS_relid == (int) KEY_relid &&
				 (int) RETRY_subid == (int) KEY_subid &&
				 (int) RETRY_relid == (int) KEY_relid &&
				 (int) RESYNC_subid == (int) KEY_subid &&
				 (int) RESYNC_relid == (int) KEY_relid &&
				 (int) SIZE_subid == (int) KEY_subid &&
				 (int) SIZE_relid == (int) KEY_relid &&
				 (int) UNIT_subid == (int) KEY_subid &&
				 (int) UNIT_relid == (int) KEY_relid,
				 "rows are not as catalog_row.h has them");

/* --- progress --- */

static HeapTuple
find_progress(Relation rel, Oid subid, Oid relid, Row *row)
{
	ScanKeyData keys[3];

	catalog_init_table_key(keys, subid, relid);
	return catalog_find_row(rel, "table_progress_key", keys, 3, row);
}

/* An int64-sized value of the row, or what stands for null. */
#define row_get64(row, att, if_null) \
	((row)->nulls[att] ? (if_null) : DatumGetInt64((row)->values[att]))

bool
catalog_get_progress(Oid subid, Oid relid, TableProgress *progress)
{
	Relation	rel = catalog_open("table_progress", AccessShareLock);
	Row			row;
	HeapTuple	tuple = find_progress(rel, subid, relid, &row);

	memset(progress, 0, sizeof(TableProgress));
	progress->bytes_total = -1;
	if (HeapTupleIsValid(tuple))
	{
		progress->slot_id = row_get64(&row, PROGRESS_slot_id, 0);
		progress->copy_xid = row.nulls[PROGRESS_copy_xid] ?
			InvalidTransactionId :
			DatumGetTransactionId(row.values[PROGRESS_copy_xid]);
		progress->snapshot = row_get_text(&row, PROGRESS_snapshot);
		progress->filter_end = (XLogRecPtr)
			row_get64(&row, PROGRESS_filter_end, 0);
		progress->publications = row_get_text(&row, PROGRESS_publications);
		progress->was_empty = !row.nulls[PROGRESS_was_empty] &&
			DatumGetBool(row.values[PROGRESS_was_empty]);
		progress->started_at = row_get64(&row, PROGRESS_started_at, 0);
		progress->bytes_total = row_get64(&row, PROGRESS_bytes_total, -1);
		progress->bytes_copied = row_get64(&row, PROGRESS_bytes_copied, 0);
		progress->tuples_copied = row_get64(&row, PROGRESS_tuples_copied, 0);
		progress->attempts = row.nulls[PROGRESS_attempts] ? 0 :
			DatumGetInt32(row.values[PROGRESS_attempts]);
		progress->next_retry = row_get64(&row, PROGRESS_next_retry, 0);
		progress->last_error = row_get_text(&row, PROGRESS_last_error);
		progress->last_error_time =
			row_get64(&row, PROGRESS_last_error_time, 0);
	}
	table_close(rel, AccessShareLock);
	return HeapTupleIsValid(tuple);
}

void
catalog_put_progress(Oid subid, Oid relid, const TableProgress *progress)
{
	Relation	rel = catalog_open("table_progress", RowExclusiveLock);
	Row			row = {0};
	HeapTuple	old = find_progress(rel, subid, relid, &row);

	row_set(&row, PROGRESS_dbid, ObjectIdGetDatum(MyDatabaseId));
	row_set(&row, PROGRESS_subid, ObjectIdGetDatum(subid));
	row_set(&row, PROGRESS_relid, ObjectIdGetDatum(relid));
	row_set_if(&row, PROGRESS_slot_id, progress->slot_id != 0,
			   Int64GetDatum(progress->slot_id));
	row_set_if(&row, PROGRESS_copy_xid,
			   TransactionIdIsValid(progress->copy_xid),
			   TransactionIdGetDatum(progress->copy_xid));
	row_set_text(&row, PROGRESS_snapshot, progress->snapshot);
	row_set_if(&row, PROGRESS_filter_end,
			   !XLogRecPtrIsInvalid(progress->filter_end),
			   LSNGetDatum(progress->filter_end));
	row_set_text(&row, PROGRESS_publications, progress->publications);
	row_set(&row, PROGRESS_was_empty, BoolGetDatum(progress->was_empty));
	row_set_if(&row, PROGRESS_started_at, progress->started_at != 0,
			   TimestampTzGetDatum(progress->started_at));
	row_set_if(&row, PROGRESS_bytes_total, progress->bytes_total >= 0,
			   Int64GetDatum(progress->bytes_total));
	row_set(&row, PROGRESS_bytes_copied,
			Int64GetDatum(progress->bytes_copied));
	row_set(&row, PROGRESS_tuples_copied,
			Int64GetDatum(progress->tuples_copied));
	row_set(&row, PROGRESS_attempts, Int32GetDatum(progress->attempts));
	row_set_if(&row, PROGRESS_next_retry, progress->next_retry != 0,
			   TimestampTzGetDatum(progress->next_retry));
	row_set_text(&row, PROGRESS_last_error, progress->last_error);
	row_set_if(&row, PROGRESS_last_error_time,
			   progress->last_error_time != 0,
			   TimestampTzGetDatum(progress->last_error_time));
	catalog_put_row(rel, old, &row);
	table_close(rel, RowExclusiveLock);
}

static HeapTuple
find_retry_request(Relation rel, Oid subid, Oid relid, Row *row)
{
	ScanKeyData keys[3];

	catalog_init_table_key(keys, subid, relid);
	return catalog_find_row(rel, "retry_request_key", keys, 3, row);
}

TimestampTz
catalog_retry_time(Oid subid, Oid relid, const TableProgress *progress)
{
	Relation	rel;
	Row			row;
	bool		voided;

	if (progress->next_retry <= GetCurrentTimestamp())
		return 0;
	rel = catalog_open("retry_request", AccessShareLock);
	voided = HeapTupleIsValid(find_retry_request(rel, subid, relid, &row)) &&
		DatumGetTimestampTz(row.values[RETRY_voids]) == progress->next_retry;
	table_close(rel, AccessShareLock);
	return voided ? 0 : progress->next_retry;
}

bool
catalog_request_retry(Oid subid, Oid relid)
{
	Relation	rel = catalog_open("retry_request", ShareRowExclusiveLock);
	TableProgress progress;
	Row			row = {0};
	bool		waits;

	catalog_get_progress(subid, relid, &progress);
	waits = catalog_retry_time(subid, relid, &progress) != 0;
	if (waits)
	{
		HeapTuple	old = find_retry_request(rel, subid, relid, &row);

		row_set(&row, RETRY_dbid, ObjectIdGetDatum(MyDatabaseId));
		row_set(&row, RETRY_subid, ObjectIdGetDatum(subid));
		row_set(&row, RETRY_relid, ObjectIdGetDatum(relid));
		row_set(&row, RETRY_voids, TimestampTzGetDatum(progress.next_retry));
		catalog_put_row(rel, old, &row);
	}

	/* The lock stays until commit: one such request at a time. */
	table_close(rel, NoLock);
	return waits;
}

/* --- resyncs --- */

static HeapTuple
find_resync(Relation rel, Oid subid, Oid relid, int64 xid, Row *row)
{
	ScanKeyData keys[4];

	catalog_init_table_key(keys, subid, relid);
	catalog_key_init(&keys[3], RESYNC_xid, F_INT8EQ, Int64GetDatum(xid));
	return catalog_find_row(rel, "resync_key", keys, 4, row);
}

void
catalog_add_resync(Oid subid, Oid relid, bool truncate)
{
	Relation	rel = catalog_open("resync", RowExclusiveLock);
	int64		xid = (int64) U64FromFullTransactionId(GetTopFullTransactionId());
	Row			row = {0};
	HeapTuple	old = find_resync(rel, subid, relid, xid, &row);

	/* Asked for twice in one transaction: whoever wants it emptied wins. */
	if (HeapTupleIsValid(old))
		truncate |= DatumGetBool(row.values[RESYNC_truncate]);
	row_set(&row, RESYNC_dbid, ObjectIdGetDatum(MyDatabaseId));
	row_set(&row, RESYNC_subid, ObjectIdGetDatum(subid));
	row_set(&row, RESYNC_relid, ObjectIdGetDatum(relid));
	row_set(&row, RESYNC_xid, Int64GetDatum(xid));
	row_set_text(&row, RESYNC_stage, resync_stage_names[RESYNC_REQUESTED]);
	row_set(&row, RESYNC_truncate, BoolGetDatum(truncate));
	row_set(&row, RESYNC_requested_at,
			TimestampTzGetDatum(GetCurrentTimestamp()));
	catalog_put_row(rel, old, &row);
	table_close(rel, RowExclusiveLock);
}

static ResyncStage
resync_stage_from_name(const char *name)
{
	for (int i = 0; i < lengthof(resync_stage_names); i++)
		if (name != NULL && strcmp(name, resync_stage_names[i]) == 0)
			return (ResyncStage) i;
	ereport(ERROR,
			errcode(ERRCODE_DATA_CORRUPTED),
			errmsg("unexpected stage \"%s\" in reuse_sync.resync",
				   name ? name : "(null)"));
	return RESYNC_REQUESTED;	/* not reached */
}

static void *
make_resync(const Row *row)
{
	ResyncRow  *resync = palloc(sizeof(ResyncRow));

	resync->relid = DatumGetObjectId(row->values[RESYNC_relid]);
	resync->xid = DatumGetInt64(row->values[RESYNC_xid]);
	resync->stage = resync_stage_from_name(row_get_text(row, RESYNC_stage));
	resync->truncate = DatumGetBool(row->values[RESYNC_truncate]);
	resync->requested_at =
		DatumGetTimestampTz(row->values[RESYNC_requested_at]);
	return resync;
}

List *
catalog_resyncs(Oid subid)
{
	return catalog_read("resync", subid, make_resync);
}

bool
catalog_resync_is_begun(Oid subid, Oid relid)
{
	ListCell   *lc;

	foreach(lc, catalog_resyncs(subid))
	{
		ResyncRow  *resync = lfirst(lc);

		if (resync->relid == relid && resync->stage >= RESYNC_SET_BACK)
			return true;
	}
	return false;
}

int
catalog_begun_resyncs(void)
{
	int			n = 0;
	ListCell   *lc;

	foreach(lc, catalog_resyncs(InvalidOid))
		n += ((ResyncRow *) lfirst(lc))->stage >= RESYNC_SET_BACK;
	return n;
}

/* Change the rows of a table that are of these stages; null: remove them. */
static void
change_resyncs(Oid subid, Oid relid, ResyncStage first, const char *stage)
{
	List	   *rows = catalog_resyncs(subid);
	Relation	rel = catalog_open("resync", RowExclusiveLock);
	ListCell   *lc;

	foreach(lc, rows)
	{
		ResyncRow  *resync = lfirst(lc);
		Row			row;
		HeapTuple	old;

		if (resync->relid != relid || resync->stage < first ||
			stage == resync_stage_names[resync->stage])
			continue;
		old = find_resync(rel, subid, relid, resync->xid, &row);
		if (!HeapTupleIsValid(old))
			continue;
		if (stage == NULL)
			catalog_delete_row(rel, old);
		else
		{
			row_set_text(&row, RESYNC_stage, stage);
			catalog_put_row(rel, old, &row);
		}
	}
	table_close(rel, RowExclusiveLock);
}

void
catalog_set_resyncs(Oid subid, Oid relid, ResyncStage stage)
{
	change_resyncs(subid, relid, RESYNC_REQUESTED, resync_stage_names[stage]);
}

void
catalog_remove_resyncs(Oid subid, Oid relid, ResyncStage stage)
{
	change_resyncs(subid, relid, stage, NULL);
}

/* --- sizes --- */

static HeapTuple
find_size(Relation rel, Oid subid, Oid relid, Row *row)
{
	ScanKeyData keys[3];

	catalog_init_table_key(keys, subid, relid);
	return catalog_find_row(rel, "table_size_key", keys, 3, row);
}

/*
 * The run that a row of table_size says the table to be of; 0 if there is no
 * row, or the table is to be synchronized anew since.
 */
static TimestampTz
run_of_table(Oid relid, HeapTuple tuple, const Row *row, List *resyncs)
{
	TimestampTz start;
	ListCell   *lc;

	if (!HeapTupleIsValid(tuple))
		return 0;
	start = DatumGetTimestampTz(row->values[SIZE_run_start]);
	foreach(lc, resyncs)
	{
		ResyncRow  *resync = lfirst(lc);

		if (resync->relid == relid && resync->requested_at > start)
			return 0;
	}
	return start;
}

/*
 * When the run began that the unfinished tables of the subscription are of;
 * now if none of them is of any.
 */
static TimestampTz
current_run(Relation rel, Oid subid, List *resyncs)
{
	TimestampTz start = 0;
	ListCell   *lc;

	foreach(lc, GetSubscriptionRelations(subid, true))
	{
		Oid			relid = ((SubscriptionRelState *) lfirst(lc))->relid;
		Row			row;
		HeapTuple	tuple = find_size(rel, subid, relid, &row);
		TimestampTz run = run_of_table(relid, tuple, &row, resyncs);

		start = Max(start, run);
	}
	return start != 0 ? start : GetCurrentTimestamp();
}

void
catalog_add_sizes(Oid subid, const Oid *relids, const int64 *bytes, int n)
{
	Oid			relid = catalog_relid("table_size");
	Relation	rel;
	CatalogIndexState indexes;
	TimestampTz run_start;
	List	   *resyncs;

	if (!ConditionalLockRelationOid(relid, ShareRowExclusiveLock))
		return;
	rel = table_open(relid, NoLock);
	resyncs = catalog_resyncs(subid);
	run_start = current_run(rel, subid, resyncs);
	indexes = CatalogOpenIndexes(rel);
	for (int i = 0; i < n; i++)
	{
		Row			row = {0};
		HeapTuple	old = find_size(rel, subid, relids[i], &row);
		HeapTuple	tuple;

		if (run_of_table(relids[i], old, &row, resyncs) != 0)
			continue;
		row_set(&row, SIZE_dbid, ObjectIdGetDatum(MyDatabaseId));
		row_set(&row, SIZE_subid, ObjectIdGetDatum(subid));
		row_set(&row, SIZE_relid, ObjectIdGetDatum(relids[i]));
		row_set(&row, SIZE_bytes, Int64GetDatum(Max(bytes[i], 0)));
		row_set(&row, SIZE_run_start, TimestampTzGetDatum(run_start));
		tuple = heap_form_tuple(RelationGetDescr(rel),
								row.values, row.nulls);
		if (HeapTupleIsValid(old))
			CatalogTupleUpdateWithInfo(rel, &old->t_self, tuple, indexes);
		else
			CatalogTupleInsertWithInfo(rel, tuple, indexes);
	}
	CatalogCloseIndexes(indexes);
	table_close(rel, NoLock);
	CommandCounterIncrement();
}

/* --- units --- */

void
catalog_put_unit(Oid subid, Oid relid, const UnitRow *unit)
{
	Relation	rel = catalog_open("unit_history", RowExclusiveLock);
	ScanKeyData keys[3];
	Row			row = {0};
	HeapTuple	old;

	catalog_init_table_key(keys, subid, relid);
	old = catalog_find_row(rel, "unit_history_key", keys, 3, &row);
	row_set(&row, UNIT_dbid, ObjectIdGetDatum(MyDatabaseId));
	row_set(&row, UNIT_subid, ObjectIdGetDatum(subid));
	row_set(&row, UNIT_relid, ObjectIdGetDatum(relid));
	row_set(&row, UNIT_place, Int32GetDatum(pool_my_place()));
	row_set(&row, UNIT_pid, Int32GetDatum(MyProcPid));
	row_set(&row, UNIT_slot_name, NameGetDatum(unit->slot_name));
	row_set(&row, UNIT_slot_reused, BoolGetDatum(unit->slot_reused));
	row_set(&row, UNIT_tables, Int32GetDatum(unit->ntables));
	row_set(&row, UNIT_started_at, TimestampTzGetDatum(unit->started_at));
	row_set_if(&row, UNIT_copied_at, unit->copied_at != 0,
			   TimestampTzGetDatum(unit->copied_at));
	row_set(&row, UNIT_finished_at,
			TimestampTzGetDatum(GetCurrentTimestamp()));
	row_set(&row, UNIT_bytes_copied, Int64GetDatum(unit->bytes_copied));
	row_set(&row, UNIT_tuples_copied, Int64GetDatum(unit->tuples_copied));
	catalog_put_row(rel, old, &row);
	table_close(rel, RowExclusiveLock);
}

