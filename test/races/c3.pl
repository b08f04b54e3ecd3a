# C3: the publisher has been replaced by a copy of itself that was promoted, and
# somebody has made a slot there with the name of the old one.  Neither the
# copied rows nor the position of the old server mean anything on the new one.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use ReuseSync;
use Races;

my ($old, $sub) = race_servers();
my $new = PostgreSQL::Test::Cluster->new('new');

race_tables($old, $sub, 't');
$old->stop;
$old->backup_fs_cold('copy');
$old->start;
$new->init_from_backup($old, 'copy');
$new->set_standby_mode;
$new->start;
$new->promote;

# The old server gets far ahead, so that the new slot can start where the old
# one would go on.
$old->safe_psql(
	'postgres', q{
	INSERT INTO t VALUES (1, 'on the old server only');
	SELECT pg_logical_emit_message(false, '', repeat('x', 10000000))});

my $hosts = $old->host . ',' . $new->host;
my $ports = $old->port . ',' . $new->port;
hold($sub, 'copied:t');
$sub->safe_psql('postgres',
	"CREATE SUBSCRIPTION s CONNECTION 'host=$hosts port=$ports dbname=postgres'"
	  . ' PUBLICATION p');
wait_held($sub, 'copied:t');

foreach my $slot ('s', sync_slot_name($old))
{
	$new->safe_psql('postgres',
		"SELECT pg_create_logical_replication_slot('$slot', 'pgoutput')");
}
$old->stop('immediate');
release($sub);
wait_states($sub, 's', q{count(*) FILTER (WHERE srsubstate IN ('s', 'r')) = 1});
rows_ok($new, $sub, 't', 'rows of table t');

done_testing();
