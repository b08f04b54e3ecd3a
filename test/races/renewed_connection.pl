# The message before state 'f' goes over the connection of the snapshot: one
# that was made after a crash of the publisher would vouch for a snapshot of
# xids that have been given out again.  It is sent with the COPY, so that with
# the guard no xid of the snapshot is lost once the copy is done.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Races;

my ($pub, $sub) = race_servers();

race_tables($pub, $sub, 't');
$pub->safe_psql('postgres', 'CREATE TABLE other (b text)');
hold($sub, 'snapshot:t');
subscribe($pub, $sub, 's', 'p');
wait_held($sub, 'snapshot:t');

my $xid = lose_commit($pub, 1_000_000);
hold($sub, 'copy_done:t');
wait_held($sub, 'copy_done:t');
crash($pub);
$pub->start;
my $next_xid = insert_with_xid($pub, "t VALUES (1, 'xid given out again')");
die "xid $xid was not given out again"
  if $ENV{GUARD_OFF} && $next_xid != $xid;
release($sub);
settled_rows_ok($pub, $sub, 't');

done_testing();
