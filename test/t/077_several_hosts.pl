# A connection string with several hosts, of which the first does not answer at
# all.  It may take longer than wal_receiver_timeout until the system gives up on
# that one; the next is tried then, as the server's own workers do.

use strict;
use warnings;

use IO::Socket::INET;
use PostgreSQL::Test::Utils;
use Socket qw(inet_aton sockaddr_in);
use Test::More;

use ReuseSync;

# A port where nobody answers: nothing is accepted there, and the queue is full.
my $listener =
  IO::Socket::INET->new(Listen => 1, LocalAddr => '127.0.0.1', Proto => 'tcp')
  or die "cannot listen: $!";
my $port = $listener->sockport;
my @queue;
my $full = 0;
while (!$full && @queue < 20)
{
	my $client = IO::Socket::INET->new(Proto => 'tcp', Blocking => 0)
	  or die "cannot make a socket: $!";
	my $writable = '';

	connect $client, sockaddr_in($port, inet_aton('127.0.0.1'));
	push @queue, $client;
	vec($writable, fileno $client, 1) = 1;
	$full = select(undef, $writable, undef, 1) == 0;
}
plan skip_all => 'every connection is taken up here' unless $full;

my $pub = new_publisher('pub');
my $sub = new_subscriber('sub', wal_receiver_timeout => '2s');

both($pub, $sub, 'CREATE TABLE t (a int PRIMARY KEY)');
$pub->safe_psql('postgres',
	'INSERT INTO t VALUES (1); CREATE PUBLICATION p FOR TABLE t');

# The system's own limit is more than two minutes.
my $conninfo =
    "host=127.0.0.1,"
  . $pub->host
  . " port=$port,"
  . $pub->port
  . ' dbname=postgres tcp_user_timeout=4000';
$sub->safe_psql('postgres',
	"CREATE SUBSCRIPTION s CONNECTION '$conninfo' PUBLICATION p");
wait_ready($sub, 's');
rows_ok($pub, $sub, 't', 'the second host is used');
no_builtin_sync_ok($sub);

done_testing();
