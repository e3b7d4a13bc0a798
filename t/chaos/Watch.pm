package Watch;

# What must hold whatever happens. Each breach is a line of {breaches}; looks
# are counted, so that a check that never ran shows.

use strict;
use warnings;

use AibrixTest;
use JSON::PP qw(decode_json);
use List::Util qw(max sum0);
use Time::HiRes qw(sleep time);

# seconds for the counts to come true
our $limit = 2;


sub new
{
    my ($class, %args) = @_;

    return bless { breaches => [], looks => 0, last => {}, quiet => 0,
                   slowest => 0, leaked => 0, evicted => 0, held => 0,
                   memory => [], drains => [], %args }, $class;
}


sub breach
{
    my ($self, $what) = @_;

    push @{ $self->{breaches} }, $what;
    print STDERR "# BREACH: $what\n";
}


# Counters start anew with a zone.
sub new_zone { $_[0]{last} = {} }


# { metric or state => { server => n } }; undef when nobody answered.
sub gauges
{
    my $self = shift;
    my $text = $self->{router}->get('/metrics');
    my %gauges;

    return if !defined $text;

    while ($text =~ /^aibrix_(inflight_requests|waiting_requests
                              |queued_prompt_bytes)\{.*pod="[^"]*:(\d+)".*\}
                     \ (\S+)$/mgx)
    {
        $gauges{$1}{$2} += $3;
    }

    return \%gauges;
}


# One look at the counters, on the way.
sub look
{
    my $self = shift;
    my $text = $self->{router}->get('/metrics');

    return if !defined $text;
    $self->{looks}++;

    my %counter = map { $_ => 1 }
                  $text =~ /^# TYPE (\S+) (?:counter|histogram)/mg;
    my $last = $self->{last};

    while ($text =~ /^(\w+)(\{.*\})? (\S+)$/mg) {
        my ($name, $labels, $value) = ($1, $2 || '', $3);
        my $family = $name =~ s/_(?:bucket|sum|count)$//r;

        $self->breach("$name$labels is $value") if $value < 0;
        $self->breach("$name$labels is $value, of $self->{clients} clients")
            if $name =~ /^aibrix_(?:inflight|waiting)/
               && $value > 2 * $self->{clients};

        next if !$counter{$name} && !$counter{$family};
        my $before = $last->{$name . $labels} || 0;
        $self->breach("$name$labels fell from $before to $value")
            if $before > $value;
        $last->{$name . $labels} = $value;
        $self->{evicted} = max($self->{evicted}, $value)
            if $name eq 'aibrix_index_evictions_total';
    }

    $self->state;
}


# The same of aibrix_status.
sub state
{
    my $self = shift;
    my $text = $self->{router}->get('/status?format=json') or return;
    my $state = eval { decode_json($text) };

    return $self->breach("status is no JSON: $@") if !$state;

    for my $index (map { $_->{index} } @{ $state->{zones} }) {
        $self->breach("$index->{blocks} blocks of $index->{capacity}")
            if $index->{blocks} > $index->{capacity} || $index->{blocks} < 0;
    }

    for my $peer (map { @{ $_->{peers} } } @{ $state->{upstreams} }) {
        $self->breach("$peer->{server}: $_ is $peer->{$_}")
            for grep { $peer->{$_} < 0 } qw(inflight waiting queued_bytes
                                            requests fails blocks matched);
        $self->breach("$peer->{server} is not tracked") if !$peer->{tracked};
        $self->breach("$peer->{server}: $peer->{matched} matched of"
                      . " $peer->{blocks}")
            if $peer->{matched} > $peer->{blocks};
    }
}


# Waits until the router's counts are those of the replicas, $n in all. What
# waits and what is queued must be nothing then.
sub true_with
{
    my ($self, $n, $when) = @_;
    my $start = time;
    my $said = '';

    my $ok = wait_for(sub {
        my $truth = $self->{replicas}->truth;
        my $gauges = $self->gauges or return 0;
        my $inflight = $gauges->{inflight_requests} || {};
        my @believed = map { $inflight->{$_} || 0 } $self->{replicas}->ports;
        my $rest = sum0(map { values %{ $gauges->{$_} || {} } }
                        qw(waiting_requests queued_prompt_bytes));

        $self->{off} = sum0(map { abs($believed[$_] - $truth->[$_]) }
                            0 .. $#believed);
        $said = "router @believed, replicas @$truth, waiting or queued $rest";
        return "@believed" eq "@$truth" && sum0(@$truth) == $n && $rest == 0;
    }, $limit);

    $self->{quiet}++;
    $self->{slowest} = max($self->{slowest}, time - $start);
    return 1 if $ok;

    $self->{leaked} += max(1, $self->{off});
    $self->breach("not true within $limit s $when: $said");
    return 0;
}


# Nothing reaches what a generation does not have, or a drained replica.
sub arrivals
{
    my $self = shift;
    my ($router, $n) = ($self->{router}, 0);

    open my $file, '<', "$self->{dir}/arrivals.log" or die $!;

    while (my $line = <$file>) {
        my ($time, $i, $gen, $id) = split ' ', $line;

        $n++;
        $self->breach("$id came to replica $i, not of generation $gen")
            if !$router->{may}{$gen}{$i};

        for my $drain (@{ $self->{drains} }) {
            my ($replica, $from, $to) = @$drain;

            $self->breach("$id came to replica $i, which was drained")
                if $i == $replica && $time > $from && $time < $to;
        }
    }

    return $n;
}


# What workers have at the end is what they had in the middle of the run.
sub flat
{
    my $self = shift;
    my @all = @{ $self->{memory} };

    return if @all < 3;

    for my $who (0, 1) {
        my @kib = map { $_->[$who] } @all;
        my ($early, $late) = (max(@kib[0 .. @kib / 2]), $kib[-1]);

        $self->breach(($who ? 'a worker' : 'the master')
                      . " grew from $early to $late KiB: @kib")
            if $late > $early * 1.25 + 1024;
    }
}


1;
