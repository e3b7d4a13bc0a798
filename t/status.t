# aibrix_status: its JSON says what is the case and fits docs/status.schema.json,
# its control does what it says and is refused to strangers, the page is the
# one in page/. The page itself is tried in a browser by page.t.

use strict;
use warnings;

use lib 't/lib';
use AibrixTest;
use Fleet;
use JSON::PP qw(decode_json);
use JsonSchema;
use NginxInstance;
use RawHttp qw(http);
use Test::More;

sub slurp { open my $f, '<', $_[0] or die "$_[0]: $!"; local $/; <$f> }

my $schema = decode_json(slurp(repo() . '/docs/status.schema.json'));
my $engines = engines(3, 'step_base=5ms max_tokens=3');

my $router = router($engines, workers => 2, log_level => 'notice',
    upstream => 'zone llm 128k; aibrix prefix-cache;',
    servers => servers($engines, 'max_conns=9', 1)
               . servers($engines, 'weight=2', 2)
               . servers($engines, 'backup', 3) . 'server 127.0.0.1:9 down;',
    http => <<'EOC' . 'upstream two { aibrix random; '
log_format explained '$aibrix_decision_time';
upstream stock { server 127.0.0.1:9; }
EOC
            . servers($engines, '', 1) . '}',
    server => <<'EOC');
location /status { aibrix_status; }
location /off { aibrix_status control=off; }
location /control { aibrix_status control=on; }
location /two/ { proxy_pass http://two; }
location /explain/ { aibrix_explain on; proxy_pass http://llm/; }
location /timed/ {
    proxy_pass http://llm/;
    access_log %%DIR%%/logs/timed.log explained;
}
EOC

my @pods = map { '127.0.0.1:' . $engines->port($_) } 1 .. 3;


sub state
{
    my $answer = http($router->port, 'GET', $_[0] || '/status');

    is($answer->{status}, 200, 'the state is there');
    my $state = decode_json($answer->{body});
    is(check($schema, $state), '', 'it fits the schema');
    return $state;
}

sub upstream
{
    my ($state, $name) = @_;
    return (grep { $_->{name} eq $name } @{ $state->{upstreams} })[0];
}

sub peer
{
    my ($state, $pod) = @_;
    return (grep { $_->{address} eq $pod }
            @{ upstream($state, 'llm')->{peers} })[0];
}

sub control
{
    my ($action, $server, @headers) = @_;
    $server =~ s/:/%3A/;
    return http($router->port, 'POST',
                "/control?action=$action&upstream=llm&server=$server", undef,
                @headers)->{status};
}

sub pods
{
    my ($n, @headers) = @_;
    my %on;

    $on{ ask($router, text($_, 400), 'routing-strategy' => 'random', @headers)
         ->{headers}{'target-pod'} }++ for 1 .. $n;
    return \%on;
}


subtest 'nothing has happened yet' => sub {
    my $state = state();

    is_deeply([sort map { $_->{name} } @{ $state->{upstreams} }],
              ['llm', 'two'],
              'the upstreams with aibrix, and only they');
    is_deeply([map { "$_->{address} $_->{state} $_->{weight}"
                     . ($_->{backup} ? ' backup' : '') }
               @{ upstream($state, 'llm')->{peers} }],
              ["$pods[0] up 1", "$pods[1] up 2", '127.0.0.1:9 down 1',
               "$pods[2] up 1 backup"], 'their servers');
    is(upstream($state, 'llm')->{strategy}, 'prefix-cache', 'a strategy');
    is(upstream($state, 'two')->{strategy}, 'random', 'another');
    is_deeply($state->{zones}[0]{recent}, [], 'no decision');
    is($state->{zones}[0]{ttl}, 1200, 'the ttl in seconds');
    is_deeply([grep { $_->{requests} || $_->{inflight} || $_->{waiting}
                      || $_->{ttft}{count} || defined $_->{match_share} }
               @{ upstream($state, 'llm')->{peers} }], [], 'nothing counted');
};


subtest 'requests are counted' => sub {
    my @answers = map { ask($router, text(1, 1300)) } 1 .. 4;
    my $pod = $answers[0]{headers}{'target-pod'};

    wait_idle($router) or diag busy($router);

    my $state = state();
    my ($peer, $zone) = (peer($state, $pod), $state->{zones}[0]);

    is($peer->{requests}, 4, 'all on that replica');
    is($peer->{outcomes}{finished}, 4, 'all finished');
    is($peer->{ttft}{count}, 4, 'a TTFT of each');
    is($peer->{blocks}, 40, 'ten blocks of 128 each');
    is($peer->{matched}, 30, 'three of four had been there');
    is($peer->{match_share}, 0.75, 'which is their share');
    is($peer->{completion_tokens}, 12, 'tokens of usage');
    cmp_ok($peer->{ttft}{p50}, '>', 0.004, 'a TTFT above a step');

    my ($sum, $top) = (0, scalar @{ $zone->{bounds}{ttft} });
    $sum += $_ for @{ $peer->{ttft}{buckets} };
    is($sum, 4, 'the buckets have them all');
    is(scalar @{ $peer->{ttft}{buckets} }, $top + 1, 'a bucket each bound');

    is($zone->{index}{blocks}, 10, 'blocks in the index');
    is($zone->{selections}{prefix_match}, 3, 'by their prefix');
    is($zone->{selections}{least_request_fallback}, 1, 'the first by load');
    is_deeply([map { join ' ', @$_{qw(model upstream address strategy
                                      selection match_percent blocks matched)}
              } @{ $zone->{recent} }],
              [("m llm $pod prefix-cache prefix_match 100 10 10") x 3,
               "m llm $pod prefix-cache least_request_fallback 0 10 0"],
              'and the decisions are there, latest first');
    cmp_ok(abs($zone->{recent}[0]{time} - $state->{time}), '<', slow(5),
           'of just now');
    cmp_ok($zone->{recent}[0]{microseconds}, '>', 0.5, 'that took a while');
};


subtest 'what runs is in flight, what has no token waits' => sub {
    my $held = hold($router, text(2, 1300));
    my $pod = $held->head->{headers}{'target-pod'};

    $held->next_event;
    my $state = state();
    is(peer($state, $pod)->{inflight}, 1, 'in flight');
    is(peer($state, $pod)->{waiting}, 0, 'its first token is there');
    is(peer($state, $pod)->{connections}, 1, 'nginx counts a connection');
    $held->close;

    kill 'STOP', $engines->worker_pids;
    my $c = RawHttp->new(port => $router->port);
    $c->request('POST', '/v1/completions', completion(text(3, 1300)));
    ok(wait_for(sub {
        my $s = decode_json(http($router->port, 'GET', '/status')->{body});
        return grep { $_->{waiting} == 1 && $_->{queued_bytes} == 1300 }
               @{ upstream($s, 'llm')->{peers} };
    }), 'a request without an answer waits, with its bytes');
    kill 'CONT', $engines->worker_pids;
    $c->body;

    ok(wait_idle($router), 'all ended') or diag busy($router);
    is_deeply([grep { $_->{waiting} || $_->{queued_bytes} }
               @{ upstream(state(), 'llm')->{peers} }], [], 'nothing waits');
};


subtest 'what a request asks for' => sub {
    my @cases = (
        ['/status' => 'application/json'],
        ['/status', Accept => '*/*' => 'application/json'],
        ['/status', Accept => 'application/json' => 'application/json'],
        ['/status', Accept => 'application/json, text/html'
         => 'application/json'],
        ['/status', Accept => 'text/html,application/xml;q=0.9,*/*;q=0.8'
         => 'text/html; charset=utf-8'],
        ['/status', ACCEPT => 'TEXT/HTML' => 'text/html; charset=utf-8'],
        ['/status?format=json', Accept => 'text/html' => 'application/json'],
        ['/status?format=html' => 'text/html; charset=utf-8'],
    );

    for my $case (@cases) {
        my ($path, @rest) = @$case;
        my $type = pop @rest;
        my $answer = http($router->port, 'GET', $path, undef, @rest);
        my $head = http($router->port, 'HEAD', $path, undef, @rest);

        is($answer->{headers}{'content-type'}, $type, "$path @rest");
        is($answer->{headers}{'cache-control'}, 'no-store', 'not to be kept');
        is($head->{headers}{'content-type'}, $type, 'HEAD alike');
        is($head->{body}, '', 'without a body');
    }

    my $page = slurp(repo() . '/page/index.html');
    my $made = `perl ${\ repo()}/page/embed.pl < ${\ repo()}/page/index.html`;

    is(http($router->port, 'GET', '/status?format=html')->{body}, $page,
       'the page is page/index.html');
    is(slurp(repo() . '/ngx_aibrix_module/ngx_http_aibrix_page.h'), $made,
       'and its header is what "make page" makes of it');
    unlike($page, qr{https?://}, 'it needs nothing from elsewhere');
};


subtest 'only POST with control=on changes anything' => sub {
    my $order = "action=drain&upstream=llm&server=$pods[0]";

    for my $path ('/status', '/off') {
        is(http($router->port, 'POST', "$path?$order")->{status}, 405,
           "POST to $path");
    }

    is(http($router->port, $_, "/control?$order")->{status}, 405, $_)
        for qw(PUT DELETE PATCH OPTIONS);
    is(http($router->port, 'GET', "/control?$order")->{status}, 200, 'GET');

    is(state('/status')->{control}, JSON::PP::false, 'a reader knows');
    is(state('/control')->{control}, JSON::PP::true, 'and who may');
    is(peer(state(), $pods[0])->{state}, 'up', 'nothing has changed');

    for my $bad ('', 'action=drain', 'action=drain&upstream=llm',
                 "action=&upstream=llm&server=$pods[0]",
                 "action=stop&upstream=llm&server=$pods[0]",
                 "action=drainx&upstream=llm&server=$pods[0]") {
        is(http($router->port, 'POST', "/control?$bad")->{status}, 400,
           "400: $bad");
    }

    for my $none ("action=drain&upstream=lln&server=$pods[0]",
                  'action=drain&upstream=llm&server=127.0.0.1:1',
                  'action=drain&upstream=stock&server=127.0.0.1:9') {
        is(http($router->port, 'POST', "/control?$none")->{status}, 404,
           "404: $none");
    }

    my $host = 'localhost';
    is(control('drain', $pods[0], Origin => $_), 403, "from a page of $_")
        for 'http://elsewhere', 'null', 'http://localhost.evil',
            'http://localhost:1', '';
    is(peer(state(), $pods[0])->{state}, 'up', 'nothing has changed');
    is(control('undrain', $pods[0], Origin => "http://$host"), 200,
       'from our own page');
};


subtest 'drain and undrain' => sub {
    is(scalar keys %{ pods(40) }, 2, 'both are in use');

    my $held = hold($router, text(4, 400), 'routing-strategy' => 'random');
    my $pod = $held->head->{headers}{'target-pod'};
    my ($other) = grep { $_ ne $pod } @pods[0, 1];

    is(control('drain', $pod), 200, 'drain');
    is(peer(state(), $pod)->{state}, 'drained', 'it is said so');
    is_deeply(pods(40), { $other => 40 }, 'no new request gets there');
    ok(defined +($held->next_event)[0], 'what runs there goes on');
    is(peer(state(), $pod)->{inflight}, 1, 'and is counted');

    $router->reload(wait => 0);
    is(peer(state(), $pod)->{state}, 'drained', 'a reload keeps it so');
    is_deeply(pods(20), { $other => 20 }, 'for new workers too');
    $held->close;

    is(control('drain', $other), 200, 'the other as well');
    is_deeply(pods(5), { $pods[2] => 5 }, 'the backup steps in');
    is(control('drain', $pods[2]), 200, 'that too');
    is(ask($router, text(1, 400))->{status}, 502, 'none is left');
    is(state()->{zones}[0]{errors}{no_target_pod}, 1, 'which is counted');

    is(control('undrain', $_), 200, 'undrain') for @pods;
    is(scalar keys %{ pods(40) }, 2, 'both are in use again');
    like($router->log, qr/aibrix: drain of server "\Q$pod\E" in upstream "llm"/,
         'the log tells');
};


subtest 'forget' => sub {
    my $pod = ask($router, text(50, 1300))->{headers}{'target-pod'};
    my $ask = sub { ask($router, text(50, 1300)) };

    is($ask->()->{headers}{'x-match'}, 100, 'known');
    is(control('forget', $pod), 200, 'forget');

    my $again = $ask->();
    is($again->{headers}{'x-match'}, 0, 'not any more');
    is($ask->()->{headers}{'x-match'}, 100, 'learned again');
};


subtest 'aibrix_explain' => sub {
    my $ask = sub {
        return http($router->port, 'POST', $_[0],
                    completion(text(60, 1300)), @_[1 .. $#_])->{headers};
    };

    is($ask->('/v1/completions')->{'x-aibrix-explain'}, undef, 'off');

    $ask->('/explain/v1/completions');
    my $headers = $ask->('/explain/v1/completions');
    my $pod = $headers->{'target-pod-ip'};
    my ($other) = grep { $_ ne $pod } @pods[0, 1];
    my %load = ($pods[0] => '0', $pods[1] => '0/2');

    is($headers->{'x-aibrix-explain'},
       'prefix-cache prefix_match blocks=10'
       . "; $pod match=10 load=$load{$pod} queued=0"
       . "; $other match=0 load=$load{$other} queued=0",
       'on: the candidates, the chosen one first');

    is(control('drain', $other), 200, 'one is drained');
    is($ask->('/explain/v1/completions')->{'x-aibrix-explain'},
       'prefix-cache single_candidate blocks=10'
       . "; $pod match=10 load=$load{$pod} queued=0", 'and no candidate');
    is(control('undrain', $other), 200, 'undrained');

    like($ask->('/explain/v1/completions', 'routing-strategy' => 'least-work')
         ->{'x-aibrix-explain'},
         qr/^least-work least_work_hit blocks=10; \Q$pod\E match=10 \S+ queued=0 cost=\d+; \Q$other\E match=0 \S+ queued=0 cost=\d+$/,
         'least-work tells what it would cost');

    $ask->('/timed/v1/completions');
    wait_for(sub { -s $router->dir . '/logs/timed.log' }, 10);
    like(slurp($router->dir . '/logs/timed.log'), qr/^0\.\d{6}\n\z/,
         '$aibrix_decision_time');
    cmp_ok(slurp($router->dir . '/logs/timed.log'), '>', 0, 'is not nothing');
};


is($router->stop, 0, 'stops in order');
is($engines->stop, 0, 'engines stop in order');


subtest 'many replicas' => sub {
    my $engines = engines(1, 'step_base=5ms max_tokens=1');
    my $many = router($engines, upstream => 'aibrix;', workers => 1,
        servers => 'server 127.0.0.1:' . $engines->port(1) . ';'
                   . join('', map { "server 127.1.$_.1:9 down;" } 1 .. 199)
                   . join('', map { "server 127.2.$_.1:9;" } 1 .. 99),
        server => 'aibrix_explain on; proxy_next_upstream off;'
                  . 'location /status { aibrix_status; }');

    for (1 .. 3) {
        my $state = decode_json(http($many->port, 'GET', '/status')->{body});
        is(check($schema, $state), '', 'it fits the schema');
        is(scalar @{ upstream($state, 'llm')->{peers} }, 299, 'all there');

        my $why = ask($many, text(1, 1300),
                      'routing-strategy' => 'prefix-cache')
                  ->{headers}{'x-aibrix-explain'};
        cmp_ok(length $why, '<=', 1000, 'a header of 1 kB at most');
        like($why, qr/; \d+ more$/, 'that says how many are left out');

        my $named = () = $why =~ /match=/g;
        my ($more) = $why =~ /(\d+) more$/;
        cmp_ok($named, '>', 10, 'many are in it');
        cmp_ok($named + $more, '<=', 100, 'and none twice');
    }

    $many->stop;
};


done_testing;
