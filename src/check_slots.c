/*-------------------------------------------------------------------------
 *
 * check_slots.c
 *	  Part of check(): our catalog of slots and tables, and the slots that a
 *	  publisher has.
 *
 * Workers create and drop slots meanwhile.  A slot's row comes before the slot
 * and goes after it, and no number is given out twice.  So a slot is unknown if
 * the publisher still has it after there was no row; and one is missing if its
 * row is still there after nobody held it.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/check_slots.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"

#include "catalog.h"
#include "check.h"
#include "compat.h"
#include "failure.h"
#include "pool.h"
#include "settings.h"
#include "slot_orphans.h"
#include "target.h"

/* How long the publisher of a subscription that is gone may take, in ms. */
#define PUBLISHER_PATIENCE	10000

/* What retains more WAL than this, in bytes, or than max_wal_size there. */
#define MUCH_WAL	INT64CONST(1073741824)

static char *
slot_object(const char *slot_name)
{
	return psprintf("replication slot \"%s\"", slot_name);
}

/* --- what does not take a publisher --- */

/*
 * Can the publisher of a subscription that is gone be reached?  Null if so,
 * else why not.
 */
static char *
try_to_reach(const SlotRow *slot)
{
	MemoryContext context = CurrentMemoryContext;
	char	   *volatile message = NULL;

	PG_TRY();
	{
		publisher_disconnect(publisher_connect_until(slot->conninfo,
													 slot->must_use_password,
													 EXTENSION_NAME,
													 TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
																				 PUBLISHER_PATIENCE)));
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		if (publisher_is_interrupt(edata))
			PG_RE_THROW();
		FlushErrorState();
		message = edata->message;
	}
	PG_END_TRY();
	return message;
}

/* A slot of a subscription that is not there any more. */
static void
check_abandoned_slot(const SlotRow *slot, List **conninfos, List **messages)
{
	char	   *object = slot_object(NameStr(slot->slot_name));
	ListCell   *lc;
	ListCell   *lm;
	char	   *message;

	if (slot->conninfo == NULL)
	{
		check_add(CHECK_ERROR, object,
				  "its subscription is gone, and where its publisher is is not known",
				  psprintf("Drop it on the publisher if it is there, with SELECT pg_drop_replication_slot('%s'), and have it forgotten here with SELECT reuse_sync.drop_orphaned_slots().",
						   NameStr(slot->slot_name)));
		return;
	}
	forboth(lc, *conninfos, lm, *messages)
	{
		if (strcmp(lfirst(lc), slot->conninfo) == 0)
			break;
	}
	if (lc != NULL)
		message = lfirst(lm);
	else
	{
		message = try_to_reach(slot);
		*conninfos = lappend(*conninfos, slot->conninfo);
		*messages = lappend(*messages, message);
	}
	if (message != NULL)
		check_add(CHECK_ERROR, object,
				  psprintf("its subscription is gone, and it cannot be dropped: %s",
						   message),
				  "It retains WAL on the publisher. It will be dropped once that can be reached.");
	else
		check_add(CHECK_NOTICE, object,
				  "its subscription is gone, and it is still to be dropped",
				  "Run SELECT reuse_sync.drop_orphaned_slots(), or wait for the pool to do so.");
}

/* The pool is off: nobody goes on with what it has begun. */
static const char *
hint_to_go_on(void)
{
	return reuse_sync_preloaded ?
		"Set reuse_sync.enabled to on, restart the server and run CALL reuse_sync.drain() in this database before switching it off again." :
		"Add reuse_sync to shared_preload_libraries, restart the server and run CALL reuse_sync.drain() in this database before taking it out again.";
}

static void
check_left_table(Oid relid, const char *problem)
{
	char	   *nspname = get_namespace_name(get_rel_namespace(relid));
	char	   *relname = get_rel_name(relid);

	if (nspname != NULL && relname != NULL)
		check_add(CHECK_ERROR, check_table_name(nspname, relname), problem,
				  hint_to_go_on());
}

static void
check_left_slot(const SlotRow *slot, bool linked)
{
	if (linked)
		check_left_table(slot->relid,
						 "it was half done when the pool was switched off, and the server cannot finish it");
	check_add(CHECK_ERROR, slot_object(NameStr(slot->slot_name)),
			  "the pool, which is off, has left it on the publisher, where it retains WAL",
			  linked ? hint_to_go_on() :
			  "Run SELECT reuse_sync.drop_orphaned_slots().");
}

static void
check_left_resyncs(void)
{
	ListCell   *lc;

	foreach(lc, catalog_resyncs(InvalidOid))
	{
		ResyncRow  *resync = lfirst(lc);

		if (resync->stage >= RESYNC_SET_BACK)
			check_left_table(resync->relid, reuse_sync_preloaded ?
							 "it was being synchronized anew when the pool was switched off, and waits for it" :
							 "it was being synchronized anew when the library was taken out, so that the server copies it into the rows it held");
	}
}

static void
check_failed_tables(void)
{
	int			n;

	/* With the rights of pg_monitor, which may read the view. */
	n = check_query("SELECT n.nspname, c.relname, t.subname, t.last_error,"
					" t.next_retry, t.attempts > 0, t.state = 'ready'"
					" FROM reuse_sync.tables t"
					" JOIN pg_catalog.pg_class c ON c.oid = t.relid"
					" JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
					" WHERE t.last_error IS NOT NULL AND t.state <> 'synchronized'"
					" ORDER BY t.last_error_time, 1, 2");
	for (int i = 0; i < n; i++)
	{
		char	   *error = check_value(i, 3);
		char	   *next_retry = check_value(i, 4);
		char	   *hint = failure_split_hint(error);
		bool		failed = check_value(i, 5)[0] == 't';

		if (hint != NULL && strcmp(hint, HINT_TO_CHECK) == 0)
			hint = NULL;

		/* See resync.c: this is what an error leaves of a table that is ready. */
		if (check_value(i, 6)[0] == 't')
		{
			check_add(CHECK_WARNING,
					  check_table_name(check_value(i, 0), check_value(i, 1)),
					  psprintf("it was not synchronized anew for subscription \"%s\": %s",
							   check_value(i, 2), error),
					  psprintf("%s%sRun SELECT reuse_sync.resync_table(%s, %s) again.",
							   hint ? hint : "", hint ? " " : "",
							   quote_literal_cstr(check_value(i, 2)),
							   quote_literal_cstr(quote_qualified_identifier(check_value(i, 0),
																			 check_value(i, 1)))));
			continue;
		}
		check_add(failed ? CHECK_ERROR : CHECK_WARNING,
				  check_table_name(check_value(i, 0), check_value(i, 1)),
				  psprintf(failed ?
						   "its synchronization for subscription \"%s\" has failed: %s" :
						   "its synchronization for subscription \"%s\" waits: %s",
						   check_value(i, 2), error),
				  psprintf("%s%sIt is tried again %s%s.",
						   hint ? hint : "", hint ? " " : "",
						   next_retry ? "at " : "now",
						   next_retry ? next_retry : ""));
	}
}

void
check_slot_catalog(void)
{
	List	   *conninfos = NIL;
	List	   *messages = NIL;
	ListCell   *lc;

	foreach(lc, catalog_slots(InvalidOid))
	{
		SlotRow    *slot = lfirst(lc);
		bool		linked = slot_is_linked(slot);

		if (GetSubscription(slot->subid, true) == NULL)
			check_abandoned_slot(slot, &conninfos, &messages);
		else if (!pool_exists())
			check_left_slot(slot, linked);
	}
	if (!pool_exists())
		check_left_resyncs();
	check_failed_tables();
}

/* --- what a publisher has --- */

enum
{
	PUBLISHED_NAME, PUBLISHED_ACTIVE, PUBLISHED_RETAINED,
	PUBLISHED_RETAINED_TEXT, PUBLISHED_STATUS, PUBLISHED_SUBID,
	PUBLISHED_SLOT_ID
};

/*
 * All slots there; of those that are named like ours, the numbers in the name.
 */
static PublisherResult *
slots_of_publisher(Publisher *conn)
{
	return publisher_query(conn,
						   psprintf("SELECT s.slot_name, s.active,"
									" pg_catalog.pg_wal_lsn_diff(l.lsn, s.restart_lsn)::pg_catalog.int8,"
									" pg_catalog.pg_size_pretty(pg_catalog.pg_wal_lsn_diff(l.lsn, s.restart_lsn)),"
									" s.wal_status, m.numbers[1], m.numbers[2]"
									" FROM pg_catalog.pg_replication_slots s"
									" CROSS JOIN (SELECT CASE WHEN pg_catalog.pg_is_in_recovery()"
									" THEN pg_catalog.pg_last_wal_replay_lsn()"
									" ELSE pg_catalog.pg_current_wal_lsn() END) l(lsn)"
									" LEFT JOIN LATERAL pg_catalog.regexp_matches(s.slot_name::pg_catalog.text,"
									" '^reuse_sync_([0-9]{1,10})_([0-9]{1,19})_" UINT64_FORMAT "$') m(numbers)"
									" ON true ORDER BY 1",
									GetSystemIdentifier()));
}

static int64
much_wal(Publisher *conn)
{
	PublisherResult *res =
	publisher_query(conn,
					"SELECT pg_catalog.pg_size_bytes(pg_catalog.current_setting('max_wal_size'))");

	return Min(MUCH_WAL, strtoll(publisher_text(res, 0, 0), NULL, 10));
}

/* A slot that nobody uses, and what it keeps the publisher from. */
static void
check_inactive_slot(PublisherResult *res, int row, int64 much)
{
	char	   *name = publisher_text(res, row, PUBLISHED_NAME);
	char	   *retained = publisher_value(res, row, PUBLISHED_RETAINED);
	char	   *status = publisher_value(res, row, PUBLISHED_STATUS);
	bool		lost = status != NULL && strcmp(status, "lost") == 0;

	if (publisher_is_true(res, row, PUBLISHED_ACTIVE))
		return;
	if (lost)
		check_add(CHECK_ERROR, slot_object(name),
				  "the publisher has removed WAL that it needs",
				  publisher_value(res, row, PUBLISHED_SUBID) ?
				  "The pool copies its table anew." :
				  "Whoever uses it must start over with a new slot; see max_slot_wal_keep_size on the publisher.");
	else if (retained != NULL && strtoll(retained, NULL, 10) > much)
		check_add(CHECK_WARNING, slot_object(name),
				  psprintf("nobody uses it, and it retains %s of WAL on the publisher",
						   publisher_text(res, row, PUBLISHED_RETAINED_TEXT)),
				  publisher_value(res, row, PUBLISHED_SUBID) ?
				  "Run SELECT reuse_sync.drop_orphaned_slots(), unless reuse_sync.tables shows that a table needs it." :
				  "Have its subscriber go on, or drop it on the publisher if there is none any more.");
}

static bool
still_exists(Publisher *conn, const char *slot_name)
{
	return publisher_query(conn,
						   psprintf("SELECT FROM pg_catalog.pg_replication_slots"
									" WHERE slot_name = %s",
									publisher_literal(conn,
													  slot_name)))->nrows > 0;
}

/* A slot named as ours are: does our catalog know it? */
static void
check_known(Publisher *conn, PublisherResult *res, int row)
{
	char	   *name = publisher_text(res, row, PUBLISHED_NAME);
	Oid			subid;
	int64		slot_id;
	Subscription *sub;
	SlotRow		known;

	if (publisher_value(res, row, PUBLISHED_SUBID) == NULL)
		return;
	subid = strtoul(publisher_text(res, row, PUBLISHED_SUBID), NULL, 10);
	slot_id = strtoll(publisher_text(res, row, PUBLISHED_SLOT_ID), NULL, 10);

	/* Those of other databases are in the catalogs there. */
	sub = GetSubscription(subid, true);
	if ((sub != NULL && sub->dbid != MyDatabaseId) ||
		catalog_get_slot(subid, slot_id, &known) ||
		!still_exists(conn, name))
		return;
	check_add(CHECK_WARNING, slot_object(name),
			  sub != NULL ?
			  "it is one of ours on the publisher, but not in reuse_sync.slots, so that nobody will drop it" :
			  "it is one of ours on the publisher, but neither its subscription nor a row in reuse_sync.slots of this database is there",
			  psprintf("%sDrop it on the publisher, with SELECT pg_drop_replication_slot('%s').",
					   sub != NULL ? "" :
					   "See reuse_sync.slots in the other databases; if it is in none of them: ",
					   name));
}

static bool
publisher_has(PublisherResult *res, const char *slot_name)
{
	for (int row = 0; row < res->nrows; row++)
		if (strcmp(publisher_text(res, row, PUBLISHED_NAME), slot_name) == 0)
			return true;
	return false;
}

/* A slot of the catalog as it was before the publisher was asked. */
static void
check_exists(const SlotRow *slot, PublisherResult *res, Publisher *conn)
{
	char	   *object = slot_object(NameStr(slot->slot_name));
	SlotRow		again;

	/* One that is being created need not be there. */
	if (slot->state == SLOT_CREATING || slot->publisher_sysid == 0 ||
		pool_slot_is_held(MyDatabaseId, slot->subid, slot->slot_id) ||
		!catalog_get_slot(slot->subid, slot->slot_id, &again))
		return;
	if (slot->publisher_sysid != publisher_identity(conn)->sysid)
		check_add(CHECK_ERROR, object,
				  "it is on another server than the one the subscription's connection leads to now",
				  psprintf("Drop it there, with SELECT pg_drop_replication_slot('%s').",
						   NameStr(slot->slot_name)));
	else if (!publisher_has(res, NameStr(slot->slot_name)))
		check_add(CHECK_WARNING, object,
				  slot_is_linked(&again) ?
				  "the publisher does not have it any more, so that a table whose copy is done must be copied anew" :
				  "it is in reuse_sync.slots, but the publisher does not have it",
				  slot_is_linked(&again) ?
				  "The pool does that, if the table was empty before it was copied; see reuse_sync.tables." :
				  "Run SELECT reuse_sync.drop_orphaned_slots().");
}

void
check_publisher_slots(const Subscription *sub, Publisher *conn)
{
	List	   *known = catalog_slots(sub->oid);
	PublisherResult *res = slots_of_publisher(conn);
	int64		much = much_wal(conn);
	ListCell   *lc;

	for (int row = 0; row < res->nrows; row++)
	{
		check_inactive_slot(res, row, much);
		check_known(conn, res, row);
	}
	foreach(lc, known)
		check_exists(lfirst(lc), res, conn);

	if (sub->enabled && sub->slotname == NULL)
		check_add(CHECK_ERROR, check_subscription_name(sub),
				  "it is enabled but has no replication slot",
				  psprintf("Run ALTER SUBSCRIPTION %s SET (slot_name = ...).",
						   quote_identifier(sub->name)));
	else if (sub->enabled && !publisher_has(res, sub->slotname))
		check_add(CHECK_ERROR, check_subscription_name(sub),
				  psprintf("its replication slot \"%s\" is not there on the publisher",
						   sub->slotname),
				  "Changes since it was lost are missing here: create it there, and synchronize the tables anew.");
}
