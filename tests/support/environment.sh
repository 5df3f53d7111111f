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
# What is not named otherwise is the one that tests/run has installed. variable:program
for pair in TEST_DYNOXIDE:bin/dynoxide TEST_MOTO:moto/bin/python TEST_WEED:seaweedfs/bin/weed \
    TEST_NATS_SERVER:nats/bin/nats-server TEST_KUBE_APISERVER:kubernetes/kube-apiserver; do
    name=${pair%%:*} program=$PWD/target/tools/${pair#*:}
    if [ -z "${!name:-}" ] && [ -x "$program" ]; then export "$name=$program"; fi
done

# Says which tool is missing, and ends.
require_tools() {
    local program
    for program in "${TEST_DYNOXIDE:-dynoxide}" "${TEST_MOTO:-moto_server}" redis-server redis-cli postgres psql mariadbd mariadb "${TEST_NATS_SERVER:-target/tools/nats/bin/nats-server}" etcd etcdctl ip \
        nft setpriv nsenter cc curl; do
        command -v "$program" >/dev/null || { echo "$0: $program is missing: tests/run installs it" >&2; exit 69; }
    done
}
