# Initial copy of values of all types, while both servers have settings for
# their sessions that change how values are written and read.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use ReuseSync;
use ReuseSync::Cases;

my $pub = new_publisher('pub');
my $sub = new_subscriber('sub', wal_retrieve_retry_interval => '200ms');

my $own_types = q{
	CREATE SCHEMA odd;
	CREATE TABLE public.target ();
	CREATE TYPE odd.colour AS ENUM ('red', 'light green', 'a,b', '');
	CREATE DOMAIN odd.positive AS int CHECK (VALUE > 0);
	CREATE DOMAIN odd.stamps AS timestamptz[] NOT NULL DEFAULT '{}';
	CREATE TYPE odd.pair AS (d date, t text, c odd.colour);
	CREATE TYPE odd.nested AS (p odd.pair, i interval, a text[]);
	CREATE TYPE odd.stamp_range AS RANGE (subtype = timestamptz,
		multirange_type_name = odd.stamp_ranges);
	CREATE FUNCTION odd.doit() RETURNS int LANGUAGE sql AS 'SELECT 1';
};

# Type, and the values as SQL has them.
my @types = (
	[ 'boolean',       'true', 'false' ],
	[ 'smallint',      '-32768', '32767' ],
	[ 'integer',       '-2147483648', '2147483647' ],
	[ 'bigint',        '-9223372036854775808', '9223372036854775807' ],
	[ 'numeric',       qw('NaN' 'Infinity' '-Infinity' 1e-300 -1.50),
		'123456789012345678901234567890.123456789000' ],
	[ 'numeric(12,3)', '123456789.1234', '0', '-0.001' ],
	[ 'real',          qw('NaN' 'Infinity' '-Infinity' 1.17549435e-38
		3.4028235e38 0.1 '-0' 16777217) ],
	[ 'double precision', qw('NaN' 'Infinity' '-Infinity' 0.1::float8+0.2
		5e-324 1.7976931348623157e308 '-0' 1e15 123456789.123456789) ],
	[ 'money',         q{'12.34'}, q{'-1234567.89'} ],
	[ 'text',          q{''}, q{E'tab\tnew\nback\\\\'}, q{E'\u00e4\u8868'} ],
	[ 'varchar(5)',    q{'12345'}, q{' '} ],
	[ 'char(5)',       q{'ab'}, q{''} ],
	[ '"char"',        q{'x'}, q{''} ],
	[ 'name',          q{'a name'}, q{''} ],
	[ 'bytea',         q{'\x'}, q{'\x00ff5c0a090d275c4e'},
		q{decode(repeat('00ff80', 5000), 'hex')} ],
	[ 'date',          qw('infinity' '-infinity' '2020-02-03'
		'0044-03-15BC' '5874897-12-31') ],
	[ 'time',          qw('00:00' '24:00' '04:05:06.123456') ],
	[ 'timetz',        qw('04:05:06.5+05:30' '04:05-12') ],
	[ 'timestamp',     qw('infinity' '-infinity' '2020-02-03T04:05:06.123456'
		'294276-12-31T23:59:59.999999'), q{'0001-01-01 00:00 BC'} ],
	[ 'timestamp(0)',  q{'2020-02-03 04:05:06.9'} ],
	[ 'timestamptz',   qw('infinity' '-infinity' '2020-02-03T04:05:06.1+09'
		'2021-07-01T00:00-11'), q{'0100-01-02 00:00+00 BC'} ],
	[ 'interval',      q{'-1 year 2 days -03:04:05.678'}, q{'1 mon'}, q{'0'},
		q{'-1 day 2 mons'}, q{'178000000 years'}, q{'-0.000001 s'},
		q{'1 year -1 mon 1 day -1 h'} ],
	[ 'uuid',          q{'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'} ],
	[ 'json',          q{E'{"b" : 1,\n "a":[null, "\\\\u00e4\\\\n"], "b":2}'}, q{'""'} ],
	[ 'jsonb',         q{E'{"b": 1.50, "a": [null, "\\\\u00e4\\\\n"]}'}, q{'null'},
		q{'1e400'} ],
	[ 'jsonpath',      q{'$.a[*] ? (@ > 1 && @."b c" != "x")'} ],
	[ 'xml',           q{'<a b="1">&lt;text&gt;</a>'}, q{'two <b/> parts'} ],
	[ 'inet',          q{'192.168.0.1/24'}, q{'::1'} ],
	[ 'cidr',          q{'10.0.0.0/8'} ],
	[ 'macaddr',       q{'08:00:2b:01:02:03'} ],
	[ 'macaddr8',      q{'08:00:2b:01:02:03:04:05'} ],
	[ 'bit(5)',        q{B'10101'} ],
	[ 'bit varying',   q{B''}, q{B'1111111111'} ],
	[ 'tsvector',      q{$$'it''s':1A 'b\\\\c':2 'd e'$$} ],
	[ 'tsquery',       q{$$'it''s' & !( 'a b':*A <-> 'c' )$$} ],
	[ 'point',         q{'(0.1, -1e300)'}, q{'(NaN, Infinity)'} ],
	[ 'line',          q{'{1,2,0.3}'} ],
	[ 'lseg',          q{'[(0,0),(0.1,2)]'} ],
	[ 'box',           q{'(1,1),(0.1,0)'} ],
	[ 'path',          q{'[(0,0),(0.1,2)]'}, q{'((0,0),(0.1,2))'} ],
	[ 'polygon',       q{'((0,0),(0.1,2),(3,4))'} ],
	[ 'circle',        q{'<(0.1,0.2),0.3>'} ],
	[ 'int4range',     q{'empty'}, q{'[1,5)'}, q{'(,)'} ],
	[ 'numrange',      q{'(0.10,1e50]'}, q{'[,0)'} ],
	[ 'tsrange',       q{'["2020-02-03 04:05", infinity)'} ],
	[ 'tstzrange',     q{'["2020-02-03 04:05+00", "2020-12-03 04:05+00")'} ],
	[ 'daterange',     q{'[2020-02-03, 2020-03-02)'} ],
	[ 'datemultirange', q{'{[2020-02-03, 2020-03-02), [2020-04-05,)}'}, q{'{}'} ],
	[ 'int8multirange', q{'{[1,3), [5,7)}'} ],
	[ 'text[]',        q{ARRAY['', NULL, 'NULL', 'a,b', E'\\\\"', E'\n', '{}']}, q{'{}'} ],
	[ 'integer[]',     q{'[0:1][-2:-1]={{1,2},{NULL,4}}'}, q{'{}'} ],
	[ 'float8[]',      q{ARRAY[0.1::float8 + 0.2, 'NaN', NULL]} ],
	[ 'timestamptz[]', q{ARRAY['2020-02-03 04:05+00', NULL, 'infinity']::timestamptz[]} ],
	[ 'interval[]',    q{ARRAY['-1 mon 2 days', '1 day -1 h']::interval[]} ],
	[ 'bytea[]',       q{ARRAY['\x5c00', '']::bytea[]} ],
	[ 'oid',           '0', '4294967295' ],
	[ 'regclass',      q{'target'}, q{'pg_class'} ],
	[ 'regtype',       q{'odd.colour'}, q{'integer[]'} ],
	[ 'regproc',       q{'odd.doit'} ],
	[ 'pg_lsn',        q{'16/B374D848'} ],
	[ 'pg_snapshot',   q{'10:20:10,14,15'} ],
	[ 'xid8',          q{'18446744073709551615'} ],
	[ 'tid',           q{'(42,7)'} ]);

# A server may be built without XML.
@types = grep { $_->[0] ne 'xml' } @types
  if $pub->psql('postgres', q{SELECT xml '<a/>'}) != 0;

# These can't be sent in binary: the receiver compares the oids of the types
# inside them.
my @own = (
	[ 'odd.colour',    q{'red'}, q{'light green'}, q{''} ],
	[ 'odd.positive',  '1', '2147483647' ],
	[ 'odd.stamps',    q{ARRAY['2020-02-03 04:05+00', NULL]::timestamptz[]}, q{'{}'} ],
	[ 'odd.pair',      q{ROW('2020-02-03', E'"(,)\\\\', 'a,b')}, q{ROW(NULL, '', NULL)},
		q{ROW(NULL, NULL, NULL)} ],
	[ 'odd.nested',    q{ROW(ROW('infinity', ')', 'red'), '-1 mon 2 days', ARRAY['a"', NULL])} ],
	[ 'odd.colour[]',  q{ARRAY['a,b', '', NULL]::odd.colour[]} ],
	[ 'odd.pair[]',    q{ARRAY[ROW('2020-02-03', 'x', 'red'), NULL]::odd.pair[]} ],
	[ 'odd.stamp_range', q{'["2020-02-03 04:05+00", "2020-12-03 04:05+00")'} ],
	[ 'odd.stamp_ranges', q{'{["2020-02-03 04:05+00", "2020-12-03 04:05+00")}'} ]);

# A table for each type: the values, a null where the type has nulls, and
# arrays of the values where the array type is not another of our own.
sub type_cases
{
	my ($prefix, @list) = @_;
	my @cases;
	my $number = 0;

	foreach my $entry (@list)
	{
		my ($type, @values) = @$entry;
		my $table = sprintf '%s_%03d', $prefix, ++$number;
		my $null = $type eq 'odd.stamps' ? q{'{}'} : 'NULL';

		push @cases,
		  {
			name    => "$prefix: $type",
			both    => "CREATE TABLE $table (k int PRIMARY KEY, v $type)",
			pub     => "INSERT INTO $table VALUES (0, $null)"
			  . join('', map { ", (" . ($_ + 1) . ", $values[$_])" } 0 .. $#values),
			publish => $table,
			later   => "INSERT INTO $table SELECT -k, v FROM $table WHERE k > 0;
				UPDATE $table SET v = $values[0] WHERE k = 0;
				UPDATE $table SET k = 1000 WHERE k = 1",
			rows => $table,
		  };
	}
	return @cases;
}

# What sessions of the subscription get on the publisher: some from its role,
# some from the database.  None of it may show in what is copied.  Both
# sides' settings are made after the tables, which are made by sessions too.
sub odd_settings
{
	$pub->safe_psql('postgres', q{
		CREATE ROLE odd_role SUPERUSER LOGIN;
		ALTER ROLE odd_role SET datestyle = 'SQL, DMY';
		ALTER ROLE odd_role SET intervalstyle = 'iso_8601';
		ALTER ROLE odd_role SET extra_float_digits = -3;
		ALTER ROLE odd_role SET search_path = odd, public, pg_catalog;
		ALTER ROLE odd_role SET quote_all_identifiers = on;
		ALTER ROLE odd_role SET standard_conforming_strings = off;
		ALTER ROLE odd_role SET escape_string_warning = off;
		ALTER ROLE odd_role SET default_transaction_read_only = on;
		ALTER ROLE odd_role SET default_transaction_isolation = 'serializable';
		ALTER ROLE odd_role SET default_transaction_deferrable = on;
		ALTER ROLE odd_role SET synchronous_commit = off;
		ALTER ROLE odd_role SET row_security = off;
		ALTER ROLE odd_role SET client_encoding = 'LATIN1';
		ALTER ROLE odd_role SET client_min_messages = 'debug1';
		ALTER DATABASE postgres SET bytea_output = 'escape';
		ALTER DATABASE postgres SET timezone = 'Asia/Kolkata';
		ALTER DATABASE postgres SET xmlbinary = 'hex';
		ALTER DATABASE postgres SET datestyle = 'German, MDY'});
	$sub->safe_psql('postgres', q{
		ALTER DATABASE postgres SET datestyle = 'SQL, DMY';
		ALTER DATABASE postgres SET intervalstyle = 'sql_standard';
		ALTER DATABASE postgres SET bytea_output = 'escape';
		ALTER DATABASE postgres SET extra_float_digits = -15;
		ALTER DATABASE postgres SET timezone = 'America/St_Johns';
		ALTER DATABASE postgres SET search_path = odd, public;
		ALTER DATABASE postgres SET standard_conforming_strings = off;
		ALTER DATABASE postgres SET default_transaction_isolation =
			'repeatable read'});
	return;
}

both($pub, $sub, $own_types);
run_cases($pub, $sub, 'types', [ type_cases('text', @types, @own) ],
	user   => 'odd_role',
	before => \&odd_settings);

# In version 15 binary is only for the changes, the copy is text as ever.
$sub->safe_psql('postgres',
	'ALTER DATABASE postgres RESET standard_conforming_strings');
$sub->safe_psql('postgres',
	'ALTER DATABASE postgres SET search_path = public, odd');
# A binary regclass, regtype or regproc is an OID, another one on each side.
run_cases($pub, $sub, 'bintypes',
	[ type_cases('binary', grep { $_->[0] !~ /^reg/ } @types) ],
	user => 'odd_role',
	with => 'binary = true');

no_leftovers_ok($pub, $sub, 'no slot and no origin left');
no_builtin_sync_ok($sub);

done_testing();
