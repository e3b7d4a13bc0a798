# Which peers a request may go to: server parameters, retries, zone,
# keepalive, kinds of addresses. Engines that wait for another request of
# theirs ($::chain) show where requests go while others are on their way.

use lib 't/lib';
use AibrixTest;
use IO::Socket::IP;
use Test::Nginx::Socket 'no_plan';
use RouterBlocks;

repeat_each(2);
no_long_string();
worker_connections(512);

$ENV{TEST_NGINX_ENGINE_SOCKET} = scratch_dir() . '/engine.sock';

our $hello = completion('Hello');

our $has_ipv6 = IO::Socket::IP->new(LocalHost => '::1', Listen => 1);

# What a 502 for want of peers has: nobody was chosen.
our $nobody = join "\n", map { "! $_" }
              qw(target-pod target-pod-ip routing-strategy request-id);

our $show = "$::show\nadd_header X-addr \$upstream_addr always;\n"
            . "add_header X-status \$upstream_status always;\n";

# A location that tries the next peer on everything.
our $retry = <<"EOC";
    location /v1/ {
        proxy_pass http://llm;
        proxy_next_upstream error timeout http_500 http_503 http_429
                            non_idempotent;
        $show
    }
EOC

# Engines: one works, the others answer 503.
our $one_works = <<'EOC';
    location / {
        if ($engine != one) {
            return 503 "busy\n";
        }
        return 200 "$engine\n";
    }
EOC

# 149 addresses nobody listens on, and one that somebody does.
our $many = CORE::join '', map {
    "server 127.0.1.$_:\$TEST_NGINX_ENGINE_DEAD max_fails=0;\n"
} 1 .. 149;

run_tests();

__DATA__

=== TEST 1: one server
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1;
aibrix prefix-cache;
--- pipelined_requests eval: [("POST /v1/completions\n$::hello") x 3]
--- response_headers eval
[("target-pod: 127.0.0.1:$ENV{TEST_NGINX_ENGINE_1}\n"
  . "X-selection: single_candidate") x 3]
--- response_body eval: [("one\n") x 3]



=== TEST 2: weight divides load
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1 weight=3;
server 127.0.0.1:$TEST_NGINX_ENGINE_2;
aibrix least-request;
--- engine eval: $::chain
--- request
GET /v1/4
--- response_body_like: ^(one,two,one,one|two,one,one,one)$



=== TEST 3: weight with a shared zone of peers
--- llm
zone llm 64k;
server 127.0.0.1:$TEST_NGINX_ENGINE_1 weight=3;
server 127.0.0.1:$TEST_NGINX_ENGINE_2;
aibrix least-request;
--- engine eval: $::chain
--- request
GET /v1/3
--- response_body_like: ^(one,two,one|two,one,one)$



=== TEST 4: without a prefix, prefix-cache takes the least loaded
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1;
server 127.0.0.1:$TEST_NGINX_ENGINE_2;
aibrix prefix-cache;
--- engine eval: $::chain
--- pipelined_requests eval: [("GET /v1/2") x 5]
--- response_body_like eval: [('^(one,two|two,one)$') x 5]



=== TEST 5: aibrix_imbalance
# Load of the prefix's engine is 1 above the other's: not more than 1, so it
# gets the second request too; with 0 it does not.
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1;
server 127.0.0.1:$TEST_NGINX_ENGINE_2;
aibrix prefix-cache;
aibrix_imbalance 1;
aibrix_block_size 1;
--- more_http
    upstream strict {
        server 127.0.0.1:$TEST_NGINX_ENGINE_3;
        server 127.0.0.1:$TEST_NGINX_ENGINE_4;
        aibrix prefix-cache;
        aibrix_imbalance 0;
        aibrix_block_size 1;
    }
--- config
    location /v1/ {
        proxy_pass http://llm;
    }
    location /strict/ {
        proxy_pass http://strict;
    }
--- engine
    location /strict/2 {
        proxy_set_header X-path "$engine,";
        proxy_pass http://127.0.0.1:$TEST_NGINX_SERVER_PORT/strict/1;
    }
    location /v1/2 {
        proxy_set_header X-path "$engine,";
        proxy_pass http://127.0.0.1:$TEST_NGINX_SERVER_PORT/v1/1;
    }
    location / { return 200 "$http_x_path$engine\n"; }
--- pipelined_requests eval
my $body = main::completion('TEST 5, a prefix');
["POST /v1/2\n$body", "POST /v1/2\n$body",
 "POST /strict/2\n$body", "POST /strict/2\n$body"]
--- response_body_like eval
['^(one,one|two,two)$', '^(one,one|two,two)$',
 '^(three,four|four,three)$', '^(three,four|four,three)$']



=== TEST 6: aibrix_stddev_factor
# Loads 1 and 0: mean 0.5, deviation 0.7. With factor 0 the engine of the
# prefix is above the limit, with 1 it is not.
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1;
server 127.0.0.1:$TEST_NGINX_ENGINE_2;
aibrix prefix-cache;
aibrix_block_size 1;
aibrix_stddev_factor 1;
--- more_http
    upstream strict {
        server 127.0.0.1:$TEST_NGINX_ENGINE_3;
        server 127.0.0.1:$TEST_NGINX_ENGINE_4;
        aibrix prefix-cache;
        aibrix_block_size 1;
        aibrix_stddev_factor 0;
    }
--- config
    location /v1/ {
        proxy_pass http://llm;
    }
    location /strict/ {
        proxy_pass http://strict;
    }
--- engine
    location /strict/2 {
        proxy_set_header X-path "$engine,";
        proxy_pass http://127.0.0.1:$TEST_NGINX_SERVER_PORT/strict/1;
    }
    location /v1/2 {
        proxy_set_header X-path "$engine,";
        proxy_pass http://127.0.0.1:$TEST_NGINX_SERVER_PORT/v1/1;
    }
    location / { return 200 "$http_x_path$engine\n"; }
--- pipelined_requests eval
my $body = main::completion('TEST 6, a prefix');
["POST /v1/2\n$body", "POST /v1/2\n$body",
 "POST /strict/2\n$body", "POST /strict/2\n$body"]
--- response_body_like eval
['^(one,one|two,two)$', '^(one,one|two,two)$',
 '^(three,four|four,three)$', '^(three,four|four,three)$']



=== TEST 7: max_conns
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1 max_conns=1;
server 127.0.0.1:$TEST_NGINX_ENGINE_2 max_conns=1;
aibrix random;
--- engine eval: $::chain
--- pipelined_requests eval: [("GET /v1/2") x 10]
--- response_body_like eval: [('^(one,two|two,one)$') x 10]



=== TEST 8: max_conns with a zone, and a prefix that must wait
--- llm
zone llm 64k;
server 127.0.0.1:$TEST_NGINX_ENGINE_1 max_conns=1;
server 127.0.0.1:$TEST_NGINX_ENGINE_2 max_conns=1;
aibrix prefix-cache;
aibrix_block_size 1;
aibrix_imbalance 100;
--- engine eval: $::chain
--- pipelined_requests eval
[("POST /v1/2\n" . main::completion('TEST 8')) x 10]
--- response_body_like eval: [('^(one,two|two,one)$') x 10]



=== TEST 9: all at max_conns
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1 max_conns=1;
server 127.0.0.1:$TEST_NGINX_ENGINE_2 max_conns=1;
aibrix prefix-cache;
--- engine eval: $::chain
--- request
GET /v1/3
--- error_code: 502
--- response_headers_like
target-pod: .+
--- errors
--- error_log
no live upstreams while connecting to upstream



=== TEST 10: down
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1;
server 127.0.0.1:$TEST_NGINX_ENGINE_2 down;
server 127.0.0.1:$TEST_NGINX_ENGINE_3 down;
aibrix random;
--- pipelined_requests eval: [("GET /v1/models") x 20]
--- response_body eval: [("one\n") x 20]



=== TEST 11: all down
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1 down;
server 127.0.0.1:$TEST_NGINX_ENGINE_2 down;
aibrix prefix-cache;
--- request eval: "POST /v1/completions\n$::hello"
--- error_code: 502
--- response_headers eval: "$::nobody\nX-model: m\n! X-strategy"
--- errors
--- error_log
no live upstreams while connecting to upstream



=== TEST 12: the only one is down
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1 down;
aibrix prefix-cache;
--- request eval: "POST /v1/completions\n$::hello"
--- error_code: 502
--- response_headers eval: $::nobody
--- errors
--- error_log
no live upstreams while connecting to upstream



=== TEST 13: backup is left alone while others work
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1;
server 127.0.0.1:$TEST_NGINX_ENGINE_2 backup;
aibrix random;
--- pipelined_requests eval: [("GET /v1/models") x 20]
--- response_body eval: [("one\n") x 20]



=== TEST 14: backup when the others are down
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1 down;
server 127.0.0.1:$TEST_NGINX_ENGINE_2 down;
server 127.0.0.1:$TEST_NGINX_ENGINE_3 backup;
aibrix prefix-cache;
--- pipelined_requests eval: [("POST /v1/completions\n$::hello") x 3]
--- response_headers eval
[("target-pod: 127.0.0.1:$ENV{TEST_NGINX_ENGINE_3}") x 3]
--- response_body eval: [("three\n") x 3]



=== TEST 15: backup when the others are at max_conns, with a zone
--- llm
zone llm 64k;
server 127.0.0.1:$TEST_NGINX_ENGINE_1 max_conns=1;
server 127.0.0.1:$TEST_NGINX_ENGINE_3 backup;
server 127.0.0.1:$TEST_NGINX_ENGINE_4 backup;
aibrix least-request;
--- engine eval: $::chain
--- pipelined_requests eval: ["GET /v1/3", "GET /v1/1", "GET /v1/2"]
--- response_body_like eval
['^one,(three,four|four,three)$', '^one$', '^one,(three|four)$']



=== TEST 16: prefixes are known of backups too
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1 down;
server 127.0.0.1:$TEST_NGINX_ENGINE_2 backup;
server 127.0.0.1:$TEST_NGINX_ENGINE_3 backup;
server 127.0.0.1:$TEST_NGINX_ENGINE_4 backup;
aibrix prefix-cache;
aibrix_block_size 1;
--- pipelined_requests eval
[("POST /v1/completions\n" . main::completion('TEST 16')) x 8]
--- response_headers eval
['X-blocks: 7', ("X-selection: prefix_match\nX-match-percent: 100") x 7]



=== TEST 17: a dead server is tried once in fail_timeout
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_DEAD fail_timeout=1h;
server 127.0.0.1:$TEST_NGINX_ENGINE_2 backup;
aibrix prefix-cache;
--- config eval: $::retry
--- request eval: "POST /v1/completions\n$::hello"
--- response_headers
target-pod: 127.0.0.1:$TEST_NGINX_ENGINE_2
target-pod-ip: 127.0.0.1:$TEST_NGINX_ENGINE_2
--- response_body
two
--- grep_error_log eval: qr/connect\(\) failed/
--- grep_error_log_out eval: ["connect() failed\n", '']
--- errors



=== TEST 18: max_fails=0: it is tried each time
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_DEAD max_fails=0;
server 127.0.0.1:$TEST_NGINX_ENGINE_2 backup;
aibrix prefix-cache;
--- config eval: $::retry
--- request eval: "POST /v1/completions\n$::hello"
--- response_headers
target-pod: 127.0.0.1:$TEST_NGINX_ENGINE_2
X-addr: 127.0.0.1:$TEST_NGINX_ENGINE_DEAD, 127.0.0.1:$TEST_NGINX_ENGINE_2
X-status: 502, 200
--- response_body
two
--- grep_error_log eval: qr/connect\(\) failed/
--- grep_error_log_out eval: ["connect() failed\n", "connect() failed\n"]
--- errors



=== TEST 19: a single server is never put aside
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_DEAD fail_timeout=1h;
aibrix prefix-cache;
--- request eval: "POST /v1/completions\n$::hello"
--- error_code: 502
--- response_headers
target-pod: 127.0.0.1:$TEST_NGINX_ENGINE_DEAD
--- grep_error_log eval: qr/connect\(\) failed/
--- grep_error_log_out eval: ["connect() failed\n", "connect() failed\n"]
--- errors



=== TEST 20: all dead: each is tried, the last is named
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_DEAD max_fails=0;
server 127.0.1.1:$TEST_NGINX_ENGINE_DEAD max_fails=0;
server 127.0.1.2:$TEST_NGINX_ENGINE_DEAD max_fails=0;
aibrix prefix-cache;
--- config eval: $::retry
--- request eval: "POST /v1/completions\n$::hello"
--- error_code: 502
--- raw_response_headers_like eval
qr/target-pod:\ (\S+)\r\n.*
   X-addr:\ (\S+),\ (?!\2)(\S+),\ (?!\2|\3)\1\r\n
   X-status:\ 502,\ 502,\ 502\r\n/sx
--- grep_error_log eval: qr/connect\(\) failed/
--- grep_error_log_out eval
[("connect() failed\n" x 3) x 2]
--- errors



=== TEST 21: all put aside: 502, and then nobody is asked
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_DEAD fail_timeout=1h;
server 127.0.1.1:$TEST_NGINX_ENGINE_DEAD fail_timeout=1h;
aibrix prefix-cache;
--- config eval: $::retry
--- request eval: "POST /v1/completions\n$::hello"
--- error_code: 502
--- grep_error_log eval: qr/connect\(\) failed|no live upstreams/
--- grep_error_log_out eval
["connect() failed\nconnect() failed\n", "no live upstreams\n"]
--- errors



=== TEST 22: a busy engine, and the next one
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1 max_fails=0;
server 127.0.0.1:$TEST_NGINX_ENGINE_2 max_fails=0;
server 127.0.0.1:$TEST_NGINX_ENGINE_3 max_fails=0;
aibrix random;
--- engine eval: $::one_works
--- config eval: $::retry
--- pipelined_requests eval: [("POST /v1/completions\n$::hello") x 20]
--- response_headers eval
[("target-pod: 127.0.0.1:$ENV{TEST_NGINX_ENGINE_1}\n"
  . "target-pod-ip: 127.0.0.1:$ENV{TEST_NGINX_ENGINE_1}") x 20]
--- response_body eval: [("one\n") x 20]



=== TEST 23: no engine is tried twice
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1 max_fails=0;
server 127.0.0.1:$TEST_NGINX_ENGINE_2 max_fails=0;
server 127.0.0.1:$TEST_NGINX_ENGINE_3 max_fails=0;
server 127.0.0.1:$TEST_NGINX_ENGINE_4 max_fails=0 backup;
aibrix prefix-cache;
--- engine
    location / { return 503 "$engine\n"; }
--- config eval: $::retry
--- request eval: "POST /v1/completions\n$::hello"
--- error_code: 503
--- response_headers
target-pod: 127.0.0.1:$TEST_NGINX_ENGINE_4
--- raw_response_headers_like eval
qr/X-addr: (\S+), (?!\1)(\S+), (?!\1|\2)(\S+), (?!\1|\2|\3)\S+\r\n/
--- response_body
four



=== TEST 24: proxy_next_upstream_tries
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1 max_fails=0;
server 127.0.0.1:$TEST_NGINX_ENGINE_2 max_fails=0;
server 127.0.0.1:$TEST_NGINX_ENGINE_3 max_fails=0;
aibrix prefix-cache;
--- engine
    location / { return 503 "$engine\n"; }
--- config
    location /v1/ {
        proxy_next_upstream error http_503 non_idempotent;
        proxy_next_upstream_tries 2;
        proxy_pass http://llm;
        add_header X-addr $upstream_addr always;
    }
--- request eval: "POST /v1/completions\n$::hello"
--- error_code: 503
--- raw_response_headers_like: X-addr: (\S+), (?!\1)[^\s,]+\r\n



=== TEST 25: a POST that was sent is not sent again unasked
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_2 max_fails=0;
server 127.0.0.1:$TEST_NGINX_ENGINE_3 max_fails=0;
aibrix prefix-cache;
--- engine eval: $::one_works
--- config
    location /v1/ {
        proxy_next_upstream error http_503;
        proxy_pass http://llm;
        add_header X-addr $upstream_addr always;
    }
--- request eval: "POST /v1/completions\n$::hello"
--- error_code: 503
--- raw_response_headers_like: target-pod: (\S+)\r\n(?s:.*)X-addr: \1\r\n
--- response_body
busy



=== TEST 26: the body goes to the next one unchanged
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1 max_fails=0;
server 127.0.0.1:$TEST_NGINX_ENGINE_2 max_fails=0;
server 127.0.0.1:$TEST_NGINX_ENGINE_3 max_fails=0;
aibrix random;
--- engine
    location / {
        if ($engine != one) {
            return 503 "busy\n";
        }
        engine_sim_digest;
    }
--- config
    location /v1/ {
        client_body_buffer_size 1k;
        proxy_next_upstream error http_503 non_idempotent;
        proxy_pass http://llm;
    }
--- pipelined_requests eval
[("POST /v1/completions\n" . main::completion('x' x 10000)) x 8]
--- response_body_like eval
require Digest::SHA;
my $sum = Digest::SHA::sha256_hex(main::completion('x' x 10000));
[("\"$sum\"") x 8]



=== TEST 27: a prefix is forgotten of a peer that was not there
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_DEAD max_fails=0;
aibrix prefix-cache;
aibrix_block_size 1;
--- pipelined_requests eval
[("POST /v1/completions\n" . main::completion('TEST 27')) x 3]
--- error_code eval: [502, 502, 502]
--- response_headers eval: [("X-blocks: 7\nX-match-percent: 0") x 3]
--- errors



=== TEST 28: it stays known of the one that answered in its place
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_DEAD max_fails=0;
server 127.0.1.1:$TEST_NGINX_ENGINE_DEAD max_fails=0;
server 127.0.0.1:$TEST_NGINX_ENGINE_1;
aibrix prefix-cache;
aibrix_block_size 1;
--- config eval: $::retry
--- pipelined_requests eval
[("POST /v1/completions\n" . main::completion('TEST 28')) x 5]
--- response_headers eval
["target-pod: 127.0.0.1:$ENV{TEST_NGINX_ENGINE_1}",
 ("X-match-percent: 100\nX-addr: 127.0.0.1:$ENV{TEST_NGINX_ENGINE_1}") x 4]
--- errors



=== TEST 29: with a zone: the same
--- llm
zone llm 64k;
server 127.0.0.1:$TEST_NGINX_ENGINE_DEAD max_fails=0;
server 127.0.0.1:$TEST_NGINX_ENGINE_1;
server 127.0.0.1:$TEST_NGINX_ENGINE_2 down;
server 127.0.0.1:$TEST_NGINX_ENGINE_3 backup;
aibrix prefix-cache;
aibrix_block_size 1;
--- config eval: $::retry
--- pipelined_requests eval
[("POST /v1/completions\n" . main::completion('TEST 29')) x 5]
--- response_headers eval
["target-pod: 127.0.0.1:$ENV{TEST_NGINX_ENGINE_1}",
 ("X-match-percent: 100\nX-addr: 127.0.0.1:$ENV{TEST_NGINX_ENGINE_1}") x 4]
--- errors



=== TEST 30: keepalive after aibrix
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1;
aibrix prefix-cache;
keepalive 4;
--- engine
    location / { return 200 "$connection\n"; }
--- config
    location /v1/ {
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_set_header X-reused yes;
        proxy_pass http://llm;
        add_header X-time $upstream_connect_time;
    }
    location = / {
        ssi on;
        ssi_types text/plain;
        default_type text/plain;
        set $wait 'wait="yes" -->';
        set $a '<!--#include virtual="/v1/a" $wait';
        set $b '<!--#include virtual="/v1/b" $wait';
        return 200 '$a$b$a';
    }
--- request
GET /
--- response_body_like: ^(\d+)\n\1\n\1\n$



=== TEST 31: keepalive with retries and prefixes
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1 max_fails=0;
server 127.0.0.1:$TEST_NGINX_ENGINE_2 max_fails=0;
server 127.0.0.1:$TEST_NGINX_ENGINE_3 max_fails=0;
aibrix random;
keepalive 4;
--- engine eval: $::one_works
--- config
    location /v1/ {
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_next_upstream error http_503 non_idempotent;
        proxy_pass http://llm;
    }
--- pipelined_requests eval: [("POST /v1/completions\n$::hello") x 20]
--- response_headers eval
[("target-pod: 127.0.0.1:$ENV{TEST_NGINX_ENGINE_1}") x 20]
--- response_body eval: [("one\n") x 20]



=== TEST 32: keepalive before aibrix still routes
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1;
keepalive 4;
aibrix prefix-cache;
--- suppress_stderr
--- pipelined_requests eval: [("POST /v1/completions\n$::hello") x 3]
--- response_headers eval
[("target-pod: 127.0.0.1:$ENV{TEST_NGINX_ENGINE_1}") x 3]



=== TEST 33: an engine that closes each connection after its answer
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1;
aibrix prefix-cache;
keepalive 4;
--- engine
    keepalive_timeout 0;
    location / { return 200 "$engine\n"; }
--- config
    location /v1/ {
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_pass http://llm;
    }
--- pipelined_requests eval: [("POST /v1/completions\n$::hello") x 10]
--- response_body eval: [("one\n") x 10]



=== TEST 34: a unix socket
--- llm
server unix:$TEST_NGINX_ENGINE_SOCKET;
aibrix prefix-cache;
--- more_http
    server {
        listen unix:$TEST_NGINX_ENGINE_SOCKET;
        location / { return 200 "socket\n"; }
    }
--- pipelined_requests eval: [("POST /v1/completions\n$::hello") x 2]
--- response_headers eval
[("target-pod: unix:$ENV{TEST_NGINX_ENGINE_SOCKET}\n"
  . "target-pod-ip: unix:$ENV{TEST_NGINX_ENGINE_SOCKET}") x 2]
--- response_body eval: ["socket\n", "socket\n"]



=== TEST 35: IPv6
--- skip_eval: 2: !$::has_ipv6
--- llm
server [::1]:$TEST_NGINX_ENGINE_2;
aibrix prefix-cache;
--- more_http
    server {
        listen [::1]:$TEST_NGINX_ENGINE_2 ipv6only=on;
        location / { return 200 "six\n"; }
    }
--- request eval: "POST /v1/completions\n$::hello"
--- response_headers
target-pod: [::1]:$TEST_NGINX_ENGINE_2
target-pod-ip: [::1]:$TEST_NGINX_ENGINE_2
--- response_body
six



=== TEST 36: the same address twice
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1;
server 127.0.0.1:$TEST_NGINX_ENGINE_1;
aibrix prefix-cache;
aibrix_block_size 1;
--- engine eval: $::chain
--- pipelined_requests eval
[("POST /v1/1\n" . main::completion('TEST 36')) x 3, 'GET /v1/3']
--- response_headers eval
['X-blocks: 7', ("X-blocks: 7\nX-match-percent: 100") x 2, '']
--- response_body eval: [("one\n") x 3, "one,one,one\n"]



=== TEST 37: 150 servers, one of which is there
--- llm eval
"$::many server 127.0.0.1:\$TEST_NGINX_ENGINE_1; aibrix prefix-cache;"
--- config eval: $::retry
--- request eval: "POST /v1/completions\n$::hello"
--- response_headers
target-pod: 127.0.0.1:$TEST_NGINX_ENGINE_1
--- raw_response_headers_unlike eval
qr/X-addr: (?:.*, )?([^, ]+),(?:.*, )?\1[,\r]/
--- response_body
one
--- timeout: 10
--- errors



=== TEST 38: the same with a zone, and the one being a backup
--- llm eval
"zone llm 256k; $::many
 server 127.0.0.1:\$TEST_NGINX_ENGINE_1 backup; aibrix random;"
--- config eval: $::retry
--- request eval: "POST /v1/completions\n$::hello"
--- response_headers
target-pod: 127.0.0.1:$TEST_NGINX_ENGINE_1
--- raw_response_headers_like: X-addr: (127\.0\.1\.\d+:\d+, ){149}127\.0\.0\.1:
--- response_body
one
--- timeout: 10
--- errors



=== TEST 39: 150 servers, all of them there: a prefix is found again
--- llm eval
$::many =~ s/ENGINE_DEAD max_fails=0/RAND_PORT_1/gr
. 'aibrix prefix-cache; aibrix_block_size 1;'
--- more_http
    server {
        listen 0.0.0.0:$TEST_NGINX_RAND_PORT_1;
        location / { return 200 "$server_addr\n"; }
    }
--- pipelined_requests eval
[map { ("POST /v1/completions\n" . main::completion("$_ TEST 39")) x 2 }
 1 .. 9]
--- response_headers eval
[('X-blocks: 9', "X-blocks: 9\nX-match-percent: 100") x 9]



=== TEST 40: two upstreams share a zone, not what they know of a server
# The second one never gets a prefix computed, so it never knows it.
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1;
aibrix random zone=both;
aibrix_block_size 1;
--- more_http
    aibrix_zone both 2m;
    upstream other {
        server 127.0.0.1:$TEST_NGINX_ENGINE_1 max_fails=0;
        aibrix least-request zone=both;
        aibrix_block_size 1;
    }
--- engine
    location / { return 200 "$engine\n"; }
    location /other/ { return 503 "busy\n"; }
--- config eval
"location /v1/ { proxy_pass http://llm; $::show }
 location /other/ { proxy_pass http://other; $::show }"
--- pipelined_requests eval
[map { "POST /$_/completions\n$::hello" } qw(v1 other v1 other)]
--- error_code eval: [200, 503, 200, 503]
--- response_headers eval
['routing-strategy: random',
 "routing-strategy: least-request\nX-blocks: 5\nX-match-percent: 0",
 "routing-strategy: random\nX-match-percent: 100",
 "routing-strategy: least-request\nX-match-percent: 0"]



=== TEST 41: an upstream used from two servers and many locations
--- config
    location /v1/a { proxy_pass http://llm; }
    location /v1/b { proxy_pass http://llm/; }
    location /v1/c { rewrite ^ /x break; proxy_pass http://llm; }
    location /v1/d { proxy_pass http://127.0.0.1:$TEST_NGINX_ENGINE_4; }
--- pipelined_requests eval
[map { "POST /v1/$_\n$::hello" } qw(a b c d)]
--- response_body_like eval
[('^(one|two)$') x 3, '^four$']



=== TEST 42: https engines
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_4;
aibrix prefix-cache;
--- config
    location /v1/ {
        proxy_pass https://llm;
        proxy_connect_timeout 2s;
    }
--- request eval: "POST /v1/completions\n$::hello"
--- error_code: 502
--- response_headers
target-pod: 127.0.0.1:$TEST_NGINX_ENGINE_4
--- errors
--- error_log
SSL_do_handshake() failed
