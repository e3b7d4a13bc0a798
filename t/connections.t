# Requests that Test::Nginx cannot send: several on one connection with HEAD
# and chunked bodies among them, Expect, bodies that come slowly, HTTP/2.

use strict;
use warnings;

use lib 't/lib';
use AibrixTest;
use Digest::SHA qw(sha256_hex);
use NginxInstance;
use RawHttp;
use Test::More;

my $names = 'model stream strategy selection match-percent blocks';
my $show = join '', map { "add_header X-$_ \$aibrix_" . tr/-/_/r
                          . " always;\n" } split / /, $names;

my $nginx = NginxInstance->new(conf => <<"EOC")->start;
    upstream llm {
        server 127.0.0.1:%%PORT3%%;
        aibrix;
        aibrix_block_size 1;
    }

    server {
        listen 127.0.0.1:%%PORT3%%;
        client_max_body_size 100m;
        location / { engine_sim_digest; }
        location /v1/busy { return 503 "busy\\n"; }
    }

    server {
        listen 127.0.0.1:%%PORT1%%;
        listen 127.0.0.1:%%PORT2%% http2;
        client_max_body_size 100m;
        $show

        location / {
            proxy_pass http://llm;
        }

        location /v1/first/ {
            aibrix_read_body on;
            proxy_pass http://llm;
        }

        location /v1/small/ {
            client_body_buffer_size 1k;
            proxy_pass http://llm;
        }

        location /v1/unbuffered/ {
            proxy_request_buffering off;
            proxy_http_version 1.1;
            proxy_pass http://llm;
        }

        location /v1/limited/ {
            client_max_body_size 1k;
            aibrix_read_body on;
            proxy_pass http://llm;
        }

        location /model {
            aibrix_read_body on;
            return 200 "\$aibrix_model\\n";
        }
    }
EOC

my $body = '{"model":"m","prompt":"Hello"}';
my $long = '{"model":"m","prompt":"' . 'Hello ' x 20000 . '"}';
my @chunked = ('Transfer-Encoding' => 'chunked');


sub chunks { join('', map { sprintf "%x\r\n%s\r\n", length, $_ } @_) }


# One more request on $c: status, headers and body must be as given (a string
# or a regex each).
sub answers
{
    my ($c, $title, $request, %expected) = @_;

    $c->request(@$request);

    my $head = $c->head;
    my $got = $c->body;

    is($head->{status}, $expected{status} || 200, "$title: status")
        or diag $head->{raw}, $got;

    for my $name (sort keys %{ $expected{headers} || {} }) {
        is($head->{headers}{$name}, $expected{headers}{$name},
           "$title: $name");
    }

    like($got, $expected{body}, "$title: body") if $expected{body};
}


subtest 'refusals among other requests' => sub {
    my $c = RawHttp->new(port => $nginx->port(1));
    my @no = ('routing-strategy' => 'no');
    my $refused = { 'x-error-routing' => 'true' };
    my $message = qr/^\{"error":\{"message":"incorrect .* no; use one of /;
    my $sum = sha256_hex($body);

    for my $path ('/v1', '/v1/first', '/v1/small', '/v1/unbuffered') {
        answers($c, "$path HEAD", ['HEAD', "$path/x", undef, @no],
                status => 400, headers => $refused, body => qr/^$/);
        answers($c, "$path GET", ['GET', "$path/x"],
                body => qr/"method":"GET"/,
                headers => { 'x-error-routing' => undef });
        answers($c, "$path chunked, refused",
                ['POST', "$path/completions", chunks($body, '') , @no,
                 @chunked],
                status => 400, headers => $refused, body => $message);
        answers($c, "$path chunked",
                ['POST', "$path/completions", chunks($body, ''), @chunked],
                headers => { 'x-model' => 'm', 'x-blocks' => 5 },
                body => qr/"$sum"/);
        answers($c, "$path POST, refused",
                ['POST', "$path/completions", $body, @no],
                status => 400, headers => $refused, body => $message);
        answers($c, "$path HEAD again", ['HEAD', "$path/x"],
                headers => { 'x-model' => undef, 'x-blocks' => 0 },
                body => qr/^$/);
        answers($c, "$path POST", ['POST', "$path/completions", $body],
                headers => { 'x-model' => 'm', 'x-blocks' => 5 },
                body => qr/"$sum"/);
    }
};


subtest 'Expect: 100-continue' => sub {
    for my $path ('/v1', '/v1/first', '/v1/unbuffered') {
        my $c = RawHttp->new(port => $nginx->port(1));

        $c->request('POST', "$path/completions", '',
                    Expect => '100-continue',
                    'Content-Length' => length $body);
        $c->send_raw($body);
        is($c->head->{status}, 200, "$path: status");
        like($c->body, qr/"${\ sha256_hex($body) }"/, "$path: body");
    }
};


subtest 'a body that comes byte by byte' => sub {
    for my $path ('/v1', '/v1/first', '/v1/small') {
        my $c = RawHttp->new(port => $nginx->port(1));

        $c->request('POST', "$path/completions", '',
                    'Content-Length' => length $body);
        $c->send_raw($_), select undef, undef, undef, 0.001
            for split //, $body;

        my $head = $c->head;
        is($head->{headers}{'x-model'}, 'm', "$path: model");
        is($head->{headers}{'x-blocks'}, 5, "$path: prompt");
        like($c->body, qr/"${\ sha256_hex($body) }"/, "$path: body");
    }
};


subtest 'a client that goes while its body is read' => sub {
    for my $path ('/v1', '/v1/first', '/v1/small', '/v1/unbuffered',
                  '/model') {
        for my $how (qw(abort close)) {
            my $c = RawHttp->new(port => $nginx->port(1));

            $c->request('POST', "$path/completions", substr($long, 0, 60000),
                        'Content-Length' => length $long);
            $c->$how;
        }
    }

    my $c = RawHttp->new(port => $nginx->port(1));
    answers($c, 'another client', ['POST', '/v1/completions', $body],
            headers => { 'x-model' => 'm' });
};


subtest 'too large' => sub {
    my $c = RawHttp->new(port => $nginx->port(1));

    answers($c, 'by length', ['POST', '/v1/limited/completions', $long],
            status => 413, headers => { 'target-pod' => undef });

    $c = RawHttp->new(port => $nginx->port(1));
    answers($c, 'in chunks',
            ['POST', '/v1/limited/completions', chunks($long, ''), @chunked],
            status => 413, headers => { 'target-pod' => undef });
};


# curl over HTTP/2, with a body from a file: its head and body.
sub h2
{
    my ($path, $text, @options) = @_;
    my $file = $nginx->dir . '/body';

    open my $out, '>', $file or die "$file: $!";
    print $out $text;
    close $out;

    push @options, '--data-binary', "\@$file" if length $text;

    my $url = $nginx->url(2) . $path;
    open my $curl, '-|', 'curl', '-s', '-i', '--http2-prior-knowledge',
        '-H', 'Expect:', '-m', slow(10), @options, $url or die "curl: $!";
    local $/;
    return <$curl> =~ s/\r//gr;
}


subtest 'HTTP/2' => sub {
    my @unsized = ('-H', 'Transfer-Encoding: chunked', '-H',
                   'Content-Length:');

    for my $path ('/v1', '/v1/first', '/v1/small', '/v1/unbuffered') {
        for my $case (['with', $body, 5], ['without', $body, 5, @unsized],
                      ['long, with', $long, 120000],
                      ['long, without', $long, 120000, @unsized])
        {
            my ($title, $text, $blocks, @options) = @$case;
            my $answer = h2("$path/completions", $text, @options);
            my $sum = sha256_hex($text);

            $title = "$path, $title content-length";
            like($answer, qr/^HTTP\/2 200 *$/m, $title);
            like($answer, qr/^target-pod: 127\.0\.0\.1:\d+$/m,
                 "$title: headers");
            like($answer, qr/"$sum"/, "$title: the same bytes");

            next if $path eq '/v1/unbuffered';
            like($answer, qr/^x-model: m$/m, "$title: model");
            like($answer, qr/^x-blocks: $blocks$/m, "$title: prompt");
        }

        # An answer before the end of the body comes with RST_STREAM, which
        # curl may take for a failure.
        my $answer = h2("$path/completions", $body, '-H',
                        'routing-strategy: no');
        like($answer, qr/^HTTP\/2\ 400.*\nx-error-routing:\ true\n.*
                         \n\n\{"error":\{"message":"incorrect/xs,
             "$path, refused") if $path ne '/v1/unbuffered';

        like(h2("$path/models", '', '-H', 'routing-strategy: no'),
             qr/^HTTP\/2 400 *$/m, "$path, refused GET");
        like(h2("$path/models", ''), qr/^HTTP\/2 200 *$/m, "$path, GET");
    }

    like(h2('/model', $body, @unsized), qr/^m$/m,
         '$aibrix_model in the rewrite phase, without content-length');
};


is($nginx->stop, 0, 'stops in order');
is_deeply([$nginx->log_at], [], 'nothing alarming in the log');
is_deeply([grep { !/intended to send too large/ } $nginx->log_at('error')],
          [], 'and no error');

done_testing;
