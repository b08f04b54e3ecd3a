# check(): each thing that it is to find, as a row that can be read; and no row
# where all is well.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Races qw(session wait_until);
use ReuseSync;
use IO::Socket::INET;
use Test::More;

plan skip_all => 'only of the extension' unless with_extension();

my $pub = new_publisher('pub', max_wal_size => '64MB', min_wal_size => '32MB');
my $sub = new_subscriber(
	'sub',
	wal_retrieve_retry_interval     => '200ms',
	'reuse_sync.max_retry_interval' => '1h',
	'reuse_sync.naptime'            => '1h');

# The rows of check(), the columns separated by lines.
sub check
{
	my ($where, $db) = @_;

	$where //= 'true';
	return $sub->safe_psql($db // 'postgres',
		"SELECT severity || E'\\n' || object || E'\\n' || problem"
		  . " || coalesce(E'\\n' || hint, '') FROM reuse_sync.check() WHERE $where"
	);
}

# One test: these are the rows about an object.
sub found_ok
{
	my ($object, $expected, $testname, $db) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	(my $literal = $object) =~ s/'/''/g;
	my $got = check("object = '$literal'", $db);

	return ref $expected
	  ? like($got, $expected, $testname)
	  : is($got, $expected, $testname);
}

# Wait until check() says so or, undefined, has nothing to say.
sub wait_found
{
	my ($object, $pattern) = @_;
	(my $literal = $object) =~ s/'/''/g;

	my $got;
	eval {
		wait_until($sub, "check() to find $object",
			sub { return ($got = check("object = '$literal'")) =~ $pattern });
		1;
	} or die "$@\nfound instead:\n$got";
	return;
}

#
# Nothing to complain of
#
both($pub, $sub, 'CREATE TABLE fine (a int PRIMARY KEY, b text)');
$pub->safe_psql('postgres',
	q{INSERT INTO fine VALUES (1, 'x'); CREATE PUBLICATION p FOR TABLE fine});
is(check(), '', 'nothing is found without a subscription');
subscribe($pub, $sub, 's', 'p');
wait_ready($sub, 's');
is(check(), '', 'nothing is found where all is well');

#
# Tables.  The subscription is enabled only when all has been looked at.
#
both(
	$pub, $sub, q{
	CREATE SCHEMA "Hidden";
	CREATE TABLE "Hidden".one (a int PRIMARY KEY);
	CREATE TABLE "Hidden".two (a int PRIMARY KEY);
	CREATE TABLE "Not empty" (a int PRIMARY KEY);
	CREATE TABLE no_column (a int PRIMARY KEY);
	CREATE TABLE generated (a int PRIMARY KEY, b int);
	CREATE TABLE secured (a int PRIMARY KEY);
	CREATE TABLE triggered (a int PRIMARY KEY);
	CREATE TABLE numbered (a serial PRIMARY KEY, b int GENERATED ALWAYS AS IDENTITY);
	CREATE TABLE no_key_here (a int);
	CREATE TABLE no_key_there (a int PRIMARY KEY);
	CREATE TABLE no_key_full (a int);
	CREATE TABLE other_key (a int NOT NULL, b int NOT NULL, "C" int NOT NULL);
	CREATE TABLE list (a int PRIMARY KEY, b int);
	CREATE TABLE unreadable (a int PRIMARY KEY);
	CREATE TABLE denied (a int PRIMARY KEY);
	CREATE TABLE raises (a int PRIMARY KEY);
	CREATE TABLE parted (a int PRIMARY KEY) PARTITION BY RANGE (a);
	CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (9);
	CREATE TABLE renamed (a int PRIMARY KEY)});
$pub->safe_psql(
	'postgres', q{
	ALTER TABLE no_column ADD COLUMN "B b" numeric(5, 2), ADD COLUMN c int,
		ADD COLUMN g int GENERATED ALWAYS AS (1) STORED;
	ALTER TABLE no_key_here ADD PRIMARY KEY (a);
	ALTER TABLE no_key_there DROP CONSTRAINT no_key_there_pkey;
	ALTER TABLE no_key_full REPLICA IDENTITY FULL;
	ALTER TABLE other_key ADD PRIMARY KEY (a);
	ALTER TABLE list ADD COLUMN not_published int;
	INSERT INTO raises VALUES (1);
	CREATE TABLE missing (a int);
	CREATE ROLE reader LOGIN REPLICATION;
	GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader;
	GRANT SELECT ON ALL TABLES IN SCHEMA "Hidden" TO reader;
	REVOKE SELECT ON unreadable FROM reader;
	CREATE PUBLICATION t FOR TABLE "Hidden".one, "Hidden".two, "Not empty", no_column, generated,
		secured, triggered, numbered, no_key_here, no_key_there,
		no_key_full, other_key, list (a, b), unreadable, denied, raises,
		renamed;
	CREATE PUBLICATION t_root FOR TABLE parted WITH (publish_via_partition_root = true)});
$sub->safe_psql(
	'postgres', q{
	INSERT INTO "Not empty" VALUES (1);
	DROP TABLE generated;
	CREATE TABLE generated (a int PRIMARY KEY, b int GENERATED ALWAYS AS (1) STORED);
	ALTER TABLE secured ENABLE ROW LEVEL SECURITY;
	CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
	CREATE TRIGGER "Ordinary" BEFORE INSERT ON triggered FOR EACH ROW EXECUTE FUNCTION f();
	CREATE TRIGGER "Always" BEFORE INSERT ON triggered FOR EACH ROW EXECUTE FUNCTION f();
	CREATE TRIGGER replica BEFORE INSERT ON triggered FOR EACH ROW EXECUTE FUNCTION f();
	ALTER TABLE triggered ENABLE ALWAYS TRIGGER "Always", ENABLE REPLICA TRIGGER replica;
	CREATE TRIGGER of_whole AFTER INSERT ON parted FOR EACH ROW EXECUTE FUNCTION f();
	CREATE TRIGGER of_part AFTER INSERT ON parted_1 FOR EACH ROW EXECUTE FUNCTION f();
	ALTER TABLE parted ENABLE ALWAYS TRIGGER of_whole;
	ALTER TABLE parted_1 ENABLE ALWAYS TRIGGER of_part, ENABLE ROW LEVEL SECURITY;
	CREATE FUNCTION raise() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN RAISE 'not now' USING ERRCODE = '55000'; END $$;
	CREATE TRIGGER raise BEFORE INSERT ON raises FOR EACH ROW EXECUTE FUNCTION raise();
	ALTER TABLE raises ENABLE ALWAYS TRIGGER raise;
	ALTER TABLE other_key ADD PRIMARY KEY (b, a, "C");
	CREATE ROLE the_owner SUPERUSER LOGIN});
my $conninfo = $pub->connstr('postgres') . ' user=reader';
$conninfo =~ s/'/''/g;
# From 16 on the owner has to give a password otherwise, and what counts are the
# rights of a table's owner.
subscribe($pub, $sub, 't', 't, t_root',
	user => 'reader',
	with => 'enabled = false'
	  . (has_table_owners($sub)
		? ', password_required = false, run_as_owner = true' : ''));
$sub->safe_psql(
	'postgres', q{
	ALTER SUBSCRIPTION t OWNER TO the_owner;
	ALTER ROLE the_owner NOSUPERUSER;
	GRANT ALL ON ALL TABLES IN SCHEMA public TO the_owner;
	REVOKE INSERT ON denied FROM the_owner;
	ALTER TABLE renamed RENAME TO "new name"});

found_ok(
	'subscription "t"',
	q{warning
subscription "t"
it is disabled, and has tables that are not synchronized
Run ALTER SUBSCRIPTION t ENABLE.},
	'a subscription that is disabled');
found_ok(
	'table public."Not empty"',
	q{warning
table public."Not empty"
it is not empty before its first copy for subscription "t"
Rows that are on the publisher as well will be there twice, or make the copy fail. Empty it, or run SELECT reuse_sync.resync_table('t', 'public."Not empty"'), which empties and copies it.},
	'a table that is not empty');
found_ok(
	'table public.no_column',
	q{error
table public.no_column
it lacks columns that are published: "B b", c
Run ALTER TABLE public.no_column ADD COLUMN "B b" numeric(5,2), ADD COLUMN c integer, or give the publication a column list without them.},
	'a table that lacks columns');
found_ok(
	'table public.generated',
	q{error
table public.generated
columns that are published are generated here: b
Run ALTER TABLE public.generated ALTER COLUMN b DROP EXPRESSION, or give the publication a column list without them.},
	'a column that is generated');
found_ok(
	'table public.secured',
	q{error
table public.secured
row-level security keeps role "the_owner" from copying into it
Disable it on the table, or give the subscription an owner who bypasses it.},
	'row security in the way');
found_ok(
	'table public.triggered',
	q{warning
table public.triggered
trigger "Always" will fire for rows that are copied or replicated
It is enabled as ALWAYS. If that is not meant, run ALTER TABLE public.triggered ENABLE TRIGGER "Always".
warning
table public.triggered
trigger replica will fire for rows that are copied or replicated
It is enabled as REPLICA. If that is not meant, run ALTER TABLE public.triggered ENABLE TRIGGER replica.},
	'triggers that will fire');
found_ok('table public.parted',
	qr/^warning\n.*\ntrigger of_whole will fire for rows .*\n.*\z/,
	'a trigger of a partitioned table');
found_ok('table public.parted_1',
	qr/^error\n.*\nrow-level security keeps role .*\n.*\nwarning\n.*\ntrigger of_part will fire for rows .*\n.*\z/,
	'what is in the way of a partition, and a trigger of its own');
found_ok(
	'sequence public.numbered_a_seq',
	q{notice
sequence public.numbered_a_seq
it belongs to column a of table public.numbered, but its value is not replicated
Set it with setval() when the application is to write here.},
	'a sequence of a serial column');
found_ok('sequence public.numbered_b_seq', qr/^notice/,
	'a sequence of an identity column');
found_ok(
	'table public.no_key_here',
	q{error
table public.no_key_here
it has neither a primary key nor a replica identity index, so that no UPDATE and DELETE can be applied
Give it a primary key, or a unique index and run ALTER TABLE public.no_key_here REPLICA IDENTITY USING INDEX ...},
	'a table without an index for its replica identity');
found_ok('table public.no_key_full',
	qr/^warning\n.*\nit has neither .* so that each UPDATE and DELETE reads all of it\n/,
	'the same where the publisher sends whole rows');
found_ok('table public.no_key_there',
	qr/^warning\n.*\nit has no replica identity on the publisher, where UPDATE and DELETE fail.*\n.*run ALTER TABLE public\.no_key_there REPLICA IDENTITY FULL there/,
	'a table without a replica identity on the publisher');
found_ok('table public.other_key',
	qr/^error\n.*\nits replica identity has columns that the publisher's has not, .*: b, "C"\n/,
	'a replica identity that does not fit');
found_ok('table public.list', '',
	'a column that is not in the list is not missing');
found_ok('table public.unreadable',
	qr/^error\n.*\nthe subscription's role may not read these columns on the publisher: a\nRun GRANT SELECT ON public\.unreadable TO reader there\./,
	'a table that the role may not read');
found_ok(
	'publisher of subscription "t"',
	q{error
publisher of subscription "t"
the subscription's role may not use schema "Hidden", of which tables are published
Run GRANT USAGE ON SCHEMA "Hidden" TO reader there.},
	'a schema that the role may not use, once');
found_ok(
	'table public.renamed',
	q{error
table public.renamed
it is published for subscription "t", but there is no such table here
Create it, and run ALTER SUBSCRIPTION t REFRESH PUBLICATION.},
	'a table that is published and not here');
found_ok('table public."new name"',
	qr/^error\n.*\nit is in subscription "t", but no table of this name is published\n/,
	'a table that is here and not published');

$pub->safe_psql('postgres', 'ALTER PUBLICATION t ADD TABLE missing, fine');
found_ok('table public.missing', qr/^error\n.*\n.*there is no such table here/,
	'a table that was published later and is not here');
found_ok(
	'table public.fine',
	q{warning
table public.fine
it is published for subscription "t", but not in it
Run ALTER SUBSCRIPTION t REFRESH PUBLICATION.},
	'a table that was published later');
found_ok('table public.denied',
	qr/^error\n.*\nrole "the_owner", who owns subscription "t", may not insert into it\n/,
	'a table that the owner may not write to');

# Nobody sees anything of this but who may.
$sub->safe_psql('postgres',
	'CREATE ROLE nobody; CREATE ROLE monitor IN ROLE pg_monitor');
my ($ret, $out, $err) =
  $sub->psql('postgres', 'SET ROLE nobody; SELECT * FROM reuse_sync.check()');
like($err, qr/permission denied for function check/,
	'an ordinary role may not check');
is( $sub->safe_psql('postgres',
		'SET ROLE monitor; SELECT count(*) FROM reuse_sync.check()'),
	$sub->safe_psql('postgres', 'SELECT count(*) FROM reuse_sync.check()'),
	'a member of pg_monitor sees the same as a superuser');

#
# Subscriptions: an owner who may not log in; a failed table
#
$sub->safe_psql('postgres',
	'ALTER ROLE the_owner SUPERUSER NOLOGIN;
	ALTER SUBSCRIPTION t ENABLE');
found_ok('subscription "t"',
	qr/^error\n.*\nits owner the_owner may not log in to this database/,
	'an owner who may not log in');
wait_found('database postgres',
	qr/^error\n.*\nthe last \d+ processes of the pool for it ended before they could do anything/
);
pass('processes that could not start');
$sub->safe_psql('postgres', 'ALTER ROLE the_owner LOGIN');
$sub->safe_psql('postgres', 'SELECT reuse_sync.wakeup()');
wait_until($sub, 'tables to be ready',
	q{SELECT count(*) FILTER (WHERE state IN ('ready', 'synchronized')) > 5 FROM reuse_sync.tables});
wait_found('table public.no_column',
	qr/its synchronization for subscription "t" has failed: logical replication target relation "public.no_column" is missing replicated columns: .*\nIt is tried again (at \d{4}-|now)/
);
pass('a table that has failed');
wait_found('table public.raises',
	qr/its synchronization for subscription "t" has failed: not now\nIt is tried again/);
pass('check() is no hint where it has nothing to say');

$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION t DISABLE');
$sub->safe_psql('postgres',
	'ALTER SUBSCRIPTION t SET (slot_name = NONE); DROP SUBSCRIPTION t');
$sub->safe_psql('postgres',
	'DROP TABLE "Hidden".one, "Hidden".two, "Not empty", no_column, generated, secured, triggered,
	numbered, no_key_here, no_key_there, no_key_full, other_key, list,
	unreadable, denied, raises, parted, "new name"');
$pub->safe_psql('postgres', q{SELECT pg_drop_replication_slot('t')});
$sub->poll_query_until('postgres',
	'SELECT count(*) = 0 FROM reuse_sync.slots');
wait_until($sub, 'all to be well', sub { return check() eq '' });
pass('nothing is found when all that is gone');

#
# Publishers
#
$sub->safe_psql('postgres', q{ALTER SUBSCRIPTION s SET PUBLICATION p, "No such" WITH (refresh = false)});
found_ok(
	'subscription "s"',
	qr/^error
subscription "s"
publication "No such" does not exist on the publisher
Create it there, or run ALTER SUBSCRIPTION s DROP PUBLICATION "No such"\.$/m,
	'a publication that is not there');
$sub->safe_psql('postgres', q{ALTER SUBSCRIPTION s SET PUBLICATION p WITH (refresh = false)});

$pub->append_conf('postgresql.conf',
	"max_replication_slots = 3\nmax_wal_senders = 4\nmax_connections = 5\nsuperuser_reserved_connections = 2"
);
$pub->restart;
$pub->safe_psql('postgres', q{ALTER ROLE reader CONNECTION LIMIT 3});
wait_found('publisher of subscription "s"',
	qr/^error|warning\n.*\nmax_replication_slots is 3, but 5 are needed there: 1 are used by or reserved for others, and 4 workers of the pool take 4\nSet it to at least 5 on the publisher/m
);
wait_found('publisher of subscription "s"',
	qr/max_wal_senders is 4, but 5 are needed there/);
wait_found('publisher of subscription "s"',
	qr/max_connections is 5, but \d are needed there/);
pass('settings of the publisher that are too small');
$pub->append_conf('postgresql.conf',
	"max_replication_slots = 20\nmax_wal_senders = 20\nmax_connections = 40");
$pub->restart;
wait_until($sub, 'all to be well', sub { return check() eq '' });

# An inactive slot, not of this subscription, that retains much WAL
$pub->safe_psql(
	'postgres', q{
	SELECT pg_create_physical_replication_slot('forgotten', true)});
foreach (1 .. 5)
{
	$pub->safe_psql('postgres',
		'SELECT pg_switch_wal() FROM pg_logical_emit_message(true, $$x$$, $$y$$)');
}
found_ok('replication slot "forgotten"',
	qr/^warning\n.*\nnobody uses it, and it retains \d+ MB of WAL on the publisher\n/,
	'an inactive slot that retains much WAL');
$pub->safe_psql('postgres', q{SELECT pg_drop_replication_slot('forgotten')});

# A slot of ours that the catalog does not know
my $subid = $sub->safe_psql('postgres', 'SELECT oid FROM pg_subscription');
my $sysid = $sub->safe_psql('postgres',
	'SELECT system_identifier FROM pg_control_system()');
$pub->safe_psql('postgres',
	"SELECT pg_create_logical_replication_slot('reuse_sync_${subid}_999_$sysid', 'pgoutput'),
	pg_create_logical_replication_slot('reuse_sync_1_1_$sysid', 'pgoutput'),
	pg_create_logical_replication_slot('reuse_sync_1_1_1', 'pgoutput')");
found_ok(
	"replication slot \"reuse_sync_${subid}_999_$sysid\"",
	qq{warning
replication slot "reuse_sync_${subid}_999_$sysid"
it is one of ours on the publisher, but not in reuse_sync.slots, so that nobody will drop it
Drop it on the publisher, with SELECT pg_drop_replication_slot('reuse_sync_${subid}_999_$sysid').},
	'a slot of ours that is not in the catalog');
found_ok("replication slot \"reuse_sync_1_1_$sysid\"",
	qr/^warning\n.*\n.*neither its subscription nor a row/,
	'a slot of ours of a subscription that is not there');
found_ok('replication slot "reuse_sync_1_1_1"', '',
	'a slot of another subscriber is not ours');
$pub->safe_psql('postgres',
	q{SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
	WHERE slot_name LIKE 'reuse\_sync%'});

# Unreachable, and not even refusing: a listener that never answers
$pub->stop;
found_ok('subscription "s"',
	qr/^error\nsubscription "s"\ncould not connect to the publisher: .*\nCheck that the publisher runs/ms,
	'a publisher that is away');
unlike(check(), qr/dbname=|password/,
	'no connection string and no password is shown');
$sub->safe_psql('postgres',
	q{ALTER SUBSCRIPTION s CONNECTION 'host=nowhere.invalid,nowhere.invalid dbname=postgres user=x'});
found_ok('subscription "s"',
	qr/^could not connect to the publisher: [^\n]*"nowhere\.invalid"[^\n]*\nCheck that/m,
	'what libpq says twice is said once');
my ($silent, $port) = silent_listener();
$sub->safe_psql('postgres',
	"ALTER SUBSCRIPTION s CONNECTION 'host=127.0.0.1 port=$port dbname=postgres user=x password=topsecret'"
);
($ret, $out, $err) = $sub->psql('postgres',
	q{SET statement_timeout = '500 ms'; SELECT * FROM reuse_sync.check()});
like($err, qr/canceling statement due to statement timeout/,
	'check() can be cancelled while it waits for a publisher');
found_ok('subscription "s"',
	qr/could not connect to the publisher: it did not answer in time/,
	'a publisher that does not answer');
unlike(check(), qr/topsecret/, 'the password is not shown');
close $silent;
my $good = $pub->connstr('postgres');
$good =~ s/'/''/g;
$sub->safe_psql('postgres', "ALTER SUBSCRIPTION s CONNECTION '$good'");
$pub->start;
wait_until($sub, 'all to be well', sub { return check() eq '' });

#
# This server
#
$sub->safe_psql('postgres', 'CREATE DATABASE "Other db"');
$sub->safe_psql('Other db', 'CREATE TABLE fine (a int PRIMARY KEY, b text)');
subscribe($pub, $sub, 'elsewhere', 'p', sub_db => 'Other db');
found_ok(
	'database "Other db"',
	q{warning
database "Other db"
it has subscriptions but not the extension, so that the server synchronizes their tables by itself
Run CREATE EXTENSION reuse_sync in that database.},
	'a database with a subscription and without the extension');
$sub->safe_psql('Other db', q{CREATE EXTENSION reuse_sync VERSION '1.0'});
found_ok('database "Other db"',
	qr/^error\n.*\nits extension is not of version .* like the library.*\nRun ALTER EXTENSION reuse_sync UPDATE in that database/,
	'a database with an old version of the extension');
$sub->safe_psql('Other db', 'ALTER EXTENSION reuse_sync UPDATE');
found_ok('database "Other db"', '', 'a database with the extension');

$sub->append_conf('postgresql.conf', 'reuse_sync.paused = on');
$sub->reload;
found_ok('setting reuse_sync.paused', qr/^warning/, 'the pool is paused');
$sub->append_conf('postgresql.conf', 'reuse_sync.paused = off');
$sub->reload;
$sub->safe_psql('postgres', q{CALL reuse_sync.drain('1 min')});
found_ok('this database', qr/^warning\n.*\nit is being drained/,
	'the database is drained');
$sub->safe_psql('postgres', 'SELECT reuse_sync.wakeup()');

my $origins = origins_limit($sub);
$sub->append_conf('postgresql.conf',
	"max_worker_processes = 7\nmax_logical_replication_workers = 1\n$origins = 9\nwal_retrieve_retry_interval = 1min"
);
$sub->restart;
like(
	join('', map { check(q{problem ~ 'apply worker'}, $_) } 'postgres', 'Other db'),
	qr/\Anotice\nsubscription "\w+"\nit has no apply worker yet\nThe server starts one within 180 s\. Run this again then\.\z/,
	'an apply worker that the server has still to start is no error');
$sub->append_conf('postgresql.conf', 'wal_retrieve_retry_interval = 200ms');
$sub->reload;
found_ok(
	'setting max_logical_replication_workers',
	q{error
setting max_logical_replication_workers
it is 1, but 2 are needed: one for each enabled subscription
Set max_logical_replication_workers to at least 2 and restart the server.},
	'max_logical_replication_workers is too small');
found_ok('setting max_worker_processes',
	qr/^warning\n.*\nit is 7, but 8 are needed: .*\nSet max_worker_processes to at least 8 and restart/,
	'max_worker_processes is too small');
found_ok("setting $origins",
	qr/^warning\n.*\nit is 9, but 10 are needed: .*\nSet $origins to at least 10 and restart/,
	"$origins is too small");
wait_until($sub, 'one of two apply workers not to be there',
	sub {
		return (check(q{problem ~ 'no apply worker'}) .
				check(q{problem ~ 'no apply worker'}, 'Other db')) =~
		  /^error\nsubscription "(s|elsewhere)"\nit has no apply worker/;
	});
pass('a subscription without an apply worker');
$sub->append_conf('postgresql.conf',
	"max_worker_processes = 16\nmax_logical_replication_workers = 8\n$origins = 20"
);
$sub->restart;

#
# Half done tables and slots, when the pool is switched off
#
both($pub, $sub, 'CREATE TABLE half_done (a int PRIMARY KEY)');
$pub->safe_psql('postgres',
	'INSERT INTO half_done SELECT generate_series(1, 1000);
	ALTER PUBLICATION p ADD TABLE half_done');
$sub->append_conf('postgresql.conf',
	"reuse_sync.batch_size = 0\nreuse_sync.handover_lock_timeout = '1h'");
$sub->reload;
my $holder = session($sub);
$holder->query_safe('BEGIN; LOCK TABLE half_done IN ROW EXCLUSIVE MODE');
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s REFRESH PUBLICATION');
wait_states($sub, 's', q{bool_or(srsubstate = 'f')});
my $slot = $pub->safe_psql('postgres',
	q{SELECT slot_name FROM pg_replication_slots WHERE slot_name LIKE 'reuse\_sync\_%'});
# What was committed asynchronously is to survive what follows.
$sub->safe_psql('postgres', 'SET synchronous_commit = on; CREATE TABLE flushed ()');
$sub->append_conf('postgresql.conf', 'reuse_sync.enabled = off');
$sub->stop('immediate');
$holder->{run}->finish;
$sub->start;
found_ok(
	'setting reuse_sync.enabled',
	q{warning
setting reuse_sync.enabled
it is off, so that the server synchronizes by itself
Set it to on and restart the server, or drop the extension.},
	'the pool is switched off');
my $drain = 'Set reuse_sync.enabled to on, restart the server and run CALL'
  . ' reuse_sync.drain() in this database before switching it off again.';
found_ok(
	'table public.half_done',
	"error
table public.half_done
it was half done when the pool was switched off, and the server cannot finish it
$drain",
	'a table that was half done when the pool was switched off');
found_ok(
	"replication slot \"$slot\"",
	qr/^error\nreplication slot "$slot"\nthe pool, which is off, has left it on the publisher, where it retains WAL\n\Q$drain\E/,
	'its slot');
$sub->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$sub->restart;
found_ok(
	'setting shared_preload_libraries',
	qr/^error\n.*\nthe library reuse_sync is not loaded when the server starts/,
	'the library is not preloaded');
found_ok(
	'table public.half_done',
	qr/^error\n.*\n.*\nAdd reuse_sync to shared_preload_libraries, restart the server and run CALL reuse_sync.drain/,
	'a half done table when the library is not preloaded');

# A slot that is not there any more, and goes on being needed
$pub->safe_psql('postgres', "SELECT pg_drop_replication_slot('$slot')");
found_ok("replication slot \"$slot\"",
	qr/the publisher does not have it any more, so that a table whose copy is done must be copied anew/,
	'a slot that the publisher does not have any more');

$sub->append_conf('postgresql.conf',
	"shared_preload_libraries = 'reuse_sync'\nreuse_sync.enabled = on\nwal_retrieve_retry_interval = '100ms'\nreuse_sync.handover_lock_timeout = '1s'"
);
$sub->restart;
wait_ready($sub, 's');
rows_ok($pub, $sub, 'half_done', 'in the end the table has its rows');

#
# A subscription that is dropped while its publisher is away
#
both($pub, $sub, 'CREATE TABLE orphan (a int PRIMARY KEY)');
$pub->safe_psql('postgres',
	'INSERT INTO orphan VALUES (1);
	CREATE PUBLICATION o FOR TABLE orphan');
$sub->safe_psql(
	'postgres', q{
	CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS
	$$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NEW; END $$;
	CREATE TRIGGER gate BEFORE INSERT ON orphan
	FOR EACH ROW EXECUTE FUNCTION gate();
	ALTER TABLE orphan ENABLE ALWAYS TRIGGER gate});
my $gate = session($sub);
$gate->query_safe('SELECT pg_advisory_lock(1)');
subscribe($pub, $sub, 'o', 'o');
wait_until($sub, 'a copy that is held',
	q{SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted}
);
$slot = $sub->safe_psql('postgres', 'SELECT slot_name FROM reuse_sync.slots');
$pub->stop('immediate');
$sub->safe_psql(
	'postgres', q{
	ALTER SUBSCRIPTION o DISABLE;
	ALTER SUBSCRIPTION o SET (slot_name = NONE);
	DROP SUBSCRIPTION o});
wait_until($sub, 'the slot to be an orphan',
	q{SELECT state = 'orphaned' FROM reuse_sync.slots});
found_ok("replication slot \"$slot\"",
	qr/^error\n.*\nits subscription is gone, and it cannot be dropped: could not connect to the publisher/,
	'a slot of a subscription that is gone, of a publisher that is away');
$pub->start;
found_ok("replication slot \"$slot\"",
	qr/^notice\n.*\nits subscription is gone, and it is still to be dropped\n|^$/,
	'the same when the publisher is back');
$sub->safe_psql('postgres', 'SELECT reuse_sync.drop_orphaned_slots()');
wait_until($sub, 'all to be well',
	sub { return check(q{object !~ 'database'}) eq '' });
pass('nothing is found in the end');

#
# A subscription whose apply worker streams, at last, is no problem any more,
# even if no worker of the pool has the time to find that out.
#
my $busy = new_subscriber(
	'busy',
	wal_retrieve_retry_interval => '100ms',
	'reuse_sync.max_workers'    => 1,
	'reuse_sync.naptime'        => '1h');
both($pub, $busy, 'CREATE TABLE one (a int); CREATE TABLE two (a int)');
$pub->safe_psql('postgres', q{
	INSERT INTO one VALUES (1);
	CREATE PUBLICATION one FOR TABLE one;
	CREATE PUBLICATION two FOR TABLE two});
$busy->safe_psql('postgres', q{
	CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS
		'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NEW; END';
	CREATE TRIGGER gate BEFORE INSERT ON one FOR EACH ROW EXECUTE FUNCTION gate();
	ALTER TABLE one ENABLE ALWAYS TRIGGER gate});
my $at_gate = session($busy);
$at_gate->query_safe('SELECT pg_advisory_lock(1)');

# It has no slot yet; the pool's worker finds that out, and then is busy.
subscribe($pub, $busy, 'two', 'two', with => q{create_slot = false, slot_name = 'late'});
$busy->wait_for_log(qr/slot "late" does not exist/);
subscribe($pub, $busy, 'one', 'one');
wait_until($busy, 'a worker at the gate',
	q{SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted});
wait_until($busy, 'the problem to be shown',
	q{SELECT count(*) = 1 FROM reuse_sync.problems WHERE subname = 'two' AND last_error ~ 'does not stream'});
$pub->safe_psql('postgres', q{SELECT pg_create_logical_replication_slot('late', 'pgoutput')});
wait_until($busy, 'it to be over', q{SELECT count(*) = 0 FROM reuse_sync.problems});
is( $busy->safe_psql('postgres',
		q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted}),
	'1',
	'a problem is over when the apply worker streams, with the pool still busy');
$at_gate->quit;
wait_ready($busy, $_) foreach qw(one two);
$busy->safe_psql('postgres', "DROP SUBSCRIPTION $_") foreach qw(one two);

done_testing();

# A socket that accepts connections and never answers; and its port.
sub silent_listener
{
	my $socket = IO::Socket::INET->new(
		LocalAddr => '127.0.0.1',
		Listen    => 5,
		Proto     => 'tcp') or die "cannot listen: $!";

	return ($socket, $socket->sockport);
}
