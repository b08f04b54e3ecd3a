/*-------------------------------------------------------------------------
 *
 * slot_offer.h
 *	  A worker's new slot, offered to the others for copying.
 *
 * To create a slot is to wait for all transactions that run on the publisher.
 * One wait is enough for a subscription: the worker that has created a slot
 * keeps what it knows of it where the others find it, and they have the
 * publisher copy the slot (pg_copy_logical_replication_slot) instead of
 * creating their own.  slot_offer.c says why that is exact.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/slot_offer.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_SLOT_OFFER_H
#define REUSE_SYNC_SLOT_OFFER_H

#include "sync_slot.h"

/*
 * Offer a slot that has just been created.  If there is no memory to share,
 * nobody gets to know of it.
 */
extern void slot_offer(SyncSlot *slot);

/* Call this before the slot is confirmed up to 'lsn', and when it goes. */
extern void slot_offer_renew(SyncSlot *slot, XLogRecPtr lsn);
extern void slot_offer_withdraw(SyncSlot *slot);

/*
 * Have the publisher make 'slot', which has a name and a connection, as a copy
 * of one that another worker of the subscription offers.  False if there is
 * none, or it cannot be copied; then nothing has been made.  The slot is good
 * for use only if 'usable' is set: else it exists, but what would have to be
 * known of it is gone.
 */
extern bool slot_offer_copy(Session *session, SyncSlot *slot, bool *usable);

#endif							/* REUSE_SYNC_SLOT_OFFER_H */
