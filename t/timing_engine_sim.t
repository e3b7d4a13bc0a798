# engine_sim in real time: when tokens come, clients that hang up, several
# workers, reloads. Nothing may ever be early; how late things may be is wide,
# for it is the machine that decides that.

use strict;
use warnings;

use lib 't/lib';
use AibrixTest;
use NginxInstance;
use RawHttp qw(http);
use Test::More;
use Time::HiRes qw(sleep time);

# a step takes 100 ms and 1 ms per token of the prompt (a byte each)
my $model = 'cache_block=1000 max_num_batched_tokens=1000 bytes_per_token=1 '
          . 'step_base=100ms decode_seq=0 prefill_token=1ms overhead=0';

my $conf = <<"EOC";
    server {
        listen 127.0.0.1:%%PORT1%%;
        location /one/   { engine_sim name=one $model max_num_seqs=1; }
        location /two/   { engine_sim name=two $model max_num_seqs=2; }
        location /fast/  { engine_sim $model speed=10; }
        location /late/  { engine_sim $model overhead=300ms; }
        location /clock/ { engine_sim $model step_base=7.3ms; }
        location /many/  { engine_sim $model max_num_seqs=400; }
        location /quick/ { engine_sim $model step_base=1us prefill_token=0; }
    }

    server {
        listen 127.0.0.1:%%PORT2%%;
        location / {
            proxy_buffering off;
            proxy_pass http://127.0.0.1:%%PORT1%%;
        }
    }
EOC

my $nginx = NginxInstance->new(conf => $conf);
$nginx->start;

my $port = $nginx->port;


# Begins a stream of $tokens tokens on engine $name; a RawHttp and the time.
sub begin
{
    my ($name, $tokens, $prompt) = @_;
    my $c = RawHttp->new(port => $port, timeout => 10);
    my $start = time;

    $prompt = 'x' x 100 if !defined $prompt;
    $c->request('POST', "/$name/v1/completions",
                qq({"prompt":"$prompt","max_tokens":$tokens,"stream":true}));
    return wantarray ? ($c, $start) : $c;
}


# A value of an engine's /metrics.
sub metric
{
    my ($name, $metric) = @_;
    my $text = http($port, 'GET', "/$name/metrics")->{body};

    return $text =~ /^vllm:\Q$metric\E\{engine="0",model_name="sim"(?:,
                     finished_reason="abort")?\}\ (\S+)$/mx ? $1 : undef;
}


sub is_about
{
    my ($got, $expected, $name) = @_;

    cmp_ok($got, '>=', $expected - 0.002, "$name: not early");
    cmp_ok($got, '<=', $expected + slow(0.4), "$name: not late");
}


subtest 'headers at once, a token a step, each in a chunk of its own' => sub {
    my ($c, $start) = begin('two', 3, 'x' x 900);

    is_about($c->head->{time} - $start, 0, 'headers');
    is($c->head->{headers}{'x-engine'}, 'two', 'x-engine');

    my ($first, $at) = $c->next_chunk;
    is_about($at - $start, 1.0, 'the first token after the prefill');
    like($first, qr/\Adata: \{[^\n]*\}\n\n\z/, 'one event');

    for (2 .. 3) {
        my ($data, $when) = $c->next_chunk;
        is_about($when - $start, $_ * 0.1 + 0.9, "token $_");
        like($data, qr/\Adata: \{[^\n]*\}\n\n\z/, 'one event');
    }

    is($c->body, "data: [DONE]\n\n", 'and the end');
};

subtest 'the role comes with the first token of a chat' => sub {
    my $c = RawHttp->new(port => $port);
    my $start = time;

    $c->request('POST', '/two/v1/chat/completions', '{"stream":true,'
                . '"messages":[{"role":"u","content":""}],"max_tokens":1}');
    $c->head;

    my ($role, $t1) = $c->next_event;
    my ($token, $t2) = $c->next_event;
    like($role, qr/"delta":\{"role":"assistant","content":""\}/, 'role');
    like($token, qr/"delta":\{"content":" \w+"\}/, 'token');

    # <|u|>, two line feeds, <|assistant|> and another are 21 bytes
    is_about($t1 - $start, 0.121, 'role');
    is_about($t2 - $t1, 0, 'token after role');
};

subtest 'an answer as JSON comes at its end' => sub {
    my $start = time;
    my $c = RawHttp->new(port => $port);

    $c->request('POST', '/two/v1/completions',
                '{"prompt":"","max_tokens":3}');
    is_about($c->head->{time} - $start, 0.301, 'headers');
};

subtest 'speed divides all times, overhead delays tokens, not steps' => sub {
    my ($c, $start) = begin('fast', 5);
    my @events = $c->events;

    is_about($events[0][1] - $start, 0.02, 'first');
    is_about($events[4][1] - $start, 0.06, 'last');

    ($c, $start) = begin('late', 2);
    my ($next) = begin('late', 1, '');
    @events = $c->events;

    is_about($events[0][1] - $start, 0.2 + 0.3, 'first');
    is_about($events[1][1] - $start, 0.301 + 0.3, 'second');

    # in the batch while the first one's tokens are still on their way
    my ($event, $at) = $next->next_event;
    is_about($at - $start, 0.301 + 0.3, 'of the other');
};

# Timers are late by half a millisecond on average, so 200 would be by 100 ms.
# A busy machine may delay one try, but not all of them.
subtest 'late timers do not add up' => sub {
    my $best = 1e9;

    for (1 .. 5) {
        my ($c, $start) = begin('clock', 200, '');
        my @events = $c->events;
        my $late = $events[199][1] - $start - 200 * 0.0073 - 0.001;

        is(@events, 201, 'all tokens');
        cmp_ok($late, '>=', -0.002, 'the last one: not early');
        $best = $late if $late < $best;
        last if $best < 0.03;
    }

    cmp_ok($best, '<', slow(0.03), 'the last one: not late');
};

subtest 'steps much shorter than a millisecond' => sub {
    my ($c, $start) = begin('quick', 5000);
    my @events = $c->events;

    is(@events, 5001, 'all tokens');
    cmp_ok($events[-1][1] - $start, '<', slow(2), 'in a blink');
};

subtest 'a queue: first come, first served' => sub {
    my ($a, $start) = begin('one', 2);
    sleep 0.02;
    my $b = begin('one', 2);
    sleep 0.02;
    my $c = begin('one', 2);

    is_about($b->head->{time} - $start, 0.02, 'headers do not wait');
    is(metric('one', 'num_requests_running'), 1, 'one runs');
    is(metric('one', 'num_requests_waiting'), 2, 'two wait');
    is(http($port, 'POST', '/one/reset_prefix_cache', '')->{status}, 409,
       'the cache is not reset');

    is_about(($a->events)[1][1] - $start, 0.3, 'first');
    is_about(($b->events)[1][1] - $start, 0.6, 'second');
    is_about(($c->events)[1][1] - $start, 0.9, 'third');
    is(metric('one', 'num_requests_running'), 0, 'none runs');
};

subtest 'clients that hang up leave at once' => sub {
    my $before = metric('one', 'request_success_total');

    my $runs = begin('one', 1000);
    $runs->next_event;
    my $waits = begin('one', 1000);
    $waits->head;
    my $json = RawHttp->new(port => $port);
    $json->request('POST', '/one/v1/completions', '{"prompt":"x"}');
    my ($last) = begin('one', 1);

    ok(wait_for(sub { metric('one', 'num_requests_waiting') == 3 }), 'queue');

    $waits->close;
    ok(wait_for(sub { metric('one', 'num_requests_waiting') == 2 }, 0.5),
       'out of the queue');
    $json->abort;
    ok(wait_for(sub { metric('one', 'num_requests_waiting') == 1 }, 0.5),
       'out of the queue before any headers');

    my $hangup = time;
    $runs->abort;
    my ($event, $at) = $last->next_event;
    like($event, qr/"finish_reason":"length"/, 'the last one gets its slot');

    # what is left of the step under way, and the 100 tokens' own
    cmp_ok($at - $hangup, '<=', 0.1 + 0.2 + slow(0.4), 'without delay');
    is(metric('one', 'request_success_total') - $before, 3, 'aborts counted');
};

subtest 'a client between prefill and first token' => sub {
    my $before = metric('late', 'request_success_total');
    my $c = begin('late', 1, '');

    $c->head;
    sleep 0.2;

    # it has left the engine, only its token is on the way
    is(metric('late', 'num_requests_running'), 0, 'none runs');
    $c->abort;
    sleep 0.3;
    is(metric('late', 'request_success_total'), $before, 'no abort');
};

subtest 'a client that closes after the answer' => sub {
    my $c = RawHttp->new(port => $port);

    for (1 .. 3) {
        $c->request('POST', '/fast/v1/completions',
                    '{"prompt":"x","max_tokens":2,"stream":true}');
        is(scalar $c->events, 3, "answer $_ on one connection");
    }

    $c->close;
    is(metric('fast', 'request_success_total'), 0, 'is no abort');
};

subtest 'two requests at once on one connection' => sub {
    my $c = RawHttp->new(port => $port);
    my $body = '{"prompt":"x","max_tokens":2,"stream":true}';
    my $n = length $body;

    $c->request('POST', '/fast/v1/completions', $body . "POST "
                . "/fast/v1/completions HTTP/1.1\r\nHost: x\r\n"
                . "Content-Length: $n\r\n\r\n$body", 'Content-Length' => $n);
    is(scalar $c->events, 3, 'the first answer');
    delete @$c{qw(framing left head ended events)};
    is(scalar $c->events, 3, 'the second answer');
};

subtest 'a body in chunks, slowly' => sub {
    my $c = RawHttp->new(port => $port);

    $c->request('POST', '/fast/v1/completions', undef,
                'Transfer-Encoding' => 'chunked');
    for ('{"pr', 'ompt":"abcdef"', '}') {
        $c->send_raw(sprintf "%x\r\n%s\r\n", length, $_);
        sleep 0.02;
    }
    $c->send_raw("0\r\n\r\n");
    like($c->body, qr/"prompt_tokens":6,/, 'is read to its end');
};

subtest 'HTTP/1.0' => sub {
    my $c = RawHttp->new(port => $port);
    my $body = '{"prompt":"x","max_tokens":2,"stream":true}';

    $c->send_raw("POST /fast/v1/completions HTTP/1.0\r\nContent-Length: "
                 . length($body) . "\r\n\r\n$body");
    $c->{method} = 'POST';
    is($c->head->{headers}{connection}, 'close', 'ends with the connection');
    is(scalar $c->events, 3, 'all events');
};

subtest 'through a proxy: tokens as they come, and its hang-up' => sub {
    my $c = RawHttp->new(port => $nginx->port(2));
    my $start = time;

    $c->request('POST', '/one/v1/completions',
                '{"prompt":"","max_tokens":1000,"stream":true}');
    is_about($c->head->{time} - $start, 0, 'headers');
    my ($event, $at) = $c->next_event;
    is_about($at - $start, 0.101, 'first');
    ($event, $at) = $c->next_event;
    is_about($at - $start, 0.201, 'second');

    $c->abort;
    ok(wait_for(sub { metric('one', 'num_requests_running') == 0 }, 1),
       'the slot is free');
};

subtest 'a client that does not read' => sub {
    my $c = begin('quick', 20_000);

    # far more than the sockets hold, so the rest waits in nginx
    sleep 1;
    is(metric('quick', 'num_requests_running'), 0, 'the engine is done');
    my $events = 0;
    $events++ while $c->next_event;
    is($events, 20_001, 'and the client misses nothing');
};

subtest '400 streams at once' => sub {
    my $start = time;
    my @clients = map { scalar begin('many', 10, '') } 1 .. 400;
    my $tokens = 0;

    $tokens += $_->events - 1 for @clients;
    is($tokens, 4000, 'all tokens');
    cmp_ok(time - $start, '<', slow(3), 'in time');
};

subtest 'a reload in the middle of a stream' => sub {
    my $c = begin('one', 20, '');
    $c->next_event;

    $nginx->reload;
    my ($new, $start) = begin('one', 1, '');
    is_about(($new->events)[0][1] - $start, 0.101, 'the new engine is idle');
    is(metric('one', 'generation_tokens_total'), 1, 'and began anew');
    is(scalar $c->events, 20, 'the old one finishes its stream');
    $c->close;
    ok($nginx->wait_old_gone(2), 'and goes');

    $new->close;
    $nginx->reload;
    ok($nginx->wait_old_gone(2), 'an idle one goes at once');
};

is($nginx->stop, 0, 'stops in order');
is_deeply([$nginx->log_at], [], 'nothing bad in the log');


my $shared = <<"EOC";
    server {
        listen 127.0.0.1:%%PORT1%%;
        location / { engine_sim speed=1000; }
    }

    server {
        listen 127.0.0.1:%%PORT2%%;
        location / {
            add_header x-pid \$pid;
            engine_sim_digest;
        }
    }
EOC

subtest 'four workers: the engine is in one, all else in all of them' => sub {
    my $nginx = NginxInstance->new(conf => $shared, workers => 4);
    $nginx->start;

    for (1 .. 2) {
        my %pids;

        is(http($nginx->port, 'POST', '/v1/completions',
                '{"prompt":"x","max_tokens":1}')->{status}, 200, 'served')
            for 1 .. 20;
        like(http($nginx->port, 'GET', '/metrics')->{body},
             qr/^vllm:generation_tokens_total\{.*\} 20$/m, 'by one engine');

        ok(wait_for(sub {
            my @clients = map { RawHttp->new(port => $nginx->port(2)) } 1 .. 8;
            $_->request('GET', '/') for @clients;
            $pids{ $_->head->{headers}{'x-pid'} } = 1 for @clients;
            return keys %pids > 1;
        }), 'others take part elsewhere');

        $nginx->reload(wait => 1);
    }

    my ($zero) = $nginx->worker_pids;
    $nginx->kill_worker($zero);
    is(http($nginx->port, 'GET', '/health')->{status}, 200,
       'after a killed worker');
    is($nginx->stop, 0, 'stops in order');
};

subtest 'with reuseport another worker says what is wrong' => sub {
    my $nginx = NginxInstance->new(
        conf => $shared =~ s/(PORT1%%);/$1 reuseport;/r, workers => 4);
    $nginx->start;

    my %seen;
    wait_for(sub {
        my $answer = http($nginx->port, 'GET', '/health');

        $seen{ $answer->{status} } = $answer->{body};
        return keys %seen > 1;
    });

    is_deeply([sort keys %seen], [200, 503], 'served by worker 0 only');
    like($seen{503}, qr/engine_sim lives in worker 0/, 'and says so');
    is($nginx->stop, 0, 'stops in order');
};

done_testing;
