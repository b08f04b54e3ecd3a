# What the numbers of settings do, by value: how many workers there are at a
# time, how many tables and bytes in a batch, how long a worker stays, how long
# a lock is waited for.  What was done is read from reuse_sync.units and the log,
# so that nothing has to be seen at the right moment.  (max_retry_interval is in
# 085_values.pl, paused in 073_progress.pl.)

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Races qw(session wait_until);
use Test::More;
use CatchUp;
use ReuseSync;

plan skip_all => 'only of the extension' unless with_extension();

my $pub = new_publisher('pub', autovacuum => 'off');
my $sub = new_subscriber(
	'sub',
	wal_retrieve_retry_interval               => '100ms',
	'reuse_sync.max_workers'                  => 3,
	'reuse_sync.max_workers_per_subscription' => 2,
	'reuse_sync.batch_tables'                 => 1,
	'reuse_sync.naptime'                      => '1h',
	'reuse_sync.worker_idle_timeout'          => '1h');
my $catchup = CatchUp->new($pub, $sub);

# create_tables($publication, $pages, @tables): with as many pages of rows
sub create_tables
{
	my ($publication, $pages, @tables) = @_;
	my $rows = 7 * $pages;

	foreach my $table (@tables)
	{
		both($pub, $sub, "CREATE TABLE $table (a int PRIMARY KEY, b text)");
		$pub->safe_psql('postgres',
			"INSERT INTO $table SELECT g, repeat('x', 1000)
			FROM generate_series(1, $rows) g");
	}
	is( $pub->safe_psql(
			'postgres', "
			SELECT DISTINCT pg_relation_size(c.oid) / 8192 FROM pg_class c
			WHERE relname IN (" . join(', ', map { "'$_'" } @tables) . ')'),
		$pages, "$publication: pages of a table");
	return;
}

sub publish
{
	my ($publication, @tables) = @_;

	$pub->safe_psql('postgres',
		"CREATE PUBLICATION $publication FOR TABLE " . join(', ', @tables));
	return;
}

# The most units of these subscriptions that were at work at one time
sub most_at_once
{
	my $list = join ', ', map { "'$_'" } @_;

	return $sub->safe_psql(
		'postgres', "
		SELECT max(n) FROM (SELECT (SELECT count(*) FROM reuse_sync.units o
				WHERE o.subname IN ($list) AND o.started_at <= u.started_at
				AND o.finished_at > u.started_at) AS n
			FROM reuse_sync.units u WHERE subname IN ($list)) c");
}

#
# Workers: three, and two for one subscription.  All copies are held at their
# first row until three are there; then all go on.
#
my %tables = map { my $name = $_; $name => [ map { "${name}_$_" } 1 .. 5 ] }
  qw(one two);
foreach my $name (sort keys %tables)
{
	create_tables($name, 1, @{ $tables{$name} });
	publish($name, @{ $tables{$name} });
	$catchup->close_gate($_) foreach @{ $tables{$name} };
}
subscribe($pub, $sub, $_, $_) foreach sort keys %tables;
my @all     = map { @{ $tables{$_} } } sort keys %tables;
my @waiting = ();
@waiting = $catchup->wait_at_gates(\@all, \@waiting) while @waiting < 3;
is(scalar(@waiting), 3, 'max_workers: as many are at work');
is( join(' ', sort map { my $name = $_; scalar grep { /^$name/ } @waiting }
		keys %tables),
	'1 2',
	'max_workers_per_subscription: two of one and one of the other');
$sub->safe_psql('postgres', 'SELECT reuse_sync.wakeup()');
$catchup->open_gate($_) foreach @all;
wait_ready($sub, $_) foreach sort keys %tables;
is(most_at_once(sort keys %tables), 3, 'max_workers: and never more');
is((sort map { most_at_once($_) } sort keys %tables)[-1],
	2, 'max_workers_per_subscription: one has had two, and none more');
is( $sub->safe_psql('postgres',
		'SELECT count(*), sum(tables), max(tables) FROM reuse_sync.units'),
	'10|10|1',
	'batch_tables: 1');
rows_ok($pub, $sub, $_, "rows of $_") foreach @all;
$sub->safe_psql('postgres', "DROP SUBSCRIPTION $_") foreach sort keys %tables;

# batches_ok($name, $expected, $testname): one test, how many tables the units
# of a subscription had, in the order in which they were done.
sub batches_ok
{
	my ($name, $expected, $testname) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	subscribe($pub, $sub, $name, $name);
	wait_ready($sub, $name);
	is( $sub->safe_psql(
			'postgres', "
			SELECT string_agg(tables::text, ' ' ORDER BY started_at)
			FROM reuse_sync.units WHERE subname = '$name'"),
		$expected,
		$testname);
	$sub->safe_psql('postgres', "DROP SUBSCRIPTION $name");
	return;
}

#
# Batches: so many tables, so many bytes; larger tables go before, alone.
#
reconfigure($sub,
	'reuse_sync.max_workers_per_subscription' => 1,
	'reuse_sync.batch_tables'                 => 3);
create_tables('seven', 1, map { "seven_$_" } 1 .. 7);
publish('seven', map { "seven_$_" } 1 .. 7);
batches_ok('seven', '3 3 1', 'batch_tables: 3');

reconfigure($sub,
	'reuse_sync.batch_tables' => 64,
	'reuse_sync.batch_size'   => '40kB');
create_tables('pages', 2, map { "pages_$_" } 1 .. 5);
create_tables('pages', 5, 'pages_fit');
create_tables('pages', 6, 'pages_more');
publish('pages', 'pages_more', 'pages_fit', map { "pages_$_" } 1 .. 5);
my $offset = -s $sub->logfile;
batches_ok('pages', '1 1 2 2 1', 'batch_size: in batches of two, or alone');
my @in_log = slurp_file($sub->logfile, $offset) =~
  /synchronized (table "[^"]*"|\d tables from "[^"]*" on)/g;
is("@in_log[0, 1]", 'table "public.pages_more" table "public.pages_fit"',
	'batch_size: those that fill it go first');

#
# How long a worker stays after its last table: from one line in the log to the
# other.
#
reconfigure($sub, 'reuse_sync.worker_idle_timeout' => '700ms');
create_tables('stays', 1, 'stays');
publish('stays', 'stays');
$offset = -s $sub->logfile;
subscribe($pub, $sub, 'stays', 'stays');
wait_ready($sub, 'stays');
my $worker = $sub->safe_psql('postgres', 'SELECT pid FROM reuse_sync.units');
$sub->wait_for_log(
	qr/\[$worker\] .*reuse_sync worker for database "postgres" ends after/,
	$offset);
my %at;
foreach my $line (split /\n/, slurp_file($sub->logfile, $offset))
{
	my ($time, $what) =
	  $line =~ /^(\S+ \S+ \S+) \[$worker\] .*(synchronized|ends)/
	  or next;
	$at{$what} = $sub->safe_psql('postgres',
		"SELECT extract(epoch FROM '$time'::timestamptz)");
}
cmp_ok($at{ends} - $at{synchronized},
	'>=', 0.699, 'worker_idle_timeout: a worker stays as long');
cmp_ok($at{ends} - $at{synchronized},
	'<=', 60, 'worker_idle_timeout: and not for ever');
$sub->safe_psql('postgres', 'DROP SUBSCRIPTION stays');

#
# How long a lock is waited for: the express way is given up after three times
# that, and says so.
#
reconfigure($sub,
	'reuse_sync.handover_lock_timeout' => '123ms',
	'reuse_sync.batch_size'            => '8MB');
create_tables('locked', 1, 'locked');
publish('locked', 'locked');
my $locker = session($sub);
$locker->query_safe('BEGIN; LOCK TABLE locked IN ROW EXCLUSIVE MODE');
$offset = -s $sub->logfile;
subscribe($pub, $sub, 'locked', 'locked');
$sub->wait_for_log(
	qr/gives up a unit of subscription "locked"\n.*DETAIL:  waiting for the lock on the tables took longer than 123 ms\n/,
	$offset);
pass('handover_lock_timeout: what took longer is given up');
is( $sub->safe_psql('postgres',
		q{SELECT attempts, last_error IS NULL FROM reuse_sync.tables}),
	'0|t', 'handover_lock_timeout: which is no failure');
wait_until($sub, 'the table to be copied',
	q{SELECT srsubstate = 'f' FROM pg_subscription_rel});
$locker->query_safe('COMMIT');
$locker->quit;
wait_ready($sub, 'locked');
rows_ok($pub, $sub, 'locked', 'the table that was locked');

$catchup->finish;
no_leftovers_ok($pub, $sub, 'no slot and no origin left');
no_builtin_sync_ok($sub);

done_testing();
