/*-------------------------------------------------------------------------
 *
 * catalog.h
 *	  The extension's catalog: slots, progress of tables, counters.
 *
 * Everything runs in the caller's transaction and sees what it did before.
 * Rows are those of this database.  All throw ERRCODE_UNDEFINED_OBJECT if the
 * extension is not there.
 *
 * Concurrency: a slot's row is written by the process that has claimed the
 * slot, a table's row by the one that has claimed the table, counters by the
 * process in that place of the pool; numbers are given out under a lock.  The
 * row of a resync is written by whoever asks for it, and after that commit by
 * the one that has claimed the table.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/catalog.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_CATALOG_H
#define REUSE_SYNC_CATALOG_H

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "nodes/pg_list.h"

#include "publisher.h"

typedef enum SlotState
{
	SLOT_CREATING,				/* may or may not exist yet */
	SLOT_CREATED,
	SLOT_LINKED,				/* finishes one table, then goes */
	SLOT_ORPHANED				/* its subscription is gone */
} SlotState;

typedef struct SlotRow
{
	Oid			subid;
	int64		slot_id;
	NameData	slot_name;
	SlotState	state;
	Oid			relid;			/* of a linked slot */
	uint64		publisher_sysid;
	uint32		publisher_timeline;
	char	   *conninfo;		/* null: the subscription's */
	bool		must_use_password;	/* of it: see publisher_connect */
	char	   *last_error;		/* null: none */
} SlotRow;

typedef struct TableProgress
{
	int64		slot_id;		/* 0: none of ours */
	TransactionId copy_xid;		/* local transaction that set state f */
	char	   *snapshot;		/* null: none */
	XLogRecPtr	filter_end;
	char	   *publications;	/* that the slot's stream is of */
	bool		was_empty;		/* all its rows are of our copy */
	TimestampTz started_at;		/* 0: never */
	int64		bytes_total;	/* -1: not known */
	int64		bytes_copied;
	int64		tuples_copied;
	int			attempts;
	TimestampTz next_retry;		/* 0: at once */
	char	   *last_error;
	TimestampTz last_error_time;
} TableProgress;

/* How far a resync has got; see resync.c. */
typedef enum ResyncStage
{
	RESYNC_REQUESTED,			/* nobody has looked at it yet */
	RESYNC_TRIED,				/* could not be begun, to be tried again */
	RESYNC_SET_BACK,			/* the apply worker may not know it yet */
	RESYNC_BEGUN				/* to be served like any pending table */
} ResyncStage;

typedef struct ResyncRow
{
	Oid			relid;
	int64		xid;			/* the transaction that has asked for it */
	ResyncStage stage;
	bool		truncate;		/* remove what the table holds */
	TimestampTz requested_at;
} ResyncRow;

/* What is kept of a unit that has been handed over. */
typedef struct UnitRow
{
	const NameData *slot_name;
	bool		slot_reused;	/* not its first unit */
	int			ntables;
	TimestampTz started_at;
	TimestampTz copied_at;		/* 0: before, by another process */
	int64		bytes_copied;
	int64		tuples_copied;
} UnitRow;

/* Changes of the counters since they were last written. */
typedef struct PoolCounters
{
	int64		tables_synced;
	int64		units;
	int64		slots_created;
	int64		slots_reused;
	int64		slots_dropped;
	int64		workers_started;
	int64		bytes_copied;
	int64		transactions_skipped;
	int64		transactions_applied;
	int64		errors;
} PoolCounters;

/*
 * Is the extension in this database, in the version of this library?  Another
 * version is reported with 'elevel' (0: silently).
 */
extern bool catalog_exists(int elevel);

/* Tell the pool what was found of the extension in this database. */
extern void catalog_note_standing(void);

/*
 * Keep the extension from being dropped until the end of the transaction;
 * false if it is not there.
 */
extern bool catalog_hold(void);

/* --- slots --- */

/* The name of the slot with this number. */
extern void catalog_slot_name(Oid subid, int64 slot_id,
							  NameData *slot_name);

/*
 * Give out the next number and insert a row "creating".  The caller commits
 * and flushes before it asks the publisher for the slot (design.md section
 * 4).  Takes SHARE ROW EXCLUSIVE on slot_number.
 */
extern int64 catalog_add_slot(Oid subid, const PublisherIdentity *publisher,
							  NameData *slot_name);

/*
 * The same for a slot of the server's own worker, which is taken over with its
 * table; returns the number of the row there is if there is one.
 */
extern int64 catalog_adopt_slot(Oid subid, const NameData *slot_name,
								Oid relid,
								const PublisherIdentity *publisher);
extern void catalog_slot_created(Oid subid, int64 slot_id,
								 const PublisherIdentity *publisher);
extern void catalog_set_slot(Oid subid, int64 slot_id, SlotState state,
							 Oid relid);
extern void catalog_slot_tables_done(Oid subid, int64 slot_id, int ntables);
extern void catalog_set_slot_error(Oid subid, int64 slot_id,
								   const char *error);
extern void catalog_remove_slot(Oid subid, int64 slot_id);
extern bool catalog_get_slot(Oid subid, int64 slot_id, SlotRow *row);

/* All rows (SlotRow *), or those of one subscription. */
extern List *catalog_slots(Oid subid);

/*
 * All slots of a subscription keep how to connect to where they were made; the
 * first makes them orphans as well.
 */
extern void catalog_orphan_slots(Oid subid, const char *conninfo,
								 bool must_use_password);
extern void catalog_keep_conninfo(Oid subid, const char *conninfo,
								  bool must_use_password);

/* Remove the rows of all slots of a subscription; returns them. */
extern List *catalog_forget_slots(Oid subid);

/*
 * The same for slots whose subscription is gone, and with it the way to their
 * publisher.  If there are any, takes SHARE UPDATE EXCLUSIVE on slot_catalog
 * until the end of the transaction.
 */
extern List *catalog_forget_lost_slots(void);

/* --- tables --- */
extern bool catalog_get_progress(Oid subid, Oid relid,
								 TableProgress *progress);
extern void catalog_put_progress(Oid subid, Oid relid,
								 const TableProgress *progress);

/*
 * When the table may be tried again: 0 if now, also because somebody asked
 * for that since.
 */
extern TimestampTz catalog_retry_time(Oid subid, Oid relid,
									  const TableProgress *progress);

/*
 * Ask for that; false if the table does not wait.  Takes SHARE ROW EXCLUSIVE
 * on retry_request until the end of the transaction; workers only read it.
 */
extern bool catalog_request_retry(Oid subid, Oid relid);

/* --- resyncs --- */

/*
 * Ask for a table to be synchronized anew, at the caller's commit.  A row for
 * each transaction that asks: nobody waits for anybody.
 */
extern void catalog_add_resync(Oid subid, Oid relid, bool truncate);

/* All rows (ResyncRow *), or those of one subscription; reads the heap. */
extern List *catalog_resyncs(Oid subid);

/* Has this table been set back for that, so that it may hold what is to go? */
extern bool catalog_resync_is_begun(Oid subid, Oid relid);

/* How many rows are of such tables? */
extern int	catalog_begun_resyncs(void);

/* Of one table: all to this stage; remove those at this stage or beyond. */
extern void catalog_set_resyncs(Oid subid, Oid relid, ResyncStage stage);
extern void catalog_remove_resyncs(Oid subid, Oid relid, ResyncStage stage);

/*
 * Keep the sizes that these tables have on the publisher, of those of which
 * none is kept: what progress is reckoned by does not change under way.  Takes
 * SHARE ROW EXCLUSIVE on table_size until the end of the transaction; does
 * nothing if another process is at it.
 */
extern void catalog_add_sizes(Oid subid, const Oid *relids,
							  const int64 *bytes, int n);

/* --- units --- */

/*
 * Keep what a report shows of this process's unit, which ends now; 'relid' is
 * its first table, of whose last unit there is one row.
 */
extern void catalog_put_unit(Oid subid, Oid relid, const UnitRow *unit);

/* --- counters --- */

/* What this process has counted and not written yet. */
extern PoolCounters Counters;

/*
 * Write them in the current transaction; if it aborts they are kept for the
 * next write.
 */
extern void catalog_write_counters(void);

/* Back to what they were before work that is rolled back, written or not. */
extern void catalog_restore_counters(const PoolCounters *before);

/* Set all to zero, in this database. */
extern void catalog_reset_counters(void);

/*
 * Remove what belongs to other databases, to tables that are no longer in a
 * subscription, and to subscriptions that are gone.  Never touches a publisher;
 * leaves it to another time if somebody else is at it.
 */
extern void catalog_forget_strangers(void);

#endif							/* REUSE_SYNC_CATALOG_H */
