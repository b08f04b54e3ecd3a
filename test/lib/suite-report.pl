#!/usr/bin/perl
#
# Reports what the runs of test/server-suite have left:
#
#   suite-report.pl DIR
#
# with the runs in DIR/without and DIR/with, or one of them.  A line for each
# file of the suite, and what is wrong.  Exits with 1 if anything is.
#
# The tables are counted three times: those whose synchronization the server
# finished by itself without the extension, those that the extension has said
# in the log that it has, and those it has counted in reuse_sync.stats.  Some
# tests end, or drop a subscription, while tables are still being synchronized,
# which are finished or not as it happens: as many as were unfinished then, one
# way may have more.

use strict;
use warnings;

my ($dir) = @ARGV;
my (%results, %tables, %workers, %counted, %unfinished, @problems);

# Per file of the suite, a list: tests run, passed, bad status, skip reason.
sub read_results
{
	my ($run) = @_;

	open my $in, '<', "$dir/$run/tests" or return;
	while (my $line = <$in>)
	{
		chomp $line;
		my ($file, @values) = split /\t/, $line, -1;
		(my $name = $file) =~ s{^.*/|\.pl$}{}g;
		$results{$run}{$name} = \@values;
	}
	close $in;
	return;
}

# What the servers of a run have logged
sub read_logs
{
	my ($run) = @_;

	foreach my $file (glob "$dir/$run/tmp_check/log/*.log")
	{
		my ($test) = $file =~ m{/(\d+_[^/]*)_[^/]*\.log$} or next;
		# Names of tests and nodes have underscores: the longest that is one.
		$test =~ s/_[^_]*$// while $test ne '' && !$results{$run}{$test};
		open my $in, '<', $file or die "$file: $!";
		while (my $line = <$in>)
		{
			next unless $line =~ /LOG:  /;
			$workers{$run}{$test}++
			  if $line =~
			  /LOG:  logical replication table synchronization worker for .* has started/;
			$tables{$run}{$test}++
			  if $line =~
			  /LOG:  logical replication table synchronization worker for .* has finished/;
			$tables{$run}{$test} += $1 // 1
			  if $line =~
			  /LOG:  reuse_sync worker synchronized (?:table|(\d+) tables) /;
		}
		close $in;
	}
	return;
}

# The last counts of each database
sub read_counters
{
	my ($run) = @_;
	my %last;

	open my $in, '<', "$dir/$run/counters" or return;
	while (my $line = <$in>)
	{
		chomp $line;
		my ($test, $node, $db, @counts) = split /\t/, $line;
		if ($counts[0] eq 'dropped')
		{
			$unfinished{$run}{$test} += $counts[1];
			next;
		}
		if ($counts[0] eq '-' && $run eq 'with')
		{
			push @problems,
			  "$test: database \"$db\" of node \"$node\" has no extension";
			next;
		}
		$last{$test}{"$node\t$db"} = \@counts;
	}
	close $in;
	foreach my $test (keys %last)
	{
		foreach my $counts (values %{ $last{$test} })
		{
			$counted{$test} += $counts->[0] if $run eq 'with';
			$unfinished{$run}{$test} += $counts->[1];
		}
	}
	return;
}

my @runs = grep { -d "$dir/$_" } qw(without with);
foreach my $run (@runs)
{
	read_results($run);
	read_logs($run);
	read_counters($run);
}

my %names = map { $_ => 1 } map { keys %{ $results{$_} } } @runs;
my $both  = @runs == 2;
my (%passed, %total);

print "\n";
printf "%-34s %-17s %-26s\n", '', 'tests passed', 'tables synchronized';
printf "%-34s %8s %8s %8s %8s %8s\n", 'file', 'without', 'with', 'without',
  'log', 'counters';
foreach my $name (sort keys %names)
{
	my @shown;

	foreach my $run (qw(without with))
	{
		my $result = $results{$run}{$name};
		if (!$result)
		{
			push @shown, '-';
			push @problems, "$name was not run $run the extension"
			  if grep { $_ eq $run } @runs;
			next;
		}
		my ($ran, $good, $bad, $skipped) = @$result;
		push @problems, "$name fails $run the extension" if $bad;
		push @shown, $bad ? "FAILED $good" : $skipped ne '' ? 'skipped' : $good;
		$passed{$run}++ unless $bad || $skipped ne '';
		$total{$run} += $good;
	}
	if ($both && $results{without}{$name} && $results{with}{$name})
	{
		my ($ran, $ran_with) = ($results{without}{$name}[0],
			$results{with}{$name}[0]);
		push @problems,
		  "$name has $ran_with tests with the extension, $ran without"
		  if $ran != $ran_with;
	}
	my @count = (
		$tables{without}{$name} // 0,
		$tables{with}{$name} // 0,
		$counted{$name} // 0);
	printf "%-34s %8s %8s %8d %8d %8d\n", $name, @shown, @count;
	$total{tables}[$_] += $count[$_] foreach 0 .. 2;
	push @problems, "$name: the server has started table synchronization"
	  . " workers beside the extension"
	  if $workers{with}{$name};
	my ($left, $left_with) = map { $unfinished{$_}{$name} // 0 } qw(without with);
	# One that is done between the last look at the counters and the stop
	push @problems, "$name: the log has $count[1] tables, the counters $count[2]"
	  . " while $left_with were unfinished"
	  if $count[1] < $count[2] || $count[1] > $count[2] + $left_with;
	push @problems, "$name: the extension has synchronized $count[1] tables"
	  . " and left $left_with, the server $count[0] and left $left"
	  if $both && ($count[1] + $left_with < $count[0]
		|| $count[0] + $left < $count[1]);
}
printf "%-34s %8s %8s %8d %8d %8d\n", 'all', $total{without} // '-',
  $total{with} // '-', @{ $total{tables} };

print "\n";
print "$_\n" foreach @problems;
foreach my $run (@runs)
{
	printf "%s the extension: %d of %d files pass, %d tests\n", $run,
	  $passed{$run} // 0, scalar keys %names, $total{$run} // 0;
}
my $started = 0;
$started += $_ foreach values %{ $workers{with} // {} };
print "built-in table synchronization workers started with the extension:"
  . " $started\n"
  if $results{with};
exit(@problems ? 1 : 0);
