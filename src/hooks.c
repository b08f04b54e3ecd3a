/*-------------------------------------------------------------------------
 *
 * hooks.c
 *	  What the library does in processes that are not of the pool.
 *
 * In apply workers: before the first commit of such a process, with the
 * catalog at hand, it is settled whether the database has the extension.  If
 * so the worker's max_sync_workers_per_subscription is forced to 0, so that it
 * leaves the tables to us (design.md section 3); the pool is told that, and
 * when it streams (lease.h).
 *
 * In table-sync workers of the server's own: a table that the pool synchronizes
 * anew is none of theirs, whatever has become of the pool.
 *
 * In backends: commands that make work wake the launcher when they commit, and
 * some do more (commands.c); CREATE, ALTER and DROP EXTENSION end the database's
 * apply workers, which come back and settle anew.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/hooks.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
#include "catalog/pg_extension.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "replication/logicalworker.h"
#include "replication/worker_internal.h"
#include "tcop/utility.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"

#include "at_commit.h"
#include "catalog.h"
#include "commands.h"
#include "compat.h"
#include "hooks.h"
#include "lease.h"
#include "left_behind.h"
#include "pool.h"
#include "pool_apply.h"
#include "settings.h"
#include "testing.h"

static ProcessUtility_hook_type prev_utility_hook = NULL;
static object_access_hook_type prev_access_hook = NULL;

/* --- apply workers --- */

/*
 * The first commit of an apply worker: it has not yet looked at any table,
 * and can still be kept from starting table-sync workers.
 */
static void
settle_apply_worker(void)
{
	bool		ours = catalog_exists(WARNING);

	test_point(POINT_settle, "");
	if (ours)
		SetConfigOption("max_sync_workers_per_subscription", "0",
						PGC_POSTMASTER, PGC_S_OVERRIDE);
	pool_publish_apply_worker(MyLogicalRepWorker->subid, ours);
	catalog_note_standing();
	if (ours)
		lease_follow_apply_worker();
}

/* --- the server's table-sync workers --- */

/* Is this a relation of the extension, of whichever version? */
static bool
is_of_extension(Oid relid)
{
	Oid			extension = get_extension_oid(EXTENSION_NAME, true);

	return OidIsValid(extension) &&
		getExtensionOfObject(RelationRelationId, relid) == extension;
}

/*
 * The first commit of a table-sync worker, which has not yet looked at its
 * table.  One that is synchronized anew may hold the rows that are to go: the
 * server would copy all of them once more.  So the table waits for the pool,
 * as those do whose copy the server cannot finish.
 */
static void
refuse_resynced_table(void)
{
	Oid			subid = MyLogicalRepWorker->subid;
	Oid			relid = MyLogicalRepWorker->relid;
	Oid			nspid = get_namespace_oid(EXTENSION_NAME, true);
	Oid			resync = OidIsValid(nspid) ?
	get_relname_relid("resync", nspid) : InvalidOid;

	if (!OidIsValid(resync) || !is_of_extension(resync) ||
		!catalog_resync_is_begun(subid, relid))
		return;
	ereport(ERROR,
			errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			errmsg("table \"%s.%s\" is left to \"%s\", which synchronizes it anew",
				   get_namespace_name(get_rel_namespace(relid)),
				   get_rel_name(relid), EXTENSION_NAME),
			errdetail("It may hold rows that are on the publisher as well."),
			reuse_sync_enabled ?
			errhint("See to it that the extension is of the library's version.") :
			errhint("Set reuse_sync.enabled to on and restart the server."));
}

/* --- the end of a transaction --- */

/* With reuse_sync.enabled off there is nothing else to do. */
static void
at_commit_while_off(XactEvent event, void *arg)
{
	static bool reported = false;

	if (event != XACT_EVENT_PRE_COMMIT || reported)
		return;
	reported = true;
	if (compat_is_apply_worker())
		left_behind_report(MyLogicalRepWorker->subid);
	else if (compat_is_tablesync_worker())
		refuse_resynced_table();
}

static void
at_transaction_event(XactEvent event, void *arg)
{
	static bool settled = false;

	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			if (!settled)
			{
				settled = true;
				if (compat_is_apply_worker())
					settle_apply_worker();
				else if (compat_is_tablesync_worker())
					refuse_resynced_table();
			}
			at_commit_prepare();
			test_point_at_commit();
			break;
		case XACT_EVENT_PRE_PREPARE:
			if (at_commit_restarts_apply_workers())
				ereport(ERROR,
						errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						errmsg("cannot PREPARE a transaction that has created or dropped extension \"%s\"",
							   EXTENSION_NAME));
			break;
		case XACT_EVENT_COMMIT:
			at_commit_act();
			/* It may have made a table ready, see wait.c. */
			if (compat_is_apply_worker())
				pool_announce_change();
			break;
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			at_commit_forget();
			break;
		default:
			break;
	}
}

/* --- commands --- */

static void
process_utility(PlannedStmt *pstmt, const char *query_string,
				bool read_only_tree, ProcessUtilityContext context,
				ParamListInfo params, QueryEnvironment *query_env,
				DestReceiver *dest, QueryCompletion *qc)
{
	CommandEffect effect;

	command_begins(pstmt->utilityStmt,
				   context != PROCESS_UTILITY_TOPLEVEL ||
				   IsTransactionBlock(), &effect);
	if (prev_utility_hook)
		prev_utility_hook(pstmt, query_string, read_only_tree, context,
						  params, query_env, dest, qc);
	else
		standard_ProcessUtility(pstmt, query_string, read_only_tree, context,
								params, query_env, dest, qc);
	command_has_ended(&effect);
}

/* --- DROP EXTENSION, however it comes about --- */

static void
before_drop_of_slot_catalog(void)
{
	List	   *slots = catalog_slots(InvalidOid);

	if (slots == NIL)
		return;
	ereport(ERROR,
			errcode(ERRCODE_OBJECT_IN_USE),
			errmsg("cannot drop extension \"%s\" because tables are half done or replication slots remain",
				   EXTENSION_NAME),
			errdetail_plural("There is %d replication slot, for example \"%s\".",
							 "There are %d replication slots, for example \"%s\".",
							 list_length(slots), list_length(slots),
							 NameStr(((SlotRow *) linitial(slots))->slot_name)),
			reuse_sync_enabled ?
			errhint("Run CALL reuse_sync.drain() first.") :
			errhint("Set reuse_sync.enabled to on, restart the server, and run CALL reuse_sync.drain() first."));
}

/* The server would copy into what the table still holds. */
static void
before_drop_of_resyncs(void)
{
	int			n = catalog_begun_resyncs();

	if (n == 0)
		return;
	ereport(ERROR,
			errcode(ERRCODE_OBJECT_IN_USE),
			errmsg("cannot drop extension \"%s\" because tables are being synchronized anew",
				   EXTENSION_NAME),
			errhint("Run CALL reuse_sync.drain() first."));
}

static void
on_object_access(ObjectAccessType access, Oid classid, Oid objectid,
				 int subid, void *arg)
{
	if (prev_access_hook)
		prev_access_hook(access, classid, objectid, subid, arg);
	if (access != OAT_DROP)
		return;

	/* The catalog's relations go before the extension itself does. */
	if (classid == RelationRelationId && subid == 0)
	{
		Oid			nspid = get_namespace_oid(EXTENSION_NAME, true);

		/* Anybody may call a table of his own by that name. */
		if (OidIsValid(nspid) &&
			objectid == get_relname_relid("slot_catalog", nspid) &&
			is_of_extension(objectid))
			before_drop_of_slot_catalog();
		if (OidIsValid(nspid) &&
			objectid == get_relname_relid("resync", nspid) &&
			is_of_extension(objectid))
			before_drop_of_resyncs();
	}
	else if (classid == ExtensionRelationId && reuse_sync_enabled &&
			 objectid == get_extension_oid(EXTENSION_NAME, true))
		at_commit_restart_apply_workers();
}

void
hooks_install(void)
{
	prev_access_hook = object_access_hook;
	object_access_hook = on_object_access;
	if (!reuse_sync_enabled)
	{
		RegisterXactCallback(at_commit_while_off, NULL);
		return;
	}
	prev_utility_hook = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
	RegisterXactCallback(at_transaction_event, NULL);
}
