//! Connections: made when one is needed, shared, and given up as soon as they are doubtful.
//!
//! The hazard: async-nats keeps a connection for ever. It reconnects by itself, holds requests back until it has,
//! and notices a dead peer after minutes; a lease is lost by then. So it may reconnect no more than once, a
//! [`Connection`] that was ever disconnected is not used again, and every request has a time bound here. A request that
//! is unanswered for a while is sent over a new connection as well, and the first answer counts: so neither a dead peer
//! nor a slow one is a problem. A request that arrives twice or late does no harm, because every write names the
//! revision that it expects.
//!
//! A server reports a missing permission beside the answer (see `failure`), and the library keeps whatever a server
//! sends (see `meter`).

use super::address::{Address, DEFAULT_PORT};
use super::failure::{Failure, Trouble, unanswered, unconnected};
use super::login::options;
use super::meter::{BUSY_LOOK, IDLE_LOOK, Meter, in_moderation};
use crate::lease::show;
use crate::store::allowance::{MOST_OF_NATS, complaint};
use crate::store::kept_connection::{self, Kept, Pending};
use crate::store::{ErrorKind, StoreError, tls};
use async_nats::{Client, HeaderMap, Message, Request, RequestErrorKind};
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

pub struct Connections {
    address: Address,
    /// The time bound of each request, and of each new connection for one.
    bound: Duration,
    current: Arc<Kept<Connection>>,
    /// The host to try first.
    preferred: AtomicUsize,
}

pub struct Connection {
    pub client: Client,
    /// The server of this connection, for messages.
    pub server: String,
    trouble: watch::Receiver<Trouble>,
    pending: Pending,
    meter: Arc<Meter>,
    watch: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

struct Question<'a> {
    subject: &'a str,
    /// The most bytes of an answer.
    most: usize,
    headers: Option<HeaderMap>,
    payload: Vec<u8>,
}

impl Question<'_> {
    fn request(&self) -> Request {
        let request = Request::new().timeout(None).payload(self.payload.clone().into());
        match &self.headers {
            Some(headers) => request.headers(headers.clone()),
            None => request,
        }
    }
}

impl Connections {
    /// Opens the files. Makes no connection yet.
    ///
    /// # Errors
    /// Misconfigured, if a file that the address names cannot be used.
    pub fn open(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        // If only the server wants TLS, the library makes the configuration, with the provider of the process.
        tls::install_provider();
        let connections = Self {
            address: address.clone(),
            bound: kept_connection::bound(request_timeout),
            current: Arc::default(),
            preferred: AtomicUsize::new(0),
        };
        options(&connections.address, connections.bound)?;
        Ok(connections)
    }

    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The time bound of each request.
    pub fn bound(&self) -> Duration {
        self.bound
    }

    /// A connection that works, as far as we know.
    ///
    /// # Errors
    /// Never Unknown: no request was sent.
    pub async fn connection(&self) -> Result<Arc<Connection>, StoreError> {
        self.connection_before(Instant::now() + self.bound).await
    }

    async fn connection_before(&self, deadline: Instant) -> Result<Arc<Connection>, StoreError> {
        if let Some(connection) = self.usable() {
            return Ok(connection);
        }
        // Nothing is locked meanwhile: if this connect hangs, the next request makes a connection of its own.
        let connection = timeout_at(deadline, self.connect()).await.unwrap_or_else(|_| {
            self.prefer_another();
            let (server, why) = (self.address.server(), unanswered(self.bound));
            Err(StoreError::not_applied(format!("cannot reach {server}: {why}")))
        })?;
        self.current.keep_unless(&connection, |_| false);
        Ok(connection)
    }

    /// Sends a request, and waits for the answer.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn request(
        &self,
        subject: &str,
        headers: Option<HeaderMap>,
        payload: Vec<u8>,
    ) -> Result<Message, Failure> {
        self.request_much(subject, headers, payload, MOST_OF_NATS).await
    }

    /// As [`Connections::request`], for an answer of up to `most` bytes.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn request_much(
        &self,
        subject: &str,
        headers: Option<HeaderMap>,
        payload: Vec<u8>,
        most: usize,
    ) -> Result<Message, Failure> {
        let deadline = Instant::now() + self.bound;
        let connection = self.connection_before(deadline).await?;
        let question = Question { subject, most, headers, payload };
        // A silent connection gets no further patience: other requests already wait on it.
        let is_silent = connection.pending.is_silent(self.patience());
        let patience = if is_silent { Duration::ZERO } else { self.patience() };
        let asked = timeout_at(deadline, async {
            tokio::select! {
                biased;
                answer = self.exchange(&connection, &question) => answer,
                answer = self.ask_again(&question, patience) => answer,
            }
        });
        asked.await.unwrap_or_else(|_| {
            let message = format!("{} did not answer within {}", connection.server, show(self.bound));
            Err(StoreError::unknown(message).into())
        })
    }

    fn patience(&self) -> Duration {
        kept_connection::patience(self.bound)
    }

    /// Sends the request over a new connection. Returns only with an answer: if there is none, the first attempt
    /// reports why.
    async fn ask_again(&self, question: &Question<'_>, patience: Duration) -> Result<Message, Failure> {
        tokio::time::sleep(patience).await;
        if let Ok(connection) = self.connect().await {
            let answer = self.exchange(&connection, question).await;
            let is_answer = match &answer {
                Ok(_) | Err(Failure::NoResponders) => true,
                Err(Failure::Error(error)) => error.kind != ErrorKind::Unknown,
            };
            if is_answer {
                self.current.keep_unless(&connection, |_| false);
                return answer;
            }
        }
        std::future::pending().await
    }

    async fn exchange(&self, connection: &Arc<Connection>, question: &Question<'_>) -> Result<Message, Failure> {
        let subject = question.subject;
        let mut trouble = connection.trouble.clone();
        let before = trouble.borrow().count;
        // Of two attempts at one request the slower one is cancelled, which says nothing about its connection. So the
        // connection is dropped only if it was silent.
        let asked = connection.pending.begin(self.patience(), |silent| {
            if silent {
                self.discard(connection);
            }
        });
        connection.meter.begin_again(question.most);
        let answer = tokio::select! {
            biased;
            () = connection.meter.exceeded(BUSY_LOOK) => return Err(self.lost(connection).into()),
            answer = connection.client.send_request(subject.to_owned(), question.request()) => answer,
            told = trouble.wait_for(|trouble| trouble.concerns(subject, before)) => {
                let denial = told.ok().and_then(|trouble| trouble.denial(subject, before));
                if denial.is_some() {
                    asked.answered();
                }
                return Err(denial.map_or_else(|| self.lost(connection), |denial| self.denied(connection, &denial)).into());
            }
        };
        let kind = match answer {
            Ok(message) => {
                asked.answered();
                connection.heard();
                return Ok(message);
            }
            Err(error) => error.kind(),
        };
        match kind {
            RequestErrorKind::NoResponders => {
                asked.answered();
                Err(Failure::NoResponders)
            }
            RequestErrorKind::InvalidSubject | RequestErrorKind::MaxPayloadExceeded => {
                asked.answered();
                Err(StoreError::misconfigured(format!("{} cannot be asked this: {kind}", connection.server)).into())
            }
            RequestErrorKind::TimedOut | RequestErrorKind::Other => Err(self.lost(connection).into()),
        }
    }

    /// Waits until the connection is gone, or the server refuses `subject` to us. Returns the reason.
    pub async fn trouble(&self, connection: &Arc<Connection>, subject: &str, before: u64) -> StoreError {
        let mut trouble = connection.trouble.clone();
        let denial = match trouble.wait_for(|trouble| trouble.concerns(subject, before)).await {
            Ok(trouble) => trouble.denial(subject, before),
            Err(_) => None,
        };
        match denial {
            Some(denial) => self.denied(connection, &denial),
            None => self.lost(connection),
        }
    }

    /// Stops using the connection, and its host too if there are others.
    pub fn discard(&self, connection: &Arc<Connection>) {
        if self.current.forget(connection) {
            self.prefer_another();
        }
    }

    fn lost(&self, connection: &Arc<Connection>) -> StoreError {
        self.discard(connection);
        if connection.meter.is_exceeded() {
            return StoreError::unknown(connection.meter.complaint(&connection.server));
        }
        StoreError::unknown(format!("the connection to {} broke", connection.server))
    }

    fn denied(&self, connection: &Connection, denial: &str) -> StoreError {
        StoreError::denied(format!("{} denied {}: {denial}", connection.server, self.address.login.describe()))
    }

    fn prefer_another(&self) {
        self.preferred.fetch_add(1, Ordering::Relaxed);
    }

    fn usable(&self) -> Option<Arc<Connection>> {
        self.current.drop_if(Connection::is_broken);
        self.current.get()
    }

    /// Connects to the first host that lets us in. A host that is slow to answer does not delay the next one for long.
    async fn connect(&self) -> Result<Arc<Connection>, StoreError> {
        let hosts = self.address.hosts.len();
        let first = self.preferred.load(Ordering::Relaxed);
        let mut waiting = (0..hosts).map(|index| (first + index) % hosts);
        let mut trying = FuturesUnordered::new();
        let mut failure: Option<StoreError> = None;
        loop {
            if let Some(host) = waiting.next() {
                trying.push(async move { (host, self.connect_to(host).await) });
            } else if trying.is_empty() {
                return Err(failure.unwrap_or_else(|| StoreError::not_applied("no host is named")));
            }
            tokio::select! {
                Some((host, made)) = trying.next() => match made {
                    Ok(connection) => {
                        self.preferred.store(host, Ordering::Relaxed);
                        return Ok(Arc::new(connection));
                    }
                    Err(error) if failure.as_ref().is_none_or(|known| known.kind == ErrorKind::NotApplied) => {
                        failure = Some(error);
                    }
                    Err(_) => {}
                },
                () = tokio::time::sleep(self.bound / 5), if waiting.len() > 0 => {}
            }
        }
    }

    async fn connect_to(&self, host: usize) -> Result<Connection, StoreError> {
        let host = self.address.hosts[host].with_port(DEFAULT_PORT);
        let server = format!("nats at {host}");
        let (told, trouble) = watch::channel(Trouble::default());
        let told = Arc::new(told);
        let teller = Arc::clone(&told);
        let options = options(&self.address, self.bound)?.event_callback(move |event| {
            teller.send_if_modified(|trouble| trouble.take_in(&event));
            std::future::ready(())
        });
        let Some(connected) = in_moderation(options.connect(format!("nats://{host}"))).await else {
            return Err(StoreError::not_applied(complaint(&server, "nats", MOST_OF_NATS)));
        };
        let client = connected.map_err(|error| unconnected(&self.address.login, self.bound, &server, &error))?;
        let meter = Arc::new(Meter::new(client.statistics(), told));
        let (watched, current) = (Arc::clone(&meter), Arc::downgrade(&self.current));
        let watch = tokio::spawn(async move {
            watched.exceeded(IDLE_LOOK).await;
            // The library reads on while its client exists, and there may be no request for a long time.
            let Some(current) = current.upgrade() else { return };
            current.drop_if(|connection| Arc::ptr_eq(&connection.meter, &watched));
        });
        let watch = watch.abort_handle();
        Ok(Connection { client, server, trouble, pending: Pending::default(), meter, watch })
    }
}

impl Connection {
    /// A whole message has arrived.
    pub fn heard(&self) {
        self.meter.begin_again(MOST_OF_NATS);
    }

    fn is_broken(&self) -> bool {
        self.trouble.borrow().broken || self.trouble.has_changed().is_err()
    }

    /// The server's version: its first two numbers.
    pub fn version(&self) -> Option<(u32, u32)> {
        let version = self.client.server_info().version;
        let mut numbers = version.split('.').map_while(|part| part.parse().ok());
        numbers.next().zip(numbers.next())
    }

    /// How many denials there were so far. Later ones are about later requests.
    pub fn denials(&self) -> u64 {
        self.trouble.borrow().count
    }
}
