# Initial copy of tables, schemas and columns with names of all kinds, and
# between databases of different encodings.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use ReuseSync;
use ReuseSync::Cases;

my $pub = new_publisher('pub');
my $sub = new_subscriber(
	'sub',
	wal_retrieve_retry_interval     => '200ms',
	max_worker_processes            => 24,
	max_logical_replication_workers => 14);

#
# Names.  The strings are bytes in UTF-8, as is everything sent to the servers.
#

my @names = (
	'has space',
	' space around ',
	'has"quote',
	'"',
	'""both""',
	"has'apostrophe",
	"'",
	'has.dot',
	'.',
	'back\\slash',
	'\\',
	'ends in backslash\\',
	'per%cent %s %n %d %%',
	"new\nline",
	"tab\tand\rreturn",
	'UPPER',
	'MixedCase',
	'select',
	'table',
	'user',
	'null',
	'1digit',
	'$1',
	'$$body$$',
	'a,b',
	'(a)',
	'{a}',
	'[1]',
	'*',
	'--comment',
	'/*comment*/',
	'semi;colon',
	'pg_temp',
	'*=@:?&#!~`^|<>',
	"\xc3\xa4\xc3\xb6\xc3\xbc \xc3\x9f",          # latin letters
	"\xe8\xa1\xa8\xe3\x81\xae\xe5\x90\x8d",       # three bytes each
	"\xf0\x9f\x90\x98",                           # four bytes
	'x' x 63,
	"\xc3\xa9" x 31,                              # 62 bytes
	'"' x 63,
	"'\\" x 31);

my @cases;
foreach my $name (@names)
{
	my $quoted = ident($name);
	(my $shown = $name) =~ s/[\n\t\r]/?/g;
	$shown = substr($shown, 0, 20) . '...' if length($shown) > 40;

	# pg_temp means something as a schema.
	my $schema = $name eq 'pg_temp' ? ident("the $name") : $quoted;

	push @cases,
	  {
		name => "schema, table and column called $shown",
		both => "CREATE SCHEMA $schema;
			CREATE TABLE $schema.$quoted ($quoted int PRIMARY KEY, v text)",
		pub => "INSERT INTO $schema.$quoted VALUES (1, "
		  . literal($name) . "), (2, 'two')",
		publish => "$schema.$quoted",
		later   => "UPDATE $schema.$quoted SET v = v || '!' WHERE $quoted = 1;
			DELETE FROM $schema.$quoted WHERE $quoted = 2",
		rows => "$schema.$quoted",
	  },
	  {
		name => "filtered table and column list with $shown",
		both => "CREATE TABLE filtered.$quoted ($quoted text PRIMARY KEY,
			other text)",
		pub => "INSERT INTO filtered.$quoted VALUES ("
		  . literal($name)
		  . ", 'x'), ('out', 'y')",
		publish => "filtered.$quoted ($quoted) WHERE ($quoted <> 'out')",
		later   => "INSERT INTO filtered.$quoted VALUES ('in', 'z'),
			('not' || " . literal($name) . ", 'z')",
		rows => "SELECT $quoted, NULL::text AS other FROM filtered.$quoted
			WHERE $quoted <> 'out'",
		rows_sub => "filtered.$quoted",
	  };
}

$cases[0]{both} = 'CREATE SCHEMA filtered; ' . $cases[0]{both};
run_cases($pub, $sub, 'names', \@cases);

#
# Names of the publication, the subscription and the types.  The publication
# has a name that is hard to quote in a list of quoted names.
#

my $publication  = qq{pub, "li'ca\\tion" %s};
my $publication2 = "publikation \xc3\xa4";
my $subscription = qq{sub "scr'ip\\tion" %s \xe8\xa1\xa8};
my $type         = ident(q{my "ty'pe});

both($pub, $sub, "CREATE SCHEMA \"ty.pes\";
	CREATE TYPE \"ty.pes\".$type AS ENUM ('one', 'two''s', 'd''\"r,ei');
	CREATE TABLE named_type (a \"ty.pes\".$type PRIMARY KEY,
		b \"ty.pes\".$type" . "[]);
	CREATE TABLE second (a int PRIMARY KEY)");
$pub->safe_psql('postgres',
	"INSERT INTO named_type VALUES ('two''s', ARRAY['one', 'd''\"r,ei']::\"ty.pes\".$type"
	  . "[]), ('one', NULL);
	INSERT INTO second VALUES (1);
	CREATE PUBLICATION " . ident($publication) . " FOR TABLE named_type;
	CREATE PUBLICATION " . ident($publication2) . " FOR TABLE second");
subscribe($pub, $sub, ident($subscription),
	ident($publication) . ', ' . ident($publication2),
	with => "slot_name = 'odd_names'");
wait_ready($sub, $subscription);
rows_ok($pub, $sub, 'named_type', 'odd names of publication and type, copy');
rows_ok($pub, $sub, 'second', 'second publication with an odd name, copy');
$pub->safe_psql('postgres', q{
	UPDATE named_type SET b = '{}' WHERE a = 'one';
	INSERT INTO second VALUES (2)});
catch_up($pub, $sub, $subscription);
rows_ok($pub, $sub, 'named_type',
	'odd names of publication and type, later changes');
rows_ok($pub, $sub, 'second',
	'second publication with an odd name, later changes');

#
# Encodings.  The same text, with letters both encodings have, in databases of
# all pairs of encodings; identifiers have such letters too.
#

my @encodings = qw(UTF8 LATIN1 WIN1252 SQL_ASCII);
foreach my $encoding (@encodings)
{
	$_->safe_psql('postgres',
		"CREATE DATABASE \"db $encoding\" ENCODING '$encoding'"
		  . " LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
	  foreach ($pub, $sub);
	create_extension($sub, "db $encoding");
}

my $umlaut = "\xc3\xa4\xc3\xb6\xc3\xbc";
foreach my $pair (
	[ 'UTF8',    'LATIN1' ],
	[ 'LATIN1',  'UTF8' ],
	[ 'WIN1252', 'UTF8' ],
	[ 'LATIN1',  'LATIN1' ])
{
	my ($from, $to) = @$pair;
	my $subname = lc "enc_${from}_$to";
	my $table   = ident("t\xc3\xa4ble_$subname");
	my $enum    = ident("st\xc3\xa4te_$subname");
	my $column  = ident($umlaut);

	run_cases(
		$pub, $sub, $subname,
		[
			{
				name => "$from to $to",
				both => "CREATE TYPE $enum AS ENUM ('$umlaut', '\xc3\xbf');
					CREATE TABLE $table ($column text PRIMARY KEY, b $enum,
						c text)",
				pub => "INSERT INTO $table VALUES
					('$umlaut', '$umlaut', NULL),
					('\xc2\xa7\xc2\xa0\xc3\x97', '\xc3\xbf', E'\xc3\xa9\\t\\n\\\\'),
					(repeat('\xc3\xa4', 100), NULL, repeat('\xc3\xb1', 70000))",
				publish =>
				  "$table ($column, b, c) WHERE ($column <> '\xc3\x9f')",
				later => "INSERT INTO $table VALUES ('\xc3\x9f', NULL, 'out'),
						('\xc3\x98', NULL, '\xc3\xa5');
					UPDATE $table SET c = '\xc3\xa0' WHERE $column = '$umlaut'",
				rows     => "SELECT * FROM $table WHERE $column <> '\xc3\x9f'",
				rows_sub => "SELECT * FROM $table",
			}
		],
		pub_db => "db $from",
		sub_db => "db $to");
}

# Bytes that are not text of any encoding go through between two databases
# that do not look.
my $raw = 'SELECT a, convert_to(b, getdatabaseencoding()) FROM raw_bytes';
$_->safe_psql('db SQL_ASCII',
	'CREATE TABLE raw_bytes (a int PRIMARY KEY, b text)')
  foreach ($pub, $sub);
$pub->safe_psql('db SQL_ASCII', "SET client_encoding = 'SQL_ASCII';
	INSERT INTO raw_bytes VALUES (1, E'\\xff\\xfe\\x80'), (2, E'\\xc3'),
		(3, E'a\\xe4\\\\b');
	CREATE PUBLICATION raw_pub FOR TABLE raw_bytes");
subscribe($pub, $sub, 'raw', 'raw_pub',
	pub_db => 'db SQL_ASCII',
	sub_db => 'db SQL_ASCII');
wait_ready($sub, 'raw', db => 'db SQL_ASCII');
rows_ok($pub, $sub, $raw, 'SQL_ASCII to SQL_ASCII, copy',
	undef, pub_db => 'db SQL_ASCII', sub_db => 'db SQL_ASCII');
$pub->safe_psql('db SQL_ASCII', "SET client_encoding = 'SQL_ASCII';
	UPDATE raw_bytes SET b = E'\\x81\\x82' WHERE a = 2");
catch_up($pub, $sub, 'raw', db => 'db SQL_ASCII');
rows_ok($pub, $sub, $raw, 'SQL_ASCII to SQL_ASCII, later changes',
	undef, pub_db => 'db SQL_ASCII', sub_db => 'db SQL_ASCII');

no_leftovers_ok($pub, $sub, 'no slot and no origin left');
no_builtin_sync_ok($sub);

done_testing();
