# A body of 64 MiB is a request like any other: it is routed by what it says,
# and the worker that reads it goes on answering others.

use strict;
use warnings;

use lib 't/lib';
use AibrixTest;
use Digest::SHA qw(sha256_hex);
use Fleet;
use NginxInstance;
use RawHttp qw(http);
use Test::More;
use Time::HiRes qw(sleep time);

my $size = 64 * 1024 * 1024;

my $replicas = NginxInstance->new(workers => 2, conf => <<'EOC')->start;
    client_max_body_size 0;
    server { listen 127.0.0.1:%%PORT1%%; location / { engine_sim_digest; } }
    server { listen 127.0.0.1:%%PORT2%%; location / { engine_sim_digest; } }
EOC

my $nginx = NginxInstance->new(workers => 1, conf => <<"EOC")->start;
    map \$aibrix_model \$of {
        wanted pool;
        default others;
    }
    upstream pool {
        aibrix;
        @{[ servers($replicas, '', 1) ]}
    }
    upstream others {
        aibrix;
        @{[ servers($replicas, '', 2) ]}
    }
    server {
        listen 127.0.0.1:%%PORT1%%;
        client_max_body_size 0;
        proxy_read_timeout 60s;
        add_header x-model \$aibrix_model;
        add_header x-stream \$aibrix_stream;
        add_header x-blocks \$aibrix_blocks;
        location / {
            aibrix_read_body on;
            proxy_pass http://\$of;
        }
        location /late/ {
            proxy_pass http://pool;
        }
        location = /metrics {
            aibrix_metrics;
        }
    }
EOC

my ($pool, $others) = map { '127.0.0.1:' . $replicas->port($_) } 1, 2;

my $sentence = 'It is a long text with \\"quotes\\", \\u00fcml\\u00e4uts'
               . " and \xe6\xbc\xa2\xe5\xad\x97 in it. ";


sub filled
{
    my ($head, $filling, $end) = @_;
    my $room = $size - length($head) - length($end);
    my $n = int($room / length $filling);

    return $head . $filling x $n . ' ' x ($room - $n * length $filling) . $end;
}

# What it is; head, filling and end of the body; where to; who answers; model,
# stream, and blocks: 8,192 blocks of 128 bytes are the first megabyte of text.
my @cases = (
    ['model first',
     ['{"model":"wanted","stream":true,"prompt":"', $sentence, '"}'],
     '/v1/completions', $pool, 'wanted', 1, 8192],
    ['model last',
     ['{"prompt":"', $sentence, '","stream":true,"model":"wanted"}'],
     '/v1/completions', $pool, 'wanted', 1, 8192],
    ['read by the balancer',
     ['{"prompt":"', $sentence, '","model":"wanted"}'],
     '/late/v1/completions', $pool, 'wanted', 0, 8192],
    ['a million messages',
     ['{"messages":[', '{"role":"user","content":"Hello, you are"},',
      '{"role":"user","content":"there"}],"model":"wanted"}'],
     '/v1/chat/completions', $pool, 'wanted', 0, 8192],
    ['deep in brackets', ['{"model":"wanted","x":', '[', '}'],
     '/v1/completions', $others, '', '', 0],
    ['not JSON',
     ['', pack('L*', map { 2654435761 * $_ % 2 ** 32 } 1 .. 1024), ''],
     '/v1/completions', $others, '', '', 0],
    ['multipart', ["--b\r\nContent-Disposition: form-data\r\n\r\n", $sentence,
                   "\r\n--b--\r\n"],
     '/v1/completions', $others, '', '', 0],
);


# Small requests of another client until the file is there; their times.
sub bystander
{
    my $stop = shift;
    my @times;

    until (-e $stop) {
        my $start = time;
        my $answer = http($nginx->port, 'POST', '/v1/completions',
                          '{"model":"wanted","prompt":"Hello"}');

        die "a bystander got $answer->{status}" if $answer->{status} != 200;
        push @times, time - $start;
        sleep 0.01;
    }

    return [sort { $a <=> $b } @times];
}


sub sender
{
    my ($stop, $path, $body, $chunked) = @_;
    my $c = RawHttp->new(port => $nginx->port, timeout => 60);
    my $start = time;

    $c->request('POST', $path, undef,
                $chunked ? ('Transfer-Encoding' => 'chunked')
                : ('Content-Length' => length $body));

    if ($chunked) {
        for (my $at = 0; $at < length $body; $at += 65536) {
            my $piece = substr $body, $at, 65536;
            $c->send_raw(sprintf "%x\r\n%s\r\n", length $piece, $piece);
        }
        $c->send_raw("0\r\n\r\n");
    } else {
        $c->send_raw($body);
    }

    my $answer = { %{ $c->head }, body => $c->body, took => time - $start };

    open my $file, '>', $stop or die "$stop: $!";
    return $answer;
}


my $n = 0;

for my $case (@cases) {
    my ($what, $parts, $path, $to, $model, $stream, $blocks) = @$case;
    my $body = filled(@$parts);

    subtest $what => sub {
        my $stop = $nginx->dir . '/stop' . ++$n;
        my ($answer, $times) = in_parallel(2, sub {
            return $_[0] ? bystander($stop)
                   : sender($stop, $path, $body, $n % 2 == 0);
        });
        my $h = $answer->{headers};

        is(length $body, $size, '64 MiB');
        is($answer->{status}, 200, 'answered');
        is($h->{'target-pod'}, $to, 'by the right one');
        is($h->{'x-model'} || '', $model, 'its model is known');
        is(exists $h->{'x-stream'} ? $h->{'x-stream'} : '', $stream,
           'and whether it streams');
        is($h->{'x-blocks'}, $blocks, 'and the head of its prompt');
        like($answer->{body}, qr/"sha256":"@{[ sha256_hex($body) ]}"/,
             'every byte has arrived');
        cmp_ok(scalar @$times, '>=', 5, 'others were served meanwhile');
        cmp_ok($times->[-1], '<', slow(1), 'each in less than a second');

        diag(sprintf '%s: 64 MiB in %.2f s; %d other requests on the same '
                     . 'worker, median %.1f ms, longest %.1f ms', $what,
             $answer->{took}, scalar @$times, 1000 * $times->[@$times / 2],
             1000 * $times->[-1]);
    };
}

ok(wait_idle($nginx), 'nothing is left in flight') or diag busy($nginx);
is_deeply([$nginx->log_at(qw(error crit alert emerg))], [],
          'nothing bad in the log');
is($nginx->stop, 0, 'stops in order');

done_testing;
