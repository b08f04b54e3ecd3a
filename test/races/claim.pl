# Step 5 of the handover: a table that was removed from the subscription and
# added again meanwhile is to be copied anew, and not to be handed over.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Races;

# The unit would be asked to let go, and is, but for this, in time.
my ($pub, $sub) = race_servers(off => ['lost_table']);

race_tables($pub, $sub, 't');
hold($sub, 'position');
subscribe($pub, $sub, 's', 'p');
wait_held($sub, 'position:t');

# What is written to it while it is not published never comes in a stream.
$pub->safe_psql('postgres', 'ALTER PUBLICATION p DROP TABLE t');
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s REFRESH PUBLICATION');
$pub->safe_psql(
	'postgres', q{
	INSERT INTO t VALUES (1, 'not published');
	ALTER PUBLICATION p ADD TABLE t;});
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s REFRESH PUBLICATION');

# The table's new life begins empty: the TRUNCATE waits for the handover.
$sub->append_conf('postgresql.conf', 'reuse_sync.paused = on');
my $cleaner = session($sub);
start_query($cleaner, 'TRUNCATE t');
wait_until($sub, 'TRUNCATE to wait',
	"SELECT wait_event_type = 'Lock' FROM pg_stat_activity"
	  . " WHERE pid = $cleaner->{pid}");
release($sub);
finish_query($cleaner);
$sub->append_conf('postgresql.conf', 'reuse_sync.paused = off');
$sub->reload;
settled_rows_ok($pub, $sub, 't');

done_testing();
