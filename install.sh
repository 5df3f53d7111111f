#!/bin/sh
# Installs leaderrun and leaderctl, their man pages and their completions, or removes them again.

set -eu

me=install.sh
prefix=/usr/local
binaries=
uninstall=no
root=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

usage() {
    cat <<'END'
usage: ./install.sh [--prefix DIR] [--binaries DIR]
       ./install.sh [--prefix DIR] --uninstall

Builds leaderrun and leaderctl and installs them, their man pages and their
completions (bash, zsh, fish). From an archive with programs, it installs those.

  --prefix DIR     install below DIR instead of /usr/local
  --binaries DIR   do not build: install DIR/leaderrun and DIR/leaderctl
  --uninstall      remove what was installed below the prefix
  -h, --help       print this

DESTDIR in the environment is put in front of every path, for packagers.
END
}

# fail STATUS MESSAGE; the statuses are those of sysexits.h.
fail() {
    printf '%s: %s\n' "$me" "$2" >&2
    exit "$1"
}

absolute() {
    case $1 in
    /*) printf '%s\n' "$1" ;;
    *) printf '%s/%s\n' "$PWD" "$1" ;;
    esac
}

while [ $# -gt 0 ]; do
    case $1 in
    --prefix | --binaries)
        [ $# -ge 2 ] || fail 64 "$1 needs a directory (see $me --help)"
        option=$1 value=$2
        shift 2
        ;;
    --prefix=* | --binaries=*)
        option=${1%%=*} value=${1#*=}
        shift
        ;;
    --uninstall)
        uninstall=yes
        shift
        continue
        ;;
    -h | --help)
        usage
        exit 0
        ;;
    *) fail 64 "unknown argument $1 (see $me --help)" ;;
    esac
    [ -n "$value" ] || fail 64 "$option needs a directory (see $me --help)"
    case $option in
    --prefix) prefix=$(absolute "$value") ;;
    --binaries) binaries=$(absolute "$value") ;;
    esac
done

to=${DESTDIR:-}${prefix%/}

# Where each thing goes: a line each, "SOURCE-KIND SOURCE MODE DESTINATION".
files() {
    cat <<'END'
binary leaderrun 755 bin/leaderrun
binary leaderctl 755 bin/leaderctl
page leaderrun.1 644 share/man/man1/leaderrun.1
page leaderctl.1 644 share/man/man1/leaderctl.1
page leaderrun-formats.5 644 share/man/man5/leaderrun-formats.5
page leaderrun.7 644 share/man/man7/leaderrun.7
page leaderrun-stores.7 644 share/man/man7/leaderrun-stores.7
completion leaderrun.bash 644 share/bash-completion/completions/leaderrun
completion leaderctl.bash 644 share/bash-completion/completions/leaderctl
completion leaderrun.zsh 644 share/zsh/site-functions/_leaderrun
completion leaderctl.zsh 644 share/zsh/site-functions/_leaderctl
completion leaderrun.fish 644 share/fish/vendor_completions.d/leaderrun.fish
completion leaderctl.fish 644 share/fish/vendor_completions.d/leaderctl.fish
END
}

# Before anything is built or changed: the nearest directory that is there has to be ours to write.
place=${to:-/}
while [ ! -e "$place" ]; do
    place=$(dirname -- "$place")
done
if [ ! -d "$place" ]; then
    fail 73 "cannot install below $to: $place is not a directory"
elif [ ! -w "$place" ]; then
    fail 73 "cannot write to $place: choose another --prefix, or run this as root"
fi

if [ "$uninstall" = yes ]; then
    files | while read -r _ _ _ destination; do
        rm -f -- "$to/$destination" || fail 73 "cannot remove $to/$destination"
    done
    printf 'removed leaderrun from %s\n' "$to"
    exit 0
fi

# An archive has the programs, and nothing to build them from.
if [ -z "$binaries" ] && [ ! -e "$root/Cargo.toml" ]; then
    binaries=$root/bin
fi
if [ -z "$binaries" ]; then
    command -v cargo >/dev/null || fail 69 'cargo was not found: install Rust, or name built programs with --binaries DIR'
    target=$(absolute "${CARGO_TARGET_DIR:-$root/target}")
    cargo build --profile dist --locked --manifest-path "$root/Cargo.toml" --target-dir "$target"
    binaries=$target/dist
fi
for program in leaderrun leaderctl; do
    if [ ! -f "$binaries/$program" ] || [ ! -x "$binaries/$program" ]; then
        fail 66 "no program $program in $binaries"
    fi
done

scratch=$(mktemp -d) || fail 73 'cannot make a temporary directory'
trap 'rm -rf -- "$scratch"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
for program in leaderrun leaderctl; do
    for shell in bash zsh fish; do
        "$binaries/leaderctl" completions "$program" "$shell" >"$scratch/$program.$shell" ||
            fail 70 "$binaries/leaderctl cannot print the completions"
    done
done

# A program that runs cannot be written over, but it can be replaced. It goes on with the old one.
files | while read -r kind source mode destination; do
    case $kind in
    binary) source=$binaries/$source ;;
    page) source=$root/man/$source ;;
    completion) source=$scratch/$source ;;
    esac
    new=$to/$destination.new
    { mkdir -p -- "$(dirname -- "$to/$destination")" &&
        cp -- "$source" "$new" &&
        chmod "$mode" -- "$new" &&
        mv -f -- "$new" "$to/$destination"; } 2>"$scratch/error" || {
        rm -f -- "$new" 2>"$scratch/ignored" || :
        fail 73 "cannot install $to/$destination: $(tail -n 1 "$scratch/error")"
    }
done
printf 'installed leaderrun below %s\n' "$to"
