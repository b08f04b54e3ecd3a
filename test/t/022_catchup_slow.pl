# Catch-up that takes longer than the publisher waits for a sign of life.
#
# Triggers on the subscriber make rows slow to apply, or stop them altogether.
# The publisher must hear from us all the same, and other tables must not have
# to wait.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use CatchUp;

my $pub     = new_publisher('pub', wal_sender_timeout => '2s');
my $sub     = new_subscriber('sub', 'reuse_sync.batch_tables' => 1);
my $catchup = CatchUp->new($pub, $sub);

my $slow = q{
	CREATE TRIGGER slow BEFORE INSERT OR UPDATE ON %1$s
		FOR EACH ROW EXECUTE FUNCTION take_time();
	ALTER TABLE %1$s ENABLE ALWAYS TRIGGER slow;};

my @cases = (
	{
		# half a second for each row of one transaction
		table   => 'slow_rows',
		ddl     => 'CREATE TABLE slow_rows (a int PRIMARY KEY, seconds float)',
		sub_ddl => sprintf($slow, 'slow_rows'),
		seed    => 'INSERT INTO slow_rows VALUES (0, 0)',
		changes =>
		  'INSERT INTO slow_rows SELECT g, 0.5 FROM generate_series(1, 12) AS g',
		later   => 'UPDATE slow_rows SET seconds = 0 WHERE a > 10',
	},
	{
		# one row, and two later ones
		table   => 'slow_row',
		ddl     => 'CREATE TABLE slow_row (a int PRIMARY KEY, seconds float)',
		sub_ddl => sprintf($slow, 'slow_row'),
		seed    => 'INSERT INTO slow_row VALUES (0, 0)',
		changes => q{
			INSERT INTO slow_row VALUES (1, 4);
			INSERT INTO slow_row VALUES (2, 0);
			UPDATE slow_row SET seconds = 0 WHERE a = 1;},
		later   => 'DELETE FROM slow_row WHERE a = 1',
	});
my $stuck = {
	# a row that waits for another session
	table   => 'stuck',
	changes => q{INSERT INTO stuck VALUES (11, 'stuck')},
};

both($pub, $sub, 'CREATE TABLE ready (a int PRIMARY KEY, b text)');
$sub->safe_psql(
	'postgres', q{
	CREATE FUNCTION take_time() RETURNS trigger LANGUAGE plpgsql AS
		'BEGIN PERFORM pg_sleep(new.seconds); RETURN new; END'});
$catchup->create(@cases, $stuck);
$pub->safe_psql(
	'postgres', q{
	CREATE PUBLICATION p_ready FOR TABLE ready;
	CREATE PUBLICATION p_slow FOR TABLE slow_rows, slow_row;
	CREATE PUBLICATION p_stuck FOR TABLE stuck;});
subscribe($pub, $sub, 's', 'p_ready');
wait_ready($sub, 's');

#
# The server's own workers do not answer while a row takes its time; what is
# left of the transaction when they are thrown out is tried again.
#
$catchup->close_gates(@cases);
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s ADD PUBLICATION p_slow');
$catchup->run_cases(@cases);
wait_ready($sub, 's');
$catchup->in_time_ok('changes were made during the copies');

#
# A catch-up that does not get on at all.  The table is changed while it is
# stuck, together with one that is ready.
#
SKIP:
{
	skip 'the apply worker waits for the catch-up of the server', 2
	  unless with_extension();

	$catchup->close_gates($stuck);
	$catchup->close_gate(
		'row 11',
		gated => ['stuck'],
		when  => 'new.a = 11');
	$sub->safe_psql('postgres',
		'ALTER SUBSCRIPTION s ADD PUBLICATION p_stuck');
	$catchup->run_cases($stuck);
	$catchup->wait_at_gates(['row 11']);

	foreach my $i (1 .. 3)
	{
		$pub->safe_psql(
			'postgres', qq{
			BEGIN;
			INSERT INTO stuck VALUES (20 + $i, 'together');
			INSERT INTO ready VALUES ($i, 'together');
			COMMIT;});
		$sub->poll_query_until('postgres',
			"SELECT count(*) = $i FROM ready")
		  or last;
	}
	is($sub->safe_psql('postgres', 'SELECT count(*) FROM ready'),
		3, 'another table goes on');
	like(table_state($sub, 'stuck'),
		qr/[idf]/, 'while this one is still not synchronized');
	$catchup->open_gate('row 11');
	wait_ready($sub, 's');
	push @cases, $stuck;
}

$catchup->change_later(@cases);
catch_up($pub, $sub, 's');
$catchup->case_rows_ok(@cases);
rows_ok($pub, $sub, 'ready', 'table that was ready all the time');

SKIP:
{
	skip 'the server fails, and tries again', 2 unless with_extension();

	unlike(
		slurp_file($pub->logfile),
		qr/terminating walsender process due to replication timeout/,
		'the publisher has had its answers in time');
	no_errors_ok($sub, 0, 'nothing has failed and been tried again');
}

$catchup->finish;
no_builtin_sync_ok($sub);
no_leftovers_ok($pub, $sub, 'no slot and no origin left');

done_testing();
