/*-------------------------------------------------------------------------
 *
 * report.h
 *	  What a report of a subscription is made of, and its parts.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/report.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_REPORT_H
#define REUSE_SYNC_REPORT_H

#include "datatype/timestamp.h"
#include "lib/stringinfo.h"
#include "nodes/pg_list.h"

#include "check.h"

/* How far a table is, as reuse_sync.subscriptions counts it. */
typedef enum ReportStep
{
	STEP_READY,
	STEP_CATCHING_UP,
	STEP_COPYING,
	STEP_PENDING,
	STEP_FAILED,
	NUM_STEPS
} ReportStep;

/* Times are 0, numbers -1 and strings null if they are not known. */
typedef struct ReportTable
{
	char	   *name;			/* qualified, quoted as SQL wants it */
	char	   *state;			/* in words, as in reuse_sync.tables */
	ReportStep	step;
	int			pid;			/* of the worker that has it, 0: none */
	int64		bytes_total;
	int64		bytes_copied;
	int64		tuples_copied;
	TimestampTz started_at;
	int			attempts;
	TimestampTz next_retry;
	char	   *error;
	char	   *hint;
	TimestampTz error_time;
} ReportTable;

typedef struct ReportUnit
{
	char	   *first;			/* name of its first table */
	int			ntables;
	int			place;			/* of its worker */
	int			pid;
	const char *slot_name;
	bool		slot_reused;
	TimestampTz started_at;
	TimestampTz copied_at;		/* 0: not yet, or by another worker */
	TimestampTz finished_at;	/* 0: a worker is at it */
	const char *phase;			/* then: what it is doing */
	int64		bytes_copied;
	int64		tuples_copied;
} ReportUnit;

typedef struct ReportSlot
{
	char	   *name;
	char	   *state;
	int			pid;
	int64		tables_synced;
	TimestampTz created_at;
	int64		wal_bytes;
	uint32		catalog_xmin;	/* 0: none, or not known */
	uint64		snapshot_xmin;	/* the same */
	TimestampTz checked_at;
	char	   *error;
} ReportSlot;

typedef struct Report
{
	TimestampTz made_at;
	char	   *subname;
	char	   *dbname;
	char	   *publications;
	char	   *slot_name;		/* the subscription's own */
	char	   *address;		/* of the publisher */
	bool		enabled;
	char	   *percent;		/* null: it has gone meanwhile */
	TimestampTz eta;

	ReportTable *tables;		/* by name */
	int			ntables;
	int			nstep[NUM_STEPS];
	int64		bytes_copied;	/* sums */
	int64		tuples_copied;

	ReportUnit *units;			/* of the last run, by their start */
	int			nunits;
	ReportSlot *slots;
	int			nslots;

	List	   *findings;		/* CheckFinding * */
	CheckPublisher publisher;
} Report;

/* --- report_data.c --- */

/*
 * Read all of it but the findings, within SPI, with the rights to read the
 * views; in SPI's memory.
 */
extern void report_read(Report *report, const Subscription *sub);

/* --- report_page.c, report_chart.c and report_style.c --- */

/* The page: XML as well as HTML, in ASCII. */
extern void report_page(StringInfo page, const Report *report);

/* When which worker was at what, and how much came through. */
extern void report_timeline(StringInfo page, const Report *report);

extern const char report_style[];

/* --- report_text.c --- */

/*
 * Text as it stands in a page, as content or as an attribute, whatever the
 * encodings of the database and of whoever reads it: in ASCII.  What XML has
 * no way to write becomes the replacement character.
 */
extern char *report_escape(const char *text);

/* The same of a name as content; a line may end where one part of it does. */
extern char *report_name(const char *name);

/* How people read numbers; "not known" is a dash. */
extern char *report_number(int64 n);
extern char *report_count(int64 n, const char *one, const char *many);
extern char *report_bytes(int64 n);
extern char *report_duration(int64 us);
extern char *report_time(TimestampTz t);

/* How a step is written, and the class of what shows it. */
extern const char *report_step_name(ReportStep step);
extern const char *report_step_class(ReportStep step);

#endif							/* REUSE_SYNC_REPORT_H */
