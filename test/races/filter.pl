# The snapshot filter: a transaction that committed after the start of the
# unit's stream and before the table's snapshot is in the copy, and in the
# stream as well.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Races;

my ($pub, $sub) = race_servers();

race_tables($pub, $sub, 't1', 't2');
hold($sub, 'snapshot:t2');
subscribe($pub, $sub, 's', 'p');
wait_held($sub, 'snapshot:t2');

# The stream goes on where that of the first table ended.
$pub->safe_psql('postgres', "INSERT INTO t2 VALUES (1, 'seen')");
release($sub);
settled_rows_ok($pub, $sub, 't1', 't2');

done_testing();
