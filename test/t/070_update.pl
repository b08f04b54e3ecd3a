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
