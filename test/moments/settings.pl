# ALTER SYSTEM of each of our settings.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Moments;

start_servers();

my %values = (
	'reuse_sync.batch_size'                   => '1MB',
	'reuse_sync.batch_tables'                 => 2,
	'reuse_sync.enabled'                      => 'off',
	'reuse_sync.handover_lock_timeout'        => '20ms',
	'reuse_sync.max_retry_interval'           => '2s',
	'reuse_sync.max_workers'                  => 2,
	'reuse_sync.max_workers_per_subscription' => 3,
	'reuse_sync.naptime'                      => '1h',
	'reuse_sync.parallel_copy_min_size'       => '0',
	'reuse_sync.parallel_copy_workers'        => 1,
	'reuse_sync.paused'                       => 'on',
	'reuse_sync.worker_idle_timeout'          => '0',);

# All that there are
my @names = split /\n/, $sub->safe_psql(
	'postgres', q{
	SELECT name FROM pg_settings WHERE name LIKE 'reuse_sync.%'
	AND name NOT LIKE 'reuse_sync.test%' ORDER BY name});

foreach my $name (@names)
{
	my $value = $values{$name} // die "no value for $name";

	# What needs a restart stays as it is until then.
	try_command(
		name    => $name =~ s/.*\.//r,
		sql     => "ALTER SYSTEM SET $name = '$value'; SELECT pg_reload_conf()",
		moments => [
			qw(claimed creating copying batch copied locked between unreachable
			  ready)
		],
		undo => "ALTER SYSTEM RESET $name; SELECT pg_reload_conf()");
}

done_testing();
