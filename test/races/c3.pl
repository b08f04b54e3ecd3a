# C3: the publisher has been replaced by a copy of itself that was promoted, and
# somebody has made slots there with the names of the old ones.  The positions
# of the old server mean nothing on the new one.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Races;

my ($old, $sub) = race_servers();
my $new = PostgreSQL::Test::Cluster->new('new');

race_tables($old, $sub, 't1', 't2', 't3');
$old->stop;
$old->backup_fs_cold('copy');
$old->start;
$new->init_from_backup($old, 'copy');
$new->set_standby_mode;
$new->start;
$new->promote;

# The second table fails when the old server goes; its slot is tried for the
# third.  The old server gets far ahead in its WAL, and the new one in its xids.
$old->safe_psql('postgres',
	"SELECT pg_logical_emit_message(false, '', repeat('x', 10000000))");
$new->safe_psql('postgres', 'SELECT txid_current();' x 50);

my $hosts = $old->host . ',' . $new->host;
my $ports = $old->port . ',' . $new->port;
hold($sub, 'snapshot:t2');
$sub->safe_psql('postgres',
	"CREATE SUBSCRIPTION s CONNECTION 'host=$hosts port=$ports dbname=postgres'"
	  . ' PUBLICATION p');
wait_held($sub, 'snapshot:t2');

foreach my $slot ('s', sync_slot_name($old))
{
	$new->safe_psql('postgres',
		"SELECT pg_create_logical_replication_slot('$slot', 'pgoutput')");
}
my $writer = session($new);
$writer->query_safe("BEGIN; INSERT INTO t3 VALUES (1, 'on the new server')");
$old->stop('immediate');
hold($sub, 'register_slot', 'copied:t3');
wait_held($sub, 'register_slot', 'copied:t3');
$writer->query_safe('COMMIT');
$writer->quit;
release($sub);
wait_states($sub, 's', q{count(*) FILTER (WHERE srsubstate IN ('s', 'r')) = 3});
rows_ok($new, $sub, 't3', 'rows of table t3');

done_testing();
