# What the functions answer to those who ask for what cannot be: each SQLSTATE
# that docs/sql-reference.md has for a function is provoked here, and no other;
# message, detail and hint are compared as a whole.  And what null arguments
# mean where they are no error.

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Races qw(session start_query wait_until);
use ReuseSync;
use Test::More;

plan skip_all => 'only of the extension' unless with_extension();

my $pub = new_publisher('pub');
my $sub = new_subscriber(
	'sub',
	autovacuum                                => 'off',
	wal_retrieve_retry_interval               => '100ms',
	'reuse_sync.max_retry_interval'           => '1h',
	'reuse_sync.max_workers_per_subscription' => 1,
	'reuse_sync.naptime'                      => '1h');

# The names of SQLSTATEs, as the documentation has them
my ($sharedir) = run_command([ 'pg_config', '--sharedir' ]);
my %name_of = map { /^(\w{5})\s+[EWS]\s+ERRCODE_\w+\s+(\w+)/ ? ($1 => $2) : () }
  split /\n/, slurp_file("$sharedir/errcodes.txt");

# What has been provoked: "function name_of_sqlstate"
my %provoked;

# What a server says to some SQL: "SQLSTATE: message", and lines with DETAIL and
# HINT.
sub answer
{
	my ($node, $sql, $db) = @_;
	my ($ret, $out, $err) =
	  $node->psql($db // 'postgres', "\\set VERBOSITY verbose\n$sql");

	return plain($err);
}

sub plain
{
	my ($err) = @_;

	$err =~ s/^psql:<stdin>:\d+: //mg;
	$err =~ s/^LOCATION: .*\n?//mg;
	$err =~ s/^(?:ERROR|CONTEXT): +//mg;
	$err =~ s/\n+$//;
	return $err;
}

# noted($function, $answer): it is an error of this function
sub noted
{
	my ($function, $answer) = @_;
	my ($sqlstate) = $answer =~ /^(\w{5}): /;

	$provoked{"$function $name_of{$sqlstate}"} = 1 if defined $sqlstate;
	return $answer;
}

# fails_ok($sql, $answer, $testname, $node): the function called first in there
# fails so.
sub fails_ok
{
	my ($sql, $answer, $testname, $node) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($function) = $sql =~ /(?:SELECT|CALL) reuse_sync\.(\w+)/;

	return is(noted($function, answer($node // $sub, $sql)),
		$answer, "$function: $testname");
}

# gives_ok($sql, $result, $testname, $node): it does not fail.
sub gives_ok
{
	my ($sql, $result, $testname, $node) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($ret, $out, $err) = ($node // $sub)->psql('postgres', $sql);

	return is("$err$out", $result, $testname);
}

# What somebody is told who is not the owner
my $owner_only = '42501: must be owner of subscription s';

#
# A subscription with tables that are ready and one that has failed; another
# that is disabled, and one that writes to the same table.
#
both($pub, $sub, q{
	CREATE TABLE good (a int PRIMARY KEY);
	CREATE TABLE bad (a int PRIMARY KEY);
	CREATE TABLE other (a int PRIMARY KEY);
	CREATE TABLE phased (a int PRIMARY KEY);
	CREATE TABLE no_table (a int PRIMARY KEY)});
$pub->safe_psql('postgres', q{
	INSERT INTO good VALUES (1);
	INSERT INTO bad VALUES (1);
	CREATE TABLE parts (a int);
	CREATE PUBLICATION p FOR TABLE good, parts;
	CREATE PUBLICATION p_off FOR TABLE other;
	CREATE PUBLICATION p_phased FOR TABLE phased});
$sub->safe_psql('postgres', q{
	ALTER TABLE bad ADD CONSTRAINT c CHECK (a > 1);
	CREATE TABLE parts (a int) PARTITION BY LIST (a);
	CREATE ROLE nobody;
	CREATE ROLE owner LOGIN SUPERUSER;
	GRANT ALL ON good, bad TO owner});
subscribe($pub, $sub, 'off', 'p_off', with => 'enabled = false');
subscribe($pub, $sub, 'phased', 'p_phased', with => 'two_phase');
subscribe($pub, $sub, 's', 'p');
wait_ready($sub, 'phased');
wait_ready($sub, 's');

# What fails now is not tried again by itself.
reconfigure($sub, wal_retrieve_retry_interval => '1h');
$pub->safe_psql('postgres', 'ALTER PUBLICATION p ADD TABLE bad');
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s REFRESH PUBLICATION');
wait_until($sub, 'two tables to be ready, and one to have failed', q{
	SELECT ready = 2 AND failed = 1 FROM reuse_sync.subscriptions
	WHERE subname = 's'});

#
# wait_for_sync()
#
fails_ok(
	q{SELECT reuse_sync.wait_for_sync('s', '10 ms')},
	q{57014: subscription "s" was not synchronized within the time given
DETAIL:  1 table is not ready: "public.bad".
HINT:  See reuse_sync.tables and reuse_sync.check().},
	'the time is over');
fails_ok(
	q{SELECT reuse_sync.wait_for_sync('off', '-1 s', NULL)},
	q{57014: subscription "off" was not synchronized within the time given
DETAIL:  1 table is not ready: "public.other".
HINT:  See reuse_sync.tables and reuse_sync.check().},
	'with fail_fast null nothing but the time counts');
fails_ok(
	q{SELECT reuse_sync.wait_for_sync('s', fail_fast => true)},
	q{55000: synchronization of table "public.bad" of subscription "s" has failed
DETAIL:  new row for relation "bad" violates check constraint "c"
HINT:  The table has a constraint that the publisher's rows do not meet: drop it here, or mend the rows there.
HINT:  Mend the cause and call reuse_sync.retry(), or wait for the next try; see reuse_sync.tables.},
	'a table has failed');
fails_ok(
	q{SELECT reuse_sync.wait_for_sync('off', NULL, true)},
	q{55000: subscription "off" is disabled
HINT:  Run ALTER SUBSCRIPTION off ENABLE.},
	'it is disabled');
fails_ok(
	q{SELECT reuse_sync.wait_for_sync('no such')},
	'42704: subscription "no such" does not exist',
	'there is none');
fails_ok(q{SELECT reuse_sync.wait_for_sync(NULL)},
	'22004: name of subscription must not be null', 'null');
fails_ok(
	q{SET ROLE nobody; SELECT reuse_sync.wait_for_sync('s')},
	$owner_only, 'neither the owner nor of pg_monitor');
is( noted(
		'wait_for_sync',
		answer(
			$sub,
			q{BEGIN; SELECT reuse_sync.resync_table('s', 'good');
			SELECT reuse_sync.wait_for_sync('s')})),
	q{25001: cannot wait for table "public.good" of subscription "s" in the transaction that has it synchronized
HINT:  Commit the transaction first.},
	'wait_for_sync: it would wait for itself');
gives_ok(q{SELECT reuse_sync.wait_for_sync('phased', NULL, NULL)},
	'', 'wait_for_sync: null for the others is no limit');

# Dropped while somebody waits.
my $waiting = $sub->background_psql('postgres', on_error_stop => 0);
$waiting->set_query_timer_restart();
my $pid = $waiting->query('SELECT pg_backend_pid()');
$waiting->query('\set VERBOSITY verbose');
start_query($waiting, q{SELECT reuse_sync.wait_for_sync('off')});
wait_until($sub, 'a session that waits',
	"SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = $pid"
);
$sub->safe_psql('postgres', 'DROP SUBSCRIPTION off');
wait_until($sub, 'its end',
	"SELECT state = 'idle' FROM pg_stat_activity WHERE pid = $pid");
$waiting->query('SELECT 1');
like(
	noted('wait_for_sync', plain($waiting->{stderr})),
	qr/^42704: subscription "off" was dropped$/m,
	'wait_for_sync: it is dropped');
$waiting->{stderr} = '';
$waiting->quit;

#
# retry()
#
fails_ok(
	q{SELECT reuse_sync.retry('no such')},
	'42704: subscription "no such" does not exist',
	'there is none');
fails_ok(
	q{SELECT reuse_sync.retry('s', 'no_table')},
	q{42704: relation "no_table" is not in subscription "s"
HINT:  See reuse_sync.tables.},
	'a table of none');
fails_ok(
	q{SELECT reuse_sync.retry('s', 1)},
	q{42704: relation "1" is not in subscription "s"
HINT:  See reuse_sync.tables.},
	'no table at all');
fails_ok(q{SET ROLE nobody; SELECT reuse_sync.retry('s')},
	$owner_only, 'not the owner');
fails_ok(q{SELECT reuse_sync.retry(NULL, 'good')},
	'22004: name of subscription must not be null', 'null');
gives_ok(
	q{BEGIN; SELECT reuse_sync.retry('s', NULL);
	SELECT state FROM reuse_sync.tables WHERE relid = 'bad'::regclass; ROLLBACK},
	"\npending",
	'retry: no table means all');
gives_ok(
	q{BEGIN; SELECT reuse_sync.retry('s', 'good');
	SELECT state FROM reuse_sync.tables WHERE relid = 'bad'::regclass; ROLLBACK},
	"\nfailed",
	'retry: one that does not wait changes nothing');

#
# resync_table()
#
foreach my $arguments (q{NULL, 'good'}, q{'s', NULL}, q{'s', 'good', NULL})
{
	fails_ok("SELECT reuse_sync.resync_table($arguments)",
		'22004: arguments of resync_table() must not be null', $arguments);
}
fails_ok(
	q{SELECT reuse_sync.resync_table('no such', 'good')},
	'42704: subscription "no such" does not exist',
	'there is none');
fails_ok(
	q{SELECT reuse_sync.resync_table('s', 'no_table')},
	q{42704: table "no_table" is not in subscription "s"
HINT:  Run ALTER SUBSCRIPTION s REFRESH PUBLICATION if it has been added to a publication.},
	'a table of none');
fails_ok(
	q{SELECT reuse_sync.resync_table('s', 1)},
	'42704: table with OID 1 does not exist',
	'no table at all');
fails_ok(
	q{SELECT reuse_sync.resync_table('phased', 'phased')},
	q{0A000: cannot synchronize a table anew in subscription "phased" because it has two_phase enabled
DETAIL:  What is prepared meanwhile would be lost.
HINT:  Drop the subscription and create it again, with two_phase disabled or with all its tables.},
	'two_phase');
fails_ok(
	q{BEGIN READ ONLY; SELECT reuse_sync.resync_table('s', 'good')},
	'25006: cannot execute resync_table() in a read-only transaction',
	'a read-only transaction');
$pub->safe_psql('postgres', 'ALTER PUBLICATION p DROP TABLE good');
fails_ok(
	q{SELECT reuse_sync.resync_table('s', 'good')},
	q{42P01: table "public.good" is in no publication that subscription "s" subscribes to
HINT:  Add it to a publication, or run ALTER SUBSCRIPTION s REFRESH PUBLICATION to have it removed from the subscription.},
	'not published any more');
$pub->safe_psql('postgres', 'ALTER PUBLICATION p ADD TABLE good;
	CREATE PUBLICATION p_too FOR TABLE good');
subscribe($pub, $sub, 'too', 'p_too', with => 'copy_data = false');
fails_ok(
	q{SELECT reuse_sync.resync_table('s', 'good')},
	q{55000: cannot remove the rows of table "good" because another subscription writes to it as well
HINT:  Remove the rows of this one by hand, and call reuse_sync.resync_table() with truncate => false.},
	'of two subscriptions');
$sub->safe_psql('postgres', 'DROP SUBSCRIPTION too');
$sub->safe_psql('postgres', q{
	CREATE FOREIGN DATA WRAPPER nothing;
	CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing;
	CREATE FOREIGN TABLE part PARTITION OF parts FOR VALUES IN (1)
		SERVER nowhere});
fails_ok(
	q{SELECT reuse_sync.resync_table('s', 'parts')},
	q{42809: cannot use relation "public.part" as logical replication target
DETAIL:  This operation is not supported for foreign tables.},
	'a foreign table among its partitions');
$sub->safe_psql('postgres', 'DROP SERVER nowhere CASCADE');
fails_ok(q{SET ROLE nobody; SELECT reuse_sync.resync_table('s', 'good')},
	$owner_only, 'not the owner');
$sub->safe_psql('postgres', q{
	ALTER SUBSCRIPTION s OWNER TO owner;
	ALTER ROLE owner NOSUPERUSER;
	REVOKE TRUNCATE ON good FROM owner});
fails_ok(
	q{SET ROLE owner; SELECT reuse_sync.resync_table('s', 'good')},
	'42501: permission denied for table good',
	'an owner without the right to TRUNCATE');
$sub->safe_psql('postgres', q{ALTER ROLE owner SUPERUSER;
	ALTER SUBSCRIPTION s OWNER TO CURRENT_USER});

#
# drop_orphaned_slots(), report(), and what is not for anybody
#
fails_ok(
	q{SELECT reuse_sync.drop_orphaned_slots('no such')},
	'42704: subscription "no such" does not exist',
	'there is none');
fails_ok(q{SET ROLE nobody; SELECT reuse_sync.drop_orphaned_slots('s')},
	$owner_only, 'not the owner');
gives_ok(q{SELECT reuse_sync.drop_orphaned_slots('s')},
	'0', 'drop_orphaned_slots: there is none of one');
gives_ok(q{SELECT reuse_sync.drop_orphaned_slots(NULL)},
	'0', 'drop_orphaned_slots: there is none of all');
fails_ok(
	q{SELECT reuse_sync.report('no such')},
	'42704: subscription "no such" does not exist',
	'there is none');
fails_ok(q{SET ROLE nobody; SELECT reuse_sync.report('s')},
	$owner_only, 'neither the owner nor of pg_monitor');
fails_ok(q{SELECT reuse_sync.report(NULL)},
	'22004: name of subscription must not be null', 'null');
gives_ok(
	q{SELECT reuse_sync.require_library(NULL) IS NULL},
	't', 'require_library: null is null');
is( answer($sub, q{SELECT reuse_sync.require_library('0.9')}),
	q{55000: the loaded library of "reuse_sync" is version 1.1, but its SQL objects are version 0.9
HINT:  Install both from the same release, and restart the server.},
	'require_library: another version');
is( answer($sub, 'REFRESH MATERIALIZED VIEW reuse_sync.counter'),
	q{42809: cannot refresh "counter"
DETAIL:  It holds the catalog of extension "reuse_sync".},
	'the catalog is not refreshed');

#
# drain(): the time is over.  Somebody has a table locked that is to be handed
# over.
#
fails_ok('SET ROLE nobody; CALL reuse_sync.drain()',
	'42501: permission denied for procedure drain', 'not a superuser');
$sub->safe_psql('postgres',
	'GRANT EXECUTE ON PROCEDURE reuse_sync.drain(interval) TO nobody');
fails_ok(
	'SET ROLE nobody; CALL reuse_sync.drain()',
	'42501: must be superuser to drain a database',
	'not a superuser, who was granted it');
both($pub, $sub, 'CREATE TABLE held (a int PRIMARY KEY)');
$pub->safe_psql('postgres', 'ALTER PUBLICATION p ADD TABLE held');
reconfigure($sub, 'reuse_sync.handover_lock_timeout' => '1h');
reconfigure($sub, wal_retrieve_retry_interval        => '100ms');
my $locker = session($sub);
$locker->query_safe('BEGIN; LOCK TABLE held IN ROW EXCLUSIVE MODE');
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s REFRESH PUBLICATION');
wait_until($sub, 'the lock to be wanted', q{
	SELECT count(*) > 0 FROM pg_locks
	WHERE relation = 'held'::regclass AND NOT granted});
fails_ok(
	q{CALL reuse_sync.drain('10 ms')},
	q{57014: could not drain database within the time given
DETAIL:  1 workers are still at work, 1 replication slots remain and 0 tables are being synchronized anew.
HINT:  See reuse_sync.workers and reuse_sync.slots, and call drain() again; reuse_sync.wakeup() has the pool go on.},
	'the time is over');
$locker->query_safe('COMMIT');
gives_ok('CALL reuse_sync.drain(NULL)', '', 'drain: null is no limit');
is( $sub->safe_psql('postgres',
		q{SELECT state FROM reuse_sync.tables WHERE relid = 'held'::regclass}
	) =~ /^(?:ready|synchronized)$/,
	1,
	'drain: what was half done has been finished');
$locker->quit;
$sub->safe_psql('postgres', 'SELECT reuse_sync.wakeup()');

#
# drain(): of too many databases.  One that is dropped is not among them.
#
$sub->safe_psql('postgres', 'CREATE DATABASE pattern');
create_extension($sub, 'pattern');

sub drain_databases
{
	$sub->safe_psql(
		'postgres',
		join '',
		map { "CREATE DATABASE d$_ TEMPLATE pattern STRATEGY file_copy;
			\\c d$_
			CALL reuse_sync.drain();
			\\c postgres
		" } @_);
	return;
}
drain_databases(1);
$sub->safe_psql('postgres', 'DROP DATABASE d1');
drain_databases(1 .. 64);
is( noted('drain', answer($sub, 'CALL reuse_sync.drain()')),
	q{53400: too many databases are being drained
HINT:  Drop the extension in those that are drained, or call reuse_sync.wakeup() there.},
	'drain: too many databases');
$sub->safe_psql('d1', 'SELECT reuse_sync.wakeup()');
gives_ok(q{CALL reuse_sync.drain('1 min'); SELECT reuse_sync.wakeup()},
	'', 'drain: when another is drained no more');

#
# Functions that need the pool: with a library of another version, ...
#
my %calls = (
	retry        => q{SELECT reuse_sync.retry('s')},
	resync_table => q{SELECT reuse_sync.resync_table('s', 'good')},
	wakeup       => 'SELECT reuse_sync.wakeup()',
	drain        => 'CALL reuse_sync.drain()');
my %others = (
	wait_for_sync =>
	  [ q{SELECT reuse_sync.wait_for_sync('phased', '1 min')}, '' ],
	drop_orphaned_slots => [ 'SELECT reuse_sync.drop_orphaned_slots()', '0' ],
	report => [ q{SELECT left(reuse_sync.report('s'), 15)}, '<!DOCTYPE html>' ],
	check  => [ 'SELECT count(*) > 0 FROM reuse_sync.check()', 't' ],
	stats_reset => [ 'SELECT reuse_sync.stats_reset()', '' ]);

sub without_pool_ok
{
	my ($what, $answer, $before) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	foreach my $function (sort keys %calls)
	{
		is( noted(
				$function, answer($sub, ($before // '') . $calls{$function})),
			$answer,
			"$function: $what");
	}
	return;
}
without_pool_ok(
	'an extension of another version',
	q{55000: extension "reuse_sync" is version 0.9 in database "postgres", but the loaded library is version 1.1
HINT:  Run ALTER EXTENSION reuse_sync UPDATE, or restart the server if a new library was installed.},
	q{BEGIN; UPDATE pg_extension SET extversion = '0.9' WHERE extname = 'reuse_sync';
	});

# ... with the pool switched off, ...
$sub->append_conf('postgresql.conf', 'reuse_sync.enabled = off');
$sub->restart;
without_pool_ok(
	'switched off',
	q{55000: the pool of "reuse_sync" is not running
HINT:  Set reuse_sync.enabled to on and restart the server.});
gives_ok(@{ $others{$_} }, "$_: switched off") foreach sort keys %others;

# ... and without the library.
$sub->append_conf('postgresql.conf', q{shared_preload_libraries = ''});
$sub->restart;
without_pool_ok(
	'not preloaded',
	q{55000: "reuse_sync" must be loaded via shared_preload_libraries
HINT:  Add it to shared_preload_libraries and restart the server.});
gives_ok(@{ $others{$_} }, "$_: not preloaded") foreach sort keys %others;
is($sub->safe_psql('postgres', "SELECT count(*) FROM reuse_sync.$_"),
	0, "not preloaded: $_ has no row")
  foreach qw(workers slots problems pool_workers() pool_copies() pool_slots()
  pool_problems());
$sub->append_conf('postgresql.conf',
	q{shared_preload_libraries = 'reuse_sync'
	reuse_sync.enabled = on});
$sub->restart;

#
# A publisher that is away
#
$pub->stop;
my $away = noted('resync_table',
	answer($sub, q{SELECT reuse_sync.resync_table('s', 'good')}));
like(
	$away,
	qr/^08006: could not connect to the publisher: connection to server .*/,
	'resync_table: the publisher is away');
unlike($away, qr/dbname=/, 'and nothing of the connection string is shown');

#
# In recovery: a standby of the subscriber, made of itself
#
$sub->stop;
append_to_file($sub->data_dir . '/standby.signal', '');
$sub->start;
is($sub->safe_psql('postgres', 'SELECT pg_is_in_recovery()'),
	't', 'the subscriber is in recovery');
foreach my $function (qw(retry drain stats_reset))
{
	is( noted(
			$function,
			answer($sub,
				$calls{$function} // 'SELECT reuse_sync.stats_reset()')),
		"25006: cannot execute reuse_sync.$function() during recovery",
		"$function: in recovery");
}
fails_ok(
	$calls{resync_table},
	'25006: cannot execute resync_table() during recovery',
	'in recovery');
fails_ok(
	'SELECT reuse_sync.drop_orphaned_slots()',
	'25006: cannot execute reuse_sync.drop_orphaned_slots() during recovery',
	'in recovery');
$sub->stop;

#
# That is what the documentation has.
#
my $root      = abs_path(dirname(__FILE__) . '/../..');
my $reference = slurp_file("$root/docs/sql-reference.md");
my %documented;

while ($reference =~ /^### (\w+)\n(.*?)(?=^##)/msg)
{
	my ($function, $text) = ($1, $2);

	$documented{"$function $1"} = 1
	  while $text =~ /^\| `(\w+)` \| [^|]*\|$/mg;
}
my ($list, $state) =
  $reference =~ /^(`retry`.*?) fail with `(\w+)` if the\s+library is not/ms
  or die 'the documentation does not say what needs the pool';
$documented{"$_ $state"} = 1 foreach $list =~ /`(\w+)`/g;
is( join("\n", sort keys %provoked),
	join("\n", sort keys %documented),
	'the documentation has these SQLSTATEs for each function');

done_testing();
