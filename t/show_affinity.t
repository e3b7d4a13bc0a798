# What the strategies are for, seen from outside: a shared prompt head stays on
# one replica, a busy replica is spared, and affinity gives way at a gap of 17.

use strict;
use warnings;

use lib 't/lib';
use AibrixTest;
use Fleet;
use NginxInstance;
use Test::More;

my $engines = engines(2, 'step_base=5ms max_tokens=2');
my $router = router($engines, workers => 4, upstream => 'aibrix prefix-cache;');
my @pods = map { '127.0.0.1:' . $engines->port($_) } 1, 2;

my $selections = 'aibrix_prefix_cache_routing_selection_total';
my $imbalances = 'aibrix_prefix_cache_load_imbalance_total';


sub selections { count($router, $selections, selection => $_[0]) || 0 }


sub spread
{
    my %on;
    $on{ $_->{headers}{'target-pod'} }++ for @_;
    return \%on;
}


subtest 'ten requests with the same 4 kB head, prefix-cache' => sub {
    my $head = text(1, 4096);
    my @answers = map { ask($router, $head . text(100 + $_, 200)) } 1 .. 10;
    my $on = spread(@answers);
    my %workers = map { $_->{headers}{'x-worker'} => 1 } @answers;
    my @match = map { $_->{headers}{'x-match'} } @answers;

    is_deeply([map { $_->{status} } @answers], [(200) x 10], 'all answered');
    is_deeply([values %$on], [10], 'all on one replica');
    is_deeply([map { $_->{headers}{'x-selection'} } @answers],
              ['least_request_fallback', ('prefix_match') x 9],
              'the first by load, the others by their prefix');
    is(selections('prefix_match'), 9, 'and the counter says so');
    is_deeply([map { $_->{headers}{'x-engine'} } @answers],
              [($answers[0]{headers}{'x-engine'}) x 10],
              'the engine says so too');
    is_deeply([grep { $_ < 90 } @match[1 .. 9]], [],
              'matched for the most part');

    diag('same 4 kB head: ' . join(', ', map { "$on->{$_} on $_" } keys %$on)
         . ", $match[1] % matched, by " . keys(%workers) . ' workers');

    $on = spread(map { ask($router, $head, 'routing-strategy' => 'random') }
                 1 .. 40);
    is(scalar keys %$on, 2, 'with random they go to both');
};


subtest 'ten prompts while a replica is busy, least-request' => sub {
    ok(wait_idle($router), 'idle') or diag busy($router);

    my $held = hold($router, text(2, 4096));
    my $busy = $held->head->{headers}{'target-pod'};
    my @answers;

    for (1 .. 10) {
        ok(wait_load($router, 1), 'one request in flight')
            or diag busy($router);
        push @answers, ask($router, text(200 + $_, 4096),
                           'routing-strategy' => 'least-request');
    }

    my $on = spread(@answers);

    is($on->{$busy} || 0, 0, 'none on the busy one');
    is_deeply([values %$on], [10], 'all on the other');
    is_deeply([map { $_->{headers}{'x-selection'} } @answers],
              [('least_request') x 10], 'by their load');
    is_deeply(load($router), truth($engines), 'as the engines count');

    diag('least-request, one replica busy: ' . ($on->{$busy} || 0)
         . ' on it, ' . ($on->{ (grep { $_ ne $busy } @pods)[0] } || 0)
         . ' on the other');

    $held->close;
    ok(wait_idle($router), 'idle again') or diag busy($router);
};


subtest 'the load gate: 16 held streams, then 17' => sub {
    my $prompt = text(3, 4096);
    my $learned = ask($router, $prompt)->{headers}{'target-pod'};
    my ($other) = grep { $_ ne $learned } @pods;
    my $before = count($router, $imbalances);
    my @held;

    ok(wait_idle($router), 'idle') or diag busy($router);

    for my $n (1 .. 16) {
        push @held, hold($router, $prompt);
    }

    is_deeply(load($router), { $learned => 16 }, '16 streams on one replica');
    is_deeply(truth($engines), { $learned => 16 }, 'as the engines count');

    push @held, hold($router, $prompt);
    my $with_16 = $held[-1]->head->{headers};

    is($with_16->{'target-pod'}, $learned, 'with 16 it stays');
    is($with_16->{'x-selection'}, 'prefix_match', 'by its prefix');
    is($with_16->{'x-match'}, 100, 'all of it');
    is(count($router, $imbalances), $before, 'no imbalance was seen');
    is_deeply(load($router), { $learned => 17 }, '17 streams now');

    my $fallbacks = selections('least_request_fallback');
    my $with_17 = ask($router, $prompt);

    is($with_17->{headers}{'target-pod'}, $other, 'with 17 the other gets it');
    is($with_17->{headers}{'x-selection'}, 'least_request_fallback',
       'by its load');
    is($with_17->{headers}{'x-match'}, 0, 'which knew nothing of it');
    is(selections('least_request_fallback'), $fallbacks + 1,
       'the reason is counted');
    my $imbalanced = count($router, $imbalances) - $before;
    is($imbalanced, 1, 'and the imbalance');

    ok(wait_load($router, 17), 'it has ended') or diag busy($router);

    my $line = "200 $other least_request_fallback 0 $other\n";
    ok(wait_for(sub { last_log($router) eq $line }), 'the access log tells')
        or diag last_log($router);

    my $again = ask($router, $prompt)->{headers};
    is($again->{'target-pod'}, $other, 'the other knows the prompt now');
    is($again->{'x-selection'}, 'prefix_match', 'and is chosen for it');

    diag("load gate: with 16 held $with_16->{'x-selection'} on the same, "
         . "with 17 $with_17->{headers}{'x-selection'} on the other, "
         . "imbalances counted: $imbalanced");

    $_->close for @held;
    ok(wait_idle($router), 'idle again') or diag busy($router);
};


is_deeply([$router->log_at], [], 'nothing worse than an error in the log');
is($router->stop, 0, 'stops in order');

done_testing;
