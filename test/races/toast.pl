# What our catalog stores out of line is read and removed while others change
# catalogs of the server, whereupon the snapshot that these are read with is gone.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Races;

my ($pub, $sub) =
  race_servers(sub => { 'reuse_sync.max_retry_interval' => '1s' });
my $error = qr/cannot fetch toast data without an active snapshot/;

# An error that does not fit into a row, whatever is made of it.
$pub->safe_psql(
	'postgres', q{
	CREATE TABLE t (a text, b text);
	INSERT INTO t SELECT string_agg(md5(g::text), ''), 'long'
		FROM generate_series(1, 500) g;
	CREATE PUBLICATION p FOR TABLE t;});
$sub->safe_psql('postgres', 'CREATE TABLE t (a int, b text)');
subscribe($pub, $sub, 's', 'p');
wait_until($sub, 'the error to be kept',
	q{SELECT max(length(last_error)) > 10000 FROM reuse_sync.tables});

# From 18 on the snapshot of catalogs is never enough: nobody gets any further.
my $tries = 'SELECT max(attempts) FROM reuse_sync.tables';
wait_until(
	$sub,
	'the error to be read, and another to be kept',
	sub {
		return slurp_file($sub->logfile) =~ $error
		  || $sub->safe_psql('postgres', $tries) > 2;
	});
if (!unlike(slurp_file($sub->logfile), $error, 'no error when it is read'))
{
	done_testing();
	exit;
}

# The next worker that looks at the table, and the one that keeps its next error
foreach my $point ('row_found:table_progress_key', 'row_changes:table_progress')
{
	my $offset = -s $sub->logfile;

	hold($sub, $point);
	wait_held($sub, $point);
	$sub->safe_psql('postgres', 'CREATE TABLE other (); DROP TABLE other');
	release($sub);
	$sub->wait_for_log(qr/invalid input syntax|$error/, $offset);
	my $before = $sub->safe_psql('postgres', $tries);
	wait_until($sub, 'the next try', "SELECT ($tries) > $before");
	unlike(slurp_file($sub->logfile, $offset), $error, "no error at $point");
}

$sub->safe_psql('postgres', 'ALTER TABLE t ALTER a TYPE text');
settled_rows_ok($pub, $sub, 't');

done_testing();
