/*-------------------------------------------------------------------------
 *
 * unit.c
 *	  What a worker synchronizes at a time: claim, snapshot, copy, commit.
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

/* How often a copy looks whether it is still wanted, in ms. */
#define CHECK_INTERVAL	1000

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

	context = AllocSetContextCreate(TopMemoryContext, "reuse_sync unit",
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
				unit->tables[i].relname
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

/* --- snapshot --- */

/* The tables' names for a command on the publisher. */
static char *
remote_names(Unit *unit)
{
	StringInfoData buf;

	initStringInfo(&buf);
	for (int i = 0; i < unit->ntables; i++)
		appendStringInfo(&buf, "%s%s.%s", i > 0 ? ", " : "",
						 publisher_identifier(unit->tables[i].nspname),
						 publisher_identifier(unit->tables[i].relname));
	return buf.data;
}

/*
 * A table cannot be locked there: say which and why.  With the code that the
 * server's own worker has for it; that of a lost connection, which is what it
 * says where the role may not read the table, means no lost connection here.
 */
pg_noreturn static void
cannot_lock(Unit *unit, int sqlstate, const char *message)
{
	unit->refused = true;
	if (unit->ntables == 1 &&
		(sqlstate == ERRCODE_UNDEFINED_TABLE ||
		 sqlstate == ERRCODE_INVALID_SCHEMA_NAME))
		ereport(ERROR,
				errcode(ERRCODE_UNDEFINED_OBJECT),
				errmsg("table \"%s.%s\" does not exist on the publisher",
					   unit->tables[0].nspname, unit->tables[0].relname),
				errhint("Create it there, or drop it from the publication and run ALTER SUBSCRIPTION ... REFRESH PUBLICATION."));
	ereport(ERROR,
			errcode(sqlstate == ERRCODE_INSUFFICIENT_PRIVILEGE ?
					ERRCODE_CONNECTION_FAILURE : sqlstate),
			errmsg("could not lock table \"%s.%s\" on the publisher: %s",
				   unit->tables[0].nspname, unit->tables[0].relname,
				   message),
			sqlstate == ERRCODE_INSUFFICIENT_PRIVILEGE ?
			errhint("Grant SELECT on it to the role that the subscription connects as.") : 0);
}

/* The tables as an SQL expression of type regclass[]. */
static char *
remote_regclasses(Unit *unit)
{
	StringInfoData buf;

	initStringInfo(&buf);
	appendStringInfoString(&buf, "ARRAY[");
	for (int i = 0; i < unit->ntables; i++)
	{
		char	   *name =
		psprintf("%s.%s", publisher_identifier(unit->tables[i].nspname),
				 publisher_identifier(unit->tables[i].relname));

		appendStringInfo(&buf, "%s%s::pg_catalog.regclass",
						 i > 0 ? ", " : "",
						 publisher_literal(unit->session->sql, name));
	}
	appendStringInfoChar(&buf, ']');
	return buf.data;
}

/*
 * What is asked once the tables are locked: the snapshot, which the function
 * is called after, whether a stream can start, what publishes the tables, and
 * what they are.
 */
static char *
snapshot_queries(Unit *unit)
{
	Session    *session = unit->session;
	char	   *tables = remote_regclasses(unit);

	return psprintf("SELECT pg_catalog.pg_current_snapshot(),"
					" pg_catalog.pg_current_wal_insert_lsn(); %s; %s; %s",
					slot_start_query(session, NameStr(unit->slot->name)),
					fingerprint_query(session, tables),
					remote_tables_query(session->sql, tables));
}

/*
 * Begin, lock, and ask; returns the snapshot's row, with the other answers
 * still to be taken.
 *
 * C5: the lock comes first, and takes no snapshot; from then on nobody
 * rewrites the table, and what is seen is what the COPY will find.  LOCK TABLE
 * asks for the right to read the whole table; where the role may read only
 * some columns, a query over another connection takes the same lock.
 */
static PublisherResult *
begin_with_lock(Unit *unit)
{
	Session    *session = unit->session;
	char	   *queries = snapshot_queries(unit);
	char	   *timeout = psprintf("SET LOCAL lock_timeout = %d",
								   reuse_sync_handover_lock_timeout);
	PublisherResult *res;
	char	   *message;
	int			sqlstate;

	publisher_begin(session->sql,
					psprintf("BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ;"
							 "%s; LOCK TABLE %s IN ACCESS SHARE MODE; %s",
							 timeout,
							 guard_is_on("c5") ? remote_names(unit) :
							 "pg_catalog.pg_class", queries));
	res = publisher_try_next_rows(session->sql, &sqlstate, &message);
	if (res != NULL)
		return res;
	if (sqlstate != ERRCODE_INSUFFICIENT_PRIVILEGE || unit->ntables > 1)
		cannot_lock(unit, sqlstate, message);

	session->lock = session_open_another(session, false);
	sqlstate = publisher_try_command(session->lock,
									 psprintf("BEGIN READ ONLY; %s; SELECT FROM %s LIMIT 0",
											  timeout, remote_names(unit)),
									 &message);
	if (sqlstate != 0)
		cannot_lock(unit, sqlstate, message);
	publisher_begin(session->sql,
					psprintf("ROLLBACK;"
							 "BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ;"
							 "%s", queries));
	return publisher_next_rows(session->sql);
}

/* The tables as the publisher has them. */
static void
describe_tables(Unit *unit, const PublisherResult *res)
{
	Session    *session = unit->session;
	Descriptions *descriptions;

	for (int i = 0; i < unit->ntables; i++)
	{
		RemoteTable *remote = &unit->remotes[i];

		memset(remote, 0, sizeof(RemoteTable));
		remote->rel.nspname = unit->tables[i].nspname;
		remote->rel.relname = unit->tables[i].relname;
	}
	descriptions = remote_tables_begin(unit->conn,
									   session->sub->publications, res,
									   unit->remotes, unit->ntables);
	for (int i = 0; i < unit->ntables; i++)
	{
		unit->at = &unit->tables[i];
		remote_tables_read(descriptions, unit->remotes, i);
		unit->at->bytes_total = unit->remotes[i].bytes;
		test_point(POINT_described, unit->at->relname);
	}
	unit->at = NULL;
}

/* Does it fit the slot?  C1, C2, and whether the slot is still there. */
static SnapshotVerdict
judge_snapshot(Unit *unit, const PublisherResult *start,
			   const PublisherResult *fingerprint)
{
	SyncSlot   *slot = unit->slot;
	char	   *reason;

	if (slot->stream == NULL && !slot_may_start(start, slot->position, &reason))
		return SNAPSHOT_NEEDS_NEW_SLOT;
	if ((guard_is_on("c1a") &&
		 !remote_snapshot_sees_all_of(unit->snapshot, slot->birth)) ||
		(guard_is_on("c1b") &&
		 !remote_snapshot_sees_delivered(unit->snapshot, &slot->delivered)))
		return SNAPSHOT_TOO_EARLY;
	if (guard_is_on("c2") &&
		!fingerprint_agrees(slot->fingerprint, fingerprint))
		return SNAPSHOT_NEEDS_NEW_SLOT;
	return SNAPSHOT_FITS;
}

/* The tables, as oids; what a partitioned one consists of included. */
static char *
remote_oids(Unit *unit)
{
	Publisher  *conn = unit->session->sql;
	StringInfoData buf;

	initStringInfo(&buf);
	appendStringInfoString(&buf,
						   "SELECT DISTINCT pg_catalog.unnest(c.oid || ARRAY("
						   "SELECT relid::oid FROM pg_catalog.pg_partition_tree(c.oid)))"
						   " FROM pg_catalog.pg_class c"
						   " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
						   " WHERE (n.nspname, c.relname) IN (");
	for (int i = 0; i < unit->ntables; i++)
		appendStringInfo(&buf, "%s(%s, %s)", i > 0 ? ", " : "",
						 publisher_literal(conn, unit->tables[i].nspname),
						 publisher_literal(conn, unit->tables[i].relname));
	appendStringInfoChar(&buf, ')');
	return buf.data;
}

/*
 * C4: on a standby a unit uses the snapshot that came with a slot of its own.
 * So C5 needs another form: the locks come after the snapshot, and whoever
 * has rewritten a table in between is found out by its file.
 */
static SnapshotVerdict
take_slots_snapshot(Unit *unit)
{
	SyncSlot   *slot = unit->slot;
	Publisher  *conn = slot->conn;
	PublisherResult *res;
	StringInfoData sql;
	char	   *message;
	int			sqlstate;

	if (!slot->has_snapshot)
		return SNAPSHOT_NEEDS_NEW_SLOT;
	slot->has_snapshot = false;
	test_point(POINT_snapshot_taken, unit->tables[0].relname);

	/* The role may have rights on some columns only: see begin_with_lock. */
	initStringInfo(&sql);
	appendStringInfo(&sql, "SET LOCAL lock_timeout = %d",
					 reuse_sync_handover_lock_timeout);
	for (int i = 0; i < unit->ntables; i++)
		appendStringInfo(&sql, "; SELECT FROM %s.%s LIMIT 0",
						 publisher_identifier(unit->tables[i].nspname),
						 publisher_identifier(unit->tables[i].relname));
	sqlstate = publisher_try_command(conn, sql.data, &message);
	if (sqlstate != 0)
		cannot_lock(unit, sqlstate, message);
	test_point(POINT_tables_locked, unit->tables[0].relname);

	res = publisher_query(conn,
						  psprintf("SELECT FROM pg_catalog.pg_class"
								   " WHERE relkind = 'r' AND oid IN (%s)"
								   " AND pg_catalog.pg_relation_filenode(oid)"
								   " IS DISTINCT FROM relfilenode",
								   remote_oids(unit)));
	if (guard_is_on("c5") && res->nrows > 0)
		return SNAPSHOT_NEEDS_NEW_SLOT;

	/* Nothing to filter: the stream begins where the snapshot ends. */
	unit->conn = conn;
	describe_tables(unit,
					publisher_query(conn,
									remote_tables_query(conn,
														remote_regclasses(unit))));
	unit->delivered = NULL;
	unit->position = slot->position;
	return SNAPSHOT_FITS;
}

SnapshotVerdict
unit_take_snapshot(Unit *unit)
{
	Publisher  *conn = unit->session->sql;
	const PublisherIdentity *publisher = publisher_identity(conn);
	SyncSlot   *slot = unit->slot;
	SnapshotVerdict verdict;
	PublisherResult *res;
	PublisherResult *start;
	PublisherResult *fingerprint;
	PublisherResult *tables;

	/* C3, and the first half of C2 */
	if (guard_is_on("c3") &&
		(slot->made_on.sysid != publisher->sysid ||
		 slot->made_on.timeline != publisher->timeline))
		return SNAPSHOT_NEEDS_NEW_SLOT;
	for (int i = 0; i < unit->ntables; i++)
		if (!slot_may_serve(slot, unit->tables[i].relid))
			return SNAPSHOT_NEEDS_NEW_SLOT;

	MemoryContextSwitchTo(unit->context);
	if (publisher->in_recovery)
		return take_slots_snapshot(unit);
	res = begin_with_lock(unit);
	test_point(POINT_tables_locked, unit->tables[0].relname);
	if (res->nrows != 1)
		ereport(ERROR,
				errcode(ERRCODE_PROTOCOL_VIOLATION),
				errmsg("unexpected answer about a snapshot from the publisher"));
	unit->snapshot = remote_snapshot_parse(publisher_value(res, 0, 0));
	unit->filter_end = session_parse_lsn(publisher_value(res, 0, 1));
	unit->position = slot->position;
	pool_note_snapshot(unit->snapshot->xmin);
	test_point(POINT_snapshot_taken, unit->tables[0].relname);

	start = publisher_next_rows(conn);
	fingerprint = publisher_next_rows(conn);
	tables = publisher_next_rows(conn);
	publisher_end(conn);
	if (start->nrows == 1)
		slot_note(start, 2);

	verdict = judge_snapshot(unit, start, fingerprint);
	if (verdict == SNAPSHOT_FITS)
	{
		unit->conn = conn;
		describe_tables(unit, tables);
		delivered_xids_prune(&slot->delivered, unit->snapshot->xmin);
	}
	else
	{
		unit->snapshot = NULL;
		publisher_command(conn, "ROLLBACK");
		session_release_lock(unit->session);
		pool_note_snapshot(0);
	}
	return verdict;
}

/* --- copy --- */

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
