/*-------------------------------------------------------------------------
 *
 * copy.c
 *	  Copies one table's rows from the publisher.
 *
 * The publisher runs COPY TO STDOUT, in text format if not both sides can do
 * with the binary one, and our own COPY FROM draws from that through a
 * callback.  The local side may take the data to be at its end when it is
 * not, so a copy counts as complete only after the publisher has reported the
 * end of its command.
 *
 * A table of which no column is published cannot be copied this way, since
 * COPY takes an empty list of columns for all of them.  Its rows are counted
 * on the publisher, and as many rows of defaults are inserted.
 *
 * After an error the publisher's connection may be in the middle of a COPY,
 * and the relation map's entry open; the one is to be closed, and the other
 * is replaced by the next logicalrep_relmap_update().
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/copy.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "commands/copy.h"
#include "commands/copyfrom_internal.h"
#include "executor/spi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "parser/parse_node.h"
#include "parser/parse_relation.h"
#include "replication/logicalrelation.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "apply_row.h"
#include "compat.h"
#include "copy.h"
#include "table_owner.h"
#include "target.h"

/*
 * A sample says how much a few blocks hold, but reads what they hold out of
 * line as well: not where that is more than so many times the blocks.
 */
#define MOST_OUT_OF_LINE	4

/*
 * How large a sample is, in blocks; in how many ranges; and if each block is
 * taken or not by itself, which is less exact.
 */
#define SAMPLE_BLOCKS	256.0
#define SAMPLE_RANGES	64
#define RANDOM_BLOCKS	1000.0

/*
 * Where our COPY FROM draws from.  Static because the callback is not told
 * whom it works for; one copy runs at a time.
 */
static struct
{
	Publisher  *pub;
	void		(*progress) (int64 bytes);
	char	   *piece;			/* valid until the next one is fetched */
	int			length;
	int			taken;
	bool		ended;			/* the publisher has confirmed the end */
}			source;

/* Say of which table an error is. */
static void
table_context(void *arg)
{
	LogicalRepRelation *rel = arg;

	errcontext("copy of table \"%s.%s\"", rel->nspname, rel->relname);
}

static void
push_table_context(ErrorContextCallback *context, LogicalRepRelation *rel)
{
	context->callback = table_context;
	context->arg = rel;
	context->previous = error_context_stack;
	error_context_stack = context;
}

/* The target must be the table the caller means. */
static void
check_target(Relation rel, Oid relid)
{
	if (RelationGetRelid(rel) != relid)
		ereport(ERROR,
				errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				errmsg("table \"%s\" is not the one that was to be copied",
					   RelationGetRelationName(rel)),
				errdetail("A table was renamed meanwhile."));
}

/*
 * The FROM clause.  Children of a plain table are tables of their own in the
 * publication; those of a partitioned one are what it consists of.
 */
static void
append_source(StringInfo sql, RemoteTable *remote, const char *sample)
{
	const char *word = " WHERE (";
	ListCell   *lc;

	appendStringInfo(sql, " FROM %s%s.%s%s",
					 remote->relkind == RELKIND_RELATION ? "ONLY " : "",
					 publisher_identifier(remote->rel.nspname),
					 publisher_identifier(remote->rel.relname), sample);
	foreach(lc, remote->row_filters)
	{
		appendStringInfo(sql, "%s(%s)", word, (char *) lfirst(lc));
		word = " OR ";
	}
	if (remote->row_filters != NIL)
		appendStringInfoChar(sql, ')');
}

static void
append_columns(StringInfo sql, RemoteTable *remote)
{
	for (int i = 0; i < remote->rel.natts; i++)
		appendStringInfo(sql, "%s%s", i > 0 ? ", " : "",
						 publisher_identifier(remote->rel.attnames[i]));
}

/*
 * COPY of a table is quicker than that of a query, but knows no filter, no
 * partitioned table and no sample.
 */
static void
append_copy(StringInfo sql, RemoteTable *remote, const char *sample)
{
	if (remote->relkind != RELKIND_RELATION ||
		remote->row_filters != NIL || *sample != '\0')
	{
		appendStringInfoString(sql, "COPY (SELECT ");
		append_columns(sql, remote);
		append_source(sql, remote, sample);
		appendStringInfoString(sql, ") TO STDOUT");
	}
	else
	{
		appendStringInfo(sql, "COPY %s.%s (",
						 publisher_identifier(remote->rel.nspname),
						 publisher_identifier(remote->rel.relname));
		append_columns(sql, remote);
		appendStringInfoString(sql, ") TO STDOUT");
	}
	if (remote->binary)
		appendStringInfoString(sql, " WITH (FORMAT binary)");
}

static void
choose_format(Publisher *pub, RemoteTable *remote)
{
	remote->binary = compat_copies_binary(MySubscription) &&
		publisher_version(pub) >= 160000;
}

void
copy_append_command(StringInfo sql, Publisher *pub, RemoteTable *remote)
{
	choose_format(pub, remote);
	if (remote->rel.natts == 0)
	{
		appendStringInfoString(sql, "SELECT pg_catalog.count(*)");
		append_source(sql, remote, "");
	}
	else
		append_copy(sql, remote, "");
}

/* Fetch the next piece; false at the end, which the publisher confirmed. */
static bool
next_piece(void)
{
	if (source.ended)
		return false;
	source.taken = 0;
	source.length = publisher_copy_data(source.pub, &source.piece);
	if (source.length == 0)
	{
		source.ended = true;
		return false;
	}
	if (source.progress != NULL)
		source.progress(source.length);
	return true;
}

/*
 * The callback of COPY FROM.  A piece is a row: small ones are gathered until
 * the buffer is full, which makes a good tenth less work of them than handing
 * over each, and large ones are handed over in parts.  Less than 'minread' is
 * returned only at the end.
 */
static int
read_source(void *outbuf, int minread, int maxread)
{
	int			filled = 0;

	while (filled < maxread)
	{
		int			len;

		if (source.taken == source.length && !next_piece())
			break;
		len = Min(source.length - source.taken, maxread - filled);
		memcpy((char *) outbuf + filled, source.piece + source.taken, len);
		source.taken += len;
		filled += len;
	}
	return filled;
}

/*
 * COPY FROM ends at a line "\." as well as at the end of the data.  No
 * publisher sends one, so that what follows it, in COPY's buffer (there is
 * but one, as no encoding is converted) or still to come, would be rows we
 * missed.  In binary format it sees to that itself.
 */
static void
finish_source(CopyFromState cstate, RemoteTable *remote)
{
	if ((!remote->binary && cstate->input_buf_index < cstate->raw_buf_len) ||
		source.taken < source.length || next_piece())
		ereport(ERROR,
				errcode(ERRCODE_PROTOCOL_VIOLATION),
				errmsg("the publisher sent data after the end of the copy of "
					   "table \"%s.%s\"",
					   remote->rel.nspname, remote->rel.relname));
	Assert(source.ended);
}

static int64
copy_rows(Publisher *pub, RemoteTable *remote, Relation rel,
		  void (*progress) (int64 bytes))
{
	ParseState *pstate = make_parsestate(NULL);
	List	   *columns = NIL;
	String	   *encoding;
	List	   *options;
	CopyFromState cstate;
	int64		rows;

	for (int i = 0; i < remote->rel.natts; i++)
		columns = lappend(columns, makeString(remote->rel.attnames[i]));

	/* The publisher's session converts to the encoding of our database. */
	encoding = makeString(pstrdup(GetDatabaseEncodingName()));
	options = list_make1(makeDefElem("encoding", (Node *) encoding, -1));
	if (remote->binary)
		options = lappend(options,
						  makeDefElem("format",
									  (Node *) makeString(pstrdup("binary")),
									  -1));
	(void) addRangeTableEntryForRelation(pstate, rel, RowExclusiveLock,
										 NULL, false, false);

	publisher_next_copy(pub);
	memset(&source, 0, sizeof(source));
	source.pub = pub;
	source.progress = progress;

	cstate = BeginCopyFrom(pstate, rel, NULL, NULL, false, read_source,
						   columns, options);
	rows = (int64) CopyFrom(cstate);
	finish_source(cstate, remote);
	EndCopyFrom(cstate);

	free_parsestate(pstate);
	return rows;
}

/*
 * No column is published, but each row counts: the apply worker would insert
 * one of defaults.
 */
static int64
copy_row_count(Publisher *pub, RemoteTable *remote, Relation rel)
{
	StringInfoData sql;
	PublisherResult *res;
	char	   *nspname;
	Oid			type = INT8OID;
	Datum		count;
	int			rc;

	res = publisher_next_rows(pub);
	if (res->nrows != 1 || res->ncols != 1)
		ereport(ERROR,
				errcode(ERRCODE_PROTOCOL_VIOLATION),
				errmsg("unexpected answer about the number of rows from the publisher"));
	count = DirectFunctionCall1(int8in,
								CStringGetDatum(publisher_text(res, 0, 0)));
	if (DatumGetInt64(count) <= 0)
		return 0;

	nspname = get_namespace_name(RelationGetNamespace(rel));
	initStringInfo(&sql);
	appendStringInfo(&sql,
					 "INSERT INTO %s"
					 " SELECT FROM pg_catalog.generate_series(1, $1)",
					 quote_qualified_identifier(nspname,
												RelationGetRelationName(rel)));
	SPI_connect();
	rc = SPI_execute_with_args(sql.data, 1, &type, &count, NULL, false, 0);
	if (rc != SPI_OK_INSERT)
		elog(ERROR, "SPI_execute_with_args failed: %s",
			 SPI_result_code_string(rc));
	SPI_finish();
	return DatumGetInt64(count);
}

/* The blocks that its rows are in, its partitions' included. */
static double
count_blocks(Publisher *pub, RemoteTable *remote)
{
	PublisherResult *res;

	res = publisher_query(pub,
						  psprintf(remote->relkind == RELKIND_PARTITIONED_TABLE ?
								   "SELECT pg_catalog.sum(pg_catalog.pg_relation_size(relid))"
								   " / pg_catalog.current_setting('block_size')::pg_catalog.int4"
								   " FROM pg_catalog.pg_partition_tree(%u) WHERE isleaf" :
								   "SELECT pg_catalog.pg_relation_size(%u)"
								   " / pg_catalog.current_setting('block_size')::pg_catalog.int4",
								   remote->rel.remoteid));
	return res->nrows == 1 && publisher_value(res, 0, 0) != NULL ?
		strtod(publisher_value(res, 0, 0), NULL) : 0;
}

/*
 * The command for a sample, and what part of the table that is.  Ranges of
 * blocks at equal distances are exact where rows are spread evenly, or change
 * slowly; before 14 they would be sequential scans, and a partitioned table has
 * no blocks of its own.
 */
static char *
sample_command(Publisher *pub, RemoteTable *remote, double blocks,
			   double *fraction)
{
	StringInfoData sql;
	int64		range = SAMPLE_BLOCKS / SAMPLE_RANGES;

	initStringInfo(&sql);
	*fraction = 1;
	if (blocks <= SAMPLE_BLOCKS)
	{
		append_copy(&sql, remote, "");
		return sql.data;
	}
	if (publisher_version(pub) < 140000 ||
		remote->relkind != RELKIND_RELATION)
	{
		*fraction = RANDOM_BLOCKS / (blocks + RANDOM_BLOCKS);
		append_copy(&sql, remote,
					psprintf(" TABLESAMPLE SYSTEM (%.17g)", 100 * *fraction));
		return sql.data;
	}
	*fraction = range * SAMPLE_RANGES / blocks;
	appendStringInfoString(&sql, "COPY (");
	for (int i = 0; i < SAMPLE_RANGES; i++)
	{
		int64		first = blocks / SAMPLE_RANGES * (i + 0.5) - range / 2.0;

		appendStringInfoString(&sql, i > 0 ? " UNION ALL SELECT " : "SELECT ");
		append_columns(&sql, remote);
		append_source(&sql, remote, "");
		appendStringInfo(&sql,
						 "%s ctid >= '(" INT64_FORMAT ",0)'"
						 " AND ctid < '(" INT64_FORMAT ",0)'",
						 remote->row_filters == NIL ? " WHERE" : " AND",
						 first, first + range);
	}
	appendStringInfo(&sql, ") TO STDOUT%s",
					 remote->binary ? " WITH (FORMAT binary)" : "");
	return sql.data;
}

/*
 * COPY FROM throws at its beginning if a type has no binary form here, and so
 * does the publisher if it has none there; a sample would have the publisher
 * come first.
 */
static void
check_binary(RemoteTable *remote, Oid relid)
{
	for (int i = 0; i < remote->rel.natts; i++)
	{
		AttrNumber	attnum = get_attnum(relid, remote->rel.attnames[i]);
		Oid			function;
		Oid			param;

		/* That a column is missing is said later. */
		if (attnum != InvalidAttrNumber)
			getTypeBinaryInputInfo(get_atttype(relid, attnum), &function,
								   &param);
	}
}

void
copy_estimate(Publisher *pub, RemoteTable *remote, Oid relid,
			  int64 *bytes, int64 *tuples)
{
	double		blocks;
	double		fraction;
	int64		sampled_bytes = 0;
	int64		sampled_tuples = 0;
	char	   *piece;
	int			len;

	*bytes = *tuples = -1;
	if ((remote->relkind != RELKIND_RELATION &&
		 remote->relkind != RELKIND_PARTITIONED_TABLE) ||
		remote->rel.natts == 0 ||
		(blocks = count_blocks(pub, remote)) < 1 ||
		remote->bytes / (blocks * BLCKSZ) > MOST_OUT_OF_LINE)
		return;
	choose_format(pub, remote);
	if (remote->binary)
		check_binary(remote, relid);
	publisher_begin(pub, sample_command(pub, remote, blocks, &fraction));
	publisher_next_copy(pub);
	while ((len = publisher_copy_data(pub, &piece)) > 0)
	{
		CHECK_FOR_INTERRUPTS();
		sampled_bytes += len;
		sampled_tuples++;
	}
	publisher_end(pub);
	if (remote->binary)
		sampled_tuples -= 2;	/* head and end */
	if (sampled_tuples > 0)
	{
		*bytes = sampled_bytes / fraction;
		*tuples = sampled_tuples / fraction;
	}
}

int64
copy_table(Publisher *pub, RemoteTable *remote, Oid relid,
		   void (*progress) (int64 bytes))
{
	ErrorContextCallback context;
	LogicalRepRelMapEntry *entry;
	TableOwner	owner;
	int64		rows;

	push_table_context(&context, &remote->rel);
	table_owner_become(&owner, relid);
	/* Finding the local table by the map raises what the server raises. */
	logicalrep_relmap_update(&remote->rel);
	entry = target_open(remote->rel.remoteid, RowExclusiveLock);
	check_target(entry->localrel, relid);
	/* COPY FROM itself checks neither privileges nor row level security. */
	apply_check_rights(entry->localrel, ACL_INSERT);

	/* For defaults, triggers and index expressions. */
	PushActiveSnapshot(GetTransactionSnapshot());
	if (remote->rel.natts > 0)
		rows = copy_rows(pub, remote, entry->localrel, progress);
	else
		rows = copy_row_count(pub, remote, entry->localrel);
	PopActiveSnapshot();

	table_owner_leave(&owner);
	logicalrep_rel_close(entry, NoLock);

	/* The catch-up may follow in this transaction, and must see the rows. */
	CommandCounterIncrement();

	error_context_stack = context.previous;
	return rows;
}
