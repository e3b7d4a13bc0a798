#!/usr/bin/perl
#
# stream_cost.pl [ROUNDS]: what routing, counting and the scanner of responses
# cost, as CPU time of one nginx worker that has both ways in it: an upstream
# with `aibrix;` and a plain one, A B A B ... in one run. Called by
# `make bench-stream` in a network namespace.
#
#   events   a stream of 100,000 events, each written by itself
#   bulk     the same as fast as it comes, many in a buffer
#   requests 4,000 completions of a 4 kB prompt, one by one
#
# Says the median of each way, their ratio, and the difference per piece; and
# that both ways gave the same bytes.

use strict;
use warnings;

use FindBin qw($Bin);
use lib "$Bin/../t/lib";

BEGIN { $ENV{AIBRIX_BUILD} = $ENV{BUILD} if $ENV{BUILD} }

use AibrixTest;
use Digest::SHA qw(sha256_hex);
use IO::Socket::INET;
use NginxInstance;
use POSIX ();
use RawHttp;
use Socket qw(IPPROTO_TCP TCP_NODELAY);

my $rounds = shift || 5;
my $events = 100_000;
my $requests = 4_000;

my $event = 'data: {"id":"cmpl-7","object":"chat.completion.chunk",'
    . '"created":1700000000,"model":"llama-3.1-8b-instruct","choices":[{'
    . '"index":0,"delta":{"content":" token"},"logprobs":null,'
    . '"finish_reason":null}]}' . "\n\n";
my $usage = 'data: {"choices":[],"usage":{"prompt_tokens":900,'
    . '"completion_tokens":100000}}' . "\n\ndata: [DONE]\n\n";
my $body = '{"model":"llama-3.1-8b-instruct","prompt":"' . 'x' x 4096 . '"}';


# Writes the stream an event at a time, with room for the reader between.
sub engine
{
    my $listen = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 99)
        or die $!;
    my $pid = fork;
    die $! if !defined $pid;

    return ($pid, $listen->sockport) if $pid;

    while (my $c = $listen->accept) {
        setsockopt $c, IPPROTO_TCP, TCP_NODELAY, 1;
        sysread $c, my $request, 65536;
        syswrite $c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                     . "Connection: close\r\n\r\n";

        for (1 .. $events) {
            syswrite $c, $event;
            select undef, undef, undef, 0.00002;
        }

        syswrite $c, $usage;
        close $c;
    }

    POSIX::_exit(0);
}


my ($engine, $port) = engine();
my $dir = scratch_dir();

open my $file, '>', "$dir/bulk" or die $!;
print $file $event x $events, $usage;
close $file or die $!;

my $nginx = NginxInstance->new(log_level => 'error', conf => <<"EOC")->start;
aibrix_zone bench 64m;
upstream module { server 127.0.0.1:$port; aibrix prefix-cache; }
upstream stock { server 127.0.0.1:$port; }
upstream module_own { server 127.0.0.1:%%PORT2%%; aibrix prefix-cache; keepalive 4; }
upstream stock_own { server 127.0.0.1:%%PORT2%%; keepalive 4; }
server {
    listen 127.0.0.1:%%PORT1%%;
    keepalive_requests 1000000;
    proxy_buffering off;
    proxy_http_version 1.1;
    proxy_set_header Connection "";
    location /module/events { proxy_pass http://module; }
    location /stock/events { proxy_pass http://stock; }
    location /module/ { proxy_pass http://module_own/; }
    location /stock/ { proxy_pass http://stock_own/; }
}
EOC

my $own = NginxInstance->new(log_level => 'error', modules => [],
                             conf => <<"EOC");
server {
    listen 127.0.0.1:%%PORT1%%;
    keepalive_requests 1000000;
    location /bulk { alias $dir/bulk; default_type text/event-stream; }
    location / {
        default_type application/json;
        return 200 '{"choices":[{"text":"hi"}],"usage":{"prompt_tokens":900,"completion_tokens":2}}';
    }
}
EOC
$own->{ports}{1} = $nginx->port(2);
$own->write_conf->start;


# CPU time of the worker so far, seconds.
sub cpu
{
    my ($worker) = $nginx->worker_pids;

    open my $stat, '<', "/proc/$worker/schedstat" or die $!;
    return (split ' ', <$stat>)[0] / 1e9;
}


sub stream
{
    my $path = shift;
    my $url = $nginx->url . $path;

    return `curl -sSN $url | sha256sum`;
}

sub ask
{
    my $path = shift;
    my $c = RawHttp->new(port => $nginx->port);
    my $said = '';

    for (1 .. $requests) {
        $c->request('POST', "$path/v1/completions", $body);
        $said = $c->body;
    }

    return $said;
}


sub median
{
    my @sorted = sort { $a <=> $b } @_;
    return $sorted[$#sorted / 2];
}


sub compare
{
    my ($name, $n, $piece, $run) = @_;
    my (%took, %said);

    for my $round (0 .. $rounds) {
        for my $way ($round % 2 ? qw(module stock) : qw(stock module)) {
            my $start = cpu();
            my $said = $run->("/$way");
            my $spent = cpu() - $start;

            $said{$said} = 1;
            push @{ $took{$way} }, $spent if $round;    # the first warms up
        }
    }

    my ($module, $stock) = map { median(@{ $took{$_} }) } qw(module stock);

    printf "%-9s stock %6.0f ms, module %6.0f ms: ratio %.2f, %+.2f us a %s; "
           . "%s\n", $name, $stock * 1e3, $module * 1e3, $module / $stock,
           ($module - $stock) / $n * 1e6, $piece,
           keys %said == 1 ? 'same bytes' : 'DIFFERENT BYTES';
}


printf "CPU time of the nginx worker, median of %d rounds\n", $rounds;
compare('events', $events, 'event', sub { stream("$_[0]/events") });
compare('bulk', $events, 'event', sub { stream("$_[0]/bulk") });
compare('requests', $requests, 'request', \&ask);

$nginx->stop;
$own->stop;
kill 'KILL', $engine;
