/*-------------------------------------------------------------------------
 *
 * sync_slot.c
 *	  Replication slots that workers own on publishers.
 *
 * The end of those whose worker is gone is in slot_orphans.c.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/sync_slot.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_replication_origin.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "catalog.h"
#include "catchup.h"
#include "compat.h"
#include "fingerprint.h"
#include "lease.h"
#include "pool.h"
#include "pool_notes.h"
#include "settings.h"
#include "slot_offer.h"
#include "sync_slot.h"
#include "testing.h"

/* How long to wait for a slot that is active, and how often to ask, in ms. */
#define ACTIVE_PATIENCE	3000
#define ACTIVE_PAUSE	20

/* What has come of having a slot made. */
typedef enum SlotMade
{
	SLOT_MADE,
	SLOT_OF_NO_USE,				/* it exists, an orphan */
	SLOT_NAME_TAKEN				/* nothing of ours exists */
} SlotMade;

/*
 * Number and name a new slot.  The row must be on disk before the publisher
 * hears of the slot: a number lost in a crash would be given out again.
 */
static void
register_slot(Session *session, SyncSlot *slot)
{
	SlotRow		row;

	test_point(POINT_register_slot, "");
	StartTransactionCommand();
	slot->id = catalog_add_slot(slot->subid, publisher_identity(session->sql),
								&slot->name);
	pool_set_slot(slot->id, NameStr(slot->name));
	CommitTransactionCommand();
	test_point(POINT_slot_numbered, NameStr(slot->name));
	if (guard_is_on("number_flush"))
		XLogFlush(XactLastCommitEnd);

	/* DROP EXTENSION may have come before the commit: then this throws. */
	StartTransactionCommand();
	(void) catalog_get_slot(slot->subid, slot->id, &row);
	CommitTransactionCommand();
	test_point(POINT_slot_registered, NameStr(slot->name));
}

void
slot_take_origin(SyncSlot *slot)
{
	MemoryContext caller = CurrentMemoryContext;
	RepOriginId origin;

	if (slot->origin != InvalidRepOriginId)
		return;
	StartTransactionCommand();
	origin = replorigin_by_name(NameStr(slot->name), true);
	if (origin == InvalidRepOriginId)
		origin = replorigin_create(NameStr(slot->name));
	CommitTransactionCommand();
	test_point(POINT_slot_origin, NameStr(slot->name));

	/* Its entry, which knows no rollback, in a transaction of its own. */
	StartTransactionCommand();
	LockRelationOid(ReplicationOriginRelationId, RowExclusiveLock);
	replorigin_advance(origin, InvalidXLogRecPtr, InvalidXLogRecPtr,
					   true /* go backward */ , false /* WAL log */ );
	CommitTransactionCommand();
	slot->origin = origin;
	MemoryContextSwitchTo(caller);
}

/*
 * The name is somebody else's: of a copy of this server, or given out by this
 * one before it was restored from a backup.  Leave the slot alone, and forget
 * the number.
 */
static void
skip_number(SyncSlot *slot)
{
	ereport(LOG,
			errcode(ERRCODE_DUPLICATE_OBJECT),
			errmsg("replication slot \"%s\" exists on the publisher already, and another name is taken",
				   NameStr(slot->name)),
			errhint("If no other server uses it, drop it there with pg_drop_replication_slot()."));
	StartTransactionCommand();
	catalog_remove_slot(slot->subid, slot->id);
	replorigin_drop_by_name(NameStr(slot->name), true, false);
	CommitTransactionCommand();
	publisher_disconnect(slot->conn);
	slot->conn = NULL;
}

/*
 * Ask the publisher for the slot, in a transaction that tells what the slot's
 * start corresponds to.  That snapshot is only kept (C1 a); no table is locked
 * while the creation waits for running transactions.  On a standby the
 * transaction stays open for the one unit that the slot serves (C4).  False if
 * there is a slot of that name.
 */
static bool
create_on_publisher(Session *session, SyncSlot *slot)
{
	Publisher  *conn = slot->conn;
	PublisherResult *res;

	publisher_command(conn,
					  "BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ");
	test_point(POINT_slot_asked, NameStr(slot->name));
	res = publisher_query_unless(conn,
								 psprintf("CREATE_REPLICATION_SLOT %s LOGICAL pgoutput %s",
										  publisher_identifier(NameStr(slot->name)),
										  guard_is_on("birth_wait") ?
										  "USE_SNAPSHOT" : "NOEXPORT_SNAPSHOT"),
								 ERRCODE_DUPLICATE_OBJECT);
	if (res == NULL)
		return false;
	if (res->nrows != 1 || res->ncols < 2)
		ereport(ERROR,
				errcode(ERRCODE_PROTOCOL_VIOLATION),
				errmsg("unexpected answer to CREATE_REPLICATION_SLOT from the publisher"));
	slot->position = session_parse_lsn(publisher_value(res, 0, 1));
	test_point(POINT_slot_made, NameStr(slot->name));

	if (publisher_identity(conn)->in_recovery)
	{
		/* C4: what it says of itself is not true, but it can be used. */
		slot->has_snapshot = true;
		slot->fingerprint =
			fingerprint_read(publisher_query(conn,
											 fingerprint_query(session, NULL)));
		slot->made_on = *publisher_identity(conn);
		return true;
	}

	publisher_begin(conn,
					psprintf("SELECT pg_catalog.pg_current_snapshot(); %s; COMMIT",
							 fingerprint_query(session, NULL)));
	res = publisher_next_rows(conn);
	slot->birth = remote_snapshot_parse(res->nrows == 1 ?
										publisher_value(res, 0, 0) : NULL);
	if (!guard_is_on("birth_wait"))
	{
		/* As it was before CREATE_REPLICATION_SLOT itself waited for C1 a. */
		slot->birth->xmin = slot->birth->xmax;
		slot->birth->nxip = 0;
	}
	slot->fingerprint = fingerprint_read(publisher_next_rows(conn));
	publisher_end(conn);
	slot->made_on = *publisher_identity(conn);
	return true;
}

/*
 * Connect, and have the slot made one way or the other.  Its name is that of
 * the connection as well, so that nobody takes the slot for gone while it is
 * still being made.
 */
static SlotMade
make_on_publisher(Session *session, SyncSlot *slot, bool may_copy)
{
	bool		usable;

	slot->conn = session_open_another(session, true);
	publisher_command(slot->conn,
					  psprintf("SET application_name = %s",
							   publisher_literal(slot->conn,
												 NameStr(slot->name))));
	if (may_copy && slot_offer_copy(session, slot, &usable))
		return usable ? SLOT_MADE : SLOT_OF_NO_USE;
	if (!create_on_publisher(session, slot))
		return SLOT_NAME_TAKEN;
	/* C4: on a standby every unit has a slot of its own. */
	if (!slot->made_on.in_recovery)
		slot_offer(slot);
	return SLOT_MADE;
}

SyncSlot *
slot_create(Session *session, const Oid *eligible, int neligible,
			bool may_copy)
{
	MemoryContext context;
	MemoryContext caller;
	SyncSlot   *slot;
	volatile SlotMade made = SLOT_NAME_TAKEN;

	Assert(!IsTransactionState());
	pool_set_phase(PHASE_CREATING_SLOT);
	context = AllocSetContextCreate(TopMemoryContext, "reuse_sync slot",
									ALLOCSET_DEFAULT_SIZES);
	caller = MemoryContextSwitchTo(context);
	slot = palloc0(sizeof(SyncSlot));
	slot->context = context;
	slot->subid = session->sub->oid;
	slot->neligible = neligible;
	slot->eligible = palloc(Max(neligible, 1) * sizeof(Oid));
	memcpy(slot->eligible, eligible, neligible * sizeof(Oid));
	qsort(slot->eligible, neligible, sizeof(Oid), oid_cmp);

	PG_TRY();
	{
		for (;;)
		{
			register_slot(session, slot);
			MemoryContextSwitchTo(context);
			made = make_on_publisher(session, slot, may_copy);
			if (made != SLOT_NAME_TAKEN)
				break;
			skip_number(slot);
			CHECK_FOR_INTERRUPTS();
		}
		test_point(POINT_slot_created, NameStr(slot->name));
		pool_end_problems(slot->subid, 0);

		StartTransactionCommand();
		catalog_slot_created(slot->subid, slot->id, &slot->made_on);
		Counters.slots_created++;
		catalog_write_counters();
		CommitTransactionCommand();
		test_point(POINT_slot_recorded, NameStr(slot->name));
	}
	PG_CATCH();
	{
		/* The row stays: whoever looks for orphans finds out what exists. */
		MemoryContextSwitchTo(caller);
		slot_abandon(slot);
		PG_RE_THROW();
	}
	PG_END_TRY();

	MemoryContextSwitchTo(caller);
	if (made != SLOT_MADE)
	{
		slot_abandon(slot);
		slot = NULL;
	}
	return slot;
}

bool
slot_may_serve(const SyncSlot *slot, Oid relid)
{
	return !guard_is_on("c2_pending") ||
		bsearch(&relid, slot->eligible, slot->neligible, sizeof(Oid),
				   oid_cmp) != NULL;
}

void
slot_note(const PublisherResult *res, int col)
{
	const char *xmin = publisher_value(res, 0, col + 1);

	if (publisher_value(res, 0, col) != NULL)
		pool_note_slot(session_parse_lsn(publisher_value(res, 0, col)),
					   xmin ? (TransactionId) strtoul(xmin, NULL, 10) :
					   InvalidTransactionId,
					   session_parse_lsn(publisher_value(res, 0, col + 2)));
}

char *
slot_start_query(Session *session, const char *slot_name)
{
	return psprintf("SELECT confirmed_flush_lsn, coalesce(wal_status, ''),"
					" restart_lsn, catalog_xmin,"
					" CASE WHEN pg_catalog.pg_is_in_recovery()"
					" THEN pg_catalog.pg_last_wal_replay_lsn()"
					" ELSE pg_catalog.pg_current_wal_insert_lsn() END"
					" FROM pg_catalog.pg_replication_slots"
					" WHERE slot_name = %s",
					publisher_literal(session->sql, slot_name));
}

bool
slot_may_start(const PublisherResult *res, XLogRecPtr position, char **reason)
{
	if (res->nrows != 1)
		*reason = "it does not exist on the publisher";
	else if (strcmp(publisher_text(res, 0, 1), "lost") == 0)
		*reason = "the publisher has removed WAL that it needs";
	else if (guard_is_on("confirmed") &&
			 (publisher_value(res, 0, 0) == NULL ||
			  session_parse_lsn(publisher_value(res, 0, 0)) > position))
		*reason = "it has been confirmed beyond what was applied";
	else
	{
		slot_note(res, 2);
		return true;
	}
	return false;
}

bool
slot_drop_by_name(Publisher *conn, const char *slot_name, char **message)
{
	char	   *sql = psprintf("SELECT pg_catalog.pg_drop_replication_slot(slot_name)"
							   " FROM pg_catalog.pg_replication_slots"
							   " WHERE slot_name = %s",
							   publisher_literal(conn, slot_name));
	TimestampTz start = GetCurrentTimestamp();

	for (;;)
	{
		int			sqlstate = publisher_try_command(conn, sql, message);

		/* Somebody else may drop it between the look and the drop. */
		if (sqlstate == 0 || sqlstate == ERRCODE_UNDEFINED_OBJECT)
			return true;

		/* A walsender may not have noticed yet that its client is gone. */
		if (sqlstate != ERRCODE_OBJECT_IN_USE ||
			TimestampDifferenceExceeds(start, GetCurrentTimestamp(),
									   ACTIVE_PATIENCE))
			return false;
		publisher_pause(ACTIVE_PAUSE);
	}
}

void
slot_forget(Oid subid, int64 slot_id, const char *slot_name)
{
	catalog_remove_slot(subid, slot_id);
	replorigin_drop_by_name(slot_name, true, false);
	Counters.slots_dropped++;
	catalog_write_counters();
}

bool
slot_record_drop(Oid subid, int64 slot_id, const char *slot_name, bool gone,
			const char *message)
{
	MemoryContext caller = CurrentMemoryContext;

	StartTransactionCommand();
	if (gone)
		slot_forget(subid, slot_id, slot_name);
	else
		catalog_set_slot_error(subid, slot_id, message);
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
	return gone;
}

void
slot_drop(Session *session, SyncSlot *slot)
{
	char	   *message;
	bool		gone;

	pool_set_phase(PHASE_DROPPING_SLOTS);
	PG_TRY();
	{
		test_point(POINT_slot_drop, NameStr(slot->name));

		/* What made it unnecessary (section 7, Durability). */
		XLogFlush(XactLastCommitEnd);
		if (slot->stream != NULL)
			stream_end(slot->stream);
		gone = slot_drop_by_name(session->sql, NameStr(slot->name),
								 &message);
		test_point(POINT_slot_dropped, NameStr(slot->name));
		slot_record_drop(slot->subid, slot->id, NameStr(slot->name), gone,
					message);
		test_point(POINT_slot_forgotten, NameStr(slot->name));
		if (!gone)
			ereport(LOG,
					errmsg("could not drop replication slot \"%s\" on the publisher: %s",
						   NameStr(slot->name), message));
	}
	PG_FINALLY();
	{
		/* Whatever happens, its connection must not stay open unread. */
		slot_abandon(slot);
	}
	PG_END_TRY();
}

void
slot_abandon(SyncSlot *slot)
{
	slot_offer_withdraw(slot);
	pool_set_slot(0, "");
	stream_close(slot->stream);
	publisher_disconnect(slot->conn);
	MemoryContextDelete(slot->context);
}

Stream *
slot_stream(Session *session, SyncSlot *slot)
{
	if (slot->stream == NULL)
	{
		slot->stream = stream_open(session, NameStr(slot->name), slot->conn);
		slot->conn = NULL;
	}
	return slot->stream;
}
