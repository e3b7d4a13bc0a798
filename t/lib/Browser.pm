package Browser;

# A headless Chromium, driven over its debugging pipe: real time, real events.
#
#     my $b = Browser->new(width => 1280, height => 900);
#     $b->open('http://127.0.0.1:8080/status');
#     $b->value('document.title');          # any JSON value; promises wait
#     $b->dark(1);  $b->phone;              # what the page is made to believe
#     $b->screenshot('/tmp/page.png');      # the whole page
#     $b->messages;                         # of the console, and exceptions
#
# It speaks to nobody but the address that is opened, and is killed when the
# object goes.

use strict;
use warnings;

use AibrixTest;
use Fcntl qw(F_DUPFD);
use File::Path qw(remove_tree);
use File::Temp qw(tempdir);
use IO::Select;
use JSON::PP;
use MIME::Base64 qw(decode_base64);
use POSIX ();
use Time::HiRes qw(time);

my @flags = qw(--headless --no-sandbox --disable-gpu --disable-quic
               --no-first-run --disable-background-networking
               --disable-component-update --disable-sync --disable-extensions
               --disable-dev-shm-usage --disable-default-apps --mute-audio
               --hide-scrollbars --remote-debugging-pipe about:blank);


sub new
{
    my ($class, %args) = @_;
    my $self = bless { width => 1280, height => 900, scale => 1, id => 0,
                       in => '', messages => [], owner => $$, %args }, $class;

    local $SIG{PIPE} = 'IGNORE';
    $self->{profile} = tempdir('chromium-XXXXXX', TMPDIR => 1);
    $self->_start;

    my $target = $self->_call('Target.createTarget', { url => 'about:blank' });
    $self->{session} = $self->_call('Target.attachToTarget',
        { targetId => $target->{targetId}, flatten => \1 })->{sessionId};

    $self->_call("$_.enable", {}) for qw(Page Runtime Log Network);
    $self->_size($self->{width}, $self->{height}, 0);
    return $self;
}


sub _start
{
    my $self = shift;

    pipe my $its_in, my $to or die "pipe: $!";
    pipe my $from, my $its_out or die "pipe: $!";

    my $pid = fork;
    die "fork: $!" if !defined $pid;

    if ($pid == 0) {
        setpgrp;
        open STDIN, '<', '/dev/null';
        open STDOUT, '>', "$self->{profile}/output";
        open STDERR, '>&', \*STDOUT;
        # clear of 3 and 4 first, then there
        my ($in, $out) = map { fcntl $_, F_DUPFD, 10 } $its_in, $its_out;
        POSIX::dup2($in, 3);
        POSIX::dup2($out, 4);
        exec 'chromium', "--user-data-dir=$self->{profile}", @flags
            or POSIX::_exit(127);
    }

    $to->autoflush(1);
    $from->blocking(0);
    @$self{qw(pid to from select)} = ($pid, $to, $from,
                                      IO::Select->new($from));
}


# Sends a command and waits for its result; events on the way are kept.
sub _call
{
    my ($self, $method, $params) = @_;
    my $id = ++$self->{id};
    my %message = (id => $id, method => $method, params => $params);

    $message{sessionId} = $self->{session} if $self->{session};
    print { $self->{to} } encode_json(\%message) . "\0";

    my $end = time + slow(30);

    while (1) {
        my $got = $self->_read($end) or die "$method: no answer";

        if (($got->{id} || 0) == $id) {
            die "$method: $got->{error}{message}" if $got->{error};
            return $got->{result};
        }

        $self->_event($got);
    }
}


sub _read
{
    my ($self, $end) = @_;

    my $at;

    while (($at = index $self->{in}, "\0") < 0) {
        my $left = $end - time;

        return if $left <= 0 || !$self->{select}->can_read($left);
        sysread $self->{from}, $self->{in}, 1 << 20, length $self->{in}
            or die "chromium has gone:\n" . $self->_output;
    }

    my $text = substr $self->{in}, 0, $at + 1, '';
    chop $text;
    return decode_json($text);
}


sub _output
{
    my $self = shift;

    open my $file, '<', "$self->{profile}/output" or return '';
    local $/;
    return <$file>;
}


sub _event
{
    my ($self, $got) = @_;
    my ($method, $p) = ($got->{method} || '', $got->{params});

    if ($method eq 'Runtime.consoleAPICalled') {
        push @{ $self->{messages} }, "$p->{type}: "
            . join ' ', map { $_->{value} // $_->{description} // '' }
                        @{ $p->{args} };

    } elsif ($method eq 'Runtime.exceptionThrown') {
        push @{ $self->{messages} }, 'exception: '
            . ($p->{exceptionDetails}{exception}{description}
               || $p->{exceptionDetails}{text});

    } elsif ($method eq 'Log.entryAdded') {
        push @{ $self->{messages} },
             join ' ', "$p->{entry}{level}: $p->{entry}{text}",
                      $p->{entry}{url} || ();

    } elsif ($method eq 'Network.requestWillBeSent') {
        push @{ $self->{requests} }, $p->{request}{url};
    }
}


sub open
{
    my ($self, $url) = @_;
    my $result = $self->_call('Page.navigate', { url => $url });

    die "$url: $result->{errorText}" if $result->{errorText};
    wait_for(sub { $self->value('document.readyState') eq 'complete' }, 20)
        or die "$url: does not load";
    return $self;
}


# What a JavaScript expression comes to.
sub value
{
    my ($self, $js) = @_;
    my $result = $self->_call('Runtime.evaluate',
        { expression => $js, returnByValue => \1, awaitPromise => \1 });

    die "$js: $result->{exceptionDetails}{exception}{description}"
        if $result->{exceptionDetails};
    return $result->{result}{value};
}


sub dark
{
    my ($self, $on) = @_;

    $self->_call('Emulation.setEmulatedMedia', { features => [
        { name => 'prefers-color-scheme', value => $on ? 'dark' : 'light' },
    ] });
    return $self;
}


sub phone { $_[0]->_size(390, 844, 1) }


sub _size
{
    my ($self, $width, $height, $mobile) = @_;

    $self->_call('Emulation.setDeviceMetricsOverride',
        { width => $width, height => $height, mobile => $mobile ? \1 : \0,
          deviceScaleFactor => $mobile ? 2 : $self->{scale} });
    return $self;
}


# Makes the page believe that nobody looks (or somebody does again).
sub hidden
{
    my ($self, $hidden) = @_;
    my $is = $hidden ? 'true' : 'false';

    return $self->value("Object.defineProperty(document, 'hidden', "
        . "{ configurable: true, get: () => $is });"
        . "document.dispatchEvent(new Event('visibilitychange')), 0");
}


sub screenshot
{
    my ($self, $path, $whole) = @_;
    my $image = $self->_call('Page.captureScreenshot',
        { format => 'png',
          captureBeyondViewport => $whole ? \1 : \0 });

    CORE::open my $file, '>:raw', $path or die "$path: $!";
    print $file decode_base64($image->{data});
    close $file or die "$path: $!";
}


# Since the last time it was asked; and all addresses that were asked for.
sub messages
{
    my $self = shift;

    $self->value('0');
    return splice @{ $self->{messages} };
}

sub requests { @{ $_[0]{requests} || [] } }


sub DESTROY
{
    my $self = shift;
    local ($?, $!);

    return if !$self->{pid} || $self->{owner} != $$;
    kill 'KILL', -$self->{pid};
    waitpid $self->{pid}, 0;
    remove_tree($self->{profile});
}


1;
