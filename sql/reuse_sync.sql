--
-- The SQL surface, on one server that publishes to itself.  Needs
-- shared_preload_libraries = 'reuse_sync' and wal_level = logical.
--
CREATE EXTENSION reuse_sync;

-- The settings and their defaults.
SELECT name, setting, unit, context FROM pg_settings
WHERE name LIKE 'reuse\_sync.%' ORDER BY name;
SET reuse_sync.no_such_setting = 1;

-- The views.
SELECT c.relname, string_agg(a.attname || ' ' || format_type(a.atttypid, NULL),
                             ', ' ORDER BY a.attnum) AS columns
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.relnamespace = 'reuse_sync'::regnamespace AND c.relkind = 'v'
      AND a.attnum > 0
GROUP BY c.relname ORDER BY c.relname;
SELECT pid > 0 AS has_pid, worker_type, datname, subname, slot_name, phase,
       relid, batch_tables, tables_synced, backend_start <= now() AS started
FROM reuse_sync.workers WHERE worker_type = 'launcher';
SELECT * FROM reuse_sync.slots;
SELECT * FROM reuse_sync.tables;
SELECT * FROM reuse_sync.subscriptions;
SELECT * FROM reuse_sync.stats;

-- The library and the SQL objects check each other's version.
SELECT reuse_sync.require_library('0.9');
BEGIN;
UPDATE pg_extension SET extversion = '0.9' WHERE extname = 'reuse_sync';
SELECT reuse_sync.wakeup();
ROLLBACK;

-- Nobody changes the catalog by hand.
INSERT INTO reuse_sync.slot_number VALUES (1, 1, 1);
REFRESH MATERIALIZED VIEW reuse_sync.slot_catalog;
REFRESH MATERIALIZED VIEW CONCURRENTLY reuse_sync.counter;

-- A publication of all tables leaves the catalog out.
CREATE PUBLICATION everything FOR ALL TABLES;
SELECT * FROM pg_publication_tables WHERE schemaname = 'reuse_sync';
DROP PUBLICATION everything;

-- Rights.
CREATE ROLE regress_reuse_sync_nobody;
CREATE ROLE regress_reuse_sync_monitor IN ROLE pg_monitor;
SET ROLE regress_reuse_sync_nobody;
SELECT * FROM reuse_sync.stats;
SELECT * FROM reuse_sync.workers;
SELECT * FROM reuse_sync.slots;
SELECT * FROM reuse_sync.tables;
SELECT * FROM reuse_sync.subscriptions;
SELECT * FROM reuse_sync.table_state;
SELECT * FROM reuse_sync.pool_workers();
SELECT * FROM reuse_sync.pool_copies();
SELECT * FROM reuse_sync.show_percent(1, now(), 1);
SELECT * FROM reuse_sync.check();
SELECT reuse_sync.wakeup();
CALL reuse_sync.drain();
SELECT reuse_sync.stats_reset();
SET ROLE regress_reuse_sync_monitor;
SELECT count(*) > 0 AS sees_the_pool FROM reuse_sync.workers;
SELECT * FROM reuse_sync.slots;
SELECT * FROM reuse_sync.tables;
SELECT * FROM reuse_sync.subscriptions;
SELECT tables_synced FROM reuse_sync.stats;
SELECT * FROM reuse_sync.slot_catalog;
SELECT reuse_sync.wakeup();
CALL reuse_sync.drain();
RESET ROLE;
GRANT EXECUTE ON PROCEDURE reuse_sync.drain(interval)
    TO regress_reuse_sync_monitor;
SET ROLE regress_reuse_sync_monitor;
CALL reuse_sync.drain();
RESET ROLE;

--
-- Synchronize from another database of this server.  Its slots are made by
-- hand where the command would wait for itself.
--
SELECT current_database() AS here,
       format('dbname=regress_reuse_sync_source port=%s host=%s',
              current_setting('port'),
              split_part(current_setting('unix_socket_directories'), ', ', 1))
       AS conninfo,
       current_user AS me \gset
CREATE DATABASE regress_reuse_sync_source;
\c regress_reuse_sync_source
CREATE TABLE small (id int PRIMARY KEY, v text);
CREATE TABLE "Odd name" (id int PRIMARY KEY);
CREATE TABLE broken (id int PRIMARY KEY);
INSERT INTO small SELECT g, 'row ' || g FROM generate_series(1, 3) g;
INSERT INTO "Odd name" VALUES (1);
INSERT INTO broken VALUES (1);
CREATE PUBLICATION source FOR ALL TABLES;
SELECT slot_name
FROM pg_create_logical_replication_slot('regress_reuse_sync', 'pgoutput');
\c :here
CREATE TABLE small (id int PRIMARY KEY, v text);
CREATE TABLE "Odd name" (id int PRIMARY KEY);
CREATE TABLE broken (id int PRIMARY KEY);
INSERT INTO broken VALUES (1);

CREATE SUBSCRIPTION regress_reuse_sync CONNECTION :'conninfo'
    PUBLICATION source WITH (create_slot = false);

-- Waits for what the views are to show; a query for psql to run.
CREATE FUNCTION wait_until(condition text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    done boolean := false;
    give_up timestamptz := clock_timestamp() + interval '60 s';
BEGIN
    WHILE NOT done LOOP
        EXECUTE 'SELECT ' || condition INTO done;
        IF clock_timestamp() > give_up THEN
            RAISE 'condition did not come true: %', condition;
        END IF;
        PERFORM pg_sleep(0.01) WHERE NOT done;
    END LOOP;
END $$;
SELECT wait_until($$(SELECT count(*) = 2 FROM reuse_sync.tables
                     WHERE state = 'ready')$$);
SELECT wait_until($$(SELECT attempts > 0 FROM reuse_sync.tables
                     WHERE relid = 'broken'::regclass)$$);
SELECT * FROM small ORDER BY id;
SELECT * FROM "Odd name";
SELECT subname, relid::regclass,
       CASE WHEN state = 'failed' OR relid <> 'broken'::regclass
            THEN state END AS state,
       bytes_copied, tuples_copied, started_at <= now() AS started,
       attempts > 0 AS tried, next_retry IS NOT NULL AS will_be_tried,
       last_error, last_error_time <= now() AS seen
FROM reuse_sync.tables ORDER BY relid::regclass::text COLLATE "C";

SELECT subname, tables, pending + copying + catching_up + failed AS unready,
       ready, bytes_copied, percent
FROM reuse_sync.subscriptions;

-- Mended, it synchronizes by itself.
TRUNCATE broken;
SELECT reuse_sync.wakeup();
SELECT wait_until($$(SELECT count(*) = 3 FROM reuse_sync.tables
                     WHERE state = 'ready')$$);
SELECT subname, relid::regclass, state, attempts, next_retry, last_error
FROM reuse_sync.tables ORDER BY relid::regclass::text COLLATE "C";
SELECT * FROM reuse_sync.subscriptions;
SELECT wait_until($$NOT EXISTS (SELECT FROM reuse_sync.slots)$$);
SELECT tables_synced, units, slots_created > 0 AS slots_created,
       slots_dropped = slots_created AS all_dropped,
       workers_started > 0 AS workers_started, bytes_copied, errors > 0 AS errors
FROM reuse_sync.stats;
SELECT slot_name FROM pg_replication_slots ORDER BY 1;

SELECT reuse_sync.stats_reset();
SELECT tables_synced, units, bytes_copied, errors,
       stats_reset <= now() AS was_reset
FROM reuse_sync.stats;

-- Nothing is half done, so the extension can go, and come back.
CALL reuse_sync.drain('10 s');
DROP EXTENSION reuse_sync;
CREATE EXTENSION reuse_sync;
SELECT relid::regclass, state FROM reuse_sync.tables
ORDER BY relid::regclass::text COLLATE "C";

-- A transaction that may not be prepared.
BEGIN;
DROP EXTENSION reuse_sync;
PREPARE TRANSACTION 'regress_reuse_sync';

ALTER SUBSCRIPTION regress_reuse_sync DISABLE;
ALTER SUBSCRIPTION regress_reuse_sync SET (slot_name = NONE);
DROP SUBSCRIPTION regress_reuse_sync;
SELECT * FROM reuse_sync.tables;
SELECT wait_until($$NOT EXISTS (SELECT FROM pg_replication_slots WHERE active)$$);
SELECT pg_drop_replication_slot('regress_reuse_sync');
DROP TABLE small, "Odd name", broken;
DROP FUNCTION wait_until(text);
DROP EXTENSION reuse_sync;
SELECT count(*) FROM pg_namespace WHERE nspname = 'reuse_sync';
DROP DATABASE regress_reuse_sync_source;
DROP ROLE regress_reuse_sync_nobody, regress_reuse_sync_monitor;
