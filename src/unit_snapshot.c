/*-------------------------------------------------------------------------
 *
 * unit_snapshot.c
 *	  A snapshot of the publisher that fits the slot: conditions C1 to C5.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/unit_snapshot.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "catchup.h"
#include "compat.h"
#include "fingerprint.h"
#include "pool.h"
#include "settings.h"
#include "testing.h"
#include "unit.h"

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
	char	   *role = publisher_role(unit->session->sql);

	unit->refused = true;
	if (unit->ntables == 1 &&
		(sqlstate == ERRCODE_UNDEFINED_TABLE ||
		 sqlstate == ERRCODE_INVALID_SCHEMA_NAME))
		ereport(ERROR,
				errcode(ERRCODE_UNDEFINED_OBJECT),
				errmsg("table \"%s.%s\" does not exist on the publisher",
					   unit->tables[0].nspname, unit->tables[0].relname),
				errhint("Create it there, or drop it from the publication and run ALTER SUBSCRIPTION %s REFRESH PUBLICATION.",
						quote_identifier(unit->session->sub->name)));
	ereport(ERROR,
			errcode(sqlstate == ERRCODE_INSUFFICIENT_PRIVILEGE ?
					ERRCODE_CONNECTION_FAILURE : sqlstate),
			errmsg("could not lock table \"%s.%s\" on the publisher: %s",
				   unit->tables[0].nspname, unit->tables[0].relname,
				   message),
			sqlstate == ERRCODE_INSUFFICIENT_PRIVILEGE ?
			errhint("Run GRANT USAGE ON SCHEMA %s TO %s and GRANT SELECT ON %s TO %s there.",
					quote_identifier(unit->tables[0].nspname), role,
					quote_qualified_identifier(unit->tables[0].nspname,
											   unit->tables[0].relname),
					role) :
			sqlstate == ERRCODE_LOCK_NOT_AVAILABLE ?
			errhint("A session there holds a lock on it, see pg_locks there.") : 0);
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
		unit->targets[i].remoteid = unit->remotes[i].rel.remoteid;
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
	if (slot->delivered.too_many)
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
