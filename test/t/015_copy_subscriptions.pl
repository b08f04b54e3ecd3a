# Initial copy under publications and subscriptions of all kinds: several
# publications with filters of their own, whole databases and schemas, a
# publisher's role with few rights, the options of a subscription, and several
# subscriptions and databases at once.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use ReuseSync;
use ReuseSync::Cases;

my $pub = new_publisher(
	'pub',
	max_prepared_transactions => 5,
	max_wal_senders           => 50,
	max_replication_slots     => 50);
# From 18 on workers that apply in parallel keep places, too.
my $sub = new_subscriber(
	'sub',
	wal_retrieve_retry_interval     => '200ms',
	max_prepared_transactions       => 5,
	max_wal_senders                 => 50,
	max_replication_slots           => 50,
	max_worker_processes            => 64,
	max_logical_replication_workers => 50);

sub create_database
{
	my ($name) = @_;

	$_->safe_psql('postgres', "CREATE DATABASE $name") foreach ($pub, $sub);
	create_extension($sub, $name);
	return;
}

#
# Several publications of a table in one subscription.  A row is copied if the
# filter of any of them lets it through; a publication without a filter, for
# all tables or for all of a schema lets all rows through.
#

my $ten_rows = 'INSERT INTO %s SELECT i, i FROM generate_series(1, 10) i';

sub filter_case
{
	my ($table, $name, $filter, $sql, $later) = @_;

	return {
		name => $name,
		both => "CREATE TABLE $table (a int PRIMARY KEY, b int)",
		pub  => sprintf($ten_rows, $table) . "; $sql",
		later    => $later // "INSERT INTO $table VALUES (11, 11), (-2, -2);
			DELETE FROM $table WHERE a = 2",
		rows     => "SELECT * FROM $table WHERE $filter",
		rows_sub => $table,
	};
}

my @filters = (
	filter_case('or_filters', 'filters of two publications', 'a < 3 OR a > 8',
		q{CREATE PUBLICATION or_1 FOR TABLE or_filters WHERE (a < 3);
		CREATE PUBLICATION or_2 FOR TABLE or_filters WHERE (a > 8)}),
	filter_case('overlapping', 'filters that overlap copy a row once',
		'a < 6 OR a % 2 = 0',
		q{CREATE PUBLICATION overlap_1 FOR TABLE overlapping WHERE (a < 6);
		CREATE PUBLICATION overlap_2 FOR TABLE overlapping WHERE (a % 2 = 0);
		CREATE PUBLICATION overlap_3 FOR TABLE overlapping WHERE (a < 6)}),
	filter_case('one_without', 'a filter, and a publication without one',
		'true',
		q{CREATE PUBLICATION without_1 FOR TABLE one_without WHERE (a < 3);
		CREATE PUBLICATION without_2 FOR TABLE one_without}),
	filter_case('null_filter', 'a filter that is null', 'b > 5',
		q{INSERT INTO null_filter VALUES (20, NULL);
		ALTER TABLE null_filter REPLICA IDENTITY FULL;
		CREATE PUBLICATION null_1 FOR TABLE null_filter WHERE (b > 5)}),
	filter_case('inserts_only', 'the filter of a publication of inserts',
		'b > 5 OR a = 12',
		q{CREATE PUBLICATION inserts_1 FOR TABLE inserts_only WHERE (b > 5)
			WITH (publish = 'insert')},
		'INSERT INTO inserts_only VALUES (12, 12)'),
	filter_case('in_schema.filtered', 'a filter, and all tables of a schema',
		'true',
		q{CREATE PUBLICATION schema_1 FOR TABLE in_schema.filtered WHERE (a < 3);
		CREATE PUBLICATION schema_2 FOR TABLES IN SCHEMA in_schema}),
	filter_case('in_schema."Other"', 'another table of that schema', 'true', ''),
	{
		name => 'the same column list in two publications',
		both => 'CREATE TABLE two_lists (a int PRIMARY KEY, b int, c int)',
		pub  => q{INSERT INTO two_lists VALUES (1, 2, 3), (4, 5, 6), (7, 8, 9);
			CREATE PUBLICATION list_1 FOR TABLE two_lists (a, b) WHERE (a < 2);
			CREATE PUBLICATION list_2 FOR TABLE two_lists (b, a) WHERE (a > 5)},
		later    => 'INSERT INTO two_lists VALUES (0, 0, 0), (3, 3, 3)',
		rows     => q{SELECT a, b, NULL::int AS c FROM two_lists
			WHERE a < 2 OR a > 5},
		rows_sub => 'two_lists',
	});
both($pub, $sub, 'CREATE SCHEMA in_schema');
run_cases($pub, $sub, 'filters', \@filters,
	publications => [ qw(or_1 or_2 overlap_1 overlap_2 overlap_3 without_1
		without_2 null_1 inserts_1 schema_1 schema_2 list_1 list_2) ]);

# A table that comes to the schema later needs no change of the publication.
both($pub, $sub, 'CREATE TABLE in_schema.newcomer (a int PRIMARY KEY)');
$pub->safe_psql('postgres', 'INSERT INTO in_schema.newcomer VALUES (1), (2)');
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION filters REFRESH PUBLICATION');
wait_ready($sub, 'filters');
rows_ok($pub, $sub, 'in_schema.newcomer', 'new table of a published schema, copy');
$pub->safe_psql('postgres', 'DELETE FROM in_schema.newcomer WHERE a = 1');
catch_up($pub, $sub, 'filters');
rows_ok($pub, $sub, 'in_schema.newcomer',
	'new table of a published schema, later changes');

# A publication that is added for a table that is ready has only changes sent:
# row 5 is not copied, row 7 comes because it is inserted again.
$pub->safe_psql('postgres',
	'CREATE PUBLICATION or_3 FOR TABLE or_filters WHERE (a IN (5, 7))');
# The changes must not be sent to the apply worker that still runs without it.
my $sender = "SELECT active_pid FROM pg_replication_slots
	WHERE slot_name = 'filters'";
my $old_sender = $pub->safe_psql('postgres', $sender);
$sub->safe_psql('postgres',
	'ALTER SUBSCRIPTION filters ADD PUBLICATION or_3');
$pub->poll_query_until('postgres', "SELECT ($sender) <> $old_sender")
  or die 'the apply worker has not restarted';
wait_ready($sub, 'filters');
catch_up($pub, $sub, 'filters');
$pub->safe_psql('postgres', q{DELETE FROM or_filters WHERE a = 7;
	INSERT INTO or_filters VALUES (7, 77)});
catch_up($pub, $sub, 'filters');
rows_ok(
	$pub, $sub,
	'SELECT * FROM or_filters WHERE a < 3 OR a > 8 OR a = 7',
	'publication added for a table that is ready', 'or_filters');

#
# FOR ALL TABLES
#

create_database('everything');
run_cases(
	$pub, $sub,
	'everything',
	[
		{
			name => 'all tables, one of them filtered elsewhere',
			both => 'CREATE TABLE t (a int PRIMARY KEY, b int)',
			pub  => sprintf($ten_rows, 't') . q{;
				CREATE PUBLICATION everything_1 FOR TABLE t WHERE (a < 3);
				CREATE PUBLICATION everything_2 FOR ALL TABLES},
			later => 'DELETE FROM t WHERE a > 9; INSERT INTO t VALUES (11, 1)',
			rows  => 't',
		},
		{
			name => 'all tables, a schema and a partitioned table',
			both => q{CREATE SCHEMA "S";
				CREATE TABLE "S".t (a int PRIMARY KEY) PARTITION BY LIST (a);
				CREATE TABLE "S".t_1 PARTITION OF "S".t FOR VALUES IN (1);
				CREATE TABLE "S".t_d PARTITION OF "S".t DEFAULT},
			pub   => 'INSERT INTO "S".t VALUES (1), (2), (3)',
			later => 'UPDATE "S".t SET a = a + 10 WHERE a < 3',
			rows  => 'SELECT tableoid::regclass::text, a FROM "S".t',
		}
	],
	publications => [ 'everything_1', 'everything_2' ],
	pub_db       => 'everything',
	sub_db       => 'everything');

#
# A role of the publisher that may do no more than it has to
#

my @modest = (
	{
		name    => 'role with REPLICATION and SELECT',
		both    => 'CREATE TABLE granted (a int PRIMARY KEY, b text)',
		pub     => q{INSERT INTO granted VALUES (1, 'x');
			GRANT SELECT ON granted TO modest},
		publish => 'granted',
		later   => q{INSERT INTO granted VALUES (2, 'y')},
		rows    => 'granted',
	},
	{
		name => 'SELECT granted for the columns of the column list only',
		pub  => q{CREATE TABLE col_granted (a int PRIMARY KEY, b text, c text);
			INSERT INTO col_granted VALUES (1, 'x', 'secret');
			GRANT SELECT (a, b) ON col_granted TO modest},
		sub     => 'CREATE TABLE col_granted (a int PRIMARY KEY, b text)',
		publish => 'col_granted (a, b)',
		later   => q{INSERT INTO col_granted VALUES (2, 'y', 'secret')},
		rows    => 'SELECT a, b FROM col_granted',
	},
	{
		name => 'SELECT granted for columns, with a row filter',
		pub  => q{CREATE TABLE col_filtered (a int PRIMARY KEY, b text, c text);
			INSERT INTO col_filtered VALUES (1, 'x', 'secret'), (-1, 'out', '');
			GRANT SELECT (a, b) ON col_filtered TO modest},
		sub      => 'CREATE TABLE col_filtered (a int PRIMARY KEY, b text)',
		publish  => 'col_filtered (a, b) WHERE (a > 0)',
		later    => q{INSERT INTO col_filtered VALUES (2, 'y', 'secret'),
			(-2, 'out', '')},
		rows     => 'SELECT a, b FROM col_filtered WHERE a > 0',
		rows_sub => 'col_filtered',
	},
	{
		name => 'row level security on the publisher',
		pub  => q{CREATE TABLE secured (a int PRIMARY KEY, b text);
			INSERT INTO secured VALUES (1, 'visible'), (2, 'hidden');
			ALTER TABLE secured ENABLE ROW LEVEL SECURITY;
			CREATE POLICY visible ON secured FOR SELECT TO modest
				USING (b = 'visible');
			GRANT SELECT ON secured TO modest},
		sub      => 'CREATE TABLE secured (a int PRIMARY KEY, b text)',
		publish  => 'secured',
		rows     => q{SELECT * FROM secured WHERE b = 'visible'},
		rows_sub => 'secured',
	},
	{
		name => 'partitioned table, SELECT granted on the root only',
		both => q{CREATE TABLE root_granted (a int PRIMARY KEY)
				PARTITION BY LIST (a);
			CREATE TABLE root_granted_d PARTITION OF root_granted DEFAULT},
		pub => q{INSERT INTO root_granted VALUES (1), (2);
			GRANT SELECT ON root_granted TO modest;
			CREATE PUBLICATION root_granted_pub FOR TABLE root_granted
				WITH (publish_via_partition_root)},
		later => 'INSERT INTO root_granted VALUES (3)',
		rows  => 'root_granted',
	},
	{
		name => 'inheritance parent, SELECT granted on the parent only',
		both => q{CREATE TABLE inh_granted (a int PRIMARY KEY);
			CREATE TABLE inh_granted_c () INHERITS (inh_granted)},
		pub => q{INSERT INTO inh_granted VALUES (1), (2);
			INSERT INTO inh_granted_c VALUES (3);
			GRANT SELECT ON inh_granted TO modest},
		publish => 'ONLY inh_granted',
		later   => 'INSERT INTO inh_granted VALUES (4)',
		rows    => 'SELECT a FROM ONLY inh_granted',
		rows_sub => 'inh_granted',
	},
	{
		name => 'table in a schema that the role may use',
		both => q{CREATE SCHEMA usable;
			CREATE TABLE usable.t (a int PRIMARY KEY)},
		pub => q{INSERT INTO usable.t VALUES (1);
			GRANT USAGE ON SCHEMA usable TO modest;
			GRANT SELECT ON usable.t TO modest},
		publish => 'usable.t',
		later   => 'INSERT INTO usable.t VALUES (2)',
		rows    => 'usable.t',
	});
$pub->safe_psql('postgres', 'CREATE ROLE modest LOGIN REPLICATION');
run_cases($pub, $sub, 'modest', \@modest,
	user         => 'modest',
	publications => ['root_granted_pub']);

#
# copy_data = false
#

both($pub, $sub, 'CREATE TABLE no_copy (a int PRIMARY KEY, b text)');
$pub->safe_psql('postgres', q{INSERT INTO no_copy VALUES (1, 'old'), (2, 'old');
	CREATE PUBLICATION no_copy_pub FOR TABLE no_copy});
subscribe($pub, $sub, 'no_copy', 'no_copy_pub', with => 'copy_data = false');
wait_ready($sub, 'no_copy');
$pub->safe_psql('postgres', q{INSERT INTO no_copy VALUES (3, 'new');
	UPDATE no_copy SET b = 'changed' WHERE a = 1});
catch_up($pub, $sub, 'no_copy');
rows_ok($pub, $sub, 'SELECT * FROM no_copy WHERE a = 3',
	'copy_data = false: changes only', 'no_copy');

# With REFRESH, for a table at a time, and then again with copying.
both($pub, $sub, "CREATE TABLE no_copy_$_ (a int PRIMARY KEY)")
  foreach (2, 3);
$pub->safe_psql('postgres', q{
	INSERT INTO no_copy_2 VALUES (1);
	INSERT INTO no_copy_3 VALUES (1);
	ALTER PUBLICATION no_copy_pub ADD TABLE no_copy_2});
$sub->safe_psql('postgres',
	'ALTER SUBSCRIPTION no_copy REFRESH PUBLICATION WITH (copy_data = false)');
$pub->safe_psql('postgres', 'ALTER PUBLICATION no_copy_pub ADD TABLE no_copy_3');
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION no_copy REFRESH PUBLICATION');
wait_ready($sub, 'no_copy');
$pub->safe_psql('postgres',
	'INSERT INTO no_copy_2 VALUES (2); INSERT INTO no_copy_3 VALUES (2)');
catch_up($pub, $sub, 'no_copy');
rows_ok($pub, $sub, 'SELECT a FROM no_copy_2 WHERE a > 1',
	'REFRESH with copy_data = false: changes only', 'no_copy_2');
rows_ok($pub, $sub, 'no_copy_3', 'REFRESH with copy_data after that: all rows');

#
# Options.  Each subscription has a table with some thousand rows and later a
# transaction that is large enough to be streamed where that is on.
#

foreach my $option (
	[ 'streaming',   'streaming = on' ],
	[ 'synchronous', 'synchronous_commit = on' ],
	[ 'own_slot',    'create_slot = false, slot_name = made_before' ],
	[ 'all_options', 'binary, streaming, synchronous_commit = remote_apply' ])
{
	my ($name, $with) = @$option;
	my $table = "opt_$name";

	# The changes that this slot has from before the copy must not come.
	my $before = $name eq 'own_slot'
	  ? q{SELECT pg_create_logical_replication_slot('made_before', 'pgoutput');}
	  : '';

	$pub->safe_psql('postgres',
		q{ALTER SYSTEM SET logical_decoding_work_mem = '64kB';
		SELECT pg_reload_conf()}) if $name eq 'streaming';

	run_cases(
		$pub, $sub, $table,
		[
			{
				name => "subscription with $with",
				both => "CREATE TABLE $table (a int PRIMARY KEY, b text)",
				pub  => "CREATE PUBLICATION $table FOR TABLE $table;
					$before
					INSERT INTO $table SELECT i, repeat('x', i % 300)
					FROM generate_series(1, 3000) i",
				later   => "BEGIN; UPDATE $table SET b = b || 'y';
					SAVEPOINT s; DELETE FROM $table WHERE a % 3 = 0;
					ROLLBACK TO s; DELETE FROM $table WHERE a % 5 = 0; COMMIT",
				rows => "SELECT count(*), sum(a), md5(string_agg(b, ',' ORDER BY a))
					FROM $table",
			}
		],
		publications => [$table],
		with         => $with);
}

# A subscription that is created disabled, or not connected at all, and
# enabled later.
both($pub, $sub, 'CREATE TABLE dis_abled (a int PRIMARY KEY)');
$pub->safe_psql('postgres', q{INSERT INTO dis_abled VALUES (1), (2);
	CREATE PUBLICATION dis_abled_pub FOR TABLE dis_abled});
subscribe($pub, $sub, 'dis_abled', 'dis_abled_pub', with => 'enabled = false');
$pub->safe_psql('postgres', 'INSERT INTO dis_abled VALUES (3)');
is($sub->safe_psql('postgres', q{SELECT srsubstate, (SELECT count(*)
		FROM dis_abled) FROM pg_subscription_rel
		WHERE srrelid = 'dis_abled'::regclass}),
	'i|0', 'a disabled subscription copies nothing');
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION dis_abled ENABLE');
wait_ready($sub, 'dis_abled');
$pub->safe_psql('postgres', 'DELETE FROM dis_abled WHERE a = 1');
catch_up($pub, $sub, 'dis_abled');
rows_ok($pub, $sub, 'dis_abled', 'subscription enabled later');

both($pub, $sub, 'CREATE TABLE unconnected (a int PRIMARY KEY)');
$pub->safe_psql('postgres', q{INSERT INTO unconnected VALUES (1), (2);
	CREATE PUBLICATION unconnected_pub FOR TABLE unconnected;
	SELECT pg_create_logical_replication_slot('unconnected', 'pgoutput')});
subscribe($pub, $sub, 'unconnected', 'unconnected_pub',
	with => 'connect = false');
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION unconnected ENABLE');
$sub->safe_psql('postgres',
	'ALTER SUBSCRIPTION unconnected REFRESH PUBLICATION');
wait_ready($sub, 'unconnected');
$pub->safe_psql('postgres', 'DELETE FROM unconnected WHERE a = 1');
catch_up($pub, $sub, 'unconnected');
rows_ok($pub, $sub, 'unconnected', 'subscription connected later');

#
# Two-phase commit is enabled once all tables are ready.  A transaction that
# was prepared before the copy and is committed after it has to come too.
#

both($pub, $sub, 'CREATE TABLE two_phase (a int PRIMARY KEY)');
$pub->safe_psql('postgres', q{INSERT INTO two_phase VALUES (1);
	CREATE PUBLICATION two_phase_pub FOR TABLE two_phase});
subscribe($pub, $sub, 'two_phase', 'two_phase_pub', with => 'two_phase');
wait_ready($sub, 'two_phase');
ok( $sub->poll_query_until('postgres', q{SELECT subtwophasestate = 'e'
		FROM pg_subscription WHERE subname = 'two_phase'}),
	'two-phase commit is enabled after the copy');
$pub->safe_psql('postgres', q{BEGIN; INSERT INTO two_phase VALUES (2);
	PREPARE TRANSACTION 'prepared'});
catch_up($pub, $sub, 'two_phase');
is($sub->safe_psql('postgres', 'SELECT count(*) FROM pg_prepared_xacts'),
	'1', 'a transaction is prepared on the subscriber');
$pub->safe_psql('postgres', q{COMMIT PREPARED 'prepared'});
catch_up($pub, $sub, 'two_phase');
rows_ok($pub, $sub, 'two_phase', 'and committed');

#
# Several subscriptions in one database: to two databases of the publisher,
# and to two publications that have a table in common.
#

$pub->safe_psql('postgres', "CREATE DATABASE source_$_") foreach (1, 2);
foreach my $n (1, 2)
{
	$pub->safe_psql("source_$n", "CREATE TABLE from_$n (a int PRIMARY KEY);
		INSERT INTO from_$n SELECT generate_series($n, 100);
		CREATE PUBLICATION same_name FOR TABLE from_$n");
	$sub->safe_psql('postgres', "CREATE TABLE from_$n (a int PRIMARY KEY)");
}
subscribe($pub, $sub, "from_$_", 'same_name', pub_db => "source_$_")
  foreach (1, 2);
wait_ready($sub, "from_$_") foreach (1, 2);
foreach my $n (1, 2)
{
	$pub->safe_psql("source_$n", "DELETE FROM from_$n WHERE a > 50");
	catch_up($pub, $sub, "from_$n");
	rows_ok($pub, $sub, "from_$n", "subscription $n of two, to database $n",
		undef, pub_db => "source_$n");
}

both($pub, $sub, 'CREATE TABLE shared (a int PRIMARY KEY, b text)');
$pub->safe_psql('postgres', q{
	INSERT INTO shared SELECT i, 'x' FROM generate_series(1, 100) i;
	CREATE PUBLICATION shared_1 FOR TABLE shared WHERE (a % 2 = 0);
	CREATE PUBLICATION shared_2 FOR TABLE shared WHERE (a % 2 = 1)});
subscribe($pub, $sub, $_, $_) foreach qw(shared_1 shared_2);
wait_ready($sub, $_) foreach qw(shared_1 shared_2);
rows_ok($pub, $sub, 'shared', 'two subscriptions share a table, copy');
$pub->safe_psql('postgres', q{UPDATE shared SET b = 'y' WHERE a < 10;
	DELETE FROM shared WHERE a > 90});
catch_up($pub, $sub, $_) foreach qw(shared_1 shared_2);
rows_ok($pub, $sub, 'shared', 'two subscriptions share a table, later changes');

#
# Publisher and subscriber in one server.  The slot is made beforehand, else
# CREATE SUBSCRIPTION waits for itself.
#

$sub->safe_psql('postgres', 'CREATE DATABASE own_source');
$sub->safe_psql('own_source', q{CREATE TABLE own_server (a int PRIMARY KEY);
	INSERT INTO own_server SELECT generate_series(1, 100);
	CREATE PUBLICATION own_pub FOR TABLE own_server;
	SELECT pg_create_logical_replication_slot('own_server', 'pgoutput')});
$sub->safe_psql('postgres', 'CREATE TABLE own_server (a int PRIMARY KEY)');
subscribe($sub, $sub, 'own_server', 'own_pub',
	pub_db => 'own_source',
	with   => 'create_slot = false');
wait_ready($sub, 'own_server');
$sub->safe_psql('own_source', 'DELETE FROM own_server WHERE a > 10');
catch_up($sub, $sub, 'own_server');
rows_ok($sub, $sub, 'own_server', 'publisher and subscriber are one server',
	undef, pub_db => 'own_source');

no_leftovers_ok($pub, $sub, 'no slot and no origin left');
no_leftovers_ok($sub, $sub, 'nor a slot where the publisher is the subscriber');
no_builtin_sync_ok($sub);

done_testing();
