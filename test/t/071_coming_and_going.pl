# The extension comes while the server's own workers have half done tables, and
# goes in the middle of its own work: by drain(), also of a subscription that
# is disabled; by reuse_sync.enabled = off without it, which the log tells of.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use CatchUp;

plan skip_all => 'needs the extension' unless with_extension();

my $pub = new_publisher('pub');
my $sub = new_subscriber(
	'sub',
	wal_retrieve_retry_interval               => '200ms',
	'reuse_sync.batch_size'                   => 0,
	'reuse_sync.batch_tables'                 => 1,
	'reuse_sync.max_workers_per_subscription' => 1,
	'reuse_sync.handover_lock_timeout'        => '1min',
	'reuse_sync.naptime'                      => '1s');

sub sync_slots
{
	return $pub->safe_psql(
		'postgres', q{
		SELECT slot_name FROM pg_replication_slots
		WHERE slot_name ~ '^(reuse_sync_|pg_[0-9]+_sync_)' ORDER BY 1});
}

# Change all kinds of things in a table, so that it differs from any copy.
sub change
{
	my ($table, $key) = @_;

	$pub->safe_psql(
		'postgres', qq{
		INSERT INTO $table VALUES ($key, 'new');
		UPDATE $table SET b = 'changed' WHERE a = 2;
		DELETE FROM $table WHERE a = 3;});
	return;
}

# Gates that no earlier case has left anything of; a restart has ended the
# session that held those.
sub new_gates
{
	$sub->safe_psql('postgres',
		'SET client_min_messages = warning; DROP SCHEMA IF EXISTS gate CASCADE');
	return CatchUp->new($pub, $sub);
}

sub set_enabled
{
	my ($value) = @_;

	$sub->append_conf('postgresql.conf', "reuse_sync.enabled = $value");
	$sub->restart;
	return;
}

# A table that is in 'f', and stays there as long as the session returned.
sub half_done
{
	my ($catchup, $table, $subname, $publication) = @_;
	my $session = $catchup->session('sub');

	$session->query_safe("BEGIN; LOCK TABLE $table IN ROW EXCLUSIVE MODE");
	subscribe($pub, $sub, $subname, $publication);
	wait_states($sub, $subname,
		q{count(*) FILTER (WHERE srsubstate = 'f') = 1});
	return $session;
}

# The server has switched us off in the middle of everything, and is told what
# it cannot do.
sub forgotten
{
	my $catchup = new_gates();

	publish_tables($pub, $sub, 'p_off', qw(half begun));
	$catchup->close_gate('begun');
	my $session = half_done($catchup, 'half', 's_off', 'p_off');
	my $slots   = sync_slots();
	my $offset = -s $sub->logfile;
	set_enabled('off');

	$sub->wait_for_log(
		qr/WARNING: .*1 table of subscription "s_off" is half done and waits/,
		$offset);
	$sub->wait_for_log(
		qr/DETAIL: .*cannot finish what "reuse_sync" has begun: public\.half\.\n.*HINT: .*reuse_sync\.drain\(\)/,
		$offset);
	pass('the log tells which table waits, and what to do');
	wait_states($sub, 's_off',
		qq{bool_and(srsubstate = 'r') FILTER (WHERE srrelid = 'begun'::regclass)}
	);
	rows_ok($pub, $sub, 'begun', 'the server copies what was only begun');
	$sub->wait_for_log(
		qr/ERROR: .*replication slot "pg_\d+_sync_\d+_\d+" does not exist/,
		$offset);
	is(table_state($sub, 'half'), 'f', 'and cannot finish what was half done');
	is(sync_slots(), $slots, 'whose slot is there');

	# Now somebody gives up the extension altogether.
	my ($ret, undef, $stderr) =
	  $sub->psql('postgres', 'DROP EXTENSION reuse_sync');
	isnt($ret, 0, 'DROP EXTENSION is refused');
	like($stderr, qr/HINT: .*enabled to on.*drain\(\)/, 'with a hint');

	change('half', 101);
	$offset = -s $sub->logfile;
	set_enabled('on');
	wait_ready($sub, 's_off');
	catch_up($pub, $sub, 's_off');
	rows_ok($pub, $sub, $_, "switched on again: $_") foreach qw(half begun);
	like(slurp_file($sub->logfile, $offset),
		qr/"public\.half".*taken over/, 'from the copy that was there');
	$sub->safe_psql('postgres', 'DROP SUBSCRIPTION s_off');
	no_leftovers_ok($pub, $sub, 'no slot and no origin left');
	return;
}

# The same with drain(), the subscription enabled or not; then by itself.
sub drained
{
	my ($how) = @_;
	my ($half, $begun, $later) = map { "${_}_$how" } qw(half begun later);
	my $catchup = new_gates();

	publish_tables($pub, $sub, "p_$how", $half, $begun, $later);
	my $session = half_done($catchup, $half, "s_$how", "p_$how");
	if ($how eq 'disabled')
	{
		$sub->safe_psql('postgres', "ALTER SUBSCRIPTION s_$how DISABLE");
		end_session($session);
		wait_for_query($sub, q{
			SELECT count(*) = 0 FROM reuse_sync.workers
			WHERE worker_type = 'worker' AND subname IS NOT NULL});
		is(table_state($sub, $half), 'f', 'a table is half done');
		change($half, 101);
		$sub->safe_psql('postgres', q{CALL reuse_sync.drain('60 s')});
		is(table_state($sub, $half), 'i', 'it has been set back');
		is($sub->safe_psql('postgres', "SELECT count(*) FROM $half"),
			0, 'and emptied');
	}
	else
	{
		my $drainer = $catchup->session('sub');

		change($half, 101);
		$drainer->query_until(qr/begun/,
			"\\echo begun\nCALL reuse_sync.drain();\n");
		end_session($session);
		$drainer->query_safe('SELECT 1');
		end_session($drainer);
		like(table_state($sub, $half), qr/[sr]/, 'it has been finished');
	}
	is(sync_slots(), '', 'no slot is left');
	is($sub->safe_psql('postgres', 'SELECT count(*) FROM reuse_sync.slots'),
		0, 'nor one in the catalog');

	if ($how eq 'disabled')
	{
		$sub->safe_psql(
			'postgres', qq{
			DROP EXTENSION reuse_sync;
			ALTER SUBSCRIPTION s_$how ENABLE});
	}
	else
	{
		set_enabled('off');
	}
	wait_ready($sub, "s_$how");
	change($_, 102) foreach ($half, $begun, $later);
	catch_up($pub, $sub, "s_$how");
	rows_ok($pub, $sub, $_, "the server does the rest: $_")
	  foreach ($half, $begun, $later);
	$how eq 'disabled' ? create_extension($sub, 'postgres') : set_enabled('on');
	$sub->safe_psql('postgres', "DROP SUBSCRIPTION s_$how");
	no_leftovers_ok($pub, $sub, 'no slot and no origin left');
	return;
}

# The server has copied one table and not finished it, has begun another one,
# and has one more in the hands of a worker, when the extension comes.
sub taken_over
{
	my $catchup = new_gates();

	$sub->safe_psql('postgres', 'DROP EXTENSION reuse_sync');
	publish_tables($pub, $sub, 'p_taken', qw(t_f t_d t_i));
	$catchup->close_gate($_) foreach qw(t_d t_f);
	subscribe($pub, $sub, 's_taken', 'p_taken');
	my @begun = ();
	@begun = $catchup->wait_at_gates([qw(t_d t_f)], \@begun) while @begun < 2;

	# The apply worker has to answer a worker before it goes on from 'f'.
	my $apply = $sub->safe_psql('postgres',
		'SELECT pid FROM pg_stat_subscription WHERE relid IS NULL');
	kill 'STOP', $apply;
	$catchup->open_gate('t_f');
	wait_states($sub, 's_taken',
		q{count(*) FILTER (WHERE srsubstate = 'f') = 1});
	change($_, 101) foreach qw(t_f t_d t_i);

	# Both end and leave their slots; first the apply worker, who would begin
	# others in their stead.
	$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s_taken DISABLE');
	kill 'CONT', $apply;
	$sub->safe_psql(
		'postgres', q{
		SELECT pg_terminate_backend(pid) FROM pg_stat_subscription
		WHERE relid = 't_d'::regclass});
	wait_for_query($sub, 'SELECT count(*) = 0 FROM pg_stat_subscription WHERE pid IS NOT NULL');
	$catchup->open_gate('t_d');
	is(table_state($sub, 't_f'), 'f', 'one table is copied');
	is(table_state($sub, 't_d'), 'd', 'one is begun');
	my @slots = split /\n/, sync_slots();
	is(scalar(grep { /^pg_/ } @slots), 2, 'each with a slot of the server');

	my $offset = -s $sub->logfile;
	create_extension($sub, 'postgres');
	$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s_taken ENABLE');
	wait_ready($sub, 's_taken');
	change($_, 102) foreach qw(t_f t_d t_i);
	catch_up($pub, $sub, 's_taken');
	rows_ok($pub, $sub, $_, "contents of $_") foreach qw(t_f t_d t_i);
	my $log = slurp_file($sub->logfile, $offset);
	like($log, qr/"public\.t_f".*slot "pg_\d+_sync_\d+_\d+" taken over/,
		'the copy of the server is finished from its slot');
	unlike($log, qr/table synchronization worker/, 'by us');
	no_leftovers_ok($pub, $sub, 'no slot and no origin left');
	wait_for_query($sub, 'SELECT count(*) = 0 FROM reuse_sync.slots');
	$sub->safe_psql('postgres', 'DROP SUBSCRIPTION s_taken');
	return;
}

subtest 'switched off without drain()'         => \&forgotten;
subtest 'drained, then switched off'           => sub { drained('enabled') };
subtest 'drained, disabled, then dropped'      => sub { drained('disabled') };
subtest 'the server has half done something'   => \&taken_over;

done_testing();
