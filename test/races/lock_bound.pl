# The time the handover's lock is held is bounded: the apply worker goes on even
# if what is left to apply under the lock never ends.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Races;

my $bound = 3;
my ($pub, $sub) = race_servers(
	sub => { 'reuse_sync.handover_lock_timeout' => "${bound}s" });

race_tables($pub, $sub, 'ready', 't');
$sub->safe_psql(
	'postgres', q{
	CREATE FUNCTION never_ends() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		WHILE NOT pg_try_advisory_xact_lock_shared(1) LOOP
			PERFORM pg_sleep(0.01);
		END LOOP;
		RETURN new;
	END $$;
	CREATE TRIGGER never_ends BEFORE INSERT ON t FOR EACH ROW
		WHEN (new.a = 1) EXECUTE FUNCTION never_ends();
	ALTER TABLE t ENABLE ALWAYS TRIGGER never_ends;});
my $keeper = session($sub);
$keeper->query_safe('SELECT pg_advisory_lock(1)');

hold($sub, 'lock:t');
subscribe($pub, $sub, 's', 'p');
wait_held($sub, 'lock:t');
wait_states($sub, 's', q{count(*) FILTER (WHERE srsubstate = 'r') = 1});

# Left to apply under the lock; the apply worker has passed it already.
$pub->safe_psql(
	'postgres', q{
	BEGIN;
	INSERT INTO t VALUES (1, 'never ends');
	INSERT INTO ready VALUES (1, 'before the lock');
	COMMIT;});
wait_until($sub, 'the apply worker', 'SELECT count(*) = 2 FROM ready');
hold($sub, 'position:t');
wait_held($sub, 'position:t');
$pub->safe_psql(
	'postgres', q{
	BEGIN;
	INSERT INTO t VALUES (2, 'held up by the lock');
	INSERT INTO ready VALUES (2, 'held up by the lock');
	COMMIT;});
release($sub);

# Ten times the bound is what a busy machine may need.
my $end = time + 10 * $bound;
my $rows;
do
{
	$rows = $sub->safe_psql('postgres', 'SELECT count(*) FROM ready');
} until $rows == 3 || time > $end;
is($rows, 3, 'the apply worker has gone on in time');

$keeper->query_safe('SELECT pg_advisory_unlock(1)');
$keeper->quit;
settled_rows_ok($pub, $sub, 'ready', 't');

done_testing();
