/*-------------------------------------------------------------------------
 *
 * copy.h
 *	  Copies one table's rows from the publisher.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/copy.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_COPY_H
#define REUSE_SYNC_COPY_H

#include "nodes/pg_list.h"
#include "replication/logicalproto.h"

#include "publisher.h"

/* A table as the publisher publishes it to us. */
typedef struct RemoteTable
{
	LogicalRepRelation rel;		/* as a RELATION message would say it */
	char		relkind;
	bool		binary;			/* copied in binary format; set by copy_table */
	List	   *row_filters;	/* SQL expressions (char *) to be ORed; NIL: all
								 * rows */
	int64		bytes;			/* size on the publisher, -1 if not known */
} RemoteTable;

/*
 * Describe a table, in the transaction that is open on the publisher, as the
 * subscribed publications (a list of String nodes) publish it: columns, row
 * filters, replica identity.  palloc'd in the current context.
 *
 * Throws ERRCODE_UNDEFINED_TABLE if it is not there, and
 * ERRCODE_FEATURE_NOT_SUPPORTED if the publications give it different column
 * lists.
 */
extern RemoteTable *copy_describe(Publisher *pub, List *publications,
								  const char *nspname, const char *relname);

/*
 * Copy its rows in the transaction that is open on the publisher into the
 * local table, in the caller's local transaction.  Takes ROW EXCLUSIVE on it
 * until the end of the transaction.  'progress' is called with the number of
 * bytes of each piece received; it may throw.  Returns the number of rows.
 *
 * Throws what the server's table synchronization throws for the same cause:
 * privileges, row level security, missing columns, values that do not
 * convert, constraints.
 */
extern int64 copy_table(Publisher *pub, RemoteTable *remote, Oid relid,
						void (*progress) (int64 bytes));

#endif							/* REUSE_SYNC_COPY_H */
