# The default strategy on real workers: it keeps to a prefix while that pays,
# spares who is busy, and learns from what passes by.

use strict;
use warnings;

use lib 't/lib';
use AibrixTest;
use Fleet;
use JSON::PP;
use NginxInstance;
use RawHttp qw(http);
use Test::More;

# 0.02 ms a token: 5 us for a byte of prompt, 100 ms for 20 kB
my $engines = engines(2, 'step_base=2ms decode_seq=0ms prefill_token=20us'
                         . ' bytes_per_token=4 cache_block=16 align_chunks=no'
                         . ' overhead=0ms max_num_seqs=64 max_tokens=2');
my $router = router($engines, workers => 4, upstream => 'aibrix;',
                    server => 'location = /status { aibrix_status; }');
my @pods = map { '127.0.0.1:' . $engines->port($_) } 1, 2;


sub streamed
{
    my ($prompt) = @_;

    return http($router->port, 'POST', '/v1/completions',
                completion($prompt, stream => 'true',
                           stream_options => '{"include_usage":true}'));
}


sub learned
{
    my $status = decode_json(http($router->port, 'GET', '/status')->{body});

    return $status->{upstreams}[0]{learned};
}


is_deeply(learned(), { belief => 0.7, room => 8, hit_ms => 0, byte_ms => 0 },
          'nothing is learned yet');


subtest 'a prefix stays where it is' => sub {
    my $head = text(1, 20000);
    my @answers = map { streamed($head . text(10 + $_, 300)) } 1 .. 10;
    my %on = map { $_->{headers}{'target-pod'} => 1 } @answers;

    is_deeply([map { $_->{status} } @answers], [(200) x 10], 'all answered');
    is(scalar keys %on, 1, 'all on one replica');
    is_deeply([map { $_->{headers}{'routing-strategy'} } @answers],
              [('least-work') x 10], 'by the default strategy');
    is_deeply([map { $_->{headers}{'x-selection'} } @answers],
              ['least_work_miss', ('least_work_hit') x 9],
              'for what it has cached');
};


subtest 'what passed by has taught it' => sub {
    ok(wait_idle($router), 'idle') or diag busy($router);

    my $learned = learned();

    is($learned->{belief}, 0, 'what engines hold has come through here');
    cmp_ok($learned->{hit_ms}, '>', 0, 'how quick a hit is');
    cmp_ok($learned->{hit_ms}, '<', 90, 'quicker than computing it all');
};


subtest 'a holder with much to do is spared' => sub {
    my $prompt = text(3, 4096);
    my $holder = streamed($prompt)->{headers}{'target-pod'};
    my ($other) = grep { $_ ne $holder } @pods;
    my %seen;

    ok(wait_idle($router), 'idle') or diag busy($router);

    my @held = map { hold($router, $prompt) } 1 .. 8;
    $seen{ $_->head->{headers}{'target-pod'} }++ for @held;

    cmp_ok($seen{$other} || 0, '>', 0, 'the other one gets some');
    cmp_ok(abs(($seen{$holder} || 0) - ($seen{$other} || 0)), '<=', 4,
           'and the gap is bounded');
    is_deeply(load($router), truth($engines), 'as the engines count');

    $_->close for @held;
    ok(wait_idle($router), 'idle again') or diag busy($router);
};


is_deeply([$router->log_at], [], 'nothing worse than an error in the log');
is($router->stop, 0, 'stops in order');

done_testing;
