# Something that speaks the server's protocol as far as it is asked to, and
# answers what no server would.
#
#   use FakePublisher;
#   my $fake = FakePublisher->new(sub { my ($query) = @_; ... });
#   $fake->connstr;
#
# The function gets each query and returns rows, references to lists of values
# as text (undef is null); or the string "stream", to begin one that stays silent.
# It runs in a process of its own for each connection.  All end with the test.

package FakePublisher;

use strict;
use warnings;

use IO::Socket::INET;

my %processes;

sub new
{
	my ($class, $answer) = @_;

	my $socket = IO::Socket::INET->new(
		Listen    => 20,
		LocalAddr => '127.0.0.1',
		Proto     => 'tcp') or die "cannot listen: $!";
	my $self = bless { port => $socket->sockport }, $class;
	my $pid = fork() // die "cannot fork: $!";

	if ($pid == 0)
	{
		%processes = ();
		serve($socket, $answer);
	}
	$processes{$pid} = 1;
	close $socket;
	return $self;
}

sub connstr
{
	my ($self) = @_;

	return "host=127.0.0.1 port=$self->{port} dbname=x user=x"
	  . ' sslmode=disable gssencmode=disable';
}

sub serve
{
	my ($socket, $answer) = @_;

	local $SIG{CHLD} = 'IGNORE';
	local $SIG{PIPE} = 'IGNORE';
	setpgrp;
	while (my $client = $socket->accept)
	{
		my $pid = fork();
		next if !defined $pid || $pid != 0;
		talk($client, $answer);
		leave();
	}
	leave();
	return;
}

# Without what the test does at its end
sub leave
{
	require POSIX;
	POSIX::_exit(0);
	return;
}

# A message: its type, unless that is empty, and what it consists of
sub message
{
	my ($type, @parts) = @_;
	my $body = join '', @parts;

	return $type . pack('N', 4 + length $body) . $body;
}

sub read_bytes
{
	my ($client, $length) = @_;
	my $data = '';

	while (length $data < $length)
	{
		my $n = sysread $client, $data, $length - length $data, length $data;
		leave() if !$n;
	}
	return $data;
}

sub rows
{
	my (@rows) = @_;
	my $ncols = @rows ? scalar @{ $rows[0] } : 0;
	my @columns = map { pack('Z*NnNnNn', "c$_", 0, 0, 25, -1, -1, 0) } 1 .. $ncols;
	my $data = message('T', pack('n', $ncols), @columns);

	foreach my $row (@rows)
	{
		$data .= message(
			'D',
			pack('n', scalar @$row),
			map { defined $_ ? pack('N/a*', $_) : pack('N', 0xFFFFFFFF) } @$row);
	}
	return $data . message('C', pack('Z*', 'SELECT ' . @rows));
}

sub talk
{
	my ($client, $answer) = @_;
	my $ready = message('Z', 'I');

	read_bytes($client, unpack('N', read_bytes($client, 4)) - 4);
	syswrite $client, join '', message('R', pack('N', 0)),
	  message('S', pack('Z*Z*', 'server_version',              '15.0')),
	  message('S', pack('Z*Z*', 'client_encoding',             'UTF8')),
	  message('S', pack('Z*Z*', 'standard_conforming_strings', 'on')), $ready;
	while (1)
	{
		my ($type, $length) = unpack 'aN', read_bytes($client, 5);
		my $body = read_bytes($client, $length - 4);

		leave() if $type eq 'X';
		next if $type ne 'Q';
		my @answer = $answer->(unpack 'Z*', $body);
		syswrite $client,
		  @answer && !ref $answer[0]
		  ? message('W', pack('Cn', 0, 0))
		  : rows(@answer) . $ready;
	}
	return;
}

END
{
	my $status = $?;

	foreach my $pid (keys %processes)
	{
		kill('-KILL', $pid);
		kill('KILL', $pid);
		waitpid $pid, 0;
	}
	$? = $status;
}

1;
