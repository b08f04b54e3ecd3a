# What subscriptions can be told since 16: whose rights the changes run with, a
# password for owners who are no superusers, no changes of foreign origin,
# streaming = parallel, copies in binary format; and slots for a failover (17).

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use CatchUp;
use ReuseSync;

my $pub = new_publisher(
	'pub',
	logical_decoding_work_mem => '64kB',
	log_replication_commands  => 'on',
	log_statement             => 'all');

if ($pub->pg_version < 16)
{
	plan skip_all => 'the options are new in 16';
}

my $sub = new_subscriber('sub');

# A table of 20 rows, published as p_TABLE
sub publish
{
	my ($table, $columns) = @_;

	both($pub, $sub,
		"CREATE TABLE $table (a int PRIMARY KEY, b text, c timestamptz)");
	$pub->safe_psql(
		'postgres', "INSERT INTO $table
			SELECT g, 'row ' || g, now() FROM generate_series(1, 20) g;
		CREATE PUBLICATION p_$table FOR TABLE $table");
	return;
}

#
# Rights
#

$sub->safe_psql(
	'postgres', q{
	CREATE ROLE table_owner;
	CREATE ROLE stranger;
	CREATE ROLE ordinary LOGIN;
	GRANT CREATE ON DATABASE postgres TO ordinary;
	GRANT pg_create_subscription TO ordinary;
	CREATE TABLE seen (relname name, usename name);
	GRANT INSERT ON seen TO PUBLIC;
	CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
		INSERT INTO public.seen VALUES (TG_TABLE_NAME, current_user);
		RETURN NEW; END$$;});
my $superuser = $sub->safe_psql('postgres', 'SELECT current_user');

sub watch
{
	my ($table, $owner) = @_;

	$sub->safe_psql(
		'postgres', "ALTER TABLE $table OWNER TO $owner;
		CREATE TRIGGER note AFTER INSERT ON $table
			FOR EACH ROW EXECUTE FUNCTION note();
		ALTER TABLE $table ENABLE ALWAYS TRIGGER note");
	return;
}

foreach my $case ([ 'as_table', '', 'table_owner' ],
	[ 'as_sub', 'run_as_owner = true', $superuser ])
{
	my ($table, $option, $user) = @$case;

	publish($table);
	watch($table, 'table_owner');
	subscribe($pub, $sub, "s_$table", "p_$table",
		$option ? (with => $option) : ());
	wait_ready($sub, "s_$table");
	rows_ok($pub, $sub, $table, "$table: copied");
	is( $sub->safe_psql('postgres',
			"SELECT DISTINCT usename FROM seen WHERE relname = '$table'"),
		$user,
		"$table: the copy runs as $user");
}

# Our slots are not the subscription's: none is kept for a failover.
if ($pub->pg_version >= 17)
{
	publish('failing_over');
	subscribe($pub, $sub, 's_failing_over', 'p_failing_over',
		with => 'failover = true');
	wait_ready($sub, 's_failing_over');
	rows_ok($pub, $sub, 'failing_over', 'failover = true');
	unlike(slurp_file($pub->logfile),
		qr/CREATE_REPLICATION_SLOT "reuse_sync[^\n]*FAILOVER/i,
		'slots of ours are not for a failover');
}

# Whoever creates a role has what is known of the owner's read anew, also by a
# worker that connects again because a table has failed.
{
	my $catchup = CatchUp->new($pub, $sub);
	my @failing = ('first_one', 'second_one');

	publish($_) foreach @failing;
	$sub->safe_psql('postgres', "INSERT INTO $_ VALUES (1, 'in the way')")
	  foreach @failing;
	$catchup->close_gate($_) foreach @failing;
	reconfigure($sub, 'reuse_sync.max_workers_per_subscription' => 1,
		'reuse_sync.batch_tables' => 1);
	subscribe($pub, $sub, 's_roles', 'p_first_one, p_second_one');
	my ($first) = $catchup->wait_at_gates(\@failing);
	$sub->safe_psql('postgres', 'CREATE ROLE is_new');
	$catchup->open_gate($_) foreach @failing;
	wait_for_query($sub,
		q{SELECT count(*) FILTER (WHERE attempts > 0) = 2 FROM reuse_sync.tables
		WHERE subname = 's_roles'});
	pass('the second table has its turn after the first has failed');
	$sub->safe_psql('postgres', "TRUNCATE $_") foreach @failing;
	wait_ready($sub, 's_roles');
	rows_ok($pub, $sub, $_, "$_: mended") foreach @failing;
	$catchup->finish;
	reconfigure($sub, 'reuse_sync.max_workers_per_subscription' => 4,
		'reuse_sync.batch_tables' => 64);
}

# An owner who is no superuser.  The password has to be in the connection
# string and asked for, and the tables' owner has to be one that can be become.
$pub->safe_psql('postgres',
	q{CREATE ROLE reader LOGIN REPLICATION PASSWORD 'secret'});
my $hba = $pub->data_dir . '/pg_hba.conf';
my $rest = slurp_file($hba);
unlink $hba;
append_to_file($hba,
	"local all,replication reader scram-sha-256\n"
	  . "host all,replication reader all scram-sha-256\n$rest");
$pub->reload;
publish($_) foreach 'own_table', 'strange_table';
$pub->safe_psql('postgres', 'GRANT SELECT ON own_table, strange_table TO reader');
watch('own_table',     'ordinary');
watch('strange_table', 'stranger');
my $conninfo = $pub->connstr('postgres') . ' user=reader password=secret';
$conninfo =~ s/'/''/g;
my $log_start = -s $sub->logfile;
$sub->safe_psql(
	'postgres', "SET ROLE ordinary;
	CREATE SUBSCRIPTION s_ordinary CONNECTION '$conninfo'
		PUBLICATION p_own_table, p_strange_table");
wait_states($sub, 's_ordinary',
	"bool_or(srsubstate = 'r' AND srrelid = 'own_table'::regclass)");
rows_ok($pub, $sub, 'own_table', 'ordinary owner with a password: copied');
is( $sub->safe_psql('postgres',
		"SELECT DISTINCT usename FROM seen WHERE relname = 'own_table'"),
	'ordinary',
	'ordinary owner: with his own rights');
$sub->wait_for_log(qr/role "ordinary" cannot SET ROLE to "stranger"/,
	$log_start);
is($sub->safe_psql('postgres', 'SELECT count(*) FROM strange_table'),
	'0', 'nothing is written as somebody he may not become');
$sub->safe_psql('postgres', 'GRANT stranger TO ordinary');
wait_ready($sub, 's_ordinary');
rows_ok($pub, $sub, 'strange_table', 'once he may, it is copied');
unlike(slurp_file($sub->logfile), qr/secret/, 'no password in the log');

# The tables' owner may have rights that the subscription's has not, even to
# find a table.
both($pub, $sub,
	'CREATE SCHEMA private; CREATE TABLE private.kept (a int PRIMARY KEY)');
$pub->safe_psql(
	'postgres', q{
	INSERT INTO private.kept SELECT generate_series(1, 20);
	GRANT USAGE ON SCHEMA private TO reader;
	GRANT SELECT ON private.kept TO reader;
	CREATE PUBLICATION p_private FOR TABLE private.kept;});
$sub->safe_psql(
	'postgres', qq{
	CREATE ROLE hermit;
	GRANT hermit TO ordinary WITH INHERIT FALSE, SET TRUE;
	ALTER SCHEMA private OWNER TO hermit;
	ALTER TABLE private.kept OWNER TO hermit;
	GRANT USAGE ON SCHEMA private TO ordinary;
	SET ROLE ordinary;
	CREATE SUBSCRIPTION s_private CONNECTION '$conninfo'
		PUBLICATION p_private WITH (enabled = false);
	RESET ROLE;
	REVOKE USAGE ON SCHEMA private FROM ordinary;
	ALTER SUBSCRIPTION s_private ENABLE;});
wait_ready($sub, 's_private');
rows_ok($pub, $sub, 'private.kept', 'a table in a schema of its owner');

#
# Formats, and what else runs meanwhile
#

publish('in_binary');
$log_start = -s $pub->logfile;
subscribe($pub, $sub, 's_binary', 'p_in_binary', with => 'binary = true');
wait_ready($sub, 's_binary');
rows_ok($pub, $sub, 'in_binary', 'binary copy');
like(slurp_file($pub->logfile, $log_start),
	qr/COPY [^\n]*in_binary[^\n]*binary/i, 'in binary format indeed');

publish($_) foreach 'parallel', 'beside';
subscribe($pub, $sub, 's_parallel', 'p_parallel',
	with => 'streaming = parallel');
wait_ready($sub, 's_parallel');
my $writer = $pub->background_psql('postgres');
$writer->query_safe(
	q{BEGIN; INSERT INTO parallel SELECT g, repeat('x', 100), now()
	FROM generate_series(1000, 6000) g});
$sub->safe_psql('postgres',
	'ALTER SUBSCRIPTION s_parallel ADD PUBLICATION p_beside');
$writer->query_safe('INSERT INTO beside VALUES (1000, \'late\')');
$writer->query_safe('COMMIT');
$writer->quit;
wait_ready($sub, 's_parallel');
catch_up($pub, $sub, 's_parallel');
rows_ok($pub, $sub, $_, "streaming = parallel: $_") foreach 'parallel', 'beside';

#
# Both ways: what was copied is not sent back.
#

publish('both_ways');
$sub->append_conf('postgresql.conf', 'wal_level = logical');
$sub->restart;
$sub->safe_psql('postgres', 'CREATE PUBLICATION p_back FOR TABLE both_ways');
$pub->append_conf('postgresql.conf', 'max_worker_processes = 16');
$pub->restart;
subscribe($pub, $sub, 's_there', 'p_both_ways', with => 'origin = none');
wait_ready($sub, 's_there');
$log_start = -s $pub->logfile;
subscribe($sub, $pub, 's_back', 'p_back',
	with => 'origin = none, copy_data = false');
$pub->safe_psql('postgres', "INSERT INTO both_ways VALUES (100, 'from pub')");
$sub->safe_psql('postgres', "INSERT INTO both_ways VALUES (200, 'from sub')");
catch_up($sub, $pub, 's_back');
catch_up($pub, $sub, 's_there');
is($_->safe_psql('postgres', 'SELECT count(*) FROM both_ways'),
	'22', 'every row once on ' . $_->name)
  foreach $pub, $sub;
unlike(slurp_file($pub->logfile, $log_start),
	qr/duplicate key|insert_exists/, 'nothing was sent back');

no_builtin_sync_ok($sub);
done_testing();
