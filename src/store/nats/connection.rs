//! Connections: made when one is needed, shared, and given up as soon as they are doubtful.
//!
//! The hazard: async-nats keeps a connection for ever. It reconnects by itself, holds requests back until it has,
//! and notices a dead peer after minutes; a lease is lost by then. So it may reconnect no more than once, a
//! [`Connection`] that was ever disconnected is not used again, and every request has a time bound here. A request that
//! is unanswered for a while is sent over a new connection as well, and the first answer counts: so neither a dead peer
//! nor a slow one is a problem. The writer is told, for the second sending of a write finds what the first has done.
//!
//! A server reports a missing permission beside the answer (see `failure`), and the library keeps whatever a server
//! sends (see `meter`).

use super::address::{Address, DEFAULT_PORT};
use super::failure::{Failure, Trouble, unanswered, unconnected};
use super::login::options;
use super::meter::{Meter, in_moderation};
use crate::lease::show;
use crate::store::allowance::{MOST, complaint};
use crate::store::kept_connection::{self, Kept, Pending};
use crate::store::{ErrorKind, StoreError, tls};
use async_nats::{Client, HeaderMap, Message, Request, RequestErrorKind};
use futures_util::future::select_ok;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

/// Before this version, a consumer has one subject, and a stream does not tell its time.
const LEAST_VERSION: (u32, u32) = (2, 10);

pub struct Connections {
    address: Address,
    /// The time bound of each request, and of each new connection for one.
    bound: Duration,
    current: Arc<Kept<Connection>>,
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

pub struct Answer {
    pub message: Message,
    pub sent_twice: bool,
}

struct Question<'a> {
    subject: &'a str,
    headers: Option<HeaderMap>,
    payload: Vec<u8>,
    sent_twice: AtomicBool,
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
        let bound = kept_connection::bound(request_timeout);
        options(address, bound)?;
        Ok(Self { address: address.clone(), bound, current: Arc::default() })
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
        self.current.drop_if(Connection::is_broken);
        if let Some(connection) = self.current.get() {
            return Ok(connection);
        }
        // Nothing is locked meanwhile: if this connect hangs, the next request makes a connection of its own.
        let connection = timeout_at(deadline, self.connect()).await.unwrap_or_else(|_| {
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
    ) -> Result<Answer, Failure> {
        let deadline = Instant::now() + self.bound;
        let connection = self.connection_before(deadline).await?;
        let question = Question { subject, headers, payload, sent_twice: AtomicBool::new(false) };
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
        let answer = asked.await.unwrap_or_else(|_| {
            let message = format!("{} did not answer within {}", connection.server, show(self.bound));
            Err(StoreError::unknown(message).into())
        });
        answer.map(|message| Answer { message, sent_twice: question.sent_twice.into_inner() })
    }

    fn patience(&self) -> Duration {
        kept_connection::patience(self.bound)
    }

    /// Sends the request over a new connection. Returns only with an answer: if there is none, the first attempt
    /// reports why.
    async fn ask_again(&self, question: &Question<'_>, patience: Duration) -> Result<Message, Failure> {
        tokio::time::sleep(patience).await;
        if let Ok(connection) = self.connect().await {
            question.sent_twice.store(true, Ordering::Relaxed);
            let answer = self.exchange(&connection, question).await;
            if !matches!(&answer, Err(Failure::Error(error)) if error.kind == ErrorKind::Unknown) {
                self.current.keep_unless(&connection, |_| false);
                return answer;
            }
        }
        std::future::pending().await
    }

    async fn exchange(&self, connection: &Arc<Connection>, question: &Question<'_>) -> Result<Message, Failure> {
        let subject = question.subject;
        let before = connection.denials();
        // Of two attempts at one request the slower one is cancelled, which says nothing about its connection. So the
        // connection is dropped only if it was silent.
        let asked = connection.pending.begin(self.patience(), |silent| {
            if silent {
                self.current.forget(connection);
            }
        });
        connection.meter.begin_again();
        let kind = tokio::select! {
            biased;
            answer = connection.client.send_request(subject.to_owned(), question.request()) => match answer {
                Ok(message) => {
                    asked.answered();
                    connection.heard();
                    return Ok(message);
                }
                Err(error) => error.kind(),
            },
            trouble = self.trouble(connection, subject, before) => {
                if trouble.kind == ErrorKind::Denied {
                    asked.answered();
                }
                return Err(trouble.into());
            }
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
        let told = trouble.wait_for(|trouble| trouble.broken || trouble.denial(subject, before).is_some()).await;
        let denial = told.ok().and_then(|trouble| trouble.denial(subject, before));
        let Some(denial) = denial else { return self.lost(connection) };
        StoreError::denied(format!("{} denied {}: {denial}", connection.server, self.address.login.describe()))
    }

    pub fn lost(&self, connection: &Arc<Connection>) -> StoreError {
        self.current.forget(connection);
        StoreError::unknown(if connection.meter.is_exceeded() {
            complaint(&connection.server, "nats", MOST)
        } else {
            format!("the connection to {} broke", connection.server)
        })
    }

    /// Connects to all hosts at once: one that is slow to answer must not delay the others.
    async fn connect(&self) -> Result<Arc<Connection>, StoreError> {
        let hosts = self.address.hosts.iter().map(|host| Box::pin(self.connect_to(host.with_port(DEFAULT_PORT))));
        select_ok(hosts).await.map(|(connection, _)| Arc::new(connection))
    }

    async fn connect_to(&self, host: String) -> Result<Connection, StoreError> {
        let server = format!("nats at {host}");
        let (told, trouble) = watch::channel(Trouble::default());
        let told = Arc::new(told);
        let teller = Arc::clone(&told);
        let options = options(&self.address, self.bound)?.event_callback(move |event| {
            teller.send_if_modified(|trouble| trouble.take_in(&event));
            std::future::ready(())
        });
        let Some(connected) = in_moderation(options.connect(format!("nats://{host}"))).await else {
            return Err(StoreError::not_applied(complaint(&server, "nats", MOST)));
        };
        let client = connected.map_err(|error| unconnected(&self.address.login, self.bound, &server, &error))?;
        let version = client.server_info().version;
        if numbers(&version) < Some(LEAST_VERSION) {
            return Err(StoreError::misconfigured(format!(
                "{server} runs version {version}: leaderrun needs nats-server 2.10 or later"
            )));
        }
        let meter = Arc::new(Meter::new(client.statistics()));
        let (watched, current) = (Arc::clone(&meter), Arc::downgrade(&self.current));
        let watch = tokio::spawn(async move {
            watched.exceeded().await;
            told.send_modify(|trouble| trouble.broken = true);
            // The library reads on while its client exists, and there may be no request for a long time.
            let Some(current) = current.upgrade() else { return };
            current.drop_if(|connection| Arc::ptr_eq(&connection.meter, &watched));
        });
        let watch = watch.abort_handle();
        Ok(Connection { client, server, trouble, pending: Pending::default(), meter, watch })
    }
}

/// The first two numbers of a version.
fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.').map_while(|part| part.parse().ok());
    numbers.next().zip(numbers.next())
}

impl Connection {
    /// A whole message has arrived.
    pub fn heard(&self) {
        self.meter.begin_again();
    }

    fn is_broken(&self) -> bool {
        self.trouble.borrow().broken || self.trouble.has_changed().is_err()
    }

    /// Whether a message may say when the server forgets it.
    pub fn forgets_messages(&self) -> bool {
        numbers(&self.client.server_info().version) >= Some((2, 11))
    }

    /// How many denials there were so far. Later ones are about later requests.
    pub fn denials(&self) -> u64 {
        self.trouble.borrow().count
    }
}
