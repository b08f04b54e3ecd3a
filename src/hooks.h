/*-------------------------------------------------------------------------
 *
 * hooks.h
 *	  What the library does in processes that are not of the pool.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/hooks.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_HOOKS_H
#define REUSE_SYNC_HOOKS_H

/* Install all hooks; to be called while the library is preloaded. */
extern void hooks_install(void);

#endif							/* REUSE_SYNC_HOOKS_H */
