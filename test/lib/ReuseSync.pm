# Helpers shared by the TAP tests of reuse_sync.
#
# Every test can be run in two ways.  Normally the subscribers have the
# extension, and the tests show that it does its work.  With
# REUSE_SYNC_BUILTIN=1 in the environment they have neither the library nor
# the extension, and the server's own table synchronization does the work.
# The second way is the oracle: what a test expects must be what the server
# does.  A case that only makes sense with the extension asks with_extension()
# first.
#
#   use ReuseSync;
#   my $pub = new_publisher('pub');
#   my $sub = new_subscriber('sub');
#   both($pub, $sub, 'CREATE TABLE t (a int PRIMARY KEY)');
#   $pub->safe_psql('postgres', 'INSERT INTO t VALUES (1), (2)');
#   $pub->safe_psql('postgres', 'CREATE PUBLICATION p FOR TABLE t');
#   subscribe($pub, $sub, 's', 'p');
#   wait_ready($sub, 's');
#   rows_ok($pub, $sub, 't', 'initial contents');
#
# Waits are polls that end with the usual time limit of the TAP framework
# (PG_TEST_TIMEOUT_DEFAULT, in seconds).

package ReuseSync;

use strict;
use warnings;

use Exporter 'import';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(
  new_publisher
  new_subscriber
  with_extension
  create_extension
  both
  reconfigure
  publish_tables
  subscribe
  has_table_owners
  owner_options
  origins_limit
  wait_for_query
  wait_ready
  wait_states
  catch_up
  rows_ok
  rows_of
  no_leftovers_ok
  no_builtin_sync_ok
);

# Lines of the subscriber's log that are shown when a wait has failed.
my $log_tail_lines = 60;

# What makes the text of a value depend only on the value, whatever the
# settings of the role, the database or the server are.
my $plain_output = q{
	SET client_encoding = 'UTF8';
	SET search_path = public;
	SET datestyle = 'ISO, YMD';
	SET intervalstyle = 'postgres';
	SET timezone = 'UTC';
	SET bytea_output = 'hex';
	SET extra_float_digits = 1;
};

# True unless this run checks the server's own synchronization.
sub with_extension
{
	return !$ENV{REUSE_SYNC_BUILTIN};
}

# Create and start a server.  The configuration is a hash of settings; the
# keys "initdb" and "install_path" are special: a reference to a list of options
# for initdb, and where another server is installed.  By default nothing depends
# on the locale of whoever runs the tests.
sub new_node
{
	my ($name, %conf) = @_;
	my $initdb = delete $conf{initdb} // [ '--encoding=UTF8', '--locale=C' ];
	my $path  = delete $conf{install_path};
	my @where = defined $path ? (install_path => $path) : ();

	my $node = PostgreSQL::Test::Cluster->new($name, @where);
	$node->init(allows_streaming => 'logical', extra => $initdb);
	$conf{ origins_limit($node) } //= $conf{max_replication_slots}
	  if exists $conf{max_replication_slots};
	foreach my $key (sort keys %conf)
	{
		my $value = $conf{$key};
		$value =~ s/'/''/g;
		$node->append_conf('postgresql.conf', "$key = '$value'");
	}
	$node->start;
	return $node;
}

# new_publisher($name, %conf): a stock server, started.
sub new_publisher
{
	my ($name, %conf) = @_;

	return new_node(
		$name,
		max_replication_slots => 20,
		max_wal_senders       => 20,
		max_connections       => 40,
		shared_buffers        => '16MB',
		%conf);
}

# new_subscriber($name, %conf): a server with the library and, in the database
# postgres, the extension; started.  Statements are not logged there, so that
# what a test finds in the log was not put there by the test itself.
sub new_subscriber
{
	my ($name, %conf) = @_;

	my %defaults = (
		max_replication_slots           => 20,
		max_wal_senders                 => 20,
		max_connections                 => 40,
		shared_buffers                  => '16MB',
		max_worker_processes            => 16,
		max_logical_replication_workers => 8,
		log_statement                   => 'none');
	$defaults{shared_preload_libraries} = 'reuse_sync' if with_extension();

	# Settings of the extension mean nothing to a server without it.
	if (!with_extension())
	{
		delete $conf{$_} foreach grep { /^reuse_sync\./ } keys %conf;
	}

	my $node = new_node($name, %defaults, %conf);
	create_extension($node, 'postgres');
	return $node;
}

# Create the extension in a database, if this run is with the extension.
sub create_extension
{
	my ($node, $db) = @_;

	$node->safe_psql($db, 'CREATE EXTENSION reuse_sync') if with_extension();
	return;
}

# Run the same SQL on both servers, in the database postgres.
sub both
{
	my ($pub, $sub, $sql) = @_;

	$_->safe_psql('postgres', $sql) foreach ($pub, $sub);
	return;
}

# subscribe($pub, $sub, $subname, $publications, %opt): CREATE SUBSCRIPTION.
# $publications is a list as SQL wants it.  Options: with (the text inside
# WITH (...)), pub_db, sub_db (default postgres), user (role to connect as).
sub subscribe
{
	my ($pub, $sub, $subname, $publications, %opt) = @_;

	my $conninfo = $pub->connstr($opt{pub_db} // 'postgres');
	$conninfo .= " user=$opt{user}" if defined $opt{user};
	$conninfo =~ s/'/''/g;

	my $sql = "CREATE SUBSCRIPTION $subname CONNECTION '$conninfo'"
	  . " PUBLICATION $publications";
	$sql .= " WITH ($opt{with})" if defined $opt{with};
	$sub->safe_psql($opt{sub_db} // 'postgres', $sql);
	return;
}

# reconfigure($node, %conf): set it, and return when that is in force.
sub reconfigure
{
	my ($node, %conf) = @_;

	$node->append_conf('postgresql.conf', "$_ = '$conf{$_}'")
	  foreach sort keys %conf;
	$node->reload;
	wait_for_query($node, "SELECT current_setting('$_') = '$conf{$_}'")
	  foreach sort keys %conf;
	return;
}

# publish_tables($pub, $sub, $publication, @tables): create them on both sides,
# with twenty rows on the publisher, and a publication of them.
sub publish_tables
{
	my ($pub, $sub, $publication, @tables) = @_;

	foreach my $table (@tables)
	{
		both($pub, $sub, "CREATE TABLE $table (a int PRIMARY KEY, b text)");
		$pub->safe_psql('postgres',
			"INSERT INTO $table"
			  . " SELECT g, 'row ' || g FROM generate_series(1, 20) AS g");
	}
	$pub->safe_psql('postgres',
		"CREATE PUBLICATION $publication FOR TABLE " . join(', ', @tables));
	return;
}

# has_table_owners($node): do the changes of a table run with the rights of its
# owner by default (16), not of the subscription's?
sub has_table_owners
{
	my ($node) = @_;

	return $node->pg_version >= 16;
}

# owner_options($node): what a subscription of an ordinary user has to say after
# other options to run with that user's rights, and without a password, on
# every server.
sub owner_options
{
	my ($node) = @_;

	return
	  has_table_owners($node)
	  ? ', password_required = false, run_as_owner = true'
	  : '';
}

# origins_limit($node): the setting that limits how many replication origins can
# be in use; it has its own from 18 on.
sub origins_limit
{
	my ($node) = @_;

	return
	  $node->pg_version >= 18
	  ? 'max_active_replication_origins'
	  : 'max_replication_slots';
}

# wait_for_query($node, $query, $db): return when its answer is true.
sub wait_for_query
{
	my ($node, $query, $db) = @_;

	return if $node->poll_query_until($db // 'postgres', $query);
	die "did not come true: $query\n" . log_tail($node);
}

# wait_ready($sub, $subname, %opt): return when the subscription has tables
# and all of them are ready.  Option db: the database of the subscription.
sub wait_ready
{
	my ($sub, $subname, %opt) = @_;

	wait_states(
		$sub, $subname,
		q{count(*) > 0 AND count(*) FILTER (WHERE srsubstate <> 'r') = 0},
		%opt);
	return;
}

# wait_states($sub, $subname, $condition, %opt): return when the condition, an
# expression over all rows of the subscription in pg_subscription_rel (so with
# aggregates, or a constant and subqueries), is true.  Option db as above.
sub wait_states
{
	my ($sub, $subname, $condition, %opt) = @_;
	my $db = $opt{db} // 'postgres';
	(my $name_literal = $subname) =~ s/'/''/g;

	my $from = qq{pg_catalog.pg_subscription_rel sr
		JOIN pg_catalog.pg_subscription s ON s.oid = sr.srsubid
		WHERE s.subname = '$name_literal'
		AND s.subdbid = (SELECT oid FROM pg_catalog.pg_database
			WHERE datname = current_database())};

	return
	  if $sub->poll_query_until($db, "SELECT $condition FROM $from");

	my $states = $sub->safe_psql($db,
		"SELECT srrelid::regclass, srsubstate, srsublsn FROM $from ORDER BY 1"
	);
	die "subscription \"$subname\" is not where it should be:\n"
	  . "$states\nlast lines of the log of "
	  . $sub->name . ":\n"
	  . log_tail($sub);
}

# The last lines of a server's log.
sub log_tail
{
	my ($node) = @_;

	my @lines = split /^/m, slurp_file($node->logfile);
	@lines = @lines[ -$log_tail_lines .. -1 ] if @lines > $log_tail_lines;
	return join '', @lines;
}

# catch_up($pub, $sub, $subname, %opt): return when the apply worker has applied
# all that is in the publisher's WAL now.  The sender is found by the slot, so
# that any name of a subscription will do.  Option db: the database of the
# subscription.
sub catch_up
{
	my ($pub, $sub, $subname, %opt) = @_;
	(my $name_literal = $subname) =~ s/'/''/g;

	my $slot = $sub->safe_psql(
		$opt{db} // 'postgres',
		"SELECT s.subslotname FROM pg_catalog.pg_subscription s
		JOIN pg_catalog.pg_database d ON d.oid = s.subdbid
		WHERE s.subname = '$name_literal'
		AND d.datname = pg_catalog.current_database()");
	my $lsn = $pub->lsn('write');

	return
	  if $pub->poll_query_until('postgres',
		"SELECT r.replay_lsn >= '$lsn' AND r.state = 'streaming'
		FROM pg_catalog.pg_stat_replication r
		JOIN pg_catalog.pg_replication_slots rs ON rs.active_pid = r.pid
		WHERE rs.slot_name = '$slot'");

	die "subscription \"$subname\" has not caught up with $lsn;"
	  . " last lines of the log of "
	  . $sub->name . ":\n"
	  . log_tail($sub);
}

# rows_of($node, $query_or_table, $db): all rows as text, in the order of that
# text.  What does not begin with SELECT, WITH or VALUES is the name of a
# table, quoted as SQL wants it.  Settings of roles and databases don't show.
sub rows_of
{
	my ($node, $what, $db) = @_;

	my $query =
	  $what =~ /^\s*(?:SELECT|WITH|VALUES)\b/i ? $what : "SELECT * FROM $what";
	return $node->safe_psql(
		$db // 'postgres', $plain_output . qq{
		SELECT row_text FROM (
			SELECT whole_row::pg_catalog.text AS row_text
			FROM ($query) AS whole_row) AS texts
		ORDER BY row_text COLLATE pg_catalog."C"});
}

# rows_ok($pub, $sub, $query_or_table, $testname, $query_on_sub, %opt): one
# test, that both sides have the same rows.  $query_on_sub, if defined, is
# what is asked of the subscriber.  Options pub_db and sub_db: the databases.
sub rows_ok
{
	my ($pub, $sub, $what, $testname, $what_on_sub, %opt) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return is(
		rows_of($sub, $what_on_sub // $what, $opt{sub_db}),
		rows_of($pub, $what, $opt{pub_db}), $testname);
}

# no_leftovers_ok($pub, $sub, $testname): one test, that synchronization has
# left neither a slot on the publisher nor an origin on the subscriber, or
# removes what there is in the usual time.
sub no_leftovers_ok
{
	my ($pub, $sub, $testname) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	my $slots = $pub->poll_query_until('postgres', q{
		SELECT count(*) = 0 FROM pg_catalog.pg_replication_slots
		WHERE slot_name ~ '^(reuse_sync_|pg_[0-9]+_sync_)'});
	my $origins = $sub->poll_query_until('postgres', q{
		SELECT count(*) = 0 FROM pg_catalog.pg_replication_origin
		WHERE roname ~ '^(reuse_sync|pg_[0-9]+_[0-9]+$)'});

	return ok($slots && $origins, $testname // 'no slot and no origin left')
	  || diag(
		"slots: "
		  . $pub->safe_psql('postgres',
			'SELECT slot_name, active FROM pg_replication_slots ORDER BY 1')
		  . "\norigins: "
		  . $sub->safe_psql('postgres',
			'SELECT roname FROM pg_replication_origin ORDER BY 1'));
}

# no_builtin_sync_ok($sub, $testname): one test, that the server's own
# synchronization has never started on this server.  Without the extension it
# must have started, which shows that the pattern is the right one.
sub no_builtin_sync_ok
{
	my ($sub, $testname) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	my $pattern = qr/logical replication table synchronization worker/;
	my $log     = slurp_file($sub->logfile);
	return with_extension()
	  ? unlike($log, $pattern,
		$testname // 'the server itself has synchronized nothing')
	  : like($log, $pattern,
		$testname // 'the server itself has synchronized');
}

1;
