#!/bin/bash
#
# check-load.sh MODULE.so...: the installed nginx loads them together.

set -euo pipefail
. "$(dirname "$0")/lib.sh"

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

{
    printf 'load_module %s;\n' "${@/#/$PWD/}"
    echo "pid $dir/nginx.pid; error_log stderr; events {} http {}"
} > "$dir/nginx.conf"

nginx -q -t -e stderr -c "$dir/nginx.conf" \
    || die "$(nginx -v 2>&1) does not load $*"
echo "loaded into $(nginx -v 2>&1 | sed 's/.*: //'): ${*##*/}"
