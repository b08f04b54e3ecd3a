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
 * In backends: commands that make work wake the launcher when they commit;
 * DROP SUBSCRIPTION first has the pool let go of the subscription; CREATE, ALTER
 * and DROP EXTENSION end the database's apply workers, which come back and
 * settle anew.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/hooks.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_subscription.h"
#include "commands/dbcommands.h"
#include "commands/extension.h"
#include "commands/subscriptioncmds.h"
#include "miscadmin.h"
#include "replication/logicalworker.h"
#include "replication/origin.h"
#include "replication/worker_internal.h"
#include "storage/lmgr.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "catalog.h"
#include "compat.h"
#include "failure.h"
#include "hooks.h"
#include "lease.h"
#include "left_behind.h"
#include "pool.h"
#include "settings.h"
#include "testing.h"

static ProcessUtility_hook_type prev_utility_hook = NULL;
static object_access_hook_type prev_access_hook = NULL;

/* What the open transaction makes necessary once it has committed. */
static struct
{
	bool		hint;			/* there may be work */
	bool		cleanup;		/* and slots to drop */
	bool		restart_apply_workers;	/* the extension comes or goes */
	List	   *apply_pids;		/* those, collected before the commit */
}			at_commit;

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

/* --- the end of a transaction --- */

/* The apply workers of this database; must run with the catalog at hand. */
static List *
list_apply_workers(void)
{
	Relation	rel = table_open(SubscriptionRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, NULL, 0,
										  NULL);
	HeapTuple	tuple;
	List	   *pids = NIL;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_subscription form = (Form_pg_subscription) GETSTRUCT(tuple);
		LogicalRepWorker *worker;
		int			pid = 0;

		if (form->subdbid != MyDatabaseId)
			continue;
		LWLockAcquire(LogicalRepWorkerLock, LW_SHARED);
		worker = logicalrep_worker_find(form->oid, InvalidOid, true);
		if (worker != NULL && worker->proc != NULL)
			pid = worker->proc->pid;
		LWLockRelease(LogicalRepWorkerLock);
		if (pid != 0)
			pids = lappend_int(pids, pid);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return pids;
}

static void
act_on_commit(void)
{
	ListCell   *lc;

	if (at_commit.restart_apply_workers)
	{
		pool_set_draining(MyDatabaseId, false);
		pool_note_database(MyDatabaseId, DATABASE_UNKNOWN);
	}

	/* Without waiting; the server's launcher brings them back. */
	foreach(lc, at_commit.apply_pids)
	{
		if (kill(lfirst_int(lc), SIGTERM) < 0)
			elog(DEBUG1, "could not signal process %d: %m", lfirst_int(lc));
	}
	if (at_commit.hint || at_commit.cleanup ||
		at_commit.restart_apply_workers)
	{
		pool_hint(MyDatabaseId, at_commit.cleanup);
		pool_announce_change();
	}
}

void
hooks_hint_at_commit(void)
{
	at_commit.hint = true;
}

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
			}
			if (at_commit.restart_apply_workers)
			{
				MemoryContext caller =
				MemoryContextSwitchTo(TopTransactionContext);

				at_commit.apply_pids = list_apply_workers();
				MemoryContextSwitchTo(caller);
				test_point(POINT_apply_workers_listed, "");
			}
			test_point_at_commit();
			break;
		case XACT_EVENT_PRE_PREPARE:
			if (at_commit.restart_apply_workers)
				ereport(ERROR,
						errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						errmsg("cannot PREPARE a transaction that has created or dropped extension \"%s\"",
							   EXTENSION_NAME));
			break;
		case XACT_EVENT_COMMIT:
			act_on_commit();
			memset(&at_commit, 0, sizeof(at_commit));
			/* It may have made a table ready, see wait.c. */
			if (compat_is_apply_worker())
				pool_announce_change();
			break;
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			memset(&at_commit, 0, sizeof(at_commit));
			break;
		default:
			break;
	}
}

/* --- commands --- */

/*
 * The subscription has been parted from its slot, and no apply worker has
 * streamed from that since this server started: this may be a copy of the
 * server that goes on with what is on the publisher.
 */
static void
forget_slots(const Subscription *sub)
{
	List	   *slots = catalog_forget_slots(sub->oid);
	ListCell   *lc;

	foreach(lc, slots)
	{
		const char *name = NameStr(((SlotRow *) lfirst(lc))->slot_name);

		replorigin_drop_by_name(name, true, false);
		ereport(WARNING,
				errmsg("replication slot \"%s\" of subscription \"%s\" may remain on the publisher",
					   name, sub->name),
				errdetail("This server has not used the subscription since it was started, and another one may."),
				errhint("If no other server uses it, drop it there with pg_drop_replication_slot()."));
	}
}

/*
 * Before DROP SUBSCRIPTION: have the pool let go of its tables, and mark its
 * slots as orphans with what is needed to reach the publisher when the
 * subscription is gone.  The lock keeps units from going on or beginning until
 * this transaction has ended; DROP SUBSCRIPTION takes it as well.
 */
static void
before_drop_subscription(const char *name, bool in_block)
{
	Oid			subid = get_subscription_oid(name, true);
	Subscription *sub;

	/* Whoever may not drop it must not disturb it either. */
	if (!OidIsValid(subid) ||
		!object_ownercheck(SubscriptionRelationId, subid, GetUserId()) ||
		!catalog_exists(0))
		return;

	/* In the order, and the modes, in which the command takes them. */
	LockRelationOid(SubscriptionRelationId, compat_drop_subscription_lock());
	LockSharedObject(SubscriptionRelationId, subid, 0, AccessExclusiveLock);
	sub = GetSubscription(subid, true);
	/* With a slot to drop the command is about to be refused in a block. */
	if (sub == NULL || (sub->slotname != NULL && in_block))
		return;
	pool_prepare_to_wait();
	while (pool_request_let_go(MyDatabaseId, subid) > 0)
		pool_wait_for_change(1000);
	pool_end_wait();
	if (sub->slotname == NULL && !pool_apply_worker_streams(subid, -1))
		forget_slots(sub);
	else if (catalog_orphan_slots(subid, sub->conninfo,
								  compat_must_use_password(sub)) > 0)
		at_commit.cleanup = true;
	at_commit.hint = true;
}

/*
 * Before DROP DATABASE: an idle worker must not be in the way.  It ends while
 * the command waits for other sessions of the database to do so.
 */
static void
before_drop_database(const char *name)
{
	Oid			dbid = get_database_oid(name, true);

	if (OidIsValid(dbid) &&
		object_ownercheck(DatabaseRelationId, dbid, GetUserId()))
		pool_request_leave(dbid);
}

/* Our catalog is made of materialized views that nobody may refresh. */
static void
refuse_refresh(const RangeVar *relation)
{
	Oid			relid = RangeVarGetRelid(relation, NoLock, true);

	if (OidIsValid(relid) &&
		get_rel_namespace(relid) == get_namespace_oid(EXTENSION_NAME, true) &&
		OidIsValid(get_rel_namespace(relid)) && catalog_exists(0))
		ereport(ERROR,
				errcode(ERRCODE_WRONG_OBJECT_TYPE),
				errmsg("cannot refresh \"%s\"", relation->relname),
				errdetail("It holds the catalog of extension \"%s\".",
						  EXTENSION_NAME));
}

static void
before_command(Node *stmt, bool in_block)
{
	if (!IsTransactionState() || !OidIsValid(MyDatabaseId))
		return;
	if (IsA(stmt, DropdbStmt))
		before_drop_database(castNode(DropdbStmt, stmt)->dbname);
	else if (IsA(stmt, DropSubscriptionStmt))
		before_drop_subscription(castNode(DropSubscriptionStmt,
										  stmt)->subname, in_block);
	else if (IsA(stmt, RefreshMatViewStmt))
		refuse_refresh(castNode(RefreshMatViewStmt, stmt)->relation);
}

/*
 * It may be what a failing table waits for: the server begins anew after it,
 * and so do we.  The command has left its lock on the subscription.
 */
static void
after_alter_subscription(const char *name)
{
	Oid			subid = get_subscription_oid(name, true);

	if (OidIsValid(subid) && catalog_hold())
		failure_forget_waits(subid);
	at_commit.hint = at_commit.cleanup = true;
}

static void
after_command(Node *stmt)
{
	switch (nodeTag(stmt))
	{
		case T_CreateSubscriptionStmt:
			at_commit.hint = true;
			break;
		case T_AlterSubscriptionStmt:
			after_alter_subscription(castNode(AlterSubscriptionStmt,
											  stmt)->subname);
			break;
		case T_AlterOwnerStmt:
			if (castNode(AlterOwnerStmt, stmt)->objectType ==
				OBJECT_SUBSCRIPTION)
				at_commit.hint = true;
			break;
		case T_CreateExtensionStmt:
			if (strcmp(castNode(CreateExtensionStmt, stmt)->extname,
					   EXTENSION_NAME) == 0)
				at_commit.restart_apply_workers = true;
			break;
		case T_AlterExtensionStmt:
			/* Only now it may be the version that we serve. */
			if (strcmp(castNode(AlterExtensionStmt, stmt)->extname,
					   EXTENSION_NAME) == 0)
				at_commit.restart_apply_workers = true;
			break;
		case T_TransactionStmt:
			/* What was prepared may be any of the above. */
			if (castNode(TransactionStmt, stmt)->kind ==
				TRANS_STMT_COMMIT_PREPARED)
				pool_hint(MyDatabaseId, true);
			break;
		default:
			break;
	}
}

static void
process_utility(PlannedStmt *pstmt, const char *query_string,
				bool read_only_tree, ProcessUtilityContext context,
				ParamListInfo params, QueryEnvironment *query_env,
				DestReceiver *dest, QueryCompletion *qc)
{
	/* COMMIT PREPARED and the like may free the tree. */
	Node	   *stmt = pstmt->utilityStmt;

	before_command(stmt, context != PROCESS_UTILITY_TOPLEVEL ||
				   IsTransactionBlock());
	if (prev_utility_hook)
		prev_utility_hook(pstmt, query_string, read_only_tree, context,
						  params, query_env, dest, qc);
	else
		standard_ProcessUtility(pstmt, query_string, read_only_tree, context,
								params, query_env, dest, qc);
	after_command(stmt);
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

static bool
is_of_extension(Oid relid)
{
	Oid			extension = get_extension_oid(EXTENSION_NAME, true);

	return OidIsValid(extension) &&
		getExtensionOfObject(RelationRelationId, relid) == extension;
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
		at_commit.restart_apply_workers = true;
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
