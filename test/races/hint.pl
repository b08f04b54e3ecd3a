# A hint that comes while a worker looks for work, and is about to be busy for
# long, is not lost: another worker looks.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

use ReuseSync;
use Races;

# The launcher does not look around by itself, and logs what it starts.
my ($pub, $sub) = race_servers(
	sub => {
		log_min_messages                          => 'debug1',
		'reuse_sync.max_workers_per_subscription' => 2,
		'reuse_sync.naptime'                      => '1h'
	});

race_tables($pub, $sub, 't1', 't2');
hold($sub, 'looked');
subscribe($pub, $sub, 's', 'p');
my (undef, $pid) = wait_held($sub, 'looked');

# It hints, marks who has not reported yet, and starts the cleaner.
my $offset = -s $sub->logfile;
$sub->safe_psql('postgres', 'SELECT reuse_sync.wakeup()');
$sub->wait_for_log(qr/starting background worker process "reuse_sync cleaner"/,
	$offset);

# The worker alone hears of what it is to be held at now: the launcher would take
# a reload for another hint.
$sub->append_conf('postgresql.conf', q{reuse_sync.test_points = 'claimed'});
kill('HUP', $pid);

my $workers = 0;
my $polls   = 500;
while ($workers < 2 && $polls-- > 0)
{
	$workers = $sub->safe_psql(
		'postgres', q{
		SELECT count(*) FROM pg_stat_activity
		WHERE query LIKE 'test point %' AND backend_type = 'reuse_sync worker'});
	usleep(20_000);
}
is($workers, 2, 'two workers have work');
release($sub);
settled_rows_ok($pub, $sub, 't1', 't2');

done_testing();
