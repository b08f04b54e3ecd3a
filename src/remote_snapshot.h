/*-------------------------------------------------------------------------
 *
 * remote_snapshot.h
 *	  Snapshots of the publisher, as data: which transactions they saw.
 *
 * Pure computation; design.md section 5 and its condition C1.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/remote_snapshot.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_REMOTE_SNAPSHOT_H
#define REUSE_SYNC_REMOTE_SNAPSHOT_H

/*
 * What pg_current_snapshot() printed.  xip is sorted.  The snapshot of a new
 * slot may have an xmin above its xmax, so it is no value of pg_snapshot.
 */
typedef struct RemoteSnapshot
{
	uint64		xmin;
	uint64		xmax;
	int			nxip;
	uint64	   *xip;
} RemoteSnapshot;

/*
 * Top-level xids that a slot has delivered (C1 b).  After a catch-up in which it
 * has delivered too many to be kept, it is not used again.
 */
typedef struct DeliveredXids
{
	int			n;
	int			size;
	uint64	   *xids;
	bool		too_many;
} DeliveredXids;

/*
 * Read the text form "xmin:xmax:xip,xip,..."; palloc'd.  Throws
 * ERRCODE_INVALID_TEXT_REPRESENTATION.
 */
extern RemoteSnapshot *remote_snapshot_parse(const char *text);

/* The 64-bit xid nearest to the snapshot's xmax that ends in these 32 bits. */
extern uint64 remote_snapshot_full_xid(const RemoteSnapshot *snapshot,
									   TransactionId xid);

/* Did the snapshot see this transaction, if it committed? */
extern bool remote_snapshot_sees(const RemoteSnapshot *snapshot, uint64 xid);

/* C1 (a): does 'later' see all that 'birth' saw? */
extern bool remote_snapshot_sees_all_of(const RemoteSnapshot *later,
										const RemoteSnapshot *birth);

/* C1 (b): does it see all that the slot has delivered? */
extern bool remote_snapshot_sees_delivered(const RemoteSnapshot *later,
										   const DeliveredXids *delivered);

/*
 * Remember a delivered xid (in 'context'); forget those below 'xmin', which
 * every later snapshot sees.
 */
extern void delivered_xids_add(DeliveredXids *delivered, uint64 xid,
							   MemoryContext context);
extern void delivered_xids_prune(DeliveredXids *delivered, uint64 xmin);

#endif							/* REUSE_SYNC_REMOTE_SNAPSHOT_H */
