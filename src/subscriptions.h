/*-------------------------------------------------------------------------
 *
 * subscriptions.h
 *	  What pg_subscription says, read anew.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/subscriptions.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_SUBSCRIPTIONS_H
#define REUSE_SYNC_SUBSCRIPTIONS_H

#include "catalog/pg_subscription.h"
#include "nodes/pg_list.h"

/*
 * Those of a database, or of all with InvalidOid, as a list of
 * Form_pg_subscription, without the columns of variable length.  Needs a
 * transaction, but no database.
 */
extern List *subscriptions_of(Oid dbid);

/*
 * Is the subscription there now?  For a moment after it was dropped its tables
 * are not seen any more while caches still have it.
 */
extern bool subscription_exists(Oid subid);

#endif							/* REUSE_SYNC_SUBSCRIPTIONS_H */
