package JsonSchema;

# check($schema, $value): the first thing of a decoded JSON value that is not
# as a JSON Schema (draft 7) has it, as "path: why"; '' when all is. Knows
# what docs/ uses and dies at anything else.

use strict;
use warnings;

use B ();
use Exporter qw(import);

our @EXPORT = qw(check);

my %checks = (
    type => \&_type, enum => \&_enum, const => \&_const,
    minimum => sub { defined $_[1] && $_[1] < $_[0] ? "below $_[0]" : '' },
    maximum => sub { defined $_[1] && $_[1] > $_[0] ? "above $_[0]" : '' },
    maxItems => sub { @{ $_[1] } > $_[0] ? "more than $_[0]" : '' },
);

my %passed_over = map { $_ => 1 } qw($schema title description definitions
                                     properties required items allOf
                                     additionalProperties $ref);


sub check
{
    my ($schema, $value, $root, $path) = @_;

    $root ||= $schema;
    $path = '' if !defined $path;

    for my $key (sort keys %$schema) {
        next if $passed_over{$key};
        my $test = $checks{$key} or die "JsonSchema: what is $key?";
        my $why = $test->($schema->{$key}, $value);

        return "$path: $why" if $why;
    }

    for my $other (map { $_->{'$ref'} || $_ } @{ $schema->{allOf} || [] },
                   $schema->{'$ref'} ? $schema : ()) {
        my ($name) = ref $other ? () : $other =~ m{^#/definitions/(\w+)$};
        my $why = check($name ? $root->{definitions}{$name} : $other, $value,
                        $root, $path);

        return $why if $why;
    }

    return ref $value eq 'HASH' ? _members($schema, $value, $root, $path)
           : ref $value eq 'ARRAY' ? _items($schema, $value, $root, $path)
           : '';
}


sub _members
{
    my ($schema, $value, $root, $path) = @_;
    my $known = $schema->{properties} || {};
    my $more = $schema->{additionalProperties};

    for my $name (@{ $schema->{required} || [] }) {
        return "$path: no $name" if !exists $value->{$name};
    }

    for my $name (sort keys %$value) {
        my $inner = $known->{$name} || (ref $more eq 'HASH' && $more);

        return "$path: unknown $name" if !$inner && defined $more && !$more;
        next if !$inner;

        my $why = check($inner, $value->{$name}, $root, "$path/$name");
        return $why if $why;
    }

    return '';
}


sub _items
{
    my ($schema, $value, $root, $path) = @_;
    my $inner = $schema->{items} or return '';

    for my $i (0 .. $#$value) {
        my $why = check($inner, $value->[$i], $root, "$path/$i");
        return $why if $why;
    }

    return '';
}


sub _type
{
    my ($types, $value) = @_;
    my @types = ref $types eq 'ARRAY' ? @$types : $types;
    my $is = _type_of($value);

    return (grep { $_ eq $is || $_ eq 'number' && $is eq 'integer' } @types)
           ? '' : "$is, not @types";
}


sub _type_of
{
    my $value = shift;

    return 'null' if !defined $value;
    return 'object' if ref $value eq 'HASH';
    return 'array' if ref $value eq 'ARRAY';
    return 'boolean' if ref $value;

    my $flags = B::svref_2object(\$value)->FLAGS;

    return 'string' if $flags & B::SVf_POK;
    return $flags & B::SVf_IOK ? 'integer' : 'number';
}


sub _enum
{
    my ($allowed, $value) = @_;

    return (grep { $_ eq $value } @$allowed) ? '' : "$value is none of "
                                                    . join ', ', @$allowed;
}


sub _const { $_[0] eq $_[1] ? '' : "$_[1], not $_[0]" }


1;
