# Whatever ends a request, the counts of its replica come back: clients that
# hang up at any moment, replicas that fail, workers that are killed.

use strict;
use warnings;

use lib 't/lib';
use AibrixTest;
use Fleet;
use List::Util qw(shuffle sum0);
use NginxInstance;
use RawHttp;
use Test::More;
use Time::HiRes qw(sleep time);

my $clients = 16;
my $each = 125;                         # requests of a client

# memory checkers report a SIGSEGV, whoever sent it
my $crash = $ENV{AIBRIX_VALGRIND} || $ENV{AIBRIX_STATIC} ? 'KILL' : 'SEGV';

my $engines = engines(2, 'step_base=5ms max_tokens=6');
my $broken = NginxInstance->new(conf => <<'EOC')->start;
server { listen 127.0.0.1:%%PORT1%%; client_max_body_size 0; return 444; }
server { listen 127.0.0.1:%%PORT2%%; client_max_body_size 0; return 503; }
EOC
my $refusing = free_port();
my $bad = servers($broken, 'max_fails=0')
          . "server 127.0.0.1:$refusing max_fails=0;\n";

my $router = router($engines, workers => 4, main => 'worker_rlimit_core 0;',
    upstream => 'aibrix;', servers => servers($engines, 'max_fails=0'),
    http => <<"EOC", server => <<'EOC');
proxy_next_upstream error timeout http_503 non_idempotent;
upstream over {
    aibrix;
    $bad @{[ servers($engines, 'max_fails=0 backup') ]}
}
upstream mixed {
    aibrix random;
    $bad @{[ servers($engines, 'max_fails=0') ]}
}
EOC
location /over/ { proxy_pass http://over/; }
location /mixed/ { proxy_pass http://mixed/; }
location /early/ { aibrix_read_body on; proxy_pass http://llm/; }
location /unbuffered/ {
    proxy_request_buffering off;
    proxy_http_version 1.1;
    proxy_pass http://llm/;
}
EOC

my @locations = ('', '', '/early', '/unbuffered');
my $progress = $router->dir . '/progress';


# One client: a third of its requests is given up, a third fails over, a third
# is left in peace. Returns how many of which kind, and what went wrong.
sub client
{
    my $number = shift;
    my @kinds = shuffle(map { (qw(aborted failing plain))[$_ % 3] }
                        1 .. $each);
    my %did = (lost => [], wrong => []);

    for my $i (1 .. $each) {
        my $kind = shift @kinds;
        my $prompt = text($number * 1000 + int rand 40, 100 + int rand 6000);
        my $c = RawHttp->new(port => $router->port, timeout => 20);

        my $said = eval {
            $kind eq 'aborted' ? aborted($c, $prompt)
            : served($c, $prompt, $kind eq 'plain' ? '' : failing());
        };

        if (!defined $said) {
            push @{ $did{lost} }, $@;
        } elsif ($said =~ /^(?:in|before|mid|over|mixed|plain)/) {
            $did{$said}++;
        } else {
            push @{ $did{wrong} }, "$kind: $said";
        }

        $c->close;
        tick();
    }

    return \%did;
}


sub tick
{
    open my $file, '>>', $progress or die "$progress: $!";
    syswrite $file, '.';
}


sub failing { rand() < 0.7 ? '/over' : '/mixed' }


# To its end, as a stream or not.
sub served
{
    my ($c, $prompt, $location) = @_;
    my $stream = rand() < 0.5;

    $c->request('POST', ($location || $locations[rand @locations])
                        . '/v1/completions',
                completion($prompt, stream => $stream ? 'true' : 'false'));

    my $head = $c->head;
    my $body = $c->body;

    return "status $head->{status}" if $head->{status} != 200;
    return "body '$body'"
        if $stream ? $body !~ /data: \[DONE\]\n\n\z/
           : $body !~ /"completion_tokens":6\b/;
    return $location =~ /(\w+)/ ? $1 : 'plain';
}


# Up to a random moment.
sub aborted
{
    my ($c, $prompt) = @_;
    my $where = rand 3;
    my $to = $locations[rand @locations] . '/v1/completions';
    my $said;

    if ($where < 1) {
        $c->request('POST', $to, substr(completion($prompt), 0, -50),
                    'Content-Length' => length completion($prompt));
        sleep rand 0.03;
        $said = 'in the body';

    } elsif ($where < 2) {
        $c->request('POST', $to, completion($prompt, max_tokens => 400));
        sleep rand 0.06;
        $said = 'before the header';

    } else {
        $c->request('POST', $to,
                    completion($prompt, stream => 'true', max_tokens => 400));
        $c->next_event for 1 .. 1 + rand 5;
        $said = 'mid-stream';
    }

    rand() < 0.5 ? $c->abort : $c->close;
    return $said;
}


# Ends two workers by a signal on the way; returns the most that was in flight
# at any time.
sub killer
{
    my $max = 0;
    my $all = $clients * $each;
    my @at = ([KILL => $all / 3], [$crash => $all * 2 / 3]);

    for (@at) {
        my ($signal, $when) = @$_;

        wait_for(sub {
            my $now = eval { total(load($router)) } || 0;
            $max = $now if $now > $max;
            return -s $progress >= $when;
        }, 100);
        $router->signal($signal, ($router->worker_pids)[0]);
    }

    return $max;
}


subtest 'aborted, failing over, and two workers killed' => sub {
    my $start = time;

    tick();
    my @did = in_parallel($clients + 1, sub {
        return $_[0] == $clients ? killer() : client($_[0]);
    });
    my $took = time - $start;
    my $max = pop @did;
    my %n;

    for my $did (@did) {
        $n{$_} += ref $did->{$_} ? @{ $did->{$_} } : $did->{$_} for keys %$did;
    }

    my @wrong = map { @{ $_->{wrong} } } @did;
    my @lost = map { @{ $_->{lost} } } @did;
    my $failed = count($router, 'aibrix_peer_failures_total');
    my $gone = count($router, 'aibrix_request_outcomes_total',
                     outcome => 'client_gone');

    is_deeply(\@wrong, [], 'every answer is right');
    is(sum0(values %n), $clients * $each, 'all requests are accounted for');
    cmp_ok($n{lost}, '<=', 2 * $clients,
           'lost is at most what the killed workers had') or diag @lost;
    cmp_ok($n{$_} || 0, '>=', $clients * $each / 3 / 5, "$_: enough of them")
        for 'in the body', 'before the header', 'mid-stream', 'over', 'mixed',
            'plain';
    cmp_ok($failed, '>=', 3 * $n{over}, 'replicas failed');
    cmp_ok($gone, '>=', $n{'mid-stream'} / 2, 'clients were seen to go');
    cmp_ok($max, '>', 0, 'something was in flight on the way');

    ok(wait_idle($router), 'nothing is in flight, nothing is queued')
        or diag busy($router);
    is_deeply(truth($engines), {}, 'as the engines say');

    diag(sprintf '%d requests in %.1f s over 4 workers, 2 killed: %s; '
                 . '%d failed attempts; at most %d in flight; left: %s',
         $clients * $each, $took, join(', ', map { "$n{$_} $_" } sort keys %n),
         $failed, $max, busy($router) || 'none');
};


# As many streams as are asked for; a list of them by worker.
sub hold_many
{
    my $n = shift;
    my %of;

    for my $i (1 .. $n) {
        my $c = hold($router, text(5000 + $i, 1000),
                     'routing-strategy' => 'random');
        push @{ $of{ $c->head->{headers}{'x-worker'} } }, $c;
    }

    return \%of;
}


# The seconds until the router's counts were the engines' own.
sub settling
{
    my $n = shift;
    my $start = time;

    wait_for(sub {
        my ($load, $truth) = (load($router), truth($engines));

        return total($truth) == $n
               && join(' ', map { "$_ $load->{$_}" } sort keys %$load)
                  eq join(' ', map { "$_ $truth->{$_}" } sort keys %$truth);
    }) or return;

    return time - $start;
}


sub let_go
{
    my $of = shift;

    $_->close for map { @$_ } values %$of;
    ok(wait_idle($router), 'all come back') or diag busy($router);
}


# Below zero would show here: a reader of the counts sees no less than 0.
subtest 'the counts are true after all that' => sub {
    my $of = hold_many(20);

    ok(defined settling(20), '20 streams') or diag busy($router);
    is(scalar keys %{ load($router) }, 2, 'on both');
    is_deeply(load($router, 'queued'), {}, 'with a first byte for each')
        if wait_for(sub { !%{ load($router, 'queued') } });

    my @waiting = map {
        my $c = RawHttp->new(port => $router->port);

        $c->request('POST', '/v1/completions',
                    completion(text(100_000 + $_, 4096),
                               max_tokens => 1_000_000),
                    'routing-strategy' => 'random');
        $c;
    } 1 .. 6;

    ok(wait_for(sub { total(load($router, 'queued')) == 6 * 4096 }),
       'six prompts wait') or diag busy($router);
    $_->abort for @waiting;

    let_go($of);
};


for my $signal ('KILL', $crash, 'TERM') {
    subtest "SIG$signal to a worker" => sub {
        my $of = hold_many(40);
        my ($worker, $other) = sort { @{ $of->{$b} } <=> @{ $of->{$a} } }
                               keys %$of;
        my $left = 40 - @{ $of->{$worker} };

        ok($other, 'the streams are held by several workers');
        ok(defined settling(40), '40 streams') or diag busy($router);

        my $start = time;
        $router->signal($signal, $worker);
        my $settled = settling($left);
        my $took = time - $start;

        ok(defined $settled, "$left are left, as the engines say")
            or diag busy($router);
        cmp_ok($took, '<', slow(1), 'within a second');
        diag(sprintf 'SIG%s with %d of 40 streams: true after %.3f s',
             $signal, 40 - $left, $took);

        ok(wait_for(sub { $router->worker_pids == 4 }), 'four workers again');
        let_go($of);
    };
}


subtest 'SIGKILL to an old worker that drains' => sub {
    my $of = hold_many(40);

    ok(defined settling(40), '40 streams') or diag busy($router);
    $router->reload;

    my %new = map { $_ => 1 } $router->worker_pids;
    my ($worker) = sort { @{ $of->{$b} } <=> @{ $of->{$a} } } keys %$of;
    my $left = 40 - @{ $of->{$worker} };

    is(scalar(grep { $new{$_} } keys %$of), 0, 'all in old workers');
    ok(defined settling(40), 'which still count');

    my $start = time;
    $router->signal('KILL', $worker);
    ok(defined settling($left), "$left are left") or diag busy($router);
    my $took = time - $start;

    cmp_ok($took, '<', slow(1), 'within a second');
    diag(sprintf 'SIGKILL to an old worker with %d of 40 streams: true after '
                 . '%.3f s', 40 - $left, $took);

    let_go($of);
    ok($router->wait_old_gone, 'the old workers have gone');
};


# Nobody looks at the metrics here: it is a selection that finds the dead.
subtest 'selection takes back what a dead old worker held' => sub {
    my (%held, $pod, $worker);

    # two streams in one worker on one replica, one on the other elsewhere
    for (1 .. 100) {
        my $c = hold($router, text(8000 + $_, 300),
                     'routing-strategy' => 'random');
        my $h = $c->head->{headers};

        $pod ||= $h->{'target-pod'};
        push @{ $held{ $h->{'x-worker'} } }, $c if $h->{'target-pod'} eq $pod;

        ($worker) = grep { @{ $held{$_} } == 2 } keys %held;
        last if $worker;
    }

    $_->close for map { @{ $held{$_} } } grep { $_ ne $worker } keys %held;

    ok(wait_load($router, 2), 'two streams in one worker, on one replica')
        or diag busy($router);

    my $elsewhere;
    for (1 .. 100) {
        $elsewhere = hold($router, text(8900 + $_, 300),
                          'routing-strategy' => 'least-request');
        last if $elsewhere->head->{headers}{'x-worker'} ne $worker;
        $elsewhere->close;
        wait_load($router, 2);
    }
    isnt($elsewhere->head->{headers}{'target-pod'}, $pod,
         'one in another worker, on the other replica');

    $router->reload;
    ok(wait_load($router, 3), 'all still there') or diag busy($router);

    my $prompt = text(8990, 300);
    is(ask($router, $prompt, 'routing-strategy' => 'least-request')
       ->{headers}{'target-pod'}, $elsewhere->head->{headers}{'target-pod'},
       'so a request goes where there is one');

    $router->signal('KILL', $worker);
    sleep 2.1;

    is(ask($router, $prompt, 'routing-strategy' => 'least-request')
       ->{headers}{'target-pod'}, $pod, 'and to the other after the kill');

    $elsewhere->close;
    ok(wait_idle($router), 'all come back') or diag busy($router);
};


is_deeply([grep { !/exited on signal (?:9|11)|\bshared memory zone\b/ }
           $router->log_at], [], 'nothing else in the log');
is($router->stop, 0, 'stops in order');

done_testing;
