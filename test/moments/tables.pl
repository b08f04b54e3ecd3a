# Commands on a table that is being copied, and on everything in the database.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Moments;

start_servers();

# Those of the subscription's tables that lose rows here hold only what came
# later.
my %truncated = (same => [qw(t2 t3)]);

try_command(
	name     => 'truncate',
	sql      => 'TRUNCATE t1',
	in_block => 1,
	%truncated);
try_command(
	name     => 'truncate_next',
	sql      => 'TRUNCATE t2, t3',
	in_block => 1,
	same     => ['t1']);

# The server refuses it until the table is ready.
try_command(
	name     => 'drop_table',
	sql      => 'DROP TABLE t1',
	in_block => 1,
	may_fail => qr/could not drop relation mapping for subscription "s"/,
	undo     => sub {
		return
		  if $sub->safe_psql('postgres',
			q{SELECT to_regclass('t1') IS NOT NULL}) eq 't';
		$sub->safe_psql('postgres',
			'CREATE TABLE t1 (a int PRIMARY KEY, b text);'
			  . ' ALTER SUBSCRIPTION s REFRESH PUBLICATION');
	});
try_command(
	name     => 'add_column',
	sql      => 'ALTER TABLE t1 ADD COLUMN c int DEFAULT 1',
	in_block => 1);
try_command(
	name     => 'rewrite',
	sql      => 'ALTER TABLE t1 ALTER b TYPE varchar, ADD COLUMN c float DEFAULT random()',
	in_block => 1);
try_command(
	name     => 'rename_table',
	sql      => 'ALTER TABLE t1 RENAME TO renamed; ALTER TABLE renamed RENAME TO t1',
	in_block => 1);
try_command(
	name     => 'create_index',
	sql      => 'CREATE INDEX ON t1 (b)',
	in_block => 1);
try_command(
	name           => 'create_index_concurrently',
	sql            => 'CREATE INDEX CONCURRENTLY ON t1 (b)',
	waits_for_ends => 1);
try_command(
	name     => 'lock_table',
	sql      => 'SET lock_timeout = 0; LOCK TABLE t1, t2, t3',
	in_block => 1,
	moments  => [qw(claimed copying batch copied locked between)],
	may_fail => qr/can only be used in transaction blocks/);
try_command(
	name     => 'reindex_table',
	sql      => 'REINDEX TABLE t1',
	in_block => 1);
try_command(
	name => 'vacuum_full',
	sql  => 'VACUUM FULL t1');
try_command(
	name => 'analyze',
	sql  => 'ANALYZE');

# With the server's catalog and ours
try_command(
	name => 'vacuum_full_of_all',
	sql  => 'VACUUM FULL');
try_command(
	name => 'reindex_database',
	sql  => 'REINDEX DATABASE postgres');
try_command(
	name => 'reindex_system',
	sql  => 'REINDEX SYSTEM postgres');

# On the publisher
foreach my $sql (
	'TRUNCATE t1',
	'ALTER TABLE t1 ALTER b TYPE varchar',
	'CREATE INDEX ON t1 (b)',
	'VACUUM FULL t1')
{
	(my $name = lc $sql) =~ s/ t1.*| on .*//;
	$name =~ s/ /_/g;

	try_command(
		name => "publishers_$name",
		on   => 'pub',
		sql  => $sql,
		skip => qr/unreachable|silent/);
}

done_testing();
