/* reuse_sync--1.0--1.1.sql */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION reuse_sync UPDATE TO '1.1'" to load this file. \quit

-- CREATE EXTENSION comes through here as well, after reuse_sync--1.0.sql.
DO $$ BEGIN PERFORM reuse_sync.require_library('1.1'); END $$;

--
-- The catalog: see reuse_sync--1.0.sql for what its relations are.
--

-- The wait of a failing table that somebody has ended: the value of next_retry
-- in table_progress that counts no more.  A relation of its own because a row
-- there is changed by the table's worker alone.
CREATE MATERIALIZED VIEW reuse_sync.retry_request AS
SELECT NULL::oid AS dbid,
       NULL::oid AS subid,
       NULL::oid AS relid,
       NULL::timestamptz AS voids
WHERE false;
CREATE UNIQUE INDEX retry_request_key
    ON reuse_sync.retry_request (dbid, subid, relid);

-- Tables that are to be synchronized anew, a row for each transaction that asks
-- for it.
CREATE MATERIALIZED VIEW reuse_sync.resync AS
SELECT NULL::oid AS dbid,
       NULL::oid AS subid,
       NULL::oid AS relid,
       NULL::bigint AS xid,               -- of the transaction
       NULL::text AS stage,               -- requested, tried, set back, begun
       NULL::boolean AS truncate,         -- what the table holds is to go
       NULL::timestamptz AS requested_at
WHERE false;
CREATE UNIQUE INDEX resync_key ON reuse_sync.resync (dbid, subid, relid, xid);

-- What progress is reckoned by: the sizes of tables on the publisher as they
-- were when a worker first planned for them.  A run begins when a subscription
-- that had no unfinished table gets one; tables added meanwhile are of it.
CREATE MATERIALIZED VIEW reuse_sync.table_size AS
SELECT NULL::oid AS dbid,
       NULL::oid AS subid,
       NULL::oid AS relid,
       NULL::bigint AS bytes,
       NULL::timestamptz AS run_start
WHERE false;
CREATE UNIQUE INDEX table_size_key
    ON reuse_sync.table_size (dbid, subid, relid);

-- The units that tables were synchronized in: a row for the last one that a
-- table was the first of, so that there are no more of them than tables.
CREATE MATERIALIZED VIEW reuse_sync.unit_history AS
SELECT NULL::oid AS dbid,
       NULL::oid AS subid,
       NULL::oid AS relid,                -- its first table
       NULL::integer AS place,            -- of its worker in the pool
       NULL::integer AS pid,
       NULL::name AS slot_name,
       NULL::boolean AS slot_reused,
       NULL::integer AS tables,
       NULL::timestamptz AS started_at,
       NULL::timestamptz AS copied_at,    -- null: before, by another worker
       NULL::timestamptz AS finished_at,
       NULL::bigint AS bytes_copied,
       NULL::bigint AS tuples_copied
WHERE false;
CREATE UNIQUE INDEX unit_history_key
    ON reuse_sync.unit_history (dbid, subid, relid);

--
-- What people see.
--

CREATE FUNCTION reuse_sync.pool_copies(
    OUT pid integer,
    OUT datid oid,
    OUT subid oid,
    OUT relid oid,
    OUT done boolean,
    OUT bytes_copied bigint,
    OUT tuples_copied bigint,           -- null until it is done
    OUT bytes_expected bigint,
    OUT tuples_expected bigint,
    OUT copy_start timestamptz)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'reuse_sync_pool_copies'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION reuse_sync.pool_copies() IS
    'tables that live processes of the pool have copied or are copying, in all databases';
REVOKE ALL ON FUNCTION reuse_sync.pool_copies() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION reuse_sync.pool_copies() TO pg_monitor;

CREATE FUNCTION reuse_sync.show_percent(
    subid oid, run_start timestamptz, percent double precision)
RETURNS double precision
AS 'MODULE_PATHNAME', 'reuse_sync_show_percent'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION reuse_sync.show_percent(oid, timestamptz, double precision) IS
    'the percentage, or a larger one that was shown before for this run of the subscription';
REVOKE ALL ON FUNCTION reuse_sync.show_percent(oid, timestamptz, double precision) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION reuse_sync.show_percent(oid, timestamptz, double precision) TO pg_monitor;

CREATE FUNCTION reuse_sync.show_work(
    subid oid, run_start timestamptz, work double precision)
RETURNS double precision
AS 'MODULE_PATHNAME', 'reuse_sync_show_work'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION reuse_sync.show_work(oid, timestamptz, double precision) IS
    'the work done, or more that was seen before for this run of the subscription';
REVOKE ALL ON FUNCTION reuse_sync.show_work(oid, timestamptz, double precision) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION reuse_sync.show_work(oid, timestamptz, double precision) TO pg_monitor;

-- What the views of tables and of subscriptions have in common.  "share" is
-- how much of a table has been copied, from 0 to 1: of the bytes or of the
-- rows, whichever is less, since COPY reads a little ahead.
CREATE VIEW reuse_sync.table_state AS
SELECT s.oid AS subid,
       s.subname,
       r.srrelid AS relid,
       CASE WHEN r.srsubstate = 'r' AND NOT e.resync THEN 'ready'
            WHEN r.srsubstate = 's' THEN 'synchronized'
            WHEN w.pid IS NOT NULL THEN w.phase
            WHEN p.attempts > 0 AND q.relid IS NULL THEN 'failed'
            WHEN r.srsubstate = 'f' THEN 'copied'
            ELSE 'pending' END AS state,
       w.pid,
       coalesce(w.slot_name, c.slot_name) AS slot_name,
       CASE WHEN r.srsubstate IN ('f', 's', 'r')
            THEN coalesce(p.bytes_total, z.bytes)
            WHEN k.done THEN k.bytes_copied
            ELSE greatest(coalesce(k.bytes_expected, z.bytes), k.bytes_copied)
            END AS bytes_total,
       CASE WHEN r.srsubstate IN ('i', 'd') AND w.pid IS NOT NULL
            THEN coalesce(k.bytes_copied, 0)
            ELSE p.bytes_copied END AS bytes_copied,
       CASE WHEN r.srsubstate IN ('i', 'd') AND w.pid IS NOT NULL
            THEN coalesce(k.tuples_copied, y.tuples_processed, 0)
            ELSE p.tuples_copied END AS tuples_copied,
       CASE WHEN r.srsubstate IN ('i', 'd') AND w.pid IS NOT NULL
            THEN w.unit_start ELSE p.started_at END AS started_at,
       CASE WHEN r.srsubstate IN ('f', 's', 'r') AND NOT
                 (r.srsubstate = 'r' AND e.resync) OR k.done THEN 1
            WHEN k.bytes_expected > 0
            THEN least(1, k.bytes_copied::float8 / k.bytes_expected,
                       y.tuples_processed::float8
                       / nullif(k.tuples_expected, 0))
            ELSE 0 END AS share,
       CASE WHEN r.srsubstate IN ('i', 'd') AND NOT k.done
            THEN k.copy_start END AS copy_start,
       coalesce(p.attempts, 0) AS attempts,
       CASE WHEN q.relid IS NULL THEN p.next_retry END AS next_retry,
       p.last_error,
       p.last_error_time,
       -- what a table costs beyond its bytes is reckoned as some more of them
       coalesce(z.bytes, 0) + 65536 AS weight,
       -- a table that is asked for anew since is of a run that is to come
       CASE WHEN e.requested_at > z.run_start THEN NULL
            ELSE z.run_start END AS run_start
FROM pg_catalog.pg_subscription_rel r
     JOIN pg_catalog.pg_subscription s ON s.oid = r.srsubid
     LEFT JOIN reuse_sync.table_progress p
            ON p.dbid = s.subdbid AND p.subid = r.srsubid
               AND p.relid = r.srrelid
     LEFT JOIN reuse_sync.table_size z
            ON z.dbid = s.subdbid AND z.subid = r.srsubid
               AND z.relid = r.srrelid
     LEFT JOIN reuse_sync.retry_request q
            ON q.dbid = p.dbid AND q.subid = p.subid
               AND q.relid = p.relid AND q.voids = p.next_retry
     LEFT JOIN reuse_sync.pool_workers() w
            ON w.datid = s.subdbid AND w.subid = r.srsubid
               AND r.srrelid = ANY (w.relids)
     LEFT JOIN reuse_sync.pool_copies() k
            ON k.pid = w.pid AND k.relid = r.srrelid
     LEFT JOIN reuse_sync.slot_catalog c
            ON c.dbid = s.subdbid AND c.subid = r.srsubid
               AND c.slot_id = p.slot_id AND r.srsubstate = 'f'
     LEFT JOIN pg_catalog.pg_stat_progress_copy y
            ON y.pid = w.pid AND y.relid = r.srrelid
     CROSS JOIN LATERAL (
            SELECT count(*) > 0 AS resync,
                   max(x.requested_at) AS requested_at
            FROM reuse_sync.resync x
            WHERE x.dbid = s.subdbid AND x.subid = r.srsubid
                  AND x.relid = r.srrelid) e
WHERE s.subdbid = (SELECT oid FROM pg_catalog.pg_database
                   WHERE datname = pg_catalog.current_database());
COMMENT ON VIEW reuse_sync.table_state IS
    'what reuse_sync.tables and reuse_sync.subscriptions are made of';
GRANT SELECT ON reuse_sync.table_state TO pg_monitor;

CREATE OR REPLACE VIEW reuse_sync.tables AS
SELECT subname,
       relid,
       state,
       pid,
       slot_name,
       bytes_total,
       bytes_copied,
       tuples_copied,
       started_at,
       CASE WHEN copy_start IS NOT NULL AND share > 0
            THEN pg_catalog.clock_timestamp()
                 + (pg_catalog.clock_timestamp() - copy_start)
                 * ((1 - share) / share) END AS eta,
       attempts,
       next_retry,
       last_error,
       last_error_time
FROM reuse_sync.table_state;

-- Percentages and times are of the subscription's last run: its unfinished
-- tables, and those that were finished since it began.  How fast it goes is
-- taken from the run as a whole; but from the copies at work where something
-- has failed, since much of the time went into what was thrown away.
CREATE VIEW reuse_sync.subscriptions AS
SELECT s.subname,
       coalesce(t.tables, 0) AS tables,
       coalesce(t.pending, 0) AS pending,
       coalesce(t.copying, 0) AS copying,
       coalesce(t.catching_up, 0) AS catching_up,
       coalesce(t.ready, 0) AS ready,
       coalesce(t.failed, 0) AS failed,
       t.bytes_total,
       t.bytes_copied,
       CASE WHEN t.tables IS NULL OR t.tables = t.ready THEN 100.0
            WHEN t.run_start IS NULL THEN 0.0
            ELSE pg_catalog.trunc(reuse_sync.show_percent(s.oid, t.run_start,
                     least(99.9, 100 * t.work_done / t.work))::numeric, 1)
            END AS percent,
       CASE WHEN t.working = 0 OR t.work_done <= 0 THEN NULL
            WHEN t.troubled AND t.copying_speed > 0
            THEN pg_catalog.clock_timestamp() + (t.work - t.work_done)
                 / t.copying_speed * interval '1 second'
            ELSE pg_catalog.clock_timestamp()
                 + (pg_catalog.clock_timestamp() - t.run_start)
                 * (t.work / least(t.work, reuse_sync.show_work(s.oid,
                        t.run_start, t.work_done)) - 1)
            END AS eta
FROM pg_catalog.pg_subscription s
     LEFT JOIN
     (SELECT subid,
             run_start,
             count(*) AS tables,
             count(*) FILTER (WHERE step = 'pending') AS pending,
             count(*) FILTER (WHERE step = 'copying') AS copying,
             count(*) FILTER (WHERE step = 'catching up') AS catching_up,
             count(*) FILTER (WHERE step = 'ready') AS ready,
             count(*) FILTER (WHERE step = 'failed') AS failed,
             sum(bytes_total)::bigint AS bytes_total,
             sum(bytes_copied)::bigint AS bytes_copied,
             sum(weight) FILTER (WHERE in_run) AS work,
             sum(weight * share) FILTER (WHERE in_run) AS work_done,
             count(pid) AS working,
             coalesce(bool_or(attempts > 0), false) AS troubled,
             sum(weight * share
                 / nullif(extract(epoch FROM
                          pg_catalog.clock_timestamp() - copy_start), 0)
                ) FILTER (WHERE copy_start IS NOT NULL)::float8
                 AS copying_speed
      FROM (SELECT *,
                   CASE WHEN state IN ('ready', 'failed', 'copying')
                        THEN state
                        WHEN state IN ('synchronized', 'copied', 'catching up',
                                       'handing over', 'dropping slots')
                        THEN 'catching up'
                        ELSE 'pending' END AS step,
                   state <> 'ready'
                   OR table_run_start = run_start AS in_run
            FROM (SELECT subid, relid, state, pid, bytes_total, bytes_copied,
                         share::float8 AS share, copy_start, attempts,
                         weight::float8 AS weight,
                         run_start AS table_run_start,
                         -- null: the run is over, or the next not planned
                         max(run_start) FILTER (WHERE state <> 'ready')
                         OVER (PARTITION BY subid) AS run_start
                  FROM reuse_sync.table_state) a) b
      GROUP BY subid, run_start) t ON t.subid = s.oid
WHERE s.subdbid = (SELECT oid FROM pg_catalog.pg_database
                   WHERE datname = pg_catalog.current_database());
COMMENT ON VIEW reuse_sync.subscriptions IS
    'one row per subscription of this database: how far its synchronization is';
GRANT SELECT ON reuse_sync.subscriptions TO pg_monitor;

CREATE VIEW reuse_sync.units AS
SELECT s.subname,
       u.relid,
       u.tables,
       u.place,
       u.pid,
       u.slot_name,
       u.slot_reused,
       u.started_at,
       u.copied_at,
       u.finished_at,
       u.bytes_copied,
       u.tuples_copied
FROM reuse_sync.unit_history u
     JOIN pg_catalog.pg_subscription s
       ON s.oid = u.subid AND s.subdbid = u.dbid
     JOIN pg_catalog.pg_subscription_rel r
       ON r.srsubid = u.subid AND r.srrelid = u.relid
     JOIN (SELECT dbid, subid, max(run_start) AS run_start
           FROM reuse_sync.table_size
           GROUP BY dbid, subid) l
       ON l.dbid = u.dbid AND l.subid = u.subid
     LEFT JOIN reuse_sync.table_size z
       ON z.dbid = u.dbid AND z.subid = u.subid AND z.relid = u.relid
WHERE coalesce(z.run_start, u.started_at) >= l.run_start
      AND s.subdbid = (SELECT oid FROM pg_catalog.pg_database
                       WHERE datname = pg_catalog.current_database());
COMMENT ON VIEW reuse_sync.units IS
    'one row per unit, a table or a batch of them, that was synchronized in a subscription''s last run';
GRANT SELECT ON reuse_sync.units TO pg_monitor;

CREATE FUNCTION reuse_sync.pool_slots(
    OUT datid oid,
    OUT subid oid,
    OUT slot_id bigint,
    OUT restart_lsn pg_lsn,
    OUT wal_bytes bigint,
    OUT catalog_xmin xid,
    OUT snapshot_xmin xid8,
    OUT checked_at timestamptz)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'reuse_sync_pool_slots'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION reuse_sync.pool_slots() IS
    'what live processes of the pool know of their slots on publishers, in all databases';

CREATE FUNCTION reuse_sync.pool_problems(
    OUT subid oid,
    OUT last_error text,
    OUT last_error_time timestamptz)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'reuse_sync_pool_problems'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION reuse_sync.pool_problems() IS
    'what subscriptions wait for, in all databases';

-- Where a slot and a snapshot hold the publisher up: as the slot's worker saw
-- it last, at checked_at; null if no worker has the slot.
CREATE OR REPLACE VIEW reuse_sync.slots AS
SELECT c.slot_name,
       c.subid,
       s.subname,
       c.slot_id,
       CASE WHEN c.state IN ('creating', 'orphaned') THEN c.state
            WHEN l.relid IS NOT NULL THEN 'linked'
            WHEN w.pid IS NULL THEN 'orphaned'
            WHEN w.batch_tables > 0 THEN 'active'
            ELSE 'idle' END AS state,
       w.pid,
       coalesce(w.relid, l.relid) AS relid,
       c.created_at,
       c.tables_synced,
       c.last_error,
       p.restart_lsn,
       p.wal_bytes,
       p.catalog_xmin,
       p.snapshot_xmin,
       p.checked_at
FROM reuse_sync.slot_catalog c
     LEFT JOIN pg_catalog.pg_subscription s ON s.oid = c.subid
     LEFT JOIN reuse_sync.pool_workers() w
            ON w.datid = c.dbid AND w.subid = c.subid
               AND w.slot_id = c.slot_id
     LEFT JOIN reuse_sync.pool_slots() p
            ON p.datid = c.dbid AND p.subid = c.subid
               AND p.slot_id = c.slot_id
     LEFT JOIN (SELECT p.dbid, p.subid, p.slot_id, p.relid
                FROM reuse_sync.table_progress p
                     JOIN pg_catalog.pg_subscription_rel r
                       ON r.srsubid = p.subid AND r.srrelid = p.relid
                WHERE r.srsubstate = 'f') l
            ON l.dbid = c.dbid AND l.subid = c.subid
               AND l.slot_id = c.slot_id AND c.state = 'linked'
WHERE c.dbid = (SELECT oid FROM pg_catalog.pg_database
                WHERE datname = pg_catalog.current_database());

CREATE VIEW reuse_sync.problems AS
SELECT s.subname,
       p.last_error,
       p.last_error_time
FROM reuse_sync.pool_problems() p
     JOIN pg_catalog.pg_subscription s ON s.oid = p.subid
WHERE s.subdbid = (SELECT oid FROM pg_catalog.pg_database
                   WHERE datname = pg_catalog.current_database());
COMMENT ON VIEW reuse_sync.problems IS
    'what keeps a subscription of this database from getting further, beside errors of tables';

REVOKE ALL ON FUNCTION reuse_sync.pool_slots() FROM PUBLIC;
REVOKE ALL ON FUNCTION reuse_sync.pool_problems() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION reuse_sync.pool_slots() TO pg_monitor;
GRANT EXECUTE ON FUNCTION reuse_sync.pool_problems() TO pg_monitor;
GRANT SELECT ON reuse_sync.problems TO pg_monitor;

--
-- What people do.  Who may do it is checked by each function.
--
GRANT USAGE ON SCHEMA reuse_sync TO PUBLIC;

CREATE FUNCTION reuse_sync.wait_for_sync(
    subname name,
    timeout interval DEFAULT NULL,
    fail_fast boolean DEFAULT false)
RETURNS void
AS 'MODULE_PATHNAME', 'reuse_sync_wait_for_sync'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION reuse_sync.wait_for_sync(name, interval, boolean) IS
    'returns when all tables of the subscription are ready; an error at the timeout, or with fail_fast as soon as a table has failed';

CREATE FUNCTION reuse_sync.retry(
    subname name,
    relation regclass DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'reuse_sync_retry'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION reuse_sync.retry(name, regclass) IS
    'has a failing table of the subscription, or all, tried again at once';

CREATE FUNCTION reuse_sync.drop_orphaned_slots(subname name DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'reuse_sync_drop_orphaned_slots'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION reuse_sync.drop_orphaned_slots(name) IS
    'drops the replication slots on publishers that no worker holds and no table needs, as far as possible now; how many';

CREATE FUNCTION reuse_sync.resync_table(
    subname name,
    relation regclass,
    truncate boolean DEFAULT true)
RETURNS void
AS 'MODULE_PATHNAME', 'reuse_sync_resync_table'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION reuse_sync.resync_table(name, regclass, boolean) IS
    'has one table of the subscription synchronized anew while replication of all others goes on';

CREATE FUNCTION reuse_sync.check(
    OUT severity text,                  -- error, warning, notice
    OUT object text,
    OUT problem text,
    OUT hint text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'reuse_sync_check'
LANGUAGE C VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp;
COMMENT ON FUNCTION reuse_sync.check() IS
    'one row per thing that is wrong or likely to go wrong here or on the publishers';
REVOKE ALL ON FUNCTION reuse_sync.check() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION reuse_sync.check() TO pg_monitor;

-- Who is not of pg_monitor may have one of a subscription of his own, and
-- that is checked by the function.
CREATE FUNCTION reuse_sync.report(subname name)
RETURNS text
AS 'MODULE_PATHNAME', 'reuse_sync_report'
LANGUAGE C VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp;
COMMENT ON FUNCTION reuse_sync.report(name) IS
    'one page of HTML about the subscription: its progress, last run, tables, slots, failures and problems';
