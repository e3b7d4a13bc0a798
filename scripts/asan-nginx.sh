#!/bin/bash
#
# asan-nginx.sh: .cache/asan/nginx, this Debian's nginx with both modules
# linked in, under ASAN and UBSAN. Every pool allocation is a malloc, so that
# overflows inside pools are seen too. The first build takes minutes; later
# ones compile what has changed.

set -euo pipefail
. "$(dirname "$0")/lib.sh"

asan=$CACHE/asan
objs=$asan/objs
# nginx itself copies 0 bytes from NULL, and compares methods as unaligned words.
SANITIZE='-fsanitize=address,undefined -fno-sanitize-recover=undefined
 -fno-sanitize=nonnull-attribute,alignment -fno-omit-frame-pointer'
SANITIZE=${SANITIZE//$'\n'/}


# The source package of the archive's main suite, whose patch level may be
# below that of the installed one; the headers are the same.
fetch_source()
{
    local dir

    dir=$(mktemp -d)
    apt_elsewhere deb-src "$(codename)" "$dir"
    (cd "$dir" && "${APT[@]}" source --download-only nginx \
        && dpkg-source --no-check -x nginx_*.dsc source > /dev/null)
    rm -rf "$asan/source"
    mkdir -p "$asan"
    mv "$dir/source" "$asan/source"
    rm -rf "$dir"
}


configure()
{
    rm -rf "$objs"
    mkdir -p "$objs"

    cd "$asan/source"
    ./configure --with-cc=gcc --with-cc-opt="-g1 -O1 $SANITIZE -DNGX_DEBUG_PALLOC=1" \
        --with-ld-opt="$SANITIZE" --builddir="$objs" --prefix="$asan/prefix" \
        --with-compat --with-debug --with-threads --with-http_ssl_module \
        --with-http_v2_module --with-http_stub_status_module \
        --with-http_realip_module --with-http_auth_request_module \
        --add-module="$REPO" --add-module="$REPO/sim" \
        > "$asan/configure.log" 2>&1 \
        || { tail -n 15 "$asan/configure.log" >&2; die "configure failed"; }
}


alone asan
[ -e "$asan/source/configure" ] || fetch_source

"$REPO/scripts/stamp.sh" "$asan/stamp" "$(cat "$0" "$REPO/config" "$REPO/sim/config")" \
    "$(cd "$REPO" && find ngx_aibrix_module sim -name '*.[ch]' | sort)"

if [ ! -e "$objs/Makefile" ] || [ "$asan/stamp" -nt "$objs/Makefile" ]; then
    configure
fi

env -u MAKEFLAGS -u MAKEOVERRIDES \
    make --no-print-directory -s -j2 -C "$asan/source" -f "$objs/Makefile" binary \
    > "$asan/make.log" 2>&1 \
    || { tail -n 40 "$asan/make.log" >&2; die "build failed"; }

ln -sf "$objs/nginx" "$asan/nginx"
echo "asan: $("$asan/nginx" -v 2>&1)"
