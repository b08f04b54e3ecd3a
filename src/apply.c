/*-------------------------------------------------------------------------
 *
 * apply.c
 *	  Applies the changes of a pgoutput stream to the tables of one unit.
 *
 * The stream carries the changes of every table of the subscription, and the
 * unit is a few of them.  A RELATION message precedes the first change of each
 * remote table; there, once, the table's name is compared with the targets and
 * the answer is kept under the remote id.  The changes themselves then cost
 * one hash lookup, and nothing more if the table is none of ours.  One of ours
 * that has got another name is told by its oid on the publisher.
 *
 * A change of a target goes through these steps:
 *
 * 1. The message is walked from end to end before anything is made of it.  The
 *	  server's readers allocate whatever length a message claims, and its
 *	  apply code takes the number of columns on trust; we do not trust the
 *	  publisher.
 * 2. A local transaction is started if there is none, with a snapshot for
 *	  this one change.
 * 3. The target is opened through the server's relation map, which knows how
 *	  remote columns map to local ones.  It goes by name as well, so we check
 *	  that the name still leads to the table that the unit has copied.
 * 4. apply_row.c or apply_truncate.c do the work.
 *
 * Memory: all that a message needs is in message_context, reset after each.
 * What must outlive it is per stream (its context) or in the relation map
 * of the server, which replaces an entry when its relation is announced again.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/apply.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_subscription_rel.h"
#include "libpq/pqformat.h"
#include "nodes/makefuncs.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "apply.h"
#include "apply_row.h"
#include "apply_truncate.h"
#include "table_owner.h"
#include "target.h"
#include "testing.h"

/* What this stream has said of a remote relation. */
typedef struct RemoteRelation
{
	LogicalRepRelId remoteid;	/* hash key */
	const ApplyTarget *target;	/* NULL if not of the unit */
	const ApplyTarget *renamed; /* that it is, but not by that name */
	StringInfoData message;		/* the RELATION message */
	int			natts;			/* columns announced: tuples have as many */
	NameData	nspname;		/* both empty if too long to exist here */
	NameData	relname;
} RemoteRelation;

/* The message in work, for its error context. */
typedef struct Message
{
	LogicalRepMsgType type;		/* 0 if not known yet, or not a type */
	const RemoteRelation *remote;	/* target it changes, or NULL */
	RowChange	change;			/* if it changes a row */
} Message;

struct ApplyStream
{
	MemoryContext context;		/* of the hash table and all in it */
	HTAB	   *relations;		/* of RemoteRelation */
	const ApplyTarget *targets;
	int			ntargets;
	RepOriginId origin;

	/* For the error context: of which origin, or nothing. */
	char		of_origin[NAMEDATALEN + 32];
};

/* The stream whose message is being processed. */
static ApplyStream *current;

static TransactionId remote_xid = InvalidTransactionId;
static XLogRecPtr remote_commit_lsn = InvalidXLogRecPtr;

static MemoryContext message_context = NULL;

static bool dispatch(Message *msg, StringInfo s, bool skip);
static void handle_relation(StringInfo s);
static void keep_message(RemoteRelation *remote, bool found,
						 StringInfo message);
static void map_relation(StringInfoData message);
static bool handle_row(Message *msg, StringInfo s, bool skip);
static bool handle_truncate(Message *msg, StringInfo s, bool skip);
static void check_row_message(LogicalRepMsgType type, StringInfoData s,
							  int natts);
static void check_tuple(StringInfo s, int natts);
static void begin_change(void);
static void end_change(void);
static LogicalRepRelMapEntry *open_target(const RemoteRelation *remote,
										  LOCKMODE lockmode);
static RemoteRelation *lookup_remote(LogicalRepRelId remoteid);
static const ApplyTarget *find_target(const ApplyStream *stream,
									  const char *nspname,
									  const char *relname);
static const ApplyTarget *find_renamed(const ApplyStream *stream,
									   LogicalRepRelId remoteid);
static void check_not_renamed(const RemoteRelation *remote);
static void message_error_context(void *arg);


/*
 * Begin a stream: see apply.h.
 */
ApplyStream *
apply_open_stream(MemoryContext parent)
{
	ApplyStream *stream = MemoryContextAllocZero(parent, sizeof(ApplyStream));

	if (message_context == NULL)
		message_context = AllocSetContextCreate(TopMemoryContext,
												"reuse_sync apply message",
												ALLOCSET_DEFAULT_SIZES);
	stream->context = AllocSetContextCreate(parent,
											"reuse_sync apply stream",
											ALLOCSET_DEFAULT_SIZES);
	apply_forget_relations(stream);
	return stream;
}

/*
 * Forget all relations: see apply.h.
 */
void
apply_forget_relations(ApplyStream *stream)
{
	HASHCTL		ctl;

	/* The hash table goes with its context. */
	MemoryContextReset(stream->context);
	memset(&ctl, 0, sizeof(ctl));
	ctl.keysize = sizeof(LogicalRepRelId);
	ctl.entrysize = sizeof(RemoteRelation);
	ctl.hcxt = stream->context;
	stream->relations = hash_create("reuse_sync remote relations", 128, &ctl,
									HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	apply_set_transaction(InvalidTransactionId, InvalidXLogRecPtr);
}

/*
 * Set the targets: see apply.h.
 *
 * A relation that was announced before it became a target is put into the
 * relation map now, as the stream announced it: the map may hold another
 * description, of another stream or of the copy, and the next changes in this
 * stream have the columns that this stream has said.
 */
void
apply_set_targets(ApplyStream *stream, const ApplyTarget *targets,
				  int ntargets, RepOriginId origin)
{
	HASH_SEQ_STATUS status;
	RemoteRelation *remote;

	stream->targets = targets;
	stream->ntargets = ntargets;
	stream->origin = origin;
	hash_seq_init(&status, stream->relations);
	while ((remote = hash_seq_search(&status)) != NULL)
	{
		remote->target = find_target(stream, NameStr(remote->nspname),
									 NameStr(remote->relname));
		remote->renamed = remote->target != NULL ? NULL :
			find_renamed(stream, remote->remoteid);
		if (remote->target != NULL)
			map_relation(remote->message);
	}
}

/*
 * Name the origin: see apply.h.
 */
void
apply_set_origin_name(ApplyStream *stream, const char *name)
{
	stream->of_origin[0] = '\0';
	if (name[0] != '\0')
		snprintf(stream->of_origin, sizeof(stream->of_origin),
				 " for replication origin \"%s\"", name);
}

/*
 * Name the remote transaction: see apply.h.
 */
void
apply_set_transaction(TransactionId xid, XLogRecPtr commit_lsn)
{
	remote_xid = xid;
	remote_commit_lsn = commit_lsn;
}

/*
 * Process one message: see apply.h.
 */
bool
apply_message(ApplyStream *stream, StringInfo s, bool skip)
{
	Message		msg = {0};
	ErrorContextCallback errcallback;
	MemoryContext oldcontext;
	bool		is_change;

	current = stream;
	msg.change.column = -1;
	errcallback.callback = message_error_context;
	errcallback.arg = &msg;
	errcallback.previous = error_context_stack;
	error_context_stack = &errcallback;

	/* Reset before as well: the last message may have ended in an error. */
	MemoryContextReset(message_context);
	oldcontext = MemoryContextSwitchTo(message_context);

	is_change = dispatch(&msg, s, skip);

	MemoryContextSwitchTo(oldcontext);
	MemoryContextReset(message_context);

	error_context_stack = errcallback.previous;
	return is_change;
}

static bool
dispatch(Message *msg, StringInfo s, bool skip)
{
	int			type = pq_getmsgbyte(s);

	switch (type)
	{
		case LOGICAL_REP_MSG_INSERT:
		case LOGICAL_REP_MSG_UPDATE:
		case LOGICAL_REP_MSG_DELETE:
			msg->type = type;
			return handle_row(msg, s, skip);

		case LOGICAL_REP_MSG_TRUNCATE:
			msg->type = type;
			return handle_truncate(msg, s, skip);

		case LOGICAL_REP_MSG_RELATION:
			/* Whoever skips this transaction may not skip the next. */
			msg->type = type;
			handle_relation(s);
			return false;

		case LOGICAL_REP_MSG_TYPE:
		case LOGICAL_REP_MSG_ORIGIN:
		case LOGICAL_REP_MSG_MESSAGE:
			return false;

		case LOGICAL_REP_MSG_BEGIN:
		case LOGICAL_REP_MSG_COMMIT:
		case LOGICAL_REP_MSG_BEGIN_PREPARE:
		case LOGICAL_REP_MSG_PREPARE:
		case LOGICAL_REP_MSG_COMMIT_PREPARED:
		case LOGICAL_REP_MSG_ROLLBACK_PREPARED:
		case LOGICAL_REP_MSG_STREAM_START:
		case LOGICAL_REP_MSG_STREAM_STOP:
		case LOGICAL_REP_MSG_STREAM_COMMIT:
		case LOGICAL_REP_MSG_STREAM_ABORT:
		case LOGICAL_REP_MSG_STREAM_PREPARE:
			ereport(ERROR,
					(errcode(ERRCODE_PROTOCOL_VIOLATION),
					 errmsg("unexpected logical replication message \"%s\"",
							logicalrep_message_type(type))));
			break;

		default:
			ereport(ERROR,
					(errcode(ERRCODE_PROTOCOL_VIOLATION),
					 errmsg("unknown logical replication message type %d",
							type)));
	}

	return false;				/* keep compiler quiet */
}

/*
 * RELATION: remember what the relation is to us.  Only targets get into the
 * server's relation map.
 */
static void
handle_relation(StringInfo s)
{
	StringInfoData message = *s;
	LogicalRepRelation *rel = logicalrep_read_rel(s);
	RemoteRelation *remote;
	const ApplyTarget *before;
	bool		found;

	pq_getmsgend(s);

	/* The server's partition map marks vacant entries with 0. */
	if (!OidIsValid(rel->remoteid))
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("invalid relation ID in \"%s\" message",
						logicalrep_message_type(LOGICAL_REP_MSG_RELATION))));

	remote = hash_search(current->relations, &rel->remoteid, HASH_ENTER,
						 &found);
	before = !found ? NULL :
		remote->target != NULL ? remote->target : remote->renamed;
	remote->target = find_target(current, rel->nspname, rel->relname);
	remote->renamed = remote->target != NULL ? NULL :
		before != NULL ? before : find_renamed(current, rel->remoteid);
	remote->natts = rel->natts;
	keep_message(remote, found, &message);

	/* A name cut short could be that of an innocent local table. */
	if (strlen(rel->nspname) < NAMEDATALEN &&
		strlen(rel->relname) < NAMEDATALEN)
	{
		namestrcpy(&remote->nspname, rel->nspname);
		namestrcpy(&remote->relname, rel->relname);
	}
	else
	{
		namestrcpy(&remote->nspname, "");
		namestrcpy(&remote->relname, "");
	}

	if (remote->target != NULL)
		map_relation(remote->message);
}

/*
 * Keep the RELATION message, for when the relation becomes a target.
 */
static void
keep_message(RemoteRelation *remote, bool found, StringInfo message)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(current->context);

	if (found)
		resetStringInfo(&remote->message);
	else
		initStringInfo(&remote->message);
	appendBinaryStringInfo(&remote->message,
						   message->data + message->cursor,
						   message->len - message->cursor);
	MemoryContextSwitchTo(oldcontext);
}

/*
 * Put a target into the server's relation map.
 */
static void
map_relation(StringInfoData message)
{
	LogicalRepRelation *rel = logicalrep_read_rel(&message);

	logicalrep_relmap_update(rel);
	logicalrep_partmap_reset_relmap(rel);
}

/*
 * INSERT, UPDATE and DELETE.
 */
static bool
handle_row(Message *msg, StringInfo s, bool skip)
{
	StringInfoData peek = *s;
	RemoteRelation *remote = lookup_remote(pq_getmsgint(&peek, 4));
	RowChange  *change = &msg->change;
	LogicalRepTupleData oldtup;
	LogicalRepTupleData newtup;
	TableOwner	owner;
	bool		has_oldtup;

	if (remote->target == NULL)
	{
		if (!skip)
			check_not_renamed(remote);
		return false;
	}
	if (skip)
		return true;

	msg->remote = remote;
	check_row_message(msg->type, peek, remote->natts);

	switch (msg->type)
	{
		case LOGICAL_REP_MSG_INSERT:
			(void) logicalrep_read_insert(s, &newtup);
			change->operation = CMD_INSERT;
			change->row = &newtup;
			break;

		case LOGICAL_REP_MSG_UPDATE:
			(void) logicalrep_read_update(s, &has_oldtup, &oldtup, &newtup);
			change->operation = CMD_UPDATE;
			change->key = has_oldtup ? &oldtup : &newtup;
			change->row = &newtup;
			break;

		default:
			(void) logicalrep_read_delete(s, &oldtup);
			change->operation = CMD_DELETE;
			change->key = &oldtup;
			break;
	}

	change->origin = current->origin;
	begin_change();
	change->entry = open_target(remote, RowExclusiveLock);
	table_owner_become(&owner, RelationGetRelid(change->entry->localrel));
	apply_row(change);
	table_owner_leave(&owner);
	logicalrep_rel_close(change->entry, NoLock);
	change->entry = NULL;
	end_change();

	return true;
}

/*
 * TRUNCATE, which names several relations.
 */
static bool
handle_truncate(Message *msg, StringInfo s, bool skip)
{
	StringInfoData peek = *s;
	uint32		nrelids = pq_getmsgint(&peek, 4);
	List	   *remotes = NIL;	/* RemoteRelation, one per target */
	List	   *entries = NIL;	/* LogicalRepRelMapEntry of the same */
	List	   *targets = NIL;	/* Relation of the same */
	List	   *others = NIL;	/* RangeVar of those that are no targets */
	bool		cascade;
	bool		restart_seqs;
	ListCell   *lc;

	(void) pq_getmsgbyte(&peek);
	if (nrelids != (peek.len - peek.cursor) / 4 ||
		(peek.len - peek.cursor) % 4 != 0)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("TRUNCATE message is said to name %u relations, but has another length",
						nrelids)));

	foreach(lc, logicalrep_read_truncate(s, &cascade, &restart_seqs))
	{
		RemoteRelation *remote = lookup_remote(lfirst_oid(lc));

		if (!skip)
			check_not_renamed(remote);

		/* unique, as the relation map refuses to open one twice */
		if (remote->target != NULL)
			remotes = list_append_unique_ptr(remotes, remote);
		else if (NameStr(remote->relname)[0] != '\0')
			others = lappend(others,
							 makeRangeVar(NameStr(remote->nspname),
										  NameStr(remote->relname), -1));
	}

	if (remotes == NIL)
		return false;
	if (skip)
		return true;

	begin_change();
	foreach(lc, remotes)
	{
		LogicalRepRelMapEntry *entry;

		msg->remote = lfirst(lc);
		entry = open_target(msg->remote, AccessExclusiveLock);
		entries = lappend(entries, entry);
		targets = lappend(targets, entry->localrel);
	}
	if (list_length(remotes) > 1)
		msg->remote = NULL;

	/*
	 * Like the server we ignore 'cascade': the publisher has already named
	 * every table that its own cascade has reached.
	 */
	apply_truncate(targets, others, restart_seqs);

	foreach(lc, entries)
		logicalrep_rel_close(lfirst(lc), NoLock);
	end_change();

	return true;
}

/*
 * Check that the message ('s', by value, stands after the relation id) holds
 * the tuples its type asks for, with 'natts' columns each, and nothing else.
 */
static void
check_row_message(LogicalRepMsgType type, StringInfoData s, int natts)
{
	int			kind = pq_getmsgbyte(&s);

	if (type != LOGICAL_REP_MSG_INSERT && (kind == 'K' || kind == 'O'))
	{
		check_tuple(&s, natts);
		if (type == LOGICAL_REP_MSG_DELETE)
		{
			pq_getmsgend(&s);
			return;
		}
		kind = pq_getmsgbyte(&s);
	}

	if (type == LOGICAL_REP_MSG_DELETE || kind != 'N')
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("unexpected kind of tuple %d in \"%s\" message",
						kind, logicalrep_message_type(type))));

	check_tuple(&s, natts);
	pq_getmsgend(&s);
}

/*
 * Check one tuple and step over it.
 */
static void
check_tuple(StringInfo s, int natts)
{
	int			ncols = pq_getmsgint(s, 2);

	if (ncols != natts)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("received a tuple of %d columns for a relation of %d",
						ncols, natts)));

	for (int i = 0; i < ncols; i++)
	{
		int			status = pq_getmsgbyte(s);

		switch (status)
		{
			case LOGICALREP_COLUMN_NULL:
			case LOGICALREP_COLUMN_UNCHANGED:
				break;

			case LOGICALREP_COLUMN_TEXT:
			case LOGICALREP_COLUMN_BINARY:
				/* refuses negative lengths, too */
				(void) pq_getmsgbytes(s, (int) pq_getmsgint(s, 4));
				break;

			default:
				ereport(ERROR,
						(errcode(ERRCODE_PROTOCOL_VIOLATION),
						 errmsg("unknown format %d of column %d",
								status, i + 1)));
		}
	}
}

/*
 * Make ready for a change: a transaction, which the caller of apply_message()
 * ends, and a snapshot, which end_change() pops.
 */
static void
begin_change(void)
{
	SetCurrentStatementStartTimestamp();

	if (!IsTransactionState())
	{
		StartTransactionCommand();
		MemoryContextSwitchTo(message_context);
	}

	PushActiveSnapshot(GetTransactionSnapshot());
}

static void
end_change(void)
{
	PopActiveSnapshot();
	CommandCounterIncrement();
}

/*
 * Open a target through the relation map and lock it.
 */
static LogicalRepRelMapEntry *
open_target(const RemoteRelation *remote, LOCKMODE lockmode)
{
	LogicalRepRelMapEntry *entry;

	entry = target_open(remote->remoteid, lockmode);

	/*
	 * Only the apply worker's loop reads this.  While it is not "ready" each
	 * open would lock pg_subscription_rel to look it up.
	 */
	entry->state = SUBREL_STATE_READY;

	if (entry->localreloid != remote->target->relid)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s.%s\" is not the table that is being synchronized",
						NameStr(remote->nspname), NameStr(remote->relname)),
				 errdetail("The name has passed from the table with OID %u to the one with OID %u.",
						   remote->target->relid, entry->localreloid)));

	return entry;
}

/*
 * What a RELATION message of this stream has said of 'remoteid'.
 */
static RemoteRelation *
lookup_remote(LogicalRepRelId remoteid)
{
	RemoteRelation *remote;

	remote = hash_search(current->relations, &remoteid, HASH_FIND, NULL);
	if (remote == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("received a change of relation %u, which has not been announced",
						remoteid)));

	return remote;
}

/*
 * A linear search: once per announced relation, over one batch of tables.
 */
static const ApplyTarget *
find_target(const ApplyStream *stream, const char *nspname,
			const char *relname)
{
	for (int i = 0; i < stream->ntargets; i++)
	{
		if (strcmp(stream->targets[i].relname, relname) == 0 &&
			strcmp(stream->targets[i].nspname, nspname) == 0)
			return &stream->targets[i];
	}

	return NULL;
}

/*
 * The target that has this oid on the publisher.
 */
static const ApplyTarget *
find_renamed(const ApplyStream *stream, LogicalRepRelId remoteid)
{
	for (int i = 0; i < stream->ntargets; i++)
	{
		if (stream->targets[i].remoteid == remoteid)
			return &stream->targets[i];
	}

	return NULL;
}

/*
 * The server's own worker takes a change to the table that has its name here,
 * and throws if there is none.  The name may yet be given to the table that we
 * have copied: so its changes must not be passed over meanwhile.
 */
static void
check_not_renamed(const RemoteRelation *remote)
{
	if (remote->renamed != NULL && guard_is_on("renamed"))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s.%s\" has been renamed to \"%s.%s\" on the publisher",
						remote->renamed->nspname, remote->renamed->relname,
						NameStr(remote->nspname), NameStr(remote->relname)),
				 errhint("Rename it here as well.")));
}

/*
 * Error context callback.
 */
static void
message_error_context(void *arg)
{
	Message    *msg = arg;
	const char *action;

	/* apply_message() itself, or a message we do not look into */
	if (msg->type == 0)
	{
		errcontext("processing a message%s of remote transaction %u, finished at %X/%X",
				   current->of_origin,
				   remote_xid, LSN_FORMAT_ARGS(remote_commit_lsn));
		return;
	}

	action = logicalrep_message_type(msg->type);
	if (msg->remote == NULL)
		errcontext("processing \"%s\"%s of remote transaction %u, finished at %X/%X",
				   action, current->of_origin,
				   remote_xid, LSN_FORMAT_ARGS(remote_commit_lsn));
	else if (msg->change.column < 0)
		errcontext("processing \"%s\"%s for target table \"%s.%s\" of remote transaction %u, finished at %X/%X",
				   action, current->of_origin,
				   NameStr(msg->remote->nspname),
				   NameStr(msg->remote->relname),
				   remote_xid, LSN_FORMAT_ARGS(remote_commit_lsn));
	else
		errcontext("processing \"%s\"%s for target table \"%s.%s\" column \"%s\" of remote transaction %u, finished at %X/%X",
				   action, current->of_origin,
				   NameStr(msg->remote->nspname),
				   NameStr(msg->remote->relname),
				   msg->change.entry->remoterel.attnames[msg->change.column],
				   remote_xid, LSN_FORMAT_ARGS(remote_commit_lsn));
}
