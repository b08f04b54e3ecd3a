# Many databases, owners and commands at a time: whoever waits is served, also
# after a restart, and nobody is in the way of DROP SUBSCRIPTION or DROP
# DATABASE.

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

# Create a table with rows on the publisher, and a publication of it.
sub publish
{
	my ($table) = @_;

	$pub->safe_psql(
		'postgres', qq{
		CREATE TABLE $table (a int PRIMARY KEY, b text);
		INSERT INTO $table
			SELECT g, 'row ' || g FROM generate_series(1, 20) AS g;
		CREATE PUBLICATION p_$table FOR TABLE $table;});
	return;
}

sub create_table
{
	my ($node, $db, $table) = @_;

	$node->safe_psql($db, "CREATE TABLE $table (a int PRIMARY KEY, b text)");
	return;
}

sub pause
{
	my ($node, $paused) = @_;

	$node->append_conf('postgresql.conf', "reuse_sync.paused = $paused");
	return;
}

# Six databases with four workers.  After a restart nobody calls for the
# tables that are pending, and the launcher does not look again by itself.
sub restart
{
	my $sub = new_subscriber('sub', 'reuse_sync.naptime' => '1h');
	my @databases = map { "db$_" } 1 .. 6;

	publish('early');
	publish('late');
	pause($sub, 'on');
	$sub->reload;
	foreach my $db (@databases)
	{
		$sub->safe_psql('postgres', "CREATE DATABASE $db");
		create_extension($sub, $db);
		create_table($sub, $db, $_) foreach qw(early late);
		subscribe($pub, $sub, "s_$db", 'p_early', sub_db => $db);
	}
	is( join('', map { table_state($sub, 'early', $_) } @databases),
		'iiiiii',
		'a table is pending in each database');
	pause($sub, 'off');
	restart_and_wait($sub, 'all', @databases);

	# Now in one of them only.
	pause($sub, 'on');
	$sub->reload;
	$sub->poll_query_until('postgres', 'SHOW reuse_sync.paused', 'on')
	  or die 'not paused';
	$sub->safe_psql('db5', 'ALTER SUBSCRIPTION s_db5 ADD PUBLICATION p_late');
	is(table_state($sub, 'late', 'db5'), 'i', 'a table is pending in one');
	pause($sub, 'off');
	restart_and_wait($sub, 'one', @databases);
	rows_ok($pub, $sub, 'early', "contents in $_", undef, sub_db => $_)
	  foreach @databases;
	rows_ok($pub, $sub, 'late', 'contents in db5', undef, sub_db => 'db5');

	foreach my $db (@databases)
	{
		$sub->safe_psql($db, "DROP SUBSCRIPTION s_$db");
		is($sub->psql('postgres', "DROP DATABASE $db"), 0, "$db is dropped");
	}
	no_leftovers_ok($pub, $sub, 'no slot and no origin left');
	no_builtin_sync_ok($sub);
	$sub->stop;
	return;
}

sub restart_and_wait
{
	my ($sub, $what, @databases) = @_;

	$sub->restart;
	my $start = time;
	wait_ready($sub, "s_$_", db => $_) foreach @databases;
	my $elapsed = time - $start;
	note "$what: ready after $elapsed s";
	cmp_ok($elapsed, '<', 60, "$what: ready soon after the restart");
	return;
}

# A worker stays for a while when there is no work.  It does not keep a
# database from being dropped.
sub drop_database
{
	my $sub = new_subscriber('idler');

	publish('idle');
	foreach my $i (1 .. 3)
	{
		$sub->safe_psql('postgres', 'CREATE DATABASE idle');
		create_extension($sub, 'idle');
		create_table($sub, 'idle', 'idle');
		subscribe($pub, $sub, 's_idle', 'p_idle', sub_db => 'idle');
		wait_ready($sub, 's_idle', db => 'idle');
		$sub->poll_query_until(
			'postgres', q{
			SELECT count(*) > 0 FROM reuse_sync.workers
			WHERE datname = 'idle' AND phase = 'idle'})
		  or die 'no worker is idle';
		$sub->safe_psql('idle', 'DROP SUBSCRIPTION s_idle');
		is($sub->psql('postgres', 'DROP DATABASE idle'),
			0, "$i: the database is dropped");
	}
	no_leftovers_ok($pub, $sub, 'no slot and no origin left');
	$sub->stop;
	return;
}

# DROP SUBSCRIPTION comes while a worker is about to end its work for it.
sub drop_at_the_end
{
	my $sub = new_subscriber('dropper', 'reuse_sync.naptime' => '1s');
	my @moments = (
		q{EXISTS (SELECT FROM reuse_sync.workers
			WHERE phase = 'handing over')},
		q{EXISTS (SELECT FROM reuse_sync.workers
			WHERE phase = 'dropping slots')},
		'false');

	publish('dropped');
	create_table($sub, 'postgres', 'dropped');
	foreach my $i (0 .. 23)
	{
		my $moment = $moments[ $i % @moments ];

		$sub->safe_psql('postgres', 'TRUNCATE dropped');
		subscribe($pub, $sub, 's_dropped', 'p_dropped');
		my $ret = $sub->psql(
			'postgres', qq{
			DO \$\$ BEGIN
				LOOP
					EXIT WHEN $moment
						OR NOT EXISTS (SELECT FROM pg_subscription_rel
							WHERE srsubstate NOT IN ('s', 'r'));
					PERFORM pg_sleep(0.001);
				END LOOP;
			END \$\$;
			DROP SUBSCRIPTION s_dropped});
		is($ret, 0, "$i: subscription is dropped") or last;
	}
	no_leftovers_ok($pub, $sub, 'no slot and no origin left');
	ok( $sub->poll_query_until(
			'postgres', 'SELECT count(*) = 0 FROM reuse_sync.slots'),
		'nor one in the catalog');
	$sub->stop;
	return;
}

# One worker for two owners and another database, of whom the first would keep
# it for long.
sub fair
{
	my $sub = new_subscriber(
		'sharer',
		'reuse_sync.batch_tables' => 1,
		'reuse_sync.max_workers'  => 1,
		'reuse_sync.naptime'      => '500ms');
	my $catchup = CatchUp->new($pub, $sub);
	my @long    = map { "long_$_" } 1 .. 6;

	$sub->safe_psql('postgres', 'CREATE ROLE second SUPERUSER LOGIN');
	$sub->safe_psql('postgres', 'CREATE DATABASE third');
	create_extension($sub, 'third');
	foreach my $table (@long, 'second')
	{
		publish($table);
		create_table($sub, 'postgres', $table);
	}
	publish('third');
	create_table($sub, 'third', 'third');
	$catchup->close_gate($_) foreach @long;

	subscribe($pub, $sub, 's_long', join(', ', map { "p_$_" } @long));
	my ($gate) = $catchup->wait_at_gates(\@long);
	subscribe($pub, $sub, 's_second', 'p_second',
		with => 'enabled = false, create_slot = true' . owner_options($sub));
	$sub->safe_psql(
		'postgres', q{
		ALTER SUBSCRIPTION s_second OWNER TO second;
		ALTER SUBSCRIPTION s_second ENABLE;});
	subscribe($pub, $sub, 's_third', 'p_third', sub_db => 'third');

	# The only worker may stay for ten seconds, then until its unit ends.
	$sub->poll_query_until(
		'postgres', q{
		SELECT clock_timestamp() - backend_start > '11 s'
		FROM reuse_sync.workers WHERE worker_type = 'worker'})
	  or die 'no worker';
	my $opened = 0;
	my @closed = @long;
	my $polls  = 10 * $PostgreSQL::Test::Utils::timeout_default;
	while (@closed && $polls-- > 0)
	{
		my @ready = grep { $_ eq 'r' || $_ eq 's' } table_state($sub, 'second'),
		  table_state($sub, 'third', 'third');

		last if @ready == 2;
		if ($gate)
		{
			$catchup->open_gate($gate);
			@closed = grep { $_ ne $gate } @closed;
			$opened++;
			$gate = undef;
		}
		else
		{
			($gate) = grep { is_at_gate($sub, $_) } @closed;
			usleep(100_000);
		}
	}
	note "tables of the first before the others had their turn: $opened";
	ok(@closed > 0, 'the others are served before all of the first is done');
	$catchup->open_gate($_) foreach @closed;
	wait_ready($sub, $_) foreach qw(s_long s_second);
	wait_ready($sub, 's_third', db => 'third');
	rows_ok($pub, $sub, $_, "contents of $_") foreach @long, 'second';
	rows_ok($pub, $sub, 'third', 'contents of third', undef, sub_db => 'third');
	$catchup->finish;
	$sub->safe_psql('postgres', "DROP SUBSCRIPTION $_")
	  foreach qw(s_long s_second);
	$sub->safe_psql('third', 'DROP SUBSCRIPTION s_third');
	no_leftovers_ok($pub, $sub, 'no slot and no origin left');
	$sub->stop;
	return;
}

# Workers that have nothing to do any more, and would stay, end for those of
# another database who have.
sub idle_give_way
{
	my $sub = new_subscriber(
		'idlers',
		'reuse_sync.batch_tables'        => 1,
		'reuse_sync.naptime'             => '1h',
		'reuse_sync.worker_idle_timeout' => '1h');
	my @tables = map { "way_$_" } 1 .. 4;
	my @after;

	publish($_) foreach @tables;
	foreach my $db (qw(done busy))
	{
		$sub->safe_psql('postgres', "CREATE DATABASE $db");
		create_extension($sub, $db);
		create_table($sub, $db, $_) foreach @tables;
		my $gates = CatchUp->new($pub, $sub, sub_db => $db);
		$gates->close_gate($_) foreach @tables;
		subscribe($pub, $sub, "s_$db", join(', ', map { "p_$_" } @tables),
			sub_db => $db);

		# All four workers of the pool are at it.
		wait_for_query(
			$sub, q{
			SELECT count(*) = 4 FROM reuse_sync.workers
			WHERE datname = current_database() AND phase = 'copying'}, $db);
		pass("all workers are in \"$db\"");
		$gates->open_gate($_) foreach @tables;
		wait_ready($sub, "s_$db", db => $db);
		wait_for_query(
			$sub, q{
			SELECT count(*) = 4 FROM reuse_sync.workers
			WHERE datname = current_database() AND phase = 'idle'}, $db);
		push @after, $gates;
	}

	# Who has ended like that is not taken for one that has failed.
	unlike(slurp_file($sub->logfile), qr/exited with exit code [^0]/,
		'none of them has failed');
	$_->finish foreach @after;
	$sub->safe_psql($_, "DROP SUBSCRIPTION s_$_") foreach qw(done busy);
	no_leftovers_ok($pub, $sub, 'no slot and no origin left');
	$sub->stop;
	return;
}

# Is a worker in the copy of this table?
sub is_at_gate
{
	my ($sub, $table) = @_;

	return $sub->safe_psql('postgres', qq{
		SELECT count(*) FROM pg_locks l JOIN reuse_sync.tables t USING (pid)
		WHERE t.relid = '$table'::regclass AND NOT l.granted});
}

subtest 'restart with six databases'         => \&restart;
subtest 'DROP DATABASE with an idle worker'  => \&drop_database;
subtest 'DROP SUBSCRIPTION as the work ends' => \&drop_at_the_end;
subtest 'one worker for three'               => \&fair;
subtest 'idle workers give way'              => \&idle_give_way;

done_testing();
