# C2, second half: a table that was not pending when the slot was created.  The
# fingerprint of the publications tells as much here, and is left out.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Races;

my ($pub, $sub) = race_servers(off => ['c2']);

race_tables($pub, $sub, 't1');
both($pub, $sub, 'CREATE TABLE t2 (a int, b text)');
hold($sub, 'copy_done:t1');
subscribe($pub, $sub, 's', 'p');
wait_held($sub, 'copy_done:t1');

my $writer = session($pub);
$writer->query_safe("BEGIN; INSERT INTO t2 VALUES (1, 'not published')");
$pub->safe_psql('postgres', 'ALTER PUBLICATION p ADD TABLE t2');
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s REFRESH PUBLICATION');
hold($sub, 'snapshot_fits:t2', 'snapshot_needs_new_slot:t2');
wait_held($sub, 'snapshot_fits:t2', 'snapshot_needs_new_slot:t2');
$writer->query_safe('COMMIT');
$writer->quit;
release($sub);
settled_rows_ok($pub, $sub, 't1', 't2');

done_testing();
