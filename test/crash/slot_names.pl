# The name of a slot is never used again, however a server ends, and even if
# the pids of its processes come back: the test runs in a pid namespace of its
# own, where it says which pid comes next.  What workers were numbered for, and
# by which pid, is in its output.

use strict;
use warnings;

# Before the output is redirected.  The shell is there to be the parent of
# whoever has lost his.
BEGIN
{
	if (!$ENV{OWN_PIDS} && !$^C)
	{
		$ENV{OWN_PIDS} = 1;
		exec qw(unshare --user --map-current-user --keep-caps --pid --fork
		  --mount-proc bash -c), '"$@"; exit $?', 'bash', $^X,
		  (map { ('-I', $_) } @INC), $0;
	}
}

use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Races;
use Crashes;

my $first_pid = 5000;

# Each life of the subscriber: where its workers are when it ends, and how.
my @lives = (
	[ 'slot_registered', 'immediate' ],
	[ 'slot_made',       'immediate' ],
	[ 'slot_created',    'fast' ],
	[ 'slot_registered', 'fast' ],
	[ 'slot_recorded',   'immediate' ],
	[ 'copied',          'immediate' ],
	[ 'slot_numbered',   'fast' ],
	[ 'slot_numbered',   'immediate' ],
	[ 'slot_created',    'immediate' ]);

my $lane = Crashes->new('names');
my (@numbered, %lives_of);

# What is numbered next will be by one of these.
sub repeat_pids
{
	open my $last_pid, '>', '/proc/sys/kernel/ns_last_pid'
	  or die "cannot set the next pid: $!";
	print $last_pid $first_pid;
	close $last_pid or die "cannot set the next pid: $!";
	return;
}

$lane->begin_case('reuse_sync.test_log_points' => 'on');
foreach my $life (0 .. $#lives)
{
	my ($point, $end) = @{ $lives[$life] };

	if ($life == 0)
	{
		$lane->hold($point);
		repeat_pids();
		$lane->subscribe;
	}
	else
	{
		$lane->hold_from_here;
		$lane->write_settings('reuse_sync.test_points' => $point);
		repeat_pids();
		$lane->{sub}->start;
	}
	my $offset = $lane->{hold_log};
	$lane->wait_at($point);
	$lane->{sub}->stop($end);

	my $log = slurp_file($lane->{sub}->logfile, $offset);
	while ($log =~
		/\[(\d+)\].* test point slot_registered:(reuse_sync_\d+_(\d+)_\d+): hit$/gm)
	{
		my ($pid, $name, $id) = ($1, $2, $3);

		note("life $life: process $pid has id $id on disk, name $name");
		push @numbered, $name;
		$lives_of{$pid}{$life} = 1;
	}
}
$lane->write_settings('reuse_sync.test_points' => '');
$lane->{sub}->start;
$lane->settle;

my @repeated = grep { keys %{ $lives_of{$_} } > 1 } sort keys %lives_of;
cmp_ok(scalar @repeated,
	'>', 0, "processes of several lives had the same pid: @repeated");

my %count;
$count{$_}++ foreach @numbered;
is(join(' ', grep { $count{$_} > 1 } sort keys %count),
	'', 'no number of ' . keys(%count) . ' on disk was given out again');

%count = ();
$count{$_}++ foreach $lane->slot_names;
is(join(' ', grep { $count{$_} > 1 } sort keys %count),
	'', 'no name of ' . keys(%count) . ' slots was asked for again');
$lane->end_case;
$lane->abandon;

done_testing();
