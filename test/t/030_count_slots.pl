# 300 tables, changed all the time, with the default settings: as many slots as
# workers, created once and used again and again.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use CatchUp;

plan skip_all => 'the server creates a slot for every table'
  unless with_extension();

my $tables      = 300;
my $max_workers = 4;                              # the default

my $pub     = new_publisher('pub', log_replication_commands => 'on');
my $sub     = new_subscriber('sub');
my $catchup = CatchUp->new($pub, $sub);

#
# Every third table is found by all its columns, every fifth has some hundred
# rows, and some have none.
#
both(
	$pub, $sub, qq{
	DO \$\$ BEGIN
		FOR i IN 1 .. $tables LOOP
			EXECUTE format('CREATE TABLE t%s (a int, b text)', i);
			IF i % 3 = 0 THEN
				EXECUTE format('ALTER TABLE t%s REPLICA IDENTITY FULL', i);
			ELSE
				EXECUTE format('ALTER TABLE t%s ADD PRIMARY KEY (a)', i);
			END IF;
		END LOOP;
	END \$\$});
$pub->safe_psql(
	'postgres', qq{
	DO \$\$ BEGIN
		FOR i IN 1 .. $tables LOOP
			EXECUTE format('INSERT INTO t%s
				SELECT g, ''row '' || g FROM generate_series(1, %s) AS g',
				i, CASE WHEN i % 5 = 0 THEN 400 ELSE i % 7 END);
		END LOOP;
	END \$\$;

	CREATE SEQUENCE changes START 1000;

	-- change some rows of one table
	CREATE FUNCTION change(i int) RETURNS void LANGUAGE plpgsql AS \$\$
	DECLARE
		what int := nextval('changes') % 4;
	BEGIN
		IF what < 2 THEN
			EXECUTE format('INSERT INTO t%s VALUES (%s, ''new'')', i,
				currval('changes'));
		ELSIF what = 2 THEN
			EXECUTE format('UPDATE t%s SET b = ''changed '' || %s
				WHERE a IN (SELECT a FROM t%1\$s ORDER BY a DESC LIMIT 1)', i,
				currval('changes'));
		ELSE
			EXECUTE format('DELETE FROM t%s
				WHERE a = (SELECT min(a) FROM t%1\$s)', i);
		END IF;
	END \$\$;

	-- count the slots, as often as possible, until there is a row in "done"
	CREATE TABLE done ();
	CREATE FUNCTION sample(OUT samples int, OUT most int, OUT names text[])
	LANGUAGE plpgsql AS \$\$
	DECLARE
		now_there text[];
	BEGIN
		samples := 0;
		most := 0;
		names := '{}';
		LOOP
			EXIT WHEN EXISTS (SELECT FROM done);
			SELECT coalesce(array_agg(slot_name::text), '{}') INTO now_there
			FROM pg_replication_slots
			WHERE slot_type = 'logical';
			samples := samples + 1;
			most := greatest(most, cardinality(now_there));
			IF NOT now_there <@ names THEN
				names := ARRAY(SELECT unnest(names) UNION
					SELECT unnest(now_there) ORDER BY 1);
			END IF;
			PERFORM pg_sleep(0.001);
		END LOOP;
	END \$\$;}
	  . 'CREATE PUBLICATION p FOR TABLE '
	  . join(', ', map { "t$_" } 1 .. $tables));

#
# The writer takes tables in the same order always, so that two of them can't
# deadlock.
#
my $half   = $tables / 2;
my $script = PostgreSQL::Test::Utils::tempdir() . '/change.sql';
append_to_file(
	$script, qq{\\set i random(1, $half)
\\set j random($half + 1, $tables)
BEGIN;
SELECT change(:i);
SAVEPOINT s;
SELECT change(:j);
RELEASE s;
COMMIT;
SELECT change(:j);
});
my $writer_output = '';
my $writer        = IPC::Run::start(
	[
		$pub->installed_command('pgbench'), '-n', '-c', 2, '-R', 300,
		'-T', $PostgreSQL::Test::Utils::timeout_default, '-f', $script,
		$pub->connstr('postgres')
	],
	'>', '/dev/null', '2>', \$writer_output);
$pub->poll_query_until('postgres', 'SELECT last_value > 1050 FROM changes')
  or die "the writer does not write: $writer_output";

my $sampler = $catchup->session('pub');
$sampler->query_until(qr/begun/, "\\echo begun\nSELECT * FROM sample();\n");

my $changes = $pub->safe_psql('postgres', 'SELECT last_value FROM changes');
subscribe($pub, $sub, 's', 'p');
wait_ready($sub, 's');
$changes =
  $pub->safe_psql('postgres', 'SELECT last_value FROM changes') - $changes;

# Until there are none any more.
no_leftovers_ok($pub, $sub, 'no slot and no origin left');
$pub->safe_psql('postgres', 'INSERT INTO done DEFAULT VALUES');
my ($samples, $most, $names) =
  $sampler->query_safe('SELECT 1') =~ /^(\d+)\|(\d+)\|\{(.*)\}$/m;

note "$changes changes, $samples samples: $names";
cmp_ok($changes, '>', 100, 'tables were changed while they synchronized');
cmp_ok($samples, '>', 100, 'slots were counted often');
cmp_ok($most, '>', 1, 'there were some');
cmp_ok($most, '<=', $max_workers + 1,
	'never more slots than workers, and that of the subscription');

# All changes are there.
$writer->signal('TERM');
$writer->finish;
$pub->poll_query_until(
	'postgres', q{
	SELECT count(*) = 0 FROM pg_stat_activity
	WHERE application_name = 'pgbench'})
  or die 'the writer does not end';
catch_up($pub, $sub, 's');
my $all_tables = join ' UNION ALL ', map {
	qq{SELECT 't$_', count(*), min(a), max(a),
		md5(string_agg(t::text, ',' ORDER BY t::text COLLATE "C"))
		FROM t$_ AS t}
} 1 .. $tables;
rows_ok($pub, $sub, $all_tables, "all of $tables tables");

#
# What was counted, and what the publisher has seen.
#
$sub->poll_query_until('postgres',
	'SELECT slots_dropped = slots_created FROM reuse_sync.stats');
my $stats = $sub->safe_psql(
	'postgres',
	'SELECT tables_synced, slots_created, slots_reused, slots_dropped, errors'
	  . ' FROM reuse_sync.stats');
my ($synced, $created, $reused, $dropped, $errors) = split /\|/, $stats;

my %created_names;
my $log = slurp_file($pub->logfile);
$created_names{$1}++
  while $log =~
  /received replication command: CREATE_REPLICATION_SLOT "(reuse_sync_[^"]*)"/g;

# A worker that was the first to come has made its slot; the others had it copied.
$created_names{$1}++
  while $log =~
  /LOG:  statement: [^\n]*FROM pg_catalog.pg_copy_logical_replication_slot\('reuse_sync_[^']*', '(reuse_sync_[^']*)', false\)/g;

is($synced, $tables, 'every table was synchronized once');
cmp_ok($created, '>=', 1, 'slots were created');
cmp_ok($created, '<=', $max_workers, 'no more than one for each worker');
cmp_ok($reused, '>', 0, 'they were used again');
is($dropped, $created, 'all were dropped');
is($errors, 0, 'nothing has failed');
is(join(' ', map { $created_names{$_} } sort keys %created_names),
	join(' ', (1) x $created),
	'the publisher was asked for these slots and no other');
is( join(' ', grep { !$created_names{$_} } grep { $_ ne 's' } split /,/,
		$names),
	'', 'no other slot was seen there');

$pub->safe_psql('postgres', "DELETE FROM t5; INSERT INTO t1 VALUES (-1)");
catch_up($pub, $sub, 's');
rows_ok($pub, $sub, $all_tables, 'the same after more changes');

end_session($sampler);
$catchup->finish;
no_errors_ok($sub, 0, 'no errors in the log');
no_builtin_sync_ok($sub);

done_testing();
