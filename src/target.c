/*-------------------------------------------------------------------------
 *
 * target.c
 *	  What is to be known of a local table that is copied into.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/target.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_subscription_rel.h"
#include "executor/tuptable.h"
#include "storage/bufmgr.h"
#include "storage/itemptr.h"
#include "storage/lmgr.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "target.h"

/*
 * How much of a table is read to find a row, in blocks: an aborted copy leaves
 * dead ones.
 */
#define MAX_SCAN_BLOCKS		10000

/* Is there a live row in the blocks before this one? */
static bool
has_row_before(Relation rel, BlockNumber end)
{
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	ItemPointerData first;
	ItemPointerData last;
	TableScanDesc scan;
	bool		found;

	ItemPointerSet(&first, 0, FirstOffsetNumber);
	ItemPointerSet(&last, end - 1, MaxOffsetNumber);
	scan = table_beginscan_tidrange(rel, GetActiveSnapshot(), &first, &last);
	found = table_scan_getnextslot_tidrange(scan, ForwardScanDirection, slot);
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	return found;
}

/* Of a relation that is open. */
static TargetRows
relation_rows(Relation rel)
{
	BlockNumber nblocks;

	if (rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
		return TARGET_EMPTY;	/* its partitions have the rows */
	if (rel->rd_rel->relkind != RELKIND_RELATION)
		return TARGET_UNKNOWN;
	nblocks = RelationGetNumberOfBlocks(rel);
	if (nblocks == 0)
		return TARGET_EMPTY;
	if (rel->rd_tableam->scan_set_tidrange == NULL)
		return TARGET_UNKNOWN;
	if (has_row_before(rel, Min(nblocks, MAX_SCAN_BLOCKS)))
		return TARGET_HAS_ROWS;
	return nblocks <= MAX_SCAN_BLOCKS ? TARGET_EMPTY : TARGET_UNKNOWN;
}

/* Lock a relation and open it; null if it is not to be had. */
static Relation
open_target(Oid relid, bool wait)
{
	if (wait)
		return table_open(relid, AccessShareLock);
	if (!ConditionalLockRelationOid(relid, AccessShareLock))
		return NULL;
	if (get_rel_relkind(relid) == '\0')
	{
		UnlockRelationOid(relid, AccessShareLock);
		return NULL;
	}
	return table_open(relid, NoLock);
}

TargetRows
target_rows(Oid relid, bool wait)
{
	List	   *relids = list_make1_oid(relid);
	ListCell   *lc;
	TargetRows	result = TARGET_EMPTY;

	if (get_rel_relkind(relid) == RELKIND_PARTITIONED_TABLE)
		relids = find_all_inheritors(relid, wait ? AccessShareLock : NoLock,
									 NULL);
	foreach(lc, relids)
	{
		Relation	rel = open_target(lfirst_oid(lc), wait);
		TargetRows	rows = rel ? relation_rows(rel) : TARGET_UNKNOWN;

		if (rel != NULL)
			table_close(rel, AccessShareLock);
		if (rows == TARGET_HAS_ROWS)
			return rows;
		if (rows == TARGET_UNKNOWN)
			result = rows;
	}
	return result;
}

bool
target_has_row(Oid relid)
{
	List	   *relids = list_make1_oid(relid);
	ListCell   *lc;
	bool		found = false;

	if (get_rel_relkind(relid) == RELKIND_PARTITIONED_TABLE)
		relids = find_all_inheritors(relid, AccessShareLock, NULL);
	foreach(lc, relids)
	{
		Relation	rel = table_open(lfirst_oid(lc), AccessShareLock);

		/* Nothing else could have been copied into. */
		if (!found && rel->rd_rel->relkind == RELKIND_RELATION)
		{
			TupleTableSlot *slot = table_slot_create(rel, NULL);
			TableScanDesc scan = table_beginscan(rel, GetActiveSnapshot(),
												 0, NULL);

			found = table_scan_getnextslot(scan, ForwardScanDirection, slot);
			table_endscan(scan);
			ExecDropSingleTupleTableSlot(slot);
		}
		table_close(rel, NoLock);
	}
	return found;
}

static bool
is_of_another(Oid subid, Oid relid)
{
	Relation	rel = table_open(SubscriptionRelRelationId, AccessShareLock);
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;
	bool		shared = false;

	ScanKeyInit(&key, Anum_pg_subscription_rel_srrelid,
				BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(relid));
	scan = systable_beginscan(rel, SubscriptionRelSrrelidSrsubidIndexId,
							  true, NULL, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		if (((Form_pg_subscription_rel) GETSTRUCT(tuple))->srsubid != subid)
			shared = true;
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return shared;
}

/* What is written to a partitioned table is in its partitions. */
bool
target_is_shared(Oid subid, Oid relid)
{
	List	   *relids = NIL;
	ListCell   *lc;

	if (get_rel_relkind(relid) == RELKIND_PARTITIONED_TABLE)
		relids = find_all_inheritors(relid, NoLock, NULL);
	else
		relids = list_make1_oid(relid);
	if (get_rel_relispartition(relid))
		relids = list_concat(relids, get_partition_ancestors(relid));
	foreach(lc, relids)
		if (is_of_another(subid, lfirst_oid(lc)))
			return true;
	return false;
}

/* --- opening it --- */

/* The server's errors of definitions that do not fit have no hint. */
static void
add_hint(void *arg)
{
	if (geterrcode() == ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE)
		errhint(HINT_TO_CHECK);
}

LogicalRepRelMapEntry *
target_open(LogicalRepRelId remoteid, LOCKMODE lockmode)
{
	LogicalRepRelMapEntry *entry;
	ErrorContextCallback context = {
		.callback = add_hint,
		.previous = error_context_stack
	};

	error_context_stack = &context;
	entry = logicalrep_rel_open(remoteid, lockmode);
	error_context_stack = context.previous;
	return entry;
}
