/*-------------------------------------------------------------------------
 *
 * remote_snapshot.c
 *	  Snapshots of the publisher, as data.
 *
 * Copyright (c) 2026, reuse_sync contributors
 *
 * IDENTIFICATION
 *	  src/remote_snapshot.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/memutils.h"

#include "remote_snapshot.h"

/* More than this many xids running at once is no snapshot but an attack. */
#define MAX_XIP		(8 * 1024 * 1024)

/* With more than these a new slot costs less than to keep them. */
#define MAX_DELIVERED	65536

static int
compare_xids(const void *a, const void *b)
{
	uint64		x = *(const uint64 *) a;
	uint64		y = *(const uint64 *) b;

	return x < y ? -1 : (x > y ? 1 : 0);
}

/* Read one number and step over it; false if there is none. */
static bool
read_xid(const char **p, uint64 *xid)
{
	char	   *end;

	if (**p < '0' || **p > '9')
		return false;
	errno = 0;
	*xid = strtou64(*p, &end, 10);
	*p = end;
	return errno == 0;
}

static bool
read_snapshot(const char *p, RemoteSnapshot *snapshot)
{
	int			size = 0;

	if (!read_xid(&p, &snapshot->xmin) || *p++ != ':' ||
		!read_xid(&p, &snapshot->xmax) || *p++ != ':')
		return false;
	while (*p != '\0')
	{
		if (snapshot->nxip == size)
		{
			if (size >= MAX_XIP)
				return false;
			size = Max(16, size * 2);
			snapshot->xip = snapshot->xip == NULL ?
				palloc(size * sizeof(uint64)) :
				repalloc(snapshot->xip, size * sizeof(uint64));
		}
		if (!read_xid(&p, &snapshot->xip[snapshot->nxip++]))
			return false;
		if (*p == ',')
			p++;
		else if (*p != '\0')
			return false;
	}
	return true;
}

RemoteSnapshot *
remote_snapshot_parse(const char *text)
{
	RemoteSnapshot *snapshot = palloc0(sizeof(RemoteSnapshot));

	if (text == NULL || !read_snapshot(text, snapshot))
		ereport(ERROR,
				errcode(ERRCODE_INVALID_TEXT_REPRESENTATION),
				errmsg("invalid snapshot from the publisher: \"%s\"",
					   text ? text : ""));
	if (snapshot->nxip > 1)
		qsort(snapshot->xip, snapshot->nxip, sizeof(uint64), compare_xids);
	return snapshot;
}

uint64
remote_snapshot_full_xid(const RemoteSnapshot *snapshot, TransactionId xid)
{
	/* The distance modulo 2^32, as a signed number, is the true one. */
	int32		distance = (int32) (xid - (TransactionId) snapshot->xmax);

	return snapshot->xmax + (int64) distance;
}

static bool
in_xip(const RemoteSnapshot *snapshot, uint64 xid)
{
	return snapshot->nxip > 0 &&
		bsearch(&xid, snapshot->xip, snapshot->nxip, sizeof(uint64),
				compare_xids) != NULL;
}

bool
remote_snapshot_sees(const RemoteSnapshot *snapshot, uint64 xid)
{
	return xid < snapshot->xmax && !in_xip(snapshot, xid);
}

bool
remote_snapshot_sees_all_of(const RemoteSnapshot *later,
							const RemoteSnapshot *birth)
{
	/* What 'later' does not see below the birth's xmax: its xip ... */
	for (int i = 0; i < later->nxip; i++)
		if (remote_snapshot_sees(birth, later->xip[i]))
			return false;

	/* ... and all from its own xmax on, all of which the birth must lack. */
	if (birth->xmax > later->xmax &&
		birth->xmax - later->xmax > (uint64) birth->nxip)
		return false;
	for (uint64 xid = later->xmax; xid < birth->xmax; xid++)
		if (remote_snapshot_sees(birth, xid))
			return false;
	return true;
}

bool
remote_snapshot_sees_delivered(const RemoteSnapshot *later,
							   const DeliveredXids *delivered)
{
	for (int i = 0; i < delivered->n; i++)
		if (!remote_snapshot_sees(later, delivered->xids[i]))
			return false;
	return true;
}

void
delivered_xids_add(DeliveredXids *delivered, uint64 xid,
				   MemoryContext context)
{
	if (delivered->n == MAX_DELIVERED)
		delivered->too_many = true;
	if (delivered->too_many)
		return;
	if (delivered->n == delivered->size)
	{
		delivered->size = Max(1024, delivered->size * 2);
		if (delivered->xids == NULL)
			delivered->xids =
				MemoryContextAlloc(context,
								   delivered->size * sizeof(uint64));
		else
			delivered->xids =
				repalloc_huge(delivered->xids,
							  delivered->size * sizeof(uint64));
	}
	delivered->xids[delivered->n++] = xid;
}

void
delivered_xids_prune(DeliveredXids *delivered, uint64 xmin)
{
	int			kept = 0;

	for (int i = 0; i < delivered->n; i++)
		if (delivered->xids[i] >= xmin)
			delivered->xids[kept++] = delivered->xids[i];
	delivered->n = kept;
}
