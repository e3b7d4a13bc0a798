package MockEngine;

# An engine that answers what a test tells it to, byte by byte and in time:
#
#     my $engine = MockEngine->new(
#         words => [sse(), "data: one\n\n", 0.3, "data: two\n\n", ''],
#         gone  => [sse(), 'data: {"choi', \'reset'],
#     );
#     $engine->port;
#
# The request header x-script names what is sent. A string is sent as a chunk
# of its own after sse() and json(), else as it is; a number is a pause in
# seconds; \'bytes' sends the next string one byte at a time; \'whole' does
# not cut what is sent into chunks; \'reset' resets the connection, \'close'
# closes it. A script that does not close ends its chunks in order, and the
# connection takes another request.

use strict;
use warnings;

use AibrixTest;
use Exporter qw(import);
use IO::Socket::INET;
use POSIX ();
use Socket qw(SOL_SOCKET SO_LINGER IPPROTO_TCP TCP_NODELAY);
use Time::HiRes qw(sleep);

our @EXPORT = qw(sse json_answer answer);


sub answer
{
    my ($status, $type, @headers) = @_;

    return join "\r\n", "HTTP/1.1 $status Said", "Content-Type: $type",
                        'Transfer-Encoding: chunked', @headers, '', '';
}

sub sse { answer(200, 'text/event-stream', @_) }

sub json_answer { answer(200, 'application/json', @_) }


sub new
{
    my ($class, %scripts) = @_;
    my $listen = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 99,
                                       ReuseAddr => 1) or die "listen: $!";
    my $self = bless { port => $listen->sockport, owner => $$ }, $class;

    $self->{pid} = fork;
    die "fork: $!" if !defined $self->{pid};

    if ($self->{pid} == 0) {
        $SIG{CHLD} = 'IGNORE';
        setpgrp;

        while (1) {
            my $c = $listen->accept or next;
            my $pid = fork;

            if (!$pid && defined $pid) {
                close $listen;
                eval { _serve($c, \%scripts) };
                POSIX::_exit(0);
            }
        }
    }

    return $self;
}


sub port { $_[0]{port} }


sub _serve
{
    my ($c, $scripts) = @_;
    my $in = '';

    $SIG{PIPE} = 'DEFAULT';
    setsockopt $c, IPPROTO_TCP, TCP_NODELAY, 1;

    while (1) {
        while ($in !~ /\r\n\r\n/) {
            sysread $c, $in, 65536, length $in or return;
        }

        my ($head) = $in =~ /\A(.*?\r\n\r\n)/s;
        my ($length) = $head =~ /^content-length: (\d+)/mi;
        my ($name) = $head =~ /^x-script: (\S+)/mi;

        while (length $in < length($head) + ($length || 0)) {
            sysread $c, $in, 65536, length $in or return;
        }

        substr $in, 0, length($head) + ($length || 0), '';
        _play($c, @{ $scripts->{$name} }) or return;
    }
}


# True when another request may come.
sub _play
{
    my ($c, @script) = @_;
    my ($chunked, $bytes) = (0, 0);

    while (@script) {
        my $step = shift @script;

        if (ref $step) {
            if ($$step eq 'whole') { $chunked = 0; next }
            if ($$step eq 'bytes') { $bytes = 1; next }
            setsockopt $c, SOL_SOCKET, SO_LINGER, pack 'ii', 1, 0
                if $$step eq 'reset';
            close $c;
            return 0;
        }

        if ($step =~ /^[\d.]+\z/) {
            sleep $step;
            next;
        }

        for my $piece ($bytes ? split //, $step : $step) {
            syswrite $c, !$chunked ? $piece
                         : sprintf "%x\r\n%s\r\n", length $piece, $piece;
            sleep 0.001 if $bytes;
        }

        $bytes = 0;
        $chunked = 1 if $step =~ /^HTTP.*^Transfer-Encoding: chunked\r$/ms;
    }

    syswrite $c, "0\r\n\r\n" if $chunked;
    return $chunked;
}


sub DESTROY
{
    my $self = shift;
    local ($?, $!);

    return if $self->{owner} != $$;
    kill 'KILL', -$self->{pid};
    waitpid $self->{pid}, 0;
}


1;
