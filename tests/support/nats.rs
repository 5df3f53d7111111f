//! A real nats-server for tests, and a small client of its own, which does what an operator does with `nats`.

use super::process::Process;
use super::server::{self, Server as _, prepare};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// The bucket that the tests use.
pub const BUCKET: &str = "locks";

pub struct Server {
    child: Process,
    port: u16,
    data: TempDir,
    /// Before the bucket in every URL: `USER:PASSWORD@`, and what follows it: `?creds=...`.
    pub login: String,
    pub options: String,
    /// What the client of the tests logs in with, as JSON; empty where it cannot.
    pub admin: String,
    pub scheme: &'static str,
}

impl Server {
    pub fn start() -> Self {
        Self::configured("jetstream: enabled", "{}")
    }

    /// Starts one with these lines in its configuration, in which `DATA` stands for its directory, and waits until it
    /// answers somebody who logs in with `admin`.
    pub fn configured(lines: &str, admin: &str) -> Self {
        Self::prepared(TempDir::new().expect("a scratch directory"), lines, admin)
    }

    /// The same, with files that are there already.
    pub fn prepared(data: TempDir, lines: &str, admin: &str) -> Self {
        let lines = lines.replace("DATA", &data.path().to_string_lossy());
        std::fs::write(data.path().join("server.conf"), lines).expect("it can be written");
        let (port, child) = server::on_a_free_port("nats-server", |port| {
            let mut child = spawn(data.path(), port);
            answers(&mut child, port, admin).then_some((port, child))
        });
        let (login, options, admin) = (String::new(), String::new(), admin.to_owned());
        Self { child, port, data, login, options, admin, scheme: "nats" }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.data.path().join(name)
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address(), &self.admin).expect("the server lets the tests in")
    }

    /// One whose keys are in a bucket of other programs.
    pub fn client_of(&self, bucket: &'static str) -> Client {
        Client { bucket, ..self.client() }
    }
}

/// False when it ended, as it does when another program took the port.
fn answers(child: &mut Process, port: u16, admin: &str) -> bool {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    child.comes_up(|| {
        if admin.is_empty() {
            Client::greeted(address).is_some()
        } else {
            Client::connect(address, admin).is_some_and(|mut client| client.is_served())
        }
    })
}

/// That of TEST_NATS_SERVER, or else the one that tests/run installs: Debian's is too old for leaderrun.
pub fn program() -> OsString {
    let installed = concat!(env!("CARGO_MANIFEST_DIR"), "/target/tools/nats/bin/nats-server");
    std::env::var_os("TEST_NATS_SERVER").unwrap_or_else(|| installed.into())
}

fn spawn(data: &Path, port: u16) -> Process {
    let mut command = server::mortal(program());
    command.args(["-a", server::listen_on(), "-p"]).arg(port.to_string()).arg("-sd").arg(data.join("store"));
    command.arg("-c").arg(data.join("server.conf")).arg("-l").arg(data.join("log"));
    server::start_quietly(command)
}

impl server::Server for Server {
    fn port(&self) -> u16 {
        self.port
    }

    fn url(&self, address: SocketAddr) -> String {
        format!("{}://{}{address}/{BUCKET}{}", self.scheme, self.login, self.options)
    }

    fn pid(&self) -> Pid {
        self.child.pid()
    }

    fn start_again(&mut self) {
        self.child = spawn(self.data.path(), self.port);
        assert!(
            answers(&mut self.child, self.port, &self.admin),
            "nats-server ended: {}",
            std::fs::read_to_string(self.path("log")).unwrap_or_default()
        );
    }

    fn wipe(&mut self) {
        self.client().api(&format!("STREAM.DELETE.KV_{BUCKET}"), &Value::Null);
        prepare(self);
    }

    fn remove_lock(&mut self, shard: &str) {
        self.client().purge(&format!("=shard.{shard}"));
    }

    fn remove_records(&mut self, shard: &str) {
        self.client().delete(&format!("=shard.{shard}"));
        self.client().delete(&format!("=led.{shard}"));
    }

    fn grow_old(&mut self) {
        server::vouch_for(self);
    }
}

/// A connection, used for one request after another.
pub struct Client {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
    count: u32,
    bucket: &'static str,
}

/// What a request brought.
#[derive(Debug)]
pub struct Answer {
    pub headers: String,
    pub body: Vec<u8>,
}

impl Client {
    /// None while nobody is there.
    fn greeted(address: SocketAddr) -> Option<Self> {
        let stream = TcpStream::connect(address).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
        let mut client = Self { reader: BufReader::new(stream.try_clone().ok()?), stream, count: 0, bucket: BUCKET };
        client.line()?;
        Some(client)
    }

    /// None while nobody is there, or does not let us in.
    pub fn connect(address: SocketAddr, login: &str) -> Option<Self> {
        let mut client = Self::greeted(address)?;
        let mut options: Value = serde_json::from_str(login).expect("a login is JSON");
        for (name, value) in [("verbose", false), ("headers", true), ("no_responders", true)] {
            options[name] = json!(value);
        }
        options["protocol"] = json!(1);
        client.send(format!("CONNECT {options}\r\nSUB ADMIN.* 1\r\nPING\r\n").as_bytes())?;
        loop {
            match client.line()?.trim() {
                "PONG" => return Some(client),
                line if line.starts_with("-ERR") => return None,
                _ => {}
            }
        }
    }

    fn is_served(&mut self) -> bool {
        // Without JetStream nobody responds, and that is an answer.
        self.request("$JS.API.INFO", "", b"").is_some()
    }

    fn send(&mut self, bytes: &[u8]) -> Option<()> {
        self.stream.write_all(bytes).ok()
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let length = self.reader.read_line(&mut line).ok()?;
        (length > 0).then_some(line)
    }

    /// `headers` are whole lines.
    pub fn request(&mut self, subject: &str, headers: &str, body: &[u8]) -> Option<Answer> {
        self.count += 1;
        let reply = format!("ADMIN.{}", self.count);
        let mut message = if headers.is_empty() {
            format!("PUB {subject} {reply} {}\r\n", body.len()).into_bytes()
        } else {
            let head = format!("NATS/1.0\r\n{headers}\r\n");
            format!("HPUB {subject} {reply} {} {}\r\n{head}", head.len(), head.len() + body.len()).into_bytes()
        };
        message.extend_from_slice(body);
        message.extend_from_slice(b"\r\n");
        self.send(&message)?;
        loop {
            let line = self.line()?;
            let words: Vec<&str> = line.split_whitespace().collect();
            let length = |word: &str| word.parse::<usize>().expect("a length");
            match words.as_slice() {
                ["PING"] => self.send(b"PONG\r\n")?,
                ["MSG" | "HMSG", to, _, .., all] => {
                    let mut bytes = vec![0; length(all) + 2];
                    self.reader.read_exact(&mut bytes).ok()?;
                    bytes.truncate(length(all));
                    let head = if words[0] == "HMSG" { length(words[words.len() - 2]) } else { 0 };
                    if *to == reply {
                        let headers = String::from_utf8_lossy(&bytes[..head]).into_owned();
                        return Some(Answer { headers, body: bytes.split_off(head) });
                    }
                }
                _ => assert!(!line.starts_with("-ERR"), "{line}"),
            }
        }
    }

    /// A request to JetStream; what it answers, also if that is an error.
    pub fn api(&mut self, name: &str, request: &Value) -> Value {
        let body = if request.is_null() { String::new() } else { request.to_string() };
        let answer = self.request(&format!("$JS.API.{name}"), "", body.as_bytes()).expect("the server answers");
        serde_json::from_slice(&answer.body).expect("JetStream speaks JSON")
    }

    /// Writes a key, whatever was there.
    pub fn put(&mut self, key: &str, headers: &str, value: &str) -> u64 {
        let answer = self.try_put(key, headers, value);
        answer["seq"].as_u64().unwrap_or_else(|| panic!("{answer}"))
    }

    /// The same; what is answered, also if that is an error.
    pub fn try_put(&mut self, key: &str, headers: &str, value: &str) -> Value {
        let subject = format!("$KV.{}.{key}", self.bucket);
        let answer = self.request(&subject, headers, value.as_bytes()).expect("it answers");
        serde_json::from_slice(&answer.body).expect("JetStream speaks JSON")
    }

    /// As `nats kv del` does it.
    pub fn delete(&mut self, key: &str) {
        self.put(key, "KV-Operation: DEL\r\n", "");
    }

    /// Leaves no trace of a key.
    pub fn purge(&mut self, key: &str) {
        let bucket = self.bucket;
        let answer =
            self.api(&format!("STREAM.PURGE.KV_{bucket}"), &json!({ "filter": format!("$KV.{bucket}.{key}") }));
        assert_eq!(answer["purged"], 1, "{key}: {answer}");
    }

    /// The message that a key holds.
    pub fn message(&mut self, key: &str) -> Option<Value> {
        let bucket = self.bucket;
        let request = json!({ "last_by_subj": format!("$KV.{bucket}.{key}") });
        let mut answer = self.api(&format!("STREAM.MSG.GET.KV_{bucket}"), &request);
        Some(answer.get_mut("message")?.take())
    }

    /// The record that a key holds. Read as a consumer would get it, for a read encodes it.
    pub fn record(&mut self, key: &str) -> Option<Value> {
        let revision = self.message(key)?["seq"].as_u64()?;
        let subject = format!("$JS.API.DIRECT.GET.KV_{}", self.bucket);
        let answer = self.request(&subject, "", json!({ "seq": revision }).to_string().as_bytes())?;
        serde_json::from_slice(&answer.body).ok()
    }

    pub fn revision(&mut self, key: &str) -> u64 {
        self.message(key).and_then(|message| message["seq"].as_u64()).expect("the key holds something")
    }

    pub fn info(&mut self) -> Value {
        self.api(&format!("STREAM.INFO.KV_{}", self.bucket), &Value::Null)
    }

    /// How many requests JetStream has answered to anybody, and this one.
    pub fn requests(&mut self) -> u64 {
        self.api("INFO", &Value::Null)["api"]["total"].as_u64().expect("a number")
    }
}
