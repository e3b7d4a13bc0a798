#!/bin/bash
#
# nginx-build.sh configure DIR CC | make DIR: builds both modules in DIR with
# the headers of the installed nginx-dev, as Debian builds its own modules.

set -euo pipefail
. "$(dirname "$0")/lib.sh"

NGINX_SOURCE=/usr/share/nginx/src
FLAGS='-g -O2 -fPIC -fstack-protector-strong'

[ -e $NGINX_SOURCE/conf_flags ] || die "nginx-dev is missing: make deps"


configure()
{
    local cc=$2 dir

    rm -rf "$1"
    mkdir -p "$1"
    dir=$(realpath "$1")

    cd $NGINX_SOURCE
    . ./conf_flags
    ./configure --with-cc="$cc" --with-cc-opt="$FLAGS" \
        --with-ld-opt='-Wl,-z,relro -Wl,-z,now -fPIC' \
        "${NGX_CONF_FLAGS[@]}" --add-dynamic-module="$REPO" \
        --add-dynamic-module="$REPO/sim" --builddir="$dir" \
        > "$dir/configure.log" 2>&1 \
        || { tail -n 15 "$dir/configure.log" >&2; die "configure failed"; }
}


# The strict warnings are added here, not at configure, whose feature tests
# would fail on them. Callbacks in nginx seldom use all of their parameters.
build()
{
    local dir cflags

    dir=$(realpath "$1")
    cflags=$(sed -n 's/^CFLAGS = *//p' "$dir/Makefile")

    env -u MAKEFLAGS -u MAKEOVERRIDES \
        make --no-print-directory -s -j2 -f "$dir/Makefile" \
        -C $NGINX_SOURCE modules \
        CFLAGS="$cflags -std=gnu11 -Wall -Wextra -Werror -Wno-unused-parameter"
}


case ${1:-} in
configure) configure "$2" "$3" ;;
make) build "$2" ;;
*) die "usage: nginx-build.sh configure DIR CC | make DIR" ;;
esac
