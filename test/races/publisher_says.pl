# A publisher says that something was cancelled: nobody has cancelled the command
# here that has asked it, or is to end the process that has.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Races;

my ($pub, $sub) = race_servers();
my $view = $pub->safe_psql('postgres',
	q{SELECT rtrim(pg_get_viewdef('pg_stat_activity'), ';')});

sub replace_view
{
	$pub->safe_psql(
		'postgres', qq{
		SET allow_system_table_mods = on;
		CREATE OR REPLACE VIEW pg_catalog.pg_stat_activity AS $_[0];});
	return;
}

race_tables($pub, $sub, 't');
hold($sub, 'copied:t');
subscribe($pub, $sub, 's', 'p');
wait_held($sub, 'copied:t');
my $slot = sync_slot_name($pub);
$pub->safe_psql(
	'postgres', q{
	CREATE FUNCTION cancels() RETURNS bool LANGUAGE plpgsql
		AS 'BEGIN RAISE query_canceled; END'});
replace_view("SELECT v.* FROM ($view) v WHERE (SELECT public.cancels())");

my ($ret, undef, $err) = $sub->psql('postgres', 'DROP SUBSCRIPTION s');
is($ret, 0, 'the subscription is dropped') or diag($err);

# Not dropped: what follows is about another situation.
if ($ret != 0)
{
	done_testing();
	exit;
}
release($sub);

# The cleaner keeps what the publisher said, or is not there to do so.
my $offset = -s $sub->logfile;
my $answer;
wait_until(
	$sub,
	'what becomes of the cleaner',
	sub {
		$answer = $sub->safe_psql('postgres',
			"SELECT last_error FROM reuse_sync.slots WHERE slot_name = '$slot'");
		$answer = 'it has ended'
		  if slurp_file($sub->logfile, $offset) =~
		  /"reuse_sync cleaner" \(PID \d+\) exited with exit code 1/;
		return $answer;
	});
like($answer, qr/query_canceled/, 'the cleaner goes on');

replace_view($view);
wait_until($sub, 'the slot to be dropped',
	'SELECT count(*) = 0 FROM reuse_sync.slots');
is(sync_slot_name($pub), '', 'the slot is dropped once it can be');

done_testing();
