# Forced races: what the tests in test/races share.
#
# Each test forces one race, and passes if the contents are right, or a bound
# is kept, in the end.  The command test/guards runs it twice on a test build
# (src/testing.h): with all guards, and with GUARD_OFF naming the one it is for,
# when it must fail.  Nothing depends on how long anything takes: processes are
# held at test points, by locks, or by a signal, and a test waits until they
# are where it wants them.
#
# A test that could not force its race dies, which is neither.
#
#   use Races;
#   my ($pub, $sub) = race_servers();
#   race_tables($pub, $sub, 't');
#   hold($sub, 'copied:t');
#   subscribe($pub, $sub, 's', 'p');
#   wait_held($sub, 'copied:t');
#   ...
#   release($sub);
#   settled_rows_ok($pub, $sub, 't');
#   done_testing();

package Races;

use strict;
use warnings;

use Exporter 'import';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use ReuseSync;
use Test::More;
use Time::HiRes qw(usleep);

our @EXPORT = qw(
  race_servers
  race_tables
  hold
  release
  wait_held
  wait_until
  session
  start_query
  finish_query
  xid_waited_for
  unanswered_commit
  answer
  stop_process
  continue_process
  crash
  lose_commit
  insert_with_xid
  stop_flushing
  sync_slot_name
  flush_wal
  settled_rows_ok
);

# Nothing is written or flushed but by what the test does.
my %quiet = (
	autovacuum            => 'off',
	bgwriter_lru_maxpages => 0,
	checkpoint_timeout    => '1h',
	max_wal_size          => '2GB',
	wal_buffers           => '16MB');

my %stopped;

# race_servers(%opt): a publisher and a subscriber whose pool has one worker
# for tables.  It takes them one by one, the staged way, or with RACE_WAY=express
# in the environment the express way.  Options: pub and sub, hashes of settings;
# off, a list of guards that are off anyway, because they would hide what the
# test is about.
sub race_servers
{
	my (%opt) = @_;
	my $express = ($ENV{RACE_WAY} // '') eq 'express';

	# A commit waits for nobody's answer only if its session asks for that.
	my $pub = new_publisher(
		'pub', %quiet,
		synchronous_standby_names => 'nobody',
		synchronous_commit        => 'local',
		%{ $opt{pub} // {} });
	my $sub = new_subscriber(
		'sub', %quiet,
		synchronous_commit                        => 'off',
		wal_retrieve_retry_interval               => '100ms',
		'reuse_sync.max_workers_per_subscription' => 1,
		'reuse_sync.batch_tables'                 => 1,
		'reuse_sync.batch_size'                   => $express ? '8MB' : 0,
		'reuse_sync.naptime'                      => '100ms',
		'reuse_sync.worker_idle_timeout'          => '1h',
		'reuse_sync.handover_lock_timeout'        => '1h',
		'reuse_sync.test_guards_off'              =>
		  join(',', grep { $_ } $ENV{GUARD_OFF}, @{ $opt{off} // [] }),
		%{ $opt{sub} // {} });
	return ($pub, $sub);
}

# race_tables($pub, $sub, @tables): tables without a key, so that a row that is
# applied twice is there twice, each with a row to copy and in publication p.
# They will be synchronized in this order.
sub race_tables
{
	my ($pub, $sub, @tables) = @_;

	both($pub, $sub, "CREATE TABLE $_ (a int, b text)") foreach @tables;
	$pub->safe_psql('postgres', "INSERT INTO $_ VALUES (0, 'copied')")
	  foreach @tables;
	$pub->safe_psql('postgres',
		'CREATE PUBLICATION p FOR TABLE ' . join(', ', @tables));
	return;
}

# hold($sub, @points): let go of whoever is held, and hold who comes to these.
sub hold
{
	my ($sub, @points) = @_;

	$sub->append_conf('postgresql.conf',
		"reuse_sync.test_points = '" . join(',', @points) . "'");
	$sub->reload;
	return;
}

sub release
{
	my ($sub) = @_;

	hold($sub);
	return;
}

# wait_held($sub, @points): wait until a process is held at one of the points;
# the point, and in list context its pid as well.
sub wait_held
{
	my ($sub, @points) = @_;
	my %wanted = map { $_ => 1 } @points;
	my ($point, $pid);

	wait_until(
		$sub,
		"a process at @points",
		sub {
			my $all = $sub->safe_psql(
				'postgres', q{
				SELECT query, pid FROM pg_stat_activity
				WHERE query LIKE 'test point %' AND backend_type <> 'client backend'
				OR query LIKE 'test point %' AND pid <> pg_backend_pid()});

			foreach my $line (split /\n/, $all)
			{
				my ($name, $its_pid) = $line =~ /^test point (.*)\|(\d+)$/
				  or next;
				($point, $pid) = ($name, $its_pid)
				  if $wanted{$name} || $wanted{ $name =~ s/:.*//r };
			}
			return defined $point;
		});
	return wantarray ? ($point, $pid) : $point;
}

# wait_until($node, $what, $condition): until the function, or the query on the
# node, returns something true; dies after the usual time.
sub wait_until
{
	my ($node, $what, $condition) = @_;
	my $end = time + $PostgreSQL::Test::Utils::timeout_default;

	while (1)
	{
		my $result =
		  ref $condition
		  ? $condition->()
		  : $node->safe_psql('postgres', $condition) eq 't';
		return $result if $result;
		die "waited in vain for $what; last lines of the log of "
		  . $node->name . ":\n"
		  . ReuseSync::log_tail($node)
		  if time > $end;
		usleep(20_000);
	}
}

# A session; end it with quit.
sub session
{
	my ($node) = @_;

	my $session = $node->background_psql('postgres');
	$session->set_query_timer_restart();
	$session->{pid} = $session->query_safe('SELECT pg_backend_pid()');
	return $session;
}

# Begin a query without waiting for its end; and wait for that, and quit.
sub start_query
{
	my ($session, $sql) = @_;

	$session->query_until(qr/started/, "\\echo started\n$sql;\n");
	return;
}

sub finish_query
{
	my ($session) = @_;

	my $result = $session->query('SELECT 1');
	$session->quit;
	return $result;
}

# Wait until somebody on the node waits for the end of this transaction.
sub xid_waited_for
{
	my ($node, $xid) = @_;

	wait_until($node, "a wait for transaction $xid",
		"SELECT count(*) > 0 FROM pg_locks WHERE NOT granted"
		  . " AND locktype = 'transactionid' AND transactionid = '$xid'");
	return;
}

# Commit some SQL on the publisher so that the commit is flushed, and streamed,
# but not visible; until answer().
sub unanswered_commit
{
	my ($pub, $sql) = @_;
	my $session = session($pub);

	$session->query_safe('SET synchronous_commit = on');
	start_query($session, $sql);
	wait_until($pub, 'a commit that nobody answers',
		"SELECT wait_event = 'SyncRep' FROM pg_stat_activity"
		  . " WHERE pid = $session->{pid}");
	return $session;
}

sub answer
{
	my ($pub, $session) = @_;

	$pub->safe_psql('postgres', "SELECT pg_cancel_backend($session->{pid})");
	finish_query($session);
	return;
}

# stop_process($node, $type): stop one of the server's processes where it is;
# its backend_type or pid.  Returns the pid.
sub stop_process
{
	my ($node, $type) = @_;
	my $pid =
	  $type =~ /^\d+$/
	  ? $type
	  : $node->safe_psql('postgres',
		"SELECT pid FROM pg_stat_activity WHERE backend_type = '$type'");

	kill('STOP', $pid) == 1 or die "cannot stop process \"$pid\" ($type)";
	$stopped{$pid} = 1;
	wait_until($node, "process $pid to stop",
		sub { return process_state($pid) =~ /^T/ });
	return $pid;
}

sub continue_process
{
	my ($pid) = @_;

	kill('CONT', $pid);
	delete $stopped{$pid};
	return;
}

# The letter that ps has for the state of a process; Z if there is none.
sub process_state
{
	my ($pid) = @_;

	open my $stat, '<', "/proc/$pid/stat" or return 'Z';
	my ($state) = (<$stat> // ') Z') =~ /\) (\S)/;
	close $stat;
	return $state;
}

# Kill a server with all its processes at once: what was not written is lost.
sub crash
{
	my ($node) = @_;
	my $postmaster = $node->{_pid};
	my @all        = ($postmaster);

	# None must do anything when it notices that others have gone.
	kill('STOP', $postmaster);
	foreach my $stat (glob '/proc/[0-9]*/stat')
	{
		open my $fh, '<', $stat or next;
		my ($pid, $parent) = (<$fh> // '') =~ /^(\d+) \(.*\) \S (\d+)/;
		close $fh;
		push @all, $pid if defined $parent && $parent == $postmaster;
	}
	kill('STOP', @all);
	kill('KILL', @all);
	delete @stopped{@all};
	foreach my $pid (@all)
	{
		wait_until($node, "process $pid to end",
			sub { return !kill(0, $pid) });
	}
	$node->{_pid} = undef;
	return;
}

# Commit a transaction on the publisher that will be lost when it crashes,
# writing about that many bytes of WAL to the table "other"; its xid.
sub lose_commit
{
	my ($pub, $bytes) = @_;

	stop_process($pub, 'walwriter');
	my $rows = $bytes / 1000 + 1;
	return $pub->safe_psql(
		'postgres', qq{
		SET synchronous_commit = off;
		BEGIN;
		SELECT txid_current();
		INSERT INTO other
			SELECT repeat('x', 1000) FROM generate_series(1, $rows);
		COMMIT;});
}

# Insert rows, and return the xid.
sub insert_with_xid
{
	my ($pub, $rows) = @_;

	return $pub->safe_psql('postgres',
		"BEGIN; SELECT txid_current(); INSERT INTO $rows; COMMIT");
}

# From now on nothing is flushed on the subscriber that does not have to be; all
# that has been committed there is.
sub stop_flushing
{
	my ($sub) = @_;

	stop_process($sub, 'walwriter');
	$sub->safe_psql('postgres',
		'SET synchronous_commit = on; CREATE TABLE flushed ()');
	return;
}

# The publisher's slot of the pool's worker.
sub sync_slot_name
{
	my ($pub) = @_;

	return $pub->safe_psql('postgres',
		"SELECT slot_name FROM pg_replication_slots"
		  . " WHERE slot_name LIKE 'reuse\\_sync\\_%'");
}

# Flush what has been committed asynchronously, so that it is waited for as
# well.  A transaction that writes nothing but its commit does not do that.
sub flush_wal
{
	my ($node) = @_;

	$node->safe_psql('postgres',
		q{SELECT pg_logical_emit_message(true, 'test', '')});
	return;
}

# settled_rows_ok($pub, $sub, @tables): when all is synchronized and applied,
# one test for each table, that its rows are the same on both sides.
sub settled_rows_ok
{
	my ($pub, $sub, @tables) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	flush_wal($pub);
	wait_ready($sub, 's');
	catch_up($pub, $sub, 's');
	rows_ok($pub, $sub, $_, "rows of table $_") foreach @tables;
	return;
}

END
{
	kill('CONT', $_) foreach keys %stopped;
}

1;
