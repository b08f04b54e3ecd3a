# Small tables are synchronized in batches, the express way; large ones alone
# and before them, the staged way.
#
# One worker does it all, so that a batch is what the settings make it, and
# batches come one after the other, in the order in which the subscriber's
# tables were created.  Gates stop it in the middle of one.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use CatchUp;

plan skip_all => 'the server synchronizes every table alone'
  unless with_extension();

my $pub = new_publisher('pub', max_prepared_transactions => 10);
my $sub = new_subscriber(
	'sub',
	wal_retrieve_retry_interval               => '100ms',
	'reuse_sync.max_retry_interval'           => '1s',
	'reuse_sync.max_workers_per_subscription' => 1);
my $catchup = CatchUp->new($pub, $sub);

# Change settings of a server; return when its processes have been told.
sub configure_node
{
	my ($node, %conf) = @_;

	foreach my $name (sort keys %conf)
	{
		$node->append_conf('postgresql.conf', "$name = '$conf{$name}'");
	}
	$node->reload;
	foreach my $name (sort keys %conf)
	{
		$node->poll_query_until(
			'postgres', "SELECT current_setting('$name')", $conf{$name})
		  or die "$name is not $conf{$name}";
	}
	return;
}

# Change settings of the subscriber.
sub configure
{
	return configure_node($sub, @_);
}

# Create tables on both sides, with the same few rows on the publisher, and a
# publication of them; columns is what comes after the key.
sub create_tables
{
	my ($publication, @tables) = @_;

	both($pub, $sub,
		join('',
			map { "CREATE TABLE $_ (a int PRIMARY KEY, b text);\n" } @tables));
	$pub->safe_psql(
		'postgres',
		join('',
			map {
				"INSERT INTO $_ SELECT g, 'row ' || g"
				  . " FROM generate_series(1, 20) AS g;\n"
			} @tables)
		  . "CREATE PUBLICATION $publication FOR TABLE "
		  . join(', ', @tables));
	return;
}

# One test, that several tables have the same rows on both sides.
sub rows_of_all_ok
{
	my ($testname, @tables) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return rows_ok(
		$pub, $sub,
		join(' UNION ALL ',
			map { "SELECT '$_', t::text FROM $_ AS t" } @tables),
		$testname);
}

# The states of tables in pg_subscription_rel, as one string.
sub states_of
{
	return '' unless @_;
	my $list = join ', ', map { "'$_'::regclass" } @_;

	return $sub->safe_psql(
		'postgres', qq{
		SELECT string_agg(srsubstate, ''
			ORDER BY array_position(ARRAY[$list]::oid[], srrelid))
		FROM pg_subscription_rel WHERE srrelid IN ($list)});
}

# A condition for wait_states(): these tables have been handed over.
sub handed_over
{
	my $list = join ', ', map { "'$_'::regclass" } @_;

	return "count(*) FILTER (WHERE srsubstate IN ('s', 'r')"
	  . " AND srrelid IN ($list)) = "
	  . scalar(@_);
}

# What was counted since the last call.
my %counted;

sub count
{
	my @names = qw(tables_synced units slots_created slots_reused
	  slots_dropped transactions_applied transactions_skipped errors);
	my %since;

	my @now = split /\|/,
	  $sub->safe_psql('postgres',
		'SELECT ' . join(', ', @names) . ' FROM reuse_sync.stats');
	foreach my $name (@names)
	{
		my $value = shift @now;

		$since{$name} = $value - ($counted{$name} // 0);
		$counted{$name} = $value;
	}
	return \%since;
}

# The units in the log since an offset, and what they were.
sub units_in_log
{
	my ($offset) = @_;

	return slurp_file($sub->logfile, $offset) =~
	  /reuse_sync worker synchronized ((?:table|\d+ tables from) "[^"]*")/g;
}

sub log_offset
{
	return -s $sub->logfile;
}

#
# Two batches of four over one slot.  A table that is ready goes on beside.
#
my $offset = log_offset();

both($pub, $sub, 'CREATE TABLE ready (a serial PRIMARY KEY, b text)');
$pub->safe_psql('postgres', 'CREATE PUBLICATION p_ready FOR TABLE ready');
subscribe($pub, $sub, 's', 'p_ready');
wait_ready($sub, 's');

my @first  = map { "t$_" } 1 .. 4;
my @second = map { "t$_" } 5 .. 8;

create_tables('p_two', @first, @second);
configure('reuse_sync.batch_tables' => 4,
	'reuse_sync.handover_lock_timeout' => '30s');
count();
$catchup->close_gate($_) foreach qw(t2 t7);
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s ADD PUBLICATION p_two');
$catchup->wait_at_gates(['t2']);

my $workers = q{
	SELECT worker_type, datname, subname, phase, relid, batch_tables
	FROM reuse_sync.workers
	WHERE worker_type = 'worker' AND subname IS NOT NULL};
my $tables = q{
	SELECT t.relid::regclass, t.state, t.pid = w.pid, t.slot_name = w.slot_name,
		t.attempts, t.last_error
	FROM reuse_sync.tables AS t
		LEFT JOIN reuse_sync.workers AS w ON w.pid = t.pid
	WHERE t.state <> 'ready'
	ORDER BY t.relid};
is( $sub->safe_psql('postgres', $workers),
	'worker|postgres|s|copying||4',
	'a worker shows that it has a batch');
is( $sub->safe_psql('postgres', $tables),
	join("\n",
		(map { "$_|copying|t|t|0|" } @first),
		(map { "$_|pending|||0|" } @second)),
	'tables show who is at them');
is( $sub->safe_psql(
		'postgres', q{
		SELECT s.state, s.pid = w.pid, s.relid
		FROM reuse_sync.slots AS s JOIN reuse_sync.workers AS w
			ON w.slot_name = s.slot_name}),
	'active|t|',
	'the slot is for no table alone');
is( states_of(@first, @second),
	'iiiiiiii', 'there is nothing between "i" and "s"');

# The second batch has no snapshot yet.  What has committed by then it sees;
# the open transaction and the one that is left prepared it does not.
my $open = $catchup->session('pub');
$open->query_safe(
	q{BEGIN;
	INSERT INTO t1 VALUES (200, 'open');
	INSERT INTO t8 VALUES (200, 'open');
	SAVEPOINT s;
	DELETE FROM t5;
	ROLLBACK TO s;
	INSERT INTO ready (b) VALUES ('open');});
$pub->safe_psql(
	'postgres', q{
	-- two tables of the batch, one of the other, and the one that is ready
	BEGIN;
	INSERT INTO t1 VALUES (21, 'new'), (22, 'gone');
	UPDATE t3 SET b = 'changed' WHERE a < 4;
	DELETE FROM t5 WHERE a = 20;
	INSERT INTO ready (b) VALUES ('together');
	DELETE FROM t1 WHERE a IN (5, 22);
	SAVEPOINT s;
	DELETE FROM t3;
	INSERT INTO t6 VALUES (21, 'gone');
	ROLLBACK TO s;
	UPDATE t5 SET a = a + 100 WHERE a > 15;
	COMMIT;

	-- keys
	UPDATE t1 SET a = 100, b = 'new key' WHERE a = 10;
	UPDATE t2 SET a = -a;
	UPDATE t6 SET a = a + 100 WHERE a BETWEEN 10 AND 15;
	INSERT INTO t1 VALUES (10, 'old key');

	-- one after the other
	INSERT INTO t2 VALUES (30, 'one');
	UPDATE t2 SET b = 'two' WHERE a = 30;
	DELETE FROM t2 WHERE a = 30;
	INSERT INTO t2 VALUES (30, 'three');

	BEGIN;
	DELETE FROM t1;
	DELETE FROM t8;
	ROLLBACK;

	BEGIN;
	INSERT INTO t3 VALUES (40, 'prepared');
	DELETE FROM t7 WHERE a = 2;
	UPDATE ready SET b = b || ', prepared';
	PREPARE TRANSACTION 'yes';
	BEGIN;
	DELETE FROM t3 WHERE a > 15;
	INSERT INTO t7 VALUES (41, 'gone');
	PREPARE TRANSACTION 'no';
	BEGIN;
	UPDATE t3 SET b = 'prepared late' WHERE a = 10;
	UPDATE t7 SET a = 70, b = 'prepared late' WHERE a = 7;
	INSERT INTO t8 VALUES (70, 'prepared late');
	PREPARE TRANSACTION 'later';
	ROLLBACK PREPARED 'no';
	COMMIT PREPARED 'yes';});

# The publisher's side of the copy is over, or will be in a moment.  The lock
# keeps the batch from being handed over until these have been made.
my $keeper = $catchup->session('sub');
my $writer = $catchup->session('pub');
$keeper->query_safe('BEGIN; LOCK TABLE t1 IN ROW EXCLUSIVE MODE');
$writer->query_safe(
	q{BEGIN;
	INSERT INTO t3 VALUES (300, 'with truncate');
	TRUNCATE t4, t6;
	INSERT INTO t4 VALUES (1, 'truncated');
	COMMIT;
	INSERT INTO t4 VALUES (2, 'truncated');
	TRUNCATE t2;
	INSERT INTO t2 VALUES (2, 'truncated');});
$catchup->open_gate('t2');
is(states_of(@first), 'iiii', 'all changes were made before the handover');

# The second snapshot waits for this transaction and sees it; it commits after
# the handover of the first batch, so it is streamed to the second one.
$writer->query_safe(
	q{BEGIN; LOCK TABLE t5 IN ACCESS EXCLUSIVE MODE;
	INSERT INTO t5 VALUES (50, 'seen'), (51, 'seen');
	UPDATE t5 SET a = a + 300 WHERE a = 3;
	UPDATE t6 SET b = 'seen'; INSERT INTO t6 VALUES (50, 'seen');
	UPDATE t1 SET b = b || ', seen' WHERE a < 12;});
$keeper->query_safe('COMMIT');
$pub->poll_query_until(
	'postgres', q{
	SELECT count(*) > 0 FROM pg_locks
	WHERE relation = 't5'::regclass AND NOT granted})
  or die 'the second batch does not come to t5';
$writer->query_safe('COMMIT');

$catchup->wait_at_gates(['t7']);
like(states_of(@first), qr/^[sr]{4}$/, 'the first batch is handed over');
is(states_of(@second), 'iiii', 'the second one is not');
is( $sub->safe_psql('postgres', $workers),
	'worker|postgres|s|copying||4',
	'the worker has the second batch');
$open->query_safe(
	q{INSERT INTO t7 VALUES (200, 'open');
	UPDATE t1 SET b = b || ', late' WHERE a = 200;
	COMMIT});
$pub->safe_psql(
	'postgres', q{
	COMMIT PREPARED 'later';
	BEGIN;
	UPDATE t8 SET b = b || ', late';
	UPDATE t5 SET b = b || ', late' WHERE a % 2 = 0;
	UPDATE t1 SET b = b || ', late' WHERE a % 3 = 0;
	INSERT INTO ready (b) VALUES ('late');
	DELETE FROM t7 WHERE a = 3;
	COMMIT;
	BEGIN;
	DELETE FROM t7;
	ROLLBACK;});

# The worker waits for the lock on its first table, and has no other.  The
# apply worker skips what it finds of another one, and is past it when the
# locks are there.
catch_up($pub, $sub, 's');
$keeper->query_safe('BEGIN; LOCK TABLE t5 IN ROW EXCLUSIVE MODE');
$catchup->open_gate('t7');
$sub->poll_query_until(
	'postgres', q{
	SELECT count(*) > 0 FROM pg_locks
	WHERE relation = 't5'::regclass AND NOT granted})
  or die 'the second batch does not come to the handover';
$pub->safe_psql(
	'postgres', q{
	BEGIN;
	INSERT INTO t8 VALUES (80, 'skipped');
	INSERT INTO ready (b) VALUES ('not skipped');
	UPDATE t8 SET b = b || ', skipped' WHERE a = 70;
	COMMIT;});
catch_up($pub, $sub, 's');
is( states_of(@second)
	  . $sub->safe_psql('postgres',
		q{SELECT count(*) FROM ready WHERE b = 'not skipped'}),
	'iiii1',
	'the apply worker is past a change of the second batch');
$keeper->query_safe('COMMIT');
wait_ready($sub, 's');
catch_up($pub, $sub, 's');
rows_of_all_ok('two batches', @first, @second, 'ready');
is( $pub->safe_psql(
		'postgres', q{
		SELECT (SELECT string_agg(a || b, ', ' ORDER BY a) FROM t4),
			(SELECT count(*) FROM t6),
			(SELECT b FROM t1 WHERE a = 200), (SELECT b FROM t3 WHERE a = 10),
			(SELECT b FROM t7 WHERE a = 70), (SELECT b FROM t8 WHERE a = 70)}),
	'1truncated, 2truncated|1|open, late|prepared late|prepared late'
	  . '|prepared late, late, skipped',
	'the transactions have done what they should');

my $since = count();
is( join(' ',
		map { $since->{$_} }
		  qw(tables_synced units slots_created slots_reused errors)),
	'8 2 1 1 0',
	'eight tables in two units over one slot');
cmp_ok($since->{transactions_applied},
	'>=', 10, 'transactions of both batches were applied');
cmp_ok($since->{transactions_skipped},
	'>=', 1, 'transactions were skipped that the second snapshot saw');
is( join("\n", units_in_log($offset)),
	qq{table "public.ready"\n4 tables from "public.t1"\n}
	  . '4 tables from "public.t5"',
	'the log tells of the batches');

# Nothing is applied twice, or lost, from here on.
my $later = join '', map {
	qq{
	UPDATE $_ SET b = b || ', later' WHERE a % 2 = 0;
	INSERT INTO $_ VALUES (1000, 'later');
	DELETE FROM $_ WHERE a IN (1, 4);
	UPDATE $_ SET a = a + 5000 WHERE a < 12;}
} @first, @second;
$pub->safe_psql('postgres', "BEGIN; $later; COMMIT");
catch_up($pub, $sub, 's');
rows_of_all_ok('afterwards', @first, @second);
no_leftovers_ok($pub, $sub, 'no slot and no origin left');
no_errors_ok($sub, 0, 'nothing has failed and been tried again');

#
# A transaction that the snapshot of a batch has seen and that has not been
# flushed when the batch is handed over: it has committed asynchronously, and
# the process that would flush it in a moment is slow.
#
my @unflushed = map { "unflushed_$_" } 1 .. 8;

create_tables('p_unflushed', @unflushed);
$catchup->close_gate('unflushed_2');
$sub->safe_psql('postgres',
	'ALTER SUBSCRIPTION s ADD PUBLICATION p_unflushed');
$catchup->wait_at_gates(['unflushed_2']);
$writer->query_safe(
	q{SET synchronous_commit = off;
	BEGIN; LOCK TABLE unflushed_5 IN ACCESS EXCLUSIVE MODE;
	INSERT INTO unflushed_5 VALUES (50, 'seen');
	UPDATE unflushed_6 SET a = a + 100 WHERE a < 5;
	INSERT INTO unflushed_6 VALUES (1, 'seen');
	DELETE FROM unflushed_7 WHERE a = 3;});
$catchup->open_gate('unflushed_2');
$pub->poll_query_until(
	'postgres', q{
	SELECT count(*) > 0 FROM pg_locks
	WHERE relation = 'unflushed_5'::regclass AND NOT granted})
  or die 'the second batch does not come to unflushed_5';
configure_node($pub, wal_writer_delay => '10s');
$writer->query_safe('COMMIT; RESET synchronous_commit');
wait_ready($sub, 's');
configure_node($pub, wal_writer_delay => '200ms');
$pub->safe_psql('postgres', q{INSERT INTO unflushed_5 VALUES (51, 'later')});
catch_up($pub, $sub, 's');
rows_of_all_ok('seen before it was flushed', @unflushed);
no_errors_ok($sub, 0, 'the apply worker has not met it again');

#
# Tables of a batch that fail, each in its own way.
#
my @good = map { "good_$_" } 1 .. 14;
my %bad = (
	bad_key     => qr/duplicate key value violates unique constraint/,
	bad_value   => qr/invalid input syntax for type integer/,
	bad_column  => qr/missing replicated column/,
	bad_missing => qr/does not exist on the publisher/,
	bad_locked =>
	  qr/could not lock table .* on the publisher: .*lock timeout/);

# The first ten are a batch of their own: the slot must be there before a table
# is locked on the publisher, since its creation waits for whoever does that.
configure(
	'reuse_sync.batch_tables'          => 10,
	'reuse_sync.handover_lock_timeout' => '200ms',
	'reuse_sync.paused'                => 'on');
create_tables('p_bad', @good[ 0 .. 9 ],
	'bad_key', $good[10], 'bad_value', $good[11], 'bad_column', $good[12],
	'bad_missing', $good[13], 'bad_locked');
$sub->safe_psql(
	'postgres', q{
	INSERT INTO bad_key VALUES (7, 'in the way');
	ALTER TABLE bad_value ALTER b TYPE int USING 0;
	ALTER TABLE bad_column DROP b;});
$catchup->close_gate('good_1');
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s ADD PUBLICATION p_bad');
$pub->safe_psql('postgres', 'DROP TABLE bad_missing');
is( states_of(@good, sort keys %bad),
	'i' x (@good + keys %bad),
	'nothing is synchronized while the pool is paused');

configure('reuse_sync.paused' => 'off');
$catchup->wait_at_gates(['good_1']);
$writer->query_safe(
	q{BEGIN; LOCK TABLE bad_locked IN ACCESS EXCLUSIVE MODE;
	INSERT INTO bad_locked VALUES (21, 'in the transaction')});
$catchup->open_gate('good_1');
wait_states($sub, 's',
	q{count(*) FILTER (WHERE srsubstate NOT IN ('s', 'r')) = }
	  . scalar(keys %bad));
like(
	states_of(sort keys %bad),
	qr/^[id]{5}$/,
	'all tables but those that fail are ready');

# What a condition says of a table in the view; returns when it is true.
my $wait_for_table = sub {
	my ($table, $condition) = @_;

	$sub->poll_query_until(
		'postgres', qq{
		SELECT $condition FROM reuse_sync.tables
		WHERE relid = '$table'::regclass})
	  or die "$table: not $condition";
};
foreach my $table (sort keys %bad)
{
	$wait_for_table->($table, 'last_error IS NOT NULL');
	like(
		$sub->safe_psql(
			'postgres', qq{
			SELECT last_error FROM reuse_sync.tables
			WHERE relid = '$table'::regclass}),
		$bad{$table},
		"$table: the view has the error");
}
is( $sub->safe_psql(
		'postgres', q{
		SELECT count(*) FROM reuse_sync.tables
		WHERE last_error IS NOT NULL AND next_retry > last_error_time - interval '10 ms'
			AND next_retry <= last_error_time + interval '1.1 s'}),
	scalar(keys %bad),
	'all are going to be tried again soon');
is( $sub->safe_psql(
		'postgres', q{
		SELECT count(*) FROM reuse_sync.tables
		WHERE attempts > 0 AND state IN ('ready', 'synchronized')}),
	0,
	'no other table has failed');

is( $sub->safe_psql(
		'postgres', q{
		SELECT relid::regclass FROM reuse_sync.tables
		WHERE last_error IS NOT NULL AND attempts = 0}),
	'bad_locked',
	'the one that is locked has not failed either');

# The others are replicated meanwhile.
$pub->safe_psql('postgres',
	join '',
	map { "UPDATE $_ SET b = 'meanwhile' WHERE a < 5;" } @good);
catch_up($pub, $sub, 's');
rows_of_all_ok('beside tables that fail', @good);

# Mended one by one, they become ready by themselves.
my %mend = (
	bad_key =>
	  sub { $sub->safe_psql('postgres', 'DELETE FROM bad_key WHERE a = 7') },
	bad_value => sub {
		$sub->safe_psql('postgres', 'ALTER TABLE bad_value ALTER b TYPE text');
	},
	bad_column =>
	  sub { $sub->safe_psql('postgres', 'ALTER TABLE bad_column ADD b text') },
	bad_missing => sub {
		$pub->safe_psql(
			'postgres', q{
			CREATE TABLE bad_missing (a int PRIMARY KEY, b text);
			INSERT INTO bad_missing VALUES (1, 'again');
			ALTER PUBLICATION p_bad ADD TABLE bad_missing;});
	},
	bad_locked => sub { $writer->query_safe('COMMIT') });

# The one that is locked first: a new slot can't be had before that.
my @failing = reverse sort keys %bad;
@failing = ('bad_locked', grep { $_ ne 'bad_locked' } @failing);
while (my $table = shift @failing)
{
	$wait_for_table->($table, 'attempts > 1') if $table ne 'bad_locked';
	$mend{$table}->();
	wait_states($sub, 's', handed_over($table));
	like(states_of(@failing), qr/^[id]*$/, "$table was mended, alone");
	$pub->safe_psql('postgres', "INSERT INTO $table VALUES (500, 'mended')");
}
wait_ready($sub, 's');
catch_up($pub, $sub, 's');
rows_of_all_ok('mended', sort keys %bad);
is( $sub->safe_psql(
		'postgres', q{
		SELECT count(*) FROM reuse_sync.tables
		WHERE state <> 'ready' OR attempts <> 0 OR next_retry IS NOT NULL
			OR last_error IS NOT NULL}),
	0,
	'no error is shown any more');
no_leftovers_ok($pub, $sub, 'no slot and no origin left by failures');

#
# A local transaction that has written to one table of a batch, and stays open.
#
my @held = map { "held_$_" } 1 .. 6;

create_tables('p_held', @held);
$keeper->query_safe(q{BEGIN; INSERT INTO held_3 VALUES (-1, 'local')});
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s ADD PUBLICATION p_held');
wait_states($sub, 's',
	q{count(*) FILTER (WHERE srsubstate NOT IN ('s', 'r')) = 1});
like(table_state($sub, 'held_3'),
	qr/^[idf]$/, 'all tables but the one with a writer are ready');
foreach my $i (1 .. 5)
{
	$pub->safe_psql(
		'postgres', qq{
		BEGIN;
		INSERT INTO held_3 VALUES (100 + $i, 'new');
		INSERT INTO held_1 VALUES (100 + $i, 'new');
		INSERT INTO ready (b) VALUES ('held');
		COMMIT;
		UPDATE held_3 SET b = 'changed $i' WHERE a = $i;
		DELETE FROM held_5 WHERE a = $i;});
	catch_up($pub, $sub, 's');
}
rows_of_all_ok('beside a table that cannot be locked',
	'ready', grep { $_ ne 'held_3' } @held);
like(table_state($sub, 'held_3'),
	qr/^[idf]$/, 'the one with a writer is still not ready');
is( $sub->safe_psql(
		'postgres',
		q{SELECT attempts FROM reuse_sync.tables
		WHERE relid = 'held_3'::regclass}),
	0,
	'that it has to wait is no failure');
$keeper->query_safe('ROLLBACK');
wait_ready($sub, 's');
catch_up($pub, $sub, 's');
rows_of_all_ok('when the writer has ended', 'held_3');

#
# Changes that take longer under the lock than it may be held.  The first
# change is applied before the table is locked; the second one is made while
# that goes on, and is left for the time under the lock.  Then the row of the
# first change stops the next copy.
#
both($pub, $sub,
	'CREATE TABLE slow (a int PRIMARY KEY, b text, seconds float)');
$pub->safe_psql(
	'postgres', q{
	INSERT INTO slow SELECT g, 'row ' || g, 0 FROM generate_series(1, 20) AS g;
	CREATE PUBLICATION p_slow FOR TABLE slow;});
$sub->safe_psql(
	'postgres', q{
	CREATE FUNCTION take_time() RETURNS trigger LANGUAGE plpgsql AS
		'BEGIN PERFORM pg_sleep(new.seconds); RETURN new; END';
	CREATE TRIGGER take_time BEFORE INSERT OR UPDATE ON slow
		FOR EACH ROW EXECUTE FUNCTION take_time();
	ALTER TABLE slow ENABLE ALWAYS TRIGGER take_time;});
$offset = log_offset();
$catchup->close_gate('slow', when => 'new.a = 1');
$catchup->close_gate('slow, row 100',
	gated => ['slow'], when => 'new.a = 100');
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s ADD PUBLICATION p_slow');
$catchup->wait_at_gates(['slow']);
is(table_state($sub, 'slow'), 'i', 'a single small table goes express');
$pub->safe_psql('postgres', q{INSERT INTO slow VALUES (100, 'first', 0)});
$catchup->open_gate('slow');
$catchup->wait_at_gates(['slow, row 100']);
$pub->safe_psql(
	'postgres', q{
	INSERT INTO slow VALUES (101, 'slow', 0.5);
	UPDATE slow SET b = 'changed' WHERE a = 5;
	DELETE FROM slow WHERE a = 6;});

# This session gets the gate when the express way is given up.
my $gate = "4711, $catchup->{number}{'slow, row 100'}";
$keeper->query_until(qr/begun/,
	"\\echo begun\nDO 'BEGIN PERFORM pg_advisory_lock($gate); END';\n");
$sub->poll_query_until(
	'postgres', q{
	SELECT count(*) = 2 FROM pg_locks
	WHERE locktype = 'advisory' AND NOT granted})
  or die 'nobody waits to close the gate again';
$catchup->open_gate('slow, row 100');
$keeper->query_safe('SELECT 1');
$catchup->wait_at_gates(['slow, row 100']);
is(table_state($sub, 'slow'), 'd', 'it is tried again the staged way');
is( $sub->safe_psql(
		'postgres', q{
		SELECT state, attempts FROM reuse_sync.tables
		WHERE relid = 'slow'::regclass}),
	'copying|0',
	'that is no failure');
$pub->safe_psql(
	'postgres', q{
	INSERT INTO slow VALUES (102, 'slow', 0.5), (103, 'quick', 0);
	UPDATE slow SET b = 'changed', seconds = 0 WHERE a IN (7, 101);
	UPDATE slow SET a = 201 WHERE a = 8;
	DELETE FROM slow WHERE a = 9;
	INSERT INTO slow VALUES (104, 'slow', 0.3);});
$keeper->query_safe("DO 'BEGIN PERFORM pg_advisory_unlock($gate); END'");
wait_ready($sub, 's');
catch_up($pub, $sub, 's');
rows_of_all_ok('longer than the lock may be held', 'slow');
is(join("\n", units_in_log($offset)),
	'table "public.slow"', 'it was done once');
$pub->safe_psql('postgres', 'UPDATE slow SET seconds = 0, b = b || a');
catch_up($pub, $sub, 's');
rows_of_all_ok('afterwards', 'slow');
no_leftovers_ok($pub, $sub, 'no slot and no origin left by slow changes');

#
# Large tables come first and go the staged way, small ones follow in a batch.
#
configure('reuse_sync.batch_size' => '100kB');
$offset = log_offset();
create_tables('p_large', qw(small_1 small_2 large small_3));
$pub->safe_psql('postgres',
	q{INSERT INTO large SELECT g, repeat('x', 200)
		FROM generate_series(21, 2000) AS g});
$catchup->close_gate('small_1');
$catchup->close_gate('large');
$catchup->close_gate('large, row 3000',
	gated => ['large'], when => 'new.a = 3000');
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s ADD PUBLICATION p_large');
is(join(' ', $catchup->wait_at_gates([qw(large small_1)])),
	'large', 'the large table comes first');
is(states_of(qw(large small_1 small_2 small_3)),
	'diii', 'it is announced as being copied');
is( $sub->safe_psql(
		'postgres', q{
		SELECT phase, relid::regclass, batch_tables FROM reuse_sync.workers
		WHERE subname IS NOT NULL}),
	'copying|large|1',
	'the worker shows which table it is at');
$pub->safe_psql(
	'postgres', q{
	BEGIN;
	INSERT INTO large VALUES (3000, 'new');
	UPDATE small_1 SET b = 'changed' WHERE a = 1;
	COMMIT;});
$catchup->open_gate('large');
$catchup->wait_at_gates(['large, row 3000']);
is(states_of(qw(large small_1 small_2 small_3)),
	'fiii', 'the copy is committed');
is( $sub->safe_psql(
		'postgres', q{
		SELECT state, relid::regclass FROM reuse_sync.slots}),
	'linked|large',
	'its slot is for it alone');
$pub->safe_psql('postgres',
	'UPDATE large SET a = -a WHERE a > 1990; DELETE FROM small_2 WHERE a = 1');
$catchup->open_gate('large, row 3000');
$catchup->wait_at_gates(['small_1']);
like(states_of(qw(large small_1 small_2 small_3)),
	qr/^[sr]iii$/, 'small tables come when it is done');
$pub->safe_psql('postgres',
	"UPDATE small_3 SET b = 'late'; UPDATE large SET b = 'late' WHERE a < 9");
$catchup->open_gate('small_1');
wait_ready($sub, 's');
catch_up($pub, $sub, 's');
rows_of_all_ok('large and small', qw(large small_1 small_2 small_3));
is( join("\n", units_in_log($offset)),
	qq{table "public.large"\n3 tables from "public.small_1"},
	'one unit for the large table, one for the others');
no_leftovers_ok($pub, $sub, 'no slot and no origin left by either way');

#
# The subscription changes while a batch is copied.
#
my @shaken = map { "shaken_$_" } 1 .. 4;

create_tables('p_shaken', @shaken);
$catchup->close_gate('shaken_2');
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s ADD PUBLICATION p_shaken');
$catchup->wait_at_gates(['shaken_2']);
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s DISABLE');
$pub->safe_psql('postgres',
	'UPDATE shaken_1 SET a = -a; DELETE FROM shaken_3 WHERE a < 5');
$catchup->open_gate('shaken_2');
no_leftovers_ok($pub, $sub, 'a disabled subscription keeps no slot');
is( states_of(@shaken)
	  . $sub->safe_psql('postgres',
		join ' UNION ', map { "SELECT count(*) FROM $_" } @shaken),
	'iiii0',
	'nothing of the batch has come');
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s ENABLE');
wait_ready($sub, 's');
catch_up($pub, $sub, 's');
rows_of_all_ok('disabled and enabled', @shaken);

# Both while it is at the gate
my @stirred = map { "stirred_$_" } 1 .. 4;

create_tables('p_stirred', @stirred);
$catchup->close_gate('stirred_3');
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s ADD PUBLICATION p_stirred');
$catchup->wait_at_gates(['stirred_3']);
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s DISABLE');
$pub->safe_psql('postgres',
	'UPDATE stirred_1 SET a = -a; DELETE FROM stirred_3 WHERE a < 5');
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s ENABLE');
$pub->safe_psql('postgres', q{UPDATE stirred_2 SET b = 'changed'});
$catchup->open_gate('stirred_3');
wait_ready($sub, 's');
catch_up($pub, $sub, 's');
rows_of_all_ok('enabled at once', @stirred);

# REFRESH takes a table out of the batch.
my @refreshed = map { "refreshed_$_" } 1 .. 4;

create_tables('p_refreshed', @refreshed);
$catchup->close_gate('refreshed_3');
$sub->safe_psql('postgres',
	'ALTER SUBSCRIPTION s ADD PUBLICATION p_refreshed');
$catchup->wait_at_gates(['refreshed_3']);
$pub->safe_psql(
	'postgres', q{
	UPDATE refreshed_1 SET b = 'changed';
	ALTER PUBLICATION p_refreshed DROP TABLE refreshed_2;
	UPDATE refreshed_4 SET a = -a;});
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s REFRESH PUBLICATION');
$catchup->open_gate('refreshed_3');
wait_ready($sub, 's');
catch_up($pub, $sub, 's');
rows_of_all_ok('without one of them',
	qw(refreshed_1 refreshed_3 refreshed_4));
is( $sub->safe_psql(
		'postgres', q{
		SELECT (SELECT count(*) FROM refreshed_2),
			(SELECT count(*) FROM reuse_sync.tables
			WHERE relid = 'refreshed_2'::regclass)}),
	'0|0',
	'the table that was taken out is empty');
no_leftovers_ok($pub, $sub, 'no slot and no origin left by REFRESH');

#
# The subscriber crashes.  The sessions and gates of the test go with it.
#
my @crashed = map { "crashed_$_" } 1 .. 6;

create_tables('p_crashed', @crashed);
$catchup->close_gate('crashed_4');
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s ADD PUBLICATION p_crashed');
$catchup->wait_at_gates(['crashed_4']);
$pub->safe_psql(
	'postgres', q{
	UPDATE crashed_1 SET b = 'before the crash' WHERE a < 5;
	DELETE FROM crashed_5 WHERE a = 2;});
$keeper->quit;
$sub->stop('immediate');
$pub->safe_psql(
	'postgres', q{
	UPDATE crashed_1 SET b = 'while it was down' WHERE a > 15;
	INSERT INTO crashed_6 VALUES (21, 'while it was down');});
$catchup->{holder}->quit;
$sub->start;
$catchup->{holder} = $catchup->session('sub');
wait_ready($sub, 's');
catch_up($pub, $sub, 's');
rows_of_all_ok('after a crash', @crashed, 'ready');
$pub->safe_psql('postgres',
	join '', map { "UPDATE $_ SET a = -a; DELETE FROM $_ WHERE a > -3;" }
	  @crashed);
catch_up($pub, $sub, 's');
rows_of_all_ok('long after a crash', @crashed);
no_leftovers_ok($pub, $sub, 'no slot and no origin left by a crash');

#
# DROP SUBSCRIPTION does not wait for the gate.
#
my @dropped = map { "dropped_$_" } 1 .. 4;

create_tables('p_dropped', @dropped);
$catchup->close_gate('dropped_3');
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s ADD PUBLICATION p_dropped');
$catchup->wait_at_gates(['dropped_3']);
$sub->safe_psql('postgres', 'DROP SUBSCRIPTION s');
is( $sub->safe_psql(
		'postgres', q{
		SELECT (SELECT count(*) FROM pg_subscription_rel),
			(SELECT count(*) FROM dropped_1)}),
	'0|0',
	'the subscription is gone, and so is the batch');
no_leftovers_ok($pub, $sub, 'no slot and no origin left by DROP');
$sub->poll_query_until('postgres',
	'SELECT count(*) = 0 FROM reuse_sync.slots');
is( $sub->safe_psql('postgres', 'SELECT count(*) FROM reuse_sync.slots'),
	0, 'the catalog knows of none');
$catchup->open_gate('dropped_3');
subscribe($pub, $sub, 's', 'p_dropped');
wait_ready($sub, 's');
rows_of_all_ok('subscribed anew', @dropped);
no_leftovers_ok($pub, $sub, 'no slot and no origin left in the end');

end_session($_) foreach ($open, $writer);
$catchup->finish;
no_builtin_sync_ok($sub);

done_testing();
