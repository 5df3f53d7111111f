# shellcheck shell=bash
# What tests/run, tests/evidence and tests/faults have in common. To be sourced in the top directory.

# Debian keeps some servers out of PATH.
find_servers() {
    local directory
    for directory in /usr/sbin /usr/lib/postgresql/*/bin; do
        [ ! -d "$directory" ] || PATH=$PATH:$directory
    done
    export PATH
}

# The stores' servers are ours and take any credentials; nobody's own are to be used by mistake.
export AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test AWS_EC2_METADATA_DISABLED=true
unset AWS_PROFILE AWS_SESSION_TOKEN AWS_ENDPOINT_URL AWS_ENDPOINT_URL_DYNAMODB AWS_ENDPOINT_URL_S3 AWS_REGION AWS_DEFAULT_REGION

find_servers
if [ -z "${TEST_DYNOXIDE:-}" ] && [ -x target/tools/bin/dynoxide ]; then
    export TEST_DYNOXIDE=$PWD/target/tools/bin/dynoxide
fi

if [ -z "${TEST_MOTO:-}" ] && [ -x target/tools/moto/bin/python ]; then
    export TEST_MOTO=$PWD/target/tools/moto/bin/python
fi

if [ -z "${TEST_WEED:-}" ] && [ -x target/tools/seaweedfs/bin/weed ]; then
    export TEST_WEED=$PWD/target/tools/seaweedfs/bin/weed
fi

if [ -z "${TEST_NATS_SERVER:-}" ] && [ -x target/tools/nats/bin/nats-server ]; then
    export TEST_NATS_SERVER=$PWD/target/tools/nats/bin/nats-server
fi

if [ -z "${TEST_KUBE_APISERVER:-}" ] && [ -x target/tools/kubernetes/kube-apiserver ]; then
    export TEST_KUBE_APISERVER=$PWD/target/tools/kubernetes/kube-apiserver
fi

# Says which tool is missing, and ends.
require_tools() {
    local program
    for program in "${TEST_DYNOXIDE:-dynoxide}" "${TEST_MOTO:-moto_server}" redis-server redis-cli postgres psql mariadbd mariadb "${TEST_NATS_SERVER:-target/tools/nats/bin/nats-server}" etcd etcdctl ip \
        nft setpriv nsenter cc curl; do
        command -v "$program" >/dev/null || { echo "$0: $program is missing: tests/run installs it" >&2; exit 69; }
    done
}
