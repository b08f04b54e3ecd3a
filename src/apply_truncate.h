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

#endif							/* REUSE_SYNC_APPLY_TRUNCATE_H */
