# What aibrix_metrics counts of answers of every kind, by crafted engines:
# first content, gaps, usage, how it ended. Each case is a model of its own, so
# that its samples are its own. The bytes pass unchanged whatever they are.

use strict;
use warnings;

use lib 't/lib';
use AibrixTest;
use Fleet;
use MockEngine;
use NginxInstance;
use RawHttp qw(http);
use Test::More;
use Time::HiRes qw(sleep);

sub slurp { open my $f, '<', $_[0] or die "$_[0]: $!"; local $/; <$f> }


# What an engine says.

sub delta { qq({"choices":[{"index":0,"delta":{$_[0]}}]}) }

my $role = 'data: ' . delta('"role":"assistant","content":""') . "\n\n";
my @words = map { 'data: ' . delta(qq("content":"$_")) . "\n\n" }
            qw(one two three);
my $done = "data: [DONE]\n\n";
my $usage = 'data: {"choices":[],"usage":{"prompt_tokens":11,'
            . '"completion_tokens":3,"total_tokens":14,'
            . '"prompt_tokens_details":{"cached_tokens":8}}}' . "\n\n";
my $crlf = join '', $role, @words, $done;
$crlf =~ s/\n/\r\n/g;
my $tight = join '', $role, @words, $done;
$tight =~ s/data: /data:/g;

my @claude = (
    qq(event: message_start\ndata: {"type":"message_start","message":)
    . qq({"role":"assistant","content":[],"usage":{"input_tokens":20,)
    . qq("cache_read_input_tokens":16,"output_tokens":1}}}\n\n),
    qq(event: content_block_start\ndata: {"type":"content_block_start",)
    . qq("index":0,"content_block":{"type":"text","text":""}}\n\n),
    qq(event: ping\ndata: {"type": "ping"}\n\n),
    map({ qq(event: content_block_delta\ndata: {"type":"content_block_delta",)
          . qq("index":0,"delta":{"type":"text_delta","text":"$_"}}\n\n) }
        qw(a b c)),
    qq(event: message_delta\ndata: {"type":"message_delta","delta":)
    . qq({"stop_reason":"end_turn"},"usage":{"output_tokens":9}}\n\n),
    qq(event: message_stop\ndata: {"type":"message_stop"}\n\n),
);

my @responses = (
    qq(event: response.created\ndata: {"type":"response.created",)
    . qq("response":{"status":"in_progress","output":[],"usage":null}}\n\n),
    map({ qq(event: response.output_text.delta\ndata: {"type":)
          . qq("response.output_text.delta","delta":"$_"}\n\n) } qw(a b)),
    qq(event: response.completed\ndata: {"type":"response.completed",)
    . qq("response":{"status":"completed","usage":{"input_tokens":30,)
    . qq("input_tokens_details":{"cached_tokens":24},"output_tokens":2}}}\n\n),
);

my $chat = '{"choices":[{"message":{"content":"hi"}}],"usage":'
           . '{"prompt_tokens":5,"completion_tokens":2,'
           . '"prompt_tokens_details":{"cached_tokens":4}}}';
my $message = '{"type":"message","content":[{"type":"text","text":"hi"}],'
              . '"usage":{"input_tokens":6,"cache_read_input_tokens":4,'
              . '"output_tokens":7}}';
my $response = '{"object":"response","status":"completed","output":[],'
               . '"usage":{"input_tokens":8,"input_tokens_details":'
               . '{"cached_tokens":3},"output_tokens":9}}';


# name => [script, what is counted]. ttft and gaps: how many of them; tokens:
# prompt, completion, cached. Anything not named is a finished 2xx.
my %cases = (
    plain => [[sse(), $role, @words, $done], ttft => 1, gaps => 2],
    one_buffer => [[sse(), join('', $role, @words, $usage, $done)],
                   ttft => 1, gaps => 2, tokens => [11, 3, 8]],
    bytes => [[sse(), \'bytes', join('', $role, @words, $usage, $done)],
              ttft => 1, gaps => 2, tokens => [11, 3, 8]],
    crlf => [[sse(), $crlf], ttft => 1, gaps => 2],
    crlf_bytes => [[sse(), \'bytes', $crlf], ttft => 1, gaps => 2],
    tight => [[sse(), $tight], ttft => 1, gaps => 2],
    lines => [[sse(), qq(data: {"choices":\ndata: [{"delta":\n),
               qq(data: {"content":"x"}}]}\n\n), $done], ttft => 1],
    comments => [[sse(), ": ping\n\n", ':' . 'x' x 9000 . "\n\n", $role,
                  "event: x\nid: 7\nretry: 5\n\n", $words[0], ":\n", $words[1],
                  $done], ttft => 1, gaps => 1],
    role_only => [[sse(), $role, $done]],
    tools => [[sse(), $role, 'data: '
               . delta('"tool_calls":[{"index":0,"function":{"arguments":"{"}}]')
               . "\n\n", $done], ttft => 1],
    texts => [[sse(), map({ qq(data: {"choices":[{"text":"$_"}]}\n\n) }
                          1 .. 4), $usage, $done],
              ttft => 1, gaps => 3, tokens => [11, 3, 8]],
    no_done => [[sse(), $role, @words], ttft => 1, gaps => 2],
    anthropic => [[sse(), @claude], ttft => 1, gaps => 2,
                  tokens => [20, 9, 16]],
    responses => [[sse(), @responses], ttft => 1, gaps => 1,
                  tokens => [30, 2, 24]],
    nonsense => [[sse(), "data: {\"choices\":[{]]\n\n\xff\xfe\0data:",
                  "\n" x 300, ']' x 5000, "\n\n", $words[0], $done],
                 ttft => 1],
    empty => [[sse(), '']],

    json => [[json_answer(), $chat], ttft => 1, tokens => [5, 2, 4]],
    json_bytes => [[json_answer(), \'bytes', $chat], ttft => 1,
                   tokens => [5, 2, 4]],
    json_message => [[json_answer(), $message], ttft => 1,
                     tokens => [6, 7, 4]],
    json_response => [[json_answer(), $response], ttft => 1,
                      tokens => [8, 9, 3]],
    json_length => [["HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                     . 'Content-Length: ' . length($chat) . "\r\n\r\n$chat",
                     \'close'], ttft => 1, tokens => [5, 2, 4]],
    json_close => [["HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n"
                    . "\r\n$chat", \'close'], ttft => 1,
                   tokens => [5, 2, 4]],
    zipped => [[json_answer('Content-Encoding: gzip'), "\x1f\x8b nothing"],
               ttft => 1],
    other_type => [[answer(200, 'audio/mpeg'), 'x' x 70000], ttft => 1],
    nothing => [["HTTP/1.1 204 No Content\r\n\r\n", \'close']],

    reset => [[sse(), $role, $words[0], 0.2, 'data: {"choices":[{"del',
               0.2, \'reset'], ttft => 1, ended => 'replica_gone', cut => 1],
    closed => [[sse(), $role, $words[0], 0.2, 'data: {"cho', \'close'],
               ttft => 1, ended => 'replica_gone', cut => 1],
    short => [["HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
               . "Content-Length: 999\r\n\r\n" . substr($chat, 0, 20),
               0.2, \'close'], ttft => 1, ended => 'replica_gone', cut => 1],
    after_done => [[sse(), $words[0], $done, 0.2, \'reset'], ttft => 1,
                   cut => 1],

    map({ ("status_$_" => [[answer($_, 'application/json'),
                            '{"error":{"message":"no"}}'],
                           status => substr($_, 0, 1) . 'xx',
                           ended => 'error_status']) }
        400, 404, 429, 500, 503),
    status_sse => [[answer(500, 'text/event-stream'), $words[0], $done],
                   status => '5xx', ended => 'error_status'],
);

my $engine = MockEngine->new(
    map({ $_ => $cases{$_}[0] } keys %cases),
    late => [sse(), 0.2, ": ping\n\n", $role, 0.4, $words[0], 0.2, $words[1],
             $words[2], $done],
    slow => [sse(), $role, map({ (0.05, $_) } (@words) x 40), $done],
    silent => [sse(), $role, 9],
);

my $router;

# A router of its own for so many cases: it tells 64 models apart.
sub fresh_router
{
    is($router->stop, 0, 'stops in order') if $router;

    $router = router(undef, workers => 2,
        servers => 'server 127.0.0.1:' . $engine->port . ' max_fails=0;',
        upstream => 'aibrix; keepalive 4;',
        http => <<'EOC',
    log_format said '$aibrix_model $aibrix_ttft $aibrix_prompt_tokens '
                    '$aibrix_completion_tokens $aibrix_cached_tokens';
EOC
        server => <<'EOC');
    proxy_http_version 1.1;
    proxy_set_header Connection "";
    proxy_next_upstream off;
    access_log %%DIR%%/logs/said.log said;
    location /buffered/ {
        aibrix_sse off;
        proxy_pass http://llm/;
    }
EOC
}


# Starts a request for that script, as a model of that name.
sub start
{
    my ($script, $model, $path) = @_;
    my $c = RawHttp->new(port => $router->port, timeout => 10);

    $c->request('POST', ($path || '') . '/v1/chat/completions',
                '{"model":"' . ($model || $script) . '","stream":true,'
                . '"messages":[{"role":"user","content":"Hello"}]}',
                'x-script' => $script);
    return $c;
}

# The bytes that a script sends as a body.
sub said
{
    my $text = join '', grep { !ref && !/^[\d.]+\z/ } @_;
    $text =~ s/\AHTTP.*?\r\n\r\n//s;
    return $text;
}

sub counted
{
    my ($model) = @_;
    my $sum = sub { count($router, $_[0], model => $model, @_[1 .. $#_]) || 0 };
    my %ended = map { $_ => $sum->('aibrix_request_outcomes_total',
                                   outcome => $_) }
                qw(finished client_gone replica_gone error_status);

    return {
        ended => join(' ', map { "$_:$ended{$_}" }
                           grep { $ended{$_} } sort keys %ended),
        status => join(' ', grep { $sum->('aibrix_requests_total',
                                          status => $_) }
                            qw(0xx 2xx 4xx 5xx)),
        ttft => $sum->('aibrix_ttft_seconds_count'),
        gaps => $sum->('aibrix_inter_token_seconds_count'),
        tokens => [map { $sum->("aibrix_${_}_tokens_total") }
                   qw(prompt completion cached)],
    };
}


for my $path ('', '/buffered') {
    fresh_router();

    for my $name (sort keys %cases) {
        my ($script, %is) = @{ $cases{$name} };
        my $model = $name . ($path ? '_buffered' : '');
        my ($c, $body) = (start($name, $model, $path), '');

        $c->head;
        eval {
            while (my ($bytes) = $c->next_chunk) { $body .= $bytes }
            1;
        } || $is{cut} || diag($@);

        ok($body eq said(@$script), "$model: same bytes") if !$is{cut};
        ok(wait_idle($router), 'over');

        is_deeply(counted($model), {
            ended => ($is{ended} || 'finished') . ':1',
            status => $is{status} || '2xx', ttft => $is{ttft} || 0,
            gaps => $is{gaps} || 0, tokens => $is{tokens} || [0, 0, 0],
        }, "$model: what is counted") or diag explain counted($model);
    }
}


fresh_router();


subtest 'times' => sub {
    my $c = start('late');
    my $start = Time::HiRes::time;
    my $head = $c->head->{time} - $start;
    my @events = $c->events;
    my $first = (grep { $_->[0] =~ /one/ } @events)[0][1] - $start;

    wait_idle($router);
    cmp_ok($head, '<', $first - 0.3, 'the header was there long before');

    my $ttft = count($router, 'aibrix_ttft_seconds_sum', model => 'late');
    cmp_ok(abs($ttft - $first), '<', slow(0.05), 'TTFT is of the content');
    is(count($router, 'aibrix_inter_token_seconds_count', model => 'late'), 2,
       'two gaps');

    my $gaps = count($router, 'aibrix_inter_token_seconds_sum',
                     model => 'late');
    cmp_ok(abs($gaps - 0.2), '<', slow(0.05), 'of 0.2 s, and of nothing');

    my $took = count($router, 'aibrix_request_duration_seconds_sum',
                     model => 'late');
    cmp_ok(abs($took - 0.8), '<', slow(0.1), '0.8 s in all');

    my ($logged) = slurp($router->dir . '/logs/said.log')
                   =~ /^late (\d+\.\d{3}) - - -$/m;
    is($logged, sprintf('%.3f', $ttft), 'the log says the same');

    start('bytes')->body;
    wait_idle($router);
    like(slurp($router->dir . '/logs/said.log'), qr/^bytes \S+ 11 3 8$/m,
         'and the tokens');
};


subtest 'a client that leaves' => sub {
    for my $how (qw(close abort)) {
        for my $path ('', '/buffered') {
            my $model = "left_$how" . ($path ? '_buffered' : '');
            my $c = start('slow', $model, $path);

            $c->next_event for 1 .. 3;
            sleep 0.1;
            $c->$how;
            ok(wait_idle($router), 'over') or diag busy($router);

            my $is = counted($model);
            is($is->{ended}, 'client_gone:1', "$model: the client's doing");
            is($is->{status}, '2xx', 'after a good start');
            is($is->{ttft}, 1, 'with its TTFT');
        }
    }

    my $c = start('silent', 'left_waiting');
    $c->next_event;
    is_deeply([values %{ load($router) }], [1], 'a request');
    is(count($router, 'aibrix_waiting_requests'), 1, 'that waits for content');
    $c->close;
    ok(wait_idle($router), 'over');
    is(count($router, 'aibrix_waiting_requests'), 0, 'nothing waits');
    is(counted('left_waiting')->{ended}, 'client_gone:1', 'counted');
    is(counted('left_waiting')->{ttft}, 0, 'without a TTFT');
};


is($router->stop, 0, 'stops in order');


subtest 'models, fallbacks, errors' => sub {
    my $dead = free_port();
    my $router = router(undef, workers => 2,
        servers => 'server 127.0.0.1:' . $engine->port . ';',
        http => <<"EOC",
        upstream none { server 127.0.0.1:$dead; aibrix prefix-cache; }
        upstream full {
            server 127.0.0.1:$dead down; server 127.0.0.1:$dead down;
            aibrix;
        }
EOC
        server => 'location /none/ { proxy_pass http://none; }
                   location /full/ { proxy_pass http://full; }');
    my $ask = sub {
        my ($body, $path, $method, @more) = @_;
        return http($router->port, $method || 'POST',
                    $path || '/v1/completions', $body, 'x-script' => 'json',
                    @more);
    };
    my $fallbacks = sub {
        my %is;
        my $text = http($router->port, 'GET', '/metrics')->{body};
        while ($text =~ /^aibrix_fallbacks_total\{.*strategy="(.*?)",reason="(.*?)"\} (\d+)/mg) {
            $is{"$1 $2"} = $3 if $3;
        }
        return \%is;
    };

    my @given = ('routing-strategy' => 'prefix-cache');
    $ask->(undef, undef, 'GET', @given);
    $ask->(undef, undef, 'GET', 'routing-strategy' => 'random');
    $ask->('{"model":', undef, undef, @given);
    $ask->('{"model":"m"}', undef, undef, @given);
    $ask->(completion('short'), undef, undef, @given);
    $ask->(completion('x' x 200), undef, undef, @given);
    $ask->(completion('short'), undef, undef,
           'routing-strategy' => 'least-work');
    $ask->(completion('short'), undef, undef,
           'routing-strategy' => 'least-request');
    is_deeply($fallbacks->(), {
        'prefix-cache no_body' => 1, 'prefix-cache not_json' => 1,
        'prefix-cache no_prompt' => 2, 'least-work no_prompt' => 1,
    }, 'decisions without the prompt that their strategy wants');

    is($ask->(completion('x'), '/none/v1/completions')->{status}, 502,
       'a dead replica');
    is(count($router, 'aibrix_peer_failures_total', upstream => 'none'), 1,
       'is a failure');
    is(count($router, 'aibrix_requests_total', upstream => 'none',
             status => '0xx'), 1, 'and a request without an answer');
    is($ask->(completion('x'), '/full/v1/completions')->{status}, 502,
       'no replica at all');
    is(count($router, 'aibrix_prefix_cache_routing_errors_total',
             reason => 'no_target_pod'), 1, 'is an error');

    my @hostile = ('a\\"b\\\\c', 'tab\\tnew\\nline', "\xff\xfe", 'x' x 5000,
                   '{le=\\"1\\"} 5', "\xc3\xa9\xe2\x82\xac", '\\u0000\\u0007',
                   'other', '', '\\ud800');
    $ask->(qq({"model":"$_","prompt":"hi"})) for @hostile;
    my $text = http($router->port, 'GET', '/metrics')->{body};
    my $value = qr/"(?:[^"\\\n]|\\[\\"n])*"/;
    my @bad = grep { !/^# (?:HELP|TYPE) \w+ .*$/
                     && !/^\w+\{(?:\w+=$value)(?:,\w+=$value)*\} [\d.]+$/ }
              split /\n/, $text;
    is_deeply(\@bad, [], 'hostile names: every line is well formed');
    unlike($text, qr/[^\n\x20-\x7e\x80-\xff]/, 'no control character');
    like($text, qr/model="a\\"b\\\\c"/, 'escaped');
    like($text, qr/model="x{128}"/, 'cut');

    $ask->(completion('hi', model => "\"model-$_\"")) for 1 .. 80;
    $text = http($router->port, 'GET', '/metrics')->{body};
    my %models;
    $models{$1}++ while $text =~ /model="(.*?)"/g;
    is(scalar keys %models, 65, '64 models and "other"');
    cmp_ok(count($router, 'aibrix_requests_total', model => 'other'), '>', 15,
           'which has the rest');
    is(count($router, 'aibrix_requests_total', upstream => 'llm'), 98,
       'none is lost');
    $router->stop;
};


subtest 'one value whatever the worker, kept over reloads' => sub {
    my $engines = engines(1, 'step_base=1ms max_tokens=2');
    my $router = router($engines, workers => 3);
    my ($last, $asked) = (0, 0);

    for my $round (1 .. 4) {
        in_parallel(6, sub { ask($router, text($_[0], 300)) for 1 .. 10; 1 });
        $asked += 60;
        ok(wait_idle($router), 'idle') or diag busy($router);

        my %seen = map { count($router, 'aibrix_requests_total') => 1 }
                   1 .. 12;
        is_deeply([keys %seen], [$asked], "all $asked");

        my $sum = count($router, 'aibrix_ttft_seconds_count');
        is($sum, $asked, 'a TTFT each');
        is(count($router, 'aibrix_ttft_seconds_bucket', le => '+Inf'), $sum,
           'as many in the buckets');
        $router->reload;
    }

    $router->kill_worker;
    is(count($router, 'aibrix_requests_total'), $asked, 'a killed worker');
    $router->stop;
};


done_testing;
