//! Connections to etcd: one at a time, made when it is needed, given up as soon as it is silent.
//!
//! The hazards:
//!
//! - A connection may hang, or may have ended unnoticed: see `kept_connection`. The next request then goes to the next
//!   endpoint.
//! - A library that balances by itself hides all that, and adds its own waits. Here a connection goes to one server, and a
//!   request makes it within its own time.
//! - An answer may have no end. So a message has a limit, and so has what a connection reads while nothing is sent.
//! - A token may expire at any time, for example at a restart of etcd. Then the password is sent again, once.
//! - etcd's words in an error may name anything, but never the password, which travels in one request only.

use super::address::Address;
use super::failure::{Failure, explain, is_local};
use super::proto::{
    AUTHENTICATE, AuthenticateRequest, AuthenticateResponse, Method, STATUS, WATCH, WatchCreateRequest, WatchRequest,
    WatchResponse,
};
use crate::lease::show;
use crate::store::allowance::{Allowance, Counted, MOST};
use crate::store::error::joined;
use crate::store::kept_connection::{self, Asked, Kept, Pending};
use crate::store::socket::Bytes;
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
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;
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
    pub user: Option<(String, Secret)>,
    /// The time bound of one operation.
    pub bound: Duration,
    /// The range of keys to name when a permission is missing.
    pub prefix: String,
    /// The possible reason, if a connection ends before its first success.
    pub doubt: &'static str,
    shared: Kept<Connection>,
    state: Mutex<State>,
}

struct Server {
    /// `HOST:PORT`.
    name: String,
    endpoint: Endpoint,
    connector: Connector,
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
    /// The index of the server that the next connection goes to.
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
    grpc: Grpc<Channel>,
    pending: Pending,
    /// It has answered at least once.
    proven: AtomicBool,
    /// It could not be made, or has ended; it did not just fall silent.
    broken: AtomicBool,
}

impl Connection {
    pub fn is_proven(&self) -> bool {
        self.proven.load(Ordering::Relaxed)
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
        let bound = kept_connection::bound(request_timeout);
        let tls = address.tls.as_ref().map(tls).transpose()?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let wrong = |error: &dyn fmt::Display| StoreError::misconfigured(format!("a host of etcd://: {error}"));
        let mut servers = Vec::with_capacity(address.hosts.len());
        for (host, name) in &address.hosts {
            let endpoint = Endpoint::from_shared(format!("{scheme}://{name}")).map_err(|error| wrong(&error))?;
            let endpoint = endpoint
                .http2_keep_alive_interval(PING_INTERVAL)
                .keep_alive_timeout(PING_TIMEOUT)
                // One that is away leaves time for the others.
                .connect_timeout(bound / 10 * 9 / u32::try_from(address.hosts.len()).unwrap_or(u32::MAX));
            let tls = tls.clone().map(|tls| Ok((tls, ServerName::try_from(host.clone())?)));
            let tls = tls.transpose().map_err(|error: InvalidDnsNameError| wrong(&error))?;
            servers.push(Server { name: name.clone(), endpoint, connector: Connector { network: network(), tls } });
        }
        assert!(!servers.is_empty(), "a store URL names a host");
        // With TLS 1.3 a server rejects a client after the handshake, and may close the connection before it has said why.
        let doubt = match &address.tls {
            Some(files) if files.cert.is_some() => "does it trust the certificate in cert=?",
            Some(_) => "does it want a certificate, by cert= and key=?",
            None => "is it etcd, and does it want TLS, by etcds://?",
        };
        let (user, prefix) = (address.user.clone(), address.prefix.clone());
        Ok(Self { servers, user, bound, prefix, doubt, shared: Kept::default(), state: Mutex::default() })
    }

    fn patience(&self) -> Duration {
        kept_connection::patience(self.bound)
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
        match timeout(self.bound, operation).await {
            Ok(answer) => answer,
            Err(_) => Err(StoreError::unknown(format!("{self} did not answer within {}", show(self.bound)))),
        }
    }

    /// Runs an operation within the time bound: on the shared connection, and on a new one if that one turns out to
    /// have ended, or cannot be made.
    pub async fn operate<'a, T>(
        &self,
        attempt: impl Fn(Arc<Connection>) -> BoxFuture<'a, Result<T, StoreError>> + Send + Sync,
    ) -> Result<T, StoreError> {
        self.bounded(async {
            let mut failures = Vec::new();
            let mut servers_left = self.servers.len();
            loop {
                let connection = self.connection();
                let was_proven = connection.is_proven();
                let logged_in = async {
                    // Before the requests of an attempt, which keep their order.
                    self.log_in(&connection).await?;
                    attempt(Arc::clone(&connection)).await
                };
                let error = match logged_in.await {
                    Ok(answer) => return Ok(answer),
                    Err(error) => error,
                };
                servers_left -= usize::from(!was_proven);
                let has_ended = connection.broken.load(Ordering::Relaxed);
                failures.push(error);
                if !has_ended || servers_left == 0 {
                    return Err(last_of(failures));
                }
            }
        })
        .await
    }

    /// The shared connection, or a new one to the next server.
    pub fn connection(&self) -> Arc<Connection> {
        if let Some(connection) = self.shared.get() {
            if !connection.pending.is_silent(self.patience()) {
                return connection;
            }
            self.distrust(&connection);
        }
        let connection = self.connection_to(self.state.lock().next);
        self.shared.keep_unless(&connection, |_| false);
        connection
    }

    /// A new connection, which its first request makes.
    pub fn connection_to(&self, index: usize) -> Arc<Connection> {
        let Server { name, endpoint, connector } = &self.servers[index];
        let channel = endpoint.connect_with_connector_lazy(connector.clone());
        Arc::new(Connection {
            server: name.clone(),
            index,
            grpc: Grpc::new(channel).max_decoding_message_size(MOST),
            pending: Pending::default(),
            proven: AtomicBool::new(false),
            broken: AtomicBool::new(false),
        })
    }

    /// Stops using the connection; the next request goes to the next server.
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
        self.state.lock().token = match answer {
            Ok(answer) => Token::Known(answer.token),
            Err(status) if status.message().contains("authentication is not enabled") => Token::NotNeeded,
            // Sending a password twice does no harm, so nothing is in doubt.
            Err(status) => {
                let error = explain(self, connection, AUTHENTICATE, &status).error;
                let is_in_doubt = error.kind == ErrorKind::Unknown;
                return Err(if is_in_doubt { StoreError::not_applied(error.message) } else { error });
            }
        };
        Ok(())
    }

    /// Sends one request and returns its answer.
    pub async fn call<Q, A>(&self, connection: &Arc<Connection>, method: Method, request: Q) -> Result<A, Failure>
    where
        Q: prost::Message + Clone + Default + 'static,
        A: prost::Message + Default + 'static,
    {
        self.log_in(connection).await?;
        let mut answer = self.send(connection, method, request.clone()).await;
        if answer.as_ref().is_err_and(|status| self.token_is_stale(status)) {
            self.state.lock().token = Token::Unknown;
            self.log_in(connection).await?;
            answer = self.send(connection, method, request).await;
        }
        answer.map_err(|status| explain(self, connection, method, &status))
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
        let mut grpc = connection.grpc.clone();
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
                connection.proven.store(true, Ordering::Relaxed);
                asked.answered();
            }
        }
        answer.map(tonic::Response::into_inner)
    }

    /// Watches keys, each from a revision on. The bound applies only to the beginning.
    pub async fn watch(
        &self,
        connection: &Arc<Connection>,
        keys: Vec<WatchCreateRequest>,
    ) -> Result<Watch, StoreError> {
        let (open, ended) = oneshot::channel::<Infallible>();
        let mut grpc = connection.grpc.clone();
        let begun = async {
            self.log_in(connection).await?;
            let asked = self.ask_on(connection);
            let create = keys.into_iter().map(|key| WatchRequest { create_request: Some(key) });
            let requests = stream::iter(create).chain(ended.into_stream().filter_map(async |_| None));
            let requests = self.dressed(WATCH, Request::new(requests));
            let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
            let events = async {
                grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
                grpc.streaming(requests, path(WATCH), codec).await
            };
            let events = events.await.map_err(|status| explain(self, connection, WATCH, &status).error)?;
            connection.proven.store(true, Ordering::Relaxed);
            asked.answered();
            Ok(events.into_inner())
        };
        let events = self.bounded(begun).await?;
        Ok(Watch { events, _open: open })
    }

    /// The error with which a watch ended.
    pub fn watch_ended(&self, connection: &Arc<Connection>, status: &Status) -> StoreError {
        if self.token_is_stale(status) {
            self.state.lock().token = Token::Unknown;
        }
        self.distrust(connection);
        explain(self, connection, WATCH, status).error
    }

    fn dressed<T>(&self, method: Method, mut request: Request<T>) -> Request<T> {
        // With this header a member without a leader reports that at once, and ends its watches. Not for the question
        // about the status itself.
        if method != STATUS {
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
#[derive(Clone)]
struct Connector {
    network: HttpConnector,
    /// Some if connections use TLS, with the name that the server's certificate must hold.
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Box<dyn Bytes>>;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.network.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (connecting, tls) = (self.network.call(uri), self.tls.clone());
        Box::pin(async move {
            let stream = Counted::new(connecting.await?.into_inner(), &Allowance::of(MOST));
            Ok(TokioIo::new(match tls {
                Some((tls, name)) => Box::new(tls.connect(name, stream).await?) as Box<dyn Bytes>,
                None => Box::new(stream),
            }))
        })
    }
}

fn path<P: std::str::FromStr>(method: Method) -> P
where
    P::Err: std::fmt::Debug,
{
    method.parse().expect("the paths of etcd's methods are paths")
}

/// One error for several attempts. The last one says nothing about the others: if one of them may have been applied, the
/// outcome is unknown.
fn last_of(mut failures: Vec<StoreError>) -> StoreError {
    let in_doubt = failures.iter().any(|failure| failure.kind == ErrorKind::Unknown);
    let last = failures.pop().expect("an attempt failed");
    let last = match last.kind {
        ErrorKind::NotApplied => {
            failures.retain(|failure| failure.kind == ErrorKind::NotApplied);
            failures.push(last);
            joined(&failures)
        }
        ErrorKind::Unknown | ErrorKind::Denied | ErrorKind::Misconfigured => last,
    };
    StoreError { kind: if in_doubt { ErrorKind::Unknown } else { last.kind }, ..last }
}
