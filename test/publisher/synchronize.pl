# Synchronization from a publisher of another version: see test/publishers.
#
# PUBLISHER_PATH is where its server is installed.  What a version does not know
# yet is left out.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use CatchUp;
use ReuseSync;
use ReuseSync::Cases;

my $pub = new_publisher(
	'pub',
	install_path              => $ENV{PUBLISHER_PATH},
	max_prepared_transactions => 10);
my $sub = new_subscriber(
	'sub',
	max_prepared_transactions => 10,
	'reuse_sync.batch_size'   => '256kB');
my $version =
  int($pub->safe_psql('postgres', 'SHOW server_version_num') / 10000);
note "publisher " . $pub->safe_psql('postgres', 'SHOW server_version');

# What there is from a version on
sub since
{
	my ($from, @cases) = @_;

	return $version >= $from ? @cases : ();
}

#
# Shapes of tables and of publications
#

my @cases = (
	{
		name => 'types',
		both => q{CREATE TABLE types (a int PRIMARY KEY, b text, c numeric,
			d timestamptz, e interval, f bytea, g jsonb, h float8, i int[],
			j uuid, k tsvector, l int4range)},
		pub => q{INSERT INTO types SELECT g, 'täxt' || g, g / 7.0,
			'epoch'::timestamptz + g * interval '1 day', g * interval '1 hour',
			decode(md5(g::text), 'hex'), jsonb_build_object('k', g),
			exp(g::float8 / 7), ARRAY[g, NULL], md5(g::text)::uuid,
			to_tsvector('simple', 'row ' || g), int4range(g, g + 3)
			FROM generate_series(1, 100) g},
		publish => 'types',
		later   => q{UPDATE types SET c = c + 1, h = 1e-7 WHERE a % 3 = 0;
			DELETE FROM types WHERE a = 5},
		rows => 'types',
	},
	{
		name    => 'large, the staged way',
		both    => 'CREATE TABLE large (a int PRIMARY KEY, b text)',
		pub     => q{INSERT INTO large SELECT g, repeat('x', 100)
			FROM generate_series(1, 20000) g},
		publish => 'large',
		later   => q{UPDATE large SET b = 'y' WHERE a % 100 = 0},
		rows    => 'SELECT count(*), sum(a), md5(string_agg(b, $$,$$ ORDER BY a))
			FROM large',
	},
	{
		name => 'replica identity full',
		both => 'CREATE TABLE whole (a int, b text)',
		pub  => q{ALTER TABLE whole REPLICA IDENTITY FULL;
			INSERT INTO whole SELECT g % 3, g::text
			FROM generate_series(1, 10) g},
		publish => 'whole',
		later   => q{DELETE FROM whole WHERE b = '3'},
		rows    => 'whole',
	},
	{
		name => 'generated column',
		both => q{CREATE TABLE computed (a int PRIMARY KEY,
			b int GENERATED ALWAYS AS (a * 2) STORED)},
		pub     => 'INSERT INTO computed VALUES (1), (2)',
		publish => 'computed',
		later   => 'INSERT INTO computed VALUES (3)',
		rows    => 'computed',
	},
	{
		name => 'dropped and other columns, odd names',
		pub  => q{CREATE TABLE "Odd, name" (gone int, "Key" int PRIMARY KEY,
				"b""b" text);
			ALTER TABLE "Odd, name" DROP COLUMN gone;
			INSERT INTO "Odd, name" VALUES (1, 'x'), (2, NULL)},
		sub => q{CREATE TABLE "Odd, name" (extra text DEFAULT 'here',
			"b""b" text, "Key" int PRIMARY KEY)},
		publish  => '"Odd, name"',
		later    => q{INSERT INTO "Odd, name" VALUES (3, 'y')},
		rows     => q{SELECT "Key", "b""b", 'here' FROM "Odd, name"},
		rows_sub => q{SELECT "Key", "b""b", extra FROM "Odd, name"},
	},
	{
		name => 'partitions',
		both => q{CREATE TABLE part (a int PRIMARY KEY, b text)
				PARTITION BY RANGE (a);
			CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (10);
			CREATE TABLE part_2 PARTITION OF part FOR VALUES FROM (10) TO (20)},
		pub => q{INSERT INTO part SELECT g, 'p' FROM generate_series(0, 18) g},
		publish => 'part',
		later   => 'UPDATE part SET a = a + 15 WHERE a = 4 AND b = $$p$$;
			DELETE FROM part WHERE a IN (3, 12)',
		rows => 'part',
	},
	{
		name => 'partitions, published through the root',
		pub  => q{CREATE TABLE root (a int PRIMARY KEY) PARTITION BY HASH (a);
			CREATE TABLE root_1 PARTITION OF root
				FOR VALUES WITH (MODULUS 2, REMAINDER 0);
			CREATE TABLE root_2 PARTITION OF root
				FOR VALUES WITH (MODULUS 2, REMAINDER 1);
			INSERT INTO root SELECT generate_series(1, 50);
			CREATE PUBLICATION root FOR TABLE root
				WITH (publish_via_partition_root)},
		sub   => 'CREATE TABLE root (a int PRIMARY KEY)',
		later => 'DELETE FROM root WHERE a % 5 = 0',
		rows  => 'root',
	},
	since(
		15,
		{
			name     => 'row filter and column list',
			both     => 'CREATE TABLE filtered (a int PRIMARY KEY, b text)',
			pub      => q{ALTER TABLE filtered ADD COLUMN secret text;
				INSERT INTO filtered SELECT g, 'x', 'y' FROM generate_series(1, 9) g;
				CREATE PUBLICATION filtered FOR TABLE filtered (a, b) WHERE (a > 5)},
			later    => q{INSERT INTO filtered VALUES (10, 'z', 'y'), (0, 'z', 'y')},
			rows     => 'SELECT a, b FROM filtered WHERE a > 5',
			rows_sub => 'filtered',
		},
		{
			name => 'schema',
			both => 'CREATE SCHEMA all_of_it;
				CREATE TABLE all_of_it.t (a int PRIMARY KEY)',
			pub => 'INSERT INTO all_of_it.t VALUES (1), (2);
				CREATE PUBLICATION in_schema FOR TABLES IN SCHEMA all_of_it',
			later => 'INSERT INTO all_of_it.t VALUES (3)',
			rows  => 'all_of_it.t',
		}));

# Many small ones for the batches
my @small = map {
	{
		name    => "small $_",
		both    => "CREATE TABLE small_$_ (a int PRIMARY KEY, b text)",
		pub     => "INSERT INTO small_$_ SELECT g, 'row' FROM
			generate_series(1, $_) g",
		publish => "small_$_",
		later   => "UPDATE small_$_ SET b = 'later'",
		rows    => "small_$_",
	}
} 1 .. 30;

run_cases(
	$pub, $sub, 'shapes',
	[ @cases, @small ],
	publications => [ 'root', since(15, 'filtered', 'in_schema') ]);

#
# Changes that come while tables are copied, both ways
#

my $catchup = CatchUp->new($pub, $sub);
my @gated   = (
	{ table => 'gate_small' },
	{
		table => 'gate_large',
		seed  => q{INSERT INTO gate_large SELECT g, repeat('x', 200)
			FROM generate_series(1, 3000) g}
	});
foreach my $case (@gated)
{
	my $table = $case->{table};

	$case->{changes} = qq{
		INSERT INTO $table SELECT g, 'caught up'
			FROM generate_series(10001, 10100) g;
		BEGIN; UPDATE $table SET b = 'caught up' WHERE a % 2 = 0;
		SAVEPOINT s; DELETE FROM $table; ROLLBACK TO s; COMMIT;
		DELETE FROM $table WHERE a = 1;
		BEGIN; INSERT INTO $table VALUES (-5, 'prepared');
		PREPARE TRANSACTION '$table'; COMMIT PREPARED '$table'};
}
$catchup->create(@gated);
$catchup->close_gates(@gated);
$pub->safe_psql('postgres',
	'CREATE PUBLICATION gates FOR TABLE gate_small, gate_large');
subscribe($pub, $sub, 'gates', 'gates',
	with => join(', ', 'copy_data',
		since(14, 'streaming', 'binary'), since(15, 'two_phase')));
$catchup->run_cases(@gated);
wait_ready($sub, 'gates');
$catchup->change_later(@gated);
catch_up($pub, $sub, 'gates');
$catchup->case_rows_ok(@gated);
$catchup->in_time_ok('the changes came during the copies');

#
# REFRESH, and an error that goes away
#

both($pub, $sub, 'CREATE TABLE added (a int PRIMARY KEY);
	CREATE TABLE clash (a int PRIMARY KEY)');
$pub->safe_psql('postgres', q{
	INSERT INTO added VALUES (1), (2);
	INSERT INTO clash VALUES (1), (2);
	ALTER PUBLICATION shapes_pub ADD TABLE added, clash});
$sub->safe_psql('postgres', 'INSERT INTO clash VALUES (2)');
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION shapes REFRESH PUBLICATION');
$sub->poll_query_until('postgres',
	q{SELECT attempts > 0 FROM reuse_sync.tables
	WHERE relid = 'clash'::regclass})
  or die 'clash did not fail';
$sub->safe_psql('postgres', 'DELETE FROM clash');
wait_ready($sub, 'shapes');
rows_ok($pub, $sub, $_, "REFRESH: $_") foreach qw(added clash);

cmp_ok(
	$sub->safe_psql('postgres', 'SELECT slots_reused FROM reuse_sync.stats'),
	'>', 0, 'slots have been reused');

$catchup->finish;
no_leftovers_ok($pub, $sub, 'no slot and no origin left');
no_builtin_sync_ok($sub);

done_testing();
