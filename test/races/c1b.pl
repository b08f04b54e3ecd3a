# C1 b: a transaction that the slot has streamed for one table, but that is not
# visible yet when the next table's snapshot is taken.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Races;

my ($pub, $sub) = race_servers();

race_tables($pub, $sub, 't1', 't2');
hold($sub, 'copy_done:t1');
subscribe($pub, $sub, 's', 'p');
wait_held($sub, 'copy_done:t1');

my $commit =
  unanswered_commit($pub, "INSERT INTO t2 VALUES (1, 'streamed past')");
hold($sub, 'snapshot_fits:t2', 'snapshot_too_early:t2');
wait_held($sub, 'snapshot_fits:t2', 'snapshot_too_early:t2');
answer($pub, $commit);
release($sub);
settled_rows_ok($pub, $sub, 't1', 't2');

done_testing();
