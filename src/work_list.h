/*-------------------------------------------------------------------------
 *
 * work_list.h
 *	  What there is to do in this database for this owner.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/work_list.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_WORK_LIST_H
#define REUSE_SYNC_WORK_LIST_H

#include "datatype/timestamp.h"
#include "nodes/pg_list.h"

/* A table that can be claimed. */
typedef struct WorkTable
{
	Oid			relid;
	bool		half_done;		/* in state 'f' */
} WorkTable;

/* What a look at the subscriptions found. */
typedef struct WorkList
{
	bool		gone;			/* the extension is: no work here any more */
	bool		nobody;			/* no enabled subscription of this owner */
	Oid			subid;			/* to serve next; InvalidOid: none */
	List	   *tables;			/* its eligible tables (WorkTable *); none if
								 * only orphaned slots are to be dropped, or
								 * tables to be set back */
	int			more;			/* eligible tables of all subscriptions */
	TimestampTz next_look;		/* when something is due again; 0: never */
} WorkList;

/*
 * Look at all enabled subscriptions of this database that belong to this
 * owner, and choose the one to serve: the one with the fewest workers, and
 * among equals 'last', or any other if it is 'anothers_turn'.  Starts a
 * transaction of its own; the result is palloc'd in the current context.
 */
extern WorkList *work_list_look(Oid last, bool anothers_turn);

/* The disabled ones of the same; palloc'd in 'context'. */
extern List *work_list_disabled(MemoryContext context);

/* Has another subscription tables to synchronize, and no worker at all? */
extern bool work_list_another_waits(Oid current);

/*
 * Tables of one subscription that this process could claim now (WorkTable *),
 * in the caller's transaction; palloc'd in 'context'.  '*next_look' is lowered to when a failing table is
 * due.
 */
extern List *work_list_tables(Oid subid, MemoryContext context,
							  TimestampTz *next_look);

/*
 * Tables of one subscription that are to be synchronized anew and are not
 * begun yet, as far as this process could begin them now (relids).  As above.
 */
extern List *work_list_resyncs(Oid subid, MemoryContext context,
							   TimestampTz *next_look);

/*
 * Keep a subscription out of the looks until then: its publisher is away; or
 * only its orphaned slots, which could not be dropped.
 */
extern void work_list_postpone(Oid subid, TimestampTz until);
extern void work_list_postpone_orphans(Oid subid, TimestampTz until);

extern bool work_list_is_postponed(Oid subid);

/*
 * Is the table still to be served now?  Not if a table-sync worker of the
 * server is at it, or if it has failed since the look.  In a transaction.
 */
extern bool work_list_is_due(Oid subid, Oid relid);

#endif							/* REUSE_SYNC_WORK_LIST_H */
