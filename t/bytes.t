# What the client sent is what the replica gets, to the last bit: bodies of
# any size up to 4 MiB, JSON and not, however they are framed, buffered, read
# early or sent twice. AIBRIX_LONG=1 sends 1,000 of them.

use strict;
use warnings;

use lib 't/lib';
use AibrixTest;
use Digest::SHA qw(sha256_hex);
use Fleet;
use List::Util qw(min sum0);
use NginxInstance;
use RawHttp;
use Test::More;
use Time::HiRes qw(sleep time);

my $bodies = $ENV{AIBRIX_LONG} ? 1000 : 120;
my $clients = 4;
my $largest = 4 * 1024 * 1024;
my $seed = $ENV{AIBRIX_SEED} || 20250;

my $replicas = NginxInstance->new(conf => <<'EOC')->start;
    client_max_body_size 0;
    server { listen 127.0.0.1:%%PORT1%%; location / { engine_sim_digest; } }
    server { listen 127.0.0.1:%%PORT2%%; location / { engine_sim_digest; } }
    server { listen 127.0.0.1:%%PORT3%%; location / { return 503; } }
EOC

my $dir = scratch_dir();
my ($key, $cert) = ("$dir/key.pem", "$dir/cert.pem");

`openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes \\
    -days 2 -subj /CN=localhost -keyout $key -out $cert 2>&1`;
die 'openssl makes no certificate' if $? != 0;

my ($h2_listen, $h2_on) = nginx_version() >= 1_025_001
                          ? ('ssl', 'http2 on;') : ('ssl http2', '');
my $server = <<'EOC';
    client_max_body_size 0;
    add_header x-model $aibrix_model;
    add_header x-upstreams $upstream_addr;

    location / { proxy_pass http://llm; }
    location /early/ { aibrix_read_body on; proxy_pass http://llm; }
    location /file/ {
        client_body_in_file_only clean;
        client_body_buffer_size 1k;
        proxy_pass http://llm;
    }
    location /unbuffered/ {
        proxy_request_buffering off;
        proxy_http_version 1.1;
        proxy_pass http://llm;
    }
    location /twice/ { proxy_pass http://twice; }
EOC

my $nginx = NginxInstance->new(workers => 2, conf => <<"EOC")->start;
    ssl_certificate $cert;
    ssl_certificate_key $key;
    proxy_next_upstream error timeout http_503 non_idempotent;

    upstream llm {
        aibrix;
        @{[ servers($replicas, '', 1, 2) ]}
    }
    upstream twice {
        aibrix;
        @{[ servers($replicas, 'max_fails=0', 3) ]}
        @{[ servers($replicas, 'backup', 1) ]}
    }
    server {
        listen 127.0.0.1:%%PORT1%%;
        $server
    }
    server {
        listen 127.0.0.1:%%PORT2%% $h2_listen;
        $h2_on
        $server
    }
EOC

my @ways = (
    map({ [length => $_] } '', '/early', '/file', '/unbuffered', '/twice'),
    map({ [chunked => $_] } '', '/early', '/file', '/unbuffered', '/twice'),
    map({ [http2 => $_] } '', '/early', '/unbuffered', '/twice'),
    map({ ['http2 of no length' => $_] } '', '/early', '/unbuffered'),
);

# where buffers end
my @edges = map { my $n = $_; map { $n + $_ } -1, 0, 1 }
            1, 1024, 4096, 8192, 16384, 65536, $largest - 1;


# Of all sizes alike in their logarithm, and every so often one of the edges.
sub size
{
    my $i = shift;

    return $edges[$i / 3 % @edges] if $i % 3 == 0;
    return int exp rand log $largest;
}


my @pieces = ('plain words ', '\\n', '\\"', '\\\\', '\\u00e9', '\\ud83d\\ude00',
              "\xc3\xa9", "\xe6\xbc\xa2\xe5\xad\x97", "\xf0\x9f\x98\x80",
              '{}[],:', '  ');


# A body of exactly that size and its model: a request in JSON, but for one in
# eight, which is any bytes or JSON that ends too early.
sub body
{
    my $size = shift;
    my $kind = $size < 100 ? 0 : int rand 16;

    return (substr(pack('L*', map { int rand 2 ** 32 } 0 .. $size / 4),
                   0, $size), '')
        if $kind == 0;

    my $model = 'm' . int rand 10;
    my $head = "{\"model\": \"$model\",\r\n \"prompt\": \"";
    my $end = '", "stream": false}';
    my $some = '';

    $some .= $pieces[rand @pieces] while length $some < min($size, 20_000);
    my $body = $head . $some x ($size / length($some) + 1);

    return (substr($body, 0, $size), '') if $kind == 1;

    my $room = $size - length($head) - length($end);
    my $whole = int($room / length $some);

    return ($head . $some x $whole . ' ' x ($room - $whole * length $some)
            . $end, $model);
}


# Each of these returns the answer's head and body.
my %send = (
    length => sub {
        my ($path, $body) = @_;

        return raw($path, length $body, cut($body));
    },
    chunked => sub {
        my ($path, $body) = @_;

        return raw($path, undef, (map { sprintf("%x\r\n%s\r\n", length, $_) }
                                  grep { length } cut($body)), "0\r\n\r\n");
    },
    http2 => sub { curl(@_, '--data-binary', '@') },
    'http2 of no length' => sub { curl(@_, '-T', '') },
);


# In up to six pieces.
sub cut
{
    my $body = shift;
    my @at = sort { $a <=> $b } 0, length $body,
             map { int rand(1 + length $body) } 1 .. rand 6;

    return map { substr $body, $at[$_], $at[$_ + 1] - $at[$_] } 0 .. $#at - 1;
}


sub raw
{
    my ($path, $length, @pieces) = @_;
    my $c = RawHttp->new(port => $nginx->port(1), timeout => 20);

    $c->request('POST', "$path/v1/completions", undef,
                defined $length ? ('Content-Length' => $length)
                : ('Transfer-Encoding' => 'chunked'),
                'Content-Type' => 'application/json', Connection => 'close');

    for my $piece (@pieces) {
        $c->send_raw($piece);
        sleep rand 0.01 if rand() < 0.3;
    }

    my $head = $c->head->{raw};
    return ($head, $c->body);
}


sub curl
{
    my ($path, $body, $option, $prefix) = @_;
    my $own = scratch_dir();

    open my $file, '>', "$own/body" or die "$own/body: $!";
    binmode $file;
    print $file $body;
    close $file;

    my $got = `curl -sk --http2 -X POST -D $own/head -H 'Expect:' \\
        -H 'Content-Type: application/json' $option '$prefix@{[
        $prefix ? "$own/body" : '-' ]}' \\
        https://127.0.0.1:@{[ $nginx->port(2) ]}$path/v1/completions \\
        < $own/body`;
    die "curl: exit code $?" if $? != 0;

    open $file, '<', "$own/head" or die "$own/head: $!";
    local $/;
    my $head = <$file>;
    unlink "$own/body";

    return ($head, $got);
}


sub client
{
    my $number = shift;
    my %did = (wrong => [], bytes => 0, models => 0);

    srand $seed + $number;

    for (my $i = $number; $i < $bodies; $i += $clients) {
        my ($way, $path) = @{ $ways[$i % @ways] };
        my ($body, $model) = body(size($i));
        my $what = "body $i, $way, location $path/, " . length($body)
                   . ' bytes';
        my ($head, $got) = eval { $send{$way}->($path, $body) };

        if (!defined $got) {
            push @{ $did{wrong} }, "$what: $@";
            next;
        }

        my ($bytes, $digest) = $got =~ /^\{"bytes":(\d+),"sha256":"(\w+)"/;
        my ($said) = $head =~ /^x-model: (\w*)\r$/m;

        push @{ $did{wrong} }, "$what: $head"
            if !defined $digest || $bytes != length $body
               || $digest ne sha256_hex($body);
        push @{ $did{wrong} }, "$what: model of '$model' is '" . ($said || '')
                               . "'"
            if $path ne '/unbuffered' && ($said || '') ne $model;
        push @{ $did{wrong} }, "$what: not sent twice: $head"
            if $path eq '/twice' && $head !~ /^x-upstreams: \S+, \S+\r$/m;

        $did{n}++;
        $did{ways}{"$way $path"}++;
        $did{bytes} += length $body;
        $did{models}++ if $said;
    }

    return \%did;
}


my $start = time;
my @did = in_parallel($clients, \&client);
my $took = time - $start;
my %ways;

for my $did (@did) {
    $ways{$_} += $did->{ways}{$_} for keys %{ $did->{ways} };
}

is_deeply([map { @{ $_->{wrong} } } @did], [],
          'every body arrives as it was sent')
    or diag "AIBRIX_SEED=$seed";
is(sum0(map { $_->{n} } @did), $bodies, "$bodies bodies");
is(scalar keys %ways, scalar @ways, 'in ' . @ways . ' ways');
cmp_ok(min(values %ways), '>=', int($bodies / @ways), 'each of them often');
cmp_ok(sum0(map { $_->{models} } @did), '>', $bodies / 2,
       'most of which are requests that were read');

diag(sprintf '%d bodies, %.1f MiB, in %.1f s, in %d ways: %d differ',
     $bodies, sum0(map { $_->{bytes} } @did) / 1024 / 1024, $took, scalar @ways,
     scalar map { @{ $_->{wrong} } } @did);

is_deeply([$nginx->log_at], [], 'nothing bad in the log');
is($nginx->stop, 0, 'stops in order');

done_testing;
