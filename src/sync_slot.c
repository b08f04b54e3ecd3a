/*-------------------------------------------------------------------------
 *
 * sync_slot.c
 *	  Replication slots that workers own on publishers.
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
#include "catalog/pg_subscription_rel.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "catalog.h"
#include "catchup.h"
#include "compat.h"
#include "fingerprint.h"
#include "lease.h"
#include "pool.h"
#include "settings.h"
#include "slot_offer.h"
#include "sync_slot.h"
#include "testing.h"

/* How long to wait for the end of a slot's creation, in ms. */
#define CREATION_PATIENCE	1000

/* How long a user's command waits for the publisher, in ms. */
#define COMMAND_PATIENCE	1000

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

static int
compare_oids(const void *a, const void *b)
{
	Oid			x = *(const Oid *) a;
	Oid			y = *(const Oid *) b;

	return x < y ? -1 : (x > y ? 1 : 0);
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
	qsort(slot->eligible, neligible, sizeof(Oid), compare_oids);

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
				   compare_oids) != NULL;
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
	else if (strcmp(publisher_value(res, 0, 1), "lost") == 0)
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

bool
slot_is_linked(const SlotRow *slot)
{
	TableProgress progress;
	XLogRecPtr	lsn;

	return slot->state == SLOT_LINKED &&
		GetSubscriptionRelState(slot->subid, slot->relid, &lsn) ==
		SUBREL_STATE_FINISHEDCOPY &&
		catalog_get_progress(slot->subid, slot->relid, &progress) &&
		progress.slot_id == slot->slot_id;
}

/*
 * The slots of a subscription nobody holds or needs, in a transaction.  Those
 * made over another connection are the cleaner's.
 */
static List *
find_orphans(Oid subid)
{
	List	   *orphans = NIL;
	ListCell   *lc;

	foreach(lc, catalog_slots(subid))
	{
		SlotRow    *slot = lfirst(lc);

		if (slot->conninfo == NULL && !slot_is_linked(slot) &&
			pool_claim_orphan(slot->subid, slot->slot_id,
							  NameStr(slot->slot_name)))
			orphans = lappend(orphans, slot);
		pool_release_orphan();
	}
	return orphans;
}

bool
slot_has_orphans(Oid subid)
{
	return find_orphans(subid) != NIL;
}

/* End whoever creates the slot there for a worker that is gone. */
static void
end_creation(Publisher *conn, const char *slot_name)
{
	if (publisher_version(conn) >= 140000)
		(void) publisher_query(conn,
							   psprintf("SELECT pg_catalog.pg_terminate_backend(pid, %d)"
										" FROM pg_catalog.pg_stat_activity"
										" WHERE application_name = %s",
										CREATION_PATIENCE,
										publisher_literal(conn, slot_name)));
}

/*
 * Is the connection's server the one that has the slot, and does nobody there
 * create it just now, for a worker that is gone?  Else "it does not exist"
 * would say nothing.
 */
static bool
may_drop(Publisher *conn, const SlotRow *slot, char **message)
{
	PublisherResult *res;

	if (slot->publisher_sysid != 0 &&
		slot->publisher_sysid != publisher_identity(conn)->sysid)
	{
		*message = "the subscription's publisher is another server now";
		return false;
	}
	res = publisher_query(conn,
						  psprintf("SELECT FROM pg_catalog.pg_stat_activity"
								   " WHERE application_name = %s AND state = 'active'",
								   publisher_literal(conn,
													 NameStr(slot->slot_name))));
	if (slot->state == SLOT_CREATING && res->nrows > 0)
	{
		*message = "it is still being created";
		return false;
	}
	return true;
}

bool
slot_drop_orphan_by_name(Publisher *conn, const SlotRow *slot, char **message)
{
	return may_drop(conn, slot, message) &&
		slot_drop_by_name(conn, NameStr(slot->slot_name), message);
}

/* Drop one orphan over 'conn', if nobody else is at it. */
static bool
drop_orphan(Publisher *conn, const SlotRow *slot)
{
	MemoryContext caller = CurrentMemoryContext;
	SlotRow		again;
	char	   *message;
	bool		gone;

	/* Another is at it; if that fails it is to be looked at again. */
	if (!pool_claim_orphan(slot->subid, slot->slot_id,
						   NameStr(slot->slot_name)))
		return false;

	test_point(POINT_orphan_claimed, NameStr(slot->slot_name));

	/*
	 * Now that it is ours: is it still there, and still an orphan?  The lock
	 * makes whoever alters or drops the subscription come before or after, as
	 * in claim_step() in worker.c.
	 */
	StartTransactionCommand();
	session_lock_subscription(slot->subid);
	gone = !catalog_get_slot(slot->subid, slot->slot_id, &again) ||
		slot_is_linked(&again);

	/*
	 * What made it an orphan may have been committed by a process that died
	 * before the flush: it must be on disk before the slot goes (section 7,
	 * Durability).
	 */
	if (!gone && guard_is_on("durable_drop"))
	{
		(void) GetTopTransactionId();
		ForceSyncCommit();
	}
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
	if (!gone)
	{
		test_point(POINT_orphan_drop, NameStr(slot->slot_name));
		gone = slot_drop_orphan_by_name(conn, slot, &message);
		test_point(POINT_orphan_dropped, NameStr(slot->slot_name));
		slot_record_drop(slot->subid, slot->slot_id, NameStr(slot->slot_name),
					gone, message);
		test_point(POINT_orphan_forgotten, NameStr(slot->slot_name));
		if (!gone)
			ereport(LOG,
					errmsg("could not drop orphaned replication slot \"%s\" on the publisher: %s",
						   NameStr(slot->slot_name), message));
	}
	pool_release_orphan();
	return gone;
}

int
slot_drop_orphans(Session *session)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext context = AllocSetContextCreate(caller,
												  "reuse_sync orphans",
												  ALLOCSET_SMALL_SIZES);
	List	   *orphans;
	ListCell   *lc;
	int			left = 0;

	StartTransactionCommand();
	MemoryContextSwitchTo(context);
	orphans = catalog_hold() ? find_orphans(session->sub->oid) : NIL;
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);

	if (orphans != NIL)
	{
		session_connect(session);
		pool_set_phase(PHASE_DROPPING_SLOTS);
	}
	foreach(lc, orphans)
	{
		if (!drop_orphan(session->sql, lfirst(lc)))
			left++;
	}
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
	return left;
}

/* --- slots that no worker drops --- */

/* Somebody wants us to stop. */
static bool
is_interrupted(void)
{
	return pool_let_go_requested() || pool_leave_requested();
}

/* An orphan that no worker drops, and a way to its publisher. */
typedef struct AbandonedSlot
{
	SlotRow	   *row;
	const char *conninfo;
	bool		must_use_password;
	const char *main_slot;		/* of a subscription that is still there */
} AbandonedSlot;

/*
 * Drop one.  A copy of this server may have the same subscription and go on
 * with it: then the subscription's own slot is in use.  If the subscription is
 * gone, the same has happened, or will happen, to the original.
 */
static bool
drop_abandoned_slot(const AbandonedSlot *slot)
{
	Publisher  *conn;
	char	   *reason;
	bool		gone = false;

	conn = publisher_connect(slot->conninfo, false, slot->must_use_password,
							 EXTENSION_NAME);
	PG_TRY();
	{
		if (slot->main_slot == NULL ||
			lease_is_free(conn, slot->main_slot, &reason))
		{
			if (slot->row->state == SLOT_CREATING)
				end_creation(conn, NameStr(slot->row->slot_name));
			gone = drop_orphan(conn, slot->row);
		}
		else
			slot_record_drop(slot->row->subid, slot->row->slot_id,
							 NameStr(slot->row->slot_name), false, reason);
	}
	PG_FINALLY();
	{
		publisher_disconnect(conn);
	}
	PG_END_TRY();
	return gone;
}

/* The same; errors are the slot's, not ours. */
static bool
try_to_drop_abandoned_slot(const AbandonedSlot *slot)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool gone = false;

	PG_TRY();
	{
		gone = drop_abandoned_slot(slot);
	}
	PG_CATCH();
	{
		ErrorData  *edata;
		bool		interrupted;

		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		interrupted = edata->sqlerrcode == ERRCODE_QUERY_CANCELED &&
			is_interrupted();
		if (!interrupted && publisher_is_interrupt(edata))
			PG_RE_THROW();
		FlushErrorState();
		AbortOutOfAnyTransaction();
		MemoryContextSwitchTo(context);
		pool_release_orphan();
		if (!interrupted)
			slot_record_drop(slot->row->subid, slot->row->slot_id,
							 NameStr(slot->row->slot_name), false,
							 edata->message);
	}
	PG_END_TRY();
	return gone;
}

/*
 * Those of subscriptions that are gone, disabled, or were elsewhere, in a
 * transaction.  A subscription that has been parted from its slot has nothing
 * on the publisher any more that would be ours to drop.
 *
 * Where a subscription was before, its slot is in use only if another server
 * has it.  The connection that it has now may lead to the same publisher, by
 * another name or with a new password, and is tried next.
 */
static List *
find_abandoned(void)
{
	List	   *result = NIL;
	ListCell   *lc;

	foreach(lc, catalog_slots(InvalidOid))
	{
		SlotRow    *row = lfirst(lc);
		Subscription *sub = GetSubscription(row->subid, true);
		AbandonedSlot *slot;

		if (slot_is_linked(row) || (sub != NULL && sub->slotname == NULL))
			continue;
		if (row->conninfo != NULL)
		{
			slot = palloc0(sizeof(AbandonedSlot));
			slot->row = row;
			slot->conninfo = row->conninfo;
			slot->must_use_password = row->must_use_password;
			slot->main_slot = sub ? sub->slotname : NULL;
			result = lappend(result, slot);
		}

		/* If it is enabled its workers see to the others. */
		if (sub != NULL && (!sub->enabled || row->conninfo != NULL))
		{
			slot = palloc0(sizeof(AbandonedSlot));
			slot->row = row;
			slot->conninfo = sub->conninfo;
			slot->must_use_password = compat_must_use_password(sub);
			slot->main_slot = sub->enabled &&
				lease_is_held(sub->oid) ? NULL : sub->slotname;
			result = lappend(result, slot);
		}
	}
	return result;
}

bool
slot_drop_abandoned(int *left)
{
	MemoryContext context = CurrentMemoryContext;
	List	   *slots;
	ListCell   *lc;
	const SlotRow *gone = NULL;
	bool		here;

	StartTransactionCommand();
	here = catalog_hold();
	MemoryContextSwitchTo(context);
	slots = here ? find_abandoned() : NIL;
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);

	*left = 0;
	foreach(lc, slots)
	{
		const AbandonedSlot *slot = lfirst(lc);

		if (is_interrupted())
			return false;
		if (slot->row == gone)
			continue;
		pool_set_phase(PHASE_DROPPING_SLOTS);
		if (try_to_drop_abandoned_slot(slot))
			gone = slot->row;
		else if (lnext(slots, lc) == NULL ||
				 ((AbandonedSlot *) lfirst(lnext(slots, lc)))->row != slot->row)
			(*left)++;
	}
	return !is_interrupted();
}

List *
slot_drop_for_command(const Subscription *sub, List *slots)
{
	MemoryContext context = CurrentMemoryContext;
	Publisher  *volatile conn = NULL;
	List	   *volatile gone = NIL;

	PG_TRY();
	{
		ListCell   *lc;
		char	   *message = NULL;
		bool		ours;

		conn = publisher_connect_until(sub->conninfo,
									   compat_must_use_password(sub),
									   EXTENSION_NAME,
									   TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
																   COMMAND_PATIENCE));
		ours = lease_is_held(sub->oid) ||
			lease_is_free(conn, sub->slotname, &message);
		foreach(lc, slots)
		{
			SlotRow    *slot = lfirst(lc);

			if (ours && slot->state == SLOT_CREATING)
				end_creation(conn, NameStr(slot->slot_name));
			if (ours && slot_drop_orphan_by_name(conn, slot, &message))
				gone = lappend(gone, slot);
			else
				elog(DEBUG1, "could not drop replication slot \"%s\": %s",
					 NameStr(slot->slot_name), message);
		}
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		publisher_disconnect(conn);
		conn = NULL;
		if (publisher_is_interrupt(edata))
			PG_RE_THROW();
		FlushErrorState();
		elog(DEBUG1, "could not drop replication slots of subscription \"%s\": %s",
			 sub->name, edata->message);
	}
	PG_END_TRY();
	publisher_disconnect(conn);
	return gone;
}
