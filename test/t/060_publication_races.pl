# A writer's transaction that wrote to a table before a change of the
# publication made those rows publishable, and that commits when the table is
# about to be copied.  A slot that is older than the change would lose the rows:
# they are not in the snapshot, and the stream does not have them.  So the table
# must get a new slot, whose creation waits for the writer.
#
# In each case the only worker has a slot, and is stopped by a gate in the copy
# of an earlier table while the writer writes and the publication is changed.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use CatchUp;
use ReuseSync;

my $pub = new_publisher('pub', autovacuum => 'off');
my $sub = new_subscriber(
	'sub',
	autovacuum                         => 'off',
	wal_retrieve_retry_interval        => '100ms',
	max_sync_workers_per_subscription  => 1,
	'reuse_sync.max_workers'           => 1,
	'reuse_sync.batch_tables'          => 1,
	'reuse_sync.batch_size'            => 0,
	'reuse_sync.naptime'               => '100ms',
	'reuse_sync.handover_lock_timeout' => '10s');
my $catchup = CatchUp->new($pub, $sub);

# What a case can say, besides its name; %t is its table, %f the earlier one:
#
#   ddl       SQL for both sides, after the two tables have been created
#   table     the table that is compared, if not %t
#   pending   true if the subscription knows the table from the beginning
#   created   true if the table is created at the gate
#   publish   SQL for the publisher that makes its publications
#   pubs      the list of publications, if not just "p"
#   before    SQL for the publisher, at the gate, before the writer writes
#   write     what the writer does; a row is inserted if nothing is said
#   change    SQL for the publisher, after that
my @cases = (
	{
		name    => 'table added, new to the subscription',
		publish => 'CREATE PUBLICATION p FOR TABLE %f',
		change  => 'ALTER PUBLICATION p ADD TABLE %t',
	},
	{
		name    => 'table added, pending through a publication of inserts',
		pending => 1,
		publish => q{
			CREATE PUBLICATION p FOR TABLE %f;
			CREATE PUBLICATION p_ins FOR TABLE %t WITH (publish = 'insert');},
		pubs   => 'p, p_ins',
		write  => "UPDATE %t SET b = 'new' WHERE a = 1; DELETE FROM %t WHERE a = 2",
		change => 'ALTER PUBLICATION p ADD TABLE %t',
	},
	{
		name    => 'more actions published',
		pending => 1,
		publish =>
		  "CREATE PUBLICATION p FOR TABLE %f, %t WITH (publish = 'insert')",
		write  => "UPDATE %t SET b = 'new' WHERE a = 1; DELETE FROM %t WHERE a = 2",
		change => "ALTER PUBLICATION p SET (publish = 'insert, update, delete')",
	},
	{
		name    => 'other row filter',
		pending => 1,
		publish => 'CREATE PUBLICATION p FOR TABLE %f, %t WHERE (a > 1000)',
		change  => 'ALTER PUBLICATION p SET TABLE %f, %t WHERE (a > 0)',
	},
	{
		name    => 'other column list',
		pending => 1,
		publish => 'CREATE PUBLICATION p FOR TABLE %f, %t (a, b)',
		change  => 'ALTER PUBLICATION p SET TABLE %f, %t (a, b, c)',
	},
	{
		name    => 'table dropped and added again',
		pending => 1,
		publish => 'CREATE PUBLICATION p FOR TABLE %f, %t',
		before  => 'ALTER PUBLICATION p DROP TABLE %t',
		change  => 'ALTER PUBLICATION p ADD TABLE %t',
	},
	{
		name    => 'all tables, more actions published',
		pending => 1,
		publish => q{
			CREATE PUBLICATION p FOR ALL TABLES WITH (publish = 'insert')},
		write  => "UPDATE %t SET b = 'new' WHERE a = 1; DELETE FROM %t WHERE a = 2",
		change => "ALTER PUBLICATION p SET (publish = 'insert, update, delete')",
	},
	{
		name    => 'all tables, table created after the slot',
		publish => 'CREATE PUBLICATION p FOR ALL TABLES',
		created => 1,
	},
	{
		name    => 'schema added, table new to the subscription',
		ddl     => 'CREATE SCHEMA %t_s; ALTER TABLE %t SET SCHEMA %t_s',
		table   => '%t_s.%t',
		publish => 'CREATE PUBLICATION p FOR TABLE %f',
		write   => "INSERT INTO %t_s.%t VALUES (10, 'ten', 'c')",
		change  => 'ALTER PUBLICATION p ADD TABLES IN SCHEMA %t_s',
	},
	{
		name    => 'schema added, table pending through a publication of inserts',
		pending => 1,
		ddl     => 'CREATE SCHEMA %t_s; ALTER TABLE %t SET SCHEMA %t_s',
		table   => '%t_s.%t',
		publish => q{
			CREATE PUBLICATION p FOR TABLE %f;
			CREATE PUBLICATION p_ins FOR TABLE %t_s.%t WITH (publish = 'insert');},
		pubs   => 'p, p_ins',
		write  => "DELETE FROM %t_s.%t WHERE a = 2",
		change => 'ALTER PUBLICATION p ADD TABLES IN SCHEMA %t_s',
	},
	{
		name    => 'schema dropped and added again',
		pending => 1,
		ddl     => 'CREATE SCHEMA %t_s; ALTER TABLE %t SET SCHEMA %t_s',
		table   => '%t_s.%t',
		publish => 'CREATE PUBLICATION p FOR TABLE %f, TABLES IN SCHEMA %t_s',
		before  => 'ALTER PUBLICATION p DROP TABLES IN SCHEMA %t_s',
		write   => "INSERT INTO %t_s.%t VALUES (10, 'ten', 'c')",
		change  => 'ALTER PUBLICATION p ADD TABLES IN SCHEMA %t_s',
	},
	{
		name => 'published through the root of the partitions',
		ddl  => q{
			CREATE TABLE %t_root (a int PRIMARY KEY, b text, c text)
				PARTITION BY RANGE (a);
			ALTER TABLE %t_root ATTACH PARTITION %t DEFAULT},
		table   => '%t_root',
		publish => 'CREATE PUBLICATION p FOR TABLE %f, %t_root',
		change  => 'ALTER PUBLICATION p SET (publish_via_partition_root)',
	});

# Poll until the function returns something true, and return that.
sub wait_for
{
	my ($what, $condition) = @_;
	my $end = time + $PostgreSQL::Test::Utils::timeout_default;

	while (1)
	{
		my $result = $condition->();
		return $result if $result;
		die "waited in vain for $what\n" . ReuseSync::log_tail($sub)
		  if time > $end;
	}
}

# Where the synchronization of a table has come with the writer's transaction
# still open: it waits for that, or has copied the table without.
sub where_it_is
{
	my ($table, $xid) = @_;

	return 'waits for the writer'
	  if $pub->safe_psql('postgres',
		"SELECT count(*) > 0 FROM pg_locks WHERE NOT granted"
		  . " AND locktype = 'transactionid' AND transactionid = '$xid'") eq
	  't';
	my $state = table_state($sub, $table);
	return $state =~ /[id]/ ? '' : "is in state $state";
}

sub run_race
{
	my ($number, $case) = @_;
	my ($first, $t) = ("f$number", "t$number");
	my $create = "CREATE TABLE %t (a int PRIMARY KEY, b text, c text)";
	my $fill   = "INSERT INTO %t VALUES (1, 'one', 'c'), (2, 'two', 'c')";
	my $sql    = sub {
		my $text = shift // '';
		return $text =~ s/%t/$t/gr =~ s/%f/$first/gr;
	};
	my $table = $sql->($case->{table} // '%t');
	my $name  = $case->{name};

	both($pub, $sub, "CREATE TABLE $first (a int PRIMARY KEY)");
	both($pub, $sub, $sql->("$create; " . ($case->{ddl} // '')))
	  if !$case->{created};
	$pub->safe_psql('postgres', "INSERT INTO $first VALUES (1)");
	$pub->safe_psql('postgres',
		$sql->($fill =~ s/%t/$case->{table} \/\/ '%t'/er))
	  if !$case->{created};
	$pub->safe_psql('postgres', $sql->($case->{publish}));

	$catchup->close_gate($first);
	subscribe($pub, $sub, 's', $case->{pubs} // 'p');
	$catchup->wait_at_gates([$first]);

	# The worker has its slot.  What it will find next is the race.
	is(table_state($sub, $table), 'i', "$name: pending")
	  if $case->{pending};
	if ($case->{created})
	{
		both($pub, $sub, $sql->($create));
		$pub->safe_psql('postgres', $sql->($fill));
	}
	$pub->safe_psql('postgres', $sql->($case->{before}));
	my $writer = $catchup->session('pub');
	my $xid    = $writer->query_safe('BEGIN; SELECT txid_current()');
	$writer->query_safe(
		$sql->($case->{write} // "INSERT INTO %t VALUES (10, 'ten', 'c')"));
	$pub->safe_psql('postgres', $sql->($case->{change}));
	$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s REFRESH PUBLICATION')
	  if !$case->{pending};
	$catchup->open_gate($first);

	is(wait_for("the next table of case \"$name\"",
			sub { where_it_is($table, $xid) }),
		'waits for the writer', "$name: waits");
	$writer->query_safe('COMMIT');

	# What the publication has begun to publish comes through from now on.
	$writer->query_safe(
		"UPDATE $table SET b = b || ' later' WHERE a = 1;"
		  . " INSERT INTO $table VALUES (11, 'eleven', 'c')");
	end_session($writer);
	wait_ready($sub, 's');
	catch_up($pub, $sub, 's');
	rows_ok($pub, $sub, $table, "$name: contents");
	rows_ok($pub, $sub, $first, "$name: the earlier table");

	$sub->safe_psql('postgres', 'DROP SUBSCRIPTION s');
	$pub->safe_psql('postgres', 'DROP PUBLICATION p');
	$pub->safe_psql('postgres', 'DROP PUBLICATION IF EXISTS p_ins');
	both($pub, $sub, "DROP TABLE $table CASCADE; DROP TABLE $first");
	return;
}

my $number = 0;
run_race(++$number, $_) foreach @cases;

# A publisher that is itself a subscriber, whose apply worker commits
# asynchronously: while each table is in its copy, and after that, there are
# commits that are not flushed, and that only somebody else's need will flush.
{
	my @tables = map { "chain$_" } 1 .. 5;

	$pub->append_conf('postgresql.conf', "wal_writer_delay = '10s'");
	$pub->reload;
	$pub->safe_psql('postgres', 'CREATE DATABASE upstream');
	foreach my $table (@tables)
	{
		my $create = "CREATE TABLE $table (a int PRIMARY KEY, b int)";
		both($pub, $sub, $create);
		$pub->safe_psql('upstream', $create);
		$pub->safe_psql('upstream', "INSERT INTO $table VALUES (0, 0)");
	}
	$pub->safe_psql(
		'upstream', q{
		CREATE PUBLICATION up FOR ALL TABLES;
		SELECT pg_create_logical_replication_slot('up', 'pgoutput');});
	$pub->safe_psql('postgres',
		'CREATE PUBLICATION p FOR TABLE ' . join(', ', @tables));
	subscribe($pub, $pub, 'up', 'up',
		pub_db => 'upstream',
		with => 'create_slot = false, slot_name = up, synchronous_commit = off');
	wait_ready($pub, 'up');

	# Each transaction changes all the tables.
	my $round = 0;
	my $burst = sub {
		my $from = 1 + 20 * $round++;
		my $to   = $from + 19;
		$pub->safe_psql(
			'upstream',
			"DO 'BEGIN FOR i IN $from .. $to LOOP "
			  . join('',
				map { "INSERT INTO $_ VALUES (i, i);"
					  . "UPDATE $_ SET b = b + 1 WHERE a IN (0, i / 2);" } @tables)
			  . " COMMIT; END LOOP; END'");
	};

	$catchup->close_gate($_) foreach @tables;
	subscribe($pub, $sub, 's', 'p');
	my %waiting = map { $_ => 1 } @tables;
	while (%waiting)
	{
		$burst->();
		my ($table) = $catchup->wait_at_gates([ keys %waiting ]);
		$burst->();
		wait_for(
			'the apply worker of the publisher',
			sub {
				$pub->safe_psql('postgres',
					"SELECT max(a) = 20 * $round FROM $table") eq 't';
			});
		$burst->();
		$catchup->open_gate($table);
		$burst->();
		delete $waiting{$table};
	}
	wait_ready($sub, 's');
	$burst->();

	# From now on commits are soon flushed.
	$pub->append_conf('postgresql.conf', "wal_writer_delay = '10ms'");
	$pub->reload;
	catch_up($pub, $pub, 'up');

	# Nothing that has been applied is still to be written.
	$pub->safe_psql('postgres', 'SELECT txid_current()');
	catch_up($pub, $sub, 's');
	is($pub->safe_psql('postgres', 'SELECT count(*) FROM chain1'),
		1 + 20 * $round, 'chain: all has arrived in the middle');
	rows_ok($pub, $sub, $_, "chain: table $_") foreach @tables;
	rows_ok($pub, $sub, $tables[0], 'chain: the same at both ends',
		undef, pub_db => 'upstream');

	$sub->safe_psql('postgres', 'DROP SUBSCRIPTION s');
	$pub->safe_psql('postgres', 'DROP SUBSCRIPTION up');
}

$catchup->finish;
no_leftovers_ok($pub, $sub);

# The server looks for a slot of each table that REFRESH removes, and says that
# it is not there.
is( join(
		'',
		grep { !/LOG:  could not drop replication slot "pg_\d+_sync_/ }
		  log_errors($sub)),
	'',
	'no error in the log');
no_builtin_sync_ok($sub);
$_->stop foreach ($sub, $pub);

done_testing();
