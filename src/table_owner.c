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

#include "access/htup_details.h"
#include "catalog/pg_class.h"
#include "utils/syscache.h"

#include "table_owner.h"

static Oid
get_table_owner(Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Oid			owner;

	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				errcode(ERRCODE_UNDEFINED_TABLE),
				errmsg("relation %u does not exist", relid));
	owner = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
	ReleaseSysCache(tuple);
	return owner;
}

void
table_owner_become(TableOwner *to, Oid relid)
{
	to->switched = !compat_runs_as_owner(MySubscription);
	if (to->switched)
		SwitchToUntrustedUser(get_table_owner(relid), &to->context);
}

void
table_owner_leave(TableOwner *to)
{
	if (to->switched)
		RestoreUserContext(&to->context);
}
