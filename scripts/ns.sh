#!/bin/bash
#
# ns.sh COMMAND...: runs it with a network and a process namespace of its
# own: its ports clash with nobody's, and what it leaves running ends with it.
# bash stays as process 1, since daemons that lose their parent need one that
# reaps them.

exec unshare --net --pid --fork --kill-child --mount-proc \
    bash -c 'ip link set lo up || exit; "$@"; exit $?' ns "$@"
