#!/bin/sh
# Roles and users for leaderrun below the prefix leaderrun/. etcdctl finds the server by ETCDCTL_ENDPOINTS, and logs in by
# ETCDCTL_USER where authentication is on. Where it is off, `etcdctl auth enable` turns it on afterwards; etcd then wants
# a user root.
set -eu

# A candidate: etcd://candidate:PASSWORD@HOST/leaderrun
etcdctl role add candidate
etcdctl role grant-permission candidate --prefix=true readwrite leaderrun/
etcdctl user add candidate:PASSWORD --interactive=false
etcdctl user grant-role candidate candidate

# People and dashboards that only look.
etcdctl role add reader
etcdctl role grant-permission reader --prefix=true read leaderrun/
etcdctl user add reader:PASSWORD --interactive=false
etcdctl user grant-role reader reader
