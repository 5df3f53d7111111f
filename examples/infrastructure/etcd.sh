#!/bin/sh
# Roles and users for leaderrun below the prefix leaderrun/. etcdctl finds the server by ETCDCTL_ENDPOINTS, and logs in by
# ETCDCTL_USER if authentication is on. If it is off, turn it on afterwards with `etcdctl auth enable`, which requires a user
# root.
set -eu

# A candidate: etcd://candidate:PASSWORD@HOST/leaderrun
etcdctl role add candidate
etcdctl role grant-permission candidate --prefix=true readwrite leaderrun/
etcdctl user add candidate:PASSWORD --interactive=false
etcdctl user grant-role candidate candidate

# For people and dashboards that only read.
etcdctl role add reader
etcdctl role grant-permission reader --prefix=true read leaderrun/
etcdctl user add reader:PASSWORD --interactive=false
etcdctl user grant-role reader reader
