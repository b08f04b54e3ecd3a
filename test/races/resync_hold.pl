# A table that is set back while the extension is being dropped: the server would
# copy into what the table holds.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Races;

my ($pub, $sub) = race_servers();

race_tables($pub, $sub, 't');
subscribe($pub, $sub, 's', 'p');
wait_ready($sub, 's');
wait_until($sub, 'no slot to be left',
	'SELECT count(*) = 0 FROM reuse_sync.slots');

hold($sub, 'resync_commit:t');
$sub->safe_psql('postgres', q{SELECT reuse_sync.resync_table('s', 't')});
wait_held($sub, 'resync_commit:t');

my $dropper = $sub->background_psql('postgres', on_error_stop => 0);
my $pid     = $dropper->query('SELECT pg_backend_pid()');
start_query($dropper, 'DROP EXTENSION reuse_sync');
wait_until($sub, 'the drop to wait, or to end',
	"SELECT state = 'idle' OR wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $pid"
);
release($sub);
$dropper->query('SELECT 1');
settled_rows_ok($pub, $sub, 't');
$dropper->quit;

done_testing();
