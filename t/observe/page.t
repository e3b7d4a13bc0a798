# The live page of aibrix_status in headless Chromium: it loads from the module
# alone, moves by itself, says what the counters say, stops when nobody looks,
# and its buttons work. Needs Chromium: make test-observe.

use strict;
use warnings;

use lib 't/lib';
use AibrixTest;
use Browser;
use Fleet;
use NginxInstance;
use RawHttp qw(http);
use Test::More;
use Time::HiRes qw(sleep);

my $browser;
my $engines = engines(64, 'step_base=10ms max_tokens=2');


sub page
{
    my ($n, $upstream) = @_;
    my $router = router($engines, workers => 2, upstream => $upstream,
        servers => servers($engines, '', 1 .. $n),
        server => 'location /status { aibrix_status control=on; }'
                  . 'location /read { aibrix_status; }');

    $browser = Browser->new(height => 1200);
    $browser->open($router->url . '/status');
    updated(1) or die 'the page does not update';
    return $router;
}

sub updates { $browser->value('+document.body.dataset.updates') }

# Waits for that many more updates.
sub updated
{
    my $more = shift;
    my $end = updates() + $more;
    return wait_for(sub { updates() >= $end }, 3 + 2 * $more);
}

sub table
{
    my $id = shift;
    return $browser->value("[...document.querySelectorAll('#$id tr')].map("
        . "r => [...r.cells].map(c => c.textContent))");
}

sub tile
{
    my $name = shift;
    return $browser->value("[...document.querySelectorAll('#tiles dt')].find("
        . "t => t.textContent === '$name').nextSibling.textContent");
}

# What stands under a chart.
sub legend
{
    my $title = shift;
    return $browser->value("document.querySelector("
        . "'canvas[aria-label^=\"$title\"]').getAttribute('aria-label')");
}

# Pixels of a chart that are neither background nor grid nor text.
sub drawn
{
    my $title = shift;
    return $browser->value(<<"EOC");
(() => {
    const c = document.querySelector('canvas[aria-label^="$title"]');
    const g = new OffscreenCanvas(c.width, c.height).getContext('2d');
    g.drawImage(c, 0, 0);
    const d = g.getImageData(48, 0, c.width - 56, c.height - 20).data;
    let n = 0;
    for (let i = 0; i < d.length; i += 4)
        if (d[i + 3] > 128 && Math.max(d[i], d[i + 1], d[i + 2])
                              - Math.min(d[i], d[i + 1], d[i + 2]) > 60) n++;
    return n;
})()
EOC
}

sub is_quiet
{
    is_deeply([$browser->messages], [], 'nothing in the console');
    is_deeply([grep { !m{^http://127\.0\.0\.1:\d+/} && !/^data:/ }
               $browser->requests], [], 'nothing fetched from elsewhere');
}


subtest 'two replicas' => sub {
    my $router = page(2, 'aibrix prefix-cache;');
    my @pods = map { '127.0.0.1:' . $engines->port($_) } 1, 2;

    is($browser->value('document.title'), 'aibrix', 'it loads');
    is_deeply([map { "$_->[0] $_->[1]" } @{ table('peers') }[1, 2]],
              [map { "$_ up" } @pods], 'the replicas, up');
    is(drawn('Reasons'), 0, 'no decision, no area');

    my $held = hold($router, text(1, 1300));
    my $pod = $held->head->{headers}{'target-pod'};
    ask($router, text(1, 1300)) for 1 .. 3;
    ok(updated(2), 'it updates by itself');

    is(tile('in flight'), 1, 'one in flight');
    is(tile('prefix hits'), '75%', 'three of four had been there');
    like(legend('In flight'), qr/\Q$pod\E 1\b/, 'the chart says where');
    cmp_ok(drawn('In flight'), '>', 10, 'and draws it');
    cmp_ok(drawn('Reasons'), '>', 10, 'the reasons have areas');

    my $recent = table('recent');
    is_deeply([map { join ' ', @$_[1 .. 6] } @$recent[1 .. 4]],
              [("m $pod prefix-cache prefix match 100% 10") x 3,
               "m $pod prefix-cache least request fallback 0% 10"],
              'the decisions, latest first');

    $browser->hidden(1);
    sleep 1.2;
    my $before = updates();
    sleep 2.5;
    is(updates(), $before, 'hidden, it rests');
    is($browser->value('document.getElementById("when").textContent'),
       'paused', 'and says so');
    $browser->hidden(0);
    ok(updated(2), 'seen again, it goes on');

    $browser->value("[...document.querySelectorAll('#peers tr')].find(r => "
        . "r.textContent.includes('$pod')).querySelector('button').click()");
    ok(wait_for(sub { grep { "$_->[0] $_->[1]" eq "$pod drained" }
                      @{ table('peers') } }), 'its button drains');
    my ($other) = grep { $_ ne $pod } @pods;
    is(ask($router, text(1, 1300))->{headers}{'target-pod'}, $other,
       'really');

    is_quiet();

    $browser->open($router->url . '/read');
    ok(updated(1), 'without control');
    is($browser->value('document.querySelectorAll("button").length'), 0,
       'there is no button');

    $held->close;
    kill 'KILL', $router->worker_pids, $router->master_pid;
    ok(wait_for(sub { $browser->value(
        '!document.getElementById("trouble").hidden') }, 10),
       'nginx gone: the page says it has no news');
};


subtest '64 replicas, on a phone, in the dark' => sub {
    my $router = page(64, 'zone llm 512k; aibrix least-work;');

    in_parallel(4, sub {
        my $k = shift;
        ask($router, text($k * 100 + $_ % 9, 1300)) for 1 .. 40;
        return 1;
    });
    ok(updated(2), 'it updates');
    is(scalar @{ table('peers') }, 65, 'a row each');
    cmp_ok(drawn('Requests'), '>', 100, 'a row each in the charts');
    like($browser->value('document.getElementById("charts").textContent'),
         qr/one row a replica/, 'which say so');

    my $light = $browser->value('getComputedStyle(document.body)'
                                . '.backgroundColor');
    $browser->dark(1)->phone;
    ok(updated(1), 'it still updates');
    isnt($browser->value('getComputedStyle(document.body).backgroundColor'),
         $light, 'dark');
    is($browser->value('document.documentElement.scrollWidth'), 390,
       'as wide as the phone');

    is_quiet();
    $router->stop;
};


undef $browser;
done_testing;
