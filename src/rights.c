/*-------------------------------------------------------------------------
 *
 * rights.c
 *	  Who may call the functions.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/rights.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "catalog/pg_subscription.h"
#include "miscadmin.h"
#include "utils/acl.h"

#include "compat.h"
#include "rights.h"

bool
rights_to_monitor(void)
{
	return has_privs_of_role(GetUserId(), ROLE_PG_MONITOR);
}

Oid
rights_to_subscription(const char *subname, bool to_change)
{
	Oid			subid = get_subscription_oid(subname, false);

	if (!object_ownercheck(SubscriptionRelationId, subid, GetUserId()) &&
		(to_change || !rights_to_monitor()))
		aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_SUBSCRIPTION, subname);
	return subid;
}
