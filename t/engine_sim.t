# engine_sim and engine_sim_digest: what they answer. Times, aborts, workers
# and reloads are in timing_engine_sim.t.

use lib 't/lib';
use AibrixTest;
use Test::Nginx::Socket 'no_plan';

# no time worth waiting for, whatever is computed
our $fast = 'speed=1000';

our $config = <<"EOC";
    location /a/ { engine_sim name=A $fast; }
    location /b/ { engine_sim name=B $fast; }
    location /s/ { engine_sim cache_block=4 bytes_per_token=2
                   max_num_batched_tokens=100 $fast; }
EOC

# [status, body] of requests that are refused or taken, POSTed one by one
our @bodies = (
    [400, ''],
    [400, 'null'],
    [400, '[]'],
    [400, '"x"'],
    [400, '{"prompt":'],
    [400, '{"prompt":"x"} x'],
    [400, "{'prompt':'x'}"],
    [400, '/**/{"prompt":"x"}'],
    [400, "\xef\xbb\xbf" . '{"prompt":"x"}'],
    [400, "{\"prompt\":\"\xff\"}"],
    [400, "{\"prompt\":\"x\ny\"}"],
    [400, '{"prompt":"x",}'],
    [400, '{"prompt":NaN}'],
    [400, '{"a":' . '[' x 10000 . ']' x 10000 . ',"prompt":"x"}'],
    [400, '{}'],
    [400, '{"prompt":null}'],
    [400, '{"prompt":5}'],
    [400, '{"prompt":[]}'],
    [400, '{"prompt":[[]]}'],
    [400, '{"prompt":["x",1]}'],
    [400, '{"prompt":[1,"x"]}'],
    [400, '{"prompt":[-1]}'],
    [400, '{"prompt":"x","model":1}'],
    [400, '{"prompt":"x","stream":"yes"}'],
    [400, '{"prompt":"x","stream_options":{"include_usage":true}}'],
    [400, '{"prompt":"x","stream":true,"stream_options":1}'],
    [400, '{"prompt":"x","max_tokens":0}'],
    [400, '{"prompt":"x","max_tokens":1.5}'],
    [400, '{"prompt":"x","max_tokens":"1"}'],
    [400, '{"prompt":"x","max_tokens":1000001}'],
    [200, " \n{\"prompt\":\"\\u00e9\\ud83d\\ude00\\u0000 \\\"\\\\\"} \n"],
    [200, '{"prompt":""}'],
    [200, '{"prompt":["x","y"]}'],
    [200, '{"prompt":[[1,2],[3]]}'],
    [200, '{"prompt":1,"prompt":"x"}'],
    [200, '{"prompt":"x","max_tokens":null,"stream":null,"model":null}'],
    [200, '{"prompt":"x","n":2,"stop":"y","ignore_eos":true,"temperature":1e9,'
          . '"seed":18446744073709551615,"logit_bias":{"1":-100},"z":[{}]}'],
);

our @chats = (
    [400, '{}'],
    [400, '{"prompt":"x"}'],
    [400, '{"messages":"x"}'],
    [400, '{"messages":[]}'],
    [400, '{"messages":["x"]}'],
    [400, '{"messages":[{"content":"x"}]}'],
    [400, '{"messages":[{"role":"user","content":1}]}'],
    [200, '{"messages":[{"role":"user"}]}'],
    [200, '{"messages":[{"role":"user","content":null}]}'],
    [200, '{"messages":[{"role":"user","content":[{"type":"text","text":"x"},'
          . '{"type":"image_url","image_url":{"url":"u"}},"x"]}],'
          . '"tools":[{"type":"function"}]}'],
);

run_tests();

__DATA__

=== TEST 1: a completion as JSON
--- config eval: $::config
--- request
POST /a/v1/completions
{"model": "some \"model\" é", "prompt": "Hello, world", "max_tokens": 3}
--- response_headers
Content-Type: application/json
x-engine: A
--- response_body_like chop
^\{"id":"cmpl-[0-9a-f]{16}","object":"text_completion","created":\d{10},"model":"some \\"model\\" é","system_fingerprint":"A","choices":\[\{"index":0,"text":"( [a-z]+){3}","logprobs":null,"finish_reason":"length"\}\],"usage":\{"prompt_tokens":3,"total_tokens":6,"completion_tokens":3,"prompt_tokens_details":\{"cached_tokens":0\}\}\}$
--- no_error_log
[error]



=== TEST 2: a completion as a stream
--- config eval: $::config
--- request
POST /a/v1/completions
{"prompt": "Hello", "max_tokens": 3, "stream": true}
--- response_headers
Content-Type: text/event-stream; charset=utf-8
Transfer-Encoding: chunked
x-engine: A
--- response_body_like chop
^(data: \{"id":"cmpl-[0-9a-f]{16}","object":"text_completion","created":\d{10},"model":"sim","system_fingerprint":"A","choices":\[\{"index":0,"text":" [a-z]+","logprobs":null,"finish_reason":null\}\]\}

){2}data: \{"id":"cmpl-[0-9a-f]{16}","object":"text_completion","created":\d{10},"model":"sim","system_fingerprint":"A","choices":\[\{"index":0,"text":" [a-z]+","logprobs":null,"finish_reason":"length"\}\]\}

data: \[DONE\]

$
--- no_error_log
[error]



=== TEST 3: a chat as a stream, with usage
--- config eval: $::config
--- request
POST /a/v1/chat/completions
{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2, "stream": true, "stream_options": {"include_usage": true}}
--- response_body_like chop
^data: \{"id":"chatcmpl-[0-9a-f]{16}","object":"chat.completion.chunk","created":\d{10},"model":"sim","system_fingerprint":"A","choices":\[\{"index":0,"delta":\{"role":"assistant","content":""\},"logprobs":null,"finish_reason":null\}\]\}

data: \{[^\n]*"choices":\[\{"index":0,"delta":\{"content":" [a-z]+"\},"logprobs":null,"finish_reason":null\}\]\}

data: \{[^\n]*"choices":\[\{"index":0,"delta":\{"content":" [a-z]+"\},"logprobs":null,"finish_reason":"length"\}\]\}

data: \{[^\n]*"choices":\[\],"usage":\{"prompt_tokens":6,"total_tokens":8,"completion_tokens":2,"prompt_tokens_details":\{"cached_tokens":0\}\}\}

data: \[DONE\]

$
--- no_error_log
[error]



=== TEST 4: a chat as JSON
--- config eval: $::config
--- request
POST /a/v1/chat/completions
{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
--- response_body_like chop
^\{"id":"chatcmpl-[0-9a-f]{16}","object":"chat.completion","created":\d{10},"model":"sim","system_fingerprint":"A","choices":\[\{"index":0,"message":\{"role":"assistant","content":"( [a-z]+){2}"\},"logprobs":null,"finish_reason":"length"\}\],"usage":\{"prompt_tokens":6,"total_tokens":8,



=== TEST 5: 16 tokens by default, max_completion_tokens before max_tokens
--- config
    location /a/ { engine_sim speed=1000; }
    location /b/ { engine_sim speed=1000 max_tokens=5; }
--- pipelined_requests eval
[
    "POST /a/v1/completions\n" . '{"prompt":"x"}',
    "POST /b/v1/completions\n" . '{"prompt":"x"}',
    "POST /a/v1/completions\n"
        . '{"prompt":"x","max_tokens":9,"max_completion_tokens":7}',
    "POST /a/v1/completions\n"
        . '{"prompt":"x","max_tokens":9,"max_completion_tokens":null}',
]
--- response_body_like eval
[map { qr/"completion_tokens":$_,/ } 16, 5, 7, 9]



=== TEST 6: whole leading blocks are found again, never the last token
eight bytes a block: 40 are five blocks, of which four can be found
--- config eval: $::config
--- pipelined_requests eval
[map { "POST /s/v1/completions\n" . $_ }
    '{"prompt":"' . 'abcdefgh' x 5 . '"}',
    '{"prompt":"' . 'abcdefgh' x 5 . '"}',
    '{"prompt":"' . 'abcdefgh' x 3 . 'X' . 'abcdefgh' x 3 . '"}',
    '{"prompt":"' . 'abcdefgh' x 5 . '"," cache_salt":"not this key"}',
    '{"prompt":"' . 'abcdefgh' x 5 . '","cache_salt":"other"}',
    '{"prompt":"' . 'abcdefgh' x 5 . '","model":"other"}',
    '{"prompt":"' . 'abcdefgh' x 9 . '","model":"other"}',
]
--- response_body_like eval
[map { qr/"prompt_tokens":$$_[0],.*"cached_tokens":$$_[1]\}/ }
    [20, 0], [20, 16], [25, 12], [20, 16], [20, 0], [20, 0], [36, 20]]



=== TEST 7: token ids are tokens, and have their own blocks
--- config eval: $::config
--- pipelined_requests eval
[map { "POST /s/v1/completions\n" . $_ }
    '{"prompt":[1,2,3,4,5,6,7,8,9]}',
    '{"prompt":[1,2,3,4,5,6,7,8,9]}',
    '{"prompt":[[1,2,3,4],[5,6,7,9,9]]}',
]
--- response_body_like eval
[map { qr/"prompt_tokens":9,.*"cached_tokens":$_\}/ } 0, 8, 4]



=== TEST 8: all engines give the same answer to the same prompt
--- config eval: $::config
--- pipelined_requests eval
[
    "POST /a/v1/completions\n" . '{"prompt":"Hello","max_tokens":8}',
    "POST /b/v1/completions\n" . '{"prompt":"Hello","max_tokens":8}',
    "POST /b/v1/completions\n" . '{"prompt":"Hellp","max_tokens":8}',
]
--- response_body_like eval
[
    qr/"system_fingerprint":"A".*" batch of prompt token block batch the prompt"/,
    qr/"system_fingerprint":"B".*" batch of prompt token block batch the prompt"/,
    qr/"text":(?!" batch of prompt token block batch the prompt")/,
]



=== TEST 9: bodies that are refused with 400, and others that are not
--- config eval: $::config
--- request eval: [map { "POST /a/v1/completions\n$$_[1]" } @::bodies]
--- error_code eval: [map { $$_[0] } @::bodies]
--- response_body_like eval
[map { $$_[0] == 200 ? qr/^\{"id":"cmpl-/
       : qr/^\{"error":\{"message":"[^"]+","type":"BadRequestError","param":null,"code":400\}\}$/
     } @::bodies]



=== TEST 10: chats that are refused with 400, and others that are not
--- config eval: $::config
--- request eval: [map { "POST /a/v1/chat/completions\n$$_[1]" } @::chats]
--- error_code eval: [map { $$_[0] } @::chats]
--- response_body_like eval
[map { $$_[0] == 200 ? qr/^\{"id":"chatcmpl-/ : qr/^\{"error":/ } @::chats]



=== TEST 11: a body in a temporary file
--- config
    location /a/ {
        client_body_buffer_size 1k;
        engine_sim bytes_per_token=1 speed=1000;
    }
--- request eval
"POST /a/v1/completions\n" . '{"prompt":"' . 'abc' x 30000 . '"}'
--- response_body_like: "prompt_tokens":90000,



=== TEST 12: a status to answer with
--- config
    location /x/ { engine_sim status=503 name=X; }
    location /y/ { engine_sim status=429; }
--- pipelined_requests eval
[
    "POST /x/v1/completions\n" . '{"prompt":"x"}',
    "GET /x/health",
    "POST /y/v1/chat/completions\n" . '{"prompt":"x"}',
]
--- error_code eval: [503, 503, 429]
--- response_headers eval: ['x-engine: X', 'x-engine: X', '']
--- response_body_like eval
[
    qr/^\{"error":\{"message":"[^"]+","type":"InternalServerError","param":null,"code":503\}\}$/,
    qr/"code":503/,
    qr/"type":"RateLimitError","param":null,"code":429\}\}$/,
]



=== TEST 13: what there is not
--- config eval: $::config
--- pipelined_requests eval
["GET /a/v1/nothing", "GET /a/v1/completions", "POST /a/health\nx",
 "GET /a/reset_prefix_cache"]
--- error_code eval: [404, 405, 405, 405]
--- response_body_like eval
[map { qr/^\{"error":\{.*"code":$_\}\}$/ } 404, 405, 405, 405]



=== TEST 14: health and models
--- config
    location /a/ { engine_sim; }
    location /m/ { engine_sim model=Some/Model-8B; }
--- pipelined_requests eval
["GET /a/health", "HEAD /a/health", "GET /a/v1/models", "GET /m/v1/models"]
--- response_body_like eval
[
    qr/^$/,
    qr/^$/,
    qr/^\{"object":"list","data":\[\{"id":"sim","object":"model","created":\d{10},"owned_by":"engine_sim","root":"sim","parent":null\}\]\}$/,
    qr/"id":"Some\/Model-8B",.*"root":"Some\/Model-8B"/,
]



=== TEST 15: an engine that was given a model serves no other
--- config
    location /m/ { engine_sim model=M speed=1000; }
--- pipelined_requests eval
[map { "POST /m/v1/completions\n" . $_ }
    '{"prompt":"x","model":"M"}', '{"prompt":"x"}',
    '{"prompt":"x","model":"m"}', '{"prompt":"x","model":"MM"}']
--- error_code eval: [200, 200, 404, 404]
--- response_body_like eval
[qr/"model":"M"/, qr/"model":"M"/, (qr/"type":"NotFoundError"/) x 2]



=== TEST 16: tokenize
--- config eval: $::config
--- pipelined_requests eval
[map { "POST /s/tokenize\n" . $_ }
    '{"prompt":"ababc"}',
    '{"messages":[{"role":"u","content":"ab"}]}',
    '{}',
]
--- error_code eval: [200, 200, 400]
--- response_body_like eval
[
    qr/^\{"count":3,"tokens":\[(\d+),\1,\d+\]\}$/,
    # <|u|>, a line feed, ab, a line feed, <|assistant|>, a line feed
    qr/^\{"count":12,"tokens":\[\d+(,\d+){11}\]\}$/,
    qr/"code":400/,
]



=== TEST 17: metrics
--- config
    location /a/ {
        engine_sim cache_block=4 bytes_per_token=2 speed=1000 kv_blocks=7
                   max_num_batched_tokens=100 'model=q"\\';
    }
--- pipelined_requests eval
[
    "POST /a/v1/completions\n" . '{"prompt":"' . 'abcdefgh' x 5 . '"}',
    "POST /a/v1/completions\n"
        . '{"prompt":"' . 'abcdefgh' x 5 . '","max_tokens":4}',
    "GET /a/metrics",
]
--- response_body_like eval
my $l = 'engine="0",model_name="q\\\\"\\\\\\\\"';
my $text = '';
$text .= "(?=.*^vllm:$$_[0]\\{$l$$_[1]\\} $$_[2]\$)" for (
    ['num_requests_running', '', 0],
    ['num_requests_waiting', '', 0],
    ['kv_cache_usage_perc', '', '0\.000000'],
    ['cache_config_info', ',block_size="4",enable_prefix_caching="True",'
                          . 'num_gpu_blocks="7"', 1],
    ['prefix_cache_queries_total', '', 40],
    ['prefix_cache_hits_total', '', 16],
    ['prompt_tokens_total', '', 40],
    ['generation_tokens_total', '', 20],
    ['request_success_total', ',finished_reason="stop"', 0],
    ['request_success_total', ',finished_reason="length"', 2],
    ['request_success_total', ',finished_reason="abort"', 0],
    ['time_to_first_token_seconds_bucket', ',le="0\.001"', '\d'],
    ['time_to_first_token_seconds_bucket', ',le="2560\.0"', 2],
    ['time_to_first_token_seconds_bucket', ',le="\+Inf"', 2],
    ['time_to_first_token_seconds_sum', '', '\d+\.\d{6}'],
    ['time_to_first_token_seconds_count', '', 2],
    ['e2e_request_latency_seconds_bucket', ',le="0\.3"', '\d'],
    ['e2e_request_latency_seconds_bucket', ',le="\+Inf"', 2],
    ['e2e_request_latency_seconds_count', '', 2],
);
[qr/"model":"q\\"\\\\"/, qr/"cached_tokens":16/, qr/^$text/ms]



=== TEST 18: an idle engine forgets its cache when told to
--- config eval: $::config
--- pipelined_requests eval
[
    "POST /s/v1/completions\n" . '{"prompt":"' . 'abcdefgh' x 5 . '"}',
    "POST /s/reset_prefix_cache\n",
    "POST /s/v1/completions\n" . '{"prompt":"' . 'abcdefgh' x 5 . '"}',
]
--- response_body_like eval: [qr/"cached_tokens":0/, qr/^$/, qr/"cached_tokens":0/]



=== TEST 19: a cache of three blocks keeps the last three of a prompt
and so finds nothing of it
--- config
    location /a/ {
        engine_sim cache_block=4 bytes_per_token=2 speed=1000 kv_blocks=3
                   max_num_batched_tokens=100;
    }
--- pipelined_requests eval
[
    ("POST /a/v1/completions\n" . '{"prompt":"' . 'abcdefgh' x 3 . '12"}') x 2,
    ("POST /a/v1/completions\n" . '{"prompt":"' . 'abcdefgh' x 5 . '"}') x 2,
]
--- response_body_like eval: [map { qr/"cached_tokens":$_\}/ } 0, 12, 12, 0]



=== TEST 20: parts of an engine's location belong to it
--- config
    location /a/ {
        engine_sim name=A speed=1000;
        if ($arg_x) { add_header x-if yes; }
        limit_except GET { allow all; }
    }
--- pipelined_requests eval
["GET /a/health?x=1", "POST /a/reset_prefix_cache\n"]
--- response_headers eval: ["x-engine: A\nx-if: yes", "x-engine: A"]
--- error_code eval: [200, 200]



=== TEST 21: as a subrequest
--- config
    location /e/ { engine_sim speed=1000; }
    location /r/ { engine_sim status=403; }
    location /t { auth_request /e/health; return 200 "let in"; }
    location = /t1 { auth_request /e/health; engine_sim_digest; }
    location = /t2 { auth_request /r/health; engine_sim_digest; }
--- pipelined_requests eval: ["GET /t1", "GET /t2"]
--- error_code eval: [200, 403]
--- response_body_like eval: [qr/"bytes":0/, qr/403/]



=== TEST 22: digest
--- config
    location /d {
        client_body_buffer_size 1k;
        engine_sim_digest;
    }
--- request eval
[
    "GET /d?a=\"b\"",
    "POST /d\nabc",
    "POST /d\n" . 'a' x 1000000,
]
--- more_headers
X-Some: one "two"
--- response_headers eval: [('Content-Type: application/json') x 3]
--- response_body_like eval
[
    qr/^\{"bytes":0,"sha256":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","method":"GET","uri":"\/d\?a=\\"b\\"","headers":\{.*"x-some":"one \\"two\\"".*\}\}$/,
    qr/^\{"bytes":3,"sha256":"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad","method":"POST"/,
    qr/^\{"bytes":1000000,"sha256":"cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0","method":"POST"/,
]
--- no_error_log
[error]



=== TEST 23: an unknown parameter
--- config
    location /a/ { engine_sim speeed=10; }
--- must_die
--- error_log
unknown parameter "speeed=10"



=== TEST 24: an unknown profile
--- config
    location /a/ { engine_sim profile=a100; }
--- must_die
--- error_log
invalid value in "profile=a100"



=== TEST 25: a time that is none
--- config
    location /a/ { engine_sim step_base=46h; }
--- must_die
--- error_log
invalid value in "step_base=46h"



=== TEST 26: a status that is no error
--- config
    location /a/ { engine_sim status=200; }
--- must_die
--- error_log
invalid value in "status=200"



=== TEST 27: chunks that never hold a block
--- config
    location /a/ { engine_sim max_num_batched_tokens=1000; }
--- must_die
--- error_log
"engine_sim": max_num_batched_tokens must not be below cache_block when align_chunks is on



=== TEST 28: twice
--- config
    location /a/ { engine_sim; engine_sim; }
--- must_die
--- error_log
"engine_sim" directive is duplicate



=== TEST 29: a profile sets all parameters, wherever it stands
--- config
    location /a/ { engine_sim cache_block=32 profile=h100-8b; }
--- request
GET /a/metrics
--- response_body_like: (?m)^vllm:cache_config_info\{.*,block_size="32",.*num_gpu_blocks="None"\} 1$
