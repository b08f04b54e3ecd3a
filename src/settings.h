/*-------------------------------------------------------------------------
 *
 * settings.h
 *	  The reuse_sync.* settings, and the version of this library.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/settings.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_SETTINGS_H
#define REUSE_SYNC_SETTINGS_H

#define EXTENSION_NAME		"reuse_sync"
#define EXTENSION_VERSION	"1.1"

/* Was the library loaded when the server started?  Else it does nothing. */
extern bool reuse_sync_preloaded;

extern bool reuse_sync_enabled;
extern bool reuse_sync_paused;
extern int	reuse_sync_max_workers;
extern int	reuse_sync_max_workers_per_subscription;
extern int	reuse_sync_worker_idle_timeout; /* ms */
extern int	reuse_sync_naptime; /* ms */
extern int	reuse_sync_batch_tables;
extern int	reuse_sync_batch_size;	/* kB */
extern int	reuse_sync_handover_lock_timeout;	/* ms */
extern int	reuse_sync_max_retry_interval;	/* ms */

extern void settings_define(void);

/*
 * In a process of the pool, before its signals are unblocked: obey SIGHUP.  The
 * server has ignored those that came since the process was started, so the
 * configuration is read again in any case.
 */
extern void settings_follow_reloads(void);

/* In a worker: settings of the session that follow from ours. */
extern void settings_apply(void);

/* In a worker: read the configuration again, if a SIGHUP asks for it. */
extern void settings_reload(void);

#endif							/* REUSE_SYNC_SETTINGS_H */
