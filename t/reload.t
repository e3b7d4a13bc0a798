# What lives longer than a configuration: prefixes, counts and who is who.

use strict;
use warnings;

use lib 't/lib';
use AibrixTest;
use Fleet;
use NginxInstance;
use RawHttp qw(http);
use Test::More;
use Time::HiRes qw(sleep time);

my $engines = engines(3, 'step_base=5ms max_tokens=4');
my @pods = map { '127.0.0.1:' . $engines->port($_) } 1 .. 3;
my $seed = 0;


# The configuration of router() with these parts.
sub conf
{
    my %part = (http => 'aibrix_zone lives 8m seed=1;',
                upstream => 'aibrix prefix-cache;',
                servers => servers($engines, '', 1, 2), @_);

    return Fleet::router_conf($engines, %part);
}

my $router = NginxInstance->new(workers => 2, conf => conf())->start;


# A new prompt that only this pod knows.
sub learned_on
{
    my $pod = shift;

    for (1 .. 200) {
        my $prompt = text(++$seed, 2048);
        my $h = ask($router, $prompt, 'routing-strategy' => 'random')
                ->{headers};
        return $prompt if $h->{'target-pod'} eq $pod;
    }

    die "$pod is never chosen";
}


# A stream that is held on this pod.
sub held_on
{
    my $pod = shift;

    for (1 .. 200) {
        my $c = hold($router, text(++$seed, 300),
                     'routing-strategy' => 'random');
        return $c if $c->head->{headers}{'target-pod'} eq $pod;
        $c->close;
    }

    die "$pod is never chosen";
}


# Who answers it, and why.
sub whose
{
    my $h = ask($router, $_[0])->{headers};

    return "$h->{'target-pod'} $h->{'x-selection'} $h->{'x-match'}";
}


# A reload that nginx refuses, with a line in the log that says why.
sub refused_reload
{
    my ($conf, $why) = @_;
    my @workers = $router->worker_pids;

    $router->write_conf(conf => $conf);
    $router->signal('HUP');
    my $line = $router->wait_log($why);

    ok($line, 'refused with a sentence of ours') or diag $router->log;
    note($line || '');
    is_deeply([$router->worker_pids], \@workers, 'the workers are the same');
}


subtest '20 reloads under load' => sub {
    my %prompt = map { $_ => learned_on($pods[$_]) } 0, 1;
    my $stop = $router->dir . '/stop';
    my $start = time;

    my ($reloads, @did) = in_parallel(4, sub {
        my $i = shift;

        if ($i == 0) {
            my $done = eval { $router->reload for 1 .. 20; 20 } || $@;
            open my $file, '>', $stop or die "$stop: $!";
            return $done;
        }

        my %did = (good => 0, bad => []);

        until (-e $stop) {
            my $answer = eval {
                ask($router, text($i * 100_000 + $did{good}, 2000))
            };

            if ($answer && $answer->{status} == 200
                && $answer->{body} =~ /"completion_tokens":4\b/)
            {
                $did{good}++;
            } else {
                push @{ $did{bad} }, $answer ? $answer->{raw} : $@;
            }
        }

        return \%did;
    });

    my $good = 0;
    $good += $_->{good} for @did;

    is($reloads, 20, '20 reloads');
    is_deeply([map { @{ $_->{bad} } } @did], [], 'no request failed');
    cmp_ok($good, '>', 100 / slow(1), 'of enough');
    ok(wait_idle($router), 'nothing is left in flight') or diag busy($router);

    for (0, 1) {
        is(whose($prompt{$_}), "$pods[$_] prefix_match 100",
           "what server $_ had learned before is known");
    }

    diag(sprintf '20 reloads in %.1f s: %d requests, %d failed; the prefixes '
                 . 'of before still match', time - $start, $good,
         scalar map { @{ $_->{bad} } } @did);
};

# the first process of in_parallel did the reloads, not this one
ok($router->wait_old_gone, 'the old workers have gone');
$router->reload(wait => 1);


subtest 'streams in old workers count' => sub {
    my @held = map { held_on($pods[$_]) } 0, 0, 1;
    my %three = ($pods[0] => 2, $pods[1] => 1);

    ok(wait_load($router, 3), 'three streams') or diag busy($router);
    $router->reload for 1 .. 3;

    is_deeply(load($router), \%three, 'counted after three reloads');
    is(ask($router, text(++$seed, 500), 'routing-strategy' => 'least-request')
       ->{headers}{'target-pod'}, $pods[1], 'and seen by a decision');

    $held[0]->close;
    ok(wait_for(sub { (load($router)->{$pods[0]} || 0) == 1 }),
       'one ends in its old worker') or diag busy($router);

    $_->close for @held;
    ok(wait_idle($router), 'and the others') or diag busy($router);
    ok($router->wait_old_gone, 'the old workers go');
};


subtest 'servers added, removed, put in another order' => sub {
    my %prompt = map { $_ => learned_on($pods[$_]) } 0, 1;
    my @held = map { held_on($pods[1]) } 1 .. 3;

    ok(wait_load($router, 3), 'three streams on the second server')
        or diag busy($router);

    # 3, 2, 1
    $router->write_conf(conf => conf(servers =>
                                     servers($engines, '', 3, 2, 1)));
    $router->reload;
    is_deeply(load($router), { $pods[1] => 3 }, 'counted at its new place')
        or diag busy($router);
    is(whose($prompt{$_}), "$pods[$_] prefix_match 100",
       "what server $_ had learned is known") for 0, 1;
    is(whose(learned_on($pods[2])), "$pods[2] prefix_match 100",
       'the new one learns as well');

    # 3, 2
    $router->write_conf(conf => conf(servers => servers($engines, '', 3, 2)));
    $router->reload;
    is(load($router)->{$pods[1]}, 3, 'counted when another has gone');
    is(whose($prompt{1}), "$pods[1] prefix_match 100", 'and its prefix known');
    my $h = ask($router, $prompt{0})->{headers};
    is("$h->{'target-pod'} $h->{'x-selection'}",
       "$pods[2] least_request_fallback",
       'what the removed one knew goes by load');

    # 1, 2: the removed one comes back
    $router->write_conf(conf => conf());
    $router->reload;
    is_deeply(load($router), { $pods[1] => 3 }, 'counted still')
        or diag busy($router);
    is(whose($prompt{0}), "$pods[0] prefix_match 100",
       'the one that comes back is known by its name');

    $_->close for @held;
    ok(wait_idle($router), 'nothing is left in flight') or diag busy($router);
    ok($router->wait_old_gone, 'the old workers go');
};


subtest 'a refused reload changes nothing' => sub {
    my $prompt = learned_on($pods[1]);
    my @held = map { held_on($pods[0]) } 1 .. 2;

    ok(wait_load($router, 2), 'two streams') or diag busy($router);

    refused_reload(conf(upstream => 'aibrix no-such-strategy;'),
                   qr/\[emerg\].*unknown strategy "no-such-strategy"/);
    refused_reload(conf(http => 'aibrix_zone lives 8m seed=2;'),
                   qr/\[emerg\].*"lives" lives with another seed; keep the/);

    # late: the zone has been initialized by then
    my $taken = $engines->port(1);
    refused_reload(conf(server => "listen 127.0.0.1:$taken;"),
                   qr/\[emerg\].*still could not bind/);

    is_deeply(load($router), { $pods[0] => 2 }, 'the counts are kept')
        or diag busy($router);
    is(whose($prompt), "$pods[1] prefix_match 100", 'and what was learned');

    $_->close for @held;
    ok(wait_idle($router), 'nothing is left in flight') or diag busy($router);
};


subtest 'another ttl' => sub {
    my $prompt = learned_on($pods[1]);

    $router->write_conf(conf => conf(http =>
        'aibrix_zone lives 8m seed=1 ttl=10m;'));
    $router->reload;
    is(whose($prompt), "$pods[1] prefix_match 100", 'is taken, nothing lost');

    $router->write_conf(conf => conf(http =>
        'aibrix_zone lives 8m seed=1 ttl=1s;'));
    $router->reload;
    sleep 2.5;
    my $h = ask($router, $prompt)->{headers};
    is("$h->{'x-selection'} $h->{'x-match'}", 'least_request_fallback 0',
       'and is what counts from then on');

    refused_reload(conf(http => 'aibrix_zone lives 8m seed=1 ttl=365d;'),
                   qr/\[emerg\].*clock too fine for this ttl; set at most \d/);

    $router->write_conf(conf => conf());
    $router->reload(wait => 1);
};


subtest 'another size of the zone' => sub {
    my $prompt = learned_on($pods[1]);
    my @held = map { held_on($pods[1]) } 1 .. 2;

    $router->write_conf(conf => conf(http => 'aibrix_zone lives 9m seed=1;'));
    $router->reload;

    ok($router->wait_log(qr/"lives" has a new size: its index and counters/),
       'is said in the log');
    my $h = ask($router, $prompt)->{headers};
    is("$h->{'x-selection'} $h->{'x-match'}", 'least_request_fallback 0',
       'nothing is known');
    is(busy($router), '', 'nothing is counted');
    is(whose(learned_on($pods[1])), "$pods[1] prefix_match 100", 'but learns');

    $held[0]->next_event;
    $_->close for @held;
    ok($router->wait_old_gone, 'old workers end on the old memory');
    is(busy($router), '', 'and do not touch the new');

    $router->write_conf(conf => conf(http => 'aibrix_zone other 9m seed=7;'));
    $router->reload;
    is(ask($router, $prompt)->{headers}{'x-match'}, 0,
       'another name is another zone, with any seed');
};


my @bad = grep { !/\[emerg\]/ } $router->log_at;
is_deeply(\@bad, [], 'nothing else in the log');
is($router->stop, 0, 'stops in order');


# USR2 is for daemons only.
subtest 'a new binary beside the old one' => sub {
    my $daemon = NginxInstance->new(workers => 2, conf => conf());
    my $pid_file = $daemon->dir . '/nginx.pid';
    my $slurp = sub {
        open my $file, '<', $_[0] or return 0;
        return 0 + (<$file> || 0);
    };

    my $text = do {
        open my $file, '<', $daemon->conf_file or die $!;
        local $/;
        <$file>;
    };
    $text =~ s/^daemon off;$/daemon on;/m or die 'no "daemon off"';
    open my $file, '>', $daemon->conf_file or die $!;
    print $file $text;
    close $file;

    is(system($daemon->_command), 0, 'starts');
    ok(wait_for(sub { $slurp->($pid_file) }), 'as a daemon');
    my $old = $slurp->($pid_file);

    my $prompt = text(1, 2048);
    my $stream = hold($daemon, $prompt);
    my $pod = $stream->head->{headers}{'target-pod'};

    kill 'USR2', $old;
    ok(wait_for(sub { my $new = $slurp->($pid_file);
                      $new && $new != $old }), 'a new master');
    my $new = $slurp->($pid_file);

    my %bad;
    for (1 .. 40) {
        my $answer = eval { ask($daemon, text(100 + $_, 500)) };
        $bad{ $answer ? $answer->{status} : $@ }++;
    }
    is_deeply(\%bad, { 200 => 40 }, 'both serve');

    kill 'WINCH', $old;
    ok(wait_for(sub { $daemon->log =~ /gracefully shutting down/ }),
       'the old workers are told to end');

    ok(wait_for(sub { ask($daemon, text(2, 500))->{status} == 200 }),
       'the new ones serve');
    ok(length(($stream->next_event)[0]), 'the old stream goes on');
    ok(wait_for(sub { ask($daemon, $prompt)->{headers}{'x-match'} == 100 }),
       'the new ones learn anew');

    kill 'QUIT', $old;
    $stream->close;
    ok(wait_for(sub { !kill 0, $old }, 10), 'the old master goes');
    ok(wait_idle($daemon), 'nothing is in flight in the new one')
        or diag busy($daemon);
    is_deeply([$daemon->log_at], [], 'nothing bad in the log');

    kill 'QUIT', $new;
    ok(wait_for(sub { !kill 0, $new }, 10), 'and the new one');
};

done_testing;
