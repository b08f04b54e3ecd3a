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
#include "catalog/pg_subscription_rel.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "catalog.h"
#include "compat.h"
#include "failure.h"
#include "pool.h"
#include "pool_notes.h"
#include "publisher.h"
#include "settings.h"
#include "staged.h"
#include "target.h"

/* Between the message and the hint of an error that is kept. */
#define HINT_MARK	"\nHINT:  "

char *
failure_split_hint(char *error)
{
	char	   *hint = strstr(error, HINT_MARK);

	if (hint == NULL)
		return NULL;
	*hint = '\0';
	return hint + strlen(HINT_MARK);
}

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

bool
failure_only_waits(const ErrorData *edata)
{
	return edata->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE;
}

/* The table's name as SQL has it. */
static char *
qualified_name(Oid relid)
{
	char	   *nspname = get_namespace_name(get_rel_namespace(relid));
	char	   *relname = get_rel_name(relid);

	return nspname == NULL || relname == NULL ? NULL :
		quote_qualified_identifier(nspname, relname);
}

/*
 * Had the table rows before it was copied?  A copy that failed has been rolled
 * back by now; of one that is to be caught up with it was kept.
 */
static TargetRows
rows_before_copy(Session *session, Oid relid)
{
	TableProgress progress;
	TargetRows	rows;
	XLogRecPtr	lsn;

	if (GetSubscriptionRelState(session->sub->oid, relid, &lsn) ==
		SUBREL_STATE_FINISHEDCOPY)
	{
		catalog_get_progress(session->sub->oid, relid, &progress);
		return progress.was_empty ? TARGET_EMPTY : TARGET_HAS_ROWS;
	}
	PushActiveSnapshot(GetTransactionSnapshot());
	rows = target_rows(relid, false);
	PopActiveSnapshot();
	return rows;
}

/* A key that is there already: nearly always because of earlier rows. */
static char *
explain_duplicate(Session *session, Oid relid)
{
	char	   *command =
	psprintf("SELECT reuse_sync.resync_table(%s, %s)",
			 quote_literal_cstr(session->sub->name),
			 quote_literal_cstr(qualified_name(relid)));

	switch (rows_before_copy(session, relid))
	{
		case TARGET_HAS_ROWS:
			return psprintf("The table was not empty before it was copied. Empty it, or run %s, which empties and copies it.",
							command);
		case TARGET_UNKNOWN:
			return psprintf("The table was perhaps not empty before it was copied. Empty it, or run %s, which empties and copies it.",
							command);
		case TARGET_EMPTY:
			break;
	}
	return psprintf("The table was empty before it was copied: it has a constraint that the publisher's table has not, or rows were written here meanwhile. Mend that, or run %s, which empties and copies it.",
					command);
}

/*
 * What to do about a table's error, or null; in a transaction.  Errors from
 * the publisher have their hint already.
 */
static char *
explain(Session *session, Oid relid, const ErrorData *edata)
{
	if (qualified_name(relid) == NULL)
		return NULL;
	switch (edata->sqlerrcode)
	{
		case ERRCODE_UNIQUE_VIOLATION:
		case ERRCODE_EXCLUSION_VIOLATION:
			return explain_duplicate(session, relid);
		case ERRCODE_INSUFFICIENT_PRIVILEGE:
			if (edata->hint == NULL)
				return psprintf("Grant the right to \"%s\", who owns the subscription.",
								GetUserNameFromId(session->sub->owner, false));
			break;
		case ERRCODE_NOT_NULL_VIOLATION:
		case ERRCODE_CHECK_VIOLATION:
			if (edata->hint == NULL)
				return pstrdup("The table has a constraint that the publisher's rows do not meet: drop it here, or mend the rows there.");
			break;
		case ERRCODE_STRING_DATA_RIGHT_TRUNCATION:
		case ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE:
		case ERRCODE_INVALID_TEXT_REPRESENTATION:
		case ERRCODE_INVALID_DATETIME_FORMAT:
		case ERRCODE_INVALID_BINARY_REPRESENTATION:
			/* Which row it is, is not for everybody who may see this. */
			if (edata->hint == NULL && !publisher_said(edata))
				return pstrdup("A column here does not take what the publisher has in it: the server's log says which column.");
			break;
		case ERRCODE_LOCK_NOT_AVAILABLE:
			if (edata->hint == NULL)
				return pstrdup("A session holds a lock on the table or on rows of it, see pg_locks.");
			break;
	}
	return edata->hint;
}

char *
failure_with_hint(const char *message, const char *hint)
{
	return psprintf("%s%s%s", message, hint ? HINT_MARK : "",
					hint ? hint : "");
}

/* Where nothing waits no lock is taken that others would have to wait for. */
void
failure_forget_waits(Oid subid)
{
	ListCell   *lc;

	foreach(lc, GetSubscriptionRelations(subid, true))
	{
		Oid			relid = ((SubscriptionRelState *) lfirst(lc))->relid;
		TableProgress progress;

		if (catalog_get_progress(subid, relid, &progress) &&
			catalog_retry_time(subid, relid, &progress) != 0)
			(void) catalog_request_retry(subid, relid);
	}
}

/*
 * Count the error, and disable the subscription if it asks for that, as the
 * server's workers do.  A lock that was not to be had is no error: the server
 * would wait for it.  Returns whether the subscription is being disabled by
 * the open transaction.
 */
static bool
treat_as_error(Session *session, const ErrorData *edata)
{
	Oid			subid = session->sub->oid;

	if (failure_only_waits(edata))
		return false;
	pgstat_report_subscription_error(subid, false);
	if (!session->sub->disableonerr)
		return false;

	/* What its row has out of line is stored anew. */
	PushActiveSnapshot(GetTransactionSnapshot());
	DisableSubscription(subid);
	PopActiveSnapshot();
	return true;
}

static void
report_disabled(Session *session)
{
	ereport(LOG,
			errmsg("subscription \"%s\" has been disabled because of an error",
				   session->sub->name));
}

/*
 * A table whose copy has begun is not in 'i' any more, whichever way it went:
 * that is where people look for one that does not get on.
 */
static void
show_copy_has_begun(Oid subid, Oid relid)
{
	XLogRecPtr	lsn;

	if (GetSubscriptionRelState(subid, relid, &lsn) == SUBREL_STATE_INIT)
		compat_update_subscription_rel(subid, relid, SUBREL_STATE_DATASYNC,
									   InvalidXLogRecPtr);
}

void
failure_record(Session *session, Oid relid, const ErrorData *edata)
{
	Oid			subid = session->sub->oid;
	TableProgress progress;
	char	   *hint;
	bool		disabled;

	StartTransactionCommand();
	hint = explain(session, relid, edata);
	session_lock_subscription(subid);
	LockRelationOid(SubscriptionRelRelationId, RowExclusiveLock);
	disabled = treat_as_error(session, edata);
	show_copy_has_begun(subid, relid);
	staged_release_origin(subid, relid);
	catalog_get_progress(subid, relid, &progress);
	progress.started_at = MyPoolWorker->unit_start;
	progress.attempts++;
	progress.next_retry = failure_retry_time(progress.attempts);
	progress.last_error = failure_with_hint(edata->message, hint);
	progress.last_error_time = GetCurrentTimestamp();
	catalog_put_progress(subid, relid, &progress);
	Counters.errors++;
	catalog_write_counters();
	ereport(LOG,
			errmsg("synchronization of table \"%s.%s\" of subscription \"%s\" failed and will be tried again at %s",
				   get_namespace_name(get_rel_namespace(relid)),
				   get_rel_name(relid), session->sub->name,
				   timestamptz_to_str(progress.next_retry)),
			errdetail_internal("%s", edata->message),
			hint ? errhint("%s", hint) : 0);
	if (disabled)
		report_disabled(session);
	CommitTransactionCommand();
	pgstat_report_stat(true);
}

/*
 * How often a table has failed, and so how long its pauses are, is not to grow
 * because of others who have it locked: they may let go at any time.
 */
void
failure_put_off(Session *session, Oid relid, const ErrorData *edata)
{
	Oid			subid = session->sub->oid;
	TableProgress progress;
	char	   *hint;
	char	   *error;
	bool		known;

	StartTransactionCommand();
	hint = explain(session, relid, edata);
	session_lock_subscription(subid);
	LockRelationOid(SubscriptionRelRelationId, RowExclusiveLock);
	show_copy_has_begun(subid, relid);
	catalog_get_progress(subid, relid, &progress);
	error = failure_with_hint(edata->message, hint);
	known = progress.last_error != NULL &&
		strcmp(progress.last_error, error) == 0;
	progress.next_retry = failure_retry_time(1);
	progress.last_error = error;
	progress.last_error_time = GetCurrentTimestamp();
	catalog_put_progress(subid, relid, &progress);
	/* It may go on for long, and be the same every time. */
	ereport(known ? DEBUG1 : LOG,
			errmsg("table \"%s.%s\" of subscription \"%s\" is locked by others and will be tried again at %s",
				   get_namespace_name(get_rel_namespace(relid)),
				   get_rel_name(relid), session->sub->name,
				   timestamptz_to_str(progress.next_retry)),
			errdetail_internal("%s", edata->message),
			hint ? errhint("%s", hint) : 0);
	CommitTransactionCommand();
}

void
failure_record_shortage(Session *session, const ErrorData *edata)
{
	Oid			subid = session->sub->oid;

	StartTransactionCommand();
	session_lock_subscription(subid);
	if (SearchSysCacheExists1(SUBSCRIPTIONOID, ObjectIdGetDatum(subid)) &&
		treat_as_error(session, edata))
		report_disabled(session);
	CommitTransactionCommand();
	pgstat_report_stat(true);
}

void
failure_report_shortage(Session *session, const ErrorData *edata)
{
	bool		report = pool_note_problem(session->sub->oid,
										   edata->sqlerrcode,
										   failure_with_hint(edata->message,
															 edata->hint), 0);

	ereport(report ? LOG : DEBUG1,
			errcode(edata->sqlerrcode),
			errmsg("reuse_sync worker puts off subscription \"%s\": %s",
				   session->sub->name, edata->message),
			edata->hint ? errhint("%s", edata->hint) : 0);
}

/*
 * Of several workers that are short of the same thing one is to get all it
 * needs: they come back one by one, in the order of their places.
 */
TimestampTz
failure_shortage_over(void)
{
	int64		wait = (int64) wal_retrieve_retry_interval *
	(1 + pool_rank_in_subscription());

	return TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
									   Max(wait, 1));
}
