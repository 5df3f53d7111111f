//! Connections to etcd: one at a time, made when it is needed, given up as soon as it is silent.
//!
//! The hazards:
//!
//! - A connection may hang, or may have ended unnoticed: see `kept_connection`. The next request then goes to the next
//!   endpoint.
//! - A library that balances by itself hides all that, and adds its own waits. Here a connection goes to one server,
//!   and a request makes it within its own time.
//! - An answer may have no end. So a message has a limit, and so has what a connection reads while nothing is sent.
//! - A token may expire at any time, for example at a restart of etcd. So it belongs to a connection, which is given up
//!   with it, and each new connection sends the password again.

use super::address::Address;
use super::failure::explain;
use super::proto::{
    AUTHENTICATE, AuthenticateRequest, AuthenticateResponse, Method, STATUS, WATCH, WatchRequest, WatchResponse,
};
use crate::lease::show;
use crate::store::allowance::{Allowance, Counted, MOST};
use crate::store::error::joined;
use crate::store::kept_connection::{self, Kept, Pending, in_doubt};
use crate::store::socket::{Bytes, Place};
use crate::store::{ErrorKind, StoreError, tls};
use futures_util::stream::{self, Stream, StreamExt};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::error::Error as _;
use std::future::ready;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tonic::client::Grpc;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::{BoxError, service_fn};

/// For watches. etcd closes connections that are pinged more often than every 5 s.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// The part of its patience that a request has with a connection on which none was answered yet.
const UNPROVEN_PART: u32 = 4;

pub struct Client {
    /// Its prefix is the range of keys to name when a permission is missing.
    pub address: Address,
    pub bound: Duration,
    tls: Option<TlsConnector>,
    shared: Kept<Connection>,
    /// The server of the next connection.
    next: AtomicUsize,
}

pub struct Connection {
    pub server: String,
    grpc: Grpc<Channel>,
    /// Empty while etcd has authentication turned off.
    token: OnceLock<String>,
    pending: Pending,
    /// A request on it was answered.
    pub proven: AtomicBool,
    /// It could not be made, or has ended, or its token has; it did not just fall silent.
    broken: AtomicBool,
}

impl Client {
    pub fn open(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        let tls = address.tls.as_ref().map(tls::client_config).transpose()?.map(|mut config| {
            config.alpn_protocols = vec![b"h2".to_vec()];
            TlsConnector::from(Arc::new(config))
        });
        for name in address.hosts.iter().filter_map(Place::name).filter(|_| tls.is_some()) {
            ServerName::try_from(name)
                .map_err(|_| StoreError::misconfigured(format!("{name} is not a valid name for TLS")))?;
        }
        Ok(Self {
            address: address.clone(),
            bound: kept_connection::bound(request_timeout),
            tls,
            shared: Kept::default(),
            next: AtomicUsize::new(0),
        })
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
            let mut servers_left = self.address.hosts.len();
            loop {
                let connection = self.connection();
                servers_left -= usize::from(!connection.proven.load(Ordering::Relaxed));
                let attempted = async {
                    // Before the requests of an attempt, which keep their order.
                    self.log_in(&connection).await?;
                    attempt(Arc::clone(&connection)).await
                };
                let error = match (attempted.await, failed) {
                    (Ok(answer), _) => return Ok(answer),
                    (Err(error), None) => error,
                    (Err(error), Some(earlier)) if [earlier.kind, error.kind] == [ErrorKind::NotApplied; 2] => {
                        joined(&[earlier, error])
                    }
                    (Err(error), Some(earlier)) => in_doubt(&earlier, error),
                };
                if servers_left == 0 || !connection.broken.load(Ordering::Relaxed) {
                    return Err(error);
                }
                failed = Some(error);
            }
        })
        .await
    }

    /// The shared connection, or a new one to the next server.
    pub fn connection(&self) -> Arc<Connection> {
        let patience = kept_connection::patience(self.bound);
        // One that is being made may have lost its first packet, which the kernel repeats after a second.
        let part = |kept: &Connection| if kept.proven.load(Ordering::Relaxed) { 1 } else { UNPROVEN_PART };
        let is_lively = |kept: &Arc<Connection>| !kept.pending.is_silent(patience / part(kept));
        if let Some(connection) = self.shared.get().filter(is_lively) {
            return connection;
        }
        let connection = self.connection_to(self.next.fetch_add(1, Ordering::Relaxed) % self.address.hosts.len());
        self.shared.keep_unless(&connection, |_| false);
        connection
    }

    /// Its first request makes it. The library's own TLS trusts no certificate that is self-signed.
    pub fn connection_to(&self, index: usize) -> Arc<Connection> {
        let (place, tls) = (self.address.hosts[index].clone(), self.tls.clone());
        let server = place.to_string();
        // A server that is away must leave time for the others.
        let share = self.bound / 10 * 9 / u32::try_from(self.address.hosts.len()).unwrap_or(u32::MAX);
        let scheme = if tls.is_some() { "https" } else { "http" };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{server}")).expect("a host and a port make a URL");
        let endpoint = endpoint.http2_keep_alive_interval(PING_INTERVAL).keep_alive_timeout(PING_TIMEOUT);
        let connect = service_fn(move |_: Uri| {
            let (place, tls) = (place.clone(), tls.clone());
            async move {
                let stream = Counted::new(place.reach(Instant::now() + share).await?, &Allowance::of(MOST));
                Ok::<_, BoxError>(TokioIo::new(match tls.zip(place.name()) {
                    Some((tls, name)) => {
                        let name = ServerName::try_from(name.to_owned())?;
                        Box::new(tls.connect(name, stream).await?) as Box<dyn Bytes>
                    }
                    None => Box::new(stream),
                }))
            }
        });
        let channel = endpoint.connect_timeout(share).connect_with_connector_lazy(connect);
        Arc::new(Connection {
            server,
            token: OnceLock::new(),
            grpc: Grpc::new(channel).max_decoding_message_size(MOST),
            pending: Pending::default(),
            proven: AtomicBool::new(false),
            broken: AtomicBool::new(false),
        })
    }

    async fn log_in(&self, connection: &Arc<Connection>) -> Result<(), StoreError> {
        let Some((name, password)) = &self.address.user else { return Ok(()) };
        if connection.token.get().is_some() {
            return Ok(());
        }
        let request = AuthenticateRequest { name: name.clone(), password: password.expose().to_owned() };
        let token = match self.ask(connection, AUTHENTICATE, stream::once(ready(request))).await {
            Ok((AuthenticateResponse { token }, _)) => token,
            Err(status) if status.message().contains("authentication is not enabled") => String::new(),
            Err(status) => {
                let error = explain(self, connection, AUTHENTICATE, &status);
                // Sending a password twice does no harm, so nothing is in doubt.
                let is_final = error.kind.is_final();
                return Err(if is_final { error } else { StoreError { kind: ErrorKind::NotApplied, ..error } });
            }
        };
        // Another request may have logged in meanwhile.
        let _ = connection.token.set(token);
        Ok(())
    }

    pub async fn call<Q, A>(&self, connection: &Arc<Connection>, method: Method, request: Q) -> Result<A, StoreError>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        self.log_in(connection).await?;
        // A stream of one message, also for a method that streams: LeaseKeepAlive answers each request once.
        let answered = self.ask(connection, method, stream::once(ready(request))).await;
        let (answer, mut rest) = answered.map_err(|status| explain(self, connection, method, &status))?;
        // Else the library would cancel what is already done.
        let _ = rest.trailers().await;
        Ok(answer)
    }

    fn is_of_a_stale_token(&self, status: &Status) -> bool {
        const SIGNS: [&str; 3] = ["invalid auth token", "revision of auth store is old", "user name is empty"];
        self.address.user.is_some() && SIGNS.iter().any(|sign| status.message().contains(sign))
    }

    /// The first answer to these requests, and those that follow. The bound applies only to the first one.
    pub async fn watch(
        &self,
        connection: &Arc<Connection>,
        requests: impl Stream<Item = WatchRequest> + Send + 'static,
    ) -> Result<impl Stream<Item = Result<WatchResponse, Status>> + Unpin, StoreError> {
        let begun = async {
            self.log_in(connection).await?;
            let answered = self.ask(connection, WATCH, requests).await;
            answered.map_err(|status| self.watch_ended(connection, &status))
        };
        let (first, rest) = self.bounded(begun).await?;
        Ok(stream::once(ready(Ok(first))).chain(rest))
    }

    pub fn watch_ended(&self, connection: &Arc<Connection>, status: &Status) -> StoreError {
        self.shared.forget(connection);
        explain(self, connection, WATCH, status)
    }

    /// Waits for the first answer on `connection`, and notes whether that is of use.
    async fn ask<Q, A>(
        &self,
        connection: &Arc<Connection>,
        method: Method,
        requests: impl Stream<Item = Q> + Send + 'static,
    ) -> Result<(A, Streaming<A>), Status>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let mut request = Request::new(requests);
        // With this header a member without a leader reports that at once, and ends its watches. Not for the question
        // about the status itself.
        if method != STATUS {
            request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        }
        let token = connection.token.get().filter(|token| !token.is_empty());
        if let Some(token) = token.and_then(|token| MetadataValue::try_from(token).ok()) {
            request.metadata_mut().insert("token", token);
        }
        let mut grpc = connection.grpc.clone();
        let path = method.parse().expect("the paths of etcd's methods are paths");
        // Without an answer it is not trusted any more.
        let patience = kept_connection::patience(self.bound);
        let asked = connection.pending.begin(patience, |_| self.shared.forget(connection));
        let answer = async {
            grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
            let mut answers = grpc.streaming(request, path, ProstCodec::default()).await?.into_inner();
            let first = answers.message().await?.ok_or_else(|| Status::internal("it says nothing"))?;
            Ok((first, answers))
        };
        let answer: Result<(A, Streaming<A>), Status> = answer.await;
        match &answer {
            Err(status) if status.source().is_some() || self.is_of_a_stale_token(status) => {
                connection.broken.store(true, Ordering::Relaxed);
            }
            // This member cannot answer; another one may.
            Err(status) if matches!(status.code(), Code::Unavailable | Code::Unimplemented) => {}
            Ok(_) | Err(_) => {
                connection.proven.store(true, Ordering::Relaxed);
                asked.answered();
            }
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::sleep;

    /// A cut of the network may have lost its first packet, and is over long before the kernel repeats it.
    #[tokio::test]
    async fn a_connection_that_is_being_made_is_soon_not_waited_for() {
        let address = Address::read("etcd", "//127.0.0.1,127.0.0.2").unwrap();
        let client = Client::open(&address, Duration::from_mins(1)).unwrap();
        let patience = kept_connection::patience(client.bound);
        let new = client.connection();
        assert!(Arc::ptr_eq(&client.connection(), &new));
        let _asked = new.pending.begin(patience, |_| ());
        sleep(patience / UNPROVEN_PART).await;
        let other = client.connection();
        assert!(!Arc::ptr_eq(&other, &new) && other.server != new.server);
    }
}
