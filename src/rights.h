/*-------------------------------------------------------------------------
 *
 * rights.h
 *	  Who may call the functions.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/rights.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_RIGHTS_H
#define REUSE_SYNC_RIGHTS_H

/* May the current user see what the pool does? */
extern bool rights_to_monitor(void);

/*
 * The oid of a subscription of this database, if the current user owns it or
 * is a superuser; to look on, or not to change anything, the rights of
 * pg_monitor will do.  Throws ERRCODE_UNDEFINED_OBJECT or
 * ERRCODE_INSUFFICIENT_PRIVILEGE.
 */
extern Oid	rights_to_subscription(const char *subname, bool to_change);

#endif							/* REUSE_SYNC_RIGHTS_H */
