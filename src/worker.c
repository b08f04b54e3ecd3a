/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  The life of a worker.
 *
 * A worker serves the subscriptions of one database and owner.  It looks for
 * a subscription with tables to synchronize, opens a session with its
 * publisher, and synchronizes one table after the other over the same two
 * connections and from the same slot:
 *
 *		i ---claim---> d ---copy---> f ---catch up, hand over---> s
 *
 *	claim		in shared memory, against the other workers; then 'd' for all
 *				to see (unit.c)
 *	snapshot	a slot is created, or the worker's slot is used again if the
 *				snapshot fits it (C1 to C5, unit_snapshot.c)
 *	copy		the rows the snapshot sees, committed together with 'f' and all
 *				that a resumption needs (unit_copy.c, copy.c)
 *	catch up	the slot's stream from its last position, without what the
 *				snapshot saw (catchup.c, apply.c)
 *	hand over	under a lock: a position, what is below it, 's' (handover.c)
 *
 * From 's' the server's apply worker goes on by itself.  A table found in 'f'
 * was left by a worker that died or failed: it is finished from the slot
 * linked to it, which then goes.  A table that fails is tried again later and
 * later, and the others go on (guarded.c).  When nothing is left to do the slot
 * is dropped at once, and after a while of idleness the process ends.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/worker.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "access/xact.h"
#include "catalog/pg_subscription_rel.h"
#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "storage/ipc.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "batch.h"
#include "catalog.h"
#include "compat.h"
#include "express.h"
#include "failure.h"
#include "guarded.h"
#include "handover.h"
#include "lease.h"
#include "pool.h"
#include "pool_notes.h"
#include "resync.h"
#include "set_back.h"
#include "settings.h"
#include "slot_orphans.h"
#include "staged.h"
#include "testing.h"
#include "unit.h"
#include "work_list.h"
#include "worker.h"

/* How long to look for a snapshot that fits before taking a new slot, ms. */
#define SNAPSHOT_PATIENCE	3000
#define SNAPSHOT_PAUSE		50

/* How long to serve a subscription while another waits, ms. */
#define TENURE				10000

/* After so many tables the caches of the catalog are emptied. */
#define MOST_CACHED_TABLES	1000

static char database_name[NAMEDATALEN];

/* --- one table --- */

static void
drop_own_slot(void)
{
	SyncSlot   *old = my.slot;

	/* slot_drop gives it back whatever happens. */
	my.slot = NULL;
	slot_drop(my.session, old);
}

/*
 * Have a slot and a snapshot on the publisher that fit each other and the
 * tables.  A transaction whose commit is written but not yet visible there
 * passes in a moment, or hangs on a standby that does not answer: then a new
 * slot waits for it.  What does not fit a copied slot would not fit the next
 * copy either.
 */
static void
take_fitting_snapshot(const BatchPlan *plan, bool is_express)
{
	TimestampTz start = GetCurrentTimestamp();
	bool		may_copy = true;

	unit_drop_servers_slots(my.unit);
	for (;;)
	{
		SnapshotVerdict verdict;

		while (my.slot == NULL)
		{
			int			n;
			const Oid  *pending = batch_relids(plan, &n);

			my.slot = slot_create(my.session, pending, n, may_copy);
			may_copy = false;
			start = GetCurrentTimestamp();
		}
		if (is_express)
			slot_take_origin(my.slot);
		unit_use_slot(my.unit, my.slot);
		pool_set_phase(PHASE_WAITING_FOR_SNAPSHOT);
		test_point(POINT_snapshot, my.unit->tables[0].relname);
		verdict = unit_take_snapshot(my.unit);
		test_point(verdict == SNAPSHOT_FITS ? POINT_snapshot_fits :
				   verdict == SNAPSHOT_TOO_EARLY ? POINT_snapshot_too_early :
				   POINT_snapshot_needs_new_slot, my.unit->tables[0].relname);
		if (verdict == SNAPSHOT_FITS)
			return;
		if (verdict == SNAPSHOT_NEEDS_NEW_SLOT ||
			TimestampDifferenceExceeds(start, GetCurrentTimestamp(),
									   SNAPSHOT_PATIENCE))
		{
			test_point(POINT_slot_unfit, my.unit->tables[0].relname);
			drop_own_slot();
		}
		else
			publisher_pause(SNAPSHOT_PAUSE);
	}
}

/* The express way: 'i' to 's' in one transaction. */
static void
synchronize_express(const BatchPlan *plan)
{
	PoolCounters before;

	take_fitting_snapshot(plan, true);
	before = Counters;
	PG_TRY();
	{
		express(my.unit, slot_stream(my.session, my.slot));
	}
	PG_CATCH();
	{
		/* Unless it is committed, nothing of it has happened. */
		if (my.unit->tables[0].state != SUBREL_STATE_SYNCDONE)
			catalog_restore_counters(&before);
		PG_RE_THROW();
	}
	PG_END_TRY();
}

/* Are there tables that this worker could serve instead of the unit's? */
static bool
others_wait(void)
{
	MemoryContext caller = CurrentMemoryContext;
	TimestampTz ignored = 0;
	List	   *tables = NIL;
	ListCell   *lc;
	bool		result = false;

	StartTransactionCommand();
	if (catalog_hold())
		tables = work_list_tables(my.session->sub->oid, CurrentMemoryContext,
								  &ignored);
	foreach(lc, tables)
	{
		if (((WorkTable *) lfirst(lc))->relid != my.unit->tables[0].relid)
			result = true;
	}
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
	return result;
}

/* The staged way: 'i', 'd', 'f', 's', or on from an 'f' that was left. */
static void
synchronize_staged(const BatchPlan *plan)
{
	Stream	   *stream;

	if (my.unit->tables[0].state != SUBREL_STATE_FINISHEDCOPY ||
		!staged_resume(my.unit))
	{
		staged_announce(my.unit);
		/* The cleaner may be the one to drop the slot that is lost. */
		if (my.unit->empty_first)
			pool_hint(MyDatabaseId, true);
		take_fitting_snapshot(plan, false);
		staged_copy(my.unit);
		test_point(POINT_copied, my.unit->tables[0].relname);
	}
	stream = my.unit->slot != NULL ? slot_stream(my.session, my.slot) :
		(my.adopted = stream_open(my.session, NameStr(my.unit->slot_name), NULL));
	stream_serve(stream, my.unit);
	hand_over(stream, others_wait);
}

/* A slot that only this unit could use has served. */
static void
drop_adopted_slot(void)
{
	char	   *message;
	bool		gone;

	pool_set_phase(PHASE_DROPPING_SLOTS);
	test_point(POINT_adopted_drop, my.unit->tables[0].relname);
	stream_end(my.adopted);
	stream_close(my.adopted);
	my.adopted = NULL;
	gone = slot_drop_by_name(my.session->sql, NameStr(my.unit->slot_name),
							 &message);
	if (gone)
		test_point(POINT_adopted_dropped, my.unit->tables[0].relname);
	if (slot_record_drop(my.session->sub->oid, my.unit->slot_id,
						 NameStr(my.unit->slot_name), gone, message))
		test_point(POINT_adopted_forgotten, my.unit->tables[0].relname);
	else
		ereport(LOG,
				errmsg("could not drop replication slot \"%s\" on the publisher: %s",
					   NameStr(my.unit->slot_name), message));
	pool_release_orphan();
}

static void
log_unit(void)
{
	UnitTable  *first = &my.unit->tables[0];
	int64		rows = 0;
	int64		bytes = 0;
	char	   *what;

	for (int i = 0; i < my.unit->ntables; i++)
	{
		rows += my.unit->tables[i].tuples_copied;
		bytes += my.unit->tables[i].bytes_copied;
	}
	what = my.unit->ntables == 1 ?
		psprintf("table \"%s.%s\"", first->nspname, first->relname) :
		psprintf("%d tables from \"%s.%s\" on", my.unit->ntables,
				 first->nspname, first->relname);
	ereport(LOG,
			errmsg("reuse_sync worker synchronized %s of subscription \"%s\": "
				   INT64_FORMAT " rows, " INT64_FORMAT " bytes, %ld ms, slot \"%s\" %s",
				   what, my.session->sub->name, rows, bytes,
				   TimestampDifferenceMilliseconds(my.unit->started,
												   GetCurrentTimestamp()),
				   NameStr(my.unit->slot_name),
				   my.unit->slot == NULL ? "taken over" :
				   my.unit->slot->units > 0 ? "reused" : "created"));
}

/* Synchronize the tables of a batch, which this process has claimed. */
static void
synchronize(const BatchPlan *plan, const Batch *batch)
{
	my.unit = unit_begin(my.session, batch->relids, batch->nrelids,
					  batch->half_done);
	if (my.unit == NULL)
		return;					/* another worker has been at it */
	MemoryContextSwitchTo(my.unit->context);
	test_point(POINT_claimed, my.unit->tables[0].relname);
	if (batch->express)
		synchronize_express(plan);
	else
		synchronize_staged(plan);

	pool_count_tables(my.unit->ntables);
	log_unit();
	if (my.unit->slot != NULL)
	{
		my.slot->position = my.unit->position;
		my.slot->units++;
		my.slot->stream->unit = NULL;
	}
	else
		drop_adopted_slot();
	test_point(POINT_unit_done, my.unit->tables[0].relname);
	MemoryContextSwitchTo(my.context);
	unit_end(my.unit);
	my.unit = NULL;
}

/* --- one subscription --- */

static void
orphans_step(const Step *what)
{
	test_point(POINT_released, my.session->sub->name);
	if (lease_is_held(my.session->sub->oid) &&
		slot_drop_orphans(my.session) > 0)
		work_list_postpone_orphans(my.session->sub->oid, failure_retry_time(1));
}

static void
reconnect_step(const Step *what)
{
	session_connect(my.session);
}

static void
synchronize_step(const Step *what)
{
	synchronize(what->plan, what->batch);
}

static void
drop_slot_step(const Step *what)
{
	if (my.slot != NULL)
	{
		session_connect(my.session);
		drop_own_slot();
	}
	orphans_step(what);
}

static void
resyncs_step(const Step *what)
{
	resync_begin(my.session);
}

/* Begin what is to be synchronized anew; false if the way there is closed. */
static bool
begin_resyncs(void)
{
	Step		nothing = {NULL, NULL};
	bool		ok = guarded(resyncs_step, &nothing);

	pool_release_tables();
	return ok && !pool_let_go_requested();
}

/* What the session was opened for is no more. */
static bool session_is_over = false;

/* Since when this subscription is served, and whether it has been enough. */
static TimestampTz tenure_start = 0;
static bool anothers_turn = false;

/* What is planned; made within a step, used by those that follow. */
static BatchPlan *current_plan = NULL;
static List *current_tables = NIL;

static void
plan_step(const Step *what)
{
	session_connect(my.session);
	test_point(POINT_connected, my.session->sub->name);
	current_plan = batch_plan(my.session, current_tables);
	test_point(POINT_planned, my.session->sub->name);
}

/*
 * Claim the batch's tables, unless the subscription is no longer what the
 * session was opened for, or no longer ours to act for.
 *
 * The lock makes whoever alters or drops the subscription come before or
 * after: DROP SUBSCRIPTION, which has the pool let go first, finds our claim,
 * or we find it gone.
 */
static void
claim_step(const Step *what)
{
	Batch	   *batch = what->batch;
	Oid			subid = my.session->sub->oid;
	bool		good;
	int			n = 0;

	StartTransactionCommand();
	session_lock_subscription(subid);
	good = catalog_hold() && session_is_current(my.session, false) &&
		lease_is_held(subid);
	if (good)
	{
		bool		draining = pool_is_draining(MyDatabaseId);

		for (int i = 0; i < batch->nrelids; i++)
			if (work_list_is_due(subid, batch->relids[i]) &&
				(!draining || batch->half_done ||
				 catalog_resync_is_begun(subid, batch->relids[i])))
				batch->relids[n++] = batch->relids[i];
		batch->nrelids = pool_claim_tables(subid, batch->relids, n,
										   batch->half_done || draining);
	}
	CommitTransactionCommand();
	MemoryContextSwitchTo(my.context);
	session_is_over = !good;
}

static void
turn_step(const Step *what)
{
	anothers_turn = work_list_another_waits(my.session->sub->oid);
}

/* Every so often, see whether another subscription waits for a worker. */
static bool
is_anothers_turn(void)
{
	Step		nothing = {NULL, NULL};
	TimestampTz now = GetCurrentTimestamp();

	if (!TimestampDifferenceExceeds(tenure_start, now, TENURE))
		return false;
	tenure_start = now;
	return !guarded(turn_step, &nothing) || anothers_turn;
}

/*
 * The caches of the catalog keep a few kilobytes of every table, and would
 * keep those of all tables that the worker has ever seen.
 */
static void
bound_caches(int ntables)
{
	static int	seen = 0;

	seen += ntables;
	if (seen < MOST_CACHED_TABLES)
		return;
	seen = 0;
	StartTransactionCommand();
	InvalidateSystemCaches();
	CommitTransactionCommand();
	MemoryContextSwitchTo(my.context);
}

/* Serve the tables of a plan; false if the session is over. */
static bool
serve_plan(BatchPlan *plan)
{
	Batch		batch;

	while (batch_next(plan, &batch))
	{
		Step		step = {plan, &batch};
		bool		ok;

		test_point(POINT_between_steps, my.session->sub->name);
		if (pool_leave_requested() || !guarded(reconnect_step, &step) ||
			!guarded(claim_step, &step) || session_is_over)
			return false;
		if (batch.nrelids == 0)
			continue;
		ok = guarded(synchronize_step, &step);
		pool_release_tables();
		if (pool_let_go_requested() ||
			(ok && !guarded(orphans_step, &step)) ||
			(!ok && (!extension_is_here() ||
					 work_list_is_postponed(my.session->sub->oid))))
			return false;
		bound_caches(batch.nrelids);
		settings_reload();
		pgstat_report_stat(true);
		if (is_anothers_turn())
			return false;
	}
	return true;
}

static void
look_step(const Step *what)
{
	TimestampTz ignored = 0;

	StartTransactionCommand();
	if (catalog_hold())
		current_tables = work_list_tables(my.session->sub->oid, my.context,
										  &ignored);
	CommitTransactionCommand();
}

/* Are there tables to plan for?  Not once the extension is gone. */
static bool
look_for_tables(void)
{
	Step		nothing = {NULL, NULL};

	current_tables = NIL;
	return guarded(look_step, &nothing) && current_tables != NIL;
}

/*
 * Serve a subscription until nothing of it is eligible, it has changed, or we
 * are to leave; then drop the slot at once, since it pins WAL there.
 */
static void
serve_subscription(const WorkList *work)
{
	Step		nothing = {NULL, NULL};

	my.session = session_open(work->subid, true);
	if (my.session == NULL)
		return;
	tenure_start = GetCurrentTimestamp();
	anothers_turn = false;
	if (guarded(orphans_step, &nothing))
	{
		while (begin_resyncs() && look_for_tables() &&
			   guarded(plan_step, &nothing) && serve_plan(current_plan))
			;
	}
	/* Whoever has us let go drops the slot, or has it dropped. */
	if (!pool_let_go_requested() && extension_is_here())
		guarded(drop_slot_step, &nothing);
	if (my.slot != NULL)
	{
		slot_abandon(my.slot);
		my.slot = NULL;
	}
	session_close(my.session);
	my.session = NULL;
}

/* --- the process --- */

static void
set_up_process(uint64 ticket)
{
	settings_follow_reloads();
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();

	if (!pool_attach(ticket))
		proc_exit(0);
	BackgroundWorkerInitializeConnectionByOid(MyPoolWorker->dbid,
											  MyPoolWorker->userid, 0);

	/* As the server's own workers: their triggers fire, no surprise names. */
	SetConfigOption("session_replication_role", "replica",
					PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("search_path", "", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("default_transaction_read_only", "off", PGC_SUSET,
					PGC_S_OVERRIDE);
	settings_apply();
	my.context = AllocSetContextCreate(TopMemoryContext,
											"reuse_sync worker",
											ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(my.context);
}

/* Is there an extension, of our version, in this database? */
static bool
begin_work(void)
{
	bool		exists;

	StartTransactionCommand();
	exists = catalog_exists(WARNING) && catalog_hold();
	catalog_note_standing();
	pool_note_success(MyDatabaseId, MyPoolWorker->userid);
	strlcpy(database_name, get_database_name(MyDatabaseId), NAMEDATALEN);
	if (exists)
		catalog_forget_strangers();
	CommitTransactionCommand();
	MemoryContextSwitchTo(my.context);
	return exists;
}

/* Wait for a hint, for what is due, or for the end of our patience. */
static bool
wait_for_work(TimestampTz idle_since, TimestampTz next_look)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz until =
	TimestampTzPlusMilliseconds(idle_since, reuse_sync_worker_idle_timeout);

	if (now >= until)
		return false;
	if (next_look != 0 && next_look < until)
		until = next_look;
	pgstat_report_activity(STATE_IDLE, NULL);
	publisher_pause(Max(1, TimestampDifferenceMilliseconds(now, until)));
	return true;
}

/* Work until there is none for a while; returns whether there was any. */
static bool
work_loop(void)
{
	TimestampTz idle_since = GetCurrentTimestamp();
	bool		worked = false;
	Oid			last_served = InvalidOid;

	guarded_let_cancel(false);
	while (!pool_leave_requested())
	{
		WorkList   *work;

		CHECK_FOR_INTERRUPTS();
		settings_reload();
		MemoryContextReset(my.context);
		MemoryContextSwitchTo(my.context);

		pool_begin_look();
		if (pool_is_draining(MyDatabaseId))
		{
			guarded_let_cancel(true);
			set_back_disabled();
			guarded_let_cancel(false);
		}
		work = work_list_look(last_served, anothers_turn);
		if (work->gone)
		{
			pool_set_done();
			break;
		}
		if (OidIsValid(work->subid))
			test_point(POINT_looked, "");
		/*
		 * The launcher starts more only beside workers that are at work, and
		 * has those end that are not.
		 */
		pool_set_phase(OidIsValid(work->subid) ?
					   PHASE_CONNECTING : PHASE_IDLE);
		pool_report_look(Max(0, work->more - 1), work->next_look);
		if (OidIsValid(work->subid))
		{
			if (!worked)
			{
				Counters.workers_started++;
				ereport(LOG,
						errmsg("reuse_sync worker for database \"%s\" has started",
							   database_name));
			}
			pgstat_report_activity(STATE_RUNNING, NULL);
			last_served = work->subid;
			serve_subscription(work);
			idle_since = GetCurrentTimestamp();
			worked = true;
		}
		else if (work->nobody || (!worked && work->next_look == 0) ||
				 !wait_for_work(idle_since, work->next_look))
		{
			pool_set_done();
			break;
		}
	}
	return worked;
}

/* Unless it is interrupted, the cleaner is done until the next naptime. */
static void
clean(void)
{
	int			left;

	if (!slot_drop_abandoned(&left))
		return;
	pool_report_look(0, left == 0 ? 0 :
					 TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
												 reuse_sync_naptime));

	/* With the last slot of a subscription that is gone, its rows may go. */
	StartTransactionCommand();
	if (catalog_hold())
		catalog_forget_strangers();
	CommitTransactionCommand();
	MemoryContextSwitchTo(my.context);
	pool_set_done();
}

void
reuse_sync_worker_main(Datum ticket)
{
	bool		cleaner;

	set_up_process(DatumGetUInt64(ticket));
	cleaner = MyPoolWorker->type == POOL_CLEANER;
	if (!begin_work())
	{
		pool_report_look(0, 0);
		pool_set_done();
		proc_exit(0);
	}
	if (cleaner)
		clean();
	else
	{
		/* A process that only looks and finds nothing is not worth a line. */
		if (work_loop())
			ereport(LOG,
					errmsg("reuse_sync worker for database \"%s\" ends after " INT64_FORMAT " tables",
						   database_name,
						   MyPoolWorker->tables_synced));
	}
	proc_exit(0);
}
