# What `nginx -t` says to each directive: right uses pass without a word,
# wrong ones stop with a sentence that tells what to do.

use strict;
use warnings;

use lib 't/lib';
use AibrixTest;
use NginxInstance;
use RawHttp qw(http);
use Test::More;

my $nginx = NginxInstance->new;


# An upstream with these lines, after these lines of http {}.
sub upstream
{
    my ($lines, $http) = @_;

    return ($http || '') . <<"EOC";
upstream llm { server 127.0.0.1:1; $lines }
server {
    listen 127.0.0.1:%%PORT1%%;
    location / { proxy_pass http://llm; }
}
EOC
}


sub server { "server { listen 127.0.0.1:%%PORT1%%; $_[0] }" }

sub location { server("location / { $_[0] }") }


# What nginx says to a configuration, without its summary.
sub said
{
    my $conf = shift;
    my ($ok, $text) = $nginx->write_conf(conf => $conf)->test_conf;
    my $file = $nginx->conf_file;

    $text =~ s/\Q$file\E:\d+/CONF/g;
    return ($ok, join "\n", grep { !/syntax is ok|test (?:failed|is succ)/ }
                            split /\n/, $text);
}


sub valid
{
    my ($title, $conf) = @_;
    my ($ok, $text) = said($conf);

    ok($ok && $text eq '', "valid: $title") or diag $text;
}


# The sentence must be there in an [emerg] line.
sub refused
{
    my ($sentence, $conf) = @_;
    my ($ok, $text) = said($conf);

    ok(!$ok && $text =~ /\[emerg\][^\n]*\Q$sentence\E/,
       "refused: $sentence") or diag $text;
}


subtest 'aibrix' => sub {
    my $zones = 'aibrix_zone a 8m; aibrix_zone b 8m;';

    valid('bare', upstream('aibrix;'));
    valid($_, upstream("aibrix $_;"))
        for qw(random least-request prefix-cache $arg_s x$arg_s);
    valid('zone', upstream('aibrix zone=a;', 'aibrix_zone a 8m;'));
    valid('the only zone needs no name',
          upstream('aibrix;', 'aibrix_zone a 8m;'));
    valid('strategy, zone', upstream('aibrix random zone=b;', $zones));
    valid('zone, strategy', upstream('aibrix zone=b random;', $zones));
    valid('before keepalive', upstream('aibrix; keepalive 2;'));
    valid('with a zone of peers', upstream('zone llm 64k; aibrix;'));
    valid('servers after it', upstream('aibrix; server 127.0.0.1:2 weight=2 '
          . 'max_conns=3 max_fails=4 fail_timeout=5s backup; server '
          . '127.0.0.1:3 down;'));

    refused('unknown strategy "nope", use one of "random", "least-request", '
            . '"prefix-cache"', upstream('aibrix nope;'));
    refused('unknown strategy "Random", use one of',
            upstream('aibrix Random;'));
    refused('unknown strategy "", use one of', upstream('aibrix "";'));
    refused('unknown "nope" variable', upstream('aibrix $nope;'));
    refused('invalid parameter "prefix-cache": one strategy and "zone=name" '
            . 'are all that "aibrix" takes',
            upstream('aibrix random prefix-cache;'));
    refused('invalid number of arguments in "aibrix" directive',
            upstream('aibrix random zone=a x;'));
    refused('has an empty zone name; name a zone that "aibrix_zone" declares',
            upstream('aibrix zone=;'));
    refused('has two zone parameters; keep one',
            upstream('aibrix zone=a zone=b;', $zones));
    refused('"aibrix" of upstream "llm" names an unknown zone "z", declare '
            . 'it with "aibrix_zone"', upstream('aibrix zone=z;'));
    refused('"aibrix" of upstream "llm" must say which zone it uses, as in '
            . '"aibrix zone=a;"', upstream('aibrix;', $zones));
    refused('"aibrix" of upstream "llm" needs a zone of its own, declare one '
            . 'with "aibrix_zone" under another name than "aibrix"',
            upstream('zone aibrix 64k; aibrix;'));
    refused('"aibrix" directive is duplicate', upstream('aibrix; aibrix;'));
    refused('no servers are inside upstream', 'upstream llm { aibrix; }');

    refused('"aibrix" in upstream "llm" in CONF is overridden by a later load '
            . 'balancing method; keep one of them', upstream("aibrix; $_;"))
        for qw(least_conn ip_hash random), 'hash $uri';

    refused('"aibrix" directive is not allowed here', $_)
        for 'aibrix;', server('aibrix;'), location('aibrix;');
};


# From 1.29.7 on keepalive may stand anywhere.
subtest 'aibrix after another method' => sub {
    for my $method (qw(least_conn ip_hash),
                    nginx_version() < 1_029_007 ? 'keepalive 2' : ()) {
        my ($ok, $text) = said(upstream("$method; aibrix;"));

        ok($ok, "$method first") or diag $text;
        like($text, qr/\[warn\].*load balancing method redefined/,
             'with a warning');
    }
};


subtest 'aibrix_zone' => sub {
    valid("aibrix_zone $_", "aibrix_zone $_;")
        for 'a 8m', 'a 8192k', 'a 8m ttl=20m', 'a 8m ttl=500ms',
            'a 8m ttl=1d12h', 'a 8m seed=0', 'a 8m ttl=1m seed=7',
            'a 8m seed=18446744073709551615 ttl=30';
    valid('two of them', 'aibrix_zone a 8m; aibrix_zone b 9m;');

    refused('invalid number of arguments', 'aibrix_zone a;');
    refused('has an empty name; name the zone', 'aibrix_zone "" 8m;');
    refused("invalid zone size \"$_\", write it as in \"64m\"",
            "aibrix_zone a \"$_\";") for '8x', '-8m', '', '99999999999999m';
    refused('zone "a" is too small, give it at least',
            "aibrix_zone a $_;") for qw(0 1k 100k);
    refused("invalid ttl \"$_\", write a time such as \"20m\"",
            "aibrix_zone a 8m ttl=$_;") for '', qw(0 x -1s);
    refused("invalid seed \"$_\", write a decimal number from 0 to "
            . '18446744073709551615', "aibrix_zone a 8m seed=$_;")
        for '', qw(-1 0x10 1.5 18446744073709551616);
    refused('has two ttl parameters; keep one',
            'aibrix_zone a 8m ttl=1m ttl=1m;');
    refused('has two seed parameters; keep one',
            'aibrix_zone a 8m seed=1 seed=1;');
    refused("invalid parameter \"$_\", \"aibrix_zone\" takes a name, a size, "
            . '"ttl=time" and "seed=number"', "aibrix_zone a 8m $_;")
        for qw(tll=1m 20m TTL=1m);
    refused('zone "a" is declared twice, remove one',
            'aibrix_zone a 8m; aibrix_zone a 8m;');
    refused('conflicts with already declared size',
            'aibrix_zone a 8m; aibrix_zone a 9m;');
    refused('the shared memory zone "a" is already declared for a different '
            . 'use', 'limit_req_zone $uri zone=a:1m rate=1r/s; '
                     . 'aibrix_zone a 8m;');
    refused('"aibrix_zone" directive is not allowed here', $_)
        for server('aibrix_zone a 8m;'), location('aibrix_zone a 8m;'),
            upstream('aibrix_zone a 8m;');

    my $servers = join '', map { "server 127.0.0.1:$_;" } 2 .. 1024;

    valid('1,024 servers', upstream("aibrix; $servers"));
    refused('servers, upstream "llm" in CONF does not fit; raise the size of '
            . 'the zone', upstream("aibrix; $servers", 'aibrix_zone a 1m;'));
};


# [directive, right values, wrong ones, what is said to the wrong ones]
for my $parameter (
    ['aibrix_override', [qw(on off)], [qw(maybe 1)],
     'it must be "on" or "off"'],
    ['aibrix_block_size', [qw(1 128 65536)], [qw(0 65537 1k -1 x), ''],
     'it must be a number from 1 to 65536'],
    ['aibrix_imbalance', [qw(0 16 1000000)], [qw(-1 1000001 1.5), ''],
     'it must be a number from 0 to 1000000'],
    ['aibrix_stddev_factor', [qw(0 2 1.5 1.25)],
     [qw(-1 1.255 x . 99999999999999999999), ''],
     'write a number such as "2" or "1.5"'],
    ['aibrix_max_prompt', [qw(1 64k 1m)], [qw(0 -1 1g x), ''],
     'it must be a size above 0 such as "64k" or "1m"'])
{
    my ($name, $right, $wrong, $sentence) = @$parameter;

    subtest $name => sub {
        for my $value (@$right) {
            valid("$value in upstream", upstream("aibrix; $name $value;"));
            valid("$value in http", upstream('aibrix;', "$name $value;"));
        }

        valid('in both', upstream("aibrix; $name $right->[0];",
                                  "$name $right->[1];"));
        valid('before aibrix', upstream("$name $right->[0]; aibrix;"));
        valid('in http, without any upstream', "$name $right->[0];");

        refused($sentence, upstream("aibrix; $name \"$_\";")) for @$wrong;

        refused("\"$name\" directive is duplicate",
                upstream("aibrix; $name $right->[0]; $name $right->[0];"));
        refused("invalid number of arguments in \"$name\" directive",
                upstream("aibrix; $name$_;"))
            for '', " $right->[0] $right->[0]";
        refused("\"$name\" directive is not allowed here", $_)
            for server("$name $right->[0];"), location("$name $right->[0];");
        refused('upstream "llm" in CONF sets "aibrix_..." parameters without '
                . '"aibrix;"; add it or remove them',
                upstream("$name $right->[0];"));
    };
}


for my $name (qw(aibrix_read_body aibrix_headers aibrix_sse)) {
    subtest $name => sub {
        for my $value (qw(on off)) {
            valid("$value everywhere",
                  "$name $value;" . server("$name $value; location / { "
                                           . "$name $value; }"));
        }

        refused('it must be "on" or "off"', "$name $_;") for qw(yes 1);
        refused("\"$name\" directive is duplicate", "$name on; $name on;");
        refused("invalid number of arguments in \"$name\" directive",
                "$name$_;") for '', ' on on';
        refused("\"$name\" directive is not allowed here", $_)
            for upstream("aibrix; $name on;"),
                location("if (\$arg_a) { $name on; }");
    };
}


subtest 'aibrix_metrics' => sub {
    valid('in location', location('aibrix_metrics;'));

    refused('invalid number of arguments in "aibrix_metrics" directive',
            location('aibrix_metrics on;'));
    refused('the location has another content handler', location($_))
        for 'aibrix_metrics; aibrix_metrics;',
            'proxy_pass http://127.0.0.1:1; aibrix_metrics;';
    refused('"aibrix_metrics" directive is not allowed here', $_)
        for 'aibrix_metrics;', server('aibrix_metrics;'),
            upstream('aibrix; aibrix_metrics;'),
            location('if ($arg_a) { aibrix_metrics; }');
};


subtest 'a reload that asks too much of living memory' => sub {
    my $conf = upstream('aibrix;') . 'server { listen 127.0.0.1:%%PORT2%%; '
               . 'location / { return 200 "here\n"; } }';

    $nginx = NginxInstance->new(
        conf => "aibrix_zone a 8m seed=7 ttl=20s; $conf")->start;

    for (['seed=8', 'aibrix_zone "a" lives with another seed; keep the seed, '
                    . 'change the zone\'s name or restart nginx'],
         ['ttl=365d', 'aibrix_zone "a" lives with a clock too fine for this '
                      . 'ttl; set at most '])
    {
        my ($parameter, $sentence) = @$_;

        $nginx->write_conf(conf => "aibrix_zone a 8m $parameter; $conf");
        ok(!eval { $nginx->reload }, "$parameter is refused");
        like($@, qr/\[emerg\][^\n]*\Q$sentence\E/, 'with the reason');
        is(http($nginx->port(2), 'GET', '/')->{body}, "here\n",
           'and nginx goes on');
    }

    $nginx->write_conf(conf => "aibrix_zone a 8m seed=7 ttl=30s; $conf");
    ok(eval { $nginx->reload }, 'another ttl and the same seed are taken')
        or diag $@;

    $nginx->write_conf(conf => "aibrix_zone a 9m seed=9; $conf");
    ok(eval { $nginx->reload }, 'and any seed with a new size') or diag $@;
    ok($nginx->wait_log(qr/"a" has a new size: its index and counters start/),
       'which is told');

    is($nginx->stop, 0, 'stops in order');
    is_deeply([grep { !/ lives with / } $nginx->log_at], [],
              'nothing else in the log');
};

done_testing;
