/*-------------------------------------------------------------------------
 *
 * apply_truncate.h
 *	  Applies one TRUNCATE to those of its tables that belong to the unit.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/apply_truncate.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_APPLY_TRUNCATE_H
#define REUSE_SYNC_APPLY_TRUNCATE_H

#include "nodes/pg_list.h"

/*
 * Empty the tables 'targets' (Relations, open, locked in ACCESS EXCLUSIVE
 * mode), and their partitions, which get the same lock.  'others' are the
 * names (RangeVars) of the remaining tables of the same TRUNCATE; they are
 * only consulted if a foreign key is in the way, and never locked.
 *
 * Needs a transaction with an active snapshot and a short-lived current memory
 * context.
 */
extern void apply_truncate(List *targets, List *others, bool restart_seqs);

/*
 * Empty a table, and its partitions, as TRUNCATE does, but row by row and
 * under a lock that keeps nobody away: what is committed when it begins goes,
 * readers see it until the transaction commits, and no foreign key is in the
 * way.  Triggers for TRUNCATE fire if they are to fire in a replica, those for
 * DELETE do not; what this server publishes are DELETEs.
 *
 * Needs an active snapshot.  Takes ROW EXCLUSIVE until the end of the
 * transaction, and waits for whoever has changed a row.  Throws what TRUNCATE
 * throws for want of rights, and for want of a replica identity.
 */
extern void apply_empty(Oid relid);

#endif							/* REUSE_SYNC_APPLY_TRUNCATE_H */
