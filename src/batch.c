/*-------------------------------------------------------------------------
 *
 * batch.c
 *	  Which tables are synchronized together, in which order, and which way.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/batch.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "batch.h"
#include "catalog.h"
#include "settings.h"
#include "work_list.h"

/* How long to wait for a table that is locked there, in ms. */
#define SIZE_LOCK_TIMEOUT	100

typedef struct Candidate
{
	Oid			relid;
	bool		half_done;
	int64		bytes;			/* on the publisher; -1: not there */
	bool		partitioned;	/* on the publisher */
} Candidate;

struct BatchPlan
{
	Session    *session;
	int			n;
	int			next;
	Candidate  *candidates;		/* half done, then by size, largest first */
	Oid		   *relids;
};

/* The plan's tables as rows (number, schema, name) of a VALUES list. */
static char *
tables_as_values(BatchPlan *plan)
{
	StringInfoData buf;

	initStringInfo(&buf);
	StartTransactionCommand();
	for (int i = 0; i < plan->n; i++)
	{
		Oid			relid = plan->candidates[i].relid;
		char	   *relname = get_rel_name(relid);
		char	   *nspname = get_namespace_name(get_rel_namespace(relid));

		appendStringInfo(&buf, "%s(%d, %s, %s)", i > 0 ? "," : "", i,
						 publisher_literal(plan->session->sql,
										   nspname ? nspname : ""),
						 publisher_literal(plan->session->sql,
										   relname ? relname : ""));
	}
	CommitTransactionCommand();
	return buf.data;
}

/*
 * The query for the sizes, with the expression for that of a relation.  A
 * partitioned table has that of its partitions.
 */
static char *
size_query(const char *values, const char *size)
{
	return psprintf("SELECT v.i, CASE c.relkind WHEN 'p' THEN"
					" (SELECT pg_catalog.sum(%s) FROM pg_catalog.pg_partition_tree(c.oid) t"
					" JOIN pg_catalog.pg_class r ON r.oid = t.relid)"
					" ELSE (SELECT %s FROM pg_catalog.pg_class r WHERE r.oid = c.oid) END,"
					" c.relkind = 'p'"
					" FROM (VALUES %s) v(i, nspname, relname)"
					" JOIN pg_catalog.pg_namespace n ON n.nspname = v.nspname"
					" JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid"
					" AND c.relname = v.relname",
					size, size, values);
}

/*
 * The sizes on the publisher, in one query.  The size of the main fork will
 * do.  To ask for it takes a lock on the table; where somebody has locked one,
 * what the last vacuum has seen of all must do.
 */
static void
read_sizes(BatchPlan *plan)
{
	Publisher  *conn = plan->session->sql;
	PublisherResult *res;
	MemoryContext context = CurrentMemoryContext;
	char	   *values = tables_as_values(plan);

	MemoryContextSwitchTo(context);
	res = publisher_query_unless(conn,
								 psprintf("BEGIN READ ONLY; SET LOCAL lock_timeout = %d; %s; COMMIT",
										  SIZE_LOCK_TIMEOUT,
										  size_query(values,
													 "pg_catalog.pg_relation_size(r.oid)")),
								 ERRCODE_LOCK_NOT_AVAILABLE);
	if (res == NULL)
	{
		publisher_command(conn, "ROLLBACK");
		res = publisher_query(conn,
							  size_query(values,
										 "r.relpages::bigint * pg_catalog.current_setting('block_size')::bigint"));
	}
	for (int row = 0; row < res->nrows; row++)
	{
		int			i = atoi(publisher_text(res, row, 0));
		const char *bytes = publisher_value(res, row, 1);

		if (i < 0 || i >= plan->n)
			continue;
		plan->candidates[i].bytes =
			bytes ? Max(0, strtoll(bytes, NULL, 10)) : 0;
		plan->candidates[i].partitioned =
			publisher_is_true(res, row, 2);
	}
}

/* For those who want to know how far it is. */
static void
keep_sizes(BatchPlan *plan)
{
	int64	   *bytes = palloc(plan->n * sizeof(int64));

	for (int i = 0; i < plan->n; i++)
		bytes[i] = plan->candidates[i].bytes;
	StartTransactionCommand();
	if (catalog_hold())
		catalog_add_sizes(plan->session->sub->oid, plan->relids, bytes,
						  plan->n);
	CommitTransactionCommand();
}

static int
compare_candidates(const void *a, const void *b)
{
	const Candidate *x = a;
	const Candidate *y = b;

	if (x->half_done != y->half_done)
		return x->half_done ? -1 : 1;
	if (x->bytes != y->bytes)
		return x->bytes > y->bytes ? -1 : 1;
	return x->relid < y->relid ? -1 : (x->relid > y->relid ? 1 : 0);
}

BatchPlan *
batch_plan(Session *session, const List *tables)
{
	MemoryContext caller = CurrentMemoryContext;
	BatchPlan  *plan = palloc0(sizeof(BatchPlan));
	MemoryContext scratch;
	ListCell   *lc;

	plan->session = session;
	plan->candidates = palloc(list_length(tables) * sizeof(Candidate));
	plan->relids = palloc(list_length(tables) * sizeof(Oid));
	foreach(lc, tables)
	{
		WorkTable  *table = lfirst(lc);

		plan->relids[plan->n] = table->relid;
		plan->candidates[plan->n++] = (Candidate)
		{
			table->relid, table->half_done, -1, false
		};
	}

	scratch = AllocSetContextCreate(caller, "reuse_sync plan",
									ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(scratch);
	read_sizes(plan);
	keep_sizes(plan);
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(scratch);

	qsort(plan->candidates, plan->n, sizeof(Candidate), compare_candidates);
	return plan;
}

const Oid *
batch_relids(const BatchPlan *plan, int *nrelids)
{
	*nrelids = plan->n;
	return plan->relids;
}

void
batch_alone(Session *session, Oid relid)
{
	MemoryContext caller = MemoryContextSwitchTo(session->context);

	session->alone = list_append_unique_oid(session->alone, relid);
	MemoryContextSwitchTo(caller);
}

void
batch_staged(Session *session, Oid relid)
{
	MemoryContext caller = MemoryContextSwitchTo(session->context);

	session->staged = list_append_unique_oid(session->staged, relid);
	MemoryContextSwitchTo(caller);
}

/* Is the table to go the staged way? */
static bool
is_staged(const BatchPlan *plan, const Candidate *c)
{
	return c->half_done ||
		c->bytes > (int64) reuse_sync_batch_size * 1024 ||
		list_member_oid(plan->session->staged, c->relid);
}

/*
 * A partitioned table goes alone as well: ATTACH PARTITION is not held off by
 * our lock on the publisher, and a table that was written to after the
 * snapshot and is attached before the COPY would lack those rows.  The server
 * has that moment between its snapshot and its COPY, too; a batch would make
 * it long.
 */
static bool
is_alone(const BatchPlan *plan, const Candidate *c)
{
	return is_staged(plan, c) || c->bytes < 0 || c->partitioned ||
		list_member_oid(plan->session->alone, c->relid);
}

/*
 * How many tables may go together: what the setting allows, but no more than a
 * worker's share of what is left, lest the others have nothing to do.
 */
static int
most_tables(const BatchPlan *plan)
{
	int			left = plan->n - plan->next;
	int			share = left /
	Min(reuse_sync_max_workers, reuse_sync_max_workers_per_subscription);

	return Max(1, Min(reuse_sync_batch_tables, share));
}

bool
batch_next(BatchPlan *plan, Batch *batch)
{
	int64		bytes = 0;
	int			most = most_tables(plan);
	Candidate  *first = &plan->candidates[plan->next];

	batch->nrelids = 0;
	if (plan->next >= plan->n)
		return false;
	batch->express = !is_staged(plan, first);
	batch->half_done = first->half_done;
	do
	{
		Candidate  *c = &plan->candidates[plan->next];

		if (batch->nrelids > 0 &&
			(is_alone(plan, c) || batch->nrelids >= most ||
			 bytes + c->bytes > (int64) reuse_sync_batch_size * 1024))
			break;
		batch->relids[batch->nrelids++] = c->relid;
		bytes += Max(c->bytes, 0);
		plan->next++;
	} while (plan->next < plan->n && !is_alone(plan, first));
	return true;
}
