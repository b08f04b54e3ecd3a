# What every column of every view, function and catalog relation says, by its
# value, in each state that a table, a worker and a slot can be in; and what the
# log says meanwhile.
#
# A row is compared as a whole: row_is() wants an expectation for each of its
# columns, and at the end there must have been one, not null, for each column
# that there is.  Values are computed from what the test knows: bytes are those
# that COPY sends, LSNs and xmins what the publisher shows, times lie between
# two readings of the same clock.

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Races qw(session wait_until stop_process continue_process);
use Test::More;
use CatchUp;
use ReuseSync;

plan skip_all => 'only of the extension' unless with_extension();

# One worker, one table after the other, the staged way; it stays when it has
# nothing to do.
my $pub = new_publisher('pub', autovacuum => 'off');
my $sub = new_subscriber(
	'sub',
	autovacuum                                => 'off',
	log_timezone                              => 'UTC',
	timezone                                  => 'UTC',
	wal_retrieve_retry_interval               => '100ms',
	'reuse_sync.batch_size'                   => 0,
	'reuse_sync.handover_lock_timeout'        => '1h',
	'reuse_sync.max_workers_per_subscription' => 1,
	'reuse_sync.naptime'                      => '1h',
	'reuse_sync.worker_idle_timeout'          => '1h');
my $on_pub  = session($pub);
my $on_sub  = session($sub);
my $catchup = CatchUp->new($pub, $sub);

sub ask
{
	return $on_sub->query_safe($_[0]);
}

sub ask_pub
{
	return $on_pub->query_safe($_[0]);
}

# The clock, as row_is() has times: microseconds.
sub clock
{
	return ask('SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint');
}

#
# Rows
#

# Names and types of the columns of all relations and functions that return
# rows; functions have "()" behind their name.
my %columns;
foreach my $line (
	split /\n/, ask(
		q{
	SELECT c.relname, a.attname, format_type(a.atttypid, NULL), a.attnum AS n
	FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
	WHERE c.relnamespace = 'reuse_sync'::regnamespace AND a.attnum > 0
		AND c.relkind IN ('r', 'v', 'm', 'p', 'f')
	UNION ALL
	SELECT p.proname || '()', a.name, format_type(a.type, NULL), a.n
	FROM pg_proc p,
		unnest(p.proargnames, p.proallargtypes) WITH ORDINALITY a(name, type, n)
	WHERE p.pronamespace = 'reuse_sync'::regnamespace AND p.proretset
	ORDER BY 1, 4}))
{
	my ($relation, $column, $type) = split /\|/, $line;
	push @{ $columns{$relation} }, [ $column, $type ];
}

# Columns that have been compared with a value, and these values.
my %seen;

# The rows of a relation as hashes.
sub rows
{
	my ($relation, $where) = @_;
	my $fields = join ', ', map {
		my ($name, $type) = @$_;
		"'$name', "
		  . ( $type eq 'timestamp with time zone'
			? "(extract(epoch FROM x.$name) * 1000000)::bigint::text"
			: "x.$name\::text")
	} @{ $columns{$relation} };

	return @{
		JSON::PP->new->decode(
			ask("SELECT coalesce(json_agg(json_build_object($fields)), '[]')
				FROM reuse_sync.$relation x WHERE " . ($where // 'true')))
	};
}

# row_is($relation, $where, \%expected, $testname): one test, that there is one
# such row and what it holds: for each column undef, a value, or two numbers it
# lies between, of which the second may be a function to call once the row has
# been read.
sub row_is
{
	my ($relation, $where, $expected, $testname) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($row, @more) = rows($relation, $where);
	my @names = map { $_->[0] } @{ $columns{$relation} };
	my @wrong;

	die "$relation: " . join(', ', sort keys %$expected)
	  if join(' ', sort @names) ne join(' ', sort keys %$expected);
	return fail("$testname: $relation has one row") if !$row || @more;
	foreach my $name (@names)
	{
		my ($got, $value) = ($row->{$name}, $expected->{$name});
		$value = [ $value->[0], $value->[1]->() ]
		  if ref $value && ref $value->[1];
		my $ok =
		    !defined $value ? !defined $got
		  : !defined $got   ? 0
		  : ref $value      ? $value->[0] <= $got && $got <= $value->[1]
		  :                   $got eq $value;

		push @wrong,
		  "$name is "
		  . ($got // 'null')
		  . ', not '
		  . (ref $value ? "$value->[0] to $value->[1]" : $value // 'null')
		  if !$ok;
		$seen{"$relation.$name"}{ $got // '' } = 1 if defined $value;
	}
	return is(join("\n", @wrong), '', "$testname: $relation");
}

# none_ok($relation, $testname, $where): one test, that there is no such row.
sub none_ok
{
	my ($relation, $testname, $where) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return is(scalar(rows($relation, $where)), 0,
		"$testname: $relation has no row");
}

# row($relation, %values): a hash with undef for all columns but those given
sub row
{
	my ($relation, %values) = @_;

	return { (map { $_->[0] => undef } @{ $columns{$relation} }), %values };
}

#
# The log
#
my $log_start = -s $sub->logfile;

# Lines since the last call that match, without what is in front of them.
sub log_lines
{
	my ($pattern) = @_;

	return join "\n",
	  map { s/^.*? (LOG|ERROR|WARNING|DETAIL|HINT): +/$1: /r }
	  grep { /$pattern/ } split /\n/, slurp_file($sub->logfile, $log_start);
}

sub next_log
{
	$log_start = -s $sub->logfile;
	return;
}

# units_logged_ok($testname, [ what, rows, bytes, slot, how, relid ], ...): one
# test, that these units are in the log since next_log, with the time that they
# have taken, in ms: whole ones, at or after the handover.
sub units_logged_ok
{
	my ($testname, @units) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my (@got, @expected);

	foreach my $line (split /\n/, log_lines(qr/worker synchronized/))
	{
		my ($ms) = $line =~ / (\d+) ms, /;
		my $unit = shift @units // last;
		my ($what, $rows, $bytes, $slot, $how, $relation) = @$unit;
		my ($least) = ask("SELECT floor(extract(epoch FROM
				finished_at - started_at) * 1000)
			FROM reuse_sync.units WHERE relid = '$relation'::regclass");

		push @got, $line =~ s/, \d+ ms/, N ms/r;
		push @expected,
		  "LOG: reuse_sync worker synchronized $what of subscription \"s\": $rows rows, $bytes bytes, N ms, slot \"$slot\" $how";
		push @expected, "$ms ms, not at least $least and less than a minute more"
		  if $ms < $least || $ms > $least + 60000;
	}
	push @expected, map { "a unit with $_->[0]" } @units;
	return is(join("\n", @got), join("\n", @expected), $testname);
}

#
# Tables.  The copies are shorter than the 64 kB that COPY reads ahead.
#
my (%relid, %length, %size);

sub create_tables
{
	my (%rows) = @_;

	foreach my $table (sort keys %rows)
	{
		both($pub, $sub, "CREATE TABLE $table (a int PRIMARY KEY, b text)");
		ask_pub("INSERT INTO $table SELECT g, repeat('x', 100)
			FROM generate_series(1, $rows{$table}) g");
		$relid{$table} = ask("SELECT '$table'::regclass::oid");
		$size{$table}  = ask_pub("SELECT pg_relation_size('$table')");
		my $copy;
		$pub->psql('postgres', "COPY $table TO STDOUT", stdout => \$copy);
		$length{$table} = length($copy) + 1;
	}
	return;
}

# What the publisher shows of a slot.
sub remote_slot
{
	my ($slot) = @_;

	return split /\|/, ask_pub(
		"SELECT restart_lsn, catalog_xmin,
			pg_current_wal_insert_lsn() - restart_lsn
		FROM pg_replication_slots WHERE slot_name = '$slot'");
}

my $dbid  = ask('SELECT oid FROM pg_database WHERE datname = current_database()');
my $sysid = ask('SELECT system_identifier FROM pg_control_system()');
my ($pub_sysid, $timeline) = split /\|/, ask_pub(
	'SELECT system_identifier, timeline_id
	FROM pg_control_system(), pg_control_checkpoint()');
my $subid;

sub slot_name
{
	my ($id) = @_;

	return "reuse_sync_${subid}_${id}_$sysid";
}

#
# Nothing is there.  The launcher is.
#
my $start =
  ask('SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint');
my $launcher = ask(
	q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'reuse_sync launcher'});
none_ok($_, 'nothing is there')
  foreach grep { !/^(?:workers|pool_workers\(\)|stats|check\(\))$/ }
  sort keys %columns;
row_is(
	'workers', undef,
	row('workers',
		pid           => $launcher,
		worker_type   => 'launcher',
		phase         => 'idle',
		tables_synced => 0,
		backend_start => [ $start, clock() ],
		state_change  => [ $start, clock() ]),
	'the launcher');
row_is(
	'pool_workers()',
	undef,
	row('pool_workers()',
		pid           => $launcher,
		worker_type   => 'launcher',
		phase         => 'idle',
		tables_synced => 0,
		backend_start => [ $start, clock() ],
		state_change  => [ $start, clock() ]),
	'the launcher');

# What stats is to show; and what is to have been counted
my %stats =
  map { $_->[0] => 0 } grep { $_->[0] ne 'stats_reset' } @{ $columns{stats} };
row_is('stats', undef, { %stats, stats_reset => undef }, 'nothing is there');

#
# A subscription that is not enabled
#
create_tables(held => 1);
ask_pub('CREATE PUBLICATION p FOR TABLE held');
subscribe($pub, $sub, 's', 'p', with => 'enabled = false');
$subid = ask(q{SELECT oid FROM pg_subscription WHERE subname = 's'});

my %pending = (
	subname => 's', state => 'pending', attempts => 0);
row_is('tables', undef,
	row('tables', %pending, relid => $relid{held}), 'disabled');
row_is(
	'table_state',
	undef,
	row('table_state', %pending,
		subid => $subid, relid => $relid{held}, share => 0, weight => 65536),
	'disabled');
my %counts = map { $_ => 0 } qw(pending copying catching_up ready failed);
row_is(
	'subscriptions',
	undef,
	row('subscriptions', %counts,
		subname => 's', tables => 1, pending => 1, percent => '0.0'),
	'disabled');

#
# A worker that starts: it waits for a lock on pg_extension.
#
my $xid     = session($pub);
my $enabler = session($sub);
my $locker  = session($sub);
$xid->query_safe('BEGIN; SELECT pg_current_xact_id()');
$enabler->query_safe('BEGIN; ALTER SUBSCRIPTION s ENABLE');
$locker->query_safe('BEGIN; LOCK TABLE pg_extension IN ACCESS EXCLUSIVE MODE');
my $before = clock();
$enabler->query_safe('COMMIT');
wait_until($sub, 'a worker that waits', q{
	SELECT count(*) > 0 FROM pg_stat_activity
	WHERE backend_type = 'reuse_sync worker' AND wait_event_type = 'Lock'});
my $worker = ask(
	q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'reuse_sync worker'});
my $begun = clock();

my %worker = (
	pid           => $worker,
	worker_type   => 'worker',
	datname       => 'postgres',
	tables_synced => 0,
	backend_start => [ $before, $begun ]);
row_is(
	'workers',
	"pid = $worker",
	row('workers', %worker,
		phase => 'starting', state_change => [ $before, $begun ]),
	'starting');
none_ok($_, 'starting') foreach qw(slots pool_slots() pool_copies());
$locker->query_safe('ROLLBACK');

#
# A slot is being created: the publisher waits for a transaction.
#
wait_until($pub, 'a slot that waits', q{
	SELECT count(*) > 0 FROM pg_stat_activity
	WHERE application_name LIKE 'reuse\_sync\_%' AND wait_event_type = 'Lock'});
# One that has come before the apply worker streamed has ended meanwhile.
wait_until($sub, 'a single worker', q{
	SELECT count(*) = 1 FROM pg_stat_activity
	WHERE backend_type = 'reuse_sync worker'});
$worker = ask(
	q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'reuse_sync worker'});
my $now = clock();
$worker{pid}           = $worker;
$worker{backend_start} = [ $before, $now ];
row_is(
	'workers',
	"pid = $worker",
	row('workers', %worker,
		subname      => 's',
		slot_name    => slot_name(1),
		phase        => 'creating slot',
		relid        => $relid{held},
		batch_tables => 1,
		state_change => [ $begun, $now ]),
	'creating slot');
row_is(
	'pool_workers()',
	"pid = $worker",
	{
		pid           => $worker,
		worker_type   => 'worker',
		datid         => $dbid,
		subid         => $subid,
		slot_id       => 1,
		slot_name     => slot_name(1),
		phase         => 'creating slot',
		relid         => $relid{held},
		relids        => "{$relid{held}}",
		batch_tables  => 1,
		tables_synced => 0,
		bytes_total   => undef,
		bytes_copied  => 0,
		unit_start    => [ $begun, $now ],
		backend_start => [ $before, $now ],
		state_change  => [ $begun, $now ]
	},
	'creating slot');
row_is(
	'slots', undef,
	row('slots',
		slot_name     => slot_name(1),
		subid         => $subid,
		subname       => 's',
		slot_id       => 1,
		state         => 'creating',
		pid           => $worker,
		relid         => $relid{held},
		created_at    => [ $begun, $now ],
		tables_synced => 0),
	'creating slot');
row_is(
	'pool_slots()',
	undef,
	row('pool_slots()', datid => $dbid, subid => $subid, slot_id => 1),
	'creating slot');
row_is(
	'slot_catalog',
	undef,
	row('slot_catalog',
		dbid               => $dbid,
		subid              => $subid,
		slot_id            => 1,
		slot_name          => slot_name(1),
		state              => 'creating',
		created_at         => [ $begun, $now ],
		publisher_sysid    => $pub_sysid,
		publisher_timeline => $timeline,
		tables_synced      => 0),
	'creating slot');
row_is('slot_number', undef,
	{ dbid => $dbid, subid => $subid, last_slot_id => 1 },
	'creating slot');
row_is(
	'table_size', undef,
	{
		dbid      => $dbid,
		subid     => $subid,
		relid     => $relid{held},
		bytes     => $size{held},
		run_start => [ $begun, $now ]
	},
	'creating slot');
row_is(
	'tables', undef,
	row('tables',
		subname       => 's',
		relid         => $relid{held},
		state         => 'creating slot',
		pid           => $worker,
		slot_name     => slot_name(1),
		bytes_total   => $size{held},
		bytes_copied  => 0,
		tuples_copied => 0,
		started_at    => [ $begun, $now ],
		attempts      => 0),
	'creating slot');
row_is(
	'subscriptions',
	undef,
	row('subscriptions', %counts,
		subname      => 's',
		tables       => 1,
		pending      => 1,
		bytes_total  => $size{held},
		bytes_copied => 0,
		percent      => '0.0'),
	'creating slot');
is( log_lines(qr/reuse_sync worker/),
	'LOG: reuse_sync worker for database "postgres" has started',
	'one line when a worker starts');

#
# The first table is ready, and the worker idle.
#
$xid->query_safe('COMMIT');
wait_ready($sub, 's');
wait_until($sub, 'the worker to be idle',
	"SELECT phase = 'idle' FROM reuse_sync.workers WHERE pid = $worker");
my $idle = clock();
$worker{tables_synced} = 1;
%stats = (
	%stats,
	tables_synced   => 1,
	units           => 1,
	slots_created   => 1,
	slots_dropped   => 1,
	workers_started => 1,
	bytes_copied    => $length{held});
row_is(
	'workers',
	"pid = $worker",
	row('workers', %worker, phase => 'idle', state_change => [ $now, $idle ]),
	'idle');
none_ok($_, 'idle')
  foreach qw(slots slot_catalog pool_slots() pool_copies() problems);
my %ready = (
	subname => 's', state => 'ready', attempts => 0);
row_is(
	'tables', undef,
	row('tables', %ready,
		relid         => $relid{held},
		bytes_total   => $length{held},
		bytes_copied  => $length{held},
		tuples_copied => 1,
		started_at    => [ $begun, $now ]),
	'ready');
row_is(
	'subscriptions',
	undef,
	row('subscriptions', %counts,
		subname      => 's',
		tables       => 1,
		ready        => 1,
		bytes_total  => $length{held},
		bytes_copied => $length{held},
		percent      => '100.0'),
	'ready');
my ($place) = map { $_->{place} } rows('unit_history');
like($place, qr/^[0-3]$/, 'the worker has a place in the pool');
my %unit = (
	relid         => $relid{held},
	tables        => 1,
	place         => $place,
	pid           => $worker,
	slot_name     => slot_name(1),
	slot_reused   => 'false',
	started_at    => [ $begun, $now ],
	copied_at     => [ $now, $idle ],
	finished_at   => [ $now, $idle ],
	bytes_copied  => $length{held},
	tuples_copied => 1);
row_is('units', undef, { %unit, subname => 's' }, 'ready');
row_is('unit_history', undef, { %unit, dbid => $dbid, subid => $subid },
	'ready');
row_is('stats', undef, { %stats, stats_reset => undef }, 'ready');
row_is(
	'counter', undef,
	{ %stats, stats_reset => undef, dbid => $dbid, place => $place },
	'ready');
units_logged_ok('one line for a unit',
	[ 'table "public.held"', 1, $length{held}, slot_name(1), 'created', 'held' ]);

#
# Two tables.  The copy of the first is held before its 51st row of 200.
#
my $pub_start = ask_pub('SELECT pg_current_wal_insert_lsn()');
create_tables(first => 200, second => 100);
ask_pub('ALTER PUBLICATION p ADD TABLE first, second');
$catchup->close_gate(
	"$_->[0] $_->[1]",
	gated => [ $_->[0] ],
	when  => "new.a = $_->[1]")
  foreach ([ 'held', 2 ], [ 'first', 51 ], [ 'first', 1001 ],
	[ 'second', 26 ]);
next_log();
$before = clock();
my $snapshot_xmin =
  ask_pub('SELECT pg_snapshot_xmin(pg_current_snapshot())');
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s REFRESH PUBLICATION');
$catchup->wait_at_gates(['first 51']);
$now = clock();

my ($restart_lsn, $catalog_xmin, $held_bytes) = remote_slot(slot_name(2));
my $least = 0;
my ($weight_1, $weight_2) = map { $size{$_} + 65536 } qw(first second);
my ($copy_start) = map { $_->{copy_start} } rows('pool_copies()');

row_is(
	'pool_copies()',
	undef,
	{
		pid             => $worker,
		datid           => $dbid,
		subid           => $subid,
		relid           => $relid{first},
		done            => 'false',
		bytes_copied    => $length{first},
		tuples_copied   => undef,
		bytes_expected  => $length{first},
		tuples_expected => 200,
		copy_start      => [ $before, $now ]
	},
	'copying');
row_is(
	'workers',
	"pid = $worker",
	row('workers', %worker,
		subname      => 's',
		slot_name    => slot_name(2),
		phase        => 'copying',
		relid        => $relid{first},
		batch_tables => 1,
		state_change => [ $before, $now ]),
	'copying');
row_is(
	'pool_workers()',
	"pid = $worker",
	{
		pid           => $worker,
		worker_type   => 'worker',
		datid         => $dbid,
		subid         => $subid,
		slot_id       => 2,
		slot_name     => slot_name(2),
		phase         => 'copying',
		relid         => $relid{first},
		relids        => "{$relid{first}}",
		batch_tables  => 1,
		tables_synced => 1,
		bytes_total   => $length{first},
		bytes_copied  => $length{first},
		unit_start    => [ $before, $now ],
		backend_start => $worker{backend_start},
		state_change  => [ $before, $now ]
	},
	'copying');
my %remote = (
	restart_lsn   => $restart_lsn,
	wal_bytes     => [ 0, $held_bytes ],
	catalog_xmin  => $catalog_xmin,
	snapshot_xmin => $snapshot_xmin,
	checked_at    => [ $before, $now ]);
row_is('pool_slots()', undef,
	{ %remote, datid => $dbid, subid => $subid, slot_id => 2 }, 'copying');
my %slot = (
	slot_name     => slot_name(2),
	subid         => $subid,
	subname       => 's',
	slot_id       => 2,
	pid           => $worker,
	relid         => $relid{first},
	created_at    => [ $before, $now ],
	tables_synced => 0,
	last_error    => undef);
row_is('slots', undef, { %slot, %remote, state => 'active' }, 'copying');

my %copying = (
	subname       => 's',
	relid         => $relid{first},
	state         => 'copying',
	pid           => $worker,
	slot_name     => slot_name(2),
	bytes_total   => $length{first},
	bytes_copied  => $length{first},
	tuples_copied => 50,
	started_at    => [ $before, $copy_start ],
	attempts      => 0);
row_is(
	'table_state',
	"relid = $relid{first}",
	row('table_state', %copying,
		subid      => $subid,
		share      => '0.25',
		copy_start => $copy_start,
		weight     => $weight_1,
		run_start  => [ $before, $now ]),
	'copying');

# A quarter is done: three times as long is to come, reckoned from readings of
# the clock before and after that of the view.
sub eta
{
	my ($since, $factor) = @_;
	my $at = sub { my $time = clock(); $time + $factor * ($time - $since) };

	return [ $at->() - 10, sub { $at->() + 10 } ];
}
row_is('tables', "relid = $relid{first}",
	row('tables', %copying, eta => eta($copy_start, 3)), 'copying');
row_is(
	'tables',
	"relid = $relid{second}",
	row('tables', %pending,
		relid => $relid{second}, bytes_total => $size{second}),
	'copying another');

# percent($done): of the two tables by their weights, cut off
sub percent
{
	my ($done) = @_;

	return sprintf('%.1f', int(1000 * $done / ($weight_1 + $weight_2)) / 10);
}
my ($run_start) = map { $_->{run_start} }
  rows('table_size', "relid = $relid{first}");
my %subscription = (
	%counts,
	subname      => 's',
	tables       => 3,
	ready        => 1,
	bytes_total  => $length{held} + $length{first} + $size{second},
	bytes_copied => $length{held} + $length{first});
row_is(
	'subscriptions',
	undef,
	{
		%subscription,
		pending => 1,
		copying => 1,
		percent => percent(0.25 * $weight_1),
		eta     =>
		  eta($run_start, ($weight_1 + $weight_2) / (0.25 * $weight_1) - 1)
	},
	'copying');

#
# Catching up: held before a change.  Meanwhile the apply worker is kept from
# noticing anything by a change of the table that is ready; who wants to copy
# the second table will have to wait; and who wants to hand over the first.
#
my ($early, $writer) = (session($pub), session($pub));
my $early_xid = $early->query_safe('BEGIN; SELECT pg_current_xact_id()');
ask_pub(q{INSERT INTO first VALUES (1001, 'caught up')});
ask_pub(q{INSERT INTO held VALUES (2, 'held')});
$locker->query_safe('BEGIN; LOCK TABLE first IN ROW EXCLUSIVE MODE');
$writer->query_safe(
	q{BEGIN; LOCK TABLE second IN ACCESS EXCLUSIVE MODE;
	INSERT INTO second VALUES (500, 'just in time')});
ask_pub(q{SELECT pg_logical_emit_message(false, 'wal', repeat('x', 100000))});
$least = (remote_slot(slot_name(2)))[2];
$catchup->open_gate('first 51');
$catchup->wait_at_gates(['first 1001']);
$catchup->wait_at_gates(['held 2']);
my $copied = clock();

row_is(
	'workers',
	"pid = $worker",
	row('workers', %worker,
		subname      => 's',
		slot_name    => slot_name(2),
		phase        => 'catching up',
		relid        => $relid{first},
		batch_tables => 1,
		state_change => [ $now, $copied ]),
	'catching up');
($restart_lsn, $catalog_xmin, $held_bytes) = remote_slot(slot_name(2));
%remote = (
	restart_lsn   => $restart_lsn,
	wal_bytes     => [ $least, $held_bytes ],
	catalog_xmin  => $catalog_xmin,
	snapshot_xmin => undef,
	checked_at    => [ $before, $copied ]);
row_is('slots', undef, { %slot, %remote, state => 'linked' }, 'catching up');
row_is(
	'slot_catalog',
	undef,
	row('slot_catalog',
		dbid               => $dbid,
		subid              => $subid,
		slot_id            => 2,
		slot_name          => slot_name(2),
		state              => 'linked',
		relid              => $relid{first},
		created_at         => [ $before, $now ],
		publisher_sysid    => $pub_sysid,
		publisher_timeline => $timeline,
		tables_synced      => 0),
	'catching up');
my %copied_table = (
	%copying,
	state         => 'catching up',
	tuples_copied => 200,
	started_at    => [ $before, $copy_start ]);
row_is('tables', "relid = $relid{first}",
	row('tables', %copied_table), 'catching up');
row_is(
	'table_state',
	"relid = $relid{first}",
	row('table_state', %copied_table,
		subid     => $subid,
		share     => 1,
		weight    => $weight_1,
		run_start => $run_start),
	'catching up');
my $copy_xid = ask(
	"SELECT xmin FROM pg_subscription_rel WHERE srrelid = $relid{first}");
my ($progress) = rows('table_progress', "relid = $relid{first}");
my $filter_end = $progress->{filter_end};
is( ask_pub("SELECT '$filter_end' BETWEEN '$pub_start'::pg_lsn
		AND pg_current_wal_insert_lsn()"),
	't', 'catching up: where the filter ends');
row_is(
	'table_progress',
	"relid = $relid{first}",
	row('table_progress',
		dbid          => $dbid,
		subid         => $subid,
		relid         => $relid{first},
		slot_id       => 2,
		copy_xid      => $copy_xid,
		snapshot      => "$snapshot_xmin:$snapshot_xmin:",
		filter_end    => $filter_end,
		publications  => '"p"',
		was_empty     => 'true',
		started_at    => [ $before, $copy_start ],
		bytes_total   => $length{first},
		bytes_copied  => $length{first},
		tuples_copied => 200,
		attempts      => 0),
	'catching up');
row_is(
	'subscriptions',
	undef,
	{
		%subscription,
		pending     => 1,
		catching_up => 1,
		percent     => percent($weight_1),
		eta         => eta($run_start, $weight_2 / $weight_1)
	},
	'catching up');

#
# Handing over: who has locked the table is waited for.
#
$catchup->open_gate('first 1001');
wait_until($sub, 'the worker to want the lock',
	"SELECT count(*) > 0 FROM pg_locks
	WHERE relation = $relid{first} AND NOT granted");
my $wanted = clock();
row_is(
	'workers',
	"pid = $worker",
	row('workers', %worker,
		subname      => 's',
		slot_name    => slot_name(2),
		phase        => 'handing over',
		relid        => $relid{first},
		batch_tables => 1,
		state_change => [ $copied, $wanted ]),
	'handing over');
row_is(
	'tables',
	"relid = $relid{first}",
	row('tables', %copied_table, state => 'handing over'),
	'handing over');
row_is(
	'subscriptions',
	undef,
	{
		%subscription,
		pending     => 1,
		catching_up => 1,
		percent     => percent($weight_1),
		eta         => eta($run_start, $weight_2 / $weight_1)
	},
	'handing over');

#
# The first is synchronized, which nobody notices; the second cannot be locked
# on the publisher.
#
$locker->query_safe('COMMIT');
wait_until($pub, 'the worker to want the lock there', q{
	SELECT count(*) > 0 FROM pg_locks
	WHERE relation = 'second'::regclass AND NOT granted});
my $handed_over = clock();
$worker{tables_synced} = 2;
row_is(
	'workers',
	"pid = $worker",
	row('workers', %worker,
		subname      => 's',
		slot_name    => slot_name(2),
		phase        => 'waiting for snapshot',
		relid        => $relid{second},
		batch_tables => 1,
		state_change => [ $wanted, $handed_over ]),
	'waiting for snapshot');
%slot = (%slot, relid => $relid{second}, tables_synced => 1);
row_is('slots', undef, { %slot, %remote, state => 'active' },
	'waiting for snapshot');
row_is(
	'tables',
	"relid = $relid{first}",
	row('tables', %copied_table,
		state     => 'synchronized',
		pid       => undef,
		slot_name => undef),
	'synchronized');
my %waiting = (
	%pending,
	relid         => $relid{second},
	state         => 'waiting for snapshot',
	pid           => $worker,
	slot_name     => slot_name(2),
	bytes_total   => $size{second},
	bytes_copied  => 0,
	tuples_copied => 0,
	started_at    => [ $wanted, $handed_over ]);
row_is('tables', "relid = $relid{second}",
	row('tables', %waiting), 'waiting for snapshot');
row_is(
	'subscriptions',
	undef,
	{
		%subscription,
		pending     => 1,
		catching_up => 1,
		percent     => percent($weight_1),
		eta         => eta($run_start, $weight_2 / $weight_1)
	},
	'synchronized');
my %unit_1 = (
	%unit,
	relid         => $relid{first},
	slot_name     => slot_name(2),
	started_at    => [ $before, $copy_start ],
	copied_at     => [ $now, $copied ],
	finished_at   => [ $wanted, $handed_over ],
	bytes_copied  => $length{first},
	tuples_copied => 200);
row_is('units', undef, { %unit_1, subname => 's' }, 'synchronized');

#
# The second is copied: its snapshot has seen one transaction whose commit will
# be streamed, and not another.
#
$writer->query_safe('COMMIT');
$catchup->wait_at_gates(['second 26']);
my $copying_2 = clock();
row_is(
	'slots', undef,
	{
		%slot, %remote,
		state         => 'active',
		snapshot_xmin => $early_xid,
		wal_bytes     => [ $least, (remote_slot(slot_name(2)))[2] ],
		checked_at    => [ $handed_over, $copying_2 ]
	},
	'copying the second');
row_is(
	'tables',
	"relid = $relid{second}",
	row('tables', %waiting,
		state         => 'copying',
		bytes_total   => $length{second} + length("500\tjust in time\n"),
		bytes_copied  => $length{second} + length("500\tjust in time\n"),
		tuples_copied => 25,
		eta           => [ $copying_2, sub { clock() + 10 * 60e6 } ]),
	'copying the second');
$early->query_safe(q{INSERT INTO second VALUES (1001, 'early'); COMMIT});

#
# The slot is dropped, which the publisher cannot do as long as somebody has
# locked the view of slots.
#
$writer->query_safe(
	'BEGIN; LOCK TABLE pg_catalog.pg_replication_slots IN ACCESS EXCLUSIVE MODE');
$catchup->open_gate('second 26');
wait_until($sub, 'the slot to be dropped',
	"SELECT phase = 'dropping slots' FROM reuse_sync.workers WHERE pid = $worker");
my $dropping = clock();
$worker{tables_synced} = 3;
row_is(
	'workers',
	"pid = $worker",
	row('workers', %worker,
		subname      => 's',
		slot_name    => slot_name(2),
		phase        => 'dropping slots',
		state_change => [ $copying_2, $dropping ]),
	'dropping slots');
my ($its) = rows('slots');
row_is(
	'slots', undef,
	{
		%slot,
		relid         => undef,
		state         => 'idle',
		tables_synced => 2,
		restart_lsn   => $its->{restart_lsn},
		wal_bytes     => $its->{wal_bytes},
		catalog_xmin  => $its->{catalog_xmin},
		snapshot_xmin => undef,
		checked_at    => [ $before, $dropping ]
	},
	'dropping slots');
$writer->query_safe('ROLLBACK');
$catchup->open_gate('held 2');
wait_ready($sub, 's');
wait_until($sub, 'the worker to be idle',
	"SELECT phase = 'idle' FROM reuse_sync.workers WHERE pid = $worker");

my $length_2 = $length{second} + length("500\tjust in time\n");
%stats = (
	%stats,
	tables_synced        => 3,
	units                => 3,
	slots_created        => 2,
	slots_reused         => 1,
	slots_dropped        => 2,
	bytes_copied         => $length{held} + $length{first} + $length_2,
	transactions_skipped => 1,
	transactions_applied => 2);
row_is('stats', undef, { %stats, stats_reset => undef }, 'both are ready');
row_is(
	'counter', undef,
	{ %stats, stats_reset => undef, dbid => $dbid, place => $place },
	'both are ready');
my %unit_2 = (
	%unit_1,
	relid         => $relid{second},
	slot_reused   => 'true',
	started_at    => [ $wanted, $handed_over ],
	copied_at     => [ $copying_2, $dropping ],
	finished_at   => [ $copying_2, $dropping ],
	bytes_copied  => $length_2,
	tuples_copied => 101);
row_is('units', "relid = $relid{first}", { %unit_1, subname => 's' },
	'both are ready');
row_is('units', "relid = $relid{second}", { %unit_2, subname => 's' },
	'both are ready');
none_ok('units', 'both are ready, of a run before', "relid = $relid{held}");
row_is(
	'subscriptions',
	undef,
	row('subscriptions', %subscription,
		ready        => 3,
		bytes_total  => $stats{bytes_copied},
		bytes_copied => $stats{bytes_copied},
		percent      => '100.0'),
	'both are ready');
units_logged_ok(
	'one line for each unit',
	[
		'table "public.first"', 200, $length{first},
		slot_name(2),           'created', 'first'
	],
	[
		'table "public.second"', 101, $length_2,
		slot_name(2),            'reused', 'second'
	]);
catch_up($pub, $sub, 's');
rows_ok($pub, $sub, $_, "rows of $_") foreach qw(held first second);

#
# A table that fails: tried again after an hour, two, and then every three
#
reconfigure($sub,
	wal_retrieve_retry_interval     => '1h',
	'reuse_sync.max_retry_interval' => '3h');
create_tables(bad => 10);
ask_pub('ALTER PUBLICATION p ADD TABLE bad');
ask('ALTER TABLE bad ADD CONSTRAINT small CHECK (a < 5)');
my $hour  = 3600 * 1e6;
my $error = 'new row for relation "bad" violates check constraint "small"';
my $hint  =
  'The table has a constraint that the publisher\'s rows do not meet: drop it here, or mend the rows there.';
my %failed = (
	%pending,
	relid         => $relid{bad},
	state         => 'failed',
	bytes_total   => $size{bad},
	bytes_copied  => 0,
	tuples_copied => 0,
	last_error    => "$error\nHINT:  $hint");
my $first_try = clock();
foreach my $attempts (1 .. 4)
{
	my $wait = $hour * ($attempts < 3 ? $attempts : 3);

	next_log();
	$before = clock();
	ask($attempts == 1
		? 'ALTER SUBSCRIPTION s REFRESH PUBLICATION'
		: q{SELECT reuse_sync.retry('s', 'bad')});
	wait_until($sub, "failure $attempts",
		"SELECT attempts = $attempts AND state = 'failed'
		FROM reuse_sync.tables WHERE relid = $relid{bad}");
	$now = clock();
	$run_start = [ $first_try, $now ] if $attempts == 1;
	my ($failed_at) =
	  map { $_->{last_error_time} } rows('tables', "relid = $relid{bad}");
	my %times = (
		attempts        => $attempts,
		started_at      => [ $before, $failed_at ],
		next_retry      => [ $failed_at + $wait - 1e6, $failed_at + $wait ],
		last_error_time => [ $before, $now ]);

	row_is('tables', "relid = $relid{bad}", row('tables', %failed, %times),
		"failure $attempts");
	row_is(
		'table_state',
		"relid = $relid{bad}",
		row('table_state', %failed, %times,
			subid     => $subid,
			share     => 0,
			weight    => $size{bad} + 65536,
			run_start => $run_start),
		"failure $attempts");
	my ($next_retry) = split /\n/, ask(
		"SELECT next_retry FROM reuse_sync.tables WHERE relid = $relid{bad}");
	is( log_lines(qr/LOG:  synchronization of table|DETAIL:  new row|HINT: /),
		"LOG: synchronization of table \"public.bad\" of subscription \"s\" failed and will be tried again at $next_retry\n"
		  . "DETAIL: $error\nHINT: $hint",
		"failure $attempts: one line, with cause and time");
}
row_is(
	'table_progress',
	"relid = $relid{bad}",
	row('table_progress',
		dbid            => $dbid,
		subid           => $subid,
		relid           => $relid{bad},
		started_at      => [ $before, $now ],
		was_empty       => 'false',
		bytes_copied    => 0,
		tuples_copied   => 0,
		attempts        => 4,
		next_retry      => [ $before + 3 * $hour, $now + 3 * $hour ],
		last_error      => "$error\nHINT:  $hint",
		last_error_time => [ $before, $now ]),
	'failed');
wait_until($sub, 'the worker to be idle',
	"SELECT phase = 'idle' FROM reuse_sync.workers WHERE pid = $worker");
%subscription = (
	%subscription,
	tables       => 4,
	ready        => 3,
	failed       => 1,
	bytes_total  => $stats{bytes_copied} + $size{bad},
	bytes_copied => $stats{bytes_copied});
row_is(
	'subscriptions',
	undef,
	row('subscriptions', %subscription, percent => '0.0'),
	'failed');
%stats = (
	%stats,
	slots_created => 6,
	slots_dropped => 6,
	errors        => 4);
row_is('stats', undef, { %stats, stats_reset => undef }, 'failed');

# What retry() does, before anybody else sees it
my ($next_retry) =
  map { $_->{next_retry} } rows('tables', "relid = $relid{bad}");
my ($at) =
  map { $_->{last_error_time} } rows('tables', "relid = $relid{bad}");
ask(q{BEGIN; SELECT reuse_sync.retry('s', 'bad')});
row_is(
	'retry_request',
	"voids > now()",
	{
		dbid  => $dbid,
		subid => $subid,
		relid => $relid{bad},
		voids => $next_retry
	},
	'retry()');
row_is(
	'tables',
	"relid = $relid{bad}",
	row('tables', %failed,
		state           => 'pending',
		started_at      => [ $before, $at ],
		attempts        => 4,
		last_error_time => $at),
	'retry()');
ask('ROLLBACK');

#
# A table whose copy is done has no worker, and is finished by another than
# has copied it.
#
reconfigure($sub, wal_retrieve_retry_interval => '100ms');
ask('ALTER TABLE bad DROP CONSTRAINT small');
ask(q{SELECT reuse_sync.retry('s')});
wait_ready($sub, 's');
create_tables(later => 50);
ask_pub('ALTER PUBLICATION p ADD TABLE later');
$locker->query_safe('BEGIN; LOCK TABLE later IN ROW EXCLUSIVE MODE');
$before = clock();
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s REFRESH PUBLICATION');

sub wait_wanted
{
	my ($table) = @_;

	wait_until($sub, "the lock on $table to be wanted",
		"SELECT count(*) > 0 FROM pg_locks
		WHERE relation = $relid{$table} AND NOT granted");
	return;
}
wait_wanted('later');
$now = clock();
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s DISABLE');
wait_until($sub, 'nobody to be at it',
	'SELECT count(subname) = 0 FROM reuse_sync.workers');
my $slot = slot_name(8);
%slot = (
	%slot,
	slot_name     => $slot,
	slot_id       => 8,
	state         => 'linked',
	pid           => undef,
	relid         => $relid{later},
	created_at    => [ $before, $now ],
	tables_synced => 0);
row_is('slots', undef, row('slots', %slot), 'copied');
my %later = (
	%pending,
	relid         => $relid{later},
	state         => 'copied',
	slot_name     => $slot,
	bytes_total   => $length{later},
	bytes_copied  => $length{later},
	tuples_copied => 50,
	started_at    => [ $before, $now ]);
row_is('tables', "relid = $relid{later}", row('tables', %later), 'copied');
%subscription = (
	%subscription,
	tables       => 5,
	ready        => 4,
	failed       => 0,
	bytes_total  => $stats{bytes_copied} + $length{bad} + $length{later},
	bytes_copied => $stats{bytes_copied} + $length{bad} + $length{later});
row_is(
	'subscriptions',
	undef,
	row('subscriptions', %subscription,
		catching_up => 1, percent => '99.9'),
	'copied');

# Another worker, if only because the first is told to end
next_log();
$sub->safe_psql('postgres', "SELECT pg_terminate_backend($worker)");
wait_until($sub, 'the worker to end',
	"SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $worker");
$before = clock();
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s ENABLE');
wait_wanted('later');
$now    = clock();
$worker = ask('SELECT pid FROM reuse_sync.workers WHERE subname IS NOT NULL');
%worker = (
	%worker,
	pid           => $worker,
	subname       => 's',
	slot_name     => $slot,
	phase         => 'handing over',
	relid         => $relid{later},
	batch_tables  => 1,
	tables_synced => 0,
	backend_start => [ $before, $now ],
	state_change  => [ $before, $now ]);
row_is('workers', "pid = $worker", \%worker, 'taken over');
my ($shown) = rows('slots');
my $lsn;
($lsn, $catalog_xmin, $held_bytes) = remote_slot($slot);
row_is(
	'slots', undef,
	{
		%slot,
		pid           => $worker,
		restart_lsn   => $lsn,
		wal_bytes     => [ 0, $held_bytes ],
		catalog_xmin  => $catalog_xmin,
		snapshot_xmin => undef,
		checked_at    => [ $before, $now ]
	},
	'taken over');
row_is(
	'tables',
	"relid = $relid{later}",
	row('tables', %later, state => 'handing over', pid => $worker),
	'taken over');
$locker->query_safe('COMMIT');
wait_ready($sub, 's');
row_is(
	'units',
	"relid = $relid{later}",
	{
		%unit,
		subname       => 's',
		relid         => $relid{later},
		place         => [ 0, 3 ],
		pid           => $worker,
		slot_name     => $slot,
		started_at    => $later{started_at},
		copied_at     => undef,
		finished_at   => [ $now, sub { clock() } ],
		bytes_copied  => $length{later},
		tuples_copied => 50
	},
	'taken over');
units_logged_ok('one line for a unit that was taken over',
	[ 'table "public.later"', 50, $length{later}, $slot, 'taken over', 'later' ]);

#
# A table that is synchronized anew: set back, which waits for a lock; and held
# in its copy.
#
wait_until($sub, 'the worker to be idle',
	"SELECT phase = 'idle' FROM reuse_sync.workers WHERE pid = $worker");
$worker{tables_synced} = 1;
$catchup->close_gate('first 52', gated => ['first'], when => 'new.a = 52');
$locker->query_safe('BEGIN; LOCK TABLE first IN ROW EXCLUSIVE MODE');
my ($old) = rows('tables', "relid = $relid{first}");
next_log();
$before = clock();
ask('BEGIN');
ask(q{SELECT reuse_sync.resync_table('s', 'first')});
my $resync_xid = ask('SELECT pg_current_xact_id()');
$now = clock();
ask('COMMIT');
wait_wanted('first');
my %resync = (
	dbid         => $dbid,
	subid        => $subid,
	relid        => $relid{first},
	xid          => $resync_xid,
	stage        => 'requested',
	truncate     => 'true',
	requested_at => [ $before, $now ]);
row_is('resync', undef, \%resync, 'setting back');
row_is('tables', "relid = $relid{first}",
	{ %$old, state => 'setting back', pid => $worker },
	'setting back');
row_is(
	'workers',
	"pid = $worker",
	{
		%worker,
		slot_name    => undef,
		phase        => 'setting back',
		relid        => $relid{first},
		state_change => [ $now, sub { clock() } ]
	},
	'setting back');

# It is of a run that is to come, of which nothing is known yet.
my %of_old = %$old;
delete $of_old{eta};
row_is(
	'table_state',
	"relid = $relid{first}",
	row('table_state', %of_old,
		subid  => $subid,
		state  => 'setting back',
		pid    => $worker,
		share  => 0,
		weight => $weight_1),
	'setting back');
row_is(
	'subscriptions',
	undef,
	row('subscriptions', %subscription,
		ready   => 4,
		pending => 1,
		percent => '0.0'),
	'setting back');
$locker->query_safe('COMMIT');
$catchup->wait_at_gates(['first 52']);
row_is('resync', undef, { %resync, stage => 'begun' }, 'copied anew');
my $longer = $length{first} + length("1001\tcaught up\n");
row_is(
	'tables',
	"relid = $relid{first}",
	row('tables', %copying,
		pid           => $worker,
		slot_name     => slot_name(9),
		bytes_total   => $longer,
		bytes_copied  => $longer,
		tuples_copied => 51,
		started_at    => [ $now, sub { clock() } ],
		eta           => [ $now, sub { clock() + 10 * 60e6 } ]),
	'copied anew');
$catchup->open_gate('first 52');
ask(q{SELECT reuse_sync.wait_for_sync('s', '3 min')});
none_ok('resync', 'copied anew');
is( log_lines(qr/anew/),
	'LOG: table "public.first" of subscription "s" is synchronized anew',
	'one line for a table that is synchronized anew');

#
# Connecting: the publisher has stopped to take connections.
#
wait_until($sub, 'the worker to be idle',
	"SELECT phase = 'idle' FROM reuse_sync.workers WHERE pid = $worker");
$worker{tables_synced} = 2;
($old) = rows('tables', "relid = $relid{first}");
ask('BEGIN');
ask(q{SELECT reuse_sync.resync_table('s', 'first')});
my $postmaster = stop_process($pub, $pub->{_pid});
$now = clock();
ask('COMMIT');
wait_until($sub, 'the worker to connect',
	"SELECT phase = 'connecting' AND relid IS NOT NULL
	FROM reuse_sync.workers WHERE pid = $worker");
row_is('tables', "relid = $relid{first}",
	{ %$old, state => 'connecting', pid => $worker }, 'connecting');
row_is(
	'workers',
	"pid = $worker",
	{
		%worker,
		slot_name    => undef,
		phase        => 'connecting',
		relid        => $relid{first},
		state_change => [ $now, sub { clock() } ]
	},
	'connecting');
continue_process($postmaster);
ask(q{SELECT reuse_sync.wait_for_sync('s', '3 min')});

#
# A problem: the publisher is out of slots.
#
create_tables(short => 1);
ask_pub('ALTER PUBLICATION p ADD TABLE short');
wait_until($sub, 'the worker to be idle',
	"SELECT phase = 'idle' FROM reuse_sync.workers WHERE pid = $worker");
ask_pub(q{SELECT pg_create_physical_replication_slot('filler_' || g)
	FROM generate_series(1, current_setting('max_replication_slots')::int
		- (SELECT count(*)::int FROM pg_replication_slots)) g});
my ($ret, $out, $err) = $pub->psql('postgres',
	q{SELECT pg_create_physical_replication_slot('one_too_many')});
my ($message, $advice) = $err =~ /ERROR:  (.*)\nHINT:  (.*)/;
$message = "error from the publisher: $message";
next_log();
$before = clock();
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s REFRESH PUBLICATION');
wait_until($sub, 'a problem', 'SELECT count(*) > 0 FROM reuse_sync.problems');
my %problem = (
	last_error      => "$message\nHINT:  $advice",
	last_error_time => [ $before, sub { clock() } ]);
row_is('problems', undef, { %problem, subname => 's' }, 'a problem');
row_is('pool_problems()', undef, { %problem, subid => $subid }, 'a problem');
is( log_lines(qr/puts off|HINT/),
	"LOG: reuse_sync worker puts off subscription \"s\": $message\nHINT: $advice",
	'one line for a problem');
ask_pub(q{SELECT count(pg_drop_replication_slot(slot_name))
	FROM pg_replication_slots WHERE slot_name LIKE 'filler%'});
wait_ready($sub, 's');
none_ok($_, 'no problem any more') foreach qw(problems pool_problems());

#
# An orphan: its worker had no right to drop it; then the subscription goes,
# and whoever is to drop it cannot connect.
#
ask_pub(q{CREATE ROLE repl LOGIN REPLICATION});
create_tables(kept => 1);
ask_pub(q{CREATE PUBLICATION kept FOR TABLE kept;
	GRANT SELECT ON kept TO repl});
$catchup->close_gate('kept');
$before = clock();
subscribe($pub, $sub, 'kept', 'kept', user => 'repl');
$catchup->wait_at_gates(['kept']);
$now = clock();
ask_pub('ALTER ROLE repl NOREPLICATION');
$pub->psql(
	'postgres',
	q{SET ROLE repl; SELECT pg_drop_replication_slot('kept')},
	stderr => \$err);
($message) = $err =~ /ERROR:  (.*)/;
next_log();
$catchup->open_gate('kept');
wait_until($sub, 'an error to be kept',
	'SELECT last_error IS NOT NULL AND pid IS NULL FROM reuse_sync.slots');
my $kept = ask(q{SELECT oid FROM pg_subscription WHERE subname = 'kept'});
$slot = "reuse_sync_${kept}_1_$sysid";
my %orphan = (
	slot_name     => $slot,
	subid         => $kept,
	subname       => 'kept',
	slot_id       => 1,
	state         => 'orphaned',
	created_at    => [ $before, $now ],
	tables_synced => 1,
	last_error    => $message);
row_is('slots', undef, row('slots', %orphan), 'not dropped');
is( (split /\n/, log_lines(qr/could not drop/))[0],
	"LOG: could not drop replication slot \"$slot\" on the publisher: $message",
	'a line for a slot that could not be dropped');

$postmaster = stop_process($pub, $pub->{_pid});
$sub->safe_psql('postgres', q{
	ALTER SUBSCRIPTION kept DISABLE;
	ALTER SUBSCRIPTION kept SET (slot_name = NONE);
	DROP SUBSCRIPTION kept});
wait_until($sub, 'somebody to drop its slot',
	q{SELECT count(*) > 0 FROM reuse_sync.workers
	WHERE worker_type = 'cleaner' AND phase = 'dropping slots'});
$begun = clock();
my $cleaner = ask(q{SELECT w.pid FROM reuse_sync.workers w
	JOIN pg_stat_activity a USING (pid) WHERE w.worker_type = 'cleaner'
	AND a.datname = 'postgres' AND a.backend_type = 'reuse_sync cleaner'});
row_is(
	'workers',
	"worker_type = 'cleaner'",
	row('workers',
		pid           => $cleaner,
		worker_type   => 'cleaner',
		datname       => 'postgres',
		phase         => 'dropping slots',
		tables_synced => 0,
		backend_start => [ $now, $begun ],
		state_change  => [ $now, $begun ]),
	'dropped by a cleaner');
row_is('slots', undef, row('slots', %orphan, subname => undef),
	'dropped by a cleaner');
row_is(
	'slot_catalog',
	undef,
	row('slot_catalog',
		dbid               => $dbid,
		subid              => $kept,
		slot_id            => 1,
		slot_name          => $slot,
		state              => 'orphaned',
		created_at         => [ $before, $now ],
		publisher_sysid    => $pub_sysid,
		publisher_timeline => $timeline,
		tables_synced      => 1,
		last_error         => $message,
		conninfo           => $pub->connstr('postgres') . ' user=repl'),
	'dropped by a cleaner');
continue_process($postmaster);
ask_pub('ALTER ROLE repl REPLICATION');
wait_until($sub, 'the slot to be dropped', sub {
	ask('SELECT reuse_sync.wakeup()');
	return ask('SELECT count(*) = 0 FROM reuse_sync.slots') eq 't';
});

#
# A batch.  It is held in its second table.
#
reconfigure($sub,
	'reuse_sync.batch_size'   => '8MB',
	'reuse_sync.batch_tables' => 2);
create_tables(one => 1, two => 2, three => 3);
my @by_oid = sort { $relid{$a} <=> $relid{$b} } qw(one two);
my @oids   = map { $relid{$_} } @by_oid;
my @length = map { $length{$_} } @by_oid;
$catchup->close_gate($by_oid[1]);
ask_pub('ALTER PUBLICATION p ADD TABLE one, two');
next_log();
$before        = clock();
$snapshot_xmin = ask_pub('SELECT pg_snapshot_xmin(pg_current_snapshot())');
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s REFRESH PUBLICATION');
$catchup->wait_at_gates([ $by_oid[1] ]);
$now    = clock();
$worker = ask('SELECT pid FROM reuse_sync.workers WHERE subname IS NOT NULL');
$slot   = ask('SELECT slot_name FROM reuse_sync.slots');
my ($id) = $slot =~ /^reuse_sync_${subid}_(\d+)_/;
my ($since, $synced) = split /\|/, ask(
	"SELECT (extract(epoch FROM w.backend_start) * 1000000)::bigint,
		w.tables_synced
	FROM reuse_sync.workers w WHERE w.pid = $worker");
row_is(
	'workers',
	"pid = $worker",
	row('workers',
		pid           => $worker,
		worker_type   => 'worker',
		datname       => 'postgres',
		subname       => 's',
		slot_name     => $slot,
		phase         => 'copying',
		batch_tables  => 2,
		tables_synced => $synced,
		backend_start => $since,
		state_change  => [ $before, $now ]),
	'a batch');
row_is(
	'pool_workers()',
	"pid = $worker",
	row('pool_workers()',
		pid           => $worker,
		worker_type   => 'worker',
		datid         => $dbid,
		subid         => $subid,
		slot_id       => $id,
		slot_name     => $slot,
		phase         => 'copying',
		relids        => "{$oids[0],$oids[1]}",
		batch_tables  => 2,
		tables_synced => $synced,
		bytes_copied  => $length[0] + $length[1],
		unit_start    => [ $before, $now ],
		backend_start => $since,
		state_change  => [ $before, $now ]),
	'a batch');
my %copy = (pid => $worker, datid => $dbid, subid => $subid);
row_is(
	'pool_copies()',
	"relid = $oids[0]",
	row('pool_copies()', %copy,
		relid         => $oids[0],
		done          => 'true',
		bytes_copied  => $length[0],
		tuples_copied => $by_oid[0] eq 'one' ? 1 : 2),
	'the first of a batch');
row_is(
	'pool_copies()',
	"relid = $oids[1]",
	row('pool_copies()', %copy,
		relid        => $oids[1],
		done         => 'false',
		bytes_copied => $length[1],
		copy_start   => [ $before, $now ]),
	'the second of a batch');
my %in_batch = (
	%copying,
	pid        => $worker,
	slot_name  => $slot,
	started_at => [ $before, $now ]);
row_is(
	'tables',
	"relid = $oids[0]",
	row('tables', %in_batch,
		relid         => $oids[0],
		bytes_total   => $length[0],
		bytes_copied  => $length[0],
		tuples_copied => $by_oid[0] eq 'one' ? 1 : 2),
	'the first of a batch');
row_is(
	'tables',
	"relid = $oids[1]",
	row('tables', %in_batch,
		relid         => $oids[1],
		bytes_total   => $size{$by_oid[1]},
		bytes_copied  => $length[1],
		tuples_copied => 0),
	'the second of a batch');
row_is(
	'slots', undef,
	{
		%slot,
		slot_name     => $slot,
		slot_id       => $id,
		state         => 'active',
		pid           => $worker,
		relid         => undef,
		created_at    => [ $before, $now ],
		restart_lsn   => (remote_slot($slot))[0],
		wal_bytes     => [ 0, (remote_slot($slot))[2] ],
		catalog_xmin  => (remote_slot($slot))[1],
		snapshot_xmin => $snapshot_xmin,
		checked_at    => [ $before, $now ]
	},
	'a batch');

# Both have been copied, and wait to be handed over.
$locker->query_safe("BEGIN; LOCK TABLE $by_oid[1] IN ROW EXCLUSIVE MODE");
$catchup->open_gate($by_oid[1]);
wait_wanted($by_oid[1]);
foreach my $i (0, 1)
{
	row_is(
		'tables',
		"relid = $oids[$i]",
		row('tables', %in_batch,
			relid         => $oids[$i],
			state         => 'handing over',
			bytes_total   => $length[$i],
			bytes_copied  => $length[$i],
			tuples_copied => $by_oid[$i] eq 'one' ? 1 : 2),
		'a batch that is handed over');
	row_is(
		'table_state',
		"relid = $oids[$i]",
		row('table_state', %in_batch,
			subid         => $subid,
			relid         => $oids[$i],
			state         => 'handing over',
			bytes_total   => $length[$i],
			bytes_copied  => $length[$i],
			tuples_copied => $by_oid[$i] eq 'one' ? 1 : 2,
			share         => 1,
			weight        => $size{$by_oid[$i]} + 65536,
			run_start     => [ $before, $now ]),
		'a batch that is handed over');
}
$locker->query_safe('COMMIT');
wait_ready($sub, 's');
row_is(
	'units',
	"relid = $oids[0]",
	{
		%unit,
		subname       => 's',
		relid         => $oids[0],
		tables        => 2,
		place         => [ 0, 3 ],
		pid           => $worker,
		slot_name     => $slot,
		started_at    => [ $before, $now ],
		copied_at     => [ $now, sub { clock() } ],
		finished_at   => [ $now, sub { clock() } ],
		bytes_copied  => $length[0] + $length[1],
		tuples_copied => 3
	},
	'a batch');
none_ok('units', 'the second of a batch', "relid = $oids[1]");
units_logged_ok(
	'one line for a batch',
	[
		"2 tables from \"public.$by_oid[0]\" on", 3,
		$length[0] + $length[1],                   $slot,
		'created',                                 $by_oid[0]
	]);

#
# The worker ends when it has been idle for long enough.
#
my ($synced_at_end) = ask(
	"SELECT tables_synced FROM reuse_sync.workers WHERE pid = $worker");
is($synced_at_end, $synced + 2, 'tables that a worker has synchronized');
next_log();
reconfigure($sub, 'reuse_sync.worker_idle_timeout' => '10ms');
wait_until($sub, 'the worker to end',
	"SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $worker");
is( (grep { /ends/ } split /\n/, log_lines(qr/worker for database/))[0],
	"LOG: reuse_sync worker for database \"postgres\" ends after $synced_at_end tables",
	'one line when a worker ends');

#
# stats_reset()
#
$before = clock();
ask('SELECT reuse_sync.stats_reset()');
$now = clock();
my %zero = map { $_ => 0 } keys %stats;
row_is('stats', undef, { %zero, stats_reset => [ $before, $now ] },
	'stats_reset()');
row_is(
	'counter', undef,
	{
		%zero,
		stats_reset => [ $before, $now ],
		dbid        => $dbid,
		place       => -1
	},
	'stats_reset()');

#
# What is shown of progress does not go back, in a run.
#
is( ask("SELECT reuse_sync.show_percent($subid, now(), 5),
		reuse_sync.show_work($subid, now(), 7),
		reuse_sync.show_percent(NULL, now(), 5) IS NULL,
		reuse_sync.show_work($subid, NULL, 7) IS NULL"),
	'5|7|t|t', 'show_percent() and show_work(): what is new');
is( ask(
		"SELECT reuse_sync.show_percent($subid, '2000-01-01', 40),
		reuse_sync.show_percent($subid, '2000-01-01', 30),
		reuse_sync.show_percent($subid, '2000-01-01', 50),
		reuse_sync.show_percent($subid, '2000-01-02', 10),
		reuse_sync.show_work($subid, '2000-01-02', 40),
		reuse_sync.show_work($subid, '2000-01-02', 30),
		reuse_sync.show_work($subid, '2000-01-02', 50),
		reuse_sync.show_work($subid, '2000-01-03', 10)"),
	'40|40|50|10|40|40|50|10', 'show_percent() and show_work()');
is( ask(q{SELECT reuse_sync.require_library(extversion)::text
		FROM pg_extension WHERE extname = 'reuse_sync'}),
	'', 'require_library()');

# check() is seen to in 072_check.pl.
is( join(
		' ',
		grep { !$seen{$_} && !/^check\(\)\./ }
		map {
			my $relation = $_;
			map { "$relation.$_->[0]" } @{ $columns{$relation} }
		} sort keys %columns),
	'',
	'each column has been seen to have the right value');

# So have been all words that a column has for something, as documented.
my $root = abs_path(dirname(__FILE__) . '/../..');
my $reference = slurp_file("$root/docs/sql-reference.md");

# words_ok($column, @words): one test, that there are these words for it
sub words_ok
{
	my ($column, @words) = @_;

	return is(
		join(', ', sort keys %{ $seen{$column} }),
		join(', ', sort @words),
		"$column: each word has been seen");
}
my ($states) = $reference =~ /^\| `state` \| the table \|\n(.*?)\n\n/ms;
my @states = map { /^\| (`.*?) \|/ ? $1 =~ /`([^`]+)`/g : () } split /\n/, $states;
words_ok('tables.state', @states);
my ($phases) = $reference =~ /^\| `phase` \| `text` \| (.*?), or a state of a table/m;
words_ok('workers.phase', $phases =~ /`([^`]+)`/g,
	grep { !/^(?:pending|copied|synchronized|ready|failed)$/ } @states);
my ($types) = $reference =~ /^\| `worker_type` \| `text` \| (.*)/m;
words_ok('workers.worker_type', $types =~ /`([^`]+)`/g);
my ($of_slots) = $reference =~ /^\| `state` \| `text` \| (`creating.*)/m;
words_ok('slots.state', $of_slots =~ /`([^`]+)`/g);

foreach ($on_pub, $on_sub, $locker, $enabler, $xid, $early, $writer)
{
	$_->quit;
}
$catchup->finish;
no_leftovers_ok($pub, $sub, 'no slot and no origin left');
no_builtin_sync_ok($sub);

done_testing();
