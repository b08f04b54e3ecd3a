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

race_tables($pub, $sub, 't1', 't2');
hold($sub, 'copied:t1');
subscribe($pub, $sub, 's', 'p');
wait_held($sub, 'copied:t1');

stop_flushing($sub);
hold($sub, 'handed_over:t1', 'claimed:t2');
my (undef, $worker) = wait_held($sub, 'handed_over:t1');

# The worker dies between the commit and its flush.  The slot is an orphan,
# which goes before the next table is begun by whoever is woken by the reload.
$sub->safe_psql('postgres', "SELECT pg_terminate_backend($worker)");
wait_until($sub, 'the worker to end', sub { return !kill(0, $worker) });
$sub->reload;
wait_until($pub, 'the slot to be dropped',
	q{SELECT count(*) = 0 FROM pg_replication_slots
	WHERE slot_name LIKE 'reuse\_sync\_%'});
crash($sub);
my $log = -s $sub->logfile;
$sub->append_conf('postgresql.conf', "reuse_sync.test_points = ''");
$sub->start;
settled_rows_ok($pub, $sub, 't1', 't2');
unlike(slurp_file($sub->logfile, $log),
	qr/is copied anew/, 'what was copied was not copied again');

done_testing();
