/*-------------------------------------------------------------------------
 *
 * left_behind.h
 *	  What the pool left half done, when it is switched off.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/left_behind.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_LEFT_BEHIND_H
#define REUSE_SYNC_LEFT_BEHIND_H

/*
 * With reuse_sync.enabled off, in an apply worker's transaction: warn of
 * tables of its subscription that the server's own workers cannot finish, and
 * of slots that nobody drops.
 */
extern void left_behind_report(Oid subid);

#endif							/* REUSE_SYNC_LEFT_BEHIND_H */
