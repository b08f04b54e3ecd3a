/*-------------------------------------------------------------------------
 *
 * report.c
 *	  report(): one page about a subscription.
 *
 * The page is made of what the views show (report_data.c) and of what check()
 * finds, and needs nothing else to be read: no script, no file, no network.
 * It is for the owner of the subscription as well, who may not read the views:
 * they are read with the rights of the function's owner, as a function with
 * SECURITY DEFINER would.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/report.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_proc.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/syscache.h"

#include "catalog.h"
#include "report.h"
#include "rights.h"

PG_FUNCTION_INFO_V1(reuse_sync_report);

static Oid
owner_of_function(Oid funcid)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(funcid));
	Oid			owner;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for function %u", funcid);
	owner = ((Form_pg_proc) GETSTRUCT(tuple))->proowner;
	ReleaseSysCache(tuple);
	return owner;
}

/*
 * report(subname name) returns text
 *
 * The publisher is asked as by check(); one that does not answer is waited for
 * no longer than there.
 */
Datum
reuse_sync_report(PG_FUNCTION_ARGS)
{
	Report		report = {0};
	StringInfoData page;
	Subscription *sub;
	Oid			subid;
	Oid			userid;
	int			sec_context;

	(void) catalog_exists(ERROR);
	if (PG_ARGISNULL(0))
		ereport(ERROR,
				errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				errmsg("name of subscription must not be null"));
	subid = rights_to_subscription(NameStr(*PG_GETARG_NAME(0)), false);

	initStringInfo(&page);
	GetUserIdAndSecContext(&userid, &sec_context);
	SetUserIdAndSecContext(owner_of_function(fcinfo->flinfo->fn_oid),
						   sec_context | SECURITY_LOCAL_USERID_CHANGE);
	SPI_connect();
	sub = GetSubscription(subid, false);
	report_read(&report, sub);
	report.findings = check_one_subscription(sub, &report.publisher);
	report_page(&page, &report);
	SPI_finish();
	SetUserIdAndSecContext(userid, sec_context);
	PG_RETURN_TEXT_P(cstring_to_text_with_len(page.data, page.len));
}
