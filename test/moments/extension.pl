# Commands on the extension.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Moments;

start_servers();

# While there is a slot, or may be one, the server could not go on.
my %drop = (
	in_block => 1,
	may_fail => qr/cannot drop extension "reuse_sync" because tables are half done or replication slots remain.*CALL reuse_sync.drain/s,
	undo     => 'CREATE EXTENSION IF NOT EXISTS reuse_sync');

try_command(
	name => 'drop_extension',
	sql  => 'DROP EXTENSION reuse_sync',
	%drop);
try_command(
	name => 'drop_schema',
	sql  => 'DROP SCHEMA reuse_sync CASCADE',
	%drop,
	may_fail =>
	  qr/$drop{may_fail}|cannot drop schema reuse_sync because extension reuse_sync requires it/
);

# And never comes back: the server synchronizes what is left.
try_command(
	name => 'drop_for_good',
	sql  => 'DROP EXTENSION reuse_sync',
	may_fail => $drop{may_fail},
	undo     => sub { },
	finally  => 'CREATE EXTENSION IF NOT EXISTS reuse_sync');

done_testing();
