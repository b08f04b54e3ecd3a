/*-------------------------------------------------------------------------
 *
 * resync_check.h
 *	  What must be so for a table to be synchronized anew.
 *
 * Checked when it is asked for, and again when it begins.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/resync_check.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_RESYNC_CHECK_H
#define REUSE_SYNC_RESYNC_CHECK_H

#include "compat.h"
#include "publisher.h"

/* Throws ERRCODE_FEATURE_NOT_SUPPORTED with two_phase (resync.c). */
extern void resync_check_subscription(const Subscription *sub);

/*
 * Throws if the table's rows may not be deleted: another subscription writes
 * to it, or it is published from here without a replica identity, or has a
 * partition that is no ordinary table.  In a transaction, with the table locked;
 * takes ACCESS SHARE on its partitions.
 */
extern void resync_check_emptied(Oid subid, Relation rel);

/*
 * Asks the publisher: is the table in one of the subscribed publications
 * (still)?  And the error that is due if not, ERRCODE_UNDEFINED_TABLE.
 */
extern bool resync_is_published(Publisher *pub, const Subscription *sub,
								const char *nspname, const char *relname);
pg_noreturn extern void resync_report_unpublished(const Subscription *sub,
												  const char *nspname,
												  const char *relname);

#endif							/* REUSE_SYNC_RESYNC_CHECK_H */
