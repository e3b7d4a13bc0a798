package Side;

# One router with its replicas and clients, through the schedule.

use strict;
use warnings;

use AibrixTest;
use Client;
use Fleet qw(completion);
use POSIX ();
use RawHttp;
use Replicas;
use Router;
use Storable qw(nstore retrieve);
use Time::HiRes qw(sleep time);
use Watch;

my $held = 12;


# run(side => 'ours', seed => 7, schedule => ..., clients => 12, dir => $dir):
# what was done and what came of it.
sub run
{
    my %args = @_;
    my $dir = $args{dir};
    my $self = bless { %args, did => {} }, 'Side';

    $self->{replicas} = Replicas->new(dir => $dir,
                                      faults => $args{schedule}{faults});
    $self->{replicas}->start;
    $self->{router} = Router->new(dir => $dir, side => $args{side},
                                  shared => $args{schedule}{shared},
                                  ports => [$self->{replicas}->ports]);
    $self->{watch} = Watch->new(dir => $dir, router => $self->{router},
                                replicas => $self->{replicas},
                                clients => $args{clients} + $held);

    my $ok = eval { $self->play; 1 };
    my $why = $@;

    $self->touch('stop');
    $self->{router}->stop;
    $self->{replicas}->stop;
    $self->{watch}->breach("the run ended early: $why") if !$ok;
    return $self->books;
}


sub ours { $_[0]{side} eq 'ours' }


sub touch
{
    my ($self, $name) = @_;

    open my $file, '>', "$self->{dir}/$name" or die "$name: $!";
}


sub play
{
    my $self = shift;
    my ($first, @actions) = @{ $self->{schedule}{actions} };

    $self->{router}->start($first);
    $self->clients;
    my $start = time;

    for my $action (@actions) {
        while ((my $left = $start + $action->{at} - time) > 0) {
            sleep($left < 0.25 ? $left : 0.25);
            $self->{watch}->look if $self->ours;
        }

        my $do = $action->{do} eq 'kill' ? 'murder' : $action->{do};
        $self->{did}{ $action->{signal} || $action->{what} || $do }++;
        $self->$do($action);
    }

    $self->{injected} = $self->{replicas}->order('injected');
    $self->finish;
}


sub clients
{
    my $self = shift;
    my $n = $self->{clients};

    open my $file, '>', "$self->{dir}/clients" or die $!;
    print $file 'r' x $n;
    close $file;

    for my $i (0 .. $n - 1) {
        my $pid = fork;
        die "fork: $!" if !defined $pid;

        if ($pid == 0) {
            my $books = eval {
                Client::client(number => $i, port => $self->{router}->port,
                               seed => $self->{seed}, dir => $self->{dir});
            };
            warn $@ if $@;
            nstore($books || {}, "$self->{dir}/books-$i");
            POSIX::_exit(0);
        }

        push @{ $self->{pids} }, $pid;
    }
}


# No client has a request.
sub parked
{
    my $self = shift;

    open my $file, '<', "$self->{dir}/clients" or die $!;
    return <$file> !~ /r/;
}


sub murder
{
    my ($self, $action) = @_;

    $self->{router}->kill_one($action->{signal}, $action->{victim});
}


sub reload
{
    my ($self, $action) = @_;

    $self->{watch}->new_zone if $action->{what} eq 'zone';
    $self->{router}->reload($action, $action->{victim});
}


sub upgrade
{
    my $self = shift;

    $self->{watch}->new_zone;
    $self->{router}->upgrade;
}


# least_conn has no such order: it does the same of what goes with it.
sub drain
{
    my ($self, $action) = @_;
    my $router = $self->{router};
    my $server = $router->name_of($action->{name}, $action->{i});
    my $order = "upstream=llm&server=$server";

    $self->order("action=drain&$order") if $self->ours;
    my $from = time;

    $router->kill_one('KILL', $action->{victim})
        if $action->{meanwhile} eq 'kill';
    $router->reload($router->{conf}) if $action->{meanwhile} eq 'reload';

    for (1 .. 8) {
        sleep 0.25;
        $self->{watch}->look if $self->ours;
    }

    return if !$self->ours;
    push @{ $self->{watch}{drains} }, [$action->{i}, $from + 0.3, time];
    $self->order("action=undrain&$order");
}


sub order
{
    my ($self, $order) = @_;

    wait_for(sub { $self->{router}->get("/status?$order", 'POST') })
        or die "no answer to $order";
}


# All clients rest, all replicas are well: the counts must be true, at 0, with
# streams held, half the time also after a reload that leaves these to old
# workers, after the death of a worker that held some, and at 0 again.
sub quiet
{
    my ($self, $action) = @_;
    my ($router, $watch) = @$self{qw(router watch)};

    $self->touch('pause');
    $self->{replicas}->order('calm 1');
    wait_for(sub { $self->parked }, 60) or die 'the clients do not rest';
    wait_for(sub { $router->serving == 4 }, 10) or die 'no four workers';

    $watch->true_with(0, 'after the clients') if $self->ours;

    my @streams = map { $self->hold($_) } 1 .. $held;
    $watch->true_with($held, 'with streams') if $self->ours;

    my %holds = map { $_->head->{headers}{'x-worker'} => 1 } @streams;
    my @workers = sort { $a <=> $b } keys %holds;
    my $victim = $workers[$action->{victim} % @workers];

    if ($action->{victim} & 8) {
        $router->reload($router->{conf});
        $watch->true_with($held, 'in old workers') if $self->ours;
    }

    my $left = grep { $_->head->{headers}{'x-worker'} != $victim } @streams;

    kill 'KILL', $victim;
    $watch->true_with($left, 'after the death of a worker') if $self->ours;
    $_->abort for @streams;
    $watch->true_with(0, 'after the streams') if $self->ours;
    $watch->{held} += $held;

    push @{ $watch->{memory} }, $router->memory;
    wait_for(sub { $router->serving == 4 }, 10) or die 'no four workers';
    $self->{replicas}->order('calm 0');
    unlink "$self->{dir}/pause";
}


sub hold
{
    my ($self, $i) = @_;
    my $c = RawHttp->new(port => $self->{router}->port, timeout => 5);

    $c->request('POST', '/held/v1/completions',
                completion("hold $i", stream => 'true'), 'X-Id' => "hold-$i",
                'X-Kind' => 'hold', 'routing-strategy' => 'random');
    $c->next_event;
    return $c;
}


sub finish
{
    my $self = shift;

    $self->touch('stop');
    waitpid $_, 0 for @{ $self->{pids} };
    $self->{arrivals} = $self->{watch}->arrivals;
    $self->{watch}->flat if $self->ours;
}


sub books
{
    my $self = shift;
    my $watch = $self->{watch};
    my %books;

    for my $i (0 .. $self->{clients} - 1) {
        my $of = eval { retrieve("$self->{dir}/books-$i") } || {};

        for my $kind (keys %$of) {
            $books{$kind}{$_} += $of->{$kind}{$_} for keys %{ $of->{$kind} };
        }
    }

    return {
        kinds => \%books, did => $self->{did}, injected => $self->{injected},
        arrivals => $self->{arrivals},
        alarms => [$self->{router}->alarms],
        map { $_ => $watch->{$_} }
            qw(breaches looks quiet slowest evicted leaked held memory),
    };
}


1;
