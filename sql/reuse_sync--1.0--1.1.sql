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

--
-- What people see.
--

CREATE OR REPLACE VIEW reuse_sync.tables AS
SELECT s.subname,
       r.srrelid AS relid,
       CASE WHEN r.srsubstate = 'r' AND NOT e.resync THEN 'ready'
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
       CASE WHEN q.relid IS NULL THEN p.next_retry END AS next_retry,
       p.last_error,
       p.last_error_time
FROM pg_catalog.pg_subscription_rel r
     JOIN pg_catalog.pg_subscription s ON s.oid = r.srsubid
     LEFT JOIN reuse_sync.table_progress p
            ON p.dbid = s.subdbid AND p.subid = r.srsubid
               AND p.relid = r.srrelid
     LEFT JOIN reuse_sync.retry_request q
            ON q.dbid = p.dbid AND q.subid = p.subid
               AND q.relid = p.relid AND q.voids = p.next_retry
     LEFT JOIN reuse_sync.pool_workers() w
            ON w.datid = s.subdbid AND w.subid = r.srsubid
               AND r.srrelid = ANY (w.relids)
     LEFT JOIN reuse_sync.slot_catalog c
            ON c.dbid = s.subdbid AND c.subid = r.srsubid
               AND c.slot_id = p.slot_id AND r.srsubstate = 'f'
     LEFT JOIN pg_catalog.pg_stat_progress_copy y
            ON y.pid = w.pid AND y.relid = r.srrelid
     CROSS JOIN LATERAL (SELECT EXISTS (
            SELECT FROM reuse_sync.resync z
            WHERE z.dbid = s.subdbid AND z.subid = r.srsubid
                  AND z.relid = r.srrelid) AS resync) e;

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
