# The stock nginx with both modules and no directive of theirs, as a master
# with workers: it tests its configuration, serves, reloads, replaces a
# killed worker and stops. This also holds the helpers in t/lib to their word.

use strict;
use warnings;

use lib 't/lib';
use AibrixTest;
use NginxInstance;
use RawHttp qw(http);
use Test::More;
use Time::HiRes qw(sleep time);

my $conf = <<'EOC';
    upstream engines {
        server 127.0.0.1:%%PORT2%%;
    }

    server {
        listen 127.0.0.1:%%PORT1%%;

        location / {
            add_header X-Pid $pid;
            return 200 "one\n";
        }

        location /proxy {
            proxy_pass http://engines/;
        }

        location /slow {
            limit_rate 1000;
            alias %%DIR%%/slow;
        }
    }

    server {
        listen 127.0.0.1:%%PORT2%%;

        location / {
            return 200 "engine\n";
        }
    }
EOC

my $nginx = NginxInstance->new(conf => $conf, workers => 2);

open my $file, '>', $nginx->dir . '/slow' or die $!;
print $file 'x' x 3000;
close $file;

my ($good, $said) = $nginx->test_conf;
ok($good, 'nginx -t') or diag $said;

$nginx->start;

my @first = $nginx->worker_pids;
is(scalar @first, 2, 'two workers');

subtest 'answers' => sub {
    my $answer = http($nginx->port, 'GET', '/');

    is($answer->{status}, 200, 'status');
    is($answer->{body}, "one\n", 'body');
    like($answer->{headers}{'x-pid'}, qr/^(?:$first[0]|$first[1])$/,
         'from one of the workers');
    is(http($nginx->port, 'POST', '/proxy', 'x' x 100_000)->{body},
       "engine\n", 'through an upstream');
};

subtest 'keep-alive and timing' => sub {
    my $c = RawHttp->new(port => $nginx->port);

    for (1 .. 3) {
        $c->request('GET', '/');
        is($c->body, "one\n", "request $_ on one connection");
    }

    my $start = time;
    my $bytes = 0;
    my $last;

    $c->request('GET', '/slow');
    while (my ($piece, $when) = $c->next_chunk) {
        $bytes += length $piece;
        $last = $when;
    }

    is($bytes, 3000, 'all of a slow answer');
    cmp_ok($last - $start, '>', 0.9, 'which took its time');
};

my @bodies = in_parallel(8, sub {
    my $i = shift;
    return [map { http($nginx->port, 'GET', "/$i/$_")->{body} } 1 .. 25];
});
is_deeply(\@bodies, [map { [("one\n") x 25] } 1 .. 8], 'requests in parallel');

subtest 'reload' => sub {
    my $c = RawHttp->new(port => $nginx->port);

    $c->request('GET', '/slow');
    is($c->head->{status}, 200, 'a long answer has begun');

    $nginx->write_conf(conf => $conf =~ s/"one/"two/r, workers => 3);
    $nginx->reload;

    my @second = $nginx->worker_pids;
    my %old = map { $_ => 1 } @first;

    is(scalar @second, 3, 'as many workers as the new conf says');
    is_deeply([grep { $old{$_} } @second], [], 'all of them new');
    is(http($nginx->port, 'GET', '/')->{body}, "two\n", 'with the new conf');
    cmp_ok(scalar $nginx->all_worker_pids, '>', 3, 'an old one still works');
    is(length $c->body, 3000, 'and finishes the long answer');
    ok($nginx->wait_old_gone, 'and goes');
};

subtest 'a refused reload' => sub {
    my @before = $nginx->worker_pids;

    $nginx->write_conf(conf => 'no_such_directive;');
    ok(!($nginx->test_conf)[0], 'nginx -t says no');
    ok(!eval { $nginx->reload }, 'reload dies');
    like($@, qr/no_such_directive/, 'with the reason');
};

$nginx->stop;
$nginx = NginxInstance->new(conf => $conf, workers => 2)->start;

subtest 'a killed worker' => sub {
    my ($victim, $other) = $nginx->worker_pids;
    my $new = $nginx->kill_worker($victim);

    is_deeply([sort { $a <=> $b } $nginx->worker_pids],
              [sort { $a <=> $b } $other, $new], 'is replaced');
    ok($nginx->wait_log(qr/worker process $victim exited on signal 9/),
       'and the log says so');
    is(http($nginx->port, 'GET', '/')->{body}, "one\n", 'nginx goes on');
};

is($nginx->stop, 0, 'stops in order');
is(scalar(grep { !/exited on signal 9/ } $nginx->log_at), 0,
   'nothing else worse than an error in the log') or diag $nginx->log;

done_testing;
