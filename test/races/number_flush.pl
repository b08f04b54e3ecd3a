# The number of a slot is on disk before the slot exists: after a crash of the
# subscriber somebody must know of the slot.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Races;

my ($pub, $sub) = race_servers();

race_tables($pub, $sub, 't');
hold($sub, 'register_slot');
subscribe($pub, $sub, 's', 'p');
wait_held($sub, 'register_slot');

stop_flushing($sub);
hold($sub, 'slot_created');
wait_held($sub, 'slot_created');
my $slot = sync_slot_name($pub);
crash($sub);
$sub->append_conf('postgresql.conf',
	"reuse_sync.test_points = ''\nreuse_sync.paused = on");
$sub->start;

# The subscription goes, and all its slots with it.
$sub->safe_psql('postgres', 'DROP SUBSCRIPTION s');
wait_until($sub, 'the slots that are known to go',
	'SELECT count(*) = 0 FROM reuse_sync.slots');
is(sync_slot_name($pub), '', "slot $slot is gone");

done_testing();
