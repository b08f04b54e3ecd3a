# Catch-up with tables and rows of every shape: partitions, triggers, TOAST,
# wide rows, other columns than the publisher's, other types, other encodings.
#
# Each case has a table of its own, which is changed after the snapshot of its
# copy and before it is handed over to the apply worker.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use CatchUp;

my $pub = new_publisher('pub');
my $sub = new_subscriber(
	'sub',
	max_sync_workers_per_subscription => 4,
	max_logical_replication_workers   => 12,
	max_worker_processes              => 20,
	'reuse_sync.batch_tables'         => 1);

my @latin1 = (pub_db => 'utf8', sub_db => 'latin1');
$pub->safe_psql('postgres',
	q{CREATE DATABASE utf8 TEMPLATE template0 ENCODING 'UTF8'
	LC_COLLATE 'C' LC_CTYPE 'C'});
$sub->safe_psql('postgres',
	q{CREATE DATABASE latin1 TEMPLATE template0 ENCODING 'LATIN1'
	LC_COLLATE 'C' LC_CTYPE 'C'});
create_extension($sub, 'latin1');

my $catchup        = CatchUp->new($pub, $sub);
my $catchup_latin1 = CatchUp->new($pub, $sub, @latin1);

# Triggers note what they see, and what they run with.
$sub->safe_psql(
	'postgres', q{
	CREATE TABLE noted (n serial, tab name, name name, op text,
		old_row text, new_row text, role text, path text);

	CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO public.noted (tab, name, op, old_row, new_row, role, path)
			VALUES (tg_table_name, tg_name, tg_when || ' ' || tg_op, old, new,
				current_setting('session_replication_role'),
				current_setting('search_path'));
		IF tg_op = 'DELETE' THEN
			RETURN old;
		END IF;
		RETURN new;
	END $$;

	-- only how often, for long rows
	CREATE FUNCTION note_short() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO public.noted (tab, name, op)
			VALUES (tg_table_name, tg_name, tg_when || ' ' || tg_op);
		RETURN NULL;
	END $$;

	CREATE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		IF tg_op = 'DELETE' THEN
			RETURN CASE WHEN old.a = 9 THEN NULL ELSE old END;
		END IF;
		new.b := upper(new.b);
		RETURN CASE WHEN new.a = 7 THEN NULL ELSE new END;
	END $$;

	CREATE TABLE empty (a int PRIMARY KEY);});

# A value that is stored out of line, and not compressed, when it is long
# enough.
sub long_text
{
	my ($seed, $length) = @_;

	return "(SELECT left(string_agg(md5('$seed' || g), ''), $length)"
	  . " FROM generate_series(1, 1 + $length / 32) AS g)";
}

# DDL of a table with a column whose values are stored out of line.
sub toast_ddl
{
	my ($table) = @_;

	return qq{
		CREATE TABLE $table (a int PRIMARY KEY, big text, n int);
		ALTER TABLE $table ALTER big SET STORAGE EXTERNAL;};
}

sub toast_seed
{
	my ($table) = @_;

	return join '', map {
		"INSERT INTO $table VALUES ($_, " . long_text("seed$_", 12000) . ', 0);'
	} 1 .. 8;
}

sub toast_changes
{
	my ($table) = @_;

	return qq{
		UPDATE $table SET n = 1 WHERE a <= 2;
		UPDATE $table SET big = }
	  . long_text('other', 20000) . qq{ WHERE a = 2;
		UPDATE $table SET big = NULL WHERE a = 3;
		UPDATE $table SET big = 'short', n = 3 WHERE a = 4;
		UPDATE $table SET big = big || 'longer' WHERE a = 5;
		UPDATE $table SET a = 60 WHERE a = 6;
		DELETE FROM $table WHERE a = 7;
		INSERT INTO $table VALUES (9, }
	  . long_text('new', 12000) . qq{, 0);
		UPDATE $table SET n = 9 WHERE a = 9;
		BEGIN;
		UPDATE $table SET n = n + 1 WHERE a = 8;
		UPDATE $table SET n = n + 1, big = }
	  . long_text('again', 12000) . qq{ WHERE a = 8;
		UPDATE $table SET n = n + 1 WHERE a = 8;
		COMMIT;};
}

my @partitions = map { "part_move_$_" } qw(1 2 3a 3b default);

# Columns of the widest table there can be.
my @wide = map { "c$_" } 1 .. 1599;

my @cases = (
	#
	# partitions
	#
	{
		# a partition of another layout, one with partitions of its own; an
		# update of k moves the row
		table   => 'part_move',
		gated   => \@partitions,
		no_ddl  => 1,
		pub_ddl => q{CREATE TABLE part_move (a int, k int, b text,
			PRIMARY KEY (a, k))},
		sub_ddl => q{
			CREATE TABLE part_move (a int, k int, b text, PRIMARY KEY (a, k))
				PARTITION BY RANGE (k);
			CREATE TABLE part_move_1 PARTITION OF part_move
				FOR VALUES FROM (0) TO (100);
			CREATE TABLE part_move_2 (gone text, b text, k int NOT NULL,
				more_gone int, a int NOT NULL);
			ALTER TABLE part_move_2 DROP COLUMN gone, DROP COLUMN more_gone;
			ALTER TABLE part_move ATTACH PARTITION part_move_2
				FOR VALUES FROM (100) TO (200);
			CREATE TABLE part_move_3 PARTITION OF part_move
				FOR VALUES FROM (200) TO (300) PARTITION BY HASH (a);
			CREATE TABLE part_move_3a PARTITION OF part_move_3
				FOR VALUES WITH (MODULUS 2, REMAINDER 0);
			CREATE TABLE part_move_3b PARTITION OF part_move_3
				FOR VALUES WITH (MODULUS 2, REMAINDER 1);
			CREATE TABLE part_move_default PARTITION OF part_move DEFAULT;}
		  . join('',
			map {
				"CREATE TRIGGER after_always AFTER UPDATE OR DELETE ON $_"
				  . ' FOR EACH ROW EXECUTE FUNCTION note();'
				  . "ALTER TABLE $_ ENABLE ALWAYS TRIGGER after_always;"
			} @partitions),
		seed    => q{INSERT INTO part_move
			SELECT g, g * 50, 'row ' || g FROM generate_series(0, 9) AS g},
		changes => q{
			INSERT INTO part_move
				SELECT g, g * 50 - 500, 'new' FROM generate_series(10, 19) AS g;
			UPDATE part_move SET b = 'changed' WHERE a IN (0, 2, 4, 6);
			UPDATE part_move SET k = 150, b = 'moved' WHERE a = 1;
			UPDATE part_move SET k = 1000 WHERE a = 3;
			UPDATE part_move SET k = 120, a = 55 WHERE a = 5;
			UPDATE part_move SET k = k + 1 WHERE a = 7;
			DELETE FROM part_move WHERE a IN (8, 9, 19);},
		later   => q{
			UPDATE part_move SET k = 450 - k WHERE k < 450;
			DELETE FROM part_move WHERE a = 0;},
	},
	{
		# rows are found by all their columns, and there are equal ones
		table   => 'part_full',
		gated   => [qw(part_full_1 part_full_2)],
		no_ddl  => 1,
		pub_ddl => q{
			CREATE TABLE part_full (a int, k text, b text);
			ALTER TABLE part_full REPLICA IDENTITY FULL;},
		sub_ddl => q{
			CREATE TABLE part_full (b text, k text, a int)
				PARTITION BY LIST (k);
			CREATE TABLE part_full_1 PARTITION OF part_full
				FOR VALUES IN ('x', NULL);
			CREATE TABLE part_full_2 PARTITION OF part_full
				FOR VALUES IN ('y');},
		seed    => q{INSERT INTO part_full
			SELECT g / 4, (ARRAY['x', 'y', NULL])[1 + g % 3], 'row'
			FROM generate_series(0, 11) AS g
			UNION ALL SELECT 1, 'x', 'row'},
		changes => q{
			DELETE FROM part_full WHERE ctid =
				(SELECT max(ctid) FROM part_full WHERE a = 1 AND k = 'x');
			UPDATE part_full SET k = 'y', b = 'moved' WHERE ctid =
				(SELECT max(ctid) FROM part_full WHERE a = 1 AND k = 'x');
			UPDATE part_full SET k = 'x' WHERE k IS NULL AND a = 0;
			UPDATE part_full SET k = NULL WHERE k = 'y' AND a = 2;
			INSERT INTO part_full VALUES (5, 'x', 'new'), (5, 'y', 'new');},
		later   => q{
			UPDATE part_full SET k = CASE k WHEN 'x' THEN 'y' ELSE 'x' END;
			DELETE FROM part_full WHERE a = 5;},
		query   => 'SELECT a, k, b FROM part_full',
	},
	{
		table   => 'part_truncated',
		gated   => [qw(part_truncated_1 part_truncated_2)],
		no_ddl  => 1,
		pub_ddl => 'CREATE TABLE part_truncated (a int PRIMARY KEY, b text)',
		sub_ddl => q{
			CREATE TABLE part_truncated (a int PRIMARY KEY, b text)
				PARTITION BY RANGE (a);
			CREATE TABLE part_truncated_1 PARTITION OF part_truncated
				FOR VALUES FROM (MINVALUE) TO (5);
			CREATE TABLE part_truncated_2 PARTITION OF part_truncated
				FOR VALUES FROM (5) TO (MAXVALUE);},
		changes => q{
			TRUNCATE part_truncated;
			INSERT INTO part_truncated VALUES (4, 'new'), (6, 'new');},
		locking => 1,
	},
	{
		# partitions on both sides, of which the subscriber's are others
		table       => 'part_root',
		gated       => [qw(part_root_a part_root_b)],
		publication => 'p_root',
		no_ddl      => 1,
		pub_ddl     => q{
			CREATE TABLE part_root (a int, k int, b text, PRIMARY KEY (a, k))
				PARTITION BY RANGE (k);
			CREATE TABLE part_root_1 PARTITION OF part_root
				FOR VALUES FROM (0) TO (100);
			CREATE TABLE part_root_2 (b text, k int NOT NULL, a int NOT NULL);
			ALTER TABLE part_root ATTACH PARTITION part_root_2
				FOR VALUES FROM (100) TO (200);
			CREATE TABLE part_root_3 PARTITION OF part_root DEFAULT;},
		sub_ddl     => q{
			CREATE TABLE part_root (a int, k int, b text, PRIMARY KEY (a, k))
				PARTITION BY HASH (a);
			CREATE TABLE part_root_a PARTITION OF part_root
				FOR VALUES WITH (MODULUS 2, REMAINDER 0);
			CREATE TABLE part_root_b PARTITION OF part_root
				FOR VALUES WITH (MODULUS 2, REMAINDER 1);},
		seed        => q{INSERT INTO part_root
			SELECT g, g * 25, 'row ' || g FROM generate_series(0, 12) AS g},
		changes     => q{
			UPDATE part_root SET b = 'changed' WHERE a % 2 = 0;
			UPDATE part_root SET k = k + 100 WHERE a < 5;
			UPDATE part_root SET a = a + 101 WHERE a IN (6, 7);
			DELETE FROM part_root WHERE a IN (5, 8);
			INSERT INTO part_root
				SELECT g, g, 'new' FROM generate_series(190, 210) AS g;
			INSERT INTO part_root_1 VALUES (1000, 10, 'new');
			CREATE TABLE part_root_4 PARTITION OF part_root
				FOR VALUES FROM (500) TO (600);
			INSERT INTO part_root VALUES (2000, 550, 'new');
			UPDATE part_root SET k = 551 WHERE a IN (2, 2000);},
		locking     => 1,
		later       => q{
			UPDATE part_root SET k = 150 - k WHERE k < 150;
			DELETE FROM part_root WHERE a > 200;},
	},
	{
		table       => 'part_to_plain',
		publication => 'p_root',
		no_ddl      => 1,
		pub_ddl     => q{
			CREATE TABLE part_to_plain (a int PRIMARY KEY, b text)
				PARTITION BY RANGE (a);
			CREATE TABLE part_to_plain_1 PARTITION OF part_to_plain
				FOR VALUES FROM (MINVALUE) TO (5);
			CREATE TABLE part_to_plain_2 (b text, a int NOT NULL);
			ALTER TABLE part_to_plain ATTACH PARTITION part_to_plain_2
				FOR VALUES FROM (5) TO (MAXVALUE);},
		sub_ddl     => 'CREATE TABLE part_to_plain (b text, a int PRIMARY KEY)',
		changes     => q{
			INSERT INTO part_to_plain VALUES (-10, 'new'), (11, 'new');
			UPDATE part_to_plain SET b = 'changed' WHERE a IN (1, 8);
			UPDATE part_to_plain SET a = 20, b = 'moved' WHERE a = 2;
			UPDATE part_to_plain SET a = 0 WHERE a = 9;
			DELETE FROM part_to_plain WHERE a IN (3, 7);},
		query       => 'SELECT a, b FROM part_to_plain',
	},
	{
		# every partition is a table of its own to the subscription
		table   => 'part_leaves',
		tables  => [qw(part_leaves_1 part_leaves_2)],
		no_ddl  => 1,
		pub_ddl => q{
			CREATE TABLE part_leaves (a int PRIMARY KEY, b text)
				PARTITION BY RANGE (a);
			CREATE TABLE part_leaves_1 PARTITION OF part_leaves
				FOR VALUES FROM (MINVALUE) TO (5);
			CREATE TABLE part_leaves_2 PARTITION OF part_leaves
				FOR VALUES FROM (5) TO (MAXVALUE);},
		sub_ddl => q{
			CREATE TABLE part_leaves (b text, a int PRIMARY KEY)
				PARTITION BY RANGE (a);
			CREATE TABLE part_leaves_1 PARTITION OF part_leaves
				FOR VALUES FROM (MINVALUE) TO (5);
			CREATE TABLE part_leaves_2 PARTITION OF part_leaves
				FOR VALUES FROM (5) TO (MAXVALUE);},
		changes => q{
			INSERT INTO part_leaves VALUES (-10, 'new'), (11, 'new');
			UPDATE part_leaves SET b = 'changed' WHERE a IN (1, 8);
			UPDATE part_leaves SET a = 20, b = 'moved' WHERE a = 2;
			UPDATE part_leaves SET a = 0 WHERE a = 9;
			DELETE FROM part_leaves WHERE a IN (3, 7);},
		query   => 'SELECT a, b FROM part_leaves',
	},
	{
		# the long value of a row that moves is not sent
		table   => 'part_toast',
		gated   => [qw(part_toast_1 part_toast_2)],
		no_ddl  => 1,
		pub_ddl => q{
			CREATE TABLE part_toast (a int, k int, big text,
				PRIMARY KEY (a, k));
			ALTER TABLE part_toast ALTER big SET STORAGE EXTERNAL;},
		sub_ddl => q{
			CREATE TABLE part_toast (k int, big text, a int,
				PRIMARY KEY (a, k)) PARTITION BY LIST (k);
			CREATE TABLE part_toast_1 PARTITION OF part_toast
				FOR VALUES IN (1);
			CREATE TABLE part_toast_2 PARTITION OF part_toast
				FOR VALUES IN (2);
			ALTER TABLE part_toast_1 ALTER big SET STORAGE EXTERNAL;},
		seed    => 'INSERT INTO part_toast SELECT g, 1, '
		  . long_text('part', 10000)
		  . ' FROM generate_series(1, 4) AS g',
		changes => q{
			UPDATE part_toast SET k = 2 WHERE a IN (1, 2);
			UPDATE part_toast SET k = 1 WHERE a = 2;
			UPDATE part_toast SET k = 2, a = 30 WHERE a = 3;
			UPDATE part_toast SET k = 2, big = 'short' WHERE a = 4;},
		later   => 'UPDATE part_toast SET k = 3 - k',
		query   => 'SELECT a, k, big FROM part_toast',
	},
	{
		table  => 'inherited',
		tables => [qw(inherited inherited_child)],
		ddl    => q{
			CREATE TABLE inherited (a int PRIMARY KEY, b text);
			CREATE TABLE inherited_child (c text, PRIMARY KEY (a))
				INHERITS (inherited);},
		seed   => q{
			INSERT INTO inherited SELECT g, 'row' FROM generate_series(1, 5) g;
			INSERT INTO inherited_child
				SELECT g, 'row', 'c' FROM generate_series(6, 10) g;},
		changes => q{
			UPDATE inherited SET b = 'changed' WHERE a IN (1, 6);
			DELETE FROM inherited WHERE a IN (2, 7);
			INSERT INTO inherited VALUES (11, 'new');
			INSERT INTO inherited_child VALUES (12, 'new', 'new');},
	},
	#
	# triggers
	#
	{
		table   => 'triggers',
		ddl     => 'CREATE TABLE triggers (a int PRIMARY KEY, b text, c text)',
		sub_ddl => q{
			ALTER TABLE triggers ADD COLUMN local int DEFAULT 0;
			CREATE TRIGGER before_always
				BEFORE INSERT OR UPDATE OR DELETE ON triggers
				FOR EACH ROW EXECUTE FUNCTION note();
			CREATE TRIGGER before_replica
				BEFORE INSERT OR UPDATE OR DELETE ON triggers
				FOR EACH ROW EXECUTE FUNCTION note();
			CREATE TRIGGER after_always
				AFTER INSERT OR UPDATE OR DELETE ON triggers
				FOR EACH ROW EXECUTE FUNCTION note();
			CREATE TRIGGER after_b AFTER UPDATE OF b ON triggers
				FOR EACH ROW EXECUTE FUNCTION note();
			CREATE TRIGGER after_local AFTER UPDATE OF local ON triggers
				FOR EACH ROW EXECUTE FUNCTION note();
			CREATE TRIGGER after_when AFTER UPDATE ON triggers
				FOR EACH ROW WHEN (old.b IS DISTINCT FROM new.b)
				EXECUTE FUNCTION note();
			CREATE CONSTRAINT TRIGGER deferred AFTER INSERT ON triggers
				DEFERRABLE INITIALLY DEFERRED
				FOR EACH ROW WHEN (new.a = 3) EXECUTE FUNCTION note();
			CREATE TRIGGER statement
				AFTER INSERT OR UPDATE OR DELETE ON triggers
				FOR EACH STATEMENT EXECUTE FUNCTION note();
			CREATE TRIGGER ordinary_before
				BEFORE INSERT OR UPDATE OR DELETE ON triggers
				FOR EACH ROW EXECUTE FUNCTION note();
			CREATE TRIGGER ordinary_after
				AFTER INSERT OR UPDATE OR DELETE ON triggers
				FOR EACH ROW EXECUTE FUNCTION note();
			CREATE TRIGGER disabled AFTER INSERT OR UPDATE OR DELETE ON triggers
				FOR EACH ROW EXECUTE FUNCTION note();
			ALTER TABLE triggers
				ENABLE ALWAYS TRIGGER before_always,
				ENABLE REPLICA TRIGGER before_replica,
				ENABLE ALWAYS TRIGGER after_always,
				ENABLE REPLICA TRIGGER after_b,
				ENABLE REPLICA TRIGGER after_local,
				ENABLE REPLICA TRIGGER after_when,
				ENABLE ALWAYS TRIGGER deferred,
				ENABLE ALWAYS TRIGGER statement,
				DISABLE TRIGGER disabled;},
		seed    => q{INSERT INTO triggers VALUES (1, 'b', 'c'), (2, 'b', 'c')},
		changes => q{
			INSERT INTO triggers VALUES (3, 'b', 'c');
			UPDATE triggers SET b = 'new' WHERE a = 1;
			UPDATE triggers SET c = 'new' WHERE a = 2;
			UPDATE triggers SET a = 20 WHERE a = 2;
			DELETE FROM triggers WHERE a = 1;},
		later   => 'SELECT',
		query   => 'SELECT a, b, c FROM triggers',
	},
	{
		table   => 'changing_trigger',
		sub_ddl => q{
			CREATE TRIGGER changing BEFORE INSERT OR UPDATE OR DELETE
				ON changing_trigger FOR EACH ROW EXECUTE FUNCTION change();
			ALTER TABLE changing_trigger ENABLE REPLICA TRIGGER changing;},
		changes => q{
			INSERT INTO changing_trigger VALUES (11, 'new');
			UPDATE changing_trigger SET b = 'changed' WHERE a IN (1, 7);
			UPDATE changing_trigger SET a = 7 WHERE a = 2 AND false;
			DELETE FROM changing_trigger WHERE a IN (8, 9);},
		later     => q{UPDATE changing_trigger SET b = 'later' WHERE a = 3},
		query     => q{SELECT a, upper(b) FROM changing_trigger WHERE a <> 7
			UNION ALL SELECT 9, 'ROW 9'},
		sub_query => 'SELECT a, b FROM changing_trigger',
	},
	{
		table   => 'trigger_truncated',
		sub_ddl => q{
			CREATE TRIGGER after_always AFTER TRUNCATE ON trigger_truncated
				EXECUTE FUNCTION note();
			CREATE TRIGGER before_replica BEFORE TRUNCATE ON trigger_truncated
				EXECUTE FUNCTION note();
			CREATE TRIGGER ordinary BEFORE TRUNCATE ON trigger_truncated
				EXECUTE FUNCTION note();
			ALTER TABLE trigger_truncated
				ENABLE ALWAYS TRIGGER after_always,
				ENABLE REPLICA TRIGGER before_replica;},
		changes => 'TRUNCATE trigger_truncated',
		locking => 1,
	},
	#
	# TOAST
	#
	{
		table   => 'toast',
		ddl     => toast_ddl('toast'),
		sub_ddl => q{
			CREATE TRIGGER after_big AFTER UPDATE OF big ON toast
				FOR EACH ROW EXECUTE FUNCTION note_short();
			ALTER TABLE toast ENABLE ALWAYS TRIGGER after_big;},
		seed    => toast_seed('toast'),
		changes => toast_changes('toast'),
		later   => 'UPDATE toast SET n = n + 1',
	},
	{
		table   => 'toast_full',
		ddl     => toast_ddl('toast_full')
		  . 'ALTER TABLE toast_full REPLICA IDENTITY FULL',
		sub_ddl => 'ALTER TABLE toast_full DROP CONSTRAINT toast_full_pkey',
		seed    => toast_seed('toast_full'),
		changes => toast_changes('toast_full'),
		later   => q{
			UPDATE toast_full SET n = n + 1;
			DELETE FROM toast_full WHERE a = 1;},
	},
	{
		# a key that is long enough to be stored out of line
		table   => 'toast_key',
		ddl     => 'CREATE TABLE toast_key (a text PRIMARY KEY, b text)',
		seed    => join('',
			map {
				"INSERT INTO toast_key VALUES ("
				  . long_text("key$_", 2400)
				  . ", 'row $_');"
			} 1 .. 5),
		changes => q{
			UPDATE toast_key SET b = 'changed' WHERE b = 'row 1';
			UPDATE toast_key SET a = 'short' WHERE b = 'row 2';
			UPDATE toast_key SET a = 'x' || a, b = 'both' WHERE b = 'row 3';
			DELETE FROM toast_key WHERE b = 'row 4';},
		later   => q{
			UPDATE toast_key SET b = b || ' later';
			DELETE FROM toast_key WHERE b = 'both later';},
	},
	#
	# wide rows
	#
	{
		table   => 'wide',
		ddl     => 'CREATE TABLE wide (a int PRIMARY KEY, '
		  . join(', ', map { "$_ int" } @wide) . ')',
		seed    => 'INSERT INTO wide SELECT g, '
		  . join(', ', map { "g + $_" } 1 .. @wide)
		  . ' FROM generate_series(1, 4) AS g',
		changes =>
		  'UPDATE wide SET c1 = -1, c1000 = NULL, c1599 = c1599 * 2 WHERE a = 1;'
		  . 'UPDATE wide SET '
		  . join(', ', map { "$_ = NULL" } @wide)
		  . ' WHERE a = 2;'
		  . 'UPDATE wide SET a = 30, c800 = 7 WHERE a = 3;'
		  . 'DELETE FROM wide WHERE a = 4;'
		  . 'INSERT INTO wide SELECT 5, '
		  . join(', ', map { $_ % 2 ? 'NULL' : $_ } 1 .. @wide),
		later   => 'UPDATE wide SET c1599 = 1',
	},
	{
		table   => 'large',
		ddl     => q{
			CREATE TABLE large (a int PRIMARY KEY, big text, n int);
			ALTER TABLE large ALTER big SET STORAGE EXTERNAL;},
		seed    => q{INSERT INTO large VALUES (1, 'small', 0), (2, 'small', 0)},
		changes => q{
			INSERT INTO large VALUES (3, repeat('0123456789', 5000000), 0);
			UPDATE large SET big = repeat('abcdefghij', 5000000) WHERE a = 2;
			UPDATE large SET n = 1 WHERE a = 2;},
		later   => q{UPDATE large SET n = 2},
		query   => 'SELECT a, length(big), md5(big), n FROM large',
	},
	#
	# other columns than the publisher's
	#
	{
		table   => 'generated',
		no_ddl  => 1,
		pub_ddl => q{CREATE TABLE generated (a int PRIMARY KEY, b int,
			c int GENERATED ALWAYS AS (b * 2) STORED)},
		sub_ddl => q{
			CREATE TABLE generated (d text GENERATED ALWAYS AS ('<' || b || '>')
				STORED, a int PRIMARY KEY,
				c int GENERATED ALWAYS AS (b * 10) STORED, b int);
			CREATE UNIQUE INDEX generated_c ON generated (c);},
		seed    => q{INSERT INTO generated
			SELECT g, g FROM generate_series(1, 5) AS g},
		changes => q{
			INSERT INTO generated VALUES (6, 6);
			UPDATE generated SET b = 100 WHERE a = 1;
			UPDATE generated SET a = 20 WHERE a = 2;
			UPDATE generated SET b = NULL WHERE a = 3;},
		later     => 'UPDATE generated SET b = b + 1000',
		query     => q{SELECT a, b, b * 10 AS c, '<' || b || '>' FROM generated},
		sub_query => 'SELECT a, b, c, d FROM generated',
	},
	{
		table   => 'more_columns',
		ddl     => q{CREATE TABLE more_columns (a int PRIMARY KEY, b text)},
		sub_ddl => q{
			ALTER TABLE more_columns ADD COLUMN with_default text
				DEFAULT 'default';
			ALTER TABLE more_columns ADD COLUMN numbered serial;
			ALTER TABLE more_columns ADD COLUMN without_default text;
			ALTER TABLE more_columns ADD COLUMN set_once text;
			CREATE FUNCTION set_once() RETURNS trigger LANGUAGE plpgsql AS
				'BEGIN new.set_once := new.b; RETURN new; END';
			CREATE TRIGGER set_once BEFORE INSERT ON more_columns
				FOR EACH ROW EXECUTE FUNCTION set_once();
			ALTER TABLE more_columns ENABLE ALWAYS TRIGGER set_once;},
		seed    => q{INSERT INTO more_columns VALUES (1, 'one'), (2, 'two')},
		changes => q{
			INSERT INTO more_columns VALUES (3, 'three');
			UPDATE more_columns SET b = 'changed' WHERE a IN (1, 3);
			UPDATE more_columns SET a = 4 WHERE a = 2;},
		later     => q{UPDATE more_columns SET b = b || ' later'},
		query     => q{VALUES
			(1, 'changed later', 'default', 1, NULL, 'one'),
			(3, 'changed later', 'default', 3, NULL, 'three'),
			(4, 'two later', 'default', 2, NULL, 'two')},
		sub_query => 'SELECT * FROM more_columns',
	},
	{
		# another order, dropped columns, an identity column
		table   => 'other_order',
		no_ddl  => 1,
		pub_ddl => q{
			CREATE TABLE other_order (a int PRIMARY KEY, gone int, b text,
				c date);
			ALTER TABLE other_order DROP COLUMN gone;},
		sub_ddl => q{
			CREATE TABLE other_order (gone text, c date, b text, gone_too int,
				a int GENERATED ALWAYS AS IDENTITY PRIMARY KEY);
			ALTER TABLE other_order DROP COLUMN gone, DROP COLUMN gone_too;},
		seed    => q{INSERT INTO other_order
			SELECT g, 'row', '2000-01-01'::date + g
			FROM generate_series(1, 10) AS g},
		changes => q{
			INSERT INTO other_order VALUES (11, 'new', '1999-12-31');
			UPDATE other_order SET c = 'infinity' WHERE a = 1;
			UPDATE other_order SET a = 20 WHERE a = 2;
			DELETE FROM other_order WHERE a = 3;},
		query   => 'SELECT a, b, c FROM other_order',
	},
	{
		table   => 'other_types',
		no_ddl  => 1,
		pub_ddl => q{CREATE TABLE other_types (a int PRIMARY KEY, b int,
			c varchar(10), d timestamp, e bytea)},
		sub_ddl => q{CREATE TABLE other_types (a bigint PRIMARY KEY, b numeric,
			c text, d text, e text)},
		seed    => q{INSERT INTO other_types VALUES
			(1, 1, 'c', '2000-01-01', '\x00ff'), (2, 2, 'c', NULL, '')},
		changes => q{
			INSERT INTO other_types
				VALUES (3, -3, 'new', '1999-12-31 23:59:59.5', '\x5c');
			UPDATE other_types SET b = 10, d = now() WHERE a = 1;
			DELETE FROM other_types WHERE a = 2;},
		later   => q{UPDATE other_types SET c = 'later'},
		query   => 'SELECT a, b::text, c, d::text, e::text FROM other_types',
	},
	{
		table   => 'types',
		ddl     => q{
			CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
			CREATE TYPE pair AS (x int, y text);
			CREATE DOMAIN positive AS int CHECK (VALUE > 0);
			CREATE TABLE types (a int PRIMARY KEY, b mood, c pair, d positive,
				e mood[], f pair[], g int4range, h int4multirange, i xml,
				j float8, k interval, l timestamptz, m jsonb, n tsvector);},
		seed    => q{INSERT INTO types VALUES (1, 'sad', '(1,"a,b")', 1,
			'{ok,NULL}', '{"(1,x)"}', '[1,5)', '{[1,2),[5,6)}', '<a/>',
			0.1 + 0.2::float8, '-1 day 02:00', '2020-01-01 12:00+05',
			'{"k": [1, null]}', 'a fat cat')},
		changes => q{
			INSERT INTO types SELECT 2, 'happy', '(,"")', 2, '{}', '{NULL}',
				'empty', '{}', '<b/>', 'NaN', '1 mon -1 day', '-infinity', '{}',
				'';
			UPDATE types SET b = 'ok', c = (7, E'q"\\\\,\n')::pair,
				e = e || 'sad'::mood, l = '1900-01-01 00:00:00.000001+00',
				j = 1e-300, k = '-13 months -0.000001 s' WHERE a = 1;
			INSERT INTO types (a) VALUES (3);},
		later   => q{UPDATE types SET d = 77},
	},
	{
		# names that have to be quoted
		table   => q{"Odd ""Schema"."we'ird Table"},
		ddl     => q{
			CREATE SCHEMA "Odd ""Schema";
			CREATE TABLE "Odd ""Schema"."we'ird Table" ("Select" int PRIMARY KEY,
				"a""b" text, "%s" text);},
		seed    => q{INSERT INTO "Odd ""Schema"."we'ird Table"
			VALUES (1, 'one', '%s'), (2, 'two', '\\')},
		changes => q{
			INSERT INTO "Odd ""Schema"."we'ird Table" VALUES (3, 'three', '''');
			UPDATE "Odd ""Schema"."we'ird Table" SET "a""b" = E'\t\n\\N'
				WHERE "Select" = 1;
			DELETE FROM "Odd ""Schema"."we'ird Table" WHERE "Select" = 2;},
		later   => q{UPDATE "Odd ""Schema"."we'ird Table" SET "%s" = 'later'},
	},
	{
		table   => 'indexed',
		ddl     => 'CREATE TABLE indexed (a int PRIMARY KEY, b text)',
		sub_ddl => q{
			CREATE UNIQUE INDEX indexed_upper ON indexed (upper(b));
			CREATE INDEX indexed_partial ON indexed (b) WHERE a % 2 = 0;
			CREATE INDEX indexed_hash ON indexed USING hash (b);
			CREATE INDEX indexed_gin ON indexed
				USING gin (string_to_array(b, ' '));},
		changes => q{
			INSERT INTO indexed
				SELECT g, 'new ' || g FROM generate_series(11, 100) AS g;
			UPDATE indexed SET b = b || ' changed' WHERE a % 3 = 0;
			DELETE FROM indexed WHERE a % 5 = 0;},
		later   => q{
			UPDATE indexed SET b = b || ' later' WHERE a % 2 = 0;
			DELETE FROM indexed WHERE a % 7 = 0;},
	},
	{
		# checks that are not made on replicas: of deferrable constraints and
		# foreign keys
		table   => 'unchecked',
		ddl     => q{CREATE TABLE unchecked (a int PRIMARY KEY,
			u int UNIQUE DEFERRABLE INITIALLY DEFERRED)},
		sub_ddl => 'ALTER TABLE unchecked ADD FOREIGN KEY (a) REFERENCES empty',
		seed    => 'INSERT INTO unchecked VALUES (1, 1), (2, 2), (3, 3)',
		changes => q{
			UPDATE unchecked SET u = 4 - u;
			INSERT INTO unchecked VALUES (4, 4);},
		later   => 'UPDATE unchecked SET u = 5 - u',
	},
	#
	# binary transfer
	#
	{
		table       => 'binary_types',
		publication => 'p_binary',
		ddl         => q{CREATE TABLE binary_types (a int PRIMARY KEY, b bigint,
			c float8, d numeric, e text, f bytea, g timestamptz, h uuid, i jsonb,
			j int[], k text[], l inet, m interval, n daterange, o bool, p "char",
			q name, r bit varying, s date, t real)},
		seed        => q{INSERT INTO binary_types VALUES (1, 1, 1.5, 1.50, 'text',
			'\x00ff', '2020-02-02', '00000000-0000-0000-0000-000000000001',
			'{"a": 1}', '{1,NULL}', '{x,"y,z"}', '10.0.0.0/8', '1 day',
			'[2020-01-01,2020-02-02)', true, 'c', 'name', B'101', '2020-01-01',
			1.25)},
		changes     => q{
			INSERT INTO binary_types SELECT 2, -1, 'Infinity', 'NaN', '', '',
				'infinity', h, '[]', '{}', '{{a,b},{c,d}}', '::1', '-1 mon',
				'empty', false, '', '', B'', '-infinity', '-0'
				FROM binary_types;
			UPDATE binary_types SET d = 1e100, e = repeat('x', 5000),
				c = 1e-307 WHERE a = 1;
			INSERT INTO binary_types (a) VALUES (3);
			UPDATE binary_types SET a = 30, b = 3 WHERE a = 3;
			DELETE FROM binary_types WHERE a = 2;
			INSERT INTO binary_types (a, c) VALUES (4, 0.1);},
		later       => q{UPDATE binary_types SET b = 7, j = '{7}'},
	},
	{
		# values that were not changed are not sent in binary either
		table       => 'binary_toast',
		publication => 'p_binary',
		ddl         => toast_ddl('binary_toast'),
		seed        => toast_seed('binary_toast'),
		changes     => toast_changes('binary_toast'),
		later       => 'UPDATE binary_toast SET n = n + 1',
	});

# The subscriber's database has another encoding than the publisher's.
my @cases_latin1 = ({
		table   => 'words',
		ddl     => q{
			SET client_encoding = 'UTF8';
			CREATE TABLE words (a text PRIMARY KEY, "größe" text)},
		seed    => q{INSERT INTO words VALUES ('é', 'e'), ('ü', 'u'), ('b', 'ß')},
		changes => q{
			SET client_encoding = 'UTF8';
			INSERT INTO words VALUES ('ñ', 'ÿ');
			UPDATE words SET "größe" = 'größer' WHERE a = 'é';
			UPDATE words SET a = 'å' WHERE a = 'ü';
			DELETE FROM words WHERE a = 'b';},
		later   => q{
			SET client_encoding = 'UTF8';
			UPDATE words SET "größe" = "größe" || 'ø'},
	});

$catchup->create(@cases);
$catchup_latin1->create(@cases_latin1);

foreach my $publication (qw(p_plain p_root p_binary))
{
	my $with = $publication eq 'p_root'
	  ? 'WITH (publish_via_partition_root = true)'
	  : '';
	$pub->safe_psql(
		'postgres',
		"CREATE PUBLICATION $publication FOR TABLE " . join(
			', ',
			CatchUp::tables_of(
				grep { ($_->{publication} // 'p_plain') eq $publication }
				  @cases))
		  . " $with");
}
$pub->safe_psql('utf8', 'CREATE PUBLICATION p FOR ALL TABLES');

$catchup->close_gates(@cases);
$catchup_latin1->close_gates(@cases_latin1);
subscribe($pub, $sub, 's_latin1', 'p', @latin1);
$catchup_latin1->run_cases(@cases_latin1);
subscribe($pub, $sub, 's', 'p_plain, p_root');
subscribe($pub, $sub, 's_binary', 'p_binary', with => 'binary = true');
$catchup->run_cases(@cases);

my %databases = (s => 'postgres', s_binary => 'postgres', s_latin1 => 'latin1');
wait_ready($sub, $_, db => $databases{$_}) foreach sort keys %databases;
$catchup->in_time_ok('changes were made during the copies');
$catchup_latin1->in_time_ok('so they were with the other encoding');

#
# What the triggers have seen until then.
#
sub noted
{
	my ($table) = @_;

	return $sub->safe_psql(
		'postgres', qq{
		SELECT name, op, old_row, new_row FROM noted
		WHERE tab ~ '^$table' AND name <> 'deferred' ORDER BY n});
}

is(noted('triggers'), q{before_always|BEFORE INSERT||(1,b,c,0)
before_replica|BEFORE INSERT||(1,b,c,0)
before_always|BEFORE INSERT||(2,b,c,0)
before_replica|BEFORE INSERT||(2,b,c,0)
after_always|AFTER INSERT||(1,b,c,0)
after_always|AFTER INSERT||(2,b,c,0)
statement|AFTER INSERT||
before_always|BEFORE INSERT||(3,b,c,0)
before_replica|BEFORE INSERT||(3,b,c,0)
after_always|AFTER INSERT||(3,b,c,0)
before_always|BEFORE UPDATE|(1,b,c,0)|(1,new,c,0)
before_replica|BEFORE UPDATE|(1,b,c,0)|(1,new,c,0)
after_always|AFTER UPDATE|(1,b,c,0)|(1,new,c,0)
after_b|AFTER UPDATE|(1,b,c,0)|(1,new,c,0)
after_when|AFTER UPDATE|(1,b,c,0)|(1,new,c,0)
before_always|BEFORE UPDATE|(2,b,c,0)|(2,b,new,0)
before_replica|BEFORE UPDATE|(2,b,c,0)|(2,b,new,0)
after_always|AFTER UPDATE|(2,b,c,0)|(2,b,new,0)
after_b|AFTER UPDATE|(2,b,c,0)|(2,b,new,0)
before_always|BEFORE UPDATE|(2,b,new,0)|(20,b,new,0)
before_replica|BEFORE UPDATE|(2,b,new,0)|(20,b,new,0)
after_always|AFTER UPDATE|(2,b,new,0)|(20,b,new,0)
after_b|AFTER UPDATE|(2,b,new,0)|(20,b,new,0)
before_always|BEFORE DELETE|(1,new,c,0)|
before_replica|BEFORE DELETE|(1,new,c,0)|
after_always|AFTER DELETE|(1,new,c,0)|},
	'row triggers see every change, those of statements only the copy');
is( $sub->safe_psql('postgres',
		q{SELECT op, new_row FROM noted WHERE name = 'deferred'}),
	'AFTER INSERT|(3,b,c,0)',
	'a deferred trigger fires once');
is( $sub->safe_psql('postgres',
		'SELECT DISTINCT role, path FROM noted WHERE role IS NOT NULL'),
	'replica|', 'triggers run as on a replica, with no search_path');
is(noted('trigger_truncated'), q{before_replica|BEFORE TRUNCATE||
after_always|AFTER TRUNCATE||}, 'triggers for TRUNCATE');
is(noted('toast$'),
	join("\n", ('after_big|AFTER UPDATE||') x 5),
	'a column that was not sent was not updated');
is( $sub->safe_psql(
		'postgres', q{
		SELECT tab, op, old_row, new_row FROM noted
		WHERE tab ~ '^part_move' ORDER BY n}),
	q{part_move_1|AFTER UPDATE|(0,0,"row 0")|(0,0,changed)
part_move_2|AFTER UPDATE|("row 2",100,2)|(changed,100,2)
part_move_3b|AFTER UPDATE|(4,200,"row 4")|(4,200,changed)
part_move_default|AFTER UPDATE|(6,300,"row 6")|(6,300,changed)
part_move_1|AFTER DELETE|(1,50,"row 1")|
part_move_2|AFTER DELETE|("row 3",150,3)|
part_move_3b|AFTER DELETE|(5,250,"row 5")|
part_move_default|AFTER UPDATE|(7,350,"row 7")|(7,351,"row 7")
part_move_default|AFTER DELETE|(8,400,"row 8")|
part_move_default|AFTER DELETE|(9,450,"row 9")|
part_move_default|AFTER DELETE|(19,450,new)|},
	'triggers of partitions see updates, and rows go');

#
# Everything is the same on both sides, and stays so.
#
$catchup->change_later(@cases);
$catchup_latin1->change_later(@cases_latin1);
catch_up($pub, $sub, $_, db => $databases{$_}) foreach sort keys %databases;
$catchup->case_rows_ok(@cases);
$catchup_latin1->case_rows_ok(@cases_latin1);

rows_ok(
	$pub, $sub,
	q{SELECT a, 'part_move_' || CASE
			WHEN k BETWEEN 0 AND 99 THEN '1'
			WHEN k BETWEEN 100 AND 199 THEN '2'
			WHEN k BETWEEN 200 AND 299 THEN '3'
			ELSE 'default' END
		FROM part_move},
	'rows are in the right partitions',
	q{SELECT a, regexp_replace(tableoid::regclass::text, '[ab]$', '')
		FROM part_move});
is( $sub->safe_psql(
		'postgres', q{
		SET enable_seqscan = off; SET enable_bitmapscan = off;
		SELECT count(*) FROM indexed WHERE a > -1000000;
		SELECT count(*) FROM indexed WHERE upper(b) > '';
		SELECT count(*) FROM indexed WHERE b > '' AND a % 2 = 0;
		SELECT count(*) FROM indexed AS i WHERE b IN (SELECT b FROM indexed);
		SET enable_bitmapscan = on;
		SELECT count(*) FROM indexed
			WHERE string_to_array(b, ' ') @> '{changed}'}),
	$pub->safe_psql(
		'postgres', q{
		SELECT count(*) FROM indexed;
		SELECT count(*) FROM indexed;
		SELECT count(*) FROM indexed WHERE a % 2 = 0;
		SELECT count(*) FROM indexed;
		SELECT count(*) FROM indexed WHERE b LIKE '% changed%'}),
	'indexes are complete');

$_->finish foreach ($catchup, $catchup_latin1);
no_errors_ok($sub, 0, 'nothing has failed and been tried again');
no_builtin_sync_ok($sub);
no_leftovers_ok($pub, $sub, 'no slot and no origin left');

done_testing();
