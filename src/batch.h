/*-------------------------------------------------------------------------
 *
 * batch.h
 *	  Which tables are synchronized together, in which order, and which way.
 *
 * Large tables first, each alone and the staged way; small ones after them in
 * batches the express way (design.md section 7).
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/batch.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_BATCH_H
#define REUSE_SYNC_BATCH_H

#include "pool.h"
#include "session.h"

/* The tables of a subscription, in the order to serve them. */
typedef struct BatchPlan BatchPlan;

/* The next unit's tables. */
typedef struct Batch
{
	int			nrelids;
	Oid			relids[POOL_MAX_BATCH];
	bool		express;		/* the way to take */
	bool		half_done;		/* in state 'f' */
} Batch;

/*
 * Plan for these tables (a list of WorkTable), with the sizes the publisher
 * has; palloc'd in the current context.
 */
extern BatchPlan *batch_plan(Session *session, const List *tables);

/* All tables of the plan. */
extern const Oid *batch_relids(const BatchPlan *plan, int *nrelids);

/* The next unit; false if there is none. */
extern bool batch_next(BatchPlan *plan, Batch *batch);

/*
 * Remember for later plans of this session that a table is to be served alone,
 * or the staged way.
 */
extern void batch_alone(Session *session, Oid relid);
extern void batch_staged(Session *session, Oid relid);

#endif							/* REUSE_SYNC_BATCH_H */
