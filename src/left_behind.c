/*-------------------------------------------------------------------------
 *
 * left_behind.c
 *	  What the pool left half done, when it is switched off.
 *
 * The server's own workers can go on from every state but one: a table in
 * state 'f' that the pool has copied waits for a slot whose name they do not
 * know.  They try again and again, in vain and without harm.  The same becomes
 * of a table that is synchronized anew, see hooks.c.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/left_behind.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "catalog/pg_subscription.h"
#include "catalog/pg_subscription_rel.h"
#include "lib/stringinfo.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

#include "catalog.h"
#include "compat.h"
#include "left_behind.h"
#include "settings.h"

/* The names of all half-done tables would be too much for a log line. */
#define MOST_NAMES	10

/* Names of the tables that the pool has half done; their number. */
static int
half_done_tables(Oid subid, StringInfo names)
{
	ListCell   *lc;
	int			n = 0;

	foreach(lc, GetSubscriptionRelations(subid, true))
	{
		SubscriptionRelState *rel = lfirst(lc);
		TableProgress progress;
		char	   *relname = get_rel_name(rel->relid);

		if (relname == NULL ||
			(!catalog_resync_is_begun(subid, rel->relid) &&
			 (rel->state != SUBREL_STATE_FINISHEDCOPY ||
			  !catalog_get_progress(subid, rel->relid, &progress) ||
			  progress.slot_id == 0 ||
			  !TransactionIdIsValid(progress.copy_xid))))
			continue;
		if (n < MOST_NAMES)
			appendStringInfo(names, "%s%s", n > 0 ? ", " : "",
							 quote_qualified_identifier(get_namespace_name(get_rel_namespace(rel->relid)),
														relname));
		else if (n == MOST_NAMES)
			appendStringInfoString(names, ", ...");
		n++;
	}
	return n;
}

void
left_behind_report(Oid subid)
{
	Subscription *sub = GetSubscription(subid, true);
	StringInfoData names;
	int			ntables;
	int			nslots;

	if (sub == NULL || !catalog_exists(0))
		return;
	initStringInfo(&names);
	ntables = half_done_tables(sub->oid, &names);
	nslots = list_length(catalog_slots(sub->oid));
	if (ntables > 0)
		ereport(WARNING,
				errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				errmsg_plural("%d table of subscription \"%s\" is half done and waits, because \"%s\" is switched off",
							  "%d tables of subscription \"%s\" are half done and wait, because \"%s\" is switched off",
							  ntables, ntables, sub->name, EXTENSION_NAME),
				errdetail("The server cannot finish what \"%s\" has begun: %s.",
						  EXTENSION_NAME, names.data),
				errhint("Set reuse_sync.enabled to on and restart the server.  CALL reuse_sync.drain() before you switch it off."));
	else if (nslots > 0)
		ereport(WARNING,
				errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				errmsg_plural("%d replication slot for subscription \"%s\" may remain on the publisher, because \"%s\" is switched off",
							  "%d replication slots for subscription \"%s\" may remain on the publisher, because \"%s\" is switched off",
							  nslots, nslots, sub->name, EXTENSION_NAME),
				errhint("Set reuse_sync.enabled to on and restart the server.  CALL reuse_sync.drain() before you switch it off."));
}
