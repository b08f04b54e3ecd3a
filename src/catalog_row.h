/*-------------------------------------------------------------------------
 *
 * catalog_row.h
 *	  Rows of the extension's catalog, for the files that are the catalog.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/catalog_row.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_CATALOG_ROW_H
#define REUSE_SYNC_CATALOG_ROW_H

#include "access/htup.h"
#include "access/skey.h"
#include "nodes/pg_list.h"
#include "utils/builtins.h"
#include "utils/relcache.h"

#define MAX_NATTS	20

/*
 * The first columns: all rows are of a database, those of subscriptions and of
 * tables have these next.
 */
enum
{
	KEY_dbid, KEY_subid, KEY_relid
};

/* A row being read or written. */
typedef struct Row
{
	Datum		values[MAX_NATTS];
	bool		nulls[MAX_NATTS];
} Row;

static inline void
row_set(Row *row, int att, Datum value)
{
	row->values[att] = value;
	row->nulls[att] = false;
}

/* Set, or null. */
static inline void
row_set_if(Row *row, int att, bool isset, Datum value)
{
	row->values[att] = isset ? value : (Datum) 0;
	row->nulls[att] = !isset;
}

static inline void
row_set_text(Row *row, int att, const char *value)
{
	row_set_if(row, att, value != NULL,
			   value ? CStringGetTextDatum(value) : (Datum) 0);
}

static inline char *
row_get_text(const Row *row, int att)
{
	return row->nulls[att] ? NULL : TextDatumGetCString(row->values[att]);
}

/*
 * One of our relations, or indexes.  Throws ERRCODE_UNDEFINED_OBJECT if there
 * is no extension in this database.
 */
extern Oid	catalog_relid(const char *name);
extern Relation catalog_open(const char *name, LOCKMODE lockmode);

/* Look for a column's value; 'att' is counted from 0. */
extern void catalog_key_init(ScanKey key, int att, RegProcedure proc,
							 Datum value);

/* The key of rows of tables: its first three columns. */
extern void catalog_init_table_key(ScanKeyData *keys, Oid subid, Oid relid);

/* Copy of the row with this key, deformed into 'row' as well; or null. */
extern HeapTuple catalog_find_row(Relation rel, const char *index,
								  ScanKey keys, int nkeys, Row *row);

/*
 * All rows of this database and, unless it is InvalidOid, of a subscription, as
 * 'convert' makes them, which must copy what it keeps.  Reads the heap: also
 * while the extension is being dropped, when the indexes are gone already.
 */
extern List *catalog_read(const char *name, Oid subid,
						  void *(*convert) (const Row *row));

/*
 * Write a row, or another version of 'old'.  Followed by a
 * CommandCounterIncrement: a row may be written twice in one transaction.
 */
extern void catalog_put_row(Relation rel, HeapTuple old, Row *row);

/* Delete a row that catalog_find_row has found; followed by the same. */
extern void catalog_delete_row(Relation rel, HeapTuple old);

#endif							/* REUSE_SYNC_CATALOG_ROW_H */
