# pg_dump, pg_restore and pg_upgrade of a database with the extension.  A dump
# has the extension and the rights on its objects, but nothing of its catalog:
# what that says is of slots and tables of the server that was dumped.  What
# pg_upgrade brings along of it is of subscriptions that have other numbers now.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use CatchUp;

plan skip_all => 'needs the extension' unless with_extension();

my %settings = (
	wal_retrieve_retry_interval               => '200ms',
	'reuse_sync.batch_size'                   => 0,
	'reuse_sync.batch_tables'                 => 1,
	'reuse_sync.handover_lock_timeout'        => '1min',
	'reuse_sync.max_workers_per_subscription' => 1,
	'reuse_sync.naptime'                      => '500ms');
my $pub     = new_publisher('pub');
my $sub     = new_subscriber('sub', %settings);
my $catchup = CatchUp->new($pub, $sub);
my $dir     = PostgreSQL::Test::Utils::tempdir;

# All slots on the publisher, where they stand, and who has them.
sub slots
{
	return $pub->safe_psql(
		'postgres', q{
		SELECT slot_name, active, restart_lsn, confirmed_flush_lsn
		FROM pg_replication_slots WHERE slot_name !~ 'restored' ORDER BY 1});
}

# How many rows the catalog has, in each of its relations.
sub catalog
{
	my ($node, $db) = @_;
	my @relations = split /\n/, $node->safe_psql($db // 'postgres',
		q{SELECT relname FROM pg_class WHERE relkind = 'm'
		AND relnamespace = 'reuse_sync'::regnamespace ORDER BY relname});

	return {
		map {
			$_ => $node->safe_psql($db // 'postgres',
				"SELECT count(*) FROM reuse_sync.$_")
		} @relations
	};
}

sub restart
{
	my ($node, %conf) = @_;

	$node->append_conf('postgresql.conf', "$_ = '$conf{$_}'")
	  foreach sort keys %conf;
	$node->restart;
	return;
}

# Run a client program; returns its status and what it said.
sub run_program
{
	my (@command) = @_;
	my ($out, $err) = ('', '');

	$command[0] = $sub->installed_command($command[0]);
	IPC::Run::run(\@command, '>', \$out, '2>', \$err);
	my $status = $? >> 8;
	note("@command: $status\n$out$err");
	return ($status, $out . $err);
}

# A subscription whose table is synchronized, with a slot that cannot be
# dropped since its role has lost the right.
sub leave_slot
{
	my ($table) = @_;

	publish_tables($pub, $sub, "p_$table", $table);
	$pub->safe_psql('postgres',
		"CREATE ROLE of_$table LOGIN REPLICATION; GRANT SELECT ON $table TO of_$table"
	);
	$catchup->close_gate($table);
	subscribe($pub, $sub, "s_$table", "p_$table",
		user => "of_$table password=known_to_$table");
	$catchup->wait_at_gates([$table]);
	$pub->safe_psql('postgres', "ALTER ROLE of_$table NOREPLICATION");
	$catchup->open_gate($table);
	wait_ready($sub, "s_$table");
	wait_for_query($sub, qq{
		SELECT count(*) = 1 FROM reuse_sync.slots
		WHERE subname = 's_$table' AND state = 'orphaned'
		AND last_error IS NOT NULL});
	return $sub->safe_psql('postgres',
		"SELECT slot_name FROM reuse_sync.slots WHERE subname = 's_$table'");
}

# Have a subscription dropped without a word to its publisher.
sub part_and_drop
{
	my ($name) = @_;

	$sub->safe_psql('postgres', $_)
	  foreach (
		"ALTER SUBSCRIPTION $name DISABLE",
		"ALTER SUBSCRIPTION $name SET (slot_name = NONE)",
		"DROP SUBSCRIPTION $name");
	return;
}

#
# Something of everything is in the catalog: a table that is ready, one that is
# half done and has a slot, and a slot of a subscription that is gone.
#
my $of_gone = leave_slot('gone');
part_and_drop('s_gone');
publish_tables($pub, $sub, "p_$_", $_) foreach qw(ready half);
subscribe($pub, $sub, 's_ready', 'p_ready');
wait_ready($sub, 's_ready');
my $lock = $catchup->session('sub');
$lock->query_safe('BEGIN; LOCK TABLE half IN ROW EXCLUSIVE MODE');
subscribe($pub, $sub, 's_half', 'p_half');
wait_for_query($sub, q{
	SELECT count(*) > 0 FROM pg_locks
	WHERE relation = 'half'::regclass AND NOT granted});
$sub->safe_psql('postgres',
	'ALTER SUBSCRIPTION s_half DISABLE; ALTER SUBSCRIPTION s_ready DISABLE');
end_session($lock);
wait_for_query($sub, q{
	SELECT count(*) = 0 FROM reuse_sync.workers
	WHERE worker_type = 'worker' AND subname IS NOT NULL});
is(table_state($sub, 'half'), 'f', 'a table is half done');
$sub->safe_psql(
	'postgres', q{
	CREATE ROLE joe;
	GRANT USAGE ON SCHEMA reuse_sync TO joe;
	GRANT SELECT ON reuse_sync.tables TO joe});
my $rows = catalog($sub);
cmp_ok($rows->{$_}, '>', 0, "there are rows in $_")
  foreach qw(slot_catalog slot_number table_progress counter);

#
# What is dumped.
#
my %dumps = (
	plain  => [],
	schema => ['--schema-only'],
	custom => ['--format=custom']);
foreach my $name (sort keys %dumps)
{
	my ($status, $said) = run_program(
		'pg_dump', @{ $dumps{$name} }, '-f', "$dir/$name",
		'-d', $sub->connstr('postgres'));
	is("$status$said", '0', "dump, $name");
}
my %text = map { $_ => slurp_file("$dir/$_") } qw(plain schema);
foreach my $name (sort keys %text)
{
	my $dump = $text{$name};

	like($dump, qr/^CREATE EXTENSION IF NOT EXISTS reuse_sync /m,
		"dump, $name: has the extension");
	like($dump, qr/^GRANT SELECT ON TABLE reuse_sync\.tables TO joe;$/m,
		"dump, $name: has rights that were given");
	is( join("\n",
			grep { !/GRANT|EXTENSION|CREATE SUBSCRIPTION|Type: ACL/ }
			  $dump =~ /^.*reuse_sync.*$/mg),
		'',
		"dump, $name: has nothing else of it");
	unlike($dump, qr/known_to_gone/,
		"dump, $name: has nothing of a connection that is kept");
	like($dump, qr/^CREATE SUBSCRIPTION s_half .*connect = false/m,
		"dump, $name: has the subscriptions");
}

#
# Restored where the library is loaded: the same surface, an empty catalog, and
# nothing is done to the slots of the original.  With slots of their own the
# subscriptions are synchronized.
#
$pub->poll_query_until('postgres',
	'SELECT count(*) = 0 FROM pg_replication_slots WHERE active')
  or die 'somebody still streams';
my $slots    = slots();
my $restored = new_subscriber('restored', %settings);
$restored->safe_psql('postgres',
	'CREATE ROLE joe; CREATE DATABASE plain; CREATE DATABASE schema');
foreach my $name (qw(plain schema))
{
	my ($status, $said) = run_program('psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1',
		'-f', "$dir/$name", '-d', $restored->connstr($name));
	is($status, 0, "restored, $name") or diag($said);
	unlike($said, qr/ERROR/, "restored, $name: no error");

	# A slot has the name of a subscription, of which there are two by now.
	my $own = "half_restored_$name";
	$pub->safe_psql('postgres',
		"SELECT pg_create_logical_replication_slot('$own', 'pgoutput')");
	is( join(' ', values %{ catalog($restored, $name) }),
		join(' ', map { 0 } keys %$rows),
		"restored, $name: the catalog is empty");
	is($restored->safe_psql($name, 'SELECT count(*) FROM reuse_sync.slots'),
		0, "restored, $name: no slot");
	is( $restored->safe_psql($name,
			q{SELECT concat_ws(' ', has_table_privilege('joe',
				'reuse_sync.tables', 'SELECT'), has_table_privilege('joe',
				'reuse_sync.slots', 'SELECT'))}),
		't f', "restored, $name: rights");
	is( $restored->safe_psql($name,
			q{SELECT string_agg(concat_ws(' ', subname, subenabled, tables), ', '
				ORDER BY subname)
			FROM pg_subscription JOIN reuse_sync.subscriptions USING (subname)
			WHERE subdbid = (SELECT oid FROM pg_database
				WHERE datname = current_database())}),
		's_half f 0, s_ready f 0',
		"restored, $name: the subscriptions wait");

	$restored->safe_psql($name, 'TRUNCATE half');
	$restored->safe_psql($name, "ALTER SUBSCRIPTION s_half SET (slot_name = $own)");
	$restored->safe_psql($name, 'ALTER SUBSCRIPTION s_half ENABLE');
	$restored->safe_psql($name, 'ALTER SUBSCRIPTION s_half REFRESH PUBLICATION');
	wait_ready($restored, 's_half', db => $name);
	rows_ok($pub, $restored, 'half', "restored, $name: synchronized",
		undef, sub_db => $name);
	is($restored->safe_psql($name, 'SELECT tables_synced FROM reuse_sync.stats'),
		1, "restored, $name: by the pool");
	wait_for_query($restored, 'SELECT count(*) = 0 FROM reuse_sync.slots', $name);
}
is(slots(), $slots, "restored: the original's slots are as they were");
no_builtin_sync_ok($restored);
$restored->stop;

#
# Restored where it is not loaded: all the rest is there, and the extension can
# be created later.
#
my $bare = ReuseSync::new_node('bare', log_statement => 'none');
$bare->safe_psql('postgres', 'CREATE ROLE joe');
my ($status, $said) = run_program('pg_restore', '-d', $bare->connstr('postgres'),
	"$dir/custom");
is($status, 1, 'not loaded: pg_restore says that it has failed');
like(
	$said,
	qr/"reuse_sync" must be loaded via shared_preload_libraries\n(?:.*\n)*?HINT:  Add it/,
	'not loaded: and what to do');
my @errors = $said =~ /^pg_restore: error: could not execute query: ERROR:  (.*)$/mg;
is(scalar(grep { !/reuse_sync/ } @errors),
	0, 'not loaded: nothing else has failed');
rows_ok($sub, $bare, $_, "not loaded: rows of $_") foreach qw(ready half);
is($bare->safe_psql('postgres',
		q{SELECT string_agg(subname, ' ' ORDER BY subname) FROM pg_subscription}),
	's_half s_ready', 'not loaded: subscriptions');
restart($bare, shared_preload_libraries => 'reuse_sync');
$bare->safe_psql('postgres', 'CREATE EXTENSION reuse_sync');
is( join(' ', values %{ catalog($bare) }),
	join(' ', map { 0 } keys %$rows),
	'loaded later: the catalog is empty');
($status, $said) = run_program('psql', '-X', '-q', '-d', $bare->connstr('postgres'),
	'-c', 'SELECT * FROM reuse_sync.check()');
is($status, 0, 'loaded later: check()') or diag($said);
is(slots(), $slots, "loaded later: the original's slots are as they were");
$bare->stop;

#
# The original goes on.
#
$pub->safe_psql('postgres', 'ALTER ROLE of_gone REPLICATION');
$sub->safe_psql('postgres',
	'ALTER SUBSCRIPTION s_half ENABLE; ALTER SUBSCRIPTION s_ready ENABLE');
wait_ready($sub, 's_half');
catch_up($pub, $sub, 's_half');
rows_ok($pub, $sub, 'half', 'the original finishes what was half done');
wait_for_query($sub, 'SELECT count(*) = 0 FROM reuse_sync.slots');
unlike(slots(), qr/^reuse_sync/m, 'and drops its slots');

# lost_ok($node, $what, $slot): there is a slot of which nobody knows where its
# publisher is; what is said of it.
sub lost_ok
{
	my ($node, $what, $slot) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is( $node->safe_psql('postgres',
			q{SELECT object || ': ' || problem FROM reuse_sync.check()
			WHERE severity = 'error' AND problem ~ 'is gone'}),
		qq{replication slot "$slot": its subscription is gone, and where its publisher is is not known},
		"$what: check() names the slot");
	my ($ret, $out, $err) = $node->psql('postgres', 'DROP EXTENSION reuse_sync');
	like($err, qr/cannot drop extension .*\n.*\nHINT:  Run CALL reuse_sync.drain\(\) first/,
		"$what: the extension stays");
	return;
}

sub warning
{
	my ($slot) = @_;

	return
	  qr/WARNING:  replication slot "$slot" may remain on a publisher\nDETAIL:  .*not known\.\nHINT:  .*pg_drop_replication_slot/;
}

sub catalog_slots
{
	my ($node) = @_;

	return $node->safe_psql('postgres',
		'SELECT slot_name FROM reuse_sync.slots ORDER BY slot_id, slot_name');
}

#
# A subscription is dropped while the pool is off, and could not say where its
# slot is.  It takes somebody to have that forgotten.
#
my $lost = leave_slot('lost');
my $kept = leave_slot('kept');
restart($sub, 'reuse_sync.enabled' => 'off');
part_and_drop('s_lost');
restart($sub, 'reuse_sync.enabled' => 'on');
lost_ok($sub, 'dropped while off', $lost);
$sub->safe_psql('postgres',
	'CREATE ROLE jane; GRANT USAGE ON SCHEMA reuse_sync TO jane');
my (undef, undef, $err) = $sub->psql('postgres',
	'SET ROLE jane; SELECT reuse_sync.drop_orphaned_slots()');
is($err, '', 'dropped while off: nothing happens for others');
(undef, undef, $err) = $sub->psql('postgres',
	q{SELECT reuse_sync.drop_orphaned_slots('s_kept')});
unlike($err, warning($lost), 'dropped while off: nor for another subscription');
like(catalog_slots($sub), qr/^$lost$/m, 'dropped while off: it stays');
my ($ret, $out);
($ret, $out, $err) =
  $sub->psql('postgres', 'SELECT reuse_sync.drop_orphaned_slots()');
like($err, warning($lost), 'dropped while off: a superuser has it forgotten');
unlike($err, warning($kept), 'dropped while off: but no other');
is($out, 0, 'dropped while off: none was dropped');
is(catalog_slots($sub), $kept, 'dropped while off: it is forgotten');
like(slots(), qr/^\Q$lost\E\|/m, 'dropped while off: it is still there');

#
# pg_upgrade.  Nothing of ours is started meanwhile; counters and rights come
# along.  The subscription has another number afterwards, and so the slot that
# was left is nobody's.
#
# Servers before 17 start apply workers under pg_upgrade, and do not bring along
# the tables of subscriptions: without them an apply worker would skip what has
# been changed meanwhile.  So subscriptions are disabled before, and there are
# no apply workers until REFRESH has put the tables in.
#
sub confirmed
{
	my ($slot, $lsn) = @_;

	$pub->poll_query_until('postgres',
		"SELECT confirmed_flush_lsn >= '$lsn' FROM pg_replication_slots
		WHERE slot_name = '$slot'")
	  or die "$slot has not got to $lsn";
	return;
}

$pub->safe_psql('postgres', q{INSERT INTO half VALUES (101, 'before')});
confirmed('s_half', $pub->lsn('insert'));
my $stats = q{SELECT tables_synced, units, slots_created, bytes_copied
	FROM reuse_sync.stats};
$sub->safe_psql('postgres', "ALTER SUBSCRIPTION $_ DISABLE")
  foreach qw(s_half s_kept s_ready);
my $counted = $sub->safe_psql('postgres', $stats);
my %subid   = map { split /\|/ } split /\n/,
  $sub->safe_psql('postgres', 'SELECT subname, oid FROM pg_subscription');
$sub->stop;
$pub->poll_query_until('postgres',
	'SELECT count(*) = 0 FROM pg_replication_slots WHERE active')
  or die 'somebody still streams';
$pub->safe_psql('postgres', q{INSERT INTO half VALUES (102, 'while it is down')});
$slots = slots();

my $new = PostgreSQL::Test::Cluster->new('upgraded');
$new->init(allows_streaming => 'logical',
	extra => [ '--encoding=UTF8', '--locale=C' ]);
$new->append_conf('postgresql.conf', "$_ = '$settings{$_}'")
  foreach sort keys %settings;
my $bindir  = $sub->config_data('--bindir');
my @upgrade = (
	'pg_upgrade', '--no-sync', '--retain',
	'-d', $sub->data_dir, '-D', $new->data_dir,
	'-b', $bindir, '-B', $bindir, '-s', $new->host,
	'-p', $sub->port, '-P', $new->port);
chdir $dir or die "$dir: $!";
($status, $said) = run_program(@upgrade, '--check');
is($status, 0, 'pg_upgrade: checked, not loaded in the new server')
  or diag($said);
$new->append_conf('postgresql.conf', "shared_preload_libraries = 'reuse_sync'");
($status, $said) = run_program(@upgrade);
is($status, 0, 'pg_upgrade: done, loaded in both') or diag($said);
my @logs = glob($new->data_dir . '/pg_upgrade_output.d/*/log/pg_upgrade_server.log');
cmp_ok(scalar @logs, '>', 0, 'pg_upgrade: there is a log of the servers');
unlike(join('', map { slurp_file($_) } @logs),
	qr/reuse_sync launcher|logical replication apply worker/,
	'pg_upgrade: nothing was started in them');
is(slots(), $slots, 'pg_upgrade: the slots are as they were');

$new->append_conf('postgresql.conf', 'max_logical_replication_workers = 0');
$new->start;
is($new->safe_psql('postgres', $stats), $counted, 'upgraded: counters');
is( $new->safe_psql('postgres',
		q{SELECT concat_ws(' ', has_table_privilege('joe', 'reuse_sync.tables',
			'SELECT'), has_table_privilege('pg_monitor', 'reuse_sync.tables',
			'SELECT'), has_table_privilege('jane', 'reuse_sync.tables',
			'SELECT'))}),
	't t f', 'upgraded: rights');
is( $new->safe_psql('postgres',
		q{SELECT count(*) FROM pg_class WHERE relkind = 'm'
		AND relnamespace = 'reuse_sync'::regnamespace AND NOT relispopulated}),
	0, 'upgraded: the catalog can be read');
my %new_subid = map { split /\|/ } split /\n/,
  $new->safe_psql('postgres', 'SELECT subname, oid FROM pg_subscription');
is(join(' ', sort keys %new_subid),
	's_half s_kept s_ready', 'upgraded: the subscriptions are there');
isnt($new_subid{s_kept}, $subid{s_kept}, 'upgraded: with other numbers');
lost_ok($new, 'upgraded', $kept);
($ret, $out, $err) = $new->psql('postgres', q{CALL reuse_sync.drain('3min')});
is($ret, 0, 'upgraded: drain() comes to an end') or diag($err);
like($err, warning($kept), 'upgraded: it says which slot may remain');
is(catalog_slots($new), '', 'upgraded: and forgets it');
is(slots(), $slots, 'upgraded: the slots are as they were');
$new->safe_psql('postgres', 'SELECT reuse_sync.wakeup()');

# The subscription goes on where it was; a new table is synchronized.
my $known = $new->safe_psql('postgres',
	"SELECT count(*) FROM pg_subscription_rel WHERE srsubid = $new_subid{s_half}");
is($known, $sub->pg_version >= 17 ? 1 : 0,
	'upgraded: tables of subscriptions come along from 17 on');
$new->safe_psql('postgres', $_)
  foreach (
	'ALTER SUBSCRIPTION s_half ENABLE',
	'ALTER SUBSCRIPTION s_half REFRESH PUBLICATION WITH (copy_data = false)');
restart($new, max_logical_replication_workers => 4);
$pub->safe_psql(
	'postgres', q{
	CREATE TABLE added (a int PRIMARY KEY, b text);
	INSERT INTO added SELECT g, 'row ' || g FROM generate_series(1, 20) AS g;
	ALTER PUBLICATION p_half ADD TABLE added});
$new->safe_psql('postgres', 'CREATE TABLE added (a int PRIMARY KEY, b text)');
$new->safe_psql('postgres', 'ALTER SUBSCRIPTION s_half REFRESH PUBLICATION');
wait_ready($new, 's_half');
$pub->safe_psql('postgres', q{INSERT INTO half VALUES (103, 'after');
	INSERT INTO added VALUES (101, 'after')});
catch_up($pub, $new, 's_half');
rows_ok($pub, $new, $_, "upgraded: rows of $_") foreach qw(half added);
is( $new->safe_psql('postgres', 'SELECT tables_synced FROM reuse_sync.stats'),
	(split /\|/, $counted)[0] + 1,
	'upgraded: the pool synchronizes');
no_builtin_sync_ok($new, 'upgraded: the server does not');
wait_for_query($new, 'SELECT count(*) = 0 FROM reuse_sync.slots');
wait_for_query($new, q{
	SELECT count(*) = 0 FROM reuse_sync.table_progress
	WHERE subid NOT IN (SELECT oid FROM pg_subscription)});

# What was said may remain is there, and nothing else.
my $left = join "\n", sort $kept, $lost;
is( $pub->safe_psql('postgres',
		q{SELECT slot_name FROM pg_replication_slots
		WHERE slot_name ~ '^reuse_sync_' ORDER BY slot_name COLLATE "C"}),
	$left, 'upgraded: slots that remain are those that were named');

done_testing();
