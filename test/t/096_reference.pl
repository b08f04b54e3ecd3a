# What docs/settings.md and docs/sql-reference.md say is what the server says;
# and each message that docs/troubleshooting.md explains is one of ours, or of
# the server's.

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use ReuseSync;
use Test::More;

plan skip_all => 'only of the extension' unless with_extension();

my $root = abs_path(dirname(__FILE__) . '/../..');
my $sub  = new_subscriber('sub');

sub doc
{
	return slurp_file("$root/docs/$_[0].md");
}

# ask($sql): the rows of the result, each a string with its columns.
sub ask
{
	return split /\n/, $sub->safe_psql('postgres', $_[0]);
}

# The rows of the tables in a piece of Markdown: references to their cells,
# without quotes of code; heads and rules are left out.
sub rows
{
	my ($text) = @_;
	my @rows;

	foreach my $line (grep { /^\|/ } split /\n/, $text)
	{
		my @cells = split /\s*\|\s*/, $line =~ s/^\|\s*//r, -1;
		pop @cells;
		push @rows, \@cells;
	}
	return grep { $_->[0] =~ /^`/ } @rows;
}

sub plain
{
	return $_[0] =~ s/`//gr;
}

# as_text($text): what stands in for a format's fields becomes "...".
sub as_text
{
	my ($text) = @_;

	$text =~ s/%s\.%s/%s/g;
	$text =~ s/%[-+0# ]*[0-9]*l{0,2}[a-zA-Z]/.../g;
	return $text;
}

# All string literals of a C file; adjacent ones are one.
sub literals
{
	my ($code) = @_;
	my @found;

	$code =~ s/\b(?:U?INT64_FORMAT)\b/"%d"/g;
	$code =~ s{/\*.*?\*/}{}gs;
	while ($code =~ /((?:"(?:[^"\\\n]|\\.)*"\s*)+)/g)
	{
		my $text = join '', $1 =~ /"((?:[^"\\\n]|\\.)*)"/g;

		$text =~ s/\\"/"/g;
		push @found, $text;
	}
	return @found;
}

#
# Settings
#
my %change   = (postmaster => 'restart', sighup => 'reload');
my @settings = ask(
	q{SELECT name, current_setting(name),
	CASE WHEN vartype = 'bool' THEN '' ELSE min_val END,
	CASE WHEN vartype = 'bool' THEN '' ELSE max_val END, unit, context
	FROM pg_settings WHERE name LIKE 'reuse\_sync.%'
	AND name NOT LIKE 'reuse\_sync.test\_%' ORDER BY name});
my $settings = doc('settings');
my ($first) = split /^## /m, $settings;

is_deeply(
	[ sort map { plain(join '|', @$_) } rows($first) ],
	[ sort map { s/\|([a-z]+)$/|$change{$1}/r } @settings ],
	'settings.md has all settings as the server has them');
foreach my $name (map { /^([^|]+)/ } @settings)
{
	like($settings, qr/^\*\*`\Q$name\E`\*\*|and \*\*`\Q$name\E`\*\*:/m,
		"settings.md says when to change $name");
}

#
# Views
#
my $reference = doc('sql-reference');
my %documented;
while ($reference =~ /^### `reuse_sync\.(\w+)`\n(.*?)(?=^##)/msg)
{
	my ($name, $text) = ($1, $2);

	# The first table is that of the columns.
	my ($columns) = $text =~ /((?:^\|.*\n)+)/m;
	$documented{$name} = join ', ',
	  map { plain("$_->[0] $_->[1]") } rows($columns);
}
my %views = map { split /\|/, $_, 2 } ask(
	q{SELECT c.relname, string_agg(a.attname || ' ' ||
	format_type(a.atttypid, NULL), ', ' ORDER BY a.attnum)
	FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
	WHERE c.relnamespace = 'reuse_sync'::regnamespace AND c.relkind = 'v'
	AND a.attnum > 0 GROUP BY c.relname});
is_deeply(\%documented, \%views,
	'sql-reference.md has all views, with their columns and types');

#
# Functions
#
my ($internal) = $reference =~ /^## Not to be used\n(.*)/ms;
my %hidden = map { $_ => 1 } $internal =~ /`reuse_sync\.(\w+)(?:\(\))?`/g;
my @signatures =
  grep { !/reuse_sync\.(\w+)\(/ || !$hidden{$1} } ask(
	q{SELECT CASE WHEN prokind = 'p' THEN 'PROCEDURE ' ELSE '' END
	|| 'reuse_sync.' || proname || '('
	|| regexp_replace(pg_get_function_arguments(oid), '::\w+|IN ', '', 'g')
	|| ')' || coalesce(' RETURNS ' || pg_get_function_result(oid), '')
	FROM pg_proc WHERE pronamespace = 'reuse_sync'::regnamespace});
is_deeply(
	[ sort $reference =~ /^((?:PROCEDURE )?reuse_sync\.\w+\(.*\).*)$/mg ],
	[ sort @signatures ],
	'sql-reference.md has all functions, with their arguments and results');
foreach my $signature (@signatures)
{
	my ($name) = $signature =~ /reuse_sync\.(\w+)\(/;

	like($reference, qr/^### $name\n\n```\n\Q$signature\E\n```\n\n.*?May be/ms,
		"sql-reference.md says what $name does, and who may call it");
}

# Nothing else is there.
my %all = map { $_ => 1 } ask(
	q{SELECT relname FROM pg_class
	WHERE relnamespace = 'reuse_sync'::regnamespace AND relkind IN ('v', 'm', 'r')
	UNION SELECT proname FROM pg_proc
	WHERE pronamespace = 'reuse_sync'::regnamespace});
my %named = (
	%hidden, %views, map { /reuse_sync\.(\w+)\(/ ? ($1 => 1) : () } @signatures);
is_deeply([ sort keys %named ],
	[ sort keys %all ], 'sql-reference.md names all that is in the schema');

# The names of SQLSTATEs are those of the server.
my %sqlstates = map { lc($_) => 1 }
  map { slurp_file($_) =~ /\bERRCODE_(\w+)/g } glob "$root/src/*.c";

# Those of PreventCommandIfReadOnly and aclcheck_error.
$sqlstates{$_} = 1 foreach qw(read_only_sql_transaction insufficient_privilege);
foreach my $text ($reference =~ /^\| SQLSTATE \|.*\n((?:\|.*\n)+)/mg)
{
	foreach my $row (rows($text))
	{
		my $state = plain($row->[0]);

		ok($sqlstates{$state}, "SQLSTATE $state is one that we use");
	}
}

#
# Messages: headings of troubleshooting.md, and what is quoted as the server's.
#
my %ours = map { as_text($_) => 1 }
  map { literals(slurp_file($_)) } glob "$root/src/*.c";
my $server_binary = do
{
	my ($bindir) = run_command([ 'pg_config', '--bindir' ]);
	my $pkglibdir = (run_command([ 'pg_config', '--pkglibdir' ]))[0];

	join '', map { slurp_file($_) } "$bindir/postgres",
	  "$pkglibdir/libpqwalreceiver.so";
};
my $troubleshooting = doc('troubleshooting');
my @messages        = $troubleshooting =~ /^\| `([^`]+)` \|/mg;
my @servers;
my $version         = int($sub->safe_psql('postgres', 'SHOW server_version_num') / 10000);

cmp_ok(scalar(@messages), '>', 30, 'troubleshooting.md explains messages');
foreach my $message (@messages)
{
	# "server 15" is of that version, "server 17" of that and later ones.
	if ($message =~ s/^server(?: (\d+))?: //)
	{
		push @servers, $message
		  if !$1 || ($1 == 15 ? $version == 15 : $version >= $1);
		next;
	}
	ok($ours{$message}, "one of ours: $message");
}
foreach my $message (@servers)
{
	# What is left out is a name or number in the format, or a quotation mark.
	my $format = join '(?:(?:%s\.)?%[a-z]+|"?)', map { quotemeta } split /\Q...\E/, $message, -1;

	ok($server_binary =~ /$format/, "one of the server's: $message");
}

done_testing();
