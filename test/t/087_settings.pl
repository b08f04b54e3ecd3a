# Each setting on a live server: its default, its limits, who may set it and
# where, and that what it is set to is known when it should be.  docs/settings.md
# has the values that are expected here.

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Races qw(session wait_until);
use ReuseSync;
use Test::More;

plan skip_all => 'only of the extension' unless with_extension();

my $sub = new_subscriber('sub');

# What some SQL is answered, as "SQLSTATE: message" and lines with more; or the
# result.
sub answer
{
	my ($sql) = @_;
	my ($ret, $out, $err) =
	  $sub->psql('postgres', "\\set VERBOSITY verbose\n$sql");

	$err =~ s/^psql:<stdin>:\d+: //mg;
	$err =~ s/^LOCATION: .*\n?//mg;
	$err =~ s/^ERROR: +//mg;
	$err =~ s/\n+$//;
	return $err . $out;
}

#
# What the documentation has
#
my $root = abs_path(dirname(__FILE__) . '/../..');
my ($table) = slurp_file("$root/docs/settings.md") =~ /((?:^\| `reuse_sync\..*\n)+)/m;
my @settings = map {
	my %setting;
	@setting{qw(name default min max unit change)} =
	  map { s/`//gr } /^\| (.*?) \| (.*?) \| (.*?) ?\| (.*?) ?\| (.*?) ?\| (.*?) \|$/;
	\%setting
} split /\n/, $table;
is( join(' ', sort map { $_->{name} } @settings),
	$sub->safe_psql(
		'postgres', q{SELECT string_agg(name, ' ' ORDER BY name)
		FROM pg_settings WHERE name LIKE 'reuse\_sync.%'
		AND name NOT LIKE 'reuse\_sync.test\_%'}),
	'all settings are documented');

$sub->safe_psql('postgres', q{
	CREATE ROLE nobody LOGIN;
	CREATE ROLE monitor LOGIN IN ROLE pg_monitor;
	CREATE ROLE granted LOGIN});

my $old = session($sub);
foreach my $setting (@settings)
{
	my ($name, $default, $min, $max, $unit) =
	  @$setting{qw(name default min max unit)};
	my $restart = $setting->{change} eq 'restart';
	my $bool    = $min eq '';
	my $show    = "SELECT setting FROM pg_settings WHERE name = '$name'";
	my $other   = $bool ? ($default eq 'on' ? 'off' : 'on') : $min + 1;

	# Default
	is($old->query_safe("SHOW $name"), $default, "$name: default");
	is( $old->query_safe(
			"SELECT source, boot_val = reset_val, vartype
			FROM pg_settings WHERE name = '$name'"),
		'default|t|' . ($bool ? 'bool' : 'integer'),
		"$name: comes from nowhere else");
	like(
		$old->query_safe("SELECT short_desc FROM pg_settings WHERE name = '$name'"),
		qr/^(?:Sets|Has|Synchronizes) .*\.$/,
		"$name: says what it is");

	# Not for a session, a role, a database, or a function
	my $refused =
	  $restart
	  ? qq{55P02: parameter "$name" cannot be changed without restarting the server}
	  : qq{55P02: parameter "$name" cannot be changed now};
	foreach my $command (
		"SET $name = '$other'",
		"SELECT set_config('$name', '$other', false)",
		"ALTER ROLE nobody SET $name = '$other'",
		"ALTER DATABASE postgres SET $name = '$other'",
		"ALTER ROLE ALL SET $name = '$other'")
	{
		is(answer($command), $refused, "$name: no " . $command =~ s/ $name.*//r);
	}

	# Of roles only a superuser, and who is granted it
	my $alter = "ALTER SYSTEM SET $name = '$other'";
	foreach my $role (qw(nobody monitor))
	{
		is( answer("SET ROLE $role; $alter"),
			"42501: permission denied to set parameter \"$name\"",
			"$name: not for $role");
	}
	$sub->safe_psql('postgres',
		"GRANT ALTER SYSTEM ON PARAMETER $name TO granted");
	is(answer("SET ROLE granted; $alter"), '', "$name: for who is granted it");

	# Limits.  Some servers give the unit with each number, others with one.
	my $out_of_range = sub {
		return
		  qq{22023: $_[0] is outside the valid range for parameter "$name" ($min .. $max)};
	};
	my $set_to = sub {
		my $answer = answer("ALTER SYSTEM SET $name = '$_[0]'");

		$answer =~ s/ $unit\b//g if $unit;
		return $answer;
	};
	if ($bool)
	{
		is( answer("ALTER SYSTEM SET $name = 'perhaps'"),
			qq{22023: parameter "$name" requires a Boolean value},
			"$name: on or off");
	}
	else
	{
		is(answer("ALTER SYSTEM SET $name = $min"), '', "$name: $min");
		is(answer("ALTER SYSTEM SET $name = $max"), '', "$name: $max");
		is( $set_to->($min - 1),
			$out_of_range->($min - 1),
			"$name: not less than $min");
		my $more = $max + 1;
		is( $set_to->($more),
			$max == 2147483647
			? qq{22023: invalid value for parameter "$name": "$more"
HINT:  Value exceeds integer range.}
			: $out_of_range->($more),
			"$name: not more than $max");
		is( answer("ALTER SYSTEM SET $name = '1 parsec'") =~ s/\nHINT:.*//sr,
			qq{22023: invalid value for parameter "$name": "1 parsec"},
			"$name: what is no number of its unit");
		$sub->safe_psql('postgres', $alter);
	}

	# It is known after a reload, or a restart, to all who are there.
	my $before = $bool ? $default : $old->query_safe($show);
	$sub->reload;
	if ($restart)
	{
		wait_until($sub, "$name to be known to be pending",
			"SELECT pending_restart FROM pg_settings WHERE name = '$name'");
		is($old->query_safe($show), $before, "$name: not before a restart");
	}
	else
	{
		wait_until($sub, "$name to be known",
			"SELECT setting = '$other' FROM pg_settings WHERE name = '$name'");
		is($old->query_safe("$show"), $other, "$name: after a reload");
		$sub->safe_psql('postgres', "ALTER SYSTEM RESET $name");
		$sub->reload;
		wait_until($sub, "$name to be known again",
			"SELECT source = 'default' FROM pg_settings WHERE name = '$name'");
		is($old->query_safe("SHOW $name"), $default, "$name: reset");
	}
}
$old->quit;

# Those that wait for it are known after a restart; the pool is switched off.
my %set = map { $_->{name} => $_->{min} eq '' ? 'off' : $_->{min} + 1 }
  grep { $_->{change} eq 'restart' } @settings;
is(join(' ', sort keys %set), 'reuse_sync.enabled reuse_sync.max_workers',
	'two need a restart');
$sub->restart;
is($sub->safe_psql('postgres', "SHOW $_"), $set{$_}, "$_: after a restart")
  foreach sort keys %set;
is( $sub->safe_psql('postgres',
		q{SELECT count(*) FROM pg_stat_activity
		WHERE backend_type LIKE 'reuse_sync%'}),
	0,
	'switched off there is no launcher');

# A setting that there is not, and one in the file that is not valid
is( answer('SET reuse_sync.no_such = 1'),
	q{42602: invalid configuration parameter name "reuse_sync.no_such"
DETAIL:  "reuse_sync" is a reserved prefix.},
	'the prefix is reserved');
$sub->safe_psql('postgres', 'ALTER SYSTEM RESET ALL');
my $log_start = -s $sub->logfile;
$sub->append_conf('postgresql.conf',
	"reuse_sync.batch_tables = 0\nreuse_sync.naptime = '1min'");
$sub->reload;
$sub->wait_for_log(
	qr/LOG:  0 is outside the valid range for parameter "reuse_sync\.batch_tables" \(1 \.\. 256\)/,
	$log_start);
wait_until($sub, 'the rest of the file to be known',
	q{SELECT count(*) = 1 FROM pg_settings
	WHERE name = 'reuse_sync.batch_tables' AND setting = '64'});
pass('an invalid value in the file is not taken');

done_testing();
