# Shutdown and restart of either server.
#
# A server that is to shut down smartly waits for the sessions of clients, of
# which a worker has one on the publisher; and one that shuts down fast waits
# until its walsenders have sent everything, and all has been confirmed.  A
# worker that is kept somewhere does neither, so the moment is let go when the
# publisher has begun to shut down, and the clock starts there.  The subscriber
# has to end what is kept.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

use ReuseSync;
use Moments;

start_servers();

# Returns the time that counts, and nothing on standard error.
sub stop_server
{
	my ($node, $mode) = @_;
	my $file   = $node->data_dir . '/postmaster.pid';
	my $offset = -s $node->logfile;
	my $end    = time + $PostgreSQL::Test::Utils::timeout_default;
	my $start  = time;

	# Its clients are not for us to wait for.
	stop_writer() if $node == $pub;
	system_log('pg_ctl', '-D', $node->data_dir, '-m', $mode, '-W', 'stop') == 0
	  or die 'pg_ctl failed';
	$node->wait_for_log(qr/received $mode shutdown request/, $offset);
	if ($node == $pub && is_at() ne 'alone')
	{
		let_go(1);
		$start = time;
	}
	while (-e $file)
	{
		die "the server does not stop\n" if time > $end;
		usleep(10_000);
	}
	my $took = time - $start;

	$node->{_pid} = undef;
	return ($took, '');
}

foreach my $mode (qw(smart fast immediate))
{
	try_command(
		name => "${mode}_of_subscriber",
		run  => sub { stop_server($sub, $mode) });
	try_command(
		name => "${mode}_of_publisher",
		run  => sub { stop_server($pub, $mode) },

		# Its session keeps a smart shutdown waiting until the slot is there.
		skip => $mode eq 'smart'
		? qr/unreachable|silent|creating/
		: qr/unreachable|silent/);
}

done_testing();
