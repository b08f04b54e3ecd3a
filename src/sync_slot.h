/*-------------------------------------------------------------------------
 *
 * sync_slot.h
 *	  Replication slots that workers own on publishers.
 *
 * A slot is known to the catalog before it exists and until it is known to be
 * gone (design.md section 4).  What a slot needs to be reused exactly, its
 * birth snapshot and what it has delivered, lives with its worker: no other
 * worker ever reuses it.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/sync_slot.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_SYNC_SLOT_H
#define REUSE_SYNC_SYNC_SLOT_H

#include "replication/origin.h"

#include "catalog.h"
#include "remote_snapshot.h"
#include "session.h"

typedef struct SyncSlot
{
	MemoryContext context;		/* holds this and all below */
	Oid			subid;
	int64		id;
	NameData	name;
	PublisherIdentity made_on;	/* C3 */
	struct Fingerprint *fingerprint;	/* of the publications, C2 */
	RemoteSnapshot *birth;		/* C1 a */
	DeliveredXids delivered;	/* C1 b */
	int			neligible;		/* tables pending at its creation, sorted, C2 */
	Oid		   *eligible;
	struct dsm_segment *offer;	/* to other workers, null: none */
	RepOriginId origin;			/* named as the slot; see slot_take_origin */
	XLogRecPtr	position;		/* the next unit's changes start here */
	int64		units;			/* served so far */
	Publisher  *conn;			/* it was created over; a stream takes it */
	bool		has_snapshot;	/* ... and still has the slot's snapshot: C4 */
	struct Stream *stream;		/* null until the first unit streams */
} SyncSlot;

/*
 * Create a slot for the tables given, which are pending now; or, if that is
 * allowed, copy one that another worker has created.  No transaction may be
 * open: creation waits for every transaction running on the publisher, which
 * may be this server.  Null if what was copied cannot be used; it has become
 * an orphan.
 */
extern SyncSlot *slot_create(Session *session, const Oid *eligible,
							 int neligible, bool may_copy);

/*
 * Have the slot's origin, which express units need, and one of the server's
 * few entries for it; a staged unit has the table's.  Throws if there is none
 * left.  No transaction may be open.
 */
extern void slot_take_origin(SyncSlot *slot);

/* C2: was this table pending when the slot was created? */
extern bool slot_may_serve(const SyncSlot *slot, Oid relid);

/*
 * Can a stream from the slot still start at 'position'?  The query to ask, and
 * what its answer says: false, with the reason, if the slot is gone,
 * invalidated or confirmed beyond it.
 */
extern char *slot_start_query(Session *session, const char *slot_name);
extern bool slot_may_start(const PublisherResult *res, XLogRecPtr position,
						   char **reason);

/*
 * Note for the views where a slot stands, from three columns of a result:
 * restart_lsn, catalog_xmin, and the end of the publisher's WAL.
 */
extern void slot_note(const PublisherResult *res, int col);

/* End its stream, drop it and forget it. */
extern void slot_drop(Session *session, SyncSlot *slot);

/* Forget it without a word to the publisher: it has become an orphan. */
extern void slot_abandon(SyncSlot *slot);

/* The slot's stream, opened if need be. */
extern struct Stream *slot_stream(Session *session, SyncSlot *slot);

/*
 * In a transaction: remove the row of a slot that is gone, and the origin of
 * the same name.
 */
extern void slot_forget(Oid subid, int64 slot_id, const char *slot_name);

/*
 * Drop a slot by name over 'conn'.  Returns true if it is gone, else false
 * with the publisher's message.
 */
extern bool slot_drop_by_name(Publisher *conn, const char *slot_name,
							  char **message);

/*
 * In a transaction of its own: forget a slot that is gone, or keep the reason
 * why it is not.  Returns 'gone'.
 */
extern bool slot_record_drop(Oid subid, int64 slot_id, const char *slot_name,
							 bool gone, const char *message);

#endif							/* REUSE_SYNC_SYNC_SLOT_H */
