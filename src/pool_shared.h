/*-------------------------------------------------------------------------
 *
 * pool_shared.h
 *	  What is in the shared memory of the pool; for the files pool*.c alone.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/pool_shared.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_POOL_SHARED_H
#define REUSE_SYNC_POOL_SHARED_H

#include "storage/condition_variable.h"
#include "storage/lwlock.h"

#include "pool.h"
#include "pool_apply.h"
#include "pool_notes.h"

#define MAX_HINTS		64
#define MAX_DRAINING	64
#define MAX_PROBLEMS	64
#define MAX_DATABASES	256
#define MAX_RUNS		256

typedef struct PoolHint
{
	Oid			dbid;
	bool		cleanup;		/* slots of dropped subscriptions too */
} PoolHint;

typedef struct PoolDatabase
{
	Oid			dbid;
	Oid			userid;			/* InvalidOid: the database's cleaner */
	DatabaseStanding standing;	/* in the entry of the cleaner */
	int			failures;
} PoolDatabase;

/* A run of a subscription, and how far people have seen it. */
typedef struct PoolRun
{
	Oid			dbid;
	Oid			subid;
	TimestampTz start;
	double		percent;
	double		work;
} PoolRun;

typedef struct PoolShared
{
	/* protects all that follows; the condition variable protects itself */
	LWLock	   *lock;
	ConditionVariable changed;

	PoolWorker	launcher;

	/* databases to look at; when they overflow, all are */
	int			nhints;
	bool		hint_all;
	PoolHint	hints[MAX_HINTS];

	int			ndraining;
	Oid			draining[MAX_DRAINING];

	/* when there are more of these, the oldest are forgotten */
	PoolProblem problems[MAX_PROBLEMS];
	int			ndatabases;
	PoolDatabase databases[MAX_DATABASES];
	int			nruns;
	PoolRun		runs[MAX_RUNS];

	TimestampTz apply_change;	/* when a command last made some begin */
	int			napply;
	ApplyWorkerEntry *apply;	/* max_logical_replication_workers of them */

	PoolWorker	workers[FLEXIBLE_ARRAY_MEMBER];
} PoolShared;

/* Null if there is no pool. */
extern PoolShared *Pool;

/* Is this database being drained?  Caller holds the lock. */
extern bool pool_drains(Oid dbid);

#endif							/* REUSE_SYNC_POOL_SHARED_H */
