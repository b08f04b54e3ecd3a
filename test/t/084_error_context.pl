# An error tells where it happened: the table, the column, and of a change the
# remote transaction and where it ended, which is what ALTER SUBSCRIPTION ...
# SKIP asks for.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use CatchUp;
use ReuseSync;

my $pub = new_publisher('pub');

# Every table goes the staged way: its copy stays when a change fails.
my $sub = new_subscriber(
	'sub',
	wal_retrieve_retry_interval       => '500ms',
	'reuse_sync.batch_size'           => '1kB',
	'reuse_sync.max_retry_interval'   => '500ms',
	max_sync_workers_per_subscription => 4);
my $catchup = CatchUp->new($pub, $sub);

# What fails, with the publisher's column b a text; what the context has to
# say of it; and what mends it on the subscriber.
my @cases = (
	{
		table  => 'bad_insert',
		column => 'text CHECK (b <> $$no$$)',
		change => q{INSERT INTO bad_insert VALUES (5000, 'no')},
		type   => 'INSERT',
		mend   => 'ALTER TABLE bad_insert DROP CONSTRAINT bad_insert_b_check',
	},
	{
		table  => 'bad_update',
		column => 'text CHECK (b <> $$no$$)',
		change => q{UPDATE bad_update SET b = 'no' WHERE a = 1},
		type   => 'UPDATE',
		mend   => 'ALTER TABLE bad_update DROP CONSTRAINT bad_update_b_check',
	},
	{
		table  => 'bad_value',
		column => 'int',
		change => q{INSERT INTO bad_value VALUES (5000, 'no number')},
		type   => 'INSERT',
		named  => 'b',
		mend   => 'ALTER TABLE bad_value ALTER COLUMN b TYPE text',
	});

foreach my $case (@cases)
{
	my $table = $case->{table};

	$pub->safe_psql('postgres', qq{
		CREATE TABLE $table (a int PRIMARY KEY, b text);
		INSERT INTO $table SELECT g, g FROM generate_series(1, 1000) g;
		CREATE PUBLICATION $table FOR TABLE $table});
	$sub->safe_psql('postgres',
		"CREATE TABLE $table (a int PRIMARY KEY, b $case->{column})");
	$catchup->close_gate($table);

	my $offset = -s $sub->logfile;
	subscribe($pub, $sub, $table, $table);
	$catchup->wait_at_gates([$table]);
	my $before = $pub->lsn('insert');
	my ($xid) = $pub->safe_psql('postgres',
		"BEGIN; $case->{change}; SELECT pg_current_xact_id(); COMMIT") =~ /(\d+)/;
	my $after = $pub->lsn('insert');
	$catchup->open_gate($table);

	my $column = $case->{named} ? " column \"$case->{named}\"" : '';
	my $context =
	  with_extension()
	  ? qr/CONTEXT:  .*processing "$case->{type}" for replication origin "pg_\d+_\d+" for target table "public\.$table"$column of remote transaction $xid, finished at ([[:xdigit:]]+\/[[:xdigit:]]+)/
	  : qr/CONTEXT:  .*processing remote data for .* during message type "$case->{type}" for replication target relation "public\.$table"$column in transaction $xid, finished at ([[:xdigit:]]+\/[[:xdigit:]]+)/;
	$sub->wait_for_log($context, $offset);
	my ($lsn) = slurp_file($sub->logfile, $offset) =~ $context;
	pass("$table: type, table, column and transaction are told");
	is( $pub->safe_psql('postgres',
			"SELECT '$lsn'::pg_lsn BETWEEN '$before' AND '$after'"),
		't',
		"$table: and where it ended");
	is(table_state($sub, $table), 'f', "$table: its copy is kept");

	$sub->safe_psql('postgres', $case->{mend});
	wait_ready($sub, $table);
	rows_ok($pub, $sub, $table, "$table: mended");
}

# Whoever passes over the transaction with the origin's position finds its name
# there, and the table goes on after it.
$pub->safe_psql('postgres', q{
	CREATE TABLE passed (a int PRIMARY KEY, b text);
	INSERT INTO passed SELECT g, 'row' FROM generate_series(1, 1000) g;
	CREATE PUBLICATION passed FOR TABLE passed});
$sub->safe_psql('postgres',
	'CREATE TABLE passed (a int PRIMARY KEY CHECK (a <> 5000), b text)');
$catchup->close_gate('passed');
my $start = -s $sub->logfile;
subscribe($pub, $sub, 'passed', 'passed');
$catchup->wait_at_gates(['passed']);
$pub->safe_psql('postgres', q{
	INSERT INTO passed VALUES (5000, 'in the way');
	INSERT INTO passed VALUES (5001, 'after it')});
$catchup->open_gate('passed');
my $named =
  qr/for replication origin "(pg_\d+_\d+)".* finished at ([[:xdigit:]]+\/[[:xdigit:]]+)/;
$sub->wait_for_log($named, $start);
my ($origin, $end) = slurp_file($sub->logfile, $start) =~ $named;
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION passed DISABLE');
$sub->poll_query_until('postgres', qq{
	SELECT pg_replication_origin_advance('$origin', '$end'::pg_lsn + 1)
		IS NOT NULL FROM pg_replication_origin
	WHERE roname = '$origin' AND NOT EXISTS (
		SELECT FROM pg_stat_activity WHERE backend_type = 'reuse_sync worker'
		AND state <> 'idle')}) or die 'the origin is in use';
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION passed ENABLE');
wait_ready($sub, 'passed');
rows_ok($pub, $sub, 'SELECT * FROM passed WHERE a <> 5000',
	"a transaction is passed over with the origin's position", 'passed');
$pub->safe_psql('postgres', 'DELETE FROM passed WHERE a = 5000');

# A copy tells the table with its schema, the line and the column.
$pub->safe_psql('postgres', q{
	CREATE SCHEMA far;
	CREATE TABLE far.bad_copy (a int PRIMARY KEY, b text);
	INSERT INTO far.bad_copy VALUES (1, '1'), (2, 'no number');
	CREATE PUBLICATION bad_copy FOR TABLE far.bad_copy});
$sub->safe_psql('postgres', q{
	CREATE SCHEMA far;
	CREATE TABLE far.bad_copy (a int PRIMARY KEY, b int)});
my $offset = -s $sub->logfile;
subscribe($pub, $sub, 'bad_copy', 'bad_copy');
$sub->wait_for_log(
	qr/CONTEXT:  COPY bad_copy, line 2, column b: "no number"/, $offset);
pass('a copy tells line and column');
$sub->wait_for_log(qr/CONTEXT:  .*copy of table "far\.bad_copy"/s, $offset)
  if with_extension();
$sub->safe_psql('postgres',
	'ALTER TABLE far.bad_copy ALTER COLUMN b TYPE text');
wait_ready($sub, 'bad_copy');
rows_ok($pub, $sub, 'far.bad_copy', 'the copy is mended');

$catchup->finish;
no_leftovers_ok($pub, $sub, 'no slot and no origin left');
no_builtin_sync_ok($sub);

done_testing();
