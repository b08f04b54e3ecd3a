# Commands on the database with the subscription.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Moments;

start_servers(db => 'd');
$sub->safe_psql('postgres', 'CREATE ROLE plain CREATEDB');

sub recreate
{
	$sub->safe_psql('postgres', 'CREATE DATABASE d');
	$sub->safe_psql('d',        'CREATE EXTENSION reuse_sync');
	return;
}

# Who synchronizes is in the way of that as well.
sub rename_back
{
	return
	  if !$sub->safe_psql('postgres',
		q{SELECT count(*) FROM pg_database WHERE datname = 'e'});
	$sub->safe_psql('e',        'ALTER SUBSCRIPTION s DISABLE');
	$sub->safe_psql('postgres', 'ALTER DATABASE e RENAME TO d');
	$sub->safe_psql('d',        'ALTER SUBSCRIPTION s ENABLE');
	return;
}

# A transaction that is prepared in the database is in everybody's way.
my @moments = qw(claimed creating copying batch copied locked at_once between
  dropping unreachable silent ready);

# As without us, a subscription that is enabled is in the way: at once of
# whoever wants to drop the database, for the others after the server has
# waited five seconds for its apply worker.  That may be away for a moment
# where the publisher is.
try_command(
	name    => 'drop_database',
	db      => 'postgres',
	sql     => 'DROP DATABASE d',
	moments => \@moments,
	fails   => qr/database "d" is being used by logical replication subscription/);
try_command(
	name    => 'rename_database',
	db      => 'postgres',
	sql     => 'ALTER DATABASE d RENAME TO e',
	moments => \@moments,
	may_fail => qr/database "d" is being accessed by other users/,
	undo     => \&rename_back);

# Disabled, it is not.
my $disable = sub { $sub->safe_psql('d', 'ALTER SUBSCRIPTION s DISABLE') };
my $enable  = 'ALTER SUBSCRIPTION s ENABLE';

try_command(
	name    => 'rename_disabled',
	db      => 'postgres',
	prepare => $disable,
	sql     => 'ALTER DATABASE d RENAME TO e; ALTER DATABASE e RENAME TO d',
	moments => \@moments,
	undo    => $enable);
try_command(
	name    => 'template_disabled',
	db      => 'postgres',
	prepare => $disable,
	sql     => 'CREATE DATABASE e TEMPLATE d',
	moments => \@moments,
	undo    => sub {
		$sub->safe_psql('postgres', 'DROP DATABASE e');
		$sub->safe_psql('d',        $enable);
	});
mkdir $sub->basedir . '/space' or die;
$sub->safe_psql('postgres',
	'CREATE TABLESPACE space LOCATION \'' . $sub->basedir . "/space'");
try_command(
	name    => 'move_disabled',
	db      => 'postgres',
	prepare => $disable,
	sql     => 'ALTER DATABASE d SET TABLESPACE space;'
	  . ' ALTER DATABASE d SET TABLESPACE pg_default',
	moments => \@moments,
	undo    => $enable);

# Without a subscription
foreach my $force ('', ' WITH (FORCE)')
{
	foreach my $owner ('', 'SET ROLE plain; ')
	{
		try_command(
			name => 'drop_both'
			  . ($force ? '_with_force' : '')
			  . ($owner ? '_as_owner'   : ''),
			db      => 'postgres',
			prepare => sub {
				$sub->safe_psql('d', 'DROP SUBSCRIPTION s');
				$sub->safe_psql('postgres',
					'ALTER DATABASE d OWNER TO plain')
				  if $owner;
			},
			sql     => "${owner}DROP DATABASE d$force",
			moments => [ grep { !/unreachable|silent/ } @moments ],
			gone    => 1,
			undo    => \&recreate);
	}
}

done_testing();
