# The configuration is reloaded while a worker is starting and hears of nothing
# yet: it goes by the new one all the same.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Races;

# No process is started but for work.
my ($pub, $sub) = race_servers(
	sub => {
		'reuse_sync.naptime'             => '1h',
		'reuse_sync.worker_idle_timeout' => 0
	});
my $postmaster = $sub->{_pid};

# The worker that is starting; it has this name before it can hear anything.
sub find_worker
{
	foreach my $stat (glob '/proc/[0-9]*/stat')
	{
		my ($pid, $parent) = slurp($stat) =~ /^(\d+) \(.*\) \S (\d+)/;
		return $pid
		  if defined $pid
		  && $parent == $postmaster
		  && slurp("/proc/$pid/cmdline") =~ /reuse_sync worker/;
	}
	return;
}

# What a file of a process that may be gone has.
sub slurp
{
	my ($file) = @_;

	open my $fh, '<', $file or return '';
	my $content = do { local $/ = undef; <$fh> };
	close $fh;
	return $content // '';
}

race_tables($pub, $sub, 't', 'u');
$pub->safe_psql('postgres', 'ALTER PUBLICATION p DROP TABLE u');
subscribe($pub, $sub, 's', 'p');
wait_ready($sub, 's');
wait_until(
	$sub,
	'nobody but the launcher',
	q{SELECT count(*) = 1 FROM pg_stat_activity
	WHERE backend_type LIKE 'reuse_sync %'});

# From now on every process takes its time to start.
my $session = session($sub);
$session->query_safe('SET client_min_messages = warning');
$pub->safe_psql('postgres', 'ALTER PUBLICATION p ADD TABLE u');
$sub->append_conf('postgresql.conf', q{post_auth_delay = '15s'});
$sub->reload;
$sub->wait_for_log(qr/parameter "post_auth_delay" changed to "15s"/);
$session->query_safe('ALTER SUBSCRIPTION s REFRESH PUBLICATION');
my $worker;
wait_until($sub, 'a worker to start', sub { return $worker = find_worker() });
my $offset = -s $sub->logfile;
$sub->append_conf('postgresql.conf',
	"post_auth_delay = 0\nreuse_sync.paused = on");
$sub->reload;
$sub->wait_for_log(qr/parameter "reuse_sync\.paused" changed to "on"/,
	$offset);
$sub->safe_psql('postgres',
	"SELECT count(*) FROM pg_stat_activity WHERE pid = $worker") == 0
  or die 'the worker has started too early';
$session->quit;

my $state = q{SELECT srsubstate FROM pg_subscription_rel
	WHERE srrelid = 'u'::regclass};
wait_until(
	$sub,
	'what the worker does',
	sub {
		return !kill(0, $worker)
		  || $sub->safe_psql('postgres', $state) ne 'i';
	});
is($sub->safe_psql('postgres', $state),
	'i', 'the worker knows that it is to take no table');

$sub->append_conf('postgresql.conf', 'reuse_sync.paused = off');
$sub->reload;
settled_rows_ok($pub, $sub, 't', 'u');

done_testing();
