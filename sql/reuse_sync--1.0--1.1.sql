/* reuse_sync--1.0--1.1.sql */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION reuse_sync UPDATE TO '1.1'" to load this file. \quit

-- CREATE EXTENSION comes through here as well, after reuse_sync--1.0.sql.
DO $$ BEGIN PERFORM reuse_sync.require_library('1.1'); END $$;
