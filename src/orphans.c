/*-------------------------------------------------------------------------
 *
 * orphans.c
 *	  drop_orphaned_slots(): drops what the pool has not dropped yet.
 *
 * A slot that no live worker holds and no unfinished table needs stays an
 * orphan for ever, so that it can be dropped here as well as by the pool.  The
 * row of a slot that is gone is left to the pool, which finds that out: only
 * one process at a time may change it, and our transaction may be a long one.
 *
 * Where the publisher of a slot is is lost if its subscription goes while the
 * library is not there to keep that: when it is switched off, and in
 * pg_upgrade, which gives the subscription another oid.  Nobody touches such a
 * row until somebody asks for it to be forgotten.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/orphans.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "catalog/pg_subscription.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "replication/origin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "catalog.h"
#include "compat.h"
#include "hooks.h"
#include "lease.h"
#include "orphans.h"
#include "pool.h"
#include "publisher.h"
#include "rights.h"
#include "settings.h"
#include "slot_orphans.h"

PG_FUNCTION_INFO_V1(reuse_sync_drop_orphaned_slots);

/* How long a publisher may take, and the pool to note that it is done, ms. */
#define PUBLISHER_PATIENCE	30000
#define POOL_PATIENCE		5000

/* A slot to drop, and where. */
typedef struct Orphan
{
	SlotRow	   *slot;
	char	   *conninfo;
	bool		must_use_password;	/* see publisher_connect */
	char	   *main_slot;		/* nobody may stream from it (lease.h), or null */
	bool		done;			/* dropped, or given up */
} Orphan;

/*
 * Is the slot an orphan?  First it must be found to be held by nobody, and
 * then, read anew, needed by no table.
 */
static bool
is_orphan(const SlotRow *slot, SlotRow *again)
{
	return !pool_slot_is_held(MyDatabaseId, slot->subid, slot->slot_id) &&
		catalog_get_slot(slot->subid, slot->slot_id, again) &&
		!slot_is_linked(again);
}

/*
 * The orphans of a subscription (InvalidOid: of all that are the user's, and
 * for a superuser of those that are gone), with a way to the publisher.
 */
static List *
find_orphans(Oid subid)
{
	List	   *orphans = NIL;
	ListCell   *lc;

	foreach(lc, catalog_slots(subid))
	{
		Orphan	   *orphan = palloc0(sizeof(Orphan));
		SlotRow    *again = palloc(sizeof(SlotRow));
		Subscription *sub;

		if (!is_orphan(lfirst(lc), again))
			continue;
		orphan->slot = again;
		sub = GetSubscription(again->subid, true);
		if (sub != NULL && sub->slotname != NULL &&
			object_ownercheck(SubscriptionRelationId, sub->oid, GetUserId()))
		{
			bool		moved = again->conninfo != NULL;

			/* It may be where the subscription was before. */
			orphan->conninfo = moved ? again->conninfo : sub->conninfo;
			orphan->must_use_password = moved ? again->must_use_password :
				compat_must_use_password(sub);
			if (moved || !pool_exists() || !lease_is_held(sub->oid))
				orphan->main_slot = sub->slotname;
		}
		else if (sub == NULL && superuser())
		{
			orphan->conninfo = again->conninfo;
			orphan->must_use_password = again->must_use_password;
		}
		if (orphan->conninfo != NULL)
			orphans = lappend(orphans, orphan);
	}
	return orphans;
}

static bool
same_place(const Orphan *a, const Orphan *b)
{
	return strcmp(a->conninfo, b->conninfo) == 0 &&
		a->must_use_password == b->must_use_password;
}

/*
 * Drop all orphans that are where this one is; returns how many.
 * Touches nothing but the connection, so that an error needs no rollback.
 */
static int
drop_at_publisher(List *orphans, const Orphan *one)
{
	MemoryContext context = CurrentMemoryContext;
	Publisher  *volatile conn = NULL;
	volatile int dropped = 0;
	ListCell   *lc;

	PG_TRY();
	{
		conn = publisher_connect_until(one->conninfo, one->must_use_password,
									   EXTENSION_NAME,
									   TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
																   PUBLISHER_PATIENCE));
		foreach(lc, orphans)
		{
			Orphan	   *orphan = lfirst(lc);
			char	   *message = NULL;

			if (orphan->done || !same_place(orphan, one))
				continue;
			orphan->done = true;
			if ((orphan->main_slot == NULL ||
				 lease_is_free(conn, orphan->main_slot, &message)) &&
				slot_drop_orphan_by_name(conn, orphan->slot, &message))
				dropped++;
			else
			{
				ereport(WARNING,
						errmsg("could not drop replication slot \"%s\" on the publisher: %s",
							   NameStr(orphan->slot->slot_name), message));
				orphan->slot = NULL;
			}
		}
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		publisher_disconnect(conn);
		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		if (publisher_is_interrupt(edata))
			PG_RE_THROW();
		FlushErrorState();
		ereport(WARNING,
				errcode(edata->sqlerrcode),
				errmsg("could not drop replication slots on a publisher: %s",
					   edata->message),
				edata->hint ? errhint("%s", edata->hint) : 0);
		conn = NULL;
		foreach(lc, orphans)
		{
			Orphan	   *orphan = lfirst(lc);

			if (!orphan->done && same_place(orphan, one))
			{
				orphan->done = true;
				orphan->slot = NULL;
			}
		}
	}
	PG_END_TRY();
	publisher_disconnect(conn);
	return dropped;
}

/* Nobody else does it: forget the slots that are gone. */
static void
forget_dropped(List *orphans)
{
	ListCell   *lc;

	foreach(lc, orphans)
	{
		Orphan	   *orphan = lfirst(lc);

		if (orphan->slot == NULL)
			continue;
		catalog_remove_slot(orphan->slot->subid, orphan->slot->slot_id);
		replorigin_drop_by_name(NameStr(orphan->slot->slot_name),
								true, false);
	}
}

/* Have the pool forget them, and give it a moment. */
static void
have_pool_forget(List *orphans)
{
	TimestampTz start = GetCurrentTimestamp();
	bool		there = true;

	pool_hint(MyDatabaseId, true);
	pool_prepare_to_wait();
	while (there && !TimestampDifferenceExceeds(start, GetCurrentTimestamp(),
												POOL_PATIENCE))
	{
		ListCell   *lc;
		SlotRow		row;

		there = false;
		foreach(lc, orphans)
		{
			Orphan	   *orphan = lfirst(lc);

			if (orphan->slot != NULL &&
				catalog_get_slot(orphan->slot->subid, orphan->slot->slot_id,
								 &row))
				there = true;
		}
		if (there)
			pool_wait_for_change(POOL_PATIENCE);
	}
	pool_end_wait();
}

void
orphans_forget_lost(void)
{
	ListCell   *lc;

	foreach(lc, catalog_forget_lost_slots())
	{
		const char *name = NameStr(((SlotRow *) lfirst(lc))->slot_name);

		replorigin_drop_by_name(name, true, false);
		ereport(WARNING,
				errmsg("replication slot \"%s\" may remain on a publisher",
					   name),
				errdetail("Its subscription is gone, and where its publisher is is not known."),
				errhint("If it is there, drop it with pg_drop_replication_slot()."));
	}
}

/*
 * drop_orphaned_slots(subname name) returns bigint
 *
 * Drops the slots of a subscription (null: of all the user owns; for a
 * superuser also of those that are gone) that nobody holds or needs, as far as
 * their publishers let us; what does not work is a warning.  Returns how many
 * are gone.  For a superuser, forgets those whose publisher nobody knows.
 */
Datum
reuse_sync_drop_orphaned_slots(PG_FUNCTION_ARGS)
{
	Oid			subid = InvalidOid;
	List	   *orphans;
	ListCell   *lc;
	int64		dropped = 0;

	PreventCommandDuringRecovery("reuse_sync.drop_orphaned_slots()");
	PreventCommandIfReadOnly("reuse_sync.drop_orphaned_slots()");
	if (!PG_ARGISNULL(0))
		subid = rights_to_subscription(NameStr(*PG_GETARG_NAME(0)), true);
	(void) catalog_exists(ERROR);
	if (!OidIsValid(subid) && superuser())
		orphans_forget_lost();
	orphans = find_orphans(subid);
	if (orphans == NIL)
		PG_RETURN_INT64(0);

	/* What made them orphans must be on disk before they go (section 7). */
	XLogFlush(compat_log_message(EXTENSION_NAME));
	foreach(lc, orphans)
	{
		Orphan	   *orphan = lfirst(lc);

		if (!orphan->done)
			dropped += drop_at_publisher(orphans, orphan);
	}
	if (!pool_exists())
		forget_dropped(orphans);
	else if (dropped > 0)
		have_pool_forget(orphans);
	PG_RETURN_INT64(dropped);
}
