/*-------------------------------------------------------------------------
 *
 * report_data.c
 *	  Part of report(): what it shows, read from the views and the pool.
 *
 * All queries see the same snapshot; what live workers do is as of now.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/report_data.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/dbcommands.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "failure.h"
#include "pool.h"
#include "publisher.h"
#include "report.h"

/* --- rows of the last query --- */

static Datum
datum_at(int row, int col, bool *isnull)
{
	return SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc,
						 col + 1, isnull);
}

/* A bigint or a timestamptz. */
static int64
int64_at(int row, int col, int64 if_null)
{
	bool		isnull;
	Datum		datum = datum_at(row, col, &isnull);

	return isnull ? if_null : DatumGetInt64(datum);
}

/* The text of any type; null is null. */
static char *
text_at(int row, int col)
{
	return check_value(row, col);
}

static bool
bool_at(int row, int col)
{
	bool		isnull;
	Datum		datum = datum_at(row, col, &isnull);

	return !isnull && DatumGetBool(datum);
}

/* --- tables --- */

static ReportStep
step_of_state(const char *state)
{
	static const char *const catching_up[] = {
		"synchronized", "copied", "catching up", "handing over",
		"dropping slots"
	};

	if (strcmp(state, "ready") == 0)
		return STEP_READY;
	if (strcmp(state, "failed") == 0)
		return STEP_FAILED;
	if (strcmp(state, "copying") == 0)
		return STEP_COPYING;
	for (int i = 0; i < lengthof(catching_up); i++)
		if (strcmp(state, catching_up[i]) == 0)
			return STEP_CATCHING_UP;
	return STEP_PENDING;
}

static void
read_tables(Report *report, Oid subid)
{
	report->ntables =
		check_query(psprintf("SELECT pg_catalog.format('%%I.%%I', n.nspname, c.relname),"
							 " t.state, t.pid::bigint, t.bytes_total, t.bytes_copied,"
							 " t.tuples_copied, t.started_at, t.attempts::bigint,"
							 " t.next_retry, t.last_error, t.last_error_time"
							 " FROM reuse_sync.table_state t"
							 " LEFT JOIN pg_catalog.pg_class c ON c.oid = t.relid"
							 " LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
							 " WHERE t.subid = %u"
							 " ORDER BY n.nspname, c.relname", subid));
	report->tables = palloc0((report->ntables + 1) * sizeof(ReportTable));
	for (int i = 0; i < report->ntables; i++)
	{
		ReportTable *table = &report->tables[i];

		table->name = text_at(i, 0);
		table->state = text_at(i, 1);
		table->step = step_of_state(table->state);
		table->pid = (int) int64_at(i, 2, 0);
		table->bytes_total = int64_at(i, 3, -1);
		table->bytes_copied = int64_at(i, 4, -1);
		table->tuples_copied = int64_at(i, 5, -1);
		table->started_at = int64_at(i, 6, 0);
		table->attempts = (int) int64_at(i, 7, 0);
		table->next_retry = int64_at(i, 8, 0);
		table->error = text_at(i, 9);
		table->hint = table->error ? failure_split_hint(table->error) : NULL;
		table->error_time = int64_at(i, 10, 0);
		report->nstep[table->step]++;
		report->bytes_copied += Max(table->bytes_copied, 0);
		report->tuples_copied += Max(table->tuples_copied, 0);
	}
}

/* --- units --- */

/* The entries of the pool that are at tables of the subscription. */
static int
read_live_units(Oid subid, ReportUnit **units, Oid **first)
{
	int			n = 0;

	*units = palloc0((pool_size() + 1) * sizeof(ReportUnit));
	*first = palloc0((pool_size() + 1) * sizeof(Oid));
	for (int i = 0; i < pool_size(); i++)
	{
		ReportUnit *unit = &(*units)[n];
		PoolWorker	w;

		pool_lock(false);
		w = *pool_entry(i);
		pool_unlock();
		if (w.pid == 0 || w.nrelids == 0 || w.dbid != MyDatabaseId ||
			w.subid != subid)
			continue;
		unit->ntables = w.nrelids;
		unit->place = i;
		unit->pid = w.pid;
		unit->slot_name = pstrdup(NameStr(w.cleanup_slot_id != 0 ?
										  w.cleanup_slot_name : w.slot_name));
		unit->started_at = w.unit_start;
		unit->phase = pool_phase_name(w.phase);
		unit->bytes_copied = w.bytes_copied;
		(*first)[n++] = w.relids[0];
	}
	return n;
}

/* What is known of the rows that it has copied is known of its tables. */
static void
count_live_rows(Report *report, ReportUnit *unit)
{
	unit->tuples_copied = 0;
	for (int i = 0; i < report->ntables; i++)
		if (report->tables[i].pid == unit->pid)
			unit->tuples_copied += Max(report->tables[i].tuples_copied, 0);
}

/*
 * Does a row of the catalog show this unit?  It is committed before its worker
 * lets go of it; a unit begins when its tables have been claimed.
 */
static bool
is_finished(const Report *report, int nfinished, const ReportUnit *live)
{
	for (int i = 0; i < nfinished; i++)
		if (report->units[i].place == live->place &&
			report->units[i].pid == live->pid &&
			report->units[i].started_at >= live->started_at)
			return true;
	return false;
}

static void
read_units(Report *report, Oid subid)
{
	ReportUnit *live = NULL;
	Oid		   *first = NULL;
	int			nlive = pool_exists() ? read_live_units(subid, &live, &first) : 0;
	int			nfinished =
	check_query(psprintf("SELECT pg_catalog.format('%%I.%%I', n.nspname, c.relname),"
						 " u.tables::bigint, u.place::bigint, u.pid::bigint,"
						 " u.slot_name, u.slot_reused, u.started_at, u.copied_at,"
						 " u.finished_at, u.bytes_copied, u.tuples_copied"
						 " FROM reuse_sync.units u"
						 " JOIN pg_catalog.pg_class c ON c.oid = u.relid"
						 " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
						 " WHERE u.subname = %s"
						 " ORDER BY u.started_at",
						 quote_literal_cstr(report->subname)));

	report->units = palloc0((nfinished + nlive + 1) * sizeof(ReportUnit));
	for (int i = 0; i < nfinished; i++)
	{
		ReportUnit *unit = &report->units[i];

		unit->first = text_at(i, 0);
		unit->ntables = (int) int64_at(i, 1, 0);
		unit->place = (int) int64_at(i, 2, 0);
		unit->pid = (int) int64_at(i, 3, 0);
		unit->slot_name = text_at(i, 4);
		unit->slot_reused = bool_at(i, 5);
		unit->started_at = int64_at(i, 6, 0);
		unit->copied_at = int64_at(i, 7, 0);
		unit->finished_at = int64_at(i, 8, 0);
		unit->bytes_copied = int64_at(i, 9, 0);
		unit->tuples_copied = int64_at(i, 10, 0);
	}
	report->nunits = nfinished;
	for (int i = 0; i < nlive; i++)
	{
		if (is_finished(report, nfinished, &live[i]) ||
			check_query(psprintf("SELECT pg_catalog.format('%%I.%%I', n.nspname, c.relname)"
								 " FROM pg_catalog.pg_class c"
								 " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
								 " WHERE c.oid = %u", first[i])) != 1)
			continue;
		live[i].first = text_at(0, 0);
		count_live_rows(report, &live[i]);
		report->units[report->nunits++] = live[i];
	}
}

/* --- slots --- */

static void
read_slots(Report *report, Oid subid)
{
	report->nslots =
		check_query(psprintf("SELECT slot_name, state, pid::bigint, tables_synced,"
							 " created_at, wal_bytes, catalog_xmin::pg_catalog.text::bigint,"
							 " snapshot_xmin::pg_catalog.text::bigint, checked_at, last_error"
							 " FROM reuse_sync.slots WHERE subid = %u"
							 " ORDER BY slot_id", subid));
	report->slots = palloc0((report->nslots + 1) * sizeof(ReportSlot));
	for (int i = 0; i < report->nslots; i++)
	{
		ReportSlot *slot = &report->slots[i];

		slot->name = text_at(i, 0);
		slot->state = text_at(i, 1);
		slot->pid = (int) int64_at(i, 2, 0);
		slot->tables_synced = int64_at(i, 3, 0);
		slot->created_at = int64_at(i, 4, 0);
		slot->wal_bytes = int64_at(i, 5, -1);
		slot->catalog_xmin = (uint32) int64_at(i, 6, 0);
		slot->snapshot_xmin = (uint64) int64_at(i, 7, 0);
		slot->checked_at = int64_at(i, 8, 0);
		slot->error = text_at(i, 9);
	}
}

void
report_read(Report *report, const Subscription *sub)
{
	StringInfoData publications;
	ListCell   *lc;

	initStringInfo(&publications);
	foreach(lc, sub->publications)
		appendStringInfo(&publications, "%s%s",
						 publications.len > 0 ? ", " : "",
						 quote_identifier(strVal(lfirst(lc))));
	report->subname = sub->name;
	report->dbname = get_database_name(MyDatabaseId);
	report->publications = publications.data;
	report->slot_name = sub->slotname;
	report->address = publisher_address(sub->conninfo);
	report->enabled = sub->enabled;
	if (check_query(psprintf("SELECT percent, eta FROM reuse_sync.subscriptions"
							 " WHERE subname = %s",
							 quote_literal_cstr(sub->name))) == 1)
	{
		report->percent = text_at(0, 0);
		report->eta = int64_at(0, 1, 0);
	}
	read_tables(report, sub->oid);
	read_units(report, sub->oid);
	read_slots(report, sub->oid);

	/* After all that is at work has begun. */
	report->made_at = GetCurrentTimestamp();
}
