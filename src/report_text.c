/*-------------------------------------------------------------------------
 *
 * report_text.c
 *	  Part of report(): text, numbers and times as they stand in a page.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/report_text.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "utils/timestamp.h"

#include "report.h"

/* Of what cannot be known, or be written. */
#define DASH		"&#8211;"
#define REPLACEMENT	"&#65533;"

/* Between a number and its unit, where no line may end. */
#define SPACE		"&#160;"

/*
 * Characters of Unicode that XML has no way to write, or that a browser takes
 * for others: controls, and those that are none.
 */
static bool
is_writable(pg_wchar c)
{
	return !(c >= 0x7F && c <= 0x9F) && !(c >= 0xD800 && c <= 0xDFFF) &&
		c != 0xFFFE && c != 0xFFFF && c <= 0x10FFFF;
}

static void
escape_ascii(StringInfo buf, char c)
{
	switch (c)
	{
		case '&':
			appendStringInfoString(buf, "&amp;");
			break;
		case '<':
			appendStringInfoString(buf, "&lt;");
			break;
		case '>':
			appendStringInfoString(buf, "&gt;");
			break;
		case '"':
			appendStringInfoString(buf, "&quot;");
			break;
		case '\'':
			appendStringInfoString(buf, "&#39;");
			break;
		case '\t':
		case '\n':
			appendStringInfo(buf, "&#%d;", c);
			break;
		default:
			if (c < ' ' || c == 0x7F)
				appendStringInfoString(buf, REPLACEMENT);
			else
				appendStringInfoChar(buf, c);
	}
}

/*
 * A database in SQL_ASCII may hold anything: what is no UTF-8 cannot be
 * known.
 */
static const char *
to_utf8(const char *text, bool *is_utf8)
{
	int			len = (int) strlen(text);

	*is_utf8 = true;
	if (GetDatabaseEncoding() != PG_SQL_ASCII)
		return pg_server_to_any(text, len, PG_UTF8);
	*is_utf8 = pg_verify_mbstr(PG_UTF8, text, len, true);
	return text;
}

static char *
escape(const char *text, bool may_break)
{
	StringInfoData buf;
	bool		is_utf8;
	const char *p = to_utf8(text, &is_utf8);

	initStringInfo(&buf);
	while (*p != '\0')
	{
		pg_wchar	c;

		if (!IS_HIGHBIT_SET(*p))
		{
			escape_ascii(&buf, *p);
			if (may_break && (*p == '.' || *p == '_'))
				appendStringInfoString(&buf, "<wbr/>");
			p++;
			continue;
		}
		if (!is_utf8)
		{
			appendStringInfoString(&buf, REPLACEMENT);
			p++;
			continue;
		}
		c = utf8_to_unicode((const unsigned char *) p);
		if (is_writable(c))
			appendStringInfo(&buf, "&#%u;", (unsigned int) c);
		else
			appendStringInfoString(&buf, REPLACEMENT);
		p += pg_utf_mblen((const unsigned char *) p);
	}
	return buf.data;
}

char *
report_escape(const char *text)
{
	return escape(text, false);
}

char *
report_name(const char *name)
{
	return escape(name, true);
}

/* With a comma for each thousand. */
char *
report_number(int64 n)
{
	char	   *digits;
	int			len;
	StringInfoData buf;

	if (n < 0)
		return pstrdup(DASH);
	digits = psprintf(INT64_FORMAT, n);
	len = (int) strlen(digits);
	initStringInfo(&buf);
	for (int i = 0; i < len; i++)
	{
		if (i > 0 && (len - i) % 3 == 0)
			appendStringInfoChar(&buf, ',');
		appendStringInfoChar(&buf, digits[i]);
	}
	return buf.data;
}

char *
report_count(int64 n, const char *one, const char *many)
{
	return psprintf("%s" SPACE "%s", report_number(n), n == 1 ? one : many);
}

/* Three digits are enough. */
char *
report_bytes(int64 n)
{
	static const char *const units[] = {
		"bytes", "kB", "MB", "GB", "TB", "PB", "EB"
	};
	double		value = (double) n;
	int			i = 0;

	if (n < 0)
		return pstrdup(DASH);
	while (value >= 999.5 && i < lengthof(units) - 1)
	{
		value /= 1024;
		i++;
	}
	return psprintf("%.*f" SPACE "%s", i > 0 && value < 99.95 ? 1 : 0, value,
					units[i]);
}

char *
report_duration(int64 us)
{
	int64		s = (us + 500000) / 1000000;

	if (us < 0)
		return pstrdup(DASH);
	if (us < 999500)
		return psprintf("%.0f" SPACE "ms", (double) us / 1000);
	if (us < 59950000)
		return psprintf("%.1f" SPACE "s", (double) us / 1000000);
	if (s < 3600)
		return psprintf("%d" SPACE "min" SPACE "%02d" SPACE "s",
						(int) (s / 60), (int) (s % 60));
	if (s < 86400)
		return psprintf("%d" SPACE "h" SPACE "%02d" SPACE "min",
						(int) (s / 3600), (int) (s % 3600 / 60));
	return psprintf("%d" SPACE "d" SPACE "%d" SPACE "h",
					(int) (s / 86400), (int) (s % 86400 / 3600));
}

/* To the second, with the offset of the session's time zone. */
char *
report_time(TimestampTz t)
{
	if (t == 0)
		return pstrdup(DASH);
	return pstrdup(timestamptz_to_str(t - t % USECS_PER_SEC));
}

const char *
report_step_name(ReportStep step)
{
	switch (step)
	{
		case STEP_READY:
			return "ready";
		case STEP_CATCHING_UP:
			return "catching up";
		case STEP_COPYING:
			return "copying";
		case STEP_FAILED:
			return "failed";
		case STEP_PENDING:
		case NUM_STEPS:
			break;
	}
	return "pending";
}

const char *
report_step_class(ReportStep step)
{
	switch (step)
	{
		case STEP_READY:
			return "r";
		case STEP_CATCHING_UP:
			return "u";
		case STEP_COPYING:
			return "c";
		case STEP_FAILED:
			return "f";
		case STEP_PENDING:
		case NUM_STEPS:
			break;
	}
	return "p";
}
