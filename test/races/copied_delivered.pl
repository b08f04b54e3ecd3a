# C1 b for a slot that is a copy: a transaction that the slot it was copied from
# has streamed and was confirmed beyond, but that is not visible yet when the
# next table's snapshot is taken.

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

# The first worker's slot streams past it, and is confirmed.
my $commit =
  unanswered_commit($pub, "INSERT INTO t2 VALUES (1, 'streamed past')");
hold($sub, 'unit_done:t1');
wait_held($sub, 'unit_done:t1');

# The first worker stays where it is; another has its slot copied.
$sub->append_conf('postgresql.conf',
	'reuse_sync.max_workers_per_subscription = 2');
hold($sub, 'unit_done:t1', 'snapshot_fits:t2', 'snapshot_too_early:t2');
wait_held($sub, 'snapshot_fits:t2', 'snapshot_too_early:t2');
is( $sub->safe_psql('postgres',
		'SELECT count(*) FROM reuse_sync.slots'),
	2, 'there are two slots');
answer($pub, $commit);
release($sub);
settled_rows_ok($pub, $sub, 't1', 't2');

done_testing();
