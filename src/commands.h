/*-------------------------------------------------------------------------
 *
 * commands.h
 *	  What the library does around the commands of users.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/commands.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef REUSE_SYNC_COMMANDS_H
#define REUSE_SYNC_COMMANDS_H

#include "nodes/nodes.h"

/* What is to follow from a command, noted before it may free its tree. */
typedef struct CommandEffect
{
	bool		hint;			/* there may be work */
	bool		cleanup;		/* and slots to drop */
	bool		restart_apply_workers;
	bool		commits_prepared;
	Oid			subid;			/* subscription that is altered */
	bool		begins_anew;	/* what has failed is tried again at once */
	bool		outdates;		/* all its units become pointless */
	Oid			dropped_dbid;	/* database that is dropped */
} CommandEffect;

/*
 * A command is about to run; 'in_block' unless it is a transaction of its own.
 * May take the locks that the command takes next.  Throws what speaks against
 * the command.
 */
extern void command_begins(Node *stmt, bool in_block, CommandEffect *effect);

/* It has run, and may yet be rolled back. */
extern void command_has_ended(const CommandEffect *effect);

#endif							/* REUSE_SYNC_COMMANDS_H */
