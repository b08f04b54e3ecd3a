/*-------------------------------------------------------------------------
 *
 * functions.h
 *	  What the functions that SQL can call have in common.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/functions.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_FUNCTIONS_H
#define REUSE_SYNC_FUNCTIONS_H

/*
 * Throws unless there is a pool that serves this database: it exists only
 * while the library is in use, and serves no SQL objects of another version.
 */
extern void functions_require_pool(void);

#endif							/* REUSE_SYNC_FUNCTIONS_H */
