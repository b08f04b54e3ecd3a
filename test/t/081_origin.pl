# What is synchronized carries a replication origin, so that a subscriber that
# publishes only its own changes does not send it on: rows of the copy and of
# the catch-up, whichever way the table goes.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use CatchUp;
use ReuseSync;

my $pub = new_publisher('pub', track_commit_timestamp => 'on');
my $sub = new_subscriber(
	'sub',
	track_commit_timestamp     => 'on',
	'reuse_sync.batch_size'    => '64kB');
my $catchup = CatchUp->new($pub, $sub);

# "small" goes the express way, "large" the staged one.
my %rows = (small => 10, large => 3000);
foreach my $table (sort keys %rows)
{
	both($pub, $sub, "CREATE TABLE $table (a int PRIMARY KEY, b text)");
	$pub->safe_psql('postgres',
		"INSERT INTO $table SELECT g, repeat('x', 100)
		FROM generate_series(1, $rows{$table}) g");
	$catchup->close_gate($table);
}
$pub->safe_psql('postgres', 'CREATE PUBLICATION p FOR ALL TABLES');
$sub->safe_psql('postgres',
	q{SELECT pg_create_logical_replication_slot('all_changes', 'test_decoding'),
		pg_create_logical_replication_slot('own_changes', 'test_decoding')});

# One after the other: what one of them waits for is in a batch with it.
subscribe($pub, $sub, 's', 'p');
$catchup->run_cases(
	map { { table => $_, changes => "
		UPDATE $_ SET b = 'caught up' WHERE a = 1;
		DELETE FROM $_ WHERE a = 2;
		INSERT INTO $_ VALUES (-1, 'caught up')" } } sort keys %rows);
wait_ready($sub, 's');
rows_ok($pub, $sub, $_, "$_: synchronized") foreach sort keys %rows;

# What a plugin gets to see of it, with and without what others began
sub changes
{
	my ($slot, $table, @options) = @_;
	my $options = join '', map { ", '$_'" } @options;

	return $sub->safe_psql('postgres', qq{
		SELECT count(*) > 0
		FROM pg_logical_slot_peek_changes('$slot', NULL, NULL$options)
		WHERE data LIKE 'table public.$table: %'});
}

foreach my $table (sort keys %rows)
{
	is(changes('all_changes', $table),
		't', "$table: its changes can be decoded");
	is(changes('own_changes', $table, 'only-local', '1'),
		'f', "$table: none of them is the subscriber's own");
	is( $sub->safe_psql('postgres', qq{
			SELECT count(*) FROM $table
			WHERE (pg_xact_commit_timestamp_origin(xmin)).roident = 0}),
		'0',
		"$table: every row was committed with an origin");
}

$sub->safe_psql('postgres', q{INSERT INTO small VALUES (-2, 'own')});
is(changes('own_changes', 'small', 'only-local', '1'),
	't', "what is the subscriber's own is seen as such");
$sub->safe_psql('postgres', q{DELETE FROM small WHERE a = -2;
	SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots});
no_leftovers_ok($pub, $sub, 'no slot and no origin left');
$sub->safe_psql('postgres', 'DROP SUBSCRIPTION s');

#
# Two servers that publish to each other, where a subscription can be told to
# take only what its publisher began itself.  The first one listens when the
# second one copies: a row that came back would collide with itself.
#

SKIP:
{
	skip 'this server knows no origin of a subscription', 7
	  if $sub->safe_psql('postgres', 'SHOW server_version_num') < 160000;

	my ($a, $b) = ($pub, $sub);
	both($a, $b, q{CREATE TABLE two_way (a int PRIMARY KEY, b text);
		CREATE PUBLICATION two_way FOR TABLE two_way});
	$a->safe_psql('postgres',
		q{INSERT INTO two_way SELECT g, 'a' FROM generate_series(1, 1000) g});
	$b->safe_psql('postgres',
		q{INSERT INTO two_way SELECT g, 'b'
		FROM generate_series(1001, 2000) g});

	create_extension($a, 'postgres')
	  if $a->safe_psql('postgres', 'SHOW shared_preload_libraries') ne '';
	subscribe($b, $a, 'from_b', 'two_way',
		with => 'origin = none, copy_data = off');
	subscribe($a, $b, 'from_a', 'two_way', with => 'origin = none');
	wait_ready($b, 'from_a');
	catch_up($b, $a, 'from_b');
	is($b->safe_psql('postgres', 'SELECT count(*) FROM two_way'),
		'2000', 'the second server has the rows of both');
	is($a->safe_psql('postgres', 'SELECT count(*) FROM two_way'),
		'1000', 'nothing that was copied comes back to the first');

	$a->safe_psql('postgres', q{INSERT INTO two_way VALUES (5001, 'a')});
	$b->safe_psql('postgres', q{INSERT INTO two_way VALUES (5002, 'b')});
	catch_up($a, $b, 'from_a');
	catch_up($b, $a, 'from_b');
	foreach my $node ($a, $b)
	{
		is( $node->safe_psql('postgres',
				'SELECT a, b FROM two_way WHERE a > 5000 ORDER BY a'),
			"5001|a\n5002|b",
			'changes go both ways: ' . $node->name);
	}
	is(join('', log_errors($a), log_errors($b)),
		'', 'no row has collided with itself');
	$a->safe_psql('postgres', 'DROP SUBSCRIPTION from_b');
	$b->safe_psql('postgres', 'DROP SUBSCRIPTION from_a');
	no_leftovers_ok($a, $b, 'no slot and no origin left');
	no_leftovers_ok($b, $a, 'nor on the other side');
}

$catchup->finish;
no_builtin_sync_ok($sub);

done_testing();
