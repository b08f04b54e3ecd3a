# A table that is to be synchronized anew is set back, copied and handed over
# while wait_for_sync() is between the two things that it reads: it is in one of
# them.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Races;

my ($pub, $sub) = race_servers();

race_tables($pub, $sub, 't');
subscribe($pub, $sub, 's', 'p');
wait_ready($sub, 's');
$sub->append_conf('postgresql.conf', 'reuse_sync.paused = on');
hold($sub, 'half_looked');
$sub->safe_psql('postgres', q{SELECT reuse_sync.resync_table('s', 't')});
my $session = session($sub);
start_query($session, q{SELECT reuse_sync.wait_for_sync('s')});
wait_held($sub, 'half_looked:');

# From 's' on it is the apply worker's turn, which does not come.
$sub->append_conf('postgresql.conf', 'reuse_sync.paused = off');
hold($sub, 'half_looked', 'position:t');
wait_held($sub, 'position:t');
my $apply = q{SELECT %s FROM pg_stat_subscription t
	JOIN pg_stat_activity USING (pid) WHERE t.subname = 's' AND t.relid IS NULL};
wait_until($sub, 'an apply worker with nothing to do',
	sprintf $apply, q{wait_event = 'LogicalApplyMain'});
my $pid = stop_process($sub, $sub->safe_psql('postgres', sprintf $apply, 'pid'));
hold($sub, 'half_looked', 'handed_over:t');
wait_held($sub, 'handed_over:t');
is( $sub->safe_psql('postgres', 'SELECT srsubstate FROM pg_subscription_rel'),
	's', 'the table is not ready yet');

hold($sub, 'handed_over:t');
my $end;
wait_until(
	$sub,
	'what the function does',
	sub {
		return $end = $sub->safe_psql(
			'postgres', qq{
			SELECT CASE WHEN state = 'idle' THEN 'it returns'
				WHEN query = '' AND wait_event_type = 'Extension' THEN 'it waits'
				ELSE '' END
			FROM pg_stat_activity WHERE pid = $session->{pid}});
	});
is($end, 'it waits', 'it waits for the table');
continue_process($pid);
release($sub);
finish_query($session);
settled_rows_ok($pub, $sub, 't');

done_testing();
