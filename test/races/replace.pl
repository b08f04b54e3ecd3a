# A worker dies, and the launcher hears of it together with the report of another
# that had looked before: somebody takes the place all the same.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

use ReuseSync;
use Races;

# The launcher does not look around by itself.
my ($pub, $sub) = race_servers(
	sub => {
		'reuse_sync.max_workers_per_subscription' => 2,
		'reuse_sync.naptime'                      => '1h'
	});

race_tables($pub, $sub, 't1', 't2', 't3');
my $launcher = $sub->safe_psql('postgres',
	q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'reuse_sync launcher'});
wait_until(
	$sub,
	'nobody but the launcher',
	q{SELECT count(*) = 1 FROM pg_stat_activity
	WHERE backend_type LIKE 'reuse_sync %'});

# One worker has a table; another, which is started only when there is somebody
# to hold it, has found something.
hold($sub, 'looked');
subscribe($pub, $sub, 's', 'p');
my (undef, $first) = wait_held($sub, 'looked');
stop_process($sub, $launcher);
hold($sub, 'claimed:t1');
wait_held($sub, 'claimed:t1');
hold($sub, 'claimed:t1', 'looked');
continue_process($launcher);
my (undef, $second) = wait_held($sub, 'looked');
isnt($first, $second, 'there are two workers');

# While the launcher does not look, the one dies and the other reports, which
# alone hears of what it is to be held at now.
stop_process($sub, $launcher);
$sub->safe_psql('postgres', "SELECT pg_terminate_backend($first, 60000)");
$sub->append_conf('postgresql.conf', q{reuse_sync.test_points = 'claimed'});
kill('HUP', $second);
wait_held($sub, 'claimed');
continue_process($launcher);

my $third = 0;
my $polls = 500;
while (!$third && $polls-- > 0)
{
	$third = $sub->safe_psql(
		'postgres', qq{
		SELECT count(*) FROM pg_stat_activity
		WHERE query LIKE 'test point %' AND backend_type = 'reuse_sync worker'
		AND pid <> $second});
	usleep(20_000);
}
is($third, 1, 'another takes the place');
release($sub);
settled_rows_ok($pub, $sub, 't1', 't2', 't3');

done_testing();
