/*-------------------------------------------------------------------------
 *
 * pool_notes.c
 *	  What the processes of the pool leave word of for others.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/pool_notes.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

#include "pool_notes.h"
#include "pool_shared.h"

/* How often the same problem of a subscription is reported, ms. */
#define REPORT_INTERVAL	600000

/* --- problems of subscriptions --- */

bool
pool_note_problem(Oid subid, int sqlstate, const char *message, int patience)
{
	PoolProblem *entry = &Pool->problems[0];
	TimestampTz now = GetCurrentTimestamp();
	bool		report;

	/* In the place of the same one, or of the oldest. */
	pool_lock(true);
	for (int i = 0; i < MAX_PROBLEMS; i++)
	{
		PoolProblem *other = &Pool->problems[i];

		if (other->subid == subid && other->sqlstate == sqlstate)
		{
			entry = other;
			break;
		}
		if (other->noted < entry->noted)
			entry = other;
	}
	if (entry->subid != subid || entry->sqlstate != sqlstate)
		memset(entry, 0, sizeof(PoolProblem));
	report = entry->reported == 0 ||
		TimestampDifferenceExceeds(entry->reported, now, REPORT_INTERVAL);
	if (entry->subid != subid || entry->over)
		entry->since = now;
	entry->shown_from = TimestampTzPlusMilliseconds(entry->since, patience);
	entry->subid = subid;
	entry->sqlstate = sqlstate;
	entry->over = false;
	entry->noted = now;
	if (report)
		entry->reported = now;
	memset(entry->message, 0, sizeof(entry->message));
	memcpy(entry->message, message,
		   pg_mbcliplen(message, strlen(message),
						sizeof(entry->message) - 1));
	pool_unlock();
	return report;
}

void
pool_end_problems(Oid subid, int sqlstate)
{
	pool_lock(true);
	for (int i = 0; i < MAX_PROBLEMS; i++)
	{
		PoolProblem *entry = &Pool->problems[i];

		if (entry->subid == subid &&
			(sqlstate == 0 || entry->sqlstate == sqlstate))
			entry->over = true;
	}
	pool_unlock();
}

bool
pool_get_problem(int index, PoolProblem *problem)
{
	if (index >= MAX_PROBLEMS)
		return false;
	pool_lock(false);
	*problem = Pool->problems[index];
	pool_unlock();
	return true;
}

bool
pool_problem_is_shown(const PoolProblem *problem)
{
	return OidIsValid(problem->subid) && !problem->over &&
		GetCurrentTimestamp() >= problem->shown_from;
}

/* --- what has been shown of progress --- */

/* Caller holds the lock. */
static PoolRun *
get_run(Oid dbid, Oid subid, TimestampTz start)
{
	PoolRun    *run = NULL;

	for (int i = 0; i < Min(Pool->nruns, MAX_RUNS) && run == NULL; i++)
		if (Pool->runs[i].dbid == dbid && Pool->runs[i].subid == subid)
			run = &Pool->runs[i];
	if (run == NULL)
		run = &Pool->runs[Pool->nruns++ % MAX_RUNS];
	if (run->dbid != dbid || run->subid != subid || run->start != start)
		*run = (PoolRun) {.dbid = dbid, .subid = subid, .start = start};
	return run;
}

double
pool_show_percent(Oid dbid, Oid subid, TimestampTz run_start, double percent)
{
	PoolRun    *run;

	pool_lock(true);
	run = get_run(dbid, subid, run_start);
	percent = run->percent = Max(run->percent, percent);
	pool_unlock();
	return percent;
}

double
pool_show_work(Oid dbid, Oid subid, TimestampTz run_start, double work)
{
	PoolRun    *run;

	pool_lock(true);
	run = get_run(dbid, subid, run_start);
	work = run->work = Max(run->work, work);
	pool_unlock();
	return work;
}

/* --- what is known of databases --- */

/* Caller holds the lock; null if there is no entry and none is to be made. */
static PoolDatabase *
database_entry(Oid dbid, Oid userid, bool create)
{
	PoolDatabase *entry;

	for (int i = 0; i < Min(Pool->ndatabases, MAX_DATABASES); i++)
	{
		entry = &Pool->databases[i];
		if (entry->dbid == dbid && entry->userid == userid)
			return entry;
	}
	if (!create)
		return NULL;
	entry = &Pool->databases[Pool->ndatabases++ % MAX_DATABASES];
	*entry = (PoolDatabase) {.dbid = dbid, .userid = userid};
	return entry;
}

void
pool_note_database(Oid dbid, DatabaseStanding standing)
{
	pool_lock(true);
	database_entry(dbid, InvalidOid, true)->standing = standing;
	pool_unlock();
	ConditionVariableBroadcast(&Pool->changed);
}

DatabaseStanding
pool_database_standing(Oid dbid)
{
	PoolDatabase *entry;
	DatabaseStanding standing;

	pool_lock(false);
	entry = database_entry(dbid, InvalidOid, false);
	standing = entry ? entry->standing : DATABASE_UNKNOWN;
	pool_unlock();
	return standing;
}

void
pool_note_failure(Oid dbid, Oid userid)
{
	pool_lock(true);
	database_entry(dbid, userid, true)->failures++;
	pool_unlock();
	ConditionVariableBroadcast(&Pool->changed);
}

void
pool_note_success(Oid dbid, Oid userid)
{
	PoolDatabase *entry;

	pool_lock(true);
	entry = database_entry(dbid, userid, false);
	if (entry != NULL)
		entry->failures = 0;
	pool_unlock();
}

int
pool_database_failures(Oid dbid)
{
	int			failures = 0;

	pool_lock(false);
	for (int i = 0; i < Min(Pool->ndatabases, MAX_DATABASES); i++)
		if (Pool->databases[i].dbid == dbid)
			failures += Pool->databases[i].failures;
	pool_unlock();
	return failures;
}
