# A publisher that answers what no server would: that is an error, and no more.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

use FakePublisher;
use ReuseSync;

plan skip_all => 'needs the extension' unless with_extension();

my $sub = new_subscriber('sub', wal_retrieve_retry_interval => '100ms');
$sub->safe_psql('postgres', 'CREATE TABLE t (a int)');

# What it takes to have an apply worker that streams, and to be connected to
my @identity = ([ '1', 'f', '00000001', '1' ]);
my $honest   = sub {
	my ($query) = @_;

	return [ '1', '1', '0/1000000', 'x' ] if $query =~ /^IDENTIFY_SYSTEM/;
	return 'stream' if $query =~ /^START_REPLICATION SLOT "s/;
	return [''] if $query =~ /set_config/;
	return @identity if $query =~ /pg_control_system/;
	return;
};

# Each shape of nonsense in place of all other answers
my %nonsense = (
	'nulls'      => sub { return [ (undef) x 12 ] },
	'no columns' => sub { return [] },
	'text'       => sub { return [ ('nonsense') x 12 ] });

sub check_gets_through
{
	my ($name) = @_;
	my ($ret, $out, $err) = $sub->psql('postgres',
		q{SELECT problem FROM reuse_sync.check() WHERE object LIKE '%"s%'});

	ok($ret == 0 || $err =~ /ERROR:/ && $err !~ /server closed/,
		"$name: check() returns")
	  or diag("$out\n$err");
	return;
}

foreach my $name (sort keys %nonsense)
{
	my $fake = FakePublisher->new(
		sub {
			my @answer = $honest->(@_);
			return @answer ? @answer : $nonsense{$name}->();
		});
	my $conninfo = $fake->connstr;

	$sub->safe_psql(
		'postgres', qq{
		CREATE SUBSCRIPTION s CONNECTION '$conninfo' PUBLICATION p
			WITH (connect = false, slot_name = 's');
		ALTER SUBSCRIPTION s ENABLE;});

	# As REFRESH would do it
	$sub->safe_psql(
		'postgres', q{
		INSERT INTO pg_subscription_rel
			SELECT oid, 't'::regclass, 'i' FROM pg_subscription});
	my $offset = -s $sub->logfile;
	$sub->safe_psql('postgres', 'SELECT reuse_sync.wakeup()');
	my $problem = $sub->poll_query_until('postgres',
		'SELECT count(*) > 0 FROM reuse_sync.problems')
	  && $sub->safe_psql('postgres',
		'SELECT string_agg(last_error, E\'\n\') FROM reuse_sync.problems');
	like($problem, qr/unexpected|invalid|error/, "$name: the worker says so");
	check_gets_through($name);
	$sub->safe_psql(
		'postgres', q{
		ALTER SUBSCRIPTION s DISABLE;
		DELETE FROM pg_subscription_rel;
		ALTER SUBSCRIPTION s SET (slot_name = NONE);
		DROP SUBSCRIPTION s;});
	unlike(slurp_file($sub->logfile),
		qr/terminated by signal/, "$name: nothing has crashed");
}

# Not even who it is
foreach my $name (sort keys %nonsense)
{
	my $fake = FakePublisher->new($nonsense{$name});
	my $conninfo = $fake->connstr;

	$sub->safe_psql(
		'postgres', qq{
		CREATE SUBSCRIPTION s CONNECTION '$conninfo' PUBLICATION p
			WITH (connect = false, slot_name = NONE)});
	check_gets_through("$name about itself");
	$sub->safe_psql('postgres', 'DROP SUBSCRIPTION s');
	unlike(slurp_file($sub->logfile),
		qr/terminated by signal/, "$name about itself: nothing has crashed");
}

done_testing();
