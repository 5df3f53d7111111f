//! Connections to etcd: one at a time, made when it is needed, given up as soon as it is silent.
//!
//! The hazards:
//!
//! - A connection may hang, or may have ended unnoticed: see `kept_connection`. The next request then goes to the next
//!   endpoint.
//! - A library that reconnects and balances by itself hides all that, and adds its own waits. Here an endpoint is
//!   dialled within a request's time, and a request is sent once.
//! - An answer may have no end. So a message has a limit, and so has what a connection reads while nothing is sent.
//! - A token may expire at any time, for example at a restart of etcd. Then the password is sent again, once.
//! - etcd's words in an error may name anything, but never the password, which travels in one request only.

use super::address::Address;
use super::failure::{Circumstances, Failure, explain, is_local};
use super::proto::{
    AUTHENTICATE, AuthenticateRequest, AuthenticateResponse, Method, STATUS, WATCH, WatchCreateRequest, WatchRequest,
    WatchResponse,
};
use crate::lease::show;
use crate::store::allowance::{Allowance, Counted, MOST};
use crate::store::error::{innermost_of, joined};
use crate::store::kept_connection::{self, Asked, Kept, Pending};
use crate::store::url::{Secret, TlsFiles};
use crate::store::{ErrorKind, StoreError, tls};
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream;
use futures_util::stream::StreamExt;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tonic::client::Grpc;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;
use tower_service::Service;

/// The interval of pings, for watches; requests do not wait for them. etcd closes connections that are pinged more
/// often than every 5 s (`--grpc-keepalive-min-time`).
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

pub struct Client {
    servers: Vec<Server>,
    user: Option<(String, Secret)>,
    request_timeout: Duration,
    /// The range of keys to name when a permission is missing.
    prefix: String,
    /// The possible reason, if a connection ends before its first success.
    doubt: &'static str,
    shared: Kept<Connection>,
    state: Mutex<State>,
}

struct Server {
    /// `HOST:PORT`.
    name: String,
    endpoint: Endpoint,
    /// Some if connections use TLS, with the name that the server's certificate must hold.
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

/// TLS as `files` say, for HTTP/2.
///
/// # Errors
/// Misconfigured, with the name of the file that cannot be used.
fn tls(files: &TlsFiles) -> Result<TlsConnector, StoreError> {
    let mut config = tls::client_config(files)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

#[derive(Default)]
struct State {
    /// The index of the endpoint to dial next.
    next: usize,
    token: Token,
}

#[derive(Clone, Default)]
enum Token {
    #[default]
    Unknown,
    /// etcd has authentication turned off.
    NotNeeded,
    Known(String),
}

pub struct Connection {
    pub server: String,
    index: usize,
    channel: Channel,
    pending: Pending,
    /// It has answered at least once.
    proven: AtomicBool,
    /// It ended; it did not just fall silent.
    broken: AtomicBool,
}

impl Connection {
    fn was_of_use(&self) {
        self.proven.store(true, Ordering::Relaxed);
    }

    fn grpc(&self) -> Grpc<Channel> {
        Grpc::new(self.channel.clone()).max_decoding_message_size(MOST)
    }
}

/// A watch. It goes on until it is dropped.
pub struct Watch {
    events: Streaming<WatchResponse>,
    /// Our side of the stream, which would otherwise stay open as long as the connection.
    _open: oneshot::Sender<Infallible>,
}

impl Watch {
    /// The next event; None when etcd ended the watch.
    pub async fn next(&mut self) -> Result<Option<WatchResponse>, Status> {
        self.events.message().await
    }
}

impl fmt::Display for Client {
    /// As messages name it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "etcd at {}", self.servers().collect::<Vec<_>>().join(", "))
    }
}

impl Client {
    /// Makes no connection yet.
    ///
    /// # Errors
    /// Misconfigured, if a file for TLS cannot be used.
    pub fn open(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        let tls = address.tls.as_ref().map(tls).transpose()?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let wrong = |error: &dyn fmt::Display| StoreError::misconfigured(format!("a host of etcd://: {error}"));
        let mut servers = Vec::with_capacity(address.hosts.len());
        for (host, name) in &address.hosts {
            let endpoint = Endpoint::from_shared(format!("{scheme}://{name}")).map_err(|error| wrong(&error))?;
            let endpoint = endpoint.http2_keep_alive_interval(PING_INTERVAL).keep_alive_timeout(PING_TIMEOUT);
            let tls = tls.clone().map(|tls| Ok((tls, ServerName::try_from(host.clone())?)));
            let tls = tls.transpose().map_err(|error: InvalidDnsNameError| wrong(&error))?;
            servers.push(Server { name: name.clone(), endpoint, tls });
        }
        assert!(!servers.is_empty(), "a store URL names a host");
        // With TLS 1.3 a server rejects a client after the handshake, and may close the connection before it has said why.
        let doubt = match &address.tls {
            Some(files) if files.cert.is_some() => "does it trust the certificate in cert=?",
            Some(_) => "does it want a certificate, by cert= and key=?",
            None => "is it etcd, and does it want TLS, by etcds://?",
        };
        Ok(Self {
            servers,
            user: address.user.clone(),
            request_timeout,
            prefix: address.prefix.clone(),
            doubt,
            shared: Kept::default(),
            state: Mutex::default(),
        })
    }

    /// The time bound of one operation.
    pub fn bound(&self) -> Duration {
        kept_connection::bound(self.request_timeout)
    }

    fn patience(&self) -> Duration {
        kept_connection::patience(self.bound())
    }

    pub fn user(&self) -> Option<&str> {
        self.user.as_ref().map(|(name, _)| name.as_str())
    }

    pub fn servers(&self) -> impl Iterator<Item = &str> {
        self.servers.iter().map(|server| server.name.as_str())
    }

    /// True if the URL names a user, but etcd has its authentication turned off.
    pub fn user_is_of_no_use(&self) -> bool {
        self.user.is_some() && matches!(self.state.lock().token, Token::NotNeeded)
    }

    /// Runs `operation` within the time bound.
    pub async fn bounded<T>(&self, operation: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        match timeout(self.bound(), operation).await {
            Ok(answer) => answer,
            Err(_) => Err(StoreError::unknown(format!("{self} did not answer within {}", show(self.bound())))),
        }
    }

    /// Runs an operation within the time bound: on the shared connection, and on a new one if that one turns out to
    /// have ended.
    pub async fn operate<'a, T>(
        &self,
        attempt: impl Fn(Arc<Connection>) -> BoxFuture<'a, Result<T, StoreError>> + Send + Sync,
    ) -> Result<T, StoreError> {
        self.bounded(async {
            let connection = self.connection().await?;
            let proven = connection.proven.load(Ordering::Relaxed);
            let first = attempt(Arc::clone(&connection));
            let again = Box::pin(async {
                self.distrust(&connection);
                attempt(self.connection().await?).await
            });
            let has_ended = |_: &StoreError| proven && connection.broken.load(Ordering::Relaxed);
            kept_connection::once_more(first, has_ended, again).await
        })
        .await
    }

    /// The shared connection, or a new one.
    pub async fn connection(&self) -> Result<Arc<Connection>, StoreError> {
        if let Some(connection) = self.shared.get() {
            if !connection.pending.is_silent(self.patience()) {
                return Ok(connection);
            }
            self.distrust(&connection);
        }
        // Nothing is locked during this dial, so an attempt that hangs keeps no other request from dialling.
        let begun = Instant::now();
        let first = self.state.lock().next;
        let mut failures = Vec::new();
        for (tried, index) in (0..self.servers.len()).map(|index| (first + index) % self.servers.len()).enumerate() {
            let left = (self.bound() / 10 * 9).saturating_sub(begun.elapsed());
            let share = left / u32::try_from(self.servers.len() - tried).unwrap_or(u32::MAX);
            match self.dial(index, share).await {
                Ok(connection) => {
                    self.state.lock().next = index;
                    self.shared.keep_unless(&connection, |_| false);
                    return Ok(connection);
                }
                // Another endpoint would say the same.
                Err(error) if error.kind != ErrorKind::NotApplied => return Err(error),
                Err(error) => failures.push(error),
            }
        }
        self.state.lock().next = (first + 1) % self.servers.len();
        Err(joined(&failures))
    }

    /// Connects to one of the servers, and logs in.
    pub async fn dial(&self, index: usize, within: Duration) -> Result<Arc<Connection>, StoreError> {
        let Server { name, endpoint, tls } = &self.servers[index];
        let unreachable = |why: &str| StoreError::not_applied(format!("cannot reach etcd at {name}: {why}"));
        let dialled = async {
            let connector = Connector { network: network(), tls: tls.clone() };
            let channel = endpoint.connect_with_connector(connector).await;
            let channel = channel.map_err(|error| unreachable(&innermost_of(&error, "etcd")).because(&error))?;
            let connection = Arc::new(Connection {
                server: name.clone(),
                index,
                channel,
                pending: Pending::default(),
                proven: AtomicBool::new(false),
                broken: AtomicBool::new(false),
            });
            self.log_in(&connection).await?;
            Ok(connection)
        };
        timeout(within, dialled).await.unwrap_or_else(|_| Err(unreachable("no answer in time")))
    }

    /// Stops using the connection; the next request goes to the next endpoint.
    fn distrust(&self, connection: &Arc<Connection>) {
        if self.shared.forget(connection) {
            self.state.lock().next = (connection.index + 1) % self.servers.len();
        }
    }

    /// Begins a request on `connection`, which is no longer trusted if the request is given up.
    fn ask_on<'a>(&'a self, connection: &'a Arc<Connection>) -> Asked<'a, impl FnOnce(bool)> {
        connection.pending.begin(self.patience(), |_| self.distrust(connection))
    }

    /// Gets a token, if there is a password and no token yet.
    async fn log_in(&self, connection: &Arc<Connection>) -> Result<(), StoreError> {
        let Some((name, password)) = &self.user else { return Ok(()) };
        if !matches!(self.state.lock().token, Token::Unknown) {
            return Ok(());
        }
        let request = AuthenticateRequest { name: name.clone(), password: password.expose().to_owned() };
        let answer: Result<AuthenticateResponse, Status> = self.send(connection, AUTHENTICATE, request).await;
        let token = match answer {
            Ok(answer) => Token::Known(answer.token),
            Err(status) if status.message().contains("authentication is not enabled") => Token::NotNeeded,
            // Sending a password twice does no harm, so nothing is in doubt.
            Err(status) => {
                let error = self.failure(connection, AUTHENTICATE, &status).error;
                return Err(match error.kind {
                    ErrorKind::Unknown => StoreError::not_applied(error.message),
                    _ => error,
                });
            }
        };
        self.state.lock().token = token;
        Ok(())
    }

    /// Sends one request and returns its answer.
    pub async fn call<Q, A>(&self, connection: &Arc<Connection>, method: Method, request: Q) -> Result<A, Failure>
    where
        Q: prost::Message + Clone + Default + 'static,
        A: prost::Message + Default + 'static,
    {
        let mut answer = self.send(connection, method, request.clone()).await;
        if answer.as_ref().is_err_and(|status| self.token_is_stale(status)) {
            self.state.lock().token = Token::Unknown;
            self.log_in(connection).await?;
            answer = self.send(connection, method, request).await;
        }
        answer.map_err(|status| self.failure(connection, method, &status))
    }

    fn token_is_stale(&self, status: &Status) -> bool {
        const SIGNS: [&str; 3] = ["invalid auth token", "revision of auth store is old", "user name is empty"];
        self.user.is_some() && SIGNS.iter().any(|sign| status.message().contains(sign))
    }

    async fn send<Q, A>(&self, connection: &Arc<Connection>, method: Method, request: Q) -> Result<A, Status>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let asked = self.ask_on(connection);
        let mut grpc = connection.grpc();
        let answer = async {
            grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
            // A stream of one message, also for a method that streams: LeaseKeepAlive answers each request once.
            let request = self.dressed(method, Request::new(stream::once(std::future::ready(request))));
            let codec = ProstCodec::<Q, A>::default();
            grpc.client_streaming(request, path(method), codec).await
        };
        let answer = answer.await;
        if answer.as_ref().is_err_and(is_local) {
            connection.broken.store(true, Ordering::Relaxed);
        }
        match &answer {
            // This member cannot answer; another one may.
            Err(status) if is_local(status) || matches!(status.code(), Code::Unavailable | Code::Unimplemented) => {
                drop(asked);
            }
            Ok(_) | Err(_) => {
                connection.was_of_use();
                asked.answered();
            }
        }
        answer.map(tonic::Response::into_inner)
    }

    /// Watches keys, each from a revision on. The bound applies only to the beginning.
    pub async fn watch(&self, connection: &Arc<Connection>, keys: Vec<WatchCreateRequest>) -> Result<Watch, Failure> {
        let asked = self.ask_on(connection);
        let mut grpc = connection.grpc();
        let (open, ended) = oneshot::channel::<Infallible>();
        let begun = async {
            grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
            let create = keys.into_iter().map(|key| WatchRequest { create_request: Some(key) });
            let requests = stream::iter(create).chain(ended.into_stream().filter_map(async |_| None));
            let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
            grpc.streaming(self.dressed(WATCH, Request::new(requests)), path(WATCH), codec).await
        };
        match timeout(self.bound(), begun).await {
            Ok(Ok(events)) => {
                connection.was_of_use();
                asked.answered();
                Ok(Watch { events: events.into_inner(), _open: open })
            }
            Ok(Err(status)) => Err(self.failure(connection, WATCH, &status)),
            Err(_) => {
                let server = &connection.server;
                Err(StoreError::unknown(format!("etcd at {server} did not begin a watch in time")).into())
            }
        }
    }

    fn failure(&self, connection: &Connection, method: Method, status: &Status) -> Failure {
        let circumstances = Circumstances {
            server: &connection.server,
            user: self.user(),
            prefix: &self.prefix,
            doubt: Some(self.doubt).filter(|_| !connection.proven.load(Ordering::Relaxed)),
        };
        explain(&circumstances, method, status)
    }

    /// The error with which a watch ended.
    pub fn watch_failure(&self, connection: &Arc<Connection>, status: &Status) -> StoreError {
        self.distrust(connection);
        self.failure(connection, WATCH, status).error
    }

    /// The error when etcd itself ended a watch, with its own words.
    pub fn watch_refused(&self, connection: &Arc<Connection>, reason: &str) -> StoreError {
        let code = if reason.contains("permission denied") { Code::PermissionDenied } else { Code::Unavailable };
        if reason.contains("auth token") {
            self.state.lock().token = Token::Unknown;
        }
        self.distrust(connection);
        self.failure(connection, WATCH, &Status::new(code, reason)).error
    }

    fn dressed<T>(&self, method: Method, mut request: Request<T>) -> Request<T> {
        // With this header a member without a leader reports that at once, and ends its watches. Not for the question
        // about the status itself.
        if method.path != STATUS.path {
            request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        }
        if let Token::Known(token) = &self.state.lock().token
            && let Ok(token) = MetadataValue::try_from(token)
        {
            request.metadata_mut().insert("token", token);
        }
        request
    }
}

/// The connector, configured as the library's own.
fn network() -> HttpConnector {
    let mut network = HttpConnector::new();
    network.enforce_http(false);
    network.set_nodelay(true);
    network
}

/// A connector whose connections count their bytes, and use our TLS: the library's own trusts no certificate that is
/// self-signed.
struct Connector {
    network: HttpConnector,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

trait Bytes: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> Bytes for T {}

impl Service<Uri> for Connector {
    type Response = TokioIo<Pin<Box<dyn Bytes>>>;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.network.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (connecting, tls) = (self.network.call(uri), self.tls.clone());
        Box::pin(async move {
            let stream = Counted::new(connecting.await?.into_inner(), &Allowance::of(MOST));
            let Some((tls, name)) = tls else { return Ok(TokioIo::new(Box::pin(stream) as Pin<Box<dyn Bytes>>)) };
            Ok(TokioIo::new(Box::pin(tls.connect(name, stream).await?) as Pin<Box<dyn Bytes>>))
        })
    }
}

fn path<P: std::str::FromStr>(method: Method) -> P
where
    P::Err: std::fmt::Debug,
{
    method.path.parse().expect("the paths of etcd's methods are paths")
}
