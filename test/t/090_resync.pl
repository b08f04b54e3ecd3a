# resync_table(): one table anew while replication of all others goes on.
#
# Whatever the old rows were, in the end the table is that of the publisher;
# until then readers see the old rows, all of them.  Nothing relies on the
# launcher's looking around by itself: its naptime is longer than the test.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use CatchUp;

plan skip_all => 'only of the extension' unless with_extension();

my $pub = new_publisher('pub', max_prepared_transactions => 10);
my $sub = new_subscriber(
	'sub',
	max_prepared_transactions          => 10,
	wal_retrieve_retry_interval        => '100ms',
	'reuse_sync.batch_size'            => '200kB',
	'reuse_sync.handover_lock_timeout' => '1s',
	'reuse_sync.naptime'               => '1h');
my $catchup = CatchUp->new($pub, $sub);

#
# Helpers
#

# Create a table on both sides, with rows on the publisher, and publish it.
sub create_table
{
	my ($table, $rows, $columns) = @_;

	$columns //= 'a int PRIMARY KEY, b text';
	both($pub, $sub, "CREATE TABLE $table ($columns)");
	$pub->safe_psql(
		'postgres', qq{
		INSERT INTO $table SELECT g, 'row ' || g || repeat('.', 100)
			FROM generate_series(1, $rows) AS g;
		ALTER PUBLICATION p ADD TABLE $table;});
	return;
}

sub refresh
{
	$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s REFRESH PUBLICATION');
	wait_ready($sub, 's');
	return;
}

# Make the subscriber's rows of a table wrong in every way.
sub spoil
{
	my ($table) = @_;

	$sub->safe_psql(
		'postgres', qq{
		SET session_replication_role = replica;
		DELETE FROM $table WHERE a % 3 = 0;
		UPDATE $table SET b = 'wrong' WHERE a % 3 = 1;
		INSERT INTO $table VALUES (1000001, 'too much');});
	return;
}

# resync($table, $truncate): ask for it, and return.
sub resync
{
	my ($table, $truncate) = @_;

	$sub->safe_psql('postgres',
		"SELECT reuse_sync.resync_table('s', '$table'"
		  . (defined $truncate ? ", $truncate)" : ')'));
	return;
}

# Return when nothing is asked for any more, and all tables are ready.
sub settle
{
	$sub->safe_psql('postgres', q{SELECT reuse_sync.wait_for_sync('s', '3 min')});
	catch_up($pub, $sub, 's');
	return;
}

# One test, that what was asked for has been done.
sub resynced_ok
{
	my ($table, $testname) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	settle();
	return rows_ok($pub, $sub, $table, $testname);
}

# One test, that SQL fails, with a message and, if given, an SQLSTATE and a
# hint.
sub fails_like
{
	my ($sql, $message, $testname, %opt) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($ret, $out, $err) =
	  $sub->psql('postgres', "\\set VERBOSITY verbose\n$sql");

	$err =~ s/^psql:<stdin>:\d+: //mg;
	return like(
		$err,
		qr/ERROR:  \Q$opt{state}\E: $message.*@{[$opt{hint} ? "HINT:  $opt{hint}" : '']}/s,
		$testname);
}

sub apply_pid
{
	return $sub->safe_psql('postgres',
		q{SELECT pid FROM pg_stat_subscription WHERE subname = 's' AND relid IS NULL}
	);
}

# How often a table has been set back.
sub times_begun
{
	my ($table) = @_;
	my $log = slurp_file($sub->logfile);

	return scalar(
		() = $log =~ /table "public\.$table" of subscription "s" is synchronized anew/g);
}

#
# Set-up: of small tables the units go the express way, of large ones the
# staged way.
#
# "roots" is used later: a publication has to be there for whatever the apply
# worker may still have to read.
$pub->safe_psql('postgres', q{
	CREATE PUBLICATION p;
	CREATE PUBLICATION roots WITH (publish_via_partition_root = true);});
create_table('small', 100);
create_table('large', 5000);
create_table('other', 100);
create_table('nokey', 100, 'a int, b text');
$pub->safe_psql('postgres', 'ALTER TABLE nokey REPLICA IDENTITY FULL');
subscribe($pub, $sub, 's', 'p');
wait_ready($sub, 's');

#
# Wrong rows become right ones, the way of the small and of the large.
#
foreach my $table (qw(small large nokey))
{
	spoil($table);
	resync($table);
	resynced_ok($table, "$table: the rows of the publisher");
}
is( $sub->safe_psql(
		'postgres', q{
		SELECT string_agg(state, ' ' ORDER BY relid::regclass::text)
		FROM reuse_sync.tables}),
	'ready ready ready ready',
	'all are ready');

# And go on being replicated.
$pub->safe_psql(
	'postgres',
	join '',
	map {
		qq{
	UPDATE $_ SET b = 'changed' WHERE a = 5;
	DELETE FROM $_ WHERE a = 6;
	INSERT INTO $_ VALUES (-1, 'new');}
	} qw(small large nokey));
catch_up($pub, $sub, 's');
rows_ok($pub, $sub, $_, "$_: later changes") foreach qw(small large nokey);

#
# Readers see the old rows until they see the new ones, also those whose
# snapshot is older than the new rows, and who come to the table only when they
# are there; a reader who keeps the table locked holds nothing up.  The other
# tables go on; foreign keys that point at the table stay.
#
$sub->safe_psql(
	'postgres', q{
	CREATE TABLE child (a int REFERENCES large ON DELETE CASCADE);
	INSERT INTO child SELECT a FROM large WHERE a > 0 LIMIT 100;
	CREATE TABLE child_of_small (a int REFERENCES small);
	INSERT INTO child_of_small VALUES (1);});
foreach my $table (qw(small large))
{
	my $count = "SELECT count(*), count(*) FILTER (WHERE b = 'wrong') FROM $table";

	spoil($table);
	my $before = $sub->safe_psql('postgres', $count);
	my ($reader, $latecomer) = map { $sub->background_psql('postgres') } 1, 2;
	foreach my $session ($reader, $latecomer)
	{
		$session->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ');
		$session->query_safe('SELECT txid_current_snapshot()');
	}
	is($reader->query_safe($count), $before, "$table: a reader begins");
	$catchup->close_gate($table);
	resync($table);
	$catchup->wait_at_gates([$table]);

	$pub->safe_psql(
		'postgres', qq{
		INSERT INTO other SELECT max(a) + 1, '$table' FROM other;
		UPDATE $table SET b = 'meanwhile' WHERE a = 7;
		DELETE FROM $table WHERE a = 8;
		INSERT INTO $table VALUES (-2, 'meanwhile');});
	wait_for_query($sub, "SELECT count(*) = 1 FROM other WHERE b = '$table'");
	pass("$table: another table is replicated during the copy");
	is($sub->safe_psql('postgres', "SET lock_timeout = '100ms'; $count"),
		$before, "$table: readers see the old rows during the copy");
	is( $sub->safe_psql('postgres',
			"SELECT state FROM reuse_sync.tables WHERE relid = '$table'::regclass"
		),
		'copying',
		"$table: its state");
	$catchup->open_gate($table);
	resynced_ok($table, "$table: with changes made during the copy");
	is($reader->query_safe($count), $before,
		"$table: who has read the old rows goes on reading them");
	is($latecomer->query_safe($count), $before,
		"$table: who comes with an older snapshot reads them as well");
	$_->quit foreach $reader, $latecomer;
	$sub->safe_psql('postgres', qq{DROP TRIGGER "000 gate $catchup->{number}{$table}" ON $table});
}
is( $sub->safe_psql(
		'postgres', q{
		SELECT count(*), bool_and(convalidated) FROM pg_constraint
		WHERE contype = 'f'}),
	'2|t', 'foreign keys are there');
is($sub->safe_psql('postgres', 'SELECT count(*) FROM child'),
	100, 'nothing has cascaded');

#
# What the table holds can be kept.
#
$sub->safe_psql('postgres', 'DELETE FROM nokey WHERE a <> 3');
resync('nokey', 'false');
settle();
is( $sub->safe_psql('postgres', 'SELECT count(*) FROM nokey'),
	1 + $pub->safe_psql('postgres', 'SELECT count(*) FROM nokey'),
	'truncate => false: copied into what is there');
resync('nokey');
resynced_ok('nokey', 'truncate: nothing but the copy is there');

#
# In a transaction: nothing before the commit, and nothing after a rollback.
#
my $begun = times_begun('small');
my $log_start = -s $sub->logfile;
spoil('small');
my $bad = rows_of($sub, 'small');
$sub->safe_psql(
	'postgres', q{
	BEGIN;
	SELECT reuse_sync.resync_table('s', 'small');
	ROLLBACK;
	BEGIN;
	SAVEPOINT a;
	SELECT reuse_sync.resync_table('s', 'small');
	ROLLBACK TO a;
	COMMIT;});
my $user = $catchup->session('sub');
$user->query_safe(q{BEGIN; SELECT reuse_sync.resync_table('s', 'small')});

# Another one passes meanwhile.
resync('large');
resynced_ok('large', 'nobody waits for a transaction that has asked');
is(rows_of($sub, 'small'), $bad, 'nothing happens before the commit');
$user->query_safe(q{SELECT reuse_sync.resync_table('s', 'small', false)});
$user->query_safe('COMMIT');
resynced_ok('small', 'it happens after the commit');
is(times_begun('small'), $begun + 1,
	'asked for twice in a transaction: done once');

$sub->safe_psql(
	'postgres', q{
	BEGIN;
	SELECT reuse_sync.resync_table('s', 'small');
	PREPARE TRANSACTION 'x';});
spoil('small');
$sub->safe_psql('postgres', q{COMMIT PREPARED 'x'});
resynced_ok('small', 'in a prepared transaction');

#
# During a synchronization of the table, and twice.  The first is finished,
# and then the last one begins.
#
reconfigure($sub, 'reuse_sync.handover_lock_timeout' => '1min');
foreach my $table (qw(small large))
{
	$begun = times_begun($table);
	spoil($table);
	$catchup->close_gate($table);
	resync($table);
	$catchup->wait_at_gates([$table]);
	resync($table);
	resync($table);
	$catchup->open_gate($table);
	resynced_ok($table, "$table: asked for again during the copy");
	is(times_begun($table), $begun + 2, "$table: done once more for that");
	$sub->safe_psql('postgres', qq{DROP TRIGGER "000 gate $catchup->{number}{$table}" ON $table});
}
reconfigure($sub, 'reuse_sync.handover_lock_timeout' => '1s');

# Of many that are asked for at once each is done; over one connection to the
# publisher all are looked up there.
spoil($_) foreach qw(small large other nokey);
reconfigure($sub, 'reuse_sync.paused' => 'on');
my $pub_log = -s $pub->logfile;
$sub->safe_psql('postgres',
	q{SELECT reuse_sync.resync_table('s', srrelid) FROM pg_subscription_rel});
my @askers = slurp_file($pub->logfile, $pub_log) =~
  /\[(\d+)\] reuse_sync LOG:  statement: SELECT FROM pg_catalog\.pg_publication_tables/g;
is(scalar(@askers), 4, 'the publisher is asked for each');
is(scalar(keys %{ { map { $_ => 1 } @askers } }), 1, 'over one connection');
reconfigure($sub, 'reuse_sync.paused' => 'off');
settle();
rows_ok($pub, $sub, $_, "$_: all at once") foreach qw(small large other nokey);

#
# A table that has failed: the copy met rows that were there.
#
both($pub, $sub, 'CREATE TABLE failed (a int PRIMARY KEY, b text)');
$pub->safe_psql('postgres',
	q{INSERT INTO failed VALUES (1, 'right'); ALTER PUBLICATION p ADD TABLE failed});
$sub->safe_psql('postgres', q{INSERT INTO failed VALUES (1, 'wrong')});
reconfigure($sub, 'reuse_sync.max_retry_interval' => '1h',
	'wal_retrieve_retry_interval' => '1h');
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s REFRESH PUBLICATION');
wait_for_query($sub, q{SELECT state = 'failed' FROM reuse_sync.tables WHERE relid = 'failed'::regclass});
resync('failed');
wait_for_query($sub, q{SELECT count(*) = 0 FROM reuse_sync.resync});
is($sub->safe_psql('postgres', 'SELECT b FROM failed'),
	'right', 'a failed table is copied at once, over what it held');
reconfigure($sub, 'wal_retrieve_retry_interval' => '100ms',
	'reuse_sync.max_retry_interval' => '5min');
settle();

# The copy itself fails: the old rows stay, and the error is shown.
$sub->safe_psql('postgres',
	q{ALTER TABLE small ADD CONSTRAINT no_news CHECK (a <> 77777)});
$pub->safe_psql('postgres',
	q{ALTER PUBLICATION p DROP TABLE small; INSERT INTO small VALUES (77777, 'x'); ALTER PUBLICATION p ADD TABLE small});
spoil('small');
$bad = rows_of($sub, 'small');
resync('small');
wait_for_query($sub, q{SELECT state = 'failed' AND attempts > 1 FROM reuse_sync.tables WHERE relid = 'small'::regclass});
is(rows_of($sub, 'small'), $bad, 'a copy that fails leaves the old rows');
like(
	$sub->safe_psql('postgres',
		q{SELECT last_error FROM reuse_sync.tables WHERE relid = 'small'::regclass}
	),
	qr/no_news/,
	'the error is shown');
$sub->safe_psql('postgres', 'ALTER TABLE small DROP CONSTRAINT no_news');
resync('small');
resynced_ok('small', 'once its cause is gone it is done');

#
# Whoever has changed a row here is waited for, but not for long; what has
# become of the row goes.
#
foreach my $table (qw(small large))
{
	my $changer = $catchup->session('sub');

	reconfigure($sub, 'reuse_sync.handover_lock_timeout' => '1h');
	$changer->query_safe(
		"BEGIN; SET session_replication_role = replica;"
		  . " UPDATE $table SET b = 'wrong' WHERE a = 9;"
		  . " UPDATE $table SET b = 'very wrong' WHERE a = 9;"
		  . " DELETE FROM $table WHERE a = 10");
	reconfigure($sub, 'reuse_sync.handover_lock_timeout' => '100ms');
	resync($table);
	wait_for_query($sub,
		"SELECT last_error ~ 'lock timeout' FROM reuse_sync.tables WHERE relid = '$table'::regclass"
	);
	is( $sub->safe_psql('postgres',
			"SELECT attempts FROM reuse_sync.tables WHERE relid = '$table'::regclass"
		),
		'0',
		"$table: that is no failure");
	$changer->query_safe('COMMIT');
	resynced_ok($table, "$table: somebody had it locked for long");

	# Now in the middle of the deletion: the table itself is free.
	reconfigure($sub, 'reuse_sync.handover_lock_timeout' => '1h');
	$catchup->close_gate($table, event => 'TRUNCATE');
	resync($table);
	$catchup->wait_at_gates([$table]);
	$changer->query_safe(
		"BEGIN; SET session_replication_role = replica;"
		  . " UPDATE $table SET b = 'wrong' WHERE a = 9;"
		  . " UPDATE $table SET b = 'very wrong' WHERE a = 9;"
		  . " DELETE FROM $table WHERE a = 10");
	$catchup->open_gate($table);
	wait_for_query($sub,
		q{SELECT count(*) > 0 FROM pg_locks l JOIN reuse_sync.workers w USING (pid)
		WHERE l.locktype = 'transactionid' AND NOT l.granted});
	$changer->query_safe('COMMIT');
	resynced_ok($table, "$table: somebody changed rows under way");
	$changer->quit;
	reconfigure($sub, 'reuse_sync.handover_lock_timeout' => '1s');
	$sub->safe_psql('postgres', qq{DROP TRIGGER "000 gate $catchup->{number}{$table}" ON $table});
}

#
# While all is being written to; deadlocks are not what this is about, so each
# transaction changes the tables in one order.
#
$pub->safe_psql('postgres', 'CREATE SEQUENCE key START 10000');
my @writers = map { $catchup->session('pub') } 1 .. 3;
foreach my $writer (@writers)
{
	$writer->query_until(
		qr/begun/, q{\echo begun
		DO $$
		DECLARE
			k int;
			t text;
		BEGIN
			WHILE NOT EXISTS (SELECT FROM pg_class WHERE relname = 'stop')
			LOOP
				k := nextval('key');
				FOREACH t IN ARRAY ARRAY['large', 'nokey', 'other', 'small']
				LOOP
					EXECUTE format('INSERT INTO %I VALUES ($1, $2)', t)
						USING k, 'written';
					EXECUTE format('UPDATE %I SET b = b || ''+'' WHERE a = $1', t)
						USING k - 5;
					EXECUTE format('DELETE FROM %I WHERE a = $1', t)
						USING k - 10;
				END LOOP;
				IF k % 7 = 0 THEN ROLLBACK; ELSE COMMIT; END IF;
				PERFORM pg_sleep(0.002);
			END LOOP;
		END $$;
});
}
foreach my $round (1 .. 2)
{
	foreach my $table (qw(small large nokey))
	{
		spoil($table);
		resync($table);
		resync('other') if $round == 2;
		wait_for_query($sub, 'SELECT count(*) = 0 FROM reuse_sync.resync');
	}
}
$pub->safe_psql('postgres', 'CREATE TABLE stop ()');
foreach my $writer (@writers)
{
	$writer->query_safe('SELECT 1');
	$writer->quit;
}
settle();
rows_ok($pub, $sub, $_, "$_: while it was written to")
  foreach qw(small large nokey other);

#
# What cannot be done.
#
fails_like(
	q{SELECT reuse_sync.resync_table('nosuch', 'small')},
	'subscription "nosuch" does not exist',
	'no such subscription', state => '42704');
fails_like(
	q{SELECT reuse_sync.resync_table('s', NULL)},
	'arguments of resync_table\(\) must not be null',
	'null', state => '22004');
fails_like(
	q{SELECT reuse_sync.resync_table('s', 'child')},
	'table "child" is not in subscription "s"',
	'a table that is not in the subscription',
	state => '42704', hint => 'Run ALTER SUBSCRIPTION');
fails_like(
	q{SELECT reuse_sync.resync_table('s', 4294967295)},
	'table with OID 4294967295 does not exist',
	'a table that is not there', state => '42704');
fails_like(
	q{BEGIN READ ONLY; SELECT reuse_sync.resync_table('s', 'small')},
	'cannot execute resync_table\(\) in a read-only transaction',
	'in a read-only transaction', state => '25006');

$pub->safe_psql('postgres', 'ALTER PUBLICATION p DROP TABLE other');
fails_like(
	q{SELECT reuse_sync.resync_table('s', 'other')},
	'table "public.other" is in no publication that subscription "s" subscribes to',
	'a table that is not published any more',
	state => '42P01', hint => 'Add it to a publication, or run');
is($sub->safe_psql('postgres',
		q{SELECT srsubstate FROM pg_subscription_rel WHERE srrelid = 'other'::regclass}),
	'r', 'and stays as it is');

# It is found out later: asked for while it is published.
reconfigure($sub, 'reuse_sync.paused' => 'on');
$pub->safe_psql('postgres', 'ALTER PUBLICATION p ADD TABLE other');
resync('other');
$pub->safe_psql('postgres', 'ALTER PUBLICATION p DROP TABLE other');
is( $sub->safe_psql('postgres',
		q{SELECT state FROM reuse_sync.tables WHERE relid = 'other'::regclass}),
	'pending', 'while the pool is paused it waits');
reconfigure($sub, 'reuse_sync.paused' => 'off');
wait_for_query($sub, 'SELECT count(*) = 0 FROM reuse_sync.resync');
like(
	$sub->safe_psql('postgres',
		q{SELECT state, last_error FROM reuse_sync.tables WHERE relid = 'other'::regclass}),
	qr/^ready\|table "public.other" is in no publication that subscription "s" subscribes to/,
	'not published any more when it begins: the error is shown');
like(
	$sub->safe_psql('postgres',
		q{SELECT severity, problem, hint FROM reuse_sync.check()
		WHERE object = 'table public.other' AND problem ~ 'anew'}),
	qr/^warning\|it was not synchronized anew for subscription "s": table "public.other" is in no publication.*\|.* Run SELECT reuse_sync\.resync_table\('s', 'public\.other'\) again\.$/,
	'and by check()');
$pub->safe_psql('postgres', 'ALTER PUBLICATION p ADD TABLE other');

# Or it is not in the subscription any more.
reconfigure($sub, 'reuse_sync.paused' => 'on');
resync('other');
$pub->safe_psql('postgres', 'ALTER PUBLICATION p DROP TABLE other');
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s REFRESH PUBLICATION');
reconfigure($sub, 'reuse_sync.paused' => 'off');
wait_for_query($sub, 'SELECT count(*) = 0 FROM reuse_sync.resync');
$pub->safe_psql('postgres', 'ALTER PUBLICATION p ADD TABLE other');
$sub->safe_psql('postgres', 'TRUNCATE other');
refresh();
resync('other');
resynced_ok('other', 'in the subscription again');

# Nobody sees what is asked for before it is committed.
foreach my $sql (q{SELECT reuse_sync.resync_table('s', 'small')},
	qq{CREATE SUBSCRIPTION of_own CONNECTION '' PUBLICATION p WITH (connect = false);
	INSERT INTO pg_subscription_rel SELECT oid, 'small'::regclass, 'i' FROM pg_subscription WHERE subname = 'of_own'})
{
	my $subname = $sql =~ /of_own/ ? 'of_own' : 's';

	fails_like(
		"SET allow_system_table_mods = on; BEGIN; $sql; SELECT reuse_sync.wait_for_sync('$subname')",
		qq{cannot wait for table "public.small" of subscription "$subname" in the transaction that has it synchronized},
		"its own transaction does not wait for it: $subname",
		state => '25001', hint => 'Commit the transaction first');
}

# A disabled subscription does not get to it.
$sub->safe_psql('postgres', q{
	ALTER SUBSCRIPTION s DISABLE;
	SELECT reuse_sync.resync_table('s', 'small')});
is( $sub->safe_psql('postgres',
		q{SELECT problem FROM reuse_sync.check() WHERE object = 'subscription "s"'}),
	'it is disabled, and has tables that are not synchronized',
	'check() sees what a disabled subscription is asked for');
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s ENABLE');
resynced_ok('small', 'once it is enabled it does');

#
# Rights.
#
$sub->safe_psql(
	'postgres', q{
	CREATE ROLE nobody;
	CREATE ROLE super SUPERUSER;
	GRANT ALL ON small TO nobody;});
fails_like(
	q{SET ROLE nobody; SELECT reuse_sync.resync_table('s', 'small')},
	'must be owner of subscription "?s"?',
	'only the owner may', state => '42501');
$sub->safe_psql('postgres',
	q{SET ROLE super; SELECT reuse_sync.resync_table('s', 'small')});
resynced_ok('small', 'a superuser may');

# An owner who is no superuser (any more) needs the right to TRUNCATE.
reconfigure($sub, 'reuse_sync.paused' => 'on');
$sub->safe_psql(
	'postgres', q{
	CREATE ROLE owner SUPERUSER LOGIN;
	GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO owner;
	ALTER SUBSCRIPTION s OWNER TO owner;
	ALTER ROLE owner NOSUPERUSER;});
# From 16 on the owner of a subscription has to give a password otherwise, and
# what counts are the rights of the table's owner.
$sub->safe_psql('postgres',
	'ALTER SUBSCRIPTION s SET (password_required = false, run_as_owner = true)')
  if has_table_owners($sub);
fails_like(
	q{SET ROLE owner; SELECT reuse_sync.resync_table('s', 'small')},
	'permission denied for table small',
	'the owner needs the right to TRUNCATE', state => '42501');
$sub->safe_psql('postgres',
	q{SET ROLE owner; SELECT reuse_sync.resync_table('s', 'small', false)});
$sub->safe_psql('postgres', q{
	GRANT TRUNCATE ON small TO owner;
	SET ROLE owner;
	SELECT reuse_sync.resync_table('s', 'small');});
reconfigure($sub, 'reuse_sync.paused' => 'off');
resynced_ok('small', 'an owner with that right may');
$sub->safe_psql('postgres', q{
	ALTER ROLE owner SUPERUSER;
	ALTER SUBSCRIPTION s OWNER TO CURRENT_USER;});

#
# Partitions: a partitioned table as a whole, and one partition by itself.
#
both($pub, $sub, q{
	CREATE TABLE whole (a int PRIMARY KEY, b text) PARTITION BY RANGE (a);
	CREATE TABLE whole_0 PARTITION OF whole FOR VALUES FROM (MINVALUE) TO (50);
	CREATE TABLE whole_1 PARTITION OF whole FOR VALUES FROM (50) TO (MAXVALUE);
	CREATE TABLE parts (a int PRIMARY KEY, b text) PARTITION BY RANGE (a);
	CREATE TABLE parts_0 PARTITION OF parts FOR VALUES FROM (MINVALUE) TO (50);
	CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (50) TO (MAXVALUE);});
$pub->safe_psql('postgres', q{
	INSERT INTO whole SELECT g, 'row' FROM generate_series(1, 100) g;
	INSERT INTO parts SELECT g, 'row' FROM generate_series(1, 100) g;
	ALTER PUBLICATION roots ADD TABLE whole;
	ALTER PUBLICATION p ADD TABLE parts;});
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s ADD PUBLICATION roots');
wait_ready($sub, 's');
spoil('whole');
resync('whole');
resynced_ok('whole', 'a partitioned table');
fails_like(
	q{SELECT reuse_sync.resync_table('s', 'whole_1')},
	'table "whole_1" is not in subscription "s"',
	'a partition of a table that is synchronized as a whole',
	state => '42704', hint => 'It is a partition of "whole"');

spoil('parts');
my $other_half = rows_of($sub, 'parts_1');
resync('parts_0');
resynced_ok('parts_0', 'a partition by itself');
is(rows_of($sub, 'parts_1'), $other_half, 'and no other');
fails_like(
	q{SELECT reuse_sync.resync_table('s', 'parts')},
	'table "parts" is not in subscription "s"',
	'a table whose partitions are synchronized',
	state => '42704', hint => 'If its partitions are in the subscription');
resync('parts_1');
settle();
rows_ok($pub, $sub, 'parts', 'both partitions');

# One that cannot be emptied is not begun with.
both($pub, $sub, q{
	CREATE TABLE mixed (a int, b text) PARTITION BY RANGE (a);
	CREATE TABLE mixed_0 PARTITION OF mixed FOR VALUES FROM (0) TO (50);});
$pub->safe_psql('postgres', q{
	INSERT INTO mixed VALUES (1, 'row');
	ALTER PUBLICATION roots ADD TABLE mixed;});
refresh();
reconfigure($sub, 'reuse_sync.paused' => 'on');
resync('mixed');
$sub->safe_psql('postgres', q{
	CREATE FOREIGN DATA WRAPPER w;
	CREATE SERVER nowhere FOREIGN DATA WRAPPER w;
	CREATE FOREIGN TABLE mixed_1 PARTITION OF mixed FOR VALUES FROM (50) TO (99)
		SERVER nowhere;});
fails_like(
	q{SELECT reuse_sync.resync_table('s', 'mixed')},
	'cannot use relation "public.mixed_1" as logical replication target',
	'a partition that is a foreign table', state => '42809');
reconfigure($sub, 'reuse_sync.paused' => 'off');
wait_for_query($sub, 'SELECT count(*) = 0 FROM reuse_sync.resync');
like(
	$sub->safe_psql('postgres',
		q{SELECT state, last_error FROM reuse_sync.tables WHERE relid = 'mixed'::regclass}),
	qr/^ready\|cannot use relation "public.mixed_1"/,
	'the same when it begins: the table goes on being replicated');
$pub->safe_psql('postgres', q{INSERT INTO mixed VALUES (2, 'later')});
catch_up($pub, $sub, 's');
is( $sub->safe_psql('postgres', 'SELECT count(*) FROM mixed_0'),
	'2', 'as before');
$sub->safe_psql('postgres', 'DROP SERVER nowhere CASCADE');

# A child table's rows are its own.
both($pub, $sub, q{
	CREATE TABLE parent (a int PRIMARY KEY, b text);
	CREATE TABLE heir (PRIMARY KEY (a)) INHERITS (parent);});
$pub->safe_psql('postgres', q{
	INSERT INTO parent VALUES (1, 'parent');
	ALTER PUBLICATION p ADD TABLE ONLY parent;});
refresh();
$sub->safe_psql('postgres', q{
	UPDATE parent SET b = 'wrong'; INSERT INTO heir VALUES (2, 'local')});
resync('parent');
settle();
is($sub->safe_psql('postgres', 'SELECT b FROM parent ORDER BY a'),
	"parent\nlocal", 'the rows of a child table stay');

#
# It is as with TRUNCATE and COPY in a replica: a trigger that keeps rows from
# being deleted does not matter, nor does a rule.
#
create_table('fires', 10);
refresh();
$sub->safe_psql(
	'postgres', q{
	CREATE TABLE fired (op text);
	CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO public.fired VALUES (tg_op || ' ' || tg_name);
		RETURN NULL;
	END $$;
	CREATE TRIGGER always AFTER INSERT ON fires
		FOR EACH ROW EXECUTE FUNCTION note();
	ALTER TABLE fires ENABLE ALWAYS TRIGGER always;
	CREATE TRIGGER origin AFTER INSERT ON fires
		FOR EACH ROW EXECUTE FUNCTION note();
	CREATE TRIGGER keep BEFORE DELETE ON fires
		FOR EACH ROW EXECUTE FUNCTION note();
	ALTER TABLE fires ENABLE ALWAYS TRIGGER keep;
	CREATE TRIGGER truncate AFTER TRUNCATE ON fires
		FOR EACH STATEMENT EXECUTE FUNCTION note();
	ALTER TABLE fires ENABLE REPLICA TRIGGER truncate;
	CREATE RULE never AS ON DELETE TO fires DO INSTEAD NOTHING;});
resync('fires');
resynced_ok('fires', 'with triggers and a rule');
is( $sub->safe_psql('postgres',
		'SELECT op, count(*) FROM fired GROUP BY 1 ORDER BY 1'),
	"INSERT always|10\nTRUNCATE truncate|1",
	'triggers for INSERT and TRUNCATE have fired as in a replica');

#
# A subscriber that publishes the table.
#
$sub->safe_psql('postgres', 'CREATE PUBLICATION onward FOR TABLE nokey, small');
fails_like(
	q{SELECT reuse_sync.resync_table('s', 'nokey')},
	'cannot delete from table "nokey" because it does not have a replica identity',
	'published without a replica identity',
	state => '55000', hint => 'To enable deleting from the table');
$sub->safe_psql('postgres', 'CREATE DATABASE downstream');
$sub->safe_psql('downstream', 'CREATE TABLE small (a int PRIMARY KEY, b text); CREATE TABLE nokey (a int, b text)');
$sub->safe_psql('postgres',
	q{SELECT pg_create_logical_replication_slot('down', 'pgoutput')});
subscribe($sub, $sub, 'down', 'onward', sub_db => 'downstream',
	with => 'create_slot = false');
wait_ready($sub, 'down', db => 'downstream');
spoil('small');
resync('small');
resynced_ok('small', 'a table that is published from here');
catch_up($sub, $sub, 'down', db => 'downstream');
is(rows_of($sub, 'small', 'downstream'), rows_of($sub, 'small'),
	'what has happened to it is published');
$sub->safe_psql('downstream', 'DROP SUBSCRIPTION down');
$sub->safe_psql('postgres', 'DROP PUBLICATION onward');
$sub->safe_psql('postgres', 'DROP DATABASE downstream');

#
# A table that two subscriptions write to.
#
$pub->safe_psql('postgres', 'CREATE PUBLICATION p2 FOR TABLE nokey');
subscribe($pub, $sub, 's2', 'p2', with => 'copy_data = false');
fails_like(
	q{SELECT reuse_sync.resync_table('s', 'nokey')},
	'cannot remove the rows of table "nokey" because another subscription writes to it as well',
	'of two subscriptions none may remove the rows',
	state => '55000', hint => 'Remove the rows of this one by hand');

# The same of partitions: whoever has the partitioned table writes to them.
$pub->safe_psql('postgres', 'CREATE PUBLICATION p4 FOR TABLE whole_1');
$sub->safe_psql('postgres',
	'ALTER SUBSCRIPTION s2 SET PUBLICATION p4 WITH (copy_data = false)');
foreach my $case ([ 's', 'whole' ], [ 's2', 'whole_1' ])
{
	my ($subname, $table) = @$case;

	fails_like(
		"SELECT reuse_sync.resync_table('$subname', '$table')",
		qq{cannot remove the rows of table "$table" because another subscription writes to it as well},
		"$table, of which another subscription has a part or the whole",
		state => '55000', hint => 'Remove the rows of this one by hand');
}
$sub->safe_psql('postgres', 'DROP SUBSCRIPTION s2');

#
# two_phase
#
both($pub, $sub, 'CREATE TABLE phased (a int)');
$pub->safe_psql('postgres', 'CREATE PUBLICATION p3 FOR TABLE phased');
subscribe($pub, $sub, 's3', 'p3', with => 'two_phase = true');
wait_ready($sub, 's3');
fails_like(
	q{SELECT reuse_sync.resync_table('s3', 'phased')},
	'cannot synchronize a table anew in subscription "s3" because it has two_phase enabled',
	'two_phase', state => '0A000', hint => 'Drop the subscription');
$sub->safe_psql('postgres', 'DROP SUBSCRIPTION s3');

#
# A crash of the subscriber in the middle, either way.
#
foreach my $table (qw(small large))
{
	spoil($table);
	$bad = rows_of($sub, $table);
	$catchup->close_gate($table);
	resync($table);
	$catchup->wait_at_gates([$table]);
	$catchup->finish;
	$sub->stop('immediate');
	$sub->start;
	wait_for_query($sub, "SELECT pg_is_in_recovery() = false");
	$pub->safe_psql('postgres', "INSERT INTO $table VALUES (-3, 'crashed')");
	resynced_ok($table, "$table: after a crash during the copy");
	$sub->safe_psql('postgres', 'DROP SCHEMA gate CASCADE');
	$catchup = CatchUp->new($pub, $sub);
}

#
# Without a pool the server must not copy into the old rows, and if it does
# because the library is not there, the pool does so once more.
#
$sub->safe_psql('postgres',
	q{ALTER TABLE nokey ADD CONSTRAINT no_news CHECK (a <> 77777)});
$pub->safe_psql('postgres',
	q{ALTER PUBLICATION p DROP TABLE nokey; INSERT INTO nokey VALUES (77777, 'x'); ALTER PUBLICATION p ADD TABLE nokey});
my $rows = $sub->safe_psql('postgres', 'SELECT count(*) FROM nokey');
$catchup->finish;
resync('nokey');
wait_for_query($sub, q{SELECT state = 'failed' FROM reuse_sync.tables WHERE relid = 'nokey'::regclass});
is( $sub->safe_psql('postgres',
		q{SELECT count(*) FROM reuse_sync.check() WHERE problem ~ 'not empty'}),
	'0',
	'what a table holds that is synchronized anew is no fault');
$sub->append_conf('postgresql.conf', 'reuse_sync.enabled = off');
$sub->restart;
$sub->safe_psql('postgres', 'ALTER TABLE nokey DROP CONSTRAINT no_news');
my $refused = qr/ERROR:  table "public.nokey" is left to "reuse_sync", which synchronizes it anew/;
my $offset  = -s $sub->logfile;
$sub->wait_for_log(qr/$refused.*$refused/s, $offset);
is($sub->safe_psql('postgres', 'SELECT count(*) FROM nokey'),
	$rows, 'the server does not copy into the old rows');
like(
	$sub->safe_psql('postgres',
		q{SELECT problem FROM reuse_sync.check() WHERE object = 'table public.nokey'}),
	qr/^it was being synchronized anew when the pool was switched off, and waits for it$/m,
	'check() says so');

$sub->append_conf('postgresql.conf',
	"reuse_sync.enabled = on\nshared_preload_libraries = ''");
$sub->restart;
wait_ready($sub, 's');
cmp_ok($sub->safe_psql('postgres', 'SELECT count(*) FROM nokey'),
	'>', $rows + 1, 'without the library it does');
$sub->append_conf('postgresql.conf', "shared_preload_libraries = 'reuse_sync'");
$sub->restart;
resynced_ok('nokey', 'which is mended when the library is back');
$sub->safe_psql('postgres', 'DROP SCHEMA gate CASCADE');
$catchup = CatchUp->new($pub, $sub);

#
# DROP EXTENSION must not leave the server a table that it would copy into its
# old rows.
#
spoil('small');
$catchup->close_gate('small');
resync('small');
$catchup->wait_at_gates(['small']);
fails_like(
	'DROP EXTENSION reuse_sync',
	'cannot drop extension "reuse_sync" because',
	'the extension cannot be dropped meanwhile',
	state => '55006', hint => 'Run CALL reuse_sync.drain');
my $drainer = $catchup->session('sub');
my $pid     = $drainer->query_safe('SELECT pg_backend_pid()');
$drainer->query_until(qr/begun/, "\\echo begun\nCALL reuse_sync.drain();\n");
wait_for_query($sub, "SELECT state = 'active' AND query ~ 'drain' AND wait_event IS NOT NULL FROM pg_stat_activity WHERE pid = $pid");
$catchup->open_gate('small');
$drainer->query_safe('SELECT 1');
$drainer->quit;
resynced_ok('small', 'drain() has it finished');

# Nor a drain: what fails then is emptied, for the server to copy.
$sub->safe_psql('postgres', q{
	DROP SCHEMA gate CASCADE;
	SELECT reuse_sync.wakeup();
	CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS
		'BEGIN RAISE ''failure by trigger''; END';
	CREATE TRIGGER fail BEFORE INSERT ON small
		FOR EACH ROW EXECUTE FUNCTION fail();
	ALTER TABLE small ENABLE ALWAYS TRIGGER fail;});
resync('small');
wait_for_query($sub, q{SELECT state = 'failed' FROM reuse_sync.tables WHERE relid = 'small'::regclass});
$sub->safe_psql('postgres', 'CALL reuse_sync.drain()');
is($sub->safe_psql('postgres',
		'SELECT count(*) FROM small'),
	'0', 'what cannot be finished in a drain is emptied');
$sub->safe_psql('postgres', 'DROP EXTENSION reuse_sync; DROP TRIGGER fail ON small');
wait_ready($sub, 's');
catch_up($pub, $sub, 's');
rows_ok($pub, $sub, 'small', 'the server copies it');

$user->quit;
done_testing();
