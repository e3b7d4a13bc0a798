#!/bin/bash
#
# run-tests.sh MODE FILE...: one run of prove over unit tests (programs) and
# suites (*.t). MODE is plain, hup, valgrind or asan; see run-test.sh.

set -euo pipefail
. "$(dirname "$0")/lib.sh"

mode=$1
shift

need_root "every test file gets network and process namespaces of its own"
[ $# -gt 0 ] || die "no test file"
command -v nginx > /dev/null || die "nginx is missing: make deps"

cd "$REPO"
export AIBRIX_TEST_MODE=$mode
exec prove -j"${JOBS:-2}" --timer --exec "$REPO/scripts/run-test.sh" "$@"
