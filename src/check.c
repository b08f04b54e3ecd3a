/*-------------------------------------------------------------------------
 *
 * check.c
 *	  check(): what is wrong, or likely to go wrong.
 *
 * This server comes first, then each subscription of the database with its
 * publisher.  A publisher that cannot be reached, or does not answer, is a
 * finding like any other.  Whoever calls waits for it no longer than
 * PUBLISHER_PATIENCE, and can cancel meanwhile.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/check.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xlog.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "catalog.h"
#include "check.h"
#include "compat.h"
#include "pool.h"
#include "settings.h"

PG_FUNCTION_INFO_V1(reuse_sync_check);

/* How long a publisher may take for all that it is asked, in ms. */
#define PUBLISHER_PATIENCE	10000

/* Publishers before this one lack what the pool asks for. */
#define OLDEST_PUBLISHER	130000

#define CHECK_COLS	4

/* A row of the result. */
typedef struct Finding
{
	char	   *object;
	char	   *problem;
} Finding;

/* A publisher that could not be reached, so that it is not tried again. */
typedef struct DeadEnd
{
	char	   *conninfo;
	char	   *message;
} DeadEnd;

static struct
{
	ReturnSetInfo *rsinfo;
	MemoryContext context;
	List	   *findings;
	List	   *dead_ends;
}			result;

void
check_add(CheckSeverity severity, const char *object, const char *problem,
		  const char *hint)
{
	static const char *const names[] = {
		[CHECK_ERROR] = "error",
		[CHECK_WARNING] = "warning",
		[CHECK_NOTICE] = "notice",
	};
	MemoryContext caller = MemoryContextSwitchTo(result.context);
	Finding    *finding = palloc(sizeof(Finding));
	Datum		values[CHECK_COLS];
	bool		nulls[CHECK_COLS] = {0};
	ListCell   *lc;

	foreach(lc, result.findings)
	{
		Finding    *other = lfirst(lc);

		if (strcmp(other->object, object) == 0 &&
			strcmp(other->problem, problem) == 0)
		{
			MemoryContextSwitchTo(caller);
			return;
		}
	}
	finding->object = pstrdup(object);
	finding->problem = pstrdup(problem);
	result.findings = lappend(result.findings, finding);
	values[0] = CStringGetTextDatum(names[severity]);
	values[1] = CStringGetTextDatum(object);
	values[2] = CStringGetTextDatum(problem);
	nulls[3] = (hint == NULL);
	values[3] = hint ? CStringGetTextDatum(hint) : (Datum) 0;
	tuplestore_putvalues(result.rsinfo->setResult, result.rsinfo->setDesc,
						 values, nulls);
	MemoryContextSwitchTo(caller);
}

int
check_query(const char *sql)
{
	int			rc = SPI_execute(sql, true, 0);

	if (rc != SPI_OK_SELECT)
		elog(ERROR, "SPI_execute failed: %s", SPI_result_code_string(rc));
	return (int) SPI_processed;
}

char *
check_value(int row, int col)
{
	return SPI_getvalue(SPI_tuptable->vals[row], SPI_tuptable->tupdesc,
						col + 1);
}

char *
check_subscription_name(const Subscription *sub)
{
	return psprintf("subscription \"%s\"", sub->name);
}

char *
check_table_name(const char *nspname, const char *relname)
{
	return psprintf("table %s", quote_qualified_identifier(nspname, relname));
}

/* --- the subscriptions --- */

/* Those of this database, by oid. */
static List *
subscriptions(void)
{
	Relation	rel = table_open(SubscriptionRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, NULL, 0,
										  NULL);
	HeapTuple	tuple;
	List	   *subs = NIL;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_subscription form = (Form_pg_subscription) GETSTRUCT(tuple);
		Subscription *sub;

		if (form->subdbid == MyDatabaseId &&
			(sub = GetSubscription(form->oid, true)) != NULL)
			subs = lappend(subs, sub);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return subs;
}

/* Is there work that waits for this subscription? */
static bool
has_unready_tables(const Subscription *sub)
{
	return GetSubscriptionRelations(sub->oid, true) != NIL;
}

/* What its workers have met before they could touch a table. */
static void
check_problems(const Subscription *sub)
{
	PoolProblem problem;

	for (int i = 0; pool_exists() && pool_get_problem(i, &problem); i++)
	{
		if (problem.subid == sub->oid && !problem.over)
			check_add(CHECK_ERROR, check_subscription_name(sub),
					  psprintf("its synchronization waits: %s",
							   problem.message),
					  "The pool tries again by itself; see the server's log.");
	}
}

/* What the catalog says of the subscription itself. */
static void
check_subscription(const Subscription *sub)
{
	char	   *object = check_subscription_name(sub);
	bool		waits = has_unready_tables(sub);
	int			n;

	if (!sub->enabled)
	{
		if (waits)
			check_add(CHECK_WARNING, object,
					  "it is disabled, and has tables that are not synchronized",
					  "Run ALTER SUBSCRIPTION ... ENABLE.");
		return;
	}
	n = check_query(psprintf("SELECT r.rolcanlogin, r.rolsuper OR"
							 " pg_catalog.has_database_privilege(r.oid, d.oid, 'CONNECT'),"
							 " pg_catalog.quote_ident(r.rolname),"
							 " EXISTS (SELECT FROM pg_catalog.pg_stat_subscription t"
							 " WHERE t.subid = %u AND t.relid IS NULL AND t.pid IS NOT NULL)"
							 " FROM pg_catalog.pg_roles r, pg_catalog.pg_database d"
							 " WHERE r.oid = %u AND d.oid = %u",
							 sub->oid, sub->owner, MyDatabaseId));
	if (n != 1)
		return;
	if (check_value(0, 0)[0] != 't' || check_value(0, 1)[0] != 't')
		check_add(CHECK_ERROR, object,
				  psprintf("its owner %s may not log in to this database, so that no worker can start",
						   check_value(0, 2)),
				  "Give the role LOGIN, and CONNECT on the database, or the subscription another owner.");
	else if (check_value(0, 3)[0] != 't')
		check_add(CHECK_ERROR, object,
				  "it has no apply worker at the moment",
				  "See the server's log for why it ends, and max_logical_replication_workers.");
}

/* All that is asked of one publisher; throws what goes wrong. */
static void
ask_publisher(const Subscription *sub, Publisher *conn)
{
	publisher_command(conn,
					  psprintf("BEGIN READ ONLY; SET LOCAL statement_timeout = %d",
							   PUBLISHER_PATIENCE));
	check_publisher(sub, conn);
	check_publisher_slots(sub, conn);
	check_published_tables(sub, conn);
	publisher_command(conn, "COMMIT");
}

static void
report_unreachable(const Subscription *sub, const char *message)
{
	check_add(sub->enabled ? CHECK_ERROR : CHECK_WARNING,
			  check_subscription_name(sub), message,
			  "Check that the publisher runs, that it can be reached from here, and that the connection string and the rights of its role are right.");
}

static void
check_way_to_publisher(const Subscription *sub)
{
	MemoryContext context = CurrentMemoryContext;
	Publisher  *volatile conn = NULL;
	ListCell   *lc;

	foreach(lc, result.dead_ends)
	{
		DeadEnd    *dead_end = lfirst(lc);

		if (strcmp(dead_end->conninfo, sub->conninfo) == 0)
		{
			report_unreachable(sub, dead_end->message);
			return;
		}
	}

	/*
	 * The publisher's part changes nothing here: an error needs no rollback
	 * but that of what it was about.
	 */
	PG_TRY();
	{
		conn = publisher_connect_until(sub->conninfo,
									   compat_must_use_password(sub),
									   EXTENSION_NAME,
									   TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
																   PUBLISHER_PATIENCE));
		if (publisher_version(conn) < OLDEST_PUBLISHER)
			check_add(CHECK_ERROR, check_subscription_name(sub),
					  psprintf("its publisher is PostgreSQL %d, which is too old",
							   publisher_version(conn) / 10000),
					  psprintf("The publisher must be PostgreSQL %d or later.",
							   OLDEST_PUBLISHER / 10000));
		else
			ask_publisher(sub, conn);
	}
	PG_CATCH();
	{
		ErrorData  *edata;
		DeadEnd    *dead_end;

		MemoryContextSwitchTo(result.context);
		edata = CopyErrorData();
		publisher_disconnect(conn);
		conn = NULL;
		if (ERRCODE_TO_CATEGORY(edata->sqlerrcode) !=
			ERRCODE_CONNECTION_EXCEPTION &&
			strncmp(edata->message, "error from the publisher", 24) != 0)
			PG_RE_THROW();
		FlushErrorState();
		dead_end = palloc(sizeof(DeadEnd));
		dead_end->conninfo = pstrdup(sub->conninfo);
		dead_end->message = edata->message;
		result.dead_ends = lappend(result.dead_ends, dead_end);
		MemoryContextSwitchTo(context);
		report_unreachable(sub, dead_end->message);
	}
	PG_END_TRY();
	publisher_disconnect(conn);
}

/*
 * check() returns table (severity, object, problem, hint)
 *
 * Works without a pool, and without the library being preloaded, as far as
 * there is something to check then.  The publishers are asked over the
 * subscriptions' own connection strings.
 */
Datum
reuse_sync_check(PG_FUNCTION_ARGS)
{
	ListCell   *lc;
	List	   *subs;

	InitMaterializedSRF(fcinfo, 0);
	memset(&result, 0, sizeof(result));
	result.rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	result.context = CurrentMemoryContext;
	(void) catalog_exists(ERROR);

	if (RecoveryInProgress())
	{
		check_add(CHECK_NOTICE, "this server",
				  "it is in recovery, so that nothing is synchronized", NULL);
		PG_RETURN_VOID();
	}

	SPI_connect();
	subs = subscriptions();
	check_begin_capacity();
	check_server();
	check_slot_catalog();
	foreach(lc, subs)
	{
		Subscription *sub = lfirst(lc);

		CHECK_FOR_INTERRUPTS();
		check_subscription(sub);
		if (sub->enabled)
			check_problems(sub);
		check_local_tables(sub);
		check_way_to_publisher(sub);
	}
	check_capacity();
	SPI_finish();
	PG_RETURN_VOID();
}
