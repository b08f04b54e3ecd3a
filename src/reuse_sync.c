/*-------------------------------------------------------------------------
 *
 * reuse_sync.c
 *	  Initial table synchronization with reused workers and reused slots.
 *
 * This file is the way in; the life of a worker is told in worker.c.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/reuse_sync.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "storage/ipc.h"

#include "hooks.h"
#include "launcher.h"
#include "pool.h"
#include "settings.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

static void
on_shmem_request(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();
	pool_shmem_request();
}

static void
on_shmem_startup(void)
{
	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();
	pool_shmem_startup();
}

void
_PG_init(void)
{
	/*
	 * pg_upgrade and pg_restore load it as well, in servers where nothing is
	 * to be synchronized.  Whoever needs more says so, see functions.c.
	 */
	if (!process_shared_preload_libraries_in_progress)
		return;

	settings_define();

	/* Nothing is to be synchronized in a server that is being upgraded. */
	if (IsBinaryUpgrade)
		return;
	hooks_install();
	if (!reuse_sync_enabled)
		return;

	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = on_shmem_request;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = on_shmem_startup;
	launcher_register();
}
