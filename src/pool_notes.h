/*-------------------------------------------------------------------------
 *
 * pool_notes.h
 *	  What the processes of the pool leave word of for others.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/pool_notes.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_POOL_NOTES_H
#define REUSE_SYNC_POOL_NOTES_H

#include "datatype/timestamp.h"

/* --- problems of subscriptions --- */

/*
 * Why a subscription gets no further: what its workers have met before they
 * could touch a table.
 */
typedef struct PoolProblem
{
	Oid			subid;			/* InvalidOid: none */
	int			sqlstate;
	bool		over;			/* kept to know what has been reported */
	TimestampTz since;
	TimestampTz shown_from;		/* until then it may pass by itself */
	TimestampTz noted;
	TimestampTz reported;
	char		message[512];
} PoolProblem;

/*
 * Keep a problem, and show it once it has lasted for so many ms; true if it is
 * to be reported, since it has not been for long, by whichever process.
 */
extern bool pool_note_problem(Oid subid, int sqlstate, const char *message,
							  int patience);

/* A problem that has been noted of a subscription is over; or, with 0, all. */
extern void pool_end_problems(Oid subid, int sqlstate);

/* One of them, by number, copied; false if there are no more. */
extern bool pool_get_problem(int index, PoolProblem *problem);
extern bool pool_problem_is_shown(const PoolProblem *problem);

/* --- what has been shown of progress --- */

/*
 * The larger of this percentage and what was returned before for this run of
 * the subscription: what people see does not go back.
 */
extern double pool_show_percent(Oid dbid, Oid subid, TimestampTz run_start,
								double percent);

/*
 * The same of the work done.  Who looks when a table is being committed sees
 * it in the catalog as it was, and its worker as it is: nowhere at all.
 */
extern double pool_show_work(Oid dbid, Oid subid, TimestampTz run_start,
							 double work);

/* --- what is known of databases --- */

/* The pool, connected to none of them, learns it from those who are. */
typedef enum DatabaseStanding
{
	DATABASE_UNKNOWN,
	DATABASE_HAS_EXTENSION,
	DATABASE_LACKS_EXTENSION,
	DATABASE_HAS_OTHER_VERSION	/* than that of this library */
} DatabaseStanding;

extern void pool_note_database(Oid dbid, DatabaseStanding standing);
extern DatabaseStanding pool_database_standing(Oid dbid);

/*
 * A process for this database and owner has ended before it could do anything,
 * or died; or one has looked.  How many have failed since, of any owner.
 */
extern void pool_note_failure(Oid dbid, Oid userid);
extern void pool_note_success(Oid dbid, Oid userid);
extern int	pool_database_failures(Oid dbid);

#endif							/* REUSE_SYNC_POOL_NOTES_H */
