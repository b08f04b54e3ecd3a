/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  What differs between the versions of the server.
 *
 * Here, and nowhere else, is told which server has what.  Where a newer
 * server only has another name or more arguments, older ones are given the
 * newer form; where it has a new feature, there is a function that says of
 * older ones that they do not have it.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/compat.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_COMPAT_H
#define REUSE_SYNC_COMPAT_H

#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
#include "catalog/pg_subscription.h"
#include "catalog/pg_subscription_rel.h"
#include "commands/tablecmds.h"
#include "executor/executor.h"
#include "replication/logicallauncher.h"
#include "replication/logicalrelation.h"
#include "replication/logicalworker.h"
#include "replication/message.h"
#include "replication/origin.h"
#include "replication/slot.h"
#include "replication/walreceiver.h"
#include "replication/worker_internal.h"
#include "utils/acl.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/relcache.h"
#include "utils/wait_event.h"

#if PG_VERSION_NUM >= 160000
#include "parser/parse_relation.h"
#include "utils/usercontext.h"
#endif
#if PG_VERSION_NUM >= 180000
#include "replication/conflict.h"
#endif

/*
 * It reaches deep into the server: what it has not been tested with it must
 * not be built for.
 */
#if PG_VERSION_NUM < 150000 || PG_VERSION_NUM >= 190000 || \
	(PG_VERSION_NUM >= 160000 && PG_VERSION_NUM < 170000)
#error "reuse_sync is made for PostgreSQL 15, 17 and 18, and has been tested with no other"
#endif

/* 18 has it as a keyword in front of the declaration. */
#ifndef pg_noreturn
#define pg_noreturn pg_attribute_noreturn()
#endif

/* --- the processes of logical replication --- */

/*
 * Is this the process that applies a subscription's changes and starts workers
 * that synchronize tables?  Not so one that helps it (16), nor one of those.
 */
static inline bool
compat_is_apply_worker(void)
{
#if PG_VERSION_NUM >= 170000
	return IsLogicalWorker() && am_leader_apply_worker();
#elif PG_VERSION_NUM >= 160000
	return IsLogicalWorker() && !am_tablesync_worker() &&
		!am_parallel_apply_worker();
#else
	return IsLogicalWorker() && !am_tablesync_worker();
#endif
}

/* Is this one of the server's workers that synchronize a table? */
static inline bool
compat_is_tablesync_worker(void)
{
	return IsLogicalWorker() && am_tablesync_worker();
}

/* The wait event of all our waits: 17 gives extensions names of their own. */
static inline uint32
compat_wait_event(void)
{
#if PG_VERSION_NUM >= 170000
	static uint32 event = 0;

	if (event == 0)
		event = WaitEventExtensionNew("ReuseSync");
	return event;
#else
	return PG_WAIT_EXTENSION;
#endif
}

/* --- subscriptions --- */

#if PG_VERSION_NUM < 160000
#define GetSubscriptionRelations(subid, not_ready) \
	((not_ready) ? GetSubscriptionNotReadyRelations(subid) : \
	 GetSubscriptionRelations(subid))
#endif

/*
 * How DROP SUBSCRIPTION locks pg_subscription.  Up to some minor version it
 * kept even the publisher's processes out, where that is the same server.
 */
static inline LOCKMODE
compat_drop_subscription_lock(void)
{
	int			version = atoi(GetConfigOption("server_version_num", false,
											   false));
	int			minor = version % 10000;

	switch (version / 10000)
	{
		case 15:
			return minor < 15 ? AccessExclusiveLock : RowExclusiveLock;
		case 16:
			return minor < 11 ? AccessExclusiveLock : RowExclusiveLock;
		case 17:
			return minor < 7 ? AccessExclusiveLock : RowExclusiveLock;
		case 18:
			return minor < 1 ? AccessExclusiveLock : RowExclusiveLock;
	}
	return RowExclusiveLock;
}

/* Takes the locks itself, if they are not held yet. */
static inline void
compat_update_subscription_rel(Oid subid, Oid relid, char state,
							   XLogRecPtr lsn)
{
#if PG_VERSION_NUM >= 180000
	UpdateSubscriptionRelState(subid, relid, state, lsn, false);
#else
	UpdateSubscriptionRelState(subid, relid, state, lsn);
#endif
}

/* Which origins' changes it wants; null: of any, or the server knows none. */
static inline const char *
compat_subscription_origin(const Subscription *sub)
{
#if PG_VERSION_NUM >= 160000
	return sub->origin;
#else
	return NULL;
#endif
}

/* Do changes run with the rights of its owner, not of each table's? */
static inline bool
compat_runs_as_owner(const Subscription *sub)
{
#if PG_VERSION_NUM >= 160000
	return sub->runasowner;
#else
	return true;
#endif
}

/*
 * Must a connection of it be one that the publisher asked a password for?  In
 * a transaction: whoever creates or alters a role has this read anew.
 */
static inline bool
compat_must_use_password(const Subscription *sub)
{
#if PG_VERSION_NUM >= 160000
	return sub->passwordrequired && !superuser_arg(sub->owner);
#else
	return false;
#endif
}

/*
 * Throw unless the connection string brings a password along: that of the
 * server's operating system user, in a file or the environment, is not the
 * owner's to use.
 */
static inline void
compat_require_password(const char *conninfo)
{
#if PG_VERSION_NUM >= 160000
	load_file("libpqwalreceiver", false);
	walrcv_check_conninfo(conninfo, true);
#endif
}

/* Does a subscription with binary transfer copy its tables like that, too? */
static inline bool
compat_copies_binary(const Subscription *sub)
{
#if PG_VERSION_NUM >= 160000
	return sub->binary;
#else
	return false;
#endif
}

/*
 * Between two readings of a subscription: has something changed that a unit
 * depends on and older servers do not have?  What may change under way is
 * taken over into 'old'.
 */
static inline bool
compat_subscription_is_current(Subscription *old, const Subscription *sub)
{
#if PG_VERSION_NUM >= 160000
	old->runasowner = sub->runasowner;
	return old->passwordrequired == sub->passwordrequired &&
		strcmp(old->origin, sub->origin) == 0;
#else
	return true;
#endif
}

/* --- rights --- */

#if PG_VERSION_NUM < 160000

static inline bool
object_ownercheck(Oid classid, Oid objectid, Oid roleid)
{
	switch (classid)
	{
		case RelationRelationId:
			return pg_class_ownercheck(objectid, roleid);
		case DatabaseRelationId:
			return pg_database_ownercheck(objectid, roleid);
		case SubscriptionRelationId:
			return pg_subscription_ownercheck(objectid, roleid);
		default:
			elog(ERROR, "unexpected class of object %u", classid);
			return false;		/* keep compiler quiet */
	}
}

/* 15 runs everything as the owner of the subscription. */
typedef struct UserContext
{
	Oid			save_userid;
} UserContext;

#define SwitchToUntrustedUser(userid, context) \
	((context)->save_userid = (userid))
#define RestoreUserContext(context) ((void) (context)->save_userid)

#endif							/* before 16 */

/* --- origins --- */

#if PG_VERSION_NUM < 160000
#define replorigin_session_setup(node, acquired_by) \
	replorigin_session_setup(node)
#endif

/* --- WAL --- */

/* Write a record that does nothing; where it ends. */
static inline XLogRecPtr
compat_log_message(const char *prefix)
{
#if PG_VERSION_NUM >= 170000
	return LogLogicalMessage(prefix, "", 0, false, false);
#else
	return LogLogicalMessage(prefix, "", 0, false);
#endif
}

/* --- the executor --- */

/*
 * Enter one relation, which is changed, into the range table; 'updated' are
 * the columns that an UPDATE may change.
 */
static inline void
compat_init_range_table(EState *estate, RangeTblEntry *rte,
						Bitmapset *updated)
{
#if PG_VERSION_NUM >= 160000
	List	   *infos = NIL;

	addRTEPermissionInfo(&infos, rte)->updatedCols = updated;
#if PG_VERSION_NUM >= 180000
	ExecInitRangeTable(estate, list_make1(rte), infos,
					   bms_make_singleton(1));
#else
	ExecInitRangeTable(estate, list_make1(rte), infos);
#endif
#else
	rte->updatedCols = updated;
	ExecInitRangeTable(estate, list_make1(rte));
#endif
}

#if PG_VERSION_NUM < 160000

#define EvalPlanQualInit(epqstate, estate, plan, marks, param, rels) \
	EvalPlanQualInit(epqstate, estate, plan, marks, param)

#define ExecGetRootToChildMap(rri, estate) ((rri)->ri_RootToPartitionMap)

#define ExecuteTruncateGuts(rels, relids, logged, behavior, restart, owner) \
	ExecuteTruncateGuts(rels, relids, logged, behavior, restart)

/*
 * The index that tells rows apart: the replica identity's, else that of the
 * primary key, else InvalidOid.
 */
static inline Oid
GetRelationIdentityOrPK(Relation rel)
{
	Oid			indexoid = RelationGetReplicaIndex(rel);

	return OidIsValid(indexoid) ? indexoid : RelationGetPrimaryKeyIndex(rel);
}

#endif							/* before 16 */

/*
 * The index to find rows of 'rel' with, InvalidOid if there is none: 16 uses
 * others where the publisher sends whole rows.
 */
static inline Oid
compat_search_index(const LogicalRepRelMapEntry *entry, Relation rel)
{
#if PG_VERSION_NUM >= 160000
	return entry->localindexoid;
#else
	return GetRelationIdentityOrPK(rel);
#endif
}

/* --- origins --- */

/* How many replication origins can be in use at a time, by which setting. */
static inline int
compat_max_origins(const char **setting)
{
#if PG_VERSION_NUM >= 180000
	*setting = "max_active_replication_origins";
	return max_active_replication_origins;
#else
	*setting = "max_replication_slots";
	return max_replication_slots;
#endif
}

/* --- conflicts --- */

/*
 * 18 counts and logs what does not go as the publisher has it.  Before rows
 * are inserted or updated it wants to know the indexes that can be violated.
 */
static inline void
compat_watch_conflicts(ResultRelInfo *rri)
{
#if PG_VERSION_NUM >= 180000
	rri->ri_onConflictArbiterIndexes = NIL;
	InitConflictIndexes(rri);
#endif
}

/* Was the local row in 'slot' last written with another origin than ours? */
static inline bool
compat_is_of_other_origin(TupleTableSlot *slot, RepOriginId ours)
{
#if PG_VERSION_NUM >= 180000
	TransactionId xmin;
	RepOriginId origin;
	TimestampTz time;

	return GetTupleTransactionInfo(slot, &xmin, &origin, &time) &&
		origin != ours;
#else
	return false;
#endif
}

/*
 * Report that the row that the key in 'searchslot' identifies is not there, or
 * that the one found is of another origin.  'oldslot' and, of a DELETE,
 * 'newslot' can be null.
 */
static inline void
compat_report_conflict(EState *estate, ResultRelInfo *rri,
					   TupleTableSlot *searchslot, TupleTableSlot *oldslot,
					   TupleTableSlot *newslot)
{
#if PG_VERSION_NUM >= 180000
	ConflictTupleInfo info = {0};
	ConflictType type;

	if (oldslot == NULL)
		type = newslot ? CT_UPDATE_MISSING : CT_DELETE_MISSING;
	else
	{
		type = newslot ? CT_UPDATE_ORIGIN_DIFFERS : CT_DELETE_ORIGIN_DIFFERS;
		info.slot = oldslot;
		(void) GetTupleTransactionInfo(oldslot, &info.xmin, &info.origin,
									   &info.ts);
	}
	ReportApplyConflict(estate, rri, LOG, type, searchslot, newslot,
						list_make1(&info));
#else
	ereport(DEBUG1,
			errmsg_internal("row to be %s was not found in table \"%s\"",
							newslot ? "updated" : "deleted",
							RelationGetRelationName(rri->ri_RelationDesc)));
#endif
}

#endif							/* REUSE_SYNC_COMPAT_H */
