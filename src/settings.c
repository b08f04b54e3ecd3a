/*-------------------------------------------------------------------------
 *
 * settings.c
 *	  The reuse_sync.* settings.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/settings.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>
#include <signal.h>

#include "libpq/pqsignal.h"
#include "postmaster/interrupt.h"
#include "utils/guc.h"

#include "pool.h"
#include "settings.h"
#include "testing.h"

bool		reuse_sync_preloaded = false;
bool		reuse_sync_enabled = true;
bool		reuse_sync_paused = false;
int			reuse_sync_max_workers = 4;
int			reuse_sync_max_workers_per_subscription = 4;
int			reuse_sync_worker_idle_timeout = 10000;
int			reuse_sync_naptime = 10000;
int			reuse_sync_batch_tables = 64;
int			reuse_sync_batch_size = 8192;
int			reuse_sync_handover_lock_timeout = 1000;
int			reuse_sync_max_retry_interval = 300000;

void
settings_define(void)
{
	reuse_sync_preloaded = true;
	DefineCustomBoolVariable("reuse_sync.enabled",
							 "Synchronizes tables of subscriptions with the pool's workers.",
							 "When off, the library does nothing and the server synchronizes as ever.",
							 &reuse_sync_enabled, true,
							 PGC_POSTMASTER, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("reuse_sync.paused",
							 "Has workers finish what they are at and take nothing new.",
							 NULL,
							 &reuse_sync_paused, false,
							 PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("reuse_sync.max_workers",
							"Sets the size of the pool for the whole server.",
							NULL,
							&reuse_sync_max_workers, 4, 1, 1024,
							PGC_POSTMASTER, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("reuse_sync.max_workers_per_subscription",
							"Sets how many workers one subscription may have.",
							NULL,
							&reuse_sync_max_workers_per_subscription,
							4, 1, 1024,
							PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("reuse_sync.worker_idle_timeout",
							"Sets how long a worker without work keeps its process.",
							NULL,
							&reuse_sync_worker_idle_timeout,
							10000, 0, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("reuse_sync.naptime",
							"Sets how often the launcher looks without being woken.",
							NULL,
							&reuse_sync_naptime, 10000, 100, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("reuse_sync.batch_tables",
							"Sets the most tables that are synchronized together.",
							NULL,
							&reuse_sync_batch_tables,
							64, 1, POOL_MAX_BATCH,
							PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("reuse_sync.batch_size",
							"Sets the size up to which tables of the publisher are synchronized together.",
							"It bounds the sizes of a batch's tables taken together as well.",
							&reuse_sync_batch_size,
							8192, 0, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_KB, NULL, NULL, NULL);
	DefineCustomIntVariable("reuse_sync.handover_lock_timeout",
							"Sets the longest wait for the handover lock, and the longest time it is held.",
							NULL,
							&reuse_sync_handover_lock_timeout,
							1000, 10, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("reuse_sync.max_retry_interval",
							"Sets the longest wait before a failing table is tried again.",
							NULL,
							&reuse_sync_max_retry_interval,
							300000, 1000, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	testing_define_settings();
	MarkGUCPrefixReserved("reuse_sync");
}

void
settings_follow_reloads(void)
{
	/* Until now a reload was ignored. */
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	ConfigReloadPending = guard_is_on("start_reload");
}

void
settings_apply(void)
{
	char		value[32];

	/*
	 * Autovacuum gives way to a lock request only after deadlock_timeout,
	 * which must come well before the request is given up.
	 */
	snprintf(value, sizeof(value), "%d",
			 Max(1, Min(1000, reuse_sync_handover_lock_timeout / 4)));
	if (guard_is_on("deadlock_timeout"))
		SetConfigOption("deadlock_timeout", value, PGC_SUSET, PGC_S_OVERRIDE);
}

void
settings_reload(void)
{
	if (!ConfigReloadPending)
		return;
	ConfigReloadPending = false;
	ProcessConfigFile(PGC_SIGHUP);
	settings_apply();
}
