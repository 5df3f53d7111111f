//! A `leaderctl serve` of a store, and what it answers.

use crate::support::http::{Answer, ask};
use crate::support::ports::free_port;
use crate::support::prelude::*;
use std::fs::File;
use std::io;
use std::net::TcpStream;

pub struct Serve {
    _child: Process,
    pub port: u16,
    scratch: TempDir,
}

impl Serve {
    /// Of the store of this place, with more options. Returns when the store was read.
    pub fn start(place: &Place, more: &[&str]) -> Self {
        let (port, scratch) = (free_port(), TempDir::new().unwrap());
        let log = File::create(scratch.path().join("log")).unwrap();
        let mut command = leaderctl();
        command.args(["--store", &place.url, "serve", "--listen", &format!("127.0.0.1:{port}")]).args(more);
        command.envs(place.environment.iter().copied());
        let child = Process::start(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log));
        let serve = Self { _child: child, port, scratch };
        let is_ready = || serve.try_get("/readyz").is_ok_and(|it| it.status == 200);
        wait_until_or("the store was read", || serve.log(), is_ready);
        serve
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.scratch.path().join("log")).unwrap()
    }

    pub fn send(&self, request: &str) -> io::Result<Answer> {
        let stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(Duration::from_mins(1)))?;
        ask(stream, request)
    }

    pub fn try_get(&self, path: &str) -> io::Result<Answer> {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n\r\n", self.port))
    }

    pub fn get(&self, path: &str) -> String {
        let answer = self.try_get(path).unwrap_or_else(|error| panic!("{path}: {error}\n{}", self.log()));
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        answer.body
    }

    pub fn json(&self, path: &str) -> Value {
        serde_json::from_str(&self.get(path)).unwrap()
    }

    /// What the API says about a shard; null if it knows none.
    pub fn shard(&self, name: &str) -> Value {
        let all = self.json("/api/shards");
        all["shards"].as_array().unwrap().iter().find(|shard| shard["shard"] == name).cloned().unwrap_or_default()
    }

    pub fn metric(&self, name: &str) -> Option<f64> {
        let text = self.get("/metrics");
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }

    pub fn wait_for(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let seen =
            || format!("{}\n{}", self.log(), self.try_get("/api/shards").map_or_else(|e| e.to_string(), |it| it.body));
        wait_until_or(what, seen, &mut holds);
    }
}
