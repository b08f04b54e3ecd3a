# Gates: make changes that hit the catch-up phase of a table's
# synchronization, without guessing how long anything takes.
#
# A gate is a BEFORE ROW trigger on the subscriber's table, ENABLE ALWAYS, that
# needs a shared advisory lock, and a session of the test that has this lock
# exclusively.  The copy of the table stops at its first row.  The publisher's
# snapshot is then taken, and what is committed there from now on until the
# gate opens is not in the copy: it has to be applied by the catch-up.  So a
# table with a gate needs at least one row to copy.
#
#   my $catchup = CatchUp->new($pub, $sub);
#   $catchup->close_gate('t');
#   subscribe($pub, $sub, 's', 'p');
#   $catchup->run_cases({ table => 't', changes => 'DELETE FROM t' });
#
# A case is a hash:
#
#   table     the name of the table, and of the case
#   tables    if the case has more than one: all of them (as the publisher
#             sends them); its changes are made while all are stopped at their
#             gates, so as many workers must be at work, each on one of them
#             (reuse_sync.batch_tables = 1)
#   gated     if the gate is not on the table itself: tables to put it on
#   changes   SQL for the publisher, or a function to be called
#   locking   true if the changes need locks on the publisher's tables that
#             the copy does not let them have (TRUNCATE, ALTER TABLE)
#
# With locking, the changes are begun while the gate is closed, and go on as
# soon as the publisher's side of the copy is over.  Until they have been
# committed the test keeps the synchronization from being handed over.
#
# The rest of a case is for create(), change_later() and case_rows_ok():
#
#   ddl       SQL to create its tables, on both sides; without it, a table with
#             columns a (integer, the key) and b (text) is created
#   pub_ddl   SQL for the publisher only, after that
#   sub_ddl   SQL for the subscriber only, after that
#   no_ddl    true if pub_ddl and sub_ddl create the tables
#   seed      SQL that makes the rows to copy; without it, there are ten
#   later     SQL for the publisher, for when all tables are ready; without
#             it, some of everything
#   query     what must be the same on both sides, if not the whole table
#   sub_query what to ask the subscriber, if not the same

package CatchUp;

use strict;
use warnings;

use Exporter 'import';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use ReuseSync;
use Test::More;

our @EXPORT = qw(
  end_session
  log_errors
  no_errors_ok
  table_state
);

# First key of all advisory locks used here; the second is the gate's number.
my $keyspace = 4711;

# CatchUp->new($pub, $sub, %opt).  Options pub_db and sub_db: the databases.
sub new
{
	my ($class, $pub, $sub, %opt) = @_;

	my $self = bless {
		pub    => $pub,
		sub    => $sub,
		pub_db => $opt{pub_db} // 'postgres',
		sub_db => $opt{sub_db} // 'postgres',
		number => {},                           # number of a table's gate
		late   => [],                           # tables changed too late
		cases  => 0,
	}, $class;
	my $time_limit = $PostgreSQL::Test::Utils::timeout_default;

	$sub->safe_psql(
		$self->{sub_db}, qq{
		CREATE SCHEMA gate;

		CREATE FUNCTION gate.pass() RETURNS trigger LANGUAGE plpgsql AS \$\$
		BEGIN
			PERFORM pg_catalog.pg_advisory_xact_lock_shared(
				$keyspace, tg_argv[0]::pg_catalog.int4);
			RETURN new;
		END \$\$;

		-- Wait until somebody waits at one of the gates, other than the known
		-- ones; return all where somebody waits.  Null when time is up.
		CREATE FUNCTION gate.next(gates int[], known int[]) RETURNS int[]
		LANGUAGE plpgsql AS \$\$
		DECLARE
			started timestamptz := clock_timestamp();
			waiting int[];
		BEGIN
			LOOP
				SELECT coalesce(array_agg(DISTINCT objid::bigint::int), '{}')
				INTO waiting
				FROM pg_catalog.pg_locks
				WHERE locktype = 'advisory' AND classid = $keyspace
				AND objsubid = 2 AND NOT granted
				AND objid::bigint::int = ANY (gates)
				AND database = (SELECT oid FROM pg_catalog.pg_database
					WHERE datname = current_database());
				EXIT WHEN NOT waiting <@ known;
				IF clock_timestamp() > started + '$time_limit s'::interval THEN
					RETURN NULL;
				END IF;
				PERFORM pg_sleep(0.005);
			END LOOP;
			RETURN waiting;
		END \$\$;});

	$self->{holder} = $self->session('sub');
	return $self;
}

# A session in the database of one side: 'pub' or 'sub'.
sub session
{
	my ($self, $side) = @_;

	my $session = $self->{$side}->background_psql($self->{"${side}_db"});
	$session->set_query_timer_restart();
	$session->query_safe('SET client_min_messages = warning');
	return $session;
}

# A session of the subscriber in a transaction that has a lock.
sub lock_table
{
	my ($self, $table, $mode) = @_;

	my $session = $self->session('sub');
	$session->query_safe("BEGIN; LOCK TABLE $table IN $mode MODE");
	return $session;
}

# close_gate($table, %opt): from now on the first row stops.  Options: gated,
# the tables with the trigger; when, a condition for the rows that stop; event,
# what the trigger is for (INSERT; of TRUNCATE the statement stops).
sub close_gate
{
	my ($self, $table, %opt) = @_;

	my $number = $self->{number}{$table} //= 1 + keys %{ $self->{number} };
	my $when   = $opt{when} ? "WHEN ($opt{when})" : '';
	my $event  = $opt{event} // 'INSERT';
	my $each   = $event eq 'TRUNCATE' ? 'STATEMENT' : 'ROW';
	my $sql    = '';

	foreach my $gated (@{ $opt{gated} // [$table] })
	{
		# "000" makes it the first of the table's triggers.
		$sql .= qq{
			CREATE TRIGGER "000 gate $number" BEFORE $event ON $gated
				FOR EACH $each $when EXECUTE FUNCTION gate.pass($number);
			ALTER TABLE $gated ENABLE ALWAYS TRIGGER "000 gate $number";};
	}
	$self->{holder}->query_safe(
		"DO 'BEGIN PERFORM pg_advisory_lock($keyspace, $number); END'");
	$self->{sub}->safe_psql($self->{sub_db}, $sql);
	return;
}

# Close the gates of all tables of some cases.
sub close_gates
{
	my ($self, @cases) = @_;

	foreach my $case (@cases)
	{
		$self->close_gate($_, gated => $case->{gated})
		  foreach tables_of($case);
	}
	return;
}

# Let everything pass, from now on.
sub open_gate
{
	my ($self, $table) = @_;

	$self->{holder}->query_safe("DO 'BEGIN PERFORM pg_advisory_unlock("
		  . "$keyspace, $self->{number}{$table}); END'");
	return;
}

# wait_at_gates(\@tables, \@known): wait until somebody waits at the gate of
# one of the tables, other than the known ones; return all those tables.
sub wait_at_gates
{
	my ($self, $tables, $known) = @_;

	my %table_of = map { $self->{number}{$_} => $_ } @$tables;
	my $gates    = join ',', map { $self->{number}{$_} } @$tables;
	my $old      = join ',', map { $self->{number}{$_} } @{ $known // [] };

	my $waiting =
	  $self->{holder}->query_safe("SELECT gate.next('{$gates}', '{$old}')");
	return map { $table_of{$_} } $waiting =~ /\d+/g if $waiting ne '';

	die "nobody came to the gate of any of @$tables\n"
	  . $self->{sub}->safe_psql($self->{sub_db},
		'SELECT srrelid::regclass, srsubstate FROM pg_subscription_rel')
	  . "\nlast lines of the subscriber's log:\n"
	  . ReuseSync::log_tail($self->{sub});
}

# End a session, however long ago its last query was.
sub end_session
{
	my ($session) = @_;

	$session->query_safe('SELECT 1');
	$session->quit;
	return;
}

# Create the tables of some cases on both sides, and fill the publisher's.
sub create
{
	my ($self, @cases) = @_;

	foreach my $case (@cases)
	{
		my $table = $case->{table};

		$case->{ddl} //= "CREATE TABLE $table (a int PRIMARY KEY, b text)"
		  unless $case->{no_ddl};
		$case->{seed} //= "INSERT INTO $table"
		  . " SELECT g, 'row ' || g FROM generate_series(1, 10) AS g";
		$case->{later} //= qq{
			INSERT INTO $table SELECT a + 100000, b FROM $table;
			UPDATE $table SET b = b || ' later' WHERE a % 2 = 0;
			UPDATE $table SET a = -a WHERE a = 2;
			DELETE FROM $table WHERE a % 100 = 1;
			INSERT INTO $table VALUES (-1, 'later');};
	}
	$self->{pub}
	  ->safe_psql($self->{pub_db}, all_of([qw(ddl pub_ddl seed)], @cases));
	$self->{sub}
	  ->safe_psql($self->{sub_db}, all_of([qw(ddl sub_ddl)], @cases));
	return;
}

# Make the later changes of some cases.
sub change_later
{
	my ($self, @cases) = @_;

	$self->{pub}->safe_psql($self->{pub_db}, all_of(['later'], @cases));
	return;
}

# case_rows_ok(@cases): one test for each table, that its rows are the same on
# both sides.
sub case_rows_ok
{
	my ($self, @cases) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	foreach my $case (@cases)
	{
		rows_ok(
			$self->{pub}, $self->{sub}, $case->{query} // $_,
			"case $_", $case->{sub_query},
			pub_db => $self->{pub_db},
			sub_db => $self->{sub_db}) foreach tables_of($case);
	}
	return;
}

# SQL of some cases, in one string.
sub all_of
{
	my ($keys, @cases) = @_;

	return join '', map {
		my $case = $_;
		map { defined $case->{$_} ? "$case->{$_};\n" : () } @$keys
	} @cases;
}

# Make the changes of each case while its tables are at their gates, and open
# these; return when all cases have been done.
sub run_cases
{
	my ($self, @cases) = @_;

	while (@cases)
	{
		my @tables = tables_of(@cases);
		my (%waiting, $case);

		until ($case)
		{
			%waiting = map { $_ => 1 }
			  $self->wait_at_gates(\@tables, [ keys %waiting ]);
			($case) = grep {
				!grep { !$waiting{$_} }
				  tables_of($_)
			} @cases;
		}
		$self->run_case($case);
		@cases = grep { $_ != $case } @cases;
	}
	return;
}

sub run_case
{
	my ($self, $case) = @_;
	my ($changes, @tables) = ($case->{changes}, tables_of($case));

	$self->{cases}++;
	$self->check_states('[id]', @tables);
	if ($case->{locking})
	{
		$self->make_locking_changes($changes, @tables);
		return;
	}
	if (ref $changes)
	{
		$changes->();
	}
	else
	{
		$self->{pub}->safe_psql($self->{pub_db}, $changes);
	}
	$self->open_gate($_) foreach @tables;
	return;
}

sub make_locking_changes
{
	my ($self, $changes, @tables) = @_;
	my $keeper = $self->{keeper} //= $self->session('sub');
	my $writer = $self->{writer} //= $self->session('pub');
	my $pid    = $writer->query_safe('SELECT pg_backend_pid()');

	# The extension hands over with a lock on the table.  The server's own
	# worker decides how far it catches up after it has noted that the copy is
	# finished.
	$keeper->query_safe(
		with_extension()
		? 'BEGIN; LOCK TABLE '
		  . join(', ', @tables)
		  . ' IN ROW EXCLUSIVE MODE'
		: 'BEGIN; LOCK TABLE pg_subscription_rel IN SHARE MODE');

	# Unless the publisher's side is over already, they have to wait for it.
	$writer->query_until(qr/begun/,
		"\\echo begun\n$changes;\nSELECT 'changed';\n");
	$self->{pub}->poll_query_until(
		$self->{pub_db}, qq{
		SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $pid AND NOT granted)
		OR EXISTS (SELECT FROM pg_stat_activity WHERE pid = $pid
			AND state = 'idle' AND query ~ 'changed')})
	  or die "changes of @tables are neither made nor wait for the copy";

	$self->open_gate($_) foreach @tables;
	$writer->query_safe('SELECT 1');
	$self->check_states('[idf]', @tables);
	$keeper->query_safe('COMMIT');
	return;
}

# Note which tables are not (any more) in the states they should be in.
sub check_states
{
	my ($self, $states, @tables) = @_;

	foreach my $table (@tables)
	{
		my $state = table_state($self->{sub}, $table, $self->{sub_db});
		push @{ $self->{late} }, "$table is in state $state"
		  if $state !~ /^$states$/;
	}
	return;
}

# in_time_ok($testname): one test, that all changes were made before the table
# was handed over.
sub in_time_ok
{
	my ($self, $testname) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return is("$self->{cases} cases\n" . join("\n", @{ $self->{late} }),
		"$self->{cases} cases\n", $testname);
}

# End the sessions.
sub finish
{
	my ($self) = @_;

	foreach my $session (qw(holder keeper writer))
	{
		end_session(delete $self->{$session}) if $self->{$session};
	}
	return;
}

# tables_of(@cases): the names of all tables, as the publisher sends them.
sub tables_of
{
	return map { @{ $_->{tables} // [ $_->{table} ] } } @_;
}

# The state of a table in pg_subscription_rel.
sub table_state
{
	my ($sub, $table, $db) = @_;

	(my $literal = $table) =~ s/'/''/g;
	return $sub->safe_psql($db // 'postgres',
		'SELECT srsubstate FROM pg_subscription_rel'
		  . " WHERE srrelid = '$literal'::regclass");
}

# The errors in a server's log, from an offset on; not the ends of processes
# that were told to end, nor of an autovacuum that was in somebody's way, nor of
# an apply worker that was restarted sooner than the last one had ended.
sub log_errors
{
	my ($node, $offset) = @_;
	my (%apply_worker, @errors);

	foreach my $line (split /^/m, slurp_file($node->logfile, $offset // 0))
	{
		my ($pid) = $line =~ /^\S+ \S+ \S+ \[(\d+)\] / or next;

		$apply_worker{$pid} = 1
		  if $line =~ /logical replication apply worker .* has started/;
		next if $line !~ /\b(?:ERROR|FATAL|PANIC): /;
		next
		  if $line =~ /due to administrator command|canceling autovacuum task/;
		next
		  if $apply_worker{$pid}
		  && $line =~ /replication origin with ID \d+ is already active/;
		push @errors, $line;
	}
	return @errors;
}

# no_errors_ok($node, $offset, $testname): one test, that the log has none.  A
# table whose synchronization fails is copied again, with the changes in it,
# and would look right.
sub no_errors_ok
{
	my ($node, $offset, $testname) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return is(join('', log_errors($node, $offset)), '', $testname);
}

1;
