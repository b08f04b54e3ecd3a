/*-------------------------------------------------------------------------
 *
 * catalog_slots.c
 *	  What the catalog has of slots.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/catalog_slots.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "catalog.h"
#include "catalog_row.h"
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

/*
 * In front of a stored connection string with which a password must be used;
 * none can begin like that.
 */
#define PASSWORD_MARK	"!"

static const char *const slot_state_names[] = {
	[SLOT_CREATING] = "creating",
	[SLOT_CREATED] = "created",
	[SLOT_LINKED] = "linked",
	[SLOT_ORPHANED] = "orphaned",
};

StaticAssertDecl(SLOT_natts <= MAX_NATTS &&
				 (int) NUMBER_subid == (int) KEY_subid,
				 "rows are not as catalog_row.h has them");

static HeapTuple
find_slot(Relation rel, Oid subid, int64 slot_id, Row *row)
{
	ScanKeyData keys[3];

	catalog_key_init(&keys[0], SLOT_dbid, F_OIDEQ,
					 ObjectIdGetDatum(MyDatabaseId));
	catalog_key_init(&keys[1], SLOT_subid, F_OIDEQ, ObjectIdGetDatum(subid));
	catalog_key_init(&keys[2], SLOT_slot_id, F_INT8EQ, Int64GetDatum(slot_id));
	return catalog_find_row(rel, "slot_catalog_key", keys, 3, row);
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
	catalog_key_init(&keys[0], NUMBER_dbid, F_OIDEQ,
					 ObjectIdGetDatum(MyDatabaseId));
	catalog_key_init(&keys[1], NUMBER_subid, F_OIDEQ, ObjectIdGetDatum(subid));
	old = catalog_find_row(rel, "slot_number_key", keys, 2, &row);
	if (HeapTupleIsValid(old))
		slot_id = DatumGetInt64(row.values[NUMBER_last_slot_id]) + 1;
	row_set(&row, NUMBER_dbid, ObjectIdGetDatum(MyDatabaseId));
	row_set(&row, NUMBER_subid, ObjectIdGetDatum(subid));
	row_set(&row, NUMBER_last_slot_id, Int64GetDatum(slot_id));
	catalog_put_row(rel, old, &row);

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
	catalog_put_row(rel, NULL, &row);
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
		catalog_put_row(rel, old, &row);
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
		catalog_put_row(rel, old, &row);
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
		catalog_put_row(rel, old, &row);
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
		catalog_put_row(rel, old, &row);
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
		catalog_delete_row(rel, old);
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
	slot->last_error = row_get_text(row, SLOT_last_error);
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

static void *
make_slot(const Row *row)
{
	SlotRow    *slot = palloc(sizeof(SlotRow));

	slot_from_row(row, slot);
	return slot;
}

List *
catalog_slots(Oid subid)
{
	return catalog_read("slot_catalog", subid, make_slot);
}

/*
 * Keep the connection with all slots of a subscription, and make orphans of
 * them or not.  Slots made over another connection before keep that one.
 */
static void
part_with_slots(Oid subid, const char *conninfo, bool must_use_password,
				bool orphan)
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
		if (orphan)
		{
			row_set_text(&row, SLOT_state, slot_state_names[SLOT_ORPHANED]);
			row_set_if(&row, SLOT_relid, false, (Datum) 0);
		}
		if (row.nulls[SLOT_conninfo])
			row_set_text(&row, SLOT_conninfo,
						 psprintf("%s%s",
								  must_use_password ? PASSWORD_MARK : "",
								  conninfo));
		catalog_put_row(rel, old, &row);
	}
	table_close(rel, RowExclusiveLock);
}

void
catalog_orphan_slots(Oid subid, const char *conninfo, bool must_use_password)
{
	part_with_slots(subid, conninfo, must_use_password, true);
}

void
catalog_keep_conninfo(Oid subid, const char *conninfo, bool must_use_password)
{
	part_with_slots(subid, conninfo, must_use_password, false);
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

