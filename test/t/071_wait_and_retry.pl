# What somebody does who waits for a synchronization and mends what is wrong:
# wait_for_sync(), retry(), drop_orphaned_slots(), and what a failed table says.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Races qw(session start_query finish_query wait_until);
use ReuseSync;
use Test::More;

plan skip_all => 'only of the extension' unless with_extension();

# A table that has failed once is not tried again by itself during this test,
# and slots left behind are looked at once.
my $pub = new_publisher('pub');
my $sub = new_subscriber(
	'sub',
	wal_retrieve_retry_interval     => '1h',
	'reuse_sync.max_retry_interval' => '1h',
	'reuse_sync.naptime'            => '1h');

# fails_ok($sql, $pattern, $testname, %opt): the statement fails with this, and
# psql exits with what says so.
sub fails_ok
{
	my ($sql, $pattern, $testname, %opt) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	my ($ret, $out, $err) = $sub->psql('postgres', $sql, %opt);
	like($err, $pattern, $testname);
	isnt($ret, 0, "$testname: psql exits non-zero");
	return;
}

# A session that goes on after an error.
sub lasting_session
{
	my $session = $sub->background_psql('postgres', on_error_stop => 0);

	$session->set_query_timer_restart();
	$session->{pid} = $session->query('SELECT pg_backend_pid()');
	return $session;
}

both($pub, $sub, q{CREATE TABLE good (a int PRIMARY KEY);
	CREATE TABLE bad (a int PRIMARY KEY);
	CREATE TABLE "Other one" (a int PRIMARY KEY)});
$pub->safe_psql(
	'postgres', q{
	INSERT INTO good VALUES (1);
	INSERT INTO bad VALUES (1);
	INSERT INTO "Other one" VALUES (1);
	CREATE PUBLICATION p FOR TABLE good, bad, "Other one"});
$sub->safe_psql('postgres',
	q{INSERT INTO bad VALUES (1); INSERT INTO "Other one" VALUES (1)});
my $log_start = -s $sub->logfile;
subscribe($pub, $sub, 's', 'p');

#
# What writes is refused where nothing may be written.
#
foreach my $call ('SELECT reuse_sync.retry(\'s\', \'bad\')',
	'SELECT reuse_sync.stats_reset()',
	'SELECT reuse_sync.drop_orphaned_slots()',
	'CALL reuse_sync.drain()')
{
	my ($function) = $call =~ /reuse_sync\.(\w+)/;

	fails_ok("SET default_transaction_read_only = on; $call",
		qr/cannot execute reuse_sync\.$function\(\) in a read-only transaction/,
		"$function is refused in a read-only transaction");
}

#
# A table that was not empty: said so, wherever it is said.
#
wait_until($sub, 'two failed tables',
	q{SELECT count(*) = 2 FROM reuse_sync.tables WHERE state = 'failed'});
my $error = $sub->safe_psql('postgres',
	q{SELECT last_error FROM reuse_sync.tables WHERE relid = '"Other one"'::regclass});
is( $error,
	q{duplicate key value violates unique constraint "Other one_pkey"
HINT:  The table was not empty before it was copied. Empty it, or run SELECT reuse_sync.resync_table('s', 'public."Other one"'), which empties and copies it.},
	'last_error says that the table was not empty, and what to do');
like(
	slurp_file($sub->logfile, $log_start),
	qr/LOG:  synchronization of table "public\.bad" of subscription "s" failed and will be tried again at .*DETAIL:  duplicate key .*HINT:  The table was not empty .* reuse_sync\.resync_table\('s', 'public\.bad'\)/s,
	'so does the log');

#
# wait_for_sync() of what does not come
#
fails_ok(
	q{SELECT reuse_sync.wait_for_sync('s', '10 ms')},
	qr/ERROR:  subscription "s" was not synchronized within the time given\nDETAIL:  2 tables are not ready, for example .*\nHINT:  See reuse_sync\.tables/,
	'wait_for_sync ends at its timeout');
fails_ok(
	q{SELECT reuse_sync.wait_for_sync('s', NULL, true)},
	qr/ERROR:  synchronization of table "public\.(bad|Other one)" of subscription "s" has failed\nDETAIL:  duplicate key .*\nHINT:  The table was not empty/,
	'wait_for_sync with fail_fast ends when a table has failed');
fails_ok(
	q{SET statement_timeout = '10 ms'; SELECT reuse_sync.wait_for_sync('s')},
	qr/ERROR:  canceling statement due to statement timeout/,
	'wait_for_sync obeys statement_timeout');
fails_ok(q{SELECT reuse_sync.wait_for_sync('no_such')},
	qr/ERROR:  subscription "no_such" does not exist/,
	'wait_for_sync of a subscription that is not there');
fails_ok(q{SELECT reuse_sync.wait_for_sync(NULL)},
	qr/ERROR:  name of subscription must not be null/,
	'wait_for_sync of nothing');

my $waiting = lasting_session();
start_query($waiting, q{SELECT reuse_sync.wait_for_sync('s')});
wait_until($sub, 'a session that waits',
	"SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = $waiting->{pid}"
);
$sub->safe_psql('postgres', "SELECT pg_cancel_backend($waiting->{pid})");
wait_until(
	$sub,
	'the end of a query that was cancelled',
	"SELECT state = 'idle' FROM pg_stat_activity WHERE pid = $waiting->{pid}");
$waiting->{stderr} = '';
$waiting->quit;
pass('wait_for_sync can be cancelled');

#
# retry()
#
fails_ok(q{SELECT reuse_sync.retry('no_such')},
	qr/ERROR:  subscription "no_such" does not exist/,
	'retry of a subscription that is not there');
$sub->safe_psql('postgres', 'CREATE TABLE foreign_to_it ()');
fails_ok(
	q{SELECT reuse_sync.retry('s', 'foreign_to_it')},
	qr/ERROR:  relation "foreign_to_it" is not in subscription "s"/,
	'retry of a table that is not in it');
fails_ok(q{SELECT reuse_sync.retry(NULL)},
	qr/ERROR:  name of subscription must not be null/,
	'retry of nothing');

is( $sub->safe_psql('postgres',
		q{SELECT bool_and(next_retry > now() + interval '50 min')
		FROM reuse_sync.tables WHERE state = 'failed'}),
	't', 'both tables wait for long');

# Rolled back, it was not asked.
$sub->safe_psql('postgres',
	q{BEGIN; SELECT reuse_sync.retry('s'); ROLLBACK});
is( $sub->safe_psql('postgres',
		q{SELECT count(*) FROM reuse_sync.tables WHERE next_retry IS NOT NULL}
	),
	2, 'a retry that is rolled back changes nothing');

# One that is not mended fails again, and waits again.
$sub->safe_psql('postgres', q{SELECT reuse_sync.retry('s', 'bad')});
wait_until(
	$sub,
	'another failure', q{
	SELECT attempts = 2 AND next_retry > now() + interval '50 min'
	FROM reuse_sync.tables WHERE relid = 'bad'::regclass AND state = 'failed'}
);
is( $sub->safe_psql('postgres',
		q{SELECT attempts FROM reuse_sync.tables WHERE relid = '"Other one"'::regclass}
	),
	1, 'the other table was left alone');

# Those who wait are told when it is done.
$waiting = lasting_session();
start_query($waiting, q{SELECT reuse_sync.wait_for_sync('s')});
$sub->safe_psql('postgres', q{TRUNCATE bad, "Other one"});
$sub->safe_psql('postgres', q{SELECT reuse_sync.retry('s')});
finish_query($waiting);
is( $sub->safe_psql('postgres',
		q{SELECT string_agg(state || attempts || coalesce(last_error, ''), ',')
		FROM reuse_sync.tables}),
	'ready0,ready0,ready0',
	'after retry() all are ready, when wait_for_sync() has returned');
$sub->safe_psql('postgres', q{SELECT reuse_sync.wait_for_sync('s', '0')});
pass('wait_for_sync of what is ready returns at once');
rows_ok($pub, $sub, $_, "rows of $_") foreach ('good', 'bad', '"Other one"');

#
# Rights: of an ordinary role, a member of pg_monitor, and an owner.  The owner
# of a subscription has to be a superuser when he becomes that.
#
$sub->safe_psql(
	'postgres', q{
	CREATE ROLE nobody; CREATE ROLE monitor IN ROLE pg_monitor;
	CREATE ROLE the_owner SUPERUSER LOGIN;
	ALTER SUBSCRIPTION s OWNER TO the_owner;
	ALTER ROLE the_owner NOSUPERUSER;
	GRANT ALL ON ALL TABLES IN SCHEMA public TO the_owner});
my %calls = (
	wait_for_sync       => q{reuse_sync.wait_for_sync('s', '1 min')},
	retry               => q{reuse_sync.retry('s')},
	drop_orphaned_slots => q{reuse_sync.drop_orphaned_slots('s')});
foreach my $role (qw(nobody monitor the_owner))
{
	foreach my $name (sort keys %calls)
	{
		my $allowed = $role eq 'the_owner'
		  || ($role eq 'monitor' && $name eq 'wait_for_sync');
		my ($ret, $out, $err) =
		  $sub->psql('postgres', "SET ROLE $role; SELECT $calls{$name}");
		like(
			$err,
			$allowed ? qr/^$/ : qr/ERROR:  must be owner of subscription s/,
			"$role " . ($allowed ? 'may' : 'must not') . " call $name");
	}
}
is( $sub->safe_psql('postgres',
		'SET ROLE nobody; SELECT reuse_sync.drop_orphaned_slots()'),
	0, 'there is nothing to drop for somebody who owns nothing');
fails_ok(
	'SET ROLE nobody; SELECT * FROM reuse_sync.tables',
	qr/permission denied for view tables/,
	'an ordinary role reads no view');

#
# A subscription that is dropped, or disabled, while somebody waits.  Nothing
# is served before its apply worker streams, and those are not to wait.
#
$sub->append_conf('postgresql.conf', "wal_retrieve_retry_interval = '200ms'");
$sub->reload;
both($pub, $sub, 'CREATE TABLE held (a int PRIMARY KEY)');
$pub->safe_psql('postgres',
	'INSERT INTO held VALUES (1); CREATE PUBLICATION p2 FOR TABLE held');
$sub->safe_psql(
	'postgres', q{
	CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS
	$$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NEW; END $$;
	CREATE TRIGGER gate BEFORE INSERT ON held
	FOR EACH ROW EXECUTE FUNCTION gate();
	ALTER TABLE held ENABLE ALWAYS TRIGGER gate});
my $gate = session($sub);
$gate->query_safe('SELECT pg_advisory_lock(1)');
subscribe($pub, $sub, 's2', 'p2');
wait_until($sub, 'a copy that is held',
	q{SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted}
);
is($sub->safe_psql('postgres', 'SELECT reuse_sync.drop_orphaned_slots()'),
	0, 'a slot that a worker holds is no orphan');
is( $pub->safe_psql('postgres',
		q{SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'reuse\_sync\_%'}
	),
	1, 'and is not dropped');

$waiting = lasting_session();
start_query($waiting,
	q{SELECT reuse_sync.wait_for_sync('s2', NULL, true)});
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s2 DISABLE');
wait_until(
	$sub,
	'the end of the wait',
	"SELECT state = 'idle' FROM pg_stat_activity WHERE pid = $waiting->{pid}");
$waiting->query('SELECT 1');
like(
	$waiting->{stderr},
	qr/ERROR:  subscription "s2" is disabled\nHINT:  Run ALTER SUBSCRIPTION s2 ENABLE/,
	'with fail_fast the wait ends when the subscription is disabled');
$waiting->{stderr} = '';
$waiting->quit;

$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s2 ENABLE');
wait_until($sub, 'a copy that is held again',
	q{SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted}
);

#
# Slots of a subscription that is dropped while its publisher is away
#
$waiting = lasting_session();
start_query($waiting, q{SELECT reuse_sync.wait_for_sync('s2')});
$pub->stop('immediate');
$sub->safe_psql(
	'postgres', q{
	ALTER SUBSCRIPTION s2 DISABLE;
	ALTER SUBSCRIPTION s2 SET (slot_name = NONE);
	DROP SUBSCRIPTION s2});
wait_until(
	$sub,
	'the end of the wait',
	"SELECT state = 'idle' FROM pg_stat_activity WHERE pid = $waiting->{pid}");
$waiting->query('SELECT 1');
like(
	$waiting->{stderr},
	qr/ERROR:  subscription "s2" was dropped/,
	'the wait ends when the subscription is dropped');
$waiting->{stderr} = '';
$waiting->quit;
$gate->quit;

# The pool looks once, and then not for an hour.
wait_until($sub, 'the look of the pool',
	q{SELECT last_error ~ 'could not connect' FROM reuse_sync.slots
	WHERE state = 'orphaned' AND pid IS NULL});
my ($ret, $out, $err) =
  $sub->psql('postgres', 'SELECT reuse_sync.drop_orphaned_slots()');
is($out, 0, 'nothing can be dropped while the publisher is away');
like(
	$err,
	qr/WARNING:  could not drop replication slots on a publisher: could not connect to the publisher/,
	'which is said');
unlike($err, qr/dbname=/, 'without the connection string');
$pub->start;
is( $sub->safe_psql('postgres',
		'SET ROLE the_owner; SELECT reuse_sync.drop_orphaned_slots()'),
	0, 'who is no superuser drops nothing of subscriptions that are gone');
is($sub->safe_psql('postgres', 'SELECT reuse_sync.drop_orphaned_slots()'),
	1, 'the slot is dropped once the publisher is back');
is( $pub->safe_psql('postgres',
		q{SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'reuse\_sync\_%'}
	),
	0, 'it is gone there');
is($sub->safe_psql('postgres', 'SELECT count(*) FROM reuse_sync.slots'),
	0, 'and here');

#
# Without a pool: the server synchronizes, and one can wait for that.
#
$sub->append_conf('postgresql.conf',
	"reuse_sync.enabled = off\nwal_retrieve_retry_interval = '100ms'");
$sub->restart;
$sub->safe_psql('postgres',
	'ALTER TABLE held DISABLE TRIGGER gate;
	GRANT ALL ON held TO the_owner; ALTER ROLE the_owner SUPERUSER');
$pub->safe_psql('postgres', 'ALTER PUBLICATION p ADD TABLE held');
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s REFRESH PUBLICATION');
$sub->safe_psql('postgres', q{SELECT reuse_sync.wait_for_sync('s', '3 min')});
rows_ok($pub, $sub, 'held', 'without a pool wait_for_sync works as well');
fails_ok(
	q{SELECT reuse_sync.retry('s')},
	qr/ERROR:  the pool of "reuse_sync" is not running/,
	'retry says that there is no pool');

done_testing();
