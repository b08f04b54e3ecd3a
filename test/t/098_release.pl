# What describes a release: META.json is as the PGXN Meta Spec 1.0.0 has it, and
# all files agree on versions.

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename;
use JSON::PP;
use Test::More;

my $root = abs_path(dirname(__FILE__) . '/../..');

sub text_of
{
	my ($name) = @_;

	open my $file, '<:encoding(UTF-8)', "$root/$name" or die "$name: $!";
	local $/;
	return scalar <$file>;
}

my $meta    = JSON::PP->new->utf8(0)->decode(text_of('META.json'));
my $version = $meta->{version};
my $semver  = qr/\A(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)\z/;

# keys_ok($what, $hash, $required, $optional): it has the keys of the one list
# and no others than those of both, or for private use.
sub keys_ok
{
	my ($what, $hash, $required, $optional) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my %known = map { $_ => 1 } @$required, @$optional;

	is(join(' ', grep { !defined $hash->{$_} || $hash->{$_} eq '' } @$required),
		'', "$what: nothing is missing");
	is(join(' ', grep { !$known{$_} && !/^[xX]_./ } sort keys %$hash),
		'', "$what: nothing is unknown");
	return;
}

#
# The specification
#
keys_ok(
	'META.json', $meta,
	[qw(abstract license maintainer meta-spec name provides version)],
	[qw(description generated_by no_index prereqs release_status resources tags)]);
keys_ok('meta-spec', $meta->{'meta-spec'}, ['version'], ['url']);
like($meta->{name}, qr/\A[^\s\/\\\x00-\x1f\x7f]{2,}\z/, 'name');
like($version, $semver, 'version');
is($meta->{'meta-spec'}{version}, '1.0.0', 'version of the specification');
is($meta->{'meta-spec'}{url}, 'https://pgxn.org/meta/spec.txt', 'and where it is');
is($meta->{license}, 'postgresql', 'license');
like($meta->{release_status}, qr/\A(?:stable|testing|unstable)\z/, 'status');
is(join(' ', grep { ref || !/\A[^\/\\\p{Cntrl}]{1,255}\z/ } @{ $meta->{tags} }),
	'', 'tags');
is(join(' ', sort keys %{ $meta->{provides} }), 'reuse_sync', 'one extension');
foreach my $name (keys %{ $meta->{provides} })
{
	my $extension = $meta->{provides}{$name};

	keys_ok($name, $extension, [qw(file version)], [qw(abstract docfile)]);
	ok(-e "$root/$extension->{$_}", "$name: $_ is there")
	  foreach qw(file docfile);
	like($extension->{version}, $semver, "$name: version");
}
my %phases = map { $_ => 1 } qw(configure build test runtime develop);
my %kinds  = map { $_ => 1 } qw(requires recommends suggests conflicts);
foreach my $phase (keys %{ $meta->{prereqs} })
{
	ok($phases{$phase}, "prerequisites: $phase");
	foreach my $kind (keys %{ $meta->{prereqs}{$phase} })
	{
		ok($kinds{$kind}, "prerequisites: $phase $kind");
		like($_, $semver, "prerequisites: $phase $kind, version")
		  foreach values %{ $meta->{prereqs}{$phase}{$kind} };
	}
}

#
# Versions
#
my $changes = text_of('CHANGELOG.md');
my ($newest, $note, $first) =
  $changes =~ /^## (\S+)(?: \((.*?)\))?\n(.*?)(?=^## |\z)/ms;
is($newest, $version, 'CHANGELOG.md begins with this version');
is($meta->{provides}{reuse_sync}{version}, $version, 'the extension has it too');
is( $meta->{release_status} eq 'stable' ? 'released' : 'unreleased',
	($note // '') eq 'unreleased' ? 'unreleased' : 'released',
	'status and CHANGELOG.md agree');

my ($objects) = text_of('reuse_sync.control') =~ /^default_version = '(.*)'$/m;
like($first, qr/^SQL objects: \Q$objects\E\./m,
	'CHANGELOG.md has the version of the SQL objects');
like(text_of('src/settings.h'), qr/^#define EXTENSION_VERSION\s+"\Q$objects\E"/m,
	'so has the library');

# From the first version a chain of scripts leads to this one.
my ($data) = text_of('Makefile') =~ /^DATA = (.*)$/m;
my @scripts = sort split ' ', $data;
is("@scripts",
	join(' ', sort map { 'sql/' . basename($_) } glob "$root/sql/reuse_sync--*.sql"),
	'all scripts are installed');
my %next = map { /--([^-]+)--([^-]+)\.sql$/ ? ($1 => $2) : () } @scripts;
my ($at) = map { /reuse_sync--([^-]+)\.sql$/ ? $1 : () } @scripts;
$at = delete $next{$at} while defined $at && exists $next{$at};
is($at, $objects, 'they lead to the version of the SQL objects');
is(join(' ', %next), '', 'and no other one');

#
# Servers: those that it is built for are those that are named.
#
my @named    = text_of('README.md') =~ /^- PostgreSQL (\d+), (\d+) and (\d+) on the subscriber/m;
my @built    = text_of('src/compat.h') =~ /made for PostgreSQL (\d+), (\d+) and (\d+)/;
my ($tested) = text_of('test/setup') =~ /^setup_versions='(.*)'$/m;
cmp_ok(scalar @named, '>', 0, 'README.md names servers');
is("@built", "@named", 'it is built for them');
is(join(' ', sort split ' ', $tested), "@named", 'and tested with them');
is($meta->{prereqs}{runtime}{requires}{PostgreSQL},
	"$named[0].0.0", 'META.json has the oldest one');

#
# Debian's files, which are not in the archive of a release
#
SKIP:
{
	skip 'no directory debian', 1 unless -d "$root/debian";

	my ($debian) = text_of('debian/changelog') =~ /\Areuse-sync \((.*)-\d+\)/;
	my @pgversions = split ' ', text_of('debian/pgversions');
	my $meant = sub {
		my ($server) = @_;
		return grep { /^(\d+)\+$/ ? $server >= $1 : $server == $_ } @pgversions;
	};

	is($debian, $version, 'debian/changelog begins with this version');
	is(join(' ', grep { $meant->($_) } 14 .. 18),
		"@named", 'debian/pgversions has the same servers');
	(my $license = text_of('LICENSE')) =~ s/\A.*?\n\n.*?\n\n//s;
	my ($copyright) =
	  text_of('debian/copyright') =~ /^License: PostgreSQL\n(?= \S)(.*)\z/ms;
	$copyright =~ s/^ \.?//mg;
	is($copyright, $license, 'debian/copyright has the license');
}

done_testing();
