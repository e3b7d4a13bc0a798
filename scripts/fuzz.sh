#!/bin/bash
#
# fuzz.sh NAME...: builds t/fuzz/NAME.c with the core by clang's libFuzzer and
# runs it for FUZZ_SECONDS, each with its corpus t/fuzz/corpus/NAME. What is
# found new is kept in BUILD/fuzz; a crash is left there and fails the run.
# What a fuzzer compares with, t/fuzz/NAME_ref.cc, is built without UBSAN: it
# is a library's code.

set -euo pipefail
. "$(dirname "$0")/lib.sh"

cd "$REPO"
[ $# -gt 0 ] || die "there is no t/fuzz/fuzz_*.c"

out=${BUILD:-build}/fuzz
flags='-std=gnu11 -O1 -g -Wall -Wextra -Werror
 -I. -Ingx_aibrix_module -Ingx_aibrix_module/core -Isim -It/core
 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined'
sources=(ngx_aibrix_module/core/*.c ngx_aibrix_module/core/strategies/*.c)
failed=()
mkdir -p "$out"

for name in "$@"; do
    mkdir -p "$out/corpus/$name" "t/fuzz/corpus/$name"
    more=()
    if [ -f "t/fuzz/${name}_ref.cc" ]; then
        clang++ -O1 -g -fsanitize=address -Ingx_aibrix_module/core -c "t/fuzz/${name}_ref.cc" \
            -o "$out/${name}_ref.o"
        more+=("$out/${name}_ref.o" -lstdc++)
    fi
    clang $flags -o "$out/$name" "t/fuzz/$name.c" "${sources[@]}" \
        "${more[@]}" -Wl,--as-needed -ljson-c -lm -lpthread

    echo "== $name, ${FUZZ_SECONDS:-60} s"
    if ! "$out/$name" -max_total_time="${FUZZ_SECONDS:-60}" -timeout=10 \
        $([ -f "t/fuzz/$name.dict" ] && echo "-dict=t/fuzz/$name.dict") \
        -rss_limit_mb=2048 -print_final_stats=1 -verbosity=0 \
        -artifact_prefix="$out/$name-" "$out/corpus/$name" \
        "t/fuzz/corpus/$name" > "$out/$name.log" 2>&1
    then
        tail -n 60 "$out/$name.log"
        failed+=("$name")
    fi
    grep -E 'stat::(number_of_executed_units|average_exec_per_sec)' \
        "$out/$name.log" || true
done

[ ${#failed[@]} = 0 ] || die "failed: ${failed[*]}"
echo "fuzz: $# passed, 0 failed"
