/*-------------------------------------------------------------------------
 *
 * remote_table.c
 *	  Tables as the publisher publishes them.
 *
 * One query reads identity, size and columns of all tables of a unit.  Column
 * lists and row filters are asked for with a second one, sent only where the
 * first saw a reason to: pg_get_publication_tables() goes through all the
 * tables of a publication, and with a thousand of them takes longer than the
 * copy of a small one.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/remote_table.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "access/htup_details.h"
#include "catalog/pg_class.h"
#include "nodes/value.h"
#include "utils/builtins.h"

#include "compat.h"
#include "remote_table.h"

/* The columns of the two queries' results. */
enum
{
	TABLE_NUMBER,				/* in the caller's order, from 1 */
	TABLE_OID,
	TABLE_REPLIDENT,
	TABLE_KIND,
	TABLE_BYTES,
	TABLE_RESTRICTED,			/* the publications have to be asked */
	COLUMN_NUMBER,				/* null if the table has no columns */
	COLUMN_NAME,
	COLUMN_TYPE,
	COLUMN_IN_KEY,
	COLUMN_GENERATED,
	DESCRIBE_COLUMNS
};

enum
{
	PUBLICATION_RELID,
	PUBLICATION_ATTRS,			/* int2vector as text; null: no list */
	PUBLICATION_FILTER,
	PUBLICATION_COLUMNS
};

/* The rows of the first query that are one table's. */
typedef struct TableRows
{
	const PublisherResult *res;
	int			first;
	int			n;
} TableRows;

#define table_value(rows, row, col) \
	publisher_value((rows)->res, (rows)->first + (row), col)

struct Descriptions
{
	TableRows  *rows;			/* of each table */
	PublisherResult *restrictions;	/* null: none */
};

/*
 * What the publisher sends is checked before it is used: it sizes arrays, and
 * indexes them.
 */
pg_noreturn static void
invalid_description(const char *what)
{
	ereport(ERROR,
			errcode(ERRCODE_PROTOCOL_VIOLATION),
			errmsg("the publisher's description of a table is not valid"),
			errdetail_internal("It has an unexpected %s.", what));
}

static uint64
parse_number(const char *value, uint64 min, uint64 max, const char *what)
{
	char	   *end;
	uint64		number;

	if (value == NULL || *value < '0' || *value > '9')
		invalid_description(what);
	errno = 0;
	number = strtou64(value, &end, 10);
	if (errno != 0 || *end != '\0' || number < min || number > max)
		invalid_description(what);
	return number;
}

static char
parse_char(const char *value, const char *allowed, const char *what)
{
	if (value == NULL || value[0] == '\0' || value[1] != '\0' ||
		strchr(allowed, value[0]) == NULL)
		invalid_description(what);
	return value[0];
}

static bool
is_true(const char *value)
{
	return value != NULL && value[0] == 't';
}

/* The text of an int2vector, as a set of attribute numbers. */
static Bitmapset *
parse_attrs(const char *value)
{
	Bitmapset  *attrs = NULL;
	char	   *copy = pstrdup(value);
	char	   *state;

	for (char *word = strtok_r(copy, " ", &state); word != NULL;
		 word = strtok_r(NULL, " ", &state))
		attrs = bms_add_member(attrs,
							   (int) parse_number(word, 1,
												  MaxTupleAttributeNumber,
												  "column list"));
	pfree(copy);
	return attrs;
}

/*
 * The tables and, a row each, their columns.  What older publishers do not
 * have is replaced by a constant.  OFFSET 0 keeps the subquery as it is, so
 * that a size is computed once and not for every column.
 *
 * Generated columns are published by 18 and later only, where they are
 * stored and a publication asks for them; so they are a reason there to ask
 * the publications.
 */
char *
remote_tables_query(Publisher *pub, const char *tables)
{
	int			version = publisher_version(pub);
	const char *restricted = "false";
	const char *generated = "false";
	StringInfoData sql;

	if (version >= 150000)
		restricted =
			"EXISTS (SELECT FROM pg_catalog.pg_publication_rel r"
			" WHERE r.prrelid = c.oid AND"
			" (r.prattrs IS NOT NULL OR r.prqual IS NOT NULL))";
	if (version >= 120000)
		generated = "a.attgenerated <> ''";

	initStringInfo(&sql);
	appendStringInfo(&sql,
					 "SELECT t.i, t.oid, t.relreplident, t.relkind, t.bytes,"
					 " t.restricted, a.attnum, a.attname, a.atttypid,"
					 " a.attnum = ANY (t.keys), %s"
					 " FROM (SELECT u.i, c.oid, c.relreplident, c.relkind,"
					 " %s AS restricted,"
					 " (SELECT i.%s FROM pg_catalog.pg_index i"
					 " WHERE i.indexrelid ="
					 " pg_catalog.pg_get_replica_identity_index(c.oid))"
					 " AS keys,",
					 generated, restricted,
					 version >= 110000 ?
					 "indkey[0:i.indnkeyatts - 1]" : "indkey");
	if (version >= 120000)
		appendStringInfoString(&sql,
							   " CASE c.relkind WHEN 'p' THEN"
							   " (SELECT pg_catalog.sum("
							   "pg_catalog.pg_table_size(l.relid))"
							   " FROM pg_catalog.pg_partition_tree(c.oid) l"
							   " WHERE l.isleaf)::pg_catalog.int8 ELSE");
	appendStringInfo(&sql,
					 " pg_catalog.pg_table_size(c.oid)%s AS bytes"
					 " FROM pg_catalog.unnest(%s) WITH ORDINALITY u(relid, i)"
					 " JOIN pg_catalog.pg_class c ON c.oid = u.relid"
					 " OFFSET 0) t"
					 " LEFT JOIN pg_catalog.pg_attribute a"
					 " ON a.attrelid = t.oid AND a.attnum > 0"
					 " AND NOT a.attisdropped%s"
					 " ORDER BY t.i, a.attnum",
					 version >= 120000 ? " END" : "",
					 tables,
					 version >= 120000 && version < 180000 ?
					 " AND a.attgenerated = ''" : "");
	return sql.data;
}

/* Column lists and filters, a row for each publication of a table. */
static char *
publications_query(Publisher *pub, List *publications, const char *relids)
{
	StringInfoData sql;
	const char *separator = "";
	ListCell   *lc;

	initStringInfo(&sql);
	appendStringInfo(&sql,
					 "SELECT g.relid, g.attrs,"
					 " pg_catalog.pg_get_expr(g.qual, g.relid)"
					 " FROM pg_catalog.pg_publication p,"
					 " pg_catalog.pg_get_publication_tables(p.pubname) g"
					 " WHERE g.relid IN (%s) AND p.pubname IN (",
					 relids);
	foreach(lc, publications)
	{
		appendStringInfoString(&sql, separator);
		appendStringInfoString(&sql,
							   publisher_literal(pub, strVal(lfirst(lc))));
		separator = ", ";
	}
	appendStringInfoChar(&sql, ')');
	return sql.data;
}

static bool
has_filter(RemoteTable *remote, const char *filter)
{
	ListCell   *lc;

	foreach(lc, remote->row_filters)
	{
		if (strcmp((char *) lfirst(lc), filter) == 0)
			return true;
	}
	return false;
}

/*
 * What the publications send of a table: returns the columns, and adds the
 * filters to the table.  'all' are its columns, 'plain' those that are sent
 * when no publication has a list.
 *
 * Lists are compared by what they let through: one that names every column
 * is the same as none.  A table that is in none of the publications, not any
 * longer or through a partition only, is copied whole, as the server does it.
 */
static Bitmapset *
read_publications(const PublisherResult *res, RemoteTable *remote,
				  Bitmapset *all, Bitmapset *plain)
{
	Bitmapset  *published = plain;
	bool		all_rows = false;
	bool		first = true;

	for (int row = 0; row < res->nrows; row++)
	{
		char	   *attrs = publisher_value(res, row, PUBLICATION_ATTRS);
		char	   *filter = publisher_value(res, row, PUBLICATION_FILTER);
		Bitmapset  *columns = plain;

		if (parse_number(publisher_value(res, row, PUBLICATION_RELID),
						 1, OID_MAX, "OID") != remote->rel.remoteid)
			continue;
		if (attrs != NULL)
			columns = bms_intersect(parse_attrs(attrs), all);
		if (!first && !bms_equal(columns, published))
			ereport(ERROR,
					errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					errmsg("publications of the subscription publish "
						   "different columns of table \"%s.%s\"",
						   remote->rel.nspname, remote->rel.relname),
					errhint("Give the table the same column list in all of "
							"them."));
		published = columns;
		first = false;

		if (filter == NULL)
			all_rows = true;
		else if (!has_filter(remote, filter))
			remote->row_filters = lappend(remote->row_filters, filter);
	}
	if (all_rows)
		remote->row_filters = NIL;
	return published;
}

/* What the first of its rows says of the table itself. */
static void
read_table(const TableRows *rows, RemoteTable *remote)
{
	const char *bytes = table_value(rows, 0, TABLE_BYTES);

	remote->rel.remoteid = parse_number(table_value(rows, 0, TABLE_OID),
										1, OID_MAX, "OID");
	remote->rel.replident =
		parse_char(table_value(rows, 0, TABLE_REPLIDENT), "dnfi",
				   "replica identity");
	remote->relkind = parse_char(table_value(rows, 0, TABLE_KIND),
								 "rpvmf", "kind of relation");
	remote->rel.relkind = remote->relkind;
	remote->bytes = bytes == NULL ? -1 :
		(int64) parse_number(bytes, 0, PG_INT64_MAX, "size");
}

/* The numbers of its columns, with or without the generated ones. */
static Bitmapset *
column_numbers(const TableRows *rows, bool with_generated)
{
	Bitmapset  *numbers = NULL;

	if (table_value(rows, 0, COLUMN_NUMBER) == NULL)
		return NULL;
	for (int row = 0; row < rows->n; row++)
	{
		int			number;

		number = parse_number(table_value(rows, row, COLUMN_NUMBER),
							  1, MaxTupleAttributeNumber, "column number");
		if (with_generated ||
			!is_true(table_value(rows, row, COLUMN_GENERATED)))
			numbers = bms_add_member(numbers, number);
	}
	return numbers;
}

/* Fill in the columns that are published. */
static void
read_columns(const TableRows *rows, Bitmapset *published, RemoteTable *remote)
{
	LogicalRepRelation *rel = &remote->rel;
	bool		generated = false;

	rel->attnames = palloc0(rows->n * sizeof(char *));
	rel->atttyps = palloc0(rows->n * sizeof(Oid));
	if (bms_is_empty(published))
		return;

	for (int row = 0; row < rows->n; row++)
	{
		int			number;
		char	   *name = table_value(rows, row, COLUMN_NAME);

		number = parse_number(table_value(rows, row, COLUMN_NUMBER),
							  1, MaxTupleAttributeNumber, "column number");
		if (!bms_is_member(number, published))
			continue;
		if (name == NULL)
			invalid_description("column name");
		if (rel->replident == REPLICA_IDENTITY_FULL ||
			is_true(table_value(rows, row, COLUMN_IN_KEY)))
			rel->attkeys = bms_add_member(rel->attkeys, rel->natts);
		if (is_true(table_value(rows, row, COLUMN_GENERATED)))
			generated = true;
		rel->attnames[rel->natts] = name;
		rel->atttyps[rel->natts] =
			parse_number(table_value(rows, row, COLUMN_TYPE),
						 1, OID_MAX, "type");
		rel->natts++;
	}

	/* COPY does not name generated columns, a query does. */
	if (generated && remote->row_filters == NIL)
		remote->row_filters = list_make1(pstrdup("true"));
}

/* Is there a reason to ask the publications about it? */
static bool
is_restricted(const TableRows *rows)
{
	return is_true(table_value(rows, 0, TABLE_RESTRICTED)) ||
		!bms_equal(column_numbers(rows, true), column_numbers(rows, false));
}

/* Find the rows of each table; they come in the order of the tables. */
static TableRows *
divide_rows(const PublisherResult *res, const RemoteTable *tables, int n)
{
	TableRows  *parts = palloc0(n * sizeof(TableRows));

	if (res->ncols != DESCRIBE_COLUMNS)
		invalid_description("number of values");
	for (int row = 0; row < res->nrows; row++)
	{
		uint64		number =
		parse_number(publisher_value(res, row, TABLE_NUMBER), 1, n, "number");
		TableRows  *part = &parts[number - 1];

		if (part->res == NULL)
			*part = (TableRows){res, row, 0};
		if (part->first + part->n != row)
			invalid_description("order");
		if (++part->n > MaxTupleAttributeNumber)
			invalid_description("number of columns");
	}
	for (int i = 0; i < n; i++)
		if (parts[i].res == NULL)
			ereport(ERROR,
					errcode(ERRCODE_UNDEFINED_OBJECT),
					errmsg("table \"%s.%s\" does not exist on the publisher",
						   tables[i].rel.nspname, tables[i].rel.relname));
	return parts;
}

/* Ask the publications about those that are restricted; null: none is. */
static PublisherResult *
ask_publications(Publisher *pub, List *publications, const TableRows *parts,
				 const RemoteTable *tables, int n)
{
	StringInfoData relids;
	PublisherResult *res;

	initStringInfo(&relids);
	for (int i = 0; i < n; i++)
		if (is_restricted(&parts[i]))
			appendStringInfo(&relids, "%s%u", relids.len > 0 ? ", " : "",
							 tables[i].rel.remoteid);
	if (relids.len == 0 || publications == NIL)
		return NULL;
	res = publisher_query(pub, publications_query(pub, publications,
												  relids.data));
	if (res->ncols != PUBLICATION_COLUMNS)
		invalid_description("number of values");
	return res;
}

Descriptions *
remote_tables_begin(Publisher *pub, List *publications,
					const PublisherResult *res, RemoteTable *tables, int n)
{
	Descriptions *descriptions = palloc(sizeof(Descriptions));

	descriptions->rows = divide_rows(res, tables, n);
	for (int i = 0; i < n; i++)
		read_table(&descriptions->rows[i], &tables[i]);
	descriptions->restrictions =
		ask_publications(pub, publications, descriptions->rows, tables, n);
	return descriptions;
}

void
remote_tables_read(const Descriptions *descriptions, RemoteTable *tables,
				   int i)
{
	const TableRows *rows = &descriptions->rows[i];
	Bitmapset  *published = column_numbers(rows, false);

	if (descriptions->restrictions != NULL && is_restricted(rows))
		published = read_publications(descriptions->restrictions, &tables[i],
									  column_numbers(rows, true), published);
	read_columns(rows, published, &tables[i]);
}
