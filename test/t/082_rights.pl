# Rights that are missing, or are lost in the middle of a synchronization: the
# error has the SQLSTATE that the server's own workers give it, nothing is
# written without the right, and once it is granted the table gets there with
# every row.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use CatchUp;
use ReuseSync;

my $pub = new_publisher('pub');

# The staged way: a copy that is rolled back has the change when it is made
# again, and needs no right for it.
my $sub = new_subscriber(
	'sub',
	log_line_prefix                 => '%m [%p] %e %q%a ',
	wal_retrieve_retry_interval     => '500ms',
	'reuse_sync.max_retry_interval' => '500ms',
	'reuse_sync.batch_tables'       => 1,
	'reuse_sync.batch_size'         => '1kB',
	max_sync_workers_per_subscription => 4);
my $catchup = CatchUp->new($pub, $sub);

# Later servers ask more of an owner who is no superuser, and look at the
# rights of each table's owner instead of his.
my $ordinary =
  $sub->safe_psql('postgres', 'SHOW server_version_num') >= 160000
  ? 'password_required = false, run_as_owner, '
  : '';

sub create_tables
{
	my ($publication, @tables) = @_;

	foreach my $table (@tables)
	{
		both($pub, $sub, "CREATE TABLE $table (a int PRIMARY KEY, b text)");
		$pub->safe_psql('postgres',
			"INSERT INTO $table SELECT g, 'row ' || g
			FROM generate_series(1, 10) g");
	}
	$pub->safe_psql('postgres',
		"CREATE PUBLICATION $publication FOR TABLE " . join(', ', @tables));
	return;
}

# One test: an error with this SQLSTATE and text is in the log.
sub error_ok
{
	my ($offset, $sqlstate, $text, $testname) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$sub->wait_for_log(qr/\] $sqlstate (?:\S.*? )?ERROR:  .*$text/, $offset);
	return pass("$testname: $sqlstate");
}

# A subscription whose owner is no superuser
sub subscribe_as
{
	my ($owner, $subname) = @_;

	$sub->safe_psql('postgres', "CREATE ROLE $owner LOGIN SUPERUSER");
	subscribe($pub, $sub, $subname, $subname,
		with => "${ordinary}enabled = false");
	$sub->safe_psql('postgres', qq{
		ALTER SUBSCRIPTION $subname OWNER TO $owner;
		ALTER ROLE $owner NOSUPERUSER});
	return;
}

#
# The owner of the subscription loses a right while a table is copied; what the
# right is for comes with the catch-up.
#

my %change = (
	insert => q{INSERT INTO lost_insert VALUES (100, 'caught up')},
	update => q{UPDATE lost_update SET b = 'caught up' WHERE a = 1},
	select => q{UPDATE lost_select SET b = 'caught up' WHERE a = 1},
	delete => q{DELETE FROM lost_delete WHERE a = 1});
my @lost = sort keys %change;

create_tables('owned', map { "lost_$_" } @lost);
$catchup->close_gate("lost_$_") foreach @lost;
subscribe_as('owner', 'owned');
$sub->safe_psql('postgres', "GRANT ALL ON lost_$_ TO owner") foreach @lost;
my $offset = -s $sub->logfile;
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION owned ENABLE');
$catchup->run_cases(
	map {
		my $right = $_;
		{
			table   => "lost_$right",
			changes => sub {
				$sub->safe_psql('postgres',
					"REVOKE $right ON lost_$right FROM owner");
				$pub->safe_psql('postgres', $change{$right});
			}
		}
	} @lost);
error_ok($offset, '42501', "permission denied for table lost_$_",
	"$_ is revoked during the copy")
  foreach @lost;
foreach (@lost)
{
	unlike(table_state($sub, "lost_$_"),
		qr/[sr]/, "a table cannot be had without $_");
	$sub->safe_psql('postgres', "GRANT $_ ON lost_$_ TO owner");
}
wait_ready($sub, 'owned');
rows_ok($pub, $sub, "lost_$_", "$_ is granted again") foreach @lost;

#
# Rights that were never there, and row-level security
#

create_tables('denied', 'no_right', 'secured');
subscribe_as('poor_owner', 'denied');
$sub->safe_psql('postgres', q{
	GRANT ALL ON secured TO poor_owner;
	ALTER TABLE secured ENABLE ROW LEVEL SECURITY;
	CREATE POLICY everything ON secured USING (true)});
$offset = -s $sub->logfile;
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION denied ENABLE');
error_ok($offset, '42501', 'permission denied for table no_right',
	'no right to insert');
error_ok($offset, '0A000', 'row-level security', 'row-level security');
is( $sub->safe_psql('postgres',
		'SELECT (SELECT count(*) FROM no_right)
		+ (SELECT count(*) FROM secured)'),
	'0',
	'nothing is written without the right');
$sub->safe_psql('postgres', q{
	GRANT INSERT ON no_right TO poor_owner;
	ALTER ROLE poor_owner BYPASSRLS});
wait_ready($sub, 'denied');
rows_ok($pub, $sub, $_, "$_: granted") foreach qw(no_right secured);

#
# Another owner in the middle of a copy
#

create_tables('handed_on', 'handed_on');
$catchup->close_gate('handed_on');
subscribe_as('first_owner', 'handed_on');
$sub->safe_psql('postgres', q{
	CREATE ROLE second_owner LOGIN SUPERUSER;
	GRANT ALL ON handed_on TO first_owner;
	ALTER SUBSCRIPTION handed_on ENABLE});
$catchup->wait_at_gates(['handed_on']);
$sub->safe_psql('postgres', q{
	ALTER SUBSCRIPTION handed_on OWNER TO second_owner;
	REVOKE ALL ON handed_on FROM first_owner});
$pub->safe_psql('postgres', q{INSERT INTO handed_on VALUES (100, 'later')});
$catchup->open_gate('handed_on');
wait_ready($sub, 'handed_on');
rows_ok($pub, $sub, 'handed_on', 'the owner changes during the copy');

#
# The publisher's side: a table that the role may not read, and one that is
# not there.
#

create_tables('guarded', 'unreadable', 'missing');
$pub->safe_psql('postgres', q{
	CREATE ROLE reader LOGIN REPLICATION;
	GRANT SELECT ON missing TO reader});
subscribe($pub, $sub, 'guarded', 'guarded',
	user => 'reader',
	with => 'enabled = false');
$pub->safe_psql('postgres', 'ALTER TABLE missing RENAME TO elsewhere');
$offset = -s $sub->logfile;
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION guarded ENABLE');
error_ok($offset, '08006', 'permission denied for table unreadable',
	'no right to read on the publisher');
error_ok(
	$offset, '42704',
	'table "public.missing" (?:not found|does not exist) on (?:the )?publisher',
	'no such table on the publisher');
$pub->safe_psql('postgres', q{
	GRANT SELECT ON unreadable TO reader;
	ALTER TABLE elsewhere RENAME TO missing});
wait_ready($sub, 'guarded');
rows_ok($pub, $sub, $_, "$_: mended") foreach qw(unreadable missing);

$catchup->finish;
no_leftovers_ok($pub, $sub, 'no slot and no origin left');
no_builtin_sync_ok($sub);

done_testing();
