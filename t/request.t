# What is read out of a request: model, stream and prompt text, of every API
# and however the body came. With blocks of one byte, X-blocks is the length
# of the prompt text.

use lib 't/lib';
use AibrixTest;
use Digest::SHA qw(sha256_hex);
use Test::Nginx::Socket 'no_plan';
use RouterBlocks;

repeat_each(2);
no_long_string();
worker_connections(256);

my $one_byte = <<'EOC';
server 127.0.0.1:$TEST_NGINX_ENGINE_1;
server 127.0.0.1:$TEST_NGINX_ENGINE_2;
aibrix prefix-cache;
aibrix_block_size 1;
EOC

# This file's default for --- llm.
add_block_preprocessor(sub {
    my $block = shift;
    my $llm = $block->llm;

    $block->set_value(llm => $one_byte) if !defined $llm;
});


# cases [PATH, BODY, HEADERS...]...: what a block of them is made of.
sub requests { [map { "POST $_->[0]\n$_->[1]" } @_] }

sub headers { [map { join "\n", @$_[2 .. $#$_] } @_] }

our @completions = map { [ '/v1/completions', @$_ ] } (
    ['{"model":"m","prompt":"Hello"}',
     'X-model: m', 'X-stream: 0', 'X-blocks: 5'],
    ['{"prompt":"","model":"m","stream":true}',
     'X-model: m', 'X-stream: 1', 'X-blocks: 0'],
    ['{"model":"m","prompt":["ab","cde"]}', 'X-blocks: 6'],
    ['{"model":"m","prompt":[]}', 'X-model: m', 'X-blocks: 0'],
    ['{"model":"m","prompt":[1,2,30000]}', 'X-blocks: 12'],
    ['{"model":"m","prompt":[[1,2],[3]]}', 'X-blocks: 12'],
    ['{"model":"m","prompt":null}', 'X-model: m', 'X-blocks: 0'],
    ['{"model":"m"}', 'X-model: m', 'X-blocks: 0'],
    ['{"model":"m","messages":[{"role":"user","content":"no"}]}',
     'X-model: m', 'X-blocks: 0'],
    ['{}', '! X-model', 'X-stream: 0', 'X-blocks: 0'],
    [" \t\r\n{ \"model\" :\n\"m\" , \"prompt\"\t:\r\"Hello\" } \n",
     'X-model: m', 'X-blocks: 5'],
);

our @chat = map { [ '/v1/chat/completions', @$_ ] } (
    ['{"model":"m","messages":[{"role":"user","content":"Hello"}]}',
     'X-model: m', 'X-stream: 0', 'X-blocks: 5'],
    ['{"model":"m","stream":true,"messages":[{"role":"system",'
     . '"content":"Be kind."},{"content":"Hello","role":"user"}]}',
     'X-stream: 1', 'X-blocks: 14'],
    ['{"model":"m","messages":[{"role":"user","content":'
     . '[{"type":"text","text":"Hi"}]}]}', 'X-blocks: 29'],
    ['{"model":"m","messages":[{"role":"user","content":null}]}',
     'X-model: m', 'X-blocks: 4'],
    ['{"model":"m","messages":[]}', 'X-model: m', 'X-blocks: 0'],
    ['{"model":"m","messages":[{"role":"user","content":"Hello"}],'
     . '"tools":[{"name":"f"}]}', 'X-blocks: 20'],
    ['{"model":"m","prompt":"no","messages":[{"content":"Hello"}]}',
     'X-blocks: 5'],
);

our @others = (
    ['/v1/messages', '{"model":"m","system":"Be kind.","messages":'
     . '[{"role":"user","content":"Hello"}]}', 'X-model: m', 'X-blocks: 14'],
    ['/v1/responses', '{"model":"m","input":"Hello"}', 'X-blocks: 5'],
    ['/v1/responses', '{"model":"m","instructions":"Be kind.","input":'
     . '[{"role":"user","content":"Hello"}]}', 'X-blocks: 14'],
    ['/v1/embeddings', '{"model":"m","input":"Hello"}', 'X-blocks: 5'],
    ['/v1/embeddings', '{"model":"m","input":["ab","cde"]}', 'X-blocks: 6'],
    ['/v1/embeddings', '{"model":"m","input":[1,2]}', 'X-blocks: 8'],
    ['/v1/rerank', '{"model":"m","query":"Hello","documents":["ab","cde"]}',
     'X-model: m', 'X-blocks: 12'],
    ['/v1/completions?x=1', '{"model":"m","prompt":"Hello"}', 'X-blocks: 5'],
    ['/v1/%63ompletions', '{"model":"m","prompt":"Hello"}', 'X-blocks: 5'],
    ['/v1/own/completions', '{"model":"m","prompt":"Hello"}', 'X-blocks: 5'],
    ['/v1/other', '{"model":"m","prompt":"Hello"}', 'X-blocks: 5'],
    ['/v1/other', '{"model":"m","messages":[{"content":"Hello!"}]}',
     'X-blocks: 6'],
);

our @strings = map { [ '/v1/completions', @$_ ] } (
    ['{"model":"\u006d\/\"","prompt":"a\nb\u00e9"}',
     'X-model: m/"', 'X-blocks: 5'],
    ["{\"model\":\"m\",\"prompt\":\"\xc3\xa9\xe2\x82\xac\"}", 'X-blocks: 5'],
    ['{"model":"m","prompt":"\ud83d\ude00"}', 'X-blocks: 4'],
    ['{"prompt":"\"model\":\"no\"","model":"yes"}',
     'X-model: yes', 'X-blocks: 12'],
    ['{"a":{"model":"no","prompt":"no"},"model":"yes","prompt":"Hello"}',
     'X-model: yes', 'X-blocks: 5'],
    ['{"mod\u0065l":"m","prompt":"Hello"}', 'X-model: m'],
    ['{"model":"a","prompt":"longer","model":"b","prompt":"Hello"}',
     'X-model: b', 'X-blocks: 5'],
    ['{"stream":true,"stream":false,"model":"m"}', 'X-stream: 0'],
    ['{"stream":"true","model":"m"}', 'X-stream: 0'],
    ['{"stream":1,"model":"m"}', 'X-stream: 0'],
    ['{"model":1,"prompt":"Hello"}', '! X-model', 'X-blocks: 5'],
    ['{"model":"","prompt":"Hello"}', '! X-model', 'X-blocks: 5'],
    ["\xef\xbb\xbf" . '{"model":"m","prompt":"Hello"}',
     'X-model: m', 'X-blocks: 5'],
);

# Bodies without a prompt for us: passed on all the same.
our @none = map {
    [ '/v1/completions', $_, '! X-model', '! X-stream', 'X-blocks: 0',
      'X-selection: least_request_fallback' ]
} ('{', '{"model":"m"', '{"model":"m","prompt":"Hello"', '[]', '"model"',
   '{"model":"m","prompt":"Hello"}}', '{"model":"m","prompt":"Hello",}',
   "{'model':'m'}", '{"model":"m","prompt":"Hello"} x', 'null', '0',
   "\x1f\x8b\x08gzip", "\0\0\0\0\0\0", '--boundary
Content-Disposition: form-data; name="model"

whisper
--boundary--');

# 10,000 deep, before the prompt, in it, and without an end.
our $deep = '[' x 10000 . ']' x 10000;
our @deep = map { [ '/v1/chat/completions', @$_ ] } (
    ["{\"model\":\"m\",\"x\":$deep,\"messages\":[{\"content\":\"Hello\"}]}",
     'X-model: m', 'X-blocks: 5'],
    ["{\"model\":\"m\",\"messages\":[{\"content\":$deep}]}",
     'X-model: m', 'X-blocks: 20000'],
    ['{"model":"m","messages":' . '[' x 10000,
     '! X-model', 'X-blocks: 0'],
    ['{"a":' x 10000 . '1' . '}' x 10000, '! X-model', 'X-blocks: 0'],
);

# A body of 20 kB, its length in blocks, and what the engine should get.
our $prompt = join ' ', map { "word$_" } 1 .. 2000;
our $long = completion($prompt);
our $length = length $prompt;
our $digest = sha256_hex($long);

sub chunked
{
    my ($size, $text) = @_;

    return join('', map { sprintf "%x\r\n%s\r\n", length, $_ }
                    $text =~ /(.{1,$size})/gs) . "0\r\n\r\n";
}

our $in_chunks = chunked(1000, $long);

our $ways = join '', map { my ($path, $lines) = @$_; <<"EOC" } (
    location /v1/$path/ {
        $lines
        proxy_pass http://llm;
        $::show
    }
EOC
    ['memory', 'client_body_buffer_size 64k;'],
    ['two', 'client_body_buffer_size 1k;'],
    ['file', 'client_body_in_file_only clean;'],
    ['single', 'client_body_in_single_buffer on;'],
    ['first', 'aibrix_read_body on;'],
    ['firstfile', 'aibrix_read_body on; client_body_in_file_only clean;'],
    ['firsttwo', 'aibrix_read_body on; client_body_buffer_size 1k;'],
    ['variable', 'set $up llm; set $x ""; proxy_pass http://$up$x; '],
    ['unbuffered', 'aibrix_read_body on; proxy_request_buffering off; '
                   . 'proxy_http_version 1.1;'],
);
$ways =~ s/(proxy_pass http:\/\/\$up\$x; )\s*proxy_pass http:\/\/llm;/$1/;

our @way = map { "/v1/$_/v1/completions" }
           qw(memory two file single first firstfile firsttwo variable
              unbuffered);

our $hello = completion('Hello');
our $for_a = completion('Hello', model => 'a');
our $for_b = completion('Hello', model => 'b');

sub raw
{
    my ($head, @rest) = @_;

    return ["$head\r\nHost: localhost\r\nConnection: close\r\n"
            . 'Content-Length: ' . length(CORE::join '', @rest)
            . "\r\n\r\n$rest[0]", @rest[1 .. $#rest]];
}

run_tests();

__DATA__

=== TEST 1: completions
--- pipelined_requests eval: ::requests(@::completions)
--- response_headers eval: ::headers(@::completions)



=== TEST 2: chat completions
--- pipelined_requests eval: ::requests(@::chat)
--- response_headers eval: ::headers(@::chat)



=== TEST 3: messages, responses, embeddings, rerank, and other paths
--- pipelined_requests eval: ::requests(@::others)
--- response_headers eval: ::headers(@::others)



=== TEST 4: strings, keys that look alike, keys twice, BOM
--- pipelined_requests eval: ::requests(@::strings)
--- response_headers eval: ::headers(@::strings)



=== TEST 5: no JSON request: no prompt, and no error
--- pipelined_requests eval: ::requests(@::none)
--- response_headers eval: ::headers(@::none)



=== TEST 6: the same with aibrix_read_body
--- config eval
"location /v1/ { aibrix_read_body on; proxy_pass http://llm; $::show }"
--- pipelined_requests eval: ::requests(@::none)
--- response_headers eval: ::headers(@::none)



=== TEST 7: 10,000 brackets
--- pipelined_requests eval: ::requests(@::deep)
--- response_headers eval: ::headers(@::deep)



=== TEST 8: GET, and POST without a body
--- pipelined_requests eval
["GET /v1/models", "POST /v1/completions", "DELETE /v1/files/1"]
--- response_headers eval
[("! X-model\n! X-stream\nX-blocks: 0\nX-match-percent: 0") x 3]



=== TEST 9: Content-Length: 0
--- raw_request eval: ::raw('POST /v1/completions HTTP/1.1', '')
--- response_headers
! X-model
X-blocks: 0
--- error_code: 200



=== TEST 10: Content-Length: 0 with aibrix_read_body
--- config eval
"location /v1/ { aibrix_read_body on; proxy_pass http://llm; $::show }"
--- raw_request eval: ::raw('POST /v1/completions HTTP/1.1', '')
--- response_headers
! X-model
X-blocks: 0
--- error_code: 200



=== TEST 11: an empty chunked body
--- config eval
"location /v1/ { aibrix_read_body on; proxy_pass http://llm; $::show }"
--- request eval: "POST /v1/completions\n0\r\n\r\n"
--- more_headers
Transfer-Encoding: chunked
--- response_headers
! X-model
X-blocks: 0
--- error_code: 200



=== TEST 12: every way to hold a body gives the same blocks
--- config eval: $::ways
--- pipelined_requests eval: [map { "POST $_\n$::long" } @::way, @::way]
--- response_headers eval
["X-blocks: $::length",
 ("X-blocks: $::length\nX-match-percent: 100\nX-model: m")
 x (2 * @::way - 1)]



=== TEST 13: and the same bytes for the engine
--- config eval: $::ways
--- engine
location / { engine_sim_digest; }
--- pipelined_requests eval: [map { "POST $_\n$::long" } @::way]
--- response_body_like eval: [("\"$::digest\"") x @::way]



=== TEST 14: a chunked body in memory
--- config eval: $::ways
--- engine
location / { engine_sim_digest; }
--- request eval: "POST /v1/memory/v1/completions\n$::in_chunks"
--- more_headers
Transfer-Encoding: chunked
--- response_headers eval: "X-model: m\nX-blocks: $::length"
--- response_body_like eval: "\"$::digest\""



=== TEST 15: a chunked body, partly in a file
--- config eval: $::ways
--- engine
location / { engine_sim_digest; }
--- request eval: "POST /v1/two/v1/completions\n$::in_chunks"
--- more_headers
Transfer-Encoding: chunked
--- response_headers eval: "X-model: m\nX-blocks: $::length"
--- response_body_like eval: "\"$::digest\""



=== TEST 16: a chunked body in a file
--- config eval: $::ways
--- engine
location / { engine_sim_digest; }
--- request eval: "POST /v1/firstfile/v1/completions\n$::in_chunks"
--- more_headers
Transfer-Encoding: chunked
--- response_headers eval: "X-model: m\nX-blocks: $::length"
--- response_body_like eval: "\"$::digest\""



=== TEST 17: chunks of one byte
--- config eval: $::ways
--- engine
location / { engine_sim_digest; }
--- request eval: "POST /v1/first/v1/completions\n" . ::chunked(1, $::long)
--- more_headers
Transfer-Encoding: chunked
--- response_headers eval: "X-model: m\nX-blocks: $::length"
--- response_body_like eval: "\"$::digest\""



=== TEST 18: a body in pieces
--- config eval: $::ways
--- engine
location / { engine_sim_digest; }
--- raw_request eval
::raw('POST /v1/two/v1/completions HTTP/1.1',
      map { substr $::long, 5000 * $_, 5000 } 0 .. int length($::long) / 5000)
--- raw_request_middle_delay: 0.02
--- response_headers eval: "X-model: m\nX-blocks: $::length"
--- response_body_like eval: "\"$::digest\""



=== TEST 19: the same with aibrix_read_body
--- config eval: $::ways
--- engine
location / { engine_sim_digest; }
--- raw_request eval
::raw('POST /v1/firsttwo/v1/completions HTTP/1.1',
      map { substr $::long, 5000 * $_, 5000 } 0 .. int length($::long) / 5000)
--- raw_request_middle_delay: 0.02
--- response_headers eval: "X-model: m\nX-blocks: $::length"
--- response_body_like eval: "\"$::digest\""



=== TEST 20: unbuffered: what has come by then counts
--- config eval
"location /v1/ { proxy_request_buffering off; proxy_http_version 1.1;
                 proxy_pass http://llm; $::show }"
--- engine
location / { engine_sim_digest; }
--- raw_request eval
::raw('POST /v1/completions HTTP/1.1', '{"model":"m","prompt":"Hello',
      ' and more"}')
--- raw_request_middle_delay: 0.3
--- response_headers
X-model: m
X-stream: 0
X-blocks: 5
--- response_body_like eval
'"' . Digest::SHA::sha256_hex('{"model":"m","prompt":"Hello and more"}') . '"'



=== TEST 21: unbuffered, with nothing but the head
--- config eval
"location /v1/ { proxy_request_buffering off; proxy_http_version 1.1;
                 proxy_pass http://llm; $::show }"
--- engine
location / { engine_sim_digest; }
--- raw_request eval
::raw('POST /v1/completions HTTP/1.1', '', '{"model":"m","prompt":"Hello"}')
--- raw_request_middle_delay: 0.3
--- response_headers
! X-model
X-blocks: 0
--- response_body_like eval
'"' . Digest::SHA::sha256_hex('{"model":"m","prompt":"Hello"}') . '"'



=== TEST 22: unbuffered and chunked
--- config eval
"location /v1/ { proxy_request_buffering off; proxy_http_version 1.1;
                 proxy_pass http://llm; $::show }"
--- engine
location / { engine_sim_digest; }
--- request eval: "POST /v1/completions\n" . ::chunked(7, $::hello)
--- more_headers
Transfer-Encoding: chunked
--- response_headers
X-model: m
X-blocks: 5
--- response_body_like eval: '"' . Digest::SHA::sha256_hex($::hello) . '"'



=== TEST 23: aibrix_max_prompt
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1;
aibrix prefix-cache;
aibrix_block_size 10;
aibrix_max_prompt 1000;
--- pipelined_requests eval
["POST /v1/completions\n$::long", "POST /v1/completions\n$::hello",
 "POST /v1/completions\n" . main::completion(substr $::prompt, 0, 1000)]
--- response_headers eval
['X-blocks: 100', 'X-blocks: 0', "X-blocks: 100\nX-match-percent: 100"]



=== TEST 24: a tail shorter than a block does not count
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1;
aibrix prefix-cache;
--- pipelined_requests eval
[map { "POST /v1/completions\n" . main::completion('y' x $_) }
 127, 128, 255, 256]
--- response_headers eval
['X-blocks: 0', 'X-blocks: 1', "X-blocks: 1\nX-match-percent: 100",
 'X-blocks: 2']



=== TEST 25: another model, salt or adapter shares no prefix
--- llm
server 127.0.0.1:$TEST_NGINX_ENGINE_1;
aibrix prefix-cache;
--- more_http
    map $aibrix_match_percent $known { default some; 0 none; }
--- config
    location /v1/ {
        proxy_pass http://llm;
        add_header X-known $known;
        add_header X-blocks $aibrix_blocks;
    }
--- pipelined_requests eval
[map { "POST /v1/completions\n" . main::completion($::prompt, @$_) }
 [model => "m$$"], [model => "n$$"], [model => "m$$", cache_salt => "s$$"],
 [model => "m$$", lora_name => "l$$"], [model => "m$$"],
 [model => "m$$", cache_salt => "s$$"]]
--- response_headers eval
my $n = "X-blocks: " . int($::length / 128);
[$n, $n, $n, $n, "X-known: some", "X-known: some"]



=== TEST 26: which upstream, by a map on the model
--- more_http
    map $aibrix_model $up {
        default llm;
        b       other;
    }
    upstream other {
        server 127.0.0.1:$TEST_NGINX_ENGINE_3;
        aibrix random;
    }
--- config
    location /v1/ {
        aibrix_read_body on;
        proxy_pass http://$up;
    }
--- pipelined_requests eval
["POST /v1/completions\n$::for_a", "POST /v1/completions\n$::for_b",
 "GET /v1/models", "POST /v1/completions\n$::for_b"]
--- response_body_like eval
['^(one|two)$', '^three$', '^(one|two)$', '^three$']
--- response_headers eval
['routing-strategy: prefix-cache', 'routing-strategy: random',
 'routing-strategy: prefix-cache', 'routing-strategy: random']



=== TEST 27: without aibrix_read_body the model comes too late for that
--- more_http
    map $aibrix_model $up {
        default llm;
        b       nowhere;
    }
--- config
    location /v1/ {
        proxy_pass http://$up;
        add_header X-model $aibrix_model;
    }
--- request eval: "POST /v1/completions\n$::for_b"
--- response_body_like: ^(one|two)$
--- response_headers
X-model: b



=== TEST 28: in if, set and return
--- config
    location /v1/ {
        aibrix_read_body on;
        set $name "m=$aibrix_model s=$aibrix_stream";
        if ($aibrix_model = a) {
            proxy_pass http://llm;
        }
        return 200 "$name\n";
    }
--- pipelined_requests eval
["POST /v1/completions\n$::for_a", "POST /v1/completions\n$::for_b",
 "GET /v1/models",
 "POST /v1/completions\n{\"stream\":true,\"model\":\"x y\"}"]
--- response_body_like eval
['^m=a s=0$', '^m=b s=0$', '^m= s=$', '^m=x y s=1$']



=== TEST 29: proxy_pass in an if on the model
--- config
    location /v1/ {
        aibrix_read_body on;
        if ($aibrix_model = a) {
            proxy_pass http://llm;
        }
        if ($aibrix_model = b) {
            return 403;
        }
        proxy_pass http://127.0.0.1:$TEST_NGINX_ENGINE_4;
    }
--- pipelined_requests eval
["POST /v1/completions\n$::for_a", "POST /v1/completions\n$::for_b",
 "POST /v1/completions\n$::hello"]
--- error_code eval: [200, 403, 200]
--- response_body_like eval: ['^(one|two)$', '403 Forbidden', '^four$']



=== TEST 30: aibrix_read_body is inherited, and off again
--- more_http
    aibrix_read_body on;
--- config
    location /on {
        return 200 "$aibrix_model\n";
    }
    location /off {
        aibrix_read_body off;
        return 200 "$aibrix_model\n";
    }
--- pipelined_requests eval
["POST /on\n$::for_a", "POST /off\n$::for_b", "POST /on\n$::for_b"]
--- response_body eval: ["a\n", "\n", "b\n"]



=== TEST 31: limit_req by model
--- more_http
    limit_req_zone $aibrix_model$connection zone=models:1m rate=1r/m;
--- config
    location /v1/ {
        aibrix_read_body on;
        limit_req zone=models;
        limit_req_status 429;
        limit_req_log_level info;
        proxy_pass http://llm;
    }
--- pipelined_requests eval
["POST /v1/completions\n$::for_a", "POST /v1/completions\n$::for_b",
 "POST /v1/completions\n$::for_a", "POST /v1/completions\n$::hello"]
--- error_code eval: [200, 200, 429, 200]



=== TEST 32: auth_request by model
--- config
    location /v1/ {
        aibrix_read_body on;
        auth_request /auth;
        proxy_pass http://llm;
    }
    location /auth {
        internal;
        if ($aibrix_model = b) {
            return 403;
        }
        return 204;
    }
--- pipelined_requests eval
["POST /v1/completions\n$::for_a", "POST /v1/completions\n$::for_b",
 "POST /v1/completions\n$::hello"]
--- error_code eval: [200, 403, 200]



=== TEST 33: auth_request served by an upstream of ours
--- more_http
    upstream guards {
        server 127.0.0.1:$TEST_NGINX_ENGINE_3;
        aibrix least-request;
    }
--- config eval
"location /v1/ {
     auth_request /auth;
     auth_request_set \$guard \$upstream_http_x_guard;
     proxy_pass http://llm;
     proxy_hide_header X-guard;
     add_header X-guard \$guard;
     $::show
 }
 location /auth {
     internal;
     proxy_pass http://guards;
     proxy_pass_request_body off;
     proxy_set_header Content-Length '';
 }"
--- engine
location / { return 200 "$engine\n"; add_header X-guard $engine; }
--- request eval: "POST /v1/completions\n$::hello"
--- response_headers
X-guard: three
routing-strategy: prefix-cache
X-strategy: prefix-cache
X-blocks: 5
--- response_body_like: ^(one|two)$



=== TEST 34: a mirror to another upstream of ours, with blocks of its own
--- more_http
    log_format mirrored "$uri $aibrix_model $aibrix_blocks "
                        "$aibrix_selection $upstream_status";
    upstream shadow {
        server 127.0.0.1:$TEST_NGINX_ENGINE_3;
        aibrix prefix-cache;
        aibrix_block_size 2;
    }
--- config eval
"location /v1/ {
     mirror /mirror;
     proxy_pass http://llm;
     $::show
 }
 location /mirror {
     internal;
     log_subrequest on;
     access_log logs/access.log mirrored;
     proxy_pass http://shadow/v1/completions;
 }"
--- request eval: "POST /v1/completions\n$::hello"
--- response_headers
X-model: m
X-blocks: 5
--- response_body_like: ^(one|two)$
--- access_log eval: qr{^/mirror m 2 \w+ 200$}



=== TEST 35: error_page to another upstream of ours
--- more_http
    upstream spare {
        server 127.0.0.1:$TEST_NGINX_ENGINE_3;
        aibrix least-request;
        aibrix_block_size 10;
        aibrix_max_prompt 1000;
    }
--- engine
location / {
    if ($engine ~ one|two) {
        return 503 "busy\n";
    }
    engine_sim_digest;
}
--- config eval
"location /v1/ {
     proxy_pass http://llm;
     proxy_intercept_errors on;
     error_page 503 = \@spare;
     $::show
 }
 location \@spare {
     proxy_pass http://spare;
     $::show
 }"
--- pipelined_requests eval
["POST /v1/completions\n$::long", "POST /v1/completions\n$::hello"]
--- response_headers eval
["X-model: m\nX-blocks: 100\nX-strategy: least-request\n"
 . "target-pod: 127.0.0.1:\$TEST_NGINX_ENGINE_3",
 "X-model: m\nX-blocks: 0\nrouting-strategy: least-request"]
--- response_body_like eval
["\"$::digest\"", '"' . Digest::SHA::sha256_hex($::hello) . '"']



=== TEST 36: the same, after a temporary file
--- more_http
    upstream spare {
        server 127.0.0.1:$TEST_NGINX_ENGINE_3;
        aibrix prefix-cache;
        aibrix_block_size 10;
        aibrix_max_prompt 1000;
    }
--- engine
location / {
    if ($engine ~ one|two) {
        return 503 "busy\n";
    }
    engine_sim_digest;
}
--- config eval
"location /v1/ {
     client_body_buffer_size 1k;
     proxy_pass http://llm;
     proxy_intercept_errors on;
     error_page 503 = /spare;
 }
 location /spare {
     internal;
     proxy_method POST;
     proxy_pass http://spare/v1/completions;
     $::show
 }"
--- request eval: "POST /v1/completions\n$::long"
--- response_headers eval
"X-model: m\nX-blocks: 100\ntarget-pod: 127.0.0.1:\$TEST_NGINX_ENGINE_3"
--- response_body_like eval: "\"$::digest\""



=== TEST 37: error_page after an unbuffered body: the model stays known
--- more_http
    upstream spare {
        server 127.0.0.1:$TEST_NGINX_ENGINE_3;
        aibrix prefix-cache;
    }
--- engine
location / {
    if ($engine ~ one|two) {
        return 503 "busy\n";
    }
    return 200 "$engine\n";
}
--- config eval
"location /v1/ {
     proxy_request_buffering off;
     proxy_http_version 1.1;
     proxy_pass http://llm;
     proxy_intercept_errors on;
     error_page 503 = \@spare;
 }
 location \@spare {
     proxy_pass_request_body off;
     proxy_set_header Content-Length '';
     proxy_pass http://spare;
     $::show
 }"
--- raw_request eval
::raw('POST /v1/completions HTTP/1.1', '{"model":"b","prompt":"Hello',
      ' and more"}')
--- raw_request_middle_delay: 0.3
--- response_headers
X-model: b
X-blocks: 0
--- response_body
three



=== TEST 38: X-Accel-Redirect to another upstream of ours
--- more_http
    upstream second {
        server 127.0.0.1:$TEST_NGINX_ENGINE_3;
        aibrix random;
        aibrix_block_size 2;
    }
--- engine
location /v1/ {
    add_header X-Accel-Redirect /second;
    return 200 "first\n";
}
location /second { return 200 "$engine\n"; }
--- config eval
"location /v1/ {
     proxy_pass http://llm;
 }
 location /second {
     internal;
     proxy_pass http://second;
     $::show
 }"
--- request eval: "POST /v1/completions\n$::hello"
--- response_headers
X-model: m
X-blocks: 2
X-strategy: random
routing-strategy: random
--- response_body
three



=== TEST 39: X-Accel-Redirect to a file: the headers name who sent it
--- user_files
>>> answer.txt
from a file
--- engine
location / {
    add_header X-Accel-Redirect /answer.txt;
    return 200;
}
--- request eval: "POST /v1/completions\n$::hello"
--- response_headers_like
target-pod: 127\.0\.0\.1:\d+
routing-strategy: prefix-cache
--- response_body
from a file



=== TEST 40: rewrite to another location
--- config eval
"location /short {
     aibrix_read_body on;
     rewrite ^ /v1/completions last;
 }
 location /v1/ {
     aibrix_read_body on;
     proxy_pass http://llm;
     $::show
 }"
--- request eval: "POST /short\n$::hello"
--- response_headers
X-model: m
X-blocks: 5
--- response_body_like: ^(one|two)$



=== TEST 41: try_files and a named location
--- config eval
"location /v1/ {
     aibrix_read_body on;
     try_files /none \@llm;
 }
 location \@llm {
     aibrix_read_body on;
     proxy_pass http://llm;
     $::show
 }"
--- pipelined_requests eval
["POST /v1/completions\n$::for_a", "POST /v1/completions\n$::for_b"]
--- response_headers eval
["X-model: a\nX-blocks: 5", "X-model: b\nX-blocks: 5"]



=== TEST 42: a subrequest with the body of its parent
--- config eval
"location /page {
     ssi on;
     ssi_types text/plain;
     default_type text/plain;
     return 200 'a <!--#include virtual=\"/v1/x\" --> z';
 }
 location /v1/ {
     proxy_pass http://llm;
 }"
--- request eval: "POST /page\n$::hello"
--- response_body_like: ^a (one|two)\n z$
--- response_headers
! target-pod



=== TEST 43: too large, by Content-Length
--- config
    location /v1/ {
        client_max_body_size 1k;
        proxy_pass http://llm;
    }
    location /first/ {
        client_max_body_size 1k;
        aibrix_read_body on;
        proxy_pass http://llm;
    }
--- request eval: "POST /first/v1/completions\n$::long"
--- error_code: 413
--- response_headers
! target-pod
! x-error-routing
--- errors
--- error_log
client intended to send too large body



=== TEST 44: too large, in chunks, with aibrix_read_body
--- config
    location /v1/ {
        client_max_body_size 1k;
        aibrix_read_body on;
        proxy_pass http://llm;
    }
--- request eval: "POST /v1/completions\n$::in_chunks"
--- more_headers
Transfer-Encoding: chunked
--- error_code: 413
--- response_headers
! target-pod
--- errors
--- error_log
client intended to send too large chunked body



=== TEST 45: too large, in chunks, and error_page sends it on
--- config eval
"location /v1/ {
     client_max_body_size 1k;
     aibrix_read_body on;
     error_page 413 = \@llm;
     proxy_pass http://llm;
 }
 location \@llm {
     proxy_pass_request_body off;
     proxy_set_header Content-Length '';
     proxy_pass http://llm;
     $::show
 }"
--- request eval: "POST /v1/completions\n$::in_chunks"
--- more_headers
Transfer-Encoding: chunked
--- error_code: 200
--- response_headers_like
target-pod: .+
--- response_body_like: ^(one|two)$
--- errors



=== TEST 46: a broken chunked body is a bad request, with aibrix_read_body too
--- config
    location /v1/ {
        aibrix_read_body on;
        proxy_pass http://llm;
    }
--- request eval: "POST /v1/completions\nzz\r\nzz\r\n"
--- more_headers
Transfer-Encoding: chunked
--- error_code: 400
--- response_headers
! target-pod
! x-error-routing
--- errors
--- error_log
client sent invalid chunked body



=== TEST 47: an upstream by name and port, and one by literal address
--- config eval
"location /port {
     set \$up '127.0.0.1:\$TEST_NGINX_ENGINE_1';
     proxy_pass http://\$up;
     $::show
 }
 location /v1/ {
     set \$up 'LLM';
     proxy_pass http://\$up;
     $::show
 }"
--- pipelined_requests eval
["POST /port\n$::hello", "POST /v1/completions\n$::hello"]
--- response_headers eval
["! X-blocks\n! target-pod", 'X-blocks: 5']



=== TEST 48: a location without any upstream
--- user_files
>>> file
text
--- config
    location /file {
        aibrix_read_body on;
        add_header X-model $aibrix_model always;
        add_header X-pod $aibrix_target_pod always;
        add_header X-blocks $aibrix_blocks always;
    }
--- request eval: "POST /file\n$::hello"
--- error_code: 405
--- response_headers
X-model: m
! X-pod
! X-blocks
! target-pod
