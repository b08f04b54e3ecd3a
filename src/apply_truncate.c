/*-------------------------------------------------------------------------
 *
 * apply_truncate.c
 *	  Applies one TRUNCATE to those of its tables that belong to the unit.
 *
 * On the publisher all tables of one TRUNCATE are emptied together.  That is
 * how it may truncate a table that a foreign key references: the referencing
 * table is in the same command.  Here the two can be in different hands, each
 * of which truncates its own at a time of its own, and the local foreign key
 * would stop the first of them.  So a table that only tables of the same
 * command reference is emptied row by row instead, which no foreign key
 * forbids to a replica.  If anything else references it, the server's own
 * error is due.
 *
 * The same way a table is emptied that is to be synchronized anew: nothing
 * there may need a lock that keeps readers away.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/apply_truncate.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/catalog.h"
#include "catalog/dependency.h"
#include "catalog/heap.h"
#include "catalog/namespace.h"
#include "catalog/partition.h"
#include "catalog/pg_inherits.h"
#include "commands/sequence.h"
#include "commands/tablecmds.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "apply_row.h"
#include "apply_truncate.h"
#include "compat.h"
#include "table_owner.h"

/* A target with its partitions, if any. */
typedef struct TruncateGroup
{
	List	   *rels;			/* Relations, the target first */
	List	   *relids;			/* their OIDs */
} TruncateGroup;

static List *make_groups(List *targets, List **partitions);
static List *all_relids(List *groups);
static List *take_referenced(List **groups, List *others);
static bool only_named(List *referencing, List *named);
static bool is_named(Oid relid, List *named);
static List *resolve_names(List *names);
static void truncate_groups(List *groups, bool restart_seqs);
static void empty_table(Relation rel, bool restart_seqs);
static void delete_all_rows(Relation rel);
static void delete_row(Relation rel, ItemPointerData tid, Snapshot snapshot,
					   TupleTableSlot *newest);
static void restart_sequences(Relation rel);


/*
 * Apply a TRUNCATE: see apply_truncate.h.
 */
void
apply_truncate(List *targets, List *others, bool restart_seqs)
{
	List	   *partitions = NIL;
	List	   *groups = make_groups(targets, &partitions);
	List	   *referenced = take_referenced(&groups, others);
	ListCell   *lc;
	ListCell   *lc2;

	truncate_groups(groups, restart_seqs);

	foreach(lc, referenced)
	{
		TruncateGroup *group = lfirst(lc);

		foreach(lc2, group->rels)
			empty_table(lfirst(lc2), restart_seqs);
	}

	foreach(lc, partitions)
		table_close(lfirst(lc), NoLock);
}

/*
 * Empty a table row by row: see apply_truncate.h.
 */
void
apply_empty(Oid relid)
{
	List	   *relids = list_make1_oid(relid);
	ListCell   *lc;

	if (get_rel_relkind(relid) == RELKIND_PARTITIONED_TABLE)
		relids = find_all_inheritors(relid, RowExclusiveLock, NULL);
	foreach(lc, relids)
	{
		Relation	rel = table_open(lfirst_oid(lc), RowExclusiveLock);

		if (!RELATION_IS_OTHER_TEMP(rel))
		{
			apply_check_rights(rel, ACL_TRUNCATE);
			empty_table(rel, false);
		}
		table_close(rel, NoLock);
	}
	CommandCounterIncrement();
}

/*
 * Open and lock the partitions, for the caller to close, and check rights on
 * all.  A table that two groups would share is in the first only.
 */
static List *
make_groups(List *targets, List **partitions)
{
	List	   *groups = NIL;
	List	   *seen = NIL;
	ListCell   *lc;
	ListCell   *lc2;

	foreach(lc, targets)
	{
		Relation	target = lfirst(lc);
		Oid			targetid = RelationGetRelid(target);
		List	   *relids = list_make1_oid(targetid);
		TruncateGroup *group;

		if (target->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
			relids = find_all_inheritors(targetid, AccessExclusiveLock, NULL);

		group = palloc0(sizeof(TruncateGroup));
		foreach(lc2, relids)
		{
			Oid			relid = lfirst_oid(lc2);
			Relation	rel;

			if (list_member_oid(seen, relid))
				continue;
			if (relid == targetid)
				rel = target;
			else
			{
				rel = table_open(relid, NoLock);
				*partitions = lappend(*partitions, rel);
			}
			if (RELATION_IS_OTHER_TEMP(rel))
				continue;

			apply_check_rights(rel, ACL_TRUNCATE);
			group->rels = lappend(group->rels, rel);
			group->relids = lappend_oid(group->relids, relid);
			seen = lappend_oid(seen, relid);
		}
		if (group->rels != NIL)
			groups = lappend(groups, group);
	}

	return groups;
}

static List *
all_relids(List *groups)
{
	List	   *relids = NIL;
	ListCell   *lc;

	foreach(lc, groups)
		relids = list_concat(relids, ((TruncateGroup *) lfirst(lc))->relids);

	return relids;
}

/*
 * Remove from 'groups', and return, those that cannot be truncated because
 * of tables that are truncated elsewhere, named in 'others', or that are
 * themselves removed here; hence the loop.
 */
static List *
take_referenced(List **groups, List *others)
{
	List	   *taken = NIL;
	List	   *named;
	bool		again;
	ListCell   *lc;

	/* A scan of pg_constraint each, so first for all at once. */
	if (others == NIL || heap_truncate_find_FKs(all_relids(*groups)) == NIL)
		return NIL;
	named = resolve_names(others);

	do
	{
		List	   *relids = all_relids(*groups);

		again = false;
		foreach(lc, *groups)
		{
			TruncateGroup *group = lfirst(lc);
			List	   *referencing;

			referencing =
				list_difference_oid(heap_truncate_find_FKs(group->relids),
									relids);
			if (referencing == NIL || !only_named(referencing, named))
				continue;

			named = list_concat(named, group->relids);
			taken = lappend(taken, group);
			*groups = foreach_delete_current(*groups, lc);
			again = true;
		}
	} while (again);

	return taken;
}

static bool
only_named(List *referencing, List *named)
{
	ListCell   *lc;

	foreach(lc, referencing)
	{
		if (!is_named(lfirst_oid(lc), named))
			return false;
	}

	return true;
}

/*
 * Is a table named, itself or through a table that it is a partition of?  A
 * partitioned table is also named if all its partitions are: depending on
 * publish_via_partition_root the publisher speaks of the ones or the other.
 */
static bool
is_named(Oid relid, List *named)
{
	List	   *ancestors = NIL;
	int			leaves = 0;
	ListCell   *lc;

	if (list_member_oid(named, relid))
		return true;

	if (get_rel_relispartition(relid))
		ancestors = get_partition_ancestors(relid);
	foreach(lc, ancestors)
	{
		if (list_member_oid(named, lfirst_oid(lc)))
			return true;
	}

	if (get_rel_relkind(relid) != RELKIND_PARTITIONED_TABLE)
		return false;

	foreach(lc, find_all_inheritors(relid, NoLock, NULL))
	{
		if (get_rel_relkind(lfirst_oid(lc)) == RELKIND_PARTITIONED_TABLE)
			continue;
		if (!list_member_oid(named, lfirst_oid(lc)))
			return false;
		leaves++;
	}

	return leaves > 0;
}

/*
 * OIDs of the tables that exist here of those named.  Without the search that
 * a command would do: what the user may see of them does not matter.
 */
static List *
resolve_names(List *names)
{
	List	   *relids = NIL;
	ListCell   *lc;

	foreach(lc, names)
	{
		RangeVar   *name = lfirst_node(RangeVar, lc);
		Oid			nspoid = get_namespace_oid(name->schemaname, true);
		Oid			relid = InvalidOid;

		if (OidIsValid(nspoid))
			relid = get_relname_relid(name->relname, nspoid);
		if (OidIsValid(relid))
			relids = lappend_oid(relids, relid);
	}

	return relids;
}

/*
 * Truncate for good.
 */
static void
truncate_groups(List *groups, bool restart_seqs)
{
	List	   *rels = NIL;
	List	   *logged = NIL;
	ListCell   *lc;

	if (groups == NIL)
		return;

	foreach(lc, groups)
		rels = list_concat(rels, ((TruncateGroup *) lfirst(lc))->rels);
	foreach(lc, rels)
	{
		Relation	rel = lfirst(lc);

		if (RelationIsLogicallyLogged(rel))
			logged = lappend_oid(logged, RelationGetRelid(rel));
	}

	ExecuteTruncateGuts(rels, all_relids(groups), logged, DROP_RESTRICT,
						restart_seqs, !compat_runs_as_owner(MySubscription));
}

/*
 * What TRUNCATE does to one table, but row by row.
 */
static void
empty_table(Relation rel, bool restart_seqs)
{
	EState	   *estate = CreateExecutorState();
	ResultRelInfo *rri = makeNode(ResultRelInfo);
	TableOwner	owner;

	table_owner_become(&owner, RelationGetRelid(rel));

	/* TRUNCATE triggers find their relation in this list. */
	InitResultRelInfo(rri, rel, 0, NULL, 0);
	estate->es_opened_result_relations = list_make1(rri);

	AfterTriggerBeginQuery();
	ExecBSTruncateTriggers(estate, rri);

	if (rel->rd_rel->relkind != RELKIND_PARTITIONED_TABLE)
		delete_all_rows(rel);
	if (restart_seqs)
		restart_sequences(rel);

	ExecASTruncateTriggers(estate, rri);
	AfterTriggerEndQuery(estate);
	FreeExecutorState(estate);
	table_owner_leave(&owner);
}

static void
delete_all_rows(Relation rel)
{
	TupleTableSlot *slot;
	TupleTableSlot *newest;
	TableScanDesc scan;
	Snapshot	snapshot;

	/* Foreign tables can be partitions. */
	CheckSubscriptionRelkind(rel->rd_rel->relkind,
							 get_namespace_name(RelationGetNamespace(rel)),
							 RelationGetRelationName(rel));

	/* Our subscribers, if any, get DELETEs: they must be able to use them. */
	CheckCmdReplicaIdentity(rel, CMD_DELETE);

	/* With ACCESS EXCLUSIVE it sees every row there is. */
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	slot = table_slot_create(rel, NULL);
	newest = table_slot_create(rel, NULL);
	scan = table_beginscan(rel, snapshot, 0, NULL);
	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		CHECK_FOR_INTERRUPTS();
		delete_row(rel, slot->tts_tid, snapshot, newest);
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(newest);
	ExecDropSingleTupleTableSlot(slot);
	UnregisterSnapshot(snapshot);
}

/*
 * Delete a row, whatever has become of it since the snapshot if the lock on
 * the table lets others change it.
 */
static void
delete_row(Relation rel, ItemPointerData tid, Snapshot snapshot,
		   TupleTableSlot *newest)
{
	TM_FailureData failure;
	TM_Result	result;

	while ((result = table_tuple_delete(rel, &tid, GetCurrentCommandId(true),
										snapshot, InvalidSnapshot,
										true /* wait */ , &failure,
										false)) == TM_Updated)
	{
		result = table_tuple_lock(rel, &tid, snapshot, newest,
								  GetCurrentCommandId(false),
								  LockTupleExclusive, LockWaitBlock,
								  TUPLE_LOCK_FLAG_FIND_LAST_VERSION,
								  &failure);
		if (result != TM_Ok)
			break;
		tid = newest->tts_tid;
		ExecClearTuple(newest);
	}
	if (result != TM_Ok && result != TM_Deleted)
		elog(ERROR, "could not delete a row of table \"%s\": result %d",
			 RelationGetRelationName(rel), (int) result);
}

/*
 * Restart the sequences that columns of 'rel' own, as TRUNCATE does.
 */
static void
restart_sequences(Relation rel)
{
	ListCell   *lc;

	foreach(lc, getOwnedSequences(RelationGetRelid(rel)))
	{
		Oid			seqid = lfirst_oid(lc);
		Relation	seq = relation_open(seqid, AccessExclusiveLock);

		if (!object_ownercheck(RelationRelationId, seqid, GetUserId()))
			aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_SEQUENCE,
						   RelationGetRelationName(seq));
		relation_close(seq, NoLock);

		ResetSequence(seqid);
	}
}
