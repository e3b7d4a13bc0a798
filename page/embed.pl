#!/usr/bin/perl
#
# embed.pl: page/index.html as a C string, the header that the module is built
# with (make page). It is committed, so that a build needs no perl; t/status.t
# holds both to be the same.

use strict;
use warnings;

my $page = do { local $/; <STDIN> };

die "embed.pl: the page must be ASCII\n" if $page =~ /[^\n\x20-\x7e]/;

my $text = <<'EOC';

/* The live page of aibrix_status, made by "make page" from page/. */

#ifndef _NGX_HTTP_AIBRIX_PAGE_H_INCLUDED_
#define _NGX_HTTP_AIBRIX_PAGE_H_INCLUDED_


static const char  ngx_http_aibrix_page[] =
EOC

for my $line (split /^/, $page) {
    chomp $line;

    my @parts = $line =~ /.{1,60}/g;
    s/([\\"])/\\$1/g for @parts;

    $parts[@parts ? -1 : 0] .= '\n';
    $text .= join '', map { "    \"$_\"\n" } @parts;
}

chomp $text;

print "$text;\n\n\n#endif /* _NGX_HTTP_AIBRIX_PAGE_H_INCLUDED_ */\n";
