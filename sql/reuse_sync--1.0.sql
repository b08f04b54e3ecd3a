/* reuse_sync--1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION reuse_sync" to load this file. \quit

-- In the script, so that it goes with the extension.
CREATE SCHEMA reuse_sync;

-- Fails with a hint if the library is another version than this script.
CREATE FUNCTION reuse_sync.require_library(version text) RETURNS void
AS 'MODULE_PATHNAME', 'reuse_sync_require_library'
LANGUAGE C STRICT;

DO $$ BEGIN PERFORM reuse_sync.require_library('1.0'); END $$;

REVOKE ALL ON FUNCTION reuse_sync.require_library(text) FROM PUBLIC;

--
-- The catalog.
--
-- Written by the library alone.  Materialized views, because they are the
-- relations that a FOR ALL TABLES publication of this database leaves out,
-- that survive a crash, and that no SQL command but REFRESH changes (which
-- the library refuses).  Every row carries the database's oid: CREATE
-- DATABASE ... TEMPLATE copies them, and a copy is not ours.
--

-- A row per slot that exists, or may exist, on a publisher.
CREATE MATERIALIZED VIEW reuse_sync.slot_catalog AS
SELECT NULL::oid AS dbid,
       NULL::oid AS subid,
       NULL::bigint AS slot_id,
       NULL::name AS slot_name,
       NULL::text AS state,               -- creating, created, linked, orphaned
       NULL::oid AS relid,                -- the table a linked slot is for
       NULL::timestamptz AS created_at,
       NULL::bigint AS publisher_sysid,   -- the server it was created on
       NULL::integer AS publisher_timeline,
       NULL::bigint AS tables_synced,
       NULL::text AS last_error,
       NULL::text AS conninfo             -- of a subscription that is gone
WHERE false;
CREATE UNIQUE INDEX slot_catalog_key
    ON reuse_sync.slot_catalog (dbid, subid, slot_id);

-- The last slot number given out, per subscription; never goes back.
CREATE MATERIALIZED VIEW reuse_sync.slot_number AS
SELECT NULL::oid AS dbid,
       NULL::oid AS subid,
       NULL::bigint AS last_slot_id
WHERE false;
CREATE UNIQUE INDEX slot_number_key ON reuse_sync.slot_number (dbid, subid);

-- What is known of a table beyond pg_subscription_rel.
CREATE MATERIALIZED VIEW reuse_sync.table_progress AS
SELECT NULL::oid AS dbid,
       NULL::oid AS subid,
       NULL::oid AS relid,
       NULL::bigint AS slot_id,           -- while in state f: its slot
       NULL::xid AS copy_xid,             -- the transaction that set f
       NULL::text AS snapshot,            -- what the copy saw
       NULL::pg_lsn AS filter_end,        -- the snapshot decides below this
       NULL::text AS publications,        -- that the slot's stream is of
       NULL::boolean AS was_empty,        -- before its first copy
       NULL::timestamptz AS started_at,
       NULL::bigint AS bytes_total,
       NULL::bigint AS bytes_copied,
       NULL::bigint AS tuples_copied,
       NULL::integer AS attempts,         -- failures in a row
       NULL::timestamptz AS next_retry,
       NULL::text AS last_error,
       NULL::timestamptz AS last_error_time
WHERE false;
CREATE UNIQUE INDEX table_progress_key
    ON reuse_sync.table_progress (dbid, subid, relid);

-- Counters, a row per place in the pool so that workers never wait for
-- each other; they move in the transaction whose work they count.
CREATE MATERIALIZED VIEW reuse_sync.counter AS
SELECT NULL::oid AS dbid,
       NULL::integer AS place,
       NULL::bigint AS tables_synced,
       NULL::bigint AS units,
       NULL::bigint AS slots_created,
       NULL::bigint AS slots_reused,
       NULL::bigint AS slots_dropped,
       NULL::bigint AS workers_started,
       NULL::bigint AS bytes_copied,
       NULL::bigint AS transactions_skipped,
       NULL::bigint AS transactions_applied,
       NULL::bigint AS errors,
       NULL::timestamptz AS stats_reset
WHERE false;
CREATE UNIQUE INDEX counter_key ON reuse_sync.counter (dbid, place);

--
-- What people see.
--

CREATE FUNCTION reuse_sync.pool_workers(
    OUT pid integer,
    OUT worker_type text,
    OUT datid oid,
    OUT subid oid,
    OUT slot_id bigint,
    OUT slot_name name,
    OUT phase text,
    OUT relid oid,
    OUT relids oid[],
    OUT batch_tables integer,
    OUT tables_synced bigint,
    OUT bytes_total bigint,
    OUT bytes_copied bigint,
    OUT unit_start timestamptz,
    OUT backend_start timestamptz,
    OUT state_change timestamptz)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'reuse_sync_pool_workers'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION reuse_sync.pool_workers() IS
    'live processes of the pool, in all databases';

CREATE VIEW reuse_sync.workers AS
SELECT w.pid,
       w.worker_type,
       d.datname,
       s.subname,
       w.slot_name,
       w.phase,
       w.relid,
       w.batch_tables,
       w.tables_synced,
       w.backend_start,
       w.state_change
FROM reuse_sync.pool_workers() w
     LEFT JOIN pg_catalog.pg_database d ON d.oid = w.datid
     LEFT JOIN pg_catalog.pg_subscription s ON s.oid = w.subid;
COMMENT ON VIEW reuse_sync.workers IS
    'one row per live process of the pool, launcher included';

CREATE VIEW reuse_sync.slots AS
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
       c.last_error
FROM reuse_sync.slot_catalog c
     LEFT JOIN pg_catalog.pg_subscription s ON s.oid = c.subid
     LEFT JOIN reuse_sync.pool_workers() w
            ON w.datid = c.dbid AND w.subid = c.subid
               AND w.slot_id = c.slot_id
     LEFT JOIN (SELECT p.dbid, p.subid, p.slot_id, p.relid
                FROM reuse_sync.table_progress p
                     JOIN pg_catalog.pg_subscription_rel r
                       ON r.srsubid = p.subid AND r.srrelid = p.relid
                WHERE r.srsubstate = 'f') l
            ON l.dbid = c.dbid AND l.subid = c.subid
               AND l.slot_id = c.slot_id AND c.state = 'linked'
WHERE c.dbid = (SELECT oid FROM pg_catalog.pg_database
                WHERE datname = pg_catalog.current_database());
COMMENT ON VIEW reuse_sync.slots IS
    'one row per replication slot that exists or may exist on a publisher for this database';

CREATE VIEW reuse_sync.tables AS
SELECT s.subname,
       r.srrelid AS relid,
       CASE WHEN r.srsubstate = 'r' THEN 'ready'
            WHEN r.srsubstate = 's' THEN 'synchronized'
            WHEN w.pid IS NOT NULL THEN w.phase
            WHEN p.attempts > 0 THEN 'failed'
            WHEN r.srsubstate = 'f' THEN 'copied'
            ELSE 'pending' END AS state,
       w.pid,
       coalesce(w.slot_name, c.slot_name) AS slot_name,
       coalesce(CASE WHEN w.relid IS NOT NULL THEN w.bytes_total END,
                p.bytes_total) AS bytes_total,
       CASE WHEN w.relid IS NOT NULL AND r.srsubstate IN ('i', 'd')
            THEN w.bytes_copied ELSE p.bytes_copied END AS bytes_copied,
       CASE WHEN w.pid IS NOT NULL AND r.srsubstate IN ('i', 'd')
            THEN y.tuples_processed ELSE p.tuples_copied END AS tuples_copied,
       CASE WHEN w.pid IS NOT NULL AND r.srsubstate IN ('i', 'd')
            THEN w.unit_start ELSE p.started_at END AS started_at,
       CASE WHEN w.relid IS NOT NULL AND w.bytes_copied > 0
                 AND w.bytes_total > w.bytes_copied
                 AND r.srsubstate IN ('i', 'd')
            THEN pg_catalog.clock_timestamp()
                 + (pg_catalog.clock_timestamp() - w.unit_start)
                 * ((w.bytes_total - w.bytes_copied)::float8
                    / w.bytes_copied)
            END AS eta,
       coalesce(p.attempts, 0) AS attempts,
       p.next_retry,
       p.last_error,
       p.last_error_time
FROM pg_catalog.pg_subscription_rel r
     JOIN pg_catalog.pg_subscription s ON s.oid = r.srsubid
     LEFT JOIN reuse_sync.table_progress p
            ON p.dbid = s.subdbid AND p.subid = r.srsubid
               AND p.relid = r.srrelid
     LEFT JOIN reuse_sync.pool_workers() w
            ON w.datid = s.subdbid AND w.subid = r.srsubid
               AND r.srrelid = ANY (w.relids)
     LEFT JOIN reuse_sync.slot_catalog c
            ON c.dbid = s.subdbid AND c.subid = r.srsubid
               AND c.slot_id = p.slot_id AND r.srsubstate = 'f'
     LEFT JOIN pg_catalog.pg_stat_progress_copy y
            ON y.pid = w.pid AND y.relid = r.srrelid;
COMMENT ON VIEW reuse_sync.tables IS
    'one row per table of a subscription of this database';

CREATE VIEW reuse_sync.stats AS
SELECT coalesce(sum(tables_synced), 0)::bigint AS tables_synced,
       coalesce(sum(units), 0)::bigint AS units,
       coalesce(sum(slots_created), 0)::bigint AS slots_created,
       coalesce(sum(slots_reused), 0)::bigint AS slots_reused,
       coalesce(sum(slots_dropped), 0)::bigint AS slots_dropped,
       coalesce(sum(workers_started), 0)::bigint AS workers_started,
       coalesce(sum(bytes_copied), 0)::bigint AS bytes_copied,
       coalesce(sum(transactions_skipped), 0)::bigint AS transactions_skipped,
       coalesce(sum(transactions_applied), 0)::bigint AS transactions_applied,
       coalesce(sum(errors), 0)::bigint AS errors,
       max(stats_reset) AS stats_reset
FROM reuse_sync.counter
WHERE dbid = (SELECT oid FROM pg_catalog.pg_database
              WHERE datname = pg_catalog.current_database());
COMMENT ON VIEW reuse_sync.stats IS
    'what the pool has done in this database';

--
-- What people do.
--

CREATE FUNCTION reuse_sync.wakeup() RETURNS void
AS 'MODULE_PATHNAME', 'reuse_sync_wakeup'
LANGUAGE C STRICT VOLATILE;
COMMENT ON FUNCTION reuse_sync.wakeup() IS
    'has the launcher look at this database now, and ends a drain';
REVOKE ALL ON FUNCTION reuse_sync.wakeup() FROM PUBLIC;

CREATE PROCEDURE reuse_sync.drain(timeout interval DEFAULT NULL)
AS 'MODULE_PATHNAME', 'reuse_sync_drain'
LANGUAGE C;
COMMENT ON PROCEDURE reuse_sync.drain(interval) IS
    'gives the tables of this database back to the server: finishes or sets back what is half done and drops all slots';
REVOKE ALL ON PROCEDURE reuse_sync.drain(interval) FROM PUBLIC;

CREATE FUNCTION reuse_sync.stats_reset() RETURNS void
AS 'MODULE_PATHNAME', 'reuse_sync_stats_reset'
LANGUAGE C STRICT VOLATILE;
COMMENT ON FUNCTION reuse_sync.stats_reset() IS
    'sets the counters of this database to zero';
REVOKE ALL ON FUNCTION reuse_sync.stats_reset() FROM PUBLIC;

--
-- Rights: as the pg_stat_* views that show the same to pg_monitor only.
--
REVOKE ALL ON FUNCTION reuse_sync.pool_workers() FROM PUBLIC;
GRANT USAGE ON SCHEMA reuse_sync TO pg_monitor;
GRANT EXECUTE ON FUNCTION reuse_sync.pool_workers() TO pg_monitor;
GRANT SELECT ON reuse_sync.workers, reuse_sync.slots, reuse_sync.tables,
    reuse_sync.stats TO pg_monitor;
