/*-------------------------------------------------------------------------
 *
 * unit.c
 *	  A table being synchronized: claim, snapshot, copy, state 'f'.
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
#include "catalog/pg_replication_origin.h"
#include "catalog/pg_subscription_rel.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "catalog.h"
#include "copy.h"
#include "pool.h"
#include "settings.h"
#include "unit.h"

/* How often a copy looks whether it is still wanted, in ms. */
#define CHECK_INTERVAL	1000

/* An error is being thrown because the claim does not hold any more. */
static bool outdated = false;

/* The origin is set up in this session, for the length of one commit. */
static bool origin_held = false;

/* A tuple of pg_subscription_rel that is being watched has been changed. */
static bool claim_changed = false;
static uint32 claim_hash = 0;

static void
subscription_rel_invalidated(Datum arg, int cacheid, uint32 hashvalue)
{
	if (hashvalue == 0 || hashvalue == claim_hash)
		claim_changed = true;
}

/* --- the claim --- */

static void
watch_claim(Unit *unit)
{
	static bool registered = false;

	if (!registered)
	{
		CacheRegisterSyscacheCallback(SUBSCRIPTIONRELMAP,
									  subscription_rel_invalidated,
									  (Datum) 0);
		registered = true;
	}
	claim_hash = GetSysCacheHashValue2(SUBSCRIPTIONRELMAP,
									   ObjectIdGetDatum(unit->relid),
									   ObjectIdGetDatum(unit->session->sub->oid));
	claim_changed = false;
}

/* Read the tuple; false if there is none. */
static bool
read_claim(Unit *unit, char *state, ItemPointer tid, TransactionId *xmin)
{
	HeapTuple	tuple;

	tuple = SearchSysCache2(SUBSCRIPTIONRELMAP,
							ObjectIdGetDatum(unit->relid),
							ObjectIdGetDatum(unit->session->sub->oid));
	if (!HeapTupleIsValid(tuple))
		return false;
	*state = ((Form_pg_subscription_rel) GETSTRUCT(tuple))->srsubstate;
	*tid = tuple->t_self;
	*xmin = HeapTupleHeaderGetRawXmin(tuple->t_data);
	ReleaseSysCache(tuple);
	return true;
}

static bool
claim_holds(Unit *unit)
{
	char		state;
	ItemPointerData tid;
	TransactionId xmin;

	return read_claim(unit, &state, &tid, &xmin) &&
		state == unit->state && xmin == unit->claim_xmin &&
		ItemPointerEquals(&tid, &unit->claim_tid);
}

static void
check_claim(Unit *unit, bool always)
{
	if (!session_is_current(unit->session, always))
	{
		outdated = true;
		ereport(ERROR,
				errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				errmsg("synchronization of table \"%s.%s\" is given up because subscription \"%s\" was changed",
					   unit->nspname, unit->relname,
					   unit->session->sub->name));
	}
	if ((always || claim_changed) && !claim_holds(unit))
	{
		outdated = true;
		ereport(ERROR,
				errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				errmsg("synchronization of table \"%s.%s\" is given up because its entry in subscription \"%s\" was changed",
					   unit->nspname, unit->relname,
					   unit->session->sub->name));
	}
	claim_changed = false;
}

void
unit_lock_claim(Unit *unit)
{
	LockSharedObject(SubscriptionRelationId, unit->session->sub->oid, 0,
					 AccessShareLock);
	LockRelationOid(SubscriptionRelRelationId, RowExclusiveLock);
	check_claim(unit, true);
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
	UpdateSubscriptionRelStateEx(unit->session->sub->oid, unit->relid,
								 state, lsn, true);
	CommandCounterIncrement();
	if (!read_claim(unit, &unit->state, &unit->claim_tid, &unit->claim_xmin))
		elog(ERROR, "lost the entry of relation %u in subscription %u",
			 unit->relid, unit->session->sub->oid);
}

/* --- the origin --- */

static char *
origin_name(Unit *unit)
{
	return psprintf("pg_%u_%u", unit->session->sub->oid, unit->relid);
}

void
unit_tag_origin(Unit *unit)
{
	replorigin_session_origin = unit->origin;
}

void
unit_commit(Unit *unit, XLogRecPtr lsn, TimestampTz timestamp)
{
	/* They may wait for locks, so they run before the origin is held. */
	AfterTriggerFireDeferred();

	replorigin_session_setup(unit->origin);
	origin_held = true;
	replorigin_session_origin = unit->origin;
	replorigin_session_origin_lsn = lsn;
	replorigin_session_origin_timestamp = timestamp;
	CommitTransactionCommand();
	unit_reset_origin();
}

void
unit_reset_origin(void)
{
	replorigin_session_origin = InvalidRepOriginId;
	replorigin_session_origin_lsn = InvalidXLogRecPtr;
	replorigin_session_origin_timestamp = 0;
	if (origin_held)
	{
		origin_held = false;
		replorigin_session_reset();
	}
}

/* --- begin and end --- */

Unit *
unit_begin(Session *session, Oid relid)
{
	MemoryContext context;
	MemoryContext caller = CurrentMemoryContext;
	Unit	   *unit;
	bool		found;

	context = AllocSetContextCreate(TopMemoryContext, "reuse_sync unit",
									ALLOCSET_DEFAULT_SIZES);
	unit = MemoryContextAllocZero(context, sizeof(Unit));
	unit->context = context;
	unit->session = session;
	unit->relid = relid;
	unit->started = GetCurrentTimestamp();

	StartTransactionCommand();
	watch_claim(unit);
	found = read_claim(unit, &unit->state, &unit->claim_tid,
					   &unit->claim_xmin) &&
		(unit->state == SUBREL_STATE_INIT ||
		 unit->state == SUBREL_STATE_DATASYNC ||
		 unit->state == SUBREL_STATE_FINISHEDCOPY);
	if (found)
	{
		char	   *relname = get_rel_name(relid);
		char	   *nspname = get_namespace_name(get_rel_namespace(relid));

		found = relname != NULL && nspname != NULL;
		if (found)
		{
			unit->relname = MemoryContextStrdup(context, relname);
			unit->nspname = MemoryContextStrdup(context, nspname);
			unit->origin = replorigin_by_name(origin_name(unit), true);
		}
	}
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);

	if (!found)
	{
		MemoryContextDelete(context);
		return NULL;
	}
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

/* --- going on from 'f' --- */

/*
 * A copy of ours, if the row that describes it was written by the transaction
 * that set 'f'; else the server's own worker left it, with a slot of its own.
 */
static char *
resume_from(Unit *unit, const TableProgress *progress, bool *ours)
{
	const PublisherIdentity *publisher =
	publisher_identity(unit->session->sql);
	SlotRow		row;
	char	   *reason = NULL;

	*ours = progress->slot_id != 0 &&
		TransactionIdEquals(progress->copy_xid, unit->claim_xmin);
	if (*ours)
	{
		if (!catalog_get_slot(unit->session->sub->oid, progress->slot_id,
							  &row))
			return "it is not in the catalog";
		unit->slot_id = row.slot_id;
		unit->slot_name = row.slot_name;
		if (row.publisher_sysid != publisher->sysid ||
			row.publisher_timeline != publisher->timeline)
			reason = "the publisher is another server, or on another timeline";
	}
	else
		snprintf(NameStr(unit->slot_name), NAMEDATALEN,
				 "pg_%u_sync_%u_" UINT64_FORMAT,
				 unit->session->sub->oid, unit->relid,
				 GetSystemIdentifier());

	if (unit->origin == InvalidRepOriginId)
		reason = "its replication origin is gone";
	else
		unit->position = replorigin_get_progress(unit->origin, false);
	if (reason == NULL && XLogRecPtrIsInvalid(unit->position))
		reason = "its replication origin has no position";
	return reason;
}

bool
unit_resume(Unit *unit)
{
	TableProgress progress;
	MemoryContext caller = CurrentMemoryContext;
	char	   *reason;
	bool		ours;

	StartTransactionCommand();
	catalog_get_progress(unit->session->sub->oid, unit->relid, &progress);
	reason = resume_from(unit, &progress, &ours);
	if (reason == NULL && ours)
	{
		MemoryContextSwitchTo(unit->context);
		unit->snapshot = remote_snapshot_parse(progress.snapshot);
		unit->filter_end = progress.filter_end;
	}
	unit->bytes_copied = progress.bytes_copied;
	unit->tuples_copied = progress.tuples_copied;
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);

	if (reason == NULL &&
		slot_can_start(unit->session, NameStr(unit->slot_name),
					   unit->position, &reason))
	{
		/* No other worker takes it for an orphan while we finish. */
		if (unit->slot_id == 0 ||
			pool_claim_orphan(unit->session->sub->oid, unit->slot_id))
			return true;
		outdated = true;
		ereport(ERROR,
				errcode(ERRCODE_OBJECT_IN_USE),
				errmsg("replication slot \"%s\" is in use by another worker",
					   NameStr(unit->slot_name)));
	}

	ereport(WARNING,
			errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			errmsg("table \"%s.%s\" of subscription \"%s\" is copied anew because its replication slot \"%s\" is lost",
				   unit->nspname, unit->relname, unit->session->sub->name,
				   NameStr(unit->slot_name)),
			errdetail_internal("%s", reason));
	unit->empty_first = true;
	unit->slot_id = 0;
	unit->snapshot = NULL;
	return false;
}

/* --- snapshot --- */

static char *
remote_name(Unit *unit)
{
	return psprintf("%s.%s", publisher_identifier(unit->nspname),
					publisher_identifier(unit->relname));
}

/*
 * C5: the lock comes first, and takes no snapshot; from then on nobody
 * rewrites the table, and what is seen is what the COPY will find.  LOCK TABLE
 * asks for the right to read the whole table; where the role may read only
 * some columns, a query over another connection takes the same lock.
 */
static void
begin_with_lock(Unit *unit)
{
	Session    *session = unit->session;
	char	   *timeout = psprintf("SET LOCAL lock_timeout = %d",
								   reuse_sync_handover_lock_timeout);
	char	   *message;
	int			sqlstate;

	publisher_command(session->sql,
					  "BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ");
	sqlstate = publisher_try_command(session->sql,
									 psprintf("%s; LOCK TABLE %s IN ACCESS SHARE MODE",
											  timeout, remote_name(unit)),
									 &message);
	if (sqlstate == 0)
		return;
	if (sqlstate == ERRCODE_UNDEFINED_TABLE ||
		sqlstate == ERRCODE_INVALID_SCHEMA_NAME)
		ereport(ERROR,
				errcode(ERRCODE_UNDEFINED_TABLE),
				errmsg("table \"%s.%s\" does not exist on the publisher",
					   unit->nspname, unit->relname),
				errhint("Create it there, or drop it from the publication and run ALTER SUBSCRIPTION ... REFRESH PUBLICATION."));
	if (sqlstate != ERRCODE_INSUFFICIENT_PRIVILEGE)
		ereport(ERROR,
				errcode(sqlstate),
				errmsg("could not lock table \"%s.%s\" on the publisher: %s",
					   unit->nspname, unit->relname, message));

	session->lock = session_open_another(session, false);
	publisher_command(session->lock, "BEGIN READ ONLY");
	publisher_command(session->lock, timeout);
	(void) publisher_query(session->lock,
						   psprintf("SELECT FROM %s LIMIT 0",
									remote_name(unit)));
	publisher_command(session->sql,
					  "ROLLBACK;"
					  "BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ");
}

SnapshotVerdict
unit_take_snapshot(Unit *unit)
{
	Publisher  *conn = unit->session->sql;
	const PublisherIdentity *publisher = publisher_identity(conn);
	SyncSlot   *slot = unit->slot;
	SnapshotVerdict verdict = SNAPSHOT_FITS;
	PublisherResult *res;
	MemoryContext caller;
	char	   *reason;

	/* C3, the first half of C2, and whether the slot is still there */
	if (slot->made_on.sysid != publisher->sysid ||
		slot->made_on.timeline != publisher->timeline ||
		!slot_may_serve(slot, unit->relid) ||
		(slot->stream == NULL &&
		 !slot_can_start(unit->session, NameStr(slot->name), slot->position,
						 &reason)))
		return SNAPSHOT_NEEDS_NEW_SLOT;

	begin_with_lock(unit);

	/* The function is called after the snapshot has been taken. */
	res = publisher_query(conn,
						  "SELECT pg_catalog.pg_current_snapshot(),"
						  " pg_catalog.pg_current_wal_insert_lsn()");
	if (res->nrows != 1)
		ereport(ERROR,
				errcode(ERRCODE_PROTOCOL_VIOLATION),
				errmsg("unexpected answer about a snapshot from the publisher"));
	caller = MemoryContextSwitchTo(unit->context);
	unit->snapshot = remote_snapshot_parse(publisher_value(res, 0, 0));
	MemoryContextSwitchTo(caller);
	unit->filter_end = session_parse_lsn(publisher_value(res, 0, 1));
	unit->position = slot->position;

	if (!remote_snapshot_sees_all_of(unit->snapshot, slot->birth) ||
		!remote_snapshot_sees_delivered(unit->snapshot, &slot->delivered))
		verdict = SNAPSHOT_TOO_EARLY;
	else if (strcmp(slot_fingerprint(unit->session, conn),
					slot->fingerprint) != 0)
		verdict = SNAPSHOT_NEEDS_NEW_SLOT;

	if (verdict == SNAPSHOT_FITS)
		delivered_xids_prune(&slot->delivered, unit->snapshot->xmin);
	else
	{
		publisher_command(conn, "ROLLBACK");
		session_release_lock(unit->session);
	}
	return verdict;
}

/* --- 'd', copy, 'f' --- */

/*
 * The server's own worker left 'd' with a slot: it is of no use to anybody.
 */
static void
drop_servers_slot(Unit *unit)
{
	char	   *message;
	char	   *name = psprintf("pg_%u_sync_%u_" UINT64_FORMAT,
								unit->session->sub->oid, unit->relid,
								GetSystemIdentifier());

	if (!slot_drop_by_name(unit->session->sql, name, &message))
		ereport(ERROR,
				errcode(ERRCODE_OBJECT_IN_USE),
				errmsg("could not drop replication slot \"%s\" on the publisher: %s",
					   name, message));
}

void
unit_announce(Unit *unit)
{
	TableProgress progress;
	Oid			subid = unit->session->sub->oid;

	if (unit->state != SUBREL_STATE_INIT)
		drop_servers_slot(unit);

	StartTransactionCommand();
	unit_lock_claim(unit);

	/*
	 * The origin is made in a transaction of its own: its position lives in
	 * shared memory, where nothing is rolled back.
	 */
	if (unit->origin == InvalidRepOriginId)
		unit->origin = replorigin_create(origin_name(unit));

	/* A lost copy stays 'f': its rows must be removed by whoever goes on. */
	if (unit->state == SUBREL_STATE_INIT)
	{
		catalog_get_progress(subid, unit->relid, &progress);
		progress.slot_id = 0;
		progress.snapshot = NULL;
		progress.started_at = unit->started;
		catalog_put_progress(subid, unit->relid, &progress);
		unit_set_state(unit, SUBREL_STATE_DATASYNC, InvalidXLogRecPtr);
	}
	CommitTransactionCommand();
}

/* Remove all rows of a table that a lost copy left, in the transaction. */
static void
remove_rows(Oid relid)
{
	char	   *name = quote_qualified_identifier(get_namespace_name(get_rel_namespace(relid)),
												  get_rel_name(relid));
	bool		partitioned = get_rel_relkind(relid) == RELKIND_PARTITIONED_TABLE;
	int			rc;

	SPI_connect();
	rc = SPI_execute(psprintf("DELETE FROM %s%s", partitioned ? "" : "ONLY ",
							  name), false, 0);
	if (rc != SPI_OK_DELETE)
		elog(ERROR, "could not remove the rows of relation %u: %s",
			 relid, SPI_result_code_string(rc));
	SPI_finish();
	CommandCounterIncrement();
}

void
unit_set_back(Session *session, Oid relid)
{
	Unit	   *unit = unit_begin(session, relid);
	TableProgress progress;

	if (unit == NULL)
		return;
	if (unit->state == SUBREL_STATE_FINISHEDCOPY)
	{
		StartTransactionCommand();
		PushActiveSnapshot(GetTransactionSnapshot());
		remove_rows(relid);
		PopActiveSnapshot();
		unit_lock_claim(unit);
		catalog_get_progress(session->sub->oid, relid, &progress);
		progress.slot_id = 0;
		progress.snapshot = NULL;
		catalog_put_progress(session->sub->oid, relid, &progress);
		unit_set_state(unit, SUBREL_STATE_INIT, InvalidXLogRecPtr);
		replorigin_drop_by_name(origin_name(unit), true, false);
		CommitTransactionCommand();
	}
	unit_end(unit);
}

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
	if (TimestampDifferenceExceeds(last_check, now, CHECK_INTERVAL))
	{
		last_check = now;
		AcceptInvalidationMessages();
		unit_check_claim(copying);
	}
}

/* Text form, to be read again by remote_snapshot_parse. */
static char *
snapshot_text(const RemoteSnapshot *snapshot)
{
	StringInfoData buf;

	initStringInfo(&buf);
	appendStringInfo(&buf, UINT64_FORMAT ":" UINT64_FORMAT ":",
					 snapshot->xmin, snapshot->xmax);
	for (int i = 0; i < snapshot->nxip; i++)
		appendStringInfo(&buf, "%s" UINT64_FORMAT, i > 0 ? "," : "",
						 snapshot->xip[i]);
	return buf.data;
}

/* All that a resumption needs, in the transaction that sets 'f'. */
static void
record_copy(Unit *unit, int64 bytes_total)
{
	Oid			subid = unit->session->sub->oid;
	TableProgress progress;

	catalog_get_progress(subid, unit->relid, &progress);
	progress.slot_id = unit->slot_id;
	progress.copy_xid = GetTopTransactionId();
	progress.snapshot = snapshot_text(unit->snapshot);
	progress.filter_end = unit->filter_end;
	progress.started_at = unit->started;
	progress.bytes_total = bytes_total;
	progress.bytes_copied = unit->bytes_copied;
	progress.tuples_copied = unit->tuples_copied;
	catalog_put_progress(subid, unit->relid, &progress);
	catalog_set_slot(subid, unit->slot_id, SLOT_LINKED, unit->relid);

	/*
	 * The position to go on from is where the slot's stream starts, not where
	 * the snapshot was taken: transactions that the snapshot does not see may
	 * have committed before.  An earlier attempt may have left a later one.
	 */
	LockRelationOid(ReplicationOriginRelationId, RowExclusiveLock);
	replorigin_advance(unit->origin, unit->position, InvalidXLogRecPtr,
					   true /* go backward */ , true /* WAL log */ );
	unit_set_state(unit, SUBREL_STATE_FINISHEDCOPY, InvalidXLogRecPtr);
}

void
unit_copy(Unit *unit)
{
	Session    *session = unit->session;
	RemoteTable *remote;

	pool_set_phase(PHASE_COPYING);
	StartTransactionCommand();
	unit_tag_origin(unit);
	unit_check_claim(unit);
	remote = copy_describe(session->sql, session->sub->publications,
						   unit->nspname, unit->relname);
	pool_set_bytes_total(remote->bytes);
	if (unit->empty_first)
	{
		PushActiveSnapshot(GetTransactionSnapshot());
		remove_rows(unit->relid);
		PopActiveSnapshot();
	}
	copying = unit;
	unit->tuples_copied = copy_table(session->sql, remote, unit->relid,
									 copy_progress);
	unit->bytes_copied = MyPoolWorker->bytes_copied;
	Counters.bytes_copied += unit->bytes_copied;
	publisher_command(session->sql, "COMMIT");
	session_release_lock(session);

	/*
	 * 'f' is committed only after the publisher has flushed what the snapshot
	 * saw: after a crash there its xids would be given out again.
	 */
	unit->mark = session_make_position(session);

	unit_lock_claim(unit);
	record_copy(unit, remote->bytes);
	unit_commit(unit, unit->position, 0);
}
