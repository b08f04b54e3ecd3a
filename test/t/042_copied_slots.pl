# A transaction that stays open on the publisher holds up the first slot of a
# subscription at most: further workers have it copied.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

use CatchUp;
use ReuseSync;

my $tables = 40;
my $pub    = new_publisher('pub');
my $sub    = new_subscriber(
	'sub',
	'reuse_sync.batch_tables'                 => 1,
	'reuse_sync.max_workers_per_subscription' => 1);
my $catchup = CatchUp->new($pub, $sub);
my @names   = map { "t$_" } 1 .. $tables;

both($pub, $sub, join(';', map { "CREATE TABLE $_ (a int PRIMARY KEY)" }
		'held', @names));
$pub->safe_psql('postgres',
	join(';', map { "INSERT INTO $_ SELECT generate_series(1, 3)" } @names)
	  . ';INSERT INTO held SELECT generate_series(1, 10000)'
	  . ';CREATE PUBLICATION p FOR TABLE '
	  . join(', ', 'held', @names));

# The first worker has a slot, and is stopped in the copy of the largest table.
$catchup->close_gate('held');
subscribe($pub, $sub, 's', 'p');
$catchup->wait_at_gates(['held'], []);

my $writer = $catchup->session('pub');
$writer->query_safe('BEGIN');
$writer->query_safe("INSERT INTO $_ VALUES (4)") foreach @names;

$sub->append_conf('postgresql.conf',
	'reuse_sync.max_workers_per_subscription = 4');
$sub->reload;
wait_states($sub, 's', q{count(*) FILTER (WHERE srsubstate <> 'r') = 1});
is( $sub->safe_psql('postgres',
		q{SELECT srrelid::regclass, srsubstate FROM pg_subscription_rel
		WHERE srsubstate <> 'r'}) =~ s/[id]$//r,
	'held|',
	'all but the table that is held are ready while a transaction is open');
cmp_ok(
	$sub->safe_psql('postgres',
		'SELECT slots_created FROM reuse_sync.stats'),
	'>', 1, 'there was more than one slot');

$catchup->open_gate('held');
wait_ready($sub, 's');
$writer->query_safe('COMMIT');
end_session($writer);
catch_up($pub, $sub, 's');
rows_ok($pub, $sub, $_, "contents of $_") foreach 'held', $names[0], $names[-1];
is( $sub->safe_psql('postgres',
		'SELECT ' . join(' + ', map { "(SELECT count(*) FROM $_)" } @names)),
	4 * $tables, 'every table has the rows of the open transaction');
no_leftovers_ok($pub, $sub, 'nothing is left');
$catchup->finish;

done_testing();
