package RawHttp;

# An HTTP/1.1 client for tests which shows what arrives, and when.
#
#     my $c = RawHttp->new(port => $port, timeout => 5);
#     $c->request('POST', '/v1/completions', $body, 'routing-strategy' => 'random');
#     my $head = $c->head;       # { status, headers => { 'target-pod' => ... } }
#     while (my ($data, $time) = $c->next_event) { ... }
#     $c->abort;
#
# Any of them dies when nothing comes for `timeout` seconds or the connection
# ends before the answer does. Times are Time::HiRes::time of the arrival.

use strict;
use warnings;

use AibrixTest;
use Exporter qw(import);
use IO::Select;
use IO::Socket::INET;
use IO::Socket::UNIX;
use Socket qw(SOL_SOCKET SO_LINGER);
use Time::HiRes qw(time);

our @EXPORT_OK = qw(http);


# port => N [, host => A] or path => SOCKET; timeout => 5; tls => 1 (no
# certificate is checked).
sub new
{
    my ($class, %args) = @_;
    my $self = bless { host => '127.0.0.1', timeout => 5, in => '', %args },
               $class;

    $self->{socket} = $self->_connect
        or die 'connect to ' . ($self->{path} || $self->{port}) . ": $!";
    $self->{socket}->autoflush(1);
    $self->{socket}->blocking(0);
    $self->{select} = IO::Select->new($self->{socket});
    return $self;
}


sub _connect
{
    my $self = shift;

    return IO::Socket::UNIX->new(Peer => $self->{path}) if $self->{path};

    my @peer = (PeerAddr => $self->{host}, PeerPort => $self->{port});

    if ($self->{tls}) {
        require IO::Socket::SSL;
        return IO::Socket::SSL->new(@peer, SSL_verify_mode => 0);
    }

    return IO::Socket::INET->new(@peer);
}


# Sends bytes as they are.
sub send_raw
{
    my ($self, $bytes) = @_;
    my $socket = $self->{socket};

    local $SIG{PIPE} = 'IGNORE';

    while (length $bytes) {
        my $n = syswrite $socket, $bytes;

        if ($n) {
            substr $bytes, 0, $n, '';

        } elsif (!$!{EAGAIN} && !$!{EWOULDBLOCK}) {
            die "send: $!";

        } elsif (!$self->{select}->can_write(slow($self->{timeout}))) {
            die "send: timed out";
        }
    }

    return $self;
}


# Sends a request. Host is added; so is Content-Length, when there is a body
# and the headers have neither it nor Transfer-Encoding.
sub request
{
    my ($self, $method, $target, $body, @headers) = @_;
    my %seen = map { lc $headers[2 * $_] => 1 } 0 .. @headers / 2 - 1;

    unshift @headers, Host => 'localhost' if !$seen{host};
    push @headers, 'Content-Length' => length $body
        if defined $body && !$seen{'content-length'}
           && !$seen{'transfer-encoding'};

    my $text = "$method $target HTTP/1.1\r\n";
    while (my ($name, $value) = splice @headers, 0, 2) {
        $text .= "$name: $value\r\n";
    }

    $self->{method} = $method;
    delete @$self{qw(framing left head ended events)};
    return $self->send_raw("$text\r\n" . (defined $body ? $body : ''));
}


# Reads more into the buffer; false at the end of the connection.
sub _fill
{
    my $self = shift;
    my $socket = $self->{socket};

    while (1) {
        my $n = sysread $socket, $self->{in}, 65536, length $self->{in};

        if (defined $n) {
            $self->{time} = time;
            return $n;
        }

        return 0 if $!{ECONNRESET};
        die "receive: $!" if !$!{EAGAIN} && !$!{EWOULDBLOCK};
        die "receive: timed out"
            if !$self->{select}->can_read(slow($self->{timeout}));
    }
}


# Moves what $regex matches at the buffer's start out of it, reading on until
# it matches.
sub _take
{
    my ($self, $regex) = @_;

    while (1) {
        return substr $self->{in}, 0, $+[0], '' if $self->{in} =~ /\A$regex/;
        $self->_fill or die "receive: connection ended, after '$self->{in}'";
    }
}


# The answer's head: { status, reason, headers => { name in lower case =>
# value, several joined by ', ' }, raw, time }. 1xx heads are passed over.
sub head
{
    my $self = shift;

    return $self->{head} if $self->{head};

    my $raw = $self->_take(qr/.*?\r\n\r\n/s);
    my ($version, $status, $reason) = $raw =~ m{\AHTTP/(\S+) (\d+) ?(.*?)\r\n}
        or die "no status line: $raw";

    return $self->head if $status >= 100 && $status < 200;

    my %headers;
    while ($raw =~ /^([^:\r\n ]+):[ \t]*(.*?)[ \t]*\r$/mg) {
        my $name = lc $1;
        $headers{$name} = exists $headers{$name} ? "$headers{$name}, $2" : $2;
    }

    $self->{framing} = $self->{method} eq 'HEAD' || $status =~ /^(?:204|304)$/
                       ? 'none'
                       : lc($headers{'transfer-encoding'} || '') eq 'chunked'
                       ? 'chunked'
                       : exists $headers{'content-length'} ? 'length' : 'close';
    $self->{left} = $headers{'content-length'};

    return $self->{head} = { status => $status, reason => $reason, raw => $raw,
                             headers => \%headers, time => $self->{time} };
}


# The next piece of the body, without chunk framing: (bytes, time); () at the
# end. With chunked framing a piece is a chunk, else what came at once.
sub next_chunk
{
    my $self = shift;

    $self->head;
    return if $self->{ended};

    my $framing = $self->{framing};
    my @piece = $framing eq 'chunked' ? $self->_chunk
                : $framing eq 'length' ? $self->_part
                : $framing eq 'close' ? $self->_rest : ();

    $self->{ended} = 1 if !@piece;
    return @piece;
}


sub _chunk
{
    my $self = shift;
    my ($size) = $self->_take(qr/[0-9a-fA-F]+[^\r\n]*\r\n/) =~ /^([0-9a-f]+)/i;

    $size = hex $size;

    if ($size == 0) {
        $self->_take(qr/(?:[^\r\n]+\r\n)*\r\n/);
        return;
    }

    while (length $self->{in} < $size + 2) {
        $self->_fill or die "receive: connection ended inside a chunk";
    }

    my $bytes = substr $self->{in}, 0, $size + 2, '';
    return (substr($bytes, 0, $size), $self->{time});
}


sub _part
{
    my $self = shift;

    return if $self->{left} == 0;

    if (!length $self->{in}) {
        $self->_fill or die "receive: connection ended inside the body";
    }

    my $bytes = substr $self->{in}, 0, $self->{left}, '';
    $self->{left} -= length $bytes;
    return ($bytes, $self->{time});
}


sub _rest
{
    my $self = shift;

    return if !length $self->{in} && !$self->_fill;
    return (substr($self->{in}, 0, length $self->{in}, ''), $self->{time});
}


# The (rest of the) body, read to its end.
sub body
{
    my $self = shift;
    my $body = '';

    while (my ($bytes) = $self->next_chunk) {
        $body .= $bytes;
    }

    return $body;
}


# The next event of an SSE body, however it was cut: (data, time); () at the
# end. Data lines are joined by "\n", comments and other fields passed over.
sub next_event
{
    my $self = shift;

    $self->{events} = '' if !defined $self->{events};

    while (1) {
        while ($self->{events} =~ s/\A(.*?)(?:\r\n\r\n|\n\n)//s) {
            my @data = $1 =~ /^data: ?(.*?)\r?$/mg;
            return (join("\n", @data), $self->{time}) if @data;
        }

        my ($bytes) = $self->next_chunk or return;
        $self->{events} .= $bytes;
    }
}


# All events that are left: a list of [data, time].
sub events
{
    my $self = shift;
    my @events;

    while (my @event = $self->next_event) {
        push @events, \@event;
    }

    return @events;
}


# Ends the connection by a reset, as a client that crashed.
sub abort
{
    my $self = shift;

    setsockopt $self->{socket}, SOL_SOCKET, SO_LINGER, pack 'ii', 1, 0;
    return $self->close;
}


# Ends it in order, as a client that hung up.
sub close
{
    my $self = shift;

    close $self->{socket} if $self->{socket};
    delete @$self{qw(socket select)};
    return $self;
}


# http(PORT, METHOD, TARGET, BODY, HEADER => VALUE...): a request on a
# connection of its own, read to the end; its head with the body added.
sub http
{
    my ($port, $method, $target, $body, @headers) = @_;
    my $c = RawHttp->new(port => $port);

    $c->request($method, $target, $body, @headers, Connection => 'close');
    my $answer = { %{ $c->head }, body => $c->body };
    $c->close;
    return $answer;
}


1;
