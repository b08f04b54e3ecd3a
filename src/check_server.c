/*-------------------------------------------------------------------------
 *
 * check_server.c
 *	  Part of check(): this server, its settings and its databases.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/check_server.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "postmaster/bgworker_internals.h"
#include "replication/logicallauncher.h"
#include "utils/timestamp.h"

#include "check.h"
#include "compat.h"
#include "pool.h"
#include "pool_notes.h"
#include "settings.h"

/* How long to wait for what the pool finds out about databases, in ms. */
#define POOL_PATIENCE	3000

/* Enabled subscriptions of the whole server, and all of them. */
static int
count_subscriptions(int *all)
{
	(void) check_query("SELECT pg_catalog.count(*),"
					   " pg_catalog.count(*) FILTER (WHERE subenabled)"
					   " FROM pg_catalog.pg_subscription");
	*all = atoi(check_value(0, 0));
	return atoi(check_value(0, 1));
}

static void
check_setting(const char *name, int value, int needed,
			  CheckSeverity severity, const char *what)
{
	if (value < needed)
		check_add(severity, psprintf("setting %s", name),
				  psprintf("it is %d, but %d are needed: %s",
						   value, needed, what),
				  psprintf("Set %s to at least %d and restart the server.",
						   name, needed));
}

/* Are the server's limits enough for the pool and the subscriptions? */
static void
check_settings(void)
{
	int			all;
	int			enabled = count_subscriptions(&all);
	int			unfinished;
	const char *origins_setting;
	int			max_origins = compat_max_origins(&origins_setting);

	check_setting("max_logical_replication_workers",
				  max_logical_replication_workers, enabled, CHECK_ERROR,
				  "one for each enabled subscription");
	check_setting("max_worker_processes", max_worker_processes,
				  1 + 1 + reuse_sync_max_workers + enabled, CHECK_WARNING,
				  psprintf("reuse_sync.max_workers (%d) and its launcher, the server's launcher of logical replication, and one for each of %d enabled subscriptions",
						   reuse_sync_max_workers, enabled));

	/* Each worker has an origin of its own and one of the table it is at. */
	(void) check_query("SELECT pg_catalog.count(*)"
					   " FROM pg_catalog.pg_subscription_rel"
					   " WHERE srsubstate = 'f'");
	unfinished = atoi(check_value(0, 0));
	check_setting(origins_setting, max_origins,
				  all + reuse_sync_max_workers +
				  Max(reuse_sync_max_workers, unfinished), CHECK_WARNING,
				  psprintf("replication origins for %d subscriptions, and two for each of reuse_sync.max_workers (%d)",
						   all, reuse_sync_max_workers));
}

/* Does the library do anything, and is it to? */
static void
check_library(void)
{
	if (!reuse_sync_preloaded)
		check_add(CHECK_ERROR, "setting shared_preload_libraries",
				  "the library reuse_sync is not loaded when the server starts, so that the server synchronizes by itself",
				  "Add reuse_sync to shared_preload_libraries and restart the server.");
	else if (!pool_exists())
		check_add(CHECK_WARNING, "setting reuse_sync.enabled",
				  "it is off, so that the server synchronizes by itself",
				  "Set it to on and restart the server, or drop the extension.");
	else if (reuse_sync_paused)
		check_add(CHECK_WARNING, "setting reuse_sync.paused",
				  "it is on, so that no table is begun with",
				  "Set it to off and reload the configuration to go on.");
	if (pool_exists() && pool_is_draining(MyDatabaseId))
		check_add(CHECK_WARNING, "this database",
				  "it is being drained, so that no table is begun with",
				  "Run SELECT reuse_sync.wakeup() to go on, or DROP EXTENSION.");
}

/* --- databases --- */

typedef struct Database
{
	Oid			dbid;
	char	   *name;			/* quoted */
} Database;

/*
 * Those with subscriptions.  Where nobody has looked since the server started,
 * or since the extension came or went, the pool is asked to.
 */
static List *
databases_with_subscriptions(void)
{
	List	   *databases = NIL;
	int			n;

	n = check_query("SELECT DISTINCT d.oid, pg_catalog.quote_ident(d.datname)"
					" FROM pg_catalog.pg_subscription s"
					" JOIN pg_catalog.pg_database d ON d.oid = s.subdbid"
					" ORDER BY 2");
	for (int i = 0; i < n; i++)
	{
		Database   *database = palloc(sizeof(Database));

		database->dbid = strtoul(check_value(i, 0), NULL, 10);
		database->name = check_value(i, 1);
		databases = lappend(databases, database);
		if (pool_database_standing(database->dbid) == DATABASE_UNKNOWN)
			pool_hint(database->dbid, true);
	}
	return databases;
}

static bool
all_are_known(List *databases)
{
	ListCell   *lc;

	foreach(lc, databases)
	{
		Database   *database = lfirst(lc);

		if (database->dbid != MyDatabaseId &&
			pool_database_standing(database->dbid) == DATABASE_UNKNOWN &&
			pool_database_failures(database->dbid) == 0)
			return false;
	}
	return true;
}

static void
wait_until_known(List *databases)
{
	TimestampTz deadline =
	TimestampTzPlusMilliseconds(GetCurrentTimestamp(), POOL_PATIENCE);

	pool_prepare_to_wait();
	while (!all_are_known(databases))
	{
		long		left =
		TimestampDifferenceMilliseconds(GetCurrentTimestamp(), deadline);

		if (left <= 0)
			break;
		pool_wait_for_change(left);
	}
	pool_end_wait();
}

static void
check_database(const Database *database)
{
	char	   *object = psprintf("database %s", database->name);
	int			failures = pool_database_failures(database->dbid);

	if (failures > 0)
		check_add(CHECK_ERROR, object,
				  psprintf("the last %d processes of the pool for it ended before they could do anything",
						   failures),
				  "See the server's log. The database must allow connections, and have room for them if it has a limit.");
	if (database->dbid == MyDatabaseId)
		return;
	switch (pool_database_standing(database->dbid))
	{
		case DATABASE_LACKS_EXTENSION:
			check_add(CHECK_WARNING, object,
					  "it has subscriptions but not the extension, so that the server synchronizes their tables by itself",
					  "Run CREATE EXTENSION reuse_sync in that database.");
			break;
		case DATABASE_HAS_OTHER_VERSION:
			check_add(CHECK_ERROR, object,
					  psprintf("its extension is not of version %s like the library, so that the server synchronizes by itself",
							   EXTENSION_VERSION),
					  "Run ALTER EXTENSION reuse_sync UPDATE in that database.");
			break;
		case DATABASE_UNKNOWN:
			if (failures == 0)
				check_add(CHECK_NOTICE, object,
						  "it is not known yet whether it has the extension",
						  "Run this again in a moment.");
			break;
		case DATABASE_HAS_EXTENSION:
			break;
	}
}

void
check_server(void)
{
	check_library();
	check_settings();
	if (pool_exists())
	{
		List	   *databases = databases_with_subscriptions();
		ListCell   *lc;

		wait_until_known(databases);
		foreach(lc, databases)
			check_database(lfirst(lc));
	}
}
