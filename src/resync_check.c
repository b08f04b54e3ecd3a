/*-------------------------------------------------------------------------
 *
 * resync_check.c
 *	  What must be so for a table to be synchronized anew; and the function
 *	  that asks for it.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/resync_check.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/table.h"
#include "access/xlog.h"
#include "catalog/partition.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_subscription_rel.h"
#include "executor/executor.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "nodes/value.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "at_commit.h"
#include "catalog.h"
#include "compat.h"
#include "functions.h"
#include "resync_check.h"
#include "rights.h"
#include "settings.h"
#include "target.h"

PG_FUNCTION_INFO_V1(reuse_sync_resync_table);

void
resync_check_subscription(const Subscription *sub)
{
	if (sub->twophasestate != LOGICALREP_TWOPHASE_STATE_DISABLED)
		ereport(ERROR,
				errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				errmsg("cannot synchronize a table anew in subscription \"%s\" because it has two_phase enabled",
					   sub->name),
				errdetail("What is prepared meanwhile would be lost."),
				errhint("Drop the subscription and create it again, with two_phase disabled or with all its tables."));
}

void
resync_check_emptied(Oid subid, Relation rel)
{
	List	   *relids = list_make1_oid(RelationGetRelid(rel));
	ListCell   *lc;

	if (target_is_shared(subid, RelationGetRelid(rel)))
		ereport(ERROR,
				errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				errmsg("cannot remove the rows of table \"%s\" because another subscription writes to it as well",
					   RelationGetRelationName(rel)),
				errhint("Remove the rows of this one by hand, and call reuse_sync.resync_table() with truncate => false."));
	if (rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
		relids = find_all_inheritors(RelationGetRelid(rel), AccessShareLock,
									 NULL);
	foreach(lc, relids)
	{
		Relation	part = table_open(lfirst_oid(lc), NoLock);

		if (part->rd_rel->relkind != RELKIND_PARTITIONED_TABLE)
			CheckSubscriptionRelkind(part->rd_rel->relkind,
									 get_namespace_name(RelationGetNamespace(part)),
									 RelationGetRelationName(part));
		CheckCmdReplicaIdentity(part, CMD_DELETE);
		table_close(part, NoLock);
	}
}

bool
resync_is_published(Publisher *pub, const Subscription *sub,
					const char *nspname, const char *relname)
{
	StringInfoData sql;
	const char *separator = "";
	ListCell   *lc;
	bool		result;

	initStringInfo(&sql);
	appendStringInfo(&sql,
					 "SELECT FROM pg_catalog.pg_publication_tables"
					 " WHERE schemaname = %s AND tablename = %s"
					 " AND pubname IN (",
					 publisher_literal(pub, nspname),
					 publisher_literal(pub, relname));
	foreach(lc, sub->publications)
	{
		appendStringInfo(&sql, "%s%s", separator,
						 publisher_literal(pub, strVal(lfirst(lc))));
		separator = ", ";
	}
	appendStringInfoString(&sql, ") LIMIT 1");
	result = publisher_query(pub, sql.data)->nrows > 0;
	pfree(sql.data);
	return result;
}

void
resync_report_unpublished(const Subscription *sub, const char *nspname,
						  const char *relname)
{
	ereport(ERROR,
			errcode(ERRCODE_UNDEFINED_TABLE),
			errmsg("table \"%s.%s\" is in no publication that subscription \"%s\" subscribes to",
				   nspname, relname, sub->name),
			errhint("Add it to a publication, or run ALTER SUBSCRIPTION %s REFRESH PUBLICATION to have it removed from the subscription.",
					quote_identifier(sub->name)));
}

/* --- the function --- */

/* It is not in the subscription: what might the user have meant? */
pg_noreturn static void
not_subscribed(const Subscription *sub, Relation rel)
{
	const char *hint = psprintf("Run ALTER SUBSCRIPTION %s REFRESH PUBLICATION if it has been added to a publication.",
								quote_identifier(sub->name));

	if (rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
		hint = "If its partitions are in the subscription, name them one by one.";
	if (rel->rd_rel->relispartition)
	{
		ListCell   *lc;

		foreach(lc, get_partition_ancestors(RelationGetRelid(rel)))
		{
			XLogRecPtr	lsn;

			if (GetSubscriptionRelState(sub->oid, lfirst_oid(lc), &lsn) !=
				SUBREL_STATE_UNKNOWN)
				hint = psprintf("It is a partition of \"%s\", which the subscription has as a whole: name that one.",
								get_rel_name(lfirst_oid(lc)));
		}
	}
	ereport(ERROR,
			errcode(ERRCODE_UNDEFINED_OBJECT),
			errmsg("table \"%s\" is not in subscription \"%s\"",
				   RelationGetRelationName(rel), sub->name),
			errhint("%s", hint));
}

static void
check_right_to_truncate(Relation rel)
{
	AclResult	aclresult = pg_class_aclcheck(RelationGetRelid(rel),
											  GetUserId(), ACL_TRUNCATE);

	if (aclresult != ACLCHECK_OK)
		aclcheck_error(aclresult,
					   get_relkind_objtype(rel->rd_rel->relkind),
					   RelationGetRelationName(rel));
}

/* The connection of all calls of a statement, that is of one FmgrInfo. */
typedef struct Asker
{
	Publisher  *pub;
	char	   *conninfo;
	bool		must_use_password;
	MemoryContextCallback at_end;
} Asker;

static void
end_asker(void *arg)
{
	Asker	   *asker = arg;

	publisher_disconnect(asker->pub);
	asker->pub = NULL;
}

static Publisher *
connection_of_statement(FmgrInfo *flinfo, const Subscription *sub)
{
	MemoryContext caller = MemoryContextSwitchTo(flinfo->fn_mcxt);
	Asker	   *asker = flinfo->fn_extra;

	if (asker == NULL)
	{
		asker = palloc0(sizeof(Asker));
		asker->at_end.func = end_asker;
		asker->at_end.arg = asker;
		MemoryContextRegisterResetCallback(flinfo->fn_mcxt, &asker->at_end);
		flinfo->fn_extra = asker;
	}
	if (asker->pub != NULL &&
		(publisher_is_broken(asker->pub) || !publisher_is_idle(asker->pub) ||
		 strcmp(asker->conninfo, sub->conninfo) != 0 ||
		 asker->must_use_password != compat_must_use_password(sub)))
		end_asker(asker);
	if (asker->pub == NULL)
	{
		asker->conninfo = pstrdup(sub->conninfo);
		asker->must_use_password = compat_must_use_password(sub);
		asker->pub = publisher_connect(asker->conninfo, false,
									   asker->must_use_password,
									   EXTENSION_NAME);
	}
	MemoryContextSwitchTo(caller);
	return asker->pub;
}

static void
ask_publisher(FmgrInfo *flinfo, const Subscription *sub, Relation rel)
{
	char	   *nspname = get_namespace_name(RelationGetNamespace(rel));

	if (!resync_is_published(connection_of_statement(flinfo, sub), sub,
							 nspname, RelationGetRelationName(rel)))
		resync_report_unpublished(sub, nspname,
								  RelationGetRelationName(rel));
}

/*
 * resync_table(subname name, relation regclass, truncate boolean)
 *
 * Has the pool synchronize a table anew once the transaction has committed.
 * For the subscription's owner, who needs the right to TRUNCATE the table
 * unless its rows are to be kept.  Asks the publisher whether the table is
 * published.  Takes ACCESS SHARE on the table.
 */
Datum
reuse_sync_resync_table(PG_FUNCTION_ARGS)
{
	const char *subname;
	bool		truncate;
	Oid			subid;
	Subscription *sub;
	Relation	rel;
	XLogRecPtr	lsn;

	for (int i = 0; i < 3; i++)
		if (PG_ARGISNULL(i))
			ereport(ERROR,
					errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					errmsg("arguments of resync_table() must not be null"));
	subname = NameStr(*PG_GETARG_NAME(0));
	truncate = PG_GETARG_BOOL(2);
	PreventCommandDuringRecovery("resync_table()");
	PreventCommandIfReadOnly("resync_table()");
	functions_require_pool();

	subid = rights_to_subscription(subname, true);
	rel = try_relation_open(PG_GETARG_OID(1), AccessShareLock);
	if (rel == NULL)
		ereport(ERROR,
				errcode(ERRCODE_UNDEFINED_OBJECT),
				errmsg("table with OID %u does not exist",
					   PG_GETARG_OID(1)));
	if (truncate)
		check_right_to_truncate(rel);
	sub = GetSubscription(subid, false);
	resync_check_subscription(sub);
	if (GetSubscriptionRelState(subid, RelationGetRelid(rel), &lsn) ==
		SUBREL_STATE_UNKNOWN)
		not_subscribed(sub, rel);
	if (truncate)
		resync_check_emptied(subid, rel);
	ask_publisher(fcinfo->flinfo, sub, rel);

	catalog_add_resync(subid, RelationGetRelid(rel), truncate);
	at_commit_hint(false);
	relation_close(rel, NoLock);
	PG_RETURN_VOID();
}
