# How far it is, and when it will be done: reuse_sync.tables and
# reuse_sync.subscriptions while tables are copied, fail, start over and are
# added.
#
# The copies are slowed down by a trigger that takes a known time for a row, so
# that the time which the whole takes is known as well.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Races qw(session wait_until);
use ReuseSync;
use Test::More;
use Time::HiRes qw(time usleep);

plan skip_all => 'only of the extension' unless with_extension();

my $pub = new_publisher('pub', autovacuum => 'off');
my $sub = new_subscriber(
	'sub',
	wal_retrieve_retry_interval               => '200ms',
	'reuse_sync.max_workers_per_subscription' => 2);

# A table whose copy can be held at its Nth row: the trigger takes a lock that
# the test holds.  Others wait for a while with each row.
$sub->safe_psql(
	'postgres', q{
	CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
	$$ BEGIN PERFORM pg_sleep(TG_ARGV[0]::float8); RETURN NEW; END $$;
	CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS
	$$ BEGIN
		IF NEW.a = TG_ARGV[0]::int THEN
			PERFORM pg_advisory_lock_shared(TG_ARGV[0]::int);
			PERFORM pg_advisory_unlock_shared(TG_ARGV[0]::int);
		END IF;
		RETURN NEW;
	END $$});

# slow_table($name, $rows, $seconds_per_row, $width)
sub slow_table
{
	my ($name, $rows, $seconds, $width) = @_;

	both($pub, $sub, "CREATE TABLE $name (a int PRIMARY KEY, b text)");
	$pub->safe_psql('postgres',
		"INSERT INTO $name SELECT g, repeat('x', $width) FROM generate_series(1, $rows) g"
	);
	$sub->safe_psql('postgres',
		"CREATE TRIGGER slow BEFORE INSERT ON $name FOR EACH ROW EXECUTE FUNCTION slow('$seconds');
		ALTER TABLE $name ENABLE ALWAYS TRIGGER slow");
	return;
}

# A table with rows 1 to $rows; the copies wait before these.
sub gated_table
{
	my ($name, $rows, @gates) = @_;

	both($pub, $sub, "CREATE TABLE $name (a int, b text)");
	$pub->safe_psql('postgres',
		"INSERT INTO $name SELECT g, repeat('x', 100) FROM generate_series(1, $rows) g"
	);
	$sub->safe_psql('postgres',
		"CREATE TRIGGER gate_$_ BEFORE INSERT ON $name FOR EACH ROW EXECUTE FUNCTION gate('$_');
		ALTER TABLE $name ENABLE ALWAYS TRIGGER gate_$_")
	  foreach @gates;
	return;
}

# Wait until a copy waits before this row.
sub wait_gate
{
	my ($row) = @_;

	wait_until($sub, "a copy that waits before row $row",
		"SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'advisory'
		AND NOT granted AND objid = $row");
	return;
}

sub percent
{
	my ($name) = @_;

	return $sub->safe_psql('postgres',
		"SELECT percent FROM reuse_sync.subscriptions WHERE subname = '$name'"
	);
}

# Watch a subscription until it is done: what was seen, and when it was done.
# Times are those of the server, in one session.
sub watch
{
	my ($name) = @_;
	my (@seen, $end);
	my $give_up = time + $PostgreSQL::Test::Utils::timeout_default;
	my $session = session($sub);

	while (time < $give_up)
	{
		my $row = $session->query_safe(
			"SELECT percent, extract(epoch FROM eta),
			extract(epoch FROM clock_timestamp()), tables = ready
			FROM reuse_sync.subscriptions WHERE subname = '$name'");
		my ($percent, $eta, $now, $done) = split /\|/, $row;
		push @seen, [ $percent, $eta, $now ];
		if ($done eq 't')
		{
			$end = $now;
			last;
		}
		usleep(100_000);
	}
	$session->quit;
	die "subscription $name was not done in time" unless defined $end;
	return ($end, @seen);
}

# eta_ok($name, $what, @tables): synchronize tables.  percent must not go back;
# from a quarter on each eta must be within 25 % of what the rest took.  Of
# another's work on this machine no estimate can know: if need be it is measured
# once more.
sub eta_ok
{
	my ($name, $what, @tables) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($end, @seen, @checked, @wrong);

	foreach my $attempt (1, 2)
	{
		subscribe($pub, $sub, $name, $name);
		($end, @seen) = watch($name);

		# The last moments are too short to be measured in parts.
		my $total = $end - $seen[0][2];
		@checked = grep { $_->[0] >= 25 && $_->[0] < 95 && $_->[1] ne '' } @seen;
		@wrong   = grep
		{
			abs($_->[1] - $end) >
			  0.25 * ($end - $_->[2]) + 0.02 * $total
		} @checked;
		last if !@wrong || $attempt == 2;
		note(scalar @wrong . ' estimates were wrong, which may be the machine\'s fault');
		$sub->safe_psql('postgres', $_)
		  foreach "DROP SUBSCRIPTION $name", map { "TRUNCATE $_" } @tables;
	}

	my $back = grep { $seen[$_][0] < $seen[ $_ - 1 ][0] } 1 .. $#seen;
	is($back, 0, "$what: percent never goes back");
	is($seen[-1][0], '100.0', "$what: 100 in the end");
	cmp_ok(scalar @checked, '>=', 5, "$what: eta was seen often enough");
	is(scalar @wrong, 0, "$what: eta is within 25 % once a quarter is done")
	  or diag(join "\n",
		map { sprintf('%s %% eta in %.2f s, was %.2f s', $_->[0],
				$_->[1] - $_->[2], $end - $_->[2]) } @checked);
	return;
}

#
# One table: narrow rows, of which COPY has read all long before they are
# inserted; never analyzed, and half of it dead.
#
slow_table('narrow', 2000, 0.004, 10);
$pub->safe_psql('postgres', 'DELETE FROM narrow WHERE a % 2 = 0');
$pub->safe_psql('postgres', 'CREATE PUBLICATION narrow FOR TABLE narrow');
eta_ok('narrow', 'a narrow table', 'narrow');

#
# One larger table with a filter and a column list, the staged way
#
slow_table('wide', 4000, 0.004, 1000);
$pub->safe_psql('postgres',
	'ALTER TABLE wide ADD COLUMN c text; UPDATE wide SET c = b;
	CREATE PUBLICATION wide FOR TABLE wide (a, b) WHERE (a % 2 = 0)');
$sub->append_conf('postgresql.conf', 'reuse_sync.batch_size = 1MB');
$sub->reload;
eta_ok('wide', 'a wide table of which half is published', 'wide');
is( $sub->safe_psql('postgres',
		q{SELECT bytes_total = bytes_copied AND bytes_copied > 2000000, tuples_copied,
		state, eta IS NULL, started_at < now()
		FROM reuse_sync.tables WHERE subname = 'wide'}),
	't|2000|ready|t|t',
	'the numbers of a table that is ready');

#
# Several tables, more than there are workers
#
slow_table("many_$_", 300 + 20 * $_, 0.005, 100) foreach 1 .. 8;
$pub->safe_psql('postgres',
	'CREATE PUBLICATION many FOR TABLE ' . join(', ', map { "many_$_" } 1 .. 8));
$sub->append_conf('postgresql.conf', 'reuse_sync.batch_tables = 1');
$sub->reload;
eta_ok('many', 'eight tables and two workers', map { "many_$_" } 1 .. 8);

#
# Values while a copy is held; then it fails, starts over, and a table is added
#
my $gate = session($sub);
$gate->query_safe("SELECT pg_advisory_lock($_)") foreach (251, 501, 761);
gated_table('gated', 1000, 251, 501, 761);
both($pub, $sub, 'CREATE TABLE after_it (a int)');
$pub->safe_psql('postgres', 'CREATE PUBLICATION gated FOR TABLE gated');
$sub->safe_psql('postgres',
	'ALTER TABLE gated ADD CONSTRAINT c CHECK (a <> 900)');
is($sub->safe_psql('postgres', 'SELECT count(*) FROM reuse_sync.subscriptions'),
	3, 'a row for each subscription');
subscribe($pub, $sub, 'gated', 'gated');
wait_gate(251);

# The estimate is from a sample: each block of the table may be in it or not.
my $values = $sub->safe_psql(
	'postgres', q{
	SELECT s.tables, s.pending, s.copying, s.catching_up, s.ready, s.failed,
		s.bytes_total = t.bytes_total, s.bytes_copied = t.bytes_copied,
		t.state, t.pid = w.pid, t.slot_name = w.slot_name,
		t.tuples_copied BETWEEN 200 AND 260, t.bytes_copied <= t.bytes_total,
		t.eta > now(), s.eta > now(), t.attempts, t.last_error IS NULL,
		t.started_at <= now(), w.phase, w.relid = t.relid, w.batch_tables
	FROM reuse_sync.subscriptions s JOIN reuse_sync.tables t USING (subname)
	JOIN reuse_sync.workers w ON w.pid = t.pid
	WHERE s.subname = 'gated'});
is( $values, '1|0|1|0|0|0|t|t|copying|t|t|t|t|t|t|0|t|t|copying|t|1',
	'the values of both views while a table is copied');
my $first = percent('gated');
cmp_ok($first, '>', 15, 'a quarter of the rows is about a quarter, or more');
cmp_ok($first, '<', 35, 'or less');

$gate->query_safe('SELECT pg_advisory_unlock(251)');
wait_gate(501);
my $second = percent('gated');
cmp_ok($second, '>', 40, 'half of the rows is about half, or more');
cmp_ok($second, '<', 60, 'or less');
$gate->query_safe('SELECT pg_advisory_unlock(501)');
wait_gate(761);
my $third = percent('gated');
cmp_ok($third, '>', $second, 'it goes on');

# It fails now, and starts over, up to its first row that is held.
$gate->query_safe('SELECT pg_advisory_lock(501)');
$gate->query_safe('SELECT pg_advisory_unlock(761)');
wait_gate(501);
is( $sub->safe_psql('postgres', q{
		SELECT attempts, last_error ~ 'violates check constraint "c"',
		tuples_copied BETWEEN 450 AND 510
		FROM reuse_sync.tables WHERE subname = 'gated'}),
	'1|t|t', 'the table has failed and started over');
is(percent('gated'), $third, 'percent does not go back for that');

# A large table is added.
gated_table('added', 5000, 251);
$gate->query_safe('SELECT pg_advisory_lock(251)');
$pub->safe_psql('postgres', 'ALTER PUBLICATION gated ADD TABLE added');
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION gated REFRESH PUBLICATION');
wait_until($sub, 'a second table',
	q{SELECT count(*) = 2 FROM reuse_sync.tables
	WHERE subname = 'gated' AND state = 'copying'});
is( $sub->safe_psql('postgres', q{
		SELECT tables, copying, bytes_total > 500000 FROM reuse_sync.subscriptions
		WHERE subname = 'gated'}),
	'2|2|t', 'both are seen');
is(percent('gated'), $third, 'percent does not go back for a table that is added');

$gate->query_safe('SELECT pg_advisory_unlock_all()');
$gate->quit;
wait_until($sub, 'the added table to be ready',
	q{SELECT count(*) = 1 FROM reuse_sync.tables
	WHERE subname = 'gated' AND state = 'ready'});
cmp_ok(percent('gated'), '>', $third, 'it goes on when that is done');
$sub->safe_psql('postgres', 'ALTER TABLE gated DROP CONSTRAINT c');
$sub->safe_psql('postgres', q{SELECT reuse_sync.retry('gated')});
wait_ready($sub, 'gated');
is(percent('gated'), '100.0', 'and 100 in the end');

#
# paused: no unit begins within a second, and those at work are finished
#
$gate = session($sub);
$gate->query_safe('SELECT pg_advisory_lock(10)');
gated_table("p_$_", 10, 10) foreach (1 .. 4);
$pub->safe_psql('postgres',
	'CREATE PUBLICATION paused FOR TABLE p_1, p_2, p_3, p_4');
subscribe($pub, $sub, 'paused', 'paused');
wait_until($sub, 'two copies that wait',
	q{SELECT count(*) = 2 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted}
);
$sub->append_conf('postgresql.conf', 'reuse_sync.paused = on');
$sub->reload;
wait_until($sub, 'all processes to know it',
	q{SELECT setting = 'on' FROM pg_settings WHERE name = 'reuse_sync.paused'});
usleep(1_000_000);
$gate->query_safe('SELECT pg_advisory_unlock(10)');
wait_until($sub, 'the two to be ready and nobody at work',
	q{SELECT ready = 2 AND pending = 2 FROM reuse_sync.subscriptions
	WHERE subname = 'paused'});
wait_until($sub, 'no slot to be left',
	q{SELECT count(*) = 0 FROM reuse_sync.slots});
is( $sub->safe_psql('postgres',
		q{SELECT string_agg(DISTINCT state, ',' ORDER BY state) FROM reuse_sync.tables
		WHERE subname = 'paused'}),
	'pending,ready', 'while paused no other table is begun with');
$sub->append_conf('postgresql.conf', 'reuse_sync.paused = off');
$sub->reload;
$sub->safe_psql('postgres', q{SELECT reuse_sync.wait_for_sync('paused', '3 min')});
rows_ok($pub, $sub, "p_$_", "rows of p_$_") foreach (1 .. 4);
$gate->quit;

# One that is over says nothing of the next, which has not begun yet.
$sub->append_conf('postgresql.conf', 'reuse_sync.paused = on');
$sub->reload;
wait_until($sub, 'all processes to know it',
	q{SELECT setting = 'on' FROM pg_settings WHERE name = 'reuse_sync.paused'});
is(percent('paused'), '100.0', 'all is ready');
$sub->safe_psql('postgres', q{SELECT reuse_sync.resync_table('paused', 'p_1')});
is( $sub->safe_psql('postgres',
		q{SELECT ready, pending, percent, eta FROM reuse_sync.subscriptions
		WHERE subname = 'paused'}),
	'3|1|0.0|',
	'a table that is to be synchronized anew is none of the run that is over');
$sub->append_conf('postgresql.conf', 'reuse_sync.paused = off');
$sub->reload;
$sub->safe_psql('postgres', q{SELECT reuse_sync.wait_for_sync('paused', '3 min')});
is(percent('paused'), '100.0', 'and 100 in the end');

done_testing();
