# The handover is exact whatever the apply worker is doing at that time: far
# behind, far ahead, just restarted, in the middle of a streamed transaction.
# And whatever is done to the tables on the publisher, or with their locks.
#
# Tables have no key, so that a change that is applied twice shows as a row too
# many.  All is done the staged way (batch_size = 0) and the express way.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use CatchUp;

plan skip_all => 'the server hands over in another way'
  unless with_extension();

my $lock_timeout = 1;    # seconds

my $pub = new_publisher('pub', logical_decoding_work_mem => '64kB');
my $sub = new_subscriber(
	'sub',
	wal_retrieve_retry_interval               => '100ms',
	'reuse_sync.handover_lock_timeout'        => "${lock_timeout}s",
	'reuse_sync.max_workers_per_subscription' => 1);
my $catchup = CatchUp->new($pub, $sub);
my $keeper  = $catchup->session('sub');
my @writers = map { $catchup->session('pub') } 1 .. 4;

# What is stopped must go on when the test dies, or the servers can't end.
my %stopped;

sub continue_process
{
	my ($pid) = @_;

	kill('CONT', $pid);
	delete $stopped{$pid};
	return;
}

END
{
	kill('CONT', $_) foreach keys %stopped;
}

# Wait until a query on a server returns true.
sub wait_for
{
	my ($node, $query, $what) = @_;

	$node->poll_query_until('postgres', $query)
	  or die "$what; last lines of the subscriber's log:\n"
	  . ReuseSync::log_tail($sub);
	return;
}

my $apply_query =
  q{SELECT pid FROM pg_stat_subscription WHERE subname = 's' AND relid IS NULL};

sub apply_pid
{
	my $pid = $sub->safe_psql('postgres', $apply_query);

	die 'there is no apply worker' if $pid eq '';
	return $pid;
}

# Stop a process when it is idle, so that it holds nothing others need.
sub stop_process
{
	my ($node, $pid, $idle) = @_;

	wait_for(
		$node,
		"SELECT wait_event ~* '$idle' FROM pg_stat_activity WHERE pid = $pid",
		"process $pid is not idle");
	kill('STOP', $pid) == 1 or die "cannot stop process $pid";
	$stopped{$pid} = 1;
	return;
}

sub stop_apply
{
	my $pid = apply_pid();

	stop_process($sub, $pid, 'LogicalApplyMain');
	return $pid;
}

# End the apply worker, and wait for the next one.
sub wait_apply_not
{
	my ($pid) = @_;

	wait_for(
		$sub,
		"SELECT count(*) = 1 FROM ($apply_query) AS q WHERE pid <> $pid",
		'no new apply worker');
	return;
}

sub configure
{
	my (%conf) = @_;

	foreach my $name (sort keys %conf)
	{
		$sub->append_conf('postgresql.conf',
			"reuse_sync.$name = '$conf{$name}'");
	}
	$sub->reload;
	foreach my $name (sort keys %conf)
	{
		wait_for(
			$sub,
			"SELECT current_setting('reuse_sync.$name') = '$conf{$name}'",
			"$name is not $conf{$name}");
	}
	return;
}

# Create tables, with a few rows on the publisher, and publish them.
sub create_tables
{
	my (@tables) = @_;

	both($pub, $sub,
		join '', map { "CREATE TABLE $_ (a int, b text);\n" } @tables);
	$pub->safe_psql(
		'postgres',
		join '',
		map {
			qq{
			ALTER TABLE $_ REPLICA IDENTITY FULL;
			INSERT INTO $_ SELECT g, 'row ' || g
				FROM generate_series(1, 20) AS g;
			ALTER PUBLICATION p ADD TABLE $_;}
		} @tables);
	return;
}

sub refresh
{
	$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s REFRESH PUBLICATION');
	return;
}

# Many transactions; half of them are also in the table that is ready.
my $next = 1000;

sub change
{
	my ($table, $n) = @_;
	my ($first, $last) = ($next, $next + ($n // 40) - 1);

	$next = $last + 1;
	$pub->safe_psql(
		'postgres', qq{
		DO \$\$ BEGIN
			FOR i IN $first .. $last LOOP
				INSERT INTO $table VALUES (i, 'new');
				COMMIT;
				INSERT INTO ready VALUES (i, '$table');
				UPDATE $table SET b = b || i WHERE a IN (i - 1, i % 20);
				INSERT INTO $table VALUES (-i, 'both');
				UPDATE ready SET b = b || ' changed' WHERE a = i - 2;
				COMMIT;
				DELETE FROM $table WHERE a = i - 5 AND i % 5 = 0;
				COMMIT;
			END LOOP;
		END \$\$});
	return;
}

# A condition for wait_states(): a table is in one of these states.
sub state_is
{
	my ($table, $states) = @_;

	return "count(*) FILTER (WHERE srrelid = '$table'::regclass"
	  . " AND srsubstate ~ '[$states]') = 1";
}

# One test, that tables, and the one that was ready before, are the same.
sub all_equal_ok
{
	my ($testname, @tables) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	wait_ready($sub, 's');
	catch_up($pub, $sub, 's');
	return rows_ok(
		$pub, $sub,
		join(' UNION ALL ',
			map { "SELECT '$_', t::text FROM $_ AS t" } @tables, 'ready'),
		$testname);
}

# Somebody waits for the lock of a handover.
sub wait_for_handover_lock
{
	my ($table) = @_;

	wait_for(
		$sub, qq{
		SELECT count(*) > 0 FROM pg_locks
		WHERE relation = '$table'::regclass AND NOT granted
			AND mode = 'ShareRowExclusiveLock'},
		"nobody tries to hand over $table");
	return;
}

#
# Begin with a table that is ready.
#
both($pub, $sub, 'CREATE TABLE ready (a int, b text)');
$pub->safe_psql('postgres',
	'ALTER TABLE ready REPLICA IDENTITY FULL; CREATE PUBLICATION p FOR TABLE ready'
);
subscribe($pub, $sub, 's', 'p');
wait_ready($sub, 's');
catch_up($pub, $sub, 's');

my %batch_size = (staged => '0', express => '1MB');

foreach my $way (qw(staged express))
{
	configure(batch_size => $batch_size{$way}, batch_tables => 1);

	#
	# The apply worker is far behind.
	#
	my $t = "behind_$way";

	create_tables($t);
	$catchup->close_gate($t);
	my $apply = stop_apply();
	change($t);
	refresh();
	$catchup->wait_at_gates([$t]);
	change($t);
	$catchup->open_gate($t);
	wait_states($sub, 's', state_is($t, 's'));
	change($t);
	is(table_state($sub, $t), 's', "$way: handed over before it was behind");
	continue_process($apply);
	all_equal_ok("$way: the apply worker was far behind", $t);
	is(apply_pid(), $apply, "$way: it is still the same");
	change($t, 5);
	all_equal_ok("$way: after it was behind", $t);

	#
	# The apply worker is ahead: of the copy; of a worker that has been
	# stopped; of a sender that has been stopped.
	#
	$t = "ahead_$way";
	create_tables($t);
	$catchup->close_gate($t);
	$catchup->close_gate("$t late",
		gated => [$t], when => 'new.a = 100');
	refresh();
	$catchup->wait_at_gates([$t]);
	change($t);
	catch_up($pub, $sub, 's');

	my $worker = $sub->safe_psql('postgres',
		q{SELECT pid FROM reuse_sync.workers WHERE relid IS NOT NULL});
	stop_process($sub, $worker, 'advisory');
	$catchup->open_gate($t);
	change($t);
	$pub->safe_psql('postgres', "INSERT INTO $t VALUES (100, 'stops')");
	catch_up($pub, $sub, 's');
	continue_process($worker);

	$catchup->wait_at_gates(["$t late"]);
	my $sender = $pub->safe_psql('postgres',
		q{SELECT active_pid FROM pg_replication_slots
		WHERE slot_name ~ '^reuse_sync' AND active_pid IS NOT NULL});
	like($sender, qr/^\d+$/, "$way: the table's changes are being streamed");
	stop_process($pub, $sender, 'WalSender(Main|WaitForWAL)');
	change($t);
	catch_up($pub, $sub, 's');
	$catchup->open_gate("$t late");
	wait_for(
		$sub,
		q{SELECT count(*) = 0 FROM pg_locks
		WHERE locktype = 'advisory' AND NOT granted},
		'the gate is not passed');
	change($t);
	like(table_state($sub, $t),
		qr/^[idf]$/, "$way: not handed over while the sender is stopped");
	continue_process($sender);
	all_equal_ok("$way: the apply worker was ahead", $t);
	change($t, 5);
	all_equal_ok("$way: after it was ahead", $t);

	#
	# The apply worker is restarted while the lock is waited for, and when the
	# table has been handed over.
	#
	$t = "restarted_$way";
	create_tables($t);
	$keeper->query_safe("BEGIN; LOCK TABLE $t IN ROW EXCLUSIVE MODE");
	refresh();
	# The express way does not try as often.
	foreach my $round (1 .. ($way eq 'express' ? 1 : 2))
	{
		wait_for_handover_lock($t);
		change($t, 10);
		$apply = apply_pid();
		$sub->safe_psql('postgres', "SELECT pg_terminate_backend($apply)");
		change($t, 10);
		wait_apply_not($apply);
	}
	catch_up($pub, $sub, 's');
	$apply = stop_apply();
	change($t, 10);
	like(table_state($sub, $t),
		qr/^[idf]$/, "$way: not handed over while it is locked");
	$keeper->query_safe('COMMIT');
	wait_states($sub, 's', state_is($t, 's'));
	change($t, 10);
	$sub->safe_psql('postgres', "SELECT pg_terminate_backend($apply)");
	is(table_state($sub, $t), 's', "$way: handed over, with no apply worker");
	continue_process($apply);
	wait_apply_not($apply);
	all_equal_ok("$way: the apply worker was restarted", $t);
	change($t, 5);
	all_equal_ok("$way: after it was restarted", $t);
}

#
# Large transactions, streamed while they are in progress.  They begin when the
# slot is there (a new one would wait for them) but before the snapshot of the
# table they write to, and one of them commits before the handover.
#
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s SET (streaming = on)');

# Write a lot, part of it in subtransactions.
sub write_much
{
	my ($session, $table) = @_;
	my $first = $next;

	$next += 1000;
	$session->query_safe(
		qq{
		INSERT INTO $table SELECT g, repeat('x', 200)
			FROM generate_series($first, $first + 299) AS g;
		INSERT INTO ready SELECT g, '$table ' || repeat('x', 200)
			FROM generate_series($first, $first + 299) AS g;
		SAVEPOINT x;
		UPDATE $table SET b = 'x' WHERE a BETWEEN $first AND $first + 20;
		SAVEPOINT y;
		INSERT INTO $table SELECT g, repeat('gone', 100)
			FROM generate_series($first + 300, $first + 599) AS g;
		DELETE FROM ready WHERE a > $first + 200;
		ROLLBACK TO y;
		DELETE FROM $table WHERE a BETWEEN $first + 10 AND $first + 30;
		INSERT INTO $table VALUES ($first + 999, 'last');
		RELEASE x;});
	return;
}

foreach my $way (qw(staged express))
{
	my ($t, $before) = ("streamed_$way", "before_streamed_$way");
	my ($late, $undone, $early) = @writers;

	configure(batch_size => $batch_size{$way}, batch_tables => 1);
	create_tables($before, $t);
	$catchup->close_gate($_) foreach ($before, $t);
	my $streamed = q{SELECT coalesce(sum(stream_count), 0)
		FROM pg_stat_replication_slots WHERE slot_name = 's'};
	my $old_streamed = $pub->safe_psql('postgres', $streamed);

	refresh();
	is(join(' ', $catchup->wait_at_gates([ $before, $t ])),
		$before, "$way: one after the other");
	foreach my $session ($late, $undone, $early)
	{
		$session->query_safe('BEGIN');
		write_much($session, $t);
	}
	$catchup->open_gate($before);
	$catchup->wait_at_gates([$t]);
	write_much($_, $t) foreach ($late, $undone, $early);
	wait_for($pub, "SELECT ($streamed) > $old_streamed",
		'nothing is streamed in progress');
	$early->query_safe('COMMIT');
	$catchup->open_gate($t);
	wait_states($sub, 's', state_is($t, 'sr'));
	write_much($_, $t) foreach ($late, $undone);
	$undone->query_safe('ROLLBACK');
	$late->query_safe('COMMIT');
	all_equal_ok("$way: large transactions in progress", $before, $t);
	is( $sub->safe_psql('postgres', "SELECT count(*) FROM $t WHERE b = 'last'"),
		5,
		"$way: three parts of one, two of the other");
	change($t, 5);
	all_equal_ok("$way: after large transactions", $before, $t);
}

#
# The publisher's tables are changed while the first table is being copied.
#
sub begin_and_wait
{
	my ($session, $sql) = @_;
	my $pid = $session->query_safe('SELECT pg_backend_pid()');

	# It waits for the publisher's side of the copy, unless that is over.
	$session->query_until(qr/begun/,
		"\\echo begun\n$sql;\nSELECT 'changed';\n");
	wait_for(
		$pub, qq{
		SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $pid AND NOT granted)
		OR EXISTS (SELECT FROM pg_stat_activity WHERE pid = $pid
			AND state = 'idle' AND query ~ 'changed')},
		"$sql is neither made nor waits for the copy");
	return;
}

my @altered = map { "altered_$_" } 1 .. 4;

configure(batch_size => $batch_size{express}, batch_tables => 100);
create_tables(@altered);
both(
	$pub, $sub, q{
	CREATE TABLE parted (a int, b text) PARTITION BY LIST (a);
	CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1);
	CREATE TABLE parted_2 PARTITION OF parted FOR VALUES IN (2);
	CREATE TABLE parted_3 (a int, b text);});
$pub->safe_psql(
	'postgres', q{
	ALTER TABLE parted REPLICA IDENTITY FULL;
	ALTER TABLE parted_1 REPLICA IDENTITY FULL;
	ALTER TABLE parted_2 REPLICA IDENTITY FULL;
	ALTER TABLE parted_3 REPLICA IDENTITY FULL;
	INSERT INTO parted SELECT 1 + g % 2, 'row ' || g
		FROM generate_series(1, 20) AS g;
	ALTER PUBLICATION p ADD TABLE parted;});
$catchup->close_gate('altered_1');
refresh();
$catchup->wait_at_gates(['altered_1']);
begin_and_wait($writers[0],
	'ALTER TABLE altered_2 ALTER COLUMN a TYPE bigint USING a + 1000');
begin_and_wait($writers[1],
	q{TRUNCATE altered_3; INSERT INTO altered_3 VALUES (1, 'after TRUNCATE')});
begin_and_wait($writers[2], 'VACUUM FULL altered_4');
begin_and_wait($writers[3], 'ALTER TABLE parted DETACH PARTITION parted_2');
$catchup->open_gate('altered_1');
$_->query_safe('SELECT 1') foreach @writers;
$pub->safe_psql(
	'postgres', q{
	INSERT INTO altered_2 VALUES (1, 'after');
	INSERT INTO altered_4 VALUES (1, 'after');
	UPDATE altered_4 SET b = 'after' WHERE a = 3;
	INSERT INTO parted VALUES (1, 'after');});
wait_ready($sub, 's');
catch_up($pub, $sub, 's');

# The rewrite itself is nothing that is replicated.
rows_ok(
	$pub, $sub,
	q{SELECT CASE WHEN b = 'after' THEN a ELSE a - 1000 END, b FROM altered_2},
	'rewritten',
	'SELECT a, b FROM altered_2');
rows_ok($pub, $sub, $_, "$_: DDL in the batch")
  foreach qw(altered_1 altered_3 altered_4);
rows_ok(
	$pub, $sub,
	'SELECT * FROM parted UNION ALL SELECT * FROM parted_2',
	'partition detached',
	'SELECT * FROM parted');

# ATTACH locks out nobody who reads the parent.
both($pub, $sub, 'CREATE TABLE joined (a int, b text) PARTITION BY LIST (a);
	CREATE TABLE joined_1 PARTITION OF joined FOR VALUES IN (1);
	CREATE TABLE joined_2 (a int, b text)');
$sub->safe_psql('postgres',
	'ALTER TABLE joined ATTACH PARTITION joined_2 FOR VALUES IN (2)');
$pub->safe_psql(
	'postgres', q{
	ALTER TABLE joined_1 REPLICA IDENTITY FULL;
	ALTER TABLE joined_2 REPLICA IDENTITY FULL;
	INSERT INTO joined SELECT 1, 'row ' || g FROM generate_series(1, 9) AS g;
	ALTER PUBLICATION p ADD TABLE joined;});
create_tables('altered_5');
$catchup->close_gate('joined', gated => ['joined_1']);
refresh();
$catchup->wait_at_gates(['joined']);
$pub->safe_psql(
	'postgres', q{
	ALTER TABLE joined ATTACH PARTITION joined_2 FOR VALUES IN (2);
	INSERT INTO joined VALUES (1, 'attached'), (2, 'attached');});
begin_and_wait($writers[0], 'VACUUM FULL altered_5');
$catchup->open_gate('joined');
$writers[0]->query_safe('SELECT 1');
$pub->safe_psql('postgres', q{UPDATE joined_1 SET b = b || ' later'});
wait_ready($sub, 's');
refresh();
wait_ready($sub, 's');
catch_up($pub, $sub, 's');
rows_ok($pub, $sub, $_, "$_: a partition attached on the publisher")
  foreach qw(joined altered_5);

# A partition that is attached while its parent, which goes alone, has to wait
# for another unit: it is in the copy as one table, with the rows it has.
both($pub, $sub, 'CREATE TABLE root_first (a int, b text)');
$sub->safe_psql('postgres', 'CREATE TABLE rooted (a int, b text)');
$pub->safe_psql(
	'postgres', q{
	CREATE TABLE rooted (a int, b text) PARTITION BY LIST (a);
	CREATE TABLE rooted_1 PARTITION OF rooted FOR VALUES IN (1);
	CREATE TABLE rooted_2 (a int, b text);
	ALTER TABLE rooted REPLICA IDENTITY FULL;
	ALTER TABLE rooted_1 REPLICA IDENTITY FULL;
	ALTER TABLE rooted_2 REPLICA IDENTITY FULL;
	INSERT INTO root_first VALUES (1, 'row');
	INSERT INTO rooted SELECT 1, 'row ' || g FROM generate_series(1, 9) AS g;
	INSERT INTO rooted_2 SELECT 2, 'row ' || g FROM generate_series(1, 9) AS g;
	CREATE PUBLICATION p_root FOR TABLE root_first, rooted
		WITH (publish_via_partition_root = true);});
$catchup->close_gate('root_first');
subscribe($pub, $sub, 's_root', 'p_root');
$catchup->wait_at_gates(['root_first']);
$pub->safe_psql(
	'postgres', q{
	ALTER TABLE rooted ATTACH PARTITION rooted_2 FOR VALUES IN (2);
	INSERT INTO rooted VALUES (1, 'attached'), (2, 'attached');
	UPDATE rooted SET b = 'changed' WHERE b = 'row 2';
	INSERT INTO rooted_2 VALUES (2, 'between');
	DELETE FROM rooted WHERE b = 'row 3';});
$pub->safe_psql('postgres', 'VACUUM FULL rooted_1');
$catchup->open_gate('root_first');
$writers[0]->query_safe(q{UPDATE rooted SET b = b || '+' WHERE b ~ '[67]'});
wait_ready($sub, 's_root');
catch_up($pub, $sub, 's_root');
rows_ok($pub, $sub, 'rooted',
	'a partition attached before its parent is copied');
$sub->safe_psql('postgres', 'DROP SUBSCRIPTION s_root');

# The same of a table that is alone.
configure(batch_size => $batch_size{staged});
create_tables('altered_alone', 'truncated_alone');
$sub->safe_psql('postgres', 'ALTER TABLE altered_alone ADD COLUMN c float');
$catchup->close_gate($_) foreach qw(altered_alone truncated_alone);
refresh();
$catchup->wait_at_gates(['altered_alone']);
begin_and_wait($writers[0],
	q{ALTER TABLE altered_alone ALTER COLUMN a TYPE bigint,
		ADD COLUMN c float DEFAULT random()});
$catchup->open_gate('altered_alone');
$writers[0]->query_safe(q{INSERT INTO altered_alone VALUES (1, 'after')});
$catchup->wait_at_gates(['truncated_alone']);
begin_and_wait($writers[0],
	q{TRUNCATE truncated_alone; INSERT INTO truncated_alone VALUES (1, 'new')}
);
$catchup->open_gate('truncated_alone');
$writers[0]->query_safe('SELECT 1');
wait_ready($sub, 's');
catch_up($pub, $sub, 's');
rows_ok($pub, $sub, $_, "$_: DDL while it is copied")
  foreach ('truncated_alone', 'SELECT a, b FROM altered_alone');

#
# The apply worker is not held up for long by a lock that can't be had.
#
both($pub, $sub, 'CREATE TABLE heartbeat (a int PRIMARY KEY)');
$sub->safe_psql('postgres',
	'ALTER TABLE heartbeat ADD at timestamptz DEFAULT clock_timestamp()');
$pub->safe_psql('postgres',
	'CREATE TABLE over (); ALTER PUBLICATION p ADD TABLE heartbeat');
refresh();
wait_ready($sub, 's');

foreach my $way (qw(staged express))
{
	my $t = "held_$way";

	configure(batch_size => $batch_size{$way});
	create_tables($t);
	$pub->safe_psql('postgres', 'TRUNCATE heartbeat');
	$keeper->query_safe("BEGIN; LOCK TABLE $t IN ROW EXCLUSIVE MODE");
	refresh();

	# One change of the table, one of the other, until a table is dropped.
	$writers[0]->query_until(
		qr/begun/, qq{\\echo begun
		DO \$\$ BEGIN
			FOR i IN 1 .. 2000 LOOP
				INSERT INTO heartbeat VALUES (i);
				COMMIT;
				INSERT INTO $t VALUES (100 + i, 'meanwhile');
				COMMIT;
				EXIT WHEN to_regclass('over') IS NULL;
				PERFORM pg_sleep(0.01);
			END LOOP;
		END \$\$;
	});
	my $apply   = apply_pid();
	my $waiting = qq{
		SELECT count(*) > 0 FROM pg_locks
		WHERE pid = $apply AND relation = '$t'::regclass AND NOT granted};

	foreach my $round (1 .. ($way eq 'express' ? 1 : 2))
	{
		wait_for($sub, $waiting, 'the apply worker is not held up');
		wait_for($sub, "SELECT NOT ($waiting)", 'it is held up for ever');
	}
	like(table_state($sub, $t), qr/^[idf]$/, "$way: it can't be locked");
	$keeper->query_safe('COMMIT');
	wait_states($sub, 's', state_is($t, 'sr'));
	$pub->safe_psql('postgres', 'DROP TABLE over');
	$writers[0]->query_safe('SELECT 1');
	all_equal_ok("$way: beside a table that could not be locked", $t);
	rows_ok($pub, $sub, 'SELECT a FROM heartbeat', "$way: all heartbeats");
	my $gap = $sub->safe_psql(
		'postgres', q{
		SELECT extract(epoch FROM max(gap)) FROM
			(SELECT at - lag(at) OVER (ORDER BY a) AS gap FROM heartbeat) AS g});
	cmp_ok($gap, '<', 2 * $lock_timeout + 1,
		"$way: the apply worker was held up for a short time only");
	note("longest gap: $gap s");
	is(apply_pid(), $apply, "$way: it is still the same");
	$pub->safe_psql('postgres', 'CREATE TABLE over ()');
}

is( $sub->safe_psql(
		'postgres', q{
		SELECT count(*), count(DISTINCT srrelid) =  count(*)
		FROM pg_subscription_rel WHERE srsubstate <> 'r'}),
	'0|t',
	'no table is left behind');
no_leftovers_ok($pub, $sub);
no_errors_ok($sub, 0, 'there were no errors');

# What is given up is done again, with all changes in the copy.
my $log = slurp_file($sub->logfile);
is( join("\n",
		grep { !/took longer than/ }
		  $log =~ /gives up a unit of subscription .*\n.*DETAIL:  (.*)/g),
	'',
	'nothing was given up but for a lock');
is( join("\n",
		$log =~ /reuse_sync worker synchronized (\d+ tables from "[^"]*")/g),
	join("\n",
		'6 tables from "public.altered_1"',
		'2 tables from "public.joined_1"'),
	'the batches were what they should be');

end_session($_) foreach ($keeper, @writers);
$catchup->finish;
no_builtin_sync_ok($sub);

done_testing();
