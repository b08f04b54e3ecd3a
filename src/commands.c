/*-------------------------------------------------------------------------
 *
 * commands.c
 *	  What the library does around the commands of users.
 *
 * Nobody is to wait for the pool longer than for the server's own workers, or
 * to find something of ours left behind:
 *
 *	DROP SUBSCRIPTION	first has the pool let go of the subscription, and drops
 *						its slots if the command itself goes to the publisher;
 *						else they become orphans that keep what is needed to
 *						reach the publisher when the subscription is gone
 *	ALTER SUBSCRIPTION	to another connection: the pool lets go as well, and
 *						slots keep the connection they were made over
 *	the rest of ALTER	has units let go that become pointless, when it commits
 *	commands on whole	which want nobody to be connected to a database: who has
 *	databases			nothing to do there leaves it
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/commands.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/namespace.h"
#include "catalog/pg_database.h"
#include "catalog/pg_subscription.h"
#include "catalog/pg_subscription_rel.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "commands/subscriptioncmds.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "replication/origin.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "at_commit.h"
#include "catalog.h"
#include "commands.h"
#include "compat.h"
#include "failure.h"
#include "pool.h"
#include "pool_apply.h"
#include "settings.h"
#include "slot_orphans.h"
#include "sync_slot.h"
#include "testing.h"

/* How long DROP DATABASE ... (FORCE) waits for our processes, in ms. */
#define LEAVE_PATIENCE	1000

/* --- subscriptions --- */

/*
 * Have the pool let go of a subscription, and keep it out until the end of the
 * transaction: units neither go on nor begin without a lock that conflicts
 * with the one taken here, which the command takes as well.  Null if the
 * command will be refused.
 */
static Subscription *
take_from_pool(Oid subid, bool drop, bool in_block)
{
	Subscription *sub;

	/* In the order, and the modes, in which the command takes them. */
	LockRelationOid(SubscriptionRelationId,
					drop ? compat_drop_subscription_lock() : RowExclusiveLock);
	LockSharedObject(SubscriptionRelationId, subid, 0, AccessExclusiveLock);
	sub = GetSubscription(subid, true);
	if (sub == NULL || (drop && sub->slotname != NULL && in_block))
		return NULL;

	pool_prepare_to_wait();
	while (pool_request_let_go(MyDatabaseId, subid) > 0)
		pool_wait_for_change(1000);
	pool_end_wait();
	return sub;
}

/*
 * The command goes to the publisher for the subscription's own slot, and drops
 * the slots of unfinished tables there; so do we with ours.
 */
static void
drop_slots_with(const Subscription *sub)
{
	List	   *slots = catalog_slots(sub->oid);
	ListCell   *lc;

	if (slots == NIL)
		return;

	/* What made them unnecessary may not be on disk (section 7, Durability). */
	XLogFlush(compat_log_message(EXTENSION_NAME));
	foreach(lc, slot_drop_for_command(sub, slots))
	{
		SlotRow    *slot = lfirst(lc);

		slot_forget(slot->subid, slot->slot_id, NameStr(slot->slot_name));
	}
}

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

static void
before_drop_subscription(Oid subid, bool in_block)
{
	Subscription *sub = take_from_pool(subid, true, in_block);

	if (sub == NULL)
		return;
	if (sub->slotname != NULL)
		drop_slots_with(sub);
	if (sub->slotname != NULL || pool_apply_worker_streams(subid, -1))
		catalog_orphan_slots(subid, sub->conninfo,
							 compat_must_use_password(sub));
	else
		forget_slots(sub);
}

static void
before_alter_subscription(const AlterSubscriptionStmt *stmt,
						  CommandEffect *effect, bool in_block)
{
	Subscription *sub;

	switch (stmt->kind)
	{
		case ALTER_SUBSCRIPTION_CONNECTION:
			sub = take_from_pool(effect->subid, false, in_block);
			/* Else what is there may be another server's, as above. */
			if (sub != NULL && pool_apply_worker_streams(sub->oid, -1))
				catalog_keep_conninfo(sub->oid, sub->conninfo,
									  compat_must_use_password(sub));
			break;
		case ALTER_SUBSCRIPTION_ENABLED:
			effect->outdates = !defGetBoolean(linitial(stmt->options));
			break;
		case ALTER_SUBSCRIPTION_SET_PUBLICATION:
		case ALTER_SUBSCRIPTION_ADD_PUBLICATION:
		case ALTER_SUBSCRIPTION_DROP_PUBLICATION:
			effect->outdates = true;
			break;
		default:
			break;
	}
}

/* Does a worker have a table that is no longer of the subscription? */
static bool
unit_lost_table(Oid subid)
{
	ListCell   *lc;

	if (!guard_is_on("lost_table"))
		return false;

	/* See what the command has removed. */
	CommandCounterIncrement();
	foreach(lc, pool_claimed_tables(subid))
	{
		if (!SearchSysCacheExists2(SUBSCRIPTIONRELMAP,
								   ObjectIdGetDatum(lfirst_oid(lc)),
								   ObjectIdGetDatum(subid)))
			return true;
	}
	return false;
}

/*
 * The subscription of that name if the user may command it: else the command
 * is about to be refused, and must not disturb anybody.
 */
static Oid
find_subscription(const char *name)
{
	Oid			subid = get_subscription_oid(name, true);

	if (!OidIsValid(subid) ||
		!object_ownercheck(SubscriptionRelationId, subid, GetUserId()) ||
		!catalog_exists(0))
		return InvalidOid;
	return subid;
}

/* --- databases --- */

static void
before_drop_database(const DropdbStmt *stmt)
{
	Oid			dbid = get_database_oid(stmt->dbname, true);
	ListCell   *lc;

	/* While there are subscriptions the command is refused. */
	if (!OidIsValid(dbid) || dbid == MyDatabaseId ||
		!object_ownercheck(DatabaseRelationId, dbid, GetUserId()) ||
		CountDBSubscriptions(dbid) > 0)
		return;
	pool_request_leave(dbid, true);

	/*
	 * The command waits for all others; but with FORCE it ends them first, for
	 * which the user may not have the right.
	 */
	foreach(lc, stmt->options)
	{
		if (strcmp(((DefElem *) lfirst(lc))->defname, "force") == 0)
			pool_wait_until_left(dbid, LEAVE_PATIENCE);
	}
}

/*
 * The database is to be renamed, moved or copied.  Who synchronizes there is
 * in the way, as the apply worker is; who has nothing to do leaves.
 */
static void
before_database_command(const char *name, bool anybodys)
{
	Oid			dbid = get_database_oid(name, true);

	if (OidIsValid(dbid) && dbid != MyDatabaseId &&
		(anybodys || object_ownercheck(DatabaseRelationId, dbid, GetUserId())))
		pool_request_leave(dbid, false);
}

static bool
is_template(const char *name)
{
	Oid			dbid = get_database_oid(name, true);
	HeapTuple	tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(dbid));
	bool		result = false;

	if (HeapTupleIsValid(tuple))
	{
		result = ((Form_pg_database) GETSTRUCT(tuple))->datistemplate;
		ReleaseSysCache(tuple);
	}
	return result;
}

static void
before_create_database(const CreatedbStmt *stmt)
{
	const char *source = "template1";
	ListCell   *lc;

	foreach(lc, stmt->options)
	{
		DefElem    *option = lfirst(lc);

		if (strcmp(option->defname, "template") == 0 && option->arg != NULL)
			source = defGetString(option);
	}
	before_database_command(source, is_template(source));
}

static void
before_alter_database(const AlterDatabaseStmt *stmt)
{
	ListCell   *lc;

	foreach(lc, stmt->options)
	{
		if (strcmp(((DefElem *) lfirst(lc))->defname, "tablespace") == 0)
			before_database_command(stmt->dbname, false);
	}
}

/* --- our own relations --- */

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

/* --- any command --- */

/* These need a transaction and a database. */
static void
before_command(Node *stmt, bool in_block, CommandEffect *effect)
{
	switch (nodeTag(stmt))
	{
		case T_DropSubscriptionStmt:
			effect->subid =
				find_subscription(castNode(DropSubscriptionStmt,
										   stmt)->subname);
			if (!OidIsValid(effect->subid))
				break;
			before_drop_subscription(effect->subid, in_block);
			/* Somebody has to look what rows there are of it. */
			effect->hint = effect->cleanup = true;
			break;
		case T_AlterSubscriptionStmt:
			effect->hint = effect->cleanup = effect->begins_anew = true;
			effect->subid =
				find_subscription(castNode(AlterSubscriptionStmt,
										   stmt)->subname);
			if (OidIsValid(effect->subid))
				before_alter_subscription(castNode(AlterSubscriptionStmt,
												   stmt), effect, in_block);
			break;
		case T_AlterOwnerStmt:
			if (castNode(AlterOwnerStmt, stmt)->objectType !=
				OBJECT_SUBSCRIPTION)
				break;
			effect->hint = effect->outdates = true;
			effect->subid =
				find_subscription(strVal(castNode(AlterOwnerStmt,
												  stmt)->object));
			break;
		case T_DropdbStmt:
			effect->dropped_dbid =
				get_database_oid(castNode(DropdbStmt, stmt)->dbname, true);
			before_drop_database(castNode(DropdbStmt, stmt));
			break;
		case T_CreatedbStmt:
			before_create_database(castNode(CreatedbStmt, stmt));
			break;
		case T_AlterDatabaseStmt:
			before_alter_database(castNode(AlterDatabaseStmt, stmt));
			break;
		case T_RenameStmt:
			if (castNode(RenameStmt, stmt)->renameType == OBJECT_DATABASE)
				before_database_command(castNode(RenameStmt, stmt)->subname,
										false);
			break;
		case T_RefreshMatViewStmt:
			refuse_refresh(castNode(RefreshMatViewStmt, stmt)->relation);
			break;
		default:
			break;
	}
}

void
command_begins(Node *stmt, bool in_block, CommandEffect *effect)
{
	memset(effect, 0, sizeof(CommandEffect));
	switch (nodeTag(stmt))
	{
		case T_CreateSubscriptionStmt:
			effect->hint = true;
			break;
		case T_CreateExtensionStmt:
			effect->restart_apply_workers =
				strcmp(castNode(CreateExtensionStmt, stmt)->extname,
					   EXTENSION_NAME) == 0;
			break;
		case T_AlterExtensionStmt:
			/* Only now it may be the version that we serve. */
			effect->restart_apply_workers =
				strcmp(castNode(AlterExtensionStmt, stmt)->extname,
					   EXTENSION_NAME) == 0;
			break;
		case T_TransactionStmt:
			effect->commits_prepared =
				castNode(TransactionStmt, stmt)->kind ==
				TRANS_STMT_COMMIT_PREPARED;
			break;
		default:
			if (IsTransactionState() && OidIsValid(MyDatabaseId))
				before_command(stmt, in_block, effect);
			break;
	}
}

void
command_has_ended(const CommandEffect *effect)
{
	if (effect->hint)
	{
		at_commit_hint(effect->cleanup);
		at_commit_note_apply_change();
	}
	if (effect->restart_apply_workers)
		at_commit_restart_apply_workers();

	/*
	 * It may be what a failing table waits for: the server begins anew after
	 * it, and so do we.  The command has left its lock on the subscription.
	 */
	if (OidIsValid(effect->subid) && effect->begins_anew && catalog_hold())
		failure_forget_waits(effect->subid);
	if (OidIsValid(effect->subid) &&
		(effect->outdates || unit_lost_table(effect->subid)))
		at_commit_let_go(effect->subid);

	/* It cannot be rolled back; what is drained takes a place. */
	if (OidIsValid(effect->dropped_dbid))
		pool_set_draining(effect->dropped_dbid, false);

	/* What was prepared may be any of these commands. */
	if (effect->commits_prepared)
	{
		pool_note_apply_change();
		pool_hint(MyDatabaseId, true);
	}
}
