# The filter is used only below an LSN read after the snapshot: what commits
# later is applied whatever its xid, since xids come round.  Here they do so
# because the publisher loses some in a crash, without what else guards against
# that.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Races;

my ($pub, $sub) = race_servers(off => ['f_flush']);

race_tables($pub, $sub, 't');
$pub->safe_psql('postgres', 'CREATE TABLE other (b text)');
hold($sub, 'snapshot:t');
subscribe($pub, $sub, 's', 'p');
wait_held($sub, 'snapshot:t');

my $xid = lose_commit($pub, 1);
hold($sub, 'copied:t');
wait_held($sub, 'copied:t');
crash($pub);
$pub->start;

# Above what had been inserted when the snapshot was taken
$pub->safe_psql('postgres',
	"SELECT pg_logical_emit_message(false, '', repeat('x', 1000000))");
my $next_xid = insert_with_xid($pub, "t VALUES (1, 'xid given out again')");
die "xid $xid was not given out again" if $next_xid != $xid;
release($sub);
settled_rows_ok($pub, $sub, 't');

done_testing();
