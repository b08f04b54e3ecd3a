# C4: a standby that publishes is promoted while a table is about to be handed
# over.  How far it has replayed says nothing any more of what commits there.

use strict;
use warnings;

use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Races;

my ($primary, $sub) = race_servers();

race_tables($primary, $sub, 't');
$primary->safe_psql('postgres',
	q{SELECT pg_create_physical_replication_slot('standby')});
$primary->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->append_conf('postgresql.conf', "
	primary_slot_name = 'standby'
	hot_standby_feedback = on");
$standby->start;
$primary->wait_for_replay_catchup($standby);

# The creation of a slot there waits for what this logs.
my $script = $primary->basedir . '/snapshots.sql';
append_to_file($script, 'SELECT pg_log_standby_snapshot()');
my $snapshots = IPC::Run::start(
	[
		'pgbench', '--no-vacuum', '--rate=20',
		'--time=' . 10 * $PostgreSQL::Test::Utils::timeout_default,
		"--file=$script", $primary->connstr('postgres')
	],
	'<', \undef, '>', '/dev/null', '2>', '/dev/null');

hold($sub, 'lock:t');
subscribe($standby, $sub, 's', 'p');
wait_held($sub, 'lock:t');
$snapshots->kill_kill;
$standby->promote;
$standby->safe_psql('postgres', q{INSERT INTO t VALUES (1, 'promoted')});

# The apply worker has passed over it.
flush_wal($standby);
catch_up($standby, $sub, 's');
release($sub);
settled_rows_ok($standby, $sub, 't');

done_testing();
