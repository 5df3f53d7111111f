//! Connections to the server: made at the first request, shared, and replaced when there is any doubt.
//!
//! The hazards:
//!
//! - A shared connection may hang, or may have ended unnoticed: see `kept_connection`. A write that is sent twice has
//!   the same name, by which the script recognises it.
//! - Every operation here has one time bound for all its steps: finding the master, connecting, TLS, logging in, and
//!   the request itself. And no answer is longer than the allowance of its connection.

use super::address::{Address, Login, PORT, SENTINEL_PORT, Target};
use super::failure::Failure;
use super::sentinel;
use crate::lease::show;
use crate::store::StoreError;
use crate::store::allowance::{Allowance, Counted, MOST_OF_REDIS};
use crate::store::error::innermost;
use crate::store::kept_connection::{self, Kept, Pending};
use crate::store::socket::{Bytes, Place};
use crate::store::tls;
use crate::store::url::Host;
use redis::aio::{MultiplexedConnection, PubSub};
use redis::{Cmd, RedisConnectionInfo, RedisError, Value, cmd};
use rustls::pki_types::ServerName;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

const TLS: tls::Words = tls::Words { any_name: None, ca: "ca=FILE", own: "cert=FILE and key=FILE" };

pub struct Client {
    address: Address,
    tls: Option<TlsConnector>,
    timeout: Duration,
    shared: Kept<Connection>,
}

struct Server {
    name: String,
    place: Place,
}

impl Server {
    fn at(name: String, host: &Host, port: u16) -> Self {
        Self { name, place: Place::Tcp { name: host.name.clone(), port: host.port.unwrap_or(port) } }
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

impl Client {
    pub fn new(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        let tls = match &address.tls {
            Some(files) => Some(TlsConnector::from(Arc::new(tls::client_config(files)?))),
            None => None,
        };
        Ok(Self {
            address: address.clone(),
            tls,
            timeout: kept_connection::bound(request_timeout),
            shared: Kept::default(),
        })
    }

    pub fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }

    pub async fn exchange(&self, deadline: Instant) -> Result<Exchange<'_>, StoreError> {
        // Gives the runtime time to notice that the other side has closed a connection.
        tokio::task::yield_now().await;
        let shared = self.shared.get().filter(|connection| connection.is_lively(self.timeout));
        match shared {
            Some(connection) => Ok(Exchange { client: self, connection, deadline, used: true }),
            None => self.new_exchange(deadline).await,
        }
    }

    pub async fn new_exchange(&self, deadline: Instant) -> Result<Exchange<'_>, StoreError> {
        let server = self.server(deadline).await?;
        let exchange = self.open(server, &self.address.login, self.address.db, deadline).await?;
        self.shared.keep_unless(&exchange.connection, |shared| shared.is_lively(self.timeout));
        Ok(exchange)
    }

    async fn open(
        &self,
        server: Server,
        login: &Login,
        db: u32,
        deadline: Instant,
    ) -> Result<Exchange<'_>, StoreError> {
        let (stream, allowance) = self.connect(&server, deadline).await?;
        let connection = Arc::new(Connection::new(stream, allowance, server.name).await);
        let exchange = Exchange { client: self, connection, deadline, used: false };
        let unsent = |failure: Failure| failure.conclude_unsent(exchange.place(), login);
        if let Some(password) = &login.password {
            let mut auth = cmd("AUTH");
            auth.arg(login.user.as_deref()).arg(password.expose());
            exchange.ask(&auth).await.map_err(unsent)?;
        }
        if db != 0 {
            exchange.ask(cmd("SELECT").arg(db)).await.map_err(unsent)?;
        }
        Ok(exchange)
    }

    /// A separate connection for the publications of some channels.
    ///
    /// Its allowance is not reset by itself: the caller resets it after each message.
    pub async fn listen(&self, channels: &[String]) -> Result<(PubSub, Allowance), StoreError> {
        let deadline = self.deadline();
        let server = self.server(deadline).await?;
        let (stream, allowance) = self.connect(&server, deadline).await?;
        let Login { user, password } = &self.address.login;
        let mut login = RedisConnectionInfo::default().set_skip_set_lib_name();
        if let Some(password) = password {
            login = login.set_password(password.expose());
            if let Some(user) = user {
                login = login.set_username(user);
            }
        }
        let subscribed = timeout_at(deadline, async {
            let mut listener = PubSub::new(&login, stream).await?;
            listener.subscribe(channels).await?;
            Ok::<_, RedisError>(listener)
        });
        let failure = match subscribed.await {
            Ok(Ok(listener)) => return Ok((listener, allowance)),
            Ok(Err(_)) if allowance.is_exceeded() => Failure::Endless,
            Ok(Err(error)) => Failure::from(error),
            Err(_) => Failure::Silent(self.timeout),
        };
        Err(failure.conclude_unsent(&server.name, &self.address.login))
    }

    pub async fn ask_sentinel(&self, host: &Host, login: &Login, question: &Cmd) -> Result<Value, StoreError> {
        let name = format!("the Sentinel at {}", host.with_port(SENTINEL_PORT));
        let server = Server::at(name, host, SENTINEL_PORT);
        let exchange = self.open(server, login, 0, self.deadline()).await?;
        exchange.ask(question).await.map_err(|failure| failure.conclude_unsent(exchange.place(), login))
    }

    async fn server(&self, deadline: Instant) -> Result<Server, StoreError> {
        match &self.address.target {
            Target::Tcp(host) => Ok(Server::at(self.address.to_string(), host, PORT)),
            Target::Unix(path) => Ok(Server { name: self.address.to_string(), place: Place::Unix(path.clone()) }),
            Target::Sentinel { sentinels, master, login } => {
                let found = timeout_at(deadline, sentinel::find(self, sentinels, master, login)).await;
                let host = found.unwrap_or_else(|_| {
                    let asked: Vec<String> = sentinels.iter().map(|host| host.with_port(SENTINEL_PORT)).collect();
                    let (asked, waited) = (asked.join(", "), show(self.timeout));
                    Err(StoreError::not_applied(format!(
                        "{asked}: no Sentinel said within {waited} where the master {master} is"
                    )))
                })?;
                Ok(Server::at(format!("redis at {} (master {master})", host.with_port(PORT)), &host, PORT))
            }
        }
    }

    async fn connect(
        &self,
        Server { name, place }: &Server,
        deadline: Instant,
    ) -> Result<(Box<dyn Bytes>, Allowance), StoreError> {
        let unreachable = |why: String| StoreError::not_applied(format!("cannot reach {name}: {why}"));
        let failed = |error: io::Error| unreachable(innermost(&error)).because(&error);
        let too_late = |_| unreachable(format!("no answer within {}", show(self.timeout)));
        let reached = timeout_at(deadline, place.reach(deadline)).await.map_err(too_late)?.map_err(failed)?;
        let allowance = Allowance::of(MOST_OF_REDIS);
        let stream = Counted::new(reached, &allowance);
        let (Some(host), Some(tls)) = (place.name(), &self.tls) else {
            return Ok((Box::new(stream), allowance));
        };
        let host = ServerName::try_from(host.to_owned())
            .map_err(|_| StoreError::misconfigured(format!("{host} is not a valid name for TLS")))?;
        // A Redis without TLS waits for the rest of a command, so the handshake needs a deadline.
        let secured = timeout_at(deadline, tls.connect(host, stream)).await;
        let secured = secured.map_err(|_| {
            let waited = show(self.timeout);
            unreachable(format!("no TLS handshake within {waited}: does the server use TLS there?"))
        })?;
        let secured = secured.map_err(|error| TLS.failure(name, &error).unwrap_or_else(|| failed(error)))?;
        Ok((Box::new(secured), allowance))
    }

    /// Whether connections go over a network, without TLS.
    fn is_plain(&self) -> bool {
        self.tls.is_none() && !matches!(self.address.target, Target::Unix(_))
    }
}

/// A connection. It ends, with all its requests, when the last reference is dropped.
struct Connection {
    pipe: MultiplexedConnection,
    allowance: Allowance,
    driver: AbortHandle,
    place: String,
    pending: Pending,
}

impl Connection {
    async fn new(stream: Box<dyn Bytes>, allowance: Allowance, place: String) -> Self {
        let nothing = RedisConnectionInfo::default().set_skip_set_lib_name();
        let config = redis::AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let made = MultiplexedConnection::new_with_config(&nothing, stream, config).await;
        let (pipe, driver) = made.expect("without anything to set up, nothing is sent");
        let driver = tokio::spawn(driver).abort_handle();
        Self { pipe, allowance, driver, place, pending: Pending::default() }
    }

    fn is_lively(&self, timeout: Duration) -> bool {
        !self.driver.is_finished() && !self.pending.is_silent(kept_connection::patience(timeout))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

pub struct Exchange<'a> {
    client: &'a Client,
    connection: Arc<Connection>,
    deadline: Instant,
    /// Whether earlier requests used this connection.
    pub used: bool,
}

impl Exchange<'_> {
    pub fn place(&self) -> &str {
        &self.connection.place
    }

    /// Continues on the same connection, with the time of another request.
    pub fn go_on(&mut self) {
        self.deadline = self.client.deadline();
    }

    pub fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    pub fn conclude(&self, failure: &Failure) -> StoreError {
        failure.conclude(self.place(), &self.client.address.login)
    }

    pub async fn ask(&self, command: &Cmd) -> Result<Value, Failure> {
        let (client, connection) = (self.client, &self.connection);
        let forget = |_| {
            // A new one that was answered, by TLS or to its login, is only slow: the next request on it may be in time.
            if self.used || (client.address.login.password.is_none() && client.tls.is_none()) {
                client.shared.forget(connection);
            }
        };
        let asked = connection.pending.begin(kept_connection::patience(client.timeout), forget);
        let mut pipe = connection.pipe.clone();
        let answer = timeout_at(self.deadline, pipe.send_packed_command(command)).await;
        let answer = answer.map_err(|_| Failure::Silent(client.timeout))?;
        let answer = answer.map_err(|error| match Failure::from(error) {
            _ if connection.allowance.is_exceeded() => Failure::Endless,
            Failure::Broken(why) if client.is_plain() && !self.used => {
                Failure::Broken(format!("{why} (is it Redis, and does it want TLS, by rediss://?)"))
            }
            failure => failure,
        })?;
        asked.answered();
        // The answers to others may be under way, each as long as this one.
        connection.allowance.begin_again();
        let answer = answer.extract_error().map_err(Failure::from);
        // After a failover the same name leads to another server.
        if answer
            .as_ref()
            .is_err_and(|failure| ["READONLY", "MASTERDOWN", "NOAUTH"].iter().any(|code| failure.has_code(code)))
        {
            client.shared.forget(connection);
        }
        answer
    }
}
