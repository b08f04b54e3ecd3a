# CREATE EXTENSION is the switch, for one database: what has it is served by
# us, what does not by the server, and it can be thrown both ways while tables
# are half done.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use CatchUp;

plan skip_all => 'needs the extension' unless with_extension();

my $max_workers = 4;                              # the default
my $pub         = new_publisher('pub');
my $sub         = new_subscriber(
	'sub',
	max_sync_workers_per_subscription => 2,
	max_logical_replication_workers   => 8,
	'reuse_sync.batch_tables'         => 1);
$sub->safe_psql('postgres', 'CREATE DATABASE other');

# Tables of the database with the extension from the beginning, and of the
# other one: synchronized at once; when the switch is thrown; thrown back.
my @ours  = map { "ours_$_" } 1 .. 6;
my @plain = map { "plain_$_" } 1 .. 6;
my @there = map { "there_$_" } 1 .. 6;
my @back  = map { "back_$_" } 1 .. 7;

my $changes = q{
	INSERT INTO %1$s VALUES (11, 'new');
	UPDATE %1$s SET b = 'changed' WHERE a IN (1, 2);
	DELETE FROM %1$s WHERE a = 3;};

# Cases for CatchUp, one for each table, always the same ones.
my %case_of;

sub cases
{
	return map {
		$case_of{$_} //= { table => $_, changes => sprintf($changes, $_) }
	} @_;
}

# All rows of some tables, for rows_ok.
sub all_rows
{
	return join ' UNION ALL ', map { "SELECT '$_' AS tab, a, b FROM $_" } @_;
}

# The tables that the server's own workers have started with, as subscription
# and table, from an offset of the log on.
sub builtin_tables
{
	my ($offset) = @_;
	my %seen;

	my $log = slurp_file($sub->logfile, $offset // 0);
	$seen{"$1 $2"} = 1
	  while $log =~ /table\ synchronization\ worker\ for\ subscription\ "(\w+)",
		\ table\ "(\w+)"\ has\ started/gx;
	return join "\n", sort keys %seen;
}

my $ours  = CatchUp->new($pub, $sub);
my $other = CatchUp->new($pub, $sub, sub_db => 'other');

#
# Two databases, of which one has the extension.
#
$ours->create(cases(@ours));
$other->create(cases(@plain));
$pub->safe_psql(
	'postgres',
	'CREATE PUBLICATION p_ours FOR TABLE ' . join(', ', @ours)
	  . '; CREATE PUBLICATION p_other FOR TABLE ' . join(', ', @plain));
subscribe($pub, $sub, 's_other', 'p_other', sub_db => 'other');
subscribe($pub, $sub, 's_ours', 'p_ours');
wait_ready($sub, 's_ours');
wait_ready($sub, 's_other', db => 'other');

is( builtin_tables(),
	join("\n", map { "s_other $_" } @plain),
	'the server serves the database without the extension only');
is( $sub->safe_psql('postgres',
		'SELECT tables_synced FROM reuse_sync.stats'),
	scalar(@ours),
	'we serve the one with it');
rows_ok($pub, $sub, all_rows(@ours), 'contents in the one');
rows_ok($pub, $sub, all_rows(@plain), 'contents in the other',
	undef, sub_db => 'other');

#
# CREATE EXTENSION while two of the server's workers are in the middle of a
# copy and other tables wait for them.
#
my $offset = -s $sub->logfile;
$other->create(cases(@there));
$other->close_gates(cases(@there));
$pub->safe_psql('postgres',
	'ALTER PUBLICATION p_other ADD TABLE ' . join(', ', @there));
$sub->safe_psql('other', 'ALTER SUBSCRIPTION s_other REFRESH PUBLICATION');

my @begun = ();
@begun = $other->wait_at_gates(\@there, \@begun) while @begun < 2;
create_extension($sub, 'other');

# One of them goes on.  The other one ends, and leaves its slot.
my ($stays, $ends) = @begun;
$pub->safe_psql('postgres', sprintf($changes, $_)) foreach @begun;
is( $sub->safe_psql(
		'other', qq{
		SELECT pg_terminate_backend(pid) FROM pg_stat_subscription
		WHERE relid = '$ends'::regclass}),
	't',
	'a worker of the server is told to end');
$sub->poll_query_until(
	'other', qq{
	SELECT count(*) = 0 FROM pg_stat_subscription
	WHERE relid = '$ends'::regclass})
  or die 'the worker has not ended';
$case_of{$ends}{changes} = "UPDATE $ends SET b = b || ' again' WHERE a > 8";
$other->run_cases(cases(grep { $_ ne $stays } @there));
is( $sub->safe_psql(
		'other', qq{
		SELECT count(*) FROM pg_stat_subscription
		WHERE relid = '$stays'::regclass}),
	1,
	'the other one is still at work');
$other->open_gate($stays);
wait_ready($sub, 's_other', db => 'other');

is( builtin_tables($offset),
	join("\n", map { "s_other $_" } sort @begun),
	'after CREATE EXTENSION the server has begun nothing more');
like(
	slurp_file($sub->logfile, $offset),
	qr/subscription "s_other", table "$stays" has finished/,
	'it has finished what it was at');
is( $sub->safe_psql('other',
		'SELECT tables_synced FROM reuse_sync.stats'),
	@there - 1,
	'the rest was for us');
$other->in_time_ok('changes were made during the copies');
rows_ok($pub, $sub, all_rows(@plain, @there), 'contents after the switch',
	undef, sub_db => 'other');
no_leftovers_ok($pub, $sub, 'no slot and no origin left after the switch');
$other->change_later(cases(@plain, @there));

#
# DROP EXTENSION while all our workers are in the middle of a copy, and other
# tables wait for them.
#
$offset = -s $sub->logfile;
$other->create(cases(@back));
$other->close_gates(cases(@back));
$pub->safe_psql('postgres',
	'ALTER PUBLICATION p_other ADD TABLE ' . join(', ', @back));
$sub->safe_psql('other', 'ALTER SUBSCRIPTION s_other REFRESH PUBLICATION');

@begun = ();
@begun = $other->wait_at_gates(\@back, \@begun) while @begun < $max_workers;
my %begun = map { $_ => 1 } @begun;

my ($ret, $stdout, $stderr) =
  $sub->psql('other', q{SET lock_timeout = '20s'; DROP EXTENSION reuse_sync});
isnt($ret, 0, 'DROP EXTENSION is refused while tables are half done');
like(
	$stderr,
	qr/^HINT: .*reuse_sync\.drain\(\)/m,
	'with a hint to drain()');

# Tables are changed while they are copied, so that what drain() leaves is
# right with and without the copy.
my $drainer = $other->session('sub');
my $pid     = $drainer->query_safe('SELECT pg_backend_pid()');
$drainer->query_until(qr/begun/, "\\echo begun\nCALL reuse_sync.drain();\n");
$sub->poll_query_until(
	'other', qq{
	SELECT state = 'active' AND query ~ 'drain' AND wait_event IS NOT NULL
	FROM pg_stat_activity WHERE pid = $pid})
  or die 'drain() does not wait';
foreach my $table (@begun)
{
	$pub->safe_psql('postgres', sprintf($changes, $table));
	$other->open_gate($table);
}
$drainer->query_safe('SELECT 1');

is( $pub->safe_psql(
		'postgres', q{
		SELECT count(*) FROM pg_replication_slots
		WHERE slot_name ~ '^reuse_sync'}),
	0,
	'drain() has dropped all slots');
my @pending = split /\n/, $sub->safe_psql(
	'other', q{
	SELECT srrelid::regclass FROM pg_subscription_rel
	WHERE srsubstate IN ('i', 'd') ORDER BY srrelid::regclass::text});
my %pending = map { $_ => 1 } @pending;
is( join(' ', grep { !$begun{$_} && !$pending{$_} } @back),
	'', 'drain() lets nothing begin');
is( $sub->safe_psql(
		'other', q{
		SELECT count(*) FROM pg_subscription_rel
		WHERE srsubstate NOT IN ('i', 'd', 's', 'r')}),
	0,
	'drain() leaves nothing that only we can finish');

$sub->safe_psql('other', 'DROP EXTENSION reuse_sync');
$other->run_cases(cases(grep { !$begun{$_} } @back));
wait_ready($sub, 's_other', db => 'other');
is( builtin_tables($offset),
	join("\n", map { "s_other $_" } @pending),
	'after DROP EXTENSION the server does the rest');
$other->in_time_ok('changes were made during the copies, again');

#
# The first database has not noticed.
#
both($pub, $sub, 'CREATE TABLE ours_last (a int PRIMARY KEY, b text)');
$pub->safe_psql(
	'postgres', q{
	INSERT INTO ours_last VALUES (1, 'last');
	ALTER PUBLICATION p_ours ADD TABLE ours_last;});
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s_ours REFRESH PUBLICATION');
wait_ready($sub, 's_ours');
$ours->change_later(cases(@ours));
catch_up($pub, $sub, 's_ours');
catch_up($pub, $sub, 's_other', db => 'other');

unlike(builtin_tables(), qr/s_ours/,
	'the server has never served the database with the extension');
is( $sub->safe_psql('postgres',
		'SELECT tables_synced FROM reuse_sync.stats'),
	@ours + 1,
	'we have, all the time');
rows_ok($pub, $sub, all_rows(@ours, 'ours_last'), 'contents in the one');
rows_ok(
	$pub, $sub,
	all_rows(@plain, @there, @back),
	'contents in the other',
	undef, sub_db => 'other');

end_session($drainer);
$_->finish foreach ($ours, $other);
no_leftovers_ok($pub, $sub, 'no slot and no origin left');

# Errors of sessions have the name of the test in the log.
is(join('', grep { !/\] \Q031_two_databases.pl\E / } log_errors($sub)),
	'', 'no worker has failed');

done_testing();
