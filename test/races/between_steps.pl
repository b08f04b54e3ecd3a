# ALTER SUBSCRIPTION asks a worker to let go of the subscription when it is
# between two steps of its work: the worker does, and lives on.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Races;

my ($pub, $sub) = race_servers();

race_tables($pub, $sub, 't');
hold($sub, 'between_steps:s');
subscribe($pub, $sub, 's', 'p');
my (undef, $worker) = wait_held($sub, 'between_steps:s');

my $session  = session($sub);
my $conninfo = $pub->connstr('postgres');
$conninfo =~ s/'/''/g;
start_query($session, "ALTER SUBSCRIPTION s CONNECTION '$conninfo'");
wait_until($sub, 'the command to have asked the pool',
	"SELECT query LIKE 'ALTER%'"
	  . " AND (wait_event_type = 'Extension' OR state = 'idle')"
	  . " FROM pg_stat_activity WHERE pid = $session->{pid}");
release($sub);
finish_query($session);
settled_rows_ok($pub, $sub, 't');
is( $sub->safe_psql('postgres',
		q{SELECT pid FROM reuse_sync.workers WHERE worker_type = 'worker'}),
	$worker,
	'the worker lives on');

done_testing();
