# A stream leaves as it arrives: twelve events, one each 0.1 s, are seen one by
# one, over HTTP/1.1, TLS and HTTP/2, with proxy_buffering at its default.
#
# The engine here writes into each event when it was sent. A machine that is
# busy may hold up any process for a while, so a case has five attempts; what
# the router keeps back it keeps back each time.

use strict;
use warnings;

use lib 't/lib';
use AibrixTest;
use Compress::Raw::Zlib;
use Fleet;
use IO::Socket::INET;
use NginxInstance;
use POSIX ();
use RawHttp;
use Test::More;
use Time::HiRes qw(sleep time);

my $events = 12;
my $gap = 0.1;                          # seconds between two
my $prompt = completion(text(1, 4096), stream => 'true');
my ($engine_port, $engine_pid) = start_engine();


# A server that streams to whoever asks, as HTTP/1.0 or 1.1.
sub start_engine
{
    my $listen = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 64,
                                       ReuseAddr => 1)
        or die "listen: $!";
    my $pid = fork;
    die "fork: $!" if !defined $pid;

    return ($listen->sockport, $pid) if $pid;

    local $SIG{CHLD} = 'IGNORE';

    while (1) {
        my $c = $listen->accept or next;

        if (!fork) {
            stream_events($c);
            POSIX::_exit(0);
        }
    }
}


sub stream_events
{
    my $c = shift;
    my $request = '';

    sysread $c, $request, 65536, length $request
        until $request =~ /\r\n\r\n.*\}\z/s;

    my $chunked = $request =~ m{^POST \S+ HTTP/1\.1\r};
    my $send = sub {
        my $data = shift;
        syswrite $c, $chunked ? sprintf("%x\r\n%s\r\n", length $data, $data)
                              : $data;
    };

    syswrite $c, "HTTP/1.1 200 OK\r\n"
        . "Content-Type: text/event-stream; charset=utf-8\r\n"
        . "Connection: close\r\n"
        . ($chunked ? "Transfer-Encoding: chunked\r\n" : '')
        . sprintf("X-Sent: %.6f\r\n\r\n", time);

    my $start = time;
    for my $i (1 .. $events) {
        my $wait = $start + $i * $gap - time;

        sleep $wait if $wait > 0;
        $send->(sprintf "data: {\"sent\":%.6f,\"n\":%d}\n\n", time, $i);
    }

    $send->("data: [DONE]\n\n");
    syswrite $c, "0\r\n\r\n" if $chunked;
    close $c;
}

END { kill 'KILL', $engine_pid if $engine_pid }


my $dir = scratch_dir();
my ($key, $cert) = ("$dir/key.pem", "$dir/cert.pem");

`openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes \\
    -days 2 -subj /CN=localhost -keyout $key -out $cert 2>&1`;
die 'openssl makes no certificate' if $? != 0;

my $http2 = nginx_version() >= 1_025_001;
my ($h2_listen, $h2_on) = $http2 ? ('ssl', 'http2 on;') : ('ssl http2', '');

my $locations = <<'EOC';
    gzip_types text/event-stream;

    location / { proxy_pass http://engines; }
    location /gzip/ { gzip on; proxy_pass http://engines; }
    location /1.1/ { proxy_http_version 1.1; proxy_pass http://engines; }
    location /1.1/gzip/ {
        gzip on;
        proxy_http_version 1.1;
        proxy_pass http://engines;
    }
    location /held/ {
        aibrix_sse off;
        proxy_http_version 1.0;
        proxy_pass http://engines;
    }
    location /stock/ {
        proxy_http_version 1.0;
        proxy_pass http://127.0.0.1:%%ENGINE%%;
    }
EOC
$locations =~ s/%%ENGINE%%/$engine_port/g;

my $nginx = NginxInstance->new(workers => 2, conf => <<"EOC")->start;
    ssl_certificate $cert;
    ssl_certificate_key $key;

    upstream engines {
        aibrix;
        server 127.0.0.1:$engine_port;
    }
    server {
        listen 127.0.0.1:%%PORT1%%;
        $locations
    }
    server {
        listen 127.0.0.1:%%PORT2%% ssl;
        $locations
    }
    server {
        listen 127.0.0.1:%%PORT3%% $h2_listen;
        $h2_on
        $locations
    }
EOC


# Each of these returns { head => its text, head_time => when it came (not
# known of HTTP/2), pieces => [[bytes, time], ...] }.
my %client = (
    'HTTP/1.1' => sub { raw_client($nginx->port(1), 0, @_) },
    'TLS' => sub { raw_client($nginx->port(2), 1, @_) },
    'HTTP/2' => sub { curl_client($nginx->port(3), @_) },
    'directly' => sub { raw_client($engine_port, 0, @_) },
);


sub raw_client
{
    my ($port, $tls, $path, $gzip) = @_;
    my $c = RawHttp->new(port => $port, tls => $tls);
    my @pieces;

    $c->request('POST', "$path/v1/completions", $prompt,
                $gzip ? ('Accept-Encoding' => 'gzip') : ());
    my $head = $c->head;

    while (my @piece = $c->next_chunk) {
        push @pieces, \@piece;
    }

    return { head => $head->{raw}, head_time => $head->{time},
             pieces => \@pieces };
}


sub curl_client
{
    my ($port, $path, $gzip) = @_;
    my $own = scratch_dir();
    my @pieces;

    open my $body, '>', "$own/body" or die "$own/body: $!";
    print $body $prompt;
    close $body;

    my @curl = ('curl', '-sNk', '--http2', '-D', "$own/head",
                '--data-binary', "\@$own/body",
                $gzip ? ('-H', 'Accept-Encoding: gzip') : (),
                "https://127.0.0.1:$port$path/v1/completions");
    open my $out, '-|', @curl or die "curl: $!";

    while (sysread $out, my $bytes, 65536) {
        push @pieces, [$bytes, time];
    }
    close $out or die "curl: exit code $?";

    open my $file, '<', "$own/head" or die "$own/head: $!";
    local $/;
    my $head = <$file>;

    return { head => $head, pieces => \@pieces };
}


# What came, with the delay of each event, and of the head.
sub look
{
    my ($client, $path, $gzip) = @_;
    my $got = $client{$client}->($path, $gzip);
    my $zlib = Compress::Raw::Zlib::Inflate->new(-WindowBits => WANT_GZIP);
    my $text = '';
    my (%reads, @delays, @numbers);

    for my $piece (@{ $got->{pieces} }) {
        my ($bytes, $time) = @$piece;

        if ($gzip) {
            $zlib->inflate($bytes, my $plain);
            $bytes = $plain;
        }

        $text .= $bytes;

        while ($text =~ s/\Adata: \{"sent":([\d.]+),"n":(\d+)\}\n\n//) {
            push @delays, $time - $1;
            push @numbers, $2;
            $reads{$time} = 1;
        }
    }

    my ($sent) = $got->{head} =~ /^x-sent: ([\d.]+)/mi;

    return { head => $got->{head}, rest => $text, numbers => "@numbers",
             delays => \@delays, reads => scalar keys %reads,
             head_delay => $got->{head_time} ? $got->{head_time} - $sent : 0 };
}


sub max { my $max = 0; $_ > $max and $max = $_ for @_; return $max }


sub flows
{
    my $seen = shift;

    return $seen->{reads} == $events && $seen->{delays}[0] < slow(0.06)
           && max(@{ $seen->{delays} }) < slow(0.095)
           && $seen->{head_delay} < slow(0.06);
}


# [client, path, gzip?]: up to five looks, until one flows.
sub attempts
{
    my ($case) = @_;
    my $seen;

    for (1 .. 5) {
        $seen = look(@$case);
        last if flows($seen);
    }

    return $seen;
}


my @cases = map { my $path = $_; map { [$_, $path, $path =~ /gzip/] }
                  'HTTP/1.1', 'TLS', 'HTTP/2' }
            '', '/gzip', '/1.1', '/1.1/gzip';

diag(sprintf 'the engine itself: first event after %.1f ms, at most %.1f ms',
     1000 * $_->{delays}[0], 1000 * max(@{ $_->{delays} }))
    for attempts(['directly', '', 0]);

while (my @some = splice @cases, 0, 3) {
    my @seen = in_parallel(scalar @some, sub { attempts($some[$_[0]]) });

    for my $case (@some) {
        my ($client, $path, $gzip) = @$case;
        my $seen = shift @seen;

        subtest "$client, location " . ($path || '/') => sub {
            like($seen->{head}, qr{^HTTP/[\d.]+ 200}, 'answered');
            like($seen->{head}, $client eq 'HTTP/2' ? qr{^HTTP/2 }
                                                    : qr{^HTTP/1\.1 },
                 'by the protocol');
            like($seen->{head}, qr/^target-pod: 127.0.0.1:$engine_port\r$/mi,
                 'by the router');
            is($seen->{head} =~ /^content-encoding: gzip\r$/mi ? 1 : 0,
               $gzip ? 1 : 0, $gzip ? 'in gzip' : 'plain');
            is($seen->{numbers}, join(' ', 1 .. $events),
               'all events, in order');
            is($seen->{rest}, "data: [DONE]\n\n", 'and the end');
            is($seen->{reads}, $events, 'each came by itself');
            cmp_ok($seen->{delays}[0], '<', slow(0.06), 'the first at once');
            cmp_ok(max(@{ $seen->{delays} }), '<', slow(0.095),
                   'and the others');
            cmp_ok($seen->{head_delay}, '<', slow(0.06), 'and the head')
                if $client ne 'HTTP/2';
        };

        diag(sprintf '%-8s %-10s %2d reads, first event after %.1f ms, at '
                     . 'most %.1f ms', $client, $path || '/', $seen->{reads},
             1000 * $seen->{delays}[0], 1000 * max(@{ $seen->{delays} }));
    }
}


# What the same nginx does when it is not told: else nothing was shown above.
for my $path ('/held', '/stock') {
    my @clients = ('HTTP/1.1', 'TLS', 'HTTP/2');
    my @seen = in_parallel(3, sub { look($clients[$_[0]], $path, 0) });

    for my $client (@clients) {
        my $seen = shift @seen;

        is($seen->{numbers}, join(' ', 1 .. $events),
           "$client, location $path: all events");
        cmp_ok($seen->{reads}, '<', $events / 2, 'held back');
        cmp_ok($seen->{delays}[0], '>', $gap * ($events - 2), 'to the end');
    }
}

is_deeply([$nginx->log_at(qw(warn error crit alert emerg))], [],
          'nothing in the log');
is($nginx->stop, 0, 'stops in order');

done_testing;
