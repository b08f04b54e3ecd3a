# Every command in README's start and in docs/*.md is run, in order, on a
# publisher and a subscriber made for that page; what a page shows as output is
# what comes out.  See Documentation.pm for how blocks are marked.

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Documentation qw(parse_page run_page);
use ReuseSync;
use Test::More;

plan skip_all => 'only of the extension' unless with_extension();

my $root = abs_path(dirname(__FILE__) . '/../..');

my @pages = ("$root/README.md", glob "$root/docs/*.md");

# Links lead somewhere.
foreach my $page (@pages)
{
	my $dir  = dirname($page);
	my %seen = ();

	foreach my $link (slurp_file($page) =~ /\]\(([^)\s]+)\)/g)
	{
		my ($file, $anchor) = $link =~ /^([^#]*)(?:#(.*))?$/;

		next if $link =~ /^[a-z]+:/ || $seen{$link}++;
		my $target = $file eq '' ? $page : "$dir/$file";
		ok(-e $target, basename($page) . ": there is a $link");
		next if !defined $anchor || !-f $target;
		ok( grep({
					lc($_) =~ s/[^\w\- ]//gr =~ s/ /-/gr eq $anchor
				} slurp_file($target) =~ /^#+ (.*)$/mg),
			basename($page) . ": $link has such a head");
	}
}

# Every page is named in the README.
foreach my $page (grep { !/README/ } @pages)
{
	my $name = 'docs/' . basename($page);

	like(slurp_file("$root/README.md"),
		qr/\(\Q$name\E\)/, "README.md names $name");
}

foreach my $page (@pages)
{
	my @steps = parse_page($page);

	run_page($root, $page, @steps) if grep { $_->{server} } @steps;
}

done_testing();
