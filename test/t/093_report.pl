# What is kept of units, and shown in reuse_sync.units.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use ReuseSync;

plan skip_all => 'only of the extension' unless with_extension();

my $pub = new_publisher('pub');
my $sub = new_subscriber(
	'sub',
	wal_retrieve_retry_interval               => '500ms',
	'reuse_sync.batch_tables'                 => 4,
	'reuse_sync.max_workers_per_subscription' => 2);

#
# Units: 10 small tables in batches and one large one, which goes alone
#
both($pub, $sub, "CREATE TABLE t$_ (a int PRIMARY KEY, b text)")
  foreach (1 .. 10);
both($pub, $sub, 'CREATE TABLE large (a int, b text)');
$pub->safe_psql('postgres',
	"INSERT INTO t$_ SELECT g, repeat('x', 10) FROM generate_series(1, $_) g")
  foreach (1 .. 10);
$pub->safe_psql('postgres',
	q{INSERT INTO large SELECT g, repeat('x', 1000)
		FROM generate_series(1, 10000) g;
	CREATE PUBLICATION p FOR ALL TABLES});
subscribe($pub, $sub, 's', 'p');
wait_ready($sub, 's');

is( $sub->safe_psql('postgres', q{
		SELECT sum(u.tables), sum(u.tuples_copied),
			sum(u.bytes_copied) = (SELECT sum(bytes_copied) FROM reuse_sync.tables),
			max(u.tables) <= 4, bool_and(u.tables >= 1),
			count(*) = (SELECT units FROM reuse_sync.stats),
			count(*) FILTER (WHERE u.slot_reused)
				= (SELECT slots_reused FROM reuse_sync.stats),
			bool_and(u.started_at <= u.copied_at AND u.copied_at <= u.finished_at
				AND u.finished_at <= now()),
			bool_and(u.place BETWEEN 0 AND 3 AND u.pid > 0),
			bool_and(u.slot_name ~ '^reuse_sync_'),
			bool_and(u.started_at = t.started_at)
		FROM reuse_sync.units u JOIN reuse_sync.tables t USING (subname, relid)
		WHERE u.subname = 's'}),
	'11|10055|t|t|t|t|t|t|t|t|t',
	'units: every table is in one, with times, worker and slot');
is( $sub->safe_psql('postgres', q{
		SELECT tables, tuples_copied, bytes_copied > 10000000
		FROM reuse_sync.units WHERE relid = 'large'::regclass}),
	'1|10000|t',
	'units: a large table is one alone');

# A table that is synchronized anew later is a run of its own.
$sub->safe_psql('postgres', q{SELECT reuse_sync.resync_table('s', 'large')});
$sub->safe_psql('postgres', q{SELECT reuse_sync.wait_for_sync('s', '3 min')});
is( $sub->safe_psql('postgres', q{
		SELECT relid::regclass, tables, tuples_copied
		FROM reuse_sync.units WHERE subname = 's'}),
	'large|1|10000',
	'units: those of the last run, which was of one table');

# What is left of a table goes with it.
$pub->safe_psql('postgres', 'DROP PUBLICATION p;
	CREATE PUBLICATION p FOR TABLE t1');
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s REFRESH PUBLICATION');
is( $sub->safe_psql('postgres',
		q{SELECT count(*) FROM reuse_sync.units WHERE relid <> 't1'::regclass}),
	0, 'units: none of a table that is not in the subscription');

done_testing();
