#!/usr/bin/perl
#
# Runs files of the server's tests, see test/server-suite:
#
#   suite-run.pl -I DIR FILES
#
# FILES are names or patterns, with spaces between them.
#
# SUITE_PERL      more options for perl
# SUITE_JOBS      how many files at once
# SUITE_RESULTS   file to write, with a line for each: file, tests run, tests
#                 passed, exit status, and why it was skipped, if it was

use strict;
use warnings;

use TAP::Harness;

my @options = (shift, shift);
my $harness = TAP::Harness->new(
	{
		exec => [
			$^X, @options, split(' ', $ENV{SUITE_PERL} // '')
		],
		jobs  => $ENV{SUITE_JOBS},
		timer => 1
	});
my $aggregator = $harness->runtests(sort map { glob } @ARGV);

open my $out, '>', $ENV{SUITE_RESULTS}
  or die "$ENV{SUITE_RESULTS}: $!";
foreach my $file ($aggregator->descriptions)
{
	my ($parser) = $aggregator->parsers($file);

	printf $out "%s\t%d\t%d\t%d\t%s\n", $file, $parser->tests_run,
	  scalar($parser->passed), $parser->has_problems ? 1 : 0,
	  $parser->skip_all // '';
}
close $out or die "$ENV{SUITE_RESULTS}: $!";
exit($aggregator->all_passed ? 0 : 1);
