/*-------------------------------------------------------------------------
 *
 * pool.h
 *	  Shared memory of the pool: who works on what, who may, and who waits.
 *
 * Everything in here is protected by one lightweight lock, held for a few
 * instructions at a time.  What a process has claimed is a field of its own
 * entry, so a claim can neither be held twice nor outlive its holder.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/pool.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_POOL_H
#define REUSE_SYNC_POOL_H

#include "access/transam.h"
#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "nodes/pg_list.h"
#include "storage/dsm.h"
#include "storage/latch.h"

/* What a process of the pool is. */
typedef enum PoolWorkerType
{
	POOL_LAUNCHER,
	POOL_WORKER,				/* synchronizes, as a subscription's owner */
	POOL_CLEANER				/* drops slots nobody else can drop */
} PoolWorkerType;

/* What it is doing; the order is that of a unit's life. */
typedef enum PoolPhase
{
	PHASE_STARTING,
	PHASE_IDLE,
	PHASE_CONNECTING,
	PHASE_SETTING_BACK,
	PHASE_CREATING_SLOT,
	PHASE_WAITING_FOR_SNAPSHOT,
	PHASE_COPYING,
	PHASE_CATCHING_UP,
	PHASE_HANDING_OVER,
	PHASE_DROPPING_SLOTS
} PoolPhase;

/* Most tables of one unit; the upper limit of batch_tables. */
#define POOL_MAX_BATCH	256

/* What has been copied of a table of a unit. */
typedef struct PoolCopied
{
	int64		bytes;
	int64		tuples;			/* -1: its copy is not done */
} PoolCopied;

/* One process of the pool. */
typedef struct PoolWorker
{
	/* set by the launcher */
	bool		in_use;
	bool		finished;		/* has ended, to be reaped by the launcher */
	uint32		generation;		/* tells one use of this entry from another */
	PoolWorkerType type;
	Oid			dbid;
	Oid			userid;			/* owner served; InvalidOid: a cleaner */

	/* set by the process itself */
	int			pid;			/* 0 until it has started */
	Latch	   *latch;
	PoolPhase	phase;
	Oid			subid;			/* subscription served, or InvalidOid */
	int64		slot_id;		/* its sync slot, 0 if none */
	NameData	slot_name;
	dsm_handle	slot_offer;		/* see slot_offer.h, DSM_HANDLE_INVALID: none */
	int64		cleanup_slot_id;	/* the orphan it is dropping, 0 if none */
	Oid			cleanup_subid;
	NameData	cleanup_slot_name;
	int			nrelids;		/* tables claimed, of that subscription */
	Oid			relids[POOL_MAX_BATCH];
	PoolCopied	copied[POOL_MAX_BATCH]; /* of each of them */
	int64		tables_synced;
	int64		bytes_copied;	/* of the current unit */
	int64		bytes_total;	/* as the publisher has it, -1: not known */
	XLogRecPtr	restart_lsn;	/* of its slot, 0: not known */
	TransactionId catalog_xmin;
	XLogRecPtr	publisher_lsn;	/* the publisher's WAL ended there */
	TimestampTz slot_noted;		/* when that was so */
	uint64		snapshot_xmin;	/* of its transaction there, 0: none */
	TimestampTz unit_start;

	/* the table being copied, or copied last */
	Oid			at;				/* InvalidOid: none yet */
	TimestampTz copy_start;
	int64		bytes_before;	/* of bytes_copied, for other tables */
	int64		bytes_expected; /* -1: not known */
	int64		tuples_expected;	/* -1: not known */

	TimestampTz backend_start;
	TimestampTz state_change;

	bool		hinted;			/* there may be work since its last look */

	/* what its last look found, for the launcher */
	bool		done;			/* it has ended because there is nothing to do */
	bool		looked;			/* since the launcher asked last */
	int			pending;		/* tables it could have served more */
	TimestampTz next_look;		/* when something is due again, 0: never */

	/* requests from others */
	bool		let_go;			/* give up the unit: its subscription goes */
	bool		leave;			/* end after this unit: others wait */
} PoolWorker;

/* This process's entry; null outside the pool. */
extern PoolWorker *MyPoolWorker;

/* Set-up: the first in the shmem_request hook, the second in the startup. */
extern void pool_shmem_request(void);
extern void pool_shmem_startup(void);

/* Is there a pool?  Not if the library is switched off, or not preloaded. */
extern bool pool_exists(void);

/* --- life of a process of the pool --- */

/*
 * Become the process of the entry that pool_reserve returned as 'ticket' (or
 * the launcher), until exit.  False if the entry has been given to another.
 */
extern bool pool_attach(uint64 ticket);
extern void pool_attach_launcher(void);

/* The number of this process's entry. */
extern int	pool_my_place(void);

extern void pool_set_phase(PoolPhase phase);
extern const char *pool_phase_name(PoolPhase phase);

/*
 * Claim of these tables those that no other process has; *relids and the
 * result are what was claimed.  None while paused or draining, unless they are
 * half done.
 */
extern int	pool_claim_tables(Oid subid, Oid *relids, int nrelids,
							  bool half_done);
extern void pool_release_tables(void);
extern bool pool_table_is_claimed(Oid subid, Oid relid);

/*
 * Serve a subscription (InvalidOid: none); false if 'limit' others do.
 */
extern bool pool_join_subscription(Oid subid, int limit);
extern void pool_set_slot(int64 slot_id, const char *slot_name);

/* Offer this process's slot; find one that another of 'subid' offers. */
extern void pool_set_offer(dsm_handle offer);
extern dsm_handle pool_find_offer(Oid subid, NameData *slot_name);

/* False if another process has the slot. */
extern bool pool_claim_orphan(Oid subid, int64 slot_id,
							  const char *slot_name);
extern void pool_release_orphan(void);

/* Has a live process this slot?  Not if there is no pool. */
extern bool pool_slot_is_held(Oid dbid, Oid subid, int64 slot_id);

/* How many others serve a subscription. */
extern int	pool_workers_of_subscription(Oid subid);

/* How many others serve the same subscription in a place before ours? */
extern int	pool_rank_in_subscription(void);

extern bool pool_let_go_requested(void);

/*
 * Forget a cancel, since what it was meant for is over; but not one that has us
 * let go, for which somebody waits who does not ask twice.
 */
extern void pool_forget_cancel(void);

/* This process ends because there is nothing to do. */
extern void pool_set_done(void);
extern bool pool_leave_requested(void);
extern void pool_begin_look(void);
extern void pool_report_look(int pending, TimestampTz next_look);
extern void pool_count_bytes(int64 bytes);
extern void pool_set_bytes_total(int64 bytes);

/* The copy of a table of the unit begins; -1: not known.  And it is done. */
extern void pool_begin_copy(Oid relid, int64 bytes_expected,
							int64 tuples_expected);
extern void pool_end_copy(int64 bytes, int64 tuples);
extern void pool_count_tables(int n);

/*
 * What the publisher has said of this process's slot, and of the snapshot that
 * it holds there (0: none any more).
 */
extern void pool_note_slot(XLogRecPtr restart_lsn,
						   TransactionId catalog_xmin,
						   XLogRecPtr publisher_lsn);
extern void pool_note_snapshot(uint64 xmin);

/* --- hints to the launcher --- */

/* There may be work in this database: the launcher looks at once. */
extern void pool_hint(Oid dbid, bool cleanup);

/* Take the hints; false if there are none.  dbid InvalidOid: all databases. */
extern bool pool_take_hint(Oid *dbid, bool *cleanup);

/* --- the launcher's view --- */

/* Reserve an entry for a process about to start; its index, -1 if all busy. */
extern int	pool_reserve(PoolWorkerType type, Oid dbid, Oid userid,
						 uint64 *ticket);
extern void pool_unreserve(int index);
extern int	pool_size(void);
extern PoolWorker *pool_entry(int index);
extern void pool_lock(bool exclusive);
extern void pool_unlock(void);

/* --- requests of other backends (pool_requests.c) --- */

/*
 * Have all processes that serve a subscription, or drop a slot of it, give up;
 * returns how many still do.
 */
extern int	pool_request_let_go(Oid dbid, Oid subid);

/*
 * Have the processes of a database end: those that have no unit, or all when
 * they are through with theirs.  Cleaners do not wait for the publisher.
 */
extern void pool_request_leave(Oid dbid, bool busy_too);

/* Wait until they are gone, at most so many ms. */
extern void pool_wait_until_left(Oid dbid, int ms);

/* The tables that are being synchronized, as a list of oids. */
extern List *pool_claimed_tables(Oid subid);

/* Draining: no new unit in the database, only what is half done. */
extern bool pool_set_draining(Oid dbid, bool draining);
extern bool pool_is_draining(Oid dbid);

/* Units and slots held by live processes in the database. */
extern int	pool_busy_in_database(Oid dbid);

/* Have every process that serves the database (or any) look again. */
extern void pool_wake_database(Oid dbid);

/* Have those who wait for a change look; cheap if there are none. */
extern void pool_announce_change(void);

/* Wait until the pool has changed, or the timeout (ms). */
extern void pool_prepare_to_wait(void);
extern void pool_wait_for_change(long timeout_ms);
extern void pool_end_wait(void);

#endif							/* REUSE_SYNC_POOL_H */
