# What the server's statistics show of a synchronization, on both sides, and
# that a publisher with synchronous replication does not take our connections
# for standbys.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use CatchUp;
use ReuseSync;

my $pub = new_publisher('pub');

# One worker: it has the stream of the first table open while it copies the
# second.
my $sub = new_subscriber(
	'sub',
	wal_retrieve_retry_interval       => '500ms',
	'reuse_sync.max_workers'          => 1,
	'reuse_sync.batch_tables'         => 1,
	'reuse_sync.max_retry_interval'   => '500ms',
	max_sync_workers_per_subscription => 1);
my $catchup = CatchUp->new($pub, $sub);

foreach my $table ('first', 'second')
{
	both($pub, $sub, "CREATE TABLE $table (a int PRIMARY KEY, b text)");
}
$pub->safe_psql('postgres', q{
	INSERT INTO first SELECT g, 'row' FROM generate_series(1, 500) g;
	INSERT INTO second SELECT g, 'row' FROM generate_series(1, 100) g;
	CREATE PUBLICATION p FOR TABLE first, second});

# Waits for what a query returns.
sub query_ok
{
	my ($node, $query, $expected, $testname) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$node->poll_query_until('postgres', $query, $expected);
	return is($node->safe_psql('postgres', $query), $expected, $testname);
}

# The larger table comes first, and stops in the middle.
$catchup->close_gate($_, when => 'new.a = 50') foreach 'first', 'second';
subscribe($pub, $sub, 's', 'p');
$catchup->wait_at_gates(['first', 'second']);

# A copy at work, as the subscriber shows it
my ($relid, $pid) = split /\|/, $sub->safe_psql('postgres',
	'SELECT relid::regclass, pid FROM pg_stat_progress_copy');
my $table = $relid;
my $other = $table eq 'first' ? 'second' : 'first';
is( $sub->safe_psql('postgres', q{
		SELECT datname, command, type, bytes_processed > 0
		FROM pg_stat_progress_copy}),
	'postgres|COPY FROM|CALLBACK|t',
	'pg_stat_progress_copy shows a copy');
is( $sub->safe_psql('postgres', qq{
		SELECT backend_type, datname, usename = current_user, state,
			wait_event_type, wait_event, backend_xid IS NOT NULL,
			application_name
		FROM pg_stat_activity WHERE pid = $pid}),
	with_extension()
	? 'reuse_sync worker|postgres|t|active|Lock|advisory|t|'
	: 'logical replication worker|postgres|t||Lock|advisory|t|',
	'pg_stat_activity shows who copies, and what it waits for');
is( $sub->safe_psql('postgres', q{
		SELECT count(*) FROM pg_stat_subscription
		WHERE subname = 's' AND relid IS NULL AND pid IS NOT NULL}),
	'1',
	'pg_stat_subscription shows the apply worker');

# The other side of it
is( $pub->safe_psql('postgres', q{
		SELECT count(*) FROM pg_stat_progress_copy
		WHERE command = 'COPY TO'}),
	'1',
	'pg_stat_progress_copy shows it on the publisher as well')
  if !with_extension() || $pub->safe_psql('postgres', q{
	SELECT count(*) FROM pg_stat_progress_copy}) ne '0';

$catchup->open_gate($table);
$catchup->wait_at_gates([$other]) if $table ne $other;

# Synchronous replication.  The apply worker is the only standby; everybody
# may be one by the name.
foreach my $standbys ('*', 's')
{
	$pub->safe_psql('postgres',
		"ALTER SYSTEM SET synchronous_standby_names = '$standbys'");
	$pub->reload;
	query_ok($pub, q{
		SELECT sync_state FROM pg_stat_replication
		WHERE application_name = 's'}, 'sync',
		"the apply worker is the standby ($standbys)");
	if (with_extension())
	{
		is( $pub->safe_psql('postgres', q{
				SELECT state, sync_state, flush_lsn IS NULL
				FROM pg_stat_replication
				WHERE application_name LIKE 'reuse\_sync\_%'}),
			'streaming|async|t',
			"our stream is none ($standbys)");
	}
	$pub->safe_psql('postgres',
		"SET synchronous_commit = remote_apply;
		INSERT INTO $table VALUES (1000 + length('$standbys')
			+ ascii('$standbys'), 'synchronous');
		INSERT INTO $other VALUES (1000 + ascii('$standbys'), 'synchronous')");
	pass("commits get their answer during a copy ($standbys)");
}
$pub->safe_psql('postgres', 'ALTER SYSTEM RESET synchronous_standby_names');
$pub->reload;

$catchup->open_gate($other);
wait_ready($sub, 's');
rows_ok($pub, $sub, $_, "$_: synchronized") foreach 'first', 'second';

# What the copies leave in the statistics
query_ok($sub, q{
	SELECT n_tup_ins, n_live_tup FROM pg_stat_user_tables
	WHERE relname = 'first'}, '502|502', 'the copied rows are counted');
query_ok($sub, q{SELECT count(*) FROM pg_stat_progress_copy},
	'0', 'no copy is left');
if (with_extension())
{
	query_ok($sub, q{
		SELECT backend_type, count(*) FROM pg_stat_activity
		WHERE backend_type = 'reuse_sync launcher' GROUP BY 1},
		'reuse_sync launcher|1', 'the launcher is shown');
}

# Errors are counted, and the counter can be set back.
both($pub, $sub, 'CREATE TABLE failing (a int PRIMARY KEY)');
$pub->safe_psql('postgres', q{INSERT INTO failing VALUES (1);
	CREATE PUBLICATION f FOR TABLE failing});
$sub->safe_psql('postgres', 'INSERT INTO failing VALUES (1)');
subscribe($pub, $sub, 'f', 'f');
query_ok($sub, q{
	SELECT sync_error_count > 1, apply_error_count FROM pg_stat_subscription_stats
	WHERE subname = 'f'}, 't|0', 'errors are counted as those of synchronization');
is( $sub->safe_psql('postgres', q{
		SELECT sync_error_count FROM pg_stat_subscription_stats
		WHERE subname = 's'}),
	'0',
	'and as those of their subscription');

# A table that somebody has locked is waited for; that is no error.
$sub->safe_psql('postgres', 'DELETE FROM failing');
wait_ready($sub, 'f');
both($pub, $sub, 'CREATE TABLE locked (a int PRIMARY KEY)');
$pub->safe_psql('postgres', q{INSERT INTO locked VALUES (1);
	CREATE PUBLICATION l FOR TABLE locked});
my $locker = $catchup->session('sub');
$locker->query_safe('BEGIN; LOCK TABLE locked IN SHARE MODE');
my $offset = -s $sub->logfile;
subscribe($pub, $sub, 'l', 'l');
if (with_extension())
{
	$sub->wait_for_log(qr/table "public.locked"|lock timeout/, $offset);
	$sub->wait_for_log(qr/(?:table "public.locked"|lock timeout).*(?:table "public.locked"|lock timeout)/s,
		$offset);

	# It has not failed, and does not wait longer each time.
	my $time = q{SELECT last_error_time FROM reuse_sync.tables WHERE subname = 'l'};
	foreach (1 .. 3)
	{
		my $last = $sub->safe_psql('postgres', $time);
		$sub->poll_query_until('postgres', "SELECT ($time) > '$last'")
		  or die 'it is not tried again';
	}
	query_ok($sub, q{
		SELECT state <> 'failed', attempts, next_retry - last_error_time <= '1 s',
			last_error ~ 'lock timeout.*HINT:  A session holds a lock'
		FROM reuse_sync.tables WHERE subname = 'l'}, 't|0|t|t',
		'it is tried again and again at the same pace, and why is shown');
	query_ok($sub, q{
		SELECT severity FROM reuse_sync.check() WHERE problem ~ 'waits: .*lock'},
		'warning', 'check() says so');
}
is( $sub->safe_psql('postgres', q{
		SELECT sync_error_count FROM pg_stat_subscription_stats
		WHERE subname = 'l'}),
	'0',
	'waiting for a lock is not counted');
$locker->query_safe('COMMIT');
wait_ready($sub, 'l');
rows_ok($pub, $sub, 'locked', 'the table that was locked');

end_session($locker);
$catchup->finish;
no_leftovers_ok($pub, $sub, 'no slot and no origin left');
no_builtin_sync_ok($sub);

done_testing();
