# Commands at any moment of a running synchronization: what the tests in
# test/moments share.  The command test/commands runs them on a test build
# (src/testing.h).
#
# A subscription of three tables, which a writer on the publisher keeps changing,
# is brought to a moment and kept there; then a command is given.  Afterwards
# everything is let go, and has to come to a good end.
#
# The rule for time.  A command may take a second longer than it takes when
# nothing is synchronized and no process of the pool exists ("alone"), measured
# before on the same servers.  Time counts from its start to its end, with one
# exception: the server's own synchronization locks a table while it copies it,
# so that whoever wants a lock on a table of the subscription waits until the
# copy is over.  A moment that is kept would make that forever.  So when the
# command is found waiting for such a lock, or for the end of a transaction as
# CREATE INDEX CONCURRENTLY does, the moment is let go at once, and the clock
# starts anew.  A command with "never_waits" may not even do that.
#
# A server that shuts down waits for its clients by its own rules; there as well
# the moment is let go once the shutdown has begun (see shutdown.pl).
#
#   use Moments;
#   start_servers();
#   try_command(
#       name    => 'disable',
#       sql     => 'ALTER SUBSCRIPTION s DISABLE',
#       in_block => 1,
#       undo    => 'ALTER SUBSCRIPTION s ENABLE');
#   done_testing();
#
# A command is a hash:
#
#   name         what it is called
#   sql          SQL for the subscriber, in the subscription's database; or
#   run          a function that gives the command and returns the time that
#                counts and what it printed on standard error
#   on           'pub' if the SQL is for the publisher
#   db           the database to give it in, if it is another
#   prepare      SQL for the publisher, or a function that is told if the command
#                is to be rolled back, before the command
#   undo         SQL for the subscriber, or a function, when all is let go: so
#                that the subscription can become ready
#   finally      SQL for the subscriber, when it is
#   in_block     true if it may be given in a transaction block as well; then it
#                is also rolled back
#   gone         true if the subscription is gone afterwards
#   fails        a pattern: how it has to fail; or a function that is given the
#                moment and returns one, or undef
#   may_fail     the same, but it may as well succeed
#   talks        true if it needs an answer of the publisher
#   waits_for_ends  true if it waits for the end of transactions
#   never_waits  true if nothing of a table's copy must keep it waiting
#   moments      a list of moments, if not all
#   skip         a pattern for the moments to leave out
#   same         tables that must be the same on both sides in the end; default:
#                all.  Of the others the subscriber has only rows that the
#                publisher has

package Moments;

use strict;
use warnings;

use Exporter 'import';
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use ReuseSync;
use Test::More;
use Time::HiRes qw(time usleep);

our @EXPORT = qw(
  $pub
  $sub
  $sub_db
  start_servers
  try_command
  let_go
  wait_until
  worker_pid
  start_writer
  stop_writer
  is_at
);

our ($pub, $sub);
our $sub_db = 'postgres';

my @tables = qw(t1 t2 t3);

# Longest time that a command may wait for us, in seconds.
my $limit = 1;

# Where a process of the pool is kept at a test point.  A point at which it holds
# a lock on the subscription is none: there it waits for nothing and nobody.
# Tables go the staged way one by one, or together the express way.
my %points = (
	claimed  => { point => 'claimed:t1' },
	copying  => { point => 'mid_copy:t1' },
	batch    => { point => 'mid_copy:t2', express => 1 },
	copied   => { point => 'copied:t1' },
	locked   => { point => 'position:t1' },
	at_once  => { point => 'position:t1', express => 1 },
	between  => { point => 'claimed:t2' },
	dropping => { point => 'slot_drop' },);

# Moments that come about without one; each a function that brings them about.
my %others = (
	creating    => \&slot_is_created,
	kept_out    => \&handover_waits,
	unreachable => \&publisher_is_down,
	silent      => \&publisher_is_silent,
	ready       => \&all_is_ready,);

our @moments = qw(claimed creating copying batch copied kept_out locked at_once
  between dropping unreachable silent ready);

# Those for what is rolled back
my %in_blocks =
  map { $_ => 1 } qw(claimed copying batch copied locked between ready);

my ($writer, $moment);
my $silent;                        # pid of a publisher that is stopped
my ($kept, $open) = (0, 0);        # is there a prepared transaction?
my %alone;                         # seconds that a command takes then

# start_servers(%opt): a publisher and a subscriber with one worker for tables.
# Options: sub, a hash of settings; db, a database for the subscription.
sub start_servers
{
	my (%opt) = @_;

	$pub = new_publisher(
		'pub',
		max_prepared_transactions => 5,
		log_statement             => 'none',
		autovacuum                => 'off');
	$sub = new_subscriber(
		'sub',
		autovacuum                                => 'off',
		max_prepared_transactions                 => 5,
		wal_retrieve_retry_interval               => '100ms',
		'reuse_sync.max_workers_per_subscription' => 1,
		'reuse_sync.max_retry_interval'           => '1s',
		'reuse_sync.naptime'                      => '500ms',
		%{ $opt{sub} // {} });
	$pub->safe_psql(
		'postgres', q{
		CREATE TABLE elsewhere (a int);
		CREATE SEQUENCE keys START 10000;});
	if ($opt{db})
	{
		$sub_db = $opt{db};
		$sub->safe_psql('postgres', 'CREATE DATABASE ' . $sub_db);
		create_extension($sub, $sub_db);
	}
	append_to_file($pub->basedir . '/writer.sql', q{
		\set a random(1, 300)
		\set b random(1, 300)
		BEGIN;
		UPDATE t1 SET b = md5(random()::text) WHERE a = :a;
		INSERT INTO t1 SELECT nextval('keys'), 'new';
		INSERT INTO t2 SELECT nextval('keys'), 'new';
		DELETE FROM t2 WHERE a = :b;
		END;
		BEGIN;
		DELETE FROM t3 WHERE a = :a;
		INSERT INTO t3 SELECT nextval('keys'), 'new';
		UPDATE t3 SET b = md5(random()::text) WHERE a = :b;
		END;});
	return;
}

# try_command(%command): one test for each of its moments and ways.
sub try_command
{
	my (%command) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $name = $command{name};

	return if ($ENV{COMMAND} // '') ne '' && $ENV{COMMAND} ne $name;

	my %asked = map { $_ => 1 } split /,/, $ENV{MOMENT} // '';

	foreach my $way ($command{in_block} ? qw(plain block) : qw(plain))
	{
		# Nothing is being synchronized, and nobody of us is there.
		run_case(\%command, 'alone', $way);
		foreach my $m (@{ $command{moments} // \@moments })
		{
			next if %asked && !$asked{$m};
			next if $command{skip} && $m =~ $command{skip};
			next if $command{talks} && $m eq 'silent';
			next if $way eq 'block' && !$in_blocks{$m};
			run_case(\%command, $m, $way);
		}
	}
	return;
}

# One command at one moment, one way.
sub run_case
{
	my ($command, $m, $way) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $title = "$command->{name}/$m" . ($way eq 'block' ? '/rolled_back' : '');

	subtest $title => sub {
		my $offset = -s $sub->logfile;
		my $died   = !eval {
			set_up($m);
			perform($command, $way);
			finish($command, $way);
			1;
		};
		my $error = $@;

		if ($died)
		{
			fail('came to its end');
			diag("$title: $error\nlast lines of the subscriber's log:\n"
				  . ReuseSync::log_tail($sub));
		}
		unlike(slurp_file($sub->logfile, $offset),
			qr/PANIC|TRAP|terminated by signal/, 'no process crashed');
		tidy_up() if $died;
	};
	return;
}

# --- moments ---

sub is_at
{
	return $moment;
}

sub configure
{
	my (%conf) = @_;

	$sub->safe_psql('postgres',
		join('', map { "ALTER SYSTEM SET $_ = '$conf{$_}';\n" } sort keys %conf)
		  . 'SELECT pg_reload_conf()');
	return;
}

# New tables and a new subscription, brought to the moment.
sub set_up
{
	my ($m) = @_;
	my $point = $points{$m};

	$moment = $m;
	my $ddl = join '', 'SET client_min_messages = warning;',
	  map { "DROP TABLE IF EXISTS $_; CREATE TABLE $_ (a int PRIMARY KEY, b text);\n" }
	  @tables, 't4';
	my $rows = join '', map {
		"INSERT INTO $_ SELECT g, 'row ' || g FROM generate_series(1, 300) AS g;\n"
	} @tables, 't4';

	$sub->safe_psql($sub_db, $ddl);
	$pub->safe_psql(
		'postgres', qq{
		$ddl $rows
		DROP PUBLICATION IF EXISTS p, p3, p4;
		CREATE PUBLICATION p FOR TABLE t1, t2;
		CREATE PUBLICATION p3 FOR TABLE t3;
		CREATE PUBLICATION p4 FOR TABLE t4;});
	start_writer();

	configure(
		'reuse_sync.batch_size' => $point && $point->{express} ? '8MB' : '0',
		'reuse_sync.handover_lock_timeout' => $point ? '1h' : '300ms',
		'reuse_sync.paused'                => 'off',
		'reuse_sync.worker_idle_timeout'   => $m eq 'alone' ? '0' : '1h',
		'reuse_sync.test_points'           => $point ? $point->{point} : '');
	if ($point)
	{
		subscribe($pub, $sub, 's', 'p, p3', sub_db => $sub_db);
		wait_until_kept();
	}
	elsif ($m eq 'alone')
	{
		subscribe($pub, $sub, 's', 'p, p3', sub_db => $sub_db);
		wait_ready($sub, 's', db => $sub_db);
		wait_until('no process of the pool', q{
			SELECT count(*) = 0 FROM pg_stat_activity
			WHERE backend_type IN ('reuse_sync worker', 'reuse_sync cleaner')});
	}
	else
	{
		$others{$m}->();
	}
	return;
}

sub wait_until_kept
{
	wait_until(
		'a process at a test point',
		q{SELECT count(*) > 0 FROM pg_stat_activity
		WHERE query LIKE 'test point %' AND pid <> pg_backend_pid()
		AND backend_type <> 'client backend'});
	return;
}

# A slot is being created, which takes until a transaction there has ended.
sub slot_is_created
{
	configure('reuse_sync.paused' => 'on');
	subscribe($pub, $sub, 's', 'p, p3', sub_db => $sub_db);
	$pub->safe_psql('postgres',
		q{BEGIN; INSERT INTO elsewhere VALUES (1); PREPARE TRANSACTION 'open'});
	$open = 1;
	configure('reuse_sync.paused' => 'off');
	wait_until(
		'a slot being created',
		q{SELECT count(*) > 0 FROM pg_locks l JOIN pg_stat_activity a USING (pid)
		WHERE NOT l.granted AND a.application_name LIKE 'reuse\_sync\_%'}, $pub);
	return;
}

# Somebody has the table, so that it cannot be handed over; by now there are
# pauses between the attempts.
sub handover_waits
{
	my $offset = -s $sub->logfile;

	$sub->safe_psql($sub_db,
		q{BEGIN; LOCK TABLE t1 IN ROW EXCLUSIVE MODE; PREPARE TRANSACTION 'kept'}
	);
	$kept = 1;
	configure('reuse_sync.test_log_points' => 'on');
	subscribe($pub, $sub, 's', 'p, p3', sub_db => $sub_db);
	$sub->wait_for_log(qr/(?:not_locked:t1.*?){4}/s, $offset);
	configure('reuse_sync.test_log_points' => 'off');
	return;
}

sub publisher_is_down
{
	configure('reuse_sync.test_points' => 'copied:t1');
	subscribe($pub, $sub, 's', 'p, p3', sub_db => $sub_db);
	wait_until_kept();
	my $offset = -s $sub->logfile;
	$pub->stop('immediate');
	configure('reuse_sync.test_points' => '');
	$sub->wait_for_log(qr/puts off subscription "s"|gives up a unit|could not connect to the publisher/,
		$offset);
	return;
}

# It accepts connections, and says nothing.
sub publisher_is_silent
{
	configure('reuse_sync.test_points' => 'register_slot');
	subscribe($pub, $sub, 's', 'p, p3', sub_db => $sub_db);
	wait_until_kept();
	$silent = $pub->{_pid};
	kill('STOP', $silent);
	configure('reuse_sync.test_points' => '');
	wait_until('a worker that connects',
		q{SELECT count(*) > 0 FROM reuse_sync.slot_catalog}, $sub, $sub_db);
	return;
}

sub all_is_ready
{
	subscribe($pub, $sub, 's', 'p, p3', sub_db => $sub_db);
	wait_ready($sub, 's', db => $sub_db);
	return;
}

# Whatever is kept goes on; servers that are down stay down.  Nothing is asked of
# a publisher that shuts down.
sub let_go
{
	my ($shuts_down) = @_;

	kill('CONT', $silent) if $silent;
	$silent = undef;
	if (-e $sub->data_dir . '/postmaster.pid')
	{
		configure(
			'reuse_sync.test_points'           => '',
			'reuse_sync.handover_lock_timeout' => '300ms');
		$sub->safe_psql($sub_db, q{COMMIT PREPARED 'kept'}) if $kept;
		$kept = 0;
	}
	if ($open && -e $pub->data_dir . '/postmaster.pid' && !$shuts_down)
	{
		$pub->safe_psql('postgres', q{COMMIT PREPARED 'open'});
		$open = 0;
	}
	return;
}

# --- the command ---

# Does it fail because the publisher is away?
sub is_refused
{
	my ($command) = @_;

	return $command->{talks} && $moment eq 'unreachable';
}

sub perform
{
	my ($command, $way) = @_;
	my $prepare = $command->{prepare};

	if (ref $prepare)
	{
		$prepare->($way eq 'block');
	}
	elsif (defined $prepare && $moment ne 'unreachable')
	{
		$pub->safe_psql('postgres', $prepare);
	}
	my ($took, $err) =
	  $command->{run} ? $command->{run}->() : give($command, $way);
	$alone{ $command->{name} } = $took if $moment eq 'alone';

	my ($fails, $may_fail) =
	  map { ref $_ eq 'CODE' ? $_->($moment) : $_ }
	  @{$command}{qw(fails may_fail)};
	$fails = $may_fail if $may_fail && $err ne '';
	$fails = qr/could not connect to (?:the )?publisher/
	  if is_refused($command);
	$fails
	  ? like($err, $fails, 'fails as it has to')
	  : is($err, '', 'succeeds');

	my $most = $alone{ $command->{name} } + $limit;
	ok($took <= $most, 'without waiting for us')
	  || diag sprintf('%s took %.2f s of %.2f s', $command->{name}, $took,
		$most);
	note sprintf('took %.2f s', $took);
	return;
}

# Give SQL in a session of its own; returns the time that counts, and what psql
# says.  In a block, everything goes on before that is rolled back.
sub give
{
	my ($command, $way) = @_;
	my ($in, $out, $err) = ('', '', '');
	my $block = $way eq 'block';
	my $end   = time + $PostgreSQL::Test::Utils::timeout_default;
	my $gone  = 0;

	my ($node, $db) =
	    ($command->{on} // '') eq 'pub' ? ($pub, 'postgres')
	  : ($sub, $command->{db} // $sub_db);

	local $ENV{PGAPPNAME} = 'command';
	my $psql = IPC::Run::start(
		[
			$node->installed_command('psql'), '-XAtq', '-v', 'ON_ERROR_STOP=1',
			'-d', $node->connstr($db), '-f', '-'
		],
		'<', \$in, '>', \$out, '2>', \$err);
	my $start = time;

	$in = ($block ? "BEGIN;\n" : '') . "$command->{sql};\n\\echo given\n";
	until ($out =~ /^given$/m || !$psql->pumpable)
	{
		if (time - $start > 0.1 && !$gone && waits_for_copy($command, $node, $db))
		{
			ok(!$command->{never_waits}, 'waits for no lock on a table');
			$gone = 1;
			let_go();
			$start = time;
		}
		if (time > $end)
		{
			diag('waits: ' . what_waits());
			$psql->kill_kill;
			die "the command does not end\n";
		}
		$psql->pump_nb;
		usleep(10_000);
	}
	my $took = time - $start;

	if ($block && $psql->pumpable)
	{
		let_go();
		meet_the_block();
		$in = "ROLLBACK;\n";
		while ($in ne '' && $psql->pumpable)
		{
			$psql->pump_nb;
			usleep(10_000);
		}
	}
	$psql->finish;
	$err =~ s/^psql:<stdin>:\d+: (?:NOTICE|WARNING): .*\n(?:(?:DETAIL|HINT): .*\n)*//mg;
	return ($took, $err);
}

# A second is long enough for the pool to come across what a block has locked.
sub meet_the_block
{
	my $end = time + 1;

	while (time < $end)
	{
		last
		  if $sub->safe_psql(
			'postgres', q{
			SELECT count(*) > 0 FROM pg_locks l JOIN pg_stat_activity a USING (pid)
			WHERE NOT l.granted AND a.backend_type LIKE 'reuse_sync %'}) eq 't';
		usleep(20_000);
	}
	return;
}

# Is the command waiting for a table of the subscription, or if that is its way
# for the end of a transaction?
sub waits_for_copy
{
	my ($command, $node, $db) = @_;
	my $ends = $command->{waits_for_ends} ? 't' : 'f';

	return $node->safe_psql(
		$db, qq{
		SELECT count(*) > 0 FROM pg_locks l JOIN pg_stat_activity a USING (pid)
		LEFT JOIN pg_index i ON i.indexrelid = l.relation
		WHERE a.application_name = 'command' AND NOT l.granted
		AND (l.locktype IN ('virtualxid', 'transactionid') AND '$ends'
			OR coalesce(i.indrelid, l.relation)
				IN (SELECT oid FROM pg_class WHERE relname ~ '^t[0-9]\$'))}) eq
	  't';
}

sub what_waits
{
	return $sub->safe_psql(
		$sub_db, q{
		SELECT a.pid, a.application_name, a.backend_type, a.wait_event_type,
			a.wait_event, a.query, pg_blocking_pids(a.pid)
		FROM pg_stat_activity a WHERE a.wait_event IS NOT NULL});
}

# --- the end ---

sub finish
{
	my ($command, $way) = @_;
	my $plain = $way eq 'plain';
	my $undo  = $command->{undo};

	start_if_down();
	let_go();
	if ($plain && defined $undo && !is_refused($command))
	{
		ref $undo ? $undo->() : $sub->safe_psql($sub_db, $undo);
	}
	check_contents($command, $plain)
	  if !$command->{gone} || $sub->safe_psql($sub_db,
		q{SELECT count(*) FROM pg_subscription WHERE subname = 's'});
	$sub->safe_psql($sub_db, $command->{finally}) if $command->{finally};
	stop_writer();
	$sub->safe_psql($sub_db, 'DROP SUBSCRIPTION IF EXISTS s');
	check_nothing_left();
	return;
}

sub start_if_down
{
	foreach my $node ($pub, $sub)
	{
		next if $node->{_pid} && kill(0, $node->{_pid});
		$node->{_pid} = undef;
		$node->start;
	}
	return;
}

sub check_contents
{
	my ($command, $plain) = @_;
	my %same = map { $_ => 1 } @{ $command->{same} // \@tables };

	start_writer();
	wait_ready($sub, 's', db => $sub_db);
	stop_writer();
	$pub->safe_psql('postgres', 'SELECT txid_current()');
	catch_up($pub, $sub, 's', db => $sub_db);

	# The others have lost rows, but have none that the publisher has not.
	my @others = $plain ? grep { !$same{$_} } @tables : ();
	my @same   = $plain ? sort keys %same : @tables;
	rows_ok($pub, $sub,
		join(' UNION ALL ', map { "SELECT '$_' AS t, a, b FROM $_" } @same),
		"contents of @same", undef, sub_db => $sub_db)
	  if @same;
	foreach my $table (@others)
	{
		my %there = map { $_ => 1 } split /\n/,
		  rows_of($pub, "SELECT a, b FROM $table");
		my @strange = grep { !$there{$_} } split /\n/,
		  rows_of($sub, "SELECT a, b FROM $table", $sub_db);
		is("@strange", '', "rows of $table are the publisher's");
	}
	is_soon(
		'only the subscription\'s own slot is there',
		$pub,
		q{SELECT string_agg(slot_name, ' ') FROM pg_replication_slots},
		's');
	is_soon(
		'only the subscription\'s own origin is there, and no slot of ours',
		$sub,
		q{SELECT string_agg(roname, ' ') FROM pg_replication_origin
		WHERE roname !~ '^pg_[0-9]+$'}
		  . (
			has_extension()
			? q{; SELECT string_agg(slot_name, ' ') FROM reuse_sync.slot_catalog}
			: ''),
		'');
	return;
}

sub has_extension
{
	return $sub->safe_psql($sub_db,
		q{SELECT count(*) FROM pg_extension WHERE extname = 'reuse_sync'});
}

# With the subscription everything has gone.
sub check_nothing_left
{
	is_soon(
		'no slot is left on the publisher',
		$pub,
		q{SELECT string_agg(slot_name, ' ') FROM pg_replication_slots},
		'');
	is_soon(
		'no origin is left, and no row in the catalog',
		$sub,
		q{SELECT string_agg(roname, ' ') FROM pg_replication_origin}
		  . (
			has_extension()
			? q{;
			SELECT 'slot ' || slot_name FROM reuse_sync.slot_catalog
			UNION ALL SELECT 'number ' || subid FROM reuse_sync.slot_number
			UNION ALL SELECT 'table ' || relid FROM reuse_sync.table_progress}
			: ''),
		'');
	return;
}

# One test: the queries' result is this, or is so before long.
sub is_soon
{
	my ($testname, $node, $sql, $expected) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $db  = $node == $sub ? $sub_db : 'postgres';
	my $end = time + 20;
	my $got;

	while (1)
	{
		($got = $node->safe_psql($db, $sql)) =~ s/^\n+|\n+$//g;
		last if $got eq $expected || time > $end;
		usleep(50_000);
	}
	return is($got, $expected, $testname);
}

# After a case that broke off: the next one is to find nothing of it.
sub tidy_up
{
	start_if_down();
	let_go();
	stop_writer();
	$sub->psql($sub_db,
		'ALTER SUBSCRIPTION s DISABLE; ALTER SUBSCRIPTION s SET (slot_name = NONE);'
		  . ' DROP SUBSCRIPTION s');
	$pub->psql('postgres',
		'SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots;'
		  . ' SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots'
	);
	return;
}

# --- helpers ---

# The worker that serves the subscription.
sub worker_pid
{
	return $sub->safe_psql('postgres',
		q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'reuse_sync worker'
		ORDER BY backend_start LIMIT 1});
}

sub wait_until
{
	my ($what, $query, $node, $db) = @_;
	my $end = time + $PostgreSQL::Test::Utils::timeout_default;

	$node //= $sub;
	until ($node->safe_psql($db // 'postgres', $query) eq 't')
	{
		die "waited in vain for $what\n" if time > $end;
		usleep(20_000);
	}
	return;
}

sub start_writer
{
	return if $writer && $writer->pumpable && kill(0, writer_pid());
	$writer = IPC::Run::start(
		[
			$pub->installed_command('pgbench'),      '-n', '-c', 1, '-R', 40,
			'-T', 600, '-f', $pub->basedir . '/writer.sql',
			'-d', $pub->connstr('postgres')
		],
		'>', '/dev/null', '2>&1');
	return;
}

sub writer_pid
{
	return $writer->{KIDS}[0]{PID};
}

sub stop_writer
{
	return unless $writer;
	$writer->kill_kill;
	$writer = undef;

	# What it has begun is over.
	wait_until('the end of the writer',
		q{SELECT count(*) = 0 FROM pg_stat_activity
		WHERE application_name = 'pgbench'}, $pub)
	  if -e $pub->data_dir . '/postmaster.pid';
	return;
}

END
{
	# The exit status is that of the tests.
	my $status = $?;
	kill('CONT', $silent) if $silent;
	$writer->kill_kill if $writer;
	$? = $status;
}

1;
