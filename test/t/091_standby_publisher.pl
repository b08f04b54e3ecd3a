# A standby as the publisher (16): each unit takes a slot of its own and that
# slot's snapshot, and the position of the handover is how far the standby has
# replayed (design.md C4).

use strict;
use warnings;

use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;

my $primary = new_publisher('primary');

if ($primary->pg_version < 16)
{
	plan skip_all => 'before 16 a standby does not publish';
}

# A standby that keeps what its slots need on the primary.
sub new_standby
{
	my ($name) = @_;

	$primary->safe_psql('postgres',
		"SELECT pg_create_physical_replication_slot('$name')");
	my $standby = PostgreSQL::Test::Cluster->new($name);
	$standby->init_from_backup($primary, 'backup', has_streaming => 1);
	$standby->append_conf('postgresql.conf', "
		primary_slot_name = '$name'
		hot_standby_feedback = on");
	$standby->start;
	return $standby;
}

# Writers on the primary, which also have the running transactions logged: the
# creation of a slot on a standby waits for such a record.
sub start_writers
{
	my ($number, @tables) = @_;
	my $script = $primary->basedir . '/writer.sql';
	my $time   = 10 * $PostgreSQL::Test::Utils::timeout_default;

	unlink $script;
	append_to_file(
		$script, join '',
		"\\set k random(1, 20000)\nBEGIN;\n",
		(map { "INSERT INTO $_ VALUES (100000 + :k, 'new')
				ON CONFLICT (a) DO UPDATE SET b = 'again';
			UPDATE $_ SET b = 'changed' WHERE a = :k;
			DELETE FROM $_ WHERE a = :k + 1;\n" } @tables),
		"COMMIT;\nSELECT pg_log_standby_snapshot();\n");
	return map {
		IPC::Run::start(
			[
				'pgbench', '--no-vacuum', '--rate=20', "--time=$time",
				"--file=$script", $primary->connstr('postgres')
			],
			'<', \undef, '>', '/dev/null', '2>', '/dev/null')
	} 1 .. $number;
}

$primary->backup('backup');
my $standby = new_standby('standby');
my $sub = new_subscriber('sub', 'reuse_sync.batch_size' => '64kB');

# Batches, and tables too large for them
my @small = map { "small_$_" } 1 .. 30;
my @large = map { "large_$_" } 1 .. 3;
foreach my $node ($primary, $sub)
{
	$node->safe_psql('postgres', join ';',
		map { "CREATE TABLE $_ (a int PRIMARY KEY, b text)" } @small, @large);
}
$primary->safe_psql(
	'postgres', join ';',
	(map { "INSERT INTO $_ SELECT g, 'old' FROM generate_series(1, 10) g" }
		  @small),
	(map { "INSERT INTO $_ SELECT g, repeat('x', 100)
			FROM generate_series(1, 20000) g" } @large),
	'CREATE PUBLICATION p FOR ALL TABLES');

my @writers = start_writers(2, @small[ 0, 14, 29 ], @large);
$primary->wait_for_replay_catchup($standby);
subscribe($standby, $sub, 's', 'p');
wait_ready($sub, 's');
$_->kill_kill foreach @writers;

# What the last writer did may still be under way.
$primary->poll_query_until('postgres',
	"SELECT count(*) = 0 FROM pg_stat_activity
	WHERE application_name = 'pgbench'") or die 'a writer is left';
my $position = $primary->lsn('write');
$primary->wait_for_replay_catchup($standby);
$primary->safe_psql('postgres', 'SELECT pg_log_standby_snapshot()');
$sub->poll_query_until('postgres',
	"SELECT latest_end_lsn >= '$position' FROM pg_stat_subscription
	WHERE subname = 's' AND relid IS NULL")
  or die 'the subscriber has not caught up';
rows_ok($primary, $sub, $_, "$_: as on the primary") foreach @small, @large;
if (with_extension())
{
	is( $sub->safe_psql('postgres',
			'SELECT tables_synced, slots_reused FROM reuse_sync.stats'),
		'33|0',
		'every unit had a slot of its own');
}
no_leftovers_ok($standby, $sub, 'no slot is left on the standby');

# Ours and the apply worker's must be one standby.
if (with_extension())
{
	my $other     = new_standby('other');
	my $elsewhere = $other->connstr('postgres');
	my $here      = $standby->connstr('postgres');
	s/'/''/g foreach $elsewhere, $here;

	both($primary, $sub, 'CREATE TABLE late (a int PRIMARY KEY, b text)');
	$primary->safe_psql('postgres', "INSERT INTO late VALUES (1, 'old')");
	$primary->wait_for_replay_catchup($_) foreach $standby, $other;

	$sub->safe_psql('postgres',
		"ALTER SUBSCRIPTION s CONNECTION '$elsewhere'");
	$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s REFRESH PUBLICATION');
	$sub->poll_query_until('postgres',
		q{SELECT EXISTS (SELECT FROM reuse_sync.problems
		WHERE last_error ~ 'does not stream')})
	  or die 'nothing is said of the other standby';
	is($sub->safe_psql('postgres', 'SELECT count(*) FROM late'),
		'0', 'nothing is copied from another standby');

	@writers = start_writers(1, 'late');
	$sub->safe_psql('postgres', "ALTER SUBSCRIPTION s CONNECTION '$here'");
	wait_ready($sub, 's');
	$_->kill_kill foreach @writers;
	is( $sub->safe_psql('postgres', "SELECT count(*) FROM late WHERE a = 1"),
		'1', 'it is copied from the one that the apply worker uses');
}

done_testing();
