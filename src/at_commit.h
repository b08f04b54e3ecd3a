/*-------------------------------------------------------------------------
 *
 * at_commit.h
 *	  What the open transaction makes necessary once it has committed.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/at_commit.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_AT_COMMIT_H
#define REUSE_SYNC_AT_COMMIT_H

/* There may be work in this database; with 'cleanup', slots to drop as well. */
extern void at_commit_hint(bool cleanup);

/* Apply workers will begin, or begin anew. */
extern void at_commit_note_apply_change(void);

/* The extension comes or goes: the apply workers are to find out. */
extern void at_commit_restart_apply_workers(void);
extern bool at_commit_restarts_apply_workers(void);

/* Units of this subscription that are at work have become pointless. */
extern void at_commit_let_go(Oid subid);

/*
 * The transaction is about to commit: look up what cannot be any more when it
 * has.  Needs the catalog.
 */
extern void at_commit_prepare(void);

/* It has: do all that.  Reads no catalog, waits for nothing, never throws. */
extern void at_commit_act(void);

/* It will not commit, or not in this session. */
extern void at_commit_forget(void);

#endif							/* REUSE_SYNC_AT_COMMIT_H */
