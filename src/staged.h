/*-------------------------------------------------------------------------
 *
 * staged.h
 *	  The staged way, for a table that is expensive to copy twice.
 *
 * design.md section 7: 'i', 'd', copy, 'f', catch-up, handover.  What is done
 * up to 'f' survives a crash, and is taken up again from there.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/staged.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_STAGED_H
#define REUSE_SYNC_STAGED_H

#include "unit.h"

/*
 * For a table in 'f': find the slot it is linked to, of a worker of ours or
 * of the server's, and where to go on.  False if the slot is lost: the table
 * is to be copied anew, after its rows have been removed (a WARNING says so).
 */
extern bool staged_resume(Unit *unit);

/* Set state 'd', for all to see, and make the table's origin. */
extern void staged_announce(Unit *unit);

/*
 * Copy, and commit it as state 'f' with all that a resumption needs.  The
 * unit's snapshot has been taken.
 */
extern void staged_copy(Unit *unit);

/*
 * Drop the table's origin: nothing needs it once 's' is on disk, and until the
 * apply worker gets to it, it takes one of the server's few entries.  Starts a
 * transaction of its own.
 */
extern void staged_drop_origin(Unit *unit);

/*
 * The same for a table that has failed, unless it is in 'f', where it is to go
 * on from there: the tables that fail are not to take all entries.  In a
 * transaction that has locked the subscription and pg_subscription_rel.
 */
extern void staged_release_origin(Oid subid, Oid relid);

/*
 * Set a table back from 'f' to 'i', and remove its rows unless 'with_rows';
 * does nothing if it is in another state.  Starts a transaction of its own.
 */
extern void staged_set_back(Session *session, Oid relid, bool with_rows);

#endif							/* REUSE_SYNC_STAGED_H */
