package RouterBlocks;

# What suites of Test::Nginx blocks around one routed upstream share:
#
#     use lib 't/lib';
#     use AibrixTest;
#     use Test::Nginx::Socket 'no_plan';
#     use RouterBlocks;
#
# Engines listen on 127.0.0.1:$TEST_NGINX_ENGINE_1 to _4 (nobody on _DEAD);
# such names are expanded in every section, ports stay the same for all blocks
# of a file. A block may leave out, or give with `eval`:
#   --- llm          what upstream "llm" has: engines 1 and 2, and "aibrix prefix-cache;"
#   --- engine       what the engines' server has: it answers their names
#   --- more_http    more of http {}
#   --- config       where requests go: /v1/ to the upstream "llm"
# $engine is "one" to "four". $::show in a location gives the variables as
# headers. $::chain as --- engine makes the engine that gets /v1/3 ask the
# router for /v1/2 before it answers, and so on down to /v1/1, whose answer
# names all of them in order: requests that wait for one another.
#
# No block may log an error; one with `--- errors` may, but nothing worse.

use strict;
use warnings;

use AibrixTest;
use Exporter qw(import);
use Test::Nginx::Socket ();

our @EXPORT = qw(json chat completion);

$ENV{"TEST_NGINX_ENGINE_$_"} = free_port() for 1 .. 4, 'DEAD';

$::show = join '', map { "add_header X-" . ucfirst($_)
                         . " \$aibrix_$_ always;\n" }
          qw(model stream strategy selection match_percent blocks
             target_pod target_pod_ip);
$::show =~ s/X-(\w+)/'X-' . ($1 =~ tr{_}{-}r)/ge;

$::chain = <<'EOC';
    location = /v1/1 { return 200 "$http_x_path$engine\n"; }
    location ~ ^/v1/\d$ {
        proxy_set_header X-path "$http_x_path$engine,";
        proxy_pass http://127.0.0.1:$TEST_NGINX_SERVER_PORT/v1/$next;
    }
EOC

my $llm = <<'EOC';
server 127.0.0.1:$TEST_NGINX_ENGINE_1;
server 127.0.0.1:$TEST_NGINX_ENGINE_2;
aibrix prefix-cache;
EOC

my $engine = 'location / { return 200 "$engine\n"; }';

my $config = "location /v1/ {\nproxy_pass http://llm;\n$::show}\n";


sub _http
{
    my $block = shift;
    my ($llm, $engine) = (defined $block->llm ? $block->llm : $llm,
                          defined $block->engine ? $block->engine : $engine);
    my $more = defined $block->more_http ? $block->more_http : '';

    return <<"EOC";
map \$server_port \$engine {
    \$TEST_NGINX_ENGINE_1 one;
    \$TEST_NGINX_ENGINE_2 two;
    \$TEST_NGINX_ENGINE_3 three;
    \$TEST_NGINX_ENGINE_4 four;
}
map \$uri \$next {
    /v1/4 3;
    /v1/3 2;
    /v1/2 1;
}
upstream llm {
$llm
}
server {
    listen 127.0.0.1:\$TEST_NGINX_ENGINE_1;
    listen 127.0.0.1:\$TEST_NGINX_ENGINE_2;
    listen 127.0.0.1:\$TEST_NGINX_ENGINE_3;
    listen 127.0.0.1:\$TEST_NGINX_ENGINE_4;
    access_log off;
$engine
}
$more
EOC
}


sub _expand
{
    my $value = shift;

    return [map { _expand($_) } @$value] if ref $value eq 'ARRAY';
    return $value if ref $value;
    return $value =~ s/\$(TEST_NGINX_ENGINE_\w+)/$ENV{$1}/gr;
}


Test::Nginx::Socket::add_block_preprocessor(sub {
    my $block = shift;

    $block->set_value(http_config => _http($block));
    $block->set_value(config => $config) if !defined $block->config;

    $block->set_value(no_error_log => [
        (defined $block->errors ? () : '[error]'),
        '[alert]', '[crit]', '[emerg]',
    ]) if !defined $block->no_error_log;

    for my $name (qw(request pipelined_requests response_body
                     response_body_like response_headers access_log
                     error_log raw_response_headers_like)) {
        my $value = $block->$name;

        $block->set_value($name => _expand($value)) if defined $value;
    }
});


# json($value): compact JSON of hashes (keys in order), arrays and strings.
# A reference to a scalar stands for itself: \1, \'true', \'null'.
sub json
{
    my $value = shift;
    my $type = ref $value;

    return $$value if $type eq 'SCALAR';
    return '[' . join(',', map { json($_) } @$value) . ']' if $type eq 'ARRAY';
    return '{' . join(',', map { json($_) . ':' . json($value->{$_}) }
                      sort keys %$value) . '}' if $type eq 'HASH';

    $value =~ s/([\\"\x00-\x1f])/sprintf '\\u%04x', ord $1/ge;
    return "\"$value\"";
}


# completion(PROMPT, more => fields): a body for /v1/completions.
sub completion
{
    my ($prompt, %more) = @_;

    return json({ model => 'm', prompt => $prompt, %more });
}


# chat(CONTENT, more => fields): one for /v1/chat/completions.
sub chat
{
    my ($content, %more) = @_;

    return json({ model => 'm', %more,
                  messages => [{ role => 'user', content => $content }] });
}


1;
