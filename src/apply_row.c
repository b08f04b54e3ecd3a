/*-------------------------------------------------------------------------
 *
 * apply_row.c
 *	  Applies one INSERT, UPDATE or DELETE to a local table.
 *
 * Every change is an executor run of its own: start_executor() builds the
 * state for the target, one of insert_row(), update_row() and delete_row()
 * does the change, finish_executor() fires AFTER triggers and closes all.
 *
 * The three know nothing of partitioning.  A tuple is built in the layout of
 * the target, then route() says which table it belongs to and returns it in
 * that table's layout: the partition found by tuple routing, or, of a table
 * without partitions, the target and the tuple unchanged.  An UPDATE that ends
 * outside of its partition becomes a DELETE there and an INSERT through the
 * target again.
 *
 * Rights, replica identity and the kind of relation are checked on the table
 * that is really written, as the server's apply worker does.
 *
 * Memory: everything is in the caller's short-lived context, including the
 * executor's per-query context.  There is one row per run, so nothing is
 * gained by the per-tuple context.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/apply_row.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/sysattr.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/tupconvert.h"
#include "access/xact.h"
#include "catalog/objectaddress.h"
#include "commands/trigger.h"
#include "executor/execPartition.h"
#include "executor/executor.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "rewrite/rewriteHandler.h"
#include "utils/lsyscache.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"

#include "apply_row.h"
#include "compat.h"

/* One executor run. */
typedef struct RowExec
{
	RowChange  *change;
	EState	   *estate;
	ResultRelInfo *target;
	ModifyTableState *mtstate;	/* both NULL unless target is partitioned */
	PartitionTupleRouting *proute;
} RowExec;

/* Where route() has found a tuple to belong. */
typedef struct Place
{
	ResultRelInfo *rri;
	TupleTableSlot *slot;		/* the tuple, fit for rri */
} Place;

static void start_executor(RowExec *ex, RowChange *change);
static void finish_executor(RowExec *ex);
static Bitmapset *updated_columns(RowChange *change);

static void insert_row(RowExec *ex);
static void update_row(RowExec *ex);
static void delete_row(RowExec *ex);
static void do_insert(RowExec *ex, TupleTableSlot *slot);
static void do_update(RowExec *ex, ResultRelInfo *rri,
					  TupleTableSlot *oldslot, TupleTableSlot *newslot);
static void do_delete(RowExec *ex, ResultRelInfo *rri,
					  TupleTableSlot *oldslot);

static Place route(RowExec *ex, TupleTableSlot *slot);
static AttrMap *attrmap_from_target(RowExec *ex, ResultRelInfo *rri);
static TupleTableSlot *back_to_target(RowExec *ex, Place place);
static LogicalRepRelMapEntry *entry_of(RowExec *ex, ResultRelInfo *rri);
static TupleTableSlot *find_row(RowExec *ex, Place place);
static void check_identity(LogicalRepRelMapEntry *entry, Relation rel);

static TupleTableSlot *new_slot(RowExec *ex, Relation rel);
static void fill_slot(RowChange *change, LogicalRepRelMapEntry *entry,
					  LogicalRepTupleData *tuple, TupleTableSlot *base,
					  TupleTableSlot *slot);
static Datum convert_column(Form_pg_attribute att, char format,
							StringInfo value, int column);
static void fill_defaults(RowExec *ex, TupleTableSlot *slot);


/*
 * Apply a change: see apply_row.h.
 */
void
apply_row(RowChange *change)
{
	RowExec		ex;

	start_executor(&ex, change);

	switch (change->operation)
	{
		case CMD_INSERT:
			insert_row(&ex);
			break;
		case CMD_UPDATE:
			update_row(&ex);
			break;
		case CMD_DELETE:
			delete_row(&ex);
			break;
		default:
			elog(ERROR, "unexpected operation %d", (int) change->operation);
	}

	finish_executor(&ex);
}

/*
 * Check what the current user may do with 'rel': see apply_row.h.
 */
void
apply_check_rights(Relation rel, AclMode mode)
{
	Oid			relid = RelationGetRelid(rel);
	AclResult	aclresult = pg_class_aclcheck(relid, GetUserId(), mode);

	if (aclresult != ACLCHECK_OK)
		aclcheck_error(aclresult,
					   get_relkind_objtype(rel->rd_rel->relkind),
					   RelationGetRelationName(rel));

	/* COPY cannot honor policies either, nor does the apply worker. */
	if (check_enable_rls(relid, InvalidOid, false) == RLS_ENABLED)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("user \"%s\" cannot replicate into table \"%s\", for which row-level security is enabled",
						GetUserNameFromId(GetUserId(), true),
						RelationGetRelationName(rel)),
				 errhint("The owner of the subscription needs to bypass row-level security.")));
}

/* ----------
 * Executor state
 * ----------
 */

/*
 * The target is entered in a range table, so that the executor keeps and
 * returns a reference to it as to any result relation.
 */
static void
start_executor(RowExec *ex, RowChange *change)
{
	Relation	rel = change->entry->localrel;
	EState	   *estate = CreateExecutorState();
	RangeTblEntry *rte = makeNode(RangeTblEntry);

	rte->rtekind = RTE_RELATION;
	rte->relid = RelationGetRelid(rel);
	rte->relkind = rel->rd_rel->relkind;
	rte->rellockmode = RowExclusiveLock;
	compat_init_range_table(estate, rte, updated_columns(change));

	estate->es_snapshot = GetActiveSnapshot();
	estate->es_output_cid = GetCurrentCommandId(true);

	memset(ex, 0, sizeof(*ex));
	ex->change = change;
	ex->estate = estate;
	ex->target = makeNode(ResultRelInfo);
	ExecInitResultRelation(estate, ex->target, 1);

	if (rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
	{
		/* Tuple routing wants to belong to a ModifyTable node. */
		ex->mtstate = makeNode(ModifyTableState);
		ex->mtstate->ps.state = estate;
		ex->mtstate->operation = change->operation;
		ex->mtstate->resultRelInfo = ex->target;
		ex->mtstate->rootResultRelInfo = ex->target;
		ex->proute = ExecSetupPartitionTupleRouting(estate, rel);
	}

	AfterTriggerBeginQuery();
}

static void
finish_executor(RowExec *ex)
{
	EState	   *estate = ex->estate;

	AfterTriggerEndQuery(estate);

	if (ex->proute)
		ExecCleanupTupleRouting(ex->mtstate, ex->proute);

	ExecResetTupleTable(estate->es_tupleTable, false);
	ExecCloseResultRelations(estate);
	ExecCloseRangeTableRelations(estate);
	FreeExecutorState(estate);
}

/*
 * The columns that an UPDATE may have changed, for triggers on columns, for
 * generated columns and for indexes.  The protocol tells of a column only
 * whether its value was sent.
 */
static Bitmapset *
updated_columns(RowChange *change)
{
	TupleDesc	desc = RelationGetDescr(change->entry->localrel);
	AttrMap    *attrmap = change->entry->attrmap;
	Bitmapset  *columns = NULL;

	if (change->operation != CMD_UPDATE)
		return NULL;

	for (int i = 0; i < desc->natts; i++)
	{
		int			column = attrmap->attnums[i];

		if (TupleDescAttr(desc, i)->attisdropped || column < 0 ||
			change->row->colstatus[column] == LOGICALREP_COLUMN_UNCHANGED)
			continue;
		columns = bms_add_member(columns,
								 i + 1 - FirstLowInvalidHeapAttributeNumber);
	}

	return columns;
}

/* ----------
 * The changes
 * ----------
 */

static void
insert_row(RowExec *ex)
{
	TupleTableSlot *slot = new_slot(ex, ex->target->ri_RelationDesc);

	fill_slot(ex->change, ex->change->entry, ex->change->row, NULL, slot);
	fill_defaults(ex, slot);
	do_insert(ex, slot);
}

static void
delete_row(RowExec *ex)
{
	TupleTableSlot *slot = new_slot(ex, ex->target->ri_RelationDesc);
	TupleTableSlot *oldslot;
	Place		place;

	fill_slot(ex->change, ex->change->entry, ex->change->key, NULL, slot);
	place = route(ex, slot);
	oldslot = find_row(ex, place);
	if (oldslot != NULL)
		do_delete(ex, place.rri, oldslot);
}

static void
update_row(RowExec *ex)
{
	TupleTableSlot *slot = new_slot(ex, ex->target->ri_RelationDesc);
	TupleTableSlot *oldslot;
	Place		place;

	fill_slot(ex->change, ex->change->entry, ex->change->key, NULL, slot);
	place = route(ex, slot);
	oldslot = find_row(ex, place);
	if (oldslot == NULL)
		return;

	/* The key has served; its slot takes the new row. */
	fill_slot(ex->change, entry_of(ex, place.rri), ex->change->row, oldslot,
			  place.slot);

	if (ex->proute == NULL ||
		ExecPartitionCheck(place.rri, place.slot, ex->estate, false))
		do_update(ex, place.rri, oldslot, place.slot);
	else
	{
		/* Values that were not sent are still those of the old row. */
		ExecMaterializeSlot(place.slot);
		do_delete(ex, place.rri, oldslot);
		do_insert(ex, back_to_target(ex, place));
	}
}

/*
 * Insert the tuple in 'slot', which has the layout of the target.
 */
static void
do_insert(RowExec *ex, TupleTableSlot *slot)
{
	Place		place = route(ex, slot);

	/* Tuple routing opens indexes by itself. */
	if (ex->proute == NULL)
		ExecOpenIndices(place.rri, false);

	compat_watch_conflicts(place.rri);
	apply_check_rights(place.rri->ri_RelationDesc, ACL_INSERT);
	ExecSimpleRelationInsert(place.rri, ex->estate, place.slot);
}

static void
do_update(RowExec *ex, ResultRelInfo *rri, TupleTableSlot *oldslot,
		  TupleTableSlot *newslot)
{
	EPQState	epqstate;

	if (ex->proute == NULL)
		ExecOpenIndices(rri, false);

	compat_watch_conflicts(rri);
	apply_check_rights(rri->ri_RelationDesc, ACL_UPDATE);
	EvalPlanQualInit(&epqstate, ex->estate, NULL, NIL, -1, NIL);
	EvalPlanQualSetSlot(&epqstate, newslot);
	ExecSimpleRelationUpdate(rri, ex->estate, &epqstate, oldslot, newslot);
	EvalPlanQualEnd(&epqstate);
}

static void
do_delete(RowExec *ex, ResultRelInfo *rri, TupleTableSlot *oldslot)
{
	EPQState	epqstate;

	apply_check_rights(rri->ri_RelationDesc, ACL_DELETE);
	EvalPlanQualInit(&epqstate, ex->estate, NULL, NIL, -1, NIL);
	EvalPlanQualSetSlot(&epqstate, oldslot);
	ExecSimpleRelationDelete(rri, ex->estate, &epqstate, oldslot);
	EvalPlanQualEnd(&epqstate);
}

/* ----------
 * Partitions
 * ----------
 */

/*
 * Find the table that the tuple in 'slot', in the layout of the target,
 * belongs to.
 */
static Place
route(RowExec *ex, TupleTableSlot *slot)
{
	Place		place = {ex->target, slot};
	Relation	leaf;
	AttrMap    *attrmap;

	if (ex->proute == NULL)
		return place;

	place.rri = ExecFindPartition(ex->mtstate, ex->target, ex->proute, slot,
								  ex->estate);
	leaf = place.rri->ri_RelationDesc;

	/* CREATE SUBSCRIPTION has seen the target only. */
	CheckSubscriptionRelkind(leaf->rd_rel->relkind,
							 get_namespace_name(RelationGetNamespace(leaf)),
							 RelationGetRelationName(leaf));

	attrmap = attrmap_from_target(ex, place.rri);
	if (attrmap != NULL)
		place.slot = execute_attr_map_slot(attrmap, slot, new_slot(ex, leaf));
	return place;
}

/*
 * From the layout of the target to that of a partition; NULL if they are the
 * same, or 'rri' is the target.
 */
static AttrMap *
attrmap_from_target(RowExec *ex, ResultRelInfo *rri)
{
	TupleConversionMap *map = ExecGetRootToChildMap(rri, ex->estate);

	return map ? map->attrMap : NULL;
}

/*
 * The tuple of 'place' in the layout of the target.
 */
static TupleTableSlot *
back_to_target(RowExec *ex, Place place)
{
	TupleConversionMap *map = ExecGetChildToRootMap(place.rri);

	if (map == NULL)
		return place.slot;

	return execute_attr_map_slot(map->attrMap, place.slot,
								 new_slot(ex, ex->target->ri_RelationDesc));
}

/*
 * The relation map's entry for the target or a partition of it: which remote
 * column each of its columns takes, and whether its rows can be identified.
 */
static LogicalRepRelMapEntry *
entry_of(RowExec *ex, ResultRelInfo *rri)
{
	LogicalRepRelMapEntry *root = ex->change->entry;
	LogicalRepRelMapEntry *entry;
	AttrMap    *attrmap;

	if (rri == ex->target)
		return root;

	attrmap = attrmap_from_target(ex, rri);
	entry = logicalrep_partition_open(root, rri->ri_RelationDesc, attrmap);

	/*
	 * The server keeps such entries by partition only.  One made for another
	 * remote table (dropped and created again there, or of another
	 * publisher) would be taken for valid.
	 */
	if (entry->remoterel.remoteid != root->remoterel.remoteid)
	{
		LogicalRepRelation stale;

		/* a copy, as the entry is cleared: only the id counts */
		stale = entry->remoterel;
		logicalrep_partmap_reset_relmap(&stale);
		entry = logicalrep_partition_open(root, rri->ri_RelationDesc,
										  attrmap);
	}

	return entry;
}

/* ----------
 * Finding the old row
 * ----------
 */

/*
 * Find and lock the row that the key in 'place' identifies.  Returns NULL if
 * there is none.
 */
static TupleTableSlot *
find_row(RowExec *ex, Place place)
{
	Relation	rel = place.rri->ri_RelationDesc;
	LogicalRepRelMapEntry *entry = entry_of(ex, place.rri);
	TupleTableSlot *oldslot;
	TupleTableSlot *newslot = NULL;
	Oid			indexoid = compat_search_index(entry, rel);
	bool		found;

	check_identity(entry, rel);
	apply_check_rights(rel, ACL_SELECT);

	oldslot = table_slot_create(rel, &ex->estate->es_tupleTable);

	if (OidIsValid(indexoid))
		found = RelationFindReplTupleByIndex(rel, indexoid,
											 LockTupleExclusive,
											 place.slot, oldslot);
	else
		found = RelationFindReplTupleSeq(rel, LockTupleExclusive,
										 place.slot, oldslot);
	if (found && !compat_is_of_other_origin(oldslot, ex->change->origin))
		return oldslot;

	if (!found)
		oldslot = NULL;
	if (ex->change->operation == CMD_UPDATE)
	{
		newslot = new_slot(ex, rel);
		fill_slot(ex->change, entry, ex->change->row, NULL, newslot);
	}
	compat_report_conflict(ex->estate, place.rri, place.slot, oldslot,
						   newslot);
	return oldslot;
}

/*
 * Throw unless what the publisher sends identifies rows of 'rel'.
 */
static void
check_identity(LogicalRepRelMapEntry *entry, Relation rel)
{
	const char *nspname;

	if (entry->updatable)
		return;

	nspname = get_namespace_name(RelationGetNamespace(rel));
	if (OidIsValid(GetRelationIdentityOrPK(rel)))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("publisher does not send all replica identity columns of table \"%s.%s\"",
						nspname, RelationGetRelationName(rel)),
				 errhint("The replica identity on the publisher must include the columns of the one on the subscriber.")));

	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("table \"%s.%s\" has neither a replica identity index nor a primary key, and is published without REPLICA IDENTITY FULL",
					nspname, RelationGetRelationName(rel)),
			 errhint("Add a primary key on the subscriber, or set REPLICA IDENTITY FULL on the publisher.")));
}

/* ----------
 * Tuples
 * ----------
 */

/*
 * A new slot for tuples in the layout of 'rel'.
 */
static TupleTableSlot *
new_slot(RowExec *ex, Relation rel)
{
	return ExecInitExtraTupleSlot(ex->estate, RelationGetDescr(rel),
								  &TTSOpsVirtual);
}

/*
 * Put a remote tuple into 'slot', whose columns 'entry' maps to remote ones.
 *
 * Columns the publisher does not have, and values it did not send because they
 * have not changed, are those of 'base' (in the same layout), or null without
 * one.  The slot then refers to memory of 'base'.
 */
static void
fill_slot(RowChange *change, LogicalRepRelMapEntry *entry,
		  LogicalRepTupleData *tuple, TupleTableSlot *base,
		  TupleTableSlot *slot)
{
	TupleDesc	desc = slot->tts_tupleDescriptor;

	ExecClearTuple(slot);
	if (base != NULL)
		slot_getallattrs(base);

	Assert(entry->attrmap->maplen == desc->natts);
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);
		int			column = entry->attrmap->attnums[i];

		slot->tts_values[i] = base ? base->tts_values[i] : (Datum) 0;
		slot->tts_isnull[i] = base ? base->tts_isnull[i] : true;

		if (att->attisdropped || column < 0)
			continue;
		if (column >= tuple->ncols)
			elog(ERROR, "column map of relation %u exceeds the tuple",
				 entry->localreloid);

		switch (tuple->colstatus[column])
		{
			case LOGICALREP_COLUMN_UNCHANGED:
				break;

			case LOGICALREP_COLUMN_NULL:
				slot->tts_values[i] = (Datum) 0;
				slot->tts_isnull[i] = true;
				break;

			default:
				change->column = column;
				slot->tts_values[i] =
					convert_column(att, tuple->colstatus[column],
								   &tuple->colvalues[column], column);
				slot->tts_isnull[i] = false;
				change->column = -1;
				break;
		}
	}

	ExecStoreVirtualTuple(slot);
}

/*
 * Run the input or receive function of the column's type on a value.
 */
static Datum
convert_column(Form_pg_attribute att, char format, StringInfo value,
			   int column)
{
	Oid			func;
	Oid			ioparam;
	Datum		result;

	if (format == LOGICALREP_COLUMN_TEXT)
	{
		/* as COPY does: input functions take the encoding on trust */
		pg_verifymbstr(value->data, value->len, false);

		getTypeInputInfo(att->atttypid, &func, &ioparam);
		return OidInputFunctionCall(func, value->data, ioparam,
									att->atttypmod);
	}

	/* An UPDATE without old key converts the key columns twice. */
	value->cursor = 0;

	getTypeBinaryInputInfo(att->atttypid, &func, &ioparam);
	result = OidReceiveFunctionCall(func, value, ioparam, att->atttypmod);
	if (value->cursor != value->len)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_BINARY_REPRESENTATION),
				 errmsg("binary data of remote column %d does not fit the type of the local column",
						column + 1)));

	return result;
}

/*
 * Give the columns that the publisher does not have their defaults.
 */
static void
fill_defaults(RowExec *ex, TupleTableSlot *slot)
{
	LogicalRepRelMapEntry *entry = ex->change->entry;
	TupleDesc	desc = slot->tts_tupleDescriptor;

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);
		Expr	   *expr;

		if (entry->attrmap->attnums[i] >= 0 || att->attisdropped ||
			att->attgenerated)
			continue;

		expr = (Expr *) build_column_default(entry->localrel, i + 1);
		if (expr == NULL)
			continue;

		slot->tts_values[i] =
			ExecEvalExpr(ExecPrepareExpr(expr, ex->estate),
						 GetPerTupleExprContext(ex->estate),
						 &slot->tts_isnull[i]);
	}
}
