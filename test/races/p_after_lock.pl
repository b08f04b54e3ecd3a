# P is made after the lock has been taken: before that, the apply worker may
# still skip a whole transaction that commits above P.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Races;

my ($pub, $sub) = race_servers();

race_tables($pub, $sub, 'ready', 't');
hold($sub, 'lock:t');
subscribe($pub, $sub, 's', 'p');
wait_held($sub, 'lock:t');
wait_states($sub, 's', q{count(*) FILTER (WHERE srsubstate = 'r') = 1});

$pub->safe_psql(
	'postgres', q{
	BEGIN;
	INSERT INTO t VALUES (1, 'skipped');
	INSERT INTO ready VALUES (1, 'applied');
	COMMIT;});
wait_until($sub, 'the apply worker',
	q{SELECT count(*) = 2 FROM ready});
release($sub);
settled_rows_ok($pub, $sub, 'ready', 't');

done_testing();
