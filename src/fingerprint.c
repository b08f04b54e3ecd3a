/*-------------------------------------------------------------------------
 *
 * fingerprint.c
 *	  Whether publications are still what they were (design.md C2).
 *
 * Both queries answer with one row for the publications, with a null relid,
 * and one for each table.  The first has the tables that are named; the second
 * has those asked for, with null for what is not named.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/fingerprint.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "libpq/pqformat.h"

#include "fingerprint.h"

typedef struct TablePart
{
	Oid			relid;			/* on the publisher */
	const char *value;
} TablePart;

struct Fingerprint
{
	const char *publications;
	int			ntables;
	TablePart  *tables;			/* in the order of their oids */
};

enum
{
	FINGERPRINT_RELID,
	FINGERPRINT_VALUE,
	FINGERPRINT_COLUMNS
};

/* An aggregate of the rows, whatever their order. */
#define VALUE_OF(row) \
	"pg_catalog.md5(pg_catalog.string_agg(" row ", ' '" \
	" ORDER BY " row " COLLATE \"C\"))"

/* What names a table in the publications. */
#define NAMED \
	" FROM pg_catalog.pg_publication_rel r" \
	" WHERE r.prpubid IN (SELECT oid FROM pg_catalog.pg_publication" \
	" WHERE pubname IN (%s))"

char *
fingerprint_query(Session *session, const char *tables)
{
	StringInfoData sql;
	const char *pubs = session_publication_literals(session);
	int			version = publisher_version(session->sql);
	const char *table_value =
	VALUE_OF("pg_catalog.format('%s %s', r.oid, r.xmin)");

	initStringInfo(&sql);
	appendStringInfo(&sql,
					 "SELECT NULL::pg_catalog.oid, "
					 VALUE_OF("p.r")
					 " FROM (SELECT pg_catalog.format('p %%s %%s', oid, xmin)"
					 " FROM pg_catalog.pg_publication WHERE pubname IN (%s)",
					 pubs);
	if (version >= 150000)
		appendStringInfo(&sql,
						 " UNION ALL"
						 " SELECT pg_catalog.format('n %%s %%s', n.oid, n.xmin)"
						 " FROM pg_catalog.pg_publication_namespace n"
						 " JOIN pg_catalog.pg_publication p"
						 " ON p.oid = n.pnpubid WHERE p.pubname IN (%s)",
						 pubs);
	appendStringInfoString(&sql, ") p(r) UNION ALL ");

	if (tables == NULL)
	{
		appendStringInfoString(&sql, "SELECT r.prrelid, ");
		appendStringInfoString(&sql, table_value);
		appendStringInfo(&sql, NAMED " GROUP BY r.prrelid", pubs);
	}
	else
	{
		appendStringInfoString(&sql, "SELECT t.relid, (SELECT ");
		appendStringInfoString(&sql, table_value);
		appendStringInfo(&sql, NAMED " AND r.prrelid = t.relid)", pubs);
		appendStringInfo(&sql,
						 " FROM (SELECT u.relid::pg_catalog.oid"
						 " FROM pg_catalog.unnest(%s) u(relid)", tables);
		/* Before 13 a partitioned table cannot be published. */
		if (version >= 130000)
			appendStringInfo(&sql,
							 " UNION SELECT a.relid::pg_catalog.oid"
							 " FROM pg_catalog.unnest(%s) u(relid),"
							 " LATERAL pg_catalog.pg_partition_ancestors(u.relid) a(relid)",
							 tables);
		appendStringInfoString(&sql, ") t(relid)");
	}
	return sql.data;
}

/* The parts of a row; false if it is that of the publications. */
static bool
read_row(const PublisherResult *res, int row, TablePart *part)
{
	const char *relid = publisher_value(res, row, FINGERPRINT_RELID);

	part->relid = relid == NULL ? InvalidOid : strtoul(relid, NULL, 10);
	part->value = publisher_value(res, row, FINGERPRINT_VALUE);
	return relid != NULL;
}

static void
check_shape(const PublisherResult *res)
{
	if (res->ncols != FINGERPRINT_COLUMNS || res->nrows < 1)
		ereport(ERROR,
				errcode(ERRCODE_PROTOCOL_VIOLATION),
				errmsg("unexpected answer about publications from the publisher"));
}

static int
compare_parts(const void *a, const void *b)
{
	Oid			x = ((const TablePart *) a)->relid;
	Oid			y = ((const TablePart *) b)->relid;

	return x < y ? -1 : (x > y ? 1 : 0);
}

Fingerprint *
fingerprint_read(const PublisherResult *res)
{
	Fingerprint *fingerprint = palloc0(sizeof(Fingerprint));

	check_shape(res);
	fingerprint->tables = palloc(res->nrows * sizeof(TablePart));
	for (int row = 0; row < res->nrows; row++)
	{
		TablePart	part;

		if (read_row(res, row, &part))
			fingerprint->tables[fingerprint->ntables++] = part;
		else
			fingerprint->publications = part.value;
	}
	qsort(fingerprint->tables, fingerprint->ntables, sizeof(TablePart),
		  compare_parts);
	return fingerprint;
}

static bool
same_value(const char *a, const char *b)
{
	return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

bool
fingerprint_agrees(const Fingerprint *fingerprint,
				   const PublisherResult *res)
{
	check_shape(res);
	for (int row = 0; row < res->nrows; row++)
	{
		TablePart	part;
		const char *before = fingerprint->publications;

		if (read_row(res, row, &part))
		{
			TablePart  *found = bsearch(&part, fingerprint->tables,
										fingerprint->ntables,
										sizeof(TablePart), compare_parts);

			before = found != NULL ? found->value : NULL;
		}
		if (!same_value(before, part.value))
			return false;
	}
	return true;
}

/* Null is no value of theirs otherwise. */
static void
write_value(StringInfo buf, const char *value)
{
	pq_send_ascii_string(buf, value != NULL ? value : "");
}

static const char *
restore_value(StringInfo buf)
{
	const char *value = pq_getmsgrawstring(buf);

	return value[0] != '\0' ? pstrdup(value) : NULL;
}

void
fingerprint_write(StringInfo buf, const Fingerprint *fingerprint)
{
	write_value(buf, fingerprint->publications);
	pq_sendint32(buf, fingerprint->ntables);
	for (int i = 0; i < fingerprint->ntables; i++)
	{
		pq_sendint32(buf, fingerprint->tables[i].relid);
		write_value(buf, fingerprint->tables[i].value);
	}
}

Fingerprint *
fingerprint_restore(StringInfo buf)
{
	Fingerprint *fingerprint = palloc0(sizeof(Fingerprint));

	fingerprint->publications = restore_value(buf);
	fingerprint->ntables = pq_getmsgint(buf, 4);
	fingerprint->tables = palloc(Max(fingerprint->ntables, 1) *
								 sizeof(TablePart));
	for (int i = 0; i < fingerprint->ntables; i++)
	{
		fingerprint->tables[i].relid = pq_getmsgint(buf, 4);
		fingerprint->tables[i].value = restore_value(buf);
	}
	return fingerprint;
}
