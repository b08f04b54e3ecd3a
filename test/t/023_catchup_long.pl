# More transactions in a catch-up than a worker keeps in mind: it does, and takes
# a new slot for the next table, since it does not know what a snapshot would have
# to see for the old one.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use CatchUp;

plan skip_all => 'the server creates a slot for every table'
  unless with_extension();

my $pub = new_publisher('pub', synchronous_commit => 'off', fsync => 'off');
my $sub = new_subscriber(
	'sub',
	'reuse_sync.batch_size'                   => 0,
	'reuse_sync.max_workers_per_subscription' => 1);
my $catchup = CatchUp->new($pub, $sub);

both($pub, $sub, "CREATE TABLE $_ (a int PRIMARY KEY)")
  foreach qw(large small other);
$pub->safe_psql(
	'postgres', q{
	INSERT INTO large SELECT generate_series(1, 1000);
	INSERT INTO small VALUES (1);
	CREATE PUBLICATION p FOR ALL TABLES;});
$catchup->close_gate('large');
subscribe($pub, $sub, 's', 'p');
$catchup->wait_at_gates(['large']);
$pub->safe_psql(
	'postgres', q{
	DO $$ BEGIN
		FOR i IN 1 .. 70000 LOOP
			INSERT INTO other VALUES (i);
			COMMIT;
		END LOOP;
	END $$});
$pub->safe_psql('postgres', 'INSERT INTO large VALUES (0)');
$catchup->open_gate('large');
wait_ready($sub, 's');
catch_up($pub, $sub, 's');
rows_ok($pub, $sub, $_, "rows of table $_") foreach qw(large small);
rows_ok($pub, $sub, 'SELECT count(*), sum(a) FROM other',
	'rows of table other');
is( $sub->safe_psql('postgres',
		'SELECT slots_created, slots_reused FROM reuse_sync.stats'),
	'2|1',
	'the other tables had a new slot');

$catchup->finish;
no_leftovers_ok($pub, $sub);
done_testing();
