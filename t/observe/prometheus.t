# A real Prometheus scrapes the demo: what the router answers is clean, and
# every expression of the dashboard and of the alerts gives series. Needs
# Prometheus: make test-observe.

use strict;
use warnings;

use lib 't/lib';
use AibrixTest;
use Observed;
use Test::More;

my $conf = repo() . '/conf';
my $demo = Observed->new;

$demo->traffic(clients => 5, seconds => 14,
               strategies => [qw(prefix-cache least-work random)]);
sleep 14;


subtest 'promtool' => sub {
    my $metrics = $demo->url . '/metrics';

    is(`curl -sS $metrics | promtool check metrics 2>&1`, '',
       'check metrics finds nothing');
    is($?, 0, 'and says so');

    for my $check ("check config $conf/prometheus.yml",
                   "check rules $conf/alerts.yml",
                   "test rules $conf/alerts.test.yml") {
        my $said = `promtool $check 2>&1`;
        is($?, 0, $check) or diag $said;
    }
};


subtest 'targets and rules' => sub {
    is_deeply([map { "$_->{labels}{job} $_->{health}" } $demo->targets],
              ['aibrix up', 'vllm up', 'vllm up'], 'all are scraped')
        or diag explain [map { $_->{lastError} } $demo->targets];

    my @rules = $demo->rules;
    cmp_ok(scalar @rules, '>', 4, 'rules');
    is_deeply([grep { $_->{health} ne 'ok' } @rules], [], 'all evaluate');
    is_deeply([map { "$_->{name} $_->{state}" }
               grep { $_->{state} eq 'firing' } @rules], [], 'none fires');
};


# Has a series with a value that is a number.
sub gives
{
    my ($expr, $what) = @_;
    my $series = $demo->query($expr);

    ok(scalar(grep { $_->{value}[1] ne 'NaN' } @$series), $what)
        or diag $expr, explain $series;
}


subtest 'dashboard' => sub {
    is_deeply([map { $_->{title} } $demo->panels],
              ['Routing choice', 'Per-replica distribution', 'KV hits',
               'Wait queue', 'TTFT', 'SLO compliance', 'Decision latency',
               'Fallbacks and errors'], "the study's panels, and two more");

    for my $panel ($demo->panels) {
        gives($_->{expr}, "$panel->{title}: $_->{legendFormat}")
            for @{ $panel->{targets} };
    }
};


subtest 'alerts' => sub {
    for my $rule ($demo->rules) {
        for my $part (split /\s(?:and|unless) on \([^)]*\)\s/,
                      $rule->{query}) {
            (my $expr = $part) =~ s/(?:>|==) [\d.]+/>= bool 0/g;

            isnt($expr, $part, "$rule->{name} compares");
            gives($expr, "$rule->{name}: has something to compare");
        }
    }
};


subtest 'the numbers are right' => sub {
    my ($sum) = map { $_->{value}[1] }
                @{ $demo->query('sum(aibrix_requests_total)') };
    my ($engines) = map { $_->{value}[1] }
        @{ $demo->query('sum(vllm:request_success_total)') };

    cmp_ok($sum, '>', 20, 'requests');
    cmp_ok(abs($sum - $engines), '<=', 6, 'as many as the engines finished');

    my ($router, $usage) = map {
        $demo->query("sum($_)")->[0]{value}[1]
    } 'aibrix_completion_tokens_total', 'vllm:generation_tokens_total';
    cmp_ok(abs($router - $usage), '<', 0.25 * $usage, 'tokens as well');
};


done_testing;
