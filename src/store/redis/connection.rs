//! Connections to the server: made at the first request, shared, and replaced in case of doubt.
//!
//! The hazards:
//!
//! - A shared connection may hang, or may have ended unnoticed: see `kept_connection`. A write that is sent twice has
//!   the same name, by which the script recognises it.
//! - A server may be silent, or its answer endless. So one time bound holds for all steps together (finding the master,
//!   connecting, TLS, login, and the request), and an allowance bounds the length of answers.
//! - Messages that nobody reads pile up. So only a standby listens, and the stream of messages ends if more arrive than
//!   its allowance permits.

use super::address::{Address, Login, Target};
use super::failure::refused;
use super::sentinel;
use crate::lease::show;
use crate::store::allowance::{Allowance, Counted, MOST_OF_REDIS};
use crate::store::error::innermost;
use crate::store::kept_connection::{self, Kept, Pending};
use crate::store::socket::{Bytes, Place};
use crate::store::tls::{self, BY_FILES};
use crate::store::{ErrorKind, StoreError};
use redis::aio::{MultiplexedConnection, PubSub, PubSubStream};
use redis::{AsyncConnectionConfig, Cmd, FromRedisValue, RedisConnectionInfo, RedisError, cmd, from_redis_value};
use rustls::pki_types::ServerName;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

/// The error of a request without an answer in time. No error of a socket has this kind.
const SILENCE: (redis::ErrorKind, &str) = (redis::ErrorKind::Client, "no answer in time");

pub struct Client {
    pub address: Address,
    tls: Option<TlsConnector>,
    timeout: Duration,
    shared: Kept<Connection>,
    /// Whether it has answered: then it is Redis, and TLS is right.
    has_answered: AtomicBool,
}

pub struct Server {
    /// For messages.
    pub name: String,
    pub place: Place,
    pub login: Login,
    pub db: u32,
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

impl Client {
    pub fn new(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        let tls = address.tls.as_deref().map(tls::client_config).transpose()?;
        Ok(Self {
            address: address.clone(),
            tls: tls.map(|config| Arc::new(config).into()),
            timeout: kept_connection::bound(request_timeout),
            shared: Kept::default(),
            has_answered: AtomicBool::new(false),
        })
    }

    pub fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }

    /// Sends a request that can safely be sent twice, and is no script.
    pub async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, StoreError> {
        self.exchange().await?.ask(command).await
    }

    pub async fn exchange(&self) -> Result<Exchange<'_>, StoreError> {
        let deadline = self.deadline();
        // Lets the runtime notice that the server has closed the connection.
        tokio::task::yield_now().await;
        match self.shared.get().filter(|connection| connection.is_lively(self.timeout)) {
            Some(connection) => Ok(Exchange { client: self, connection, deadline, stage: Stage::Used }),
            None => self.new_exchange(deadline).await,
        }
    }

    pub async fn new_exchange(&self, deadline: Instant) -> Result<Exchange<'_>, StoreError> {
        let exchange = self.open(self.server(deadline).await?, deadline).await?;
        self.shared.keep_unless(&exchange.connection, |shared| shared.is_lively(self.timeout));
        Ok(Exchange { stage: Stage::New, ..exchange })
    }

    pub async fn open(&self, server: Server, deadline: Instant) -> Result<Exchange<'_>, StoreError> {
        let (stream, allowance) = self.connect(&server, deadline).await?;
        let nothing = RedisConnectionInfo::default().set_skip_set_lib_name();
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let made = MultiplexedConnection::new_with_config(&nothing, stream, config).await;
        let (pipe, driver) = made.expect("without anything to set up, nothing is sent");
        let driver = tokio::spawn(driver).abort_handle();
        let connection = Arc::new(Connection { pipe, allowance, driver, server, pending: Pending::default() });
        let exchange = Exchange { client: self, connection, deadline, stage: Stage::Login };
        let Server { login: Login { user, password, .. }, db, .. } = &exchange.connection.server;
        if let Some(password) = password {
            exchange.ask::<()>(cmd("AUTH").arg(user.as_deref()).arg(password.expose())).await?;
        }
        if *db != 0 {
            exchange.ask::<()>(cmd("SELECT").arg(db)).await?;
        }
        Ok(exchange)
    }

    /// Listens on a connection of its own.
    pub async fn subscribe(&self, channels: &[String]) -> Result<(PubSubStream, Allowance), StoreError> {
        let deadline = self.deadline();
        let server = self.server(deadline).await?;
        let (stream, allowance) = self.connect(&server, deadline).await?;
        let mut login = RedisConnectionInfo::default().set_skip_set_lib_name();
        if let Some(password) = &server.login.password {
            login = login.set_password(password.expose());
        }
        if let Some(user) = &server.login.user {
            login = login.set_username(user);
        }
        let subscribed = timeout_at(deadline, async {
            let mut listener = PubSub::new(&login, stream).await?;
            listener.subscribe(channels).await?;
            Ok(listener.into_on_message())
        });
        let messages = subscribed.await.unwrap_or_else(|_| Err(SILENCE.into()));
        Ok((messages.map_err(|error| self.explain(&server, Stage::Login, &error))?, allowance))
    }

    async fn server(&self, deadline: Instant) -> Result<Server, StoreError> {
        let (name, place) = match &self.address.target {
            Target::At(place) => (self.address.to_string(), place.clone()),
            Target::Sentinel { sentinels, master, login } => {
                let place = sentinel::find(self, sentinels, master, login, deadline).await?;
                (format!("redis at {place} (master {master})"), place)
            }
        };
        Ok(Server { name, place, login: self.address.login.clone(), db: self.address.db })
    }

    /// The connection's allowance is reset whenever something is sent on it.
    async fn connect(
        &self,
        Server { name, place, .. }: &Server,
        deadline: Instant,
    ) -> Result<(Box<dyn Bytes>, Allowance), StoreError> {
        let waited = show(self.timeout);
        let late = |what: String| io::Error::new(io::ErrorKind::TimedOut, what);
        let unreachable = |error: io::Error| {
            StoreError::not_applied(format!("cannot reach {name}: {}", innermost(&error))).because(&error)
        };
        let reached = timeout_at(deadline, place.reach(deadline)).await;
        let reached = reached.unwrap_or_else(|_| Err(late(format!("no answer within {waited}"))));
        let allowance = Allowance::of(MOST_OF_REDIS);
        let stream = Counted::new(reached.map_err(unreachable)?, &allowance);
        let (Some(host), Some(tls)) = (place.name(), &self.tls) else {
            return Ok((Box::new(stream), allowance));
        };
        let host = ServerName::try_from(host.to_owned())
            .map_err(|_| StoreError::misconfigured(format!("{host} is not a valid name for TLS")))?;
        let secured = timeout_at(deadline, tls.connect(host, stream)).await.unwrap_or_else(|_| {
            // A Redis without TLS waits for the rest of a command.
            Err(late(format!("no TLS handshake within {waited}: does the server use TLS there?")))
        });
        let secured = secured.map_err(|error| BY_FILES.failure(name, &error).unwrap_or_else(|| unreachable(error)))?;
        Ok((Box::new(secured), allowance))
    }

    fn explain(&self, server: &Server, stage: Stage, error: &RedisError) -> StoreError {
        let Server { name, place, login, .. } = server;
        let is_sent = stage != Stage::Login;
        let cannot = if is_sent { format!("the connection to {name} broke") } else { format!("cannot reach {name}") };
        let failure = match (error.code(), error.kind()) {
            (Some(code), _) => refused(name, login, code, error.detail().unwrap_or_default()),
            (None, redis::ErrorKind::Parse | redis::ErrorKind::UnexpectedReturnType) => {
                StoreError::unknown(format!("{name} does not speak the Redis protocol"))
            }
            (None, redis::ErrorKind::Client) => {
                let waited = show(self.timeout);
                StoreError::unknown(if is_sent {
                    format!("{name} did not answer within {waited}")
                } else {
                    format!("{cannot}: no answer within {waited}")
                })
            }
            (None, _) => {
                let mut why = innermost(error);
                if why.contains("CertificateRequired") {
                    // With TLS 1.3, a server may look at our certificate after the handshake.
                    why += ": it asks for a certificate: add cert=FILE and key=FILE to the store URL";
                } else if error.is_io_error()
                    && !self.has_answered.load(Ordering::Relaxed)
                    && self.tls.is_none()
                    && place.name().is_some()
                {
                    why += " (is it Redis, and does it need TLS, by rediss://?)";
                }
                StoreError::unknown(format!("{cannot}: {why}")).because(&io::Error::from(io::ErrorKind::BrokenPipe))
            }
        };
        let kind = if !is_sent && failure.kind == ErrorKind::Unknown { ErrorKind::NotApplied } else { failure.kind };
        StoreError { kind, ..failure }
    }
}

/// It ends, with all its requests, when the last reference is dropped.
struct Connection {
    pipe: MultiplexedConnection,
    allowance: Allowance,
    driver: AbortHandle,
    server: Server,
    pending: Pending,
}

impl Connection {
    fn is_lively(&self, timeout: Duration) -> bool {
        !self.driver.is_finished() && !self.pending.is_silent(kept_connection::patience(timeout))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// What was sent on a connection before.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Nothing. A failure means that no document was changed.
    Login,
    /// The login alone.
    New,
    Used,
}

pub struct Exchange<'a> {
    pub client: &'a Client,
    connection: Arc<Connection>,
    pub deadline: Instant,
    pub stage: Stage,
}

impl Exchange<'_> {
    pub fn place(&self) -> &str {
        &self.connection.server.name
    }

    /// Its error has a cause if the connection broke.
    pub async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, StoreError> {
        let (client, connection) = (self.client, &self.connection);
        let forget = |_| {
            // A new connection whose login or TLS handshake was answered is only slow. The next request may be in time.
            if self.stage == Stage::Used || (client.address.login.password.is_none() && client.tls.is_none()) {
                client.shared.forget(connection);
            }
        };
        let asked = connection.pending.begin(kept_connection::patience(client.timeout), forget);
        let mut pipe = connection.pipe.clone();
        let answer = timeout_at(self.deadline, pipe.send_packed_command(command)).await;
        let answer = answer.unwrap_or_else(|_| Err(SILENCE.into())).and_then(|answer| {
            asked.answered();
            // Not a Sentinel, which is only logged in to.
            client.has_answered.fetch_or(self.stage != Stage::Login, Ordering::Relaxed);
            connection.allowance.begin_again();
            Ok(from_redis_value(answer.extract_error()?)?)
        });
        answer.map_err(|error| {
            // After a failover the same name leads to another server.
            if error.code().is_some_and(|code| ["READONLY", "MASTERDOWN", "NOAUTH"].contains(&code)) {
                client.shared.forget(connection);
            }
            client.explain(&connection.server, self.stage, &error)
        })
    }
}
