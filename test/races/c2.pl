# C2: a transaction that wrote to a table while that was not in the publication,
# and commits after the table's snapshot.

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

# The slot exists, and the table was pending when it was created.
my $writer = session($pub);
$pub->safe_psql('postgres', 'ALTER PUBLICATION p DROP TABLE t2');
$writer->query_safe("BEGIN; INSERT INTO t2 VALUES (1, 'not published')");
$pub->safe_psql('postgres', 'ALTER PUBLICATION p ADD TABLE t2');
hold($sub, 'snapshot_fits:t2', 'snapshot_needs_new_slot:t2');
wait_held($sub, 'snapshot_fits:t2', 'snapshot_needs_new_slot:t2');
$writer->query_safe('COMMIT');
$writer->quit;
release($sub);
settled_rows_ok($pub, $sub, 't1', 't2');

done_testing();
