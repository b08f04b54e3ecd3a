/*-------------------------------------------------------------------------
 *
 * check.c
 *	  check(): what is wrong, or likely to go wrong.
 *
 * This server comes first, then each subscription of the database with its
 * publisher.  A publisher that cannot be reached, or does not answer, is a
 * finding like any other.  Whoever calls waits for it no longer than
 * PUBLISHER_PATIENCE, and can cancel meanwhile.  A report (report.c) asks for
 * the same of one subscription.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/check.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "common/hashfn.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "catalog.h"
#include "check.h"
#include "compat.h"
#include "failure.h"
#include "lease.h"
#include "pool.h"
#include "pool_apply.h"
#include "pool_notes.h"
#include "settings.h"
#include "subscriptions.h"

PG_FUNCTION_INFO_V1(reuse_sync_check);

/* How long a publisher may take for all that it is asked, in ms. */
#define PUBLISHER_PATIENCE	10000

/* Publishers before this one lack what the pool asks for. */
#define OLDEST_PUBLISHER	130000

#define CHECK_COLS	4

/* A publisher that could not be reached, so that it is not tried again. */
typedef struct DeadEnd
{
	char	   *conninfo;
	char	   *message;
} DeadEnd;

/* The findings of the same hash. */
typedef struct KnownFindings
{
	uint32		hash;
	List	   *findings;
} KnownFindings;

static struct
{
	MemoryContext context;
	List	   *findings;
	HTAB	   *known;			/* the same, by what they say */
	List	   *dead_ends;
	CheckPublisher *publisher;	/* null: nobody wants to know */
}			result;

/* The findings among which one that says this would be. */
static KnownFindings *
findings_like(const char *object, const char *problem)
{
	uint32		hash = hash_combine(hash_bytes((const unsigned char *) object,
											   (int) strlen(object)),
									hash_bytes((const unsigned char *) problem,
											   (int) strlen(problem)));
	bool		found;
	KnownFindings *known = hash_search(result.known, &hash, HASH_ENTER, &found);

	if (!found)
		known->findings = NIL;
	return known;
}

void
check_add(CheckSeverity severity, const char *object, const char *problem,
		  const char *hint)
{
	MemoryContext caller = MemoryContextSwitchTo(result.context);
	KnownFindings *known = findings_like(object, problem);
	CheckFinding *finding;
	ListCell   *lc;

	foreach(lc, known->findings)
	{
		CheckFinding *other = lfirst(lc);

		if (strcmp(other->object, object) == 0 &&
			strcmp(other->problem, problem) == 0)
		{
			MemoryContextSwitchTo(caller);
			return;
		}
	}
	finding = palloc(sizeof(CheckFinding));
	finding->severity = severity;
	finding->object = pstrdup(object);
	finding->problem = pstrdup(problem);
	finding->hint = hint ? pstrdup(hint) : NULL;
	known->findings = lappend(known->findings, finding);
	result.findings = lappend(result.findings, finding);
	MemoryContextSwitchTo(caller);
}

const char *
check_severity_name(CheckSeverity severity)
{
	switch (severity)
	{
		case CHECK_ERROR:
			return "error";
		case CHECK_WARNING:
			return "warning";
		case CHECK_NOTICE:
			break;
	}
	return "notice";
}

static void
return_findings(ReturnSetInfo *rsinfo)
{
	ListCell   *lc;

	foreach(lc, result.findings)
	{
		CheckFinding *finding = lfirst(lc);
		Datum		values[CHECK_COLS];
		bool		nulls[CHECK_COLS] = {0};

		values[0] =
			CStringGetTextDatum(check_severity_name(finding->severity));
		values[1] = CStringGetTextDatum(finding->object);
		values[2] = CStringGetTextDatum(finding->problem);
		nulls[3] = (finding->hint == NULL);
		values[3] = finding->hint ? CStringGetTextDatum(finding->hint) :
			(Datum) 0;
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc,
							 values, nulls);
	}
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

/* Those of this database. */
static List *
subscriptions(void)
{
	List	   *subs = NIL;
	ListCell   *lc;

	foreach(lc, subscriptions_of(MyDatabaseId))
	{
		Subscription *sub =
		GetSubscription(((Form_pg_subscription) lfirst(lc))->oid, true);

		if (sub != NULL)
			subs = lappend(subs, sub);
	}
	return subs;
}

/* Is there work that waits for this subscription? */
static bool
has_unready_tables(const Subscription *sub)
{
	return GetSubscriptionRelations(sub->oid, true) != NIL ||
		catalog_resyncs(sub->oid) != NIL;
}

/* What its workers have met before they could touch a table. */
static void
check_problems(const Subscription *sub)
{
	PoolProblem problem;

	for (int i = 0; pool_exists() && pool_get_problem(i, &problem); i++)
	{
		char	   *hint;

		if (problem.subid != sub->oid || !pool_problem_is_shown(&problem))
			continue;
		hint = failure_split_hint(problem.message);
		check_add(CHECK_ERROR, check_subscription_name(sub),
				  psprintf("its synchronization waits: %s", problem.message),
				  psprintf("%s The pool tries again by itself.",
						   hint ? hint : "See the server's log."));
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
					  psprintf("Run ALTER SUBSCRIPTION %s ENABLE.",
							   quote_identifier(sub->name)));
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
	{
		/* The server starts one now and then, see wal_retrieve_retry_interval. */
		if (pool_exists() &&
			!TimestampDifferenceExceeds(pool_last_apply_change(),
										GetCurrentTimestamp(),
										lease_patience()))
			check_add(CHECK_NOTICE, object,
					  "it has no apply worker yet",
					  psprintf("The server starts one within %d s. Run this again then.",
							   (lease_patience() + 999) / 1000));
		else
			check_add(CHECK_ERROR, object,
					  "it has no apply worker at the moment",
					  "See the server's log for why it ends, and max_logical_replication_workers.");
	}
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

/* What a report says of the publisher beside what is wrong there. */
static void
note_publisher(const Subscription *sub, Publisher *conn)
{
	CheckPublisher *publisher = result.publisher;
	PublisherResult *res;
	const char *value;

	publisher->version = publisher_version(conn);
	if (publisher->version < OLDEST_PUBLISHER)
		return;
	res = publisher_query(conn,
						  psprintf("SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot()),"
								   " pg_catalog.pg_wal_lsn_diff(CASE WHEN pg_catalog.pg_is_in_recovery()"
								   " THEN pg_catalog.pg_last_wal_replay_lsn()"
								   " ELSE pg_catalog.pg_current_wal_lsn() END, s.restart_lsn),"
								   " s.catalog_xmin"
								   " FROM (VALUES (%s)) v(slot_name)"
								   " LEFT JOIN pg_catalog.pg_replication_slots s ON s.slot_name = v.slot_name",
								   publisher_literal(conn, sub->slotname ?
													 sub->slotname : "")));
	if (res->nrows != 1)
		return;
	publisher->next_xid = strtoull(publisher_text(res, 0, 0), NULL, 10);
	if ((value = publisher_value(res, 0, 1)) != NULL)
	{
		publisher->has_slot = true;
		publisher->slot_bytes = strtoll(value, NULL, 10);
	}
	if ((value = publisher_value(res, 0, 2)) != NULL)
		publisher->slot_xmin = (uint32) strtoul(value, NULL, 10);
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
		if (result.publisher != NULL)
			note_publisher(sub, conn);
	}
	PG_CATCH();
	{
		ErrorData  *edata;
		DeadEnd    *dead_end;

		MemoryContextSwitchTo(result.context);
		edata = CopyErrorData();
		publisher_disconnect(conn);
		conn = NULL;
		/* The second is that of a connection string without a password. */
		if (ERRCODE_TO_CATEGORY(edata->sqlerrcode) !=
			ERRCODE_CONNECTION_EXCEPTION &&
			edata->sqlerrcode !=
			ERRCODE_S_R_E_PROHIBITED_SQL_STATEMENT_ATTEMPTED &&
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

/* The parts of one subscription and of its publisher. */
static void
check_all_of(const Subscription *sub)
{
	CHECK_FOR_INTERRUPTS();
	check_subscription(sub);
	if (sub->enabled)
		check_problems(sub);
	check_local_tables(sub);
	check_way_to_publisher(sub);
}

static void
begin_check(CheckPublisher *publisher)
{
	HASHCTL		info = {0};

	memset(&result, 0, sizeof(result));
	result.context = CurrentMemoryContext;
	info.keysize = sizeof(uint32);
	info.entrysize = sizeof(KnownFindings);
	info.hcxt = result.context;
	result.known = hash_create("findings", 64, &info,
							   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	result.publisher = publisher;
	(void) catalog_exists(ERROR);
}

/* On a standby there is nothing else to be said. */
static bool
is_in_recovery(void)
{
	if (RecoveryInProgress())
		check_add(CHECK_NOTICE, "this server",
				  "it is in recovery, so that nothing is synchronized", NULL);
	return RecoveryInProgress();
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
	begin_check(NULL);
	if (!is_in_recovery())
	{
		SPI_connect();
		subs = subscriptions();
		check_begin_capacity();
		check_server();
		check_slot_catalog();
		foreach(lc, subs)
			check_all_of(lfirst(lc));
		check_capacity();
		SPI_finish();
	}
	return_findings((ReturnSetInfo *) fcinfo->resultinfo);
	PG_RETURN_VOID();
}

List *
check_one_subscription(const Subscription *sub, CheckPublisher *publisher)
{
	memset(publisher, 0, sizeof(CheckPublisher));
	begin_check(publisher);
	if (!is_in_recovery())
	{
		SPI_connect();
		check_begin_capacity();
		check_server();
		check_all_of(sub);
		check_capacity();
		SPI_finish();
	}
	return result.findings;
}
