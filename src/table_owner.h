/*-------------------------------------------------------------------------
 *
 * table_owner.h
 *	  Whose rights changes of a table run with.
 *
 * Before 16 everything runs with the rights of the subscription's owner; since
 * then a table's changes run with those of the table's owner, unless the
 * subscription says run_as_owner.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/table_owner.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_TABLE_OWNER_H
#define REUSE_SYNC_TABLE_OWNER_H

#include "compat.h"

typedef struct TableOwner
{
	bool		switched;
	UserContext context;
} TableOwner;

/*
 * Become the user that MySubscription's changes of the table run as, until
 * table_owner_leave, or the end of the (sub)transaction if that is aborted.
 * The caller has a lock on the table.  Throws ERRCODE_INSUFFICIENT_PRIVILEGE
 * if the subscription's owner may not SET ROLE to its owner, and
 * ERRCODE_UNDEFINED_TABLE if there is none.
 */
extern void table_owner_become(TableOwner *to, Oid relid);
extern void table_owner_leave(TableOwner *to);

#endif							/* REUSE_SYNC_TABLE_OWNER_H */
