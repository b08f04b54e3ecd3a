/*-------------------------------------------------------------------------
 *
 * pool_apply.h
 *	  Which of the server's apply workers stand aside for the pool, and stream.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/pool_apply.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_POOL_APPLY_H
#define REUSE_SYNC_POOL_APPLY_H

#include "datatype/timestamp.h"

/*
 * An apply worker that has settled which workers its database uses; one that
 * has ended, until its place is needed.
 */
typedef struct ApplyWorkerEntry
{
	int			pid;			/* 0: it has ended */
	Oid			subid;
	bool		stands_aside;	/* it starts no table-sync workers */
	bool		streams;
	TimestampTz streamed_until; /* its predecessor, or itself; 0: nobody */
} ApplyWorkerEntry;

typedef enum ApplyWorkerStanding
{
	APPLY_UNKNOWN,				/* has not published yet */
	APPLY_STANDS_ASIDE,
	APPLY_USES_OWN_WORKERS
} ApplyWorkerStanding;

/*
 * In an apply worker, once it has settled whether it starts table-sync workers
 * of its own; until it ends.
 */
extern void pool_publish_apply_worker(Oid subid, bool stands_aside);

/*
 * A command makes apply workers begin, or begin anew; when was the last?  At
 * the latest when the server was started.
 */
extern void pool_note_apply_change(void);
extern TimestampTz pool_last_apply_change(void);

/* Of the apply worker with this pid. */
extern ApplyWorkerStanding pool_apply_worker_standing(int pid);

/* In an apply worker: it streams from the subscription's slot, or will try. */
extern void pool_publish_streaming(bool streams);

/*
 * Does an apply worker of this server stream, or has it done so until no more
 * than so many ms ago (-1: ever), and was not refused since?
 */
extern bool pool_apply_worker_streams(Oid subid, int grace);

#endif							/* REUSE_SYNC_POOL_APPLY_H */
