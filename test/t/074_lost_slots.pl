# Sync slots that somebody drops, or that the publisher invalidates, and slots
# that cannot be dropped.  Others' slots are never touched.

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
	'reuse_sync.batch_tables'                 => 1,
	'reuse_sync.handover_lock_timeout'        => '1min',
	'reuse_sync.max_workers_per_subscription' => 1,
	'reuse_sync.naptime'                      => '500ms');
my $catchup = CatchUp->new($pub, $sub);

# Whoever these are of, they look much like ours.
my $foreign = q{
	SELECT slot_name, restart_lsn, confirmed_flush_lsn
	FROM pg_replication_slots WHERE slot_name ~ 'foreign' ORDER BY 1};
$pub->safe_psql('postgres',
	"SELECT pg_create_logical_replication_slot('$_', 'pgoutput')")
  foreach qw(reuse_sync_foreign reuse_sync_1_1_foreign pg_1_sync_1_foreign);
my $foreign_slots = $pub->safe_psql('postgres', $foreign);

sub batch_size
{
	my ($size) = @_;

	$sub->append_conf('postgresql.conf', "reuse_sync.batch_size = '$size'");
	$sub->reload;
	$sub->poll_query_until('postgres',
		"SELECT current_setting('reuse_sync.batch_size')", $size)
	  or die "batch_size is not $size";
	return;
}

sub change
{
	my ($table) = @_;

	$pub->safe_psql(
		'postgres', qq{
		INSERT INTO $table VALUES (101, 'new');
		UPDATE $table SET b = 'changed' WHERE a = 2;
		DELETE FROM $table WHERE a = 3;});
	return;
}

sub the_slot
{
	return $pub->safe_psql(
		'postgres', q{
		SELECT slot_name FROM pg_replication_slots
		WHERE slot_name ~ '^reuse_sync_[0-9]+_[0-9]+_[0-9]+$'});
}

sub drop_slot
{
	my ($slot) = @_;

	$pub->poll_query_until('postgres',
		"SELECT NOT active FROM pg_replication_slots WHERE slot_name = '$slot'")
	  or die "slot $slot is active";
	$pub->safe_psql('postgres', "SELECT pg_drop_replication_slot('$slot')");
	return;
}

# Have the publisher remove WAL that every slot needs.
sub invalidate
{
	my ($slot) = @_;

	$pub->append_conf('postgresql.conf', "max_slot_wal_keep_size = '1MB'");
	$pub->reload;
	$pub->safe_psql('postgres', 'SELECT pg_switch_wal(); CHECKPOINT')
	  foreach 1 .. 3;
	$pub->poll_query_until(
		'postgres', qq{
		SELECT count(*) = 0 FROM pg_replication_slots
		WHERE slot_name = '$slot' AND wal_status <> 'lost'})
	  or die "slot $slot is not lost";
	$pub->append_conf('postgresql.conf', 'max_slot_wal_keep_size = -1');
	$pub->reload;
	return;
}

sub done
{
	my ($table, $offset, $anew) = @_;

	wait_ready($sub, "s_$table");
	$pub->safe_psql('postgres', "UPDATE $table SET b = b || a");
	catch_up($pub, $sub, "s_$table");
	rows_ok($pub, $sub, $table, 'contents');
	my $count = () = slurp_file($sub->logfile, $offset) =~
	  /WARNING: .*"public\.$table".*is copied anew/g;
	is($count, $anew, $anew ? 'with a warning' : 'without a warning')
	  if defined $anew;
	$sub->safe_psql('postgres', "DROP SUBSCRIPTION s_$table");
	no_leftovers_ok($pub, $sub, 'no slot and no origin left')
	  if $pub->safe_psql('postgres', $foreign) eq '';
	wait_for_query($sub, 'SELECT count(*) = 0 FROM reuse_sync.slots');
	is(the_slot(), '', 'no slot is left');
	is($pub->safe_psql('postgres', $foreign),
		$foreign_slots, "others' slots are as they were");
	return;
}

# The table is being copied, in one transaction ('i') or to come to 'f' ('d').
sub while_copied
{
	my ($state) = @_;
	my $table = "copied_$state";

	batch_size($state eq 'i' ? '8MB' : '0');
	publish_tables($pub, $sub, "p_$table", $table);
	$catchup->close_gate($table);
	subscribe($pub, $sub, "s_$table", "p_$table");
	$catchup->wait_at_gates([$table]);
	is(table_state($sub, $table), $state, "the table is in '$state'");
	my $slot   = the_slot();
	my $offset = -s $sub->logfile;
	change($table);
	drop_slot($slot);
	$catchup->open_gate($table);
	if ($state eq 'd')
	{
		# The copy is there, but what has changed meanwhile is lost.
		done($table, $offset, 1);
	}
	else
	{
		done($table, $offset, 0);
	}
	return;
}

# The table is in 'f', and nobody uses its slot, when that is lost.
sub half_done
{
	my ($how) = @_;
	my $table = "half_$how";

	batch_size('0');
	publish_tables($pub, $sub, "p_$table", $table);
	if ($how eq 'kept')
	{
		# Without a key a row that is copied again is there twice.
		both($pub, $sub, "ALTER TABLE $table DROP CONSTRAINT ${table}_pkey");
		$pub->safe_psql('postgres',
			"ALTER TABLE $table REPLICA IDENTITY FULL");
	}
	my $lock = $catchup->session('sub');
	$lock->query_safe("BEGIN; LOCK TABLE $table IN ROW EXCLUSIVE MODE");
	subscribe($pub, $sub, "s_$table", "p_$table");
	wait_states($sub, "s_$table",
		q{count(*) FILTER (WHERE srsubstate = 'f') = 1});
	wait_for_query($sub,
		qq{
		SELECT count(*) > 0 FROM pg_locks
		WHERE relation = '$table'::regclass AND NOT granted});
	$sub->safe_psql('postgres', "ALTER SUBSCRIPTION s_$table DISABLE");
	end_session($lock);
	wait_for_query($sub, q{
		SELECT count(*) = 0 FROM reuse_sync.workers
		WHERE worker_type = 'worker' AND subname IS NOT NULL});
	is(table_state($sub, $table), 'f', 'the table is half done');

	my $slot   = the_slot();
	my $offset = -s $sub->logfile;
	change($table);
	if ($how ne 'invalidated')
	{
		drop_slot($slot);
	}
	else
	{
		# All others' would be lost as well.
		$pub->safe_psql('postgres',
			"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name <> '$slot'"
		);
		$foreign_slots = '';
		invalidate($slot);
		$sub->safe_psql('postgres',
			"ALTER SUBSCRIPTION s_$table SET (slot_name = NONE)");
		$pub->safe_psql('postgres',
			"SELECT pg_create_logical_replication_slot('s_$table', 'pgoutput')");
		$sub->safe_psql('postgres',
			"ALTER SUBSCRIPTION s_$table SET (slot_name = 's_$table')");
	}
	keep_rows($table) if $how eq 'kept';
	$sub->safe_psql('postgres', "ALTER SUBSCRIPTION s_$table ENABLE");
	cannot_be_removed($table) if $how eq 'kept';

	# It warns each time that it tries.
	done($table, $offset, $how eq 'kept' ? undef : 1);
	return;
}

# Deleting a row of the table does nothing, whoever does it.
sub keep_rows
{
	my ($table) = @_;

	$sub->safe_psql(
		'postgres', qq{
		CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql
			AS 'BEGIN RETURN NULL; END';
		CREATE TRIGGER keep BEFORE DELETE ON $table
			FOR EACH ROW EXECUTE FUNCTION keep();
		ALTER TABLE $table ENABLE ALWAYS TRIGGER keep;});
	return;
}

# So the rows of the lost copy stay, and must not be copied again.
sub cannot_be_removed
{
	my ($table) = @_;

	wait_for_query($sub, "SELECT state = 'failed' OR state = 'ready' FROM reuse_sync.tables"
		  . " WHERE relid = '$table'::regclass");
	like(
		$sub->safe_psql('postgres',
			"SELECT last_error FROM reuse_sync.tables"
			  . " WHERE relid = '$table'::regclass"),
		qr/rows of a lost copy.*could not be removed/,
		'the rows cannot be removed');
	is($sub->safe_psql('postgres', "SELECT count(*) FROM $table"),
		20, 'no row is there twice');
	$sub->safe_psql('postgres', "DROP TRIGGER keep ON $table");
	return;
}

# A slot whose table is being copied is dropped by hand, and then the worker
# ends: there is nothing left to drop.
sub gone_already
{
	batch_size('8MB');
	publish_tables($pub, $sub, 'p_gone', 'gone');
	$catchup->close_gate('gone');
	subscribe($pub, $sub, 's_gone', 'p_gone');
	$catchup->wait_at_gates(['gone']);
	my $offset = -s $sub->logfile;
	drop_slot(the_slot());
	my $pid = $sub->safe_psql('postgres',
		q{SELECT pid FROM reuse_sync.workers WHERE subname = 's_gone'});
	$sub->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
	$catchup->wait_at_gates(['gone']);
	is($sub->safe_psql('postgres', 'SELECT count(*) FROM reuse_sync.slots'),
		1, 'the row of a slot that is gone is removed');
	$catchup->open_gate('gone');
	done('gone', $offset, 0);
	return;
}

# The role has lost the right to drop slots.
sub cannot_be_dropped
{
	batch_size('8MB');
	publish_tables($pub, $sub, 'p_kept', 'kept');
	$pub->safe_psql(
		'postgres', q{
		CREATE ROLE repl LOGIN REPLICATION;
		GRANT SELECT ON ALL TABLES IN SCHEMA public TO repl;});
	$catchup->close_gate('kept');
	subscribe($pub, $sub, 's_kept', 'p_kept', user => 'repl');
	$catchup->wait_at_gates(['kept']);
	my $slot   = the_slot();
	my $offset = -s $sub->logfile;
	$pub->safe_psql('postgres', 'ALTER ROLE repl NOREPLICATION');
	$catchup->open_gate('kept');
	wait_for_query($sub,
		qq{
		SELECT state = 'orphaned' AND last_error ~
			'must be superuser or replication role|permission denied to use replication slots'
		FROM reuse_sync.slots WHERE slot_name = '$slot'});
	like(table_state($sub, 'kept'), qr/[sr]/, 'the table is synchronized');
	is(the_slot(), $slot, 'its slot cannot be dropped, and is shown');
	$pub->safe_psql('postgres', 'ALTER ROLE repl REPLICATION');
	wait_for_query($sub, 'SELECT count(*) = 0 FROM reuse_sync.slots');
	is(the_slot(), '', 'it is dropped once it can be');
	done('kept', $offset, 0);
	return;
}

# The command that drops the slot is cancelled on the publisher: the slot is left
# to the pool.  See test/races/publisher_says.pl for other commands.
sub cancelled_there
{
	my $view = $pub->safe_psql('postgres',
		q{SELECT rtrim(pg_get_viewdef('pg_replication_slots'), ';')});
	my $replace = sub {
		$pub->safe_psql(
			'postgres', qq{
			SET allow_system_table_mods = on;
			CREATE OR REPLACE VIEW pg_catalog.pg_replication_slots AS $_[0];});
	};

	batch_size('8MB');
	publish_tables($pub, $sub, 'p_cancelled', 'cancelled');
	$pub->safe_psql(
		'postgres', q{
		CREATE FUNCTION cancels() RETURNS SETOF int LANGUAGE plpgsql
			AS 'BEGIN RAISE query_canceled; END'});
	$catchup->close_gate('cancelled');
	subscribe($pub, $sub, 's_cancelled', 'p_cancelled');
	$catchup->wait_at_gates(['cancelled']);
	my $slot = the_slot();
	$replace->("SELECT v.* FROM ($view) v, public.cancels()");
	my ($ret, undef, $err) =
	  $sub->psql('postgres', 'DROP SUBSCRIPTION s_cancelled');
	is($ret, 0, 'the subscription is dropped') or diag($err);
	$catchup->open_gate('cancelled');
	wait_for_query($sub,
		qq{
		SELECT state = 'orphaned' AND last_error ~ 'query_canceled'
		FROM reuse_sync.slots WHERE slot_name = '$slot'});
	$replace->($view);
	is(the_slot(), $slot, 'its slot was not dropped, and was shown');
	wait_for_query($sub, 'SELECT count(*) = 0 FROM reuse_sync.slots');
	is(the_slot(), '', 'it is dropped once it can be');
	return;
}

subtest 'slot dropped during an express copy' => sub { while_copied('i') };
subtest 'slot dropped during a staged copy'   => sub { while_copied('d') };
subtest 'slot of a half-done table dropped'   => sub { half_done('dropped') };
subtest 'rows of a lost copy that stay'       => sub { half_done('kept') };
subtest 'slot dropped before its worker ends' => \&gone_already;
subtest 'slot that cannot be dropped'         => \&cannot_be_dropped;
subtest 'dropping is cancelled on the publisher' => \&cancelled_there;
subtest 'slot of a half-done table invalidated' =>
  sub { half_done('invalidated') };

$catchup->finish;
no_builtin_sync_ok($sub);

done_testing();
