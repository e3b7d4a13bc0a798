#!/bin/bash
#
# install.sh install FILE.so | uninstall NAME.so: the module goes where the
# installed nginx looks for modules. Where nginx is laid out as Debian does
# it, a file in modules-available loads it, linked from modules-enabled.
# DESTDIR is honoured.

set -euo pipefail
. "$(dirname "$0")/lib.sh"

DESTDIR=${DESTDIR:-}
name=$(basename "$2")
modules=$(nginx -V 2>&1 | sed -n 's/.*--modules-path=\([^ ]*\).*/\1/p')
modules=${modules:-/usr/lib/nginx/modules}
available=/usr/share/nginx/modules-available/mod-http-aibrix.conf
enabled=/etc/nginx/modules-enabled/50-mod-http-aibrix.conf


enable_module()
{
    mkdir -p "$DESTDIR$(dirname $available)" "$DESTDIR$(dirname $enabled)"
    echo "load_module $modules/$name;" > "$DESTDIR$available"
    ln -sf $available "$DESTDIR$enabled"
    echo "loaded by $enabled"
}


case $1 in
install)
    install -D -m 644 "$2" "$DESTDIR$modules/$name"
    echo "installed $DESTDIR$modules/$name"
    if [ -d /etc/nginx/modules-enabled ]; then
        enable_module
    else
        echo "add to nginx.conf: load_module $modules/$name;"
    fi
    ;;
uninstall)
    rm -f "$DESTDIR$modules/$name" "$DESTDIR$available" "$DESTDIR$enabled"
    ;;
*)
    die "usage: install.sh install FILE.so | uninstall NAME.so"
    ;;
esac
