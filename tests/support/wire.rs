//! A proxy before a server that speaks HTTP: it loses, delays and rewrites.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

pub struct Request {
    /// `PutItem`; where no header names it, the method: `PUT`.
    pub action: String,
    /// `GET /path HTTP/1.1`
    pub line: String,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

pub enum Fate {
    Pass,
    /// It never arrives: the connection is cut.
    LoseRequest,
    /// It arrives, and the connection is cut instead of answering.
    LoseAnswer,
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
    pub fn before(server: &dyn super::server::Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port can be had");
        let port = listener.local_addr().expect("a bound socket has an address").port();
        let rule: Arc<Mutex<Rule>> = Arc::new(Mutex::new(Box::new(|_| Fate::Pass)));
        let actions = Arc::new(Mutex::new(Vec::new()));
        let proxy = Self { port, rule: Arc::clone(&rule), actions: Arc::clone(&actions) };
        let upstream = server.address().port();
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

    pub fn rule(&self, rule: impl FnMut(&Request) -> Fate + Send + 'static) {
        *self.rule.lock().unwrap() = Box::new(rule);
    }

    pub fn pass(&self) {
        self.rule(|_| Fate::Pass);
    }

    /// The first request of this action meets its fate; all others pass.
    pub fn once(&self, action: &'static str, fate: Fate) {
        let mut fate = Some(fate);
        self.rule(move |request| if request.action == action { fate.take().unwrap_or(Fate::Pass) } else { Fate::Pass });
    }

    /// What was asked since this was last called.
    pub fn actions(&self) -> Vec<String> {
        std::mem::take(&mut *self.actions.lock().unwrap())
    }
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
    while let Some((line, headers, body)) = read_message(&mut reader, false) {
        let target = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("x-amz-target"));
        let method = line.split(' ').next();
        let action = target.and_then(|(_, target)| target.rsplit('.').next()).or(method).unwrap_or_default().to_owned();
        let request = Request { action, line: line.clone(), headers, body };
        actions.lock().unwrap().push(request.action.clone());
        let fate = (rule.lock().unwrap())(&request);
        let answer = match fate {
            Fate::Pass => forward(upstream, &line, &request),
            Fate::LoseRequest => None,
            Fate::LoseAnswer => {
                let _ = forward(upstream, &line, &request);
                None
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
    let (line, headers, body) = read_message(&mut BufReader::new(upstream), true)?;
    let status = line.split(' ').nth(1)?.parse().ok()?;
    let headers = headers.into_iter().filter(|(name, _)| {
        !["content-length", "connection", "transfer-encoding"].iter().any(|other| name.eq_ignore_ascii_case(other))
    });
    Some(Response { status, headers: headers.collect(), body })
}

type Message = (String, Vec<(String, String)>, String);

/// `until_the_end`: without a length it ends with its connection, as an answer does.
fn read_message(reader: &mut impl BufRead, until_the_end: bool) -> Option<Message> {
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
        None if until_the_end => drop(reader.read_to_end(&mut body).ok()?),
        None => {}
    }
    Some((lines[0].clone(), headers, String::from_utf8(body).ok()?))
}
