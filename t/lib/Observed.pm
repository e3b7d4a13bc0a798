package Observed;

# The demo's nginxes under traffic, with a real Prometheus that scrapes them by
# conf/prometheus.yml. For t/observe/ and scripts/screenshots.pl.
#
#     my $demo = Observed->new;
#     $demo->traffic(clients => 6, seconds => 20);   # in the background
#     $demo->query('up');            # samples of an instant query
#     $demo->range($expr, $seconds); # of a range query
#     $demo->panels;                 # of the dashboard: title, targets, ...

use strict;
use warnings;

use AibrixTest;
use JSON::PP qw(decode_json);
use POSIX ();
use RawHttp qw(http);
use Time::HiRes qw(sleep time);


sub slurp
{
    open my $file, '<', $_[0] or die "$_[0]: $!";
    local $/;
    return <$file>;
}


sub _write
{
    my ($path, $text) = @_;

    open my $file, '>', $path or die "$path: $!";
    print $file $text;
    close $file or die "$path: $!";
}


sub new
{
    my ($class, %args) = @_;
    my $self = bless { dir => scratch_dir(), owner => $$, pids => [], %args },
               $class;

    $self->{ports} = { map { $_ => free_port() } qw(ROUTER A B PROMETHEUS) };
    $self->_nginx($_) for qw(engines router);

    wait_for(sub { eval { http($self->port('ROUTER'), 'GET', '/v1/models') }
                   && 1 }, 10) or die 'the demo does not start';
    $self->_prometheus;
    return $self;
}


sub port { $_[0]{ports}{ $_[1] } }

sub url { 'http://127.0.0.1:' . $_[0]->port('ROUTER') }


sub _spawn
{
    my ($self, $log, @command) = @_;

    my $pid = fork;
    die "fork: $!" if !defined $pid;

    if ($pid == 0) {
        open STDIN, '<', '/dev/null';
        open STDOUT, '>', $log;
        open STDERR, '>&', \*STDOUT;
        exec @command or POSIX::_exit(127);
    }

    push @{ $self->{pids} }, $pid;
}


sub _nginx
{
    my ($self, $name) = @_;
    my $dir = "$self->{dir}/$name";
    my $text = slurp(repo() . "/conf/demo/$name.conf");
    my ($build) = (modules())[0] =~ m{(.*)/};

    $text =~ s/\@BUILD\@/$build/g;
    $text =~ s/\@(\w+)\@/$self->{ports}{$1}/g;
    $text = join '', grep { !/^load_module/ } split /^/, $text
        if !modules();

    mkdir $dir;
    chmod 0755, $dir;
    _write("$dir/nginx.conf", $text);
    $self->_spawn("$dir/output", nginx_binary(), '-p', $dir, '-e',
                  'error.log', '-c', "$dir/nginx.conf", '-g', 'daemon off;');
}


sub _prometheus
{
    my $self = shift;
    my ($dir, $conf) = ("$self->{dir}/prometheus", repo() . '/conf');
    my $text = slurp("$conf/prometheus.yml");
    my %port = (8080 => 'ROUTER', 8001 => 'A', 8002 => 'B');

    $text =~ s/127\.0\.0\.1:(\d+)/"127.0.0.1:" . $self->port($port{$1})/ge;
    $text =~ s/_interval: \d+s/_interval: 1s/g;

    mkdir $dir;
    _write("$dir/prometheus.yml", $text);
    _write("$dir/alerts.yml", slurp("$conf/alerts.yml"));
    $self->_spawn("$dir/output", 'prometheus',
                  "--config.file=$dir/prometheus.yml",
                  "--storage.tsdb.path=$dir/data",
                  '--web.listen-address=127.0.0.1:'
                  . $self->port('PROMETHEUS'));

    wait_for(sub { (eval { http($self->port('PROMETHEUS'), 'GET', '/-/ready') }
                    || { status => 0 })->{status} == 200 }, 30)
        or die "prometheus does not start:\n" . slurp("$dir/output");
}


my $head = 'You are the support desk of a train company. ';

# Clients that ask one thing after another, about as many documents; a share
# `short` of the prompts has less than a block.
sub traffic
{
    my ($self, %args) = (shift, clients => 4, seconds => 10, documents => 6,
                         strategies => ['prefix-cache'], short => 0, @_);
    my $end = time + $args{seconds};

    for my $client (1 .. $args{clients}) {
        my $pid = fork;
        die "fork: $!" if !defined $pid;

        if ($pid == 0) {
            srand $client;
            while (time < $end) {
                eval { $self->_ask(%args); 1 } || warn $@;
                sleep rand 0.3;
            }
            POSIX::_exit(0);
        }

        push @{ $self->{pids} }, $pid;
    }
}


sub _ask
{
    my ($self, %args) = @_;
    my $document = int rand $args{documents};
    my $tokens = 5 + int rand 20;
    my $text = rand() < $args{short} ? '' : "$document: $head" x 60;
    my $strategy = $args{strategies}[rand @{ $args{strategies} }];
    my $body = '{"model":"demo","stream":true,"max_tokens":' . $tokens
        . ',"stream_options":{"include_usage":true},"messages":['
        . '{"role":"system","content":"' . $text . '"},'
        . '{"role":"user","content":"' . rand . '"}]}';

    return http($self->port('ROUTER'), 'POST', '/v1/chat/completions', $body,
                'routing-strategy' => $strategy);
}


sub _api
{
    my ($self, $path, %args) = @_;
    my $query = join '&', map { "$_=" . ($args{$_}
                                =~ s/([^A-Za-z0-9])/sprintf '%%%02X', ord $1/ger)
                              } sort keys %args;
    my $answer = http($self->port('PROMETHEUS'), 'GET',
                      "/api/v1/$path" . ($query ? "?$query" : ''));
    my $got = decode_json($answer->{body});

    die "$path $args{query}: $got->{error}" if $got->{status} ne 'success';
    return $got->{data};
}

sub query { $_[0]->_api('query', query => _filled($_[1]))->{result} }

sub rules { map { @{ $_->{rules} } } @{ $_[0]->_api('rules')->{groups} } }

sub targets { @{ $_[0]->_api('targets')->{activeTargets} } }

sub range
{
    my ($self, $expr, $seconds) = @_;
    my $now = time;

    return $self->_api('query_range', query => _filled($expr), step => 1,
                       start => $now - $seconds, end => $now)->{result};
}


# An expression of the dashboard as Grafana would send it.
sub _filled
{
    my $expr = shift;

    $expr =~ s/\$__rate_interval\b/10s/g;
    $expr =~ s/\$(?:upstream|model)\b/.*/g;
    return $expr;
}


sub panels
{
    my $json = slurp(repo() . '/conf/grafana/aibrix-router.json');

    return @{ decode_json($json)->{panels} };
}


sub DESTROY
{
    my $self = shift;
    local ($?, $!);

    return if $self->{owner} != $$;
    # the clients first, which came last

    for my $pid (reverse @{ $self->{pids} }) {
        kill 'TERM', $pid;
        waitpid $pid, 0;
    }
}


1;
