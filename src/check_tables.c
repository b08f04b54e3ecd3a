/*-------------------------------------------------------------------------
 *
 * check_tables.c
 *	  Part of check(): the tables of a subscription, here and as published.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/check_tables.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/sysattr.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "miscadmin.h"
#include "nodes/value.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/rls.h"
#include "utils/syscache.h"

#include "catalog.h"
#include "check.h"
#include "compat.h"
#include "target.h"

/* --- what can be said from here --- */

/* Whose rights a copy into it has. */
static Oid
copies_as(const Subscription *sub, Oid relid)
{
	HeapTuple	tuple;
	Oid			owner = sub->owner;

	if (compat_runs_as_owner(sub))
		return owner;
	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	if (HeapTupleIsValid(tuple))
	{
		owner = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
		ReleaseSysCache(tuple);
	}
	return owner;
}

/* A duplicate key is explained by the rows, with what to do about them. */
static bool
failure_says_so(const Subscription *sub, Oid relid)
{
	TableProgress progress;

	return catalog_get_progress(sub->oid, relid, &progress) &&
		progress.attempts > 0 &&
		strstr(progress.last_error, "reuse_sync.resync_table(") != NULL;
}

/* Nothing is to be in the way of a table that waits for its copy. */
static void
check_way_into(const Subscription *sub, Oid relid, const char *object)
{
	Oid			user = copies_as(sub, relid);

	if (check_enable_rls(relid, user, true) == RLS_ENABLED)
		check_add(CHECK_ERROR, object,
				  psprintf("row-level security keeps role \"%s\" from copying into it",
						   GetUserNameFromId(user, true)),
				  "Disable it on the table, or give the subscription an owner who bypasses it.");
	if (pg_class_aclcheck(relid, user, ACL_INSERT) != ACLCHECK_OK)
		check_add(CHECK_ERROR, object,
				  psprintf("role \"%s\", who owns subscription \"%s\", may not insert into it",
						   GetUserNameFromId(user, true), sub->name),
				  "Grant INSERT, UPDATE, DELETE, TRUNCATE and SELECT to the role.");
}

/* The changes of a partitioned table are written to its partitions. */
static void
check_ways_into_partitions(const Subscription *sub, Oid relid)
{
	ListCell   *lc;

	foreach(lc, find_all_inheritors(relid, NoLock, NULL))
	{
		Oid			partid = lfirst_oid(lc);
		char	   *nspname = get_namespace_name(get_rel_namespace(partid));
		char	   *relname = get_rel_name(partid);

		if (partid != relid && nspname != NULL && relname != NULL)
			check_way_into(sub, partid, check_table_name(nspname, relname));
	}
}

/* Nor is anything to be in it already. */
static void
check_target(const Subscription *sub, Oid relid, const char *object)
{
	XLogRecPtr	lsn;
	char		state;

	check_way_into(sub, relid, object);
	if (get_rel_relkind(relid) == RELKIND_PARTITIONED_TABLE)
		check_ways_into_partitions(sub, relid);
	if (target_rows(relid, false) != TARGET_HAS_ROWS)
		return;

	/* They may be those of a copy that has just been committed. */
	state = GetSubscriptionRelState(sub->oid, relid, &lsn);
	if ((state == SUBREL_STATE_INIT || state == SUBREL_STATE_DATASYNC) &&
		!failure_says_so(sub, relid) &&
		!catalog_resync_is_begun(sub->oid, relid))
		check_add(CHECK_WARNING, object,
				  psprintf("it is not empty before its first copy for subscription \"%s\"",
						   sub->name),
				  psprintf("Rows that are on the publisher as well will be there twice, or make the copy fail. Empty it, or run SELECT reuse_sync.resync_table(%s, %s), which empties and copies it.",
						   quote_literal_cstr(sub->name),
						   quote_literal_cstr(strchr(object, ' ') + 1)));
}

typedef struct Target
{
	Oid			relid;
	char	   *object;
} Target;

static int
compare_targets(const ListCell *a, const ListCell *b)
{
	return strcmp(((Target *) lfirst(a))->object,
				  ((Target *) lfirst(b))->object);
}

static void
check_targets(const Subscription *sub)
{
	List	   *targets = NIL;
	ListCell   *lc;

	foreach(lc, GetSubscriptionRelations(sub->oid, true))
	{
		SubscriptionRelState *rel = lfirst(lc);
		char	   *nspname = get_namespace_name(get_rel_namespace(rel->relid));
		char	   *relname = get_rel_name(rel->relid);

		if (nspname != NULL && relname != NULL &&
			(rel->state == SUBREL_STATE_INIT ||
			 rel->state == SUBREL_STATE_DATASYNC))
		{
			Target	   *target = palloc(sizeof(Target));

			target->relid = rel->relid;
			target->object = check_table_name(nspname, relname);
			targets = lappend(targets, target);
		}
	}
	list_sort(targets, compare_targets);
	foreach(lc, targets)
	{
		Target	   *target = lfirst(lc);

		CHECK_FOR_INTERRUPTS();
		check_target(sub, target->relid, target->object);
	}
}

/* Triggers that fire for what is copied and replicated. */
static void
check_triggers(const Subscription *sub)
{
	int			n;

	/* What a trigger of a partitioned table makes in its partitions is not said. */
	n = check_query(psprintf("SELECT DISTINCT n.nspname, c.relname, pg_catalog.quote_ident(t.tgname),"
							 " CASE t.tgenabled WHEN 'A' THEN 'ALWAYS' ELSE 'REPLICA' END"
							 " FROM pg_catalog.pg_subscription_rel r"
							 " CROSS JOIN LATERAL (SELECT r.srrelid AS oid UNION"
							 " SELECT p.relid::pg_catalog.oid"
							 " FROM pg_catalog.pg_partition_tree(r.srrelid) p) p"
							 " JOIN pg_catalog.pg_class c ON c.oid = p.oid"
							 " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
							 " JOIN pg_catalog.pg_trigger t ON t.tgrelid = c.oid"
							 " WHERE r.srsubid = %u AND NOT t.tgisinternal"
							 " AND (t.tgparentid = 0 OR p.oid = r.srrelid)"
							 " AND t.tgenabled IN ('A', 'R') ORDER BY 1, 2, 3",
							 sub->oid));
	for (int i = 0; i < n; i++)
		check_add(CHECK_WARNING,
				  check_table_name(check_value(i, 0), check_value(i, 1)),
				  psprintf("trigger %s will fire for rows that are copied or replicated",
						   check_value(i, 2)),
				  psprintf("It is enabled as %s. If that is not meant, run ALTER TABLE %s ENABLE TRIGGER %s.",
						   check_value(i, 3),
						   quote_qualified_identifier(check_value(i, 0),
													  check_value(i, 1)),
						   check_value(i, 2)));
}

static void
check_sequences(const Subscription *sub)
{
	int			n;

	n = check_query(psprintf("SELECT n.nspname, c.relname,"
							 " pg_catalog.format('%%I.%%I', m.nspname, s.relname),"
							 " pg_catalog.quote_ident(a.attname)"
							 " FROM pg_catalog.pg_subscription_rel r"
							 " JOIN pg_catalog.pg_class c ON c.oid = r.srrelid"
							 " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
							 " JOIN pg_catalog.pg_depend d ON d.refobjid = c.oid"
							 " AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass"
							 " AND d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass"
							 " AND d.deptype IN ('a', 'i')"
							 " JOIN pg_catalog.pg_class s ON s.oid = d.objid AND s.relkind = 'S'"
							 " JOIN pg_catalog.pg_namespace m ON m.oid = s.relnamespace"
							 " JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid"
							 " AND a.attnum = d.refobjsubid"
							 " WHERE r.srsubid = %u ORDER BY 1, 2, 3",
							 sub->oid));
	for (int i = 0; i < n; i++)
		check_add(CHECK_NOTICE, psprintf("sequence %s", check_value(i, 2)),
				  psprintf("it belongs to column %s of table %s, but its value is not replicated",
						   check_value(i, 3),
						   quote_qualified_identifier(check_value(i, 0),
													  check_value(i, 1))),
				  "Set it with setval() when the application is to write here.");
}

void
check_local_tables(const Subscription *sub)
{
	check_targets(sub);
	check_triggers(sub);
	check_sequences(sub);
}

/* --- and compared with what is published --- */

enum
{
	COLUMN_NSPNAME, COLUMN_RELNAME, COLUMN_REPLIDENT, COLUMN_CHANGES,
	COLUMN_NAME, COLUMN_IN_KEY, COLUMN_READABLE, COLUMN_TYPE, COLUMN_IN_REACH
};

/* A published table: rows of the result from the first up to the last. */
typedef struct Published
{
	PublisherResult *res;
	int			first;
	int			end;
	char	   *nspname;
	char	   *relname;
	char	   *name;			/* both, as SQL has them */
	char	   *object;
	bool		changes;		/* updates or deletes are published */
	bool		full;			/* its whole rows are its identity */
	bool		has_key;
} Published;

/*
 * A row for each column that the publications publish, ordered by table; for a
 * table without any a row without a column.  Before 15 there are no lists, and
 * before 18 generated columns are in them but not published.
 */
static PublisherResult *
published_columns(const Subscription *sub, Publisher *conn)
{
	StringInfoData names;
	ListCell   *lc;
	int			version = publisher_version(conn);
	bool		lists = version >= 150000;

	initStringInfo(&names);
	foreach(lc, sub->publications)
		appendStringInfo(&names, "%s%s", names.len > 0 ? ", " : "",
						 publisher_literal(conn, strVal(lfirst(lc))));
	return publisher_query(conn,
						   psprintf("SELECT t.nspname, t.relname, t.relreplident,"
									" pg_catalog.bool_or(t.changes), a.attname, a.attnum ="
									" ANY ((SELECT i.indkey FROM pg_catalog.pg_index i"
									" WHERE i.indexrelid = pg_catalog.pg_get_replica_identity_index(t.oid))::pg_catalog.int2[]),"
									" pg_catalog.has_column_privilege(t.oid, a.attnum, 'SELECT'),"
									" pg_catalog.format_type(a.atttypid, a.atttypmod),"
									" pg_catalog.has_schema_privilege(t.nspname, 'USAGE')"
									" FROM (SELECT p.schemaname, p.tablename, c.oid, c.relreplident,"
									" q.pubupdate OR q.pubdelete, %s"
									" FROM pg_catalog.pg_publication_tables p"
									" JOIN pg_catalog.pg_publication q ON q.pubname = p.pubname"
									" JOIN pg_catalog.pg_namespace n ON n.nspname = p.schemaname"
									" JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid"
									" AND c.relname = p.tablename"
									" WHERE p.pubname IN (%s) OFFSET 0)"
									" t(nspname, relname, oid, relreplident, changes, attnames)"
									" LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = t.oid"
									" AND a.attnum > 0 AND NOT a.attisdropped AND %s"
									" GROUP BY t.nspname, t.relname, t.oid, t.relreplident,"
									" a.attname, a.attnum, a.atttypid, a.atttypmod"
									" ORDER BY t.nspname COLLATE \"C\", t.relname COLLATE \"C\","
									" a.attnum",
									lists ? "p.attnames" : "NULL::pg_catalog.name[]",
									names.len > 0 ? names.data : "NULL",
									version >= 180000 ? "a.attname = ANY (t.attnames)" :
									lists ? "a.attname = ANY (t.attnames) AND a.attgenerated = ''" :
									"a.attgenerated = ''"));
}

static bool
is_true(PublisherResult *res, int row, int col)
{
	return publisher_value(res, row, col) != NULL &&
		publisher_value(res, row, col)[0] == 't';
}

/* The table whose rows begin there. */
static Published
published_table(PublisherResult *res, int first)
{
	Published	table = {res, first, first};
	char		replident =
	publisher_text(res, first, COLUMN_REPLIDENT)[0];

	table.nspname = publisher_text(res, first, COLUMN_NSPNAME);
	table.relname = publisher_text(res, first, COLUMN_RELNAME);
	table.name = quote_qualified_identifier(table.nspname, table.relname);
	table.object = check_table_name(table.nspname, table.relname);
	table.full = (replident == REPLICA_IDENTITY_FULL);
	while (table.end < res->nrows &&
		   strcmp(publisher_text(res, table.end, COLUMN_NSPNAME),
				  table.nspname) == 0 &&
		   strcmp(publisher_text(res, table.end, COLUMN_RELNAME),
				  table.relname) == 0)
	{
		table.changes |= is_true(res, table.end, COLUMN_CHANGES);
		table.has_key |= is_true(res, table.end, COLUMN_IN_KEY);
		table.end++;
	}
	return table;
}

/* Add to a list for people to read: what is said of it, and its name. */
static void
append_to(StringInfo list, const char *before, const char *name,
		  const char *after)
{
	appendStringInfo(list, "%s%s%s%s", list->len > 0 ? ", " : "", before,
					 quote_identifier(name), after);
}

/* Columns that are published and not here, or not to be written to. */
static void
check_columns(const Published *table, Oid relid, Publisher *conn)
{
	StringInfoData missing;
	StringInfoData generated;
	StringInfoData unreadable;
	StringInfoData to_add;
	StringInfoData to_drop;

	initStringInfo(&missing);
	initStringInfo(&generated);
	initStringInfo(&unreadable);
	initStringInfo(&to_add);
	initStringInfo(&to_drop);
	for (int row = table->first; row < table->end; row++)
	{
		char	   *name = publisher_value(table->res, row, COLUMN_NAME);
		AttrNumber	attnum;

		if (name == NULL)
			continue;
		attnum = get_attnum(relid, name);
		if (attnum == InvalidAttrNumber)
		{
			append_to(&missing, "", name, "");
			append_to(&to_add, "ADD COLUMN ", name,
					  psprintf(" %s", publisher_value(table->res, row,
													  COLUMN_TYPE)));
		}
		else if (get_attgenerated(relid, attnum) != '\0')
		{
			append_to(&generated, "", name, "");
			append_to(&to_drop, "ALTER COLUMN ", name, " DROP EXPRESSION");
		}
		if (!is_true(table->res, row, COLUMN_READABLE))
			append_to(&unreadable, "", name, "");
	}
	if (missing.len > 0)
		check_add(CHECK_ERROR, table->object,
				  psprintf("it lacks columns that are published: %s",
						   missing.data),
				  psprintf("Run ALTER TABLE %s %s, or give the publication a column list without them.",
						   table->name, to_add.data));
	if (generated.len > 0)
		check_add(CHECK_ERROR, table->object,
				  psprintf("columns that are published are generated here: %s",
						   generated.data),
				  psprintf("Run ALTER TABLE %s %s, or give the publication a column list without them.",
						   table->name, to_drop.data));
	if (unreadable.len > 0)
		check_add(CHECK_ERROR, table->object,
				  psprintf("the subscription's role may not read these columns on the publisher: %s",
						   unreadable.data),
				  psprintf("Run GRANT SELECT ON %s TO %s there.", table->name,
						   publisher_role(conn)));
}

/* Is a column of this name in the publisher's identity? */
static bool
in_published_key(const Published *table, const char *attname)
{
	for (int row = table->first; row < table->end; row++)
	{
		char	   *name = publisher_value(table->res, row, COLUMN_NAME);

		if (name != NULL && strcmp(name, attname) == 0)
			return table->full ||
				is_true(table->res, row, COLUMN_IN_KEY);
	}
	return false;
}

/*
 * The names of the columns that rows are found by here; NIL if there is no
 * index to find them by.  False if somebody has the table locked.
 */
static bool
local_key(Oid relid, List **names)
{
	Relation	rel;
	Bitmapset  *key;
	int			i = -1;

	*names = NIL;
	if (!ConditionalLockRelationOid(relid, AccessShareLock))
		return false;
	rel = RelationIdGetRelation(relid);
	if (rel == NULL)
	{
		UnlockRelationOid(relid, AccessShareLock);
		return false;
	}
	key = RelationGetIndexAttrBitmap(rel, INDEX_ATTR_BITMAP_IDENTITY_KEY);
	if (key == NULL)
		key = RelationGetIndexAttrBitmap(rel, INDEX_ATTR_BITMAP_PRIMARY_KEY);
	while ((i = bms_next_member(key, i)) >= 0)
	{
		AttrNumber	attnum = i + FirstLowInvalidHeapAttributeNumber;

		if (attnum > 0)
			*names = lappend(*names, get_attname(relid, attnum, false));
	}
	RelationClose(rel);
	UnlockRelationOid(relid, AccessShareLock);
	return true;
}

/*
 * Can updates and deletes be published, and their rows be found here?  The
 * same as the server asks, see logicalrep_rel_mark_updatable.
 */
static void
check_identity(const Published *table, Oid relid)
{
	List	   *names;
	ListCell   *lc;
	StringInfoData unknown;

	if (!table->changes)
		return;
	if (!table->full && !table->has_key)
	{
		check_add(CHECK_WARNING, table->object,
				  "it has no replica identity on the publisher, where UPDATE and DELETE fail while they are published",
				  psprintf("Give it a primary key there, or run ALTER TABLE %s REPLICA IDENTITY FULL there.",
						   table->name));
		return;
	}
	if (!local_key(relid, &names))
		return;
	if (names == NIL)
	{
		check_add(table->full ? CHECK_WARNING : CHECK_ERROR, table->object,
				  table->full ?
				  "it has neither a primary key nor a replica identity index, so that each UPDATE and DELETE reads all of it" :
				  "it has neither a primary key nor a replica identity index, so that no UPDATE and DELETE can be applied",
				  psprintf("Give it a primary key, or a unique index and run ALTER TABLE %s REPLICA IDENTITY USING INDEX ...",
						   table->name));
		return;
	}
	initStringInfo(&unknown);
	foreach(lc, names)
		if (!in_published_key(table, lfirst(lc)))
			append_to(&unknown, "", lfirst(lc), "");
	if (unknown.len > 0)
		check_add(CHECK_ERROR, table->object,
				  psprintf("its replica identity has columns that the publisher's has not, so that no UPDATE and DELETE can be applied: %s",
						   unknown.data),
				  psprintf("Give it an index on the publisher's key columns and run ALTER TABLE %s REPLICA IDENTITY USING INDEX ..., or run ALTER TABLE %s REPLICA IDENTITY FULL on the publisher.",
						   table->name, table->name));
}

/* A schema of the publisher's, which this table is the first of. */
static void
check_schema(const Subscription *sub, const Published *table, Publisher *conn)
{
	if (!is_true(table->res, table->first, COLUMN_IN_REACH))
		check_add(CHECK_ERROR,
				  psprintf("publisher of subscription \"%s\"", sub->name),
				  psprintf("the subscription's role may not use schema %s, of which tables are published",
						   quote_identifier(table->nspname)),
				  psprintf("Run GRANT USAGE ON SCHEMA %s TO %s there.",
						   quote_identifier(table->nspname),
						   publisher_role(conn)));
}

/* A table that is published: is it here, and in the subscription? */
static void
check_published_table(const Subscription *sub, const Published *table,
					  Publisher *conn)
{
	Oid			nspid = get_namespace_oid(table->nspname, true);
	Oid			relid = OidIsValid(nspid) ?
	get_relname_relid(table->relname, nspid) : InvalidOid;
	XLogRecPtr	lsn;

	if (!OidIsValid(relid))
	{
		check_add(CHECK_ERROR, table->object,
				  psprintf("it is published for subscription \"%s\", but there is no such table here",
						   sub->name),
				  psprintf("Create it, and run ALTER SUBSCRIPTION %s REFRESH PUBLICATION.",
						   quote_identifier(sub->name)));
		return;
	}
	if (GetSubscriptionRelState(sub->oid, relid, &lsn) == SUBREL_STATE_UNKNOWN)
		check_add(CHECK_WARNING, table->object,
				  psprintf("it is published for subscription \"%s\", but not in it",
						   sub->name),
				  psprintf("Run ALTER SUBSCRIPTION %s REFRESH PUBLICATION.",
						   quote_identifier(sub->name)));
	check_columns(table, relid, conn);
	check_identity(table, relid);
}

static bool
is_published(PublisherResult *res, const char *nspname, const char *relname)
{
	int			low = 0;
	int			high = res->nrows;

	/* Not in the order of our collation: both are compared as bytes. */
	while (low < high)
	{
		int			mid = (low + high) / 2;
		int			c = strcmp(publisher_text(res, mid, COLUMN_NSPNAME),
							   nspname);

		if (c == 0)
			c = strcmp(publisher_text(res, mid, COLUMN_RELNAME), relname);
		if (c == 0)
			return true;
		if (c < 0)
			low = mid + 1;
		else
			high = mid;
	}
	return false;
}

/* Tables of the subscription that are not published under this name. */
static void
check_unpublished(const Subscription *sub, PublisherResult *res)
{
	ListCell   *lc;

	foreach(lc, GetSubscriptionRelations(sub->oid, false))
	{
		SubscriptionRelState *rel = lfirst(lc);
		char	   *nspname = get_namespace_name(get_rel_namespace(rel->relid));
		char	   *relname = get_rel_name(rel->relid);

		if (nspname == NULL || relname == NULL ||
			is_published(res, nspname, relname))
			continue;
		check_add(rel->state == SUBREL_STATE_READY ?
				  CHECK_WARNING : CHECK_ERROR,
				  check_table_name(nspname, relname),
				  psprintf("it is in subscription \"%s\", but no table of this name is published",
						   sub->name),
				  psprintf("Rename it if the names differ, publish it, or run ALTER SUBSCRIPTION %s REFRESH PUBLICATION.",
						   quote_identifier(sub->name)));
	}
}

void
check_published_tables(const Subscription *sub, Publisher *conn)
{
	PublisherResult *res = published_columns(sub, conn);
	char	   *schema = NULL;

	for (int row = 0; row < res->nrows;)
	{
		Published	table = published_table(res, row);

		CHECK_FOR_INTERRUPTS();
		if (schema == NULL || strcmp(schema, table.nspname) != 0)
			check_schema(sub, &table, conn);
		schema = table.nspname;
		check_published_table(sub, &table, conn);
		row = table.end;
	}
	check_unpublished(sub, res);
}
