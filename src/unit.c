/*-------------------------------------------------------------------------
 *
 * unit.c
 *	  What a worker synchronizes at a time: claim, locks, commit.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/unit.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_subscription_rel.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "apply_truncate.h"
#include "catalog.h"
#include "catchup.h"
#include "compat.h"
#include "copy.h"
#include "fingerprint.h"
#include "pool.h"
#include "settings.h"
#include "target.h"
#include "testing.h"
#include "unit.h"

/* An error is being thrown because the claim does not hold any more. */
static bool outdated = false;

/* The origin is set up in this session, for the length of one commit. */
static bool origin_held = false;

/* A tuple of pg_subscription_rel has been changed since the last check. */
static bool claim_changed = false;

static void
subscription_rel_invalidated(Datum arg, int cacheid, uint32 hashvalue)
{
	claim_changed = true;
}

/* --- the claim --- */

static void
watch_claims(void)
{
	static bool registered = false;

	if (!registered)
	{
		CacheRegisterSyscacheCallback(SUBSCRIPTIONRELMAP,
									  subscription_rel_invalidated,
									  (Datum) 0);
		registered = true;
	}
	claim_changed = false;
}

/* Read the tuple; false if there is none. */
static bool
read_claim(Oid subid, Oid relid, char *state, ItemPointer tid,
		   TransactionId *xmin)
{
	HeapTuple	tuple;

	tuple = SearchSysCache2(SUBSCRIPTIONRELMAP,
							ObjectIdGetDatum(relid),
							ObjectIdGetDatum(subid));
	if (!HeapTupleIsValid(tuple))
		return false;
	*state = ((Form_pg_subscription_rel) GETSTRUCT(tuple))->srsubstate;
	*tid = tuple->t_self;
	*xmin = HeapTupleHeaderGetRawXmin(tuple->t_data);
	ReleaseSysCache(tuple);
	return true;
}

static bool
claim_holds(Oid subid, UnitTable *table)
{
	char		state;
	ItemPointerData tid;
	TransactionId xmin;

	return read_claim(subid, table->relid, &state, &tid, &xmin) &&
		state == table->state && xmin == table->claim_xmin &&
		ItemPointerEquals(&tid, &table->claim_tid);
}

static void
check_claim(Unit *unit, bool always)
{
	Subscription *sub = unit->session->sub;

	if (!guard_is_on("claim"))
		return;
	if (!session_is_current(unit->session, always))
	{
		outdated = true;
		ereport(ERROR,
				errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				errmsg("synchronization is given up because subscription \"%s\" was changed",
					   sub->name));
	}
	for (int i = 0; (always || claim_changed) && i < unit->ntables; i++)
	{
		UnitTable  *table = &unit->tables[i];

		if (claim_holds(sub->oid, table))
			continue;
		outdated = true;
		ereport(ERROR,
				errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				errmsg("synchronization is given up because the entry of table \"%s.%s\" in subscription \"%s\" was changed",
					   table->nspname, table->relname, sub->name));
	}
	claim_changed = false;
}

void
unit_lock_claim(Unit *unit, bool always)
{
	/* They may wait for anything, so they run before we lock out anybody. */
	AfterTriggerFireDeferred();

	test_point(POINT_lock_claim, unit->tables[0].relname);
	session_lock_subscription(unit->session->sub->oid);
	LockRelationOid(SubscriptionRelRelationId, RowExclusiveLock);
	check_claim(unit, always);
}

void
unit_check_claim(Unit *unit)
{
	check_claim(unit, false);
}

bool
unit_is_outdated(void)
{
	bool		result = outdated;

	outdated = false;
	return result;
}

void
unit_set_state(Unit *unit, char state, XLogRecPtr lsn)
{
	Oid			subid = unit->session->sub->oid;

	for (int i = 0; i < unit->ntables; i++)
		compat_update_subscription_rel(subid, unit->tables[i].relid, state,
									   lsn);
	CommandCounterIncrement();
	for (int i = 0; i < unit->ntables; i++)
	{
		UnitTable  *table = &unit->tables[i];

		if (!read_claim(subid, table->relid, &table->new_state,
						&table->new_tid, &table->new_xmin))
			elog(ERROR, "lost the entry of relation %u in subscription %u",
				 table->relid, subid);
	}
	unit->has_new_state = true;
}

void
unit_committed(Unit *unit)
{
	for (int i = 0; unit->has_new_state && i < unit->ntables; i++)
	{
		UnitTable  *table = &unit->tables[i];

		table->state = table->new_state;
		table->claim_tid = table->new_tid;
		table->claim_xmin = table->new_xmin;
	}
	unit->has_new_state = false;
}

void
unit_bound_lock_waits(int ms)
{
	char		value[32];

	snprintf(value, sizeof(value), "%d", ms);
	(void) set_config_option("lock_timeout", value, PGC_SUSET,
							 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
}

void
unit_lock_tables(Unit *unit, LOCKMODE lockmode)
{
	TimestampTz deadline =
	TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
								reuse_sync_handover_lock_timeout);

	for (int i = 0; i < unit->ntables; i++)
	{
		long		left =
		TimestampDifferenceMilliseconds(GetCurrentTimestamp(), deadline);

		unit->at = &unit->tables[i];
		unit_bound_lock_waits(Max(left, 1));
		LockRelationOid(unit->at->relid, lockmode);
	}
	unit->at = NULL;
}

void
unit_record_handover(Unit *unit)
{
	Oid			subid = unit->session->sub->oid;
	UnitRow		history = {
		.slot_name = &unit->slot_name,
		.slot_reused = unit->slot != NULL && unit->slot->units > 0,
		.ntables = unit->ntables,
		.started_at = unit->started,
		.copied_at = unit->copied
	};

	for (int i = 0; i < unit->ntables; i++)
	{
		UnitTable  *table = &unit->tables[i];
		TableProgress progress = {0};

		progress.started_at = unit->started;
		progress.bytes_total = table->bytes_total;
		progress.bytes_copied = table->bytes_copied;
		progress.tuples_copied = table->tuples_copied;
		catalog_put_progress(subid, table->relid, &progress);
		if (table->resync)
			catalog_remove_resyncs(subid, table->relid, RESYNC_BEGUN);
		history.bytes_copied += table->bytes_copied;
		history.tuples_copied += table->tuples_copied;
	}
	catalog_put_unit(subid, unit->tables[0].relid, &history);
	if (unit->slot != NULL)
	{
		catalog_slot_tables_done(subid, unit->slot_id, unit->ntables);
		if (unit->slot->units > 0)
			Counters.slots_reused++;
	}
	Counters.tables_synced += unit->ntables;
	Counters.units++;
	catalog_write_counters();
}

/* --- the origin --- */

/*
 * What tags changes before the commit names no origin: from 16 on the abort of
 * a transaction, and of a trigger's subtransaction, moves the origin that is
 * named, which must be held for that.  Whoever asks sees only that there is
 * one; which it was is in the commit.
 */
void
unit_tag_origin(Unit *unit)
{
	replorigin_session_origin = DoNotReplicateId;
}

void
unit_hold_origin(Unit *unit)
{
	if (!origin_held)
		replorigin_session_setup(unit->origin, 0);
	origin_held = true;
}

static void
untag(void)
{
	replorigin_session_origin = InvalidRepOriginId;
	replorigin_session_origin_lsn = InvalidXLogRecPtr;
	replorigin_session_origin_timestamp = 0;
}

void
unit_commit(Unit *unit, XLogRecPtr lsn, TimestampTz timestamp)
{
	unit_hold_origin(unit);
	replorigin_session_origin = unit->origin;
	replorigin_session_origin_lsn = lsn;
	replorigin_session_origin_timestamp = timestamp;
	PG_TRY();
	{
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		/* The abort that follows must not move it, see unit_tag_origin. */
		untag();
		PG_RE_THROW();
	}
	PG_END_TRY();
	unit_committed(unit);
	unit_reset_origin();
}

void
unit_reset_origin(void)
{
	untag();
	if (origin_held)
	{
		origin_held = false;
		replorigin_session_reset();
	}
}

/* --- begin and end --- */

static int
compare_relids(const void *a, const void *b)
{
	Oid			x = ((const UnitTable *) a)->relid;
	Oid			y = ((const UnitTable *) b)->relid;

	return x < y ? -1 : (x > y ? 1 : 0);
}

/*
 * Is the table synchronized anew?  False if that has not gone far enough for
 * us.  What is asked for from now on is for another unit.
 */
static bool
read_resync(const List *resyncs, UnitTable *table)
{
	ListCell   *lc;

	foreach(lc, resyncs)
	{
		ResyncRow  *resync = lfirst(lc);

		if (resync->relid != table->relid)
			continue;
		if (resync->stage == RESYNC_SET_BACK)
			return false;
		if (resync->stage == RESYNC_BEGUN)
		{
			table->resync = true;
			table->truncate |= resync->truncate;
		}
	}
	return true;
}

/* Fill in what the catalog says of a table; false if it is not for us. */
static bool
read_table(Unit *unit, UnitTable *table, Oid relid, bool half_done,
		   const List *resyncs)
{
	char	   *relname = get_rel_name(relid);
	char	   *nspname = get_namespace_name(get_rel_namespace(relid));

	if (!read_claim(unit->session->sub->oid, relid, &table->state,
					&table->claim_tid, &table->claim_xmin) ||
		(table->state != SUBREL_STATE_INIT &&
		 table->state != SUBREL_STATE_DATASYNC &&
		 table->state != SUBREL_STATE_FINISHEDCOPY) ||
		(table->state == SUBREL_STATE_FINISHEDCOPY) != half_done ||
		relname == NULL || nspname == NULL)
		return false;
	table->relid = relid;
	table->relname = MemoryContextStrdup(unit->context, relname);
	table->nspname = MemoryContextStrdup(unit->context, nspname);
	table->bytes_total = -1;
	return read_resync(resyncs, table);
}

Unit *
unit_begin(Session *session, const Oid *relids, int nrelids, bool half_done)
{
	MemoryContext context;
	MemoryContext caller = CurrentMemoryContext;
	Unit	   *unit;
	List	   *resyncs;

	context = AllocSetContextCreate(caller, "reuse_sync unit",
									ALLOCSET_DEFAULT_SIZES);
	unit = MemoryContextAllocZero(context, sizeof(Unit));
	unit->context = context;
	unit->session = session;
	unit->started = GetCurrentTimestamp();
	unit->tables = MemoryContextAllocZero(context,
										  nrelids * sizeof(UnitTable));
	unit->targets = MemoryContextAllocZero(context,
										   nrelids * sizeof(ApplyTarget));
	unit->remotes = MemoryContextAllocZero(context,
										   nrelids * sizeof(RemoteTable));

	/* Of another unit, if whoever had it has caught that. */
	outdated = false;

	StartTransactionCommand();
	watch_claims();
	resyncs = catalog_resyncs(session->sub->oid);
	for (int i = 0; i < nrelids; i++)
	{
		UnitTable  *table = &unit->tables[unit->ntables];

		memset(table, 0, sizeof(UnitTable));
		if (read_table(unit, table, relids[i], half_done, resyncs))
			unit->ntables++;
	}
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);

	if (unit->ntables == 0)
	{
		MemoryContextDelete(context);
		return NULL;
	}
	qsort(unit->tables, unit->ntables, sizeof(UnitTable), compare_relids);
	for (int i = 0; i < unit->ntables; i++)
		unit->targets[i] = (ApplyTarget)
		{
			unit->tables[i].relid, unit->tables[i].nspname,
				unit->tables[i].relname, InvalidOid
		};
	return unit;
}

void
unit_end(Unit *unit)
{
	if (unit != NULL)
		MemoryContextDelete(unit->context);
}

void
unit_use_slot(Unit *unit, SyncSlot *slot)
{
	unit->slot = slot;
	unit->slot_id = slot->id;
	unit->slot_name = slot->name;
	unit->delivered = &slot->delivered;
}

/* --- what the server's own workers left --- */

void
unit_servers_slot(Unit *unit, UnitTable *table, NameData *name)
{
	snprintf(NameStr(*name), NAMEDATALEN, "pg_%u_sync_%u_" UINT64_FORMAT,
			 unit->session->sub->oid, table->relid, GetSystemIdentifier());
}

void
unit_drop_servers_slots(Unit *unit)
{
	Publisher  *conn = unit->session->sql;

	for (int i = 0; i < unit->ntables; i++)
	{
		NameData	name;
		char	   *message;

		/* A table in 'i' never had one. */
		if (unit->tables[i].state == SUBREL_STATE_INIT)
			continue;
		unit_servers_slot(unit, &unit->tables[i], &name);
		if (!slot_drop_by_name(conn, NameStr(name), &message))
			ereport(ERROR,
					errcode(ERRCODE_OBJECT_IN_USE),
					errmsg("could not drop replication slot \"%s\" on the publisher: %s",
						   NameStr(name), message));
	}
}
