//! A real Redis server for tests.

use super::prelude::*;
use super::server::{self, Daemon};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

pub struct Server(Daemon);

/// Three of them watch a master, whose name is `main`.
pub struct Sentinel {
    pub port: u16,
    _daemon: Daemon,
}

impl Server {
    /// One that loses nothing when it is killed.
    pub fn start() -> Self {
        Self::with(&["--appendonly", "yes", "--appendfsync", "always"])
    }

    /// One that forgets everything when it is killed.
    pub fn forgetful() -> Self {
        Self::with(&[])
    }

    pub fn with(settings: &[&str]) -> Self {
        let data = TempDir::new().expect("a scratch directory");
        let settings: Vec<String> = settings.iter().map(|&setting| setting.to_owned()).collect();
        let launch = move |data: &Path, port: u16| {
            let mut command = server::mortal("redis-server");
            command.args(["--port", &port.to_string()]);
            command.args(["--protected-mode", "no", "--save", "", "--repl-diskless-sync-delay", "0"]);
            command.args(["--bind", server::listen_on(), "--dir"]).arg(data).args(&settings);
            command
        };
        Self(Daemon::start("redis-server", data, launch, answers))
    }

    /// What redis-cli prints for a command, without the line's end.
    pub fn cli(&self, words: &[&str]) -> String {
        cli(self.0.port, words)
    }

    pub fn info(&self, name: &str) -> String {
        let info = self.cli(&["INFO", "everything"]);
        let mut lines = info.lines();
        let found = lines.find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':').map(str::to_owned));
        found.unwrap_or_default()
    }

    pub fn scripts_run(&self) -> u64 {
        let calls = |name: &str| -> u64 {
            let statistics = self.info(name);
            let calls = statistics.strip_prefix("calls=").and_then(|rest| rest.split(',').next());
            calls.and_then(|calls| calls.parse().ok()).unwrap_or(0)
        };
        calls("cmdstat_evalsha") + calls("cmdstat_eval")
    }

    pub fn subscribers(&self) -> usize {
        self.cli(&["CLIENT", "LIST", "TYPE", "pubsub"]).lines().filter(|line| !line.is_empty()).count()
    }

    /// As if a candidate had first spoken to it long ago.
    pub fn age(&self) {
        let run = format!("{} {}", self.info("run_id"), self.info("master_replid"));
        let text = format!(r#"{{"format":1,"what":"","created_ms":1,"incarnation":"{run}"}}"#);
        let fields =
            ["format", "2", "write", "aged", "text", &text, "session", "", "term", "0", "sequence", "0", "ends", ""];
        self.cli(&[&["HSET", "leaderrun:{leases}:store"], &fields[..]].concat());
    }
}

impl server::Server for Server {
    fn daemon(&self) -> &Daemon {
        &self.0
    }

    fn url(&self, address: SocketAddr) -> String {
        format!("redis://{address}")
    }

    fn wipe(&mut self) {
        assert_eq!(self.cli(&["FLUSHALL"]), "OK");
    }

    fn remove_lock(&mut self, shard: &str) {
        assert_eq!(self.cli(&["DEL", &format!("leaderrun:{{leases}}:lock:{shard}")]), "1");
    }

    fn remove_records(&mut self, shard: &str) {
        self.cli(&["DEL", &format!("leaderrun:{{leases}}:lock:{shard}")]);
    }

    fn grow_old(&mut self) {
        self.age();
    }
}

impl Sentinel {
    /// Watches the master on `port`, and takes it for dead after five seconds.
    pub fn start(port: u16) -> Self {
        let launch = move |data: &Path, own: u16| {
            let file = data.join("sentinel.conf");
            let text = format!(
                "port {own}\nbind 127.0.0.1\ndir {}\nsentinel monitor main 127.0.0.1 {port} 2\n\
                 sentinel down-after-milliseconds main 5000\nsentinel failover-timeout main 5000\n",
                data.display()
            );
            std::fs::write(&file, text).expect("a file can be written");
            let mut command = server::mortal("redis-server");
            command.arg(file).arg("--sentinel");
            command
        };
        let data = TempDir::new().expect("a scratch directory");
        let daemon = Daemon::start("redis-server --sentinel", data, launch, answers);
        Self { port: daemon.port, _daemon: daemon }
    }

    pub fn cli(&self, words: &[&str]) -> String {
        cli(self.port, words)
    }

    pub fn master(&self, name: &str) -> String {
        let known = self.cli(&["SENTINEL", "MASTER", "main"]);
        let mut lines = known.lines();
        lines.by_ref().find(|line| *line == name);
        lines.next().unwrap_or_default().to_owned()
    }
}

pub fn cli(port: u16, words: &[&str]) -> String {
    let mut command = Command::new("redis-cli");
    command.args(["-h", "127.0.0.1", "-p", &port.to_string()]).args(words).stderr(Stdio::inherit());
    let output = command.output().unwrap_or_else(|error| panic!("redis-cli: {error}: install redis-tools"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.trim_end_matches('\n').to_owned()
}

fn answers(port: u16) -> bool {
    let ask = || -> std::io::Result<[u8; 7]> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"PING\r\n")?;
        let mut answer = [0; 7];
        stream.read_exact(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| [*b"+PONG\r\n", *b"-NOAUTH"].contains(&answer))
}
