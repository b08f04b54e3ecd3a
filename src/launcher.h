/*-------------------------------------------------------------------------
 *
 * launcher.h
 *	  The process that decides how many workers there are, and for whom.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/launcher.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_LAUNCHER_H
#define REUSE_SYNC_LAUNCHER_H

/* Register the launcher; to be called while the library is preloaded. */
extern void launcher_register(void);

/* Entry point of the process. */
extern PGDLLEXPORT void reuse_sync_launcher_main(Datum arg);

#endif							/* REUSE_SYNC_LAUNCHER_H */
