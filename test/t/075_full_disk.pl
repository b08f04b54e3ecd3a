# The subscriber's disk is full in the middle of a copy: the table waits, the
# others go on, and it is copied when there is space again.
#
# The test runs in a mount namespace of its own, with a small file system that
# nobody else sees; where that is not allowed it is skipped.

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Temp qw(tempdir);

BEGIN
{
	my $space = 48;    # MB

	# Root in a namespace to mount, and then oneself again.
	if (!$^C && !$ENV{FULL_DISK_DIR} && !$ENV{REUSE_SYNC_BUILTIN})
	{
		my $dir  = tempdir('full_disk.XXXXXX', TMPDIR => 1);
		my @run = (
			qw(unshare --user --map-root-user --mount bash -c),
			qq{exec 3>&2 2>/dev/null
			mount -t tmpfs -o size=${space}m,mode=777 none '$dir' &&
			exec unshare --user --map-user=$> bash -c 'exec 2>&3 3>&- "\$@"' bash "\$@"},
			'bash');

		if (system("@run[0..3] true 2>/dev/null") == 0 && system(@run, 'true') == 0)
		{
			$ENV{FULL_DISK_DIR} = $dir;
			exec(@run, $^X, (map { "-I$_" } @INC), abs_path($0));
		}
		rmdir $dir;
	}
}

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;

plan skip_all => 'needs the extension' unless with_extension();
plan skip_all => 'needs a mount namespace' unless $ENV{FULL_DISK_DIR};

my $small = "$ENV{FULL_DISK_DIR}/space";
my $pub   = new_publisher('pub');
my $sub   = new_subscriber(
	'sub',
	wal_retrieve_retry_interval     => '200ms',
	'reuse_sync.max_retry_interval' => '1s',
	'reuse_sync.naptime'            => '500ms');

mkdir $small or die "could not create $small: $!";
$sub->safe_psql('postgres', "CREATE TABLESPACE small LOCATION '$small'");

my @tables = qw(express staged other);
$pub->safe_psql('postgres',
	"CREATE TABLE $_ (a int PRIMARY KEY, b text); ALTER TABLE $_ ALTER b SET STORAGE plain")
  foreach @tables;
$sub->safe_psql('postgres',
	"CREATE TABLE $_ (a int PRIMARY KEY, b text) TABLESPACE small")
  foreach qw(express staged);
$sub->safe_psql('postgres', 'CREATE TABLE other (a int PRIMARY KEY, b text)');

# 7 MB go the express way, 16 MB do not; together they fit, if nothing else is
# there.
$pub->safe_psql(
	'postgres', q{
	INSERT INTO express SELECT g, repeat('x', 1000)
		FROM generate_series(1, 6000) AS g;
	INSERT INTO staged SELECT g, repeat('x', 1000)
		FROM generate_series(1, 14000) AS g;
	INSERT INTO other VALUES (1, 'row');
	CREATE PUBLICATION p FOR TABLE express, staged, other;});
my $ballast = "$ENV{FULL_DISK_DIR}/ballast";
system_or_bail('dd', 'if=/dev/zero', "of=$ballast", 'bs=1M', 'count=44',
	'status=none');

subscribe($pub, $sub, 's', 'p');
wait_states($sub, 's',
	q{bool_and(srsubstate = 'r') FILTER (WHERE srrelid = 'other'::regclass)});
pass('another table is synchronized');
ok( $sub->poll_query_until(
		'postgres', q{
		SELECT count(*) = 2 FROM reuse_sync.tables
		WHERE last_error ~ 'No space left on device' AND attempts > 1}),
	'those that need space say so, and are tried again');
$pub->safe_psql(
	'postgres', qq{
	UPDATE $_ SET b = 'later' WHERE a = 2;
	INSERT INTO $_ VALUES (-1, 'later');}) foreach @tables;

unlink $ballast or die "could not remove $ballast: $!";
wait_ready($sub, 's');
catch_up($pub, $sub, 's');
rows_ok($pub, $sub, $_, "contents of $_") foreach @tables;
$sub->safe_psql('postgres', 'DROP SUBSCRIPTION s');
no_leftovers_ok($pub, $sub, 'no slot and no origin left');
no_builtin_sync_ok($sub);
$_->stop foreach ($pub, $sub);

done_testing();
