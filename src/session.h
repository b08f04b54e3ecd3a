/*-------------------------------------------------------------------------
 *
 * session.h
 *	  A worker's dealings with one subscription: what the subscription says,
 *	  and the connections to its publisher.
 *
 * The connection 'sql' takes snapshots, copies, and makes the messages that
 * mark a position.  It is never renewed within a unit: a crash of the
 * publisher between a snapshot and the message after it must break the unit
 * (design.md section 6).  Each slot has a connection of its own to stream
 * over; while 'sql' lives the publisher has not crashed, so that one may be
 * renewed.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/session.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_SESSION_H
#define REUSE_SYNC_SESSION_H

#include "catalog/pg_subscription.h"

#include "publisher.h"

typedef struct Session
{
	Subscription *sub;			/* MySubscription as well */
	MemoryContext context;		/* holds it */
	bool		must_use_password;	/* as it was when 'sql' was connected */
	Publisher  *sql;			/* null while not connected */
	Publisher  *lock;			/* holds a lock 'sql' may not take, or null */
	List	   *alone;			/* relids that failed in a batch: see batch.h */
	List	   *staged;			/* relids that failed in the express way */
} Session;

/*
 * Load the subscription and make it this process's; null if it is not there,
 * not enabled (or not disabled), not this database's, or has all the workers
 * it may have.  Starts a transaction of its own.
 */
extern Session *session_open(Oid subid, bool enabled);

/*
 * Lock a subscription against ALTER and DROP, until the end of the
 * transaction, in the order in which those commands take their locks.
 */
extern void session_lock_subscription(Oid subid);

/* Connect, if not connected.  Throws ERRCODE_CONNECTION_FAILURE. */
extern void session_connect(Session *session);

/*
 * Another connection to the same server as 'sql' (C3, C4), to stream over if
 * 'replication'; the caller closes it.
 */
extern Publisher *session_open_another(Session *session, bool replication);
extern void session_release_lock(Session *session);
extern void session_disconnect(Session *session);
extern void session_close(Session *session);

#ifdef REUSE_SYNC_TEST_BUILD
/* What must not be done within a unit: connect 'sql' anew. */
extern void session_renew(Session *session);
#else
#define session_renew(session)	((void) 0)
#endif

/*
 * Is the subscription still what was loaded, as far as what is done for it
 * depends on that: enabled or not, connection, publications, options, owner?  To be
 * called in a transaction; reads the catalog only after an invalidation
 * unless 'always'.
 */
extern bool session_is_current(Session *session, bool always);

/* The subscribed publications as a list of quoted SQL literals. */
extern char *session_publication_literals(Session *session);

/* The same as the output plugin takes them: quoted names, with commas. */
extern char *session_publication_names(Session *session);

/*
 * Make a position on the publisher (design.md section 6): a transactional
 * message, whose commit has been flushed and answered.  Returns the LSN of
 * the message.  On a standby, the position replayed.
 */
extern XLogRecPtr session_make_position(Session *session);

/*
 * The same in two steps: commands for publisher_begin, as the last of several,
 * and what they answered.
 */
extern const char *session_position_commands(void);
extern XLogRecPtr session_read_position(Session *session);

/* Parse the publisher's text form of an LSN; throws on nonsense. */
extern XLogRecPtr session_parse_lsn(const char *text);

#endif							/* REUSE_SYNC_SESSION_H */
