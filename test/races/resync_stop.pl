# A table that is set back: the apply worker remembers that it was ready, and
# would apply what the unit applies as well.  So it is ended first.

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

# It has applied a change of the table, and knows that it may.
$pub->safe_psql('postgres', q{INSERT INTO t VALUES (1, 'before')});
catch_up($pub, $sub, 's');

hold($sub, 'copy_done:t');
$sub->safe_psql('postgres', q{SELECT reuse_sync.resync_table('s', 't')});
wait_held($sub, 'copy_done:t');
$pub->safe_psql('postgres', q{INSERT INTO t VALUES (2, 'after the snapshot')});
catch_up($pub, $sub, 's');
release($sub);
settled_rows_ok($pub, $sub, 't');

done_testing();
