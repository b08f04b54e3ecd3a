# Who may do what: every relation and every function that the catalog has in the
# schema is really read, changed or called by each kind of role, and what comes
# is compared with what is stated here.  What is stated nowhere fails.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use ReuseSync;
use Test::More;

plan skip_all => 'only of the extension' unless with_extension();

my $pub = new_publisher('pub');
my $sub = new_subscriber('sub', wal_retrieve_retry_interval => '100ms');

#
# Roles: anybody; a member of pg_monitor, and of a part of it; the owner of the
# subscription "mine", a member of that role, and who owns another; somebody who
# was granted what can be granted; a superuser.
#
my @roles = qw(anybody monitor stats_reader owner member other granted super);

both($pub, $sub, 'CREATE TABLE mine (a int PRIMARY KEY);
	CREATE TABLE theirs (a int PRIMARY KEY)');
$pub->safe_psql('postgres', q{
	INSERT INTO mine VALUES (1);
	INSERT INTO theirs VALUES (1);
	CREATE PUBLICATION mine FOR TABLE mine;
	CREATE PUBLICATION theirs FOR TABLE theirs});
$sub->safe_psql('postgres', q{
	CREATE ROLE anybody LOGIN;
	CREATE ROLE monitor LOGIN IN ROLE pg_monitor;
	CREATE ROLE stats_reader LOGIN IN ROLE pg_read_all_stats;
	CREATE ROLE owner LOGIN SUPERUSER;
	CREATE ROLE member LOGIN IN ROLE owner;
	CREATE ROLE other LOGIN SUPERUSER;
	CREATE ROLE granted LOGIN;
	CREATE ROLE super LOGIN SUPERUSER;
	GRANT ALL ON mine TO owner;
	GRANT ALL ON theirs TO other;
	GRANT EXECUTE ON FUNCTION reuse_sync.wakeup(), reuse_sync.stats_reset()
		TO granted;
	GRANT EXECUTE ON PROCEDURE reuse_sync.drain(interval) TO granted;

	CREATE FUNCTION try(command text) RETURNS text LANGUAGE plpgsql AS $$
	BEGIN
		EXECUTE command;
		RETURN 'done';
	EXCEPTION WHEN OTHERS THEN
		RETURN sqlstate || ' ' || sqlerrm;
	END $$});
my $options = owner_options($sub) =~ s/^, //r;
subscribe($pub, $sub, $_, $_, with => $options ne '' ? $options : undef)
  foreach qw(mine theirs);

# The owner has to be a superuser when he becomes that.
$sub->safe_psql('postgres', q{
	ALTER SUBSCRIPTION mine OWNER TO owner;
	ALTER SUBSCRIPTION theirs OWNER TO other;
	ALTER ROLE owner NOSUPERUSER;
	ALTER ROLE other NOSUPERUSER});
wait_ready($sub, $_) foreach qw(mine theirs);
is( $sub->safe_psql(
		'postgres', q{
		SELECT string_agg(subname || ' ' || rolname || ' ' || rolsuper, ', '
			ORDER BY subname)
		FROM pg_subscription s JOIN pg_roles r ON r.oid = s.subowner}),
	'mine owner false, theirs other false',
	'the owners are no superusers');

#
# What is expected.  For each object a list of commands, and for each of these
# who may, and what others are told.
#
my $no_view     = sub { "42501 permission denied for view $_[0]" };
my $no_matview  = sub { "42501 permission denied for materialized view $_[0]" };
my $no_function = sub { "42501 permission denied for function $_[0]" };
my $not_owner   = sub { "42501 must be owner of subscription $_[0]" };

# expect($command, $refusal, @who): those may do it, others get the refusal.
sub expect
{
	my ($command, $refusal, @who) = @_;
	my %may = map { $_ => 1 } @who;

	return {
		command => $command,
		answers => { map { $_ => $may{$_} ? 'done' : $refusal } @roles }
	};
}

# A view is for pg_monitor, and nobody changes it.
sub view
{
	my ($name) = @_;
	my $is_view = qr/^55000 cannot (?:insert into|update|delete from) view/;

	return (
		expect("SELECT * FROM reuse_sync.$name",
			$no_view->($name), 'monitor', 'super'),
		expect("DELETE FROM reuse_sync.$name", $is_view),
		expect("INSERT INTO reuse_sync.$name DEFAULT VALUES", $is_view));
}

# The catalog is not to be seen, and not even superusers change it.
sub catalog
{
	my ($name) = @_;
	my @commands = map {
		my $change = expect($_, $no_matview->($name));
		$change->{answers}{super} =
		  "42809 cannot change materialized view \"$name\"";
		$change
	  } (
		"DELETE FROM reuse_sync.$name",
		"INSERT INTO reuse_sync.$name DEFAULT VALUES");
	my $refresh = expect("REFRESH MATERIALIZED VIEW reuse_sync.$name",
		qq{42809 cannot refresh "$name"});

	return (
		expect("SELECT * FROM reuse_sync.$name", $no_matview->($name), 'super'),
		@commands, $refresh);
}

# What is called by the views
sub monitoring
{
	my ($name, $arguments) = @_;

	return expect("SELECT * FROM reuse_sync.$name($arguments)",
		$no_function->($name), 'monitor', 'super');
}

# What is about a subscription: for its owner, and perhaps for pg_monitor
sub of_subscription
{
	my ($call, @more) = @_;

	return map {
		my ($subname, @who) = @$_;
		expect('SELECT reuse_sync.' . ($call =~ s/SUB/$subname/gr),
			$not_owner->($subname), @who, @more, 'super')
	} ([qw(mine owner member)], [qw(theirs other)]);
}

my %expected = (
	(map { $_ => [ view($_) ] }
		  qw(workers slots tables subscriptions stats units problems
		  table_state)),
	(map { $_ => [ catalog($_) ] }
		  qw(slot_catalog slot_number table_progress counter retry_request
		  resync table_size unit_history)),
	(map { ("$_()" => [ monitoring($_, '') ]) }
		  qw(pool_workers pool_copies pool_slots pool_problems check)),
	(map {
			(     "$_(oid,timestamp with time zone,double precision)" =>
				  [ monitoring($_, '1, now(), 1') ])
	} qw(show_percent show_work)),
	'report(name)' => [ of_subscription(q{report('SUB')}, 'monitor') ],
	'wait_for_sync(name,interval,boolean)' =>
	  [ of_subscription(q{wait_for_sync('SUB', '3 min')}, 'monitor') ],
	'retry(name,regclass)' => [
		of_subscription(q{retry('SUB')}),
		of_subscription(q{retry('SUB', 'SUB')})
	],
	'resync_table(name,regclass,boolean)' =>
	  [ of_subscription(q{resync_table('SUB', 'SUB')}) ],
	'drop_orphaned_slots(name)' => [
		of_subscription(q{drop_orphaned_slots('SUB')}),
		expect('SELECT reuse_sync.drop_orphaned_slots()', '', @roles)
	],
	'wakeup()' => [
		expect('SELECT reuse_sync.wakeup()',
			$no_function->('wakeup'), 'granted', 'super')
	],
	'stats_reset()' => [
		expect('SELECT reuse_sync.stats_reset()',
			$no_function->('stats_reset'), 'granted', 'super')
	],
	'require_library(text)' => [
		expect(q{SELECT reuse_sync.require_library('1.1')},
			$no_function->('require_library'), 'super')
	],
	'drain(interval)' => [
		expect(q{CALL reuse_sync.drain('3 min')},
			'42501 permission denied for procedure drain', 'super')
	]);
$expected{'drain(interval)'}[0]{answers}{granted} =
  '42501 must be superuser to drain a database';

#
# All that is there
#
my @objects = split /\n/, $sub->safe_psql(
	'postgres', q{
	SELECT relname FROM pg_class
	WHERE relnamespace = 'reuse_sync'::regnamespace AND relkind NOT IN ('i', 'I')
	UNION ALL
	SELECT proname || '(' || array_to_string(ARRAY(
		SELECT format_type(type, NULL)
		FROM unnest(proargtypes) WITH ORDINALITY a(type, n) ORDER BY n), ',')
		|| ')'
	FROM pg_proc WHERE pronamespace = 'reuse_sync'::regnamespace
	ORDER BY 1});
is( join("\n", @objects),
	join("\n", sort keys %expected),
	'it is stated of each object who may do what with it');

# Nothing else that people could have rights on, or lack them.
is( $sub->safe_psql(
		'postgres', q{
		SELECT count(*) FROM pg_type t
		WHERE typnamespace = 'reuse_sync'::regnamespace
		AND typrelid = 0 AND typelem = 0}),
	0,
	'no types but those of relations');

# What is drained is not served: that comes last.
my @commands = map { @{ $expected{$_} // [] } }
  sort { ($a =~ /drain/) <=> ($b =~ /drain/) } @objects;
foreach my $role (@roles)
{
	my $sql = join '', map {
		(my $literal = $_->{command}) =~ s/'/''/g;
		"SELECT public.try('$literal');\n"
	} @commands;
	my ($ret, $out, $err) =
	  $sub->psql('postgres', $sql, extra_params => [ '-U', $role ]);
	my @answers = split /\n/, $out;

	# Drained, the next role would not be served.
	$sub->safe_psql('postgres', 'SELECT reuse_sync.wakeup()');
	is(@answers, @commands, "$role: each command is answered") or diag($err);
	foreach my $command (@commands)
	{
		my $answer = $command->{answers}{$role};
		my $name   = "$role: $command->{command}";

		ref $answer
		  ? like(shift @answers, $answer, $name)
		  : is(shift @answers, $answer, $name);
	}
	is( $sub->safe_psql('postgres',
			'CREATE SCHEMA temporary; DROP SCHEMA temporary',
			extra_params => [ '-U', 'super' ]),
		'', "$role has left nothing behind that is in the way");
}

# Nobody makes objects of his own in the schema.
foreach my $role (grep { $_ ne 'super' } @roles)
{
	is( $sub->safe_psql('postgres',
			q{SELECT try('CREATE TABLE reuse_sync.own ()')},
			extra_params => [ '-U', $role ]),
		'42501 permission denied for schema reuse_sync',
		"$role: no object in the schema");
}

# What owners have asked for has been done.
$sub->safe_psql('postgres', "SELECT reuse_sync.wait_for_sync('$_', '3 min')")
  foreach qw(mine theirs);
rows_ok($pub, $sub, $_, "$_: synchronized anew for its owner")
  foreach qw(mine theirs);
is( join(' ',
		map { scalar(() = slurp_file($sub->logfile) =~
				/table "public\.$_" of subscription "$_" is synchronized anew/g) ? 1 : 0 }
		qw(mine theirs)),
	'1 1', 'and for each');

#
# To be granted a view is not enough if it calls functions, which are not.
#
$sub->safe_psql('postgres',
	'GRANT SELECT ON reuse_sync.tables, reuse_sync.stats TO anybody');
like(
	$sub->safe_psql(
		'postgres',
		q{SELECT try('SELECT * FROM reuse_sync.tables');
		SELECT try('SELECT * FROM reuse_sync.stats')},
		extra_params => [ '-U', 'anybody' ]),
	qr/^42501 permission denied for function pool_\w+\ndone$/,
	'anybody: who is granted a view');

no_builtin_sync_ok($sub);

done_testing();
