# What a subscription's options say of its synchronization, as far as the
# server's own tests do not look there: errors that disable it, transactions to
# be skipped, two-phase commit while tables are pending, and a subscription
# that loses its slot.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use CatchUp;
use ReuseSync;

# Whoever has failed is tried again long after the end of the test, unless
# there is a reason to try at once.
my $long = '1h';

my $pub = new_publisher(
	'pub',
	max_replication_slots     => 6,
	max_prepared_transactions => 10);
my $sub = new_subscriber(
	'sub',
	'reuse_sync.max_retry_interval' => $long,
	max_prepared_transactions       => 10);

# A setting of the subscriber; return when new sessions see it.
sub set_up
{
	my ($name, $value) = @_;

	$sub->safe_psql('postgres', "ALTER SYSTEM SET $name = '$value'");
	$sub->reload;
	$sub->poll_query_until('postgres',
		"SELECT setting::interval = '$value'::interval FROM (
			SELECT setting || unit AS setting FROM pg_settings
			WHERE name = '$name') s")
	  or die "$name is not $value";
	return;
}

sub wait_disabled
{
	my ($subname) = @_;

	$sub->poll_query_until('postgres',
		"SELECT NOT subenabled FROM pg_subscription WHERE subname = '$subname'"
	) or die "$subname was not disabled:\n" . ReuseSync::log_tail($sub);
	return;
}

sub sync_errors
{
	my ($subname) = @_;

	return $sub->safe_psql('postgres',
		"SELECT sync_error_count FROM pg_stat_subscription_stats
		WHERE subname = '$subname'");
}

# Tables with a row on the publisher, and a publication for each
sub create_tables
{
	foreach my $table (@_)
	{
		both($pub, $sub, "CREATE TABLE $table (a int PRIMARY KEY, b text)");
		$pub->safe_psql('postgres', qq{
			INSERT INTO $table VALUES (1, 'one');
			CREATE PUBLICATION $table FOR TABLE $table});
	}
	return;
}

#
# disable_on_error: an error of a table
#

create_tables('conflict', 'innocent');
$sub->safe_psql('postgres', q{INSERT INTO conflict VALUES (1, 'mine')});
set_up('wal_retrieve_retry_interval', $long) if with_extension();
my $offset = -s $sub->logfile;
subscribe($pub, $sub, 'conflict', 'conflict, innocent',
	with => 'disable_on_error');
wait_disabled('conflict');
is(table_state($sub, 'conflict'), 'd',
	'a table that cannot be copied is in "d"');
cmp_ok(sync_errors('conflict'), '>', 0, 'its error has been counted');
like(
	slurp_file($sub->logfile, $offset),
	qr/subscription "conflict" has been disabled because of an error/,
	'the log says that the subscription has been disabled');
is($sub->safe_psql('postgres', 'TABLE conflict'),
	'1|mine', 'nothing of the failed copy is left');

# Nothing waits for the time of the next try that was set when it failed.
$sub->safe_psql('postgres', 'DELETE FROM conflict');
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION conflict ENABLE');
wait_states($sub, 'conflict',
	q{count(*) FILTER (WHERE srsubstate IN ('s', 'r')) = 2});
pass('what was disabled goes on as soon as it is enabled');
set_up('wal_retrieve_retry_interval', '1s');
wait_ready($sub, 'conflict');
rows_ok($pub, $sub, $_, "$_: copied after the error")
  foreach qw(conflict innocent);

#
# disable_on_error: so many publications that the subscription's row in the
# catalog is stored out of line
#

create_tables('many');
$sub->safe_psql('postgres', q{INSERT INTO many VALUES (1, 'mine')});
my $many = $pub->safe_psql('postgres', q{
	SELECT string_agg('p' || left(md5(g::text) || md5('x' || g), 60), ', ')
	FROM generate_series(1, 200) g});
$pub->safe_psql('postgres', join ';',
	map { "CREATE PUBLICATION $_" } split /, /, $many);
subscribe($pub, $sub, 'many', "many, $many", with => 'disable_on_error');
wait_disabled('many');
$sub->safe_psql('postgres', 'DELETE FROM many');
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION many ENABLE');
wait_ready($sub, 'many');
rows_ok($pub, $sub, 'many', 'many publications: copied after the error');
$sub->safe_psql('postgres', 'DROP SUBSCRIPTION many');

#
# disable_on_error: an error that is no table's, a want of slots
#

create_tables('no_slot');
subscribe($pub, $sub, 'no_slot', 'no_slot',
	with => 'disable_on_error, enabled = false');
$pub->safe_psql('postgres', q{SELECT pg_create_physical_replication_slot(
	'filler_' || g) FROM generate_series(1,
		current_setting('max_replication_slots')::int
		- (SELECT count(*)::int FROM pg_replication_slots)) g});
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION no_slot ENABLE');
wait_disabled('no_slot');
cmp_ok(sync_errors('no_slot'), '>', 0, 'a want of slots is counted');
$pub->safe_psql('postgres', q{SELECT pg_drop_replication_slot(slot_name)
	FROM pg_replication_slots WHERE slot_name LIKE 'filler%'});
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION no_slot ENABLE');
wait_ready($sub, 'no_slot');
rows_ok($pub, $sub, 'no_slot', 'copied when there is a slot');

#
# ALTER SUBSCRIPTION ... SKIP, of a transaction that catch-up fails at.  The
# staged way: a copy that is rolled back has the row when it is made again.
#

set_up('reuse_sync.max_retry_interval', '1s') if with_extension();
if (with_extension())
{
	$sub->safe_psql('postgres',
		q{ALTER SYSTEM SET reuse_sync.batch_size = '64kB'});
	$sub->reload;
}
my $catchup = CatchUp->new($pub, $sub);
create_tables('skipped');
$pub->safe_psql('postgres',
	q{INSERT INTO skipped SELECT g, repeat('x', 100)
	FROM generate_series(2, 2000) g});
$sub->safe_psql('postgres',
	'ALTER TABLE skipped ADD CONSTRAINT small CHECK (a < 10000)');
$catchup->close_gate('skipped');
$offset = -s $sub->logfile;
subscribe($pub, $sub, 'skipped', 'skipped');
$catchup->wait_at_gates(['skipped']);
$pub->safe_psql('postgres', q{
	BEGIN; INSERT INTO skipped VALUES (10001), (3000); COMMIT;
	INSERT INTO skipped VALUES (3001)});
$catchup->open_gate('skipped');
$offset = $sub->wait_for_log(qr/remote transaction \d+, finished at|in transaction \d+, finished at/, $offset);
my ($lsn) = slurp_file($sub->logfile) =~
  /^.*transaction \d+, finished at ([[:xdigit:]]+\/[[:xdigit:]]+)/ms
  or die "no LSN in the log";
is(table_state($sub, 'skipped'), 'f', 'the copy is kept');
$sub->safe_psql('postgres', "ALTER SUBSCRIPTION skipped SKIP (lsn = '$lsn')");
wait_ready($sub, 'skipped');
rows_ok($pub, $sub, 'SELECT * FROM skipped WHERE a NOT IN (3000, 10001)',
	'a transaction that catch-up failed at is skipped, and no other',
	'skipped');
$pub->safe_psql('postgres', 'DELETE FROM skipped WHERE a > 2999');
catch_up($pub, $sub, 'skipped');
rows_ok($pub, $sub, 'skipped', 'changes after that');
is( $sub->safe_psql('postgres',
		q{SELECT subskiplsn FROM pg_subscription WHERE subname = 'skipped'}),
	'0/0',
	'the LSN to skip has been cleared');

#
# two_phase: pending until all tables are ready, and what was prepared
# meanwhile comes once
#

create_tables('pending_1', 'pending_2');
$catchup->close_gate('pending_1');
subscribe($pub, $sub, 'pending', 'pending_1, pending_2',
	with => 'two_phase');
$catchup->wait_at_gates(['pending_1']);
wait_states($sub, 'pending',
	q{count(*) FILTER (WHERE srsubstate = 'r'
		AND srrelid = 'pending_2'::regclass) = 1});
$pub->safe_psql('postgres', q{BEGIN;
	INSERT INTO pending_1 VALUES (2, 'prepared');
	INSERT INTO pending_2 VALUES (2, 'prepared');
	PREPARE TRANSACTION 'early'});
is( $sub->safe_psql('postgres',
		q{SELECT subtwophasestate FROM pg_subscription
		WHERE subname = 'pending'}),
	'p',
	'two_phase is pending while a table is');
$catchup->open_gate('pending_1');
wait_ready($sub, 'pending');
ok( $sub->poll_query_until('postgres',
		q{SELECT subtwophasestate = 'e' FROM pg_subscription
		WHERE subname = 'pending'}),
	'and enabled when all are ready');
$pub->safe_psql('postgres', q{BEGIN;
	UPDATE pending_2 SET b = 'late' WHERE a = 1;
	UPDATE pending_1 SET b = 'late' WHERE a = 1;
	PREPARE TRANSACTION 'late'});
$pub->safe_psql('postgres', q{COMMIT PREPARED 'early'});
$pub->safe_psql('postgres', q{COMMIT PREPARED 'late'});
catch_up($pub, $sub, 'pending');
rows_ok($pub, $sub, $_, "$_: prepared before and after")
  foreach qw(pending_1 pending_2);
my ($ret, $stdout, $stderr) =
  $sub->psql('postgres', 'ALTER SUBSCRIPTION pending REFRESH PUBLICATION');
like(
	$stderr,
	qr/REFRESH with copy_data is not allowed when two_phase is enabled/,
	'REFRESH that would copy is refused with two_phase');

#
# A subscription that fails, and is given up without its slot: DROP
# SUBSCRIPTION leaves nothing of ours on the publisher.
#

create_tables('given_up');
$sub->safe_psql('postgres', q{INSERT INTO given_up VALUES (1, 'mine')});
subscribe($pub, $sub, 'given_up', 'given_up');
$sub->poll_query_until('postgres',
	q{SELECT sync_error_count > 0 FROM pg_stat_subscription_stats
	WHERE subname = 'given_up'})
  or die 'given_up did not fail';
$sub->safe_psql('postgres', $_)
  foreach (
	'ALTER SUBSCRIPTION given_up DISABLE',
	'ALTER SUBSCRIPTION given_up SET (slot_name = NONE)',
	'BEGIN; DROP SUBSCRIPTION given_up; COMMIT');
$pub->poll_query_until('postgres',
	q{SELECT count(*) = 1 FROM pg_replication_slots
	WHERE slot_name = 'given_up' AND NOT active})
  or die 'the slot of given_up is in use';
$pub->safe_psql('postgres', q{SELECT pg_drop_replication_slot('given_up')});

$catchup->finish;
no_leftovers_ok($pub, $sub, 'no slot and no origin left');
no_builtin_sync_ok($sub);

done_testing();
