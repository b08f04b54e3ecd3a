/*-------------------------------------------------------------------------
 *
 * catalog.c
 *	  The extension's catalog.
 *
 * The relations are materialized views (sql/reuse_sync--1.0.sql says why), so
 * rows are written with the server's functions for catalogs.  Each write is
 * followed by a CommandCounterIncrement: a row may be written twice in one
 * transaction.
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
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_subscription_rel.h"
#include "commands/dbcommands.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/pg_lsn.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "catalog.h"
#include "compat.h"
#include "pool.h"
#include "settings.h"

enum
{
	SLOT_dbid, SLOT_subid, SLOT_slot_id, SLOT_slot_name, SLOT_state,
	SLOT_relid, SLOT_created_at, SLOT_publisher_sysid,
	SLOT_publisher_timeline, SLOT_tables_synced, SLOT_last_error,
	SLOT_conninfo, SLOT_natts
};

enum
{
	NUMBER_dbid, NUMBER_subid, NUMBER_last_slot_id, NUMBER_natts
};

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

/* The counters follow in the order of PoolCounters. */
#define COUNTER_COUNTERS	((int) (sizeof(PoolCounters) / sizeof(int64)))
enum
{
	COUNTER_dbid, COUNTER_place, COUNTER_first,
	COUNTER_stats_reset = COUNTER_first + COUNTER_COUNTERS,
	COUNTER_natts
};

/*
 * In front of a stored connection string with which a password must be used;
 * none can begin like that.
 */
#define PASSWORD_MARK	"!"

/* The place of those that are not of the pool, who wait for each other. */
#define NO_PLACE	(-1)

#define MAX_NATTS	20

static const char *const slot_state_names[] = {
	[SLOT_CREATING] = "creating",
	[SLOT_CREATED] = "created",
	[SLOT_LINKED] = "linked",
	[SLOT_ORPHANED] = "orphaned",
};

static const char *const resync_stage_names[] = {
	[RESYNC_REQUESTED] = "requested",
	[RESYNC_TRIED] = "tried",
	[RESYNC_SET_BACK] = "set back",
	[RESYNC_BEGUN] = "begun",
};

StaticAssertDecl(SLOT_natts <= MAX_NATTS && PROGRESS_natts <= MAX_NATTS &&
				 COUNTER_natts <= MAX_NATTS && UNIT_natts <= MAX_NATTS,
				 "MAX_NATTS is too small");

/* A row being read or written. */
typedef struct Row
{
	Datum		values[MAX_NATTS];
	bool		nulls[MAX_NATTS];
} Row;

static void
row_set(Row *row, int att, Datum value)
{
	row->values[att] = value;
	row->nulls[att] = false;
}

/* Set, or null. */
static void
row_set_if(Row *row, int att, bool isset, Datum value)
{
	row->values[att] = isset ? value : (Datum) 0;
	row->nulls[att] = !isset;
}

static void
row_set_text(Row *row, int att, const char *value)
{
	row_set_if(row, att, value != NULL,
			   value ? CStringGetTextDatum(value) : (Datum) 0);
}

static char *
row_get_text(const Row *row, int att)
{
	return row->nulls[att] ? NULL : TextDatumGetCString(row->values[att]);
}

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

static Oid
catalog_relid(const char *name)
{
	Oid			nspid = get_namespace_oid(EXTENSION_NAME, true);
	Oid			relid = InvalidOid;

	if (OidIsValid(nspid))
		relid = get_relname_relid(name, nspid);
	if (!OidIsValid(relid))
		ereport(ERROR,
				errcode(ERRCODE_UNDEFINED_OBJECT),
				errmsg("extension \"%s\" is not installed in database \"%s\"",
					   EXTENSION_NAME, get_database_name(MyDatabaseId)),
				errhint("Run CREATE EXTENSION %s.", EXTENSION_NAME));
	return relid;
}

static Relation
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

static void
key_init(ScanKey key, int att, RegProcedure proc, Datum value)
{
	ScanKeyInit(key, att + 1, BTEqualStrategyNumber, proc, value);
}

/* Copy of the row with this key, deformed into 'row' as well; or null. */
static HeapTuple
find_row(Relation rel, const char *index, ScanKey keys, int nkeys, Row *row)
{
	SysScanDesc scan;
	HeapTuple	tuple;

	scan = systable_beginscan(rel, catalog_relid(index), true, NULL,
							  nkeys, keys);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
	{
		tuple = heap_copytuple(tuple);
		heap_deform_tuple(tuple, RelationGetDescr(rel),
						  row->values, row->nulls);
	}
	systable_endscan(scan);
	return tuple;
}

static void
put_row(Relation rel, HeapTuple old, Row *row)
{
	HeapTuple	tuple = heap_form_tuple(RelationGetDescr(rel),
										row->values, row->nulls);

	if (HeapTupleIsValid(old))
		CatalogTupleUpdate(rel, &old->t_self, tuple);
	else
		CatalogTupleInsert(rel, tuple);
	CommandCounterIncrement();
}

/* --- slots --- */

static HeapTuple
find_slot(Relation rel, Oid subid, int64 slot_id, Row *row)
{
	ScanKeyData keys[3];

	key_init(&keys[0], SLOT_dbid, F_OIDEQ, ObjectIdGetDatum(MyDatabaseId));
	key_init(&keys[1], SLOT_subid, F_OIDEQ, ObjectIdGetDatum(subid));
	key_init(&keys[2], SLOT_slot_id, F_INT8EQ, Int64GetDatum(slot_id));
	return find_row(rel, "slot_catalog_key", keys, 3, row);
}

static void
set_publisher(Row *row, const PublisherIdentity *publisher)
{
	row_set(row, SLOT_publisher_sysid,
			Int64GetDatum((int64) publisher->sysid));
	row_set(row, SLOT_publisher_timeline,
			Int32GetDatum((int32) publisher->timeline));
}

static int64
next_slot_id(Oid subid)
{
	Relation	rel;
	ScanKeyData keys[2];
	HeapTuple	old;
	Row			row = {0};
	int64		slot_id = 1;

	rel = catalog_open("slot_number", ShareRowExclusiveLock);
	key_init(&keys[0], NUMBER_dbid, F_OIDEQ, ObjectIdGetDatum(MyDatabaseId));
	key_init(&keys[1], NUMBER_subid, F_OIDEQ, ObjectIdGetDatum(subid));
	old = find_row(rel, "slot_number_key", keys, 2, &row);
	if (HeapTupleIsValid(old))
		slot_id = DatumGetInt64(row.values[NUMBER_last_slot_id]) + 1;
	row_set(&row, NUMBER_dbid, ObjectIdGetDatum(MyDatabaseId));
	row_set(&row, NUMBER_subid, ObjectIdGetDatum(subid));
	row_set(&row, NUMBER_last_slot_id, Int64GetDatum(slot_id));
	put_row(rel, old, &row);

	/* The lock stays until commit: numbers are given out one by one. */
	table_close(rel, NoLock);
	return slot_id;
}

void
catalog_slot_name(Oid subid, int64 slot_id, NameData *slot_name)
{
	char		name[NAMEDATALEN];

	/* 11 + 10 + 1 + 19 + 1 + 20 bytes at most */
	snprintf(name, sizeof(name),
			 "reuse_sync_%u_" INT64_FORMAT "_" UINT64_FORMAT,
			 subid, slot_id, GetSystemIdentifier());
	namestrcpy(slot_name, name);
}

static void
insert_slot(Oid subid, int64 slot_id, const NameData *slot_name,
			const PublisherIdentity *publisher)
{
	Relation	rel;
	Row			row = {0};

	rel = catalog_open("slot_catalog", RowExclusiveLock);
	memset(row.nulls, true, sizeof(row.nulls));
	row_set(&row, SLOT_dbid, ObjectIdGetDatum(MyDatabaseId));
	row_set(&row, SLOT_subid, ObjectIdGetDatum(subid));
	row_set(&row, SLOT_slot_id, Int64GetDatum(slot_id));
	row_set(&row, SLOT_slot_name, NameGetDatum(slot_name));
	row_set_text(&row, SLOT_state, slot_state_names[SLOT_CREATING]);
	row_set(&row, SLOT_created_at,
			TimestampTzGetDatum(GetCurrentTimestamp()));
	set_publisher(&row, publisher);
	row_set(&row, SLOT_tables_synced, Int64GetDatum(0));
	put_row(rel, NULL, &row);
	table_close(rel, RowExclusiveLock);
}

int64
catalog_add_slot(Oid subid, const PublisherIdentity *publisher,
				 NameData *slot_name)
{
	int64		slot_id = next_slot_id(subid);

	catalog_slot_name(subid, slot_id, slot_name);
	insert_slot(subid, slot_id, slot_name, publisher);
	return slot_id;
}

int64
catalog_adopt_slot(Oid subid, const NameData *slot_name, Oid relid,
				   const PublisherIdentity *publisher)
{
	int64		slot_id;
	ListCell   *lc;

	foreach(lc, catalog_slots(subid))
	{
		SlotRow    *slot = lfirst(lc);

		if (strcmp(NameStr(slot->slot_name), NameStr(*slot_name)) == 0)
			return slot->slot_id;
	}
	slot_id = next_slot_id(subid);
	insert_slot(subid, slot_id, slot_name, publisher);
	catalog_slot_created(subid, slot_id, publisher);
	catalog_set_slot(subid, slot_id, SLOT_LINKED, relid);
	return slot_id;
}

void
catalog_slot_created(Oid subid, int64 slot_id,
					 const PublisherIdentity *publisher)
{
	Relation	rel = catalog_open("slot_catalog", RowExclusiveLock);
	Row			row;
	HeapTuple	old = find_slot(rel, subid, slot_id, &row);

	if (HeapTupleIsValid(old))
	{
		row_set_text(&row, SLOT_state, slot_state_names[SLOT_CREATED]);
		set_publisher(&row, publisher);
		put_row(rel, old, &row);
	}
	table_close(rel, RowExclusiveLock);
}

void
catalog_set_slot(Oid subid, int64 slot_id, SlotState state, Oid relid)
{
	Relation	rel = catalog_open("slot_catalog", RowExclusiveLock);
	Row			row;
	HeapTuple	old = find_slot(rel, subid, slot_id, &row);

	if (HeapTupleIsValid(old))
	{
		row_set_text(&row, SLOT_state, slot_state_names[state]);
		row_set_if(&row, SLOT_relid, OidIsValid(relid),
				   ObjectIdGetDatum(relid));
		put_row(rel, old, &row);
	}
	table_close(rel, RowExclusiveLock);
}

void
catalog_slot_tables_done(Oid subid, int64 slot_id, int ntables)
{
	Relation	rel = catalog_open("slot_catalog", RowExclusiveLock);
	Row			row;
	HeapTuple	old = find_slot(rel, subid, slot_id, &row);

	if (HeapTupleIsValid(old))
	{
		row_set(&row, SLOT_tables_synced,
				Int64GetDatum(DatumGetInt64(row.values[SLOT_tables_synced]) +
							  ntables));
		row_set_text(&row, SLOT_state, slot_state_names[SLOT_CREATED]);
		row_set_if(&row, SLOT_relid, false, (Datum) 0);
		put_row(rel, old, &row);
	}
	table_close(rel, RowExclusiveLock);
}

void
catalog_set_slot_error(Oid subid, int64 slot_id, const char *error)
{
	Relation	rel = catalog_open("slot_catalog", RowExclusiveLock);
	Row			row;
	HeapTuple	old = find_slot(rel, subid, slot_id, &row);

	if (HeapTupleIsValid(old))
	{
		row_set_text(&row, SLOT_last_error, error);
		put_row(rel, old, &row);
	}
	table_close(rel, RowExclusiveLock);
}

void
catalog_remove_slot(Oid subid, int64 slot_id)
{
	Relation	rel = catalog_open("slot_catalog", RowExclusiveLock);
	Row			row;
	HeapTuple	old = find_slot(rel, subid, slot_id, &row);

	if (HeapTupleIsValid(old))
	{
		CatalogTupleDelete(rel, &old->t_self);
		CommandCounterIncrement();
	}
	table_close(rel, RowExclusiveLock);
}

static SlotState
slot_state_from_name(const char *name)
{
	for (int i = 0; i < lengthof(slot_state_names); i++)
		if (name != NULL && strcmp(name, slot_state_names[i]) == 0)
			return (SlotState) i;
	ereport(ERROR,
			errcode(ERRCODE_DATA_CORRUPTED),
			errmsg("unexpected state \"%s\" in reuse_sync.slot_catalog",
				   name ? name : "(null)"));
	return SLOT_CREATING;		/* not reached */
}

static void
slot_from_row(const Row *row, SlotRow *slot)
{
	slot->subid = DatumGetObjectId(row->values[SLOT_subid]);
	slot->slot_id = DatumGetInt64(row->values[SLOT_slot_id]);
	slot->slot_name = *DatumGetName(row->values[SLOT_slot_name]);
	slot->state = slot_state_from_name(row_get_text(row, SLOT_state));
	slot->relid = row->nulls[SLOT_relid] ? InvalidOid :
		DatumGetObjectId(row->values[SLOT_relid]);
	slot->publisher_sysid = row->nulls[SLOT_publisher_sysid] ? 0 :
		(uint64) DatumGetInt64(row->values[SLOT_publisher_sysid]);
	slot->publisher_timeline = row->nulls[SLOT_publisher_timeline] ? 0 :
		(uint32) DatumGetInt32(row->values[SLOT_publisher_timeline]);
	slot->conninfo = row_get_text(row, SLOT_conninfo);
	slot->must_use_password = slot->conninfo != NULL &&
		strncmp(slot->conninfo, PASSWORD_MARK, strlen(PASSWORD_MARK)) == 0;
	if (slot->must_use_password)
		slot->conninfo += strlen(PASSWORD_MARK);
}

bool
catalog_get_slot(Oid subid, int64 slot_id, SlotRow *slot)
{
	Relation	rel = catalog_open("slot_catalog", AccessShareLock);
	Row			row;
	HeapTuple	tuple = find_slot(rel, subid, slot_id, &row);

	if (HeapTupleIsValid(tuple))
		slot_from_row(&row, slot);
	table_close(rel, AccessShareLock);
	return HeapTupleIsValid(tuple);
}

/*
 * Reads the heap: this is called as well while the extension is being dropped,
 * when the index is gone already.
 */
List *
catalog_slots(Oid subid)
{
	Relation	rel = catalog_open("slot_catalog", AccessShareLock);
	SysScanDesc scan;
	HeapTuple	tuple;
	List	   *slots = NIL;

	scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Row			row;
		SlotRow    *slot;

		heap_deform_tuple(tuple, RelationGetDescr(rel),
						  row.values, row.nulls);
		if (DatumGetObjectId(row.values[SLOT_dbid]) != MyDatabaseId ||
			(OidIsValid(subid) &&
			 DatumGetObjectId(row.values[SLOT_subid]) != subid))
			continue;
		slot = palloc(sizeof(SlotRow));
		slot_from_row(&row, slot);
		slots = lappend(slots, slot);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return slots;
}

/* Slots made over another connection before keep that one. */
static void
keep_connection(Row *row, const char *conninfo, bool must_use_password)
{
	if (row->nulls[SLOT_conninfo])
		row_set_text(row, SLOT_conninfo,
					 psprintf("%s%s", must_use_password ? PASSWORD_MARK : "",
							  conninfo));
}

void
catalog_orphan_slots(Oid subid, const char *conninfo, bool must_use_password)
{
	List	   *slots = catalog_slots(subid);
	Relation	rel = catalog_open("slot_catalog", RowExclusiveLock);
	ListCell   *lc;

	foreach(lc, slots)
	{
		SlotRow    *slot = lfirst(lc);
		Row			row;
		HeapTuple	old = find_slot(rel, subid, slot->slot_id, &row);

		if (!HeapTupleIsValid(old))
			continue;
		row_set_text(&row, SLOT_state, slot_state_names[SLOT_ORPHANED]);
		row_set_if(&row, SLOT_relid, false, (Datum) 0);
		keep_connection(&row, conninfo, must_use_password);
		put_row(rel, old, &row);
	}
	table_close(rel, RowExclusiveLock);
}

void
catalog_keep_conninfo(Oid subid, const char *conninfo, bool must_use_password)
{
	List	   *slots = catalog_slots(subid);
	Relation	rel = catalog_open("slot_catalog", RowExclusiveLock);
	ListCell   *lc;

	foreach(lc, slots)
	{
		SlotRow    *slot = lfirst(lc);
		Row			row;
		HeapTuple	old = find_slot(rel, subid, slot->slot_id, &row);

		if (!HeapTupleIsValid(old))
			continue;
		keep_connection(&row, conninfo, must_use_password);
		put_row(rel, old, &row);
	}
	table_close(rel, RowExclusiveLock);
}

List *
catalog_forget_slots(Oid subid)
{
	List	   *slots = catalog_slots(subid);
	ListCell   *lc;

	foreach(lc, slots)
		catalog_remove_slot(subid, ((SlotRow *) lfirst(lc))->slot_id);
	return slots;
}

static List *
lost_slots(void)
{
	List	   *lost = NIL;
	ListCell   *lc;

	foreach(lc, catalog_slots(InvalidOid))
	{
		SlotRow    *slot = lfirst(lc);

		if (slot->conninfo == NULL &&
			!SearchSysCacheExists1(SUBSCRIPTIONOID,
								   ObjectIdGetDatum(slot->subid)))
			lost = lappend(lost, slot);
	}
	return lost;
}

List *
catalog_forget_lost_slots(void)
{
	List	   *lost = lost_slots();
	ListCell   *lc;

	if (lost == NIL)
		return NIL;

	/* Somebody else may be at it. */
	LockRelationOid(catalog_relid("slot_catalog"), ShareUpdateExclusiveLock);
	lost = lost_slots();
	foreach(lc, lost)
	{
		SlotRow    *slot = lfirst(lc);

		catalog_remove_slot(slot->subid, slot->slot_id);
	}
	return lost;
}

/* --- tables --- */

static HeapTuple
find_progress(Relation rel, Oid subid, Oid relid, Row *row)
{
	ScanKeyData keys[3];

	key_init(&keys[0], PROGRESS_dbid, F_OIDEQ,
			 ObjectIdGetDatum(MyDatabaseId));
	key_init(&keys[1], PROGRESS_subid, F_OIDEQ, ObjectIdGetDatum(subid));
	key_init(&keys[2], PROGRESS_relid, F_OIDEQ, ObjectIdGetDatum(relid));
	return find_row(rel, "table_progress_key", keys, 3, row);
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
	put_row(rel, old, &row);
	table_close(rel, RowExclusiveLock);
}

static HeapTuple
find_retry_request(Relation rel, Oid subid, Oid relid, Row *row)
{
	ScanKeyData keys[3];

	key_init(&keys[0], RETRY_dbid, F_OIDEQ, ObjectIdGetDatum(MyDatabaseId));
	key_init(&keys[1], RETRY_subid, F_OIDEQ, ObjectIdGetDatum(subid));
	key_init(&keys[2], RETRY_relid, F_OIDEQ, ObjectIdGetDatum(relid));
	return find_row(rel, "retry_request_key", keys, 3, row);
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
		put_row(rel, old, &row);
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

	key_init(&keys[0], RESYNC_dbid, F_OIDEQ, ObjectIdGetDatum(MyDatabaseId));
	key_init(&keys[1], RESYNC_subid, F_OIDEQ, ObjectIdGetDatum(subid));
	key_init(&keys[2], RESYNC_relid, F_OIDEQ, ObjectIdGetDatum(relid));
	key_init(&keys[3], RESYNC_xid, F_INT8EQ, Int64GetDatum(xid));
	return find_row(rel, "resync_key", keys, 4, row);
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
	put_row(rel, old, &row);
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

List *
catalog_resyncs(Oid subid)
{
	Relation	rel = catalog_open("resync", AccessShareLock);
	SysScanDesc scan;
	HeapTuple	tuple;
	List	   *rows = NIL;

	scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Row			row;
		ResyncRow  *resync;

		heap_deform_tuple(tuple, RelationGetDescr(rel),
						  row.values, row.nulls);
		if (DatumGetObjectId(row.values[RESYNC_dbid]) != MyDatabaseId ||
			(OidIsValid(subid) &&
			 DatumGetObjectId(row.values[RESYNC_subid]) != subid))
			continue;
		resync = palloc(sizeof(ResyncRow));
		resync->relid = DatumGetObjectId(row.values[RESYNC_relid]);
		resync->xid = DatumGetInt64(row.values[RESYNC_xid]);
		resync->stage =
			resync_stage_from_name(row_get_text(&row, RESYNC_stage));
		resync->truncate = DatumGetBool(row.values[RESYNC_truncate]);
		resync->requested_at =
			DatumGetTimestampTz(row.values[RESYNC_requested_at]);
		rows = lappend(rows, resync);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return rows;
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

void
catalog_set_resyncs(Oid subid, Oid relid, ResyncStage stage)
{
	List	   *rows = catalog_resyncs(subid);
	Relation	rel = catalog_open("resync", RowExclusiveLock);
	ListCell   *lc;

	foreach(lc, rows)
	{
		ResyncRow  *resync = lfirst(lc);
		Row			row;
		HeapTuple	old;

		if (resync->relid != relid || resync->stage == stage)
			continue;
		old = find_resync(rel, subid, relid, resync->xid, &row);
		if (HeapTupleIsValid(old))
		{
			row_set_text(&row, RESYNC_stage, resync_stage_names[stage]);
			put_row(rel, old, &row);
		}
	}
	table_close(rel, RowExclusiveLock);
}

void
catalog_remove_resyncs(Oid subid, Oid relid, ResyncStage stage)
{
	List	   *rows = catalog_resyncs(subid);
	Relation	rel = catalog_open("resync", RowExclusiveLock);
	ListCell   *lc;

	foreach(lc, rows)
	{
		ResyncRow  *resync = lfirst(lc);
		Row			row;
		HeapTuple	old;

		if (resync->relid != relid || resync->stage < stage)
			continue;
		old = find_resync(rel, subid, relid, resync->xid, &row);
		if (HeapTupleIsValid(old))
			CatalogTupleDelete(rel, &old->t_self);
	}
	CommandCounterIncrement();
	table_close(rel, RowExclusiveLock);
}

/* --- sizes --- */

static HeapTuple
find_size(Relation rel, Oid subid, Oid relid, Row *row)
{
	ScanKeyData keys[3];

	key_init(&keys[0], SIZE_dbid, F_OIDEQ, ObjectIdGetDatum(MyDatabaseId));
	key_init(&keys[1], SIZE_subid, F_OIDEQ, ObjectIdGetDatum(subid));
	key_init(&keys[2], SIZE_relid, F_OIDEQ, ObjectIdGetDatum(relid));
	return find_row(rel, "table_size_key", keys, 3, row);
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

	key_init(&keys[0], UNIT_dbid, F_OIDEQ, ObjectIdGetDatum(MyDatabaseId));
	key_init(&keys[1], UNIT_subid, F_OIDEQ, ObjectIdGetDatum(subid));
	key_init(&keys[2], UNIT_relid, F_OIDEQ, ObjectIdGetDatum(relid));
	old = find_row(rel, "unit_history_key", keys, 3, &row);
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
	put_row(rel, old, &row);
	table_close(rel, RowExclusiveLock);
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
	key_init(&keys[0], COUNTER_dbid, F_OIDEQ, ObjectIdGetDatum(MyDatabaseId));
	key_init(&keys[1], COUNTER_place, F_INT4EQ,
			 Int32GetDatum(place));
	old = find_row(rel, "counter_key", keys, 2, &row);
	if (!HeapTupleIsValid(old))
		row.nulls[COUNTER_stats_reset] = true;
	row_set(&row, COUNTER_dbid, ObjectIdGetDatum(MyDatabaseId));
	row_set(&row, COUNTER_place, Int32GetDatum(place));
	for (int i = 0; i < COUNTER_COUNTERS; i++)
		row_set(&row, COUNTER_first + i,
				Int64GetDatum((HeapTupleIsValid(old) ?
							   DatumGetInt64(row.values[COUNTER_first + i]) :
							   0) + ((int64 *) &Counters)[i]));
	put_row(rel, old, &row);
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
	put_row(rel, NULL, &row);
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

/* All kinds of rows of tables have the table's oid in the same place. */
StaticAssertDecl((int) PROGRESS_relid == (int) RETRY_relid &&
				 (int) PROGRESS_subid == (int) RETRY_subid &&
				 (int) PROGRESS_relid == (int) RESYNC_relid &&
				 (int) PROGRESS_subid == (int) RESYNC_subid &&
				 (int) PROGRESS_relid == (int) SIZE_relid &&
				 (int) PROGRESS_subid == (int) SIZE_subid &&
				 (int) PROGRESS_relid == (int) UNIT_relid &&
				 (int) PROGRESS_subid == (int) UNIT_subid,
				 "rows of tables differ");

/*
 * Is this row of another database, of a table no longer subscribed, or of a
 * subscription that is gone with all its slots?
 */
static bool
is_strange(const Row *row, RowsOf what)
{
	if (DatumGetObjectId(row->values[0]) != MyDatabaseId)
		return true;
	switch (what)
	{
		case OF_TABLE:
			return !SearchSysCacheExists2(SUBSCRIPTIONRELMAP,
										  row->values[PROGRESS_relid],
										  row->values[PROGRESS_subid]);
		case OF_SUBSCRIPTION:
			return !SearchSysCacheExists1(SUBSCRIPTIONOID,
										  row->values[NUMBER_subid]) &&
				catalog_slots(DatumGetObjectId(row->values[NUMBER_subid])) == NIL;
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
