# What a worker has planned, or had its slot made for, is not what it finds
# when it comes to a table: another worker has been there, or the subscription
# has other publications.  And what is refused must not disturb anybody.
#
# Nothing here relies on the launcher's looking around by itself: its naptime
# is longer than the test.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use CatchUp;

plan skip_all => 'needs the extension' unless with_extension();

# Tables of a few pages go the express way, larger ones the staged way.
my $pub = new_publisher('pub');
my $sub = new_subscriber(
	'sub',
	wal_retrieve_retry_interval        => '100ms',
	'reuse_sync.batch_size'            => '200kB',
	'reuse_sync.batch_tables'          => 1,
	'reuse_sync.handover_lock_timeout' => '1s',
	'reuse_sync.max_workers'           => 2,
	'reuse_sync.naptime'               => '1h');
my $catchup = CatchUp->new($pub, $sub);

#
# Helpers
#

# Create a table on both sides, with rows on the publisher.
sub create_table
{
	my ($table, $columns, $rows, $text) = @_;

	both($pub, $sub, "CREATE TABLE $table ($columns)");
	$pub->safe_psql('postgres',
		"INSERT INTO $table SELECT g, $text FROM generate_series(1, $rows) AS g");
	return;
}

sub wait_state
{
	my ($table, $state) = @_;

	wait_for_query(
		$sub, qq{
		SELECT srsubstate = '$state' FROM pg_subscription_rel
		WHERE srrelid = '$table'::regclass});
	return;
}

# The worker that has a table, with the start of its transaction.
sub worker_at
{
	my ($table) = @_;

	return $sub->safe_psql(
		'postgres', qq{
		SELECT pid, xact_start
		FROM reuse_sync.workers JOIN pg_stat_activity USING (pid)
		WHERE worker_type = 'worker' AND relid = '$table'::regclass});
}

sub log_offset
{
	return -s $sub->logfile;
}

# One test, how often a pattern is in the subscriber's log.
sub log_ok
{
	my ($offset, $times, $pattern, $testname) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	my $count = () = slurp_file($sub->logfile, $offset) =~ /$pattern/g;
	return is($count, $times, $testname);
}

sub drop_subscription
{
	my ($subname) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$sub->safe_psql('postgres', "DROP SUBSCRIPTION $subname");
	return no_leftovers_ok($pub, $sub, 'no slot and no origin left');
}

#
# The cases
#

# Two tables, two workers.  The first one is in the copy of the large table,
# and its plan has the small one as a table to be copied; nobody comes to the
# small one before the large one is taken, so the plan has both.  The second
# one has tried the small table the express way, in vain, has brought it to 'f'
# the staged way, and is interrupted there, by 'interrupt'.  While nobody else
# goes on with the table, the first worker comes to it.
sub older_plan
{
	my ($name, $interval, $interrupt) = @_;
	my ($sub_name, $pub_name) = ("s_$name", "p_$name");
	my ($first, $large, $small) = map { "${_}_$name" } qw(first large small);

	create_table($first, 'a int PRIMARY KEY, b text', 1,    q{'row'});
	create_table($large, 'a int PRIMARY KEY, b text', 3000, q{repeat('x', 200)});
	create_table($small, 'a int, b text',             1000, q{'row ' || g});
	both($pub, $sub, "ALTER TABLE $small REPLICA IDENTITY FULL");

	# The apply worker starts before failures have long consequences.
	reconfigure($sub, wal_retrieve_retry_interval => '100ms');
	$pub->safe_psql('postgres', "CREATE PUBLICATION $pub_name FOR TABLE $first");
	subscribe($pub, $sub, $sub_name, $pub_name);
	wait_ready($sub, $sub_name);
	no_leftovers_ok($pub, $sub, 'the first slot is gone');
	reconfigure($sub, wal_retrieve_retry_interval => $interval);

	my $offset = log_offset();
	my $lock   = $catchup->lock_table($small, 'ROW EXCLUSIVE');
	$catchup->close_gate($large);
	$pub->safe_psql('postgres',
		"ALTER PUBLICATION $pub_name ADD TABLE $large, $small");
	$sub->safe_psql('postgres',
		"ALTER SUBSCRIPTION $sub_name REFRESH PUBLICATION");
	$catchup->wait_at_gates([$large]);
	wait_state($small, 'f');
	$sub->wait_for_log(qr/gives up a unit of subscription "$sub_name"/, $offset);

	$interrupt->($small);
	is(table_state($sub, $small), 'f', 'the small table is half done');
	isnt(worker_at($large), '', 'and the large one is still being copied');
	end_session($lock);
	$catchup->open_gate($large);
	wait_ready($sub, $sub_name);

	is( $sub->safe_psql(
			'postgres', "SELECT count(*), count(DISTINCT a) FROM $small"),
		'1000|1000',
		'no row was copied twice');
	log_ok($offset, 1, qr/synchronized table "public\.$small"/,
		'the table was synchronized once');
	log_ok($offset, 1, qr/synchronized table "public\.$small".*taken over/,
		'from the slot that it had');
	log_ok($offset, 0, qr/is copied anew/, 'nothing was copied anew');

	$pub->safe_psql(
		'postgres', qq{
		INSERT INTO $small VALUES (1001, 'later');
		UPDATE $small SET b = 'later' WHERE a = 1;
		DELETE FROM $small WHERE a = 2;});
	catch_up($pub, $sub, $sub_name);
	rows_ok($pub, $sub, $_, "contents of $_") foreach $large, $small;
	reconfigure($sub, wal_retrieve_retry_interval => '100ms');
	drop_subscription($sub_name);
	return;
}

# The worker loses its stream, and the table has to wait for its next attempt.
sub lose_stream
{
	my ($table) = @_;
	my $streams = q{
		FROM pg_replication_slots
		WHERE slot_name LIKE 'reuse\_sync\_%' AND active};

	wait_for_query($pub, "SELECT count(*) = 1 $streams");
	$pub->safe_psql('postgres', "SELECT pg_terminate_backend(active_pid) $streams");
	wait_for_query(
		$sub, qq{
		SELECT attempts > 0 FROM reuse_sync.tables
		WHERE relid = '$table'::regclass});
	return;
}

# The worker ends, and its successor is not started at once.
sub lose_worker
{
	my ($table) = @_;
	my ($pid) = worker_at($table) =~ /^(\d+)/
	  or die "nobody is at $table\n" . ReuseSync::log_tail($sub);

	$sub->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
	wait_for_query($sub,
		"SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid");
	return;
}

# A table is in 'f', and its slot has changes that are older than a publication
# that the subscription gets now.  A stream of that slot cannot be asked for
# this publication: where it starts there is none.
sub younger_publication
{
	create_table('grows', 'a int PRIMARY KEY, b text', 3000,
		q{repeat('x', 200)});
	create_table('comes', 'a int PRIMARY KEY, b text', 10, q{'row'});
	$pub->safe_psql('postgres', 'CREATE PUBLICATION p_grows FOR TABLE grows');

	$catchup->close_gate('grows',  when => 'new.a = 1');
	$catchup->close_gate('change', gated => ['grows'], when => 'new.a = 5000');
	subscribe($pub, $sub, 's_grows', 'p_grows');
	$catchup->wait_at_gates(['grows']);
	my $lock = $catchup->lock_table('grows', 'ROW EXCLUSIVE');
	$pub->safe_psql(
		'postgres', q{
		INSERT INTO grows VALUES (5000, 'not copied');
		UPDATE grows SET b = 'not copied' WHERE a = 2;
		DELETE FROM grows WHERE a = 3;});
	$catchup->open_gate('grows');
	$catchup->wait_at_gates(['change']);
	is(table_state($sub, 'grows'), 'f', 'a table is half done');

	# What is being applied now is not committed any more.
	my $offset = log_offset();
	$pub->safe_psql('postgres', 'CREATE PUBLICATION p_comes FOR TABLE comes');
	$sub->safe_psql('postgres',
		'ALTER SUBSCRIPTION s_grows ADD PUBLICATION p_comes');
	$catchup->open_gate('change');
	$sub->wait_for_log(qr/gives up a unit of subscription "s_grows"/, $offset);
	wait_state('comes', 'r');
	is(table_state($sub, 'grows'), 'f', 'it is still half done');
	end_session($lock);
	wait_ready($sub, 's_grows');

	log_ok($offset, 0, qr/publication "p_comes" does not exist/,
		'the slot was not asked for the publication');
	log_ok($offset, 1, qr/synchronized table "public\.grows".*taken over/,
		'the table was finished from its slot');
	log_ok($offset, 0, qr/is copied anew/, 'nothing was copied anew');
	$pub->safe_psql('postgres',
		"INSERT INTO $_ VALUES (5001, 'later')") foreach qw(grows comes);
	catch_up($pub, $sub, 's_grows');
	rows_ok($pub, $sub, $_, "contents of $_") foreach qw(grows comes);
	drop_subscription('s_grows');
	return;
}

# The subscription has a slot to drop, which a transaction block cannot undo.
sub refused_drop
{
	create_table('stays', 'a int PRIMARY KEY, b text', 3000,
		q{repeat('x', 200)});
	$pub->safe_psql('postgres', 'CREATE PUBLICATION p_stays FOR TABLE stays');
	$catchup->close_gate('stays');
	subscribe($pub, $sub, 's_stays', 'p_stays');
	$catchup->wait_at_gates(['stays']);

	my $offset = log_offset();
	my $worker = worker_at('stays');
	my ($ret, undef, $stderr) =
	  $sub->psql('postgres', "BEGIN;\nDROP SUBSCRIPTION s_stays;\n");
	isnt($ret, 0, 'the command is refused');
	like(
		$stderr,
		qr/DROP SUBSCRIPTION cannot run inside a transaction block/,
		'by the server');
	like($worker, qr/^\d+\|./, 'a worker is in a copy');
	is(worker_at('stays'), $worker, 'and goes on with the same transaction');

	$catchup->open_gate('stays');
	wait_ready($sub, 's_stays');
	log_ok($offset, 0, qr/gives up|given up/, 'nothing was given up');
	log_ok($offset, 1, qr/synchronized table "public\.stays"/,
		'the table was synchronized once');
	rows_ok($pub, $sub, 'stays', 'contents');
	drop_subscription('s_stays');
	return;
}

subtest 'older plan, and the table waits for an attempt' =>
  sub { older_plan('waits', '5s', \&lose_stream) };
subtest 'older plan, and the table waits for a worker' =>
  sub { older_plan('left', '20s', \&lose_worker) };
subtest 'publication that is younger than the slot' => \&younger_publication;
subtest 'DROP SUBSCRIPTION is refused'              => \&refused_drop;

$catchup->finish;
no_builtin_sync_ok($sub);

done_testing();
