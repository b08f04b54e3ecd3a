# A worker that has set a table back dies before the apply worker, which
# remembers that the table was ready, is ended: whoever goes on with the table
# has to do that first.

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
$pub->safe_psql('postgres', q{INSERT INTO t VALUES (1, 'before')});
catch_up($pub, $sub, 's');

hold($sub, 'resync_set_back:s');
$sub->safe_psql('postgres', q{SELECT reuse_sync.resync_table('s', 't')});
my ($point, $pid) = wait_held($sub, 'resync_set_back:s');

# It must not notice that the next one is to be held elsewhere.
stop_process($sub, $pid);
hold($sub, 'copy_done:t');
$sub->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
continue_process($pid);
wait_held($sub, 'copy_done:t');
$pub->safe_psql('postgres', q{INSERT INTO t VALUES (2, 'after the snapshot')});
catch_up($pub, $sub, 's');
release($sub);
settled_rows_ok($pub, $sub, 't');

done_testing();
