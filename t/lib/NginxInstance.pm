package NginxInstance;

# A real nginx (master and workers) beside what Test::Nginx can do: several
# workers, reloads, signals, killed workers.
#
#     my $nginx = NginxInstance->new(
#         workers => 4,                   # 1
#         conf => 'server { listen 127.0.0.1:%%PORT1%%; ... }',
#         main => '', events => '',       # lines for these blocks
#         user => 'root',                 # of the workers
#         log_level => 'info',
#         modules => [modules()],         # what it loads
#     );
#     $nginx->start;
#     $nginx->port(1);
#
# %%PORTn%% are free ports, the same for one n as long as the object lives;
# %%DIR%% is the instance's folder. It is killed when the object goes.

use strict;
use warnings;

use AibrixTest;
use IO::Socket::INET;
use POSIX qw(:sys_wait_h);


sub new
{
    my ($class, %args) = @_;

    my $self = bless {
        workers => 1, conf => '', main => '', events => '', user => 'root',
        log_level => 'info', modules => [modules()], ports => {},
        retired => {}, dir => scratch_dir(), owner => $$, %args,
    }, $class;

    mkdir "$self->{dir}/logs";
    mkdir "$self->{dir}/temp";
    chmod 0777, "$self->{dir}/temp";
    $self->write_conf;
    return $self;
}


sub dir { $_[0]{dir} }

sub master_pid { $_[0]{pid} }

sub conf_file { "$_[0]{dir}/nginx.conf" }

sub log_file { "$_[0]{dir}/logs/error.log" }

sub url { 'http://127.0.0.1:' . $_[0]->port($_[1] || 1) }

# The port that stands for %%PORTn%%.
sub port { $_[0]{ports}{ $_[1] || 1 } ||= free_port() }


# Writes nginx.conf anew, with changed arguments of `new` if any are given; a
# running nginx sees them at `reload`.
sub write_conf
{
    my ($self, %args) = @_;

    @$self{ keys %args } = values %args;

    my $temp = join '', map { "    ${_}_temp_path $self->{dir}/temp/$_;\n" }
               qw(client_body proxy fastcgi uwsgi scgi);
    my $text = join('', map { "load_module $_;\n" } @{ $self->{modules} })
        . ($> == 0 ? "user $self->{user};\n" : '') . <<"EOF";
daemon off;
worker_processes $self->{workers};
worker_shutdown_timeout 60s;
pid $self->{dir}/nginx.pid;
error_log $self->{dir}/logs/error.log $self->{log_level};
$self->{main}
events {
    worker_connections 1024;
    $self->{events}
}
http {
$temp    access_log off;
$self->{conf}
}
EOF

    $text =~ s/%%PORT(\d+)%%/$self->port($1)/ge;
    $text =~ s/%%DIR%%/$self->{dir}/g;

    open my $file, '>', $self->conf_file or die $self->conf_file . ": $!";
    print $file $text;
    close $file or die $self->conf_file . ": $!";
    return $self;
}


sub _command
{
    my ($self, @more) = @_;

    return (nginx_binary(), '-e', $self->log_file, '-p', $self->{dir},
            '-c', $self->conf_file, @more);
}


# nginx -t: (true or false, what it said).
sub test_conf
{
    my $self = shift;
    my $said = "$self->{dir}/logs/test.log";

    my $pid = $self->_spawn([$self->_command('-t', '-e', 'stderr')], $said);
    waitpid $pid, 0;
    return ($? == 0, _slurp($said));
}


# Starts it; returns when every worker is there and each port of the conf
# that is listened on accepts. Dies with the log when it does not come up.
sub start
{
    my $self = shift;
    my @valgrind = $ENV{AIBRIX_VALGRIND}
                   ? ('valgrind', '-q', split ' ', $ENV{AIBRIX_VALGRIND}) : ();

    $self->{retired} = {};
    $self->{pid} = $self->_spawn([@valgrind, $self->_command],
                                 "$self->{dir}/logs/stderr.log");

    my $up = wait_for(sub {
        die $self->_trouble('ended at once')
            if waitpid($self->{pid}, WNOHANG) != 0;
        return $self->worker_pids == $self->{workers} && $self->_accepts;
    }, 10);

    die $self->_trouble('did not start') if !$up;
    return $self;
}


sub _spawn
{
    my ($self, $command, $output) = @_;

    my $pid = fork;
    die "fork: $!" if !defined $pid;

    if ($pid == 0) {
        open STDIN, '<', '/dev/null';
        open STDOUT, '>', $output;
        open STDERR, '>&', \*STDOUT;
        exec { $command->[0] } @$command or POSIX::_exit(127);
    }

    return $pid;
}


sub _trouble
{
    my ($self, $what) = @_;

    return "nginx $what:\n" . _slurp("$self->{dir}/logs/stderr.log")
           . $self->log;
}


sub _accepts
{
    my $self = shift;
    my $conf = _slurp($self->conf_file);

    for my $port (values %{ $self->{ports} }) {
        next if $conf !~ /\blisten\s+(?:127\.0\.0\.1:)?$port\b/;
        return 0 if !IO::Socket::INET->new(PeerAddr => '127.0.0.1',
                                           PeerPort => $port);
    }

    return 1;
}


# Pids of the workers which take requests, in ascending order: of those since
# the last reload only, and no cache manager or loader.
sub worker_pids
{
    my $self = shift;

    return grep { !$self->{retired}{$_} } $self->all_worker_pids;
}


# As worker_pids, with those which still finish their last requests.
sub all_worker_pids
{
    my $self = shift;

    my @pids = sort { $a <=> $b }
               grep { _slurp("/proc/$_/cmdline") !~ /cache (?:manager|loader)/ }
               grep { !_is_zombie($_) }
               split ' ', _slurp("/proc/$self->{pid}/task/$self->{pid}/children");

    return @pids;
}


sub _is_zombie { _slurp("/proc/$_[0]/stat") =~ /\) (?:Z|X)|^$/ }


# HUP; returns when all workers are new ones and the old ones have stopped
# listening (they say so at log_level notice). With `wait => 1` also waits
# until the old ones have gone. Dies when the configuration was refused; use
# `signal` where that is what is tested.
sub reload
{
    my ($self, %args) = @_;
    my @old = $self->worker_pids;
    my $before = length $self->log;

    $self->signal('HUP');

    wait_for(sub {
        my $new = substr $self->log, $before;

        die $self->_trouble('refused the reload') if $new =~ /\[emerg\]/;
        return !grep { $new !~ / $_#\d+: gracefully shutting down/ } @old;
    }, 10) or die $self->_trouble('did not reload');

    @{ $self->{retired} }{@old} = (1) x @old;

    wait_for(sub {
        return $self->worker_pids == $self->{workers} && $self->_accepts;
    }, 10) or die $self->_trouble('did not start its new workers');

    die $self->_trouble('keeps its old workers')
        if $args{wait} && !$self->wait_old_gone;

    return $self;
}


# True when the workers of earlier configurations have ended.
sub wait_old_gone
{
    my ($self, $limit) = @_;

    return wait_for(sub { $self->all_worker_pids == $self->worker_pids },
                    $limit || 10);
}


# signal('HUP'), signal('KILL', $pid): to the master if no pid is given.
sub signal
{
    my ($self, $name, $pid) = @_;

    kill $name, $pid || $self->{pid} or die "kill -$name: $!";
    return $self;
}


# Kills a worker (the first one if none is given) with SIGKILL and waits for
# the master to have made another; returns the new worker's pid.
sub kill_worker
{
    my ($self, $pid) = @_;
    my %old = map { $_ => 1 } $self->all_worker_pids;

    $pid ||= ($self->worker_pids)[0];
    $self->signal('KILL', $pid);

    my $new;
    wait_for(sub {
        ($new) = grep { !$old{$_} } $self->worker_pids;
        return $new && $self->worker_pids == $self->{workers};
    }, 10) or die $self->_trouble("did not replace worker $pid");

    return $new;
}


# Stops it (QUIT unless another signal is given) and waits; returns its exit
# code, or dies when it has not gone in time.
sub stop
{
    my ($self, $name) = @_;
    my $status;

    return if !$self->{pid};
    $self->signal($name || 'QUIT');

    wait_for(sub {
        return 0 if waitpid($self->{pid}, WNOHANG) != $self->{pid};
        $status = $?;
        return 1;
    }, 15) or die $self->_trouble('does not stop');

    delete $self->{pid};
    return $status & 127 ? 128 + ($status & 127) : $status >> 8;
}


# The error log so far.
sub log { _slurp($_[0]->log_file) }


# Waits for a line of the error log that matches; returns it or undef.
sub wait_log
{
    my ($self, $regex, $limit) = @_;

    return wait_for(sub {
        my ($line) = grep { /$regex/ } split /\n/, $self->log;
        return $line;
    }, $limit);
}


# Lines of the log at one of these levels (crit, alert and emerg if none is
# given): a test ends with is_deeply([$nginx->log_at], []).
sub log_at
{
    my ($self, @levels) = @_;
    my $levels = join '|', @levels ? @levels : qw(crit alert emerg);

    return grep { /\[(?:$levels)\]/ } split /\n/, $self->log;
}


sub _slurp
{
    open my $file, '<', $_[0] or return '';
    local $/;
    my $text = <$file>;
    return defined $text ? $text : '';
}


sub DESTROY
{
    my $self = shift;

    return if $$ != $self->{owner} || !$self->{pid};
    local ($?, $@);
    eval { $self->stop('TERM'); 1 } or kill 'KILL', $self->{pid};
}


1;
