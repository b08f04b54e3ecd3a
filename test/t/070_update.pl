# ALTER EXTENSION UPDATE, and a library that is not preloaded.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use ReuseSync;
use Test::More;

plan skip_all => 'only of the extension' unless with_extension();

my $pub = new_publisher('pub');
my $sub = new_subscriber('sub');

# What the extension consists of, in a database.
sub members
{
	my ($db) = @_;

	return $sub->safe_psql(
		$db, q{
		SELECT pg_describe_object(classid, objid, objsubid)
		FROM pg_depend
		WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
		AND refobjid = (SELECT oid FROM pg_extension
			WHERE extname = 'reuse_sync')
		ORDER BY 1});
}

# Its functions, views and their columns, and everybody's rights.
sub surface
{
	my ($db) = @_;

	return $sub->safe_psql(
		$db, q{
		SELECT relname || ' ' || coalesce(pg_get_viewdef(c.oid), '') || ' '
			|| coalesce(relacl::text, '')
		FROM pg_class c WHERE relnamespace = 'reuse_sync'::regnamespace
		UNION ALL
		SELECT pg_get_functiondef(oid) || ' ' || coalesce(proacl::text, '')
		FROM pg_proc WHERE pronamespace = 'reuse_sync'::regnamespace
		ORDER BY 1});
}

#
# From the first version.  Until the update the server synchronizes by itself,
# and the log says what to do.
#
$sub->safe_psql('postgres', 'CREATE DATABASE old');
both($pub, $sub, 'CREATE TABLE t1 (a int); CREATE TABLE t2 (a int)');
$sub->safe_psql('old', 'CREATE TABLE t1 (a int); CREATE TABLE t2 (a int)');
$pub->safe_psql('postgres',
	'INSERT INTO t1 VALUES (1); INSERT INTO t2 VALUES (2);
	CREATE PUBLICATION p FOR TABLE t1');

$sub->safe_psql('old', q{CREATE EXTENSION reuse_sync VERSION '1.0'});
my $log_start = -s $sub->logfile;
subscribe($pub, $sub, 's', 'p', sub_db => 'old');
wait_ready($sub, 's', db => 'old');
my $log = slurp_file($sub->logfile, $log_start);
like(
	$log,
	qr/WARNING:.*extension "reuse_sync" is version 1\.0 in database "old", but the loaded library is version 1\.1.*HINT:  Run ALTER EXTENSION reuse_sync UPDATE/s,
	'before the update: the log says what to do');
like(
	$log,
	qr/logical replication table synchronization worker/,
	'before the update: the server synchronizes');

my ($ret, $out, $err) = $sub->psql('old', 'SELECT reuse_sync.wakeup()');
like($err, qr/HINT:  Run ALTER EXTENSION reuse_sync UPDATE/,
	'before the update: a function says what to do');

$log_start = -s $sub->logfile;
$sub->safe_psql('old', 'ALTER EXTENSION reuse_sync UPDATE');
is( $sub->safe_psql('old',
		q{SELECT extversion = (SELECT default_version
			FROM pg_available_extensions WHERE name = 'reuse_sync')
		FROM pg_extension WHERE extname = 'reuse_sync'}),
	't', 'updated to the version that is installed');
is(members('old'), members('postgres'), 'the same objects as a fresh one');
is(surface('old'), surface('postgres'), 'with the same contents and rights');

$pub->safe_psql('postgres', 'ALTER PUBLICATION p ADD TABLE t2');
$sub->safe_psql('old', 'ALTER SUBSCRIPTION s REFRESH PUBLICATION');
wait_ready($sub, 's', db => 'old');
is($sub->safe_psql('old', 'SELECT tables_synced FROM reuse_sync.stats'),
	1, 'after the update: the pool synchronizes');
unlike(
	slurp_file($sub->logfile, $log_start),
	qr/logical replication table synchronization worker/,
	'after the update: the server does not');
rows_ok($pub, $sub, $_, "rows of $_", undef, sub_db => 'old')
  foreach qw(t1 t2);

($ret, $out, $err) =
  $sub->psql('old', q{SELECT reuse_sync.require_library('99.0')});
like(
	$err,
	qr/is version 1\.1, but its SQL objects are version 99\.0/,
	'a script of a later release is refused');

#
# With something in the catalog.  Only a library of that version could write it
# there: so it is written by this one, and then all that the first version has
# not is taken away.
#
# All members of the extension: what they are, and how they are called.  Types
# of rows, which are members from 17 on, come and go with their relations.
sub objects
{
	my ($db) = @_;

	return split /\n/, $sub->safe_psql(
		$db, q{
		SELECT i.type || ' ' || i.identity
		FROM pg_depend d, pg_identify_object(d.classid, d.objid, d.objsubid) i
		WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
		AND d.classid <> 'pg_type'::regclass
		AND d.refobjid = (SELECT oid FROM pg_extension
			WHERE extname = 'reuse_sync')
		ORDER BY 1});
}

sub view_definition
{
	my ($db, $view) = @_;

	return $sub->safe_psql($db,
		"SELECT pg_get_viewdef('$view'::regclass)");
}

# Make the extension in a database what it is in another, of an older version.
sub downgrade
{
	my ($db, $reference) = @_;
	my %old    = map { $_ => 1 } objects($reference);
	my @new    = grep { !$old{$_} } objects($db);
	my @views  = map { /^view (.*)/ ? $1 : () } sort keys %old;
	my @change = grep {
		view_definition($db, $_) ne view_definition($reference, $_)
	} @views;
	my @gone = (@new, map { "view $_" } @change);
	my %kind = ('view' => 1, 'materialized view' => 2, 'function' => 3,
		'procedure' => 3);
	my $order = sub { my ($type) = $_[0] =~ /^(.*?) reuse_sync\./;
		$kind{$type} // die "what is $_[0]?" };
	my $sql = '';

	$sql .= "ALTER EXTENSION reuse_sync DROP $_;\n" foreach @gone;
	$sql .= "DROP $_ CASCADE;\n" =~ s/DROP view/DROP VIEW IF EXISTS/r
	  foreach sort { $order->($a) <=> $order->($b) } @gone;
	foreach my $view (@change)
	{
		$sql .= "CREATE VIEW $view AS " . view_definition($reference, $view)
		  . "GRANT SELECT ON $view TO pg_monitor;
			ALTER EXTENSION reuse_sync ADD VIEW $view;\n";
	}
	$sub->safe_psql($db, "BEGIN;\n$sql
		UPDATE pg_extension SET extversion = '1.0' WHERE extname = 'reuse_sync';
		COMMIT");
	return;
}

# What is in the relations that the first version has.
sub contents
{
	my ($db, @relations) = @_;

	return join "\n",
	  map { "$_:\n" . rows_of($sub, $_, $db) } @relations;
}

sub wait_until
{
	my ($query) = @_;

	return if $sub->poll_query_until('state', $query);
	die "did not come true: $query\n" . ReuseSync::log_tail($sub);
}

$sub->append_conf('postgresql.conf', "$_\n")
  foreach (
	'reuse_sync.batch_size = 0',
	'reuse_sync.batch_tables = 1',
	"reuse_sync.handover_lock_timeout = '1min'",
	"wal_retrieve_retry_interval = '200ms'");
$sub->reload;
$sub->safe_psql('postgres', 'CREATE DATABASE reference; CREATE DATABASE state');
$sub->safe_psql('reference', q{CREATE EXTENSION reuse_sync VERSION '1.0'});
create_extension($sub, 'state');
foreach my $table (qw(ready half fails))
{
	$_->safe_psql($_ == $sub ? 'state' : 'postgres',
		"CREATE TABLE $table (a int PRIMARY KEY, b text)")
	  foreach ($pub, $sub);
	$pub->safe_psql('postgres',
		"INSERT INTO $table SELECT g, 'row ' || g FROM generate_series(1, 20) g;
		CREATE PUBLICATION p_$table FOR TABLE $table");
}
$sub->safe_psql('state', 'ALTER TABLE fails ADD CONSTRAINT small CHECK (a < 5)');
my $lock = $sub->background_psql('state');
$lock->query_safe('BEGIN; LOCK TABLE half IN ROW EXCLUSIVE MODE');
subscribe($pub, $sub, "s_$_", "p_$_", sub_db => 'state')
  foreach qw(ready half fails);
wait_ready($sub, 's_ready', db => 'state');
wait_until(q{
	SELECT count(*) > 0 FROM pg_locks
	WHERE relation = 'half'::regclass AND NOT granted});
wait_until(q{
	SELECT attempts > 0 FROM reuse_sync.tables WHERE subname = 's_fails'});
$sub->safe_psql('state', "ALTER SUBSCRIPTION s_$_ DISABLE")
  foreach qw(ready half fails);
$lock->quit;
wait_until(q{
	SELECT count(*) = 0 FROM reuse_sync.workers
	WHERE worker_type = 'worker' AND subname IS NOT NULL});
wait_until(q{SELECT count(*) = 0 FROM pg_stat_subscription
	WHERE pid IS NOT NULL AND subname LIKE 's\_%'});
wait_until(q{SELECT count(*) = 1 FROM reuse_sync.slots});
is($sub->safe_psql('state',
		q{SELECT srsubstate FROM pg_subscription_rel
		WHERE srrelid = 'half'::regclass}),
	'f', 'with a catalog: a table is half done');

my @relations = map { /^materialized view (.*)/ ? $1 : () } objects('reference');
is(scalar @relations, 4, 'with a catalog: relations that the first version has');
my $contents = contents('state', @relations);
my $slot     = $sub->safe_psql('state', 'SELECT slot_name FROM reuse_sync.slots');
my $synced   = $sub->safe_psql('state', 'SELECT tables_synced FROM reuse_sync.stats');
is($synced, 1, 'with a catalog: a table was synchronized');
cmp_ok(
	$sub->safe_psql('state', "SELECT count(*) FROM $_"), '>', 0,
	"with a catalog: there is something in $_") foreach @relations;

downgrade('state', 'reference');
is(members('state'), members('reference'), 'first version: objects');
is(surface('state'), surface('reference'), 'first version: what they are');
is(contents('state', @relations), $contents, 'first version: contents');

$log_start = -s $sub->logfile;
$sub->safe_psql('state', 'ALTER EXTENSION reuse_sync UPDATE');
is(contents('state', @relations), $contents, 'with a catalog: it is kept');
is(members('state'), members('postgres'), 'with a catalog: objects');
is(surface('state'), surface('postgres'), 'with a catalog: what they are');
is( $sub->safe_psql('state', q{
		SELECT string_agg(concat_ws(' ', subname, state, attempts > 0,
			coalesce(slot_name, '-')), ', ' ORDER BY subname)
		FROM reuse_sync.tables}),
	"s_fails failed t -, s_half copied f $slot, s_ready ready f -",
	'with a catalog: it can be seen');
is($sub->safe_psql('state', 'SELECT slot_name, state FROM reuse_sync.slots'),
	"$slot|linked", 'with a catalog: also the slot');

# The pool goes on where it was.
$pub->safe_psql('postgres',
	"INSERT INTO $_ VALUES (101, 'later'); DELETE FROM $_ WHERE a = 3")
  foreach qw(ready half fails);
$sub->safe_psql('state', 'ALTER TABLE fails DROP CONSTRAINT small');
$sub->safe_psql('state', "ALTER SUBSCRIPTION s_$_ ENABLE")
  foreach qw(ready half fails);
foreach my $table (qw(ready half fails))
{
	wait_ready($sub, "s_$table", db => 'state');
	catch_up($pub, $sub, "s_$table", db => 'state');
	rows_ok($pub, $sub, $table, "with a catalog: rows of $table",
		undef, sub_db => 'state');
}
$log = slurp_file($sub->logfile, $log_start);
like($log, qr/"public\.half".*slot "$slot" taken over/,
	'with a catalog: what was half done is finished from its slot');
unlike($log, qr/is copied anew|logical replication table synchronization worker/,
	'with a catalog: nothing is made anew, nor by the server');
is( $sub->safe_psql('state', 'SELECT tables_synced FROM reuse_sync.stats'),
	$synced + 2, 'with a catalog: counters go on');
wait_until('SELECT count(*) = 0 FROM reuse_sync.slots');
$sub->safe_psql('state', "DROP SUBSCRIPTION s_$_") foreach qw(ready half fails);
no_leftovers_ok($pub, $sub, 'with a catalog: no slot and no origin left');

#
# A server that does not preload it: what cannot work says what to do.
#
$sub->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$sub->restart;
($ret, $out, $err) = $sub->psql('postgres', 'SELECT reuse_sync.wakeup()');
like(
	$err,
	qr/ERROR:  "reuse_sync" must be loaded via shared_preload_libraries\nHINT:  Add it/,
	'not preloaded: a function says what to do');
is($sub->safe_psql('postgres', 'SELECT count(*) FROM reuse_sync.workers'),
	0, 'not preloaded: there is no worker');
$sub->safe_psql('postgres', 'CREATE DATABASE another');
($ret, $out, $err) =
  $sub->psql('another', 'CREATE EXTENSION reuse_sync');
like(
	$err,
	qr/ERROR:  "reuse_sync" must be loaded via shared_preload_libraries\nHINT:  Add it/,
	'not preloaded: there is no CREATE EXTENSION');

$sub->append_conf('postgresql.conf',
	"shared_preload_libraries = 'reuse_sync'\nreuse_sync.enabled = off");
$sub->restart;
($ret, $out, $err) = $sub->psql('postgres', 'SELECT reuse_sync.wakeup()');
like(
	$err,
	qr/ERROR:  the pool of "reuse_sync" is not running\nHINT:  Set reuse_sync\.enabled to on/,
	'switched off: a function says what to do');

$sub->safe_psql('old', 'DROP SUBSCRIPTION s');
done_testing();
