/*-------------------------------------------------------------------------
 *
 * failure.c
 *	  What is kept and said of failures, and when to try again.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/failure.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_subscription.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"

#include "catalog.h"
#include "failure.h"
#include "pool.h"
#include "settings.h"
#include "staged.h"

/* How often the same shortage is reported, ms. */
#define SHORTAGE_REPORT_INTERVAL	60000

TimestampTz
failure_retry_time(int attempts)
{
	int64		wait = wal_retrieve_retry_interval;

	for (int i = 1; i < attempts && wait < reuse_sync_max_retry_interval; i++)
		wait *= 2;
	return TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
									   Min(wait,
										   reuse_sync_max_retry_interval));
}

void
failure_put_off(Session *session, Oid relid)
{
	Oid			subid = session->sub->oid;
	TableProgress progress;

	StartTransactionCommand();
	catalog_get_progress(subid, relid, &progress);
	progress.next_retry = failure_retry_time(1);
	catalog_put_progress(subid, relid, &progress);
	CommitTransactionCommand();
}

void
failure_record(Session *session, Oid relid, const ErrorData *edata)
{
	Oid			subid = session->sub->oid;
	TableProgress progress;
	bool		disable;

	pgstat_report_subscription_error(subid, false);
	if (pool_is_draining(MyDatabaseId))
		staged_set_back(session, relid);
	StartTransactionCommand();
	disable = session->sub->disableonerr &&
		edata->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE;
	if (disable)
		DisableSubscription(subid);
	catalog_get_progress(subid, relid, &progress);
	progress.started_at = MyPoolWorker->unit_start;
	progress.attempts++;
	progress.next_retry = failure_retry_time(progress.attempts);
	progress.last_error = edata->message;
	progress.last_error_time = GetCurrentTimestamp();
	catalog_put_progress(subid, relid, &progress);
	Counters.errors++;
	catalog_write_counters();
	ereport(LOG,
			errmsg("synchronization of table \"%s.%s\" of subscription \"%s\" failed and will be tried again at %s",
				   get_namespace_name(get_rel_namespace(relid)),
				   get_rel_name(relid), session->sub->name,
				   timestamptz_to_str(progress.next_retry)),
			errdetail_internal("%s", edata->message));
	if (disable)
		ereport(LOG,
				errmsg("subscription \"%s\" has been disabled because of an error",
					   session->sub->name));
	CommitTransactionCommand();
}

void
failure_report_shortage(Session *session, const ErrorData *edata)
{
	static int	last_sqlerrcode = 0;
	static TimestampTz last_report = 0;
	TimestampTz now = GetCurrentTimestamp();
	bool		again = edata->sqlerrcode == last_sqlerrcode &&
	!TimestampDifferenceExceeds(last_report, now, SHORTAGE_REPORT_INTERVAL);

	ereport(again ? DEBUG1 : LOG,
			errcode(edata->sqlerrcode),
			errmsg("reuse_sync worker puts off subscription \"%s\": %s",
				   session->sub->name, edata->message),
			edata->hint ? errhint("%s", edata->hint) : 0);
	if (!again)
	{
		last_sqlerrcode = edata->sqlerrcode;
		last_report = now;
	}
}
