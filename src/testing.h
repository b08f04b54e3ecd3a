/*-------------------------------------------------------------------------
 *
 * testing.h
 *	  What a test build adds: guards that can be taken away one by one, and
 *	  points where a process can be held, or made to fail.
 *
 * A guard is a check or an order of steps that one race needs to be exact
 * (design.md sections 4 to 7).  "make TEST_BUILD=1" makes a library in which
 * reuse_sync.test_guards_off names guards to leave out, so that a test can show
 * that the race it forces is one; never install that anywhere else.  In a
 * normal build guards are constants, points are nothing, and none of the
 * settings exists.
 *
 * A point is a step of the two ways of section 7, or of what surrounds them:
 * the moment of which a crash, an error or a race is to be shown harmless.
 * They are listed here, and nowhere else; test/crashes reads this list, and
 * has every one of them hit.
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

/*
 * The name, whose it is, and what has happened.  Those of units, which go one
 * way or both, come with the name of a unit's first table, or of the one at
 * hand; those of a worker are of no unit, and those of races are no steps.
 */
#define TEST_POINTS(POINT) \
	POINT(looked, race, "a look has found work, which is not reported") \
	POINT(between_steps, race, "what comes next is decided, not begun") \
	POINT(clear_up, race, "a step has failed, what it held is about to go") \
	POINT(connected, worker, "connected to the publisher") \
	POINT(planned, worker, "tables put into batches") \
	POINT(claimed, both, "tables claimed in shared memory") \
	POINT(register_slot, worker, "a slot is about to be numbered") \
	POINT(slot_numbered, worker, "its row is committed, not flushed") \
	POINT(slot_registered, worker, "its row is on disk") \
	POINT(slot_asked, worker, "the publisher is about to be asked for it") \
	POINT(slot_made, worker, "the publisher has made it, in an open transaction") \
	POINT(slot_created, worker, "that transaction is over, the row says 'creating'") \
	POINT(slot_recorded, worker, "the row says 'created'") \
	POINT(slot_origin, worker, "it has an origin, which has no entry") \
	POINT(snapshot, both, "a snapshot is about to be taken") \
	POINT(tables_locked, both, "the publisher's tables are locked") \
	POINT(snapshot_taken, both, "the snapshot is taken, not yet judged") \
	POINT(snapshot_fits, both, "it fits the slot") \
	POINT(snapshot_too_early, both, "it does not see what it must") \
	POINT(snapshot_needs_new_slot, both, "nor will a later one") \
	POINT(slot_unfit, both, "the slot is about to give way to a new one") \
	POINT(d_commit, staged, "'d' is about to be committed") \
	POINT(d_committed, staged, "'d' is committed") \
	POINT(origin_entry, staged, "the table's origin has an entry") \
	POINT(origin_set, staged, "its position is where the stream starts") \
	POINT(copy_locked, both, "the tables are locked for the copy") \
	POINT(emptied, both, "a table that is synchronized anew is emptied") \
	POINT(rows_removed, staged, "the rows of a lost copy are removed") \
	POINT(described, both, "a table is described") \
	POINT(mid_copy, both, "in the middle of a table's copy") \
	POINT(table_copied, both, "a table of the unit is copied") \
	POINT(copy_done, both, "all are, the publisher's transaction is over") \
	POINT(f_message, staged, "what the snapshot saw is on the publisher's disk") \
	POINT(f_commit, staged, "'f' is about to be committed") \
	POINT(copied, staged, "'f' is committed") \
	POINT(resume, staged, "a table in 'f' is about to be gone on with") \
	POINT(resumed, staged, "its slot is claimed") \
	POINT(copy_lost, staged, "its slot is lost") \
	POINT(stream_started, both, "the publisher streams") \
	POINT(change_applied, both, "a change is applied, not committed") \
	POINT(catchup_commit, staged, "a transaction is about to be committed") \
	POINT(catchup_committed, staged, "it is committed") \
	POINT(position_advanced, staged, "a position is committed without a change") \
	POINT(close, both, "caught up without a lock on the tables") \
	POINT(lock, both, "the tables are about to be locked") \
	POINT(locked, both, "they are locked") \
	POINT(not_locked, both, "somebody else has them") \
	POINT(too_long, express, "the express way takes too long") \
	POINT(position, both, "P is made") \
	POINT(caught_up, both, "everything below P is applied") \
	POINT(lock_given_up, staged, "the time is over, what is applied is to stay") \
	POINT(lock_claim, both, "the claim is about to be locked and checked") \
	POINT(s_commit, both, "'s' is about to be committed") \
	POINT(handed_over, both, "'s' is committed, not flushed") \
	POINT(s_flushed, both, "'s' is on disk") \
	POINT(confirmed, both, "the slot is confirmed up to P") \
	POINT(origin_drop, staged, "the table's origin is about to go") \
	POINT(origin_dropped, staged, "it is gone") \
	POINT(unit_done, both, "nothing of the unit is left to do") \
	POINT(released, worker, "no table is claimed, orphans are to be looked for") \
	POINT(adopted_drop, staged, "a slot that was taken over is about to go") \
	POINT(adopted_dropped, staged, "it is gone, its row is there") \
	POINT(adopted_forgotten, staged, "its row is removed") \
	POINT(slot_drop, worker, "the worker's slot is about to go") \
	POINT(slot_dropped, worker, "it is gone, its row is there") \
	POINT(slot_forgotten, worker, "its row is removed") \
	POINT(orphan_claimed, worker, "an orphan is claimed") \
	POINT(orphan_drop, worker, "what made it one is on disk, it is about to go") \
	POINT(orphan_dropped, worker, "it is gone, its row is there") \
	POINT(orphan_forgotten, worker, "its row is removed") \
	POINT(set_back_commit, staged, "'i' is about to be committed in a drain") \
	POINT(set_back, staged, "it is committed") \
	POINT(resync_commit, worker, "a table is about to be set back from 'r'") \
	POINT(resync_set_back, worker, "it is, and the apply worker may not know") \
	POINT(resync_stopped, worker, "that apply worker is gone") \
	POINT(resync_begun, worker, "the table waits like any other") \
	POINT(replay_position, race, "a standby has said how far it is") \
	POINT(row_found, race, "a row of our catalog is found") \
	POINT(row_changes, race, "a row of our catalog is about to be changed") \
	POINT(half_looked, race, "wait_for_sync() has read one of two things") \
	POINT(settle, race, "an apply worker knows of the extension") \
	POINT(apply_workers_listed, race, "CREATE EXTENSION knows the apply workers") \
	POINT(tablesync_commit, race, "a built-in worker is about to commit")

#define TEST_POINT_ENUM(name, whose, what)	POINT_##name,
typedef enum TestPoint
{
	TEST_POINTS(TEST_POINT_ENUM)
} TestPoint;

extern void testing_define_settings(void);

/* False if reuse_sync.test_guards_off names it. */
extern bool guard_is_on(const char *name);

/*
 * Waits for as long as reuse_sync.test_points has "name" or "name:detail",
 * which is looked up anew here and at each reload.  pg_stat_activity shows
 * "test point name:detail" as the query meanwhile, and the log has it with
 * "waits" and "goes on".  Serves interrupts.
 *
 * A process whose pid is reuse_sync.test_error_pid when it goes on raises an
 * error here instead.
 *
 * With reuse_sync.test_log_points the log has "test point name:detail: hit"
 * for every point that any process comes to.
 */
extern void test_point(TestPoint point, const char *detail);

/* The point "mid_copy", at every hundredth call. */
extern void test_point_in_copy(const char *detail);

/*
 * In a table-sync worker of the server's own, the point "tablesync_commit"
 * with the number of the commit as its detail.
 */
extern void test_point_at_commit(void);

#else

#define testing_define_settings()	((void) 0)
#define guard_is_on(name)			true
#define test_point(point, detail)	((void) 0)
#define test_point_in_copy(detail)	((void) 0)
#define test_point_at_commit()		((void) 0)

#endif							/* REUSE_SYNC_TEST_BUILD */

#endif							/* REUSE_SYNC_TESTING_H */
