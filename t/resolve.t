# Replicas behind a name that DNS resolves anew (`resolve`, nginx 1.27.3 and
# later): a replica is its address, wherever it stands in the answer.

use strict;
use warnings;

use lib 't/lib';
use AibrixTest;
use Fleet;
use IO::Socket::INET;
use NginxInstance;
use RawHttp;
use Test::More;
use Time::HiRes qw(sleep time);

plan skip_all => 'this nginx has no "resolve" in upstreams (1.27.3)'
    if nginx_version() < 1_027_003;

my $dir = scratch_dir();
my ($dns_port, $dns_pid) = start_dns();


# Answers any question for an A record with the addresses in a file.
sub start_dns
{
    my $socket = IO::Socket::INET->new(LocalAddr => '127.0.0.1',
                                       Proto => 'udp')
        or die "udp: $!";
    my $pid = fork;
    die "fork: $!" if !defined $pid;

    return ($socket->sockport, $pid) if $pid;

    while (1) {
        my $from = $socket->recv(my $query, 4096) or next;
        my $reply = dns_reply($query);

        $socket->send($reply, 0, $from) if defined $reply;
    }
}


sub dns_reply
{
    my $query = shift;
    my ($id, $flags, $questions) = unpack 'n3', $query;
    my $end = index($query, "\0", 12) + 5;
    my $question = substr $query, 12, $end - 12;
    my $type = unpack 'n', substr $question, -4, 2;

    open my $file, '<', "$dir/answer" or return;
    chomp(my @addresses = <$file>);
    @addresses = () if $type != 1;

    return pack('n6', $id, 0x8180, 1, scalar @addresses, 0, 0) . $question
           . join '', map { pack 'n n n N n a4', 0xc00c, 1, 1, 1, 4,
                            pack 'C4', split /\./ } @addresses;
}

END { kill 'KILL', $dns_pid if $dns_pid }


sub answer
{
    open my $file, '>', "$dir/answer.new" or die "$dir/answer.new: $!";
    print $file map { "$_\n" } @_;
    close $file;
    rename "$dir/answer.new", "$dir/answer" or die "rename: $!";
}


answer();

# an engine on each of these, and one address that accepts and says nothing
my @few = map { "127.0.0.$_" } 2 .. 5;
my @many = map { "127.0.1.$_" } 1 .. 80;
my $engines = engines(1, 'step_base=5ms max_tokens=2', lines => join ' ',
                      'add_header x-address $server_addr always;',
                      map { "listen $_:%%PORT1%%;" } @few, @many);
my $port = $engines->port(1);
my $mute = '127.0.0.9';
my $silent = IO::Socket::INET->new(LocalAddr => $mute, LocalPort => $port,
                                   Listen => 64)
    or die "listen on $mute:$port: $!";

my $router = router($engines, workers => 2,
    http => "resolver 127.0.0.1:$dns_port valid=1s ipv6=off;\n"
            . 'proxy_next_upstream error timeout non_idempotent;',
    upstream => "zone llm 2m;\naibrix prefix-cache;",
    servers => "server pods.test:$port resolve max_fails=0;",
    server => 'add_header x-peers $upstream_addr always;
               proxy_read_timeout 3s;');

my $seed = 0;


# Asks with a new prompt until these addresses (and no others) answer.
sub served_by
{
    my @want = sort @_;
    my %seen;

    return wait_for(sub {
        my %now;

        for (1 .. 12 * @want) {
            my $h = ask($router, text(++$seed, 300),
                        'routing-strategy' => 'random')->{headers};
            $now{ $h->{'x-address'} || 'none' } = 1;
        }

        %seen = %now;
        return "@{[ sort keys %now ]}" eq "@want";
    }, 15) || (diag("served by @{[ sort keys %seen ]}"), 0);
}


# A new prompt that only this address knows.
sub learned_on
{
    my $address = shift;

    for (1 .. 500) {
        my $prompt = text(++$seed, 2048);
        my $h = ask($router, $prompt, 'routing-strategy' => 'random')
                ->{headers};
        return $prompt if $h->{'x-address'} eq $address;
    }

    die "$address is never chosen";
}


sub held_on
{
    my $address = shift;

    for (1 .. 500) {
        my $c = hold($router, text(++$seed, 300),
                     'routing-strategy' => 'random');
        return $c if $c->head->{headers}{'x-address'} eq $address;
        $c->close;
    }

    die "$address is never chosen";
}


sub whose
{
    my $h = ask($router, $_[0])->{headers};

    return "$h->{'target-pod-ip'} $h->{'x-selection'} $h->{'x-match'}";
}


# What is in flight at that address, from the metrics.
sub at_address { load($router)->{"$_[0]:$port"} || 0 }


subtest 'no address yet' => sub {
    is(ask($router, text(++$seed, 300))->{status}, 502, 'nobody to ask');
    answer(@few[0, 1]);
    ok(served_by(@few[0, 1]), 'two addresses, two replicas');
};


subtest 'another order, and a new one' => sub {
    my %prompt = map { $_ => learned_on($_) } @few[0, 1];

    is(whose($prompt{$_}), "$_:$port prefix_match 100", "$_ learned")
        for @few[0, 1];
    is(ask($router, $prompt{$few[0]})->{headers}{'target-pod'},
       "pods.test:$port", 'the pod is the server as written');

    answer(@few[2, 1, 0]);
    ok(served_by(@few[0 .. 2]), 'three now');
    is(whose($prompt{$_}), "$_:$port prefix_match 100", "$_ knows what it did")
        for @few[0, 1];
};


subtest 'an address goes and comes back' => sub {
    my $prompt = learned_on($few[1]);
    my $held = held_on($few[1]);

    ok(wait_for(sub { at_address($few[1]) == 1 }), 'a stream there')
        or diag busy($router);

    answer(@few[2, 0]);
    ok(served_by(@few[0, 2]), 'it has gone');
    is(at_address($few[1]), 1, 'its stream counts')
        or diag busy($router);
    ok(length(($held->next_event)[0]), 'and goes on');
    unlike(whose($prompt), qr/^$few[1]:/, 'its prompt goes elsewhere');

    answer(@few[0 .. 2]);
    ok(served_by(@few[0 .. 2]), 'it is back');
    is(at_address($few[1]), 1, 'its stream still counts')
        or diag busy($router);

    $held->close;
    ok(wait_idle($router), 'until it ends') or diag busy($router);
};


subtest 'a reload' => sub {
    my $prompt = learned_on($few[2]);
    my $held = held_on($few[2]);

    $router->reload;
    is(ask($router, text(++$seed, 300))->{status}, 200, 'addresses are kept');
    is(at_address($few[2]), 1, 'counts too') or diag busy($router);
    is(whose($prompt), "$few[2]:$port prefix_match 100", 'and prefixes');

    $held->close;
    ok(wait_idle($router), 'nothing is left in flight') or diag busy($router);
    ok($router->wait_old_gone, 'the old workers go');
};


subtest 'the answer changes under a request' => sub {
    my $busy = held_on($few[0]);

    # the least loaded of these two is the one that will fail
    answer($few[0], $mute);
    ok(wait_for(sub {
        my $c = RawHttp->new(port => $router->port);
        $c->request('POST', '/v1/completions', completion(text(++$seed, 300)),
                    'routing-strategy' => 'random');
        sleep 0.1;
        my $there = at_address($mute);
        $c->close;
        return $there;
    }, 15), 'a replica that says nothing');
    ok(wait_load($router, 1), 'idle but for one stream') or diag busy($router);

    my $c = RawHttp->new(port => $router->port, timeout => 20);

    $c->request('POST', '/v1/completions', completion(text(++$seed, 2048)));
    ok(wait_for(sub { at_address($mute) == 1 }), 'a request waits there');

    answer($few[1], $mute, $few[0]);
    my $h = $c->head;

    is($h->{status}, 200, 'it is answered');
    like($h->{headers}{'x-peers'},
         qr/^$mute:$port, $few[1]:$port$/,
         'by the one idle address, which was not there when it came')
        or diag $h->{raw};
    $_->close for $c, $busy;
    ok(wait_idle($router), 'nothing is left in flight') or diag busy($router);
};


subtest 'more than 64 addresses' => sub {
    answer(@many);

    my %on;
    ok(wait_for(sub {
        my $h = ask($router, text(++$seed, 2048),
                    'routing-strategy' => 'random')->{headers};
        $on{ $h->{'x-address'} }++;
        return 70 <= grep { $on{$_} } @many;
    }, 20), 'nearly all were chosen') or diag scalar keys %on;

    my $prompt = learned_on($many[70]);

    is(whose($prompt), "$many[70]:$port prefix_match 100",
       'one of the last is found by its prefix');

    answer(reverse @many[10 .. 79]);
    ok(wait_for(sub {
        my $h = ask($router, text(++$seed, 100),
                    'routing-strategy' => 'random')->{headers};
        return $h->{'x-address'} =~ /^127\.0\.1\.(?:[1-9]\d)$/;
    }), 'in reverse');
    sleep 2.5;
    is(whose($prompt), "$many[70]:$port prefix_match 100", 'wherever it is');
    ok(wait_idle($router), 'nothing is left in flight') or diag busy($router);
};

is_deeply([$router->log_at], [], 'nothing bad in the log');
is($router->stop, 0, 'stops in order');

done_testing;
