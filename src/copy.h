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

#include "lib/stringinfo.h"

#include "publisher.h"
#include "remote_table.h"

/*
 * Append the command whose answer copy_table takes.  It is sent by the caller
 * (publisher_begin), perhaps among others, in the transaction that is open on
 * the publisher.
 */
extern void copy_append_command(StringInfo sql, Publisher *pub,
								RemoteTable *remote);

/*
 * Estimate how many bytes and rows its copy into table 'relid' will be, from a
 * sample of the table there; -1 if that cannot be.  In the transaction that is open on the
 * publisher.
 */
extern void copy_estimate(Publisher *pub, RemoteTable *remote, Oid relid,
						  int64 *bytes, int64 *tuples);

/*
 * Copy the rows of which the command's answer comes next into the local
 * table, in the caller's local transaction.  Takes ROW EXCLUSIVE on it
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
