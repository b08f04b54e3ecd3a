/*-------------------------------------------------------------------------
 *
 * catchup.c
 *	  Catch-up: the stream of a unit's slot, applied to the unit's table.
 *
 * The stream holds the changes of every published table since the slot's last
 * position.  Of each transaction the snapshot filter decides whether the copy
 * has seen it (design.md section 5, step 2); apply.c picks the changes of our
 * table out of the rest.  The slot remembers what it has delivered (C1 b).
 *
 * Where the publisher stands is learnt from keepalives, which it sends
 * whenever it has sent all there is, and from the commit LSN in each BEGIN:
 * transactions come in commit order.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/catchup.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "libpq/pqformat.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "replication/logicalproto.h"
#include "replication/walreceiver.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "catalog.h"
#include "catchup.h"
#include "compat.h"
#include "pool.h"
#include "settings.h"
#include "slot_offer.h"
#include "testing.h"

/* How long to wait for the publisher before looking around, in ms. */
#define WAIT_SLICE		500

/* How long to wait for a slot that is still active, and how often to ask. */
#define ACTIVE_PATIENCE	10000
#define ACTIVE_PAUSE	20

/* Record the position after passing this much that is not ours, in bytes. */
#define IDLE_ADVANCE	(64 * 1024 * 1024)

/* A literal of the replication grammar: it knows no escape but '' . */
static char *
replication_literal(const char *value)
{
	StringInfoData buf;

	initStringInfo(&buf);
	appendStringInfoChar(&buf, '\'');
	for (const char *p = value; *p; p++)
	{
		if (*p == '\'')
			appendStringInfoChar(&buf, '\'');
		appendStringInfoChar(&buf, *p);
	}
	appendStringInfoChar(&buf, '\'');
	return buf.data;
}

/*
 * Start, waiting for a walsender that has not noticed yet that whoever
 * streamed from the slot before is gone.
 */
static void
start_replication(Stream *stream, const char *command)
{
	TimestampTz start = GetCurrentTimestamp();
	char	   *message;
	int			sqlstate;

	while ((sqlstate = publisher_try_stream(stream->conn, command,
											&message)) != 0)
	{
		if (sqlstate != ERRCODE_OBJECT_IN_USE ||
			TimestampDifferenceExceeds(start, GetCurrentTimestamp(),
									   ACTIVE_PATIENCE))
			ereport(ERROR,
					errcode(sqlstate),
					errmsg("could not stream from replication slot \"%s\": %s",
						   NameStr(stream->slot_name), message));
		publisher_pause(ACTIVE_PAUSE);
	}
}

static void
start_streaming(Stream *stream)
{
	Unit	   *unit = stream->unit;
	Session    *session = stream->session;
	PublisherResult *res;
	StringInfoData command;
	char	   *set_name = "";
	char	   *reason;

	if (stream->conn == NULL)
	{
		stream->conn = session_open_another(session, true);
		set_name = psprintf("SET application_name = %s;",
							publisher_literal(stream->conn,
											  NameStr(stream->slot_name)));
	}

	/* The server would silently move a start below it forward. */
	res = publisher_query(stream->conn,
						  psprintf("%s%s", set_name,
								   slot_start_query(session,
													NameStr(stream->slot_name))));
	if (!slot_may_start(res, unit->position, &reason))
		ereport(ERROR,
				errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				errmsg("cannot stream from replication slot \"%s\": %s",
					   NameStr(stream->slot_name), reason));

	initStringInfo(&command);
	appendStringInfo(&command,
					 "START_REPLICATION SLOT %s LOGICAL %X/%X"
					 " (proto_version '1', publication_names %s",
					 publisher_identifier(NameStr(stream->slot_name)),
					 LSN_FORMAT_ARGS(unit->position),
					 replication_literal(unit->publications != NULL ?
										 unit->publications :
										 session_publication_names(session)));
	if (session->sub->binary && publisher_version(stream->conn) >= 140000)
		appendStringInfoString(&command, ", binary 'true'");
	if (compat_subscription_origin(session->sub) != NULL &&
		publisher_version(stream->conn) >= 160000)
		appendStringInfo(&command, ", origin %s",
						 replication_literal(compat_subscription_origin(session->sub)));
	appendStringInfoChar(&command, ')');
	start_replication(stream, command.data);
	test_point(POINT_stream_started, unit->tables[0].relname);

	stream->started = true;
	stream->has_held = false;
	stream->in_remote_transaction = false;
	stream->reached = stream->confirmed = unit->position;
	stream->unflushed = InvalidXLogRecPtr;
	stream->last_received = stream->last_status = stream->last_check =
		GetCurrentTimestamp();
	stream->ping_sent = false;
	apply_forget_relations(stream->apply);
	apply_set_targets(stream->apply, unit->targets, unit->ntables,
					  unit->origin);
}

/* --- a stream --- */

Stream *
stream_open(Session *session, const char *slot_name, Publisher *conn)
{
	MemoryContext context = AllocSetContextCreate(TopMemoryContext,
												  "reuse_sync stream",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext caller = MemoryContextSwitchTo(context);
	Stream	   *stream = palloc0(sizeof(Stream));

	stream->context = context;
	stream->message_context = AllocSetContextCreate(context,
													"reuse_sync message",
													ALLOCSET_DEFAULT_SIZES);
	stream->session = session;
	namestrcpy(&stream->slot_name, slot_name);
	initStringInfo(&stream->held);
	stream->apply = apply_open_stream(context);
	stream->conn = conn;
	MemoryContextSwitchTo(caller);
	return stream;
}

void
stream_serve(Stream *stream, Unit *unit)
{
	stream->unit = unit;
	stream->keep_open = false;
	stream->last_check = GetCurrentTimestamp();
	apply_set_origin_name(stream->apply, NameStr(unit->origin_name));
	if (stream->started)
		apply_set_targets(stream->apply, unit->targets, unit->ntables,
					  unit->origin);
	else
		start_streaming(stream);
}

void
stream_end(Stream *stream)
{
	Publisher  *conn = stream->conn;

	if (stream->started)
		publisher_end_stream(conn);
	stream->started = false;
	stream->conn = NULL;
	publisher_disconnect(conn);
}

void
stream_close(Stream *stream)
{
	if (stream == NULL)
		return;
	publisher_disconnect(stream->conn);
	MemoryContextDelete(stream->context);
}

/* --- reporting --- */

/* Tell the publisher what is flushed here, or, with none, that we live. */
static void
send_position(Stream *stream, XLogRecPtr flushed, bool request_reply)
{
	StringInfoData buf;

	initStringInfo(&buf);
	pq_sendbyte(&buf, 'r');
	pq_sendint64(&buf, InvalidXLogRecPtr);	/* written */
	pq_sendint64(&buf, flushed);
	pq_sendint64(&buf, InvalidXLogRecPtr);	/* applied */
	pq_sendint64(&buf, GetCurrentTimestamp());
	pq_sendbyte(&buf, request_reply);
	publisher_send(stream->conn, buf.data, buf.len);
	pfree(buf.data);
	stream->last_status = GetCurrentTimestamp();
}

/*
 * Without a position: that keeps the slot as it is, and the publisher from
 * taking us for a standby that commits wait for, which
 * synchronous_standby_names = '*' would make of us.  Being behind in its eyes,
 * we also get a keepalive whenever it has nothing more to send, which tells us
 * where it stands.
 */
static void
send_status(Stream *stream, bool request_reply)
{
	send_position(stream, InvalidXLogRecPtr, request_reply);
}

void
catchup_confirm(Stream *stream, XLogRecPtr lsn)
{
	if (lsn <= stream->confirmed)
		return;
	stream->confirmed = lsn;
	if (stream->unit->slot != NULL)
		slot_offer_renew(stream->unit->slot, lsn);
	send_position(stream, lsn, false);
	send_status(stream, false);
}

/* Confirm what has been flushed meanwhile; never flush for it. */
static void
confirm_flushed(Stream *stream)
{
	if (XLogRecPtrIsInvalid(stream->unflushed) ||
		(guard_is_on("durable_confirm") &&
		 stream->local_end > GetFlushRecPtr(NULL)))
		return;
	catchup_confirm(stream, stream->unflushed);
	stream->unflushed = InvalidXLogRecPtr;
}

/* A local commit has made everything below 'lsn' unnecessary once flushed. */
static void
remember_commit(Stream *stream, XLogRecPtr lsn)
{
	stream->unit->position = lsn;
	if (XLogRecPtrIsInvalid(stream->unflushed) ||
		stream->local_end <= GetFlushRecPtr(NULL))
	{
		confirm_flushed(stream);
		stream->local_end = XactLastCommitEnd;
		stream->unflushed = lsn;
	}
}

/* --- messages --- */

static void
handle_begin(Stream *stream, LogicalRepBeginData *begin)
{
	Unit	   *unit = stream->unit;

	/* All that committed before this one has been delivered. */
	if (begin->final_lsn > stream->reached)
		stream->reached = begin->final_lsn;
	stream->in_remote_transaction = true;
	stream->has_changes = false;
	stream->skipping = (!XLogRecPtrIsInvalid(stream->session->sub->skiplsn) &&
						stream->session->sub->skiplsn == begin->final_lsn);

	if (unit->snapshot != NULL)
	{
		uint64		xid = remote_snapshot_full_xid(unit->snapshot, begin->xid);

		/*
		 * Below filter_end the snapshot decides.  What commits later is not
		 * in the copy whatever its xid: they come round.
		 */
		if (guard_is_on("filter") &&
			(begin->final_lsn < unit->filter_end ||
			 !guard_is_on("filter_end")) &&
			remote_snapshot_sees(unit->snapshot, xid))
			stream->skipping = true;
		/* Later snapshots see all that this one saw. */
		else if (unit->delivered != NULL)
			delivered_xids_add(unit->delivered, xid, unit->slot->context);
	}
	apply_set_transaction(begin->xid, begin->final_lsn);
}

static void
handle_commit(Stream *stream, LogicalRepCommitData *commit)
{
	Unit	   *unit = stream->unit;

	stream->in_remote_transaction = false;
	stream->reached = Max(stream->reached, commit->end_lsn);
	if (stream->has_changes && stream->skipping)
		Counters.transactions_skipped++;
	else if (stream->has_changes)
		Counters.transactions_applied++;

	if (stream->keep_open)
	{
		stream->applied_end = commit->end_lsn;
		stream->applied_time = commit->committime;
	}
	else if (IsTransactionState())
	{
		unit_lock_claim(unit, false);
		test_point(POINT_catchup_commit, unit->tables[0].relname);
		unit_commit(unit, commit->end_lsn, commit->committime);
		test_point(POINT_catchup_committed, unit->tables[0].relname);
		pgstat_report_stat(false);
		remember_commit(stream, commit->end_lsn);
	}
	else if (commit->end_lsn - unit->position > IDLE_ADVANCE)
	{
		/* Nothing of ours for long: let the publisher recycle its WAL. */
		StartTransactionCommand();
		unit_lock_claim(unit, false);
		(void) GetTopTransactionId();
		unit_commit(unit, commit->end_lsn, commit->committime);
		test_point(POINT_position_advanced, unit->tables[0].relname);
		remember_commit(stream, commit->end_lsn);
	}
}

/* One message of the output plugin. */
static void
handle_change(Stream *stream, StringInfo s)
{
	int			type = s->len > s->cursor ? s->data[s->cursor] : 0;

	if (type == LOGICAL_REP_MSG_BEGIN)
	{
		LogicalRepBeginData begin;

		s->cursor++;
		logicalrep_read_begin(s, &begin);
		handle_begin(stream, &begin);
	}
	else if (type == LOGICAL_REP_MSG_COMMIT)
	{
		LogicalRepCommitData commit;

		s->cursor++;
		logicalrep_read_commit(s, &commit);
		handle_commit(stream, &commit);
	}
	else
	{
		/* Set before anything is written; only a commit needs more. */
		if (!stream->skipping)
			unit_tag_origin(stream->unit);
		if (!stream->skipping && !guard_is_on("origin_order"))
			unit_hold_origin(stream->unit);

		/* Its lock makes the apply worker queue behind us. */
		if (type == LOGICAL_REP_MSG_TRUNCATE && !stream->skipping)
		{
			if (!IsTransactionState())
				StartTransactionCommand();
			if (guard_is_on("truncate_bound"))
				unit_bound_lock_waits(reuse_sync_handover_lock_timeout);
			MemoryContextSwitchTo(stream->message_context);
		}
		if (apply_message(stream->apply, s, stream->skipping))
		{
			stream->has_changes = true;
			if (!stream->skipping)
				test_point(POINT_change_applied,
						   stream->unit->tables[0].relname);
		}
		if (!IsTransactionState())
			unit_reset_origin();
	}
}

static void
handle_keepalive(Stream *stream, StringInfo s)
{
	XLogRecPtr	end_lsn = pq_getmsgint64(s);
	bool		reply;

	(void) pq_getmsgint64(s);	/* the time it was sent */
	reply = pq_getmsgbyte(s);

	/*
	 * Within a transaction being sent this says what has been decoded, not
	 * what has been sent.
	 */
	if (!stream->in_remote_transaction && end_lsn > stream->reached)
		stream->reached = end_lsn;
	if (reply)
		send_status(stream, false);
}

/* Has the subscription or the claim been changed? */
static void
check_claim_between_transactions(Stream *stream)
{
	MemoryContext caller = CurrentMemoryContext;

	StartTransactionCommand();
	unit_check_claim(stream->unit);
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
}

/* What is due between messages, however many come. */
static void
look_around(Stream *stream)
{
	TimestampTz now = GetCurrentTimestamp();

	CHECK_FOR_INTERRUPTS();
	if (TimestampDifferenceExceeds(stream->last_check, now, WAIT_SLICE))
	{
		publisher_check_idle(stream->session->sql);
		if (!IsTransactionState())
			check_claim_between_transactions(stream);
		stream->last_check = now;
	}
	settings_reload();
	confirm_flushed(stream);
	if (wal_receiver_status_interval > 0 &&
		TimestampDifferenceExceeds(stream->last_status, now,
								   wal_receiver_status_interval * 1000))
		send_status(stream, false);
}

/* Nothing has come for a while: has the publisher gone? */
static void
check_silence(Stream *stream)
{
	TimestampTz now = GetCurrentTimestamp();

	if (wal_receiver_timeout <= 0)
		return;
	if (TimestampDifferenceExceeds(stream->last_received, now,
								   wal_receiver_timeout))
		ereport(ERROR,
				errcode(ERRCODE_CONNECTION_FAILURE),
				errmsg("no message from the publisher for %d ms",
					   wal_receiver_timeout),
				errhint("See wal_receiver_timeout."));
	if (!stream->ping_sent &&
		TimestampDifferenceExceeds(stream->last_received, now,
								   wal_receiver_timeout / 2))
	{
		send_status(stream, true);
		stream->ping_sent = true;
	}
}

/*
 * The commit LSN if the message at hand begins a remote transaction.
 */
static XLogRecPtr
peek_commit_lsn(const char *message, int len)
{
	XLogRecPtr	lsn = InvalidXLogRecPtr;

	if (len >= 25 + 1 + 8 && message[0] == 'w' &&
		message[25] == LOGICAL_REP_MSG_BEGIN)
	{
		memcpy(&lsn, message + 26, sizeof(lsn));
		lsn = pg_ntoh64(lsn);
	}
	return lsn;
}

/*
 * Get the next message, waiting at most 'timeout_ms' for it; 0 if none came.
 */
static int
next_message(Stream *stream, char **message, long timeout_ms)
{
	int			len;

	if (stream->has_held)
	{
		stream->has_held = false;
		*message = stream->held.data;
		return stream->held.len;
	}
	len = publisher_receive(stream->conn, message, timeout_ms);
	look_around(stream);
	if (len == 0)
		check_silence(stream);
	else
	{
		stream->last_received = GetCurrentTimestamp();
		stream->ping_sent = false;
	}
	return len;
}

/*
 * Process one message, if it comes in time.  In the handover a transaction at
 * or above 'limit' is left for whoever comes next; it is only noted that the
 * stream has got there.
 */
static void
process_next(Stream *stream, XLogRecPtr limit, long timeout_ms)
{
	StringInfoData s;
	char	   *message;
	int			len = next_message(stream, &message, timeout_ms);
	MemoryContext caller;

	if (len == 0)
		return;
	if (!XLogRecPtrIsInvalid(limit) && !stream->in_remote_transaction &&
		peek_commit_lsn(message, len) >= limit)
	{
		if (message != stream->held.data)
		{
			resetStringInfo(&stream->held);
			appendBinaryStringInfo(&stream->held, message, len);
		}
		stream->has_held = true;
		stream->reached = limit;
		return;
	}

	caller = MemoryContextSwitchTo(stream->message_context);
	s.data = message;
	s.len = len;
	s.maxlen = -1;
	s.cursor = 0;
	switch (pq_getmsgbyte(&s))
	{
		case 'w':
			(void) pq_getmsgbytes(&s, 24);	/* positions and time sent */
			handle_change(stream, &s);
			break;
		case 'k':
			handle_keepalive(stream, &s);
			break;
		default:
			ereport(ERROR,
					errcode(ERRCODE_PROTOCOL_VIOLATION),
					errmsg("unexpected message type %d in the stream from the publisher",
						   message[0]));
	}
	MemoryContextSwitchTo(caller);
	MemoryContextReset(stream->message_context);
}

void
catchup_to(Stream *stream, XLogRecPtr target)
{
	stream->keep_open = false;
	if (!stream->started)
		start_streaming(stream);
	while (stream->reached < target || stream->in_remote_transaction)
		process_next(stream, InvalidXLogRecPtr, WAIT_SLICE);
}

void
catchup_for(Stream *stream, long ms)
{
	TimestampTz end = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), ms);

	stream->keep_open = false;
	if (!stream->started)
		start_streaming(stream);
	while (stream->in_remote_transaction || GetCurrentTimestamp() < end)
		process_next(stream, InvalidXLogRecPtr,
					 Min(ms, WAIT_SLICE));
}

bool
catchup_in_transaction(Stream *stream, XLogRecPtr target,
					   TimestampTz deadline)
{
	Assert(!stream->in_remote_transaction);
	stream->keep_open = true;
	stream->applied_end = InvalidXLogRecPtr;
	while (stream->reached < target || stream->in_remote_transaction)
	{
		long		left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(),
														   deadline);

		if (left <= 0)
			return false;
		process_next(stream, target, Min(left, WAIT_SLICE));
	}
	return true;
}
