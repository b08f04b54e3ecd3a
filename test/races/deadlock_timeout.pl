# Workers set deadlock_timeout well below the bound on the wait for the lock: an
# autovacuum in its way is asked to end only after that time.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Races;

my ($pub, $sub) = race_servers(
	sub => {
		deadlock_timeout                   => '1h',
		'reuse_sync.handover_lock_timeout' => '4s'
	});

race_tables($pub, $sub, 't');
$pub->safe_psql('postgres',
	"INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 2000) g"
);
hold($sub, 'lock:t');
subscribe($pub, $sub, 's', 'p');
wait_held($sub, 'lock:t');

# An autovacuum that takes minutes for each table, and is there when the lock
# is asked for.
$sub->safe_psql(
	'postgres', q{
	ALTER TABLE t SET (autovacuum_vacuum_threshold = 0,
		autovacuum_vacuum_scale_factor = 0,
		autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1);
	UPDATE t SET b = b});
$sub->append_conf('postgresql.conf',
	"autovacuum = on\nautovacuum_naptime = '1s'");
$sub->reload;
wait_until($sub, 'autovacuum',
	q{SELECT count(*) > 0 FROM pg_stat_progress_vacuum
	WHERE relid = 't'::regclass});

hold($sub, 'handed_over', 'not_locked');
is(scalar wait_held($sub, 'handed_over', 'not_locked'),
	'handed_over:t', 'the lock was got at the first attempt');
release($sub);
$sub->append_conf('postgresql.conf', 'autovacuum = off');
$sub->reload;
$sub->safe_psql('postgres',
	q{SELECT pg_cancel_backend(pid) FROM pg_stat_progress_vacuum});
settled_rows_ok($pub, $sub, 't');

done_testing();
