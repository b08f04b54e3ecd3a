# A copy of the subscriber has the original's subscriptions, catalog and names
# of slots.  While the original streams from the subscription's slot the copy
# leaves everything on the publisher alone; when the original has gone it goes
# on by itself.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use CatchUp;

plan skip_all => 'needs the extension' unless with_extension();

my $pub = new_publisher('pub');

# All that a copy could disturb: which slots there are, and where they stand.
sub slots
{
	return $pub->safe_psql(
		'postgres', q{
		SELECT slot_name, active_pid, restart_lsn, confirmed_flush_lsn
		FROM pg_replication_slots
		WHERE slot_name LIKE 'reuse\_sync\_%' ORDER BY 1});
}

sub states
{
	my ($node) = @_;

	return $node->safe_psql(
		'postgres', q{
		SELECT srrelid::regclass, srsubstate FROM pg_subscription_rel
		ORDER BY srrelid::regclass::text});
}

# A standby of the subscriber that has replayed all that was committed there.
sub standby_of
{
	my ($sub, $name) = @_;
	my $standby = PostgreSQL::Test::Cluster->new($name);

	$sub->backup("backup_of_$name");
	$standby->init_from_backup($sub, "backup_of_$name", has_streaming => 1);
	$standby->start;

	# A commit that flushes all before it, and wakes who sends it.
	$sub->safe_psql('postgres', 'SELECT txid_current()');
	$sub->wait_for_catchup($standby, 'replay', $sub->lsn('flush'));
	return $standby;
}

# Return when the apply worker of a node has failed to get its slot, again.
sub wait_slot_in_use
{
	my ($node, $slot) = @_;
	my $offset = -s $node->logfile;

	$node->wait_for_log(
		qr/ERROR: .*replication slot "$slot" is active for PID/, $offset)
	  foreach 1 .. 2;
	return;
}

my %settings = (
	wal_retrieve_retry_interval               => '200ms',
	'reuse_sync.batch_tables'                 => 1,
	'reuse_sync.max_workers_per_subscription' => 2,
	'reuse_sync.handover_lock_timeout'        => '1min',
	'reuse_sync.naptime'                      => '500ms');

# One table is in 'f', its worker streams from its slot and waits for a lock.
# Another one is being copied, and nobody uses its slot meanwhile.  A third one
# waits.  Then there is a copy of the server.
sub beside
{
	my $sub     = new_subscriber('sub', %settings, 'reuse_sync.batch_size' => 0);
	my $catchup = CatchUp->new($pub, $sub);

	publish_tables($pub, $sub, 'p', qw(copied half waiting));
	my $lock = $catchup->session('sub');
	$lock->query_safe('BEGIN; LOCK TABLE half IN ROW EXCLUSIVE MODE');
	$catchup->close_gate($_) foreach qw(copied waiting);
	subscribe($pub, $sub, 's', 'p');
	my ($at_gate) = $catchup->wait_at_gates([qw(copied waiting)]);
	my ($waits) = grep { $_ ne $at_gate } qw(copied waiting);
	wait_for_query(
		$sub, q{
		SELECT count(*) > 0 FROM pg_locks
		WHERE relation = 'half'::regclass AND NOT granted});
	is(states($sub), join("\n", sort "$at_gate|d", 'half|f', "$waits|i"),
		'a table is copied, one half done, and one waits');
	my $slots = slots();
	like($slots, qr/\|\|.*\n.*\|\d+\||\|\d+\|.*\n.*\|\|/,
		'one slot is streamed from, one is not');

	my $clone = standby_of($sub, 'clone');
	$clone->promote;
	wait_slot_in_use($clone, 's');
	$clone->safe_psql('postgres', 'SELECT reuse_sync.wakeup()');
	wait_slot_in_use($clone, 's');
	is(slots(), $slots, 'the copy does nothing to the slots');
	is($clone->safe_psql('postgres', 'SELECT count(*) FROM reuse_sync.slots'),
		2, 'although it knows them');

	# The first thing that comes to an operator's mind.
	$clone->safe_psql('postgres', 'ALTER SUBSCRIPTION s DISABLE');
	wait_for_query(
		$clone, q{
		SELECT count(*) = 1 FROM reuse_sync.slots
		WHERE last_error ~ 'in use by another server'});
	is(slots(), $slots, 'nor does it when the subscription is disabled');
	$clone->safe_psql('postgres', 'ALTER SUBSCRIPTION s ENABLE');

	# The second.
	my $other = standby_of($sub, 'other');
	$other->promote;
	$other->safe_psql(
		'postgres', q{
		ALTER SUBSCRIPTION s DISABLE;
		ALTER SUBSCRIPTION s SET (slot_name = NONE)});
	my ($ret, undef, $stderr) = $other->psql('postgres', 'DROP SUBSCRIPTION s');
	is($ret, 0, 'the subscription can be dropped, parted from its slot');
	my $warnings = () = $stderr =~ /WARNING: .*may remain on the publisher/mg;
	is($warnings, 2, 'slots that are left are named');
	is($other->safe_psql('postgres', 'SELECT count(*) FROM reuse_sync.slots'),
		0, 'and forgotten');
	is( $other->safe_psql('postgres',
			q{SELECT count(*) FROM pg_replication_origin
			WHERE roname ~ 'reuse_sync'}),
		0,
		'with their origins');
	$other->safe_psql('postgres', 'DROP EXTENSION reuse_sync');
	is(slots(), $slots, 'nothing has happened to them');
	$other->stop;

	# Changes for the catch-up, and for the apply worker.
	$pub->safe_psql(
		'postgres', q{
		INSERT INTO half VALUES (101, 'later');
		UPDATE copied SET b = 'later' WHERE a = 2;
		DELETE FROM waiting WHERE a = 3;});
	my $before = states($clone);
	end_session($lock);
	$catchup->open_gate($_) foreach qw(copied waiting);
	wait_ready($sub, 's');
	$pub->safe_psql('postgres', 'UPDATE half SET b = b || a');
	catch_up($pub, $sub, 's');
	rows_ok($pub, $sub, $_, "the original finishes $_")
	  foreach qw(copied half waiting);
	unlike(slurp_file($sub->logfile), qr/is copied anew|gives up|failed/,
		'and was not disturbed');
	no_leftovers_ok($pub, $sub, 'it leaves no slot and no origin');
	is(states($clone), $before, 'the copy has done nothing all the time');

	# Nobody tells the copy.
	$catchup->finish;
	$sub->stop;
	wait_ready($clone, 's');
	catch_up($pub, $clone, 's');
	rows_ok($pub, $clone, $_, "the copy goes on: $_")
	  foreach qw(copied half waiting);
	like(slurp_file($clone->logfile), qr/"public\.half".*is copied anew/,
		'what the original had half done is made anew');
	no_leftovers_ok($pub, $clone, 'it leaves no slot and no origin');
	wait_for_query($clone, 'SELECT count(*) = 0 FROM reuse_sync.slots');
	$clone->safe_psql('postgres', 'DROP SUBSCRIPTION s');
	$clone->stop;
	return;
}

# The server is lost in the middle of the same.  Its standby finishes what was
# half done, and drops what nobody needs.
sub promotion
{
	my $sub = new_subscriber('primary', %settings, 'reuse_sync.batch_size' => 0);
	my $catchup = CatchUp->new($pub, $sub);

	publish_tables($pub, $sub, 'p_lost', qw(finished begun later));
	my $lock = $catchup->session('sub');
	$lock->query_safe('BEGIN; LOCK TABLE finished IN ROW EXCLUSIVE MODE');
	$catchup->close_gate($_) foreach qw(begun later);
	subscribe($pub, $sub, 's_lost', 'p_lost');
	$catchup->wait_at_gates([qw(begun later)]);
	wait_for_query(
		$sub, q{
		SELECT count(*) > 0 FROM pg_locks
		WHERE relation = 'finished'::regclass AND NOT granted});
	my ($linked) = $sub->safe_psql('postgres',
		q{SELECT slot_name FROM reuse_sync.slots WHERE state = 'linked'});

	my $standby = standby_of($sub, 'standby');
	$sub->stop('immediate');
	$pub->safe_psql(
		'postgres', q{
		INSERT INTO finished VALUES (101, 'lost');
		UPDATE begun SET b = 'lost' WHERE a = 2;
		DELETE FROM later WHERE a = 3;});
	$standby->promote;
	wait_ready($standby, 's_lost');
	$pub->safe_psql('postgres', 'UPDATE finished SET b = b || a');
	catch_up($pub, $standby, 's_lost');
	rows_ok($pub, $standby, $_, "contents of $_")
	  foreach qw(finished begun later);
	my $log = slurp_file($standby->logfile);
	like($log, qr/"public\.finished".*slot "$linked" taken over/,
		'the copy that was there is finished from its slot');
	unlike($log, qr/is copied anew/, 'and nothing is made anew');
	no_leftovers_ok($pub, $standby, 'no slot and no origin left');
	wait_for_query($standby, 'SELECT count(*) = 0 FROM reuse_sync.slots');
	eval { end_session($lock); $catchup->finish };
	no_builtin_sync_ok($standby);
	$standby->stop;
	return;
}

# A backup is restored in place of the server: it gives out numbers that are
# those of slots on the publisher.
sub restored_backup
{
	my $sub = new_subscriber('backup', %settings);

	publish_tables($pub, $sub, 'p_first', 'first');
	publish_tables($pub, $sub, 'p_second', 'second');
	subscribe($pub, $sub, 's_restored', 'p_first');
	wait_ready($sub, 's_restored');
	no_leftovers_ok($pub, $sub, 'the first slot is gone');

	# What the lost future has left there; one of them is in use.
	my $next = $sub->safe_psql(
		'postgres', q{
		SELECT format('reuse_sync_%s_%%s_%s', s.oid, c.system_identifier)
		FROM pg_subscription s, pg_control_system() c});
	my $number =
	  $sub->safe_psql('postgres', 'SELECT last_slot_id FROM reuse_sync.slot_number');
	my @names = map { sprintf($next, $number + $_) } 1 .. 2;
	$pub->safe_psql('postgres',
		"SELECT pg_create_logical_replication_slot('$_', 'pgoutput')")
	  foreach @names;
	my $slots = slots();

	$sub->safe_psql('postgres',
		'ALTER SUBSCRIPTION s_restored ADD PUBLICATION p_second');
	wait_ready($sub, 's_restored');
	catch_up($pub, $sub, 's_restored');
	rows_ok($pub, $sub, 'second', 'contents');
	like(
		slurp_file($sub->logfile),
		qr/replication slot "$_" exists on the publisher already/,
		"$_ is said to be taken") foreach @names;
	wait_for_query($sub, 'SELECT count(*) = 0 FROM reuse_sync.slots');
	is(slots(), $slots, 'and is left alone');
	$pub->safe_psql('postgres', "SELECT pg_drop_replication_slot('$_')")
	  foreach @names;
	$sub->safe_psql('postgres', 'DROP SUBSCRIPTION s_restored');
	no_leftovers_ok($pub, $sub, 'no slot and no origin left');
	$sub->stop;
	return;
}

subtest 'copy beside the original'      => \&beside;
subtest 'promotion of a standby'        => \&promotion;
subtest 'backup that is restored'       => \&restored_backup;

done_testing();
