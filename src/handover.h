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
 * Catch up and hand the table over, however often it takes; on return it is
 * in state 's', on disk, and the slot is confirmed up to the handover's
 * position, which is unit->position.
 *
 * Locks the table in SHARE ROW EXCLUSIVE mode, waiting for it and holding it
 * for handover_lock_timeout at most.
 */
extern void hand_over(Stream *stream);

#endif							/* REUSE_SYNC_HANDOVER_H */
