/*-------------------------------------------------------------------------
 *
 * failure.h
 *	  What is kept and said of failures, and when to try again.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/failure.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_FAILURE_H
#define REUSE_SYNC_FAILURE_H

#include "session.h"

/*
 * When to try again after so many failures in a row: after
 * wal_retrieve_retry_interval, doubling up to max_retry_interval.
 */
extern TimestampTz failure_retry_time(int attempts);

/*
 * Keep a table's error and when it is tried again, count it, say it, and
 * disable the subscription if that is what disable_on_error asks for.  A table
 * in 'i' gets to 'd'.  Starts a transaction of its own.
 */
extern void failure_record(Session *session, Oid relid,
						   const ErrorData *edata);

/* A message, with what to do about it if that is not null. */
extern char *failure_with_hint(const char *message, const char *hint);

/*
 * Cut the hint off an error that is kept; returns it, or null if it has none.
 */
extern char *failure_split_hint(char *error);

/*
 * Count an error that is no table's, and disable the subscription if it asks
 * for that.  Starts a transaction of its own.
 */
extern void failure_record_shortage(Session *session,
									const ErrorData *edata);

/* Has a table only to wait for others who have it locked? */
extern bool failure_only_waits(const ErrorData *edata);

/*
 * Keep why such a table waits, and when it is tried again: always after
 * wal_retrieve_retry_interval.  It has not failed.  A table in 'i' gets to 'd'.
 * Starts a transaction of its own.
 */
extern void failure_put_off(Session *session, Oid relid,
							const ErrorData *edata);

/*
 * Have all failing tables of a subscription tried again once the transaction
 * commits.  Locks as catalog_request_retry.
 */
extern void failure_forget_waits(Oid subid);

/* Keep and say what a subscription waits for, but not again and again. */
extern void failure_report_shortage(Session *session,
									const ErrorData *edata);

/* When to look at it again. */
extern TimestampTz failure_shortage_over(void);

#endif							/* REUSE_SYNC_FAILURE_H */
