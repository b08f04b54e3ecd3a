# Initial copy of tables of all shapes: columns, keys, defaults, constraints,
# triggers, inheritance, sizes; and the ways to subscribe to them.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use ReuseSync;
use ReuseSync::Cases;

my $pub = new_publisher('pub');
my $sub = new_subscriber('sub', wal_retrieve_retry_interval => '200ms');

my @cases;

#
# Keys and replica identities
#

push @cases,
  {
	name    => 'integer key',
	both    => 'CREATE TABLE int_key (a int PRIMARY KEY, b text)',
	pub     => q{INSERT INTO int_key SELECT i, 'row ' || i
				FROM generate_series(1, 500) i},
	publish => 'int_key',
	later   => q{INSERT INTO int_key VALUES (501, 'new');
				UPDATE int_key SET b = 'changed' WHERE a = 7;
				UPDATE int_key SET a = -a WHERE a = 8;
				DELETE FROM int_key WHERE a = 9},
	rows => 'int_key',
  },
  {
	name    => 'text key',
	both    => 'CREATE TABLE text_key (a text PRIMARY KEY, b int)',
	pub     => q{INSERT INTO text_key VALUES ('', 1), (' ', 2), ('a', 3),
				('A', 4), ('NULL', 5), (E'\\\\N', 6), (E'\n', 7)},
	publish => 'text_key',
	later   => q{UPDATE text_key SET b = -b WHERE a IN ('', E'\\\\N', E'\n');
				DELETE FROM text_key WHERE a IN (' ', 'A')},
	rows => 'text_key',
  },
  {
	name => 'key of several columns, not the first ones',
	both => q{CREATE TABLE wide_key (a int, b text, c date, d int,
				PRIMARY KEY (d, b))},
	pub => q{INSERT INTO wide_key SELECT i, i % 7, DATE '2020-01-01' + i, i / 7
				FROM generate_series(1, 50) i},
	publish => 'wide_key',
	later   => q{UPDATE wide_key SET a = 0 WHERE d = 3;
				DELETE FROM wide_key WHERE b = '4'},
	rows => 'wide_key',
  },
  {
	name => 'no key, replica identity full, equal rows and nulls',
	both => q{CREATE TABLE full_identity (a int, b text);
				ALTER TABLE full_identity REPLICA IDENTITY FULL},
	pub => q{INSERT INTO full_identity VALUES (1, 'x'), (1, 'x'), (NULL, 'x'),
				(2, NULL), (NULL, NULL)},
	publish => 'full_identity',
	later   => q{UPDATE full_identity SET b = 'y' WHERE a = 2;
				DELETE FROM full_identity WHERE a IS NULL AND b IS NULL},
	rows => 'full_identity',
  },
  {
	name => 'replica identity using an index',
	both => q{CREATE TABLE index_identity (a int PRIMARY KEY, b int NOT NULL);
				CREATE UNIQUE INDEX index_identity_b ON index_identity (b);
				ALTER TABLE index_identity
					REPLICA IDENTITY USING INDEX index_identity_b},
	pub => 'INSERT INTO index_identity SELECT i, 100 - i
				FROM generate_series(1, 20) i',
	publish => 'index_identity',
	later   => q{UPDATE index_identity SET a = a + 1000 WHERE b < 85;
				DELETE FROM index_identity WHERE b > 97},
	rows => 'index_identity',
  },
  {
	name    => 'no key and no replica identity',
	both    => 'CREATE TABLE no_identity (a int, b text)',
	pub     => q{INSERT INTO no_identity VALUES (1, 'x'), (1, 'x')},
	publish => 'no_identity',
	later   => q{INSERT INTO no_identity VALUES (1, 'x')},
	rows    => 'no_identity',
  },
  {
	name    => 'replica identity nothing',
	both    => q{CREATE TABLE nothing_identity (a int PRIMARY KEY);
				ALTER TABLE nothing_identity REPLICA IDENTITY NOTHING},
	pub     => 'INSERT INTO nothing_identity VALUES (1), (2)',
	publish => 'nothing_identity',
	later   => 'INSERT INTO nothing_identity VALUES (3)',
	rows    => 'nothing_identity',
  };

#
# Columns
#

push @cases,
  {
	name    => 'empty table',
	both    => 'CREATE TABLE empty_table (a int PRIMARY KEY, b text)',
	publish => 'empty_table',
	later   => q{INSERT INTO empty_table VALUES (1, 'first')},
	rows    => 'empty_table',
	empty   => 1,
  },
  {
	name => 'table without columns',
	both => 'CREATE TABLE no_columns ()',
	pub  => q{INSERT INTO no_columns DEFAULT VALUES;
				INSERT INTO no_columns DEFAULT VALUES},
	publish => 'no_columns',
	later   => 'INSERT INTO no_columns DEFAULT VALUES',
	rows    => 'no_columns',
  },
  {
	name => 'dropped columns on both sides, different ones',
	pub  => q{CREATE TABLE dropped (z1 text, a int PRIMARY KEY, z2 int, b text);
				INSERT INTO dropped VALUES ('gone', 1, 1, 'one');
				ALTER TABLE dropped DROP COLUMN z1, DROP COLUMN z2;
				INSERT INTO dropped VALUES (2, 'two')},
	sub => q{CREATE TABLE dropped (a int PRIMARY KEY, z1 date, z2 text NOT NULL
					DEFAULT 'z', b text);
				ALTER TABLE dropped DROP COLUMN z1, DROP COLUMN z2},
	publish => 'dropped',
	later   => q{UPDATE dropped SET b = 'zwei' WHERE a = 2;
				INSERT INTO dropped VALUES (3, 'three')},
	rows => 'dropped',
  },
  {
	name => 'columns in another order',
	pub  => q{CREATE TABLE other_order (a int PRIMARY KEY, b text, c int, d text);
				INSERT INTO other_order VALUES (1, 'b1', 10, 'd1'),
					(2, 'b2', 20, NULL)},
	sub => 'CREATE TABLE other_order (d text, c int, b text, a int PRIMARY KEY)',
	publish => 'other_order',
	later   => q{UPDATE other_order SET b = 'b', d = NULL WHERE a = 1;
				INSERT INTO other_order VALUES (3, 'b3', NULL, 'd3')},
	rows => 'SELECT a, b, c, d FROM other_order',
  },
  {
	name => 'column added with a stored default (missing attribute)',
	both => q{CREATE TABLE fast_default (a int PRIMARY KEY)},
	pub  => q{INSERT INTO fast_default VALUES (1), (2);
				ALTER TABLE fast_default ADD COLUMN b text DEFAULT 'stored';
				ALTER TABLE fast_default ALTER COLUMN b SET DEFAULT 'new'},
	sub     => q{ALTER TABLE fast_default ADD COLUMN b text DEFAULT 'local'},
	publish => 'fast_default',
	later   => 'INSERT INTO fast_default VALUES (3)',
	rows    => 'fast_default',
  },
  {
	name    => 'column list',
	pub     => q{CREATE TABLE col_list (a int PRIMARY KEY, secret text, b text);
				INSERT INTO col_list VALUES (1, 's1', 'b1'), (2, 's2', 'b2')},
	sub     => 'CREATE TABLE col_list (a int PRIMARY KEY, b text)',
	publish => 'col_list (b, a)',
	later   => q{INSERT INTO col_list VALUES (3, 's3', 'b3');
				UPDATE col_list SET b = 'b', secret = 's' WHERE a = 1},
	rows => 'SELECT a, b FROM col_list',
  },
  {
	name => 'column list, the column left out exists on the subscriber',
	both => q{CREATE TABLE col_list_default (a int PRIMARY KEY,
				b text DEFAULT 'local', c text)},
	pub => q{INSERT INTO col_list_default VALUES (1, 'remote', 'c1')},
	publish => 'col_list_default (a, c)',
	later   => q{INSERT INTO col_list_default VALUES (2, 'remote', 'c2');
				UPDATE col_list_default SET b = 'x', c = 'c' WHERE a = 1},
	rows     => q{SELECT a, 'local' AS b, c FROM col_list_default},
	rows_sub => 'col_list_default',
  },
  {
	name => 'column list of the key alone',
	both => 'CREATE TABLE col_list_key (a int PRIMARY KEY, b text)',
	pub  => q{INSERT INTO col_list_key VALUES (1, 'b1'), (2, 'b2')},
	publish  => 'col_list_key (a)',
	later    => q{INSERT INTO col_list_key VALUES (3, 'b3');
				DELETE FROM col_list_key WHERE a = 1},
	rows     => 'SELECT a, NULL::text AS b FROM col_list_key',
	rows_sub => 'col_list_key',
  },
  {
	name    => 'row filter',
	both    => 'CREATE TABLE filtered (a int PRIMARY KEY, b text)',
	pub     => q{INSERT INTO filtered SELECT i, i FROM generate_series(1, 50) i},
	publish => 'filtered WHERE (a % 3 = 0)',
	later   => q{INSERT INTO filtered VALUES (51, 'in'), (52, 'out');
				UPDATE filtered SET a = 60 WHERE a = 1;
				UPDATE filtered SET a = 61 WHERE a = 3;
				DELETE FROM filtered WHERE a IN (4, 6)},
	rows     => 'SELECT * FROM filtered WHERE a % 3 = 0',
	rows_sub => 'filtered',
  },
  {
	name => 'row filter that no row passes',
	both => 'CREATE TABLE filtered_out (a int PRIMARY KEY)',
	pub  => 'INSERT INTO filtered_out VALUES (1), (2)',
	publish => 'filtered_out WHERE (a < 0)',
	later   => 'INSERT INTO filtered_out VALUES (-1), (3)',
	rows    => 'filtered_out',
	sees    => [ '', '(-1)' ],
  },
  {
	name => 'row filter and column list',
	both => 'CREATE TABLE filtered_cols (a int PRIMARY KEY, b text, c int)',
	pub  => q{INSERT INTO filtered_cols
				SELECT i, CASE WHEN i % 5 > 0 THEN 'b' || i END, i
				FROM generate_series(1, 50) i},
	publish => 'filtered_cols (a, b) WHERE (a BETWEEN 10 AND 20)',
	later   => q{INSERT INTO filtered_cols VALUES (0, 'out', 1);
				UPDATE filtered_cols SET b = 'new' WHERE a IN (9, 11)},
	rows => q{SELECT a, b, NULL::int AS c FROM filtered_cols
				WHERE a BETWEEN 10 AND 20},
	rows_sub => 'filtered_cols',
  },
  {
	name => 'row filter on the key with text, quotes and nulls',
	both => q{CREATE TABLE filtered_text (a text, b int);
				ALTER TABLE filtered_text REPLICA IDENTITY FULL},
	pub => q{INSERT INTO filtered_text VALUES ('it''s', 1), (E'a\\\\b', 2),
				(NULL, 3), ('', 4), ('%', 5)},
	publish  => q{filtered_text WHERE (a = 'it''s' OR a = E'a\\\\b' OR a IS NULL)},
	later    => q{INSERT INTO filtered_text VALUES (NULL, 6), ('', 7)},
	rows     => 'SELECT * FROM filtered_text WHERE b IN (1, 2, 3, 6)',
	rows_sub => 'filtered_text',
  },
  {
	name => 'generated column on both sides, computed on its own on each',
	pub  => q{CREATE TABLE generated_both (a int PRIMARY KEY,
					g int GENERATED ALWAYS AS (a * 2) STORED, b text);
				INSERT INTO generated_both VALUES (1, DEFAULT, 'x'),
					(2, DEFAULT, 'y')},
	sub => q{CREATE TABLE generated_both (a int PRIMARY KEY, b text,
					g int GENERATED ALWAYS AS (a * 10) STORED)},
	publish  => 'generated_both',
	later    => q{INSERT INTO generated_both VALUES (3, DEFAULT, 'z');
				UPDATE generated_both SET a = 4 WHERE a = 1},
	rows     => 'SELECT a, b, a * 10 AS g FROM generated_both',
	rows_sub => 'SELECT a, b, g FROM generated_both',
  },
  {
	name => 'generated column on the publisher alone is not sent',
	pub  => q{CREATE TABLE generated_pub (a int PRIMARY KEY,
					g int GENERATED ALWAYS AS (a * 2) STORED, b text);
				INSERT INTO generated_pub VALUES (1, DEFAULT, 'x')},
	sub => 'CREATE TABLE generated_pub (a int PRIMARY KEY, g int, b text)',
	publish  => 'generated_pub',
	later    => q{INSERT INTO generated_pub VALUES (2, DEFAULT, 'y')},
	rows     => 'SELECT a, NULL::int AS g, b FROM generated_pub',
	rows_sub => 'generated_pub',
  },
  {
	name => 'generated column on the subscriber alone, with a row filter',
	pub  => q{CREATE TABLE generated_sub (a int PRIMARY KEY, b text);
				INSERT INTO generated_sub VALUES (1, 'x'), (2, 'y')},
	sub => q{CREATE TABLE generated_sub (g text GENERATED ALWAYS AS
					(upper(b)) STORED, a int PRIMARY KEY, b text)},
	publish  => 'generated_sub WHERE (a > 1)',
	later    => q{INSERT INTO generated_sub VALUES (3, 'z')},
	rows     => 'SELECT a, b, upper(b) AS g FROM generated_sub WHERE a > 1',
	rows_sub => 'SELECT a, b, g FROM generated_sub',
  },
  {
	name    => 'table of 1,600 columns',
	both    => 'CREATE TABLE many_columns (a int PRIMARY KEY, '
	  . join(', ', map { "col_$_ smallint" } 2 .. 1600) . ')',
	pub => 'INSERT INTO many_columns (a) VALUES (1);
				INSERT INTO many_columns VALUES ('
	  . join(', ', 2, map { $_ % 7 ? $_ : 'NULL' } 2 .. 1600) . ')',
	publish => 'many_columns',
	later   => q{UPDATE many_columns SET col_1600 = 1, col_800 = NULL;
				INSERT INTO many_columns (a) VALUES (3)},
	rows => 'many_columns',
  };

#
# Defaults and sequences of the subscriber's own
#

push @cases,
  {
	name => 'extra local columns with defaults',
	pub  => q{CREATE TABLE extra_columns (a int PRIMARY KEY, b text);
				INSERT INTO extra_columns SELECT i, i
					FROM generate_series(1, 30) i},
	sub => q{CREATE TABLE extra_columns (
				nothing int,
				a int PRIMARY KEY,
				constant text NOT NULL DEFAULT 'constant',
				seq serial,
				b text DEFAULT 'never used',
				ident int GENERATED ALWAYS AS IDENTITY,
				volatile_value float NOT NULL DEFAULT 2 + random(),
				stamp timestamptz NOT NULL DEFAULT now(),
				who text DEFAULT current_user)},
	publish => 'extra_columns',
	later   => q{INSERT INTO extra_columns VALUES (31, NULL);
				UPDATE extra_columns SET b = 'new' WHERE a = 5;
				DELETE FROM extra_columns WHERE a = 6},
	rows => q{SELECT a, b, NULL::int AS nothing, 'constant' AS constant,
				true AS numbers, true AS volatile_value, true AS stamp,
				current_user::text AS who FROM extra_columns},
	rows_sub => q{SELECT a, b, nothing, constant,
				seq BETWEEN 1 AND 31 AND ident BETWEEN 1 AND 31
					AND count(*) OVER (PARTITION BY seq) = 1
					AND count(*) OVER (PARTITION BY ident) = 1,
				volatile_value BETWEEN 2 AND 3
					AND count(*) OVER (PARTITION BY volatile_value) = 1,
				stamp <= clock_timestamp(), who FROM extra_columns},
  },
  {
	name => 'identity columns: values are kept, local sequences do not move',
	both => q{CREATE TABLE identities (
				a int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
				b int GENERATED BY DEFAULT AS IDENTITY (START 100), c text)},
	pub => q{INSERT INTO identities (c) VALUES ('x'), ('y');
				INSERT INTO identities (b, c) VALUES (5, 'z')},
	publish => 'identities',
	later   => q{INSERT INTO identities (c) VALUES ('later')},
	rows    => q{SELECT a, b, c, false AS moved, false FROM identities},
	rows_sub => q{SELECT a, b, c,
				(SELECT is_called FROM identities_a_seq),
				(SELECT is_called FROM identities_b_seq) FROM identities},
  },
  {
	name => 'serial column: the default is not used for it',
	both => 'CREATE TABLE serials (a serial PRIMARY KEY, b text)',
	pub  => q{INSERT INTO serials (b) VALUES ('x'), ('y')},
	publish  => 'serials',
	later    => q{INSERT INTO serials (b) VALUES ('z')},
	rows     => 'SELECT a, b, false AS moved FROM serials',
	rows_sub => q{SELECT a, b, (SELECT is_called FROM serials_a_seq)
				FROM serials},
  },
  {
	name => 'explicit nulls stay nulls where the subscriber has a default',
	pub  => q{CREATE TABLE null_default (a int PRIMARY KEY, b text, c int);
				INSERT INTO null_default VALUES (1, NULL, NULL), (2, '', 0)},
	sub => q{CREATE TABLE null_default (a int PRIMARY KEY, b text DEFAULT 'd',
				c int DEFAULT 7)},
	publish => 'null_default',
	later   => 'INSERT INTO null_default VALUES (3, NULL, NULL)',
	rows    => 'null_default',
  };

#
# Types that differ between the sides, and convert as text
#

push @cases,
  {
	name => 'columns of other types',
	pub  => q{CREATE TYPE mood AS ENUM ('sad', 'happy');
				CREATE TABLE other_types (a int PRIMARY KEY, i_big int, i_text int,
					t_int text, vc_t varchar(10), n_f numeric, e_t mood,
					t_e text, d_ts date, t_json text, t_dom text, c_t char(5));
				INSERT INTO other_types VALUES
					(1, 1, 2, ' 3 ', 'vc', 1.5, 'sad', 'happy', '2020-02-29',
						'{"k": [1, null]}', 'dom', 'ab'),
					(2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
						NULL, NULL)},
	sub => q{CREATE TYPE mood AS ENUM ('angry', 'happy', 'sad');
				CREATE DOMAIN short AS text CHECK (length(VALUE) < 5);
				CREATE TABLE other_types (a bigint PRIMARY KEY, i_big bigint,
					i_text text, t_int int, vc_t text, n_f float8, e_t text,
					t_e mood, d_ts timestamp, t_json jsonb, t_dom short, c_t text)},
	publish => 'other_types',
	later   => q{INSERT INTO other_types VALUES (3, 4, 5, '6', 'x', 0.25,
					'happy', 'sad', '1999-01-01', '[]', 'd', 'c');
				UPDATE other_types SET t_int = '-9', i_text = 11 WHERE a = 2},
	rows => q{SELECT a::bigint, i_big::bigint, i_text::text, t_int::int, vc_t,
				n_f::float8, e_t::text, t_e, d_ts::timestamp, t_json::jsonb,
				t_dom, replace(format('%5s', c_t), ' ', '')
				FROM other_types},
	rows_sub => q{SELECT a, i_big, i_text, t_int, vc_t, n_f, e_t, t_e, d_ts,
				t_json, t_dom, replace(format('%5s', c_t), ' ', '')
				FROM other_types},
  };

#
# Contents that are awkward in the text format of COPY
#

push @cases,
  {
	name => 'awkward text',
	both => 'CREATE TABLE awkward (a int PRIMARY KEY, b text, c text)',
	pub  => q{INSERT INTO awkward VALUES
				(1, '', NULL), (2, NULL, ''), (3, E'\\\\N', E'\\\\.'),
				(4, E'\t', E'\n'), (5, E'\r', E'\r\n'), (6, E'\\\\', E'\\\\\\\\'),
				(7, E'a\tb\nc\\\\d', E'\\\\t\\\\n'), (8, 'NULL', '"NULL"'),
				(9, E'\b\f\v\x01\x1f\x7f', ''''), (10, ' lead', 'trail '),
				(11, '{}', '()'), (12, E'\\\\x41', E'\\\\101')},
	publish => 'awkward',
	later   => q{UPDATE awkward SET b = c, c = b;
				DELETE FROM awkward WHERE a = 8},
	rows => 'awkward',
  },
  {
	name => 'lines that look like the end of the data',
	both => q{CREATE TABLE end_mark (b text);
				ALTER TABLE end_mark REPLICA IDENTITY FULL},
	pub => q{INSERT INTO end_mark VALUES (E'\\\\.'), (''), (NULL), ('.'),
				(E'\n\\\\.\n'), (E'\\\\N'), ('last')},
	publish => 'end_mark',
	later   => q{DELETE FROM end_mark WHERE b = ''},
	rows    => 'end_mark',
  },
  {
	name => 'toasted values, stored in all ways',
	both => q{CREATE TABLE toasted (a int PRIMARY KEY, extended text,
				external text, main text, plain int);
				ALTER TABLE toasted ALTER external SET STORAGE EXTERNAL,
					ALTER main SET STORAGE MAIN},
	pub => q{INSERT INTO toasted
				SELECT i, r, r, left(r, 4000 * i), i
				FROM generate_series(1, 5) i, LATERAL (SELECT
					string_agg(md5(i::text || j), '') AS r
					FROM generate_series(1, 1000 * i) j) AS r},
	publish => 'toasted',
	later   => q{UPDATE toasted SET plain = -plain;
				UPDATE toasted SET extended = external || 'x' WHERE a = 3;
				DELETE FROM toasted WHERE a = 4},
	rows => q{SELECT a, md5(extended), md5(external), md5(main), plain
				FROM toasted},
  },
  {
	name => 'unchanged toasted value in the old row of replica identity full',
	both => q{CREATE TABLE toasted_full (a int, b text);
				ALTER TABLE toasted_full REPLICA IDENTITY FULL},
	pub => q{INSERT INTO toasted_full SELECT 1, string_agg(md5(j::text), '')
				FROM generate_series(1, 3000) j},
	publish => 'toasted_full',
	later   => 'UPDATE toasted_full SET a = 2',
	rows    => 'SELECT a, length(b), md5(b) FROM toasted_full',
  },
  {
	name => 'one value of 50 MB',
	both => q{CREATE TABLE huge_value (a int PRIMARY KEY, b text)},
	pub  => q{INSERT INTO huge_value VALUES (1, 'small'),
				(2, repeat(E'0123456789abcd\t\n', 3276800)), (3, NULL)},
	publish => 'huge_value',
	later   => q{UPDATE huge_value SET a = 4 WHERE a = 3},
	rows    => 'SELECT a, length(b), md5(b) FROM huge_value',
  };

#
# Constraints, indexes, triggers of the subscriber
#

push @cases,
  {
	name => 'foreign key, the referencing table first; deferred constraints',
	both => q{CREATE TABLE fk_parent (a int PRIMARY KEY);
				CREATE TABLE fk_child (a int PRIMARY KEY,
					parent int REFERENCES fk_parent,
					pos int UNIQUE DEFERRABLE INITIALLY DEFERRED,
					later_parent int REFERENCES fk_parent
						DEFERRABLE INITIALLY DEFERRED)},
	pub => q{INSERT INTO fk_parent SELECT generate_series(1, 10);
				INSERT INTO fk_child SELECT i, i % 10 + 1, i, (i + 1) % 10 + 1
					FROM generate_series(1, 100) i},
	publish => 'fk_child, fk_parent',
	later   => q{BEGIN; INSERT INTO fk_child VALUES (101, 1, 101, 11);
				UPDATE fk_child SET pos = 203 - pos WHERE pos > 100;
				UPDATE fk_child SET pos = 101 WHERE a = 101;
				INSERT INTO fk_parent VALUES (11); COMMIT;
				DELETE FROM fk_child WHERE parent = 2},
	rows => q{SELECT c.*, p.a FROM fk_child c
				FULL JOIN fk_parent p ON p.a = c.parent},
  },
  {
	name => 'foreign key whose referenced table is not replicated',
	pub  => q{CREATE TABLE fk_dangling (a int PRIMARY KEY, parent int);
				INSERT INTO fk_dangling VALUES (1, 1), (2, 2)},
	sub => q{CREATE TABLE fk_nobody (a int PRIMARY KEY);
				CREATE TABLE fk_dangling (a int PRIMARY KEY,
					parent int REFERENCES fk_nobody)},
	publish => 'fk_dangling',
	later   => 'INSERT INTO fk_dangling VALUES (3, 3)',
	rows    => 'fk_dangling',
  },
  {
	name => 'indexes of several kinds hold what was copied',
	both => 'CREATE TABLE indexed (a int PRIMARY KEY, b text, c int[])',
	pub  => q{INSERT INTO indexed SELECT i, 'v' || i % 40, ARRAY[i, -i]
				FROM generate_series(1, 400) i},
	sub => q{CREATE FUNCTION local_key(v text) RETURNS text LANGUAGE sql
				IMMUTABLE AS 'SELECT pg_catalog.lower(v) || $$!$$';
				CREATE INDEX ON indexed (local_key(b));
				CREATE UNIQUE INDEX ON indexed (b) WHERE a <= 40;
				CREATE INDEX ON indexed USING gin (c);
				CREATE INDEX ON indexed USING hash (b);
				CREATE INDEX ON indexed USING brin (a)},
	publish => 'indexed',
	later   => q{UPDATE indexed SET b = 'V7' WHERE a = 400;
				DELETE FROM indexed WHERE a = 7},
	rows => q{SELECT (SELECT count(*) FROM indexed WHERE lower(b) = 'v7') AS e,
				(SELECT count(*) FROM indexed WHERE c @> ARRAY[-33]) AS g,
				(SELECT count(*) FROM indexed WHERE b = 'v8') AS h},
	rows_sub => q{SELECT
				(SELECT count(*) FROM indexed WHERE local_key(b) = 'v7!'),
				(SELECT count(*) FROM indexed WHERE c @> ARRAY[-33]),
				(SELECT count(*) FROM indexed WHERE b = 'v8')
				FROM set_config('enable_seqscan', 'off', false)},
  },
  {
	name => 'check constraint that calls a local function by its bare name',
	both => 'CREATE TABLE checked (a int PRIMARY KEY, b text)',
	pub  => q{INSERT INTO checked VALUES (1, 'good'), (2, 'good too')},
	sub => q{CREATE SCHEMA rules;
				CREATE TABLE rules.words (w text);
				INSERT INTO rules.words VALUES ('good');
				CREATE FUNCTION rules.is_good(v text) RETURNS bool LANGUAGE plpgsql
					SET search_path = rules AS $$BEGIN
					RETURN EXISTS (SELECT FROM words WHERE v LIKE w || '%');
					END$$;
				SET search_path = rules, public;
				ALTER TABLE public.checked ADD CHECK (is_good(b));
				RESET search_path},
	publish => 'checked',
	later   => q{INSERT INTO checked VALUES (3, 'good again')},
	rows    => 'checked',
  },
  {
	name => 'triggers: ordinary ones do not fire, replica and always ones do',
	pub  => q{CREATE TABLE triggered (a int PRIMARY KEY, b text);
				INSERT INTO triggered VALUES (1, 'x'), (2, 'y'), (3, 'skip')},
	sub => q{CREATE TABLE triggered (a int PRIMARY KEY, b text,
					fired text DEFAULT '');
				CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
					IF NEW.b = 'skip' THEN RETURN NULL; END IF;
					NEW.fired := NEW.fired || TG_NAME; RETURN NEW; END$$;
				CREATE TRIGGER t1_origin BEFORE INSERT ON triggered
					FOR EACH ROW EXECUTE FUNCTION note();
				CREATE TRIGGER t2_replica BEFORE INSERT ON triggered
					FOR EACH ROW EXECUTE FUNCTION note();
				CREATE TRIGGER t3_always BEFORE INSERT ON triggered
					FOR EACH ROW EXECUTE FUNCTION note();
				CREATE TRIGGER t4_disabled BEFORE INSERT ON triggered
					FOR EACH ROW EXECUTE FUNCTION note();
				ALTER TABLE triggered ENABLE REPLICA TRIGGER t2_replica,
					ENABLE ALWAYS TRIGGER t3_always,
					DISABLE TRIGGER t4_disabled},
	publish  => 'triggered',
	later    => q{INSERT INTO triggered VALUES (4, 'z'), (5, 'skip')},
	rows     => q{SELECT *, 't2_replicat3_always' AS fired FROM triggered
				WHERE b <> 'skip'},
	rows_sub => 'triggered',
  },
  {
	name => 'the ordinary trigger of a table with no other does not fire',
	both => 'CREATE TABLE origin_trigger (a int PRIMARY KEY, b text)',
	pub  => q{INSERT INTO origin_trigger VALUES (1, 'x'), (2, 'y')},
	sub  => q{CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
				$$BEGIN RAISE 'this trigger has to stay quiet'; END$$;
				CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON origin_trigger
					FOR EACH ROW EXECUTE FUNCTION refuse();
				CREATE TRIGGER refuse_after AFTER INSERT ON origin_trigger
					FOR EACH STATEMENT EXECUTE FUNCTION refuse()},
	publish => 'origin_trigger',
	later   => q{UPDATE origin_trigger SET b = 'z' WHERE a = 1},
	rows    => 'origin_trigger',
  },
  {
	name => 'what a trigger sees: user, replication role, empty search_path',
	pub  => q{CREATE TABLE surroundings (a int PRIMARY KEY);
				INSERT INTO surroundings VALUES (1), (2)},
	sub => q{CREATE TABLE surroundings (a int PRIMARY KEY, saw text);
				CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
					NEW.saw := format('%s %s <%s> %s', current_user,
						current_setting('session_replication_role'),
						current_setting('search_path'), TG_TABLE_NAME);
					RETURN NEW; END$$;
				CREATE TRIGGER look BEFORE INSERT ON surroundings
					FOR EACH ROW EXECUTE FUNCTION look();
				ALTER TABLE surroundings ENABLE ALWAYS TRIGGER look},
	publish  => 'surroundings',
	later    => 'INSERT INTO surroundings VALUES (3)',
	rows     => q{SELECT a, format('%s replica <> surroundings', current_user)
				FROM surroundings},
	rows_sub => 'SELECT a, saw FROM surroundings',
  },
  {
	name => 'after triggers, and statement triggers with the new rows',
	pub  => q{CREATE TABLE trigger_log (a int PRIMARY KEY);
				INSERT INTO trigger_log VALUES (10), (20), (30)},
	sub => q{CREATE TABLE trigger_log (a int PRIMARY KEY);
				CREATE TABLE local_log (what text);
				CREATE FUNCTION log_row() RETURNS trigger LANGUAGE plpgsql AS
					$$BEGIN INSERT INTO public.local_log
					VALUES (TG_NAME || ' ' || NEW.a); RETURN NULL; END$$;
				CREATE FUNCTION log_statement() RETURNS trigger LANGUAGE plpgsql AS
					$$BEGIN INSERT INTO public.local_log
					VALUES (TG_NAME); RETURN NULL; END$$;
				CREATE FUNCTION log_new() RETURNS trigger LANGUAGE plpgsql AS
					$$BEGIN INSERT INTO public.local_log
					SELECT TG_NAME || ' ' || count(*) FROM fresh;
					RETURN NULL; END$$;
				CREATE TRIGGER after_row AFTER INSERT ON trigger_log
					FOR EACH ROW EXECUTE FUNCTION log_row();
				CREATE TRIGGER before_statement BEFORE INSERT ON trigger_log
					FOR EACH STATEMENT EXECUTE FUNCTION log_statement();
				CREATE TRIGGER after_statement AFTER INSERT ON trigger_log
					REFERENCING NEW TABLE AS fresh
					FOR EACH STATEMENT EXECUTE FUNCTION log_new();
				ALTER TABLE trigger_log ENABLE ALWAYS TRIGGER after_row,
					ENABLE ALWAYS TRIGGER before_statement,
					ENABLE REPLICA TRIGGER after_statement},
	publish => 'trigger_log',
	later   => 'INSERT INTO trigger_log VALUES (40)',
	rows    => 'local_log',
	sees    => [
		"(\"after_row 10\")\n(\"after_row 20\")\n(\"after_row 30\")\n"
		  . "(\"after_statement 3\")\n(before_statement)",
		"(\"after_row 10\")\n(\"after_row 20\")\n(\"after_row 30\")\n"
		  . "(\"after_row 40\")\n(\"after_statement 3\")\n(before_statement)"
	],
  },
  {
	name => 'a rule of the subscriber does not apply',
	both => 'CREATE TABLE ruled (a int PRIMARY KEY)',
	pub  => 'INSERT INTO ruled VALUES (1), (2)',
	sub  => q{CREATE RULE never AS ON INSERT TO ruled DO INSTEAD NOTHING;
				ALTER TABLE ruled ENABLE ALWAYS RULE never},
	publish => 'ruled',
	later   => 'INSERT INTO ruled VALUES (3)',
	rows    => 'ruled',
  },
  {
	name => 'unlogged table on the subscriber',
	pub  => q{CREATE TABLE unlogged (a int PRIMARY KEY);
				INSERT INTO unlogged SELECT generate_series(1, 10)},
	sub     => 'CREATE UNLOGGED TABLE unlogged (a int PRIMARY KEY)',
	publish => 'unlogged',
	later   => 'DELETE FROM unlogged WHERE a < 4',
	rows    => 'unlogged',
  },
  {
	name => 'row level security on the subscriber, superuser owns',
	both => 'CREATE TABLE secured (a int PRIMARY KEY)',
	pub  => 'INSERT INTO secured SELECT generate_series(1, 10)',
	sub  => q{ALTER TABLE secured ENABLE ROW LEVEL SECURITY,
					FORCE ROW LEVEL SECURITY;
				CREATE POLICY nothing ON secured USING (false)},
	publish => 'secured',
	later   => 'DELETE FROM secured WHERE a < 4',
	rows    => 'secured',
  },
  {
	name => 'rows that are there already and do not collide stay',
	both => 'CREATE TABLE not_empty (a int PRIMARY KEY, b text)',
	pub  => q{INSERT INTO not_empty VALUES (1, 'remote'), (2, 'remote')},
	sub  => q{INSERT INTO not_empty VALUES (100, 'local')},
	publish => 'not_empty',
	later   => q{INSERT INTO not_empty VALUES (3, 'remote')},
	rows    => q{SELECT * FROM not_empty UNION ALL VALUES (100, 'local')},
	rows_sub => 'not_empty',
  };

#
# Inheritance: each table has its own rows, and only those
#

push @cases,
  {
	name => 'inheritance, the children published with the parent',
	both => q{CREATE TABLE inh_parent (a int PRIMARY KEY, b text);
				CREATE TABLE inh_child (c int, PRIMARY KEY (a))
					INHERITS (inh_parent)},
	pub => q{INSERT INTO inh_parent VALUES (1, 'parent');
				INSERT INTO inh_child VALUES (2, 'child', 3)},
	publish => 'inh_parent',
	later   => q{UPDATE inh_parent SET b = b || '!';
				INSERT INTO inh_child VALUES (4, 'child', 5)},
	rows => q{SELECT tableoid::regclass::text, a, b FROM inh_parent},
  },
  {
	name => 'inheritance, the parent published alone',
	both => q{CREATE TABLE only_parent (a int PRIMARY KEY, b text);
				CREATE TABLE only_child (PRIMARY KEY (a)) INHERITS (only_parent)},
	pub => q{INSERT INTO only_parent VALUES (1, 'parent');
				INSERT INTO only_child VALUES (2, 'child')},
	publish  => 'ONLY only_parent',
	later    => q{UPDATE only_parent SET b = b || '!'},
	rows     => q{SELECT tableoid::regclass::text, a, b FROM ONLY only_parent},
	rows_sub => q{SELECT tableoid::regclass::text, a, b FROM only_parent},
  },
  {
	name => 'inheritance, the parent published alone with a row filter',
	both => q{CREATE TABLE filter_parent (a int PRIMARY KEY, b text);
				CREATE TABLE filter_child (PRIMARY KEY (a))
					INHERITS (filter_parent)},
	pub => q{INSERT INTO filter_parent VALUES (1, 'parent'), (-1, 'out');
				INSERT INTO filter_child VALUES (2, 'child')},
	publish  => 'ONLY filter_parent WHERE (a > 0)',
	later    => q{INSERT INTO filter_parent VALUES (3, 'parent')},
	rows     => q{SELECT a, b FROM ONLY filter_parent WHERE a > 0},
	rows_sub => q{SELECT a, b FROM filter_parent},
  },
  {
	name => 'inheritance, a child published alone, the parent plain',
	pub  => q{CREATE TABLE lone_parent (a int PRIMARY KEY, b text);
				CREATE TABLE lone_child (c int, PRIMARY KEY (a))
					INHERITS (lone_parent);
				INSERT INTO lone_parent VALUES (1, 'parent');
				INSERT INTO lone_child VALUES (2, 'child', 3)},
	sub     => 'CREATE TABLE lone_child (c int, a int PRIMARY KEY, b text)',
	publish => 'lone_child',
	later   => q{UPDATE lone_parent SET b = b || '!'},
	rows    => 'SELECT a, b, c FROM lone_child',
  };

run_cases($pub, $sub, 'shapes', \@cases);
no_leftovers_ok($pub, $sub, 'no slot and no origin left');
no_builtin_sync_ok($sub);

#
# Tables found by REFRESH
#

run_cases(
	$pub, $sub, 'shapes',
	[
		{
			name => "table $_ of two found by REFRESH",
			both => "CREATE TABLE refreshed_$_ (a int PRIMARY KEY, b text)",
			pub  => "INSERT INTO refreshed_$_ VALUES (1, 'x'), (2, 'y')",
			publish => "refreshed_$_",
			later   => "UPDATE refreshed_$_ SET b = 'z' WHERE a = 1;
						DELETE FROM refreshed_$_ WHERE a = 2",
			rows => "refreshed_$_",
		}
	],
	refresh => 1) foreach (1, 2);

rows_ok($pub, $sub, 'int_key', 'tables of before REFRESH are as they were');

done_testing();
