/*-------------------------------------------------------------------------
 *
 * remote_table.h
 *	  Tables as the publisher publishes them.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/remote_table.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_REMOTE_TABLE_H
#define REUSE_SYNC_REMOTE_TABLE_H

#include "nodes/pg_list.h"
#include "replication/logicalproto.h"

#include "publisher.h"

typedef struct RemoteTable
{
	LogicalRepRelation rel;		/* as a RELATION message would say it */
	char		relkind;
	bool		binary;			/* copied in binary format; see copy.h */
	List	   *row_filters;	/* SQL expressions (char *) to be ORed; NIL: all
								 * rows */
	int64		bytes;			/* size on the publisher, -1 if not known */
} RemoteTable;

/*
 * The query that describes tables, given as an SQL expression of type
 * regclass[].  palloc'd.
 */
extern char *remote_tables_query(Publisher *pub, const char *tables);

/*
 * Fill in the tables from its result, as the subscribed publications (a list
 * of String nodes) publish them: columns, row filters, replica identity.  The
 * tables are in the same order and have their names.  The first function may
 * run another query, in the transaction that is open on the publisher; the
 * second is to be called for each table.
 *
 * Throw ERRCODE_UNDEFINED_OBJECT if one is not there, and
 * ERRCODE_FEATURE_NOT_SUPPORTED if the publications give it different column
 * lists.
 */
typedef struct Descriptions Descriptions;

extern Descriptions *remote_tables_begin(Publisher *pub, List *publications,
										 const PublisherResult *res,
										 RemoteTable *tables, int n);
extern void remote_tables_read(const Descriptions *descriptions,
							   RemoteTable *tables, int i);

#endif							/* REUSE_SYNC_REMOTE_TABLE_H */
