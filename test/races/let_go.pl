# ALTER SUBSCRIPTION asks a worker to let go of the subscription while it clears
# up after an error of a table: what it was asked is not forgotten with the cancel
# that comes with it.  Else the worker would go on to record the error, for which
# it needs the lock that the command has, which waits for the worker.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Races;

my ($pub, $sub) = race_servers();

both($pub, $sub, 'CREATE TABLE t (a int PRIMARY KEY, b text)');
$pub->safe_psql('postgres',
	q{INSERT INTO t VALUES (1, 'copied'); CREATE PUBLICATION p FOR TABLE t});
$sub->safe_psql('postgres', q{INSERT INTO t VALUES (1, 'in the way')});
hold($sub, 'clear_up:s');
subscribe($pub, $sub, 's', 'p');
my (undef, $worker) = wait_held($sub, 'clear_up:s');

# psql goes on after the command may have had to be cancelled.
my $session = $sub->background_psql('postgres', on_error_stop => 0);
$session->{pid} = $session->query_safe('SELECT pg_backend_pid()');
my $conninfo = $pub->connstr('postgres');
$conninfo =~ s/'/''/g;
start_query($session, "ALTER SUBSCRIPTION s CONNECTION '$conninfo'");
wait_until($sub, 'the command to wait for the pool',
	"SELECT query LIKE 'ALTER%' AND wait_event_type = 'Extension'"
	  . " FROM pg_stat_activity WHERE pid = $session->{pid}");
$sub->safe_psql('postgres', 'DELETE FROM t');
release($sub);

my $end;
wait_until(
	$sub,
	'the end of the command, or the worker to wait for it',
	sub {
		return $end = $sub->safe_psql(
			'postgres', qq{
			SELECT CASE WHEN state = 'idle' THEN 'it has ended'
				WHEN $worker IN (SELECT pid FROM pg_locks
					WHERE NOT granted AND classid = 'pg_subscription'::regclass)
				THEN 'both wait' ELSE '' END
			FROM pg_stat_activity WHERE pid = $session->{pid}});
	});
is($end, 'it has ended', 'the worker lets go');
$sub->safe_psql('postgres', "SELECT pg_cancel_backend($session->{pid})")
  if $end eq 'both wait';
finish_query($session);
settled_rows_ok($pub, $sub, 't');

done_testing();
