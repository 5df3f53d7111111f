#!/bin/sh
# The whole script runs under its own lease. If it already runs on another host, it exits with 75 and does nothing.
set -eu
[ "${LEADERRUN_SHARD-}" = backup ] || exec leaderrun -n backup "$0" "$@"

target=${1:?usage: backup.sh DIRECTORY}
echo "backing up in term $LEADERRUN_TERM"
tar -cf "$target/next.tar" -C "${2:-/etc}" .

# Do what cannot be undone only if the lease lasts for at least five more seconds.
leaderctl verify --for 5s
mv "$target/next.tar" "$target/backup.tar"
