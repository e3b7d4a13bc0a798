#!/bin/bash
#
# stamp.sh FILE TEXT...: writes TEXT to FILE, but leaves FILE (and its time)
# alone if that is what it holds, so that make rebuilds on change only.

set -euo pipefail

file=$1
shift
mkdir -p "$(dirname "$file")"
printf '%s\n' "$@" | cmp -s - "$file" || printf '%s\n' "$@" > "$file"
