/*-------------------------------------------------------------------------
 *
 * report_page.c
 *	  Part of report(): the page, from its head to its foot.
 *
 * Few tables are shown in a list.  Of many there is a map, a cell for each,
 * and lists of those that matter: what has failed, what is large, what took
 * long.  No list is longer than a screen or two, so that the page stays one
 * that people read; where it leaves something out it says so, and where to
 * find the rest.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/report_page.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "utils/timestamp.h"

#include "report.h"
#include "settings.h"

/* With more tables than this there is a map. */
#define LIST_OF_ALL		40

/* The lengths of lists. */
#define MOST_FINDINGS	50
#define MOST_OBJECTS	10
#define MOST_FAILURES	50

/* Of either, how many are in sight at once. */
#define MOST_OPEN		8
#define MOST_UNFINISHED	25
#define TOP				10

static void
open_section(StringInfo page, const char *id, const char *title)
{
	appendStringInfo(page, "<section id=\"%s\"><h2>%s</h2>", id, title);
}

static void
close_section(StringInfo page)
{
	appendStringInfoString(page, "</section>\n");
}

static void
open_list(StringInfo page, const char *class, const char *heads)
{
	appendStringInfo(page, "<div class=\"scroll\"><table class=\"%s\"><thead><tr>%s</tr></thead><tbody>",
					 class, heads);
}

static void
close_list(StringInfo page)
{
	appendStringInfoString(page, "</tbody></table></div>");
}

/* What a list leaves out. */
static void
put_rest(StringInfo page, int64 rest, const char *where)
{
	if (rest > 0)
		appendStringInfo(page, "<p class=\"note\">And %s more: see <code>%s</code>.</p>",
						 report_number(rest), where);
}

/* --- head --- */

/* In a word or two, and the class of its colour. */
static const char *
overall_state(const Report *report, const char **class)
{
	int			nready = report->nstep[STEP_READY];
	bool		working = false;

	for (int i = 0; i < report->nunits; i++)
		working |= report->units[i].finished_at == 0;
	*class = "p";
	if (!report->enabled)
		return "disabled";
	if (report->ntables == 0)
		return "without tables";
	if (nready == report->ntables)
	{
		*class = "r";
		return "synchronized";
	}
	if (working)
	{
		*class = "c";
		return "synchronizing";
	}
	if (report->nstep[STEP_FAILED] > 0)
	{
		*class = "f";
		return "failing";
	}
	return "waiting";
}

static void
put_state_bar(StringInfo page, const Report *report)
{
	appendStringInfoString(page, "<div class=\"bar\" aria-hidden=\"true\">");
	for (int i = 0; i < NUM_STEPS; i++)
		if (report->nstep[i] > 0)
			appendStringInfo(page, "<i class=\"%s\" style=\"flex-grow:%d\"></i>",
							 report_step_class(i), report->nstep[i]);
	appendStringInfoString(page, "</div><p class=\"legend\">");
	for (int i = 0; i < NUM_STEPS; i++)
		appendStringInfo(page, "<span%s><i class=\"%s\"></i><b id=\"n-%s\">%s</b> %s</span>",
						 report->nstep[i] == 0 ? " class=\"zero\"" : "",
						 report_step_class(i), report_step_class(i),
						 report_number(report->nstep[i]),
						 report_step_name(i));
	appendStringInfoString(page, "</p>");
}

static void
put_tile(StringInfo page, const char *id, const char *value, const char *what)
{
	appendStringInfo(page, "<div><dt>%s</dt><dd id=\"%s\">%s</dd></div>",
					 what, id, value);
}

/* Nobody is at work: what does it wait for? */
static void
put_wait(StringInfo page, const Report *report)
{
	int			nfailed = report->nstep[STEP_FAILED];
	TimestampTz next = 0;

	for (int i = 0; i < report->ntables; i++)
	{
		const ReportTable *table = &report->tables[i];

		if (table->step == STEP_FAILED &&
			(next == 0 || table->next_retry < next))
			next = table->next_retry;
	}
	if (nfailed == 0 || !report->enabled)
		appendStringInfoString(page, "No worker is at it at the moment, so that it is not known when it is done.");
	else if (next > report->made_at)
		appendStringInfo(page, "%s %s failed; the next try is at <span class=\"nb\">%s</span>.",
						 report_count(nfailed, "table", "tables"),
						 nfailed == 1 ? "has" : "have", report_time(next));
	else
		appendStringInfo(page, "%s %s failed, and will be tried again now.",
						 report_count(nfailed, "table", "tables"),
						 nfailed == 1 ? "has" : "have");
}

static void
put_eta(StringInfo page, const Report *report)
{
	if (report->ntables == 0)
		appendStringInfoString(page, "Its publications have no tables, or it has not been refreshed since.");
	else if (report->nstep[STEP_READY] == report->ntables)
		appendStringInfoString(page, "All tables are ready; the apply worker replicates their changes.");
	else if (report->eta != 0)
		appendStringInfo(page, "At this pace it is done at <span class=\"nb\" id=\"eta\">%s</span>, in %s.",
						 report_time(report->eta),
						 report_duration(Max(0, report->eta -
											 report->made_at)));
	else
		put_wait(page, report);
}

static void
put_publisher(StringInfo page, const Report *report)
{
	int			version = report->publisher.version;

	appendStringInfo(page, "<div><dt>Publisher</dt><dd id=\"publisher\">");
	if (version > 0)
		appendStringInfo(page, "PostgreSQL %d.%d", version / 10000,
						 version % 10000);
	else
		appendStringInfoString(page, "was not reached");
	appendStringInfo(page, "<small class=\"n\">%s</small></dd></div>",
					 report_escape(report->address));
}

static void
put_head(StringInfo page, const Report *report)
{
	const char *class;
	const char *state = overall_state(report, &class);
	char	   *name = report_escape(report->subname);

	appendStringInfo(page, "<header><p class=\"kicker\">Table synchronization</p>"
					 "<div class=\"title\"><h1 class=\"n\" id=\"subname\">%s</h1>"
					 "<span id=\"state\" class=\"chip %s\">%s</span></div>"
					 "<p class=\"sub\">Subscription of database <b class=\"n\">%s</b> to <b class=\"n\">%s</b></p></header>\n",
					 name, class, state, report_escape(report->dbname),
					 report_escape(report->publications));

	appendStringInfoString(page, "<section id=\"summary\"><div class=\"percent\">");
	if (report->percent != NULL && report->ntables > 0)
		appendStringInfo(page, "<span><b id=\"percent\">%s</b> %%</span>",
						 report_escape(report->percent));
	appendStringInfoString(page, "<p>");
	put_eta(page, report);
	appendStringInfoString(page, "</p></div>");
	if (report->ntables > 0)
		put_state_bar(page, report);
	appendStringInfoString(page, "<dl>");
	put_tile(page, "n-tables", report_number(report->ntables), "Tables");
	put_tile(page, "rows", report_number(report->tuples_copied),
			 "Rows copied");
	put_tile(page, "bytes", report_bytes(report->bytes_copied),
			 "Copied");
	put_publisher(page, report);
	appendStringInfo(page, "<div><dt>Made at</dt><dd id=\"made-at\">%s</dd></div>",
					 report_time(report->made_at));
	appendStringInfoString(page, "</dl></section>\n");
}

/* --- problems --- */

/* The name in "table public.x". */
static const char *
object_name(const CheckFinding *finding)
{
	const char *name = strchr(finding->object, ' ');

	return name != NULL ? name + 1 : finding->object;
}

/* Are the hints the same but for the names of the objects? */
static bool
is_same_hint(const CheckFinding *a, const CheckFinding *b)
{
	const char *name_a = object_name(a);
	const char *name_b = object_name(b);
	size_t		len_a = strlen(name_a);
	size_t		len_b = strlen(name_b);
	const char *at = a->hint;
	const char *bt = b->hint;

	if (at == NULL || bt == NULL)
		return at == bt;
	while (*at != '\0' && *bt != '\0')
	{
		if (strncmp(at, name_a, len_a) == 0 &&
			strncmp(bt, name_b, len_b) == 0)
		{
			at += len_a;
			bt += len_b;
		}
		else if (*at++ != *bt++)
			return false;
	}
	return *at == *bt;
}

static bool
is_same_problem(const CheckFinding *a, const CheckFinding *b)
{
	return a->severity == b->severity && strcmp(a->problem, b->problem) == 0 &&
		is_same_hint(a, b);
}

/* Together with all that have the same problem, from the nth on. */
static void
put_finding(StringInfo page, List *findings, int nth)
{
	const CheckFinding *first = list_nth(findings, nth);
	int			n = 0;

	appendStringInfo(page, "<li class=\"%s\"><b>%s</b><div><p>",
					 check_severity_name(first->severity),
					 check_severity_name(first->severity));
	for (int i = nth; i < list_length(findings); i++)
	{
		const CheckFinding *finding = list_nth(findings, i);

		if (!is_same_problem(first, finding))
			continue;
		if (n++ < MOST_OBJECTS)
			appendStringInfo(page, "%s<span class=\"n\">%s</span>",
							 n > 1 ? ", " : "",
							 report_name(finding->object));
	}
	if (n > MOST_OBJECTS)
		appendStringInfo(page, " and %s more",
						 report_number(n - MOST_OBJECTS));
	appendStringInfo(page, ": %s</p>", report_escape(first->problem));
	if (first->hint != NULL)
		appendStringInfo(page, "<p class=\"hint\">%s%s</p>",
						 report_escape(first->hint),
						 n > 1 && strstr(first->hint, object_name(first)) ?
						 " Likewise for the others." : "");
	appendStringInfoString(page, "</div></li>");
}

/* Before the nth of so many findings: beyond some they are to be unfolded. */
static void
begin_finding(StringInfo page, int nth, int total)
{
	if (nth == 0)
		appendStringInfoString(page, "<ul class=\"findings\">");
	else if (nth == MOST_OPEN && total > MOST_OPEN + 1)
		appendStringInfo(page, "</ul><details><summary>%s more</summary><ul class=\"findings\">",
						 report_number(total - MOST_OPEN));
}

static void
end_findings(StringInfo page, int total)
{
	if (total > 0)
		appendStringInfoString(page, "</ul>");
	if (total > MOST_OPEN + 1)
		appendStringInfoString(page, "</details>");
}

/*
 * The findings that are shown, the worst ones first: one of each problem.
 * Returns how many; 'rest' is how many findings are left over.
 */
static int
different_findings(List *findings, int *nths, int *rest)
{
	int			n = 0;

	*rest = 0;

	for (CheckSeverity severity = CHECK_ERROR; severity <= CHECK_NOTICE;
		 severity++)
		for (int i = 0; i < list_length(findings); i++)
		{
			const CheckFinding *finding = list_nth(findings, i);
			bool		is_new = finding->severity == severity;

			for (int j = 0; is_new && j < n; j++)
				is_new = !is_same_problem(list_nth(findings, nths[j]),
										  finding);
			if (is_new && n < MOST_FINDINGS)
				nths[n++] = i;
			else if (is_new)
				(*rest)++;
		}
	return n;
}

/* How many tables have an error that is kept. */
static int
count_errors(const Report *report)
{
	int			n = 0;

	for (int i = 0; i < report->ntables; i++)
		n += (report->tables[i].error != NULL);
	return n;
}

static void
put_problems(StringInfo page, const Report *report)
{
	List	   *findings = report->findings;
	int			nths[MOST_FINDINGS];
	int			rest;
	int			n = different_findings(findings, nths, &rest);

	open_section(page, "problems", "Problems");
	if (n == 0)
		appendStringInfo(page, "<p class=\"none\">No %sproblem was found, here or on the publisher.</p>",
						 count_errors(report) > 0 ? "other " : "");
	for (int i = 0; i < n; i++)
	{
		begin_finding(page, i, n);
		put_finding(page, findings, nths[i]);
	}
	end_findings(page, n);
	put_rest(page, rest, "reuse_sync.check()");
	close_section(page);
}

/* Tables that have failed, with the errors that are kept of them. */
static void
put_failures(StringInfo page, const Report *report)
{
	int			total = count_errors(report);
	int			nshown = Min(total, MOST_FAILURES);
	int			n = 0;

	open_section(page, "errors", "Failures");
	for (int i = 0; i < report->ntables && n < nshown; i++)
	{
		const ReportTable *table = &report->tables[i];

		if (table->error == NULL)
			continue;
		begin_finding(page, n++, nshown);
		appendStringInfo(page, "<li class=\"error\"><b class=\"n\">%s</b><div><p>%s</p>",
						 report_name(table->name),
						 report_escape(table->error));
		if (table->hint != NULL)
			appendStringInfo(page, "<p class=\"hint\">%s</p>",
							 report_escape(table->hint));
		appendStringInfo(page, "<p class=\"when\">%s at <span class=\"nb\">%s</span>; ",
						 table->attempts > 0 ?
						 psprintf("%s, last",
								  report_count(table->attempts, "failure", "failures")) :
						 table->step == STEP_READY ? "Not begun" : "Put off",
						 report_time(table->error_time));
		if (table->next_retry > report->made_at)
			appendStringInfo(page, "next try at <span class=\"nb\">%s</span></p></div></li>",
							 report_time(table->next_retry));
		else if (table->step == STEP_READY)
			appendStringInfoString(page, "not to be tried again</p></div></li>");
		else
			appendStringInfoString(page, "to be tried again now</p></div></li>");
	}
	if (total == 0)
		appendStringInfoString(page, "<p class=\"none\">No table has failed.</p>");
	end_findings(page, nshown);
	put_rest(page, total - nshown, "reuse_sync.tables");
	close_section(page);
}

/* --- tables --- */

static const char table_heads[] =
"<th>Table</th><th>State</th><th class=\"num\">Rows</th>"
"<th class=\"num\">Copied</th><th class=\"num w\">Expected</th>"
"<th class=\"w\">Begun</th>";

static void
put_table(StringInfo page, const ReportTable *table)
{
	appendStringInfo(page, "<tr><td class=\"n\">%s</td><td class=\"st\"><i class=\"%s\"></i>%s</td>"
					 "<td class=\"num\">%s</td><td class=\"num\">%s</td><td class=\"num w\">%s</td>"
					 "<td class=\"w nb\">%s</td></tr>",
					 report_name(table->name),
					 report_step_class(table->step),
					 report_escape(table->state),
					 report_number(table->tuples_copied),
					 report_bytes(table->bytes_copied),
					 report_bytes(table->bytes_total),
					 report_time(table->started_at));
}

static void
put_map(StringInfo page, const Report *report)
{
	appendStringInfo(page, "<p class=\"sub\">A cell for each table, in the order of their names.</p>"
					 "<div class=\"map %s\" role=\"img\" aria-label=\"States of tables\">",
					 report->ntables <= 400 ? "few" :
					 report->ntables <= 1500 ? "some" : "many");
	for (int i = 0; i < report->ntables; i++)
	{
		const ReportTable *table = &report->tables[i];

		appendStringInfo(page, "<i class=\"%s\" title=\"%s: %s",
						 report_step_class(table->step),
						 report_escape(table->name),
						 report_escape(table->state));
		if (table->step == STEP_READY || table->step == STEP_CATCHING_UP)
			appendStringInfo(page, ", %s, %s",
							 report_count(table->tuples_copied, "row", "rows"),
							 report_bytes(table->bytes_copied));
		appendStringInfoString(page, "\"></i>");
	}
	appendStringInfoString(page, "</div>");
}

/* Those that are at work first, then by name. */
static void
put_unfinished(StringInfo page, const Report *report)
{
	static const ReportStep order[] = {
		STEP_COPYING, STEP_CATCHING_UP, STEP_FAILED, STEP_PENDING
	};
	int			n = 0;

	if (report->nstep[STEP_READY] == report->ntables)
		return;
	appendStringInfoString(page, "<h3>Not ready</h3>");
	open_list(page, "tables", table_heads);
	for (int i = 0; i < lengthof(order); i++)
		for (int j = 0; j < report->ntables; j++)
			if (report->tables[j].step == order[i] && n++ < MOST_UNFINISHED)
				put_table(page, &report->tables[j]);
	close_list(page);
	put_rest(page, n - MOST_UNFINISHED, "reuse_sync.tables");
}

static int
compare_sizes(const void *a, const void *b)
{
	const ReportTable *x = a;
	const ReportTable *y = b;
	int64		xs = Max(x->bytes_copied, x->bytes_total);
	int64		ys = Max(y->bytes_copied, y->bytes_total);

	if (xs != ys)
		return xs > ys ? -1 : 1;
	return strcmp(x->name, y->name);
}

static void
put_largest(StringInfo page, const Report *report)
{
	ReportTable *tables = palloc(report->ntables * sizeof(ReportTable));

	memcpy(tables, report->tables, report->ntables * sizeof(ReportTable));
	qsort(tables, report->ntables, sizeof(ReportTable), compare_sizes);
	appendStringInfo(page, "<h3>The %d largest</h3>", TOP);
	open_list(page, "tables", table_heads);
	for (int i = 0; i < TOP; i++)
		put_table(page, &tables[i]);
	close_list(page);
}

static int
compare_times(const void *a, const void *b)
{
	const ReportUnit *x = a;
	const ReportUnit *y = b;
	int64		xt = x->finished_at - x->started_at;
	int64		yt = y->finished_at - y->started_at;

	if (xt != yt)
		return xt > yt ? -1 : 1;
	return strcmp(x->first, y->first);
}

/* Tables of a batch have no time of their own. */
static void
put_slowest(StringInfo page, const Report *report)
{
	ReportUnit *units = palloc((report->nunits + 1) * sizeof(ReportUnit));
	int			n = 0;

	for (int i = 0; i < report->nunits; i++)
		if (report->units[i].finished_at != 0)
			units[n++] = report->units[i];
	if (n == 0)
		return;
	qsort(units, n, sizeof(ReportUnit), compare_times);
	appendStringInfo(page, "<h3>The slowest units of the last run</h3>");
	open_list(page, "units", "<th>First table</th><th class=\"num\">Tables</th>"
			  "<th class=\"num w\">Rows</th><th class=\"num w\">Copied</th>"
			  "<th class=\"num\">Time</th><th class=\"num w\">Catching up</th>");
	for (int i = 0; i < Min(n, TOP); i++)
		appendStringInfo(page, "<tr><td class=\"n\">%s</td><td class=\"num\">%d</td><td class=\"num w\">%s</td>"
						 "<td class=\"num w\">%s</td><td class=\"num\">%s</td><td class=\"num w\">%s</td></tr>",
						 report_name(units[i].first), units[i].ntables,
						 report_number(units[i].tuples_copied),
						 report_bytes(units[i].bytes_copied),
						 report_duration(units[i].finished_at -
										 units[i].started_at),
						 report_duration(units[i].copied_at == 0 ? -1 :
										 units[i].finished_at -
										 units[i].copied_at));
	close_list(page);
}

static void
put_tables(StringInfo page, const Report *report)
{
	open_section(page, "tables", "Tables");
	if (report->ntables == 0)
		appendStringInfoString(page, "<p class=\"none\">This subscription has no tables.</p>");
	else if (report->ntables <= LIST_OF_ALL)
	{
		open_list(page, "tables", table_heads);
		for (int i = 0; i < report->ntables; i++)
			put_table(page, &report->tables[i]);
		close_list(page);
	}
	else
	{
		put_map(page, report);
		put_unfinished(page, report);
		put_largest(page, report);
	}
	put_slowest(page, report);
	close_section(page);
}

/* --- slots --- */

/* Transactions of the publisher between this one and its next; -1: unknown. */
static int64
age_of(const Report *report, uint32 xmin)
{
	if (report->publisher.next_xid == 0 || xmin < FirstNormalTransactionId)
		return -1;
	return Max(0, (int32) ((uint32) report->publisher.next_xid - xmin));
}

static void
put_slots(StringInfo page, const Report *report)
{
	const CheckPublisher *publisher = &report->publisher;

	open_section(page, "slots", "What is held back on the publisher");
	appendStringInfoString(page, "<p class=\"sub\">The WAL that each slot retains, and how many transactions old its xmin is, and that of its worker&#8217;s snapshot: rows that have been dead for less than that stay until it has gone on.</p>");
	if (!publisher->has_slot && report->nslots == 0)
	{
		appendStringInfoString(page, "<p class=\"none\">The publisher was not reached, or the subscription has no slot there.</p>");
		close_section(page);
		return;
	}
	open_list(page, "slots", "<th>Slot</th><th>State</th><th class=\"num w\">Worker</th>"
			  "<th class=\"num w\">Tables</th><th class=\"num\">WAL</th>"
			  "<th class=\"num\">xmin age</th><th class=\"num w\">Snapshot age</th>"
			  "<th class=\"w\">Seen</th>");
	if (publisher->has_slot)
		appendStringInfo(page, "<tr><td class=\"n\">%s</td><td>the subscription&#8217;s own</td>"
						 "<td class=\"num w\">&#8211;</td><td class=\"num w\">&#8211;</td><td class=\"num\">%s</td>"
						 "<td class=\"num\">%s</td><td class=\"num w\">&#8211;</td><td class=\"w nb\">%s</td></tr>",
						 report_name(report->slot_name),
						 report_bytes(publisher->slot_bytes),
						 report_number(age_of(report, publisher->slot_xmin)),
						 report_time(report->made_at));
	for (int i = 0; i < report->nslots; i++)
	{
		const ReportSlot *slot = &report->slots[i];

		appendStringInfo(page, "<tr><td class=\"n\">%s</td><td>%s%s%s</td>"
						 "<td class=\"num w\">%s</td><td class=\"num w\">%s</td><td class=\"num\">%s</td>"
						 "<td class=\"num\">%s</td><td class=\"num w\">%s</td><td class=\"w nb\">%s</td></tr>",
						 report_name(slot->name), report_escape(slot->state),
						 slot->error ? ": " : "",
						 slot->error ? report_escape(slot->error) : "",
						 slot->pid ? psprintf("%d", slot->pid) : "&#8211;",
						 report_number(slot->tables_synced),
						 report_bytes(slot->wal_bytes),
						 report_number(age_of(report, slot->catalog_xmin)),
						 report_number(age_of(report,
											  (uint32) slot->snapshot_xmin)),
						 report_time(slot->checked_at));
	}
	close_list(page);
	if (report->nslots == 0)
		appendStringInfoString(page, "<p class=\"none\">The pool has no slot there at the moment.</p>");
	close_section(page);
}

void
report_page(StringInfo page, const Report *report)
{
	appendStringInfo(page, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>"
					 "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>"
					 "<meta name=\"color-scheme\" content=\"light dark\"/>"
					 "<title>%s: %s</title>\n<style>%s</style></head>\n<body><main>\n",
					 EXTENSION_NAME, report_escape(report->subname),
					 report_style);
	put_head(page, report);
	put_problems(page, report);
	put_failures(page, report);
	open_section(page, "timeline", "The last run");
	report_timeline(page, report);
	close_section(page);
	put_tables(page, report);
	put_slots(page, report);
	appendStringInfo(page, "<footer>Made by %s %s with <code>SELECT reuse_sync.report(&#8230;)</code>. It shows the moment it was made at.</footer>\n",
					 EXTENSION_NAME, EXTENSION_VERSION);
	appendStringInfoString(page, "</main></body></html>\n");
}
