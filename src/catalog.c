/*-------------------------------------------------------------------------
 *
 * catalog.c
 *	  The extension's catalog: whether it is there, its rows, and counters.
 *
 * The relations are materialized views (sql/reuse_sync--1.0.sql says why), so
 * rows are written with the server's functions for catalogs.  What is kept of
 * slots is in catalog_slots.c, and of tables in catalog_tables.c.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/catalog.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heaptoast.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_extension.h"
#include "commands/dbcommands.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "catalog.h"
#include "catalog_row.h"
#include "compat.h"
#include "pool.h"
#include "pool_notes.h"
#include "settings.h"
#include "testing.h"

/* The counters follow in the order of PoolCounters. */
#define COUNTER_COUNTERS	((int) (sizeof(PoolCounters) / sizeof(int64)))
enum
{
	COUNTER_dbid, COUNTER_place, COUNTER_first,
	COUNTER_stats_reset = COUNTER_first + COUNTER_COUNTERS,
	COUNTER_natts
};

/* The place of those that are not of the pool, who wait for each other. */
#define NO_PLACE	(-1)

StaticAssertDecl(COUNTER_natts <= MAX_NATTS, "MAX_NATTS is too small");

/* --- is it there? --- */

bool
catalog_exists(int elevel)
{
	Relation	rel;
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;
	bool		found = false;

	rel = table_open(ExtensionRelationId, AccessShareLock);
	ScanKeyInit(&key, Anum_pg_extension_extname, BTEqualStrategyNumber,
				F_NAMEEQ, CStringGetDatum(EXTENSION_NAME));
	scan = systable_beginscan(rel, ExtensionNameIndexId, true, NULL, 1, &key);
	if (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		bool		isnull;
		Datum		datum = heap_getattr(tuple, Anum_pg_extension_extversion,
										 RelationGetDescr(rel), &isnull);
		char	   *version = isnull ? "" : TextDatumGetCString(datum);

		found = strcmp(version, EXTENSION_VERSION) == 0;
		if (!found && elevel > 0)
			ereport(elevel,
					errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					errmsg("extension \"%s\" is version %s in database \"%s\", but the loaded library is version %s",
						   EXTENSION_NAME, version,
						   get_database_name(MyDatabaseId),
						   EXTENSION_VERSION),
					errhint("Run ALTER EXTENSION %s UPDATE, or restart the server if a new library was installed.",
							EXTENSION_NAME));
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return found;
}

void
catalog_note_standing(void)
{
	pool_note_database(MyDatabaseId,
					   catalog_exists(0) ? DATABASE_HAS_EXTENSION :
					   OidIsValid(get_extension_oid(EXTENSION_NAME, true)) ?
					   DATABASE_HAS_OTHER_VERSION :
					   DATABASE_LACKS_EXTENSION);
}

bool
catalog_hold(void)
{
	Oid			nspid = get_namespace_oid(EXTENSION_NAME, true);
	Oid			relid = OidIsValid(nspid) ?
	get_relname_relid("slot_catalog", nspid) : InvalidOid;
	Relation	rel;

	if (!OidIsValid(relid) ||
		(rel = try_relation_open(relid, AccessShareLock)) == NULL)
		return false;
	relation_close(rel, NoLock);
	return catalog_exists(0);
}

/* --- rows --- */

Oid
catalog_relid(const char *name)
{
	Oid			nspid = get_namespace_oid(EXTENSION_NAME, true);
	Oid			relid = InvalidOid;

	if (OidIsValid(nspid))
		relid = get_relname_relid(name, nspid);
	if (!OidIsValid(relid) &&
		OidIsValid(get_extension_oid(EXTENSION_NAME, true)))
		ereport(ERROR,
				errcode(ERRCODE_UNDEFINED_OBJECT),
				errmsg("relation \"%s.%s\" of extension \"%s\" is missing",
					   EXTENSION_NAME, name, EXTENSION_NAME),
				errhint("It or its schema has been renamed, or is of another version of the extension."));
	if (!OidIsValid(relid))
		ereport(ERROR,
				errcode(ERRCODE_UNDEFINED_OBJECT),
				errmsg("extension \"%s\" is not installed in database \"%s\"",
					   EXTENSION_NAME, get_database_name(MyDatabaseId)),
				errhint("Run CREATE EXTENSION %s.", EXTENSION_NAME));
	return relid;
}

Relation
catalog_open(const char *name, LOCKMODE lockmode)
{
	Relation	rel = try_relation_open(catalog_relid(name), lockmode);

	/* Dropped while we waited for the lock: say so as above. */
	if (rel == NULL)
		rel = relation_open(catalog_relid(name), lockmode);
	if (rel->rd_rel->relkind != RELKIND_MATVIEW)
		ereport(ERROR,
				errcode(ERRCODE_WRONG_OBJECT_TYPE),
				errmsg("\"%s.%s\" is not of extension \"%s\"",
					   EXTENSION_NAME, name, EXTENSION_NAME));
	return rel;
}

void
catalog_key_init(ScanKey key, int att, RegProcedure proc, Datum value)
{
	ScanKeyInit(key, att + 1, BTEqualStrategyNumber, proc, value);
}

void
catalog_init_table_key(ScanKeyData *keys, Oid subid, Oid relid)
{
	catalog_key_init(&keys[KEY_dbid], KEY_dbid, F_OIDEQ,
					 ObjectIdGetDatum(MyDatabaseId));
	catalog_key_init(&keys[KEY_subid], KEY_subid, F_OIDEQ,
					 ObjectIdGetDatum(subid));
	catalog_key_init(&keys[KEY_relid], KEY_relid, F_OIDEQ,
					 ObjectIdGetDatum(relid));
}

List *
catalog_read(const char *name, Oid subid, void *(*convert) (const Row *row))
{
	Relation	rel = catalog_open(name, AccessShareLock);
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, NULL, 0,
										  NULL);
	HeapTuple	tuple;
	List	   *result = NIL;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Row			row;

		heap_deform_tuple(tuple, RelationGetDescr(rel),
						  row.values, row.nulls);
		if (DatumGetObjectId(row.values[KEY_dbid]) == MyDatabaseId &&
			(!OidIsValid(subid) ||
			 DatumGetObjectId(row.values[KEY_subid]) == subid))
			result = lappend(result, convert(&row));
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return result;
}

HeapTuple
catalog_find_row(Relation rel, const char *index, ScanKey keys, int nkeys,
				 Row *row)
{
	SysScanDesc scan;
	HeapTuple	tuple;

	scan = systable_beginscan(rel, catalog_relid(index), true, NULL,
							  nkeys, keys);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
	{
		/* What is stored out of line is read while there is a snapshot. */
		tuple = HeapTupleHasExternal(tuple) && guard_is_on("toast") ?
			toast_flatten_tuple(tuple, RelationGetDescr(rel)) :
			heap_copytuple(tuple);
		heap_deform_tuple(tuple, RelationGetDescr(rel),
						  row->values, row->nulls);
	}
	systable_endscan(scan);
	test_point(POINT_row_found, index);
	return tuple;
}

/*
 * What is stored out of line is removed with a snapshot at hand: that of the
 * catalog goes whenever somebody has changed one.
 */
static bool
begin_change(Relation rel)
{
	test_point(POINT_row_changes, RelationGetRelationName(rel));
	if (ActiveSnapshotSet() || !guard_is_on("toast"))
		return false;
	PushActiveSnapshot(GetTransactionSnapshot());
	return true;
}

static void
end_change(bool has_snapshot)
{
	if (has_snapshot)
		PopActiveSnapshot();
	CommandCounterIncrement();
}

void
catalog_put_row(Relation rel, HeapTuple old, Row *row)
{
	bool		has_snapshot = begin_change(rel);
	HeapTuple	tuple = heap_form_tuple(RelationGetDescr(rel),
										row->values, row->nulls);

	if (HeapTupleIsValid(old))
		CatalogTupleUpdate(rel, &old->t_self, tuple);
	else
		CatalogTupleInsert(rel, tuple);
	end_change(has_snapshot);
}

void
catalog_delete_row(Relation rel, HeapTuple old)
{
	bool		has_snapshot = begin_change(rel);

	CatalogTupleDelete(rel, &old->t_self);
	end_change(has_snapshot);
}

/* --- counters --- */

PoolCounters Counters;

/* What the open transaction has written of them. */
static PoolCounters in_flight;

static void
add_counters(PoolCounters *sum, const PoolCounters *delta)
{
	for (int i = 0; i < COUNTER_COUNTERS; i++)
		((int64 *) sum)[i] += ((const int64 *) delta)[i];
}

static void
counters_at_transaction_end(XactEvent event, void *arg)
{
	if (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT)
		return;
	if (event == XACT_EVENT_ABORT)
		add_counters(&Counters, &in_flight);
	memset(&in_flight, 0, sizeof(in_flight));
}

void
catalog_write_counters(void)
{
	static bool registered = false;
	int			place = MyPoolWorker != NULL ? pool_my_place() : NO_PLACE;
	Relation	rel = catalog_open("counter", place == NO_PLACE ?
								   ShareUpdateExclusiveLock :
								   RowExclusiveLock);
	ScanKeyData keys[2];
	Row			row = {0};
	HeapTuple	old;

	if (!registered)
	{
		RegisterXactCallback(counters_at_transaction_end, NULL);
		registered = true;
	}
	catalog_key_init(&keys[0], COUNTER_dbid, F_OIDEQ,
					 ObjectIdGetDatum(MyDatabaseId));
	catalog_key_init(&keys[1], COUNTER_place, F_INT4EQ,
			 Int32GetDatum(place));
	old = catalog_find_row(rel, "counter_key", keys, 2, &row);
	if (!HeapTupleIsValid(old))
		row.nulls[COUNTER_stats_reset] = true;
	row_set(&row, COUNTER_dbid, ObjectIdGetDatum(MyDatabaseId));
	row_set(&row, COUNTER_place, Int32GetDatum(place));
	for (int i = 0; i < COUNTER_COUNTERS; i++)
		row_set(&row, COUNTER_first + i,
				Int64GetDatum((HeapTupleIsValid(old) ?
							   DatumGetInt64(row.values[COUNTER_first + i]) :
							   0) + ((int64 *) &Counters)[i]));
	catalog_put_row(rel, old, &row);
	table_close(rel, place == NO_PLACE ? NoLock : RowExclusiveLock);

	add_counters(&in_flight, &Counters);
	memset(&Counters, 0, sizeof(Counters));
}

void
catalog_restore_counters(const PoolCounters *before)
{
	Counters = *before;
	memset(&in_flight, 0, sizeof(in_flight));
}

void
catalog_reset_counters(void)
{
	/* Waits for those who count, who take a weaker lock until they commit. */
	Relation	rel = catalog_open("counter", ShareRowExclusiveLock);
	SysScanDesc scan;
	HeapTuple	tuple;
	List	   *old = NIL;
	ListCell   *lc;
	Row			row = {0};

	scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		heap_deform_tuple(tuple, RelationGetDescr(rel),
						  row.values, row.nulls);
		if (DatumGetObjectId(row.values[COUNTER_dbid]) == MyDatabaseId)
			old = lappend(old, heap_copytuple(tuple));
	}
	systable_endscan(scan);
	foreach(lc, old)
		CatalogTupleDelete(rel, &((HeapTuple) lfirst(lc))->t_self);

	/* A place that no worker has keeps the time. */
	row_set(&row, COUNTER_dbid, ObjectIdGetDatum(MyDatabaseId));
	row_set(&row, COUNTER_place, Int32GetDatum(NO_PLACE));
	for (int i = 0; i < COUNTER_COUNTERS; i++)
		row_set(&row, COUNTER_first + i, Int64GetDatum(0));
	row_set(&row, COUNTER_stats_reset,
			TimestampTzGetDatum(GetCurrentTimestamp()));
	catalog_put_row(rel, NULL, &row);
	table_close(rel, NoLock);
}

/* --- upkeep --- */

/* What the rows of one of our relations are of. */
typedef enum RowsOf
{
	OF_DATABASE,
	OF_TABLE,
	OF_SUBSCRIPTION
} RowsOf;

/*
 * Is this row of another database, of a table no longer subscribed, or of a
 * subscription that is gone with all its slots?
 */
static bool
is_strange(const Row *row, RowsOf what)
{
	if (DatumGetObjectId(row->values[KEY_dbid]) != MyDatabaseId)
		return true;
	switch (what)
	{
		case OF_TABLE:
			return !SearchSysCacheExists2(SUBSCRIPTIONRELMAP,
										  row->values[KEY_relid],
										  row->values[KEY_subid]);
		case OF_SUBSCRIPTION:
			return !SearchSysCacheExists1(SUBSCRIPTIONOID,
										  row->values[KEY_subid]) &&
				catalog_slots(DatumGetObjectId(row->values[KEY_subid])) == NIL;
		case OF_DATABASE:
			break;
	}
	return false;
}

void
catalog_forget_strangers(void)
{
	static const struct
	{
		const char *name;
		RowsOf		what;
	}			relations[] = {
		{"slot_catalog", OF_DATABASE}, {"counter", OF_DATABASE},
		{"slot_number", OF_SUBSCRIPTION}, {"table_progress", OF_TABLE},
		{"retry_request", OF_TABLE}, {"resync", OF_TABLE},
		{"table_size", OF_TABLE}, {"unit_history", OF_TABLE}
	};

	for (int i = 0; i < lengthof(relations); i++)
	{
		Oid			relid = catalog_relid(relations[i].name);
		Relation	rel;
		SysScanDesc scan;
		HeapTuple	tuple;

		/*
		 * One process at a time, or the same rows would be deleted twice.  It
		 * must not wait: it may hold the lock on another of these relations
		 * that somebody needs who has this one.
		 */
		if (!ConditionalLockRelationOid(relid, ShareUpdateExclusiveLock))
			continue;
		rel = table_open(relid, RowExclusiveLock);
		scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
		while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		{
			Row			row;

			heap_deform_tuple(tuple, RelationGetDescr(rel),
							  row.values, row.nulls);
			if (is_strange(&row, relations[i].what))
				CatalogTupleDelete(rel, &tuple->t_self);
		}
		systable_endscan(scan);
		table_close(rel, NoLock);
	}
	CommandCounterIncrement();
}
