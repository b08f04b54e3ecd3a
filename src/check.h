/*-------------------------------------------------------------------------
 *
 * check.h
 *	  What is wrong, or likely to go wrong: the parts of check().
 *
 * Each part looks at one kind of thing and adds a finding for each that is not
 * as it should be.  Nothing is changed by any of them, here or on a publisher,
 * and no finding holds a connection string.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/check.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_CHECK_H
#define REUSE_SYNC_CHECK_H

#include "catalog/pg_subscription.h"

#include "publisher.h"

typedef enum CheckSeverity
{
	CHECK_ERROR,				/* something does not work */
	CHECK_WARNING,				/* something may go wrong, or go badly */
	CHECK_NOTICE				/* worth knowing */
} CheckSeverity;

typedef struct CheckFinding
{
	CheckSeverity severity;
	char	   *object;
	char	   *problem;
	char	   *hint;			/* null: none */
} CheckFinding;

/* What was seen of a publisher; all zero if it could not be reached. */
typedef struct CheckPublisher
{
	int			version;		/* as PG_VERSION_NUM */
	uint64		next_xid;		/* 0: not known */
	bool		has_slot;		/* the subscription's own */
	int64		slot_bytes;		/* of WAL it holds */
	uint32		slot_xmin;		/* its catalog_xmin, 0: none */
} CheckPublisher;

/*
 * All there is to find of this server, of one subscription and its publisher
 * (CheckFinding *), but not of tables that have failed, nor of slots in our
 * catalog.  In the caller's memory context and with the caller's rights.
 */
extern List *check_one_subscription(const Subscription *sub,
									CheckPublisher *publisher);

extern const char *check_severity_name(CheckSeverity severity);

/*
 * Add a finding, unless the same has been added before.  'hint' is what to do
 * about it, or null.  The strings are copied.
 */
extern void check_add(CheckSeverity severity, const char *object,
					  const char *problem, const char *hint);

/*
 * A query here, with the caller's rights; to be called within SPI.  Returns
 * the number of rows; a value of one of them is null if it is null.
 */
extern int	check_query(const char *sql);
extern char *check_value(int row, int col);

/* The names of objects, as findings have them. */
extern char *check_subscription_name(const Subscription *sub);
extern char *check_table_name(const char *nspname, const char *relname);

/* --- check_server.c: this server, its settings and its databases --- */
extern void check_server(void);

/* --- check_slots.c: our catalog of slots, and what a publisher has --- */

/* What does not take a publisher. */
extern void check_slot_catalog(void);

/* Compare with what the publisher of this subscription has. */
extern void check_publisher_slots(const Subscription *sub, Publisher *conn);

/* --- check_publisher.c --- */

/* The publisher itself, as far as this subscription needs it. */
extern void check_publisher(const Subscription *sub, Publisher *conn);

/* When all subscriptions are done: is there room on each publisher? */
extern void check_begin_capacity(void);
extern void check_capacity(void);

/* --- check_tables.c --- */

/* What can be said of the tables of a subscription from here. */
extern void check_local_tables(const Subscription *sub);

/* Compare them with what is published. */
extern void check_published_tables(const Subscription *sub, Publisher *conn);

#endif							/* REUSE_SYNC_CHECK_H */
