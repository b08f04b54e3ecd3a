# Sixty tables of many shapes are synchronized while eight writers change them.
#
# The writers are two pgbench processes, one with synchronous_commit off.  They
# do single statements, bulk statements, transactions over several tables with
# savepoints and rollbacks, and two-phase commits.  Small tables go in batches,
# larger ones alone; gates hold some of either until enough has been written
# meanwhile.  In the end every table must have the same rows on both sides.
#
# One table more is never written to.  A lock on it keeps a batch waiting for
# its snapshot, so that there are transactions that the slot streams and the
# snapshot has seen.
#
# What happens depends on a seed, and on how the processes take turns.  There is
# a round for each number in REUSE_SYNC_SEED; without it, there are three.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use CatchUp;

plan skip_all => 'the server synchronizes every table alone'
  unless with_extension();

my @seeds = ($ENV{REUSE_SYNC_SEED} // '') =~ /\d+/g;
@seeds = (1, 2, 3) unless @seeds;

my $pub = new_publisher(
	'pub',
	max_prepared_transactions => 20,
	log_statement             => 'none',
	deadlock_timeout          => '20ms',
	lock_timeout              => '5s');
my $sub = new_subscriber(
	'sub',
	'reuse_sync.batch_tables'          => 6,
	'reuse_sync.batch_size'            => '64kB',
	'reuse_sync.handover_lock_timeout' => '5s');

#
# The tables.  All have the columns a, b and n; a kind is a hash:
#
#   tables  how many there are
#   ddl     the rest of CREATE TABLE, after the name, on both sides
#   sub_ddl the same for the subscriber, if it is another
#   after   more SQL, for both sides; %s is the name
#   key     columns of the key
#   make    expressions for these, of a number k
#   value   expression for b, of a number k; default: a short text
#
my %kinds = (
	int => {
		tables => 14,
		ddl    => '(a int PRIMARY KEY, b text, n int)',
		key    => 'a',
		make   => 'k',
	},
	pair => {
		tables => 8,
		ddl    => '(b text, a int, n int, c smallint, PRIMARY KEY (c, a))',
		key    => 'a, c',
		make   => 'k / 5, k % 5',
	},
	text => {
		tables => 8,
		ddl    => '(a text PRIMARY KEY, b text, n int)',
		key    => 'a',
		make   => q{'key ' || k},
	},
	uuid => {
		tables => 8,
		ddl    => '(n int, b text, a uuid PRIMARY KEY)',
		key    => 'a',
		make   => 'md5(k::text)::uuid',
	},
	full => {
		# many rows are the same
		tables => 8,
		ddl    => '(a int, b text, n int)',
		after  => 'ALTER TABLE %s REPLICA IDENTITY FULL',
		key    => 'a',
		make   => 'k % 5',
		value  => q{CASE WHEN k % 3 > 0 THEN 'b' || k % 3 END},
	},
	log => {
		# rows are only inserted
		tables => 6,
		ddl    => '(a int, b text, n int)',
		key    => 'a',
		make   => 'k',
	},
	parts => {
		tables  => 3,
		ddl     => '(a int PRIMARY KEY, b text, n int) PARTITION BY RANGE (a)',
		sub_ddl => '(n int, a int PRIMARY KEY, b text) PARTITION BY HASH (a)',
		key     => 'a',
		make    => 'k',
	},
	toast => {
		tables => 5,
		ddl    => '(a int PRIMARY KEY, n int, b text)',
		after  => 'ALTER TABLE %s ALTER b SET STORAGE EXTERNAL',
		key    => 'a',
		make   => 'k',
		value  => q{repeat(md5(k::text), 100)},
	});

# Every fourth table of a kind is larger than a batch may be, and every fourth
# one is truncated now and then.
my @tables;
foreach my $kind (sort keys %kinds)
{
	foreach my $i (1 .. $kinds{$kind}{tables})
	{
		push @tables,
		  {
			name => "$kind$i",
			kind => $kind,
			rows => $i % 4 == 2 ? 3000 : 80 + 8 * $i,
			may_be_empty => $i % 4 == 3 ? 't' : 'f',
			%{ $kinds{$kind} },
		  };
	}
}
my @names = map { $_->{name} } @tables;
my @large = grep { $_->{rows} == 3000 } @tables;
my @small = grep { $_->{rows} < 3000 && $_->{may_be_empty} eq 'f' } @tables;

my ($pub_ddl, $sub_ddl) = ('', '');
foreach my $table (@tables)
{
	my $name  = $table->{name};
	my $after = $table->{after} ? sprintf("$table->{after};", $name) : '';

	$pub_ddl .= "CREATE TABLE $name $table->{ddl}; $after\n";
	$sub_ddl .= "CREATE TABLE $name "
	  . ($table->{sub_ddl} // $table->{ddl})
	  . "; $after\n";
	next if $table->{kind} ne 'parts';
	$pub_ddl .= qq{
		CREATE TABLE ${name}_low PARTITION OF $name
			FOR VALUES FROM (MINVALUE) TO (30);
		CREATE TABLE ${name}_middle PARTITION OF $name
			FOR VALUES FROM (30) TO (1200);
		CREATE TABLE ${name}_high PARTITION OF $name
			FOR VALUES FROM (1200) TO (MAXVALUE);};
	$sub_ddl .= qq{
		CREATE TABLE ${name}_0 PARTITION OF $name
			FOR VALUES WITH (MODULUS 2, REMAINDER 0);
		CREATE TABLE ${name}_1 PARTITION OF $name
			FOR VALUES WITH (MODULUS 2, REMAINDER 1);};
}
$pub->safe_psql('postgres', $pub_ddl);
$sub->safe_psql('postgres', $sub_ddl);
both($pub, $sub, 'CREATE TABLE still (a int PRIMARY KEY, b text)');
$pub->safe_psql('postgres',
	q{INSERT INTO still
	SELECT g, repeat('.', 60) FROM generate_series(1, 100) AS g});

#
# What the writers do.
#
my $default_value = q{'b' || k || repeat('.', k % 40)};
my $shapes        = join ",\n", map {
	my $table = $tables[$_];
	my @row   = (
		$table->{name}, $table->{kind},
		$table->{key},  $table->{make}, $table->{value} // $default_value);

	"($_, $table->{rows}, '$table->{may_be_empty}', " . join(', ', map { "\$q\$$_\$q\$" } @row) . ')'
} 0 .. $#tables;
$pub->safe_psql(
	'postgres', qq{
	CREATE TABLE shape (id int PRIMARY KEY, nrows int, may_be_empty bool,
		name text, kind text, key text, make text, value text);
	INSERT INTO shape VALUES $shapes;} . q{
	CREATE SEQUENCE numbers;
	CREATE SEQUENCE transactions;

	-- the rows that are there to begin with
	CREATE FUNCTION fill() RETURNS void LANGUAGE plpgsql AS $$
	DECLARE
		s shape;
	BEGIN
		FOR s IN SELECT * FROM shape LOOP
			EXECUTE format('TRUNCATE %s; INSERT INTO %1$s (%s, b, n)
				SELECT %s, %s, 0 FROM generate_series(1, %s) AS k',
				s.name, s.key, s.make, s.value, s.nrows);
		END LOOP;
		PERFORM setval('numbers', 10000);
	END $$;

	-- One row of a table, whose number is id.  r is a random number.
	CREATE FUNCTION change(id int, r int) RETURNS void LANGUAGE plpgsql AS $$
	DECLARE
		s shape;
		what text;
		k int := nextval('numbers');
		one text;
	BEGIN
		SELECT * INTO s FROM shape WHERE shape.id = change.id;
		what := (ARRAY['insert', 'upsert', 'update', 'update', 'delete',
			'key', 'again', 'value'])[r % 8 + 1];
		IF s.kind = 'log' THEN
			what := 'insert';
		ELSIF s.kind = 'full' AND what IN ('upsert', 'again') THEN
			what := 'insert';
		END IF;

		-- A row that nobody else is at; one of many equal ones is enough.
		one := CASE WHEN s.kind = 'full' THEN
			format('ctid = (SELECT ctid FROM %s
				WHERE a = %s LIMIT 1 FOR UPDATE SKIP LOCKED)', s.name, r % 5)
			ELSE
			format('(%s) = (SELECT %1$s FROM %s
				WHERE n %% 7 = %s LIMIT 1 FOR UPDATE SKIP LOCKED)', s.key,
				s.name, r % 7) END;

		IF what = 'insert' THEN
			EXECUTE format('INSERT INTO %s (%s, b, n)
				SELECT %s, %s, $2 FROM (SELECT $1 AS k) AS k',
				s.name, s.key, s.make, s.value) USING k, r;
		ELSIF what = 'upsert' THEN
			-- keys that have been there before
			EXECUTE format('INSERT INTO %s (%s, b, n)
				SELECT %s, %s, $2 FROM (SELECT $1 AS k) AS k
				ON CONFLICT (%2$s) DO UPDATE SET n = %1$s.n + 1',
				s.name, s.key, s.make, s.value) USING r % 40, r;
		ELSIF what = 'update' THEN
			EXECUTE format('UPDATE %s SET n = n + $1 WHERE %s', s.name, one)
				USING r % 11;
		ELSIF what = 'value' THEN
			EXECUTE format('UPDATE %s SET b = (SELECT %s FROM (SELECT $1 AS k)
				AS k) WHERE %s', s.name, s.value, one) USING k;
		ELSIF what = 'delete' THEN
			EXECUTE format('DELETE FROM %s WHERE %s', s.name, one);
		ELSIF what = 'key' THEN
			EXECUTE format('UPDATE %s SET (%s, n) = (SELECT %s, 1
				FROM (SELECT $1 AS k) AS k) WHERE %s',
				s.name, s.key, s.make, one) USING k;
		ELSE
			EXECUTE format('WITH gone AS (DELETE FROM %s WHERE %s RETURNING *)
				SELECT count(*) FROM gone', s.name, one);
			EXECUTE format('INSERT INTO %s (%s, b, n)
				SELECT %s, %s, $2 FROM (SELECT $1 AS k) AS k',
				s.name, s.key, s.make, s.value) USING k, r;
		END IF;
	END $$;

	-- Many rows of a table, or all; but there are always some in large ones.
	CREATE FUNCTION change_many(id int, r int) RETURNS void
	LANGUAGE plpgsql AS $$
	DECLARE
		s shape;
		many text;
		first int;
	BEGIN
		SELECT * INTO s FROM shape WHERE shape.id = change_many.id;
		many := format('ctid IN (SELECT ctid FROM ONLY %s
			WHERE n %% 5 = %s LIMIT 60 FOR UPDATE SKIP LOCKED)',
			s.name, r % 5);
		IF s.kind = 'parts' THEN
			many := format('a IN (SELECT a FROM %s
				WHERE n %% 5 = %s LIMIT 60 FOR UPDATE SKIP LOCKED)',
				s.name, r % 5);
		END IF;
		IF s.kind = 'log' OR r % 4 = 0 THEN
			first := nextval('numbers');
			PERFORM setval('numbers', nextval('numbers') + 50);
			EXECUTE format('INSERT INTO %s (%s, b, n)
				SELECT %s, %s, $1 FROM generate_series($2, $2 + 40) AS k
				ON CONFLICT DO NOTHING',
				s.name, s.key, s.make, s.value) USING r, first;
		ELSIF r % 4 = 1 THEN
			EXECUTE format('DELETE FROM %s WHERE %s', s.name, many);
		ELSIF r % 40 = 2 AND s.may_be_empty THEN
			EXECUTE format('TRUNCATE %s', s.name);
		ELSE
			EXECUTE format('UPDATE %s SET n = n + $1 WHERE %s', s.name, many)
				USING r % 13;
		END IF;
	END $$;
	} . 'CREATE PUBLICATION p FOR TABLE '
	  . join(', ', 'still', @names)
	  . ' WITH (publish_via_partition_root = true)');

# Tables are taken in any order: who is in a deadlock begins again.
my $random = join "\n",
  (map { "\\set $_ random(0, $#tables)" } qw(i j k)),
  (map { "\\set $_ random(0, 1000000)" } qw(p q r)),
  '\set end random(0, 9)', '';
my $count   = "SELECT nextval('transactions');\n";
my %scripts = (
	single  => [ 6, "SELECT change(:i, :p);\n$count" ],
	bulk    => [ 2, "SELECT change_many(:i, :p);\n$count" ],
	several => [
		6, qq{BEGIN;
		SELECT change(:i, :p);
		SAVEPOINT x;
		SELECT change(:j, :q);
		\\if :q % 3 = 0
		ROLLBACK TO x;
		\\else
		RELEASE x;
		\\endif
		SAVEPOINT y;
		SELECT change(:k, :r);
		SELECT change(:i, :q);
		\\if :r % 3 = 0
		ROLLBACK TO y;
		\\endif
		SELECT change_many(:j, 4 * :p + 3);
		\\if :end = 0
		ROLLBACK;
		\\else
		COMMIT;
		\\endif
		$count}
	],
	prepared => [
		3, qq{BEGIN;
		SELECT change(:i, :p);
		SAVEPOINT x;
		SELECT change(:j, :q);
		SELECT change(:k, :r);
		PREPARE TRANSACTION ':writer :client_id';
		SELECT nextval('transactions');
		\\if :end < 3
		ROLLBACK PREPARED ':writer :client_id';
		\\else
		COMMIT PREPARED ':writer :client_id';
		\\endif
		$count}
	]);
my $directory = PostgreSQL::Test::Utils::tempdir();
foreach my $name (keys %scripts)
{
	$scripts{$name}[1] =~ s/^\t+//mg;
	append_to_file("$directory/$name.sql", $random . $scripts{$name}[1]);
}

# Start a writer, with four connections.
sub start_writer
{
	my ($name, $seed, $options) = @_;
	my $writer = { output => '' };

	local $ENV{PGOPTIONS} = $options;
	$writer->{run} = IPC::Run::start(
		[
			$pub->installed_command('pgbench'),
			'--no-vacuum',
			'--client=4',
			'--rate=150',
			'--max-tries=100',
			"--define=writer=$name",
			"--random-seed=$seed",
			"--time=$PostgreSQL::Test::Utils::timeout_default",
			(map { "--file=$directory/$_.sql\@$scripts{$_}[0]" }
				sort keys %scripts),
			$pub->connstr('postgres')
		],
		'>',
		'/dev/null',
		'2>',
		\$writer->{output});
	return $writer;
}

sub transactions
{
	return $pub->safe_psql('postgres', 'SELECT last_value FROM transactions');
}

# Wait until the writers have done so many transactions more.
sub wait_for_writers
{
	my ($session, $transactions, @writers) = @_;
	my $time_limit = $PostgreSQL::Test::Utils::timeout_default;

	my $done = $session->query_safe(
		qq{SELECT last_value + $transactions AS target FROM transactions
		\\gset
		SELECT 'done' FROM wait_for_transactions(:target, '$time_limit s')
			AS done WHERE done});
	return if $done eq 'done';
	die "the writers do not write\n" . join "\n",
	  map { $_->{output} } @writers;
}

$pub->safe_psql(
	'postgres', q{
	CREATE FUNCTION wait_for_transactions(target bigint, time_limit interval)
	RETURNS bool LANGUAGE plpgsql AS $$
	BEGIN
		LOOP
			IF (SELECT last_value >= target FROM transactions) THEN
				RETURN true;
			END IF;
			EXIT WHEN clock_timestamp() > now() + time_limit;
			PERFORM pg_sleep(0.01);
		END LOOP;
		RETURN false;
	END $$});

#
# A round.
#
my $catchup  = CatchUp->new($pub, $sub);
my $observer = $catchup->session('pub');

sub synchronize
{
	my ($seed) = @_;

	note "seed $seed";
	srand($seed);
	$pub->safe_psql('postgres', 'SELECT fill()');
	$sub->safe_psql('postgres', 'SELECT reuse_sync.stats_reset()');
	my $offset = -s $sub->logfile;
	my @writers = (
		start_writer('on',  2 * $seed,     '-c synchronous_commit=on'),
		start_writer('off', 2 * $seed + 1, '-c synchronous_commit=off'));
	wait_for_writers($observer, 50, @writers);

	# All large tables and four small ones wait for the writers.
	my @gated =
	  map { $_->{name} } @large, (shuffle(@small))[ 0 .. 3 ];
	my $is_large = join '|', map { $_->{name} } @large;
	$catchup->close_gate($_) foreach @gated;
	note "gates: @gated";

	# The large ones come first, and all four workers stop at one.
	my $before = transactions();
	subscribe($pub, $sub, 's', 'p');
	my @waiting;
	@waiting = $catchup->wait_at_gates(\@gated, \@waiting)
	  while @waiting < 4;
	wait_for_writers($observer, 50, @writers);
	my $states = join '', map { table_state($sub, $_) } @waiting;
	like(join(' ', @waiting),
		qr/^(?:(?:$is_large)\b ?){4}$/, "seed $seed: large tables come first");

	# Now that there are four slots.
	my $locker = $catchup->session('pub');
	$locker->query_safe('BEGIN; LOCK TABLE still IN ACCESS EXCLUSIVE MODE');
	my $batches  = 0;
	my %closed   = map { $_ => 1 } @gated;
	my $locked   = 1;
	my $deadline = time + $PostgreSQL::Test::Utils::timeout_default;
	while (%closed || $locked)
	{
		@waiting = grep { $closed{$_} } tables_at_gates();
		my $lock_waits = $locked
		  && $pub->safe_psql(
			'postgres', q{
			SELECT count(*) FROM pg_locks
			WHERE relation = 'still'::regclass AND NOT granted});

		die "nobody comes to: " . join ' ', sort keys %closed
		  if time > $deadline;
		next unless @waiting || $lock_waits;

		wait_for_writers($observer, $lock_waits ? 200 : 50, @writers);
		if ($lock_waits)
		{
			$locker->query_safe('COMMIT');
			$locked = 0;
		}
		foreach my $table (@waiting)
		{
			my $tables = $sub->safe_psql(
				'postgres', qq{
				SELECT batch_tables FROM reuse_sync.pool_workers()
				WHERE '$table'::regclass = ANY (relids)});

			$batches++ if $tables > 1;
			$catchup->open_gate($table);
			delete $closed{$table};
		}
	}
	wait_ready($sub, 's');
	my $meanwhile = transactions() - $before;
	wait_for_writers($observer, 50, @writers);

	# Stop, wherever they are; what they have prepared is ended here.
	foreach my $writer (@writers)
	{
		$writer->{run}->signal('TERM');
		$writer->{run}->finish;
		$writer->{output} =~ s/^pgbench: setting random seed.*\n//m;
		is($writer->{output}, '', "seed $seed: a writer has met no errors");
	}
	$pub->poll_query_until('postgres',
		q{SELECT count(*) = 0 FROM pg_stat_activity
		WHERE application_name = 'pgbench'})
	  or die 'the writers do not end';
	foreach my $gid (
		split /\n/,
		$pub->safe_psql('postgres', 'SELECT gid FROM pg_prepared_xacts'))
	{
		$pub->safe_psql('postgres',
			(rand() < 0.5 ? 'COMMIT' : 'ROLLBACK') . " PREPARED '$gid'");
	}
	catch_up($pub, $sub, 's');
	compare("seed $seed");

	my ($synced, $units, $applied, $skipped, $errors) = split /\|/,
	  $sub->safe_psql('postgres',
		'SELECT tables_synced, units, transactions_applied,'
		  . ' transactions_skipped, errors FROM reuse_sync.stats');
	note "$meanwhile transactions meanwhile; $synced tables, $units units,"
	  . " $applied transactions applied, $skipped skipped, $errors errors";
	is($synced, 1 + @tables, "seed $seed: every table was synchronized");
	cmp_ok($units, '<', @tables, "seed $seed: some of them together");
	cmp_ok($batches, '>', 0, "seed $seed: batches had to catch up");
	is($states, 'dddd', "seed $seed: large ones went the staged way");
	cmp_ok($applied, '>', 0, "seed $seed: catch-up has applied transactions");
	cmp_ok($skipped, '>', 0, "seed $seed: and skipped what had been copied");
	is($errors, 0, "seed $seed: no table has failed");
	no_errors_ok($sub, $offset, "seed $seed: no errors in the log");

	end_session($locker);
	$sub->safe_psql('postgres', 'DROP SUBSCRIPTION s');
	$sub->safe_psql('postgres',
		'TRUNCATE '
		  . join(', ', 'still', @names) . ';'
		  . join '', map { qq{
			DROP TRIGGER "000 gate $catchup->{number}{$_}" ON $_;} } @gated);
	no_leftovers_ok($pub, $sub, "seed $seed: no slot and no origin left");
	return;
}

# The tables at whose gates somebody waits now.
sub tables_at_gates
{
	my %table_of = reverse %{ $catchup->{number} };

	return map { $table_of{$_} } split /\n/,
	  $sub->safe_psql(
		'postgres', q{
		SELECT DISTINCT objid FROM pg_locks
		WHERE locktype = 'advisory' AND NOT granted});
}

sub shuffle
{
	my @rest = @_;

	return map { splice @rest, rand @rest, 1 } 1 .. @rest;
}

# One test, that all tables have the same rows, as often, on both sides.
sub compare
{
	my ($testname) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	my %digest;
	foreach my $node ($pub, $sub)
	{
		$digest{ $node->name } = {
			map { split /\|/, $_, 2 } split /\n/,
			$node->safe_psql(
				'postgres',
				join ' UNION ALL ',
				map {
					my $columns = columns_of($_);

					qq{SELECT '$_->{name}', count(*) || ' ' || coalesce(
						md5(string_agg(t.r, E'\\n' ORDER BY t.r COLLATE "C")),
						'')
					FROM (SELECT ROW($columns)::text AS r
						FROM $_->{name}) AS t}
				} @tables)
		};
	}
	my @different =
	  grep { $digest{pub}{ $_->{name} } ne $digest{sub}{ $_->{name} } }
	  @tables;

	is(join(' ', map { $_->{name} } @different),
		'', "$testname: all tables have the same rows on both sides");
	show_differences($_) foreach @different;
	return;
}

sub columns_of
{
	my ($table) = @_;

	return "$table->{key}, n, b";
}

# What is on one side only: rows of the copy, or of some change?
sub show_differences
{
	my ($table) = @_;
	my $columns = columns_of($table);
	my (%times, @lines);

	foreach my $node ($pub, $sub)
	{
		$times{$_}{ $node->name }++ foreach split /\n/,
		  $node->safe_psql('postgres',
			"SELECT left(ROW($columns)::text, 100) FROM $table->{name}");
	}
	foreach my $row (sort keys %times)
	{
		my ($there, $here) = map { $times{$row}{$_} // 0 } qw(pub sub);

		push @lines, "$row: publisher $there, subscriber $here"
		  if $there != $here;
	}
	splice @lines, 20 if @lines > 20;
	diag join "\n", "$table->{name}:", @lines;
	return;
}

synchronize($_) foreach @seeds;

end_session($observer);
$catchup->finish;
no_builtin_sync_ok($sub);

done_testing();
