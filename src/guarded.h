/*-------------------------------------------------------------------------
 *
 * guarded.h
 *	  A step of a worker's work, and what becomes of its errors.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/guarded.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_GUARDED_H
#define REUSE_SYNC_GUARDED_H

#include "batch.h"
#include "catchup.h"
#include "session.h"
#include "sync_slot.h"
#include "unit.h"

/* What a worker has at hand, and has to let go of after an error. */
typedef struct Serving
{
	MemoryContext context;		/* reset with each subscription served */
	Session    *session;
	SyncSlot   *slot;
	Unit	   *unit;
	Stream	   *adopted;		/* of a slot that was taken over */
} Serving;

extern Serving my;

/* What a step of the work is done with. */
typedef struct Step
{
	const BatchPlan *plan;
	Batch	   *batch;
} Step;

/*
 * A cancel is meant for what is at work: a step, or something else that can
 * be cancelled.  In between it would end the process: one that has us let go
 * waits for the next step, and any other is in vain.
 */
extern void guarded_let_cancel(bool let);

/*
 * Run a step of the work; false if it failed.  Then all that it had is let go
 * of.  The failure is kept as a table's, or as that of the way to the
 * publisher; then the subscription is left alone for a while.  Throws nothing
 * but what ends the process.
 */
extern bool guarded(void (*step) (const Step *), const Step *what);

/*
 * The extension may be dropped at any time; then there is nothing left to do
 * or say.  Starts a transaction of its own.
 */
extern bool extension_is_here(void);

#endif							/* REUSE_SYNC_GUARDED_H */
