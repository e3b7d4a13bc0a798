package Schedule;

# What goes wrong, and when: made in whole from the seed before anything runs,
# so that both routers get the same and a seed can be run again.
#
#     my $schedule = schedule(seed => 7, seconds => 120);
#     $schedule->{faults}     # [second, replica, fault, seconds]
#     $schedule->{actions}    # { at, do, ... } in the order of time
#     $schedule->{shared}     # the upstream has a `zone`: of odd seeds
#
# A fault belongs to the replicas and is over by itself, an action is done to
# nginx by the driver, one after the other.

use strict;
use warnings;

use Exporter qw(import);
use List::Util qw(shuffle);

our @EXPORT = qw(schedule);

our $replicas = 8;

our @faults = qw(refuse silent reset_early reset_head reset_mid reset_done
                 429 500 503 stall drip);

# at least as many servers of the configuration are not down
my $least = 5;


sub schedule
{
    my %args = @_;

    srand $args{seed};
    return { shared => $args{seed} % 2, faults => faults($args{seconds}),
             actions => actions($args{seconds}) };
}


# Half of the replicas are well at any time.
sub faults
{
    my $seconds = shift;
    my @until = (0) x $replicas;
    my @list;

    for (my $t = 0.5; $t < $seconds; $t += 0.2 + rand 0.8) {
        next if grep({ $_ > $t } @until) >= $replicas / 2;

        my $i = (shuffle(grep { $until[$_] <= $t } 0 .. $replicas - 1))[0];
        my $for = 1 + rand 3;

        $until[$i] = $t + $for;
        push @list, [$t, $i, $faults[rand @faults], $for];
    }

    return \@list;
}


sub actions
{
    my $seconds = shift;
    my $state = { zone => 512,
                  servers => [map { { i => $_, name => 1, down => 0 } }
                              0 .. $replicas - 1] };
    my @list = { at => 0, do => 'start', conf($state) };
    my $quiet = 15 + rand 5;

    for (my $t = 2; $t < $seconds; $t += 0.7 + rand 2) {
        if ($t > $quiet) {
            push @list, { at => $t, do => 'quiet', victim => int rand 1000 };
            $quiet = $t + 15 + rand 5;
        }

        push @list, { at => $t, action($state) };
    }

    return [@list, { at => $seconds, do => 'quiet', victim => int rand 1000 }];
}


sub action
{
    my $state = shift;
    my $dice = rand;

    return (do => 'kill', signal => rand() < 0.5 ? 'KILL' : 'SEGV',
            victim => int rand 1000) if $dice < 0.5;
    return (do => 'upgrade') if $dice < 0.56;
    return drain($state) if $dice < 0.66;

    my $what = change($state);
    return (do => 'reload', what => $what, conf($state),
            victim => rand() < 0.3 ? int rand 1000 : undef);
}


sub drain
{
    my $state = shift;
    my @up = grep { !$_->{down} } @{ $state->{servers} };
    my $server = $up[rand @up];

    return (do => 'drain', i => $server->{i}, name => $server->{name},
            meanwhile => (qw(nothing kill reload))[rand 3],
            victim => int rand 1000);
}


# Changes the servers or the zone; says how.
sub change
{
    my $state = shift;
    my $servers = $state->{servers};
    my @up = grep { !$_->{down} } @$servers;
    my %there = map { $_->{i} => 1 } @$servers;
    my @absent = grep { !$there{$_} } 0 .. $replicas - 1;
    my $any = $servers->[rand @$servers];
    my $what = (qw(add remove reorder rename down zone none))[rand 7];

    if ($what eq 'add' && @absent) {
        push @$servers, { i => $absent[rand @absent], name => 1, down => 0 };

    } elsif ($what eq 'remove' && @up > $least) {
        @$servers = grep { $_ != $any } @$servers;

    } elsif ($what eq 'rename') {
        $any->{name} = 3 - $any->{name};

    } elsif ($what eq 'down') {
        if ($any->{down}) {
            $any->{down} = 0;
        } elsif (@up > $least) {
            $any->{down} = 1;
        }

    } elsif ($what eq 'zone') {
        $state->{zone} += 64;

    } else {
        @$servers = shuffle(@$servers);
        $what = 'reorder';
    }

    return $what;
}


# A copy of the state, since it goes on to change.
sub conf
{
    my $state = shift;

    return (zone => $state->{zone},
            servers => [map { { %$_ } } @{ $state->{servers} }]);
}


1;
