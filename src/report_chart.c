/*-------------------------------------------------------------------------
 *
 * report_chart.c
 *	  Part of report(): when which worker was at what, and how much came
 *	  through.
 *
 * All charts have one axis of time.  A run may lie idle for days, because of
 * one table that cannot be copied: long gaps in which nobody has done anything
 * that counts are cut out of the axis, and marked.  Shapes are stretched to the
 * width there is, so that text is never in a drawing but beside it.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/report_chart.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "utils/timestamp.h"

#include "report.h"

/* At most so many gaps are cut out, none shorter than so many us. */
#define MAX_GAPS		6
#define SHORTEST_GAP	INT64CONST(2000000)

/* Widths in percent: of a gap, and the least of what is between two. */
#define GAP_WIDTH		3.0
#define LEAST_WIDTH		4.0

#define MOST_TICKS		9

/* The drawings are so wide and high, before they are stretched. */
#define WIDTH			1000.0
#define LANE_HEIGHT		20
#define CHART_HEIGHT	100

/* Units narrower than this are drawn as one with their neighbours. */
#define NARROW			2.0

/* For how many parts of the axis a throughput is reckoned. */
#define BUCKETS			80

typedef struct Segment
{
	TimestampTz start;
	TimestampTz end;
	double		left;			/* in percent of the axis */
	double		width;
} Segment;

typedef struct Axis
{
	Segment		segments[MAX_GAPS + 1];
	int			n;
	int64		length;			/* of all segments, us */
} Axis;

static TimestampTz
unit_end(const Report *report, const ReportUnit *unit)
{
	TimestampTz end = unit->finished_at != 0 ? unit->finished_at :
	report->made_at;

	return Max(end, unit->started_at + 1);
}

/* --- the axis --- */

static int
compare_starts(const void *a, const void *b)
{
	TimestampTz x = ((const ReportUnit *) a)->started_at;
	TimestampTz y = ((const ReportUnit *) b)->started_at;

	return x < y ? -1 : (x > y ? 1 : 0);
}

static int
compare_lengths(const void *a, const void *b)
{
	int64		x = ((const Segment *) a)->end - ((const Segment *) a)->start;
	int64		y = ((const Segment *) b)->end - ((const Segment *) b)->start;

	return x > y ? -1 : (x < y ? 1 : 0);
}

static int
compare_segments(const void *a, const void *b)
{
	TimestampTz x = ((const Segment *) a)->start;
	TimestampTz y = ((const Segment *) b)->start;

	return x < y ? -1 : (x > y ? 1 : 0);
}

/* The units in the order of their starts. */
static const ReportUnit *
sorted_units(const Report *report)
{
	ReportUnit *units = palloc((report->nunits + 1) * sizeof(ReportUnit));

	memcpy(units, report->units, report->nunits * sizeof(ReportUnit));
	qsort(units, report->nunits, sizeof(ReportUnit), compare_starts);
	return units;
}

/*
 * The times between units, by their start, that are to be cut out: those that
 * are longer than all that was done.
 */
static int
find_gaps(const Report *report, const ReportUnit *units, Segment *gaps,
		  TimestampTz *end)
{
	int64		busy = 0;
	int			n = 0;
	int			cut = 0;

	*end = units[0].started_at;
	for (int i = 0; i < report->nunits; i++)
	{
		TimestampTz until = unit_end(report, &units[i]);

		if (units[i].started_at > *end)
			gaps[n++] = (Segment)
		{
			*end, units[i].started_at
		};
		busy += Max(0, until - Max(*end, units[i].started_at));
		*end = Max(*end, until);
	}
	qsort(gaps, n, sizeof(Segment), compare_lengths);
	while (cut < n && cut < MAX_GAPS &&
		   gaps[cut].end - gaps[cut].start > Max(busy, SHORTEST_GAP))
		cut++;
	qsort(gaps, cut, sizeof(Segment), compare_segments);
	return cut;
}

static void
lay_out(Axis *axis)
{
	double		room = 100.0 - GAP_WIDTH * (axis->n - 1);
	double		sum = 0;
	double		left = 0;

	for (int i = 0; i < axis->n; i++)
	{
		Segment    *s = &axis->segments[i];

		s->width = Max((double) (s->end - s->start) / axis->length * room,
					   LEAST_WIDTH);
		sum += s->width;
	}
	for (int i = 0; i < axis->n; i++)
	{
		Segment    *s = &axis->segments[i];

		s->width *= room / sum;
		s->left = left;
		left += s->width + GAP_WIDTH;
	}
}

static Axis
make_axis(const Report *report, const ReportUnit *units)
{
	Segment    *gaps = palloc((report->nunits + 1) * sizeof(Segment));
	TimestampTz end;
	int			ngaps = find_gaps(report, units, gaps, &end);
	TimestampTz start = units[0].started_at;
	Axis		axis = {.n = ngaps + 1};

	for (int i = 0; i <= ngaps; i++)
	{
		axis.segments[i].start = start;
		axis.segments[i].end = i < ngaps ? gaps[i].start : end;
		axis.length += axis.segments[i].end - start;
		start = i < ngaps ? gaps[i].end : end;
	}
	lay_out(&axis);
	return axis;
}

static double
position(const Axis *axis, TimestampTz t)
{
	for (int i = 0; i < axis->n; i++)
	{
		const Segment *s = &axis->segments[i];

		if (t <= s->start)
			return s->left;
		if (t <= s->end)
			return s->left +
				s->width * ((double) (t - s->start) / (s->end - s->start));
	}
	return 100;
}

/* The steps that people count time by, in ms. */
static int64
tick_step(int64 length)
{
	static const int64 steps[] = {
		1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 15000,
		30000, 60000, 120000, 300000, 600000, 900000, 1800000, 3600000,
		7200000, 10800000, 21600000, 43200000, 86400000
	};

	for (int i = 0; i < lengthof(steps); i++)
		if (length / (steps[i] * 1000) < MOST_TICKS)
			return steps[i] * 1000;
	return (length / MOST_TICKS / USECS_PER_DAY + 1) * USECS_PER_DAY;
}

/* As short as it can be: "1 min 30 s", "2 s". */
static char *
tick_label(int64 us)
{
	static const struct
	{
		int64		us;
		const char *name;
	}			units[] = {
		{USECS_PER_DAY, "d"}, {USECS_PER_HOUR, "h"}, {USECS_PER_MINUTE, "min"},
		{USECS_PER_SEC, "s"}, {1000, "ms"}
	};
	StringInfoData buf;
	int			parts = 0;

	initStringInfo(&buf);
	for (int i = 0; i < lengthof(units) && parts < 2; i++)
	{
		if (us < units[i].us)
			continue;
		appendStringInfo(&buf, "%s" INT64_FORMAT "&#160;%s",
						 parts++ > 0 ? " " : "", us / units[i].us,
						 units[i].name);
		us %= units[i].us;
	}
	return parts > 0 ? buf.data : pstrdup("0");
}

static void
put_lines(StringInfo page, const Axis *axis)
{
	const Segment *first = &axis->segments[0];
	int64		step = tick_step(first->end - first->start);

	appendStringInfoString(page, "<div class=\"grid\">");
	for (int64 t = 0; first->start + t < first->end; t += step)
		appendStringInfo(page, "<b style=\"left:%.2f%%\"></b>",
						 position(axis, first->start + t));
	for (int i = 1; i < axis->n; i++)
	{
		const Segment *s = &axis->segments[i];

		appendStringInfo(page, "<u style=\"left:%.2f%%;width:%.2f%%\" title=\"%s without a unit\"></u>",
						 s->left - GAP_WIDTH, GAP_WIDTH,
						 report_duration(s->start - axis->segments[i - 1].end));
	}
	appendStringInfoString(page, "</div>");
}

static void
put_ticks(StringInfo page, const Axis *axis)
{
	const Segment *first = &axis->segments[0];
	int64		step = tick_step(first->end - first->start);
	double		limit = axis->n > 1 ? first->left + first->width - 5 : 93;

	appendStringInfoString(page, "<div class=\"axis\">");
	for (int64 t = 0, i = 0; first->start + t < first->end; t += step, i++)
	{
		double		left = position(axis, first->start + t);

		if (i == 0 || left <= limit)
			appendStringInfo(page, "<span%s style=\"left:%.2f%%\">%s</span>",
							 i == 0 ? " class=\"z\"" :
							 i % 2 == 1 ? " class=\"m\"" : "",
							 left, tick_label(t));
	}
	for (int i = 1; i < axis->n; i++)
	{
		const Segment *s = &axis->segments[i];

		appendStringInfo(page, "<span class=\"%s\" style=\"left:%.2f%%\">%s</span>",
						 i == axis->n - 1 && s->left > 85 ? "e" : "z",
						 i == axis->n - 1 && s->left > 85 ? 100.0 : s->left,
						 report_duration(s->start - first->start));
	}
	appendStringInfoString(page, "</div>");
}

/* --- units by worker --- */

static char *
unit_title(const Report *report, const ReportUnit *unit)
{
	StringInfoData buf;
	const char *name = report_escape(unit->first);

	initStringInfo(&buf);
	if (unit->ntables == 1)
		appendStringInfoString(&buf, name);
	else
		appendStringInfo(&buf, "%s from %s on",
						 report_count(unit->ntables, "table", "tables"), name);
	if (unit->finished_at == 0)
		appendStringInfo(&buf, ": %s for %s", unit->phase,
						 report_duration(report->made_at - unit->started_at));
	else
		appendStringInfo(&buf, ": %s, %s, %s",
						 report_count(unit->tuples_copied, "row", "rows"),
						 report_bytes(unit->bytes_copied),
						 report_duration(unit->finished_at -
										 unit->started_at));
	if (unit->finished_at != 0 && unit->copied_at != 0)
		appendStringInfo(&buf, " (%s of it catching up)",
						 report_duration(unit->finished_at -
										 unit->copied_at));
	appendStringInfo(&buf, "; pid %d", unit->pid);
	if (unit->slot_name[0] != '\0')
		appendStringInfo(&buf, ", slot %s%s", report_escape(unit->slot_name),
						 unit->slot_reused ? ", reused" : "");
	return buf.data;
}

static void
put_bar(StringInfo page, const char *class, double left, double right)
{
	appendStringInfo(page, "<rect class=\"%s\" x=\"%.2f\" y=\"0\" width=\"%.2f\" height=\"%d\"/>",
					 class, left, Max(right - left, 1.0), LANE_HEIGHT);
}

/* What is too narrow to be seen alone. */
typedef struct Bundle
{
	int			nunits;
	int			ntables;
	double		left;
	double		right;
	const ReportUnit *last;
} Bundle;

static void
put_bundle(StringInfo page, const Report *report, Bundle *bundle)
{
	if (bundle->nunits == 0)
		return;
	appendStringInfoString(page, "<g>");
	if (bundle->nunits == 1)
		appendStringInfo(page, "<title>%s</title>",
						 unit_title(report, bundle->last));
	else
		appendStringInfo(page, "<title>%s of %s in all</title>",
						 report_count(bundle->nunits, "unit", "units"),
						 report_count(bundle->ntables, "table", "tables"));
	put_bar(page, "c", bundle->left, bundle->right);
	appendStringInfoString(page, "</g>");
	bundle->nunits = 0;
	bundle->ntables = 0;
}

static void
put_unit(StringInfo page, const Report *report, const Axis *axis,
		 const ReportUnit *unit, Bundle *bundle)
{
	TimestampTz end = unit_end(report, unit);
	double		left = position(axis, unit->started_at) * WIDTH / 100;
	double		right = position(axis, end) * WIDTH / 100;
	bool		narrow = right - left < NARROW && unit->finished_at != 0;

	if (!narrow || left > bundle->right + NARROW)
		put_bundle(page, report, bundle);
	if (narrow)
	{
		if (bundle->nunits == 0)
			bundle->left = left;
		bundle->right = Max(right, left + 1);
		bundle->last = unit;
		bundle->nunits++;
		bundle->ntables += unit->ntables;
		return;
	}
	appendStringInfo(page, "<g%s><title>%s</title>",
					 unit->finished_at == 0 ? " class=\"live\"" : "",
					 unit_title(report, unit));
	/* A little room to the next. */
	right -= 0.8;
	if (unit->copied_at != 0 && unit->finished_at != 0)
	{
		double		middle = position(axis, unit->copied_at) * WIDTH / 100;

		put_bar(page, "c", left, Min(middle, right));
		if (middle < right)
			put_bar(page, "u", middle, right);
	}
	else
		put_bar(page, unit->finished_at != 0 ? "u" : "c", left, right);
	appendStringInfoString(page, "</g>");
}

static void
put_lane(StringInfo page, const Report *report, const Axis *axis,
		 const ReportUnit *units, int place)
{
	Bundle		bundle = {0};
	int64		ntables = 0;

	for (int i = 0; i < report->nunits; i++)
		if (units[i].place == place && units[i].finished_at != 0)
			ntables += units[i].ntables;
	appendStringInfo(page, "<div class=\"lane\"><div class=\"l\">Worker %d<small>%s</small></div>"
					 "<svg viewBox=\"0 0 %.0f %d\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"Units of worker %d\">",
					 place + 1, report_count(ntables, "table", "tables"),
					 WIDTH, LANE_HEIGHT, place + 1);
	for (int i = 0; i < report->nunits; i++)
		if (units[i].place == place)
			put_unit(page, report, axis, &units[i], &bundle);
	put_bundle(page, report, &bundle);
	appendStringInfoString(page, "</svg></div>");
}

/* When tables that are not ready have failed last. */
static void
put_failures(StringInfo page, const Report *report, const Axis *axis)
{
	int			n = 0;
	TimestampTz start = axis->segments[0].start;
	TimestampTz end = axis->segments[axis->n - 1].end;

	for (int i = 0; i < report->ntables; i++)
		if (report->tables[i].error_time >= start &&
			report->tables[i].error_time <= end)
			n++;
	if (n == 0)
		return;
	appendStringInfo(page, "<div class=\"lane\"><div class=\"l\">Failures<small>latest</small></div>"
					 "<svg viewBox=\"0 0 %.0f %d\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"Failures\">",
					 WIDTH, LANE_HEIGHT);
	for (int i = 0; i < report->ntables; i++)
	{
		const ReportTable *table = &report->tables[i];
		double		left;

		if (table->error_time < start || table->error_time > end)
			continue;
		left = Min(position(axis, table->error_time) * WIDTH / 100,
				   WIDTH - 5);
		appendStringInfo(page, "<g><title>%s failed</title>",
						 report_escape(table->name));
		put_bar(page, "f", left, left + 5);
		appendStringInfoString(page, "</g>");
	}
	appendStringInfoString(page, "</svg></div>");
}

/* --- throughput --- */

typedef struct Bucket
{
	TimestampTz start;
	TimestampTz end;
	double		left;
	double		right;
	double		amount;
} Bucket;

static int
make_buckets(const Axis *axis, Bucket *buckets)
{
	int			n = 0;

	for (int i = 0; i < axis->n; i++)
	{
		const Segment *s = &axis->segments[i];
		int			parts = Max(1, (int) (s->width * BUCKETS / 100));

		for (int j = 0; j < parts; j++)
		{
			Bucket	   *b = &buckets[n++];
			double		share = 1.0 / parts;

			b->start = s->start + (TimestampTz) ((double) (s->end - s->start) * share * j);
			b->end = s->start + (TimestampTz) ((double) (s->end - s->start) * share * (j + 1));
			b->end = Max(b->end, b->start + 1);
			b->left = (s->left + s->width * share * j) * WIDTH / 100;
			b->right = (s->left + s->width * share * (j + 1)) * WIDTH / 100;
			b->amount = 0;
		}
	}
	return n;
}

/* What a unit has brought is spread over the time that its copy took. */
static void
spread(Bucket *buckets, int n, const ReportUnit *unit, TimestampTz end,
	   double amount)
{
	TimestampTz start = unit->started_at;
	double		length;

	if (unit->copied_at != 0)
		end = Max(unit->copied_at, start + 1);
	length = (double) (end - start);
	for (int i = 0; i < n && buckets[i].start < end; i++)
	{
		int64		common = Min(buckets[i].end, end) -
		Max(buckets[i].start, start);

		if (common > 0)
			buckets[i].amount += amount * (double) common / length;
	}
}

static double
rate(const Bucket *b)
{
	return b->amount * 1000000 / (double) (b->end - b->start);
}

/* A round number that is not less, and has a round half. */
static double
round_up(double value, double base)
{
	static const double steps[] = {
		1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400, 600, 800, 1000
	};
	double		unit = 1;

	while (value > unit * base)
		unit *= base;
	for (int i = 0; i < lengthof(steps); i++)
		if (value <= steps[i] * unit)
			return steps[i] * unit;
	return base * unit;
}

static char *
rate_label(double value, bool is_bytes)
{
	static const char *const units[] = {"bytes", "kB", "MB", "GB", "TB", "PB"};
	int			i = 0;

	while (is_bytes && value >= 1024 && i < lengthof(units) - 1)
	{
		value /= 1024;
		i++;
	}
	if (is_bytes)
		return psprintf("%g&#160;%s", value, units[i]);
	if (value >= 1000000)
		return psprintf("%g&#160;M", value / 1000000);
	if (value >= 1000)
		return psprintf("%g&#160;k", value / 1000);
	return psprintf("%g", value);
}

static void
put_throughput(StringInfo page, const Report *report, const Axis *axis,
			   bool is_bytes)
{
	Bucket		buckets[BUCKETS + MAX_GAPS + 1];
	int			n = make_buckets(axis, buckets);
	double		peak = 0;
	double		top;
	const char *what = is_bytes ? "Bytes" : "Rows";

	for (int i = 0; i < report->nunits; i++)
	{
		const ReportUnit *unit = &report->units[i];
		int64		amount = is_bytes ? unit->bytes_copied :
		unit->tuples_copied;

		if (amount > 0)
			spread(buckets, n, unit, unit_end(report, unit),
				   (double) amount);
	}
	for (int i = 0; i < n; i++)
		peak = Max(peak, rate(&buckets[i]));
	top = round_up(Max(peak, 1), is_bytes ? 1024 : 1000);
	appendStringInfo(page, "<div class=\"lane tall\"><div class=\"y\"><span>%s</span><span>%s</span><span>0</span></div>"
					 "<svg viewBox=\"0 0 %.0f %d\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"%s per second\"><title>%s per second</title><path d=\"",
					 rate_label(top, is_bytes), rate_label(top / 2, is_bytes),
					 WIDTH, CHART_HEIGHT, what, what);
	for (int i = 0; i < n; i++)
	{
		double		y = CHART_HEIGHT * (1 - rate(&buckets[i]) / top);
		bool		first = i == 0 || buckets[i].left > buckets[i - 1].right + 1;
		bool		last = i == n - 1 || buckets[i + 1].left > buckets[i].right + 1;

		if (first)
			appendStringInfo(page, "M%.1f %d", buckets[i].left, CHART_HEIGHT);
		appendStringInfo(page, "V%.1fH%.1f", y, buckets[i].right);
		if (last)
			appendStringInfo(page, "V%dZ", CHART_HEIGHT);
	}
	appendStringInfoString(page, "\"/></svg></div>");
}

static void
put_caption(StringInfo page, const char *what, int64 amount, int64 length,
			bool is_bytes)
{
	double		average = (double) amount * 1000000 / (double) Max(length, 1);

	appendStringInfo(page, "<h3>%s per second<small>%s in all, %s/s on average</small></h3>",
					 what,
					 is_bytes ? report_bytes(amount) : report_number(amount),
					 is_bytes ? report_bytes((int64) average) :
					 report_number((int64) rint(average)));
}

void
report_timeline(StringInfo page, const Report *report)
{
	const ReportUnit *units = sorted_units(report);
	Axis		axis;
	int			places = 0;
	int64		bytes = 0;
	int64		rows = 0;
	int			live = 0;

	if (report->nunits == 0)
	{
		appendStringInfoString(page, "<p class=\"none\">No table of this subscription has been synchronized by the pool yet.</p>");
		return;
	}
	axis = make_axis(report, units);
	for (int i = 0; i < report->nunits; i++)
	{
		places = Max(places, units[i].place + 1);
		bytes += Max(units[i].bytes_copied, 0);
		rows += Max(units[i].tuples_copied, 0);
		live += units[i].finished_at == 0;
	}
	appendStringInfo(page, "<p class=\"sub\">It began at <span class=\"nb\">%s</span> and %s %s%s. There %s, each of one large table or of several small ones.</p>",
					 report_time(axis.segments[0].start),
					 live > 0 ? "has gone on for" : "took",
					 report_duration(axis.length),
					 axis.n > 1 ? ", not counting pauses" : "",
					 report->nunits == 1 ? "was one unit" :
					 psprintf("were %s units", report_number(report->nunits)));
	appendStringInfoString(page, "<p class=\"legend\"><span><i class=\"c\"></i>copying</span><span><i class=\"u\"></i>catching up and handing over</span>");
	if (live > 0)
		appendStringInfoString(page, "<span><i class=\"c live\"></i>at work now</span>");
	if (axis.n > 1)
		appendStringInfoString(page, "<span><i class=\"gap\"></i>pause, left out</span>");
	appendStringInfoString(page, "</p><div class=\"chart\">");
	put_lines(page, &axis);
	for (int i = 0; i < places; i++)
	{
		bool		used = false;

		for (int j = 0; j < report->nunits; j++)
			used |= units[j].place == i;
		if (used)
			put_lane(page, report, &axis, units, i);
	}
	put_failures(page, report, &axis);
	put_ticks(page, &axis);
	appendStringInfoString(page, "</div>");

	put_caption(page, "Bytes", bytes, axis.length, true);
	appendStringInfoString(page, "<div class=\"chart\">");
	put_lines(page, &axis);
	put_throughput(page, report, &axis, true);
	put_ticks(page, &axis);
	appendStringInfoString(page, "</div>");
	put_caption(page, "Rows", rows, axis.length, false);
	appendStringInfoString(page, "<div class=\"chart\">");
	put_lines(page, &axis);
	put_throughput(page, report, &axis, false);
	put_ticks(page, &axis);
	appendStringInfoString(page, "</div><p class=\"note\">Time runs from the run's beginning. What a unit has copied is spread evenly over the time its copy took.</p>");
}
