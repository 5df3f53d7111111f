//! etcd from Debian's `etcd-server` and `etcd-client` (3.4 and later): a single server, or the members of a cluster.

use super::http;
use super::papers::Papers;
use super::ports::free_port;
use super::prelude::*;
use super::server::{self, Daemon};
use std::net::{SocketAddr, TcpStream};

pub const PREFIX: &str = "leaderrun";

/// One member, on ports and with a data directory of its own.
pub struct Server {
    daemon: Daemon,
    /// Health and metrics, never encrypted.
    metrics: u16,
    tls: Option<Papers>,
}

/// So that a lease of a second is granted as one.
const FAST: [&str; 4] = ["--heartbeat-interval", "10", "--election-timeout", "50"];

impl Server {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    pub fn start_with(flags: &[&str]) -> Self {
        Self::make(&[&FAST, flags].concat(), None)
    }

    /// Speaks TLS alone, with clients that show a certificate of its authority alone.
    pub fn start_with_tls() -> Self {
        let tls = Papers::issue("IP:127.0.0.1");
        let flags = [
            ["--cert-file", &tls.path("server.pem")],
            ["--key-file", &tls.path("server.key")],
            ["--trusted-ca-file", &tls.path("ca.pem")],
        ];
        let flags = [&FAST, &flags.concat()[..], &["--client-cert-auth"]].concat();
        Self::make(&flags, Some(tls))
    }

    /// Three members of one cluster, ready to serve.
    pub fn cluster() -> Vec<Self> {
        let peers = [(); 3].map(|()| free_port());
        let cluster = peers.map(|peer| format!("m{peer}=http://127.0.0.1:{peer}")).join(",");
        let slower = ["--heartbeat-interval", "100", "--election-timeout", "1000", "--initial-cluster-token", &cluster];
        // None of them is healthy before the others are there.
        let members = peers.map(|peer| Self::member(peer, &cluster, &slower, None, server::is_open));
        for port in members.iter().map(|member| member.metrics) {
            wait_until_or("etcd is healthy", || format!("port {port}"), || is_healthy(port));
        }
        members.into()
    }

    fn make(flags: &[&str], tls: Option<Papers>) -> Self {
        let peer = free_port();
        Self::member(peer, &format!("m{peer}=http://127.0.0.1:{peer}"), flags, tls, is_healthy)
    }

    /// `is_up` asks at the port of the metrics.
    fn member(peer: u16, cluster: &str, flags: &[&str], tls: Option<Papers>, is_up: fn(u16) -> bool) -> Self {
        let metrics = free_port();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let name = format!("m{peer}");
        let flags = [&["--name", &name, "--initial-cluster", cluster], flags].concat();
        let flags: Vec<_> = flags.into_iter().map(str::to_owned).collect();
        let launch = move |data: &Path, client: u16| {
            let listen = format!("{scheme}://{}:{client}", server::listen_on());
            let (client, peer) = (format!("{scheme}://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
            let mut command = server::mortal("etcd");
            command
                .args(["--logger", "zap", "--log-level", "error"])
                .arg("--data-dir")
                .arg(data.join("data"))
                .args(["--listen-client-urls", &listen, "--advertise-client-urls", &client])
                .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
                .args(["--listen-metrics-urls", &format!("http://127.0.0.1:{metrics}")])
                // SIGKILL leaves the page cache alone. And a login does not have to be slow here.
                .args(["--unsafe-no-fsync", "--bcrypt-cost", "4"])
                .args(&flags);
            command
        };
        let data = TempDir::new().expect("a scratch directory");
        Self { daemon: Daemon::start("etcd", data, launch, move |_| is_up(metrics)), metrics, tls }
    }

    pub fn host(&self) -> String {
        self.address().to_string()
    }

    pub fn tls(&self) -> &Papers {
        self.tls.as_ref().expect("it was started with TLS")
    }

    /// The bare output of an etcdctl that succeeds.
    pub fn etcdctl(&self, arguments: &[&str]) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", &format!("{scheme}://{}", self.host())]);
        // By itself it gives up after two seconds, or five.
        command.args(["--dial-timeout=60s", "--command-timeout=60s"]);
        if let Some(tls) = &self.tls {
            command.arg("--cacert").arg(tls.file("ca.pem"));
            command.arg("--cert").arg(tls.file("app.pem")).arg("--key").arg(tls.file("app.key"));
        }
        let output = command.args(arguments).output().expect("etcdctl runs: apt-get install etcd-client");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "etcdctl {arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
        text
    }

    pub fn delete(&self, key: &str) {
        self.etcdctl(&["del", key]);
    }

    pub fn put(&self, key: &str, value: &str) {
        self.etcdctl(&["put", key, value]);
    }

    pub fn value(&self, key: &str) -> Option<String> {
        let text = self.etcdctl(&["get", key, "--print-value-only"]);
        Some(text.trim_end().to_owned()).filter(|text| !text.is_empty())
    }

    /// The etcd lease of a key, as etcdctl writes it.
    pub fn lease_of(&self, key: &str) -> String {
        let text = self.etcdctl(&["get", key, "-w", "fields"]);
        let lease = text.lines().find_map(|line| line.strip_prefix("\"Lease\" : ")).expect("the key is there");
        format!("{:x}", lease.parse::<i64>().expect("a number"))
    }

    pub fn lease_in(&self, key: &str) -> String {
        let document: serde_json::Value = serde_json::from_str(&self.value(key).expect("it is there")).expect("JSON");
        document["lease"].as_str().expect("it names one").to_owned()
    }

    /// Of the last write to anything.
    pub fn revision(&self) -> i64 {
        let fields = self.etcdctl(&["get", "nothing", "-w", "fields"]);
        let revision = fields.lines().find_map(|line| line.strip_prefix("\"Revision\" : ")).expect("a revision");
        revision.parse().expect("a number")
    }

    pub fn back_up(&mut self) -> TempDir {
        self.kill();
        let copy = TempDir::new().expect("a scratch directory");
        copy_data(self.daemon.data.path(), copy.path());
        self.start_again();
        copy
    }

    pub fn restore(&mut self, copy: &TempDir) {
        self.kill();
        std::fs::remove_dir_all(self.daemon.data.path().join("data")).expect("etcd has a data directory");
        copy_data(copy.path(), self.daemon.data.path());
        self.start_again();
    }

    /// How often clients called any of these methods.
    pub fn calls(&self, methods: &[&str]) -> u64 {
        self.count("grpc_server_started_total{", methods)
    }

    fn count(&self, counter: &str, methods: &[&str]) -> u64 {
        let metrics = http_get(self.metrics, "/metrics").expect("etcd tells its metrics");
        let methods: Vec<_> = methods.iter().map(|method| format!("grpc_method=\"{method}\"")).collect();
        let lines = metrics.lines().filter(|line| line.starts_with(counter));
        let lines = lines.filter(|line| methods.iter().any(|method| line.contains(method)));
        lines.map(|line| line.rsplit(' ').next().expect("a value").parse::<u64>().expect("a number")).sum()
    }

    /// How many calls of a method were answered, well or badly.
    pub fn answered(&self, method: &str) -> u64 {
        self.count("grpc_server_handled_total{", &[method])
    }
}

impl server::Server for Server {
    fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    fn url(&self, address: SocketAddr) -> String {
        match &self.tls {
            None => format!("etcd://{address}/{PREFIX}"),
            Some(tls) => {
                let (ca, cert, key) = (tls.path("ca.pem"), tls.path("app.pem"), tls.path("app.key"));
                format!("etcds://{address}/{PREFIX}?ca={ca}&cert={cert}&key={key}")
            }
        }
    }

    fn wipe(&mut self) {
        self.kill();
        std::fs::remove_dir_all(self.daemon.data.path().join("data")).expect("etcd has a data directory");
        self.start_again();
        server::prepare(self);
    }

    fn remove_lock(&mut self, shard: &str) {
        self.delete(&format!("{PREFIX}/lock/{shard}"));
    }

    fn remove_records(&mut self, shard: &str) {
        self.delete(&format!("{PREFIX}/shard/{shard}"));
        self.delete(&format!("{PREFIX}/lock/{shard}"));
    }

    fn grow_old(&mut self) {
        self.delete(&format!("{PREFIX}/young"));
    }
}

fn copy_data(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from.join("data")).arg(to).status();
    assert!(copied.expect("cp runs").success());
}

fn is_healthy(port: u16) -> bool {
    http_get(port, "/health").is_some_and(|body| body.contains("\"true\""))
}

fn http_get(port: u16, path: &str) -> Option<String> {
    let stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    Some(http::ask(stream, &format!("GET {path} HTTP/1.0\r\nhost: localhost\r\n\r\n")).ok()?.body)
}
