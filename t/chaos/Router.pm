package Router;

# nginx as a daemon, which a binary upgrade needs, before the replicas: with
# the module ("ours") or with least_conn ("control"), else alike. The zone is
# so small that the index evicts.

use strict;
use warnings;

use AibrixTest;
use RawHttp;
use Time::HiRes qw(sleep time);


sub new
{
    my ($class, %args) = @_;
    my $self = bless { gen => 0, port => free_port(), from => 0, %args },
               $class;

    mkdir "$self->{dir}/$_" for qw(logs temp);
    return $self;
}


sub port { $_[0]{port} }

sub ours { $_[0]{side} eq 'ours' }

sub name_of { "127.0.0.$_[1]:$_[0]{ports}[$_[2]]" }


# What each generation may send to, { replica => 1 }, is kept in {may}.
sub write_conf
{
    my ($self, $conf) = @_;
    my $gen = ++$self->{gen};
    my ($ours, $dir) = ($self->ours, $self->{dir});
    my $balancer = $ours ? 'aibrix;' : 'least_conn;';
    my $zone = $ours ? "aibrix_zone chaos $conf->{zone}k;" : '';
    my $shared = $self->{shared} ? 'zone llm 256k;' : '';
    my $places = $ours ? <<'EOC' : '';
location = /metrics { aibrix_metrics; }
location = /status { aibrix_status control=on; }
EOC
    my $early = $ours ? 'aibrix_read_body on;' : '';
    my $servers = join '', map {
        'server ' . $self->name_of($_->{name}, $_->{i})
        . " max_fails=2 fail_timeout=1s @{[ $_->{down} ? 'down' : '' ]};\n"
    } @{ $conf->{servers} };

    $self->{conf} = $conf;
    $self->{may}{$gen} = { map { $_->{i} => 1 } grep { !$_->{down} }
                           @{ $conf->{servers} } };

    open my $file, '>', "$dir/nginx.conf" or die $!;
    print $file join('', map { "load_module $_;\n" } $ours ? modules() : ()),
        <<"EOC";
daemon on;
user root;
worker_processes 4;
worker_rlimit_core 0;
worker_shutdown_timeout 15s;
pid $dir/nginx.pid;
error_log $dir/logs/error.log notice;
events { worker_connections 1024; }
http {
access_log $dir/logs/access.log;
client_body_temp_path $dir/temp/body;
proxy_temp_path $dir/temp/proxy;
fastcgi_temp_path $dir/temp/fastcgi;
uwsgi_temp_path $dir/temp/uwsgi;
scgi_temp_path $dir/temp/scgi;
$zone
upstream llm { $shared $balancer keepalive 16; $servers }
proxy_http_version 1.1;
proxy_set_header Connection "";
proxy_set_header X-Gen $gen;
add_header X-Worker \$pid;
proxy_read_timeout 2s;
proxy_connect_timeout 2s;
proxy_next_upstream error http_503 non_idempotent;
server {
    listen 127.0.0.1:$self->{port} backlog=1024;
    client_max_body_size 0;
    proxy_buffering off;
    location = /gen { access_log off; return 200 "$gen\n"; }
    location / { proxy_pass http://llm; }
    location /held/ { proxy_read_timeout 60s; proxy_pass http://llm/; }
    location /early/ { $early proxy_pass http://llm/; }
    location /unbuffered/ {
        proxy_request_buffering off;
        proxy_pass http://llm/;
    }
    $places
}
}
EOC
    close $file or die $!;
}


sub _slurp
{
    open my $file, '<', $_[0] or return '';
    local $/;
    my $text = <$file>;
    return defined $text ? $text : '';
}


sub log { _slurp("$_[0]{dir}/logs/error.log") }

sub master { 0 + (_slurp("$_[0]{dir}/nginx.pid") || 0) }

sub _gone { _slurp("/proc/$_[0]/stat") =~ /\) (?:Z|X)|^$/ }


# Pids of the workers of a master, also of those which shut down.
sub workers
{
    my ($self, $master) = @_;

    $master ||= $self->master;
    return grep { !_gone($_)
                  && _slurp("/proc/$_/cmdline") =~ /worker process/ }
           split ' ', _slurp("/proc/$master/task/$master/children");
}


# Those which take requests.
sub serving
{
    my $self = shift;

    return grep { _slurp("/proc/$_/cmdline") !~ /shutting down/ }
           $self->workers;
}


sub _command
{
    my $self = shift;

    return (nginx_binary(), '-e', "$self->{dir}/logs/error.log",
            '-p', $self->{dir}, '-c', "$self->{dir}/nginx.conf");
}


sub start
{
    my ($self, $conf) = @_;

    $self->write_conf($conf);
    system($self->_command) == 0 or die "nginx does not start:\n" . $self->log;
    $self->settle;
}


sub get
{
    my ($self, $target, $method) = @_;

    return eval {
        my $c = RawHttp->new(port => $self->{port}, timeout => 3);

        $c->request($method || 'GET', $target, $method ? '' : undef,
                    Connection => 'close');
        $c->head->{status} == 200 ? $c->body : undef;
    };
}


# Until four workers serve, all of them by the last configuration.
sub settle
{
    my $self = shift;
    my $seen = 0;

    wait_for(sub {
        $seen = $self->serving == 4
                && ($self->get('/gen') || 0) == $self->{gen} ? $seen + 1 : 0;
        return $seen >= 4;
    }, 15) or die "nginx does not come to rest:\n"
                  . substr $self->log, -3000;
}


sub reload
{
    my ($self, $conf, $victim) = @_;
    my @old = $self->serving;

    $self->write_conf($conf);
    kill 'HUP', $self->master;
    $self->kill_one('KILL', $victim) if defined $victim;

    wait_for(sub {
        my %serving = map { $_ => 1 } $self->serving;
        return !grep { $serving{$_} } @old;
    }, 15) or die "nginx does not reload:\n" . substr $self->log, -3000;
    $self->settle;
}


sub kill_one
{
    my ($self, $signal, $victim) = @_;
    my @workers = $self->workers or return;

    kill $signal, $workers[$victim % @workers];
}


sub upgrade
{
    my $self = shift;
    my $old = $self->master;

    kill 'USR2', $old;
    wait_for(sub { $self->master && $self->master != $old }, 15)
        or die 'no new master';
    wait_for(sub { $self->serving == 4 }, 15) or die 'no new workers';
    kill 'WINCH', $old;
    wait_for(sub { !$self->workers($old) }, 20)
        or die 'old workers do not end';
    kill 'QUIT', $old;
    wait_for(sub { _gone($old) }, 15) or die 'the old master does not end';
    $self->settle;
}


# KiB of anonymous memory: of the master, and the most of a worker.
sub memory
{
    my $self = shift;
    my ($master, @workers) = map {
        _slurp("/proc/$_/status") =~ /^RssAnon:\s+(\d+)/m ? $1 : 0
    } $self->master, $self->serving;

    return [$master, (sort { $b <=> $a } @workers)[0]];
}


# Lines of the log at alert or emerg, without what a killed worker says.
sub alarms
{
    my $self = shift;

    return grep { !/worker process \d+ exited on signal (?:9|11)\b/ }
           grep { /\[(?:alert|emerg)\]/ } split /\n/, $self->log;
}


sub stop
{
    my $self = shift;
    my $master = $self->master or return;

    kill 'QUIT', $master;
    wait_for(sub { _gone($master) }, 15) or kill 'KILL', $master;
}


1;
