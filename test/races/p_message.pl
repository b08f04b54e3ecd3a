# P is a message, whose commit has been flushed: a transaction that commits
# asynchronously is visible, and in the copy, before its commit is flushed.  P
# must lie above it, or the apply worker applies it as well.

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

my $writer = stop_process($pub, 'walwriter');
$pub->safe_psql(
	'postgres', q{
	SET synchronous_commit = off;
	INSERT INTO t2 VALUES (1, 'visible, not flushed')});
hold($sub, 'handed_over:t2');
wait_held($sub, 'handed_over:t2');
continue_process($writer);
release($sub);
settled_rows_ok($pub, $sub, 't1', 't2');

done_testing();
