/*-------------------------------------------------------------------------
 *
 * staged.c
 *	  The staged way, for a table that is expensive to copy twice.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/staged.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_replication_origin.h"
#include "catalog/pg_subscription_rel.h"
#include "executor/spi.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "catalog.h"
#include "pool.h"
#include "settings.h"
#include "staged.h"
#include "table_owner.h"
#include "target.h"
#include "testing.h"

/* The server's own name for a table's origin. */
static void
table_origin_name(char *name, Oid subid, Oid relid)
{
	snprintf(name, NAMEDATALEN, "pg_%u_%u", subid, relid);
}

static char *
origin_name(Unit *unit)
{
	table_origin_name(NameStr(unit->origin_name), unit->session->sub->oid,
					  unit->tables[0].relid);
	return NameStr(unit->origin_name);
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
	UnitTable  *table = &unit->tables[0];
	SlotRow		row;
	char	   *reason = NULL;

	*ours = progress->slot_id != 0 &&
		TransactionIdEquals(progress->copy_xid, table->claim_xmin);
	if (*ours)
	{
		catalog_slot_name(unit->session->sub->oid, progress->slot_id,
						  &unit->slot_name);
		unit->slot_id = progress->slot_id;
		if (!catalog_get_slot(unit->session->sub->oid, progress->slot_id,
							  &row))
			return "it is not in the catalog";
		if (guard_is_on("c3") &&
			(row.publisher_sysid != publisher->sysid ||
			 row.publisher_timeline != publisher->timeline))
			reason = "the publisher is another server, or on another timeline";
	}
	else
		unit_servers_slot(unit, table, &unit->slot_name);

	if (unit->origin == InvalidRepOriginId)
		reason = "its replication origin is gone";
	else
		unit->position = replorigin_get_progress(unit->origin, false);
	if (reason == NULL && XLogRecPtrIsInvalid(unit->position))
		reason = "its replication origin has no position";
	return reason;
}

/*
 * Take over the slot of the server's own worker: whatever comes, it is not to
 * be lost sight of before it is gone.
 */
static void
adopt_slot(Unit *unit)
{
	UnitTable  *table = &unit->tables[0];
	Oid			subid = unit->session->sub->oid;
	MemoryContext caller = CurrentMemoryContext;
	TableProgress progress;

	StartTransactionCommand();
	unit_lock_claim(unit, true);
	unit->slot_id = catalog_adopt_slot(subid, &unit->slot_name, table->relid,
									   publisher_identity(unit->session->sql));
	catalog_get_progress(subid, table->relid, &progress);
	progress.slot_id = unit->slot_id;
	progress.copy_xid = InvalidTransactionId;
	progress.snapshot = NULL;
	catalog_put_progress(subid, table->relid, &progress);
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
}

/*
 * What the publisher has the table as, which tells that it is renamed there
 * later.  If it has been renamed already, the stream might bring its changes by
 * a name that nobody knows to be its own.
 */
static void
read_remoteid(Unit *unit)
{
	UnitTable  *table = &unit->tables[0];
	Publisher  *conn = unit->session->sql;
	PublisherResult *res;

	res = publisher_query(conn,
						  psprintf("SELECT c.oid FROM pg_catalog.pg_class c"
								   " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
								   " WHERE n.nspname = %s AND c.relname = %s",
								   publisher_literal(conn, table->nspname),
								   publisher_literal(conn, table->relname)));
	if (res->nrows != 1)
		ereport(ERROR,
				errcode(ERRCODE_UNDEFINED_OBJECT),
				errmsg("table \"%s.%s\" does not exist on the publisher",
					   table->nspname, table->relname),
				errhint("If it was renamed there, rename it here as well, else drop it from the publication and run ALTER SUBSCRIPTION %s REFRESH PUBLICATION.",
						quote_identifier(unit->session->sub->name)));
	unit->targets[0].remoteid = strtoul(publisher_text(res, 0, 0), NULL, 10);
}

bool
staged_resume(Unit *unit)
{
	UnitTable  *table = &unit->tables[0];
	TableProgress progress;
	MemoryContext caller = CurrentMemoryContext;
	char	   *reason;
	bool		ours;

	test_point(POINT_resume, table->relname);
	StartTransactionCommand();
	unit->origin = replorigin_by_name(origin_name(unit), true);
	catalog_get_progress(unit->session->sub->oid, table->relid, &progress);
	reason = resume_from(unit, &progress, &ours);
	if (reason == NULL && ours)
	{
		MemoryContextSwitchTo(unit->context);
		if (progress.snapshot != NULL)
			unit->snapshot = remote_snapshot_parse(progress.snapshot);
		unit->filter_end = progress.filter_end;
		if (progress.publications != NULL)
			unit->publications = pstrdup(progress.publications);
	}
	table->bytes_copied = progress.bytes_copied;
	table->tuples_copied = progress.tuples_copied;
	table->bytes_total = progress.bytes_total;
	unit->started = progress.started_at != 0 ?
		progress.started_at : unit->started;
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);

	if (reason == NULL &&
		slot_may_start(publisher_query(unit->session->sql,
									   slot_start_query(unit->session,
														NameStr(unit->slot_name))),
					   unit->position, &reason))
	{
		read_remoteid(unit);
		if (!ours)
			adopt_slot(unit);
		/* No other worker takes it for an orphan while we finish. */
		if (pool_claim_orphan(unit->session->sub->oid, unit->slot_id,
							  NameStr(unit->slot_name)))
		{
			test_point(POINT_resumed, table->relname);
			return true;
		}
		ereport(ERROR,
				errcode(ERRCODE_OBJECT_IN_USE),
				errmsg("replication slot \"%s\" is in use by another worker",
					   NameStr(unit->slot_name)));
	}

	ereport(WARNING,
			errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			errmsg("table \"%s.%s\" of subscription \"%s\" is copied anew because its copy cannot be finished",
				   table->nspname, table->relname, unit->session->sub->name),
			errdetail("Replication slot \"%s\" is lost: %s.",
					  NameStr(unit->slot_name), reason));
	test_point(POINT_copy_lost, table->relname);
	unit->empty_first = true;
	unit->slot_id = 0;
	unit->snapshot = NULL;
	return false;
}

/* --- 'd' --- */

/* Whatever an earlier attempt has left: back or forward. */
static void
set_origin_position(Unit *unit, XLogRecPtr position)
{
	MemoryContext caller = CurrentMemoryContext;

	StartTransactionCommand();
	LockRelationOid(ReplicationOriginRelationId, RowExclusiveLock);
	replorigin_advance(unit->origin, position, InvalidXLogRecPtr,
					   true /* go backward */ , true /* WAL log */ );
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
}

void
staged_announce(Unit *unit)
{
	UnitTable  *table = &unit->tables[0];
	TableProgress progress;
	Oid			subid = unit->session->sub->oid;
	MemoryContext caller = CurrentMemoryContext;

	StartTransactionCommand();
	unit_lock_claim(unit, true);

	/*
	 * The origin is made in a transaction of its own: its position lives in
	 * shared memory, where nothing is rolled back.
	 */
	unit->origin = replorigin_by_name(origin_name(unit), true);
	if (unit->origin == InvalidRepOriginId)
		unit->origin = replorigin_create(origin_name(unit));

	/*
	 * A lost copy stays 'f': its rows must be removed by whoever goes on.
	 * What could be resumed from is forgotten before the origin's position,
	 * which knows no rollback, is set for the new copy.
	 */
	catalog_get_progress(subid, table->relid, &progress);
	progress.slot_id = 0;
	progress.copy_xid = InvalidTransactionId;
	progress.snapshot = NULL;
	progress.filter_end = InvalidXLogRecPtr;
	progress.started_at = unit->started;
	catalog_put_progress(subid, table->relid, &progress);
	if (table->state == SUBREL_STATE_INIT)
		unit_set_state(unit, SUBREL_STATE_DATASYNC, InvalidXLogRecPtr);
	test_point(POINT_d_commit, table->relname);
	CommitTransactionCommand();
	unit_committed(unit);
	MemoryContextSwitchTo(caller);
	test_point(POINT_d_committed, table->relname);

	/*
	 * Take one of the server's few entries for origins: if there is none this
	 * is to fail now, not after the copy.
	 */
	set_origin_position(unit, InvalidXLogRecPtr);
	test_point(POINT_origin_entry, table->relname);
}

/* --- copy and 'f' --- */

/*
 * Remove the rows of a copy that cannot be finished, in the open transaction.
 * Only if they are all of that copy: nobody else's rows are ours to delete.
 */
static void
remove_rows(Oid subid, Oid relid)
{
	char	   *nspname = get_namespace_name(get_rel_namespace(relid));
	char	   *relname = get_rel_name(relid);
	bool		partitioned = get_rel_relkind(relid) == RELKIND_PARTITIONED_TABLE;
	TableProgress progress;
	TableOwner	owner;
	int			rc;

	if (target_rows(relid, true) == TARGET_EMPTY)
		return;
	catalog_get_progress(subid, relid, &progress);
	if (!progress.was_empty || target_is_shared(subid, relid))
		ereport(ERROR,
				errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				errmsg("the copy of table \"%s.%s\" is lost and cannot be removed, because the table may hold other rows as well",
					   nspname, relname),
				errhint("TRUNCATE the table if it holds nothing else. Otherwise delete what was copied, and take the table out of the publication and in again, each time with ALTER SUBSCRIPTION %s REFRESH PUBLICATION.",
						quote_identifier(get_subscription_name(subid, false))));

	LockRelationOid(relid, RowExclusiveLock);
	table_owner_become(&owner, relid);
	SPI_connect();
	rc = SPI_execute(psprintf("DELETE FROM %s%s", partitioned ? "" : "ONLY ",
							  quote_qualified_identifier(nspname, relname)),
					 false, 0);
	if (rc != SPI_OK_DELETE)
		elog(ERROR, "could not remove the rows of relation %u: %s",
			 relid, SPI_result_code_string(rc));
	SPI_finish();
	CommandCounterIncrement();
	table_owner_leave(&owner);

	/* What a trigger keeps would be there twice after the next copy. */
	UpdateActiveSnapshotCommandId();
	if (target_has_row(relid))
		ereport(ERROR,
				errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				errmsg("rows of a lost copy of table \"%s.%s\" could not be removed",
					   nspname, relname),
				errhint("Disable the trigger or the policy that keeps them, or TRUNCATE the table."));
	test_point(POINT_rows_removed, relname);
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
record_copy(Unit *unit, bool was_empty)
{
	UnitTable  *table = &unit->tables[0];
	Oid			subid = unit->session->sub->oid;
	TableProgress progress;

	catalog_get_progress(subid, table->relid, &progress);
	progress.slot_id = unit->slot_id;
	progress.copy_xid = GetTopTransactionId();
	progress.snapshot = unit->snapshot ? snapshot_text(unit->snapshot) : NULL;
	progress.filter_end = unit->filter_end;
	progress.publications = session_publication_names(unit->session);
	progress.was_empty = was_empty;
	progress.started_at = unit->started;
	progress.bytes_total = table->bytes_total;
	progress.bytes_copied = table->bytes_copied;
	progress.tuples_copied = table->tuples_copied;
	catalog_put_progress(subid, table->relid, &progress);
	catalog_set_slot(subid, unit->slot_id, SLOT_LINKED, table->relid);

	unit_set_state(unit, SUBREL_STATE_FINISHEDCOPY, InvalidXLogRecPtr);
}

void
staged_copy(Unit *unit)
{
	bool		was_empty;

	/*
	 * The position to go on from is where the slot's stream starts, not where
	 * the snapshot was taken: transactions that the snapshot does not see may
	 * have committed before.
	 */
	set_origin_position(unit, unit->position);
	test_point(POINT_origin_set, unit->tables[0].relname);
	StartTransactionCommand();
	unit_tag_origin(unit);
	unit_check_claim(unit);
	unit_lock_for_copy(unit);
	unit_empty_tables(unit);
	PushActiveSnapshot(GetTransactionSnapshot());
	if (unit->empty_first && !unit->tables[0].truncate)
		remove_rows(unit->session->sub->oid, unit->tables[0].relid);
	was_empty = unit->empty_first || unit->tables[0].truncate ||
		target_rows(unit->tables[0].relid, true) == TARGET_EMPTY;
	PopActiveSnapshot();
	unit_copy_tables(unit);

	/*
	 * 'f' is committed only after the publisher has flushed what the snapshot
	 * saw, which the unit's mark tells: after a crash there its xids would be
	 * given out again.
	 */
	if (!guard_is_on("renewed_connection"))
	{
		session_renew(unit->session);
		unit->mark = session_make_position(unit->session);
	}
	test_point(POINT_f_message, unit->tables[0].relname);

	unit_lock_claim(unit, true);
	record_copy(unit, was_empty);
	test_point(POINT_f_commit, unit->tables[0].relname);
	unit_commit(unit, unit->position, 0);
}

/* --- back to 'i' --- */

static void
set_back(Session *session, Unit *unit, bool with_rows)
{
	Oid			relid = unit->tables[0].relid;
	TableProgress progress;
	bool		ours;

	StartTransactionCommand();
	if (!with_rows)
	{
		/* What was copied with an origin goes with one. */
		unit_tag_origin(unit);
		PushActiveSnapshot(GetTransactionSnapshot());
		remove_rows(session->sub->oid, relid);
		PopActiveSnapshot();
	}
	unit_lock_claim(unit, true);
	catalog_get_progress(session->sub->oid, relid, &progress);
	ours = progress.slot_id != 0 &&
		TransactionIdEquals(progress.copy_xid, unit->tables[0].claim_xmin);
	progress.slot_id = 0;
	progress.copy_xid = InvalidTransactionId;
	progress.snapshot = NULL;
	catalog_put_progress(session->sub->oid, relid, &progress);
	/* Whoever finds 'd' drops the slot that the server's worker has left. */
	unit_set_state(unit, ours ? SUBREL_STATE_INIT : SUBREL_STATE_DATASYNC,
				   InvalidXLogRecPtr);
	replorigin_drop_by_name(origin_name(unit), true, false);
	test_point(POINT_set_back_commit, unit->tables[0].relname);
	CommitTransactionCommand();
	test_point(POINT_set_back, unit->tables[0].relname);
}

void
staged_set_back(Session *session, Oid relid, bool with_rows)
{
	Unit	   *unit = unit_begin(session, &relid, 1, true);

	if (unit == NULL)
		return;
	PG_TRY();
	{
		set_back(session, unit, with_rows);
	}
	PG_FINALLY();
	{
		unit_reset_origin();
		unit_end(unit);
	}
	PG_END_TRY();
}

void
staged_drop_origin(Unit *unit)
{
	MemoryContext caller = CurrentMemoryContext;

	StartTransactionCommand();
	session_lock_subscription(unit->session->sub->oid);
	LockRelationOid(SubscriptionRelRelationId, RowExclusiveLock);
	replorigin_drop_by_name(origin_name(unit), true, false);
	test_point(POINT_origin_drop, unit->tables[0].relname);
	CommitTransactionCommand();
	test_point(POINT_origin_dropped, unit->tables[0].relname);
	MemoryContextSwitchTo(caller);
}

void
staged_release_origin(Oid subid, Oid relid)
{
	XLogRecPtr	lsn;
	char		name[NAMEDATALEN];

	if (GetSubscriptionRelState(subid, relid, &lsn) ==
		SUBREL_STATE_FINISHEDCOPY)
		return;
	table_origin_name(name, subid, relid);
	if (replorigin_by_name(name, true) != InvalidRepOriginId)
		replorigin_drop_by_name(name, true, false);
}
