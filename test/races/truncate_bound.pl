# A TRUNCATE comes in the catch-up while somebody reads the table: the lock that
# it needs is not waited for longer than handover_lock_timeout, since everybody
# else who wants the table, the apply worker too, waits behind us.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Races;

my ($pub, $sub) = race_servers(
	sub => {
		'reuse_sync.handover_lock_timeout' => '1s',
		'reuse_sync.max_retry_interval'    => '1s'
	});

race_tables($pub, $sub, 't');
hold($sub, 'copied:t');
subscribe($pub, $sub, 's', 'p');
my (undef, $worker) = wait_held($sub, 'copied:t');
$pub->safe_psql('postgres', q{TRUNCATE t; INSERT INTO t VALUES (1, 'new')});
my $reader = session($sub);
$reader->query_safe('BEGIN; SELECT count(*) FROM t');
my $offset = -s $sub->logfile;
release($sub);

my $end;
wait_until(
	$sub,
	'what becomes of the lock',
	sub {
		return $end = 'it is given up'
		  if slurp_file($sub->logfile, $offset) =~ /due to lock timeout/;
		return $end = $sub->safe_psql(
			'postgres', qq{
			SELECT 'it is waited for' FROM pg_locks WHERE pid = $worker
			AND NOT granted AND waitstart < clock_timestamp() - '10 s'::interval});
	});
is($end, 'it is given up', 'the worker does not wait for long');
$reader->query_safe('COMMIT');
$reader->quit;
settled_rows_ok($pub, $sub, 't');

done_testing();
