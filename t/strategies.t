# Which strategy a request gets, and what becomes of one that names none of
# ours.

use lib 't/lib';
use AibrixTest;
use Test::Nginx::Socket 'no_plan';
use RouterBlocks;

repeat_each(2);
worker_connections(256);
no_long_string();

# The refusal of a name, as far as strategies added later leave it alone.
sub refusal
{
    my $name = quotemeta shift;

    return qr/^\{"error":\{"message":"incorrect\ routing\ strategy\ $name;
              \ use\ one\ of\ random,\ least-request,\ prefix-cache
              (?:,\ [a-z0-9-]+)*",
              "type":"invalid_request_error","code":null,"param":null\}\}\n$/x;
}

our $body = completion('Hello');

# What a request with Transfer-Encoding, or with pauses, is made of.
sub post
{
    my ($body, @headers) = @_;

    return join "\r\n", 'POST /v1/completions HTTP/1.1', 'Host: localhost',
                        'Connection: close', @headers, '', $body;
}

our $chunked = sprintf "%x\r\n%s\r\n0\r\n\r\n", length $body, $body;

our $slow_body = [post(substr($body, 0, 10),
                       'Content-Length: ' . length $body,
                       'routing-strategy: nope'), substr $body, 10];

our $same_prefix = [map {
    "POST /v1/completions\n"
    . completion('TEST 41: ' . join(' ', 1 .. 1000) . " $_")
} 1 .. 10];

$ENV{TEST_NGINX_INCLUDES} = join '', map {
    "<!--#include virtual=\"/v1/$_\" -->"
} 1 .. 40;

run_tests();

__DATA__

=== TEST 1: no header, no parameter: least-work
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1;
aibrix;
--- request eval: "POST /v1/completions\n$::body"
--- response_headers
routing-strategy: least-work
X-strategy: least-work



=== TEST 2: random by header
--- request eval: "POST /v1/completions\n$::body"
--- more_headers
routing-strategy: random
--- response_headers
routing-strategy: random
X-selection: random



=== TEST 3: least-request by header
--- request eval: "POST /v1/completions\n$::body"
--- more_headers
routing-strategy: least-request
--- response_headers
routing-strategy: least-request
X-selection: least_request



=== TEST 4: prefix-cache by header, over another default
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1;
aibrix random;
--- request eval: "POST /v1/completions\n$::body"
--- more_headers
Routing-Strategy: prefix-cache
--- response_headers
routing-strategy: prefix-cache



=== TEST 5: a header takes effect on its own request only
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1;
aibrix least-request;
--- pipelined_requests eval
["POST /v1/completions\n$::body", "POST /v1/completions\n$::body",
 "POST /v1/completions\n$::body"]
--- more_headers eval
['routing-strategy: random', '', 'routing-strategy: prefix-cache']
--- response_headers eval
['routing-strategy: random', 'routing-strategy: least-request',
 'routing-strategy: prefix-cache']



=== TEST 6: an empty header is none
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1;
aibrix least-request;
--- request eval: "POST /v1/completions\n$::body"
--- more_headers
routing-strategy:
--- error_code: 200
--- response_headers
routing-strategy: least-request



=== TEST 7: a blank header is none
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1;
aibrix least-request;
--- raw_request eval
::post($::body, 'Content-Length: ' . length $::body,
       "routing-strategy: \t ")
--- error_code: 200
--- response_headers
routing-strategy: least-request



=== TEST 8: blanks around a name do not count
--- raw_request eval
::post($::body, 'Content-Length: ' . length $::body,
       "routing-strategy:  \trandom\t ")
--- error_code: 200
--- response_headers
routing-strategy: random



=== TEST 9: of two headers, the first that is not blank counts
--- raw_request eval
::post($::body, 'Content-Length: ' . length $::body, 'routing-strategy:',
       'routing-strategy: random', 'routing-strategy: nope')
--- error_code: 200
--- response_headers
routing-strategy: random



=== TEST 10: an unknown name is refused
--- request eval: "POST /v1/completions\n$::body"
--- more_headers
routing-strategy: nope
--- error_code: 400
--- response_headers
x-error-routing: true
Content-Type: application/json
! target-pod
! target-pod-ip
! routing-strategy
--- response_body_like eval: ::refusal('nope')



=== TEST 11: names are case-sensitive
--- request eval: "POST /v1/completions\n$::body"
--- more_headers
routing-strategy: Random
--- error_code: 400
--- response_body_like eval: ::refusal('Random')



=== TEST 12: a list of names is no name
--- request eval: "POST /v1/completions\n$::body"
--- more_headers
routing-strategy: random, prefix-cache
--- error_code: 400
--- response_body_like eval: ::refusal('random, prefix-cache')



=== TEST 13: whatever the name is, the answer is JSON
--- request eval: "POST /v1/completions\n$::body"
--- more_headers eval
qq{routing-strategy: a"b\\c\xff\xc3\xbc<script>}
--- error_code: 400
--- response_body_like eval: ::refusal('a\"b\\\\c???<script>')



=== TEST 14: a long name is cut
--- request eval: "POST /v1/completions\n$::body"
--- more_headers eval: 'routing-strategy: ' . 'x' x 2000
--- error_code: 400
--- response_body_like eval: ::refusal('x' x 64)



=== TEST 15: the length of the refusal is right, and the connection goes on
--- pipelined_requests eval
["POST /v1/completions\n$::body", "POST /v1/completions\n$::body",
 "GET /v1/models", "POST /v1/completions\n$::body"]
--- more_headers eval
['routing-strategy: nope', 'routing-strategy: random',
 'routing-strategy: nope', 'routing-strategy: least-request']
--- error_code eval: [400, 200, 400, 200]
--- response_headers eval
['x-error-routing: true', 'routing-strategy: random',
 'x-error-routing: true', 'routing-strategy: least-request']
--- response_body_like eval
[::refusal('nope'), qr/^(?:one|two)$/, ::refusal('nope'),
 qr/^(?:one|two)$/]



=== TEST 16: refused without a body
--- request
GET /v1/models
--- more_headers
routing-strategy: nope
--- error_code: 400
--- response_headers
x-error-routing: true
--- response_body_like eval: ::refusal('nope')



=== TEST 17: refused over HTTP/1.0
--- raw_request eval
"GET /v1/models HTTP/1.0\r\nHost: localhost\r\nrouting-strategy: nope\r\n\r\n"
--- error_code: 400
--- response_headers
x-error-routing: true
Connection: close
--- response_body_like eval: ::refusal('nope')



=== TEST 18: HEAD is refused without a body
--- request
HEAD /v1/models
--- more_headers
routing-strategy: nope
--- error_code: 400
--- response_headers
x-error-routing: true
Content-Type: application/json
--- response_body



=== TEST 19: refused after a chunked body
--- request eval: "POST /v1/completions\n$::chunked"
--- more_headers
Transfer-Encoding: chunked
routing-strategy: nope
--- error_code: 400
--- response_headers
x-error-routing: true
--- response_body_like eval: ::refusal('nope')



=== TEST 20: refused after a body that went to a file
--- config
    location /v1/ {
        client_body_in_file_only clean;
        proxy_pass http://llm;
    }
--- pipelined_requests eval
["POST /v1/completions\n$::body", "POST /v1/completions\n$::body"]
--- more_headers eval: ['routing-strategy: nope', 'routing-strategy: random']
--- error_code eval: [400, 200]
--- response_body_like eval: [::refusal('nope'), qr/^(?:one|two)$/]



=== TEST 21: refused while the body still comes, unbuffered
--- config
    location /v1/ {
        proxy_request_buffering off;
        proxy_http_version 1.1;
        proxy_pass http://llm;
    }
--- raw_request eval: $::slow_body
--- raw_request_middle_delay: 0.1
--- error_code: 400
--- response_headers
x-error-routing: true
Connection: close
--- response_body_like eval: ::refusal('nope')



=== TEST 22: an unbuffered body that came with the head
--- config
    location /v1/ {
        proxy_request_buffering off;
        proxy_http_version 1.1;
        proxy_pass http://llm;
    }
--- pipelined_requests eval
["POST /v1/completions\n$::body", "POST /v1/completions\n$::body"]
--- more_headers eval: ['routing-strategy: random', 'routing-strategy: nope']
--- error_code eval: [200, 400]
--- response_body_like eval: [qr/^(?:one|two)$/, ::refusal('nope')]



=== TEST 23: refused with aibrix_read_body
--- config
    location /v1/ {
        aibrix_read_body on;
        proxy_pass http://llm;
    }
--- pipelined_requests eval
["POST /v1/completions\n$::body", "POST /v1/completions\n$::body"]
--- more_headers eval: ['routing-strategy: nope', 'routing-strategy: random']
--- error_code eval: [400, 200]
--- response_body_like eval: [::refusal('nope'), qr/^(?:one|two)$/]



=== TEST 24: refused by an upstream that a variable names
--- config
    location /v1/ {
        set $up llm;
        proxy_pass http://$up;
    }
--- request eval: "POST /v1/completions\n$::body"
--- more_headers
routing-strategy: nope
--- error_code: 400
--- response_body_like eval: ::refusal('nope')



=== TEST 25: refused in a named location, after error_page
--- config
    location /v1/ {
        error_page 404 = @llm;
        return 404;
    }
    location @llm {
        proxy_pass http://llm;
    }
--- pipelined_requests eval
["POST /v1/completions\n$::body", "POST /v1/completions\n$::body"]
--- more_headers eval: ['routing-strategy: nope', 'routing-strategy: random']
--- error_code eval: [400, 200]
--- response_headers eval
['x-error-routing: true', 'routing-strategy: random']
--- response_body_like eval: [::refusal('nope'), qr/^(?:one|two)$/]



=== TEST 26: a refusal is no error of the upstream: error_page is not asked
--- config
    location /v1/ {
        error_page 400 = @other;
        proxy_intercept_errors on;
        proxy_pass http://llm;
    }
    location @other {
        return 200 "other\n";
    }
--- request eval: "POST /v1/completions\n$::body"
--- more_headers
routing-strategy: nope
--- error_code: 400
--- response_body_like eval: ::refusal('nope')



=== TEST 27: a refused subrequest
--- config
    location /ssi {
        ssi on;
        ssi_types text/plain;
        default_type text/plain;
        return 200 'before <!--#include virtual="/v1/models" --> after';
    }
    location /v1/ {
        proxy_pass http://llm;
    }
--- pipelined_requests eval: ["GET /ssi", "GET /ssi", "GET /ssi"]
--- more_headers eval
['routing-strategy: nope', 'routing-strategy: random',
 'routing-strategy: nope']
--- response_body_like eval
[qr/^before \{"error":.*nope.*\}\}\n after$/s, qr/^before (one|two)\n after$/,
 qr/^before \{"error":.*nope.*\}\}\n after$/s]



=== TEST 28: a refused auth_request
--- config
    location /gif {
        auth_request /v1/auth;
        empty_gif;
    }
    location /v1/ {
        proxy_pass http://llm;
    }
--- request
GET /gif
--- more_headers
routing-strategy: nope
--- error_code: 500
--- response_headers
! x-error-routing
--- errors
--- error_log
auth request unexpected status: 400



=== TEST 29: a refused mirror
--- config
    location /v1/ {
        mirror /mirror;
        return 200 "passed\n";
    }
    location /x {
        mirror /mirror;
        proxy_pass http://plain;
    }
    location /mirror {
        internal;
        proxy_pass http://llm$request_uri;
    }
--- more_http
    upstream plain {
        server 127.0.0.1:$TEST_NGINX_ENGINE_3;
    }
--- pipelined_requests eval
["POST /x\n$::body", "POST /x\n$::body"]
--- more_headers eval: ['routing-strategy: nope', 'routing-strategy: random']
--- response_body eval: ["three\n", "three\n"]



=== TEST 30: an upstream without aibrix never refuses
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1;
--- request eval: "POST /v1/completions\n$::body"
--- more_headers
routing-strategy: nope
--- response_headers
! x-error-routing
! routing-strategy
! target-pod
--- response_body
one



=== TEST 31: nor does an address
--- config
    location /v1/ {
        aibrix_read_body on;
        proxy_pass http://127.0.0.1:$TEST_NGINX_ENGINE_1;
    }
--- request eval: "POST /v1/completions\n$::body"
--- more_headers
routing-strategy: nope
--- response_headers
! x-error-routing
--- response_body
one



=== TEST 32: aibrix_override off: the header is ignored
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1;
aibrix least-request;
aibrix_override off;
--- pipelined_requests eval
["POST /v1/completions\n$::body", "POST /v1/completions\n$::body"]
--- more_headers eval: ['routing-strategy: nope', 'routing-strategy: random']
--- response_headers eval
["routing-strategy: least-request\n! x-error-routing",
 'routing-strategy: least-request']



=== TEST 33: aibrix_override in http is a default for upstreams
--- more_http
    aibrix_override off;

    upstream open {
        server 127.0.0.1:$TEST_NGINX_ENGINE_2;
        aibrix;
        aibrix_override on;
    }
--- config
    location /v1/ {
        proxy_pass http://llm;
    }
    location /open {
        proxy_pass http://open;
    }
--- pipelined_requests eval: ["GET /v1/models", "GET /open"]
--- more_headers
routing-strategy: random
--- response_headers eval
['routing-strategy: prefix-cache', 'routing-strategy: random']



=== TEST 34: strategy by map on the model
--- more_http
    map $aibrix_model $strategy {
        default       "";
        ~^small       random;
        big           least-request;
    }
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1;
aibrix $strategy;
--- pipelined_requests eval
['POST /v1/completions
{"model": "small-7b", "prompt": "x"}',
'POST /v1/completions
{"model": "big", "prompt": "x"}',
'POST /v1/completions
{"model": "other", "prompt": "x"}',
'GET /v1/models']
--- response_headers eval
['routing-strategy: random', 'routing-strategy: least-request',
 'routing-strategy: least-work', 'routing-strategy: least-work']



=== TEST 35: the header goes before a variable
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1;
aibrix $arg_s;
--- request
GET /v1/models?s=least-request
--- more_headers
routing-strategy: random
--- response_headers
routing-strategy: random



=== TEST 36: text around a variable
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1;
aibrix least-$arg_s;
--- request
GET /v1/models?s=request
--- response_headers
routing-strategy: least-request



=== TEST 37: a variable without value: the default
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1;
aibrix $arg_s;
--- request
GET /v1/models
--- response_headers
routing-strategy: least-work



=== TEST 38: a variable with an unknown name is the operator's mistake
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1;
aibrix $arg_s;
--- request
GET /v1/models?s=nope
--- error_code: 200
--- response_headers
routing-strategy: least-work
--- error_log
[warn]
unknown strategy "nope" in upstream "llm", using "least-work"



=== TEST 39: the header is passed on to the engine
--- engine
location / { return 200 "$http_routing_strategy\n"; }
--- request
GET /v1/models
--- more_headers
routing-strategy: random
--- response_body
random



=== TEST 40: least-request goes where nothing is on its way
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1;
server 127.0.0.1:$TEST_NGINX_ENGINE_2;
server 127.0.0.1:$TEST_NGINX_ENGINE_3;
aibrix least-request;
--- engine eval: $::chain
--- request
GET /v1/3
--- response_body_like eval: qr/^(\w+),(?!\1)(\w+),(?!\1|\2)\w+$/



=== TEST 41: prefix-cache goes where the prefix is
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1;
server 127.0.0.1:$TEST_NGINX_ENGINE_2;
server 127.0.0.1:$TEST_NGINX_ENGINE_3;
server 127.0.0.1:$TEST_NGINX_ENGINE_4;
aibrix prefix-cache;
--- pipelined_requests eval: $::same_prefix
--- response_headers eval
['X-blocks: 30', ("X-selection: prefix_match\nX-match-percent: 100") x 9]



=== TEST 42: random goes everywhere
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1;
server 127.0.0.1:$TEST_NGINX_ENGINE_2;
aibrix random;
--- config
    location = / {
        ssi on;
        ssi_types text/plain;
        default_type text/plain;
        return 200 '$TEST_NGINX_INCLUDES';
    }
    location /v1/ {
        proxy_pass http://llm;
    }
--- request
GET /
--- response_body_like: ^(?=.*one)(?=.*two)
