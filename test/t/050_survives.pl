# What goes wrong in the middle of a table's synchronization, and must cost
# nothing but time: workers that end at a bad moment, slots that are lost,
# triggers that raise when all is nearly done, changes that need strong locks.
#
# Nothing here relies on the launcher's looking around by itself: its naptime
# is longer than the test.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

use ReuseSync;
use CatchUp;

plan skip_all => 'needs the extension' unless with_extension();

my $pub = new_publisher('pub');
my $sub = new_subscriber(
	'sub',
	max_replication_slots                     => 10,
	wal_retrieve_retry_interval               => '100ms',
	'reuse_sync.batch_tables'                 => 1,
	'reuse_sync.max_retry_interval'           => '1s',
	'reuse_sync.max_workers_per_subscription' => 1,
	'reuse_sync.naptime'                      => '1h');
my $catchup = CatchUp->new($pub, $sub);

# Key of the advisory lock at which a transaction stops when it commits.
my $commit_lock = 4712;

$sub->safe_psql(
	'postgres', qq{
	CREATE FUNCTION commit_gate() RETURNS trigger LANGUAGE plpgsql AS
		'BEGIN PERFORM pg_advisory_xact_lock_shared($commit_lock);
			RETURN NULL; END';
	CREATE FUNCTION raise_once() RETURNS trigger LANGUAGE plpgsql AS \$\$
	BEGIN
		IF nextval('public.raised') = 1 THEN
			RAISE 'raised once';
		END IF;
		RETURN NULL;
	END \$\$;
	CREATE FUNCTION raise_if_flagged() RETURNS trigger LANGUAGE plpgsql AS \$\$
	BEGIN
		IF EXISTS (SELECT FROM public.flag) THEN
			RAISE 'flag is set';
		END IF;
		RETURN NULL;
	END \$\$;
	CREATE SEQUENCE raised;
	CREATE TABLE flag ();});

#
# Helpers
#

# A constraint trigger that fires when the transaction commits, also in
# workers.
sub at_commit
{
	my ($table, $function) = @_;

	$sub->safe_psql(
		'postgres', qq{
		CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON $table
			DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW EXECUTE FUNCTION $function();
		ALTER TABLE $table ENABLE ALWAYS TRIGGER at_commit;});
	return;
}

# Return when a worker of the pool waits for a lock.
sub worker_waits
{
	my ($condition, $db) = @_;

	return if $sub->poll_query_until($db // 'postgres', qq{
		SELECT count(*) > 0
		FROM pg_locks l JOIN reuse_sync.workers w ON w.pid = l.pid
		WHERE w.worker_type = 'worker' AND NOT l.granted AND $condition});
	die "no worker waits for: $condition\n" . ReuseSync::log_tail($sub);
}

sub waits_for_table
{
	my ($table, $mode) = @_;

	return worker_waits(
		"l.relation = '$table'::regclass AND l.mode = '${mode}Lock'");
}

# The only worker that serves a subscription, or '' if there is none.
sub worker_pid
{
	return $sub->safe_psql(
		'postgres', q{
		SELECT pid FROM reuse_sync.workers
		WHERE worker_type = 'worker' AND subname IS NOT NULL});
}

# End a process of the subscriber; return when it is gone.
sub terminate
{
	my ($pid) = @_;

	$sub->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
	wait_for_query($sub, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid");
	return;
}

# Return when a table has failed.
sub wait_failed
{
	my ($table) = @_;

	wait_for_query($sub,
		"SELECT attempts > 0 FROM reuse_sync.tables"
		  . " WHERE relid = '$table'::regclass");
	return;
}

# The slots of workers on the publisher.
sub slots
{
	return $pub->safe_psql(
		'postgres', q{
		SELECT string_agg(slot_name, ' ' ORDER BY slot_name)
		FROM pg_replication_slots WHERE slot_name LIKE 'reuse\_sync\_%'});
}

# The process that streams from the only one of them.
sub walsender
{
	my $slot = slots();

	return $pub->safe_psql('postgres',
		"SELECT pid FROM pg_stat_activity WHERE application_name = '$slot'");
}

# Stop the publisher; true if it stops.  'meanwhile' is called when it has
# begun to.
sub stop_publisher
{
	my ($mode, $meanwhile) = @_;
	my $offset = -s $pub->logfile;
	my $polls  = 10 * $PostgreSQL::Test::Utils::timeout_default;

	system_log('pg_ctl', '-D', $pub->data_dir, '-m', $mode, '-W', 'stop') == 0
	  or die 'could not stop the publisher';
	$pub->wait_for_log(qr/received $mode shutdown request/, $offset);
	$meanwhile->();
	usleep(100_000) while -e $pub->data_dir . '/postmaster.pid' && $polls-- > 0;
	return 0 if -e $pub->data_dir . '/postmaster.pid';

	# It is told what has happened.
	$pub->stop($mode, fail_ok => 1);
	return 1;
}

sub log_offset
{
	return -s $sub->logfile;
}

# One test, that a pattern is, or is not, in the subscriber's log.
sub log_ok
{
	my ($offset, $times, $pattern, $testname) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	my $count = () = slurp_file($sub->logfile, $offset) =~ /$pattern/g;
	return is($count, $times, $testname);
}

sub drop_subscription
{
	my ($subname, $testname) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$sub->safe_psql('postgres', "DROP SUBSCRIPTION $subname");
	return no_leftovers_ok($pub, $sub,
		$testname // 'no slot and no origin left');
}

#
# The cases
#

# In a database without the extension anybody may have a schema of its name,
# with tables of the catalog's names and any number of columns.
sub namesake
{
	my $columns = join ', ', map { "c$_ bigint DEFAULT $_" } 1 .. 900;
	my $started = $sub->safe_psql('postgres',
		'SELECT pg_postmaster_start_time()');

	$sub->safe_psql('postgres', 'CREATE ROLE namesake LOGIN');
	$sub->safe_psql('postgres', 'CREATE DATABASE namesake OWNER namesake');
	my $row = "SELECT oid::bigint AS dbid FROM pg_database"
	  . " WHERE datname = 'namesake'";

	foreach my $make (
		"CREATE TABLE reuse_sync.slot_catalog (dbid bigint, $columns);"
		. " INSERT INTO reuse_sync.slot_catalog (dbid) $row",
		"CREATE TABLE reuse_sync.slot_catalog (dbid oid, $columns);"
		. " INSERT INTO reuse_sync.slot_catalog (dbid) $row",
		"CREATE MATERIALIZED VIEW reuse_sync.slot_catalog AS SELECT *"
		. " FROM ($row) d, (SELECT "
		. join(', ', map { "${_}::bigint AS c$_" } 1 .. 900)
		. ') c')
	{
		my ($kind) = $make =~ /CREATE (TABLE|MATERIALIZED VIEW)/;
		my $ret = $sub->psql(
			'namesake', qq{
			SET SESSION AUTHORIZATION namesake;
			CREATE SCHEMA reuse_sync;
			$make;
			DROP $kind reuse_sync.slot_catalog;
			DROP SCHEMA reuse_sync;
			$make},
			on_error_stop => 0);

		# psql has given up only if the server has.
		is($ret, 0, 'the server answers');
		is( $sub->safe_psql(
				'namesake', q{
			SELECT count(*) FROM pg_class WHERE relname = 'slot_catalog'}),
			0, lc("$kind of the catalog's name is dropped"));
	}
	$sub->safe_psql('postgres', 'DROP DATABASE namesake');
	$sub->safe_psql('postgres', 'DROP ROLE namesake');
	is( $sub->safe_psql('postgres', 'SELECT pg_postmaster_start_time()'),
		$started, 'and has never crashed');
	log_ok(0, 0, qr/was terminated by signal/, 'nor has a process of it');
	return;
}

# A table is in 'f', its slot goes on without us, and the copy that replaces
# the lost one fails at its end.  There is a slot again, and the origin has a
# position that it can start from, but nothing to resume.
sub lost_copy
{
	reconfigure($sub, 'reuse_sync.batch_size' => '0');
	publish_tables($pub, $sub, 'p_lost', 'lost');
	my $lock = $catchup->lock_table('lost', 'ROW EXCLUSIVE');
	subscribe($pub, $sub, 's_lost', 'p_lost');
	wait_states($sub, 's_lost', q{count(*) FILTER (WHERE srsubstate = 'f') = 1});
	waits_for_table('lost', 'ShareRowExclusive');

	my $pid  = worker_pid();
	my $slot = slots();
	$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s_lost DISABLE');
	terminate($pid);
	end_session($lock);
	$pub->poll_query_until('postgres',
		"SELECT NOT active FROM pg_replication_slots WHERE slot_name = '$slot'")
	  or die "slot $slot is active";
	is(table_state($sub, 'lost'), 'f', 'a table is half done');

	$pub->safe_psql(
		'postgres', qq{
		INSERT INTO lost SELECT g, 'passed' FROM generate_series(101, 110) AS g;
		UPDATE lost SET b = 'passed' WHERE a = 2;
		DELETE FROM lost WHERE a = 3;
		SELECT pg_replication_slot_advance('$slot', pg_current_wal_lsn());
		INSERT INTO lost VALUES (111, 'not passed');});
	at_commit('lost', 'raise_once');

	my $offset = log_offset();
	$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s_lost ENABLE');
	wait_ready($sub, 's_lost');
	rows_ok($pub, $sub, 'lost', 'no row is missing');
	log_ok($offset, 1, qr/ERROR: +raised once/, 'one copy has failed');
	log_ok($offset, 2, qr/WARNING: .*"public\.lost".* is copied anew/,
		'both were made because the first one is lost');

	$pub->safe_psql('postgres', "INSERT INTO lost VALUES (112, 'later')");
	catch_up($pub, $sub, 's_lost');
	rows_ok($pub, $sub, 'lost', 'replication goes on');
	drop_subscription('s_lost');
	return;
}

# Two workers end in the middle of the copy of the only table, one by one, and
# a third one's copy is cancelled.
sub killed_in_copy
{
	reconfigure($sub, 'reuse_sync.batch_size' => '8MB');
	publish_tables($pub, $sub, 'p_killed', 'killed');
	$catchup->close_gate('killed');
	subscribe($pub, $sub, 's_killed', 'p_killed');

	my %seen;
	foreach my $function (
		qw(pg_terminate_backend pg_terminate_backend pg_cancel_backend))
	{
		$catchup->wait_at_gates(['killed']);
		my $pid = worker_pid();
		ok(!$seen{$pid}++, 'another worker is at it');

		my $offset = log_offset();
		$sub->safe_psql('postgres', "SELECT $function($pid)");
		$sub->wait_for_log(
			qr/\[$pid\] .*(?:terminating|canceling) .* (?:command|request)/,
			$offset);
		wait_for_query($sub,
			"SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid")
		  if $function eq 'pg_terminate_backend';
	}
	wait_failed('killed');
	$catchup->wait_at_gates(['killed']);
	$catchup->open_gate('killed');
	wait_ready($sub, 's_killed');
	rows_ok($pub, $sub, 'killed', 'contents');
	drop_subscription('s_killed');
	return;
}

# The last table is handed over, and the worker is about to drop its slot,
# which its walsender still has.
sub orphaned_slot
{
	my ($how) = @_;

	reconfigure($sub,
		'reuse_sync.batch_size'            => '8MB',
		'reuse_sync.handover_lock_timeout' => '1min');
	publish_tables($pub, $sub, "p_$how", "t_$how");
	at_commit("t_$how", 'commit_gate');
	my $holder = $catchup->session('sub');
	$holder->query_safe("SELECT pg_advisory_lock($commit_lock)");
	subscribe($pub, $sub, "s_$how", "p_$how");
	worker_waits("l.locktype = 'advisory'");

	# All has been received, and nothing will be sent any more.
	my $pid    = worker_pid();
	my $sender = walsender();
	kill 'STOP', $sender;
	$holder->query_safe("SELECT pg_advisory_unlock($commit_lock)");
	wait_for_query($sub,
		"SELECT phase = 'dropping slots' FROM reuse_sync.workers"
		  . " WHERE pid = $pid");
	like(table_state($sub, "t_$how"), qr/[sr]/, 'the table is handed over');

	if ($how eq 'worker_ends')
	{
		terminate($pid);
		kill 'CONT', $sender;
	}
	else
	{
		stop_publisher('immediate', sub { kill 'CONT', $sender })
		  or die 'the publisher does not stop';
		$pub->start;
	}
	end_session($holder);
	no_leftovers_ok($pub, $sub, 'the slot is dropped with no table waiting');
	wait_for_query($sub, 'SELECT count(*) = 0 FROM reuse_sync.slots');
	catch_up($pub, $sub, "s_$how");
	rows_ok($pub, $sub, "t_$how", 'contents');

	$sub->safe_psql('postgres', q{CALL reuse_sync.drain('30 s')});
	$sub->safe_psql('postgres', 'DROP EXTENSION reuse_sync');
	create_extension($sub, 'postgres');
	drop_subscription("s_$how");
	return;
}

# A worker has the stream of one table open while it copies the next one, and
# the publisher, which will not stop before all it has sent is confirmed, is
# stopped.
sub fast_stop
{
	reconfigure($sub, 'reuse_sync.batch_size' => '8MB');
	publish_tables($pub, $sub, 'p_stop', 'stop_first', 'stop_second');
	$catchup->close_gate('stop_second');
	subscribe($pub, $sub, 's_stop', 'p_stop');
	$catchup->wait_at_gates(['stop_second']);
	is( $pub->safe_psql(
			'postgres', q{
			SELECT count(*) FROM pg_stat_replication
			WHERE application_name LIKE 'reuse\_sync\_%'}),
		1,
		'a stream is open');

	my $offset = -s $pub->logfile;
	my $start  = time;
	ok( stop_publisher(
			'fast',
			sub {
				$pub->wait_for_log(
					qr/reuse_sync FATAL: +terminating connection/, $offset);
				$catchup->open_gate('stop_second');
			}),
		'the publisher stops');
	note 'stopped after ' . (time - $start) . ' s';
	cmp_ok(time - $start, '<', 20, 'at once');
	$pub->stop('immediate');
	$pub->start;
	wait_ready($sub, 's_stop');
	rows_ok($pub, $sub, $_, "contents of $_") foreach qw(stop_first stop_second);
	drop_subscription('s_stop');
	return;
}

# DROP SUBSCRIPTION comes when a worker has deleted the row of its slot, and
# has not yet committed this.
sub dropped_at_the_end
{
	reconfigure($sub, 'reuse_sync.batch_size' => '8MB');
	publish_tables($pub, $sub, 'p_goes_on', 'goes_on');
	publish_tables($pub, $sub, 'p_ends',    'ends');
	subscribe($pub, $sub, 's_ends', 'p_goes_on');
	wait_ready($sub, 's_ends');
	no_leftovers_ok($pub, $sub, 'the first slot is gone');

	# The apply worker must not get to the table.
	my $lock = $catchup->lock_table('goes_on', 'SHARE');
	$pub->safe_psql('postgres', "INSERT INTO goes_on VALUES (101, 'waits')");
	wait_for_query($sub, q{
		SELECT count(*) = 1 FROM pg_locks
		WHERE relation = 'goes_on'::regclass AND NOT granted});
	$catchup->close_gate('ends');
	$sub->safe_psql('postgres',
		'ALTER SUBSCRIPTION s_ends ADD PUBLICATION p_ends');
	$catchup->wait_at_gates(['ends']);
	# What an origin is dropped under, and what stops only that
	my ($mode, $other) =
	  $sub->pg_version >= 16
	  ? ('RowExclusive', 'SHARE')
	  : ('Exclusive', 'ROW EXCLUSIVE');
	my $origins = $catchup->lock_table('pg_replication_origin', $other);
	$catchup->open_gate('ends');
	waits_for_table('pg_replication_origin', $mode);
	is(table_state($sub, 'ends'), 's', 'the table is handed over');

	my $dropper = $sub->background_psql('postgres', on_error_stop => 0);
	$dropper->query_safe('SET client_min_messages = warning');
	my $pid = $dropper->query_safe('SELECT pg_backend_pid()');
	$dropper->query_until(qr/begun/,
		"\\echo begun\nDROP SUBSCRIPTION s_ends;\n");
	wait_for_query($sub, qq{
		SELECT count(*) > 0 FROM pg_locks
		WHERE pid = $pid AND NOT granted
		AND (locktype = 'transactionid'
			OR relation = 'pg_replication_origin'::regclass)});
	end_session($origins);
	my (undef, $failed) = $dropper->query('SELECT 1');
	ok(!$failed, 'the subscription is dropped');
	$dropper->quit;
	end_session($lock);
	no_leftovers_ok($pub, $sub, 'no slot and no origin left');
	wait_for_query($sub, 'SELECT count(*) = 0 FROM reuse_sync.slots');
	return;
}

# A trigger that raises at the end of the handover, with a change that came
# while the table was locked.  The table is still in 'f', its slot still its.
sub failed_handover
{
	reconfigure($sub,
		'reuse_sync.batch_size'            => '0',
		'reuse_sync.handover_lock_timeout' => '1min');
	publish_tables($pub, $sub, 'p_flagged', 'flagged');
	at_commit('flagged', 'raise_if_flagged');
	my $lock = $catchup->lock_table('flagged', 'ROW EXCLUSIVE');
	subscribe($pub, $sub, 's_flagged', 'p_flagged');
	waits_for_table('flagged', 'ShareRowExclusive');

	my $slot   = slots();
	my $offset = log_offset();
	$sub->safe_psql('postgres', 'INSERT INTO flag DEFAULT VALUES');
	$pub->safe_psql(
		'postgres', q{
		INSERT INTO flagged VALUES (101, 'late');
		UPDATE flagged SET b = 'late' WHERE a = 2;});
	end_session($lock);
	wait_failed('flagged');
	$sub->wait_for_log(qr/ERROR: +flag is set/, $offset);
	is(table_state($sub, 'flagged'), 'f', 'the table is half done');
	is(slots(), $slot, 'its slot is there');
	is( $sub->safe_psql(
			'postgres', 'SELECT slot_name, state FROM reuse_sync.slots'),
		"$slot|linked",
		'and is kept for it');

	$sub->safe_psql('postgres', 'DELETE FROM flag');
	wait_ready($sub, 's_flagged');
	rows_ok($pub, $sub, 'flagged', 'contents');
	log_ok($offset, 0, qr/is copied anew/, 'it was not copied anew');
	log_ok($offset, 1, qr/"public\.flagged".*slot "$slot" taken over/,
		'but finished from its slot');
	drop_subscription('s_flagged');
	return;
}

# The apply worker hangs; more tables than there are entries for origins are
# handed over to it meanwhile.
sub many_handed_over
{
	my @tables = map { "many_$_" } 1 .. 20;

	reconfigure($sub,
		'reuse_sync.batch_size'                   => '0',
		'reuse_sync.handover_lock_timeout'        => '1s',
		'reuse_sync.max_workers_per_subscription' => 4);
	publish_tables($pub, $sub, 'p_ready', 'ready');
	publish_tables($pub, $sub, 'p_many',  @tables);
	subscribe($pub, $sub, 's_many', 'p_ready');
	wait_ready($sub, 's_many');

	my $offset = log_offset();
	my $lock   = $catchup->lock_table('ready', 'SHARE');
	$pub->safe_psql('postgres', "INSERT INTO ready VALUES (101, 'waits')");
	wait_for_query($sub, q{
		SELECT count(*) = 1 FROM pg_locks
		WHERE relation = 'ready'::regclass AND NOT granted});
	$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s_many ADD PUBLICATION p_many');
	wait_states($sub, 's_many',
		q{count(*) FILTER (WHERE srsubstate = 's') = 20});
	log_ok($offset, 0, qr/could not find free replication state/,
		'there was always an entry for the next origin');
	is(join('', log_errors($sub, $offset)), '', 'nothing has failed');

	end_session($lock);
	wait_ready($sub, 's_many');
	catch_up($pub, $sub, 's_many');
	rows_ok($pub, $sub, $_, "contents of $_") foreach 'ready', @tables;
	reconfigure($sub, 'reuse_sync.max_workers_per_subscription' => 1);
	drop_subscription('s_many');
	return;
}

# TRUNCATE has to be applied, and a session reads the table.  Whoever wants to
# write to the table queues up behind us, the apply worker too, and all that it
# has to do besides.  (It must not meet the session itself: it takes the same
# lock as we do, only to pass over the command.)
sub truncate_while_read
{
	reconfigure($sub,
		'reuse_sync.batch_size'            => '0',
		'reuse_sync.handover_lock_timeout' => '1s');
	publish_tables($pub, $sub, 'p_beside', 'beside');
	publish_tables($pub, $sub, 'p_read',   'is_read');
	subscribe($pub, $sub, 's_read', 'p_beside');
	wait_ready($sub, 's_read');
	no_leftovers_ok($pub, $sub, 'the first slot is gone');

	# Our stream stands still until the apply worker has passed the command.
	$catchup->close_gate('is_read');
	$sub->safe_psql('postgres',
		'ALTER SUBSCRIPTION s_read ADD PUBLICATION p_read');
	$catchup->wait_at_gates(['is_read']);
	my $sender = walsender();
	kill 'STOP', $sender;
	$catchup->open_gate('is_read');
	wait_states($sub, 's_read', q{count(*) FILTER (WHERE srsubstate = 'f') = 1});
	$pub->safe_psql(
		'postgres', q{
		TRUNCATE is_read;
		INSERT INTO is_read SELECT g, 'new' FROM generate_series(1, 5) AS g;});
	catch_up($pub, $sub, 's_read');
	my $reader = $catchup->lock_table('is_read', 'ACCESS SHARE');
	kill 'CONT', $sender;
	waits_for_table('is_read', 'AccessExclusive');

	my $longest = 0;
	foreach my $i (1 .. 5)
	{
		my $start = time;

		$pub->safe_psql(
			'postgres', qq{
			BEGIN;
			INSERT INTO is_read VALUES (100 + $i, 'together');
			INSERT INTO beside VALUES (100 + $i, 'together');
			COMMIT;});
		$sub->poll_query_until('postgres',
			"SELECT count(*) = 1 FROM beside WHERE a = 100 + $i")
		  or last;
		$longest = time - $start if time - $start > $longest;
	}
	is($sub->safe_psql('postgres', 'SELECT max(a) FROM beside'),
		105, 'the apply worker goes on');
	note "longest wait: $longest s";
	cmp_ok($longest, '<', 10, 'and never waits for long');
	is(table_state($sub, 'is_read'), 'f', 'while the table is still read');

	end_session($reader);
	wait_ready($sub, 's_read');
	catch_up($pub, $sub, 's_read');
	rows_ok($pub, $sub, $_, "contents of $_") foreach 'is_read', 'beside';
	drop_subscription('s_read');
	return;
}

# A worker ends while the publisher creates its slot, which is there only when
# another transaction has ended.
sub killed_in_creation
{
	reconfigure($sub, 'reuse_sync.batch_size' => '8MB');
	publish_tables($pub, $sub, 'p_before', 'before');
	publish_tables($pub, $sub, 'p_slow',   'slow');
	subscribe($pub, $sub, 's_slow', 'p_before');
	wait_ready($sub, 's_slow');
	no_leftovers_ok($pub, $sub, 'the first slot is gone');

	my $long = $catchup->session('pub');
	$long->query_safe("BEGIN; INSERT INTO slow VALUES (101, 'long')");
	$sub->safe_psql('postgres',
		'ALTER SUBSCRIPTION s_slow ADD PUBLICATION p_slow');

	my @pids;
	foreach my $count (1 .. 2)
	{
		$pub->poll_query_until(
			'postgres', qq{
			SELECT count(*) = $count FROM pg_stat_activity
			WHERE application_name LIKE 'reuse\\_sync\\_%'
			AND state = 'active' AND wait_event_type = 'Lock'})
		  or die "no slot is being created\n" . ReuseSync::log_tail($sub);
		push @pids, worker_pid();
		is( $sub->safe_psql(
				'postgres', "SELECT phase FROM reuse_sync.workers WHERE pid = $pids[-1]"
			),
			'creating slot',
			'a worker has its slot created');
		terminate($pids[-1]);
	}
	isnt($pids[0], $pids[1], 'one after the other');
	$long->query_safe('COMMIT');
	end_session($long);
	wait_ready($sub, 's_slow');
	no_leftovers_ok($pub, $sub, 'no slot has stayed');
	wait_for_query($sub, 'SELECT count(*) = 0 FROM reuse_sync.slots');
	catch_up($pub, $sub, 's_slow');
	rows_ok($pub, $sub, 'slow', 'contents');
	drop_subscription('s_slow');
	return;
}

# No worker looks after a subscription that is disabled, and no slot waits for
# one.  A pool that is paused finishes what it is at, and no more.
sub disabled_and_paused
{
	my @tables = map { "stops_$_" } 1 .. 3;

	reconfigure($sub, 'reuse_sync.batch_size' => '8MB');
	publish_tables($pub, $sub, 'p_stops', @tables);
	$catchup->close_gate($_) foreach @tables;
	subscribe($pub, $sub, 's_stops', 'p_stops');

	my ($first) = $catchup->wait_at_gates(\@tables);
	isnt(slots(), '', 'there is a slot');
	$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s_stops DISABLE');
	$catchup->open_gate($first);
	no_leftovers_ok($pub, $sub, 'disabled: no slot is left');
	wait_for_query($sub, 'SELECT count(*) = 0 FROM reuse_sync.slots');
	is( $sub->safe_psql(
			'postgres',
			q{SELECT string_agg(srsubstate::text, '') FROM pg_subscription_rel}),
		'iii',
		'and no table has been finished');

	$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s_stops ENABLE');
	my ($second) = $catchup->wait_at_gates(\@tables);
	reconfigure($sub, 'reuse_sync.paused' => 'on');
	$catchup->open_gate($second);
	wait_states($sub, 's_stops',
		qq{bool_and(srsubstate = 'r') FILTER (WHERE srrelid = '$second'::regclass)}
	);
	wait_for_query($sub, q{
		SELECT count(*) = 0 FROM reuse_sync.workers
		WHERE worker_type = 'worker' AND phase <> 'idle'});
	no_leftovers_ok($pub, $sub, 'paused: no slot is left');
	my ($last) = grep { $_ ne $first && $_ ne $second } @tables;
	$sub->safe_psql('postgres', 'SELECT reuse_sync.wakeup()');
	is(table_state($sub, $last), 'i', 'and no other table is begun');

	reconfigure($sub, 'reuse_sync.paused' => 'off');
	$catchup->wait_at_gates([$last]);
	$catchup->open_gate($last);
	wait_ready($sub, 's_stops');
	rows_ok($pub, $sub, $_, "contents of $_") foreach @tables;
	drop_subscription('s_stops');
	return;
}

subtest 'table of the name of the catalog' => \&namesake;
subtest 'lost copy, and a failed one'      => \&lost_copy;
subtest 'worker ends in a copy'            => \&killed_in_copy;
subtest 'worker ends before it has dropped its slot' =>
  sub { orphaned_slot('worker_ends') };
subtest 'publisher ends before the slot is dropped' =>
  sub { orphaned_slot('publisher_ends') };
subtest 'publisher stops during a copy'              => \&fast_stop;
subtest 'subscription is dropped before its slot is' => \&dropped_at_the_end;
subtest 'handover fails at its end'                  => \&failed_handover;
subtest 'apply worker hangs'                         => \&many_handed_over;
subtest 'TRUNCATE of a table that is read'           => \&truncate_while_read;
subtest 'worker ends while its slot is created'      => \&killed_in_creation;
subtest 'disabled, paused'                           => \&disabled_and_paused;

$catchup->finish;
no_builtin_sync_ok($sub);

done_testing();
