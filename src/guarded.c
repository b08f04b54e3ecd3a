/*-------------------------------------------------------------------------
 *
 * guarded.c
 *	  What becomes of a worker's errors: whose they are, and what is kept.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/guarded.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_subscription_rel.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timeout.h"

#include "batch.h"
#include "catalog.h"
#include "failure.h"
#include "guarded.h"
#include "pool.h"
#include "resync.h"
#include "staged.h"
#include "testing.h"
#include "work_list.h"

Serving		my;

bool
extension_is_here(void)
{
	bool		exists;

	StartTransactionCommand();
	exists = catalog_exists(0);
	CommitTransactionCommand();
	MemoryContextSwitchTo(my.context);
	return exists;
}

void
guarded_let_cancel(bool let)
{
	if (let)
		pool_forget_cancel();
	QueryCancelHoldoffCount = let || !guard_is_on("between_steps") ? 0 : 1;
}

/*
 * Record it (of no table: something was short), but only log an error in that:
 * it comes from commands that change what the record is about, or from somebody
 * who cancels.
 *
 * In a drain a table that has failed is set back; one that is copied and only
 * waits is tried again.
 */
static void
try_to_record_failure(Oid relid, const ErrorData *failure)
{
	PG_TRY();
	{
		guarded_let_cancel(true);
		if (!OidIsValid(relid))
			failure_record_shortage(my.session, failure);
		else
		{
			bool		waits = failure_only_waits(failure);

			if (pool_is_draining(MyDatabaseId))
			{
				if (!waits)
					staged_set_back(my.session, relid, false);
				resync_give_back(my.session, relid);
			}
			if (waits)
				failure_put_off(my.session, relid, failure);
			else
				failure_record(my.session, relid, failure);
		}
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(my.context);
		EmitErrorReport();
		FlushErrorState();
		AbortOutOfAnyTransaction();
		work_list_postpone(my.session->sub->oid, failure_retry_time(1));
	}
	PG_END_TRY();
	guarded_let_cancel(false);
}

/*
 * Clear up after an error.  Nothing is known of the state of 'sql'.  A slot
 * whose table has got to 'f' is now for that table alone.  If the stream was
 * not yet at this unit it is as it was; else it is to start again where the
 * last unit ended.
 */
static void
clean_up(void)
{
	bool		link_broken = my.session->sql != NULL &&
	publisher_is_broken(my.session->sql);

	test_point(POINT_clear_up, my.session->sub->name);
	AbortOutOfAnyTransaction();
	unit_reset_origin();
	disable_all_timeouts(false);
	session_disconnect(my.session);
	stream_close(my.adopted);
	my.adopted = NULL;
	pool_release_orphan();
	if (my.slot == NULL)
		pool_set_slot(0, "");
	else if (my.unit != NULL && my.unit->slot == my.slot)
	{
		if (my.unit->tables[0].state == SUBREL_STATE_FINISHEDCOPY)
		{
			slot_abandon(my.slot);
			my.slot = NULL;
		}
		else if (my.slot->stream != NULL &&
				 (link_broken || my.slot->stream->unit == my.unit))
		{
			stream_close(my.slot->stream);
			my.slot->stream = NULL;
		}
	}
	MemoryContextSwitchTo(my.context);
	unit_end(my.unit);
	my.unit = NULL;
}

/*
 * Is it for want of a slot, a connection or an origin, or of the publisher
 * itself, before anything of a table was touched?  Then it is no table's
 * failure.
 */
static bool
is_shortage(const ErrorData *edata)
{
	int			category = ERRCODE_TO_CATEGORY(edata->sqlerrcode);

	return my.unit == NULL ||
		(my.unit->conn == NULL && my.unit->snapshot == NULL && !my.unit->refused &&
		 (my.slot == NULL || category == ERRCODE_CONNECTION_EXCEPTION ||
		  category == ERRCODE_INSUFFICIENT_RESOURCES));
}

/*
 * Whose failure is it?  The relid of the table to be recorded, or InvalidOid.
 * Tables that failed together are served alone from now on, and a table that
 * the express way holds up too long is served the staged way.
 */
static Oid
attribute_failure(bool outdated)
{
	Oid			relid = InvalidOid;

	if (outdated || my.unit->tables[0].state == SUBREL_STATE_SYNCDONE)
		return InvalidOid;

	if (my.unit->ntables == 1 && !my.unit->too_long)
		relid = my.unit->tables[0].relid;
	else if (my.unit->ntables == 1)
		batch_staged(my.session, my.unit->tables[0].relid);
	else if (my.unit->at != NULL && my.unit->too_long)
		batch_alone(my.session, my.unit->at->relid);
	else if (my.unit->at != NULL)
		relid = my.unit->at->relid;
	else
	{
		for (int i = 0; i < my.unit->ntables; i++)
			batch_alone(my.session, my.unit->tables[i].relid);
	}
	return relid;
}

bool
guarded(void (*step) (const Step *), const Step *what)
{
	ErrorData  *volatile edata = NULL;
	volatile bool outdated = false;
	volatile bool in_unit = false;
	volatile bool begun = false;
	volatile Oid relid = InvalidOid;

	PG_TRY();
	{
		guarded_let_cancel(true);
		step(what);
	}
	PG_CATCH();
	{
		HOLD_INTERRUPTS();
		MemoryContextSwitchTo(my.context);
		edata = CopyErrorData();
		outdated = unit_is_outdated() || pool_let_go_requested();
		in_unit = !is_shortage(edata);
		begun = my.unit != NULL;
		if (in_unit)
			relid = attribute_failure(outdated);
		if (!outdated && !in_unit)
			failure_report_shortage(my.session, edata);
		else if (outdated || !OidIsValid(relid))
			ereport(LOG,
					errmsg("reuse_sync worker gives up a unit of subscription \"%s\"",
						   my.session->sub->name),
					errdetail_internal("%s", edata->message));
		else if (!failure_only_waits(edata))
			EmitErrorReport();
		FlushErrorState();
		clean_up();
		RESUME_INTERRUPTS();
	}
	PG_END_TRY();

	guarded_let_cancel(false);
	MemoryContextSwitchTo(my.context);
	if (edata == NULL)
		return true;

	/* Whoever has us let go may have what it would take to keep an error. */
	if ((pool_let_go_requested() && guard_is_on("let_go")) ||
		!extension_is_here())
		return false;
	if (OidIsValid(relid))
		try_to_record_failure(relid, edata);
	else if (!outdated && !in_unit)
	{
		work_list_postpone(my.session->sub->oid, failure_shortage_over());
		if (begun)
			try_to_record_failure(InvalidOid, edata);
	}
	MemoryContextSwitchTo(my.context);
	return false;
}
