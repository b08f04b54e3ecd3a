# A slot is confirmed only up to what has been flushed here: a crash of the
# subscriber brings back a position before what the slot has been told it need
# not send again.  The check of that position, which would have the table copied
# anew, is left out.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Races;

my ($pub, $sub) = race_servers(off => ['confirmed']);

race_tables($pub, $sub, 't');
hold($sub, 'snapshot_fits:t');
subscribe($pub, $sub, 's', 'p');
wait_held($sub, 'snapshot_fits:t');

# Below the position that catch-up goes to without a lock, which is made when
# the rows have been sent
my $lsn = $pub->safe_psql(
	'postgres', q{
	INSERT INTO t VALUES (1, 'caught up');
	SELECT pg_current_wal_lsn()});
hold($sub, 'copied:t');
wait_held($sub, 'copied:t');

# State 'f' is on disk, and nothing that comes later.
stop_flushing($sub);
hold($sub, 'position:t');
wait_held($sub, 'position:t');
crash($sub);
my $slot = sync_slot_name($pub);
wait_until($pub, 'the slot to be released',
	"SELECT NOT active FROM pg_replication_slots WHERE slot_name = '$slot'");
my $confirmed = $pub->safe_psql('postgres',
	"SELECT confirmed_flush_lsn >= '$lsn' FROM pg_replication_slots"
	  . " WHERE slot_name = '$slot'");
die 'nothing was confirmed' if $ENV{GUARD_OFF} && $confirmed ne 't';

$sub->append_conf('postgresql.conf', "reuse_sync.test_points = ''");
$sub->start;
settled_rows_ok($pub, $sub, 't');

done_testing();
