//! Connections to the server: made at the first request, shared, and replaced in case of doubt.
//!
//! The hazards:
//!
//! - A shared connection may hang, or may have ended unnoticed: see `kept_connection`. A write that is sent twice has
//!   the same name, by which the script recognises it.
//! - A server may be silent, or its answer endless. So one time bound holds for all steps together (finding the master,
//!   connecting, TLS, login, and the request), and an allowance bounds the length of answers.

use super::address::{Address, Login, Target};
use super::failure::{SILENCE, explain};
use super::sentinel;
use crate::lease::show;
use crate::store::StoreError;
use crate::store::allowance::{Allowance, Counted, MOST_OF_REDIS};
use crate::store::error::innermost;
use crate::store::kept_connection::{self, Kept, Pending};
use crate::store::socket::{Bytes, Place};
use crate::store::tls::{self, BY_FILES};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisConnectionInfo, RedisError, Value, cmd};
use rustls::pki_types::ServerName;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

pub struct Client {
    address: Address,
    tls: Option<TlsConnector>,
    timeout: Duration,
    shared: Kept<Connection>,
}

pub struct Server {
    /// For messages.
    pub name: String,
    pub place: Place,
    pub login: Login,
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

    /// Sends a request that can safely be sent twice, and is no script.
    pub async fn request(&self, command: &Cmd) -> Result<Value, StoreError> {
        let exchange = self.exchange().await?;
        exchange.ask(command).await.map_err(|error| exchange.explain(&error))
    }

    pub async fn exchange(&self) -> Result<Exchange<'_>, StoreError> {
        let deadline = self.deadline();
        // Lets the runtime notice that the server has closed the connection.
        tokio::task::yield_now().await;
        let shared = self.shared.get().filter(|connection| connection.is_lively(self.timeout));
        match shared {
            Some(connection) => Ok(Exchange { client: self, connection, deadline, used: true }),
            None => self.new_exchange(deadline).await,
        }
    }

    pub async fn new_exchange(&self, deadline: Instant) -> Result<Exchange<'_>, StoreError> {
        let exchange = self.open(self.server(deadline).await?, self.address.db, deadline).await?;
        self.shared.keep_unless(&exchange.connection, |shared| shared.is_lively(self.timeout));
        Ok(exchange)
    }

    pub async fn open(&self, server: Server, db: u32, deadline: Instant) -> Result<Exchange<'_>, StoreError> {
        let (stream, allowance) = self.connect(&server, deadline).await?;
        let connection = Arc::new(Connection::new(stream, allowance, server).await);
        let exchange = Exchange { client: self, connection, deadline, used: false };
        let Login { user, password } = &exchange.connection.server.login;
        let mut steps = Vec::new();
        if let Some(password) = password {
            steps.push(cmd("AUTH").arg(user.as_deref()).arg(password.expose()).take());
        }
        if db != 0 {
            steps.push(cmd("SELECT").arg(db).take());
        }
        for step in steps {
            let done = exchange.ask(&step).await;
            done.map_err(|error| self.unsent(&exchange.connection.server, &error))?;
        }
        Ok(exchange)
    }

    /// The error of a failed login.
    pub fn unsent(&self, server: &Server, error: &RedisError) -> StoreError {
        explain(server, self.timeout, error, false)
    }

    pub async fn server(&self, deadline: Instant) -> Result<Server, StoreError> {
        let (name, place) = match &self.address.target {
            Target::At(place) => (self.address.to_string(), place.clone()),
            Target::Sentinel { sentinels, master, login } => {
                let found = timeout_at(deadline, sentinel::find(self, sentinels, master, login)).await;
                let place = found.unwrap_or_else(|_| {
                    let asked: Vec<String> = sentinels.iter().map(ToString::to_string).collect();
                    let (asked, waited) = (asked.join(", "), show(self.timeout));
                    Err(StoreError::not_applied(format!(
                        "{asked}: no Sentinel named the address of master {master} within {waited}"
                    )))
                })?;
                (format!("redis at {place} (master {master})"), place)
            }
        };
        Ok(Server { name, place, login: self.address.login.clone() })
    }

    /// The connection's allowance is reset whenever something is sent on it.
    pub async fn connect(
        &self,
        Server { name, place, .. }: &Server,
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
        // A Redis without TLS waits for the rest of a command.
        let secured = timeout_at(deadline, tls.connect(host, stream)).await;
        let secured = secured.map_err(|_| {
            let waited = show(self.timeout);
            unreachable(format!("no TLS handshake within {waited}: does the server use TLS there?"))
        })?;
        let secured = secured.map_err(|error| BY_FILES.failure(name, &error).unwrap_or_else(|| failed(error)))?;
        Ok((Box::new(secured), allowance))
    }

    fn is_plain(&self) -> bool {
        self.tls.is_none() && !matches!(self.address.target, Target::At(Place::Unix(_)))
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
    async fn new(stream: Box<dyn Bytes>, allowance: Allowance, server: Server) -> Self {
        let nothing = RedisConnectionInfo::default().set_skip_set_lib_name();
        let config = redis::AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let made = MultiplexedConnection::new_with_config(&nothing, stream, config).await;
        let (pipe, driver) = made.expect("without anything to set up, nothing is sent");
        let driver = tokio::spawn(driver).abort_handle();
        Self { pipe, allowance, driver, server, pending: Pending::default() }
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
    pub deadline: Instant,
    /// Whether earlier requests used this connection.
    pub used: bool,
}

impl Exchange<'_> {
    pub fn place(&self) -> &str {
        &self.connection.server.name
    }

    /// The error of a request that was under way.
    pub fn explain(&self, error: &RedisError) -> StoreError {
        explain(&self.connection.server, self.client.timeout, error, true)
    }

    pub async fn ask(&self, command: &Cmd) -> Result<Value, RedisError> {
        let (client, connection) = (self.client, &self.connection);
        let forget = |_| {
            // A new connection whose login or TLS handshake was answered is only slow. The next request may be in time.
            if self.used || (client.address.login.password.is_none() && client.tls.is_none()) {
                client.shared.forget(connection);
            }
        };
        let asked = connection.pending.begin(kept_connection::patience(client.timeout), forget);
        let mut pipe = connection.pipe.clone();
        let answer = timeout_at(self.deadline, pipe.send_packed_command(command)).await;
        let answer = answer.unwrap_or_else(|_| Err(SILENCE.into())).map_err(|error| {
            if !error.is_io_error() || self.used || !client.is_plain() {
                return error;
            }
            let why = innermost(&error);
            io::Error::other(format!("{why} (is it Redis, and does it need TLS, by rediss://?)")).into()
        })?;
        asked.answered();
        connection.allowance.begin_again();
        let answer = answer.extract_error();
        // After a failover the same name leads to another server.
        let code = answer.as_ref().err().and_then(RedisError::code);
        if code.is_some_and(|code| ["READONLY", "MASTERDOWN", "NOAUTH"].contains(&code)) {
            client.shared.forget(connection);
        }
        answer
    }
}
