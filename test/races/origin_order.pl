# No lock is waited for while a table's origin is held: whoever removes the
# table from the subscription holds such locks while it waits for the origin,
# and no deadlock check sees that.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Races;

my ($pub, $sub) = race_servers();

race_tables($pub, $sub, 't');
hold($sub, 'copy_done:t');
subscribe($pub, $sub, 's', 'p');
wait_held($sub, 'copy_done:t');

# A change that is caught up with, and stops before its commit
$pub->safe_psql('postgres', "INSERT INTO t VALUES (1, 'caught up')");
hold($sub, 'copied:t');
wait_held($sub, 'copied:t');
hold($sub, 'lock_claim:t');
my (undef, $worker) = wait_held($sub, 'lock_claim:t');

$pub->safe_psql('postgres', 'ALTER PUBLICATION p DROP TABLE t');
my $refresh = session($sub);
start_query($refresh, 'ALTER SUBSCRIPTION s REFRESH PUBLICATION');
wait_until(
	$sub,
	'REFRESH to wait or to be over',
	"SELECT state = 'idle' OR wait_event_type IN ('IPC', 'Lock')
	FROM pg_stat_activity WHERE pid = $refresh->{pid}
	AND query LIKE '%REFRESH%'");
release($sub);

# Over, or waiting for each other?
my $end = wait_until(
	$sub,
	'REFRESH to be over or the worker to wait',
	sub {
		return $sub->safe_psql(
			'postgres', qq{
			SELECT CASE WHEN bool_or(pid = $refresh->{pid} AND state = 'idle')
				THEN 'over'
				WHEN bool_or(pid = $refresh->{pid}
					AND wait_event = 'ReplicationOriginDrop')
				AND bool_or(pid = $worker AND wait_event_type = 'Lock')
				THEN 'deadlock' END
			FROM pg_stat_activity});
	});
is($end, 'over', 'REFRESH and the worker do not wait for each other');

done_testing();
