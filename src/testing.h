/*-------------------------------------------------------------------------
 *
 * testing.h
 *	  What a test build adds: guards that can be taken away one by one, and
 *	  points where a process can be held.
 *
 * A guard is a check or an order of steps that one race needs to be exact
 * (design.md sections 4 to 7).  "make TEST_BUILD=1" makes a library in which
 * reuse_sync.test_guards_off names guards to leave out, so that a test can show
 * that the race it forces is one; never install that anywhere else.  In a
 * normal build guards are constants, points are nothing, and neither setting
 * exists.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/testing.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_TESTING_H
#define REUSE_SYNC_TESTING_H

#ifdef REUSE_SYNC_TEST_BUILD

extern void testing_define_settings(void);

/* False if reuse_sync.test_guards_off names it. */
extern bool guard_is_on(const char *name);

/*
 * Waits for as long as reuse_sync.test_points has "name" or "name:detail",
 * which is looked up anew here and at each reload.  pg_stat_activity shows
 * "test point name:detail" as the query meanwhile.  Serves interrupts.
 */
extern void test_point(const char *name, const char *detail);

/*
 * In a table-sync worker of the server's own, the point "tablesync_commit"
 * with the number of the commit as its detail.
 */
extern void test_point_at_commit(void);

#else

#define testing_define_settings()	((void) 0)
#define guard_is_on(name)			true
#define test_point(name, detail)	((void) 0)
#define test_point_at_commit()		((void) 0)

#endif							/* REUSE_SYNC_TEST_BUILD */

#endif							/* REUSE_SYNC_TESTING_H */
