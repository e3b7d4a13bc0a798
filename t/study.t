# The study at its smallest: a phase of each scenario, a strategy each. Checks
# what comes out and who is said to have answered, not how long it took.

use strict;
use warnings;

use lib 't/lib';
use AibrixTest;
use IO::Uncompress::Gunzip qw(gunzip $GunzipError);
use Digest::SHA qw(sha256_hex);
use JSON::PP;
use Test::More;
use Time::HiRes qw(sleep);

my $python = '/usr/bin/python3';
my $study = repo() . '/study';
my $dir = scratch_dir();

$ENV{PYTHONDONTWRITEBYTECODE} = 1;

plan skip_all => 'the study runs the stock nginx, as it is'
    if $ENV{AIBRIX_STATIC} || $ENV{AIBRIX_VALGRIND}
       || $ENV{TEST_NGINX_USE_HUP};

for my $module (qw(aiohttp matplotlib jsonschema)) {
    plan skip_all => "$python has no $module: scripts/deps.sh study"
        if system("$python -c 'import $module' 2> /dev/null") != 0;
}


# A program of the study: (exit code, output).
sub tool
{
    my ($name, @args) = @_;

    open my $pipe, '-|', "$python $study/$name @args 2>&1" or die $!;
    my $output = do { local $/; <$pipe> };
    close $pipe;
    return ($? >> 8, $output);
}


sub slurp
{
    open my $file, '<:raw', $_[0] or die "$_[0]: $!";
    local $/;
    return <$file>;
}


sub raw_records
{
    my $zipped = slurp("$_[0]/requests.jsonl.gz");

    gunzip(\$zipped, \my $lines) or die $GunzipError;
    return map { decode_json($_) } split /\n/, $lines;
}


my $out = "$dir/quick";
my $run = "--speed 20 --build $ENV{AIBRIX_BUILD} --seed test";
my ($code, $said) = tool('run', "--quick --out $out $run");

is $code, 0, 'the study runs' or BAIL_OUT($said);
is((tool('validate.py', $out))[1], "valid\n",
   'both files are as their schemas say');

my $results = decode_json(slurp("$out/results.json"));
my %phase = map { $_->{phase} => $_ } @{ $results->{phases} };
my @raw = raw_records($out);

ok $results->{complete}, 'to its end';
is_deeply [sort keys %phase],
          [qw(cold-r1-random hot-50-r1-prefix-cache hot-90-r1-least-work
              warm-uniform-r1-least-request)], 'all phases are there';
is_deeply [grep { $phase{$_}{status} ne 'measured' } sort keys %phase], [],
          'and measured';
is_deeply $results->{flags}{mismatch}, [], 'no count disagrees';

for my $name (sort keys %phase) {
    my $f = $phase{$name}{figures};
    my $by = $f->{attribution};
    my @mine = grep { $_->{phase} && $_->{phase} eq $name } @raw;
    my @requests = grep { $_->{record} eq 'request' } @mine;

    is_deeply [@$f{qw(scheduled sent succeeded)}], [96, 96, 96],
              "$name: all requests succeed";
    is_deeply [sort { $a <=> $b } map { $_->{index} } @requests], [0 .. 95],
              "$name: each is recorded once";
    is $by->{client}{A} + $by->{client}{B}, 96, "$name: all have a place";
    is_deeply [@$by{qw(router engine)}], [($by->{client}) x 2],
              "$name: the router and the engines count the same";
    is_deeply [map { $_->{at} } grep { $_->{record} eq 'counters' } @mine],
              [qw(before after)], "$name: counters before and after";
    cmp_ok scalar @{ $phase{$name}{snapshots} }, '>=', 12,
           "$name: snapshots of a minute";
    ok !(grep { $_->{sent_ns} < $_->{scheduled_ns} } @requests),
       "$name: nothing is sent early";
    ok !(grep { $_->{first_ns} < $_->{sent_ns}
                || $_->{end_ns} < $_->{last_ns} } @requests),
       "$name: time goes forward";
}

my ($selection) = keys %{ $phase{'cold-r1-random'}{figures}{selections} };
is $selection, 'random', 'the strategy of the header is the one applied';

my $hot = $phase{'hot-50-r1-prefix-cache'};
my $state = $hot->{attempts}[-1];
my %families;
$families{ $_->{family} }++
    for grep { $_->{record} eq 'request' && $_->{phase} eq $hot->{phase} } @raw;

is_deeply $hot->{figures}{index_split}, { A => 4, B => 4 },
          'hot: four groups a side';
is scalar @{ $state->{candidates} }, 16, 'hot: of 16 candidates';
is $families{ $state->{families}[0] }, 48, 'hot: one has half of all';
is $state->{index}{ $state->{families}[0] }, 'B', 'hot: and lives on B';
is scalar keys %families, 8, 'hot: of eight groups';

my $warm = $phase{'warm-uniform-r1-least-request'}{attempts}[-1];
cmp_ok $warm->{warm_hit_rate}{$_}, '>', 0.9, "warm: $_ has all groups"
    for qw(A B);

my $cold = $phase{'cold-r1-random'};
my ($first) = grep { $_->{record} eq 'request'
                     && $_->{phase} eq $cold->{phase} } @raw;
is $first->{cached_tokens}, 0, 'cold: nothing is cached';


my ($same, $text) = tool('recompute.py', "$out/requests.jsonl.gz");
is $same, 0, 'recomputed from the raw records, all figures agree'
    or diag($text);

my $changed = decode_json(slurp("$out/results.json"));
$changed->{phases}[0]{figures}{ttft}{p95} += 1e-9;
open my $file, '>', "$dir/changed.json" or die $!;
print $file encode_json($changed);
close $file;
is((tool('recompute.py', "$out/requests.jsonl.gz $dir/changed.json"))[0], 1,
   'and a changed digit is found');

my @requests = grep { $_->{record} eq 'request' } @raw;

for my $request (@requests[0, 150, -1]) {
    my $body = (tool('make_request.py', "--results $out/results.json",
                      "--phase $request->{phase}",
                      "--family $request->{family}",
                      "--index $request->{index}"))[1];

    is sha256_hex($body), $request->{body_sha256},
       "$request->{phase} $request->{index}: rebuilt byte for byte";
}

is system("cd $out && sha256sum --quiet -c manifest.sha256"), 0,
   'the manifest is right';


# Ctrl-C in the middle of a phase
my $broken = "$dir/broken";
my $pid = fork // die "fork: $!";
if ($pid == 0) {
    open STDOUT, '>', '/dev/null';
    open STDERR, '>&', \*STDOUT;
    exec $python, "$study/run", split(' ', "--out $broken $run "
         . '--scenarios cold --strategies random --no-prometheus');
}

wait_for(sub { -s "$broken/requests.jsonl.gz" }, 20);
sleep 4;
kill 'INT', $pid;
waitpid $pid, 0;
is $? >> 8, 130, 'interrupted, it says so';
is((tool('validate.py', $broken))[1], "valid\n", 'and leaves valid files');
is((tool('recompute.py', "$broken/requests.jsonl.gz"))[0], 0,
   'whose figures agree');
ok !decode_json(slurp("$broken/results.json"))->{complete},
   'which are said to be partial';

done_testing();
