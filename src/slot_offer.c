/*-------------------------------------------------------------------------
 *
 * slot_offer.c
 *	  A worker's new slot, offered to the others for copying.
 *
 * Why a copy is as good as a slot that was created (design.md C1, C2).  Let A
 * be the slot that was created and B its copy; B starts where A was confirmed
 * at that moment, at X.
 *
 * - C2: that all transactions which ran when A was created had to end is true
 *	 of B as well, since it starts later.  So B has A's fingerprint of the
 *	 publications and A's list of tables, not those of its own making: what has
 *	 changed since A was created disagrees with them.
 * - C1 (a): what committed before A's start has to be seen by every snapshot
 *	 that is used with A, and with B too: it has A's birth snapshot.
 * - C1 (b): what committed between A's start and X is not in B's stream, so
 *	 it has to be seen as if B had delivered it.  A has: it confirms nothing
 *	 else.  Before each confirmation A writes down what it has delivered, and B
 *	 reads that after it has been made; so the list has at least what lies
 *	 below X.  What A has struck off it was seen by a snapshot that A took
 *	 before, and is seen by all that B takes.
 *
 * The offer is in a segment of shared memory that goes with the worker.
 * 'position' and 'delivered' are read and written under the pool's lock.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/slot_offer.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "libpq/pqformat.h"
#include "replication/worker_internal.h"
#include "storage/dsm.h"

#include "compat.h"
#include "fingerprint.h"
#include "pool.h"
#include "slot_offer.h"
#include "testing.h"

/* With more delivered than this an offer ends; in a unit it is rarely so. */
#define OFFER_DELIVERED		4096

typedef struct Offer
{
	PublisherIdentity made_on;
	XLogRecPtr	position;		/* all that was delivered below is listed */
	int			ndelivered;
	uint64		delivered[OFFER_DELIVERED];
	int			length;
	char		facts[FLEXIBLE_ARRAY_MEMBER];	/* see write_facts */
} Offer;

/* --- what stays as it is --- */

/* Of which origins the subscription wants changes. */
static const char *
stream_origin(void)
{
	const char *origin = compat_subscription_origin(MySubscription);

	return origin != NULL ? origin : "";
}

static void
write_facts(StringInfo buf, const SyncSlot *slot)
{
	pq_sendint64(buf, slot->birth->xmin);
	pq_sendint64(buf, slot->birth->xmax);
	pq_sendint32(buf, slot->birth->nxip);
	for (int i = 0; i < slot->birth->nxip; i++)
		pq_sendint64(buf, slot->birth->xip[i]);
	pq_sendint32(buf, slot->neligible);
	for (int i = 0; i < slot->neligible; i++)
		pq_sendint32(buf, slot->eligible[i]);
	fingerprint_write(buf, slot->fingerprint);
	pq_send_ascii_string(buf, stream_origin());
}

/* False if the slot's stream has left out what ours would not. */
static bool
read_facts(StringInfo buf, SyncSlot *slot)
{
	RemoteSnapshot *birth = palloc0(sizeof(RemoteSnapshot));

	birth->xmin = pq_getmsgint64(buf);
	birth->xmax = pq_getmsgint64(buf);
	birth->nxip = pq_getmsgint(buf, 4);
	birth->xip = palloc(Max(birth->nxip, 1) * sizeof(uint64));
	for (int i = 0; i < birth->nxip; i++)
		birth->xip[i] = pq_getmsgint64(buf);
	slot->birth = birth;
	slot->neligible = pq_getmsgint(buf, 4);
	slot->eligible = palloc(Max(slot->neligible, 1) * sizeof(Oid));
	for (int i = 0; i < slot->neligible; i++)
		slot->eligible[i] = pq_getmsgint(buf, 4);
	slot->fingerprint = fingerprint_restore(buf);
	return strcmp(pq_getmsgrawstring(buf), stream_origin()) == 0;
}

/* --- the worker that has the slot --- */

/* A segment with the offer, or null if there is no memory for it. */
static dsm_segment *
make_segment(const SyncSlot *slot)
{
	MemoryContext context = CurrentMemoryContext;
	dsm_segment *volatile segment = NULL;
	StringInfoData buf;
	Offer	   *offer;

	initStringInfo(&buf);
	write_facts(&buf, slot);
	PG_TRY();
	{
		segment = dsm_create(offsetof(Offer, facts) + buf.len,
							 DSM_CREATE_NULL_IF_MAXSEGMENTS);
	}
	PG_CATCH();
	{
		/* Nothing but the offer depends on it. */
		MemoryContextSwitchTo(context);
		EmitErrorReport();
		FlushErrorState();
	}
	PG_END_TRY();
	if (segment == NULL)
		return NULL;

	offer = dsm_segment_address(segment);
	offer->made_on = slot->made_on;
	offer->position = slot->position;
	offer->ndelivered = 0;
	offer->length = buf.len;
	memcpy(offer->facts, buf.data, buf.len);
	pfree(buf.data);
	return segment;
}

void
slot_offer(SyncSlot *slot)
{
	Assert(slot->offer == NULL && slot->delivered.n == 0);
	slot->offer = make_segment(slot);
	if (slot->offer != NULL)
		pool_set_offer(dsm_segment_handle(slot->offer));
}

void
slot_offer_renew(SyncSlot *slot, XLogRecPtr lsn)
{
	const DeliveredXids *delivered = &slot->delivered;
	Offer	   *offer;

	if (slot->offer == NULL)
		return;
	if (delivered->n > OFFER_DELIVERED)
	{
		slot_offer_withdraw(slot);
		return;
	}
	offer = dsm_segment_address(slot->offer);
	pool_lock(true);
	memcpy(offer->delivered, delivered->xids, delivered->n * sizeof(uint64));
	offer->ndelivered = delivered->n;
	offer->position = lsn;
	pool_unlock();
}

void
slot_offer_withdraw(SyncSlot *slot)
{
	if (slot->offer == NULL)
		return;
	pool_set_offer(DSM_HANDLE_INVALID);
	dsm_detach(slot->offer);
	slot->offer = NULL;
}

/* --- a worker that wants one --- */

/*
 * Have the publisher copy a slot: where the copy starts, or no LSN.  '*whole'
 * tells whether the slot it was made from has outlived that: what held the
 * publisher's rows and WAL for the copy meanwhile.
 */
static XLogRecPtr
copy_on_publisher(Publisher *conn, const char *from, const char *to,
				  bool *whole)
{
	PublisherResult *res;
	PublisherResult *source;
	XLogRecPtr	start = InvalidXLogRecPtr;
	char	   *message;
	int			sqlstate;

	publisher_begin(conn,
					psprintf("SELECT lsn FROM pg_catalog.pg_copy_logical_replication_slot(%s, %s, false);"
							 "SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = %s",
							 publisher_literal(conn, from),
							 publisher_literal(conn, to),
							 publisher_literal(conn, from)));
	res = publisher_try_next_rows(conn, &sqlstate, &message);
	if (res == NULL)
	{
		elog(DEBUG1, "could not copy replication slot \"%s\": %s", from,
			 message);
		return start;
	}
	source = publisher_next_rows(conn);
	publisher_end(conn);
	*whole = source->nrows == 1;
	if (res->nrows == 1)
		start = session_parse_lsn(publisher_value(res, 0, 0));
	return start;
}

/*
 * Take over what is known of the slot that was copied; false if it does not
 * cover the copy.
 */
static bool
take_facts(const Offer *offer, SyncSlot *slot)
{
	uint64	   *delivered = palloc(sizeof(offer->delivered));
	int			ndelivered;
	StringInfoData facts;
	bool		covered;

	pool_lock(false);
	covered = slot->position <= offer->position;
	ndelivered = offer->ndelivered;
	memcpy(delivered, offer->delivered, ndelivered * sizeof(uint64));
	pool_unlock();

	if (guard_is_on("copied_delivered"))
		for (int i = 0; i < ndelivered; i++)
			delivered_xids_add(&slot->delivered, delivered[i], slot->context);
	pfree(delivered);

	facts.data = (char *) offer->facts;
	facts.len = offer->length;
	facts.maxlen = -1;
	facts.cursor = 0;
	return read_facts(&facts, slot) && covered;
}

bool
slot_offer_copy(Session *session, SyncSlot *slot, bool *usable)
{
	NameData	from;
	dsm_handle	handle = pool_find_offer(slot->subid, &from);
	const PublisherIdentity *publisher = publisher_identity(slot->conn);
	dsm_segment *segment;

	*usable = false;
	if (handle == DSM_HANDLE_INVALID ||
		publisher_version(slot->conn) < 120000 ||
		(segment = dsm_attach(handle)) == NULL)
		return false;

	/* It may belong to nobody any more; what it says of 'from' stays true. */
	PG_TRY();
	{
		const Offer *offer = dsm_segment_address(segment);
		bool		whole = false;

		if (offer->made_on.sysid == publisher->sysid &&
			offer->made_on.timeline == publisher->timeline)
			slot->position = copy_on_publisher(slot->conn, NameStr(from),
											   NameStr(slot->name), &whole);
		if (!XLogRecPtrIsInvalid(slot->position))
		{
			slot->made_on = offer->made_on;
			*usable = take_facts(offer, slot) && whole;
		}
	}
	PG_FINALLY();
	{
		dsm_detach(segment);
	}
	PG_END_TRY();
	return !XLogRecPtrIsInvalid(slot->position);
}
