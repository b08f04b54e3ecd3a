# A table is renamed on the publisher after its copy.  What is written to it
# from then on comes by the new name, for which there is no table here until it
# is renamed here as well; it is not to be taken for changes of somebody else's
# table and passed over.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Races;

my ($pub, $sub) = race_servers();

race_tables($pub, $sub, 't');
hold($sub, 'copy_done:t');
subscribe($pub, $sub, 's', 'p');
wait_held($sub, 'copy_done:t');
$pub->safe_psql(
	'postgres', q{
	INSERT INTO t VALUES (1, 'by the old name');
	ALTER TABLE t RENAME TO u;
	INSERT INTO u VALUES (2, 'by the new name')});

# The apply worker gets no further than this before there is such a table.
$sub->wait_for_log(qr/target relation "public\.u" does not exist/);
my $offset = -s $sub->logfile;
release($sub);
wait_until(
	$sub,
	'the end of the unit',
	q{
	SELECT srsubstate IN ('s', 'r') OR attempts > 0
	FROM pg_subscription_rel JOIN reuse_sync.tables ON relid = srrelid});
$sub->safe_psql('postgres', 'ALTER TABLE t RENAME TO u');
settled_rows_ok($pub, $sub, 'u');

done_testing();
