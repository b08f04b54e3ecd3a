# State 's' is on disk before the table's slot is dropped, whoever does that: a
# crash of the subscriber would bring back the table in state 'f', without its
# slot, and all would have to be copied again.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Races;

my ($pub, $sub) = race_servers();

race_tables($pub, $sub, 't');
hold($sub, 'copied:t');
subscribe($pub, $sub, 's', 'p');
wait_held($sub, 'copied:t');

$sub->safe_psql('postgres', 'CREATE TABLE flushed ()');
stop_process($sub, 'walwriter');
hold($sub, 'handed_over:t');
my (undef, $worker) = wait_held($sub, 'handed_over:t');

# The worker dies between the commit and its flush; the slot is an orphan.
$sub->safe_psql('postgres', "SELECT pg_terminate_backend($worker)");
wait_until($pub, 'the slot to be dropped',
	q{SELECT count(*) = 0 FROM pg_replication_slots
	WHERE slot_name LIKE 'reuse\_sync\_%'});
crash($sub);
my $log = -s $sub->logfile;
$sub->append_conf('postgresql.conf', "reuse_sync.test_points = ''");
$sub->start;
settled_rows_ok($pub, $sub, 't');
unlike(slurp_file($sub->logfile, $log),
	qr/is copied anew/, 'what was copied was not copied again');

done_testing();
