# Crashes at every point: what the tests in test/crash share.
#
# Two servers with a fixed set of tables, small ones that share batches and go
# the express way, and large ones that go the staged way; writers that change
# all of them on the publisher; and ways to hold a worker at a test point
# (src/testing.h) and to let something happen to it there.  All of it is used
# again for the next case: a subscription is dropped, the tables are filled
# anew, and subscribed to again.
#
#   my $lane = Crashes->new('lane');
#   $lane->begin_case(%settings);
#   $lane->subscribe;
#   my $pid = $lane->hold_at('copied:b1');
#   $lane->act('kill', $pid);
#   $lane->settle;          # dies unless all is equal, and nothing left
#
# What goes wrong dies.

package Crashes;

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use ReuseSync qw(both catch_up new_publisher new_subscriber rows_of);
use Races qw(flush_wal wait_until);
use Time::HiRes qw(time usleep);

# Every other table has no key: a row that is applied twice is there twice.
our @small = map { "s$_" } 1 .. 10;
our @large = ('b1', 'b2');

# In the publication as well: where a lot is written that is of no other table.
our $noise = 'noise';

our @actions = qw(error terminate kill walsender subscriber publisher);

my $small_rows = 130;
my $large_rows = 4000;

# What a case begins with; each may change some of it.
my %settings = (
	'reuse_sync.batch_tables'                 => 8,
	'reuse_sync.batch_size'                   => '64kB',
	'reuse_sync.handover_lock_timeout'        => '60s',
	'reuse_sync.max_workers_per_subscription' => 3,
	'reuse_sync.test_error_pid'               => 0,
	'reuse_sync.test_points'                  => '');

my %writers = (
	sync  => writer_script(''),
	async => writer_script('SET LOCAL synchronous_commit = off;'));

# Rows are locked in the order of the tables, and one in each: no deadlocks.
# There is no TRUNCATE, because a slot that is made beside one, the subscription's
# for one, can sometimes not be decoded from: "could not map filenode ... to
# relation OID" (15.20).
sub writer_script
{
	my ($begin) = @_;

	return qq{
\\set t random(1, 10)
\\set u random(1, 2)
\\set k random(1, 60)
BEGIN;
$begin
INSERT INTO s:t VALUES (nextval('key'), 'written', 0);
SAVEPOINT x;
INSERT INTO s:t VALUES (nextval('key'), 'rolled back', 0);
DELETE FROM s:t WHERE b = 'written';
ROLLBACK TO x;
SAVEPOINT y;
DELETE FROM s:t WHERE a = (SELECT min(a) + :k FROM s:t);
RELEASE y;
INSERT INTO b:u VALUES (nextval('key'), 'written', 0);
SAVEPOINT z;
UPDATE b:u SET n = n + 1 WHERE a = :k;
DELETE FROM b:u WHERE a = :k + 1000;
COMMIT;
};
}

# Crashes->new($name): servers with tables, without a subscription.
sub new
{
	my ($class, $name) = @_;

	# A commit waits for nobody's answer only if its session asks for that.
	my $pub = new_publisher(
		"${name}_pub",
		autovacuum                => 'off',
		log_replication_commands  => 'on',
		synchronous_commit        => 'local',
		synchronous_standby_names => 'nobody');
	my $sub = new_subscriber(
		"${name}_sub",
		autovacuum                       => 'off',
		max_worker_processes             => 16,
		restart_after_crash              => 'on',
		synchronous_commit               => 'off',
		wal_retrieve_retry_interval      => '100ms',
		'reuse_sync.max_retry_interval'  => '1s',
		'reuse_sync.naptime'             => '200ms',
		'reuse_sync.test_guards_off'     => $ENV{GUARD_OFF} // '',
		'reuse_sync.worker_idle_timeout' => '1min',
		%settings);
	my $self = bless { pub => $pub, sub => $sub, sessions => [] }, $class;

	$pub->safe_psql('postgres', 'CREATE SEQUENCE key START 1000000');
	foreach my $table (tables())
	{
		both($pub, $sub,
			"CREATE TABLE $table (a bigint, b text, n int);"
			  . " ALTER TABLE $table ALTER b SET STORAGE EXTERNAL");
		if ($table =~ /[13579]$/)
		{
			both($pub, $sub, "ALTER TABLE $table ADD PRIMARY KEY (a)");
		}
		else
		{
			$pub->safe_psql('postgres',
				"ALTER TABLE $table REPLICA IDENTITY FULL;"
				  . " CREATE INDEX ON $table (a)");
		}
	}
	$pub->safe_psql('postgres',
		'CREATE PUBLICATION p FOR TABLE ' . join(', ', tables()));

	# Rows called slow take their time.
	$sub->safe_psql(
		'postgres', q{
		CREATE FUNCTION be_slow() RETURNS trigger LANGUAGE plpgsql AS
			'BEGIN PERFORM pg_sleep(0.2); RETURN new; END'});
	foreach my $table (tables())
	{
		$sub->safe_psql('postgres',
			"CREATE TRIGGER be_slow BEFORE INSERT ON $table FOR EACH ROW"
			  . " WHEN (new.b = 'slow') EXECUTE FUNCTION be_slow();"
			  . " ALTER TABLE $table ENABLE ALWAYS TRIGGER be_slow");
	}
	foreach my $writer (keys %writers)
	{
		append_to_file($sub->basedir . "/$writer.sql", $writers{$writer});
	}
	return $self;
}

sub tables
{
	return (@small, @large, $noise);
}

# The tables that go one way: 'express' or 'staged'.
sub tables_of
{
	my ($self, $way) = @_;

	return $way eq 'staged' ? @large
	  : $self->{all_express} ? tables()
	  :                        (@small, $noise);
}

# begin_case(%settings): tables as at the beginning, settings but for those
# given too, no subscription.  all_express has the large tables go the express
# way as well.
sub begin_case
{
	my ($self, %opt) = @_;
	my ($pub, $sub) = @$self{qw(pub sub)};

	$self->{all_express} = delete $opt{all_express};
	$opt{'reuse_sync.batch_size'} //= '8MB' if $self->{all_express};
	$self->{pub_log} = -s $pub->logfile;
	$self->{sub_log} = -s $sub->logfile;
	$self->configure(%settings, %opt);

	$pub->safe_psql('postgres',
		'TRUNCATE ' . join(', ', tables()) . ";\n" . join('', map {
			"INSERT INTO $_ SELECT g, 'row ' || g, 0"
			  . " FROM generate_series(1, $small_rows) AS g;\n"
		} @small) . join('', map {
			"INSERT INTO $_ SELECT g, repeat('row ' || g, 10), 0"
			  . " FROM generate_series(1, $large_rows) AS g;\n"
		} @large) . "INSERT INTO $noise VALUES (1, 'noise', 0)");
	$sub->safe_psql('postgres', 'TRUNCATE ' . join(', ', tables()));
	$self->start_writers;
	return;
}

# Change settings of the subscriber; without a reload for later.
sub configure
{
	my ($self, %conf) = @_;

	$self->write_settings(%conf);
	$self->{sub}->reload;
	return;
}

sub write_settings
{
	my ($self, %conf) = @_;

	$self->{sub}->append_conf('postgresql.conf',
		join("\n", map { "$_ = '$conf{$_}'" } sort keys %conf));
	return;
}

# Lasting, so that a crash does not do away with the case.
sub subscribe
{
	my ($self) = @_;
	my $conninfo = $self->{pub}->connstr('postgres');

	$conninfo =~ s/'/''/g;
	$self->{sub}->safe_psql(
		'postgres', qq{
		SET synchronous_commit = on;
		CREATE SUBSCRIPTION s CONNECTION '$conninfo' PUBLICATION p});
	return;
}

# A session of one side that is given up at the end of the case.
sub session
{
	my ($self, $side) = @_;
	my $session = Races::session($self->{$side});

	push @{ $self->{sessions} }, $session;
	return $session;
}

# End those sessions, whether they live or not.
sub end_sessions
{
	my ($self) = @_;

	$_->{run}->kill_kill foreach splice @{ $self->{sessions} };
	return;
}

# --- writers ---

sub start_writers
{
	my ($self) = @_;
	my $pub    = $self->{pub};
	my $dir    = $self->{sub}->basedir;
	my $log    = $dir . '/pgbench.log';

	my $pid = fork;
	die "cannot fork: $!" unless defined $pid;
	if ($pid == 0)
	{
		open STDOUT, '>>', $log or die "$log: $!";
		open STDERR, '>&', \*STDOUT;
		open STDIN,  '<',  '/dev/null';
		exec $pub->installed_command('pgbench'),
		  '-n', '-c', 3, '-T', 3600, '-R', 60, '-h', $pub->host,
		  '-p', $pub->port, '-f', "$dir/sync.sql", '-f', "$dir/async.sql",
		  'postgres';
		exit 1;
	}
	$self->{writers} = $pid;
	return;
}

# Returns when none of their transactions can commit any more.
sub stop_writers
{
	my ($self) = @_;
	my $pid = delete $self->{writers} or return;

	kill 'TERM', $pid;
	waitpid $pid, 0;
	$self->wait_for(
		'pub',
		'writers to end',
		q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE application_name = 'pgbench';
		SELECT count(*) FROM pg_stat_activity
			WHERE application_name = 'pgbench'},
		qr/^0\z/m);
	return;
}

# --- holding ---

# hold_at(@points): hold the workers that come to one of the points; returns
# the pid of the first, and the point.  To be called before they can.
sub hold_at
{
	my ($self, @points) = @_;

	$self->hold(@points);
	return $self->wait_at(@points);
}

sub hold
{
	my ($self, @points) = @_;

	$self->hold_from_here;
	$self->configure('reuse_sync.test_points' => join(',', @points));
	return;
}

# What wait_at finds was written to the log after this.
sub hold_from_here
{
	my ($self) = @_;

	$self->{hold_log} = -s $self->{sub}->logfile;
	return;
}

# That a worker has come to one of the points is read in the log, which needs
# no connection, and no process for each look.
sub wait_at
{
	my ($self, @points) = @_;
	my %wanted = map { $_ => 1 } @points;
	my @found;

	wait_until(
		$self->{sub},
		"a worker at @points",
		sub {
			my $log = slurp_file($self->{sub}->logfile, $self->{hold_log});
			while ($log =~ /\[(\d+)\].* test point (\S+): waits$/gm)
			{
				my ($pid, $point) = ($1, $2);
				next unless $wanted{$point} || $wanted{ $point =~ s/:.*//r };
				@found = ($pid, $point);
				last;
			}
			return @found;
		});
	return @found;
}

# The name of the slot of a worker.
sub slot_of
{
	my ($self, $pid) = @_;

	return $self->{sub}->safe_psql('postgres',
		"SELECT slot_name FROM reuse_sync.pool_workers() WHERE pid = $pid");
}

# --- what happens to a worker ---

# act($action, $pid): have it happen to the worker with this pid, which is held
# at a point, and let go of all.
sub act
{
	my ($self, $action, $pid) = @_;
	my %to_do = (
		error      => \&raise_error,
		terminate  => \&terminate_worker,
		kill       => \&kill_worker,
		walsender  => \&terminate_walsender,
		subscriber => \&stop_subscriber,
		publisher  => \&stop_publisher);

	kill(0, $pid) or die "process $pid is gone before anything was done to it";
	$to_do{$action}->($self, $pid);
	return;
}

sub release
{
	my ($self) = @_;

	$self->configure('reuse_sync.test_points' => '');
	return;
}

sub raise_error
{
	my ($self, $pid) = @_;

	$self->configure(
		'reuse_sync.test_error_pid' => $pid,
		'reuse_sync.test_points'    => '');
	$self->wait_for_log(qr/\[$pid\].* test point \S+: fails$/m);

	# It must not fail again.
	$self->configure('reuse_sync.test_error_pid' => 0);
	return;
}

sub terminate_worker
{
	my ($self, $pid) = @_;

	# Another worker takes over.
	$self->configure('reuse_sync.max_workers_per_subscription' => 3);
	$self->wait_for(
		'sub',
		'another worker',
		qq{SELECT count(*) FROM reuse_sync.pool_workers()
		WHERE worker_type = 'worker' AND pid <> $pid}, qr/^[1-9]/);
	$self->terminate($pid);
	$self->release;
	return;
}

# End a process of the subscriber; returns when it is gone.
sub terminate
{
	my ($self, $pid) = @_;

	$self->{sub}->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
	wait_until($self->{sub}, "process $pid to end",
		sub { return !kill 0, $pid });
	return;
}

sub kill_worker
{
	my ($self, $pid) = @_;
	my $log = -s $self->{sub}->logfile;

	kill 'KILL', $pid;
	$self->wait_for_log(qr/all server processes terminated; reinitializing/,
		$log);
	$self->wait_for('sub', 'the server', 'SELECT 1', qr/^1$/);

	# It goes on with the settings it had.
	$self->release;
	return;
}

sub terminate_walsender
{
	my ($self, $pid) = @_;

	# One that streams for the worker has the name of its slot.  Before there
	# is one, the worker has but an ordinary session.
	my $slot   = $self->slot_of($pid);
	my $killed = $self->terminate_sessions(
		"backend_type = 'walsender' AND application_name = '$slot'")
	  || $self->terminate_sessions("application_name IN ('reuse_sync', 's')");
	die 'there was no walsender to kill' if $killed == 0;
	$self->release;
	return;
}

# End sessions of the publisher; returns how many.  They may not get rid of their
# last message before whoever is held reads it.
sub terminate_sessions
{
	my ($self, $which) = @_;

	return $self->{pub}->safe_psql(
		'postgres', qq{
		SELECT count(*) FROM (
			SELECT pg_terminate_backend(pid) AS told
			FROM pg_stat_activity WHERE $which OFFSET 0) AS sessions
		WHERE told});
}

sub stop_subscriber
{
	my ($self, $pid) = @_;

	$self->write_settings('reuse_sync.test_points' => '');
	$self->{sub}->stop('immediate');
	$self->{sub}->start;
	return;
}

sub stop_publisher
{
	my ($self, $pid) = @_;

	$self->stop_publisher_only;
	$self->release;
	$self->{pub}->start;
	$self->start_writers;
	return;
}

# The writers end when it has gone.
sub stop_publisher_only
{
	my ($self) = @_;

	$self->{pub}->stop('immediate');
	waitpid delete $self->{writers}, 0;
	return;
}

# --- the end of a case ---

# A slow machine does not get done with little time under the lock.
sub be_patient
{
	my ($self) = @_;
	my $setting = 'reuse_sync.handover_lock_timeout';

	$self->configure($setting => $settings{$setting});
	return;
}

# Until the result of a query matches; the server may be away meanwhile.
sub wait_for
{
	my ($self, $side, $what, $query, $pattern) = @_;
	my $end = time + $PostgreSQL::Test::Utils::timeout_default;
	my $result;

	while (1)
	{
		my ($ret, $stderr);

		# It dies if psql ends before it has read the query.
		eval {
			$ret = $self->{$side}->psql('postgres', $query, stdout => \$result,
				stderr => \$stderr);
		} or $ret //= 2;
		return if $ret == 0 && $result =~ $pattern;
		die $stderr if $ret == 3;
		$result = $stderr // $@ if $ret != 0;
		die "waited in vain for $what; last: $result" if time > $end;
		usleep(50_000);
	}
}

sub wait_for_log
{
	my ($self, $pattern, $offset) = @_;

	wait_until(
		$self->{sub},
		"$pattern in the log",
		sub {
			return slurp_file($self->{sub}->logfile,
				$offset // $self->{sub_log}) =~ $pattern;
		});
	return;
}

sub wait_ready
{
	my ($self) = @_;
	my $tables = () = tables();

	$self->wait_for('sub', 'all tables to be ready', q{
		SELECT count(*) FILTER (WHERE srsubstate = 'r'),
			string_agg(srrelid::regclass::text || ' ' || srsubstate::text, ',')
				FILTER (WHERE srsubstate <> 'r')
		FROM pg_subscription_rel}, qr/^$tables\|$/);
	return;
}

# All is ready, the contents are equal, and nothing is left; dies otherwise.
sub settle
{
	my ($self) = @_;

	$self->end_sessions;
	$self->wait_for('sub', 'all resynchronizations to end', q{
		SELECT count(*) FROM reuse_sync.resync}, qr/^0$/);
	$self->wait_ready;
	$self->stop_writers;
	flush_wal($self->{pub});
	catch_up($self->{pub}, $self->{sub}, 's');
	$self->compare;
	$self->check_nothing_left;
	return;
}

sub compare
{
	my ($self) = @_;
	my $query = join ' UNION ALL ', map {
		"SELECT '$_', count(*), sum(hashtextextended(t::text, 0)) FROM $_ t"
	} tables();

	my $want = $self->{pub}->safe_psql('postgres', $query);
	my $have = $self->{sub}->safe_psql('postgres', $query);
	return if $have eq $want;

	my %want  = map { /^(\w+)/ => $_ } split /\n/, $want;
	my %have  = map { /^(\w+)/ => $_ } split /\n/, $have;
	my @wrong = grep { $want{$_} ne $have{$_} } sort keys %want;
	foreach my $table (@wrong)
	{
		foreach my $side ('pub', 'sub')
		{
			append_to_file(
				$self->{sub}->basedir . "/wrong_${table}_$side",
				rows_of($self->{$side}, $table) . "\n");
		}
	}
	die 'contents differ: '
	  . join('; ', map { "$want{$_} became $have{$_}" } @wrong);
}

# No slot but the subscription's on the publisher, no origin but its own on the
# subscriber, no row in the catalog that something could be resumed from.
sub check_nothing_left
{
	my ($self) = @_;

	$self->wait_for('sub', 'the catalog to be empty', q{
		SELECT string_agg(slot_name || ' ' || state, ',')
		FROM reuse_sync.slot_catalog}, qr/^$/);
	$self->wait_for('sub', 'no table to have a slot', q{
		SELECT string_agg(relid::regclass::text, ',')
		FROM reuse_sync.table_progress
		WHERE slot_id IS NOT NULL OR copy_xid IS NOT NULL
		OR snapshot IS NOT NULL}, qr/^$/);
	$self->wait_for('sub', 'origins to be gone', q{
		SELECT string_agg(roname, ',') FROM pg_replication_origin
		WHERE roname NOT IN (SELECT 'pg_' || oid FROM pg_subscription)},
		qr/^$/);
	$self->wait_for('pub', 'slots to be gone', q{
		SELECT string_agg(slot_name, ',') FROM pg_replication_slots
		WHERE slot_name <> 's'}, qr/^$/);

	slurp_file($self->{sub}->logfile, $self->{sub_log}) =~
	  /table synchronization worker for subscription/
	  and die 'the server has synchronized a table itself';
	return;
}

# end_case(): drop the subscription.  Of it, too, nothing may be left.
sub end_case
{
	my ($self) = @_;

	$self->{sub}->safe_psql('postgres', 'DROP SUBSCRIPTION s');
	$self->wait_for('pub', 'all slots to be gone',
		'SELECT count(*) FROM pg_replication_slots', qr/^0$/);
	$self->wait_for('sub', 'all origins to be gone',
		'SELECT count(*) FROM pg_replication_origin', qr/^0$/);
	return;
}

# Give up: a case has failed, and the servers with it.
sub abandon
{
	my ($self) = @_;

	$self->end_sessions;
	if (my $pid = delete $self->{writers})
	{
		kill 'TERM', $pid;
		waitpid $pid, 0;
	}
	foreach my $node (@$self{qw(pub sub)})
	{
		$node->stop('immediate', fail_ok => 1);
	}
	return;
}

# The names of the slots that have been asked for since the servers began, but
# for those of subscriptions.
sub slot_names
{
	my ($self) = @_;
	my $log = slurp_file($self->{pub}->logfile);

	return $log =~
	  /received replication command: CREATE_REPLICATION_SLOT "(reuse_sync_\w+)"/g;
}

1;
