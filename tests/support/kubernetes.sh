#!/usr/bin/env bash
# Builds kube-apiserver, and an elector with client-go for the tests, from Debian's source of Kubernetes with Debian's Go.
# It installs nothing, and needs no root. On two processors it takes four minutes; meanwhile it needs 3 GB of disk.
#
#   tests/support/kubernetes.sh DIRECTORY    puts kube-apiserver and elector there
set -euo pipefail
elector=$(realpath "$(dirname "$0")/../kubernetes/elector.go")
mkdir -p "$1"
directory=$(realpath "$1")
build=$directory/build
rm -rf "$build"
mkdir "$build"
trap 'chmod -R u+w "$build"; rm -rf "$build"' EXIT
cd "$build"

# An apt of its own: to change the lists of the machine's needs root, and few machines have those of the sources.
mkdir -p etc/apt.conf.d etc/preferences.d state/lists/partial cache/archives/partial
touch status
for kind in deb deb-src; do
    echo "$kind [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main"
done >etc/sources.list
apt=(apt-get -qq -o "Dir::Etc=$build/etc" -o "Dir::State=$build/state" -o "Dir::State::status=$build/status"
    -o "Dir::Cache=$build/cache")
[ "$(id -u)" -ne 0 ] || apt+=(-o APT::Sandbox::User=root)
"${apt[@]}" update
"${apt[@]}" source --download-only kubernetes
"${apt[@]}" download golang-1.19-go golang-1.19-src golang-github-modern-go-reflect2-dev
for package in ./*.deb; do
    dpkg-deb --extract "$package" debian
done
mkdir tree
tar -xf kubernetes_*.orig.tar.* -C tree --strip-components 1

# The reflect2 that Kubernetes brings crashes under this Go.
reflect2=tree/vendor/github.com/modern-go/reflect2
rm "$reflect2"/*.go "$reflect2"/*.s
cp debian/usr/share/gocode/src/github.com/modern-go/reflect2/*.{go,s} "$reflect2"

mkdir -p tree/cmd/elector tree/.go/src/k8s.io
cp "$elector" tree/cmd/elector/main.go
ln -s "$build/tree" tree/.go/src/k8s.io/kubernetes
export GOROOT=$build/debian/usr/lib/go-1.19 GOPATH=$build/tree/.go GOCACHE=$build/cache/go GOPROXY=off GO111MODULE=off
export CGO_ENABLED=0 GOFLAGS=-p=2 PATH=$GOROOT/bin:$PATH
cd tree/.go/src/k8s.io/kubernetes
make WHAT=cmd/kube-apiserver
go build -o "$directory/elector" ./cmd/elector
cp _output/bin/kube-apiserver "$directory"
