# The handover's lock: without it the apply worker skips a change of the table,
# because it is not synchronized yet, and applies the next change of the same
# transaction, which committed above P.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Races;

my ($pub, $sub) = race_servers();

race_tables($pub, $sub, 'gate', 't');
hold($sub, 'position:t');
subscribe($pub, $sub, 's', 'p');
wait_held($sub, 'position:t');
wait_states($sub, 's', q{count(*) FILTER (WHERE srsubstate = 'r') = 1});

# The apply worker stops between the two changes, if not at the first.
my $keeper = session($sub);
$keeper->query_safe('BEGIN; LOCK TABLE gate IN SHARE MODE');
$pub->safe_psql(
	'postgres', q{
	BEGIN;
	INSERT INTO t VALUES (1, 'before the handover');
	INSERT INTO gate VALUES (1, 'between');
	INSERT INTO t VALUES (2, 'after the handover');
	COMMIT;});
wait_until($sub, 'the apply worker to wait for a lock',
	q{SELECT count(*) > 0 FROM pg_locks l
	JOIN pg_stat_subscription s USING (pid) WHERE NOT l.granted});
release($sub);
wait_states($sub, 's', q{count(*) FILTER (WHERE srsubstate IN ('s', 'r')) = 2});
$keeper->query_safe('COMMIT');
$keeper->quit;
settled_rows_ok($pub, $sub, 'gate', 't');

done_testing();
