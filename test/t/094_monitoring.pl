# docs/monitoring: the queries for postgres_exporter, run as a member of
# pg_monitor, yield the metrics they declare, and values of a known state; rules
# and dashboard use no others.

use strict;
use warnings;

use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use YAML::XS;

use ReuseSync;
use CatchUp;

plan skip_all => 'needs the extension' unless with_extension();

my $dir       = 'docs/monitoring';
my %of_file   = map { $_ => YAML::XS::LoadFile("$dir/$_") }
  qw(queries.yaml queries-publisher.yaml);
my ($queries, $pub_queries) = @of_file{qw(queries.yaml queries-publisher.yaml)};
my $alerts    = YAML::XS::LoadFile("$dir/alerts.yaml");
my $dashboard = JSON::PP->new->decode(slurp_file("$dir/dashboard.json"));

# The columns of a query: name to usage.
sub declared
{
	my ($query) = @_;

	return map { my ($name) = keys %$_; $name => $_->{$name}{usage} }
	  @{ $query->{metrics} };
}

#
# What is written in the files.
#
my %exists;
foreach my $file (sort keys %of_file)
{
	foreach my $name (sort keys %{ $of_file{$file} })
	{
		my $query = $of_file{$file}{$name};
		my @wrong;

		foreach my $metric (@{ $query->{metrics} })
		{
			my ($column, @more) = keys %$metric;
			my ($usage, $text) = @{ $metric->{$column} }{qw(usage description)};

			push @wrong, $column
			  if @more || $usage !~ /^(?:LABEL|GAUGE|COUNTER)$/
			  || ($text // '') eq ''
			  || ($usage eq 'COUNTER') != ($column =~ /_total$/);
			$exists{"${name}_$column"} = 1 if $usage ne 'LABEL';
		}
		my %usage = declared($query);
		is("@wrong", '', "$name: each metric has a usage and a description");
		is(keys %usage, @{ $query->{metrics} }, "$name: none is there twice");
	}
}

# names_ok($what, $text): what looks like a metric in there is one.
sub names_ok
{
	my ($what, $text) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @names = $text =~ /\b(reuse_sync_\w+)/g;

	cmp_ok(scalar @names, '>', 0, "$what: asks for metrics");
	is(join(' ', grep { !$exists{$_} } @names), '',
		"$what: that the queries yield");
	return @names;
}

my (%seen, %used);
foreach my $rule (map { @{ $_->{rules} } } @{ $alerts->{groups} })
{
	my $name = $rule->{alert};

	names_ok($name, $rule->{expr});
	ok(!$seen{$name}++, "$name: is one rule");
	like($rule->{labels}{severity}, qr/^(?:warning|critical)$/,
		"$name: severity");
	like($rule->{annotations}{summary}, qr/\{\{ \$/, "$name: says what and where");
	like($rule->{annotations}{description}, qr/\w.*\.\s*\z/s, "$name: says what to do");

	# What it tells people to look at is there.
	my $text = $rule->{annotations}{description};
	$used{$1} = 1 while $text =~ /\breuse_sync\.(\w+)/g;
}

my @panels = grep { $_->{type} ne 'row' } @{ $dashboard->{panels} };
my %shown;
cmp_ok(scalar @panels, '>=', 20, 'the dashboard has panels');
foreach my $panel (@panels)
{
	my $targets = $panel->{targets};

	$shown{$_} = 1
	  foreach names_ok("panel \"$panel->{title}\"",
		join("\n", map { $_->{expr} } @$targets));
	is( join(' ', map { $_->{refId} } @$targets),
		join(' ', ('A' .. 'Z')[ 0 .. $#$targets ]),
		"panel \"$panel->{title}\": targets have names of their own");
}
is_deeply(\%shown, \%exists, 'every metric is in a panel');
my %ids = map { $_->{id} => 1 } @{ $dashboard->{panels} };
is(keys %ids, @{ $dashboard->{panels} }, 'panels have numbers of their own');
names_ok("variable $_->{name}", $_->{query}{query})
  foreach grep { $_->{type} eq 'query' } @{ $dashboard->{templating}{list} };

# Variables that are used are there.
my %variables = map { $_->{name} => 1 } @{ $dashboard->{templating}{list} };
my $text      = slurp_file("$dir/dashboard.json");
is(join(' ', grep { !$variables{$_} } $text =~ /\$\{?(\w+)/g),
	'__all __all', 'the dashboard has the variables that it uses');

#
# Servers.  The subscriber has tables in every state that lasts, and stays so
# since the pool is paused.
#
my $pub = new_publisher('pub');
my $sub = new_subscriber(
	'sub',
	wal_retrieve_retry_interval               => '200ms',
	'reuse_sync.batch_size'                   => '8kB',
	'reuse_sync.batch_tables'                 => 1,
	'reuse_sync.handover_lock_timeout'        => '1min',
	'reuse_sync.max_workers_per_subscription' => 2,
	'reuse_sync.naptime'                      => '500ms');
my $catchup = CatchUp->new($pub, $sub);

$sub->safe_psql(
	'postgres', q{
	CREATE ROLE exporter LOGIN IN ROLE pg_monitor;
	CREATE DATABASE other});
$pub->safe_psql('postgres', 'CREATE ROLE exporter LOGIN IN ROLE pg_monitor');
create_extension($sub, 'other');

# rows($node, $name, $db): the rows of a query as hashes, as a member of
# pg_monitor sees them.
sub rows
{
	my ($node, $name, $db) = @_;
	my $query = ($queries->{$name} // $pub_queries->{$name})->{query};
	my $json  = $node->safe_psql(
		$db // 'postgres',
		"SELECT coalesce(json_agg(to_json(q)), '[]') FROM ($query) q",
		extra_params => [ '-U', 'exporter' ]);

	return @{ JSON::PP->new->decode($json) };
}

# all_ok($node, $queries, $what, $db): every query runs, and has the columns
# that are declared, with types that fit; no two rows have the same labels,
# which would make the exporter fail.
sub all_ok
{
	my ($node, $queries, $what, $db) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $log_start = -s $node->logfile;

	foreach my $name (sort keys %$queries)
	{
		my $query  = $queries->{$name};
		my %usage  = declared($query);
		my %labels;
		my ($ret, $out, $err) = $node->psql(
			$db // 'postgres',
			"$query->{query}\\gdesc",
			extra_params => [ '-U', 'exporter' ]);
		my %type = map { split /\|/ } split /\n/, $out;

		is($err, '', "$what, $name: runs");
		is_deeply(
			[ sort keys %type ],
			[ sort keys %usage ],
			"$what, $name: its columns are those declared");
		foreach my $column (sort keys %usage)
		{
			like(
				$type{$column},
				$usage{$column} eq 'LABEL'
				? qr/^(?:name|text)$/
				: qr/^(?:integer|bigint|numeric|double precision)$/,
				"$what, $name: type of $column");
		}

		my @rows = rows($node, $name, $db);
		my @null = grep {
			my $row = $_;
			grep { !defined $row->{$_} && $_ ne 'eta_seconds' } keys %usage
		} @rows;
		foreach my $row (@rows)
		{
			$labels{ join "\0",
				map { $row->{$_} } grep { $usage{$_} eq 'LABEL' } sort keys %usage }++;
		}
		is(scalar @null, 0, "$what, $name: no value is null");
		is(keys %labels, @rows, "$what, $name: rows differ in their labels");
	}
	return;
}

# Nothing is there yet.
all_ok($sub, $queries, 'no subscription', 'other');
all_ok($pub, $pub_queries, 'no slot');
is_deeply([ rows($sub, 'reuse_sync_subscription', 'other') ],
	[], 'no subscription: no row of one');
my ($pool) = rows($sub, 'reuse_sync_pool', 'other');
is_deeply(
	$pool,
	{
		datname => 'other', launcher => 1, workers => 0, workers_busy => 0,
		max_workers => 4, paused => 0
	},
	'no subscription: the pool');

# Two that succeed, of 10 and 20 rows; one that is held at its first row; one
# that is left over; and more that fail than are to be named.
my @good   = qw(good_1 good_2);
my @failed = ('odd "name"', map { "bad_$_" } 1 .. 21);
my $all    = join ', ', map { qq{"$_"} } map { s/"/""/gr } @good, @failed;
foreach my $table (@good, @failed, 'held', 'left_over')
{
	(my $name = $table) =~ s/"/""/g;
	both($pub, $sub, qq{CREATE TABLE "$name" (a int PRIMARY KEY)});
	my $rows = $table eq 'good_2' ? 20 : 10;
	$pub->safe_psql('postgres',
		qq{INSERT INTO "$name" SELECT generate_series(1, $rows)});
	$sub->safe_psql('postgres', qq{ALTER TABLE "$name" ADD CHECK (a < 5)})
	  if grep { $_ eq $table } @failed;
}
$pub->safe_psql(
	'postgres', qq{
	CREATE PUBLICATION p FOR TABLE $all;
	CREATE PUBLICATION p_held FOR TABLE held;
	CREATE PUBLICATION p_left_over FOR TABLE left_over});

subscribe($pub, $sub, 's', 'p');
wait_for_query($sub, q{
	SELECT count(*) FILTER (WHERE t.attempts > 0) = 22
		AND count(*) FILTER (WHERE r.srsubstate = 'r') = 2
	FROM pg_subscription_rel r JOIN reuse_sync.table_state t
		ON t.subid = r.srsubid AND t.relid = r.srrelid});

# A slot that cannot be dropped: its role has lost the right.
$pub->safe_psql(
	'postgres', q{
	CREATE ROLE repl LOGIN REPLICATION;
	GRANT SELECT ON ALL TABLES IN SCHEMA public TO repl;});
$catchup->close_gate('left_over');
subscribe($pub, $sub, 's_gone', 'p_left_over', user => 'repl');
$catchup->wait_at_gates(['left_over']);
$pub->safe_psql('postgres', 'ALTER ROLE repl NOREPLICATION');
$catchup->open_gate('left_over');
wait_ready($sub, 's_gone');
wait_for_query($sub,
	q{SELECT count(*) = 1 FROM reuse_sync.slots
	WHERE subname = 's_gone' AND state = 'orphaned' AND last_error IS NOT NULL});

# An apply worker that finds no slot.
subscribe($pub, $sub, 's_problem', 'p_left_over',
	with => q{create_slot = false, slot_name = 'no_such_slot'});
wait_for_query($sub,
	q{SELECT count(*) = 1 FROM reuse_sync.problems
	WHERE subname = 's_problem'});

# A copy that is at its first row.
$catchup->close_gate('held');
subscribe($pub, $sub, 's_held', 'p_held');
$catchup->wait_at_gates(['held']);

# Nobody tries anything any more.
$sub->append_conf('postgresql.conf', 'reuse_sync.paused = on');
$sub->reload;
wait_for_query($sub,
	q{SELECT current_setting('reuse_sync.paused') = 'on'
	AND count(*) FILTER (WHERE phase NOT IN ('idle', 'copying')) = 0
	AND count(*) FILTER (WHERE phase = 'copying') = 1
	FROM reuse_sync.pool_workers() WHERE worker_type = 'worker'});

all_ok($sub, $queries, 'at work');
all_ok($pub, $pub_queries, 'at work');

#
# Values: of all that can be known.
#
my %sub_row = map { $_->{subname} => $_ } rows($sub, 'reuse_sync_subscription');
is_deeply(
	[ sort keys %sub_row ],
	[qw(s s_gone s_held s_problem)],
	'a row for each subscription');
my ($attempts, $most) = split /\|/, $sub->safe_psql('postgres',
	'SELECT sum(attempts), max(attempts) FROM reuse_sync.table_progress');
cmp_ok($attempts, '>=', 22, 'each table has failed');

# part($name, @columns): some columns of a subscription's row, in one line
sub part
{
	my ($name, @columns) = @_;

	return join ' ', map { "$_=" . ($sub_row{$name}{$_} // 'NaN') } @columns;
}

my @counted = qw(enabled copied_rows attempts attempts_max problems);
is( part('s', 'datname', @counted),
	"datname=postgres enabled=1 copied_rows=30 attempts=$attempts attempts_max=$most problems=0",
	'tables that are ready, and others that failed');
is( part('s_gone', @counted, 'percent', 'slot_wal_bytes', 'snapshot_seconds', 'eta_seconds'),
	'enabled=1 copied_rows=10 attempts=0 attempts_max=0 problems=0 percent=100 slot_wal_bytes=0 snapshot_seconds=0 eta_seconds=NaN',
	'all ready');
is( part('s_problem', @counted, 'percent'),
	'enabled=1 copied_rows=0 attempts=0 attempts_max=0 problems=1 percent=0',
	'none begun');
is( part('s_held', @counted, 'percent'),
	'enabled=1 copied_rows=0 attempts=0 attempts_max=0 problems=0 percent=0',
	'one at its first row');
my $unit_seconds = $sub->safe_psql('postgres',
	q{SELECT extract(epoch FROM clock_timestamp() - unit_start)
	FROM reuse_sync.pool_workers() WHERE phase = 'copying'});
cmp_ok($sub_row{s_held}{snapshot_seconds}, '>', 0, 'its snapshot is held');
cmp_ok($sub_row{s_held}{snapshot_seconds},
	'<=', $unit_seconds, 'for no longer than it is at work');

# Rows of 2 bytes for each number of one digit, 3 for the others.
is($sub_row{s}{copied_bytes}, (9 * 2 + 3) + (9 * 2 + 11 * 3), 'bytes copied');
is( $sub_row{s_gone}{copied_bytes},
	9 * 2 + 3, 'bytes copied of the other subscription');
cmp_ok($sub_row{s}{size_bytes}, '>', $sub_row{s}{copied_bytes},
	'there is more to copy');
cmp_ok($sub_row{s}{percent}, '>', 0, 'some of it is done');
cmp_ok($sub_row{s}{percent}, '<', 50, 'most is not');

# states($name): what another query counts, by subscription and state
sub states
{
	my ($name) = @_;
	my %count;

	$count{ $_->{subname} }{ $_->{state} } = $_->{current}
	  foreach rows($sub, $name);
	return \%count;
}

my %none = map { $_ => 0 } 'pending', 'copying', 'catching up', 'ready', 'failed';
is_deeply(
	states('reuse_sync_tables'),
	{
		s         => { %none, ready   => 2, failed => 22 },
		s_gone    => { %none, ready   => 1 },
		s_held    => { %none, copying => 1 },
		s_problem => { %none, pending => 1 },
	},
	'tables by state');
%none = map { $_ => 0 } qw(creating active idle linked orphaned);
is_deeply(
	states('reuse_sync_slots'),
	{
		''        => {%none},
		s         => {%none},
		s_gone    => { %none, orphaned => 1 },
		s_held    => { %none, active => 1 },
		s_problem => {%none},
	},
	'slots by state');

my @failed_rows = rows($sub, 'reuse_sync_failed_table');
is(@failed_rows, 20, 'twenty failed tables are named');
is(scalar(grep { $_->{subname} eq 's' && $_->{attempts} >= 1 } @failed_rows),
	20, 'with their subscription and failures');
is( join(',', sort map { $_->{attempts} } @failed_rows),
	$sub->safe_psql(
		'postgres', q{SELECT string_agg(a, ',' ORDER BY a COLLATE "C") FROM (
		SELECT attempts::text AS a FROM reuse_sync.table_progress
		ORDER BY attempts DESC LIMIT 20) t}),
	'those with most failures');
my %known = map { $_ => 1 } 'public."odd ""name"""', map { "public.bad_$_" } 1 .. 21;
is(join(' ', grep { !$known{$_} } map { $_->{relation} } @failed_rows),
	'', 'by their names');
($pool) = rows($sub, 'reuse_sync_pool');
my $workers = $sub->safe_psql('postgres',
	q{SELECT count(*) FROM pg_stat_activity
	WHERE backend_type = 'reuse_sync worker'});
is($pool->{launcher}, 1, 'there is a launcher');
is($pool->{workers}, $workers, 'there are workers');
is($pool->{workers_busy}, 1, 'one is at work');
is($pool->{paused}, 1, 'they are paused');
is($pool->{max_workers}, 4, 'size of the pool');
($pool) = rows($sub, 'reuse_sync_pool', 'other');
is($pool->{workers}, 0, 'no worker is in another database');

my ($orphan, @more) = rows($sub, 'reuse_sync_orphaned_slot');
is(@more, 0, 'one orphan');
is( "$orphan->{subname} $orphan->{slot_name}",
	's_gone '
	  . $sub->safe_psql(
		'postgres',
		q{SELECT slot_name FROM reuse_sync.slots WHERE subname = 's_gone'}),
	'is named');
like($orphan->{last_error}, qr/replication/, 'with its error');
unlike($orphan->{last_error}, qr/\n/, 'in one line');
cmp_ok(length $orphan->{last_error}, '<=', 120, 'that is not too long');
cmp_ok($orphan->{age_seconds}, '>', 0, 'and its age');

my ($problem, @others) = rows($sub, 'reuse_sync_problem');
is(@others, 0, 'one problem');
is($problem->{subname}, 's_problem', 'of its subscription');
like($problem->{last_error}, qr/does not stream/, 'with its cause');
cmp_ok(length $problem->{last_error}, '<=', 120, 'that is not too long');
cmp_ok($problem->{age_seconds}, '>=', 0, 'and since when');

# Counters are those of the view, under the names that counters have.
my ($stats) = rows($sub, 'reuse_sync_stats');
is($stats->{tables_synced_total}, 3, 'tables that were finished');
is( join(' ', map { $stats->{"${_}_total"} }
		qw(tables_synced units slots_created slots_reused slots_dropped
		workers_started copied_bytes transactions_skipped
		transactions_applied errors)),
	$sub->safe_psql(
		'postgres', q{
		SELECT concat_ws(' ', sum(tables_synced), sum(units),
			sum(slots_created), sum(slots_reused), sum(slots_dropped),
			sum(workers_started), sum(bytes_copied), sum(transactions_skipped),
			sum(transactions_applied), sum(errors))
		FROM reuse_sync.counter
		WHERE dbid = (SELECT oid FROM pg_database
			WHERE datname = 'postgres')}),
	'counters');

# What a disabled subscription is.
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s_problem DISABLE');
%sub_row = map { $_->{subname} => $_ } rows($sub, 'reuse_sync_subscription');
is(part('s_problem', 'enabled'), 'enabled=0', 'a subscription is disabled');

# The publisher: a slot at work, one that is left, and WAL behind both.
$pub->safe_psql('postgres',
	q{SELECT pg_logical_emit_message(true, 'wal', repeat('x', 100000))});
my $sysid = $sub->safe_psql('postgres',
	'SELECT system_identifier FROM pg_control_system()');
my %pub_row =
  map { $_->{subid} => $_ } rows($pub, 'reuse_sync_publisher');
my %subid = map { split /\|/ } split /\n/, $sub->safe_psql('postgres',
	q{SELECT subname, oid FROM pg_subscription
	WHERE subname IN ('s_gone', 's_held')});
is_deeply([ sort keys %pub_row ],
	[ sort values %subid ], 'the publisher: subscriptions that have slots');
foreach my $name (sort keys %subid)
{
	my $row = $pub_row{ $subid{$name} };

	is($row->{subscriber}, $sysid, "the publisher, $name: whose");
	is("$row->{slots} $row->{slots_lost}", '1 0', "the publisher, $name: one slot");
	cmp_ok($row->{wal_bytes}, '>=', 100000, "the publisher, $name: WAL it holds");
	is( $row->{catalog_xmin_age},
		$pub->safe_psql(
			'postgres',
			"SELECT max(age(catalog_xmin)) FROM pg_replication_slots
			WHERE slot_name ~ '^reuse_sync_$subid{$name}_'"),
		"the publisher, $name: age of its xmin");
}

# A session as a worker has, whose snapshot gets old.  The worker's own has been
# given all its rows.
my $reader = $catchup->session('pub');
$reader->query_safe(
	q{SET application_name = 'reuse_sync';
	BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ;
	SELECT count(*) FROM held;});
$pub->safe_psql('postgres', 'SELECT txid_current()') foreach 1 .. 3;
# Now and then there is one more, in vain: for the slot that cannot be dropped.
my $session;
foreach my $try (1 .. 100)
{
	($session) = rows($pub, 'reuse_sync_publisher_session');
	last if $session->{current} == 2;
}
is($session->{current}, 2, 'the publisher: sessions');
cmp_ok($session->{xmin_age}, '>=', 3, 'the publisher: age of a snapshot');
end_session($reader);

# All names that people are told to look at.
my @missing = grep {
	$sub->safe_psql(
		'postgres', qq{
		SELECT to_regclass('reuse_sync.$_') IS NOT NULL
		OR EXISTS (SELECT FROM pg_proc WHERE proname = '$_'
			AND pronamespace = 'reuse_sync'::regnamespace)
		OR EXISTS (SELECT FROM pg_settings WHERE name = 'reuse_sync.$_')}) ne 't'
} sort keys %used;
is("@missing", '', 'what the rules speak of is there');

# By each of four workers once at most: it is tried all the time.
my $said = () = slurp_file($sub->logfile) =~
  /LOG:  could not drop (?:orphaned )?replication slot/g;
cmp_ok($said, '>', 0, 'that a slot cannot be dropped is said');
cmp_ok($said, '<=', 4, 'and not again and again');

$sub->append_conf('postgresql.conf', 'reuse_sync.paused = off');
$sub->reload;
$pub->safe_psql('postgres', 'ALTER ROLE repl REPLICATION');
$catchup->open_gate('held');
wait_ready($sub, 's_held');
rows_ok($pub, $sub, $_, "rows of $_") foreach @good, 'held', 'left_over';
$catchup->finish;

done_testing();
