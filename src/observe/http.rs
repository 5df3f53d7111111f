//! `--listen`: the state of this candidate over HTTP, for probes, load balancers and Prometheus. `leaderctl serve`
//! shows a whole store by the same server.
//!
//! The hazard: clients share the thread whose event loop renews the lease, and anybody may connect. So each client gets
//! little of it: one request per connection, five seconds for it, a thousand new connections per second, and 32 at the
//! same time. When there are more, the oldest is dropped, so a slow client loses its place to the next probe. The
//! server reads only the head of a request, and no request changes anything.

use crate::observe::metrics::Metrics;
use crate::time::BootInstant;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::task::{AbortHandle, JoinHandle};

/// Connections at the same time.
const MOST: usize = 32;
/// The least time from one connection to the next.
const PACE: Duration = Duration::from_millis(1);
/// The pause after a failed accept, for example without descriptors. Clients wait, and the election goes on.
const AFTER_AN_ERROR: Duration = Duration::from_secs(1);
/// The most bytes of a request's head: the least that hyper allows.
const LONGEST_HEAD: usize = 8192;

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Tcp(SocketAddr),
    /// Every address of this machine.
    Everywhere(u16),
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let path = text.strip_prefix("unix:").or_else(|| text.contains('/').then_some(text));
        if let Some(path) = path {
            // This checks the kernel's limit on a path, and that it has no NUL.
            return match std::os::unix::net::SocketAddr::from_pathname(path) {
                Ok(_) if !path.is_empty() => Ok(Self::Unix(PathBuf::from(path))),
                _ => Err("the path of a socket has 1 to 107 bytes".to_owned()),
            };
        }
        let everywhere = text.strip_prefix(':').and_then(|port| port.parse().ok()).map(Self::Everywhere);
        everywhere.or_else(|| text.parse().ok().map(Self::Tcp)).ok_or_else(|| {
            "write an address such as 127.0.0.1:9100, [::1]:9100, :9100 or unix:/run/worker.sock".to_owned()
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Everywhere(port) => write!(f, ":{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// What a server shows. It answers GET and HEAD; the server refuses other methods.
pub trait Site: Send + Sync + 'static {
    /// The most time for one connection.
    const PATIENCE: Duration;

    /// The answer to a request without a body.
    fn answer(&self, asked: &Parts) -> Answer;
}

/// An answer, without the headers that all answers have.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    /// The type of the content.
    pub kind: &'static str,
    pub body: Bytes,
    /// Headers that the site adds.
    pub more: Vec<(HeaderName, HeaderValue)>,
}

impl Answer {
    pub fn new(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Self {
        Self { status, kind, body: body.into(), more: Vec::new() }
    }
}

/// The type of an answer in words.
pub const TEXT: &str = "text/plain; charset=utf-8";
/// The type of metrics.
pub const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A running server. Dropping it stops it.
pub struct Listening {
    task: JoinHandle<()>,
    /// Where it listens, with the port that the kernel chose for port 0.
    pub address: String,
    /// Some if a socket in the file system is ours to remove: its path, device and inode.
    socket: Option<(PathBuf, u64, u64)>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.task.abort();
        if let Some((path, device, inode)) = &self.socket {
            let ours = fs::symlink_metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == (*device, *inode));
            if ours {
                let _ = fs::remove_file(path);
            }
        }
    }
}

/// Binds `address` and starts to answer from `site`.
///
/// # Errors
/// The kernel's, such as an address that is in use or not of this machine.
pub async fn begin<S: Site>(address: &Address, site: Arc<S>) -> io::Result<Listening> {
    let (listener, socket) = match address {
        Address::Tcp(address) => (Listener::Tcp(TcpListener::bind(address).await?), None),
        Address::Everywhere(port) => (Listener::Tcp(bind_everywhere(*port).await?), None),
        Address::Unix(path) => {
            let listener = bind_unix(path).await?;
            let found = fs::symlink_metadata(path)?;
            (Listener::Unix(listener), Some((path.clone(), found.dev(), found.ino())))
        }
    };
    let address = match &listener {
        Listener::Tcp(tcp) => tcp.local_addr()?.to_string(),
        Listener::Unix(_) => address.to_string(),
    };
    tracing::info!("listening on {address}");
    Ok(Listening { task: tokio::spawn(serve(listener, site)), address, socket })
}

async fn bind_everywhere(port: u16) -> io::Result<TcpListener> {
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        // This machine has no IPv6.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)) => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await
        }
        bound => bound,
    }
}

/// Binds a socket in the file system. The kernel does not remove such a socket when its process ends, so this replaces
/// one that nobody listens on. If two candidates find the same stale socket, the second must not remove what the first
/// has just made.
async fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    let refused = match UnixListener::bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => error,
        bound => return bound,
    };
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory = File::open(directory)?;
    // Another candidate that starts holds this lock for a moment. Any other owner of the lock must not hold us up.
    if directory.try_lock().is_err() {
        return Err(refused);
    }
    if !fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        return Err(io::Error::new(ErrorKind::AddrInUse, "there is something else than a socket"));
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        Ok(_) | Err(_) => Err(refused),
    }
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Waits for a client, and answers it in a task of its own.
    async fn accept_one<S: Site>(&self, site: &Arc<S>) -> io::Result<AbortHandle> {
        let site = Arc::clone(site);
        let task = match self {
            Self::Tcp(listener) => tokio::spawn(serve_one(listener.accept().await?.0, site)),
            Self::Unix(listener) => tokio::spawn(serve_one(listener.accept().await?.0, site)),
        };
        Ok(task.abort_handle())
    }
}

async fn serve<S: Site>(listener: Listener, site: Arc<S>) {
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        match listener.accept_one(&site).await {
            Ok(task) => open.push_back(task),
            Err(error) => {
                tracing::debug!("cannot accept a connection: {error}");
                tokio::time::sleep(AFTER_AN_ERROR).await;
            }
        }
        open.retain(|task| !task.is_finished());
        if open.len() > MOST
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        tokio::time::sleep(PACE).await;
    }
}

/// Answers one request.
async fn serve_one<S: Site>(stream: impl AsyncRead + AsyncWrite + Unpin, site: Arc<S>) {
    let mut http = http1::Builder::new();
    // The timeout below covers the whole connection. Without keep-alive it has one request.
    http.keep_alive(false).header_read_timeout(None).max_buf_size(LONGEST_HEAD);
    let service =
        service_fn(async |request: Request<Incoming>| Ok::<_, Infallible>(answer(&request.into_parts().0, &*site)));
    // Errors of clients are not logged: clients could fill the log.
    let _ = tokio::time::timeout(S::PATIENCE, http.serve_connection(TokioIo::new(stream), service)).await;
}

fn answer<S: Site>(asked: &Parts, site: &S) -> Response<Full<Bytes>> {
    let mut answer = site.answer(asked);
    let known = answer.status != StatusCode::NOT_FOUND;
    let refused = known && asked.method != Method::GET && asked.method != Method::HEAD;
    if refused {
        answer = Answer::new(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD are allowed\n");
    }
    let mut response = Response::new(Full::new(answer.body));
    *response.status_mut() = answer.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(answer.kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.extend(answer.more);
    if refused {
        headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}

impl Site for Metrics {
    const PATIENCE: Duration = Duration::from_secs(5);

    fn answer(&self, asked: &Parts) -> Answer {
        let now = BootInstant::now();
        let ok_if = |ready: bool| if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        match asked.uri.path() {
            "/livez" => Answer::new(StatusCode::OK, TEXT, "alive\n"),
            "/readyz" => match self.readiness(now) {
                Ok(role) => Answer::new(StatusCode::OK, TEXT, format!("{role}\n")),
                Err(reason) => Answer::new(ok_if(false), TEXT, format!("not ready: {reason}\n")),
            },
            "/leader" => {
                let leads = self.leads(now);
                let json = serde_json::to_string(&leads).expect("a statement is plain data");
                Answer::new(ok_if(leads.leader), "application/json", format!("{json}\n"))
            }
            "/metrics" => Answer::new(StatusCode::OK, METRICS, self.text(now)),
            _ => Answer::new(StatusCode::NOT_FOUND, TEXT, "there are /livez, /readyz, /leader and /metrics\n"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz;

    #[test]
    fn addresses_are_read_and_shown() {
        for (text, shown) in [
            ("127.0.0.1:9100", "127.0.0.1:9100"),
            ("[::1]:9100", "[::1]:9100"),
            (":9100", ":9100"),
            ("unix:/run/a.sock", "unix:/run/a.sock"),
            ("/run/a.sock", "unix:/run/a.sock"),
            ("unix:a.sock", "unix:a.sock"),
            ("./a.sock", "unix:./a.sock"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), shown, "{text}");
        }
        let long = format!("/{}", "x".repeat(107));
        for bad in
            ["", "unix:", ":", ":http", ":65536", "9100", "localhost", "localhost:9100", "127.0.0.1", "::1", &long]
        {
            fuzz::assert_is_one_line(&bad.parse::<Address>().unwrap_err());
        }
    }

    #[test]
    fn a_port_without_a_host_listens_on_every_address() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let bound = runtime.block_on(bind_everywhere(0)).unwrap();
        assert!(bound.local_addr().unwrap().ip().is_unspecified());
    }
}
