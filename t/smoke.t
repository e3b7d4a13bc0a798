# Both modules are loaded, none of their directives is used: nothing changes.

use lib 't/lib';
use AibrixTest;
use Test::Nginx::Socket 'no_plan';

our $http_config = <<'EOC';
    upstream engines {
        server 127.0.0.1:$TEST_NGINX_RAND_PORT_1;
        server 127.0.0.1:$TEST_NGINX_RAND_PORT_2;
    }

    server {
        listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1;
        location / { return 200 "first\n"; }
    }

    server {
        listen 127.0.0.1:$TEST_NGINX_RAND_PORT_2;
        location / { return 200 "second\n"; }
    }
EOC

our $config = <<'EOC';
    location /v1/ {
        proxy_pass http://engines;
    }
EOC

run_tests();

__DATA__

=== TEST 1: a proxied answer has none of the router's headers
--- http_config eval: $::http_config
--- config eval: $::config
--- request
POST /v1/completions
{"model": "m", "prompt": "Hello", "stream": true}
--- more_headers
Content-Type: application/json
--- response_body_like: ^(?:first|second)$
--- response_headers
! target-pod
! target-pod-ip
! routing-strategy
! request-id
--- no_error_log
[error]



=== TEST 2: an unknown strategy is no concern of an upstream without aibrix
--- http_config eval: $::http_config
--- config eval: $::config
--- request
POST /v1/completions
{"model": "m", "prompt": "Hello"}
--- more_headers
routing-strategy: no-such-strategy
--- response_headers
! x-error-routing
--- response_body_like: ^(?:first|second)$



=== TEST 3: requests still go round robin
--- http_config eval: $::http_config
--- config
    location = /t {
        proxy_pass http://engines/;
    }
--- pipelined_requests eval: ["GET /t", "GET /t", "GET /t"]
--- response_body eval: ["first\n", "second\n", "first\n"]
