# State 's' is on disk before the slot is confirmed up to P and used for the
# next table: a crash of the subscriber would bring back the table in state 'f',
# which needs what is below P.  The check of the slot's position, which would
# have the table copied anew, is left out.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Races;

my ($pub, $sub) = race_servers(off => ['confirmed']);

race_tables($pub, $sub, 't1', 't2');
hold($sub, 'copied:t1');
subscribe($pub, $sub, 's', 'p');
wait_held($sub, 'copied:t1');

my $lsn = $pub->safe_psql(
	'postgres', q{
	INSERT INTO t1 VALUES (1, 'caught up');
	SELECT pg_current_wal_lsn()});
stop_flushing($sub);
hold($sub, 'snapshot:t2');
wait_held($sub, 'snapshot:t2');
crash($sub);
my $slot = sync_slot_name($pub);
wait_until(
	$pub,
	'the slot to be confirmed and released',
	"SELECT NOT active AND confirmed_flush_lsn >= '$lsn'
	FROM pg_replication_slots WHERE slot_name = '$slot'");
$sub->append_conf('postgresql.conf', "reuse_sync.test_points = ''");
$sub->start;
settled_rows_ok($pub, $sub, 't1', 't2');

done_testing();
