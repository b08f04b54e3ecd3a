# Initial copy of partitioned tables: as their partitions or as their root, on
# either side or both, partitioned alike or not.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use ReuseSync;
use ReuseSync::Cases;

my $pub = new_publisher('pub');
my $sub = new_subscriber('sub', wal_retrieve_retry_interval => '200ms');

# Which partition a row is in matters in most cases; the name comes with it.
sub placed { return "SELECT tableoid::regclass::text AS place, * FROM $_[0]" }

#
# publish_via_partition_root = false: each partition is a table of its own
#

my @as_leaves = (
	{
		name => 'the same partitions on both sides',
		both => q{CREATE TABLE same (a int PRIMARY KEY, b text)
					PARTITION BY RANGE (a);
				CREATE TABLE same_1 PARTITION OF same FOR VALUES FROM (0) TO (10);
				CREATE TABLE same_2 PARTITION OF same FOR VALUES FROM (10) TO (20);
				CREATE TABLE same_d PARTITION OF same DEFAULT},
		pub => q{INSERT INTO same SELECT i, i FROM generate_series(-3, 25) i},
		publish => 'same',
		later   => q{UPDATE same SET b = 'x' WHERE a IN (1, 11, 21);
				UPDATE same SET a = 30 WHERE a = 2;
				DELETE FROM same WHERE a IN (3, 13, 23)},
		rows => placed('same'),
	},
	{
		name => 'partitions into plain tables',
		pub  => q{CREATE TABLE into_plain (a int PRIMARY KEY, b text)
					PARTITION BY RANGE (a);
				CREATE TABLE into_plain_1 PARTITION OF into_plain
					FOR VALUES FROM (0) TO (10);
				CREATE TABLE into_plain_2 PARTITION OF into_plain
					FOR VALUES FROM (10) TO (20);
				INSERT INTO into_plain SELECT i, i FROM generate_series(0, 19) i},
		sub => q{CREATE TABLE into_plain_1 (a int PRIMARY KEY, b text);
				CREATE TABLE into_plain_2 (a int PRIMARY KEY, b text)},
		publish  => 'into_plain',
		later    => q{DELETE FROM into_plain WHERE a IN (0, 19);
				UPDATE into_plain SET b = 'moved', a = 19 WHERE a = 1;
				UPDATE into_plain SET b = 'moved', a = 0 WHERE a = 18},
		rows     => placed('into_plain'),
		rows_sub => placed('into_plain_1') . ' UNION ALL '
		  . placed('into_plain_2'),
	},
	{
		name => 'a partition into a table that is partitioned itself',
		pub  => q{CREATE TABLE deeper (a int, b int, PRIMARY KEY (a, b))
					PARTITION BY LIST (a);
				CREATE TABLE deeper_1 PARTITION OF deeper FOR VALUES IN (1);
				CREATE TABLE deeper_2 PARTITION OF deeper FOR VALUES IN (2);
				INSERT INTO deeper SELECT i % 2 + 1, i
					FROM generate_series(1, 40) i},
		sub => q{CREATE TABLE deeper (a int, b int, PRIMARY KEY (a, b))
					PARTITION BY LIST (a);
				CREATE TABLE deeper_1 PARTITION OF deeper FOR VALUES IN (1)
					PARTITION BY HASH (b);
				CREATE TABLE deeper_1_0 PARTITION OF deeper_1
					FOR VALUES WITH (MODULUS 2, REMAINDER 0);
				CREATE TABLE deeper_1_1 PARTITION OF deeper_1
					FOR VALUES WITH (MODULUS 2, REMAINDER 1);
				CREATE TABLE deeper_2 PARTITION OF deeper FOR VALUES IN (2)},
		publish => 'deeper',
		later   => q{UPDATE deeper SET b = b + 100 WHERE b < 5;
				DELETE FROM deeper WHERE b BETWEEN 5 AND 8},
		rows => 'deeper',
	},
	{
		name => 'partitions with other columns, in another order',
		pub  => q{CREATE TABLE uneven (a int, b text, c int)
					PARTITION BY RANGE (a);
				CREATE TABLE uneven_1 (gone int, c int, b text, a int NOT NULL);
				ALTER TABLE uneven_1 DROP COLUMN gone;
				ALTER TABLE uneven ATTACH PARTITION uneven_1
					FOR VALUES FROM (0) TO (10);
				CREATE TABLE uneven_2 PARTITION OF uneven
					FOR VALUES FROM (10) TO (20);
				ALTER TABLE uneven ADD PRIMARY KEY (a);
				INSERT INTO uneven SELECT i, 'b' || i, -i
					FROM generate_series(0, 19) i},
		sub => q{CREATE TABLE uneven (c int, a int PRIMARY KEY, b text,
					extra text DEFAULT 'local') PARTITION BY RANGE (a);
				CREATE TABLE uneven_1 PARTITION OF uneven
					FOR VALUES FROM (0) TO (10);
				CREATE TABLE uneven_2 (b text, extra text, a int NOT NULL, z int,
					c int);
				ALTER TABLE uneven_2 DROP COLUMN z;
				ALTER TABLE uneven ATTACH PARTITION uneven_2
					FOR VALUES FROM (10) TO (20)},
		publish => 'uneven',
		later   => q{UPDATE uneven SET b = 'x' WHERE a IN (1, 11);
				INSERT INTO uneven_1 (a, b, c) VALUES (9, 'again', 9)
					ON CONFLICT (a) DO UPDATE SET b = 'conflict'},
		rows => 'SELECT tableoid::regclass::text, a, b, c FROM uneven',
	},
	{
		name => 'a partition published alone, and filtered',
		pub  => q{CREATE TABLE lone (a int PRIMARY KEY, b text)
					PARTITION BY RANGE (a);
				CREATE TABLE lone_1 PARTITION OF lone FOR VALUES FROM (0) TO (10);
				CREATE TABLE lone_2 PARTITION OF lone
					FOR VALUES FROM (10) TO (20);
				INSERT INTO lone SELECT i, i FROM generate_series(0, 19) i},
		sub      => 'CREATE TABLE lone_2 (a int PRIMARY KEY, b text)',
		publish  => 'lone_2 WHERE (a > 14)',
		later    => q{INSERT INTO lone_2 VALUES (14, 'out')
					ON CONFLICT (a) DO NOTHING;
				DELETE FROM lone WHERE a IN (4, 15)},
		rows     => 'SELECT * FROM lone WHERE a > 14',
		rows_sub => 'lone_2',
	},
	{
		name => 'three levels',
		both => q{CREATE TABLE levels (a int, b int, c text, PRIMARY KEY (a, b))
					PARTITION BY RANGE (a);
				CREATE TABLE levels_1 PARTITION OF levels
					FOR VALUES FROM (0) TO (10) PARTITION BY LIST (b);
				CREATE TABLE levels_1_1 PARTITION OF levels_1 FOR VALUES IN (1);
				CREATE TABLE levels_1_d PARTITION OF levels_1 DEFAULT;
				CREATE TABLE levels_2 PARTITION OF levels
					FOR VALUES FROM (10) TO (20)},
		pub => q{INSERT INTO levels SELECT i, i % 3, 'c' || i
				FROM generate_series(0, 19) i},
		publish => 'levels',
		later   => q{UPDATE levels SET b = 1 WHERE a IN (2, 12);
				DELETE FROM levels WHERE a IN (4, 14)},
		rows => placed('levels'),
	},
	{
		name => 'a partitioned table without partitions',
		both => q{CREATE TABLE barren (a int PRIMARY KEY)
					PARTITION BY RANGE (a)},
		publish => 'barren',
		rows    => 'barren',
		sees    => [''],
	});

run_cases($pub, $sub, 'leaves', \@as_leaves);

#
# publish_via_partition_root = true: the root is the table
#

my @as_root = (
	{
		name => 'partitioned into plain',
		pub  => q{CREATE TABLE root_plain (a int PRIMARY KEY, b text)
					PARTITION BY RANGE (a);
				CREATE TABLE root_plain_1 PARTITION OF root_plain
					FOR VALUES FROM (0) TO (10);
				CREATE TABLE root_plain_2 PARTITION OF root_plain
					FOR VALUES FROM (10) TO (20);
				INSERT INTO root_plain SELECT i, i FROM generate_series(0, 19) i},
		sub     => 'CREATE TABLE root_plain (b text, a int PRIMARY KEY)',
		publish => 'root_plain',
		later   => q{UPDATE root_plain SET b = 'x' WHERE a IN (1, 11);
				DELETE FROM root_plain WHERE a = 2;
				UPDATE root_plain SET a = 2 WHERE a = 12},
		rows => 'SELECT a, b FROM root_plain',
	},
	{
		name => 'plain into partitioned',
		pub  => q{CREATE TABLE plain_root (a int PRIMARY KEY, b text);
				INSERT INTO plain_root SELECT i, i FROM generate_series(0, 19) i},
		sub => q{CREATE TABLE plain_root (a int PRIMARY KEY, b text)
					PARTITION BY RANGE (a);
				CREATE TABLE plain_root_1 PARTITION OF plain_root
					FOR VALUES FROM (0) TO (10);
				CREATE TABLE plain_root_2 (gone int, b text, a int NOT NULL);
				ALTER TABLE plain_root_2 DROP COLUMN gone;
				ALTER TABLE plain_root ATTACH PARTITION plain_root_2 DEFAULT},
		publish => 'plain_root',
		later   => q{UPDATE plain_root SET a = a + 100 WHERE a < 5;
				DELETE FROM plain_root WHERE a = 15},
		rows => q{SELECT CASE WHEN a < 10 THEN 'plain_root_1'
				ELSE 'plain_root_2' END, * FROM plain_root},
		rows_sub => placed('plain_root'),
	},
	{
		name => 'partitioned by range into partitioned by hash',
		pub  => q{CREATE TABLE root_other (a int PRIMARY KEY, b text)
					PARTITION BY RANGE (a);
				CREATE TABLE root_other_1 PARTITION OF root_other
					FOR VALUES FROM (0) TO (10);
				CREATE TABLE root_other_2 PARTITION OF root_other DEFAULT;
				INSERT INTO root_other SELECT i, i FROM generate_series(0, 50) i},
		sub => q{CREATE TABLE root_other (a int PRIMARY KEY, b text)
					PARTITION BY HASH (a);
				CREATE TABLE root_other_h0 PARTITION OF root_other
					FOR VALUES WITH (MODULUS 3, REMAINDER 0);
				CREATE TABLE root_other_h1 PARTITION OF root_other
					FOR VALUES WITH (MODULUS 3, REMAINDER 1);
				CREATE TABLE root_other_h2 PARTITION OF root_other
					FOR VALUES WITH (MODULUS 3, REMAINDER 2)},
		publish => 'root_other',
		later   => q{UPDATE root_other SET a = a + 100 WHERE a < 5;
				DELETE FROM root_other WHERE a > 140},
		rows => 'root_other',
	},
	{
		name => 'three levels, with a row filter and a column list',
		pub  => q{CREATE TABLE root_levels (a int, b int, c text, secret text,
					PRIMARY KEY (a, b)) PARTITION BY RANGE (a);
				CREATE TABLE root_levels_1 PARTITION OF root_levels
					FOR VALUES FROM (0) TO (10) PARTITION BY LIST (b);
				CREATE TABLE root_levels_1_1 (secret text, c text,
					b int NOT NULL, a int NOT NULL);
				ALTER TABLE root_levels_1 ATTACH PARTITION root_levels_1_1
					FOR VALUES IN (1);
				CREATE TABLE root_levels_1_d PARTITION OF root_levels_1 DEFAULT;
				CREATE TABLE root_levels_d PARTITION OF root_levels DEFAULT;
				INSERT INTO root_levels SELECT i, i % 3, 'c' || i, 's' || i
					FROM generate_series(0, 19) i},
		sub => q{CREATE TABLE root_levels (a int, b int, c text,
					PRIMARY KEY (a, b)) PARTITION BY LIST (b);
				CREATE TABLE root_levels_b1 PARTITION OF root_levels
					FOR VALUES IN (1);
				CREATE TABLE root_levels_bx PARTITION OF root_levels DEFAULT},
		publish => 'root_levels (a, b, c) WHERE (a % 4 <> 0)',
		later   => q{UPDATE root_levels SET b = 1 WHERE a IN (2, 5, 14);
				INSERT INTO root_levels VALUES (20, 1, 'out', 's'),
					(21, 1, 'in', 's')},
		rows => q{SELECT CASE WHEN b = 1 THEN 'root_levels_b1'
				ELSE 'root_levels_bx' END, a, b, c FROM root_levels
				WHERE a % 4 <> 0},
		rows_sub => placed('root_levels'),
	},
	{
		name => 'the middle of three levels published',
		pub  => q{CREATE TABLE middle (a int, b int, PRIMARY KEY (a, b))
					PARTITION BY RANGE (a);
				CREATE TABLE middle_1 PARTITION OF middle
					FOR VALUES FROM (0) TO (10) PARTITION BY LIST (b);
				CREATE TABLE middle_1_1 PARTITION OF middle_1 FOR VALUES IN (1);
				CREATE TABLE middle_1_d PARTITION OF middle_1 DEFAULT;
				CREATE TABLE middle_d PARTITION OF middle DEFAULT;
				INSERT INTO middle SELECT i, i % 3 FROM generate_series(0, 19) i},
		sub     => 'CREATE TABLE middle_1 (a int, b int, PRIMARY KEY (a, b))',
		publish => 'middle_1',
		later   => q{UPDATE middle SET b = 1 WHERE a IN (2, 12);
				DELETE FROM middle WHERE a IN (4, 14)},
		rows     => 'SELECT a, b FROM middle WHERE a < 10',
		rows_sub => 'middle_1',
	},
	{
		name => 'root with no rows, and a partition attached later',
		pub  => q{CREATE TABLE root_empty (a int PRIMARY KEY)
					PARTITION BY RANGE (a);
				CREATE TABLE root_empty_1 PARTITION OF root_empty
					FOR VALUES FROM (0) TO (10)},
		sub     => 'CREATE TABLE root_empty (a int PRIMARY KEY)',
		publish => 'root_empty',
		later   => q{CREATE TABLE root_empty_2 PARTITION OF root_empty DEFAULT;
				INSERT INTO root_empty VALUES (1), (11)},
		rows  => 'root_empty',
		empty => 1,
	});

# These publications stand alone, for the option belongs to all of one.
foreach my $case (@as_root)
{
	(my $publication = $case->{publish}) =~ s/\W.*//;
	$case->{pub} .= "; CREATE PUBLICATION ${publication}_pub"
	  . " FOR TABLE $case->{publish} WITH (publish_via_partition_root)";
	$case->{publication} = "${publication}_pub";
	delete $case->{publish};
}

run_cases($pub, $sub, 'roots', \@as_root,
	publications => [ map { $_->{publication} } @as_root ]);

#
# New partitions, found by REFRESH, that have rows before they are published
#

run_cases(
	$pub, $sub, 'leaves',
	[
		{
			name => 'a new partition that had rows before it was attached',
			both => 'CREATE TABLE same_3 (a int PRIMARY KEY, b text)',
			pub  => q{DELETE FROM same_d WHERE a BETWEEN 20 AND 29;
				INSERT INTO same_3 SELECT i, 'attached'
					FROM generate_series(20, 29) i;
				ALTER TABLE same ATTACH PARTITION same_3
					FOR VALUES FROM (20) TO (30)},
			later => q{UPDATE same SET b = 'later' WHERE a = 25;
				DELETE FROM same WHERE a = 26},
			rows => 'same_3',
		}
	],
	refresh => 1);

# Only the subscriber's own tree is left to compare.
catch_up($pub, $sub, 'leaves');
$sub->safe_psql('postgres',
	'ALTER TABLE same ATTACH PARTITION same_3 FOR VALUES FROM (20) TO (30)');
rows_ok($pub, $sub, placed('same'), 'the whole tree after that');

no_leftovers_ok($pub, $sub, 'no slot and no origin left');
no_builtin_sync_ok($sub);

done_testing();
