# Commands that meet the pool where it does nothing, or waits: they find nobody
# in their way, and nothing is left behind.  The command test/commands gives many
# more of them at many more moments.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

use ReuseSync;
use ReuseSync::Cases;
use CatchUp;

plan skip_all => 'needs the extension' unless with_extension();

my $pub = new_publisher('pub');
my $new = new_publisher('new');
my $sub = new_subscriber(
	'sub',
	wal_retrieve_retry_interval               => '100ms',
	'reuse_sync.batch_size'                   => 0,
	'reuse_sync.handover_lock_timeout'        => '500ms',
	'reuse_sync.max_workers_per_subscription' => 1,
	'reuse_sync.naptime'                      => '500ms',
	'reuse_sync.worker_idle_timeout'          => '1h');

foreach my $table (qw(t1 t2))
{
	foreach my $node ($pub, $new, $sub)
	{
		$node->safe_psql('postgres',
			"CREATE TABLE $table (a int PRIMARY KEY, b text)");
		$node->safe_psql('postgres',
			"INSERT INTO $table SELECT g, 'row' FROM generate_series(1, 20) AS g")
		  if $node != $sub;
	}
}
$_->safe_psql('postgres',
	'CREATE PUBLICATION p FOR TABLE t1, t2; CREATE PUBLICATION p1 FOR TABLE t1')
  foreach $pub, $new;

# Give a command; one test, that it took no longer than that many seconds.
sub takes_ok
{
	my ($db, $sql, $limit) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $start = time;

	$sub->safe_psql($db, $sql);
	my $took = time - $start;
	note sprintf('took %.2f s', $took);
	return cmp_ok($took, '<', $limit, $sql);
}

sub idle_workers
{
	my ($db) = @_;

	return "SELECT count(*) FROM pg_stat_activity WHERE datname = '$db'"
	  . " AND backend_type = 'reuse_sync worker'";
}

# One test: all that was kept of subscriptions and tables has gone.
sub no_rows_ok
{
	my ($db) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return ok(
		$sub->poll_query_until(
			$db, q{
			SELECT (SELECT count(*) FROM reuse_sync.slot_catalog)
				+ (SELECT count(*) FROM reuse_sync.slot_number)
				+ (SELECT count(*) FROM reuse_sync.table_progress) = 0}),
		'no row is left in the catalog');
}

# A database in which a worker has nothing to do, but knows when it may: its
# subscription is disabled before it notices, or another keeps it there.
subtest 'idle worker and commands on the database' => sub {
	$sub->safe_psql('postgres', 'CREATE DATABASE d');
	$sub->safe_psql('d',
		'CREATE TABLE t1 (a int PRIMARY KEY, b text);'
		  . ' CREATE TABLE t2 (a int PRIMARY KEY, b text)');
	create_extension($sub, 'd');
	subscribe($pub, $sub, 's_d', 'p', sub_db => 'd');
	wait_ready($sub, 's_d', db => 'd');
	$sub->poll_query_until('postgres', idle_workers('d'), '1')
	  or die 'there is no idle worker';

	foreach my $command (
		'ALTER DATABASE d RENAME TO e; ALTER DATABASE e RENAME TO d',
		'CREATE DATABASE copy TEMPLATE d')
	{
		$sub->safe_psql('d', 'ALTER SUBSCRIPTION s_d DISABLE');
		takes_ok('postgres', $command, 4);
		$sub->safe_psql('d', 'ALTER SUBSCRIPTION s_d ENABLE');
	}
	$sub->safe_psql('d', 'DROP SUBSCRIPTION s_d');
	no_rows_ok('d');
	takes_ok('postgres', 'DROP DATABASE d',    4);
	takes_ok('postgres', 'DROP DATABASE copy', 4);
	no_leftovers_ok($pub, $sub);
};

# The table's slot is gone when DROP SUBSCRIPTION is through, as the server's
# own would be.
subtest 'dropped in the middle of a copy, with the database' => sub {
	my $catchup;

	$sub->safe_psql('postgres', 'CREATE DATABASE d');
	$sub->safe_psql('d',
		'CREATE TABLE t1 (a int PRIMARY KEY, b text);'
		  . ' CREATE TABLE t2 (a int PRIMARY KEY, b text)');
	create_extension($sub, 'd');
	$catchup = CatchUp->new($pub, $sub, sub_db => 'd');
	$catchup->close_gate('t1');
	$catchup->close_gate('t2');
	subscribe($pub, $sub, 's_d', 'p', sub_db => 'd');
	$catchup->wait_at_gates([qw(t1 t2)]);
	takes_ok('d', 'DROP SUBSCRIPTION s_d', 4);
	is( $pub->safe_psql(
			'postgres', 'SELECT count(*) FROM pg_replication_slots'),
		'0',
		'no slot is left');
	$catchup->finish;
	takes_ok('postgres', 'DROP DATABASE d WITH (FORCE)', 4);
	no_leftovers_ok($pub, $sub);
};

# The slot of a table that is being copied stays behind on the old publisher,
# until the cleaner has been there.
subtest 'another publisher' => sub {
	my $catchup = CatchUp->new($pub, $sub);

	$catchup->close_gate('t1');
	$catchup->close_gate('t2');
	subscribe($pub, $sub, 's', 'p');
	my ($table) = $catchup->wait_at_gates([qw(t1 t2)]);
	$new->safe_psql('postgres',
		q{SELECT pg_create_logical_replication_slot('s', 'pgoutput')});
	takes_ok('postgres',
		'ALTER SUBSCRIPTION s CONNECTION ' . literal($new->connstr('postgres')),
		4);
	ok( $pub->poll_query_until(
			'postgres', q{
			SELECT string_agg(slot_name, ' ') = 's' FROM pg_replication_slots}),
		'the old publisher has no slot of ours any more');
	$catchup->open_gate($_) foreach qw(t1 t2);
	wait_ready($sub, 's');
	rows_ok($new, $sub, $_, "contents of $_") foreach qw(t1 t2);
	$catchup->finish;
	$sub->safe_psql('postgres', 'DROP SUBSCRIPTION s; TRUNCATE t1, t2');
	$pub->safe_psql('postgres', q{SELECT pg_drop_replication_slot('s')});
	no_leftovers_ok($new, $sub);
	no_leftovers_ok($pub, $sub, 'nor on the old one');
	no_rows_ok('postgres');
};

# A worker waits for somebody who has its only table, and streams meanwhile; a
# publisher that shuts down wants everything confirmed first.
subtest 'publisher stops while the handover waits' => sub {
	my $locker = $sub->background_psql('postgres');

	$locker->set_query_timer_restart();
	$locker->query_safe('BEGIN; LOCK TABLE t1 IN ROW EXCLUSIVE MODE');
	subscribe($pub, $sub, 's', 'p1');
	wait_states($sub, 's', q{count(*) FILTER (WHERE srsubstate = 'f') = 1});

	# The pauses between the attempts become longer; wait for a long one, and
	# for the beginning of the next.
	foreach my $since ('< now() - interval \'2.2 s\'',
		'BETWEEN now() - interval \'1.0 s\' AND now() - interval \'0.55 s\'')
	{
		ok( $sub->poll_query_until(
				'postgres', qq{
				SELECT phase = 'handing over' AND state_change $since
				FROM reuse_sync.workers WHERE subname = 's'}),
			"paused since $since");
	}
	my $offset = -s $sub->logfile;
	my $start  = time;
	$pub->stop('fast');
	my $took = time - $start;
	note sprintf('took %.2f s', $took);
	cmp_ok($took, '<', 5, 'the publisher stops');
	$sub->wait_for_log(qr/was lost while receiving changes/, $offset);
	$pub->start;
	$locker->query_safe('COMMIT');
	$locker->quit;
	wait_ready($sub, 's');
	rows_ok($pub, $sub, 't1', 'contents of t1');
	$sub->safe_psql('postgres', 'DROP SUBSCRIPTION s');
	no_leftovers_ok($pub, $sub);
};

done_testing();
