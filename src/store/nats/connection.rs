//! Connections: made when one is needed, shared, and given up as soon as another one is quicker.
//!
//! The hazard: async-nats notices a dead peer after minutes, and a lease is lost by then. So every request has a time
//! bound here. A request that is unanswered for a while is sent over a new connection as well (at once, if an earlier
//! one is unanswered for that long, or the connection broke), and the first answer counts: so neither a dead peer nor a
//! slow one is a problem. The writer learns that its write was sent twice, because the second one may find what the
//! first has written.
//!
//! A server reports a missing permission not in the answer but beside it, and the library keeps whatever a server sends
//! (see `meter`). So a request also listens for such [`Event`]s. Otherwise it would wait until its time is over, and
//! could never say why.

use super::address::Address;
use super::failure::{Event, unanswered, unconnected};
use super::login::options;
use super::meter::{Meter, within_memory_limit};
use crate::lease::show;
use crate::store::allowance::{MOST, complaint};
use crate::store::kept_connection::{self, Kept, Pending, once_more};
use crate::store::{StoreError, tls};
use async_nats::connection::State;
use async_nats::{Client, HeaderMap, Message, Request, RequestErrorKind};
use futures_util::future::select_ok;
use std::future::ready;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

/// How many events a request may be behind. More arrive only while no request waits.
const MOST_EVENTS: usize = 32;

pub struct Connections {
    pub address: Address,
    /// The time bound of each request, and of each new connection for one.
    pub bound: Duration,
    current: Arc<Kept<Connection>>,
}

pub struct Connection {
    pub client: Client,
    /// The server of this connection, for messages.
    pub server: String,
    /// What the library reports.
    pub events: broadcast::Sender<Event>,
    pub meter: Arc<Meter>,
    pending: Pending,
    _watch: JoinSet<()>,
}

impl Connections {
    /// Opens the files. Makes no connection yet.
    pub fn open(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        // If only the server wants TLS, the library makes the configuration, with the provider of the process.
        tls::install_provider();
        let bound = kept_connection::bound(request_timeout);
        options(address, bound)?;
        Ok(Self { address: address.clone(), bound, current: Arc::default() })
    }

    /// A connection that works, as far as we know.
    ///
    /// # Errors
    /// Never Unknown: no request was sent.
    pub async fn connection(&self) -> Result<Arc<Connection>, StoreError> {
        self.connection_before(Instant::now() + self.bound).await
    }

    async fn connection_before(&self, deadline: Instant) -> Result<Arc<Connection>, StoreError> {
        self.current.drop_if(|connection| connection.client.connection_state() != State::Connected);
        match self.current.get() {
            Some(connection) => Ok(connection),
            None => self.connect(deadline).await,
        }
    }

    /// Sends a request, and waits for the answer. None: nobody listens on the subject. And whether it was sent twice.
    pub async fn request(
        &self,
        subject: &str,
        headers: HeaderMap,
        payload: Vec<u8>,
    ) -> Result<(Option<Message>, bool), StoreError> {
        let deadline = Instant::now() + self.bound;
        let connection = self.connection_before(deadline).await?;
        let request = || Request::new().headers(headers.clone()).payload(payload.clone().into());
        let sent_twice = AtomicBool::new(false);
        let again = || {
            Box::pin(async {
                let newer = match self.current.get().filter(|newer| !Arc::ptr_eq(newer, &connection)) {
                    Some(newer) => newer,
                    None => self.connect(deadline).await?,
                };
                sent_twice.store(true, Ordering::Relaxed);
                self.exchange(&newer, subject, request()).await
            })
        };
        let patience = kept_connection::patience(self.bound);
        let is_silent = connection.pending.is_silent(patience);
        let first = async {
            tokio::select! {
                biased;
                answer = self.exchange(&connection, subject, request()) => answer,
                // If there is no answer, the first sending reports why.
                Ok(answer) = async {
                    sleep(if is_silent { Duration::ZERO } else { patience }).await;
                    again().await
                } => Ok(answer),
            }
        };
        let asked = timeout_at(deadline, once_more(first, |error| error.cause.is_some(), again()));
        let message = asked.await.unwrap_or_else(|_| {
            let bound = show(self.bound);
            Err(StoreError::unknown(format!("{} did not answer within {bound}", connection.server)))
        })?;
        Ok((message, sent_twice.into_inner()))
    }

    async fn exchange(
        &self,
        connection: &Arc<Connection>,
        subject: &str,
        request: Request,
    ) -> Result<Option<Message>, StoreError> {
        connection.meter.begin_again();
        let asked = connection.pending.begin(kept_connection::patience(self.bound), |_| {});
        let sent = connection.client.send_request(subject.to_owned(), request);
        let answer = self.unless_it_fails(connection, &mut connection.events.subscribe(), subject, sent).await?;
        let message = match answer.map_err(|error| error.kind()) {
            Ok(message) => Some(message),
            Err(RequestErrorKind::NoResponders) => None,
            Err(kind @ (RequestErrorKind::InvalidSubject | RequestErrorKind::MaxPayloadExceeded)) => {
                return Err(StoreError::misconfigured(format!("{} cannot be asked this: {kind}", connection.server)));
            }
            Err(RequestErrorKind::TimedOut | RequestErrorKind::Other) => return Err(self.lost(connection)),
        };
        asked.answered();
        connection.meter.begin_again();
        Ok(message)
    }

    /// Waits for what is awaited, unless the connection is gone before, or the server denies us `subject` or the
    /// subscription to answers.
    pub async fn unless_it_fails<T>(
        &self,
        connection: &Arc<Connection>,
        events: &mut broadcast::Receiver<Event>,
        subject: &str,
        awaited: impl Future<Output = T>,
    ) -> Result<T, StoreError> {
        let mut awaited = pin!(awaited);
        loop {
            let event = tokio::select! {
                biased;
                answer = &mut awaited => return Ok(answer),
                event = events.recv() => event,
            };
            match event {
                Ok(Event::Denied(text)) => {
                    let is_deaf = text.to_lowercase().contains("for subscription");
                    if is_deaf {
                        // No answer would ever arrive on it.
                        self.current.forget(connection);
                    }
                    if is_deaf || text.contains(&format!("\"{subject}\"")) {
                        let (server, login) = (&connection.server, self.address.login.describe());
                        return Err(StoreError::denied(format!("{server} denied {login}: {text}")));
                    }
                }
                Ok(Event::Flooded) => return Err(StoreError::unknown(complaint(&connection.server, "nats", MOST))),
                Ok(Event::Broken) | Err(RecvError::Closed) => return Err(self.lost(connection)),
                Err(RecvError::Lagged(_)) => {}
            }
        }
    }

    /// The only error of an exchange that has a cause.
    pub fn lost(&self, connection: &Arc<Connection>) -> StoreError {
        self.current.forget(connection);
        StoreError::unknown(format!("the connection to {} broke", connection.server))
            .because(&io::Error::from(io::ErrorKind::BrokenPipe))
    }

    /// Connects to all hosts at once: one that is slow to answer must not delay the others. Nothing is locked
    /// meanwhile: if this hangs, the next request makes a connection of its own.
    async fn connect(&self, deadline: Instant) -> Result<Arc<Connection>, StoreError> {
        let hosts = self.address.hosts.iter().map(|host| Box::pin(self.connect_to(host)));
        let connected = timeout_at(deadline, select_ok(hosts)).await.unwrap_or_else(|_| {
            let (server, why) = (self.address.server(), unanswered(self.bound));
            Err(StoreError::not_applied(format!("cannot reach {server}: {why}")))
        });
        let connection = Arc::new(connected?.0);
        self.current.keep_unless(&connection, |_| false);
        Ok(connection)
    }

    async fn connect_to(&self, host: &str) -> Result<Connection, StoreError> {
        let server = format!("nats at {host}");
        let events = broadcast::Sender::new(MOST_EVENTS);
        let teller = events.clone();
        let options = options(&self.address, self.bound)?.event_callback(move |reported| {
            // Nobody may be listening.
            let _ = Event::of(&reported).map(|event| teller.send(event));
            ready(())
        });
        let Some(connected) = within_memory_limit(options.connect(format!("nats://{host}"))).await else {
            return Err(StoreError::not_applied(complaint(&server, "nats", MOST)));
        };
        let client = connected.map_err(|error| unconnected(&self.address.login, self.bound, &server, &error))?;
        let meter = Arc::new(Meter::new(client.statistics()));
        let (metered, teller, current) = (Arc::clone(&meter), events.clone(), Arc::downgrade(&self.current));
        let mut watch = JoinSet::new();
        watch.spawn(async move {
            metered.exceeded().await;
            let _ = teller.send(Event::Flooded);
            // The library reads on while its client exists, and there may be no request for a long time.
            let Some(current) = current.upgrade() else { return };
            current.drop_if(|connection| Arc::ptr_eq(&connection.meter, &metered));
        });
        let connection = Connection { client, server, events, meter, pending: Pending::default(), _watch: watch };
        // Before, a consumer has one subject, and a stream does not tell its time.
        if !connection.is_of_version((2, 10)) {
            let (server, version) = (&connection.server, connection.client.server_info().version);
            return Err(StoreError::misconfigured(format!(
                "{server} runs version {version}: leaderrun needs nats-server 2.10 or later"
            )));
        }
        Ok(connection)
    }
}

impl Connection {
    /// Whether the server has at least the version of these two numbers.
    pub fn is_of_version(&self, least: (u32, u32)) -> bool {
        let version = self.client.server_info().version;
        let mut numbers = version.split('.').map_while(|part| part.parse().ok());
        numbers.next().zip(numbers.next()) >= Some(least)
    }
}
