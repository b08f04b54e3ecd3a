/*-------------------------------------------------------------------------
 *
 * worker.h
 *	  The life of a worker.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/worker.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_WORKER_H
#define REUSE_SYNC_WORKER_H

/* Entry point of the process; the argument is pool_reserve's ticket. */
extern PGDLLEXPORT void reuse_sync_worker_main(Datum ticket);

#endif							/* REUSE_SYNC_WORKER_H */
