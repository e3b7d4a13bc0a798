package Fleet;

# Simulated engines, a router before them, and what the router counts.
#
#     my $engines = engines(2, 'step_base=100ms max_tokens=12');
#     my $router = router($engines, workers => 4, upstream => 'aibrix random;');
#     my $answer = ask($router, text(1, 4000), 'routing-strategy' => 'random');
#     my $stream = hold($router, text(1, 4000));
#     wait_idle($router) or diag(busy($router));

use strict;
use warnings;

use AibrixTest;
use Exporter qw(import);
use NginxInstance;
use RawHttp qw(http);

our @EXPORT = qw(engines router servers text completion ask hold count load
                 total truth busy wait_idle wait_load last_log);


# engines($n, $parameters, %arguments of NginxInstance): one nginx with an
# engine_sim behind each of its ports 1 .. $n; their names are e1 .. en. `lines`
# are put in each server block.
sub engines
{
    my ($n, $parameters, %args) = @_;
    my $lines = delete $args{lines} || '';

    my $conf = join '', map { <<"EOC" } 1 .. $n;
server {
    listen 127.0.0.1:%%PORT$_%% backlog=1024;
    client_max_body_size 0;
    $lines
    location / {
        engine_sim name=e$_ overhead=0 prefill_token=0 decode_seq=0
                   max_num_seqs=256 max_num_batched_tokens=100000000
                   $parameters;
    }
}
EOC

    return NginxInstance->new(conf => $conf, %args)->start;
}


# `server` lines for an upstream: one an engine, with $parameters.
sub servers
{
    my ($engines, $parameters, @numbers) = @_;

    @numbers = sort { $a <=> $b } keys %{ $engines->{ports} } if !@numbers;

    return join '', map {
        'server 127.0.0.1:' . $engines->port($_) . " $parameters;\n"
    } @numbers;
}


# What stands in router()'s configuration.
sub router_conf
{
    my ($engines, %args) = @_;
    my %default = (upstream => 'aibrix;', http => '', server => '',
                   servers => servers($engines, ''));
    my %part = (%default, %args);

    return <<"EOC";
log_format decision '\$status \$aibrix_target_pod \$aibrix_selection '
                    '\$aibrix_match_percent \$upstream_addr';
$part{http}
upstream llm {
    $part{upstream}
    $part{servers}
}
server {
    listen 127.0.0.1:%%PORT1%% backlog=1024;
    client_max_body_size 0;
    access_log %%DIR%%/logs/access.log decision;
    add_header x-selection \$aibrix_selection;
    add_header x-match \$aibrix_match_percent;
    add_header x-worker \$pid;
    add_header x-upstreams \$upstream_addr;
    $part{server}
    location / {
        proxy_pass http://llm;
    }
    location = /metrics {
        access_log off;
        aibrix_metrics;
    }
}
EOC
}


# router($engines, %parts, %arguments of NginxInstance): nginx that balances
# "llm" over the engines, not started when start => 0. Parts of its
# configuration: upstream, servers, http, server (text for these blocks). Its
# answers tell x-selection, x-match (percent), x-worker and x-upstreams.
sub router
{
    my ($engines, %args) = @_;
    my %part = map { $_ => delete $args{$_} }
               grep { exists $args{$_} } qw(upstream servers http server);
    my $start = exists $args{start} ? delete $args{start} : 1;

    my $router = NginxInstance->new(conf => router_conf($engines, %part),
                                    %args);

    return $start ? $router->start : $router;
}


my @words = qw(a the of rain in Spain falls mainly on plain and some other
               words follow here until enough of them were written down);

# Text of that many bytes that no other $seed begins with.
sub text
{
    my ($seed, $bytes) = @_;
    my $state = $seed;
    my $text = "$seed: ";

    while (length $text < $bytes) {
        $state = ($state * 1103515245 + 12345) % 2147483648;
        $text .= $words[($state >> 8) % @words] . ' ';
    }

    return substr $text, 0, $bytes;
}


# The body of a completion request. $prompt is plain text without quotes.
sub completion
{
    my ($prompt, %fields) = @_;

    return '{"model":"m"'
           . join('', map { ",\"$_\":$fields{$_}" } sort keys %fields)
           . ",\"prompt\":\"$prompt\"}";
}


# A completion that is read to its end: RawHttp's head with the body added.
sub ask
{
    my ($router, $prompt, @headers) = @_;

    return http($router->port, 'POST', '/v1/completions', completion($prompt),
                @headers);
}


# A streamed completion of (practically) no end; the head has been read.
sub hold
{
    my ($router, $prompt, @headers) = @_;
    my $c = RawHttp->new(port => $router->port, timeout => 10);

    $c->request('POST', '/v1/completions',
                completion($prompt, stream => 'true', max_tokens => 1_000_000),
                @headers);
    $c->head;
    return $c;
}


# count($nginx, $metric, label => value...): the sum of the samples that have
# these labels; undef when there is none.
sub count
{
    my ($nginx, $metric, %labels) = @_;
    my $text = http($nginx->port, 'GET', '/metrics')->{body};
    my $sum;

    SAMPLE: while ($text =~ /^\Q$metric\E(?:\{(.*)\})? (\S+)$/mg) {
        my ($labels, $value) = (",$1,", $2);

        for my $name (keys %labels) {
            next SAMPLE if index($labels, ",$name=\"$labels{$name}\",") < 0;
        }

        $sum += $value;
    }

    return $sum;
}


# By pod, what the router believes: load($router) is the requests in flight,
# load($router, 'queued') the prompt bytes. Pods at 0 are left out.
sub load
{
    my ($router, $what) = @_;
    my $metric = $what ? 'aibrix_queued_prompt_bytes'
                 : 'aibrix_inflight_requests';
    my $text = http($router->port, 'GET', '/metrics')->{body};
    my %load;

    die "no $metric in:\n$text" if $text !~ /^# TYPE $metric gauge$/m;

    while ($text =~ /^$metric\{.*pod="([^"]*)".*\} (\S+)$/mg) {
        $load{$1} += $2 if $2 != 0;
    }

    return \%load;
}


sub total
{
    my $load = shift;
    my $sum = 0;

    $sum += $_ for values %$load;
    return $sum;
}


# By pod, what the engines themselves are doing.
sub truth
{
    my $engines = shift;
    my %truth;

    for my $port (map { $engines->port($_) } keys %{ $engines->{ports} }) {
        my $text = http($port, 'GET', '/metrics')->{body};

        for my $what (qw(running waiting)) {
            $text =~ /^vllm:num_requests_$what\S* (\S+)/m
                or die "no vllm:num_requests_$what in:\n$text";
            $truth{"127.0.0.1:$port"} += $1 if $1 != 0;
        }
    }

    return \%truth;
}


# One line that says what is not 0.
sub busy
{
    my $router = shift;
    my ($inflight, $queued) = (load($router), load($router, 'queued'));

    return join ', ', (map { "$_: $inflight->{$_} requests" }
                       sort keys %$inflight),
                      (map { "$_: $queued->{$_} bytes" } sort keys %$queued);
}


# Waits until nothing is in flight and nothing is queued.
sub wait_idle
{
    my ($router, $limit) = @_;

    return wait_for(sub { busy($router) eq '' }, $limit);
}


# Waits until that many requests are in flight in all.
sub wait_load
{
    my ($router, $n, $limit) = @_;

    return wait_for(sub { total(load($router)) == $n }, $limit);
}


# The last line of the router's access log: status, pod, selection, percent
# and all addresses tried.
sub last_log
{
    my $router = shift;

    open my $file, '<', $router->dir . '/logs/access.log' or die $!;
    my @lines = <$file>;
    return $lines[-1];
}


1;
