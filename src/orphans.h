/*-------------------------------------------------------------------------
 *
 * orphans.h
 *	  Slots that the pool has not dropped, or cannot.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/orphans.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_ORPHANS_H
#define REUSE_SYNC_ORPHANS_H

/*
 * Forget the slots of which nobody knows where they are, with a warning for
 * each.  Locks as catalog_forget_lost_slots.
 */
extern void orphans_forget_lost(void);

#endif							/* REUSE_SYNC_ORPHANS_H */
