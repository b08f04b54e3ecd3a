/*-------------------------------------------------------------------------
 *
 * lease.h
 *	  May this server act for a subscription?
 *
 * A copy of the subscriber (a restored backup, a promoted standby) has the
 * same subscriptions, the same catalog and the same names of slots as the
 * original.  What the two cannot have at the same time is the subscription's
 * own slot: only one apply worker streams from it.  So that is the lease: the
 * pool claims no table of a subscription, and creates, uses or drops no slot
 * for it, before the apply worker of this server streams.
 *
 * The server itself does the same: a streaming apply worker is what starts
 * its table-sync workers.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/lease.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_LEASE_H
#define REUSE_SYNC_LEASE_H

#include "publisher.h"

/*
 * Has this server the lease, and do the server's own workers leave the tables
 * to us?  If not, the apply worker hints when that has changed: whoever waits
 * meanwhile may have the process that it needs to start.  Takes no lock but
 * lightweight ones.
 */
extern bool lease_is_held(Oid subid);

/*
 * How long the server takes, at worst, to have an apply worker stream if
 * nothing is wrong, in ms.
 */
extern int	lease_patience(void);

/*
 * In an apply worker, once it is clear that it stands aside: publish when it
 * streams, and wake the pool.
 */
extern void lease_follow_apply_worker(void);

/*
 * For a subscription that is disabled: does nobody stream from its slot?
 * Waits a little for a walsender of ours that has not noticed the end.
 * Returns true, or false with the reason.
 */
extern bool lease_is_free(Publisher *conn, const char *slot_name,
						  char **reason);

#endif							/* REUSE_SYNC_LEASE_H */
