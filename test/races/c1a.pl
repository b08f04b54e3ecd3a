# C1 a: a transaction that commits before the slot's start, but is not visible
# yet when the unit takes its snapshot.
#
# Newer minor versions of the server do not finish CREATE_REPLICATION_SLOT with
# USE_SNAPSHOT before all that this snapshot sees has become visible (measured
# with 15.20).  They are told not to, which makes the slot that older ones make.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Races;

my ($pub, $sub) = race_servers(off => ['birth_wait']);

race_tables($pub, $sub, 't');
hold($sub, 'register_slot');
subscribe($pub, $sub, 's', 'p');
wait_held($sub, 'register_slot');

# Creation waits for 'first', then for 'second', which began meanwhile.  What
# begins and commits while it waits for the second lies before the start.
my $first     = session($pub);
my $first_xid = $first->query_safe('BEGIN; SELECT txid_current()');
hold($sub, 'snapshot_fits', 'snapshot_too_early');
xid_waited_for($pub, $first_xid);
my $second     = session($pub);
my $second_xid = $second->query_safe('BEGIN; SELECT txid_current()');
$first->query_safe('COMMIT');
$first->quit;
xid_waited_for($pub, $second_xid);
my $commit =
  unanswered_commit($pub, "INSERT INTO t VALUES (1, 'born too early')");
$pub->safe_psql('postgres', 'SELECT txid_current()');
$second->query_safe('COMMIT');
$second->quit;

wait_held($sub, 'snapshot_fits', 'snapshot_too_early');
answer($pub, $commit);
release($sub);
settled_rows_ok($pub, $sub, 't');

done_testing();
