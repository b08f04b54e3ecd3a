/*-------------------------------------------------------------------------
 *
 * table_owner.c
 *	  Whose rights changes of a table run with.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/table_owner.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "table_owner.h"

void
table_owner_become(TableOwner *to, Oid owner)
{
	to->switched = !compat_runs_as_owner(MySubscription);
	if (to->switched)
		SwitchToUntrustedUser(owner, &to->context);
}

void
table_owner_leave(TableOwner *to)
{
	if (to->switched)
		RestoreUserContext(&to->context);
}
