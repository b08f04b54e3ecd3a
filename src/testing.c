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

#include <limits.h>

#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "replication/logicalworker.h"
#include "replication/worker_internal.h"
#include "storage/latch.h"
#include "utils/backend_status.h"
#include "utils/guc.h"

#include "compat.h"

/* How many pieces of a copy, which are its rows, pass between two points. */
#define PIECES_PER_POINT	100

static char *guards_off = NULL;
static char *points = NULL;
static int	error_pid = 0;
static bool log_points = false;

#define TEST_POINT_NAME(name, whose, what)	[POINT_##name] = #name,
static const char *const point_names[] = {
	TEST_POINTS(TEST_POINT_NAME)
};

/* A name that no process ever comes to would be waited for in vain. */
static bool
check_points(char **newval, void **extra, GucSource source)
{
	for (const char *p = *newval; *p != '\0';)
	{
		size_t		len = strcspn(p, ":, ");
		bool		known = false;

		for (int i = 0; i < lengthof(point_names); i++)
			known |= strlen(point_names[i]) == len &&
				strncmp(p, point_names[i], len) == 0;
		if (!known)
		{
			GUC_check_errdetail("There is no test point \"%s\".", p);
			return false;
		}
		p += strcspn(p, ", ");
		p += strspn(p, ", ");
	}
	return true;
}

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
							   check_points, NULL, NULL);
	DefineCustomIntVariable("reuse_sync.test_error_pid",
							"Names the process that fails when it goes on from a point.",
							NULL,
							&error_pid, 0, 0, INT_MAX,
							PGC_SIGHUP, GUC_NOT_IN_SAMPLE,
							NULL, NULL, NULL);
	DefineCustomBoolVariable("reuse_sync.test_log_points",
							 "Logs every point that a process comes to.",
							 NULL,
							 &log_points, false,
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
test_point(TestPoint point, const char *detail)
{
	const char *name = point_names[point];
	char		full_name[2 * NAMEDATALEN + 1];
	bool		reloaded = reload();

	bool		fails = false;

	snprintf(full_name, sizeof(full_name), "%s:%s", name, detail);
	if (log_points)
		ereport(LOG, errmsg_internal("test point %s: hit", full_name));
	if (is_listed(points, name) || is_listed(points, full_name))
	{
		char		activity[sizeof(full_name) + 16];

		snprintf(activity, sizeof(activity), "test point %s", full_name);
		ereport(LOG, errmsg_internal("%s: waits", activity));
		pgstat_report_activity(STATE_RUNNING, activity);
		while (is_listed(points, name) || is_listed(points, full_name))
		{
			(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_EXIT_ON_PM_DEATH, 0,
							 compat_wait_event());
			ResetLatch(MyLatch);
			CHECK_FOR_INTERRUPTS();
			reloaded |= reload();
		}
		fails = (error_pid == MyProcPid);
		ereport(LOG, errmsg_internal("%s: %s", activity,
									 fails ? "fails" : "goes on"));
		pgstat_report_activity(STATE_RUNNING, "");

		/* Who set the latch meanwhile may have meant somebody else. */
		SetLatch(MyLatch);
	}

	/* The process may have something to do after a reload. */
	if (reloaded)
		ConfigReloadPending = true;
	if (fails)
		ereport(ERROR,
				errcode(ERRCODE_INTERNAL_ERROR),
				errmsg_internal("test point %s fails", full_name));
}

void
test_point_in_copy(const char *detail)
{
	static int	pieces = 0;

	if (++pieces % PIECES_PER_POINT == 0)
		test_point(POINT_mid_copy, detail);
}

void
test_point_at_commit(void)
{
	static int	commits = 0;
	char		number[12];

	if (!IsLogicalWorker() || !am_tablesync_worker())
		return;
	snprintf(number, sizeof(number), "%d", ++commits);
	test_point(POINT_tablesync_commit, number);
}

#endif							/* REUSE_SYNC_TEST_BUILD */
