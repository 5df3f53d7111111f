//! Connections to etcd: one at a time, made when it is needed, given up as soon as it is silent.
//!
//! The hazards:
//!
//! - A connection may hang, or may have ended unnoticed: see `kept_connection`. The next request then goes to the next
//!   endpoint.
//! - A library that balances by itself hides all that, and adds its own waits. Here a connection goes to one server,
//!   and a request makes it within its own time.
//! - An answer may have no end. So a message has a limit, and so has what a connection reads while nothing is sent.
//! - A token may expire at any time, for example at a restart of etcd. Then the password is sent again, once.

use super::address::Address;
use super::failure::{explain, is_local};
use super::proto::{
    AUTHENTICATE, AuthenticateRequest, AuthenticateResponse, Method, STATUS, WATCH, WatchCreateRequest, WatchRequest,
    WatchResponse,
};
use crate::lease::show;
use crate::store::allowance::{Allowance, Counted, MOST};
use crate::store::error::joined;
use crate::store::kept_connection::{self, Kept, Pending, in_doubt};
use crate::store::socket::Bytes;
use crate::store::url::TlsFiles;
use crate::store::{ErrorKind, StoreError, tls};
use futures_util::stream;
use futures_util::stream::StreamExt;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use std::convert::Infallible;
use std::fmt;
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tonic::client::Grpc;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::{BoxError, ServiceExt, service_fn};

/// For watches. etcd closes connections that are pinged more often than every 5 s.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

pub struct Client {
    servers: Vec<Server>,
    /// Its prefix is the range of keys to name when a permission is missing.
    pub address: Address,
    pub bound: Duration,
    /// The possible reason, if a connection ends before its first success.
    pub doubt: &'static str,
    shared: Kept<Connection>,
    /// The server of the next connection.
    next: AtomicUsize,
    token: Mutex<Token>,
}

struct Server {
    endpoint: Endpoint,
    /// With the name that the server's certificate must hold.
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

fn tls(files: &TlsFiles) -> Result<TlsConnector, StoreError> {
    let mut config = tls::client_config(files)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
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
    pub events: Streaming<WatchResponse>,
    /// Our side of the stream.
    _open: oneshot::Sender<Infallible>,
}

impl Client {
    pub fn open(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        let bound = kept_connection::bound(request_timeout);
        let tls = address.tls.as_ref().map(tls).transpose()?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let wrong = |error: &dyn fmt::Display| StoreError::misconfigured(format!("a host of etcd://: {error}"));
        let mut servers = Vec::with_capacity(address.hosts.len());
        for host in &address.hosts {
            let endpoint = Endpoint::from_shared(format!("{scheme}://{host}")).map_err(|error| wrong(&error))?;
            let endpoint = endpoint
                .http2_keep_alive_interval(PING_INTERVAL)
                .keep_alive_timeout(PING_TIMEOUT)
                // A server that is away must leave time for the others.
                .connect_timeout(bound / 10 * 9 / u32::try_from(address.hosts.len()).unwrap_or(u32::MAX));
            let tls = tls.clone().zip(host.name()).map(|(tls, name)| Ok((tls, ServerName::try_from(name.to_owned())?)));
            let tls = tls.transpose().map_err(|error: InvalidDnsNameError| wrong(&error))?;
            servers.push(Server { endpoint, tls });
        }
        assert!(!servers.is_empty(), "a store URL names a host");
        // With TLS 1.3 a server rejects a client after the handshake, and may close the connection without a word.
        let doubt = match &address.tls {
            Some(files) if files.cert.is_some() => "does it trust the certificate in cert=?",
            Some(_) => "does it want a certificate, by cert= and key=?",
            None => "is it etcd, and does it want TLS, by etcds://?",
        };
        let (address, shared) = (address.clone(), Kept::default());
        Ok(Self { servers, address, bound, doubt, shared, next: AtomicUsize::new(0), token: Mutex::default() })
    }

    pub async fn bounded<T>(&self, operation: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        timeout(self.bound, operation).await.unwrap_or_else(|_| {
            let bound = show(self.bound);
            Err(StoreError::unknown(format!("{} did not answer within {bound}", self.address)))
        })
    }

    /// On the shared connection; while one turns out to have ended, on a new one, until each server was tried.
    pub async fn operate<T, F>(&self, attempt: impl Fn(Arc<Connection>) -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        self.bounded(async {
            let mut failed: Option<StoreError> = None;
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
                let error = match failed {
                    Some(earlier) if earlier.kind == ErrorKind::NotApplied && error.kind == earlier.kind => {
                        joined(&[earlier, error])
                    }
                    Some(earlier) => in_doubt(&earlier, error),
                    None => error,
                };
                if !has_ended || servers_left == 0 {
                    return Err(error);
                }
                failed = Some(error);
            }
        })
        .await
    }

    /// The shared connection, or a new one to the next server.
    pub fn connection(&self) -> Arc<Connection> {
        if let Some(connection) = self.shared.get() {
            if !connection.pending.is_silent(kept_connection::patience(self.bound)) {
                return connection;
            }
            self.distrust(&connection);
        }
        let connection = self.connection_to(self.next.load(Ordering::Relaxed));
        self.shared.keep_unless(&connection, |_| false);
        connection
    }

    /// Its first request makes it. The library's own TLS trusts no certificate that is self-signed.
    pub fn connection_to(&self, index: usize) -> Arc<Connection> {
        let Server { endpoint, tls } = &self.servers[index];
        // As the library's own.
        let mut network = HttpConnector::new();
        network.enforce_http(false);
        network.set_nodelay(true);
        let tls = tls.clone();
        let connect = service_fn(move |uri: Uri| {
            let (connecting, tls) = (network.clone().oneshot(uri), tls.clone());
            async move {
                let stream = Counted::new(connecting.await?.into_inner(), &Allowance::of(MOST));
                Ok::<_, BoxError>(TokioIo::new(match tls {
                    Some((tls, name)) => Box::new(tls.connect(name, stream).await?) as Box<dyn Bytes>,
                    None => Box::new(stream),
                }))
            }
        });
        let channel = endpoint.connect_with_connector_lazy(connect);
        Arc::new(Connection {
            server: self.address.hosts[index].to_string(),
            index,
            grpc: Grpc::new(channel).max_decoding_message_size(MOST),
            pending: Pending::default(),
            proven: AtomicBool::new(false),
            broken: AtomicBool::new(false),
        })
    }

    fn distrust(&self, connection: &Arc<Connection>) {
        if self.shared.forget(connection) {
            self.next.store((connection.index + 1) % self.servers.len(), Ordering::Relaxed);
        }
    }

    async fn log_in(&self, connection: &Arc<Connection>) -> Result<(), StoreError> {
        let Some((name, password)) = &self.address.user else { return Ok(()) };
        if !matches!(*self.token.lock(), Token::Unknown) {
            return Ok(());
        }
        let request = AuthenticateRequest { name: name.clone(), password: password.expose().to_owned() };
        let answer: Result<AuthenticateResponse, Status> = self.send(connection, AUTHENTICATE, request).await;
        *self.token.lock() = match answer {
            Ok(answer) => Token::Known(answer.token),
            Err(status) if status.message().contains("authentication is not enabled") => Token::NotNeeded,
            // Sending a password twice does no harm, so nothing is in doubt.
            Err(status) => {
                let error = explain(self, connection, AUTHENTICATE, &status);
                let is_in_doubt = error.kind == ErrorKind::Unknown;
                return Err(if is_in_doubt { StoreError::not_applied(error.message) } else { error });
            }
        };
        Ok(())
    }

    pub async fn call<Q, A>(&self, connection: &Arc<Connection>, method: Method, request: Q) -> Result<A, StoreError>
    where
        Q: prost::Message + Clone + Default + 'static,
        A: prost::Message + Default + 'static,
    {
        self.log_in(connection).await?;
        let mut answer = self.send(connection, method, request.clone()).await;
        if answer.as_ref().is_err_and(|status| self.token_is_stale(status)) {
            *self.token.lock() = Token::Unknown;
            self.log_in(connection).await?;
            answer = self.send(connection, method, request).await;
        }
        answer.map_err(|status| explain(self, connection, method, &status))
    }

    fn token_is_stale(&self, status: &Status) -> bool {
        const SIGNS: [&str; 3] = ["invalid auth token", "revision of auth store is old", "user name is empty"];
        self.address.user.is_some() && SIGNS.iter().any(|sign| status.message().contains(sign))
    }

    async fn send<Q, A>(&self, connection: &Arc<Connection>, method: Method, request: Q) -> Result<A, Status>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        // A stream of one message, also for a method that streams: LeaseKeepAlive answers each request once.
        let request = self.dressed(method, Request::new(stream::once(ready(request))));
        let mut grpc = connection.grpc.clone();
        let answer = async {
            grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
            grpc.client_streaming(request, path(method), ProstCodec::<Q, A>::default()).await
        };
        self.heard(connection, answer).await
    }

    /// Waits for an answer on `connection`, and notes whether that is of use.
    async fn heard<A>(
        &self,
        connection: &Arc<Connection>,
        answer: impl Future<Output = Result<Response<A>, Status>>,
    ) -> Result<A, Status> {
        // Without an answer it is not trusted any more.
        let asked = connection.pending.begin(kept_connection::patience(self.bound), |_| self.distrust(connection));
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
        answer.map(Response::into_inner)
    }

    /// The bound applies only to the beginning.
    pub async fn watch(
        &self,
        connection: &Arc<Connection>,
        keys: Vec<WatchCreateRequest>,
    ) -> Result<Watch, StoreError> {
        let (open, ended) = oneshot::channel::<Infallible>();
        let create = stream::iter(keys).map(|key| WatchRequest { create_request: Some(key) });
        let requests = create.chain(stream::pending().take_until(ended));
        let mut grpc = connection.grpc.clone();
        let begun = async {
            self.log_in(connection).await?;
            let requests = self.dressed(WATCH, Request::new(requests));
            let events = async {
                grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
                grpc.streaming(requests, path(WATCH), ProstCodec::<_, WatchResponse>::default()).await
            };
            let events = self.heard(connection, events).await;
            events.map_err(|status| explain(self, connection, WATCH, &status))
        };
        Ok(Watch { events: self.bounded(begun).await?, _open: open })
    }

    pub fn watch_ended(&self, connection: &Arc<Connection>, status: &Status) -> StoreError {
        if self.token_is_stale(status) {
            *self.token.lock() = Token::Unknown;
        }
        self.distrust(connection);
        explain(self, connection, WATCH, status)
    }

    fn dressed<T>(&self, method: Method, mut request: Request<T>) -> Request<T> {
        // With this header a member without a leader reports that at once, and ends its watches. Not for the question
        // about the status itself.
        if method != STATUS {
            request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        }
        if let Token::Known(token) = &*self.token.lock()
            && let Ok(token) = MetadataValue::try_from(token)
        {
            request.metadata_mut().insert("token", token);
        }
        request
    }
}

fn path<P: std::str::FromStr>(method: Method) -> P
where
    P::Err: std::fmt::Debug,
{
    method.parse().expect("the paths of etcd's methods are paths")
}
