# Runs the commands that a page of documentation shows.
#
# A comment before each fenced block of SQL, shell or settings says what is done
# with it; a reader of the page does not see it:
#
#   <!-- run: SERVER [DATABASE] [fails] [until] -->
#       SQL: run there, as one psql does it.  SERVER is publisher or
#       subscriber; DATABASE is "shop" unless named.  "fails": it must fail.
#       "until": again and again until the output is the one shown.
#   <!-- run: sh [until] -->
#       shell: run with PGHOST and PGPORT of the subscriber.
#   <!-- run: conf SERVER -->
#       settings: added to the server's postgresql.conf.
#   <!-- instead: restart SERVER -->
#   <!-- instead: packages -->
#   <!-- instead: build -->
#   <!-- instead: access -->
#       cannot be run here.  The server is restarted; what the packages and the
#       build bring is looked for in the server under test; the test's own
#       pg_hba.conf lets everybody in.
#   <!-- no command -->
#       nothing to be run: what something looks like.
#   <!-- setup: SERVER [DATABASE] [until]
#   SQL
#   -->
#       what the page takes for granted, or waits for; not shown.
#   <!-- restart: SERVER -->
#       the same.
#
# A block of "text" that follows is the output, that of psql without rules.
# Spaces may be more or less, and "..." stands for anything.  Host names and
# ports of the servers are put in for those of the pages: see %servers.
#
# A block of a kind that is run and has no comment is an error.

package Documentation;

use strict;
use warnings;

use Exporter 'import';
use File::Basename;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use ReuseSync;
use Test::More;
use Time::HiRes qw(usleep);

our @EXPORT_OK = qw(parse_page run_page);

my %servers = (
	'publisher.example'  => 'publisher',
	'subscriber.example' => 'subscriber',
	'old.example'        => 'publisher',
	'new.example'        => 'subscriber');
my $database = 'shop';

# Where commands leave their files.
my $where = PostgreSQL::Test::Utils::tempdir();

# parse_page($file): the steps of a page, references to hashes: line, kind (sql,
# sh, ini), text, server, db, fails, until, instead, output.
sub parse_page
{
	my ($file) = @_;
	my @lines = split /\n/, slurp_file($file);
	my $name  = basename($file);
	my (@steps, %mark);
	my $readme = $name eq 'README.md';
	my $here   = !$readme;

	for (my $i = 0; $i < @lines; $i++)
	{
		my $line = $lines[$i];

		# Of the README only what its reader is to do: the start.
		$here = ($line =~ /start/i) if $readme && $line =~ /^## /;

		if ($line =~ /^\s*<!-- setup: (.*[^>])$/)
		{
			my ($server, @words) = split / /, $1;
			my %step = (
				server => $server,
				db     => (grep { $_ ne 'until' } @words)[0] // $database,
				until  => (grep { $_ eq 'until' } @words) ? 1 : 0,
				kind   => 'sql',
				line   => $i + 1);
			$step{text} .= "$lines[$i]\n" while $lines[ ++$i ] !~ /^\s*-->$/;
			push @steps, \%step;
		}
		elsif ($line =~ /^\s*<!-- restart: (\w+) -->$/)
		{
			push @steps,
			  { server => 'none', instead => "restart $1", line => $i + 1 };
		}
		elsif ($line =~ /^\s*<!-- run: (.*) -->$/)
		{
			my @words = split / /, $1;

			%mark = map { ($_ => 1) } grep { /^(fails|until)$/ } @words;
			@words = grep { !/^(fails|until)$/ } @words;
			shift @words if $words[0] eq 'conf';
			$mark{server} = $words[0];
			$mark{db}     = $words[1] // $database;
		}
		elsif ($line =~ /^\s*<!-- instead: (.*) -->$/)
		{
			%mark = (server => 'none', instead => $1);
		}
		elsif ($line =~ /^\s*<!-- no command -->$/)
		{
			%mark = (nothing => 1);
		}
		elsif ($line =~ /^(\s*)```(\w*)$/)
		{
			my ($indent, $kind) = ($1, $2);
			my $text  = '';
			my $start = $i + 1;

			while ($lines[ ++$i ] !~ /^\s*```$/)
			{
				$text .= ($lines[$i] =~ s/^$indent//r) . "\n";
			}
			next unless $here;
			if ($kind eq 'text' && @steps && !%mark)
			{
				$steps[-1]{output} = $text;
			}
			elsif ($kind =~ /^(sql|sh|console|ini)$/)
			{
				die "$name:$start: it is not said how to run this\n"
				  unless %mark;
				push @steps,
				  { %mark, kind => $kind, text => $text, line => $start }
				  unless $mark{nothing};
			}
			%mark = ();
		}
	}
	return @steps;
}

# What can vary, and does not matter, is the same: spaces, rules, and the sign
# that a value goes on in the next line.
sub lines_of
{
	my ($text) = @_;

	return grep { $_ ne '' && !/^[-+ ]+$/ }
	  map { s/\s+/ /gr =~ s/ ?\+?$//r =~ s/^ | $//gr } split /\n/, $text;
}

# Is this the output that is shown?  Servers from 17 on put names of settings
# into quotation marks.
sub matches
{
	my ($output, $shown) = @_;
	my $pattern = join "\n",
	  map { join '.*?', map { quotemeta } split /\Q...\E/, $_, -1 }
	  lines_of($shown);

	$output = join "\n", lines_of($output);
	return $output =~ /^$pattern$/
	  || $output =~ s/"(\w+)"/$1/gr =~ /^$pattern$/;
}

# Run a step; returns status, and all it has printed.
sub run_step
{
	my ($nodes, $step) = @_;
	my $text = $step->{text};
	my $out  = '';
	my %env;
	my @command;

	foreach my $host (sort keys %servers)
	{
		my $node = $nodes->{ $servers{$host} };

		$text =~ s/host=\Q$host\E( port=5432)?/'host=' . $node->host . ' port=' . $node->port/ge;
	}
	if ($step->{server} eq 'sh')
	{
		%env = (
			PGHOST => $nodes->{subscriber}->host,
			PGPORT => $nodes->{subscriber}->port);
		@command = ('bash', '-e', '-o', 'pipefail', '-s');
	}
	else
	{
		my $node = $nodes->{ $step->{server} };

		%env     = (PGHOST => $node->host, PGPORT => $node->port);
		@command = (
			'psql', '-X', '-v', 'ON_ERROR_STOP=1', '-d', $step->{db}, '-f',
			'-');
	}

	my $run = sub {
		local @ENV{ keys %env } = values %env;
		IPC::Run::run(
			\@command, '<', \$text, '>&', \$out,
			init => sub { chdir $where or die "$where: $!" });
		return $? >> 8;
	};
	my $status = $run->();
	my $deadline = time
	  + ($step->{until} ? $PostgreSQL::Test::Utils::timeout_default : 0);

	while (time < $deadline
		&& ($status != 0 || !matches(results($out), $step->{output} // "...\nt\n(1 row)")))
	{
		usleep(100_000);
		$out    = '';
		$status = $run->();
	}
	return ($status, $out);
}

# Without the tags of commands, and where in the input an error is.
sub results
{
	my ($out) = @_;

	return join '',
	  map { s/^psql:<stdin>:\d+: //r }
	  grep { !/^(?:CREATE|ALTER|DROP|GRANT|REVOKE|INSERT|SET|CALL|TRUNCATE|COPY|UPDATE|DELETE|NOTICE|psql:<stdin>:\d+: NOTICE)\b/
	  } split /^/m, $out;
}

# What is done in place of a block.
sub run_instead
{
	my ($root, $nodes, $step) = @_;
	my ($what, $server) = split / /, $step->{instead};

	if ($what eq 'restart')
	{
		$nodes->{$server}->restart;
		return 1;
	}
	if ($what eq 'packages')
	{
		my ($pgxs) = run_command([ 'pg_config', '--pgxs' ]);
		return -e $pgxs;
	}
	if ($what eq 'build')
	{
		my ($pkglibdir) = run_command([ 'pg_config', '--pkglibdir' ]);
		return -e "$pkglibdir/reuse_sync.so";
	}
	return 1 if $what eq 'access';
	die "line $step->{line}: nothing is known to do instead: $what\n";
}

# run_page($root, $file, @steps): run them on two new servers; a test for each.
sub run_page
{
	my ($root, $file, @steps) = @_;
	my $name  = basename($file, '.md');
	my %nodes = (
		publisher  => new_publisher("${name}_publisher"),
		subscriber => new_bare_subscriber("${name}_subscriber", $name));

	given($nodes{publisher}, $nodes{subscriber}, $name);
	foreach my $step (@steps)
	{
		my $title = "$name.md, line $step->{line}";

		if ($step->{instead})
		{
			ok(run_instead($root, \%nodes, $step), "$title: $step->{instead}");
		}
		elsif ($step->{kind} eq 'ini')
		{
			$nodes{ $step->{server} }
			  ->append_conf('postgresql.conf', $step->{text});
			pass("$title: settings");
		}
		else
		{
			my ($status, $out) = run_step(\%nodes, $step);
			my ($head) = $step->{text} =~ /^\s*(.{1,50})/;
			my $good = ($status != 0) == !!$step->{fails};

			$good &&= matches(results($out), $step->{output})
			  if defined $step->{output};
			ok($good, "$title: $head")
			  || diag("status $status, output:\n$out"
				  . (defined $step->{output}
					? "expected:\n$step->{output}" : ''));
			die "$title: the rest needs this\n" unless $good;
		}
	}
	$_->stop foreach values %nodes;
	return;
}

# A server as the reader of a page has it: with the library and the extension,
# unless the page is about how they get there.
sub new_bare_subscriber
{
	my ($server, $name) = @_;
	my %conf = (
		max_prepared_transactions   => 10,
		wal_retrieve_retry_interval => '200ms',
		shared_preload_libraries    => $name eq 'README' ? '' : 'reuse_sync');

	return ReuseSync::new_node(
		$server,
		max_connections => 40,
		shared_buffers  => '16MB',
		%conf);
}

# What the pages take for granted: a database with some tables that is
# published, and on all pages but those that are about it a subscription.
sub given
{
	my ($pub, $sub, $name) = @_;

	$pub->safe_psql('postgres', 'CREATE DATABASE shop');
	$pub->safe_psql(
		'shop', q{
		CREATE ROLE app LOGIN;
		CREATE TABLE customers (id int GENERATED BY DEFAULT AS IDENTITY
			PRIMARY KEY, name text);
		CREATE TABLE products (id int PRIMARY KEY, name text);
		INSERT INTO customers (name)
			SELECT 'customer ' || g FROM generate_series(1, 1000) g;
		INSERT INTO products
			SELECT g, 'product ' || g FROM generate_series(1, 100) g});
	return if $name eq 'README' || $name eq 'migration';

	$pub->safe_psql(
		'shop', q{
		CREATE PUBLICATION shop FOR TABLE customers;
		CREATE PUBLICATION items FOR TABLE products});
	$sub->safe_psql('postgres', 'CREATE DATABASE shop');
	$sub->safe_psql(
		'shop', q{
		CREATE TABLE customers (id int PRIMARY KEY, name text);
		CREATE TABLE products (id int PRIMARY KEY, name text);
		CREATE EXTENSION reuse_sync});
	my $conninfo = $pub->connstr('shop');
	$conninfo =~ s/'/''/g;
	$sub->safe_psql('shop',
		"CREATE SUBSCRIPTION shop CONNECTION '$conninfo' PUBLICATION shop, items"
	);
	$sub->safe_psql('shop', q{SELECT reuse_sync.wait_for_sync('shop')});
	return;
}

1;
