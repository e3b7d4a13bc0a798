#!/bin/bash
#
# deps.sh GROUP...: installs what is missing of these groups of
# scripts/packages, and Test::Nginx with group `test`. Asks no archive when
# nothing is missing. deps.sh --fetch-test-nginx: prints the path of its .deb.

set -euo pipefail
. "$(dirname "$0")/lib.sh"


# libtest-nginx-perl is in sid only, but is of architecture all and needs
# nothing newer than bookworm. Prints the path of the fetched package.
fetch_test_nginx()
{
    local dir deb=$CACHE/debs/libtest-nginx-perl.deb

    if [ ! -s "$deb" ]; then
        dir=$(mktemp -d)
        apt_elsewhere deb sid "$dir"
        (cd "$dir" && "${APT[@]}" download libtest-nginx-perl)
        mkdir -p "$CACHE/debs"
        mv "$dir"/libtest-nginx-perl_*_all.deb "$deb.part"
        mv "$deb.part" "$deb"
        rm -rf "$dir"
    fi

    echo "$deb"
}


if [ "${1:-}" = --fetch-test-nginx ]; then
    fetch_test_nginx
    exit
fi

missing=()

for package in $(packages_of "$@"); do
    installed "$package" || missing+=("$package")
done

if [[ " $* " == *' test '* ]] && ! installed libtest-nginx-perl; then
    missing+=(libtest-nginx-perl)
fi

[ ${#missing[@]} -gt 0 ] || exit 0

need_root "to install ${missing[*]}"
alone deps
echo "deps: installing ${missing[*]}"
apt-get update -qq

if [[ " ${missing[*]} " == *' libtest-nginx-perl '* ]]; then
    missing[-1]=$(fetch_test_nginx)
fi

apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null 9>&-
