/*-------------------------------------------------------------------------
 *
 * publisher.c
 *	  Connections to the publisher.
 *
 * libpq is used without ever blocking inside it: the connection is made with
 * the polling interface, queries are sent and their results awaited with the
 * process latch and the socket in one wait.  The one exception is closing.
 *
 * A session is set up alike whatever role or database settings the publisher
 * has: dates, intervals, floats, encoding and search_path decide what text a
 * value becomes, and the timeouts of a role would break a long copy.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/publisher.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "libpq-fe.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "replication/walreceiver.h"
#include "storage/fd.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "publisher.h"
#include "testing.h"

struct Publisher
{
	PGconn	   *conn;
	PublisherIdentity identity;
	TimestampTz deadline;		/* every wait ends then; 0: never */
	char	   *copy_buffer;	/* libpq's, freed before the next piece */
};

/*
 * Runs in every session.  wal_sender_timeout = 0: a change may take longer to
 * apply than any timeout, and we cannot answer while a table's trigger or a
 * sequential scan runs; a subscriber that is gone is found by TCP keepalives.
 */
static const char *const session_settings =
	"SET search_path = '';"
	"SET datestyle = ISO;"
	"SET intervalstyle = postgres;"
	"SET extra_float_digits = 3;"
	"SET bytea_output = hex;"
	"SET statement_timeout = 0;"
	"SET lock_timeout = 0;"
	"SET idle_in_transaction_session_timeout = 0;"
	"SET default_transaction_read_only = off;"
	"SET default_transaction_deferrable = off;"
	"SET wal_sender_timeout = 0;"
	"SET tcp_keepalives_idle = 60;"
	"SET tcp_keepalives_interval = 10;"
	"SET tcp_keepalives_count = 6";

/* What an error says we were about, if it was nothing special. */
static const char *const running = "running a command there";

/* What sessions of later servers know as well. */
static const char *const session_settings_14 = "SET idle_session_timeout = 0";
static const char *const session_settings_17 = "SET transaction_timeout = 0";

/*
 * libpq's message without the line end; its texts name host, user and
 * database at most, never a password.
 */
static char *
connection_message(Publisher *pub)
{
	char	   *line = pchomp(PQerrorMessage(pub->conn));
	char	   *before = NULL;
	char	   *next;
	StringInfoData buf;

	/* What it has met with encryption and without is said twice. */
	initStringInfo(&buf);
	for (; line != NULL; before = line, line = next)
	{
		next = strchr(line, '\n');
		if (next != NULL)
			*next++ = '\0';
		if (before == NULL || strcmp(line, before) != 0)
			appendStringInfo(&buf, "%s%s", before ? "\n" : "", line);
	}
	return buf.data;
}

pg_noreturn static void
connection_lost(Publisher *pub, const char *doing)
{
	ereport(ERROR,
			errcode(ERRCODE_CONNECTION_FAILURE),
			errmsg("connection to the publisher was lost while %s", doing),
			errdetail_internal("%s", connection_message(pub)),
			errhint("Check that the publisher runs and can be reached; "
					"this is tried again by itself."));
}

/* Report a failed command with what the publisher said of it. */
static int
result_sqlstate(const PGresult *res)
{
	const char *state = PQresultErrorField(res, PG_DIAG_SQLSTATE);

	if (state == NULL || strlen(state) != 5)
		return ERRCODE_CONNECTION_FAILURE;
	return MAKE_SQLSTATE(state[0], state[1], state[2], state[3], state[4]);
}

/* All that the publisher says is thrown in this file, and no interrupt is. */
bool
publisher_said(const ErrorData *edata)
{
	return edata->filename != NULL &&
		strcmp(edata->filename, "publisher.c") == 0;
}

bool
publisher_is_interrupt(const ErrorData *edata)
{
	return (edata->sqlerrcode == ERRCODE_QUERY_CANCELED ||
			edata->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN) &&
		!(publisher_said(edata) && guard_is_on("publisher_says"));
}

pg_noreturn static void
command_failed(Publisher *pub, PGresult *res)
{
	int			sqlstate = result_sqlstate(res);
	const char *primary = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);
	const char *detail = PQresultErrorField(res, PG_DIAG_MESSAGE_DETAIL);
	const char *hint = PQresultErrorField(res, PG_DIAG_MESSAGE_HINT);
	char	   *message;

	message = primary ? pstrdup(primary) : connection_message(pub);
	detail = detail ? pstrdup(detail) : NULL;
	hint = hint ? pstrdup(hint) : NULL;
	if (hint == NULL && sqlstate == ERRCODE_INSUFFICIENT_PRIVILEGE)
		hint = "Grant the right to the role that the subscription connects as.";
	PQclear(res);

	ereport(ERROR,
			errcode(sqlstate),
			errmsg("error from the publisher: %s", message),
			detail ? errdetail_internal("%s", detail) : 0,
			hint ? errhint("%s", hint) : 0);
}

/*
 * Wait for the socket or the latch, at most 'timeout_ms' (-1: no limit).
 * Returns the events.  Throws if the connection's time is over.
 */
static int
wait_for_socket(Publisher *pub, int socket_events, long timeout_ms)
{
	int			rc;

	if (pub->deadline != 0)
	{
		long		left =
		TimestampDifferenceMilliseconds(GetCurrentTimestamp(),
										pub->deadline);

		if (left <= 0)
			ereport(ERROR,
					errcode(ERRCODE_CONNECTION_FAILURE),
					errmsg("%s: it did not answer in time",
						   PQstatus(pub->conn) == CONNECTION_OK ?
						   "connection to the publisher is given up" :
						   "could not connect to the publisher"));
		timeout_ms = timeout_ms < 0 ? left : Min(timeout_ms, left);
	}
	rc = WaitLatchOrSocket(MyLatch,
						   WL_LATCH_SET | WL_EXIT_ON_PM_DEATH |
						   socket_events |
						   (timeout_ms >= 0 ? WL_TIMEOUT : 0),
						   PQsocket(pub->conn), timeout_ms,
						   compat_wait_event());
	if (rc & WL_LATCH_SET)
	{
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	return rc;
}

void
publisher_pause(long ms)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 ms, compat_wait_event());
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

/* Push out what libpq has buffered, reading meanwhile lest both sides block. */
static void
flush_output(Publisher *pub, const char *doing)
{
	for (;;)
	{
		int			rc = PQflush(pub->conn);

		if (rc < 0)
			connection_lost(pub, doing);
		if (rc == 0)
			return;
		rc = wait_for_socket(pub, WL_SOCKET_READABLE | WL_SOCKET_WRITEABLE,
							 -1);
		if ((rc & WL_SOCKET_READABLE) && !PQconsumeInput(pub->conn))
			connection_lost(pub, doing);
	}
}

pg_noreturn static void
not_what_was_asked(void)
{
	ereport(ERROR,
			errcode(ERRCODE_PROTOCOL_VIOLATION),
			errmsg("unexpected answer from the publisher"));
}

char *
publisher_value(const PublisherResult *res, int row, int col)
{
	if (row >= res->nrows || col >= res->ncols)
		not_what_was_asked();
	return res->values[row * res->ncols + col];
}

char *
publisher_text(const PublisherResult *res, int row, int col)
{
	char	   *value = publisher_value(res, row, col);

	if (value == NULL)
		not_what_was_asked();
	return value;
}

bool
publisher_is_true(const PublisherResult *res, int row, int col)
{
	return publisher_text(res, row, col)[0] == 't';
}

/* Wait until a result can be taken without blocking, and take it. */
static PGresult *
next_result(Publisher *pub, const char *doing)
{
	while (PQisBusy(pub->conn))
	{
		if ((wait_for_socket(pub, WL_SOCKET_READABLE, -1) &
			 WL_SOCKET_READABLE) &&
			!PQconsumeInput(pub->conn))
			connection_lost(pub, doing);
	}
	return PQgetResult(pub->conn);
}

void
publisher_begin(Publisher *pub, const char *sql)
{
	if (!PQsendQuery(pub->conn, sql))
		connection_lost(pub, running);
	flush_output(pub, running);
}

/*
 * Send a query, or several, and return the last result; an error's result
 * wins, and with 'rows' one with rows over those of commands.  A result that
 * begins a COPY is returned as it is.
 */
static PGresult *
run_keeping(Publisher *pub, const char *sql, bool rows)
{
	PGresult   *last = NULL;
	PGresult   *res;

	publisher_begin(pub, sql);
	while ((res = next_result(pub, running)) != NULL)
	{
		ExecStatusType status = PQresultStatus(res);

		if (last != NULL &&
			(PQresultStatus(last) == PGRES_FATAL_ERROR ||
			 (rows && PQresultStatus(last) == PGRES_TUPLES_OK &&
			  status == PGRES_COMMAND_OK)))
			PQclear(res);
		else
		{
			PQclear(last);
			last = res;
		}
		if (status == PGRES_COPY_OUT || status == PGRES_COPY_BOTH ||
			status == PGRES_COPY_IN)
			break;
		if (PQstatus(pub->conn) == CONNECTION_BAD)
			break;
	}
	if (last == NULL)
		connection_lost(pub, running);
	return last;
}

static PGresult *
run(Publisher *pub, const char *sql)
{
	return run_keeping(pub, sql, false);
}

/* Does the connection string name several hosts? */
static bool
has_several_hosts(Publisher *pub)
{
	PQconninfoOption *options = PQconninfo(pub->conn);
	bool		result = false;

	for (PQconninfoOption *o = options; o != NULL && o->keyword; o++)
		if ((strcmp(o->keyword, "host") == 0 ||
			 strcmp(o->keyword, "hostaddr") == 0) &&
			o->val != NULL && strchr(o->val, ',') != NULL)
			result = true;
	PQconninfoFree(options);
	return result;
}

/*
 * Drive libpq's connection state machine to its end.
 *
 * It goes on with the next host when the system has given up on one that does
 * not answer at all.  That may take longer than wal_receiver_timeout, which
 * would have us never get any further; so the time counts from the moment
 * that somebody has taken up the connection.
 */
static void
finish_connecting(Publisher *pub)
{
	TimestampTz started = GetCurrentTimestamp();
	bool		several_hosts = has_several_hosts(pub);
	int			events = WL_SOCKET_WRITEABLE;

	for (;;)
	{
		PostgresPollingStatusType status;
		int			rc;

		if (several_hosts && PQstatus(pub->conn) == CONNECTION_STARTED)
			started = GetCurrentTimestamp();
		if (PQstatus(pub->conn) == CONNECTION_BAD)
			status = PGRES_POLLING_FAILED;
		else
		{
			rc = wait_for_socket(pub, events, 1000);
			if (rc & (WL_SOCKET_READABLE | WL_SOCKET_WRITEABLE))
				status = PQconnectPoll(pub->conn);
			else if (wal_receiver_timeout > 0 &&
					 TimestampDifferenceExceeds(started,
												GetCurrentTimestamp(),
												wal_receiver_timeout))
				ereport(ERROR,
						errcode(ERRCODE_CONNECTION_FAILURE),
						errmsg("could not connect to the publisher: "
							   "no answer within %d ms",
							   wal_receiver_timeout));
			else
				continue;
		}

		switch (status)
		{
			case PGRES_POLLING_OK:
				return;
			case PGRES_POLLING_READING:
				events = WL_SOCKET_READABLE;
				break;
			case PGRES_POLLING_FAILED:
				ereport(ERROR,
						errcode(ERRCODE_CONNECTION_FAILURE),
						errmsg("could not connect to the publisher: %s",
							   connection_message(pub)));
				break;
			default:
				events = WL_SOCKET_WRITEABLE;
				break;
		}
	}
}

/*
 * Who the publisher is.  The timeline is that of the WAL being written now:
 * the control file lags behind after a promotion.
 */
static const char *const identity_query =
	"SELECT s.system_identifier, r.in_recovery,"
	" CASE WHEN NOT r.in_recovery THEN"
	" pg_catalog.substr(pg_catalog.pg_walfile_name("
	"pg_catalog.pg_current_wal_insert_lsn()), 1, 8)"
	" END, pg_catalog.date_part('epoch',"
	"pg_catalog.pg_postmaster_start_time())::pg_catalog.numeric"
	" * 1000000"
	" FROM pg_catalog.pg_control_system() s,"
	" pg_catalog.pg_is_in_recovery() r(in_recovery)";

static void
read_identity(Publisher *pub, const PublisherResult *res)
{
	if (res->nrows != 1)
		ereport(ERROR,
				errcode(ERRCODE_PROTOCOL_VIOLATION),
				errmsg("the publisher did not say who it is"));
	pub->identity.sysid = strtou64(publisher_text(res, 0, 0), NULL, 10);
	pub->identity.in_recovery = publisher_is_true(res, 0, 1);
	if (publisher_value(res, 0, 2) != NULL)
		pub->identity.timeline = strtoul(publisher_value(res, 0, 2), NULL, 16);
	pub->identity.started = strtoi64(publisher_text(res, 0, 3), NULL, 10);
}

/* All of it in one round trip: tens of workers may be far away. */
static void
set_up_session(Publisher *pub)
{
	StringInfoData sql;

	PQsetnonblocking(pub->conn, 1);
	initStringInfo(&sql);
	appendStringInfoString(&sql, session_settings);
	if (PQserverVersion(pub->conn) >= 140000)
		appendStringInfo(&sql, ";%s", session_settings_14);
	if (PQserverVersion(pub->conn) >= 170000)
		appendStringInfo(&sql, ";%s", session_settings_17);
	appendStringInfo(&sql, ";%s", identity_query);
	read_identity(pub, publisher_query(pub, sql.data));
}

static Publisher *
connect_to(const char *conninfo, bool replication, bool must_use_password,
		   const char *application_name, TimestampTz deadline)
{
	Publisher  *pub;
	const char *keys[12];
	const char *values[12];
	int			n = 0;

#define SET_PARAMETER(k, v) (keys[n] = (k), values[n++] = (v))
	/* What stands before dbname gives way to the connection string. */
	SET_PARAMETER("keepalives_idle", "60");
	SET_PARAMETER("keepalives_interval", "10");
	SET_PARAMETER("keepalives_count", "6");
	SET_PARAMETER("fallback_application_name", application_name);
	SET_PARAMETER("dbname", conninfo);
	if (replication)
		SET_PARAMETER("replication", "database");
	SET_PARAMETER("client_encoding", GetDatabaseEncodingName());
	SET_PARAMETER(NULL, NULL);
#undef SET_PARAMETER

	if (must_use_password)
		compat_require_password(conninfo);
	if (!AcquireExternalFD())
		ereport(ERROR,
				errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				errmsg("could not connect to the publisher: "
					   "too many open files"),
				errhint("Raise max_files_per_process and the "
						"operating system's limit on open files."));

	pub = MemoryContextAllocZero(TopMemoryContext, sizeof(Publisher));
	pub->deadline = deadline;
	pub->conn = PQconnectStartParams(keys, values, true);
	if (pub->conn == NULL)
	{
		ReleaseExternalFD();
		pfree(pub);
		ereport(ERROR,
				errcode(ERRCODE_OUT_OF_MEMORY),
				errmsg("out of memory"));
	}

	PG_TRY();
	{
		finish_connecting(pub);
		if (must_use_password && !PQconnectionUsedPassword(pub->conn))
			ereport(ERROR,
					errcode(ERRCODE_S_R_E_PROHIBITED_SQL_STATEMENT_ATTEMPTED),
					errmsg("the publisher has not asked for a password, which subscriptions of users who are not superusers require"),
					errhint("Change the authentication method on the publisher, or set password_required = false for the subscription."));
		set_up_session(pub);
	}
	PG_CATCH();
	{
		publisher_disconnect(pub);
		PG_RE_THROW();
	}
	PG_END_TRY();
	return pub;
}

Publisher *
publisher_connect(const char *conninfo, bool replication,
				  bool must_use_password, const char *application_name)
{
	return connect_to(conninfo, replication, must_use_password,
					  application_name, 0);
}

Publisher *
publisher_connect_until(const char *conninfo, bool must_use_password,
						const char *application_name, TimestampTz deadline)
{
	return connect_to(conninfo, false, must_use_password, application_name,
					  deadline);
}

char *
publisher_address(const char *conninfo)
{
	PQconninfoOption *options = PQconninfoParse(conninfo, NULL);
	static const char *const shown[] = {
		"service", "host", "hostaddr", "port", "dbname"
	};
	StringInfoData buf;

	initStringInfo(&buf);
	for (int i = 0; options != NULL && i < lengthof(shown); i++)
		for (PQconninfoOption *option = options; option->keyword; option++)
			if (strcmp(option->keyword, shown[i]) == 0 &&
				option->val != NULL && option->val[0] != '\0')
				appendStringInfo(&buf, "%s%s=%s", buf.len > 0 ? " " : "",
								 option->keyword, option->val);
	PQconninfoFree(options);
	return buf.data;
}

void
publisher_disconnect(Publisher *pub)
{
	if (pub == NULL)
		return;
	if (pub->copy_buffer != NULL)
		PQfreemem(pub->copy_buffer);
	PQfinish(pub->conn);
	ReleaseExternalFD();
	pfree(pub);
}

void
publisher_check_idle(Publisher *pub)
{
	/* The first finds what the publisher said, the second that it has gone. */
	if (!PQconsumeInput(pub->conn) || !PQconsumeInput(pub->conn))
		connection_lost(pub, "receiving changes");
}

bool
publisher_is_broken(Publisher *pub)
{
	return PQstatus(pub->conn) == CONNECTION_BAD;
}

bool
publisher_is_idle(Publisher *pub)
{
	return PQtransactionStatus(pub->conn) == PQTRANS_IDLE;
}

const PublisherIdentity *
publisher_identity(Publisher *pub)
{
	return &pub->identity;
}

int
publisher_version(Publisher *pub)
{
	return PQserverVersion(pub->conn);
}

char *
publisher_role(Publisher *pub)
{
	return pstrdup(quote_identifier(PQuser(pub->conn)));
}

/* The rows of a result of libpq's, which is freed. */
static PublisherResult *
take_rows(PGresult *res)
{
	PublisherResult *result;

	PG_TRY();
	{
		result = palloc(sizeof(PublisherResult));
		result->nrows = PQntuples(res);
		result->ncols = PQnfields(res);
		result->values = palloc_extended((Size) result->nrows *
										 result->ncols * sizeof(char *) + 1,
										 MCXT_ALLOC_HUGE);
		for (int row = 0; row < result->nrows; row++)
			for (int col = 0; col < result->ncols; col++)
				result->values[row * result->ncols + col] =
					PQgetisnull(res, row, col) ? NULL :
					pstrdup(PQgetvalue(res, row, col));
	}
	PG_FINALLY();
	{
		PQclear(res);
	}
	PG_END_TRY();
	return result;
}

PublisherResult *
publisher_query(Publisher *pub, const char *sql)
{
	return publisher_query_unless(pub, sql, 0);
}

PublisherResult *
publisher_query_unless(Publisher *pub, const char *sql, int sqlstate)
{
	PGresult   *res = run_keeping(pub, sql, true);

	if (PQresultStatus(res) != PGRES_TUPLES_OK)
	{
		if (sqlstate == 0 || result_sqlstate(res) != sqlstate)
			command_failed(pub, res);
		PQclear(res);
		return NULL;
	}

	return take_rows(res);
}

/* SQLSTATE and message of a failed result; throws if the link has failed. */
static int
failure(Publisher *pub, PGresult *res, char **message)
{
	const char *primary = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);
	int			sqlstate = result_sqlstate(res);

	if (PQstatus(pub->conn) == CONNECTION_BAD)
		command_failed(pub, res);
	*message = primary ? pstrdup(primary) : connection_message(pub);
	PQclear(res);
	return sqlstate;
}

/*
 * Run a command that may fail: the SQLSTATE and the publisher's message, 0 if
 * its status is one of the two given.
 */
static int
try_run(Publisher *pub, const char *sql, ExecStatusType good,
		ExecStatusType also_good, char **message)
{
	PGresult   *res = run(pub, sql);
	ExecStatusType status = PQresultStatus(res);

	*message = NULL;
	if (status != good && status != also_good)
		return failure(pub, res, message);
	PQclear(res);
	return 0;
}

int
publisher_try_command(Publisher *pub, const char *sql, char **message)
{
	return try_run(pub, sql, PGRES_COMMAND_OK, PGRES_TUPLES_OK, message);
}

void
publisher_command(Publisher *pub, const char *sql)
{
	PGresult   *res = run(pub, sql);
	ExecStatusType status = PQresultStatus(res);

	if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
		command_failed(pub, res);
	PQclear(res);
}

/* Take all that is left; the first error among it, or null. */
static PGresult *
take_rest(Publisher *pub)
{
	PGresult   *error = NULL;
	PGresult   *res;

	while ((res = next_result(pub, running)) != NULL)
	{
		ExecStatusType status = PQresultStatus(res);

		if (status == PGRES_COPY_OUT || status == PGRES_COPY_BOTH ||
			status == PGRES_COPY_IN)
		{
			PQclear(res);
			ereport(ERROR,
					errcode(ERRCODE_PROTOCOL_VIOLATION),
					errmsg("the publisher began a copy that was not asked for"));
		}
		if (error == NULL && status != PGRES_COMMAND_OK &&
			status != PGRES_TUPLES_OK)
			error = res;
		else
			PQclear(res);
		if (PQstatus(pub->conn) == CONNECTION_BAD)
			break;
	}
	return error;
}

/*
 * The next result with this status, over those of commands; or the error that
 * came instead, after which nothing is left to take.
 */
static PGresult *
next_of_kind(Publisher *pub, ExecStatusType wanted)
{
	for (;;)
	{
		PGresult   *res = next_result(pub, running);
		ExecStatusType status = PQresultStatus(res);

		if (res != NULL && status == wanted)
			return res;
		if (res != NULL && status == PGRES_COMMAND_OK)
		{
			PQclear(res);
			continue;
		}
		if (res == NULL || status != PGRES_FATAL_ERROR)
		{
			PQclear(res);
			if (PQstatus(pub->conn) == CONNECTION_BAD)
				connection_lost(pub, running);
			not_what_was_asked();
		}
		if (PQstatus(pub->conn) != CONNECTION_BAD)
			PQclear(take_rest(pub));
		return res;
	}
}

PublisherResult *
publisher_try_next_rows(Publisher *pub, int *sqlstate, char **message)
{
	PGresult   *res = next_of_kind(pub, PGRES_TUPLES_OK);

	*sqlstate = 0;
	if (PQresultStatus(res) == PGRES_TUPLES_OK)
		return take_rows(res);
	*sqlstate = failure(pub, res, message);
	return NULL;
}

PublisherResult *
publisher_next_rows(Publisher *pub)
{
	PGresult   *res = next_of_kind(pub, PGRES_TUPLES_OK);

	if (PQresultStatus(res) != PGRES_TUPLES_OK)
		command_failed(pub, res);
	return take_rows(res);
}

void
publisher_next_copy(Publisher *pub)
{
	PGresult   *res = next_of_kind(pub, PGRES_COPY_OUT);

	if (PQresultStatus(res) != PGRES_COPY_OUT)
		command_failed(pub, res);
	PQclear(res);
}

void
publisher_end(Publisher *pub)
{
	PGresult   *error = take_rest(pub);

	if (error != NULL)
		command_failed(pub, error);
	if (PQstatus(pub->conn) == CONNECTION_BAD)
		connection_lost(pub, running);
}

/*
 * The next piece of a COPY: its length, 0 if none is there yet, -1 at the
 * end.
 */
static int
take_copy_data(Publisher *pub, char **data)
{
	int			len;

	if (pub->copy_buffer != NULL)
	{
		PQfreemem(pub->copy_buffer);
		pub->copy_buffer = NULL;
	}
	len = PQgetCopyData(pub->conn, &pub->copy_buffer, 1);
	if (len == 0)
	{
		if (!PQconsumeInput(pub->conn))
			connection_lost(pub, "reading from it");
		len = PQgetCopyData(pub->conn, &pub->copy_buffer, 1);
	}
	*data = pub->copy_buffer;
	return len;
}

int
publisher_copy_data(Publisher *pub, char **data)
{
	int			len;
	PGresult   *res;

	while ((len = take_copy_data(pub, data)) == 0)
		wait_for_socket(pub, WL_SOCKET_READABLE, -1);
	if (len > 0)
		return len;

	/* Only the command's own result says that the copy is complete. */
	res = next_result(pub, "copying a table");
	if (res == NULL)
		connection_lost(pub, "copying a table");
	if (PQresultStatus(res) != PGRES_COMMAND_OK)
		command_failed(pub, res);
	PQclear(res);
	return 0;
}

int
publisher_try_stream(Publisher *pub, const char *command, char **message)
{
	return try_run(pub, command, PGRES_COPY_BOTH, PGRES_COPY_BOTH, message);
}

int
publisher_receive(Publisher *pub, char **message, long timeout_ms)
{
	int			len = take_copy_data(pub, message);

	if (len == 0 && timeout_ms > 0)
	{
		wait_for_socket(pub, WL_SOCKET_READABLE, timeout_ms);
		len = take_copy_data(pub, message);
	}
	if (len >= 0)
		return len;

	/* The stream has ended, which it never does by itself: say why. */
	{
		PGresult   *res = next_result(pub, "receiving changes");

		if (res != NULL && PQresultStatus(res) == PGRES_FATAL_ERROR)
			command_failed(pub, res);
		PQclear(res);
	}
	connection_lost(pub, "receiving changes");
}

void
publisher_send(Publisher *pub, const char *message, int len)
{
	if (PQputCopyData(pub->conn, message, len) < 0)
		connection_lost(pub, "reporting progress");
	flush_output(pub, "reporting progress");
}

/*
 * End the stream in both directions, so that the connection can run commands
 * again and the slot is released; what is still on its way is thrown away.
 */
void
publisher_end_stream(Publisher *pub)
{
	const char *doing = "ending the stream";
	PGresult   *res;
	char	   *data;
	int			len;

	if (PQputCopyEnd(pub->conn, NULL) < 0)
		connection_lost(pub, doing);
	flush_output(pub, doing);

	while ((len = take_copy_data(pub, &data)) >= 0)
	{
		if (len == 0)
			wait_for_socket(pub, WL_SOCKET_READABLE, -1);
	}
	while ((res = next_result(pub, doing)) != NULL)
	{
		ExecStatusType status = PQresultStatus(res);

		if (status == PGRES_COPY_IN || status == PGRES_COPY_BOTH)
		{
			PQclear(res);
			if (PQputCopyEnd(pub->conn, NULL) < 0)
				connection_lost(pub, doing);
			flush_output(pub, doing);
			continue;
		}
		if (status == PGRES_FATAL_ERROR)
			command_failed(pub, res);
		PQclear(res);
	}
	if (PQstatus(pub->conn) == CONNECTION_BAD)
		connection_lost(pub, doing);
}

char *
publisher_literal(Publisher *pub, const char *value)
{
	char	   *quoted = PQescapeLiteral(pub->conn, value, strlen(value));
	char	   *result;

	if (quoted == NULL)
		ereport(ERROR,
				errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("could not quote a value for the publisher: %s",
					   connection_message(pub)));
	result = pstrdup(quoted);
	PQfreemem(quoted);
	return result;
}

char *
publisher_identifier(const char *name)
{
	StringInfoData buf;

	/* Always quoted: the publisher's reserved words are not ours. */
	initStringInfo(&buf);
	appendStringInfoChar(&buf, '"');
	for (const char *p = name; *p; p++)
	{
		if (*p == '"')
			appendStringInfoChar(&buf, '"');
		appendStringInfoChar(&buf, *p);
	}
	appendStringInfoChar(&buf, '"');
	return buf.data;
}
