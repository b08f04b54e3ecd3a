# Copy cases: many kinds of tables, few servers and few subscriptions.
#
# A case is a hash:
#   name      what the test is called
#   both      SQL for both servers
#   pub, sub  SQL for one of them, after "both"
#   publish   what stands for the tables in CREATE PUBLICATION ... FOR TABLE;
#             not needed where "pub" makes a publication of its own
#   later     SQL for the publisher, run when all tables are ready
#   rows      query or table to compare
#   rows_sub  what to ask the subscriber instead; by default the same
#   sees      in place of rows_sub, the result that the query must have on the
#             subscriber before and after "later": reference to two strings
#   empty     true if there are no rows to compare before "later"
#
# All cases of a call share a publication and a subscription.  The tables are
# compared twice: when they are ready, and when the later changes have arrived.
# The second comparison shows that the apply worker has taken over at the
# right place: it fails if a change was applied twice, or not at all.

package ReuseSync::Cases;

use strict;
use warnings;

use Exporter 'import';
use ReuseSync;
use Test::More;

our @EXPORT = qw(run_cases ident literal);

# Any string as an SQL identifier.
sub ident
{
	my ($name) = @_;

	$name =~ s/"/""/g;
	return qq{"$name"};
}

# Any string as an SQL literal.
sub literal
{
	my ($value) = @_;

	$value =~ s/'/''/g;
	return "'$value'" unless $value =~ /\\/;
	$value =~ s/\\/\\\\/g;
	return " E'$value'";
}

# run_cases($pub, $sub, $subname, \@cases, %opt): set up, synchronize, compare,
# change, compare.  The publication is called <subname>_pub.  Options:
#   publications  list of more publications to subscribe to
#   refresh       true if the publication and the subscription exist: the
#                 tables are added to them, and REFRESH is what finds them
#   before        code to run once the tables exist, before they are subscribed
#   with, user, pub_db, sub_db  as for subscribe()
sub run_cases
{
	my ($pub, $sub, $subname, $cases, %opt) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	my $pub_db      = $opt{pub_db} // 'postgres';
	my $sub_db      = $opt{sub_db} // 'postgres';
	my $publication = "${subname}_pub";

	run_sql($pub, $pub_db, map { $_->{both}, $_->{pub} } @$cases);
	run_sql($sub, $sub_db, map { $_->{both}, $_->{sub} } @$cases);
	$opt{before}->() if $opt{before};

	my $tables = join ', ', grep { defined } map { $_->{publish} } @$cases;
	if ($opt{refresh})
	{
		run_sql($pub, $pub_db,
			"ALTER PUBLICATION $publication ADD TABLE $tables")
		  if $tables ne '';
		run_sql($sub, $sub_db,
			"ALTER SUBSCRIPTION $subname REFRESH PUBLICATION");
	}
	else
	{
		my @publications = @{ $opt{publications} // [] };
		if ($tables ne '')
		{
			run_sql($pub, $pub_db,
				"CREATE PUBLICATION $publication FOR TABLE $tables");
			unshift @publications, $publication;
		}
		subscribe($pub, $sub, $subname, join(', ', @publications), %opt);
	}

	wait_ready($sub, $subname, db => $sub_db);
	compare($pub, $sub, $pub_db, $sub_db, 0, $_) foreach @$cases;

	my @changed = grep { defined $_->{later} } @$cases;
	return unless @changed;
	run_sql($pub, $pub_db, map { $_->{later} } @changed);
	catch_up($pub, $sub, $subname, db => $sub_db);
	compare($pub, $sub, $pub_db, $sub_db, 1, $_) foreach @changed;
	return;
}

# Run several pieces of SQL in one session.
sub run_sql
{
	my ($node, $db, @sql) = @_;

	@sql = grep { defined } @sql;
	$node->safe_psql($db,
		"SET client_encoding = 'UTF8';\n" . join(";\n", @sql) . ';')
	  if @sql;
	return;
}

# One test for one case; $later is 0 before the later changes, 1 after them.
sub compare
{
	my ($pub, $sub, $pub_db, $sub_db, $later, $case) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 2;
	my $testname = $case->{name} . ($later ? ', later changes' : ', copy');

	my $got =
	  rows_of($sub, $case->{rows_sub} // $case->{rows}, $sub_db);
	my $expected =
	    $case->{sees}
	  ? $case->{sees}[$later]
	  : rows_of($pub, $case->{rows}, $pub_db);

	# Nothing to compare proves nothing.
	if ($expected eq '' && !$case->{sees} && !$case->{empty})
	{
		fail("$testname: the publisher has rows");
		return;
	}
	is($got, $expected, $testname);
	return;
}

1;
