/*-------------------------------------------------------------------------
 *
 * check_publisher.c
 *	  Part of check(): the publisher of a subscription.
 *
 * Several subscriptions may have the same publisher, and share what room it
 * has; so that is summed up, and judged when all have been looked at.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/check_publisher.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "nodes/value.h"
#include "utils/builtins.h"

#include "check.h"
#include "settings.h"

/* Something of which a publisher has only so many. */
typedef struct Capacity
{
	const char *setting;		/* that limits it */
	int			limit;			/* -1: none */
	int			others;			/* in use, not by the pool */
	int			per_worker;		/* what a worker of the pool takes of it */
} Capacity;

enum
{
	CAPACITY_SLOTS, CAPACITY_SENDERS, CAPACITY_CONNECTIONS, CAPACITY_ROLE,
	NUM_CAPACITIES
};

/* A publisher, as the subscriptions have it. */
typedef struct Summary
{
	uint64		sysid;
	char	   *object;			/* named after its first subscription */
	int			enabled;		/* enabled subscriptions */
	Capacity	capacities[NUM_CAPACITIES];
} Summary;

static List *summaries = NIL;

static char *
publisher_object(const Subscription *sub)
{
	return psprintf("publisher of subscription \"%s\"", sub->name);
}

/* The columns of describe(). */
enum
{
	ASKED_WAL_LEVEL, ASKED_MAY_REPLICATE, ASKED_ROLE,
	ASKED_MAX_SLOTS, ASKED_SLOTS, ASKED_MAX_SENDERS, ASKED_SENDERS,
	ASKED_MAX_CONNECTIONS, ASKED_CONNECTIONS, ASKED_ROLE_LIMIT,
	ASKED_ROLE_CONNECTIONS
};

/* What counts as others' is what is neither of a slot nor a worker of ours. */
static PublisherResult *
describe(Publisher *conn)
{
	return publisher_query(conn,
						   psprintf("SELECT pg_catalog.current_setting('wal_level'),"
									" r.rolsuper OR r.rolreplication,"
									" pg_catalog.quote_ident(r.rolname),"
									" pg_catalog.current_setting('max_replication_slots'),"
									" (SELECT pg_catalog.count(*) FROM pg_catalog.pg_replication_slots"
									" WHERE slot_name::pg_catalog.text !~ '^reuse_sync_[0-9]+_[0-9]+_" UINT64_FORMAT "$'),"
									" pg_catalog.current_setting('max_wal_senders'),"
									" (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_activity"
									" WHERE backend_type = 'walsender' AND application_name !~ '^reuse_sync'),"
									" pg_catalog.current_setting('max_connections'),"
									" (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_activity"
									" WHERE backend_type = 'client backend' AND application_name !~ '^reuse_sync')"
									" + pg_catalog.current_setting('superuser_reserved_connections')::pg_catalog.int4,"
									" CASE WHEN r.rolsuper THEN -1 ELSE r.rolconnlimit END,"
									" (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_activity"
									" WHERE usesysid = r.oid AND application_name !~ '^reuse_sync')"
									" FROM pg_catalog.pg_roles r WHERE r.rolname = current_user",
									GetSystemIdentifier()));
}

static int
number(PublisherResult *res, int col)
{
	const char *value = publisher_value(res, 0, col);

	return value ? atoi(value) : 0;
}

static void
sum_up(const Subscription *sub, Publisher *conn, PublisherResult *res)
{
	uint64		sysid = publisher_identity(conn)->sysid;
	Summary    *summary = NULL;
	ListCell   *lc;

	foreach(lc, summaries)
		if (((Summary *) lfirst(lc))->sysid == sysid)
			summary = lfirst(lc);
	if (summary == NULL)
	{
		summary = palloc0(sizeof(Summary));
		summary->sysid = sysid;
		summary->object = publisher_object(sub);
		summaries = lappend(summaries, summary);
	}
	if (sub->enabled)
		summary->enabled++;
	summary->capacities[CAPACITY_SLOTS] = (Capacity)
	{
		"max_replication_slots", number(res, ASKED_MAX_SLOTS),
			number(res, ASKED_SLOTS), 1
	};
	summary->capacities[CAPACITY_SENDERS] = (Capacity)
	{
		"max_wal_senders", number(res, ASKED_MAX_SENDERS),
			number(res, ASKED_SENDERS), 1
	};
	summary->capacities[CAPACITY_CONNECTIONS] = (Capacity)
	{
		"max_connections", number(res, ASKED_MAX_CONNECTIONS),
			number(res, ASKED_CONNECTIONS), 1
	};
	summary->capacities[CAPACITY_ROLE] = (Capacity)
	{
		psprintf("CONNECTION LIMIT of role %s",
				 publisher_text(res, 0, ASKED_ROLE)),
			number(res, ASKED_ROLE_LIMIT),
			number(res, ASKED_ROLE_CONNECTIONS), 2
	};
}

void
check_begin_capacity(void)
{
	summaries = NIL;
}

void
check_capacity(void)
{
	ListCell   *lc;

	foreach(lc, summaries)
	{
		Summary    *summary = lfirst(lc);
		int			workers =
		Min((int64) reuse_sync_max_workers,
			(int64) reuse_sync_max_workers_per_subscription *
			summary->enabled);

		for (int i = 0; i < NUM_CAPACITIES; i++)
		{
			Capacity   *c = &summary->capacities[i];
			int			needed = c->others + workers * c->per_worker;

			if (c->limit >= 0 && needed > c->limit && workers > 0)
				check_add(c->limit - c->others < c->per_worker ?
						  CHECK_ERROR : CHECK_WARNING,
						  summary->object,
						  psprintf("%s is %d, but %d are needed there: %d are used by or reserved for others, and %d workers of the pool take %d",
								   c->setting, c->limit, needed, c->others,
								   workers, workers * c->per_worker),
						  psprintf("Set it to at least %d on the publisher, or lower reuse_sync.max_workers_per_subscription.",
								   needed));
		}
	}
	summaries = NIL;
}

/* The publications subscribed that are not there. */
static void
check_publications(const Subscription *sub, Publisher *conn)
{
	StringInfoData names;
	PublisherResult *res;
	ListCell   *lc;

	initStringInfo(&names);
	foreach(lc, sub->publications)
		appendStringInfo(&names, "%s(%s)", names.len > 0 ? ", " : "",
						 publisher_literal(conn, strVal(lfirst(lc))));
	if (names.len == 0)
		return;
	res = publisher_query(conn,
						  psprintf("SELECT v.name FROM (VALUES %s) v(name)"
								   " WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_publication p"
								   " WHERE p.pubname = v.name)", names.data));
	for (int row = 0; row < res->nrows; row++)
		check_add(CHECK_ERROR, check_subscription_name(sub),
				  psprintf("publication \"%s\" does not exist on the publisher",
						   publisher_text(res, row, 0)),
				  psprintf("Create it there, or run ALTER SUBSCRIPTION %s DROP PUBLICATION %s.",
						   quote_identifier(sub->name),
						   quote_identifier(publisher_text(res, row, 0))));
}

void
check_publisher(const Subscription *sub, Publisher *conn)
{
	char	   *object = publisher_object(sub);
	PublisherResult *res = describe(conn);

	if (res->nrows != 1)
		ereport(ERROR,
				errcode(ERRCODE_PROTOCOL_VIOLATION),
				errmsg("unexpected answer about settings from the publisher"));
	if (publisher_identity(conn)->in_recovery &&
		publisher_version(conn) < 160000)
		check_add(CHECK_ERROR, object,
				  "it is a standby, from which the pool does not copy",
				  "Subscribe to the primary server.");
	if (strcmp(publisher_text(res, 0, ASKED_WAL_LEVEL), "logical") != 0)
		check_add(CHECK_ERROR, object,
				  psprintf("its wal_level is %s",
						   publisher_text(res, 0, ASKED_WAL_LEVEL)),
				  "Set wal_level to logical there and restart it.");
	if (!publisher_is_true(res, 0, ASKED_MAY_REPLICATE))
		check_add(CHECK_ERROR, object,
				  psprintf("role %s, as which the subscription connects, may not replicate",
						   publisher_text(res, 0, ASKED_ROLE)),
				  psprintf("Run ALTER ROLE %s REPLICATION there.",
						   publisher_text(res, 0, ASKED_ROLE)));
	check_publications(sub, conn);
	sum_up(sub, conn, res);
}
