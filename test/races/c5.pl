# C5: a table that is rewritten between the snapshot and the COPY looks empty to
# the snapshot.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Races;

my ($pub, $sub) = race_servers();

race_tables($pub, $sub, 't');
$sub->safe_psql('postgres', 'ALTER TABLE t ALTER a TYPE bigint');
hold($sub, 'snapshot_fits');
subscribe($pub, $sub, 's', 'p');
wait_held($sub, 'snapshot_fits:t');

my $rewriter = session($pub);
start_query($rewriter, 'ALTER TABLE t ALTER a TYPE bigint');
wait_until(
	$pub,
	'the rewrite to wait or to be over',
	"SELECT state = 'idle' OR wait_event_type = 'Lock'
	FROM pg_stat_activity WHERE pid = $rewriter->{pid}
	AND query LIKE '%ALTER TABLE%'");
release($sub);
finish_query($rewriter);
settled_rows_ok($pub, $sub, 't');

done_testing();
