#!/bin/bash
#
# test-all.sh [SUITE...]: builds the modules, loads them into the stock nginx
# and runs the tests on this Debian (`make test`) and in a root of each SUITE
# (trixie and sid when none is named), then says what was built, loaded and
# passed where. A part that fails, a root that cannot be made included, fails
# the whole, after the others have run.

set -uo pipefail
. "$(dirname "$0")/lib.sh"

logs=$REPO/${BUILD:-build}/test-all
mkdir -p "$logs"
failed=()
summary=()


# part SUITE COMMAND...
part()
{
    local suite=$1 log=$logs/$1.log version tests result start=$SECONDS
    shift

    echo "== $suite: $*"
    if "$@" 2>&1 | tee "$log"; then
        result=passed
    else
        result=FAILED
        failed+=("$suite")
    fi

    version=$(sed -n 's/^loaded into \([^:]*\):.*/\1/p' "$log" | tail -n 1)
    tests=$(sed -n 's/^Files=\([0-9]*\), Tests=\([0-9]*\),.*/\2 tests in \1 files/p' \
            "$log" | tail -n 1)
    summary+=("$(printf '%-9s %s: built for and loaded into %s, %s, %d s' \
        "$suite" "$result" "${version:-NO NGINX}" "${tests:-NO TEST}" \
        $((SECONDS - start)))")
}


part "$(codename)" make --no-print-directory -C "$REPO" deps check test

[ $# -gt 0 ] || set -- trixie sid

for suite in "$@"; do
    part "$suite" "$REPO/scripts/in-root.sh" "$suite" \
        make --no-print-directory check test-suites
done

echo
echo "== summary"
printf '%s\n' "${summary[@]}"
grep -hE '^(Files=|Result: )' "$logs/$(codename).log"

[ ${#failed[@]} = 0 ] || die "failed: ${failed[*]}"
