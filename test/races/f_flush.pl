# State 'f' is committed only after the publisher has flushed what the snapshot
# saw: else a crash there gives xids out again, and the stored snapshot skips
# another transaction than the one it saw.

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

# Of what is lost in the crash the snapshot sees only the xid.
my $xid = lose_commit($pub, 1_000_000);
hold($sub, 'copied:t');
wait_held($sub, 'copied:t');
crash($pub);
$pub->start;
my $next_xid = insert_with_xid($pub, "t VALUES (1, 'xid given out again')");
die "xid $xid was not given out again" if $ENV{GUARD_OFF} && $next_xid != $xid;
release($sub);
settled_rows_ok($pub, $sub, 't');

done_testing();
