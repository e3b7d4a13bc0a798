# What a hostile client, or an unusual configuration, can do to a worker: each
# of these once did harm.

use strict;
use warnings;

use lib 't/lib';
use AibrixTest;
use Fleet;
use NginxInstance;
use RawHttp qw(http);
use Test::More;
use Time::HiRes qw(sleep);

my $engine = NginxInstance->new(conf => <<'EOC')->start;
server {
    listen 127.0.0.1:%%PORT1%%;
    add_header cache-control max-age=1;
    add_header x-seen "$http_x_model|$http_x_evil";
    location / { return 200 "fresh\n"; }
    location /once {
        if (-f %%DIR%%/broken) { return 500; }
        return 200 '{"choices":[{"text":"x"}],"usage":{"prompt_tokens":7}}';
        default_type application/json;
    }
    location /moved { add_header x-accel-redirect /elsewhere; return 200; }
}
EOC
my $server = 'server 127.0.0.1:' . $engine->port . ' max_fails=0;';

my $router = NginxInstance->new(conf => <<"EOC");
proxy_cache_path %%DIR%%/cache keys_zone=cache:1m;
upstream llm { aibrix; $server }
server {
    listen 127.0.0.1:%%PORT1%%;
    location / {
        aibrix_read_body on;
        proxy_set_header x-model \$aibrix_model;
        add_header x-model \$aibrix_model;
        proxy_pass http://llm;
    }
    location /cache/ {
        limit_rate \$arg_rate;
        proxy_cache cache;
        proxy_cache_lock on;
        proxy_cache_use_stale updating;
        proxy_cache_key \$uri;
        proxy_pass http://llm;
    }
    location /once {
        proxy_cache cache;
        proxy_cache_key \$uri;
        proxy_cache_methods POST;
        proxy_cache_use_stale http_500;
        proxy_pass http://stale;
    }
    location /moved { proxy_pass http://moved; }
    location /elsewhere { return 200 "elsewhere\n"; }
    location /small/ {
        client_max_body_size 20;
        aibrix_read_body on;
        recursive_error_pages on;
        error_page 413 /v1/large;
        proxy_pass http://llm;
    }
    location /metrics { aibrix_metrics; }
}
upstream stale { aibrix; $server }
upstream moved { aibrix; $server }
EOC
$router->start;


subtest 'a refused request does not keep the lock of a cache' => sub {
    my @refused = ('routing-strategy' => 'nope');
    my $slow = RawHttp->new(port => $router->port);

    # the lock would be waited for until this one has its answer
    $slow->request('GET', '/cache/new?rate=100', undef, @refused);
    is($slow->head->{status}, 400, 'refused');
    is(http($router->port, 'GET', '/cache/new')->{body}, "fresh\n",
       'the next one is served');

    sysread $slow->{socket}, my $rest, 4096;
    unlike($slow->{in} . ($rest // ''), qr/\}\}\n\z/,
           'while the refusal is being sent');
    $slow->close;

    sleep 2.1;
    is(http($router->port, 'GET', '/cache/new', undef, @refused)->{status},
       400, 'refused when it has expired');
    is(http($router->port, 'GET', '/cache/new')->{body}, "fresh\n",
       'and served');
    is_deeply([$router->log_at], [], 'nginx has nothing to complain about');
};


subtest 'a model is no way to send headers' => sub {
    my $evil = '{"model":"a\r\nx-evil: yes\u007f","prompt":"x"}';
    my $answer = http($router->port, 'POST', '/v1/completions', $evil);

    is($answer->{headers}{'x-seen'}, 'a??x-evil: yes?|',
       'one header for the engine');
    is($answer->{headers}{'x-model'}, 'a??x-evil: yes?',
       'one header for the client');
    ok(!exists $answer->{headers}{'x-evil'}, 'and none of its own');

    $answer = http($router->port, 'POST', '/v1/completions',
                   '{"model":"Qwen/\u00e9 2","prompt":"x"}');
    is($answer->{headers}{'x-model'}, "Qwen/\xc3\xa9 2",
       'other names are as they are');
};


# What the metrics say of an upstream's requests, in short.
sub told
{
    my $upstream = shift;
    my @of = (upstream => $upstream);

    return join ' ', map { $_->[0] . '=' . (count($router, @$_[1 .. $#$_]) || 0) }
           ['2xx', 'aibrix_requests_total', @of, status => '2xx'],
           ['5xx', 'aibrix_requests_total', @of, status => '5xx'],
           ['ttft', 'aibrix_ttft_seconds_count', @of],
           ['tokens', 'aibrix_prompt_tokens_total', @of],
           map { [$_, 'aibrix_request_outcomes_total', @of, outcome => $_] }
           qw(finished client_gone replica_gone error_status);
}


subtest 'an error while the body is read leads to no endless wait' => sub {
    my @chunks = map { sprintf "%x\r\n%s\r\n", length $_, $_ }
                 '{"model":"', 'a' x 40 . '"}';

    for my $pause (0, 0.2) {
        my $c = RawHttp->new(port => $router->port, timeout => 2);

        $c->request('POST', '/small/', $chunks[0],
                    'Transfer-Encoding' => 'chunked');
        sleep $pause;
        $c->send_raw("$chunks[1]0\r\n\r\n");
        is(eval { $c->head->{status} } || $@, 413, "pause of $pause s");
        $c->close;
    }
};


subtest 'a stale response is not the work of a replica that failed' => sub {
    my @request = ($router->port, 'POST', '/once', completion('x'));

    is(http(@request)->{status}, 200, 'cached');
    sleep 2.1;

    open my $file, '>', $engine->dir . '/broken' or die $!;
    is(http(@request)->{status}, 200, 'stale');
    is(told('stale'), '2xx=1 5xx=1 ttft=1 tokens=7 finished=1 client_gone=0'
                      . ' replica_gone=0 error_status=1', 'counted as it was');
};


subtest 'a replica whose answer is a redirect has finished' => sub {
    is(http($router->port, 'GET', '/moved')->{body}, "elsewhere\n", 'sent on');
    is(told('moved'), '2xx=1 5xx=0 ttft=0 tokens=0 finished=1 client_gone=0'
                      . ' replica_gone=0 error_status=0', 'counted as it was');
};


is($router->stop, 0, 'the router stops');


subtest 'the longest ttl lives through a reload' => sub {
    my $nginx = NginxInstance->new(conf => <<"EOC");
aibrix_zone forever 8m ttl=10000d;
upstream llm { aibrix; $server }
server { listen 127.0.0.1:%%PORT1%%; }
EOC

    $nginx->start->reload;
    is_deeply([$nginx->log_at], [], 'not refused');

    $nginx->write_conf(conf => 'aibrix_zone forever 8m ttl=10001d;');
    my ($good, $said) = $nginx->test_conf;
    ok(!$good, 'longer ones are refused');
    like($said, qr/invalid ttl "10001d", .*at most "10000d"/, 'at once');
};


done_testing();
