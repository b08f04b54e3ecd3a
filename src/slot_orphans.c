/*-------------------------------------------------------------------------
 *
 * slot_orphans.c
 *	  Drops slots that nobody holds or needs.
 *
 * An orphan is a slot whose process is gone, or could not drop it.  The workers
 * of its subscription drop it; where there are none the cleaner does, and a
 * command that ends the subscription.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/slot_orphans.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_subscription_rel.h"
#include "utils/memutils.h"

#include "compat.h"
#include "lease.h"
#include "pool.h"
#include "settings.h"
#include "slot_orphans.h"
#include "sync_slot.h"
#include "testing.h"

/* How long to wait for the end of a slot's creation, in ms. */
#define CREATION_PATIENCE	1000

/* How long a user's command waits for the publisher, in ms. */
#define COMMAND_PATIENCE	1000

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
		/* It is tried again every so often: the same is said once. */
		if (!gone)
			ereport(slot->last_error == NULL ||
					strcmp(slot->last_error, message) != 0 ? LOG : DEBUG1,
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
