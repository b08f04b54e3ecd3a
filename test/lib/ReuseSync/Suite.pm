# Loaded by perl before each of the server's own tests, see test/server-suite:
# gives every node the extension if the library is loaded by what TEMP_CONFIG
# names, in every database that is made from template1 or is there from the
# beginning; and notes, before a node is stopped, what the extension has counted
# and how many tables have been subscribed to and are not synchronized; the
# latter also before a subscription is dropped.
#
# SUITE_COUNTERS is the file to append to: a line with test, node, database,
# tables and unfinished tables for each database and stop; for each command that
# drops a subscription, with "dropped" instead of a number of tables.

package ReuseSync::Suite;

use strict;
use warnings;

use File::Basename;
use PostgreSQL::Test::Cluster;

my $has_extension = q{
	SELECT count(*) FROM pg_extension WHERE extname = 'reuse_sync'};
my $databases = q{
	SELECT datname FROM pg_database
	WHERE datallowconn AND datname <> 'template1' ORDER BY 1};

my $unfinished = q{
	SELECT count(*) FROM pg_subscription_rel r
	JOIN pg_subscription s ON s.oid = r.srsubid
	JOIN pg_database d ON d.oid = s.subdbid
	WHERE datname = current_database() AND srsubstate NOT IN ('s', 'r')};

my $psql = \&PostgreSQL::Test::Cluster::psql;

# Run SQL; undef if the server does not answer.
sub ask
{
	my ($node, $db, $sql) = @_;
	my ($stdout, $stderr);
	my $rc = $node->$psql(
		$db, $sql,
		stdout => \$stdout,
		stderr => \$stderr);

	return defined $rc && $rc == 0 ? $stdout : undef;
}

sub create_extension
{
	my ($node) = @_;

	return if !$ENV{TEMP_CONFIG};
	return if ask($node, 'postgres', 'SELECT pg_is_in_recovery()') ne 'f';
	foreach my $db ('template1', 'postgres')
	{
		$node->safe_psql($db, 'CREATE EXTENSION IF NOT EXISTS reuse_sync');
	}
	return;
}

sub note
{
	my ($node, $db, $tables) = @_;

	open my $out, '>>', $ENV{SUITE_COUNTERS}
	  or die "$ENV{SUITE_COUNTERS}: $!";
	printf $out "%s\t%s\t%s\t%s\t%s\n", basename($0, '.pl'), $node->name, $db,
	  $tables, ask($node, $db, $unfinished) // 0;
	close $out or die "$ENV{SUITE_COUNTERS}: $!";
	return;
}

sub note_counters
{
	my ($node) = @_;
	my $all = ask($node, 'postgres', $databases);

	return unless defined $all;
	foreach my $db (split /\n/, $all)
	{
		my $tables = '-';

		if (ask($node, $db, $has_extension) // 0)
		{
			$tables =
			  ask($node, $db, 'SELECT tables_synced FROM reuse_sync.stats');
		}
		note($node, $db, $tables // '-');
	}
	return;
}

{
	no warnings 'redefine';

	my $start = \&PostgreSQL::Test::Cluster::start;
	my $stop  = \&PostgreSQL::Test::Cluster::stop;

	*PostgreSQL::Test::Cluster::start = sub {
		my ($node, @args) = @_;
		my $started = $node->$start(@args);

		create_extension($node) if $started;
		return $started;
	};

	# Also what safe_psql comes through.
	*PostgreSQL::Test::Cluster::psql = sub {
		my ($node, $db, $sql, @args) = @_;

		note($node, $db, 'dropped') if $sql =~ /\bDROP\s+SUBSCRIPTION\b/i;
		return $node->$psql($db, $sql, @args);
	};

	# Also what teardown_node, at the end of a test, comes through.
	*PostgreSQL::Test::Cluster::stop = sub {
		my ($node, @args) = @_;

		note_counters($node) if defined $node->{_pid};
		return $node->$stop(@args);
	};
}

1;
