package Client;

# A client that does one thing after another until it is told to stop, each
# of them of another kind, and keeps the books of what came of it.

use strict;
use warnings;

use AibrixTest;
use Fleet qw(completion text);
use RawHttp;
use Time::HiRes qw(sleep time);

# What is to be answered in full: these can be lost.
our @wanted = qw(json stream slow_read pipeline bytes);

# What the client itself gives up.
our @given_up = qw(no_head in_head in_body before_answer in_stream half_close);

my @strategies = ('', '', '',
                  qw(least-work prefix-cache least-request random));
my @paths = ('', '', '/early', '/unbuffered');


# client(number => 3, port => 80, seed => 7, dir => $dir): ends when there is
# $dir/stop, does nothing while there is $dir/pause. Returns { kind => { ok or
# what went wrong => n } }.
sub client
{
    my %self = (@_, books => {}, n => 0);

    srand $self{seed} * 1000 + $self{number};
    $self{prompts} = [map { text($_, 300 + int rand 6000) } 1 .. 12];

    while (!-e "$self{dir}/stop") {
        if (-e "$self{dir}/pause") {
            state(\%self, 'p');
            sleep 0.01;
            next;
        }

        state(\%self, 'r');
        one(\%self);
        sleep rand 0.03;
    }

    return $self{books};
}


# One byte a client in a file that the driver reads.
sub state
{
    my ($self, $state) = @_;

    return if ($self->{state} || '') eq $state;
    $self->{state} = $state;
    open my $file, '+<', "$self->{dir}/clients" or die $!;
    sysseek $file, $self->{number}, 0;
    syswrite $file, $state;
}


sub one
{
    my $self = shift;
    my @kinds = (@wanted, @wanted, @given_up);
    my $kind = $kinds[rand @kinds];
    my $c;
    my $result = eval {
        $c = RawHttp->new(port => $self->{port}, timeout => 8);
        my $said = Client->can($kind)->($self, $c);
        rand() < 0.5 ? $c->close : $c->abort;
        $said;
    };

    $result = $@ =~ /timed out/ ? 'timed_out'
              : $@ =~ /^connect/ ? 'not_connected'
              : $@ !~ /^(?:receive|send)/ ? "wrong: $@"
              : $c->{head} ? 'cut' : 'no_answer'
        if !defined $result;
    $result = 'given_up' if grep { $_ eq $kind } @given_up
                            and $result !~ /^wrong/;
    $self->{books}{$kind}{$result}++;
    $self->{books}{"by $self->{strategy}"}{ $result eq 'ok' ? 'ok' : 'lost' }++
        if $result ne 'given_up';
}


# A request as text, and what its answer is to be.
sub request
{
    my ($self, $kind, %more) = @_;
    my $id = "c$self->{number}-" . ++$self->{n};
    my $prompts = $self->{prompts};
    my $text = $prompts->[rand @$prompts];
    my $body = completion(rand() < 0.3 ? "$id is new: $text"
                          : "$text then $id",
                          stream => $kind eq 'json' ? 'false' : 'true');
    my $events = $more{events} || 2 + int rand 12;
    my $strategy = $self->{strategy} = $strategies[rand @strategies];
    my $path = $more{path} || $paths[rand @paths];
    my $head = "POST $path/v1/completions HTTP/1.1\r\nHost: chaos\r\n"
               . "X-Id: $id\r\nX-Kind: $kind\r\nX-Events: $events\r\n"
               . ($strategy ? "routing-strategy: $strategy\r\n" : '');
    my $length = length $body;

    if (rand() < 0.2) {
        my $chunked = join '', map { sprintf "%x\r\n%s\r\n", length, $_ }
                      unpack '(a700)*', $body;
        return ("${head}Transfer-Encoding: chunked\r\n\r\n",
                "${chunked}0\r\n\r\n", $id, $events);
    }

    return ("${head}Content-Length: $length\r\n\r\n", $body, $id, $events);
}


# Makes RawHttp wait for another answer.
sub expect
{
    my $c = shift;

    $c->{method} = 'POST';
    delete @$c{qw(framing left head ended events)};
}


# Reads an answer to its end; what it was.
sub answer
{
    my ($c, $kind, $id, $events, $pause) = @_;
    my $head = $c->head;

    if ($head->{status} != 200) {
        $c->body;
        return "status_$head->{status}";
    }

    return "wrong: answer to $head->{headers}{'x-id'} for $id"
        if $head->{headers}{'x-id'} ne $id;

    if ($kind eq 'json') {
        my $body = $c->body;
        return $body =~ /\A\{"id":"\Q$id\E".*\}\}\z/ ? 'ok' : "wrong: $body";
    }

    my $k = 0;

    while (my ($data) = $c->next_event) {
        sleep $pause if $pause && $k < 4;
        next if $data eq '[DONE]' && $k == $events && ($k = 'done');
        return "wrong: event '$data' after $k for $id"
            if $k eq 'done' || $data !~ /"id":"\Q$id\E".*"w@{[ ++$k ]} "/;
    }

    return $k eq 'done' ? 'ok' : 'cut';
}


sub json
{
    my ($self, $c) = @_;
    my ($head, $body, $id) = request($self, 'json');

    $c->send_raw($head . $body);
    expect($c);
    return answer($c, 'json', $id);
}


sub stream
{
    my ($self, $c) = @_;
    my ($head, $body, $id, $events) = request($self, 'stream');

    $c->send_raw($head . $body);
    expect($c);
    return answer($c, 'stream', $id, $events);
}


# With a receive buffer as small as may be, too.
sub slow_read
{
    my ($self, $c) = @_;
    my ($head, $body, $id, $events) = request($self, 'stream', events => 60);

    setsockopt $c->{socket}, Socket::SOL_SOCKET(), Socket::SO_RCVBUF(), 2048;
    $c->send_raw($head . $body);
    expect($c);
    return answer($c, 'stream', $id, $events, 0.1);
}


# What came of the three, the worst of it.
sub pipeline
{
    my ($self, $c) = @_;
    my @all = map { [request($self, 'json')] } 1 .. 3;
    my $worst = 'ok';

    $c->send_raw(join '', map { $_->[0] . $_->[1] } @all);

    for (@all) {
        expect($c);
        my $said = answer($c, 'json', $_->[2]);
        $worst = $said if $said ne 'ok';
    }

    return $worst;
}


sub bytes
{
    my ($self, $c) = @_;
    my ($head, $body, $id) = request($self, 'json');

    setsockopt $c->{socket}, Socket::IPPROTO_TCP(), Socket::TCP_NODELAY(), 1;
    $c->send_raw($head);

    for my $byte (unpack '(a1)100 a*', $body) {
        $c->send_raw($byte);
        sleep 0.001;
    }

    expect($c);
    return answer($c, 'json', $id);
}


sub no_head { sleep rand 0.01; 1 }


sub in_head
{
    my ($self, $c) = @_;

    $c->send_raw(substr +(request($self, 'json'))[0], 0, 10 + rand 60);
    sleep rand 0.01;
    return 1;
}


sub in_body
{
    my ($self, $c) = @_;
    my ($head, $body) = request($self, 'stream');

    $c->send_raw($head . substr $body, 0, -1 - rand 200);
    sleep rand 0.05;
    return 1;
}


sub before_answer
{
    my ($self, $c) = @_;
    my ($head, $body) = request($self, 'stream');

    $c->send_raw($head . $body);
    sleep rand 0.02;
    return 1;
}


sub in_stream
{
    my ($self, $c) = @_;
    my ($head, $body) = request($self, 'stream', events => 40);

    $c->send_raw($head . $body);
    expect($c);
    $c->next_event for 1 .. 1 + rand 20;
    return 1;
}


# nginx takes it for the end of the client.
sub half_close
{
    my ($self, $c) = @_;
    my ($head, $body) = request($self, 'stream');

    $c->send_raw($head . $body);
    shutdown $c->{socket}, 1;
    $c->_fill while rand() < 0.8;
    return 1;
}


1;
