# Initial copy that fails: the log says which table and why, the other tables
# of the subscription become ready, and once the cause is mended the table
# becomes ready by itself.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);
use ReuseSync;
use ReuseSync::Cases;

my $pub = new_publisher('pub');
my $sub = new_subscriber(
	'sub',
	wal_retrieve_retry_interval      => '200ms',
	'reuse_sync.max_retry_interval'  => '1s',
	'reuse_sync.max_retry_interval'  => '1s',
	max_sync_workers_per_subscription => 4);

# Take the log apart: a message is its first line, with all DETAIL, HINT,
# CONTEXT, STATEMENT and continuation lines that belong to it.
sub log_messages
{
	my ($node, $offset) = @_;
	my (@messages, %last_of_pid, $current);

	foreach my $line (split /\n/, slurp_file($node->logfile, $offset))
	{
		if ($line =~ /^\d{4}-\d\d-\d\d .*? \[(\d+)\] (?:\S.*? )?(\w+):  /)
		{
			my ($pid, $kind) = ($1, $2);
			if ($kind =~ /^(?:DETAIL|HINT|QUERY|CONTEXT|LOCATION|STATEMENT)$/
				&& $last_of_pid{$pid})
			{
				$current = $last_of_pid{$pid};
			}
			else
			{
				$current = $last_of_pid{$pid} = \(my $new = '');
				push @messages, $current;
			}
		}
		$$current .= "$line\n" if $current;
	}
	return map { $$_ } @messages;
}

# One test: a message of the subscriber's log names the table and the cause.
sub log_names_ok
{
	my ($table, $cause, $testname, $offset) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	foreach (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		return pass($testname)
		  if grep { /\b\Q$table\E\b/ && $_ =~ $cause }
		  log_messages($sub, $offset // 0);
		usleep(100_000);
	}
	fail($testname);
	diag("no message with $table and $cause in:\n"
		  . slurp_file($sub->logfile, $offset // 0));
	return;
}

#
# A table that the subscriber does not have: CREATE SUBSCRIPTION itself fails,
# and leaves nothing.
#

$pub->safe_psql('postgres', q{CREATE TABLE not_there (a int PRIMARY KEY);
	CREATE PUBLICATION not_there_pub FOR TABLE not_there});
my ($status, $stdout, $stderr) = $sub->psql('postgres',
	"CREATE SUBSCRIPTION not_there CONNECTION '"
	  . ($pub->connstr('postgres') =~ s/'/''/gr)
	  . "' PUBLICATION not_there_pub");
isnt($status, 0, 'CREATE SUBSCRIPTION fails for a missing table');
like($stderr, qr/relation "public.not_there" does not exist/,
	'and names the table');
is($sub->safe_psql('postgres', 'SELECT count(*) FROM pg_subscription'),
	'0', 'no subscription is left');
is($pub->safe_psql('postgres', 'SELECT count(*) FROM pg_replication_slots'),
	'0', 'no slot is left');

#
# Many causes in one subscription.  Each failing table has: what is wrong with
# it (pub, sub), what the log says, and what mends it on which side.  One that
# is "quiet" gets no changes while it fails: the apply worker opens the table
# to find that it has to skip them, and fails at missing columns itself.
#

my @failing = (
	{
		table => 'no_column',
		quiet => 1,
		pub   => 'CREATE TABLE no_column (a int PRIMARY KEY, missing_b text);
			INSERT INTO no_column VALUES (1, NULL), (2, $$x$$)',
		sub      => 'CREATE TABLE no_column (a int PRIMARY KEY)',
		cause    => qr/missing replicated column: "missing_b"/,
		mend_sub => 'ALTER TABLE no_column ADD COLUMN missing_b text',
	},
	{
		table => 'no_columns',
		quiet => 1,
		pub   => 'CREATE TABLE no_columns (a int PRIMARY KEY, b int, "C d" int);
			INSERT INTO no_columns VALUES (1, 2, 3)',
		sub      => 'CREATE TABLE no_columns (a int PRIMARY KEY)',
		cause    => qr/missing replicated columns: "b", "C d"/,
		mend_sub => 'ALTER TABLE no_columns ADD COLUMN "C d" int,
			ADD COLUMN b int',
		columns  => 'a, b, "C d"',
	},
	{
		table => 'local_generated',
		quiet => 1,
		pub   => 'CREATE TABLE local_generated (a int PRIMARY KEY, b int);
			INSERT INTO local_generated VALUES (1, 2)',
		sub => 'CREATE TABLE local_generated (a int PRIMARY KEY,
			b int GENERATED ALWAYS AS (a + 1) STORED)',
		# what 18 says comes second
		cause    => qr/(missing replicated|incompatible generated) column: "b"/,
		mend_sub => 'ALTER TABLE local_generated
			ALTER COLUMN b DROP EXPRESSION',
	},
	{
		table => 'not_a_number',
		pub   => q{CREATE TABLE not_a_number (a int PRIMARY KEY, b text);
			INSERT INTO not_a_number VALUES (1, '1'), (2, 'two')},
		sub      => 'CREATE TABLE not_a_number (a int PRIMARY KEY, b int)',
		cause    => qr/invalid input syntax for type integer: "two"/,
		mend_sub => 'ALTER TABLE not_a_number ALTER COLUMN b TYPE text',
	},
	{
		table => 'too_long',
		pub   => q{CREATE TABLE too_long (a int PRIMARY KEY, b text);
			INSERT INTO too_long VALUES (1, '12345'), (2, '123456')},
		sub      => 'CREATE TABLE too_long (a int PRIMARY KEY, b varchar(5))',
		cause    => qr/value too long for type character varying\(5\)/,
		hint     => qr/^A column here does not take what the publisher has in it/,
		mend_pub => q{DELETE FROM too_long WHERE a = 2},
	},
	{
		table => 'duplicate',
		pub   => q{CREATE TABLE duplicate (a int PRIMARY KEY, b text);
			INSERT INTO duplicate SELECT i, 'remote'
				FROM generate_series(1, 2000) i},
		sub => q{CREATE TABLE duplicate (a int PRIMARY KEY, b text);
			INSERT INTO duplicate VALUES (1500, 'local')},
		cause    => qr/duplicate key value violates unique constraint "duplicate_pkey"/,
		mend_sub => 'DELETE FROM duplicate WHERE a = 1500',
	},
	{
		table => 'local_not_null',
		pub   => 'CREATE TABLE local_not_null (a int PRIMARY KEY);
			INSERT INTO local_not_null VALUES (1)',
		sub => 'CREATE TABLE local_not_null (a int PRIMARY KEY, b int NOT NULL)',
		cause    => qr/null value in column "b" .* violates not-null constraint/,
		mend_sub => 'ALTER TABLE local_not_null ALTER COLUMN b DROP NOT NULL',
		columns  => 'a',
	},
	{
		table => 'local_check',
		pub   => 'CREATE TABLE local_check (a int PRIMARY KEY);
			INSERT INTO local_check VALUES (1), (-1)',
		sub   => 'CREATE TABLE local_check (a int PRIMARY KEY CHECK (a > 0))',
		cause => qr/violates check constraint "local_check_a_check"/,
		mend_sub => 'ALTER TABLE local_check
			DROP CONSTRAINT local_check_a_check',
	},
	{
		table => 'angry_trigger',
		pub   => 'CREATE TABLE angry_trigger (a int PRIMARY KEY);
			INSERT INTO angry_trigger VALUES (1)',
		sub => q{CREATE TABLE angry_trigger (a int PRIMARY KEY);
			CREATE FUNCTION angry() RETURNS trigger LANGUAGE plpgsql AS
				$$BEGIN RAISE 'the trigger says no to %', NEW.a; END$$;
			CREATE TRIGGER angry BEFORE INSERT ON angry_trigger
				FOR EACH ROW EXECUTE FUNCTION angry();
			ALTER TABLE angry_trigger ENABLE ALWAYS TRIGGER angry},
		cause    => qr/the trigger says no to 1/,
		mend_sub => 'ALTER TABLE angry_trigger DISABLE TRIGGER angry',
	},
	{
		table => 'no_partition',
		pub   => 'CREATE TABLE no_partition (a int PRIMARY KEY);
			INSERT INTO no_partition VALUES (1), (11)',
		sub => 'CREATE TABLE no_partition (a int PRIMARY KEY)
				PARTITION BY RANGE (a);
			CREATE TABLE no_partition_1 PARTITION OF no_partition
				FOR VALUES FROM (0) TO (10)',
		cause    => qr/no partition of relation "no_partition" found for row/,
		mend_sub => 'CREATE TABLE no_partition_2 PARTITION OF no_partition
			DEFAULT',
	},
	{
		table => 'forbidden',
		pub   => 'CREATE TABLE forbidden (a int PRIMARY KEY);
			INSERT INTO forbidden VALUES (1);
			REVOKE ALL ON forbidden FROM repl_role',
		sub      => 'CREATE TABLE forbidden (a int PRIMARY KEY)',
		cause    => qr/permission denied for table forbidden/,
		hint     => qr/ and GRANT SELECT ON public\.forbidden TO repl_role there/,
		mend_pub => 'GRANT SELECT ON forbidden TO repl_role',
	},
	{
		table => 'forbidden_schema.t_in_it',
		pub   => 'CREATE SCHEMA forbidden_schema;
			CREATE TABLE forbidden_schema.t_in_it (a int PRIMARY KEY);
			INSERT INTO forbidden_schema.t_in_it VALUES (1);
			GRANT SELECT ON forbidden_schema.t_in_it TO repl_role',
		sub => 'CREATE SCHEMA forbidden_schema;
			CREATE TABLE forbidden_schema.t_in_it (a int PRIMARY KEY)',
		cause    => qr/permission denied for schema forbidden_schema/,
		hint     => qr/^Run GRANT USAGE ON SCHEMA forbidden_schema TO repl_role and /,
		mend_pub => 'GRANT USAGE ON SCHEMA forbidden_schema TO repl_role',
	},
	{
		table => 'dividing_filter',
		pub   => 'CREATE TABLE dividing_filter (a int PRIMARY KEY);
			INSERT INTO dividing_filter VALUES (0), (1), (-2)',
		sub      => 'CREATE TABLE dividing_filter (a int PRIMARY KEY)',
		publish  => 'dividing_filter WHERE (1 / a >= 0)',
		cause    => qr/division by zero/,
		mend_pub => 'ALTER PUBLICATION failing_pub SET TABLE %REST%,
			dividing_filter WHERE (a <> 0)',
		filter   => 'a <> 0',
	});

my @good = map { "good_$_" } 1 .. 6;

my $publish = sub {
	return join ', ', @good, map { $_->{publish} // $_->{table} } @_;
};

$pub->safe_psql('postgres', q{
	CREATE ROLE repl_role LOGIN REPLICATION;
	ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO repl_role});
both($pub, $sub, "CREATE TABLE $_ (a int PRIMARY KEY)") foreach @good;
$pub->safe_psql('postgres', "INSERT INTO $_ VALUES (1), (2)") foreach @good;
$pub->safe_psql('postgres', join ';', map { $_->{pub} } @failing);
$sub->safe_psql('postgres', join ';', map { $_->{sub} } @failing);
$pub->safe_psql('postgres',
	'CREATE PUBLICATION failing_pub FOR TABLE ' . $publish->(@failing));

subscribe($pub, $sub, 'failing', 'failing_pub', user => 'repl_role');

# The others get there.
my $failing_list = join ', ', map { "'$_->{table}'::regclass" } @failing;
wait_states($sub, 'failing',
	"count(*) FILTER (WHERE srsubstate = 'r') = " . scalar(@good)
	  . " AND bool_and(srsubstate = 'r' OR srrelid IN ($failing_list))");
rows_ok($pub, $sub, $_, "$_ is copied although others fail") foreach @good;

# Each failing table is in the log, with the cause.
foreach my $case (@failing)
{
	(my $bare = $case->{table}) =~ s/.*\.//;
	log_names_ok($bare, $case->{cause}, "$case->{table}: table and cause logged");
	like(
		$sub->safe_psql('postgres', qq{
			SELECT substring(last_error FROM 'HINT:  (.*)')
			FROM reuse_sync.tables WHERE relid = '$case->{table}'::regclass}),
		$case->{hint}, "$case->{table}: what to do")
	  if $case->{hint} && with_extension();
}

# None of the failed attempts has left rows.
is( $sub->safe_psql('postgres',
		join ' UNION ALL ', map { "SELECT count(*) FROM $_->{table}" }
		  grep { $_->{table} ne 'duplicate' } @failing),
	join("\n", ('0') x (@failing - 1)),
	'failing tables are empty');
is( $sub->safe_psql('postgres', 'TABLE duplicate'),
	'1500|local', 'the local row of the table that is not empty is there');

# Changes go on meanwhile, for the tables that are ready, and for failing ones
# too: there they belong to the copy to come.
$pub->safe_psql('postgres', join ';',
	(map { "INSERT INTO $_ VALUES (3); DELETE FROM $_ WHERE a = 1" } @good),
	map { "INSERT INTO $_->{table} (a) VALUES (3001)" }
	  grep { !$_->{quiet} } @failing);
catch_up($pub, $sub, 'failing');
rows_ok($pub, $sub, $_, "$_ is replicated although others fail")
  foreach @good;

# Mend one cause after the other.
my @mended;
while (my $case = shift @failing)
{
	my $table = $case->{table};
	if (my $mend = $case->{mend_pub})
	{
		my $rest = $publish->(@failing, @mended);
		$mend =~ s/%REST%/$rest/;
		$pub->safe_psql('postgres', $mend);
	}
	$sub->safe_psql('postgres', $case->{mend_sub}) if $case->{mend_sub};

	wait_states($sub, 'failing',
		"bool_or(srsubstate = 'r' AND srrelid = '$table'::regclass)");
	push @mended, $case;
}
wait_ready($sub, 'failing');

my $query = sub {
	my ($case) = @_;
	return "SELECT " . ($case->{columns} // '*') . " FROM $case->{table}"
	  . ($case->{filter} ? " WHERE $case->{filter}" : '');
};
rows_ok($pub, $sub, $query->($_), "$_->{table}: mended, copied") foreach @mended;

$pub->safe_psql('postgres', join ';',
	map { "INSERT INTO $_->{table} (a) VALUES (3002);
		DELETE FROM $_->{table} WHERE a = 3001" } @mended);
catch_up($pub, $sub, 'failing');
rows_ok($pub, $sub, $query->($_), "$_->{table}: mended, later changes")
  foreach @mended;

#
# Rights of the subscription's owner on the subscriber.  The owner has to be a
# superuser at first.
#

my @owner_cases = (
	{
		table => 'no_insert',
		sub   => 'GRANT SELECT ON no_insert TO sub_owner',
		cause => qr/permission denied for table no_insert/,
		mend  => 'GRANT INSERT, UPDATE, DELETE ON no_insert TO sub_owner',
	},
	{
		table => 'row_secured',
		sub   => 'GRANT ALL ON row_secured TO sub_owner;
			ALTER TABLE row_secured ENABLE ROW LEVEL SECURITY',
		cause => qr/row-level security/,
		mend  => 'ALTER TABLE row_secured DISABLE ROW LEVEL SECURITY',
	});
both($pub, $sub, "CREATE TABLE $_ (a int PRIMARY KEY)")
  foreach 'granted', map { $_->{table} } @owner_cases;
$pub->safe_psql('postgres', "INSERT INTO $_ VALUES (1), (2)")
  foreach 'granted', map { $_->{table} } @owner_cases;
$pub->safe_psql('postgres', 'CREATE PUBLICATION owner_pub FOR TABLE granted, '
	  . join(', ', map { $_->{table} } @owner_cases));
$sub->safe_psql('postgres', join ';',
	'CREATE ROLE sub_owner LOGIN SUPERUSER',
	'GRANT ALL ON granted TO sub_owner',
	# What runs on behalf of the owner can't become more than the owner.
	q{ALTER TABLE granted ADD COLUMN in_default text DEFAULT current_user,
		ADD COLUMN in_trigger text;
	CREATE FUNCTION climb() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
		BEGIN
			RESET SESSION AUTHORIZATION;
		EXCEPTION WHEN OTHERS THEN NULL;
		END;
		BEGIN
			RESET ROLE;
		EXCEPTION WHEN OTHERS THEN NULL;
		END;
		BEGIN
			EXECUTE format('SET ROLE %I',
				(SELECT rolname FROM pg_roles WHERE oid = 10));
		EXCEPTION WHEN OTHERS THEN NULL;
		END;
		NEW.in_trigger := current_user
			|| current_setting('is_superuser');
		RETURN NEW; END$$;
	CREATE TRIGGER climb BEFORE INSERT ON granted
		FOR EACH ROW EXECUTE FUNCTION climb();
	ALTER TABLE granted ENABLE ALWAYS TRIGGER climb},
	map { $_->{sub} } @owner_cases);
my $log_start = -s $sub->logfile;
subscribe($pub, $sub, 'owned', 'owner_pub',
	with => 'enabled = false' . owner_options($sub));
$sub->safe_psql('postgres', q{
	ALTER SUBSCRIPTION owned OWNER TO sub_owner;
	ALTER ROLE sub_owner NOSUPERUSER;
	ALTER SUBSCRIPTION owned ENABLE});

wait_states($sub, 'owned',
	"bool_or(srsubstate = 'r' AND srrelid = 'granted'::regclass)");
rows_ok(
	$pub, $sub,
	q{SELECT a, 'sub_owner', 'sub_owneroff' FROM granted},
	'ordinary owner: the table with all rights is copied, with no others',
	'granted');
log_names_ok($_->{table}, $_->{cause},
	"ordinary owner, $_->{table}: table and cause logged", $log_start)
  foreach @owner_cases;
is( $sub->safe_psql('postgres',
		join ' UNION ALL ', map { "SELECT count(*) FROM $_->{table}" }
		  @owner_cases),
	"0\n0",
	'ordinary owner: nothing is written without the rights');

$sub->safe_psql('postgres', $_->{mend}) foreach @owner_cases;
wait_ready($sub, 'owned');
rows_ok($pub, $sub, $_->{table}, "ordinary owner, $_->{table}: mended, copied")
  foreach @owner_cases;
$pub->safe_psql('postgres', "INSERT INTO $_->{table} VALUES (3)")
  foreach @owner_cases;
catch_up($pub, $sub, 'owned');
rows_ok($pub, $sub, $_->{table},
	"ordinary owner, $_->{table}: mended, later changes")
  foreach @owner_cases;

#
# A table that is gone on the publisher when its turn comes, and comes back.
#

both($pub, $sub, "CREATE TABLE $_ (a int PRIMARY KEY)")
  foreach qw(stays goes);
$pub->safe_psql('postgres', q{INSERT INTO stays VALUES (1);
	INSERT INTO goes VALUES (1);
	CREATE PUBLICATION gone_pub FOR TABLE stays, goes});
$log_start = -s $sub->logfile;
subscribe($pub, $sub, 'gone', 'gone_pub', with => 'enabled = false');
$pub->safe_psql('postgres', 'DROP TABLE goes');
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION gone ENABLE');
wait_states($sub, 'gone',
	"bool_or(srsubstate = 'r' AND srrelid = 'stays'::regclass)");
rows_ok($pub, $sub, 'stays', 'table gone on the publisher: another is copied');
log_names_ok('goes', qr/not found on publisher|does not exist on the publisher/,
	'table gone on the publisher: table and cause logged', $log_start);

# At once: rows of a table that is not published are nobody's.
$pub->safe_psql('postgres', q{BEGIN;
	CREATE TABLE goes (a int PRIMARY KEY);
	INSERT INTO goes VALUES (2);
	ALTER PUBLICATION gone_pub ADD TABLE goes;
	COMMIT});
wait_ready($sub, 'gone');
rows_ok($pub, $sub, 'goes', 'table back on the publisher, copied');
$pub->safe_psql('postgres', 'INSERT INTO goes VALUES (3)');
catch_up($pub, $sub, 'gone');
rows_ok($pub, $sub, 'goes', 'table back on the publisher, later changes');

#
# A letter that the subscriber's encoding does not have
#

$sub->safe_psql('postgres', "CREATE DATABASE latin ENCODING 'LATIN1'"
	  . " LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0");
create_extension($sub, 'latin');
$pub->safe_psql('postgres', "SET client_encoding = 'UTF8';
	CREATE TABLE letters (a int PRIMARY KEY, b text);
	CREATE TABLE no_letters (a int PRIMARY KEY, b text);
	INSERT INTO letters VALUES (1, '\xc3\xa4'), (2, '\xe8\xa1\xa8');
	INSERT INTO no_letters VALUES (1, '\xc3\xa4'), (2, 'a');
	CREATE PUBLICATION letters_pub FOR TABLE letters, no_letters");
$sub->safe_psql('latin', q{
	CREATE TABLE letters (a int PRIMARY KEY, b text);
	CREATE TABLE no_letters (a int PRIMARY KEY, b text)});
$log_start = -s $sub->logfile;
subscribe($pub, $sub, 'letters', 'letters_pub', sub_db => 'latin');
wait_states($sub, 'letters',
	"bool_or(srsubstate = 'r' AND srrelid = 'no_letters'::regclass)",
	db => 'latin');
rows_ok($pub, $sub, 'no_letters', 'letter of another encoding: another table is copied',
	undef, sub_db => 'latin');
log_names_ok('letters', qr/has no equivalent in encoding "LATIN1"/,
	'letter of another encoding: table and cause logged', $log_start);
$pub->safe_psql('postgres', q{DELETE FROM letters WHERE a = 2});
wait_ready($sub, 'letters', db => 'latin');
rows_ok($pub, $sub, 'letters', 'letter removed, copied',
	undef, sub_db => 'latin');
$pub->safe_psql('postgres', q{INSERT INTO letters VALUES (3, 'x')});
catch_up($pub, $sub, 'letters', db => 'latin');
rows_ok($pub, $sub, 'letters', 'letter removed, later changes',
	undef, sub_db => 'latin');

no_leftovers_ok($pub, $sub, 'no slot and no origin left');
no_builtin_sync_ok($sub);

done_testing();
