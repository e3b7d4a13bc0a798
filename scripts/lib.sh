# Sourced by the other scripts: where things are, and apt without side effects.

REPO=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${AIBRIX_CACHE:-$REPO/.cache}
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

export DEBIAN_FRONTEND=noninteractive LC_ALL=C


die()
{
    echo "$(basename "$0"): error: $*" >&2
    exit 1
}


need_root()
{
    [ "$(id -u)" = 0 ] || die "must run as root ($1)"
}


codename()
{
    (. /etc/os-release && echo "${VERSION_CODENAME:?}")
}


# packages_of GROUP...: the packages of these groups of scripts/packages.
packages_of()
{
    local group line major

    for group in "$@"; do
        line=$(grep "^$group:" "$REPO/scripts/packages") \
            || die "no group '$group' in scripts/packages"
        line=${line#*:}

        if [[ $line == *@CLANG@* ]]; then
            major=$(apt-cache depends clang \
                    | sed -n 's/^ *Depends: clang-\([0-9]*\)$/\1/p')
            [ -n "$major" ] || die "apt does not know which clang is current"
            line=${line//@CLANG@/$major}
        fi

        printf '%s\n' $line
    done
}


# alone NAME: waits until no other run of a script holds NAME, then holds it
# to the script's end.
alone()
{
    mkdir -p "$CACHE/locks"
    exec 9> "$CACHE/locks/$1"
    flock 9
}


installed()
{
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}


# The archive that this machine's Debian comes from, as apt itself reads its
# sources (one-line or deb822, any number of stanzas): third-party archives,
# -security and -updates have another origin, label or codename.
archive_uri()
{
    local format uri

    format='$(ORIGIN)|$(LABEL)|$(CODENAME)|$(COMPONENT)|$(REPO_URI)'
    uri=$(apt-get indextargets --format "$format" 'Created-By: Packages' \
          | sed -n "s/^Debian|Debian|$(codename)|main|//p" | head -n 1)

    if [ -z "$uri" ]; then
        apt-get update -qq >&2
        uri=$(apt-get indextargets --format "$format" 'Created-By: Packages' \
              | sed -n "s/^Debian|Debian|$(codename)|main|//p" | head -n 1)
    fi

    [ -n "$uri" ] || die "apt has no source for Debian $(codename) main"
    echo "$uri"
}


# The machine's own apt settings that another suite's apt needs as well.
apt_settings()
{
    apt-config dump Acquire \
        | grep -E '^Acquire::(Check-Valid-Until|Check-Date|https?::Proxy) ' \
        || true
}


# apt_elsewhere TYPE SUITE DIR: sets APT to an apt-get which sees nothing but
# this suite, has its lists in DIR, and leaves the machine's apt as it is.
apt_elsewhere()
{
    local type=$1 suite=$2 dir=$3

    mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial"
    printf '%s [signed-by=%s] %s %s main\n' "$type" "$KEYRING" \
           "$(archive_uri)" "$suite" > "$dir/only.list"

    APT=(apt-get -qq -o "Dir::Etc::SourceList=$dir/only.list"
         -o Dir::Etc::SourceParts=-
         -o "Dir::State::Lists=$dir/lists"
         -o "Dir::Cache=$dir/cache" -o APT::Sandbox::User=root)

    "${APT[@]}" update
}
