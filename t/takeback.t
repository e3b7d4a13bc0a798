# A prefix is recorded when a replica is chosen, and taken back when the
# replica did not compute it: it failed before it answered, or said so.
#
# The first engine is the only one idle, so that a prompt that nobody knows
# goes there. x-fail makes the engine that it names fail in one way or another.

use strict;
use warnings;

use lib 't/lib';
use AibrixTest;
use Fleet;
use IO::Socket::INET;
use NginxInstance;
use RawHttp;
use Test::More;

my $engines = engines(2, 'step_base=5ms max_tokens=2', lines => <<'EOC');
    if ($http_x_fail = "444 $server_port") { return 444; }
    if ($http_x_fail = "400 $server_port") { return 400; }
    if ($http_x_fail = "429 $server_port") { return 429; }
    if ($http_x_fail = "500 $server_port") { return 500; }
    if ($http_x_fail = "503 $server_port") { return 503; }
EOC

# accepts, reads and says nothing: the kernel does that by itself
my $silent = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 128)
    or die "listen: $!";
my $refusing = free_port();

my ($first, $second) = map { $engines->port($_) } 1, 2;
my $next_upstream = 'error timeout invalid_header http_500 http_503 http_429'
                    . ' non_idempotent';

my $router = router($engines, workers => 2, upstream => 'aibrix prefix-cache;',
    servers => servers($engines, 'max_fails=0'),
    http => "proxy_next_upstream $next_upstream;\n" . <<"EOC");
upstream silent {
    aibrix prefix-cache;
    server 127.0.0.1:@{[ $silent->sockport ]} max_fails=0;
    server 127.0.0.1:$second max_fails=0;
}
upstream refusing {
    aibrix prefix-cache;
    server 127.0.0.1:$refusing max_fails=0;
    server 127.0.0.1:$second max_fails=0;
}
server {
    listen 127.0.0.1:%%PORT2%%;
    add_header x-selection \$aibrix_selection always;
    add_header x-match \$aibrix_match_percent always;
    location / {
        proxy_pass http://llm;
        proxy_next_upstream off;
    }
    location /intercepted/ {
        proxy_pass http://llm/;
        proxy_next_upstream off;
        proxy_intercept_errors on;
        error_page 429 500 503 /intercepted.html;
    }
    location = /intercepted.html {
        internal;
        return 418 "ours";
    }
    location /silent/ {
        proxy_pass http://silent/;
        proxy_read_timeout 1s;
    }
    location /refusing/ {
        proxy_pass http://refusing/;
    }
}
EOC

my @pods = ("127.0.0.1:$first", "127.0.0.1:$second");
my $seed = 0;


# Asks for the prompt, on the router's port 2 where nothing is tried again.
sub send_to
{
    my ($location, $prompt, @headers) = @_;

    return RawHttp::http($router->port(2), 'POST', "$location/v1/completions",
                         completion($prompt), @headers);
}


# A stream that keeps the second engine of an upstream busy: what is known on
# both goes to the first, and so does what nobody knows.
sub occupy_second
{
    my ($location, $pod) = @_;
    my @held;

    for (1 .. 20) {
        my $c = RawHttp->new(port => $router->port(2));

        $c->request('POST', "$location/v1/completions",
                    completion(text(9000 + $seed++, 300), stream => 'true',
                               max_tokens => 1_000_000),
                    'routing-strategy' => 'random');
        return $c if $c->head->{headers}{'target-pod'} eq $pod;
        $c->close;
    }

    die "$pod is never chosen";
}


sub settled { wait_load($router, 1) or die busy($router) }

my $occupied = occupy_second('', $pods[1]);


# Who knows the prompt, as "REASON PERCENT on ENGINE"; if both do, the first.
sub known
{
    my $prompt = shift;

    settled();
    my $h = send_to('', $prompt)->{headers};
    settled();

    return "$h->{'x-selection'} $h->{'x-match'} on "
           . ($h->{'target-pod'} eq $pods[0] ? 'first' : 'second');
}


sub failures { count($router, 'aibrix_peer_failures_total', upstream => $_[0]) }


subtest 'kept when it answered' => sub {
    my $prompt = text(++$seed, 2048);

    settled();
    my $h = send_to('', $prompt)->{headers};

    is($h->{'target-pod'}, $pods[0], 'an unknown prompt goes to the first');
    is($h->{'x-selection'}, 'least_request_fallback', 'by its load');
    is(known($prompt), 'prefix_match 100 on first', 'it is known there now');

    my $stream = hold($router, text(++$seed, 2048));
    is($stream->head->{headers}{'target-pod'}, $pods[0], 'a stream likewise');
    $stream->abort;
    is(known(text($seed, 2048)), 'prefix_match 100 on first',
       'known although the client hung up in mid-stream');

    $prompt = text(++$seed, 2048);
    settled();
    is(send_to('', $prompt, 'x-fail' => "400 $first")->{status}, 400,
       'an answer of 400');
    is(known($prompt), 'prefix_match 100 on first', 'is an answer');
};


subtest 'taken back when the next one was tried' => sub {
    for my $status (444, 429, 500, 503) {
        my $prompt = text(++$seed, 2048);

        settled();
        my $answer = ask($router, $prompt, 'x-fail' => "$status $first");

        is($answer->{status}, 200, "$status: the other one answers");
        is($answer->{headers}{'x-upstreams'}, "$pods[0], $pods[1]",
           'both were tried');
        is($answer->{headers}{'target-pod'}, $pods[1],
           'the header names the last');
        is(known($prompt), 'prefix_match 100 on second',
           'known where it was answered, not where it failed');
    }
};


subtest 'taken back when nothing was tried again' => sub {
    my %said = (444 => 502, 429 => 429, 500 => 500, 503 => 503);

    for my $status (sort keys %said) {
        my $prompt = text(++$seed, 2048);

        settled();
        my $answer = send_to('', $prompt, 'x-fail' => "$status $first");

        is($answer->{status}, $said{$status}, "$status is passed on");
        is($answer->{headers}{'target-pod'}, $pods[0], 'by the first');
        is(known($prompt), 'least_request_fallback 0 on first', 'forgotten');
    }
};


subtest 'taken back when the error page is ours' => sub {
    for my $status (429, 500, 503) {
        my $prompt = text(++$seed, 2048);

        settled();
        my $answer = send_to('/intercepted', $prompt,
                             'x-fail' => "$status $first");

        is($answer->{body}, 'ours', "$status is intercepted");
        is(known($prompt), 'least_request_fallback 0 on first', 'forgotten');
    }
};


subtest 'what was known before stays' => sub {
    my $head = text(++$seed, 1280);
    my $prompt = $head . text(++$seed, 1280);

    settled();
    is(send_to('', $head)->{headers}{'target-pod'}, $pods[0],
       'the first learns a head');
    settled();
    is(send_to('', $prompt, 'x-fail' => "503 $first")->{headers}{'x-match'},
       50, 'half of a longer prompt matches there, and is refused');
    is(known($prompt), 'prefix_match 50 on first', 'half is still known');

    settled();
    is(send_to('', $prompt, 'x-fail' => "444 $first")->{headers}{'x-match'},
       100, 'all of it matches, and the connection is closed');
    is(known($prompt), 'prefix_match 100 on first', 'all is still known');
};


subtest 'a peer that says nothing, a peer that refuses' => sub {
    for my $location (qw(refusing silent)) {
        my $busy = occupy_second("/$location", $pods[1]);
        my $prompt = text(++$seed, 2048);
        my $before = failures($location);
        my @answers;

        for (1 .. 2) {
            wait_load($router, 2) or die busy($router);
            push @answers, send_to("/$location", $prompt);
        }

        my ($once, $twice) = map { $_->{headers} } @answers;

        is_deeply([map { $_->{status} } @answers], [200, 200],
                  "$location: answered by the other");
        is("$once->{'x-selection'} $once->{'x-match'}", 'single_candidate 0',
           'as the last that was left, which did not know it');
        is("$twice->{'x-selection'} $twice->{'x-match'}",
           'prefix_match 100', 'then it was known');
        is(failures($location), $before + 1, 'so the bad one was tried once');
        $busy->close;
    }
};


$occupied->close;
ok(wait_idle($router), 'nothing is left in flight') or diag busy($router);
is($router->stop, 0, 'stops in order');

done_testing;
