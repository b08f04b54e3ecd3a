/*-------------------------------------------------------------------------
 *
 * subscriptions.c
 *	  What pg_subscription says, read anew.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/subscriptions.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"

#include "subscriptions.h"

List *
subscriptions_of(Oid dbid)
{
	Relation	rel = table_open(SubscriptionRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, NULL, 0,
										  NULL);
	HeapTuple	tuple;
	List	   *result = NIL;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_subscription form = palloc(sizeof(FormData_pg_subscription));

		memcpy(form, GETSTRUCT(tuple), sizeof(FormData_pg_subscription));
		if (!OidIsValid(dbid) || form->subdbid == dbid)
			result = lappend(result, form);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return result;
}

bool
subscription_exists(Oid subid)
{
	Relation	rel = table_open(SubscriptionRelationId, AccessShareLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	SysScanDesc scan;
	ScanKeyData key;
	bool		exists;

	ScanKeyInit(&key, Anum_pg_subscription_oid, BTEqualStrategyNumber,
				F_OIDEQ, ObjectIdGetDatum(subid));
	scan = systable_beginscan(rel, SubscriptionObjectIndexId, true, snapshot,
							  1, &key);
	exists = HeapTupleIsValid(systable_getnext(scan));
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	return exists;
}
