# A copy of the subscriber that starts beside it leaves the original's slots
# alone, though its catalog says that nobody needs them: the original's apply
# worker streams, and so the copy's does not.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Races;

my ($pub, $sub) = race_servers();

# The slot is there, and nobody streams from it yet.
race_tables($pub, $sub, 't');
hold($sub, 'snapshot_fits');
subscribe($pub, $sub, 's', 'p');
wait_held($sub, 'snapshot_fits:t');
my $slot = sync_slot_name($pub);

my $clone = PostgreSQL::Test::Cluster->new('clone');
$sub->backup('backup');
$clone->init_from_backup($sub, 'backup', has_streaming => 1);
$clone->append_conf('postgresql.conf', "reuse_sync.test_points = ''");
$clone->start;
$sub->safe_psql('postgres', 'SELECT txid_current()');
$sub->wait_for_catchup($clone, 'replay', $sub->lsn('flush'));
$clone->promote;

# It has come to its decision.
wait_until(
	$pub,
	'the copy to do something',
	sub {
		return sync_slot_name($pub) eq ''
		  || $clone->safe_psql(
			'postgres', q{
			SELECT count(*) > 0 FROM reuse_sync.problems
			WHERE last_error ~ 'does not stream'}) eq 't';
	});
is(sync_slot_name($pub), $slot, 'the slot of the original is there');
$clone->stop('immediate');
release($sub);
settled_rows_ok($pub, $sub, 't');

done_testing();
