//! `--listen`: the state of this candidate over HTTP, for probes, load balancers and Prometheus. `leaderctl serve`
//! shows a whole store by the same server.
//!
//! The hazard: clients share the thread whose event loop renews the lease, and anybody may connect. So clients get
//! little of it: one request per connection, five seconds for it, a thousand new connections per second, and 32 at the
//! same time. Beyond that the oldest is dropped, so a slow client loses its place to the next probe. The server reads
//! only the head of a request, and no request changes anything.

use super::listen::Address;
use crate::election::LogEvent;
use crate::observe::metrics::Metrics;
use crate::time::BootInstant;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use axum::middleware::map_response;
use axum::response::Response;
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::task::{AbortHandle, JoinHandle};

pub const MOST: usize = 32;
const PACE: Duration = Duration::from_millis(1);
/// The pause after a failed accept, such as without descriptors.
const AFTER_AN_ERROR: Duration = Duration::from_secs(1);
/// The least that hyper allows.
const LONGEST_HEAD: usize = 8192;

pub const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
pub const REFUSED: (StatusCode, &str) = (StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are allowed\n");
pub const OF_A_PROBE: Duration = Duration::from_secs(5);

/// A running server, until it is dropped.
pub struct Listening {
    task: JoinHandle<()>,
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

/// Binds `address` and answers by `routes`, which only read. A connection may take `patience`.
pub async fn begin(address: &Address, routes: Router, patience: Duration) -> io::Result<Listening> {
    let routes = routes.layer(map_response(finished));
    let begun = |task, address: String, socket| {
        tracing::info!(event = LogEvent::Listening.into_str(), "listening on {address}");
        Listening { task, address, socket }
    };
    let listener = match address {
        Address::Tcp(address) => TcpListener::bind(address).await?,
        Address::Everywhere(port) => bind_everywhere(*port).await?,
        Address::Unix(path) => {
            let listener = bind_unix(path).await?;
            let found = fs::symlink_metadata(path)?;
            let accept = async move || Ok(listener.accept().await?.0);
            let socket = Some((path.clone(), found.dev(), found.ino()));
            return Ok(begun(tokio::spawn(serve(accept, routes, patience)), address.to_string(), socket));
        }
    };
    let address = listener.local_addr()?.to_string();
    let accept = async move || Ok(listener.accept().await?.0);
    Ok(begun(tokio::spawn(serve(accept, routes, patience)), address, None))
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

/// Replaces a socket that nobody listens on, because the kernel does not remove it when its process ends. If two
/// candidates find the same stale socket, the second must not remove what the first has just made.
async fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    let refused = match UnixListener::bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => error,
        bound => return bound,
    };
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory = File::open(directory)?;
    // Another candidate that starts holds this lock for a moment. Nobody else may hold us up with it.
    if directory.try_lock().is_err() {
        return Err(refused);
    }
    if !fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        return Err(io::Error::new(
            ErrorKind::AddrInUse,
            "the path exists and is not a socket: remove it, or choose another path",
        ));
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        Ok(_) | Err(_) => Err(refused),
    }
}

async fn serve<S>(accept: impl AsyncFn() -> io::Result<S>, routes: Router, patience: Duration)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        match accept().await {
            Ok(stream) => open.push_back(tokio::spawn(serve_one(stream, routes.clone(), patience)).abort_handle()),
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

async fn serve_one(stream: impl AsyncRead + AsyncWrite + Unpin, routes: Router, patience: Duration) {
    let mut http = http1::Builder::new();
    // The timeout below covers the whole connection, which has one request.
    http.keep_alive(false).header_read_timeout(None).max_buf_size(LONGEST_HEAD);
    let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    // Errors of clients are not logged: clients could fill the log.
    let _ = tokio::time::timeout(patience, connection).await;
}

async fn finished(mut answer: Response) -> Response {
    if answer.status() == StatusCode::METHOD_NOT_ALLOWED {
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

pub fn routes(metrics: Arc<Metrics>) -> Router {
    type Asked = State<Arc<Metrics>>;
    let ok_if = |ready: bool| if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    Router::new()
        .route("/livez", get(async || "alive\n"))
        .route(
            "/readyz",
            get(async move |State(metrics): Asked| match metrics.readiness(BootInstant::now()) {
                Ok(role) => (ok_if(true), format!("{role}\n")),
                Err(reason) => (ok_if(false), format!("not ready: {reason}\n")),
            }),
        )
        .route(
            "/leader",
            get(async move |State(metrics): Asked| {
                let leads = metrics.leads(BootInstant::now());
                let json = serde_json::to_string(&leads).expect("a statement is plain data");
                (ok_if(leads.leader), [(CONTENT_TYPE, "application/json")], format!("{json}\n"))
            }),
        )
        .route(
            "/metrics",
            get(async |State(metrics): Asked| ([(CONTENT_TYPE, METRICS)], metrics.text(BootInstant::now()))),
        )
        .method_not_allowed_fallback(REFUSED)
        .fallback((StatusCode::NOT_FOUND, "there are /livez, /readyz, /leader and /metrics\n"))
        .with_state(metrics)
}
