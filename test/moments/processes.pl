# Processes of ours that are cancelled or terminated.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Moments;

start_servers();

# By what finds it in pg_stat_activity.  One that is cancelled in the middle of
# its work may go on, but never for long as if nothing had been said.
my %processes = (
	worker       => q{backend_type = 'reuse_sync worker'},
	launcher     => q{backend_type = 'reuse_sync launcher'},
	apply_worker => q{backend_type = 'logical replication worker'});

foreach my $process (sort keys %processes)
{
	my $from = "FROM pg_stat_activity WHERE $processes{$process}";

	# True if the process is gone in time.
	try_command(
		name => "terminate_$process",
		sql  => "SELECT 1 / pg_terminate_backend(pid, 1000)::int $from",);
	try_command(
		name => "cancel_$process",
		sql  => "SELECT pg_cancel_backend(pid) $from");
}

# Those that serve us on the publisher: a session for queries and a walsender
foreach my $type ('client backend', 'walsender')
{
	(my $name = $type) =~ s/ /_/g;

	foreach my $function ('pg_terminate_backend', 'pg_cancel_backend')
	{
		my ($verb) = $function =~ /^pg_(\w+?)_/;

		try_command(
			name => "${verb}_publishers_$name",
			on   => 'pub',
			sql  => qq{
				SELECT $function(pid) FROM pg_stat_activity
				WHERE backend_type = '$type'
				AND application_name LIKE 'reuse_sync%'},
			skip => qr/unreachable|silent/);
	}
}

done_testing();
