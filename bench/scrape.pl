#!/usr/bin/perl
#
# scrape.pl [PEERS]: how long aibrix_metrics and aibrix_status take with 1,000
# servers that have all answered streams, and how long a worker is busy with
# it. Called in a network namespace: scripts/ns.sh bench/scrape.pl

use strict;
use warnings;

use FindBin qw($Bin);
use lib "$Bin/../t/lib";

BEGIN { $ENV{AIBRIX_BUILD} = $ENV{BUILD} if $ENV{BUILD} }

use AibrixTest;
use NginxInstance;
use RawHttp;
use Time::HiRes qw(time);

my $peers = shift || 1000;

my $servers = join '', map {
    sprintf "server 127.1.%d.%d:%%%%PORT2%%%%;\n", $_ / 250, $_ % 250 + 1
} 0 .. $peers - 1;

my $word = 'data: {"choices":[{"text":"a"}]}\n\n';
my $nginx = NginxInstance->new(log_level => 'error', conf => <<"EOC");
upstream llm { zone llm 8m; aibrix random; $servers }
server {
    listen %%PORT2%% backlog=1024;
    default_type text/event-stream;
    location / { return 200 '$word${word}data: [DONE]\\n\\n'; }
}
server {
    listen 127.0.0.1:%%PORT1%%;
    keepalive_requests 1000000;
    location / { proxy_pass http://llm; }
    location /metrics { aibrix_metrics; }
    location /status { aibrix_status; }
}
EOC
$nginx->start;

my $c = RawHttp->new(port => $nginx->port, timeout => 30);

sub ask
{
    $c->request(@_);
    $c->head;
    return $c->body;
}

ask('POST', '/v1/completions', '{"model":"m","prompt":"' . 'x' x 600 . '"}')
    for 1 .. 9 * $peers;


sub cpu
{
    open my $stat, '<', '/proc/' . ($nginx->worker_pids)[0] . '/schedstat'
        or die $!;
    return (split ' ', <$stat>)[0] / 1e6;
}

for my $path ('/metrics', '/status') {
    my ($start, $size, @took) = (cpu());

    for (1 .. 21) {
        my $at = time;
        $size = length ask('GET', $path);
        push @took, (time - $at) * 1e3;
    }

    my $cpu = (cpu() - $start) / 21;
    @took = sort { $a <=> $b } @took;
    printf "%-8s of %d peers: %d bytes, %.1f ms (median; least %.1f), "
           . "of them %.1f ms CPU of the worker\n",
           $path, $peers, $size, $took[10], $took[0], $cpu;
}

$nginx->stop;
