/*-------------------------------------------------------------------------
 *
 * testing.c
 *	  What a test build adds; nothing in a normal one.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/testing.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "testing.h"

#ifdef REUSE_SYNC_TEST_BUILD

#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "replication/logicalworker.h"
#include "replication/worker_internal.h"
#include "storage/latch.h"
#include "utils/backend_status.h"
#include "utils/guc.h"

static char *guards_off = NULL;
static char *points = NULL;

void
testing_define_settings(void)
{
	DefineCustomStringVariable("reuse_sync.test_guards_off",
							   "Names guards that are left out.",
							   NULL,
							   &guards_off, "",
							   PGC_SIGHUP, GUC_NOT_IN_SAMPLE,
							   NULL, NULL, NULL);
	DefineCustomStringVariable("reuse_sync.test_points",
							   "Names points at which processes wait.",
							   NULL,
							   &points, "",
							   PGC_SIGHUP, GUC_NOT_IN_SAMPLE,
							   NULL, NULL, NULL);
}

/* Is 'name' an item of the list, which is separated by commas and spaces? */
static bool
is_listed(const char *list, const char *name)
{
	size_t		len = strlen(name);

	for (const char *p = list; *p != '\0';)
	{
		size_t		item = strcspn(p, ", ");

		if (item == len && strncmp(p, name, len) == 0)
			return true;
		p += item;
		p += strspn(p, ", ");
	}
	return false;
}

bool
guard_is_on(const char *name)
{
	return !is_listed(guards_off, name);
}

/* Read the files if that was asked for; true if so. */
static bool
reload(void)
{
	if (!ConfigReloadPending)
		return false;
	ConfigReloadPending = false;
	ProcessConfigFile(PGC_SIGHUP);
	return true;
}

void
test_point(const char *name, const char *detail)
{
	char		full_name[2 * NAMEDATALEN + 1];
	bool		reloaded = reload();

	snprintf(full_name, sizeof(full_name), "%s:%s", name, detail);
	if (is_listed(points, name) || is_listed(points, full_name))
	{
		char		activity[sizeof(full_name) + 16];

		snprintf(activity, sizeof(activity), "test point %s", full_name);
		ereport(LOG, errmsg_internal("%s: waits", activity));
		pgstat_report_activity(STATE_RUNNING, activity);
		while (is_listed(points, name) || is_listed(points, full_name))
		{
			(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_EXIT_ON_PM_DEATH, 0,
							 PG_WAIT_EXTENSION);
			ResetLatch(MyLatch);
			CHECK_FOR_INTERRUPTS();
			reloaded |= reload();
		}
		ereport(LOG, errmsg_internal("%s: goes on", activity));
		pgstat_report_activity(STATE_RUNNING, NULL);

		/* Who set the latch meanwhile may have meant somebody else. */
		SetLatch(MyLatch);
	}

	/* The process may have something to do after a reload. */
	if (reloaded)
		ConfigReloadPending = true;
}

void
test_point_at_commit(void)
{
	static int	commits = 0;
	char		number[12];

	if (!IsLogicalWorker() || !am_tablesync_worker())
		return;
	snprintf(number, sizeof(number), "%d", ++commits);
	test_point("tablesync_commit", number);
}

#endif							/* REUSE_SYNC_TEST_BUILD */
