# Commands on the subscription.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use ReuseSync::Cases;
use Moments;

start_servers();
$sub->safe_psql('postgres', 'CREATE ROLE other SUPERUSER LOGIN');

# The slot of a subscription that has given it up is for its owner to drop.
sub drop_main_slot
{
	$pub->safe_psql('postgres',
		q{SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
		WHERE slot_name = 's'});
	return;
}

my $drop_without_slot = q{
	ALTER SUBSCRIPTION s DISABLE;
	ALTER SUBSCRIPTION s SET (slot_name = NONE);
	DROP SUBSCRIPTION s};

try_command(
	name  => 'drop',
	sql   => 'DROP SUBSCRIPTION s',
	talks => 1,
	gone  => 1);

# Where the command is rolled back, the server has lost the position of the
# subscription's origin all the same (also without the extension): what the
# publisher does not know to be applied is applied once more, and is in the way
# of itself.  So there is to be nothing of that kind, where it applies anything.
sub confirm_all
{
	my ($rolled_back) = @_;

	return if !$rolled_back || $sub->safe_psql(
		'postgres', q{
		SELECT count(*) = 0 FROM pg_subscription_rel
		WHERE srsubstate IN ('s', 'r')}) eq 't';
	stop_writer();
	$pub->safe_psql('postgres', 'SELECT txid_current()');
	my $lsn = $pub->safe_psql('postgres', 'SELECT pg_current_wal_lsn()');
	wait_until(
		'the confirmation of what is applied', qq{
		SELECT confirmed_flush_lsn >= '$lsn' FROM pg_replication_slots
		WHERE slot_name = 's'}, $pub);
	return;
}

# It asks the publisher for the slots of half-done tables, if that answers.
try_command(
	name     => 'drop_without_slot',
	sql      => $drop_without_slot,
	in_block => 1,
	prepare  => \&confirm_all,
	gone     => 1,
	skip     => qr/silent/,
	undo     => \&drop_main_slot);
try_command(
	name     => 'disable',
	sql      => 'ALTER SUBSCRIPTION s DISABLE',
	in_block => 1,
	undo     => 'ALTER SUBSCRIPTION s ENABLE');
try_command(
	name     => 'disable_and_enable',
	sql      => 'ALTER SUBSCRIPTION s DISABLE; ALTER SUBSCRIPTION s ENABLE',
	in_block => 1);
try_command(
	name     => 'enable',
	sql      => 'ALTER SUBSCRIPTION s ENABLE',
	in_block => 1);

# Connections
my $conninfo = literal($pub->connstr('postgres') . ' keepalives=1');

try_command(
	name     => 'connection',
	sql      => "ALTER SUBSCRIPTION s CONNECTION $conninfo",
	in_block => 1);
try_command(
	name     => 'connection_to_nowhere',
	sql      => q{ALTER SUBSCRIPTION s CONNECTION 'host=/nowhere dbname=postgres'},
	in_block => 1,
	undo     => "ALTER SUBSCRIPTION s CONNECTION $conninfo");

# Publications
try_command(
	name  => 'set_publication',
	sql   => 'ALTER SUBSCRIPTION s SET PUBLICATION p3',
	talks => 1,
	undo  => 'TRUNCATE t1, t2; ALTER SUBSCRIPTION s SET PUBLICATION p, p3');
try_command(
	name => 'set_publication_only',
	sql  => 'ALTER SUBSCRIPTION s SET PUBLICATION p, p3, p4 WITH (refresh = false)',
	in_block => 1);
try_command(
	name  => 'add_publication',
	sql   => 'ALTER SUBSCRIPTION s ADD PUBLICATION p4',
	talks => 1);
try_command(
	name  => 'drop_publication',
	sql   => 'ALTER SUBSCRIPTION s DROP PUBLICATION p3',
	talks => 1,
	undo  => 'TRUNCATE t3; ALTER SUBSCRIPTION s ADD PUBLICATION p3');
try_command(
	name  => 'refresh',
	sql   => 'ALTER SUBSCRIPTION s REFRESH PUBLICATION',
	talks => 1);

# The server ends the worker that copies a table it removes.
try_command(
	name        => 'refresh_without_a_table',
	prepare     => 'ALTER PUBLICATION p DROP TABLE t1',
	sql         => 'ALTER SUBSCRIPTION s REFRESH PUBLICATION; TRUNCATE t1',
	talks       => 1,
	never_waits => 1,
	skip        => qr/kept_out/,
	undo        => sub {
		$pub->safe_psql('postgres', 'ALTER PUBLICATION p ADD TABLE t1')
		  if is_at() ne 'unreachable';
		$sub->safe_psql('postgres', 'TRUNCATE t1')
		  if is_at() ne 'unreachable';
		$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s REFRESH PUBLICATION');
	});

# The rest
try_command(
	name     => 'owner',
	sql      => 'ALTER SUBSCRIPTION s OWNER TO other',
	in_block => 1,
	undo     => 'ALTER SUBSCRIPTION s OWNER TO CURRENT_USER');
try_command(
	name     => 'rename',
	sql      => 'ALTER SUBSCRIPTION s RENAME TO renamed',
	in_block => 1,
	undo     => 'ALTER SUBSCRIPTION renamed RENAME TO s');
foreach my $option (
	'synchronous_commit = local',
	'binary = true',
	'streaming = true',
	'disable_on_error = true')
{
	my ($word) = $option =~ /^(\w+)/;

	try_command(
		name     => "set_$word",
		sql      => "ALTER SUBSCRIPTION s SET ($option)",
		in_block => 1);
}
try_command(
	name     => 'skip',
	sql      => 'ALTER SUBSCRIPTION s SKIP (lsn = NONE)',
	in_block => 1);

done_testing();
