#!/bin/bash
#
# in-root.sh SUITE COMMAND...: runs COMMAND in a copy of this tree inside a
# throw-away layer over the root of root.sh, which stays as it was made. All
# mounts live in a mount namespace of their own and vanish with it.

set -euo pipefail
. "$(dirname "$0")/lib.sh"

suite=${1:?usage: in-root.sh SUITE COMMAND...}
shift
need_root "to mount"
"$REPO/scripts/deps.sh" roots
root=$("$REPO/scripts/root.sh" "$suite")
layer=$(mktemp -d "$CACHE/roots/layer.XXXXXX")
trap 'rm -rf --one-file-system "$layer"' EXIT
chmod 755 "$layer"
mkdir "$layer"/{upper,work,top}

tar -C "$REPO" --exclude=./.git --exclude=./.cache --exclude=./build \
    --exclude='./t/servroot*' -cf "$layer/tree.tar" .

unshare --mount --propagation private bash -euo pipefail -c '
    root=$1 layer=$2 top=$2/top
    shift 2
    mount -t overlay overlay \
        -o "lowerdir=$root,upperdir=$layer/upper,workdir=$layer/work" "$top"
    mount -t proc proc "$top/proc"
    mount --rbind /dev "$top/dev"
    mkdir -p "$top/src"
    tar -C "$top/src" --no-same-owner -xf "$layer/tree.tar"
    exec chroot "$top" env -i HOME=/root LC_ALL=C TERM="${TERM:-dumb}" \
        PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        sh -c '\''cd /src && exec "$@"'\'' sh "$@"
' in-root "$root" "$layer" "$@"
