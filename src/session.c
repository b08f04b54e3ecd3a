/*-------------------------------------------------------------------------
 *
 * session.c
 *	  A worker's dealings with one subscription.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/session.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "nodes/value.h"
#include "replication/worker_internal.h"
#include "storage/lmgr.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "compat.h"
#include "pool.h"
#include "pool_notes.h"
#include "session.h"
#include "settings.h"
#include "testing.h"

/* Set by invalidation, cleared when the subscription has been read again. */
static bool subscription_changed = false;

static void
subscription_invalidated(Datum arg, int cacheid, uint32 hashvalue)
{
	subscription_changed = true;
}

void
session_lock_subscription(Oid subid)
{
	LockRelationOid(SubscriptionRelationId, AccessShareLock);
	LockSharedObject(SubscriptionRelationId, subid, 0, AccessShareLock);
}

Session *
session_open(Oid subid, bool enabled)
{
	static bool registered = false;
	MemoryContext context;
	MemoryContext caller = CurrentMemoryContext;
	Session    *session = NULL;
	Subscription *sub;

	if (!registered)
	{
		CacheRegisterSyscacheCallback(SUBSCRIPTIONOID,
									  subscription_invalidated, (Datum) 0);
		registered = true;
	}

	context = AllocSetContextCreate(TopMemoryContext, "reuse_sync session",
									ALLOCSET_DEFAULT_SIZES);
	StartTransactionCommand();
	/* See claim_step() in worker.c: whoever drops it comes before or after. */
	session_lock_subscription(subid);
	subscription_changed = false;
	MemoryContextSwitchTo(context);
	sub = GetSubscription(subid, true);
	if (sub != NULL && sub->enabled == enabled &&
		sub->dbid == MyDatabaseId &&
		sub->owner == GetUserId() &&
		pool_join_subscription(subid,
							   reuse_sync_max_workers_per_subscription))
	{
		session = palloc0(sizeof(Session));
		session->sub = sub;
		session->context = context;
		MySubscription = sub;
		SetConfigOption("synchronous_commit", sub->synccommit,
						PGC_BACKEND, PGC_S_OVERRIDE);
	}
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);

	if (session == NULL)
		MemoryContextDelete(context);
	return session;
}

/*
 * C4: how far a standby has got says something only of what is streamed from
 * itself.  So the apply worker must stream from the same one: its slot is
 * there, and is not a copy that is kept for a failover (17).
 */
static void
check_standby(Session *session)
{
	PublisherResult *res;

	if (publisher_version(session->sql) < 160000)
		ereport(ERROR,
				errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				errmsg("the publisher of subscription \"%s\" is a standby",
					   session->sub->name),
				errhint("Subscribe to the primary server."));

	res = publisher_query(session->sql,
						  psprintf("SELECT FROM pg_catalog.pg_replication_slots"
								   " WHERE slot_name = %s%s",
								   publisher_literal(session->sql,
													 session->sub->slotname ?
													 session->sub->slotname : ""),
								   publisher_version(session->sql) >= 170000 ?
								   " AND NOT synced" : ""));
	if (res->nrows != 1)
		ereport(ERROR,
				errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				errmsg("subscription \"%s\" does not stream from the standby that its connection string has led to",
					   session->sub->name),
				errhint("Name a single server in the connection string."));
}

/* The owner may have become a superuser meanwhile, or be none any more. */
static bool
must_use_password(const Subscription *sub)
{
	MemoryContext caller = CurrentMemoryContext;
	bool		result;

	StartTransactionCommand();
	result = compat_must_use_password(sub);
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
	return result;
}

void
session_connect(Session *session)
{
	if (session->sql != NULL)
		return;
	Assert(!IsTransactionState());
	pool_set_phase(PHASE_CONNECTING);
	session->must_use_password = must_use_password(session->sub);
	session->sql = publisher_connect(session->sub->conninfo, false,
									 session->must_use_password,
									 EXTENSION_NAME);
	pool_end_problems(session->sub->oid, ERRCODE_CONNECTION_FAILURE);

	if (publisher_identity(session->sql)->in_recovery)
		check_standby(session);
}

Publisher *
session_open_another(Session *session, bool replication)
{
	const PublisherIdentity *a = publisher_identity(session->sql);
	const PublisherIdentity *b;
	Publisher  *another;

	another = publisher_connect(session->sub->conninfo, replication,
								session->must_use_password,
								EXTENSION_NAME);
	b = publisher_identity(another);
	if (guard_is_on("c3") &&
		(a->sysid != b->sysid || a->timeline != b->timeline ||
		 a->in_recovery != b->in_recovery || a->started != b->started))
	{
		publisher_disconnect(another);
		ereport(ERROR,
				errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				errmsg("two connections of subscription \"%s\" ended at different publishers",
					   session->sub->name),
				errhint("Use target_session_attrs=read-write in the subscription's connection string if it names several hosts."));
	}
	return another;
}

void
session_release_lock(Session *session)
{
	Publisher  *lock = session->lock;

	session->lock = NULL;
	publisher_disconnect(lock);
}

void
session_disconnect(Session *session)
{
	Publisher  *sql = session->sql;

	session->sql = NULL;
	publisher_disconnect(sql);
	session_release_lock(session);
	pool_note_snapshot(0);
}

void
session_close(Session *session)
{
	session_disconnect(session);
	MySubscription = NULL;
	(void) pool_join_subscription(InvalidOid, 0);
	MemoryContextDelete(session->context);
}

#ifdef REUSE_SYNC_TEST_BUILD
void
session_renew(Session *session)
{
	session_disconnect(session);
	session->sql = publisher_connect(session->sub->conninfo, false,
									 session->must_use_password,
									 EXTENSION_NAME);
}
#endif

bool
session_is_current(Session *session, bool always)
{
	Subscription *old = session->sub;
	Subscription *sub;
	bool		same;

	if (!always && !subscription_changed)
		return true;
	subscription_changed = false;

	sub = GetSubscription(old->oid, true);
	same = sub != NULL && sub->enabled == old->enabled &&
		sub->dbid == old->dbid &&
		sub->owner == old->owner &&
		strcmp(sub->conninfo, old->conninfo) == 0 &&
		sub->binary == old->binary &&
		equal(sub->publications, old->publications) &&
		compat_subscription_is_current(old, sub);

	/* What was found stale stays stale; what may change is taken over. */
	if (!same)
		subscription_changed = true;
	else
	{
		old->skiplsn = sub->skiplsn;
		SetConfigOption("synchronous_commit", sub->synccommit,
						PGC_BACKEND, PGC_S_OVERRIDE);
	}
	return same;
}

/* The subscribed publications, as literals of SQL or as identifiers. */
static char *
join_publications(Session *session, const char *separator, bool literals)
{
	StringInfoData buf;
	ListCell   *lc;

	initStringInfo(&buf);
	foreach(lc, session->sub->publications)
	{
		char	   *name = strVal(lfirst(lc));

		appendStringInfo(&buf, "%s%s", buf.len > 0 ? separator : "",
						 literals ? publisher_literal(session->sql, name) :
						 publisher_identifier(name));
	}
	return buf.data;
}

char *
session_publication_literals(Session *session)
{
	return join_publications(session, ", ", true);
}

char *
session_publication_names(Session *session)
{
	return join_publications(session, ",", false);
}

XLogRecPtr
session_parse_lsn(const char *text)
{
	uint32		hi;
	uint32		lo;

	if (text == NULL || sscanf(text, "%X/%X", &hi, &lo) != 2)
		ereport(ERROR,
				errcode(ERRCODE_INVALID_TEXT_REPRESENTATION),
				errmsg("invalid LSN from the publisher: \"%s\"",
					   text ? text : ""));
	return ((uint64) hi) << 32 | lo;
}

/*
 * C4: all that anybody has been sent by a standby has been replayed there
 * before, and what it replays is flushed.  But if it is one no longer, others
 * commit above the last position that was replayed.
 */
static XLogRecPtr
standby_position(Session *session)
{
	PublisherResult *res;
	XLogRecPtr	lsn;

	res = publisher_query(session->sql,
						  "SELECT pg_catalog.pg_last_wal_replay_lsn()");
	lsn = session_parse_lsn(publisher_value(res, 0, 0));
	test_point(POINT_replay_position, "");
	res = publisher_query(session->sql,
						  "SELECT pg_catalog.pg_is_in_recovery()");
	if (guard_is_on("c4") && !publisher_is_true(res, 0, 0))
		ereport(ERROR,
				errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				errmsg("the publisher of subscription \"%s\" has been promoted",
					   session->sub->name));
	return lsn;
}

const char *
session_position_commands(void)
{
	/*
	 * The commit flushes all that came before, also what committed
	 * asynchronously; "local" because a standby that does not answer must not
	 * hold us up.
	 */
	return guard_is_on("p_message") ?
		"BEGIN READ WRITE;"
		"SET LOCAL synchronous_commit = local;"
		"SELECT pg_catalog.pg_logical_emit_message(true, 'reuse_sync', '');"
		"COMMIT" :
		"SELECT pg_catalog.pg_current_wal_flush_lsn()";
}

XLogRecPtr
session_read_position(Session *session)
{
	PublisherResult *res = publisher_next_rows(session->sql);

	if (res->nrows != 1)
		ereport(ERROR,
				errcode(ERRCODE_PROTOCOL_VIOLATION),
				errmsg("the publisher did not say where its WAL stands"));

	/* Only an answered COMMIT counts. */
	publisher_end(session->sql);
	return session_parse_lsn(publisher_value(res, 0, 0));
}

XLogRecPtr
session_make_position(Session *session)
{
	if (publisher_identity(session->sql)->in_recovery)
		return standby_position(session);
	publisher_begin(session->sql, session_position_commands());
	return session_read_position(session);
}
