//! A real DynamoDB-compatible server for tests, and a proxy before it that loses, delays and rewrites.

use super::ports::free_port;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType, TableStatus,
};
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore};
use nix::unistd::Pid;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

pub const REGION: &str = "eu-west-1";

/// What the programs under test need to be let in.
pub const ENVIRONMENT: &[(&str, &str)] = &[
    ("AWS_ACCESS_KEY_ID", "test"),
    ("AWS_SECRET_ACCESS_KEY", "test"),
    ("AWS_EC2_METADATA_DISABLED", "true"),
    ("AWS_CONFIG_FILE", "/dev/null"),
];

/// A dynoxide of one's own, gone when this is dropped.
pub struct Server {
    child: Child,
    port: u16,
    /// None where it keeps everything in memory.
    data: Option<TempDir>,
}

impl Server {
    /// Starts one on a free loopback port, which forgets all when it ends.
    pub fn start() -> Self {
        Self::start_with(None)
    }

    /// Starts one with a table `locks`, which keeps its data over a restart.
    pub fn durable() -> Self {
        let server = Self::start_with(Some(TempDir::new().expect("a scratch directory")));
        super::server::prepare(&server);
        server
    }

    fn start_with(data: Option<TempDir>) -> Self {
        for _ in 0..10 {
            let port = free_port();
            let mut child = spawn(port, data.as_ref());
            if super::server::listens(&mut child, port) {
                return Self { child, port, data };
            }
        }
        panic!("dynoxide does not start");
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The SDK's client, for what the test does by hand.
    pub fn client(&self) -> Client {
        client(&self.endpoint())
    }

    /// Makes a table that has remembered for an hour, so that first leaders need not wait.
    pub async fn table(&self, name: &str) -> String {
        self.table_without_marker(name).await;
        write_marker(&self.client(), name, millis_now() - 3_600_000).await;
        name.to_owned()
    }

    pub async fn table_without_marker(&self, name: &str) -> String {
        make_table(&self.client(), name, &[("pk", KeyType::Hash), ("sk", KeyType::Range)]).await;
        name.to_owned()
    }

    /// What `--store` takes for a table of this server.
    pub fn url(&self, table: &str) -> String {
        format!("dynamodb://{table}?region={REGION}&endpoint=http%3A%2F%2F127.0.0.1%3A{}", self.port)
    }
}

fn spawn(port: u16, data: Option<&TempDir>) -> Child {
    let program = std::env::var_os("TEST_DYNOXIDE").unwrap_or_else(|| "dynoxide".into());
    let mut command = Command::new(&program);
    command.args(["--host", super::server::listen_on(), "--log", "quiet", "--port", &port.to_string()]);
    if let Some(data) = data {
        command.arg("--db-path").arg(data.path().join("db"));
    }
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    spawned.unwrap_or_else(|error| panic!("cannot start {}: {error}: tests/run installs dynoxide", program.display()))
}

/// Runs what the SDK's client does, for tests that have no runtime.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
}

impl super::server::Server for Server {
    fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    fn url(&self, address: SocketAddr) -> String {
        format!("dynamodb://locks?region={REGION}&endpoint=http://{address}")
    }

    fn environment(&self) -> &'static [(&'static str, &'static str)] {
        ENVIRONMENT
    }

    fn pid(&self) -> Pid {
        super::server::pid_of(&self.child)
    }

    fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it can be reaped");
    }

    fn start_again(&mut self) {
        self.child = spawn(self.port, self.data.as_ref());
        assert!(super::server::listens(&mut self.child, self.port), "dynoxide ended");
    }

    fn wipe(&mut self) {
        block_on(self.client().delete_table().table_name("locks").send()).expect("there is a table");
        super::server::prepare(self);
    }

    fn remove_lock(&mut self, shard: &str) {
        self.remove(shard, "LOCK");
    }

    fn remove_records(&mut self, shard: &str) {
        for sort in ["LOCK", "TERM", "HISTORY"] {
            self.remove(shard, sort);
        }
    }

    fn grow_old(&mut self) {
        block_on(write_marker(&self.client(), "locks", millis_now() - 3_600_000));
    }
}

impl Server {
    fn remove(&self, shard: &str, sort: &str) {
        let key = AttributeValue::S(format!("SHARD#{shard}"));
        let request = self.client().delete_item().table_name("locks").key("pk", key);
        block_on(request.key("sk", AttributeValue::S(sort.to_owned())).send()).expect("it can be deleted");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn millis_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    u64::try_from(since.as_millis()).expect("it is before the year 500 million")
}

pub fn client(endpoint: &str) -> Client {
    let rootless = TlsContext::builder().with_trust_store(TrustStore::empty()).build().expect("an empty trust store");
    let http = aws_smithy_http_client::Builder::new()
        .tls_provider(Provider::Rustls(CryptoMode::Ring))
        .tls_context(rootless)
        .build_https();
    let config = aws_sdk_dynamodb::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new(REGION))
        .credentials_provider(Credentials::new("test", "test", None, None, "test"))
        .endpoint_url(endpoint)
        .http_client(http);
    Client::from_conf(config.build())
}

/// Makes a table with these keys, all strings, and waits until it is there.
pub async fn make_table(client: &Client, name: &str, keys: &[(&str, KeyType)]) {
    let mut request = client.create_table().table_name(name).billing_mode(BillingMode::PayPerRequest);
    for (key, kind) in keys {
        let definition = AttributeDefinition::builder().attribute_name(*key).attribute_type(ScalarAttributeType::S);
        let element = KeySchemaElement::builder().attribute_name(*key).key_type(kind.clone());
        request = request
            .attribute_definitions(definition.build().expect("a whole definition"))
            .key_schema(element.build().expect("a whole element"));
    }
    request.send().await.expect("a table can be made");
    loop {
        let answer = client.describe_table().table_name(name).send().await.expect("the table is there");
        if answer.table().and_then(|table| table.table_status()) == Some(&TableStatus::Active) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Says that the table has remembered since then.
pub async fn write_marker(client: &Client, table: &str, created_millis: u64) {
    let item = [
        ("pk".to_owned(), AttributeValue::S("LEADERRUN".to_owned())),
        ("sk".to_owned(), AttributeValue::S("TABLE".to_owned())),
        ("createdMs".to_owned(), AttributeValue::N(created_millis.to_string())),
    ];
    let request = client.put_item().table_name(table).set_item(Some(HashMap::from(item)));
    request.send().await.expect("the marker can be written");
}

/// A request as the proxy sees it.
pub struct Request {
    /// `PutItem`.
    pub action: String,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

/// An answer as the proxy got it.
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

/// What becomes of a request.
pub enum Fate {
    Pass,
    /// It never arrives: the connection is cut.
    LoseRequest,
    /// It arrives, and the connection is cut instead of answering.
    LoseAnswer,
    /// It arrives this much later; the connection is cut at once.
    Late(Duration),
    /// It arrives this much later, and is answered.
    Held(Duration),
    /// It arrives when somebody says so, and is answered.
    Gated(mpsc::Receiver<()>),
    /// It arrives, and the answer comes this much later.
    Slow(Duration),
    /// It never arrives; this is the answer.
    Answer(Response),
    Rewrite(Box<dyn FnOnce(&mut Response) + Send>),
}

type Rule = Box<dyn FnMut(&Request) -> Fate + Send>;

/// Stands before a server, on a port of its own, until the test ends.
pub struct Proxy {
    port: u16,
    rule: Arc<Mutex<Rule>>,
    actions: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    pub fn before(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port can be had");
        let port = listener.local_addr().expect("a bound socket has an address").port();
        let rule: Arc<Mutex<Rule>> = Arc::new(Mutex::new(Box::new(|_| Fate::Pass)));
        let actions = Arc::new(Mutex::new(Vec::new()));
        let proxy = Self { port, rule: Arc::clone(&rule), actions: Arc::clone(&actions) };
        let upstream = server.port;
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let (rule, actions) = (Arc::clone(&rule), Arc::clone(&actions));
                thread::spawn(move || serve(connection, upstream, &rule, &actions));
            }
        });
        proxy
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// From now on.
    pub fn rule(&self, rule: impl FnMut(&Request) -> Fate + Send + 'static) {
        *self.rule.lock().unwrap() = Box::new(rule);
    }

    pub fn pass(&self) {
        self.rule(|_| Fate::Pass);
    }

    /// Denies actions as IAM does.
    pub fn deny(&self, is_denied: impl Fn(&str) -> bool + Send + 'static) {
        self.rule(move |request| if is_denied(&request.action) { denial() } else { Fate::Pass });
    }

    /// The first request of this action meets its fate; all others pass.
    pub fn once(&self, action: &'static str, fate: Fate) {
        let mut fate = Some(fate);
        self.rule(move |request| if request.action == action { fate.take().unwrap_or(Fate::Pass) } else { Fate::Pass });
    }

    /// As [`Proxy::once`]; it arrives once something is sent.
    pub fn gate(&self, action: &'static str) -> mpsc::Sender<()> {
        let (open, gate) = mpsc::channel();
        self.once(action, Fate::Gated(gate));
        open
    }

    /// Waits until something of this action has been asked since [`Proxy::actions`] was last called.
    pub async fn has_met(&self, action: &str) {
        let begun = Instant::now();
        while !self.actions.lock().unwrap().iter().any(|known| known == action) {
            assert!(begun.elapsed() < super::fleet::PATIENCE, "nobody asks for {action}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// What was asked since this was last called.
    pub fn actions(&self) -> Vec<String> {
        std::mem::take(&mut *self.actions.lock().unwrap())
    }
}

/// What IAM answers to whom a policy does not allow it.
pub fn denial() -> Fate {
    error_answer(400, "AccessDeniedException", "User x is not authorized")
}

/// An error as DynamoDB answers it.
pub fn error_answer(status: u16, code: &str, message: &str) -> Fate {
    Fate::Answer(Response {
        status,
        headers: vec![("content-type".to_owned(), "application/x-amz-json-1.0".to_owned())],
        body: format!(r#"{{"__type":"com.amazonaws.dynamodb.v20120810#{code}","message":"{message}"}}"#),
    })
}

/// The server's clock, as its answers tell it, is this many seconds further than it is.
pub fn set_date(response: &mut Response, seconds: i64) {
    for (name, value) in &mut response.headers {
        if name.eq_ignore_ascii_case("date") {
            let date = httpdate::parse_http_date(value).unwrap().duration_since(UNIX_EPOCH).unwrap();
            let shifted = date.as_secs().checked_add_signed(seconds).unwrap();
            *value = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(shifted));
        }
    }
}

fn serve(connection: TcpStream, upstream: u16, rule: &Mutex<Rule>, actions: &Mutex<Vec<String>>) {
    let _ = connection.set_nodelay(true);
    let mut reader = BufReader::new(connection.try_clone().expect("a socket can be cloned"));
    let mut writer = connection;
    while let Some((line, headers, body)) = read_message(&mut reader) {
        let target = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("x-amz-target"));
        let action = target.and_then(|(_, target)| target.rsplit('.').next()).unwrap_or_default().to_owned();
        let request = Request { action, headers, body };
        actions.lock().unwrap().push(request.action.clone());
        let fate = (rule.lock().unwrap())(&request);
        let answer = match fate {
            Fate::Pass => forward(upstream, &line, &request),
            Fate::LoseRequest => None,
            Fate::LoseAnswer => {
                let _ = forward(upstream, &line, &request);
                None
            }
            Fate::Late(delay) => {
                let _ = writer.shutdown(Shutdown::Both);
                thread::sleep(delay);
                let _ = forward(upstream, &line, &request);
                return;
            }
            Fate::Held(delay) => {
                thread::sleep(delay);
                forward(upstream, &line, &request)
            }
            Fate::Gated(gate) => {
                let _ = gate.recv();
                forward(upstream, &line, &request)
            }
            Fate::Slow(delay) => {
                let answer = forward(upstream, &line, &request);
                thread::sleep(delay);
                answer
            }
            Fate::Answer(response) => Some(response),
            Fate::Rewrite(rewrite) => forward(upstream, &line, &request).map(|mut response| {
                rewrite(&mut response);
                response
            }),
        };
        let Some(Response { status, headers, body }) = answer else {
            let _ = writer.shutdown(Shutdown::Both);
            return;
        };
        let mut head = format!("HTTP/1.1 {status} Whatever\r\ncontent-length: {}\r\n", body.len());
        for (name, value) in headers {
            head = head + &name + ": " + &value + "\r\n";
        }
        if writer.write_all(format!("{head}\r\n{body}").as_bytes()).is_err() {
            return;
        }
    }
}

/// One exchange over a connection of its own.
fn forward(port: u16, line: &str, request: &Request) -> Option<Response> {
    let mut upstream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    let mut head = format!("{line}\r\n");
    for (name, value) in &request.headers {
        if !name.eq_ignore_ascii_case("connection") {
            head = head + name + ": " + value + "\r\n";
        }
    }
    upstream.write_all(format!("{head}connection: close\r\n\r\n{}", request.body).as_bytes()).ok()?;
    let (line, headers, body) = read_message(&mut BufReader::new(upstream))?;
    let status = line.split(' ').nth(1)?.parse().ok()?;
    let headers = headers.into_iter().filter(|(name, _)| {
        !["content-length", "connection", "transfer-encoding"].iter().any(|other| name.eq_ignore_ascii_case(other))
    });
    Some(Response { status, headers: headers.collect(), body })
}

type Message = (String, Vec<(String, String)>, String);

fn read_message(reader: &mut impl BufRead) -> Option<Message> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end().to_owned();
        if line.is_empty() {
            break;
        }
        lines.push(line);
    }
    let headers = lines[1..].iter().filter_map(|line| line.split_once(':'));
    let headers = headers.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect::<Vec<_>>();
    let length = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let mut body = Vec::new();
    match length.and_then(|(_, length)| length.parse().ok()) {
        Some(length) => {
            body.resize(length, 0);
            reader.read_exact(&mut body).ok()?;
        }
        // An answer that ends with its connection.
        None => drop(reader.read_to_end(&mut body).ok()?),
    }
    Some((lines[0].clone(), headers, String::from_utf8(body).ok()?))
}
