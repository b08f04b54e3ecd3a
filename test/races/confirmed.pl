# The slot's confirmed position is checked before each start of a stream: a
# start below it would silently be moved forward.

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

my $slot = sync_slot_name($pub);
$pub->safe_psql(
	'postgres', qq{
	INSERT INTO t VALUES (1, 'not streamed any more');
	SELECT pg_replication_slot_advance('$slot', pg_current_wal_lsn())});
release($sub);
settled_rows_ok($pub, $sub, 't');

done_testing();
