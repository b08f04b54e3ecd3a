/*-------------------------------------------------------------------------
 *
 * resync.h
 *	  A table that is ready is synchronized anew: reuse_sync.resync_table().
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/resync.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_RESYNC_H
#define REUSE_SYNC_RESYNC_H

#include "session.h"

/*
 * In a worker: begin what has been asked for in this subscription, as far as
 * that can be done now.  On return those tables wait to be synchronized like
 * any other; what could not be done is recorded as the table's failure.
 *
 * Connects, starts transactions of its own, claims the tables (the caller
 * releases them).  Locks one table at a time in SHARE ROW EXCLUSIVE mode, waiting for
 * handover_lock_timeout at most; ends the subscription's apply worker, and
 * waits for that.  Throws if the publisher cannot be reached.
 */
extern void resync_begin(Session *session);

/*
 * In a drain: give up what has been begun, in a way that whoever synchronizes
 * the table next finds it empty, or as the user wants it to be.  The table is
 * claimed.  Does nothing if it is not synchronized anew.  Starts transactions
 * of its own.
 */
extern void resync_give_back(Session *session, Oid relid);

#endif							/* REUSE_SYNC_RESYNC_H */
