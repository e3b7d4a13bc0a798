#!/bin/bash
#
# root.sh SUITE: makes .cache/roots/SUITE, a Debian of that suite with what
# building and testing need, and prints its path. A root that is complete and
# was made from the same list of packages is used again.

set -euo pipefail
. "$(dirname "$0")/lib.sh"

suite=${1:?usage: root.sh SUITE}
root=$CACHE/roots/$suite
mapfile -t packages < <(packages_of build test)
wanted="$suite ${packages[*]}"

alone "root-$suite"

if [ "$(cat "$root/etc/aibrix-root" 2>/dev/null)" = "$wanted" ]; then
    echo "$root"
    exit
fi

need_root "to make a root"
"$REPO/scripts/deps.sh" roots >&2
deb=$("$REPO/scripts/deps.sh" --fetch-test-nginx)
new=$root.new
log=$root.log
settings=$(mktemp)
trap 'rm -rf --one-file-system "$new" "$settings"' EXIT

mkdir -p "$CACHE/roots"
rm -rf --one-file-system "$new" "$root"
apt_settings > "$settings"
echo "root.sh: making $root" >&2

mmdebstrap --quiet --mode=root --variant=apt --keyring="$KEYRING" \
    --include="$(IFS=,; echo "${packages[*]}")" \
    --aptopt="$settings" \
    --aptopt='APT::Install-Recommends "false"' \
    --aptopt='Acquire::Languages "none"' \
    --customize-hook="upload '$deb' /tmp/test-nginx.deb" \
    --customize-hook='chroot "$1" apt-get install -y -qq /tmp/test-nginx.deb' \
    --customize-hook='rm "$1/tmp/test-nginx.deb"' \
    "$suite" "$new" "$(archive_uri)" > "$log" 2>&1 \
    || { tail -n 30 "$log" >&2; die "Debian $suite could not be made"; }

echo "$wanted" > "$new/etc/aibrix-root"
mv "$new" "$root"
echo "$root"
