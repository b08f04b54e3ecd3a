/*-------------------------------------------------------------------------
 *
 * handover.h
 *	  The moment the apply worker becomes responsible for a table.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/handover.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_HANDOVER_H
#define REUSE_SYNC_HANDOVER_H

#include "catchup.h"

/*
 * The steps that both ways share.
 *
 * Lock the unit's tables in the open transaction (step 2); false if that took
 * handover_lock_timeout.
 */
extern bool handover_lock(Unit *unit);

/*
 * When to stop applying under the lock, so that what was applied can still be
 * committed in time; and when a timer ends whatever goes on.
 */
extern TimestampTz handover_deadline(void);
extern TimestampTz handover_timer(TimestampTz deadline);

/*
 * With the tables locked, make P, apply what is below it, check the claim,
 * set 's' and commit (steps 3 to 5).  False, with the transaction still open,
 * if 'deadline' came first.
 */
extern bool handover_commit(Stream *stream, TimestampTz deadline);

/* After that: wake the apply worker, flush, confirm. */
extern void handover_finish(Stream *stream);

/*
 * The staged way's handover: catch up and hand the table over, however often it takes; on return it is
 * in state 's', on disk, and the slot is confirmed up to the handover's
 * position, which is unit->position.
 *
 * If that takes many attempts while 'others_wait', the table gives way: throws
 * ERRCODE_LOCK_NOT_AVAILABLE, see failure_only_waits(); it stays in 'f'.
 *
 * Locks the table in SHARE ROW EXCLUSIVE mode, waiting for it and holding it
 * for handover_lock_timeout at most.
 */
extern void hand_over(Stream *stream, bool (*others_wait) (void));

#endif							/* REUSE_SYNC_HANDOVER_H */
