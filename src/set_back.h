/*-------------------------------------------------------------------------
 *
 * set_back.h
 *	  What a drain does with tables of disabled subscriptions.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/set_back.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_SET_BACK_H
#define REUSE_SYNC_SET_BACK_H

/*
 * In a worker, while the database is being drained: set the half-done tables
 * of this owner's disabled subscriptions back to 'i', and empty them.  Errors
 * are logged, and kept as the table's last.  No transaction may be open.
 */
extern void set_back_disabled(void);

#endif							/* REUSE_SYNC_SET_BACK_H */
