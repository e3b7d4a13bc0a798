package AibrixTest;

# What every suite shares. A Test::Nginx suite starts with
#
#     use lib 't/lib';
#     use AibrixTest;
#     use Test::Nginx::Socket 'no_plan';
#
# (AibrixTest first: Test::Nginx reads the environment when it is loaded),
# a suite of its own kind with AibrixTest and Test::More.

use strict;
use warnings;

use Cwd qw(abs_path);
use Exporter qw(import);
use File::Basename qw(dirname);
use File::Temp qw(tempdir);
use IO::Socket::INET;
use POSIX ();
use Storable ();
use Time::HiRes qw(sleep time);

our @EXPORT = qw(repo nginx_binary modules load_modules scratch_dir free_port
                 slow wait_for in_parallel nginx_version);

my $repo = abs_path(dirname(__FILE__) . '/../..');
my $build = $ENV{AIBRIX_BUILD} || "$repo/build";
my @modules = $ENV{AIBRIX_STATIC} ? ()
              : map { "$build/$_.so" }
                qw(ngx_http_aibrix_module ngx_http_engine_sim_module);

$ENV{TEST_NGINX_BINARY} ||= '/usr/sbin/nginx';
$ENV{TEST_NGINX_LOAD_MODULES} = join ' ', @modules;

# Outside of scripts/run-test.sh nothing keeps two suites apart.
$ENV{TEST_NGINX_RANDOMIZE} = 1 unless $ENV{TEST_NGINX_SERVROOT};


# The root of the source tree.
sub repo { $repo }

sub nginx_binary { $ENV{TEST_NGINX_BINARY} }

# Paths of the modules to load; none where they are linked in (make asan).
sub modules { @modules }

# The same as lines of an nginx.conf.
sub load_modules { join '', map { "load_module $_;\n" } @modules }


# nginx's version as a number: 1.22.1 is 1_022_001.
sub nginx_version
{
    my $binary = nginx_binary();
    my ($x, $y, $z) = `$binary -v 2>&1` =~ m{nginx/(\d+)\.(\d+)\.(\d+)}
        or die "$binary -v gives no version";

    return $x * 1_000_000 + $y * 1_000 + $z;
}


# A new folder that is gone after the run (kept by run-test.sh on failure).
# Workers that are not root can enter it.
sub scratch_dir
{
    my $dir = $ENV{AIBRIX_TEST_DIR}
              ? tempdir('nginx-XXXXXX', DIR => $ENV{AIBRIX_TEST_DIR})
              : tempdir('aibrix-XXXXXX', TMPDIR => 1, CLEANUP => 1);

    chmod 0755, $dir;
    return $dir;
}


my %given;

# A TCP port of 127.0.0.1 that nobody listens on; never the same one twice.
sub free_port
{
    while (1) {
        my $socket = IO::Socket::INET->new(LocalAddr => '127.0.0.1',
                                           LocalPort => 0, Listen => 1)
            or die "no free port: $!";
        my $port = $socket->sockport;

        return $port if !$given{$port}++;
    }
}


# A time limit in seconds, stretched where everything is slower.
sub slow
{
    my $seconds = shift;

    return $ENV{AIBRIX_VALGRIND} ? $seconds * 20
           : $ENV{AIBRIX_STATIC} ? $seconds * 4
           : $seconds;
}


# Calls $check until it returns true, for $limit seconds (5, see slow) at
# most; returns what it returned last.
sub wait_for
{
    my ($check, $limit) = @_;
    my $end = time + slow($limit || 5);

    while (1) {
        my $result = $check->();

        return $result if $result || time > $end;
        sleep 0.01;
    }
}


# in_parallel($n, $code): calls $code->($i) for $i = 0 .. $n - 1 in as many
# processes at once, and returns what they returned (one scalar or reference
# each), in this order. Dies when one of them died.
sub in_parallel
{
    my ($n, $code) = @_;
    my @children = map { _start($code, $_) } 0 .. $n - 1;
    my @results = map { _finish($_) } @children;

    my @dead = grep { ref $_ eq 'AibrixTest::Died' } @results;
    die ${ $dead[0] } if @dead;

    return @results;
}


sub _start
{
    my ($code, $i) = @_;

    pipe my $read, my $write or die "pipe: $!";

    my $pid = fork;
    die "fork: $!" if !defined $pid;

    if ($pid == 0) {
        close $read;
        srand $i + 1;

        my $result = eval { $code->($i) };
        $result = bless \(my $why = "process $i: $@"), 'AibrixTest::Died'
            if $@;

        Storable::store_fd([$result], $write);
        close $write;
        POSIX::_exit(0);
    }

    close $write;
    return { pid => $pid, read => $read, i => $i };
}


sub _finish
{
    my $child = shift;
    my $result = eval { Storable::fd_retrieve($child->{read}) };

    waitpid $child->{pid}, 0;

    return $result ? $result->[0]
           : bless \(my $why = "process $child->{i} gave no result"),
             'AibrixTest::Died';
}


1;
