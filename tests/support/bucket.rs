//! moto's S3 for tests (PyPI `moto[server]`), which answers one request at a time; see `bucket.py`.

use super::prelude::*;
pub use super::server::AWS as ENVIRONMENT;
use super::wire::{Fate, Response};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdout};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// What moto does not check, but wants to see.
const SIGNED: &str =
    "AWS4-HMAC-SHA256 Credential=test/20260101/eu-west-1/s3/aws4_request, SignedHeaders=host, Signature=0";

/// The prefix in the bucket `locks`.
pub const PREFIX: &str = "a/b";

/// The marker of a bucket that remembers since then, in milliseconds since 1970.
pub fn marker(created: u128) -> String {
    let text = format!(r#"{{\"format\":1,\"what\":\"tried\",\"created_ms\":{created},\"incarnation\":\"\"}}"#);
    format!(r#"{{"format":2,"write":"x","text":"{text}","session":null,"term":0,"sequence":0,"ends_ms":null}}"#)
}

pub struct Server {
    /// None once it was killed: nobody keeps its number from being given to another process.
    pid: Option<Pid>,
    port: u16,
    data: TempDir,
    is_dishonest: bool,
}

impl Server {
    /// Starts one with an empty bucket, which keeps its data over a restart.
    pub fn start() -> Self {
        Self::start_with(false)
    }

    /// The same with the marker that `leaderctl store init` writes, which need not try this server each time.
    pub fn durable() -> Self {
        let server = Self::start();
        server.mark(0);
        server
    }

    pub fn mark(&self, age: u128) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
        let created = since.as_millis() - age;
        self.write("leaderrun.json", &marker(created));
    }

    /// One that answers many at once, and lets two writers win.
    pub fn dishonest() -> Self {
        Self::start_with(true)
    }

    fn start_with(is_dishonest: bool) -> Self {
        let data = TempDir::new().expect("a scratch directory");
        let (port, pid) = super::server::on_a_free_port("moto", |port| {
            let pid = spawn(port, data.path(), is_dishonest);
            listens(pid, port).then_some((port, pid))
        });
        Self { pid: Some(pid), port, data, is_dishonest }
    }

    fn end(&mut self) {
        let Some(pid) = self.pid.take() else { return };
        let _ = kill(pid, Signal::SIGKILL);
        // Some of its threads may listen for a moment longer than it is there.
        let is_deaf = || TcpStream::connect(("127.0.0.1", self.port)).is_err();
        super::fleet::wait_until("moto has ended", || super::server::is_gone(pid.as_raw()) && is_deaf());
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn keys(&self) -> Vec<String> {
        let mut keys = Vec::new();
        let mut after = String::new();
        loop {
            let path = format!("/locks?list-type=2&prefix={PREFIX}/&start-after={after}");
            let (_, answer) = self.ask("GET", &path, "");
            let page: Vec<&str> = answer
                .split("<Key>")
                .skip(1)
                .filter_map(|rest| rest.split_once("</Key>"))
                .map(|(key, _)| key)
                .collect();
            let Some(last) = page.last() else { return keys };
            (*last).clone_into(&mut after);
            keys.extend(page.iter().filter_map(|key| key.strip_prefix(PREFIX)?.strip_prefix('/')).map(str::to_owned));
        }
    }

    pub fn object(&self, key: &str) -> Option<String> {
        let (status, body) = self.ask("GET", &format!("/locks/{PREFIX}/{key}"), "");
        (status == 200).then_some(body)
    }

    pub fn write(&self, key: &str, body: &str) {
        assert_eq!(self.ask("PUT", &format!("/locks/{PREFIX}/{key}"), body).0, 200, "{key}");
    }

    pub fn delete(&self, key: &str) {
        assert_eq!(self.ask("DELETE", &format!("/locks/{PREFIX}/{key}"), "").0, 204, "{key}");
    }

    pub fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        let head = format!(
            "{method} {path} HTTP/1.0\r\nhost: 127.0.0.1:{}\r\nauthorization: {SIGNED}\r\ncontent-length: {}",
            self.port,
            body.len()
        );
        let answer = super::http::ask(stream, &format!("{head}\r\n\r\n{body}")).expect("it answers");
        (answer.status, answer.body)
    }
}

/// As S3 answers whom no policy allows it.
pub fn denial() -> Fate {
    let body = "<Error><Code>AccessDenied</Code><Message>not allowed</Message></Error>";
    Fate::Answer(Response { status: 403, headers: Vec::new(), body: body.to_owned() })
}

pub fn url(endpoint: &str) -> String {
    format!("s3://locks/{PREFIX}?region=eu-west-1&endpoint={endpoint}")
}

/// The process that starts all servers of this test program.
struct Mother {
    child: Child,
    answers: BufReader<ChildStdout>,
}

static MOTHER: LazyLock<Mutex<Mother>> = LazyLock::new(|| {
    let program = std::env::var_os("TEST_MOTO").unwrap_or_else(|| "python3".into());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/bucket.py");
    let mut command = Command::new(&program);
    command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command
        .spawn()
        .unwrap_or_else(|error| panic!("cannot start {}: {error}: tests/run installs moto", program.display()));
    let answers = BufReader::new(child.stdout.take().expect("a pipe"));
    Mutex::new(Mother { child, answers })
});

fn spawn(port: u16, data: &Path, is_dishonest: bool) -> Pid {
    // Its journal is not for many at once.
    let journal = (!is_dishonest).then(|| data.join("journal"));
    let order = serde_json::json!([port, journal, super::server::listen_on(), is_dishonest]);
    let mut mother = MOTHER.lock().unwrap_or_else(PoisonError::into_inner);
    writeln!(mother.child.stdin.as_mut().expect("a pipe"), "{order}").expect("tests/run installs moto");
    let mut answer = String::new();
    mother.answers.read_line(&mut answer).expect("a line");
    Pid::from_raw(answer.trim().parse().unwrap_or_else(|_| panic!("moto does not start: tests/run installs it")))
}

/// False if it ended before: another program has its port.
fn listens(pid: Pid, port: u16) -> bool {
    let mut ended = false;
    super::fleet::wait_until("moto listens", || {
        ended = super::server::is_gone(pid.as_raw());
        ended || TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    !ended
}

impl super::server::Server for Server {
    fn port(&self) -> u16 {
        self.port
    }

    fn url(&self, address: SocketAddr) -> String {
        url(&format!("http://{address}"))
    }

    fn environment(&self) -> &'static [(&'static str, &'static str)] {
        ENVIRONMENT
    }

    fn pid(&self) -> Pid {
        self.pid.expect("it runs")
    }

    fn kill(&mut self) {
        self.end();
    }

    fn start_again(&mut self) {
        let pid = spawn(self.port, self.data.path(), self.is_dishonest);
        assert!(listens(pid, self.port), "moto ended");
        self.pid = Some(pid);
    }

    fn wipe(&mut self) {
        for key in self.keys() {
            self.delete(&key);
        }
        self.mark(0);
    }

    fn remove_lock(&mut self, shard: &str) {
        self.delete(&format!("shard/{}", shard.replace('/', "=")));
    }

    fn remove_records(&mut self, shard: &str) {
        self.remove_lock(shard);
        self.delete(&format!("note/{}/history", shard.replace('/', "=")));
    }

    fn grow_old(&mut self) {
        self.mark(3_600_000);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}
