#!/usr/bin/perl
#
# Everything goes wrong at once, by a schedule made from a seed, at a router
# with the module and, beside it, at one with least_conn: `make chaos`, see
# docs/reliability.md.
#
#   CHAOS_SECONDS=120  CHAOS_SEED=number (printed)  CHAOS_CLIENTS=12
#
# Prints what was done and what came of it; exits 1 when something was lost
# that least_conn did not lose, leaked, or went where it must not.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin", "$FindBin::Bin/../lib";
use AibrixTest;
use Client;
use File::Temp ();
use List::Util qw(max sum0);
use Schedule;
use Side;

$| = 1;

my $seconds = $ENV{CHAOS_SECONDS} || 120;
my $clients = $ENV{CHAOS_CLIENTS} || 12;
my $seed = defined $ENV{CHAOS_SEED} && $ENV{CHAOS_SEED} ne ''
           ? $ENV{CHAOS_SEED} : int rand 1_000_000;

die "CHAOS_SECONDS is at least 20\n" if $seconds < 20;
die "CHAOS_SEED is a number\n" if $seed !~ /^\d+$/;

my $schedule = schedule(seed => $seed, seconds => $seconds);
my @names = qw(ours control);

print "chaos: CHAOS_SEED=$seed CHAOS_SECONDS=$seconds, 2 x $clients clients, "
      . scalar @{ $schedule->{faults} } . ' faults of replicas, '
      . scalar @{ $schedule->{actions} } . ' actions, upstream '
      . ($schedule->{shared} ? 'with' : 'without') . " a zone\n";

my @dirs = map { scratch_dir() } @names;
my @sides = in_parallel(2, sub {
    return Side::run(side => $names[$_[0]], seed => $seed, clients => $clients,
                     schedule => $schedule, dir => $dirs[$_[0]]);
});
my ($ours, $control) = @sides;
my @bad = map { "ours: $_" } @{ $ours->{breaches} };

push @bad, map { "control: $_" } @{ $control->{breaches} };


# Of the requests to be answered in full: how many, and how they were lost.
sub losses
{
    my $kinds = shift->{kinds};
    my (%lost, $n);

    for my $of (@$kinds{@Client::wanted}) {
        $lost{$_} += $of->{$_} for grep { !/^ok$/ } keys %{ $of || {} };
        $n += sum0(values %{ $of || {} });
    }

    return ($n || 0, \%lost);
}


# More than this is beyond control: half as much again as least_conn, for as
# many requests, and what chance adds to small numbers.
sub margin { 1.5 * $_[0] + 5 * sqrt($_[0]) + 10 }

my ($n, $lost) = losses($ours);
my ($n_control, $lost_control) = losses($control);
my %how = map { $_ => 1 } keys %$lost, keys %$lost_control;
my $beyond = 0;

printf "%-16s %10s %10s %10s\n", '', 'ours', 'control', 'at most';
printf "%-16s %10d %10d\n", 'requests', $n, $n_control;

for my $how (sort keys %how) {
    my ($mine, $theirs) = map { $_->{$how} || 0 } $lost, $lost_control;
    my $allowed = $how =~ /^wrong/ ? 0
                  : margin($theirs * $n / max(1, $n_control));

    printf "%-16s %10d %10d %10d\n", substr($how, 0, 60), $mine, $theirs,
           $allowed;

    if ($mine > $allowed) {
        $beyond += $mine - $allowed;
        push @bad, "$how: $mine, where least_conn lost $theirs of"
                   . " $n_control";
    }
}

printf "%-16s %10d %10d\n", 'lost in all', sum0(values %$lost),
       sum0(values %$lost_control);
printf "%-16s %10d %10d\n", 'given up', map {
    sum0(map { values %$_ } grep { $_ } @{ $_->{kinds} }{@Client::given_up})
} @sides;
printf "%-16s %10d %10d\n", 'at the replicas',
       map { $_->{arrivals} || 0 } @sides;


# An alert that least_conn has as well is nginx's own.
sub kind_of
{
    my $line = shift;

    $line =~ s/^\S+ \S+ //;
    return $line =~ s/\d+/N/gr;
}


my %stock = map { kind_of($_) => 1 } @{ $control->{alarms} };

for my $line (@{ $ours->{alarms} }) {
    push @bad, "log: $line" if !$stock{ kind_of($line) };
}

for my $kind (map { @$_{@Client::given_up} } map { $_->{kinds} } $ours) {
    push @bad, map { "given up: $_" } grep { /^wrong/ } keys %{ $kind || {} };
}

push @bad, 'too few requests to mean anything' if $n < $seconds * 2;
push @bad, 'the counters were hardly looked at'
    if $ours->{looks} < $seconds / 4;
push @bad, 'the index never evicted' if $seconds >= 100 && !$ours->{evicted};
push @bad, 'the counts were never compared' if !$ours->{quiet};

print 'lost of ours, by strategy:';
for my $by (sort grep { /^by / } keys %{ $ours->{kinds} }) {
    my ($ok, $gone) = map { $_ || 0 } @{ $ours->{kinds}{$by} }{qw(ok lost)};
    printf ' %s %d of %d;', $by =~ /^by (.+)/ ? $1 : 'default', $gone,
           $ok + $gone;
}
print "\n";
print 'faults: ', $ours->{injected} || '', "\n";
print 'actions: ', join(' ', map { "$_=$ours->{did}{$_}" }
                        sort keys %{ $ours->{did} }), "\n";
printf "counts compared with the replicas' %d times, true after %.2f s at the "
       . "latest; leaked %d; counters looked at %d times; up to %d blocks "
       . "evicted of one zone; alerts %d ours, %d control\n",
       @$ours{qw(quiet slowest leaked looks evicted)},
       map { scalar @{ $_->{alarms} } } @sides;
printf "KiB of a worker: ours %s; control %s\n", map {
    join ' ', map { $_->[1] } @{ $_->{memory} }
} @sides;

if (@bad) {
    print map { "BAD: $_\n" } splice @{ [@bad] }, 0, 20;
    print 'BAD: ', @bad - 20, " more\n" if @bad > 20;
    $File::Temp::KEEP_ALL = 1;
    print "kept: @dirs\n";
}

print 'chaos: ', @bad ? 'FAILED' : 'passed', ", CHAOS_SEED=$seed, beyond "
      . 'control ' . int($beyond) . "\n";
exit(@bad ? 1 : 0);
