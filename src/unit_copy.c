/*-------------------------------------------------------------------------
 *
 * unit_copy.c
 *	  Copies the tables of a unit.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/unit_copy.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "apply_truncate.h"
#include "catalog.h"
#include "copy.h"
#include "pool.h"
#include "settings.h"
#include "target.h"
#include "testing.h"
#include "unit.h"

/* How often a copy looks whether it is still wanted, in ms. */
#define CHECK_INTERVAL	1000

/* The unit being copied, for copy_progress. */
static Unit *copying = NULL;
static TimestampTz last_check = 0;

/*
 * Called for every piece of a copy.  Now and then, see whether the copy is
 * still wanted.
 */
static void
copy_progress(int64 bytes)
{
	TimestampTz now = GetCurrentTimestamp();

	pool_count_bytes(bytes);
	CHECK_FOR_INTERRUPTS();
	test_point_in_copy(copying->at->relname);
	if (TimestampDifferenceExceeds(last_check, now, CHECK_INTERVAL))
	{
		last_check = now;
		AcceptInvalidationMessages();
		unit_check_claim(copying);
	}
}

void
unit_lock_for_copy(Unit *unit)
{
	unit_lock_tables(unit, RowExclusiveLock);
	unit_bound_lock_waits(0);
	test_point(POINT_copy_locked, unit->tables[0].relname);
}

/* Nobody else's rows are ours to delete. */
static void
check_not_shared(Unit *unit, UnitTable *table)
{
	if (target_is_shared(unit->session->sub->oid, table->relid))
		ereport(ERROR,
				errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				errmsg("cannot remove the rows of table \"%s.%s\" because another subscription writes to it as well",
					   table->nspname, table->relname),
				errhint("Remove the rows of this one by hand, and call reuse_sync.resync_table() with truncate => false."));
}

void
unit_empty_tables(Unit *unit)
{
	for (int i = 0; i < unit->ntables; i++)
	{
		UnitTable  *table = &unit->tables[i];

		if (!table->truncate)
			continue;
		unit->at = table;
		check_not_shared(unit, table);
		unit_bound_lock_waits(reuse_sync_handover_lock_timeout);
		PushActiveSnapshot(GetTransactionSnapshot());
		apply_empty(table->relid);
		PopActiveSnapshot();
		unit_bound_lock_waits(0);
		unit->at = NULL;
		test_point(POINT_emptied, table->relname);
	}
}

static void
copy_one(Unit *unit, int i, int64 bytes_expected, int64 tuples_expected)
{
	UnitTable  *table = &unit->tables[i];
	int64		before = MyPoolWorker->bytes_copied;

	unit->at = table;
	pool_begin_copy(table->relid, bytes_expected, tuples_expected);
	table->tuples_copied = copy_table(unit->conn, &unit->remotes[i],
									  table->relid, copy_progress);
	table->bytes_copied = MyPoolWorker->bytes_copied - before;
	table->bytes_total = table->bytes_copied;
	pool_end_copy(table->bytes_copied, table->tuples_copied);
	Counters.bytes_copied += table->bytes_copied;
	test_point(POINT_table_copied, table->relname);
	unit->at = NULL;
}

/*
 * All that is left to ask over the publisher's transaction and after it: the
 * rows, its end, and a position that lies above all that the snapshot saw.
 */
static char *
copy_commands(Unit *unit, bool with_mark)
{
	StringInfoData sql;

	initStringInfo(&sql);
	for (int i = 0; i < unit->ntables; i++)
	{
		copy_append_command(&sql, unit->conn, &unit->remotes[i]);
		appendStringInfoChar(&sql, ';');
	}
	appendStringInfoString(&sql, "COMMIT");
	if (with_mark)
		appendStringInfo(&sql, ";%s", session_position_commands());
	return sql.data;
}

void
unit_copy_tables(Unit *unit)
{
	Publisher  *conn = unit->conn;
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext context = AllocSetContextCreate(caller,
												  "reuse_sync copy",
												  ALLOCSET_DEFAULT_SIZES);
	bool		in_recovery = publisher_identity(conn)->in_recovery;
	bool		with_mark = !in_recovery && guard_is_on("f_flush") &&
	guard_is_on("renewed_connection");
	int64		bytes_expected = -1;
	int64		tuples_expected = -1;

	pool_set_phase(PHASE_COPYING);
	copying = unit;
	MemoryContextSwitchTo(context);
	if (unit->ntables == 1 && unit->session->lock == NULL)
	{
		/*
		 * It may take long, and somebody want to know how long.  A sample
		 * goes by ctid, which a role with rights on columns may not read.
		 */
		copy_estimate(conn, &unit->remotes[0], unit->tables[0].relid,
					  &bytes_expected, &tuples_expected);
		pool_set_bytes_total(bytes_expected);
	}
	publisher_begin(conn, copy_commands(unit, with_mark));
	for (int i = 0; i < unit->ntables; i++)
	{
		MemoryContextReset(context);
		copy_one(unit, i, bytes_expected, tuples_expected);
	}
	if (with_mark)
		unit->mark = session_read_position(unit->session);
	else
		publisher_end(conn);
	if (in_recovery)
		unit->mark = session_make_position(unit->session);
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
	unit->copied = GetCurrentTimestamp();
	session_release_lock(unit->session);
	pool_note_snapshot(0);
	test_point(POINT_copy_done, unit->tables[0].relname);
}
