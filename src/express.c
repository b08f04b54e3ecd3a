/*-------------------------------------------------------------------------
 *
 * express.c
 *	  The express way, for tables that are quick to copy.
 *
 * design.md section 7: snapshot, COPY of every table, lock, P, catch-up, 's',
 * commit, all in one local transaction.  A crash rolls it back to 'i'; there
 * is nothing to resume, and no origin per table.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/express.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "express.h"
#include "handover.h"
#include "pool.h"
#include "settings.h"
#include "testing.h"

/* How often to try for the locks, with the copy done and kept. */
#define LOCK_ATTEMPTS	3

pg_noreturn static void
takes_too_long(Unit *unit, const char *what)
{
	unit->too_long = true;
	test_point(POINT_too_long, unit->tables[0].relname);
	ereport(ERROR,
			errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			errmsg("%s took longer than %d ms", what,
				   reuse_sync_handover_lock_timeout),
			errhint("See reuse_sync.handover_lock_timeout."));
}

/*
 * Apply all there is until the tables are locked: whoever has them delays us,
 * but not the changes of others.
 */
static void
catch_up_and_lock(Unit *unit, Stream *stream)
{
	for (int attempt = 0; attempt < LOCK_ATTEMPTS; attempt++)
	{
		XLogRecPtr	target = session_make_position(unit->session);

		unit->at = NULL;
		pool_set_phase(PHASE_CATCHING_UP);
		(void) catchup_in_transaction(stream, target, DT_NOEND);
		test_point(POINT_close, unit->tables[0].relname);
		pool_set_phase(PHASE_HANDING_OVER);
		if (handover_lock(unit))
			return;
	}
	takes_too_long(unit, "waiting for the lock on the tables");
}

void
express(Unit *unit, Stream *stream)
{
	TimestampTz deadline;

	unit->origin = unit->slot->origin;
	StartTransactionCommand();
	unit_tag_origin(unit);
	unit_check_claim(unit);
	unit_lock_for_copy(unit);
	unit_empty_tables(unit);
	unit_copy_tables(unit);
	stream_serve(stream, unit);
	catch_up_and_lock(unit, stream);

	/*
	 * As in the staged way, a timer ends what takes long without looking at
	 * the clock; whatever fails from here on is to be done another way.
	 */
	deadline = handover_deadline();
	enable_timeout_at(STATEMENT_TIMEOUT, handover_timer(deadline));
	unit->too_long = true;
	if (!handover_commit(stream, deadline))
		takes_too_long(unit, "applying changes under the lock on the tables");
	disable_timeout(STATEMENT_TIMEOUT, false);
	unit->too_long = false;
	pool_forget_cancel();
	handover_finish(stream);
}
