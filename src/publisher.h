/*-------------------------------------------------------------------------
 *
 * publisher.h
 *	  Connections to the publisher.
 *
 * Everything here waits on the process latch and the socket together, so
 * that interrupts are served whatever the publisher does, and throws errors
 * that never hold a connection string or a password.  Results are palloc'd
 * in the current memory context; nothing of libpq's outlives a call but the
 * connection itself, which the owner closes (also after an error).
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/publisher.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_PUBLISHER_H
#define REUSE_SYNC_PUBLISHER_H

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "lib/stringinfo.h"

typedef struct Publisher Publisher;

/* What tells one server, and one history of it, from another (C3). */
typedef struct PublisherIdentity
{
	uint64		sysid;
	uint32		timeline;
	bool		in_recovery;	/* a standby (C4) */
	int64		started;		/* when, in us: tells standbys apart */
} PublisherIdentity;

/* A query's result as text; a null value is a null pointer. */
typedef struct PublisherResult
{
	int			nrows;
	int			ncols;
	char	  **values;			/* nrows * ncols */
} PublisherResult;

/*
 * A value of it, which may be null, must not be, or is the text of a boolean.
 * Throw ERRCODE_PROTOCOL_VIOLATION where the publisher has not answered what it
 * was asked.
 */
extern char *publisher_value(const PublisherResult *res, int row, int col);
extern char *publisher_text(const PublisherResult *res, int row, int col);
extern bool publisher_is_true(const PublisherResult *res, int row, int col);

/*
 * Connect with the subscription's connection string; with 'replication' as a
 * walsender bound to the database, which can run SQL as well.  All settings
 * that the text of values or the length of a transaction depends on are fixed
 * for the session.  With 'must_use_password' the string has to bring one
 * along, and the publisher to ask for it.  Throws ERRCODE_CONNECTION_FAILURE;
 * gives up after wal_receiver_timeout, or when the system has given up on each
 * of several hosts.
 */
extern Publisher *publisher_connect(const char *conninfo, bool replication,
									bool must_use_password,
									const char *application_name);

/*
 * The same for SQL, but for somebody who waits: every wait for the publisher
 * ends at 'deadline', also those of later calls, with
 * ERRCODE_CONNECTION_FAILURE.
 */
extern Publisher *publisher_connect_until(const char *conninfo,
										  bool must_use_password,
										  const char *application_name,
										  TimestampTz deadline);

/* Is this error what the publisher has said, or the connection to it? */
extern bool publisher_said(const ErrorData *edata);

/*
 * Is this the end of what this process does, on somebody's request, and not
 * something that the publisher has said with the same SQLSTATE?
 */
extern bool publisher_is_interrupt(const ErrorData *edata);

/*
 * Where a connection string leads to, for people to read: host, port and
 * database as it has them, and nothing else.
 */
extern char *publisher_address(const char *conninfo);

/* Close it; a null pointer and a broken connection are fine.  No throw. */
extern void publisher_disconnect(Publisher *pub);

/*
 * Throw if the publisher has closed the connection, on which no command runs.
 * A server that shuts down waits until the stream's receiver has confirmed
 * everything, which is not to be had of us: this is how we learn of it.
 */
extern void publisher_check_idle(Publisher *pub);

/* Has the connection been lost? */
extern bool publisher_is_broken(Publisher *pub);

/* Is it outside any command and transaction, and not broken? */
extern bool publisher_is_idle(Publisher *pub);

extern const PublisherIdentity *publisher_identity(Publisher *pub);
extern int	publisher_version(Publisher *pub);

/* The role that the connection is of, as SQL has it; palloc'd. */
extern char *publisher_role(Publisher *pub);

/*
 * Run a query that returns rows, perhaps among commands that do not, or one or
 * several commands; all have been answered when this returns.  Throws with the
 * publisher's SQLSTATE.
 */
extern PublisherResult *publisher_query(Publisher *pub, const char *sql);
extern void publisher_command(Publisher *pub, const char *sql);

/* As publisher_query, but returns null if it fails with this SQLSTATE. */
extern PublisherResult *publisher_query_unless(Publisher *pub,
											   const char *sql,
											   int sqlstate);

/* As publisher_command, but returns the SQLSTATE of a failure, 0 if none. */
extern int	publisher_try_command(Publisher *pub, const char *sql,
								  char **message);

/*
 * Several statements in one round trip: publisher_begin sends them, and then
 * the answers are taken in their order.  publisher_next_rows is for the next
 * statement that returns rows and publisher_next_copy for the next COPY OUT;
 * both pass over commands.  The pieces of a COPY are fetched until 0 is
 * returned; each is valid until the next call.  publisher_end takes what is
 * left.  All throw with the publisher's SQLSTATE; publisher_try_next_rows
 * returns null instead, and there is nothing left to take.
 */
extern void publisher_begin(Publisher *pub, const char *sql);
extern PublisherResult *publisher_next_rows(Publisher *pub);
extern PublisherResult *publisher_try_next_rows(Publisher *pub,
												int *sqlstate,
												char **message);
extern void publisher_next_copy(Publisher *pub);
extern int	publisher_copy_data(Publisher *pub, char **data);
extern void publisher_end(Publisher *pub);

/*
 * Streaming: begin with a START_REPLICATION command (returns the SQLSTATE of a
 * failure, 0 if none), then receive messages.  publisher_receive returns a message's length, or 0 if none is there within
 * 'timeout_ms' (0: do not wait).  Throws if the stream has ended.
 */
extern int	publisher_try_stream(Publisher *pub, const char *command,
								 char **message);
extern int	publisher_receive(Publisher *pub, char **message,
							  long timeout_ms);
extern void publisher_send(Publisher *pub, const char *message, int len);
extern void publisher_end_stream(Publisher *pub);

/*
 * Before something is asked again: wait for the latch or so many ms, and serve
 * interrupts.
 */
extern void publisher_pause(long ms);

/* Quote for use in SQL on the publisher; palloc'd. */
extern char *publisher_literal(Publisher *pub, const char *value);
extern char *publisher_identifier(const char *name);

#endif							/* REUSE_SYNC_PUBLISHER_H */
