/*-------------------------------------------------------------------------
 *
 * copy.c
 *	  Copies one table's rows from the publisher.
 *
 * First a table is described: one query reads its identity, size and
 * columns.  Column lists and row filters are asked for with a second one,
 * sent only where the first saw a reason to: pg_get_publication_tables() goes
 * through all the tables of a publication, and with a thousand of them takes
 * longer than the copy of a small one.
 *
 * Then the rows are copied.  The publisher runs COPY TO STDOUT, in text format
 * if not both sides can do with the binary one, and our own COPY FROM draws from that through a callback.  The local
 * side may take the data to be at its end when it is not, so a copy counts as
 * complete only after the publisher has reported the end of its command.
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

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/objectaddress.h"
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
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "copy.h"
#include "table_owner.h"

/* The columns of the two queries' results. */
enum
{
	TABLE_OID,
	TABLE_REPLIDENT,
	TABLE_KIND,
	TABLE_BYTES,
	TABLE_RESTRICTED,			/* the publications have to be asked */
	COLUMN_NUMBER,				/* null if the table has no columns */
	COLUMN_NAME,
	COLUMN_TYPE,
	COLUMN_IN_KEY,
	COLUMN_GENERATED,
	DESCRIBE_COLUMNS
};

enum
{
	PUBLICATION_ATTRS,			/* int2vector as text; null: no list */
	PUBLICATION_FILTER,
	PUBLICATION_COLUMNS
};

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

/*
 * What the publisher sends is checked before it is used: it sizes arrays, and
 * indexes them.
 */
pg_noreturn static void
invalid_description(const char *what)
{
	ereport(ERROR,
			errcode(ERRCODE_PROTOCOL_VIOLATION),
			errmsg("the publisher's description of a table is not valid"),
			errdetail_internal("It has an unexpected %s.", what));
}

static uint64
parse_number(const char *value, uint64 min, uint64 max, const char *what)
{
	char	   *end;
	uint64		number;

	if (value == NULL || *value < '0' || *value > '9')
		invalid_description(what);
	errno = 0;
	number = strtou64(value, &end, 10);
	if (errno != 0 || *end != '\0' || number < min || number > max)
		invalid_description(what);
	return number;
}

static char
parse_char(const char *value, const char *allowed, const char *what)
{
	if (value == NULL || value[0] == '\0' || value[1] != '\0' ||
		strchr(allowed, value[0]) == NULL)
		invalid_description(what);
	return value[0];
}

static bool
is_true(const char *value)
{
	return value != NULL && value[0] == 't';
}

/* The text of an int2vector, as a set of attribute numbers. */
static Bitmapset *
parse_attrs(const char *value)
{
	Bitmapset  *attrs = NULL;
	char	   *copy = pstrdup(value);
	char	   *state;

	for (char *word = strtok_r(copy, " ", &state); word != NULL;
		 word = strtok_r(NULL, " ", &state))
		attrs = bms_add_member(attrs,
							   (int) parse_number(word, 1,
												  MaxTupleAttributeNumber,
												  "column list"));
	pfree(copy);
	return attrs;
}

/*
 * The table and, a row each, its columns.  What older publishers do not have
 * is replaced by a constant.  OFFSET 0 keeps the subquery as it is, so that
 * the size is computed once and not for every column.
 *
 * Generated columns are published by 18 and later only, where they are
 * stored and a publication asks for them; so they are a reason there to ask
 * the publications.
 */
static char *
describe_query(Publisher *pub, LogicalRepRelation *rel)
{
	int			version = publisher_version(pub);
	const char *restricted = "false";
	const char *generated = "false";
	StringInfoData sql;

	if (version >= 150000)
		restricted =
			"EXISTS (SELECT FROM pg_catalog.pg_publication_rel r"
			" WHERE r.prrelid = c.oid AND"
			" (r.prattrs IS NOT NULL OR r.prqual IS NOT NULL))";
	if (version >= 120000)
		generated = "a.attgenerated <> ''";

	initStringInfo(&sql);
	appendStringInfo(&sql,
					 "SELECT t.oid, t.relreplident, t.relkind, t.bytes,"
					 " t.restricted, a.attnum, a.attname, a.atttypid,"
					 " a.attnum = ANY (t.keys), %s"
					 " FROM (SELECT c.oid, c.relreplident, c.relkind,"
					 " %s AS restricted,"
					 " (SELECT i.%s FROM pg_catalog.pg_index i"
					 " WHERE i.indexrelid ="
					 " pg_catalog.pg_get_replica_identity_index(c.oid))"
					 " AS keys,",
					 generated, restricted,
					 version >= 110000 ?
					 "indkey[0:i.indnkeyatts - 1]" : "indkey");
	if (version >= 120000)
		appendStringInfoString(&sql,
							   " CASE c.relkind WHEN 'p' THEN"
							   " (SELECT pg_catalog.sum("
							   "pg_catalog.pg_table_size(l.relid))"
							   " FROM pg_catalog.pg_partition_tree(c.oid) l"
							   " WHERE l.isleaf)::pg_catalog.int8 ELSE");
	appendStringInfo(&sql,
					 " pg_catalog.pg_table_size(c.oid)%s AS bytes"
					 " FROM pg_catalog.pg_class c"
					 " JOIN pg_catalog.pg_namespace n"
					 " ON n.oid = c.relnamespace"
					 " WHERE n.nspname = %s AND c.relname = %s OFFSET 0) t"
					 " LEFT JOIN pg_catalog.pg_attribute a"
					 " ON a.attrelid = t.oid AND a.attnum > 0"
					 " AND NOT a.attisdropped%s"
					 " ORDER BY a.attnum",
					 version >= 120000 ? " END" : "",
					 publisher_literal(pub, rel->nspname),
					 publisher_literal(pub, rel->relname),
					 version >= 120000 && version < 180000 ?
					 " AND a.attgenerated = ''" : "");
	return sql.data;
}

/* Column lists and filters of the table, a row for each publication. */
static char *
publications_query(Publisher *pub, List *publications, Oid remoteid)
{
	StringInfoData sql;
	const char *separator = "";
	ListCell   *lc;

	initStringInfo(&sql);
	appendStringInfo(&sql,
					 "SELECT g.attrs, pg_catalog.pg_get_expr(g.qual, g.relid)"
					 " FROM pg_catalog.pg_publication p,"
					 " pg_catalog.pg_get_publication_tables(p.pubname) g"
					 " WHERE g.relid = %u AND p.pubname IN (",
					 remoteid);
	foreach(lc, publications)
	{
		appendStringInfoString(&sql, separator);
		appendStringInfoString(&sql,
							   publisher_literal(pub, strVal(lfirst(lc))));
		separator = ", ";
	}
	appendStringInfoChar(&sql, ')');
	return sql.data;
}

static bool
has_filter(RemoteTable *remote, const char *filter)
{
	ListCell   *lc;

	foreach(lc, remote->row_filters)
	{
		if (strcmp((char *) lfirst(lc), filter) == 0)
			return true;
	}
	return false;
}

/*
 * Reduce 'published' to the columns that the publications send, and add
 * their filters to the table.
 *
 * Lists are compared by what they let through: one that names every column
 * is the same as none.  A table that is in none of the publications, not any
 * longer or through a partition only, is copied whole, as the server does it.
 */
static Bitmapset *
read_publications(Publisher *pub, List *publications, RemoteTable *remote,
				  Bitmapset *all, Bitmapset *plain)
{
	PublisherResult *res;
	Bitmapset  *published = plain;
	bool		all_rows = false;

	res = publisher_query(pub, publications_query(pub, publications,
												  remote->rel.remoteid));
	if (res->ncols != PUBLICATION_COLUMNS)
		invalid_description("number of values");

	for (int row = 0; row < res->nrows; row++)
	{
		char	   *attrs = publisher_value(res, row, PUBLICATION_ATTRS);
		char	   *filter = publisher_value(res, row, PUBLICATION_FILTER);
		Bitmapset  *columns = plain;

		if (attrs != NULL)
			columns = bms_intersect(parse_attrs(attrs), all);
		if (row > 0 && !bms_equal(columns, published))
			ereport(ERROR,
					errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					errmsg("publications of the subscription publish "
						   "different columns of table \"%s.%s\"",
						   remote->rel.nspname, remote->rel.relname),
					errhint("Give the table the same column list in all of "
							"them."));
		published = columns;

		if (filter == NULL)
			all_rows = true;
		else if (!has_filter(remote, filter))
			remote->row_filters = lappend(remote->row_filters, filter);
	}
	if (all_rows)
		remote->row_filters = NIL;
	return published;
}

/* What the first row says of the table itself. */
static void
read_table(PublisherResult *res, RemoteTable *remote)
{
	const char *bytes = publisher_value(res, 0, TABLE_BYTES);

	remote->rel.remoteid = parse_number(publisher_value(res, 0, TABLE_OID),
										1, OID_MAX, "OID");
	remote->rel.replident =
		parse_char(publisher_value(res, 0, TABLE_REPLIDENT), "dnfi",
				   "replica identity");
	remote->relkind = parse_char(publisher_value(res, 0, TABLE_KIND),
								 "rpvmf", "kind of relation");
	remote->rel.relkind = remote->relkind;
	remote->bytes = bytes == NULL ? -1 :
		(int64) parse_number(bytes, 0, PG_INT64_MAX, "size");
}

/* The numbers of its columns, with or without the generated ones. */
static Bitmapset *
column_numbers(PublisherResult *res, bool with_generated)
{
	Bitmapset  *numbers = NULL;

	if (publisher_value(res, 0, COLUMN_NUMBER) == NULL)
		return NULL;
	for (int row = 0; row < res->nrows; row++)
	{
		int			number;

		number = parse_number(publisher_value(res, row, COLUMN_NUMBER),
							  1, MaxTupleAttributeNumber, "column number");
		if (with_generated ||
			!is_true(publisher_value(res, row, COLUMN_GENERATED)))
			numbers = bms_add_member(numbers, number);
	}
	return numbers;
}

/* Fill in the columns that are published. */
static void
read_columns(PublisherResult *res, Bitmapset *published, RemoteTable *remote)
{
	LogicalRepRelation *rel = &remote->rel;
	bool		generated = false;

	rel->attnames = palloc0(res->nrows * sizeof(char *));
	rel->atttyps = palloc0(res->nrows * sizeof(Oid));
	if (bms_is_empty(published))
		return;

	for (int row = 0; row < res->nrows; row++)
	{
		int			number;
		char	   *name = publisher_value(res, row, COLUMN_NAME);

		number = parse_number(publisher_value(res, row, COLUMN_NUMBER),
							  1, MaxTupleAttributeNumber, "column number");
		if (!bms_is_member(number, published))
			continue;
		if (name == NULL)
			invalid_description("column name");
		if (rel->replident == REPLICA_IDENTITY_FULL ||
			is_true(publisher_value(res, row, COLUMN_IN_KEY)))
			rel->attkeys = bms_add_member(rel->attkeys, rel->natts);
		if (is_true(publisher_value(res, row, COLUMN_GENERATED)))
			generated = true;
		rel->attnames[rel->natts] = name;
		rel->atttyps[rel->natts] =
			parse_number(publisher_value(res, row, COLUMN_TYPE),
						 1, OID_MAX, "type");
		rel->natts++;
	}

	/* COPY does not name generated columns, a query does. */
	if (generated && remote->row_filters == NIL)
		remote->row_filters = list_make1(pstrdup("true"));
}

RemoteTable *
copy_describe(Publisher *pub, List *publications,
			  const char *nspname, const char *relname)
{
	RemoteTable *remote = palloc0(sizeof(RemoteTable));
	PublisherResult *res;
	ErrorContextCallback context;
	Bitmapset  *all;
	Bitmapset  *published;

	remote->rel.nspname = pstrdup(nspname);
	remote->rel.relname = pstrdup(relname);
	push_table_context(&context, &remote->rel);

	res = publisher_query(pub, describe_query(pub, &remote->rel));
	if (res->nrows == 0)
		ereport(ERROR,
				errcode(ERRCODE_UNDEFINED_OBJECT),
				errmsg("table \"%s.%s\" does not exist on the publisher",
					   nspname, relname));
	if (res->ncols != DESCRIBE_COLUMNS ||
		res->nrows > MaxTupleAttributeNumber)
		invalid_description("number of columns");

	read_table(res, remote);
	all = column_numbers(res, true);
	published = column_numbers(res, false);
	if (publications != NIL &&
		(is_true(publisher_value(res, 0, TABLE_RESTRICTED)) ||
		 !bms_equal(all, published)))
		published = read_publications(pub, publications, remote,
									  all, published);
	read_columns(res, published, remote);

	error_context_stack = context.previous;
	return remote;
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
 * It must be open to the current user as well: COPY FROM itself checks neither
 * privileges nor row level security.
 */
static void
check_rights(Relation rel)
{
	Oid			relid = RelationGetRelid(rel);
	AclResult	aclresult;

	aclresult = pg_class_aclcheck(relid, GetUserId(), ACL_INSERT);
	if (aclresult != ACLCHECK_OK)
		aclcheck_error(aclresult,
					   get_relkind_objtype(rel->rd_rel->relkind),
					   RelationGetRelationName(rel));

	if (check_enable_rls(relid, InvalidOid, false) == RLS_ENABLED)
		ereport(ERROR,
				errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				errmsg("row-level security keeps user \"%s\" from copying "
					   "into table \"%s\"",
					   GetUserNameFromId(GetUserId(), true),
					   RelationGetRelationName(rel)),
				errhint("The owner of the subscription needs to be allowed "
						"to bypass it."));
}

/*
 * The FROM clause.  Children of a plain table are tables of their own in the
 * publication; those of a partitioned one are what it consists of.
 */
static void
append_source(StringInfo sql, RemoteTable *remote)
{
	const char *word = " WHERE ";
	ListCell   *lc;

	appendStringInfo(sql, " FROM %s%s.%s",
					 remote->relkind == RELKIND_RELATION ? "ONLY " : "",
					 publisher_identifier(remote->rel.nspname),
					 publisher_identifier(remote->rel.relname));
	foreach(lc, remote->row_filters)
	{
		appendStringInfo(sql, "%s(%s)", word, (char *) lfirst(lc));
		word = " OR ";
	}
}

/*
 * COPY of a table is quicker than that of a query, but knows no filter and
 * no partitioned table.
 */
static char *
copy_command(RemoteTable *remote)
{
	bool		is_query = remote->relkind != RELKIND_RELATION ||
		remote->row_filters != NIL;
	StringInfoData columns;
	StringInfoData sql;

	initStringInfo(&columns);
	for (int i = 0; i < remote->rel.natts; i++)
		appendStringInfo(&columns, "%s%s", i > 0 ? ", " : "",
						 publisher_identifier(remote->rel.attnames[i]));

	initStringInfo(&sql);
	if (is_query)
	{
		appendStringInfo(&sql, "COPY (SELECT %s", columns.data);
		append_source(&sql, remote);
		appendStringInfoString(&sql, ") TO STDOUT");
	}
	else
		appendStringInfo(&sql, "COPY %s.%s (%s) TO STDOUT",
						 publisher_identifier(remote->rel.nspname),
						 publisher_identifier(remote->rel.relname),
						 columns.data);
	if (remote->binary)
		appendStringInfoString(&sql, " WITH (FORMAT binary)");
	pfree(columns.data);
	return sql.data;
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
	char	   *command = copy_command(remote);

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

	publisher_begin_copy(pub, command);
	memset(&source, 0, sizeof(source));
	source.pub = pub;
	source.progress = progress;

	cstate = BeginCopyFrom(pstate, rel, NULL, NULL, false, read_source,
						   columns, options);
	rows = (int64) CopyFrom(cstate);
	finish_source(cstate, remote);
	EndCopyFrom(cstate);

	free_parsestate(pstate);
	pfree(command);
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

	initStringInfo(&sql);
	appendStringInfoString(&sql, "SELECT pg_catalog.count(*)");
	append_source(&sql, remote);
	res = publisher_query(pub, sql.data);
	if (res->nrows != 1 || res->ncols != 1)
		invalid_description("number of rows");
	count = Int64GetDatum((int64) parse_number(publisher_value(res, 0, 0),
											   0, PG_INT64_MAX,
											   "number of rows"));
	if (DatumGetInt64(count) == 0)
		return 0;

	nspname = get_namespace_name(RelationGetNamespace(rel));
	resetStringInfo(&sql);
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

int64
copy_table(Publisher *pub, RemoteTable *remote, Oid relid,
		   void (*progress) (int64 bytes))
{
	ErrorContextCallback context;
	LogicalRepRelMapEntry *entry;
	TableOwner	owner;
	int64		rows;

	push_table_context(&context, &remote->rel);
	remote->binary = compat_copies_binary(MySubscription) &&
		publisher_version(pub) >= 160000;

	/* Finding the local table by the map raises what the server raises. */
	logicalrep_relmap_update(&remote->rel);
	entry = logicalrep_rel_open(remote->rel.remoteid, RowExclusiveLock);
	check_target(entry->localrel, relid);
	table_owner_become(&owner, entry->localrel->rd_rel->relowner);
	check_rights(entry->localrel);

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
