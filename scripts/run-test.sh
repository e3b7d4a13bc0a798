#!/bin/bash
#
# run-test.sh FILE: one test file (a suite *.t, or a unit test program) for
# prove, alone in its namespaces, with a folder of its own for nginx. A folder
# is kept when its test failed. AIBRIX_TEST_MODE:
#   plain     as is
#   hup       one nginx, with a reload before each block
#   valgrind  nginx under valgrind; any report fails the file
#   asan      the static nginx of asan-nginx.sh; any report fails the file

set -uo pipefail
. "$(dirname "$0")/lib.sh"

file=$1
mode=${AIBRIX_TEST_MODE:-plain}
name=$(basename "$file")
dir=$(mktemp -d "${TMPDIR:-/tmp}/aibrix-$name.XXXXXX")
reports=$dir/reports
limit=300

mkdir -m 1777 "$reports"
chmod 755 "$dir"

export AIBRIX_BUILD=${BUILD:-$REPO/build} AIBRIX_TEST_DIR=$dir
export PERL5LIB=$REPO/t/lib:$REPO TEST_NGINX_SERVROOT=$dir/servroot
export CMOCKA_MESSAGE_OUTPUT=TAP
unset TEST_NGINX_RANDOMIZE HARNESS_IS_VERBOSE


case $mode in
plain)
    ;;
hup)
    export TEST_NGINX_USE_HUP=1 TEST_NGINX_MASTER_PROCESS=on
    ;;
valgrind)
    limit=1500
    export AIBRIX_VALGRIND="--vgdb=no --leak-check=full --show-leak-kinds=definite\
 --errors-for-leak-kinds=definite --keep-debuginfo=yes --num-callers=30\
 --suppressions=$REPO/t/valgrind.suppress --log-file=$reports/%p.log"
    export TEST_NGINX_USE_VALGRIND=$AIBRIX_VALGRIND TEST_NGINX_TIMEOUT=20
    ;;
asan)
    limit=900
    export AIBRIX_STATIC=1 TEST_NGINX_BINARY=$CACHE/asan/nginx
    # test_index_race moves a stack into another process
    case $file in
    *test_index_race) fake_stack=0 ;;
    *) fake_stack=1 ;;
    esac
    export ASAN_OPTIONS="detect_stack_use_after_return=$fake_stack,log_path=$reports/asan"
    export UBSAN_OPTIONS="print_stacktrace=1"
    export LSAN_OPTIONS="suppressions=$REPO/t/lsan.suppress,print_suppressions=0"
    ;;
*)
    die "unknown AIBRIX_TEST_MODE: $mode"
    ;;
esac

case $file in
*.t) command=(perl "$file") ;;
*) command=("$(realpath "$file")") ;;
esac

"$REPO/scripts/ns.sh" timeout -k 5 $limit "${command[@]}"
rc=$?

[ $rc = 124 ] && echo "# $file: stopped after $limit s" >&2

# UBSAN writes to standard error only, which nginx has made its error log.
if [ "$mode" = asan ]; then
    find "$dir" -name error.log -exec grep -haE 'runtime error:' {} + \
        > "$reports/ubsan"
fi

if find "$reports" -type f -size +0 | grep -q .; then
    find "$reports" -type f -size +0 -exec cat {} + | head -n 200 \
        | sed "s|^|# |" >&2
    echo "# $file: reports of $mode above" >&2
    [ $rc = 0 ] && rc=1
fi

if [ $rc = 0 ]; then
    rm -rf "$dir"
else
    find "$dir" -name error.log -exec grep -hE '\[(emerg|alert|crit)\]' {} + \
        | tail -n 20 | sed 's/^/# /' >&2
    echo "# $file: exit code $rc, files kept in $dir" >&2
fi

exit $rc
