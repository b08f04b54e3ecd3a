/*-------------------------------------------------------------------------
 *
 * slot_orphans.h
 *	  Slots that nobody holds or needs, and their end.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/slot_orphans.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_SLOT_ORPHANS_H
#define REUSE_SYNC_SLOT_ORPHANS_H

#include "catalog.h"
#include "publisher.h"
#include "session.h"

/*
 * Is a table that is still unfinished waiting for this slot?  A link counts
 * only while the table is in state 'f' and its own row names the slot.  In a
 * transaction.
 */
extern bool slot_is_linked(const SlotRow *slot);

/*
 * Drop an orphan by name over 'conn', if that is its server and nobody there
 * is creating it.  Returns true if it is gone, else false with the reason.
 */
extern bool slot_drop_orphan_by_name(Publisher *conn, const SlotRow *slot,
									 char **message);

/*
 * Drop the orphans of the session's subscription: slots that no live worker
 * holds and that no unfinished table is linked to.  Returns how many are
 * left.
 */
extern int	slot_drop_orphans(Session *session);

/*
 * The same for subscriptions that are gone, disabled, or have got another
 * connection.  Errors are kept in the catalog.  Sets '*left' to how many are
 * left; false if somebody wants this process to stop.
 */
extern bool slot_drop_abandoned(int *left);

/*
 * Drop these slots (SlotRow *) of a subscription on the publisher, for a
 * command that has had the pool let go of it, within a second.  Returns those
 * that are gone, for the caller to forget; what went wrong with the others, the
 * cleaner will find out and record.
 */
extern List *slot_drop_for_command(const Subscription *sub, List *slots);

/* Are there slots of this subscription that nobody holds or needs? */
extern bool slot_has_orphans(Oid subid);

#endif							/* REUSE_SYNC_SLOT_ORPHANS_H */
