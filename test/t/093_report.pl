# What is kept of units and shown in reuse_sync.units; and report(), one page
# about a subscription.  Values, not looks: the page is parsed as the XML that
# it is as well, by the server, and what it says is compared with the views.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Races qw(session wait_until);
use ReuseSync;
use Test::More;

plan skip_all => 'only of the extension' unless with_extension();

my $pub = new_publisher('pub');
my $sub = new_subscriber(
	'sub',
	wal_retrieve_retry_interval               => '500ms',
	'reuse_sync.batch_tables'                 => 4,
	'reuse_sync.max_retry_interval'           => '1h',
	'reuse_sync.naptime'                      => '1h',
	'reuse_sync.max_workers_per_subscription' => 2);

#
# Units: 10 small tables in batches and one large one, which goes alone
#
both($pub, $sub, "CREATE TABLE t$_ (a int PRIMARY KEY, b text)")
  foreach (1 .. 10);
both($pub, $sub, 'CREATE TABLE large (a int, b text)');
$pub->safe_psql('postgres',
	"INSERT INTO t$_ SELECT g, repeat('x', 10) FROM generate_series(1, $_) g")
  foreach (1 .. 10);
$pub->safe_psql('postgres',
	q{INSERT INTO large SELECT g, repeat('x', 1000)
		FROM generate_series(1, 10000) g;
	CREATE PUBLICATION p FOR ALL TABLES});
subscribe($pub, $sub, 's', 'p');
wait_ready($sub, 's');

is( $sub->safe_psql('postgres', q{
		SELECT sum(u.tables), sum(u.tuples_copied),
			sum(u.bytes_copied) = (SELECT sum(bytes_copied) FROM reuse_sync.tables),
			max(u.tables) <= 4, bool_and(u.tables >= 1),
			count(*) = (SELECT units FROM reuse_sync.stats),
			count(*) FILTER (WHERE u.slot_reused)
				= (SELECT slots_reused FROM reuse_sync.stats),
			bool_and(u.started_at <= u.copied_at AND u.copied_at <= u.finished_at
				AND u.finished_at <= now()),
			bool_and(u.place BETWEEN 0 AND 3 AND u.pid > 0),
			bool_and(u.slot_name ~ '^reuse_sync_'),
			bool_and(u.started_at = t.started_at)
		FROM reuse_sync.units u JOIN reuse_sync.tables t USING (subname, relid)
		WHERE u.subname = 's'}),
	'11|10055|t|t|t|t|t|t|t|t|t',
	'units: every table is in one, with times, worker and slot');
is( $sub->safe_psql('postgres', q{
		SELECT tables, tuples_copied, bytes_copied > 10000000
		FROM reuse_sync.units WHERE relid = 'large'::regclass}),
	'1|10000|t',
	'units: a large table is one alone');

# A table that is synchronized anew later is a run of its own.
$sub->safe_psql('postgres', q{SELECT reuse_sync.resync_table('s', 'large')});
$sub->safe_psql('postgres', q{SELECT reuse_sync.wait_for_sync('s', '3 min')});
is( $sub->safe_psql('postgres', q{
		SELECT relid::regclass, tables, tuples_copied
		FROM reuse_sync.units WHERE subname = 's'}),
	'large|1|10000',
	'units: those of the last run, which was of one table');

# One that is finished by another worker than copied it
both($pub, $sub, 'CREATE TABLE later (a int, b text)');
$pub->safe_psql('postgres', 'INSERT INTO later SELECT * FROM large');
my $lock = session($sub);
$lock->query_safe('BEGIN; LOCK TABLE later IN ROW EXCLUSIVE MODE');
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s REFRESH PUBLICATION');
wait_states($sub, 's', q{count(*) FILTER (WHERE srsubstate = 'f') = 1});
my $copied_by = $sub->safe_psql('postgres',
	q{SELECT pid FROM reuse_sync.workers WHERE relid = 'later'::regclass});
$sub->safe_psql('postgres', "SELECT pg_terminate_backend($copied_by)");
wait_until($sub, 'another worker to have it',
	"SELECT count(*) = 1 FROM reuse_sync.workers
	WHERE relid = 'later'::regclass AND pid <> $copied_by");
$lock->query_safe('COMMIT');
$lock->quit;
$sub->safe_psql('postgres', q{SELECT reuse_sync.wait_for_sync('s', '3 min')});
is( $sub->safe_psql('postgres', qq{
		SELECT relid::regclass, tables, tuples_copied, pid <> $copied_by,
			slot_reused, copied_at IS NULL, started_at < finished_at
		FROM reuse_sync.units WHERE subname = 's'}),
	'later|1|10000|t|f|t|t',
	'units: one that was copied by another worker before');
like(
	$sub->safe_psql('postgres', q{SELECT reuse_sync.report('s')}),
	qr{<title>public\.later: 10,000&#160;rows, [^<(]*; pid},
	'units: the page says of it what is known');

# What is left of a table goes with it.
$pub->safe_psql('postgres', 'DROP PUBLICATION p;
	CREATE PUBLICATION p FOR TABLE t1');
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION s REFRESH PUBLICATION');
is( $sub->safe_psql('postgres',
		q{SELECT count(*) FROM reuse_sync.units WHERE relid <> 't1'::regclass}),
	0, 'units: none of a table that is not in the subscription');

$sub->safe_psql('postgres', 'DROP SUBSCRIPTION s; CREATE TABLE page (x xml)');
$pub->safe_psql('postgres', 'DROP PUBLICATION p');

# An SQL literal
sub literal
{
	my ($value) = @_;

	$value =~ s/'/''/g;
	return "'$value'";
}

# Make a report, and keep it for page_value and page_rows: it is well-formed,
# or this dies.  Returns the text.
sub make_page
{
	my ($subname) = @_;

	$sub->safe_psql('postgres', 'DELETE FROM page; INSERT INTO page
		SELECT xmlparse(DOCUMENT reuse_sync.report(' . literal($subname) . '))');
	return $sub->safe_psql('postgres', 'SELECT x FROM page');
}

# The text of the element with this id, as it is read
sub page_value
{
	my ($id) = @_;

	return $sub->safe_psql('postgres',
		"SELECT t.v FROM page, xmltable('//*[\@id=\"$id\"]' PASSING x
			COLUMNS v text PATH 'string(.)') t");
}

# The texts of all that this path leads to, in lines
sub page_rows
{
	my ($path) = @_;

	return $sub->safe_psql('postgres',
		"SELECT t.v FROM page, xmltable(" . literal($path)
		  . " PASSING x COLUMNS i FOR ORDINALITY, v text PATH 'string(.)') t
		ORDER BY t.i");
}

# Subscribe; a table that fails then is not tried again by itself for an hour.
# Before that the apply worker is to start, which is put off as well.
sub subscribe_patiently
{
	my ($subname, $publications) = @_;

	$sub->safe_psql('postgres', q{
		ALTER SYSTEM SET reuse_sync.paused = on;
		ALTER SYSTEM RESET wal_retrieve_retry_interval});
	$sub->reload;
	subscribe($pub, $sub, $subname, $publications);
	wait_until($sub, 'the apply worker',
		"SELECT count(*) > 0 FROM pg_stat_subscription
		WHERE subname = '$subname' AND pid IS NOT NULL
			AND latest_end_lsn IS NOT NULL");
	$sub->safe_psql('postgres', q{
		ALTER SYSTEM RESET reuse_sync.paused;
		ALTER SYSTEM SET wal_retrieve_retry_interval = '1h'});
	$sub->reload;
	wait_until($sub, 'the settings to be known',
		q{SELECT setting = 'off' FROM pg_settings WHERE name = 'reuse_sync.paused'});
	$sub->safe_psql('postgres', 'SELECT reuse_sync.wakeup()');
	return;
}

# How many elements this path leads to
sub page_count
{
	my ($path) = @_;

	return $sub->safe_psql('postgres',
		'SELECT count(*) FROM page, xmltable(' . literal($path)
		  . ' PASSING x COLUMNS i FOR ORDINALITY)');
}

# One test: the page has the numbers of the views, and as many cells or rows.
sub numbers_ok
{
	my ($subname, $cells, $testname) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $literal = literal($subname);

	my @shown = map { page_value($_) } qw(n-tables n-p n-c n-u n-r n-f percent);
	push @shown, map { page_count("$cells\[\@class=\"$_\"]") } qw(p c u r f);
	my $expected = $sub->safe_psql('postgres',
		"SELECT tables, pending, copying, catching_up, ready, failed, percent,
			pending, copying, catching_up, ready, failed
		FROM reuse_sync.subscriptions WHERE subname = $literal");
	return is(join('|', @shown), $expected, $testname);
}

#
# While it runs: one copy is held at its 500th row
#
my $gate = session($sub);
$gate->query_safe('SELECT pg_advisory_lock(1)');
both($pub, $sub, 'CREATE TABLE held (a int, b text); CREATE TABLE broken (a int)');
$pub->safe_psql('postgres',
	q{INSERT INTO held SELECT g, repeat('x', 100) FROM generate_series(1, 1000) g;
	INSERT INTO broken VALUES (1);
	CREATE PUBLICATION running FOR TABLE t1, t2, held, broken});
$sub->safe_psql(
	'postgres', q{
	CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS
	$$ BEGIN
		IF NEW.a = 500 THEN
			PERFORM pg_advisory_lock_shared(1);
			PERFORM pg_advisory_unlock_shared(1);
		END IF;
		RETURN NEW;
	END $$;
	CREATE TRIGGER gate BEFORE INSERT ON held FOR EACH ROW EXECUTE FUNCTION gate();
	ALTER TABLE held ENABLE ALWAYS TRIGGER gate;
	ALTER TABLE broken ADD CONSTRAINT "a < 1 & a > 0" CHECK (a < 1);
	TRUNCATE t1, t2;
	ALTER SYSTEM SET reuse_sync.batch_tables = 1});
subscribe_patiently('running', 'running');
wait_until($sub, 'two tables to be ready, one to have failed, one to be held',
	q{SELECT (SELECT count(*) = 1 AND count(wal_bytes) = 1 FROM reuse_sync.slots)
		AND count(*) FILTER (WHERE state = 'ready') = 2
		AND count(*) FILTER (WHERE state = 'failed') = 1
		AND (SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'advisory'
			AND NOT granted)
	FROM reuse_sync.tables});

# Some transactions, for an age to be seen
$pub->safe_psql('postgres', 'SELECT pg_current_xact_id()') foreach (1 .. 3);
my $page = make_page('running');
numbers_ok('running', '//section[@id="tables"]//td/i',
	'running: the numbers of the views');
is(page_value('state'), 'synchronizing', 'running: its state');
is(page_value('subname'), 'running', 'running: its name');
like(page_value('eta'), qr/^20\d\d-/, 'running: when it is done');
like(page_value('publisher'), qr/^PostgreSQL \d+\.\d+host=\S+ port=\d+ dbname=postgres$/,
	'running: version and address of the publisher');
is( page_rows('//section[@id="timeline"]//*[@class="live"]/title') =~
	  /^public\.held: copying for .*; pid (\d+), slot (reuse_sync_\S+)$/
	? $sub->safe_psql('postgres', "SELECT count(*) FROM reuse_sync.workers
		WHERE pid = $1 AND slot_name = '$2' AND relid = 'held'::regclass")
	: page_rows('//section[@id="timeline"]//*[@class="live"]/title'),
	1,
	'running: the unit in work, with its worker and slot');
my $slots = page_rows('//section[@id="slots"]//tbody/tr/td[1]');
is( $slots,
	"running\n"
	  . $sub->safe_psql('postgres',
		'SELECT slot_name FROM reuse_sync.slots ORDER BY slot_id'),
	'running: the slots of the subscription and of the pool');
my @ages = split /\n/, page_rows('//section[@id="slots"]//tbody/tr/td[6]');
is(scalar(grep { /^\d+$/ && $_ >= 3 } @ages),
	scalar @ages, 'running: each with the age of its xmin');
is(scalar(grep { /^\d/ } split /\n/, page_rows('//section[@id="slots"]//tbody/tr/td[5]')),
	scalar @ages, 'running: and with the WAL that it retains');
is(page_rows('//section[@id="errors"]//li/b'), 'public.broken',
	'running: the table that has failed');
is( page_rows('//section[@id="errors"]//li/div/p[1]'),
	'new row for relation "broken" violates check constraint "a < 1 & a > 0"',
	'running: its error');
like(page_rows('//section[@id="errors"]//li/div/p[@class="hint"]'),
	qr/^The table has a constraint that the publisher's rows do not meet/,
	'running: its hint');
like(page_rows('//section[@id="errors"]//li/div/p[@class="when"]'),
	qr/^1\D+failure, last at .*; next try at /,
	'running: when it is tried again');

is( join("\n", sort split /\n/,
		page_rows('//section[@id="problems"]//li[contains(., "no replica identity")]//span')),
	"table public.broken\ntable public.held",
	'running: a problem of two tables is shown with both');
is(page_rows('//section[@id="problems"]//li[contains(., "no replica identity")]/b'),
	'warning', 'running: once, though the hint names one of them');
like(page_rows('//section[@id="problems"]//li[contains(., "no replica identity")]//p[@class="hint"]'),
	qr/run ALTER TABLE public\.(?:broken|held) REPLICA IDENTITY FULL there\. Likewise for the others\.$/,
	'running: which speaks of the others, too');

$gate->query_safe('SELECT pg_advisory_unlock(1)');
$gate->quit;
wait_until($sub, 'the held table to be ready and the slots to be gone',
	q{SELECT count(*) FILTER (WHERE state = 'ready') = 3
		AND NOT EXISTS (SELECT FROM reuse_sync.slots) FROM reuse_sync.tables});
make_page('running');
numbers_ok('running', '//section[@id="tables"]//td/i',
	'after it, with a failure: the numbers of the views');
is(page_value('state'), 'failing', 'after it: its state');
like($sub->safe_psql('postgres', 'SELECT x FROM page'),
	qr/1&#160;table has failed; the next try is at/,
	'after it: what it waits for');
is(page_rows('//section[@id="timeline"]//*[@class="live"]'), '',
	'after it: no unit is in work');
like(page_rows('//section[@id="slots"]//p[@class="none"]'),
	qr/^The pool has no slot there/, 'after it: no slot is left');

$sub->safe_psql('postgres', 'ALTER TABLE broken DROP CONSTRAINT "a < 1 & a > 0"');
$sub->safe_psql('postgres', q{SELECT reuse_sync.retry('running')});
$sub->safe_psql('postgres', q{SELECT reuse_sync.wait_for_sync('running', '3 min')});
make_page('running');
numbers_ok('running', '//section[@id="tables"]//td/i',
	'all is ready: the numbers of the views');
is(page_value('state'), 'synchronized', 'all is ready: its state');
is(page_value('percent'), '100.0', 'all is ready: 100 %');
is(page_rows('//section[@id="errors"]/p'), 'No table has failed.',
	'all is ready: no failures, in words');
is(page_value('rows'),
	$sub->safe_psql('postgres', q{SELECT to_char(sum(tuples_copied), 'FM9,999,999')
		FROM reuse_sync.tables WHERE subname = 'running'}),
	'all is ready: the rows');
is( page_rows('//section[@id="timeline"]//*[local-name()="title" and contains(., "pid ")]') =~
	  s/^public\.(\w+): ([\d,]+)\D*rows?, .*/$1 $2/mgr,
	$sub->safe_psql('postgres', q{SELECT relid::regclass || ' '
			|| to_char(tuples_copied, 'FM9,999,999')
		FROM reuse_sync.units WHERE subname = 'running'
		ORDER BY place, started_at}),
	'all is ready: the units by their workers');

#
# Many tables: a map, and lists that end
#
$sub->safe_psql('postgres', 'ALTER SYSTEM RESET reuse_sync.batch_tables;
	DROP SUBSCRIPTION running');
foreach my $node ($pub, $sub)
{
	$node->safe_psql('postgres', q{
		CREATE SCHEMA many;
		SELECT format('CREATE TABLE many.t%s (a int CHECK (a > 0))', lpad(g::text, 3, '0'))
		FROM generate_series(1, 120) g \gexec
		ALTER TABLE many.t007 DROP CONSTRAINT t007_a_check;
	});
}
$pub->safe_psql('postgres', q{
	SELECT format('ALTER TABLE many.t%s DROP CONSTRAINT t%1$s_a_check',
		lpad(g::text, 3, '0'))
	FROM generate_series(60, 119) g \gexec
	SELECT format('INSERT INTO many.t%s VALUES (%s)', lpad(g::text, 3, '0'),
		CASE WHEN g BETWEEN 60 AND 119 THEN 0 ELSE 1 END)
	FROM generate_series(1, 120) g \gexec
	CREATE PUBLICATION many FOR TABLES IN SCHEMA many});
subscribe_patiently('many', 'many');
wait_until($sub, '60 tables to be ready and 60 to have failed',
	q{SELECT ready = 60 AND failed = 60 FROM reuse_sync.subscriptions});
make_page('many');
numbers_ok('many', '//div[contains(@class, "map")]/i',
	'many: a cell for each, by state');
like(page_rows('//div[contains(@class, "map")]/i[60]/@title'),
	qr/^many\.t060: failed$/, 'many: what a cell is');
is(scalar(split /\n/, page_rows('//section[@id="errors"]//li/b')),
	50, 'many: 50 failures');
is(page_rows('//section[@id="errors"]/p[@class="note"]'),
	'And 10 more: see reuse_sync.tables.', 'many: it says how many more');
$sub->safe_psql('postgres', 'DROP SUBSCRIPTION many');
$sub->safe_psql('postgres', 'ALTER SYSTEM RESET ALL');
$sub->reload;

#
# Names: nothing in them is markup, nothing is lost
#
my $script = q{<script>alert("1 & 'x'")</script>};
my $long   = 'l' x 63;
my $odd    = "\xc3\xbc \xe2\x82\xac \xf0\x9f\x90\x98 \x01 ]]>";
foreach my $name ($script, $long, $odd)
{
	(my $identifier = $name) =~ s/"/""/g;
	both($pub, $sub, qq{CREATE TABLE "$identifier" (a int)});
}
my $subname = q{<i>&"'</i>} . "\xc3\xa4";
(my $sub_identifier = $subname) =~ s/"/""/g;
(my $identifier     = $script) =~ s/"/""/g;
$pub->safe_psql('postgres',
	qq{CREATE PUBLICATION "a&b" FOR TABLE "$identifier", "$long", "$odd"});
subscribe($pub, $sub, qq{"$sub_identifier"}, '"a&b"',
	with => 'slot_name = odd');
wait_ready($sub, $subname);
$page = make_page($subname);
is(page_value('subname'), $subname, 'names: that of the subscription');
(my $written = $odd) =~ s/\x01/\xef\xbf\xbd/;
is( join("\n", sort split /\n/, page_rows('//section[@id="tables"]//table[@class="tables"]//td[1]')),
	join("\n", sort qq{public."$identifier"}, "public.$long", qq{public."$written"}),
	'names: those of the tables');
unlike($page, qr/<script|<i>/, 'names: no markup comes of them');
unlike(
	$sub->safe_psql('postgres', 'SELECT reuse_sync.report(' . literal($subname) . ')'),
	qr/[^\n\x20-\x7e]/,
	'names: the page is in ASCII, whatever the encoding of a client');
unlike($page, qr/(?:https?:|src=|url\(|\@import|<link|<script)/,
	'the page needs nothing from elsewhere');

#
# Rights, and what is no subscription
#
$sub->safe_psql('postgres', q{
	CREATE ROLE nobody LOGIN;
	CREATE ROLE monitor LOGIN IN ROLE pg_monitor;
	CREATE ROLE owner LOGIN SUPERUSER});
subscribe($pub, $sub, 'owned', '"a&b"',
	with => 'connect = false, slot_name = NONE');
$sub->safe_psql('postgres', 'ALTER SUBSCRIPTION owned OWNER TO owner;
	ALTER ROLE owner NOSUPERUSER');

# What a role gets for a report: the SQLSTATE, or that it is a page
sub as_role
{
	my ($role, $name) = @_;

	my ($ret, $out, $err) = $sub->psql('postgres',
		"\\set VERBOSITY sqlstate\n SET ROLE $role;
		SELECT left(reuse_sync.report($name), 15), current_user");
	return $err =~ /ERROR:  (\w+)/ ? $1 : $out;
}

is(as_role('nobody', q{'owned'}), '42501', 'rights: not for anybody');
is(as_role('monitor', q{'owned'}), '<!DOCTYPE html>|monitor',
	'rights: for pg_monitor');
is(as_role('owner', q{'owned'}), '<!DOCTYPE html>|owner',
	'rights: for its owner');
is(as_role('owner', literal($subname)), '42501',
	'rights: who owns one sees no other');
is(as_role('nobody', q{'no such'}), '42704', 'there is no such subscription');
is(as_role('monitor', 'NULL'), '22004', 'nor one without a name');

#
# No tables; disabled; a password; a publisher that is not there
#
make_page('owned');
is(page_value('n-tables'), '0', 'no tables: none');
is(page_value('state'), 'disabled', 'no tables: it is disabled');
is(page_rows('//section[@id="tables"]/p'), 'This subscription has no tables.',
	'no tables: in words');
like(page_rows('//section[@id="timeline"]/p'), qr/^No table of this subscription/,
	'no tables: nothing was done, in words');
$sub->safe_psql('postgres', q{ALTER SUBSCRIPTION owned
	CONNECTION 'host=nowhere.invalid dbname=d user=u password=secret'});
$page = make_page('owned');
unlike($page, qr/secret/, 'unreachable: the password is not in the page');
is(page_value('publisher'), 'was not reachedhost=nowhere.invalid dbname=d',
	'unreachable: where the publisher should be');
like(page_rows('//section[@id="problems"]//li[1]'),
	qr/subscription "owned": .*nowhere\.invalid/,
	'unreachable: it is among the problems');

#
# Databases of other encodings
#
foreach my $encoding ('LATIN1', 'SQL_ASCII')
{
	my $db = lc $encoding;
	$sub->safe_psql('postgres',
		"CREATE DATABASE $db ENCODING '$encoding' TEMPLATE template0 LOCALE 'C'");
	create_extension($sub, $db);
	my $shown = $sub->safe_psql($db, qq{
		SET client_encoding = '} . ($encoding eq 'LATIN1' ? 'UTF8' : $encoding) . qq{';
		CREATE SUBSCRIPTION "\xc3\xa4\xc3\xb6" CONNECTION 'host=nowhere.invalid'
			PUBLICATION p WITH (connect = false, slot_name = NONE);
		SELECT substring(reuse_sync.report("subname") FROM 'id="subname">([^<]*)<')
		FROM pg_subscription WHERE subname = '\xc3\xa4\xc3\xb6';
		DROP SUBSCRIPTION "\xc3\xa4\xc3\xb6"});
	is($shown, '&#228;&#246;', "a name in $encoding");
}

#
# Without a pool
#
$sub->append_conf('postgresql.conf', 'reuse_sync.enabled = off');
$sub->restart;
make_page($subname);
is(page_value('n-r'), '3', 'switched off: the tables are seen');
like(page_rows('//section[@id="problems"]//li'),
	qr/setting reuse_sync\.enabled: it is off/,
	'switched off: it is among the problems');

$sub->safe_psql('postgres', 'DROP SUBSCRIPTION owned');
$sub->safe_psql('postgres', qq{DROP SUBSCRIPTION "$sub_identifier"});
done_testing();
