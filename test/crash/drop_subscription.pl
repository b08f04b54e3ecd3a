# A subscription is dropped while the publisher is away: its slots are left to
# the cleaner, until the publisher answers, whatever happens to the cleaner and
# the servers meanwhile.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Races;
use Crashes;

my $lane = Crashes->new('drop');
my ($pub, $sub) = @$lane{qw(pub sub)};

sub run_case
{
	my ($point, $action) = @_;

	$lane->begin_case;
	$lane->hold('copied:b1');
	$lane->subscribe;
	$lane->wait_at('copied:b1');
	$lane->stop_publisher_only;
	$sub->safe_psql('postgres', $_)
	  foreach (
		'ALTER SUBSCRIPTION s DISABLE',
		'ALTER SUBSCRIPTION s SET (slot_name = NONE)',
		'SET synchronous_commit = on; DROP SUBSCRIPTION s');
	$sub->safe_psql('postgres',
		'SELECT count(*) FROM reuse_sync.slots WHERE state = \'orphaned\'') > 0
	  or die 'no slot was left to be dropped';
	$sub->stop('immediate');

	$lane->hold_from_here;
	$lane->write_settings('reuse_sync.test_points' => $point);
	$sub->start;
	$pub->start;
	$lane->start_writers;
	my ($pid) = $lane->wait_at($point);
	if ($action eq 'terminate')
	{
		# It has no like that could take over at once.
		$lane->terminate($pid);
		$lane->release;
	}
	else
	{
		$lane->act($action, $pid);
	}
	$lane->stop_writers;
	$lane->check_nothing_left;
	$pub->safe_psql('postgres', q{SELECT pg_drop_replication_slot('s')});
	return 1;
}

foreach my $point (qw(orphan_claimed orphan_drop orphan_dropped orphan_forgotten))
{
	foreach my $action (@Crashes::actions)
	{
		my $passed = eval { run_case($point, $action) };
		my $error = $@;

		ok($passed, "subscription dropped, $point/$action");
		next if $passed;
		diag("case $point/$action in " . $sub->basedir . ": $error");
		$lane->abandon;
		$lane = Crashes->new("drop_after_${point}_$action");
		($pub, $sub) = @$lane{qw(pub sub)};
	}
}
$lane->abandon;

done_testing();
