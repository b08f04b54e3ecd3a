# Each limit on either side at the smallest value that lets one worker do its
# work: the pool goes on with what there is, and says once what it is short of.
# And a role whose timeouts would break any copy.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use CatchUp;
use Races qw(session wait_until);

plan skip_all => 'needs the extension' unless with_extension();

my $pub = new_publisher('pub');
my $sub = new_subscriber(
	'sub',
	wal_retrieve_retry_interval => '200ms',
	'reuse_sync.batch_size'     => '8kB',
	'reuse_sync.batch_tables'   => 1,
	'reuse_sync.naptime'        => '500ms');

# Of one page each, which go the express way, and of more, which do not.
my @small = map { "small_$_" } 1 .. 6;
my @large = map { "large_$_" } 1 .. 3;

both($pub, $sub, "CREATE TABLE $_ (a int PRIMARY KEY, b text)")
  foreach (@small, @large);
$pub->safe_psql('postgres', "INSERT INTO $_ VALUES (1, 'row')") foreach @small;
$pub->safe_psql('postgres',
	"INSERT INTO $_ SELECT g, 'row' FROM generate_series(1, 1000) AS g")
  foreach @large;
$pub->safe_psql('postgres',
	'CREATE PUBLICATION p FOR TABLE ' . join(', ', @small, @large));

sub configure
{
	my ($node, %conf) = @_;

	$node->append_conf('postgresql.conf', "$_ = '$conf{$_}'")
	  foreach sort keys %conf;
	$node->restart;
	return;
}

# Synchronize all tables; 'pattern' is what the log must say exactly once, and
# the view as long as it is so.  The first worker, which has what it needs, is
# held until another has seen what is short: it might be done before.
sub limited
{
	my ($name, $pattern, %opt) = @_;
	my $offset = -s $sub->logfile;

	my $lock;

	$sub->safe_psql('postgres', "TRUNCATE $_") foreach (@small, @large);
	if (defined $pattern)
	{
		$lock = session($sub);
		$lock->query_safe('BEGIN; LOCK TABLE ' . join(', ', @small, @large)
			  . ' IN ROW EXCLUSIVE MODE');
	}
	subscribe($pub, $sub, 's', 'p', %opt);
	if ($lock)
	{
		wait_until($sub, "what is short: $name",
			sub { slurp_file($sub->logfile, $offset) =~ $pattern });
		$lock->query_safe('COMMIT');
		$lock->quit;
	}
	wait_ready($sub, 's');
	catch_up($pub, $sub, 's');
	rows_ok(
		$pub, $sub,
		join(' UNION ALL ',
			map { "SELECT '$_' AS tab, a, b FROM $_" } @small, @large),
		"$name: contents");
	if (defined $pattern)
	{
		my $count = () = slurp_file($sub->logfile, $offset) =~ /$pattern/g;
		is($count, 1, "$name: what is short is said once");
	}
	ok( $sub->poll_query_until(
			'postgres', 'SELECT count(*) = 0 FROM reuse_sync.problems'),
		"$name: and no longer when all is done");
	$sub->safe_psql('postgres', 'DROP SUBSCRIPTION s');
	no_leftovers_ok($pub, $sub, "$name: no slot and no origin left");
	$sub->poll_query_until('postgres',
		'SELECT count(*) = 0 FROM reuse_sync.slots')
	  or die 'slots are left in the catalog';
	return;
}

# One slot for the subscription, one for the pool.
configure($pub, max_replication_slots => 2);
limited('slots of the publisher',
	qr/puts off .*: error from the publisher: all replication slots are in use/);
configure($pub, max_replication_slots => 20);

# The same for connections that stream.
configure($pub, max_wal_senders => 2);
limited('WAL senders of the publisher',
	qr/puts off .*exceeds "?max_wal_senders/);
configure($pub, max_wal_senders => 20);

# One connection for the apply worker, two for a worker.
$pub->safe_psql(
	'postgres', q{
	CREATE ROLE few LOGIN REPLICATION CONNECTION LIMIT 3;
	GRANT SELECT ON ALL TABLES IN SCHEMA public TO few;});
limited('connections of the role', qr/puts off .*too many connections for role/,
	user => 'few');

# One origin for the subscription, one for the pool.
configure($sub, origins_limit($sub) => 2);
limited('origins of the subscriber',
	qr/puts off .*could not find free replication state/);

# Tables that fail, which the largest ones do first, keep none of them.
$sub->safe_psql('postgres', 'TRUNCATE ' . join(', ', @small, @large));
$sub->safe_psql('postgres', "INSERT INTO $_ VALUES (1, 'in the way')")
  foreach @large;
subscribe($pub, $sub, 's', 'p');
$sub->poll_query_until(
	'postgres', q{
	SELECT count(*) FILTER (WHERE attempts > 0) = 3
		AND count(*) FILTER (WHERE state = 'ready') = 6
	FROM reuse_sync.tables WHERE subname = 's'})
  or die "the others do not go on\n" . ReuseSync::log_tail($sub);
pass('the other tables go on when more have failed than there are origins');
$sub->safe_psql('postgres', "TRUNCATE $_") foreach @large;
wait_ready($sub, 's');
rows_ok($pub, $sub, $_, "contents of $_ after failures")
  foreach @small, @large;
$sub->safe_psql('postgres', 'DROP SUBSCRIPTION s');
no_leftovers_ok($pub, $sub, 'failures: no slot and no origin left');
configure($sub, origins_limit($sub) => 20);

# The two launchers, the apply worker, and one worker.
configure($sub, max_worker_processes => 4);
limited('processes of the subscriber');
configure($sub, max_worker_processes => 16);

# What is short is shown, with its cause, until it is there again.
my $catchup = CatchUp->new($pub, $sub);
$catchup->close_gate($_) foreach @large;
$sub->safe_psql('postgres', "TRUNCATE $_") foreach (@small, @large);
subscribe($pub, $sub, 's', 'p', user => 'few',
	with => 'enabled = false, create_slot = true');
my $long = $catchup->session('pub');
$long->query_safe("BEGIN; INSERT INTO $small[0] VALUES (2, 'long')");
$pub->safe_psql(
	'postgres', q{
	ALTER ROLE few CONNECTION LIMIT 1;
	ALTER ROLE few SET statement_timeout = '100ms';
	ALTER ROLE few SET lock_timeout = '100ms';
	ALTER ROLE few SET idle_in_transaction_session_timeout = '100ms';});
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s ENABLE');
$sub->poll_query_until(
	'postgres', q{
	SELECT count(*) = 1 FROM reuse_sync.problems
	WHERE subname = 's' AND last_error ~ 'too many connections for role "few"'
	AND last_error_time <= now()})
  or die "nothing is shown\n" . ReuseSync::log_tail($sub);
pass('a publisher that takes no connection is shown with its cause');

# The role has timeouts that would not let a slot be created that late, because
# of the transaction above.
$pub->safe_psql('postgres', 'ALTER ROLE few CONNECTION LIMIT -1');
$pub->poll_query_until(
	'postgres', q{
	SELECT count(*) > 0 FROM pg_stat_activity
	WHERE usename = 'few' AND application_name ~ '^reuse_sync_'
	AND wait_event_type = 'Lock'
	AND clock_timestamp() - query_start > '500 ms'})
  or die "no slot waits\n" . ReuseSync::log_tail($sub);
$long->query_safe('COMMIT');
end_session($long);

# What the work costs the publisher.
my ($at_gate) = $catchup->wait_at_gates(\@large);
my ($slot, $restart_lsn, $bytes, $catalog_xmin, $snapshot_xmin, $checked) =
  split /\|/, $sub->safe_psql(
	'postgres', qq{
	SELECT slot_name, restart_lsn, wal_bytes >= 0, catalog_xmin, snapshot_xmin,
		checked_at <= clock_timestamp()
	FROM reuse_sync.slots WHERE relid = '$at_gate'::regclass});
is( "$restart_lsn $catalog_xmin",
	$pub->safe_psql(
		'postgres', "
		SELECT restart_lsn || ' ' || catalog_xmin::text
		FROM pg_replication_slots WHERE slot_name = '$slot'"),
	'where a slot stands is shown');
is("$bytes $checked", 't t', 'with the WAL that it holds, and when that was');
like($snapshot_xmin, qr/^\d+$/, 'and the horizon of the snapshot');
my $offset = -s $sub->logfile;
$catchup->open_gate($_) foreach @large;
wait_ready($sub, 's');
catch_up($pub, $sub, 's');
rows_ok($pub, $sub, $_, "contents of $_") foreach @large, $small[0];
unlike(slurp_file($sub->logfile, $offset), qr/timeout|ERROR/,
	'no timeout of the role has struck');
$catchup->finish;
$sub->safe_psql('postgres', 'DROP SUBSCRIPTION s');
no_leftovers_ok($pub, $sub, 'no slot and no origin left');
no_builtin_sync_ok($sub);

done_testing();
