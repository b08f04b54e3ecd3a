/*-------------------------------------------------------------------------
 *
 * fingerprint.h
 *	  Whether publications are still what they were (design.md C2).
 *
 * A fingerprint is of the subscribed publications' rows in the publisher's
 * catalog: oid and xmin, so that any change of a row changes it, also one that
 * is dropped and made again.  What publishes a table is the publications
 * themselves and their schemas, and the rows that name the table or, if it is
 * a partition, one of its ancestors; so that part is kept for each table, and a
 * unit's tables are compared alone.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/fingerprint.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_FINGERPRINT_H
#define REUSE_SYNC_FINGERPRINT_H

#include "session.h"

typedef struct Fingerprint Fingerprint;

/*
 * The query for all that the subscribed publications name, or, with an SQL
 * expression of type regclass[], for what publishes these tables.  palloc'd.
 */
extern char *fingerprint_query(Session *session, const char *tables);

/* The first query's answer, as the slot keeps it; palloc'd. */
extern Fingerprint *fingerprint_read(const PublisherResult *res);

/* Does the second query's answer agree with it? */
extern bool fingerprint_agrees(const Fingerprint *fingerprint,
							   const PublisherResult *res);

/* To bytes and back; palloc'd. */
extern void fingerprint_write(StringInfo buf, const Fingerprint *fingerprint);
extern Fingerprint *fingerprint_restore(StringInfo buf);

#endif							/* REUSE_SYNC_FINGERPRINT_H */
