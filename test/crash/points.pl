# Something happens to a worker at a point: arguments are cases, such as
# "locked/express/kill", which are point, way (none if the point is of no unit)
# and action.  One test for each: that the point was hit, and that in the end
# all is equal and nothing left.  The command test/crashes runs it.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

use ReuseSync;
use Races;
use Crashes;

# What has to be done so that a worker comes to a point; for all others it is
# enough to subscribe.
my %scenarios = (
	snapshot_too_early      => \&too_early,
	snapshot_needs_new_slot => \&changed_publication,
	slot_unfit              => \&changed_publication,
	stream_started          => \&in_one_way,
	change_applied          => \&change,
	catchup_commit          => \&change,
	catchup_committed       => \&change,
	position_advanced       => \&noise,
	not_locked              => \&locked_table,
	too_long                => \&locked_table,
	lock_given_up           => \&slow_changes,
	resume                  => \&resumption,
	resumed                 => \&resumption,
	adopted_drop            => \&resumption,
	adopted_dropped         => \&resumption,
	adopted_forgotten       => \&resumption,
	copy_lost               => \&lost_slot,
	rows_removed            => \&lost_slot,
	orphan_claimed          => \&orphan,
	orphan_drop             => \&orphan,
	orphan_dropped          => \&orphan,
	orphan_forgotten        => \&orphan,
	resync_commit           => \&resync,
	resync_set_back         => \&resync,
	resync_stopped          => \&resync,
	resync_begun            => \&resync,
	emptied                 => \&resync,
	set_back_commit         => \&drain,
	set_back                => \&drain);

my $lane;
my $lanes = 0;

# What to do before a case settles.
my @undo;

# How often each slot name was asked for.
my %asked;

# The point as it is held: for all tables that go the way.
sub points
{
	my ($point, $way) = @_;

	return $way eq '' ? ($point) : map { "$point:$_" } $lane->tables_of($way);
}

# --- scenarios: each returns the pid of a worker at the point, and that ---

sub simply
{
	my ($point, $way) = @_;

	$lane->begin_case;
	$lane->hold(points($point, $way));
	$lane->subscribe;
	return $lane->wait_at(points($point, $way));
}

# Only the first unit of a worker comes to it.
sub in_one_way
{
	my ($point, $way) = @_;

	$lane->begin_case(all_express => $way eq 'express');
	$lane->hold(points($point, $way));
	$lane->subscribe;
	return $lane->wait_at(points($point, $way));
}

# One worker, held when it has copied its first unit.
sub first_unit_copied
{
	my ($way) = @_;

	$lane->begin_case(
		all_express                               => $way eq 'express',
		'reuse_sync.batch_tables'                 => 4,
		'reuse_sync.max_workers_per_subscription' => 1);
	$lane->hold(points('copy_done', $way));
	$lane->subscribe;
	$lane->wait_at(points('copy_done', $way));
	return;
}

# A commit that is streamed and that no snapshot sees for a while.
sub too_early
{
	my ($point, $way) = @_;

	first_unit_copied($way);
	my $commit =
	  unanswered_commit($lane->{pub}, 'INSERT INTO noise VALUES (2)');
	push @undo, sub { eval { answer($lane->{pub}, $commit) } };
	return $lane->hold_at(points($point, $way));
}

# A slot that was made before the tables were put into the publication, from
# which they are at no time missing.
sub changed_publication
{
	my ($point, $way) = @_;

	my $tables;

	first_unit_copied($way);
	$tables = join ', ', $lane->tables_of($way);
	$lane->{pub}->safe_psql(
		'postgres', qq{
		BEGIN;
		ALTER PUBLICATION p DROP TABLE $tables;
		ALTER PUBLICATION p ADD TABLE $tables;
		COMMIT});
	return $lane->hold_at(points($point, $way));
}

# A change that is in no copy, of each table that goes the way; catch-up goes to
# a position that is made with the copy, and first without a lock.
sub change
{
	my ($point, $way) = @_;

	$lane->begin_case;
	$lane->hold(points('snapshot_fits', $way));
	$lane->subscribe;
	$lane->wait_at(points('snapshot_fits', $way));
	$lane->{pub}->safe_psql(
		'postgres',
		join '',
		map { "INSERT INTO $_ SELECT nextval('key'), 'changed', 0;" }
		  $lane->tables_of($way));
	return $lane->hold_at(points($point, $way));
}

# Much that is of another table; any change of this one would be committed.
sub noise
{
	my ($point, $way) = @_;

	$lane->begin_case;
	$lane->hold(points('snapshot_fits', $way));
	$lane->subscribe;
	$lane->wait_at(points('snapshot_fits', $way));
	$lane->stop_writers;
	$lane->{pub}->safe_psql(
		'postgres', q{
		INSERT INTO noise SELECT g, repeat('x', 1000000), 0
			FROM generate_series(2, 70) AS g;
		DELETE FROM noise WHERE a > 1});
	$lane->start_writers;
	return $lane->hold_at(points($point, $way));
}

# Somebody has the tables.
sub locked_table
{
	my ($point, $way) = @_;

	$lane->begin_case('reuse_sync.handover_lock_timeout' => '200ms');
	my $session = $lane->session('sub');
	$lane->hold(points('copy_done', $way));
	$lane->subscribe;
	$lane->wait_at(points('copy_done', $way));
	$session->query_safe('BEGIN; LOCK TABLE '
		  . join(', ', $lane->tables_of($way))
		  . ' IN ROW EXCLUSIVE MODE');
	return $lane->hold_at(points($point, $way));
}

# More to apply under the lock than there is time for.
sub slow_changes
{
	my ($point, $way) = @_;

	$lane->begin_case('reuse_sync.handover_lock_timeout' => '2s');
	$lane->hold(points('lock', $way));
	$lane->subscribe;
	$lane->wait_at(points('lock', $way));
	foreach my $table ($lane->tables_of($way))
	{
		$lane->{pub}->safe_psql('postgres',
			"INSERT INTO $table VALUES (nextval('key'), 'slow', 0);\n" x 20);
	}
	return $lane->hold_at(points($point, $way));
}

# A worker dies when a table is in 'f', having done something more to it;
# another goes on.
sub resumption
{
	my ($point, $way, $also) = @_;

	$lane->begin_case;
	$lane->hold('copied:b1');
	$lane->subscribe;
	my ($pid) = $lane->wait_at('copied:b1');
	$also->($pid) if $also;
	$lane->hold('copied:b1', "$point:b1");
	$lane->terminate($pid);
	return $lane->wait_at("$point:b1");
}

sub lost_slot
{
	my ($point, $way) = @_;

	return resumption(
		$point, $way,
		sub {
			my ($pid) = @_;
			my $slot = $lane->slot_of($pid);
			$lane->{pub}->safe_psql('postgres',
				"SELECT pg_drop_replication_slot('$slot')");
		});
}

# A worker dies that has made a slot.
sub orphan
{
	my ($point) = @_;

	$lane->begin_case;
	$lane->hold('slot_created');
	$lane->subscribe;
	my ($pid) = $lane->wait_at('slot_created');
	$lane->hold('slot_created', $point);
	$lane->terminate($pid);
	return $lane->wait_at($point);
}

# Tables that are ready, and wrong, are synchronized anew.  That they are to be
# is on disk.
sub resync
{
	my ($point, $way) = @_;
	my @tables = (@Crashes::small, @Crashes::large);

	$lane->begin_case;
	$lane->subscribe;
	wait_ready($lane->{sub}, 's');
	$lane->hold(points($point, $way));
	$lane->{sub}->safe_psql(
		'postgres',
		'SET synchronous_commit = on; BEGIN;'
		  . join('',
			map { "DELETE FROM $_ WHERE a % 2 = 0; INSERT INTO $_ VALUES (-1, 'wrong', 0);"
				  . " SELECT reuse_sync.resync_table('s', '$_');" } @tables)
		  . 'COMMIT');
	push @undo, sub
	{
		wait_until(
			$lane->{sub},
			'tables to be synchronized anew',
			sub {
				my ($ret, $left) = $lane->{sub}->psql('postgres',
					'SELECT count(*) FROM reuse_sync.resync');
				return $ret == 0 && $left eq '0';
			});
	};
	return $lane->wait_at(points($point, $way));
}

# A table in 'f' fails while the database is drained.
sub drain
{
	my ($point) = @_;

	$lane->begin_case;
	$lane->hold('copied:b1');
	$lane->subscribe;
	my ($pid) = $lane->wait_at('copied:b1');
	my $session = $lane->session('sub');
	start_query($session, 'CALL reuse_sync.drain()');
	$lane->wait_for(
		'sub',
		'the drain to have begun',
		qq{SELECT wait_event FROM pg_stat_activity
		WHERE pid = $session->{pid}}, qr/^Extension$/);
	push @undo,
	  sub { $lane->{sub}->safe_psql('postgres', 'SELECT reuse_sync.wakeup()') };
	$lane->hold_from_here;
	$lane->configure(
		'reuse_sync.test_error_pid' => $pid,
		'reuse_sync.test_points'    => "$point:b1");
	my @found = $lane->wait_at("$point:b1");
	$lane->configure('reuse_sync.test_error_pid' => 0);
	return @found;
}

# --- the cases ---

sub run_case
{
	my ($case) = @_;
	my ($point, $way, $action) = $case =~ m{^(\w+)/(?:(\w+)/)?(\w+)$};

	@undo = ();
	$way //= '';
	my ($pid) = ($scenarios{$point} // \&simply)->($point, $way);
	$lane->act($action, $pid);
	$_->() foreach @undo;
	$lane->be_patient;
	$lane->settle;
	$lane->end_case;
	return;
}

sub count_slot_names
{
	$asked{$_}++ foreach $lane->slot_names;
	return;
}

foreach my $case (@ARGV)
{
	my $started = time;

	$lane //= Crashes->new('lane' . ++$lanes);
	my $passed = eval { run_case($case); 1 };
	my $error = $@;

	ok($passed, sprintf('%s (%.1f s)', $case, time - $started));
	next if $passed;
	diag("case $case in " . $lane->{sub}->basedir . ": $error");
	count_slot_names();
	$lane->abandon;
	undef $lane;
}
count_slot_names() if $lane;
is(join(' ', grep { $asked{$_} > 1 } sort keys %asked),
	'', 'no name of ' . keys(%asked) . ' slots was used again');
$lane->abandon if $lane;

done_testing();
