package Replicas;

# Eight replicas in one process that fail by a schedule.
#
#     my $replicas = Replicas->new(dir => $dir, faults => $schedule->{faults});
#     $replicas->start;
#     $replicas->order('calm 1');     # no faults from here on
#     $replicas->truth;               # [requests of replica 0, of 1, ...]
#     $replicas->stop;
#
# Each request that reaches one leaves a line in arrivals.log: time, replica,
# x-gen and x-id of the request.

use strict;
use warnings;

use AibrixTest;
use IO::Select;
use IO::Socket::INET;
use Schedule ();
use Socket qw(SOL_SOCKET SO_LINGER IPPROTO_TCP TCP_NODELAY);
use Time::HiRes qw(time);


sub new
{
    my ($class, %args) = @_;
    my $n = $Schedule::replicas;

    return bless { %args, ports => [map { free_port() } 1 .. $n],
                   control => free_port(), conns => {}, next => [],
                   fault => [('') x $n], until => [(0) x $n] }, $class;
}


sub ports { @{ $_[0]{ports} } }


sub start
{
    my $self = shift;

    $self->{pid} = fork;
    die "fork: $!" if !defined $self->{pid};

    if ($self->{pid} == 0) {
        eval { $self->_run; 1 } or warn "replicas: $@";
        POSIX::_exit(1);
    }

    wait_for(sub { eval { $self->order('calm 0') } })
        or die 'the replicas do not start';
    return $self;
}


sub stop
{
    my $self = shift;

    kill 'KILL', $self->{pid};
    waitpid $self->{pid}, 0;
}


# One line to the replicas, one line back.
sub order
{
    my ($self, $line) = @_;
    my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1',
                                       PeerPort => $self->{control})
        or die "the replicas are gone: $!";

    print $socket "$line\n";
    my $answer = <$socket>;
    die "the replicas do not answer to '$line'" if !defined $answer;
    chomp $answer;
    return $answer;
}


sub truth { [split ' ', $_[0]->order('truth')] }


sub _listen
{
    my $port = shift;

    return IO::Socket::INET->new(LocalAddr => '0.0.0.0', LocalPort => $port,
                                 Listen => 1024, ReuseAddr => 1, Blocking => 0)
           || die "listen on $port: $!";
}


sub _run
{
    my $self = shift;

    local $SIG{PIPE} = 'IGNORE';
    open $self->{log}, '>', "$self->{dir}/arrivals.log" or die $!;
    $self->{log}->autoflush(1);
    $self->{read} = IO::Select->new;
    $self->{began} = time;
    $self->{orders} = _listen($self->{control});
    $self->{read}->add($self->{orders});
    $self->_open($_) for 0 .. $#{ $self->{ports} };

    while (1) {
        my ($ready) = IO::Select->select($self->{read}, undef, undef,
                                         $self->_patience);

        $self->_readable($_) for @{ $ready || [] };
        $self->_faults;
        $self->_steps;
    }
}


sub _open
{
    my ($self, $i) = @_;

    $self->{listening}[$i] = _listen($self->{ports}[$i]);
    $self->{of}{ fileno $self->{listening}[$i] } = $i;
    $self->{read}->add($self->{listening}[$i]);
}


sub _shut
{
    my ($self, $i) = @_;
    my $socket = $self->{listening}[$i] or return;

    delete $self->{of}{ fileno $socket };
    $self->{read}->remove($socket);
    close $socket;
    $self->{listening}[$i] = undef;

    $self->_drop($_, 'reset') for grep { $_->{i} == $i && !$_->{active} }
                                  values %{ $self->{conns} };
}


# Seconds to the next thing to do.
sub _patience
{
    my $self = shift;
    my $next = time + 0.05;

    for (values %{ $self->{conns} }) {
        $next = $_->{due} if defined $_->{due} && $_->{due} < $next;
    }

    my $left = $next - time;
    return $left > 0 ? $left : 0;
}


sub _faults
{
    my $self = shift;
    my $now = time - $self->{began};
    my $faults = $self->{faults};

    while (@$faults && $faults->[0][0] <= $now) {
        my ($at, $i, $fault, $for) = @{ shift @$faults };

        next if $self->{calm};
        $self->{fault}[$i] = $fault;
        $self->{until}[$i] = $at + $for;
        $self->{injected}{$fault}++;
        $self->_shut($i) if $fault eq 'refuse';
    }

    for my $i (0 .. $#{ $self->{until} }) {
        next if $self->{fault}[$i] eq ''
                || $self->{until}[$i] > $now && !$self->{calm};
        $self->{fault}[$i] = '';
        $self->_open($i) if !$self->{listening}[$i];
    }
}


sub _readable
{
    my ($self, $socket) = @_;
    my $fd = fileno $socket;

    return if !defined $fd;

    if ($socket == $self->{orders}) {
        $self->_order($socket->accept);

    } elsif (defined $self->{of}{$fd}) {
        while (my $client = $socket->accept) {
            $client->blocking(0);
            setsockopt $client, IPPROTO_TCP, TCP_NODELAY, 1;
            $self->{read}->add($client);
            $self->{conns}{ fileno $client } =
                { i => $self->{of}{$fd}, socket => $client, in => '' };
        }

    } else {
        $self->_request($self->{conns}{$fd});
    }
}


sub _order
{
    my ($self, $socket) = @_;

    return if !$socket;
    $socket->blocking(1);
    my $line = <$socket>;
    return if !defined $line;

    if ($line =~ /^calm (\d)/) {
        $self->{calm} = $1;
        $self->_faults;
        print $socket "ok\n";

    } elsif ($line =~ /^truth/) {
        my @n = (0) x @{ $self->{ports} };
        $_->{active} && $n[$_->{i}]++ for values %{ $self->{conns} };
        print $socket "@n\n";

    } else {
        my $injected = $self->{injected} || {};
        print $socket join(' ', map { "$_=$injected->{$_}" }
                           sort keys %$injected), "\n";
    }

    close $socket;
}


sub _drop
{
    my ($self, $conn, $reset) = @_;
    my $socket = $conn->{socket};

    setsockopt $socket, SOL_SOCKET, SO_LINGER, pack 'ii', 1, 0 if $reset;
    delete $self->{conns}{ fileno $socket };
    $self->{read}->remove($socket);
    close $socket;
}


# Reads; a request that is whole gets the steps of its answer.
sub _request
{
    my ($self, $conn) = @_;

    while (1) {
        my $n = sysread $conn->{socket}, $conn->{in}, 65536,
                        length $conn->{in};

        last if !defined $n && ($!{EAGAIN} || $!{EWOULDBLOCK});
        return $self->_drop($conn) if !$n;
    }

    return if $conn->{steps};

    if (!$conn->{active}) {
        return if $conn->{in} !~ s/\A(.*?\r\n)\r\n//s;
        $self->_head($conn, $1);
    }

    if ($conn->{chunked} ? $conn->{in} !~ s/\A.*\r\n0\r\n\r\n//s
        : length $conn->{in} < $conn->{length})
    {
        return;
    }

    $conn->{in} = '' if !$conn->{chunked};
    $conn->{steps} = _answer($conn, $self->{fault}[$conn->{i}]);
    $conn->{due} = @{ $conn->{steps} } ? time + $conn->{steps}[0][0] : undef;
}


sub _head
{
    my ($self, $conn, $head) = @_;
    my %h;

    $h{ lc $1 } = $2 while $head =~ /^([^:\r\n ]+):[ \t]*(.*?)\r$/mg;

    $conn->{active} = 1;
    $conn->{chunked} = ($h{'transfer-encoding'} || '') =~ /chunked/;
    $conn->{length} = $h{'content-length'} || 0;
    $conn->{id} = $h{'x-id'} || '-';
    $conn->{kind} = $h{'x-kind'} || 'stream';
    $conn->{events} = $h{'x-events'} || 5;
    $conn->{in} = "\r\n$conn->{in}" if $conn->{chunked};

    print { $self->{log} } sprintf "%.3f %d %s %s\n", time, $conn->{i},
                           $h{'x-gen'} || '-', $conn->{id};
}


sub _chunk { sprintf "%x\r\n%s\r\n", length $_[0], $_[0] }


sub _event
{
    my ($id, $k) = @_;

    return "data: {\"id\":\"$id\",\"object\":\"text_completion\",\"choices\":"
           . "[{\"index\":0,\"text\":\"w$k \"}]}\n\n";
}


# The steps of an answer, each [seconds after the last one, bytes or what to
# do]; none where nothing is said.
sub _answer
{
    my ($conn, $fault) = @_;
    my ($id, $kind, $n) = @$conn{qw(id kind events)};

    return [] if $fault eq 'silent';
    return [[0, 'RESET']] if $fault eq 'reset_early';
    return [[0, _error($fault)], [0, 'END']] if $fault =~ /^\d/;

    return _json_answer($conn, $fault) if $kind eq 'json';

    my @head = [0.01, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                      . "X-Id: $id\r\nTransfer-Encoding: chunked\r\n\r\n"];
    my @events = map { [0.004, _chunk(_event($id, $_))] } 1 .. $n;
    my $done = _chunk("data: [DONE]\n\n");

    return [@head, $events[0]] if $kind eq 'hold';
    return [@head, [0.002, 'RESET']] if $fault eq 'reset_head';
    return [@head, $events[0], [0.002, substr $events[1][1], 0, 40],
            [0.002, 'RESET']] if $fault eq 'reset_mid';
    return [@head, @events, [0.002, $done], [0.001, 'RESET']]
        if $fault eq 'reset_done';

    $events[1][0] += 1 + rand 3 if $fault eq 'stall';
    return _paced($fault, @head, @events, [0.002, "${done}0\r\n\r\n"]);
}


sub _json_answer
{
    my ($conn, $fault) = @_;
    my $answer = _json($conn);

    return [[0.02, substr $answer, 0, -5], [0.001, 'RESET']]
        if $fault =~ /^reset/;
    return _paced($fault, [$fault eq 'stall' ? 1 + rand 3 : 0.02, $answer]);
}


sub _paced
{
    my ($fault, @all) = @_;

    @all = map { [0.0005, $_] } split //, join '', map { $_->[1] } @all
        if $fault eq 'drip';
    return [@all, [0, 'END']];
}


sub _json
{
    my $conn = shift;
    my $body = "{\"id\":\"$conn->{id}\",\"choices\":[{\"text\":\"w\"}],"
               . '"usage":{"prompt_tokens":9,"completion_tokens":1}}';

    return "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
           . "X-Id: $conn->{id}\r\nContent-Length: "
           . length($body) . "\r\n\r\n$body";
}


sub _error
{
    my $status = shift;
    my $body = '{"error":{"message":"no"}}';

    return "HTTP/1.1 $status No\r\nContent-Type: application/json\r\n"
           . "Content-Length: " . length($body) . "\r\n\r\n$body";
}


sub _steps
{
    my $self = shift;
    my $now = time;

    for my $conn (values %{ $self->{conns} }) {
        while (defined $conn->{due} && $conn->{due} <= $now) {
            last if !$self->_step($conn);
        }
    }
}


# False when the connection has gone.
sub _step
{
    my ($self, $conn) = @_;
    my $bytes = (shift @{ $conn->{steps} })->[1];

    if ($bytes eq 'RESET') {
        $self->_drop($conn, 'reset');
        return 0;
    }

    if ($bytes eq 'END') {
        delete @$conn{qw(steps active due)};
        return 1;
    }

    my $n = syswrite $conn->{socket}, $bytes;

    if (!defined $n || $n < length $bytes) {
        $self->_drop($conn, 'reset');
        return 0;
    }

    $conn->{due} = @{ $conn->{steps} } ? $conn->{due} + $conn->{steps}[0][0]
                   : undef;
    return 1;
}


1;
