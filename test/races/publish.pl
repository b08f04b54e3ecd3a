# Nothing of a subscription is claimed before its apply worker has told whether
# it starts workers of its own.  One that began while the extension was being
# created does, and its worker copies what ours has copied.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Races;

my ($pub, $sub) = race_servers(sub => { 'reuse_sync.max_workers' => 1 });

race_tables($pub, $sub, 't');
$sub->safe_psql('postgres', 'DROP EXTENSION reuse_sync');

# The apply worker begins when CREATE EXTENSION knows which ones to end, and
# does not see the extension.
hold($sub, 'apply_workers_listed', 'settle');
my $creator = session($sub);
start_query($creator, 'CREATE EXTENSION reuse_sync');
wait_held($sub, 'apply_workers_listed');
subscribe($pub, $sub, 's', 'p');
my (undef, $apply_worker) = wait_held($sub, 'settle');
hold($sub, 'settle', 'claimed', 'tablesync_commit:3');
finish_query($creator);
wait_until($sub, 'a worker that has looked for work',
	q{SELECT count(*) > 0
	OR EXISTS (SELECT FROM reuse_sync.problems
		WHERE last_error ~ 'does not stream')
	FROM reuse_sync.workers w JOIN pg_stat_activity a USING (pid)
	WHERE w.phase = 'idle' AND w.worker_type <> 'launcher'
	OR a.query LIKE 'test point claimed:%'});

# Now it tells, and has its own worker begin, or is ended before or after that.
hold($sub, 'claimed', 'tablesync_commit:3');
wait_until($sub, 'a table-sync worker or the end of the apply worker',
	qq{SELECT count(*) FILTER (WHERE query LIKE 'test point tablesync%') > 0
	OR count(*) FILTER (WHERE pid = $apply_worker) = 0
	FROM pg_stat_activity});

# That worker has found the table in state 'i'; it goes on when ours is done.
if ($ENV{GUARD_OFF})
{
	hold($sub, 'tablesync_commit:3', 'handed_over');
	wait_held($sub, 'handed_over');
}
release($sub);
settled_rows_ok($pub, $sub, 't');

done_testing();
