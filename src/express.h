/*-------------------------------------------------------------------------
 *
 * express.h
 *	  The express way, for tables that are quick to copy.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/express.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_EXPRESS_H
#define REUSE_SYNC_EXPRESS_H

#include "catchup.h"

/*
 * Bring the unit's tables from 'i' to 's' in one local transaction.  The
 * unit's snapshot has been taken; 'stream' is that of its slot.  Any error
 * leaves them as they were; unit->too_long is set if the tables could not be
 * locked, or what is left to apply could not be applied, within
 * handover_lock_timeout: then another way is to be taken.
 */
extern void express(Unit *unit, Stream *stream);

#endif							/* REUSE_SYNC_EXPRESS_H */
