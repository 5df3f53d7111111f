//! A real nats-server for tests, and a client, which does what an operator does with `nats`.

use super::prelude::*;
use super::proxy::RUNTIME;
use super::server::{self, Daemon};
use async_nats::{Message, Request};
use serde_json::json;
use std::ffi::OsString;
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::thread;

pub const BUCKET: &str = "locks";

pub struct Server {
    daemon: Daemon,
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
        let login = admin.to_owned();
        let daemon = Daemon::start("nats-server", data, launch, move |port| answers(port, &login));
        let (login, options, admin) = (String::new(), String::new(), admin.to_owned());
        Self { daemon, login, options, admin, scheme: "nats" }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.daemon.data.path().join(name)
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address(), &self.admin).expect("the server lets the tests in")
    }

    /// One whose keys are in a bucket of other programs.
    pub fn client_of(&self, bucket: &'static str) -> Client {
        Client { bucket, ..self.client() }
    }
}

/// To somebody who logs in with `admin`, or with its greeting.
fn answers(port: u16, admin: &str) -> bool {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    if admin.is_empty() {
        let greets = |mut stream: TcpStream| stream.read(&mut [0; 64]).is_ok_and(|length| length > 0);
        TcpStream::connect(address).is_ok_and(greets)
    } else {
        Client::connect(address, admin).is_some()
    }
}

/// That of TEST_NATS_SERVER, or else the one that tests/run installs: Debian's is too old for leaderrun.
pub fn program() -> OsString {
    let installed = concat!(env!("CARGO_MANIFEST_DIR"), "/target/tools/nats/bin/nats-server");
    std::env::var_os("TEST_NATS_SERVER").unwrap_or_else(|| installed.into())
}

fn launch(data: &Path, port: u16) -> Command {
    let mut command = server::mortal(program());
    command.args(["-a", server::listen_on(), "-p"]).arg(port.to_string()).arg("-sd").arg(data.join("store"));
    command.arg("-c").arg(data.join("server.conf")).arg("-l").arg(data.join("log"));
    command
}

impl server::Server for Server {
    fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    fn url(&self, address: SocketAddr) -> String {
        format!("{}://{}{address}/{BUCKET}{}", self.scheme, self.login, self.options)
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

/// That of the library, for tests that wait for each answer, in a runtime or not.
pub struct Client {
    nats: async_nats::Client,
    bucket: &'static str,
}

/// On the runtime of all test programs' connections.
fn wait<T: Send>(future: impl Future<Output = T> + Send) -> T {
    thread::scope(|scope| scope.spawn(|| RUNTIME.block_on(future)).join().expect("it does not panic"))
}

impl Client {
    /// None while nobody is there, or does not let us in.
    pub fn connect(address: SocketAddr, login: &str) -> Option<Self> {
        let login: Value = serde_json::from_str(login).expect("a login is JSON");
        let told = |name: &str| login[name].as_str().map(str::to_owned);
        let options = async_nats::ConnectOptions::new().request_timeout(Some(Duration::from_secs(20)));
        let options = match (told("user"), told("pass"), told("auth_token")) {
            (Some(user), Some(pass), _) => options.user_and_password(user, pass),
            (_, _, Some(token)) => options.token(token),
            _ => options,
        };
        let nats = wait(options.connect(address.to_string())).ok()?;
        Some(Self { nats, bucket: BUCKET })
    }

    /// `headers` are whole lines. None without an answer.
    pub fn request(&self, subject: &str, headers: &str, body: &[u8]) -> Option<Message> {
        let mut request = Request::new().payload(body.to_vec().into());
        if !headers.is_empty() {
            let lines = headers.lines().filter_map(|line| line.split_once(": "));
            request =
                request.headers(lines.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect());
        }
        wait(self.nats.send_request(subject.to_owned(), request)).ok()
    }

    /// A request to JetStream; what it answers, also if that is an error.
    pub fn api(&self, name: &str, request: &Value) -> Value {
        let body = if request.is_null() { String::new() } else { request.to_string() };
        let answer = self.request(&format!("$JS.API.{name}"), "", body.as_bytes()).expect("the server answers");
        serde_json::from_slice(&answer.payload).expect("JetStream speaks JSON")
    }

    pub fn put(&self, key: &str, headers: &str, value: &str) -> u64 {
        let answer = self.try_put(key, headers, value);
        answer["seq"].as_u64().unwrap_or_else(|| panic!("{answer}"))
    }

    /// The same; what is answered, also if that is an error.
    pub fn try_put(&self, key: &str, headers: &str, value: &str) -> Value {
        let subject = format!("$KV.{}.{key}", self.bucket);
        let answer = self.request(&subject, headers, value.as_bytes()).expect("it answers");
        serde_json::from_slice(&answer.payload).expect("JetStream speaks JSON")
    }

    pub fn delete(&self, key: &str) {
        self.put(key, "KV-Operation: DEL\r\n", "");
    }

    pub fn purge(&self, key: &str) {
        let bucket = self.bucket;
        let answer =
            self.api(&format!("STREAM.PURGE.KV_{bucket}"), &json!({ "filter": format!("$KV.{bucket}.{key}") }));
        assert_eq!(answer["purged"], 1, "{key}: {answer}");
    }

    pub fn message(&self, key: &str) -> Option<Value> {
        let bucket = self.bucket;
        let request = json!({ "last_by_subj": format!("$KV.{bucket}.{key}") });
        let mut answer = self.api(&format!("STREAM.MSG.GET.KV_{bucket}"), &request);
        Some(answer.get_mut("message")?.take())
    }

    /// The record that a key holds. Read as a consumer would get it, for a read encodes it.
    pub fn record(&self, key: &str) -> Option<Value> {
        let revision = self.message(key)?["seq"].as_u64()?;
        let subject = format!("$JS.API.DIRECT.GET.KV_{}", self.bucket);
        let answer = self.request(&subject, "", json!({ "seq": revision }).to_string().as_bytes())?;
        serde_json::from_slice(&answer.payload).ok()
    }

    pub fn revision(&self, key: &str) -> u64 {
        self.message(key).and_then(|message| message["seq"].as_u64()).expect("the key holds something")
    }

    pub fn info(&self) -> Value {
        self.api(&format!("STREAM.INFO.KV_{}", self.bucket), &Value::Null)
    }

    /// How many requests JetStream has answered to anybody, and this one.
    pub fn requests(&self) -> u64 {
        self.api("INFO", &Value::Null)["api"]["total"].as_u64().expect("a number")
    }
}
