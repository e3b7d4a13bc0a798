#!/usr/bin/perl
#
# screenshots.pl DIR: pictures for docs/, made from the demo under traffic: the
# live page (light, dark, on a phone, with 64 replicas) and the panels of the
# Grafana dashboard, drawn from a Prometheus that scrapes it. Called by
# `make screenshots` in a network namespace.

use strict;
use warnings;

use FindBin qw($Bin);
use lib "$Bin/../t/lib";

BEGIN { $ENV{AIBRIX_BUILD} = $ENV{BUILD} if $ENV{BUILD} }

use AibrixTest;
use Browser;
use Fleet;
use JSON::PP qw(encode_json);
use Observed;

my $dir = shift or die "usage: screenshots.pl DIR\n";
my $seconds = $ENV{SECONDS_OF_TRAFFIC} || 100;

mkdir $dir;


sub rest
{
    my ($browser, $ms) = @_;

    $browser->value("new Promise(r => setTimeout(r, $ms)).then(() => 0)");
}

sub shot
{
    my ($browser, $name) = @_;

    $browser->screenshot("$dir/$name.png");
    print "$dir/$name.png\n";
}


sub demo
{
    my $demo = Observed->new;
    my $browser = Browser->new(width => 1200, height => 1000);

    $demo->traffic(clients => 7, seconds => $seconds + 20, documents => 12,
                   strategies => [('least-work') x 6, 'prefix-cache'],
                   short => 0.03);
    $browser->open($demo->url . '/status');
    sleep $seconds;

    shot($browser, 'status');
    $browser->dark(1);
    rest($browser, 2500);
    shot($browser, 'status-dark');
    $browser->phone;
    rest($browser, 2500);
    shot($browser, 'status-phone');

    dashboard($demo);
}


# By the study's plotting code.
sub dashboard
{
    my $demo = shift;

    my @panels = map {
        my $panel = $_;
        {
            title => $panel->{title},
            unit => $panel->{fieldConfig}{defaults}{unit},
            stacked => $panel->{fieldConfig}{defaults}{custom}{stacking}{mode}
                       eq 'normal' ? \1 : \0,
            series => [map { series($demo, $_) } @{ $panel->{targets} }],
        }
    } $demo->panels;

    open my $plot, '|-', "$Bin/../study/panels", "$dir/dashboard.png"
        or die $!;
    print $plot encode_json({ seconds => $seconds, panels => \@panels });
    close $plot or die "study/panels failed";
}


sub series
{
    my ($demo, $target) = @_;

    return map {
        my $labels = $_->{metric};
        my $name = $target->{legendFormat};

        $name =~ s/\{\{(\w+)\}\}/$labels->{$1} || ''/ge;
        {
            name => $name,
            values => [map { [0 + $_->[0], $_->[1] eq 'NaN' ? undef
                                                            : 0 + $_->[1]] }
                       @{ $_->{values} }],
        }
    } @{ $demo->range($target->{expr}, $seconds) };
}


sub many
{
    my $engines = engines(64, 'step_base=30ms prefill_token=0.1ms',
                          workers => 1);
    my $router = router($engines, workers => 2,
        upstream => 'zone llm 512k; aibrix least-work;',
        server => 'location /status { aibrix_status; }');
    my $browser = Browser->new(width => 1200, height => 1000);
    my $end = time + $seconds;

    $browser->open($router->url . '/status');

    in_parallel(24, sub {
        while (time < $end) {
            http_post($router, text(int rand 40, 3000) . rand);
        }
        return 1;
    });

    shot($browser, 'status-64');
}


sub http_post
{
    my ($router, $prompt) = @_;

    eval {
        RawHttp::http($router->port, 'POST', '/v1/completions',
                      completion($prompt, stream => 'true',
                                 max_tokens => 5 + int rand 30,
                                 stream_options =>
                                 '{"include_usage":true}'));
        1;
    } or warn $@;
}


demo();
many();
