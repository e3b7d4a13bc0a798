# What a response has from us: headers, variables for the log, and an SSE
# answer that is not buffered.

use lib 't/lib';
use AibrixTest;
use Test::Nginx::Socket 'no_plan';
use RouterBlocks;

repeat_each(2);
no_long_string();
worker_connections(256);

our $hello = completion('Hello');

our $one = <<'EOC';
server 127.0.0.1:$TEST_NGINX_ENGINE_1;
aibrix prefix-cache;
EOC

# Each of the four has exactly one value.
our $headers = join "\n",
    "target-pod: 127.0.0.1:$ENV{TEST_NGINX_ENGINE_1}",
    "target-pod-ip: 127.0.0.1:$ENV{TEST_NGINX_ENGINE_1}",
    'routing-strategy: prefix-cache';
our $no_headers = join "\n", map { "! $_" }
                  qw(target-pod target-pod-ip routing-strategy request-id);

our $log_format = <<'EOC';
    log_format ours "ours: $aibrix_model $aibrix_stream $aibrix_strategy "
        "$aibrix_selection $aibrix_match_percent $aibrix_blocks "
        "$aibrix_target_pod $aibrix_target_pod_ip $aibrix_ttft "
        "$sent_http_target_pod";
EOC

# An engine that answers with events.
our $sse = <<'EOC';
    location / {
        default_type text/event-stream;
        return 200 'data: {"choices":[{"text":"one"}]}\n\ndata: [DONE]\n\n';
    }
EOC
our $events = qq(data: {"choices":[{"text":"one"}]}\n\ndata: [DONE]\n\n);

our $large = join '', map { "data: $_\n\n" } 1 .. 50000;

our @errors = (400, 401, 404, 422, 429, 500, 503);
our @error;
$error[$_] = '{"error":{"message":"of the engine","code":' . $_ . '}}'
    for @errors;

# What the core says of a response that is passed on as it comes, or not.
our $unbuffered = 'http upstream process non buffered downstream';
our $buffered = 'pipe read upstream';

our $has_filters = `$ENV{TEST_NGINX_BINARY} -V 2>&1`
                   =~ /http_addition_module.*http_sub_module/s;

run_tests();

__DATA__

=== TEST 1: the four headers
--- llm eval: $::one
--- config
    location /v1/ {
        proxy_pass http://llm;
        add_header X-same $request_id;
    }
--- request eval: "POST /v1/completions\n$::hello"
--- response_headers eval: $::headers
--- raw_response_headers_like: request-id: ([0-9a-f]{32})\r\nX-same: \1\r\n
--- response_body
one



=== TEST 2: the pod as the server line has it, the address as it was resolved
--- llm
server localhost:$TEST_NGINX_ENGINE_1;
aibrix prefix-cache;
--- more_http
    server {
        listen [::1]:$TEST_NGINX_ENGINE_1;
        return 200 "one\n";
    }
--- request
GET /v1/models
--- response_headers_like eval
"target-pod: localhost:$ENV{TEST_NGINX_ENGINE_1}\n"
. "target-pod-ip: (?:127\\.0\\.0\\.1|\\[::1\\]):$ENV{TEST_NGINX_ENGINE_1}"
--- response_body
one



=== TEST 3: HEAD
--- llm eval: $::one
--- request
HEAD /v1/models
--- response_headers eval: $::headers
--- raw_response_headers_like: request-id: [0-9a-f]{32}\r\n
--- response_body



=== TEST 4: 204
--- llm eval: $::one
--- engine
    location / { return 204; }
--- request
GET /v1/models
--- error_code: 204
--- response_headers eval: $::headers
--- response_body



=== TEST 5: 304
--- llm eval: $::one
--- engine
    location / { return 304; }
--- request
GET /v1/models
--- error_code: 304
--- response_headers eval: $::headers
--- response_body



=== TEST 6: errors of the engine pass unchanged, with the headers
--- llm eval: $::one
--- engine eval
CORE::join '', 'default_type application/json;',
    map { "location /v1/$_ { return $_ '$::error[$_]'; "
          . "add_header Retry-After 7 always; }" } @::errors
--- pipelined_requests eval: [map { "POST /v1/$_\n$::hello" } @::errors]
--- error_code eval: [@::errors]
--- response_headers eval
[("$::headers\nContent-Type: application/json\nRetry-After: 7") x @::errors]
--- response_body eval: [@::error[@::errors]]



=== TEST 7: 502 of a replica that is not there names it
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_DEAD;
aibrix prefix-cache;
--- request eval: "POST /v1/completions\n$::hello"
--- error_code: 502
--- response_headers
target-pod: 127.0.0.1:$TEST_NGINX_ENGINE_DEAD
target-pod-ip: 127.0.0.1:$TEST_NGINX_ENGINE_DEAD
routing-strategy: prefix-cache
X-model: m
--- response_body_like: 502 Bad Gateway
--- errors
--- error_log
connect() failed (111: Connection refused) while connecting to upstream



=== TEST 8: 502 of one that hangs up
--- llm eval: $::one
--- engine
    location / { return 444; }
--- request eval: "POST /v1/completions\n$::hello"
--- error_code: 502
--- response_headers eval: $::headers
--- errors
--- error_log
upstream prematurely closed connection



=== TEST 9: an error page of the front
--- llm eval: $::one
--- user_files
>>> busy.txt
all are busy
--- engine
    location / { return 503 "of the engine\n"; }
--- config
    location /v1/ {
        proxy_pass http://llm;
        proxy_intercept_errors on;
        error_page 503 /busy.txt;
    }
--- request eval: "POST /v1/completions\n$::hello"
--- error_code: 503
--- response_headers eval: $::headers
--- response_body
all are busy



=== TEST 10: headers of these names from the engine are replaced
--- llm eval: $::one
--- engine
    location / {
        add_header target-pod wrong always;
        add_header Target-Pod wronger always;
        add_header TARGET-POD-IP wrong always;
        add_header routing-strategy wrong always;
        add_header request-id wrong always;
        add_header x-other right always;
        return 200 "$engine\n";
    }
--- request eval: "POST /v1/completions\n$::hello"
--- response_headers eval: "$::headers\nx-other: right"
--- raw_response_headers_unlike: wrong



=== TEST 11: with aibrix_headers off they are not
--- llm eval: $::one
--- engine
    location / {
        add_header target-pod "of the engine";
        return 200 "$engine\n";
    }
--- config
    location /v1/ {
        aibrix_headers off;
        proxy_pass http://llm;
        add_header X-pod $aibrix_target_pod;
    }
--- request eval: "POST /v1/completions\n$::hello"
--- response_headers
target-pod: of the engine
! target-pod-ip
! routing-strategy
! request-id
X-pod: 127.0.0.1:$TEST_NGINX_ENGINE_1
--- response_body
one



=== TEST 12: aibrix_headers is inherited
--- llm eval: $::one
--- more_http
    aibrix_headers off;
--- config
    location /v1/on {
        aibrix_headers on;
        proxy_pass http://llm;
    }
    location /v1/ {
        proxy_pass http://llm;
    }
--- pipelined_requests eval: ["GET /v1/off", "GET /v1/on"]
--- response_headers eval: [$::no_headers, $::headers]



=== TEST 13: no upstream of ours, no headers
--- config
    location /v1/ {
        proxy_pass http://127.0.0.1:$TEST_NGINX_ENGINE_1;
    }
    location /text {
        return 200 "text\n";
    }
--- pipelined_requests eval: ["GET /v1/models", "GET /text"]
--- response_headers eval: [($::no_headers) x 2]



=== TEST 14: $sent_http_target_pod and add_header
--- llm eval: $::one
--- config
    location /v1/ {
        proxy_pass http://llm;
        add_header X-pod "$sent_http_target_pod" always;
        add_header X-how "$sent_http_routing_strategy" always;
    }
--- request eval: "POST /v1/completions\n$::hello"
--- response_headers
X-pod: 127.0.0.1:$TEST_NGINX_ENGINE_1
X-how: prefix-cache



=== TEST 15: expires, Set-Cookie and headers hidden by the operator
--- llm eval: $::one
--- engine
    location / {
        add_header Set-Cookie a=1;
        add_header Set-Cookie b=2;
        add_header X-secret x;
        return 200 "$engine\n";
    }
--- config
    location /v1/ {
        expires 1h;
        proxy_hide_header X-secret;
        proxy_hide_header target-pod;
        proxy_pass http://llm;
    }
--- request eval: "POST /v1/completions\n$::hello"
--- response_headers eval
"$::headers\nSet-Cookie: a=1, b=2\nCache-Control: max-age=3600\n! X-secret"



=== TEST 16: variables in the log
--- llm eval: $::one
--- more_http eval: $::log_format
--- config
    location /v1/ {
        access_log logs/access.log ours;
        proxy_pass http://llm;
    }
--- request eval: "POST /v1/completions\n$::hello"
--- access_log eval
qr/^ours: m 0 prefix-cache \w+ 0 0 (127\.0\.0\.1:\d+) \1 \d+\.\d\d\d \1$/



=== TEST 17: variables in the log of a streaming request with a prefix
--- llm eval: "$::one\naibrix_block_size 1;"
--- more_http eval: $::log_format
--- engine eval: $::sse
--- config
    location /v1/ {
        access_log logs/access.log ours;
        proxy_pass http://llm;
    }
--- pipelined_requests eval
[map { "POST /v1/completions\n" . main::completion("TEST 17$_",
       stream => \'true') } '', '']
--- access_log eval
qr/^ours:\ m\ 1\ prefix-cache\ single_candidate\ 100\ 7
   \ (127\.0\.0\.1:\d+)\ \1\ \d+\.\d\d\d\ \1$/x



=== TEST 18: variables in the log of a 502: no first byte
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_DEAD;
aibrix random;
--- more_http eval: $::log_format
--- config
    location /v1/ {
        access_log logs/access.log ours;
        proxy_pass http://llm;
    }
--- request eval: "POST /v1/completions\n$::hello"
--- error_code: 502
--- access_log eval
qr/^ours: m 0 random \w+ 0 0 (127\.0\.0\.1:\d+) \1 - \1$/
--- errors



=== TEST 19: variables in the log of a request without a peer
--- more_http eval: $::log_format
--- config
    location /v1/ {
        access_log logs/access.log ours;
        return 200 "text\n";
    }
--- request eval: "POST /v1/completions\n$::hello"
--- access_log
ours: - - - - - - - - - -



=== TEST 20: variables used early are empty, and are known later
--- llm eval: $::one
--- more_http
    map "$aibrix_target_pod$aibrix_strategy$aibrix_ttft" $early {
        volatile;
        default "[$aibrix_strategy]";
    }
--- config
    location /v1/ {
        set $then "[$aibrix_strategy$aibrix_model$aibrix_blocks]";
        proxy_pass http://llm;
        add_header X-then "$then";
        add_header X-now $early;
    }
--- request eval: "POST /v1/completions\n$::hello"
--- response_headers
X-then: []
X-now: [prefix-cache]



=== TEST 21: SSE is not buffered
--- engine eval: $::sse
--- request eval: "POST /v1/completions\n$::hello"
--- response_headers
Content-Type: text/event-stream
--- response_body eval: $::events
--- error_log eval: $::unbuffered
--- no_error_log eval
[$::buffered, '[error]', '[alert]', '[crit]', '[emerg]']



=== TEST 22: whatever proxy_buffering says, and with a charset
--- engine
    location / {
        default_type "Text/Event-Stream; charset=utf-8";
        return 200 "data: one\n\n";
    }
--- config
    location /v1/ {
        proxy_buffering on;
        proxy_pass http://llm;
    }
--- request eval: "POST /v1/completions\n$::hello"
--- response_body eval: "data: one\n\n"
--- error_log eval: $::unbuffered
--- no_error_log eval
[$::buffered, '[error]', '[alert]', '[crit]', '[emerg]']



=== TEST 23: aibrix_sse off leaves it to proxy_buffering
--- engine eval: $::sse
--- config
    location /v1/ {
        aibrix_sse off;
        proxy_pass http://llm;
    }
--- request eval: "POST /v1/completions\n$::hello"
--- response_body eval: $::events
--- error_log eval: $::buffered
--- no_error_log eval
[$::unbuffered, '[error]', '[alert]', '[crit]', '[emerg]']



=== TEST 24: other answers stay buffered
--- engine
    location / {
        default_type application/json;
        return 200 '{"choices":[]}';
    }
--- request eval: "POST /v1/completions\n$::hello"
--- response_body: {"choices":[]}
--- error_log eval: $::buffered
--- no_error_log eval
[$::unbuffered, '[error]', '[alert]', '[crit]', '[emerg]']



=== TEST 25: and so does SSE of an upstream without aibrix
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1;
--- engine eval: $::sse
--- request eval: "POST /v1/completions\n$::hello"
--- response_body eval: $::events
--- error_log eval: $::buffered
--- no_error_log eval
[$::unbuffered, '[error]', '[alert]', '[crit]', '[emerg]']



=== TEST 26: a large stream, whole and in order
--- user_files eval: [['stream.sse' => $::large]]
--- engine
    location / {
        default_type text/event-stream;
        root html;
        rewrite ^ /stream.sse break;
        error_page 405 =200 /stream.sse;
    }
--- pipelined_requests eval
["GET /v1/models", "POST /v1/completions\n$::hello", "GET /v1/models"]
--- response_body eval: [($::large) x 3]



=== TEST 27: SSE with gzip
--- engine eval: $::sse
--- config
    location /v1/ {
        gzip on;
        gzip_types text/event-stream;
        gzip_min_length 1;
        proxy_pass http://llm;
    }
--- request eval: "POST /v1/completions\n$::hello"
--- more_headers
Accept-Encoding: gzip
--- response_headers
Content-Encoding: gzip
routing-strategy: prefix-cache
--- response_body_filters eval
sub { my $in = shift; my $out;
      require IO::Uncompress::Gunzip;
      IO::Uncompress::Gunzip::gunzip(\$in => \$out); $out }
--- response_body eval: $::events
--- error_log eval: $::unbuffered



=== TEST 28: SSE over HTTP/1.0
--- engine eval: $::sse
--- raw_request eval
"POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nContent-Length: "
. length($::hello) . "\r\n\r\n$::hello"
--- response_headers
routing-strategy: prefix-cache
--- response_body eval: $::events
--- error_log eval: $::unbuffered



=== TEST 29: what a cache takes is buffered, and cached
--- more_http
    proxy_cache_path cache keys_zone=cache:1m;
--- engine eval: $::sse
--- config
    location /v1/ {
        proxy_cache cache;
        proxy_cache_valid 200 1h;
        proxy_cache_key $uri$connection;
        proxy_pass http://llm;
        add_header X-cache $upstream_cache_status;
    }
--- pipelined_requests eval: ["GET /v1/models", "GET /v1/models"]
--- response_headers eval
["X-cache: MISS\nrouting-strategy: prefix-cache",
 "X-cache: HIT\n$::no_headers"]
--- response_body eval: [($::events) x 2]
--- no_error_log eval
[$::unbuffered, '[error]', '[alert]', '[crit]', '[emerg]']



=== TEST 30: where a cache is, but not for POST, SSE is not buffered
--- more_http
    proxy_cache_path cache keys_zone=cache:1m;
--- engine eval: $::sse
--- config
    location /v1/ {
        proxy_cache cache;
        proxy_cache_valid 200 1h;
        proxy_pass http://llm;
    }
--- request eval: "POST /v1/completions\n$::hello"
--- response_body eval: $::events
--- error_log eval: $::unbuffered
--- no_error_log eval
[$::buffered, '[error]', '[alert]', '[crit]', '[emerg]']



=== TEST 31: what is stored is buffered, and stored
--- engine eval: $::sse
--- config
    location /v1/ {
        proxy_store $document_root/kept-$arg_n;
        proxy_pass http://llm;
    }
    location /kept- {
        default_type text/event-stream;
    }
--- pipelined_requests eval: ["GET /v1/models?n=1", "GET /kept-1"]
--- response_body eval: [($::events) x 2]
--- no_error_log eval
[$::unbuffered, '[error]', '[alert]', '[crit]', '[emerg]']



=== TEST 32: SSE with an error status
--- engine
    location / {
        default_type text/event-stream;
        return 500 "data: error\n\n";
    }
--- request eval: "POST /v1/completions\n$::hello"
--- error_code: 500
--- response_body eval: "data: error\n\n"
--- response_headers
routing-strategy: prefix-cache



=== TEST 33: SSE in a subrequest
--- engine eval: $::sse
--- config
    location = / {
        ssi on;
        ssi_types text/plain;
        default_type text/plain;
        return 200 'a <!--#include virtual="/v1/x" --> z';
    }
    location /v1/ {
        proxy_pass http://llm;
    }
--- request
GET /
--- response_body eval: "a $::events z"
--- response_headers eval: $::no_headers



=== TEST 34: filters before and after ours
--- skip_eval: 7: !$::has_filters
--- llm eval: $::one
--- config
    location /v1/ {
        proxy_pass http://llm;
        sub_filter one eins;
        sub_filter_types *;
        add_after_body /after;
        addition_types *;
    }
    location /after {
        return 200 "after\n";
    }
--- request eval: "POST /v1/completions\n$::hello"
--- response_headers eval: $::headers
--- response_body
eins
after



=== TEST 35: headers of a refused client are not ours
--- config
    location /v1/ {
        deny all;
        proxy_pass http://llm;
    }
--- request eval: "POST /v1/completions\n$::hello"
--- error_code: 403
--- response_headers eval: $::no_headers
--- errors
--- error_log
access forbidden by rule
