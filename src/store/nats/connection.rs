//! Connections: made when one is needed, shared, and given up as soon as they are doubtful.
//!
//! The hazard: async-nats keeps a connection for ever. It reconnects by itself, holds requests back until it has, and
//! notices a dead peer after minutes; a lease is lost by then. So it may reconnect no more than once, a [`Connection`] that
//! was ever disconnected is not used again, every request is bounded here, and one that goes unanswered for a while is
//! sent over a new connection as well: the first answer counts, so neither a dead peer nor a slow one is a trouble. A
//! request that arrives twice or late does no harm: all that writes names the revision it expects.
//!
//! The other one: a server answers what is forbidden not to the request but beside it, so a request has to listen for
//! that as well, or it would wait in vain and never say why.
//!
//! And the third: the library keeps whatever a server says until it is whole, and lets nobody come between it and its
//! socket. So what it counts is looked at: every few milliseconds while a request is under way, else some times a second.
//! Before it is connected it tells nothing, and what this process takes tells instead.

use super::address::{Address, DEFAULT_PORT, Login};
use crate::lease::show;
use crate::store::allowance::{MOST_OF_NATS, complaint};
use crate::store::cause::{causes, in_short, innermost};
use crate::store::{ErrorKind, StoreError, tls};
use crate::time::BootInstant;
use async_nats::{
    Client, ConnectErrorKind, ConnectOptions, Event, HeaderMap, Message, Request, RequestErrorKind, Statistics,
};
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::collections::VecDeque;
use std::error::Error;
use std::fs::File;
use std::future::poll_fn;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

/// So many refusals are remembered for those who wait. More come only while nobody does.
const MOST_DENIALS: usize = 32;
/// No file with credentials is longer.
const LONGEST_CREDENTIALS: u64 = 64 * 1024;
/// Messages that a subscription may hold. What does not fit is lost, and heartbeats tell.
const SUBSCRIPTION_CAPACITY: usize = 64;
/// How often what was read is looked at: while there is a request, and else.
const BUSY_LOOK: Duration = Duration::from_millis(5);
const IDLE_LOOK: Duration = Duration::from_millis(100);
/// To be connected takes a few kilobytes, and a few megabytes where the system's authorities are read.
const MOST_FOR_CONNECTING: u64 = 8 << 20;

pub struct Connections {
    address: Address,
    /// Of each request, and of each connection that has to be made for one.
    bound: Duration,
    current: Arc<Current>,
    /// The host to try first.
    preferred: AtomicUsize,
}

/// The connection in use.
type Current = Mutex<Option<Arc<Connection>>>;

pub struct Connection {
    pub client: Client,
    /// For messages: the very server.
    pub server: String,
    trouble: watch::Receiver<Trouble>,
    silence: Mutex<Silence>,
    meter: Arc<Meter>,
    watch: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

/// How much was read since a request was sent, or something was heard.
struct Meter {
    statistics: Arc<Statistics>,
    told: Arc<watch::Sender<Trouble>>,
    /// What had been read then.
    base: AtomicU64,
    most: AtomicUsize,
    exceeded: AtomicBool,
}

impl Meter {
    fn begin_again(&self, most: usize) {
        self.most.store(most, Ordering::Relaxed);
        self.base.store(self.statistics.in_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Whether it is too much. Then the connection counts as broken.
    fn is_exceeded(&self) -> bool {
        let read = self.statistics.in_bytes.load(Ordering::Relaxed).saturating_sub(self.base.load(Ordering::Relaxed));
        if read > self.most.load(Ordering::Relaxed) as u64 && !self.exceeded.swap(true, Ordering::Relaxed) {
            self.told.send_modify(|trouble| trouble.broken = true);
        }
        self.exceeded.load(Ordering::Relaxed)
    }

    /// Returns when it is too much.
    async fn exceeded(&self, look: Duration) {
        while !self.is_exceeded() {
            tokio::time::sleep(look).await;
        }
    }
}

/// What the library tells beside the answers.
#[derive(Debug, Default)]
struct Trouble {
    broken: bool,
    /// All that there were.
    count: u64,
    /// The last of them.
    denials: VecDeque<String>,
    /// Some once we were refused to hear answers.
    deaf: Option<String>,
}

#[derive(Debug)]
struct Silence {
    pending: u32,
    /// When something was heard last, or, if that is later, when the first pending request was sent.
    since: BootInstant,
}

struct Question<'a> {
    subject: &'a str,
    /// Bytes of an answer.
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

/// Why there is no answer to a request.
pub enum Failure {
    /// Nobody listens on the subject.
    NoResponders,
    Error(StoreError),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Error(error)
    }
}

impl Connections {
    /// Connects nowhere yet.
    ///
    /// # Errors
    /// Misconfigured, when a file cannot be used that the address names.
    pub fn open(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        // The library makes its TLS set-up from the same files, with the provider of the process.
        tls::install_provider();
        if address.demand_tls {
            tls::client_config(&address.files)?;
        }
        let connections = Self {
            address: address.clone(),
            // Those who call bound it as well, with less to say.
            bound: request_timeout - request_timeout / 20,
            current: Arc::default(),
            preferred: AtomicUsize::new(0),
        };
        connections.options()?;
        Ok(connections)
    }

    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Of each request.
    pub fn bound(&self) -> Duration {
        self.bound
    }

    /// A connection that works, as far as is known.
    ///
    /// # Errors
    /// Never Unknown: nothing has been asked.
    pub async fn connection(&self) -> Result<Arc<Connection>, StoreError> {
        self.link_before(Instant::now() + self.bound).await
    }

    async fn link_before(&self, deadline: Instant) -> Result<Arc<Connection>, StoreError> {
        if let Some(connection) = self.usable() {
            return Ok(connection);
        }
        // Nothing is locked meanwhile: who comes after a connect that hangs makes an own one.
        let connection = timeout_at(deadline, self.connect()).await.unwrap_or_else(|_| {
            self.prefer_another();
            let (server, bound) = (self.address.server(), show(self.bound));
            Err(StoreError::not_applied(format!("cannot reach {server}: no answer within {bound}")))
        })?;
        *self.current() = Some(Arc::clone(&connection));
        Ok(connection)
    }

    /// Asks, and waits for the answer.
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

    /// As [`Connections::request`], where the answer may have `most` bytes.
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
        let connection = self.link_before(deadline).await?;
        let question = Question { subject, most, headers, payload };
        // A link on which others wait in vain has had its chance.
        let patience = if connection.silence().lasts(self.patience()) { Duration::ZERO } else { self.patience() };
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
        self.bound / 3
    }

    /// Over a new connection. Returns only with an answer: the first attempt tells what went wrong.
    async fn ask_again(&self, question: &Question<'_>, patience: Duration) -> Result<Message, Failure> {
        tokio::time::sleep(patience).await;
        if let Ok(connection) = self.connect().await {
            let answer = self.exchange(&connection, question).await;
            let is_answer = match &answer {
                Ok(_) | Err(Failure::NoResponders) => true,
                Err(Failure::Error(error)) => error.kind != ErrorKind::Unknown,
            };
            if is_answer {
                *self.current() = Some(connection);
                return answer;
            }
        }
        std::future::pending().await
    }

    async fn exchange(&self, connection: &Arc<Connection>, question: &Question<'_>) -> Result<Message, Failure> {
        let subject = question.subject;
        let mut trouble = connection.trouble.clone();
        let before = trouble.borrow().count;
        let mut exchange = Exchange::begin(self, connection);
        connection.meter.begin_again(question.most);
        let answer = tokio::select! {
            biased;
            () = connection.meter.exceeded(BUSY_LOOK) => return Err(self.lost(connection).into()),
            answer = connection.client.send_request(subject.to_owned(), question.request()) => answer,
            told = trouble.wait_for(|trouble| trouble.concerns(subject, before)) => {
                let denial = told.ok().and_then(|trouble| trouble.denial(subject, before));
                exchange.heard = denial.is_some();
                return Err(denial.map_or_else(|| self.lost(connection), |denial| self.denied(connection, &denial)).into());
            }
        };
        let kind = match answer {
            Ok(message) => {
                exchange.heard = true;
                connection.heard();
                return Ok(message);
            }
            Err(error) => error.kind(),
        };
        match kind {
            RequestErrorKind::NoResponders => {
                exchange.heard = true;
                Err(Failure::NoResponders)
            }
            RequestErrorKind::InvalidSubject | RequestErrorKind::MaxPayloadExceeded => {
                exchange.heard = true;
                Err(StoreError::misconfigured(format!("{} cannot be asked this: {kind}", connection.server)).into())
            }
            RequestErrorKind::TimedOut | RequestErrorKind::Other => Err(self.lost(connection).into()),
        }
    }

    /// Returns when the connection is gone, or `subject` is refused to us. Answers why.
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

    /// Not to be used again; the host neither, as long as there are others.
    pub fn discard(&self, connection: &Arc<Connection>) {
        let mut current = self.current();
        if current.as_ref().is_some_and(|known| Arc::ptr_eq(known, connection)) {
            *current = None;
            drop(current);
            self.prefer_another();
        }
    }

    fn lost(&self, connection: &Arc<Connection>) -> StoreError {
        self.discard(connection);
        if connection.meter.is_exceeded() {
            return StoreError::unknown(connection.complaint());
        }
        StoreError::unknown(format!("the connection to {} broke", connection.server))
    }

    fn denied(&self, connection: &Connection, denial: &str) -> StoreError {
        StoreError::denied(format!("{} denied {}: {denial}", connection.server, self.address.login.describe()))
    }

    fn prefer_another(&self) {
        self.preferred.fetch_add(1, Ordering::Relaxed);
    }

    fn current(&self) -> MutexGuard<'_, Option<Arc<Connection>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn usable(&self) -> Option<Arc<Connection>> {
        let mut current = self.current();
        if current.as_ref().is_some_and(|connection| connection.is_broken()) {
            *current = None;
        }
        current.clone()
    }

    /// To the first host that lets us in. A host that is slow to answer does not keep the next one waiting for long.
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
        let options = self.options()?.event_callback(move |event| {
            teller.send_if_modified(|trouble| trouble.take_in(&event));
            std::future::ready(())
        });
        let Some(connected) = in_moderation(options.connect(format!("nats://{host}"))).await else {
            return Err(StoreError::not_applied(complaint(&server, "nats", MOST_OF_NATS)));
        };
        let client = connected.map_err(|error| self.unconnected(&server, error.kind(), &error))?;
        let silence = Mutex::new(Silence { pending: 0, since: BootInstant::now() });
        let meter = Arc::new(Meter {
            statistics: client.statistics(),
            told,
            base: AtomicU64::new(0),
            most: AtomicUsize::new(MOST_OF_NATS),
            exceeded: AtomicBool::new(false),
        });
        meter.begin_again(MOST_OF_NATS);
        let (watched, current) = (Arc::clone(&meter), Arc::downgrade(&self.current));
        let watch = tokio::spawn(async move {
            watched.exceeded(IDLE_LOOK).await;
            // The library reads on until nobody has its client, and nobody may ask for anything for a long time.
            let Some(current) = current.upgrade() else { return };
            let mut current = current.lock().unwrap_or_else(PoisonError::into_inner);
            drop(current.take_if(|connection| Arc::ptr_eq(&connection.meter, &watched)));
        });
        let watch = watch.abort_handle();
        Ok(Connection { client, server, trouble, silence, meter, watch })
    }

    /// The files are read again each time: credentials are renewed under a candidate that runs for months.
    fn options(&self) -> Result<ConnectOptions, StoreError> {
        let mut options = match &self.address.login {
            Login::Nobody => ConnectOptions::new(),
            Login::User { name, password } => {
                ConnectOptions::with_user_and_password(name.clone(), password.expose().to_owned())
            }
            Login::Token(token) => ConnectOptions::with_token(token.expose().to_owned()),
            Login::Credentials(file) => ConnectOptions::with_credentials(&read(file)?).map_err(|_| {
                unusable(file, "it does not hold a user JWT and a seed between lines of dashes, as nsc writes them")
            })?,
            Login::Nkey(file) => ConnectOptions::with_nkey(seed(file, &read(file)?)?),
        };
        options = options
            .name("leaderrun")
            .require_tls(self.address.demand_tls)
            .connection_timeout(self.bound)
            .request_timeout(None)
            .subscription_capacity(SUBSCRIPTION_CAPACITY)
            // Our hosts are raced by us; those that a server tells of may be out of reach.
            .ignore_discovered_servers()
            // The fewest that it takes (none means for ever). It ends for good when they are used up.
            .max_reconnects(1)
            .reconnect_delay_callback(|_| Duration::ZERO);
        let files = &self.address.files;
        if let Some(ca) = &files.ca {
            options = options.add_root_certificates(ca.clone());
        }
        if let (Some(cert), Some(key)) = (&files.cert, &files.key) {
            options = options.add_client_certificate(cert.clone(), key.clone());
        }
        if let Some(inbox) = &self.address.inbox {
            options = options.custom_inbox_prefix(inbox);
        }
        Ok(options)
    }

    fn unconnected(&self, server: &str, kind: ConnectErrorKind, error: &(dyn Error + 'static)) -> StoreError {
        let unreachable = |why: &str| StoreError::not_applied(format!("cannot reach {server}: {why}"));
        if kind == ConnectErrorKind::AuthorizationViolation {
            let login = self.address.login.describe();
            return StoreError::denied(format!("{server} denied {login}: authorization violation"));
        }
        if kind == ConnectErrorKind::Authentication {
            let login = self.address.login.describe();
            return StoreError::misconfigured(format!("cannot log in to {server}: {login} cannot sign"));
        }
        if let Some(error) = causes(error).find_map(|cause| cause.downcast_ref::<rustls::Error>()) {
            return tls_failed(server, error);
        }
        if kind == ConnectErrorKind::TimedOut {
            return unreachable(&format!("no answer within {}", show(self.bound)));
        }
        unreachable(&innermost(error))
    }
}

fn tls_failed(server: &str, error: &rustls::Error) -> StoreError {
    let message = format!("TLS with {server} failed: {error}");
    match error {
        rustls::Error::InvalidCertificate(_) => StoreError::misconfigured(format!(
            "{message}: name the authority that signed its certificate with ca=FILE, and the host as the certificate does"
        )),
        rustls::Error::InvalidMessage(_) => {
            StoreError::misconfigured(format!("{message}: it may speak no TLS; nats://HOST/BUCKET does without"))
        }
        rustls::Error::AlertReceived(_) => {
            StoreError::denied(format!("{message}: it may want another certificate of ours (cert=FILE and key=FILE)"))
        }
        _ => StoreError::not_applied(message),
    }
}

/// It is read with each connection, on the thread that elects: a FIFO in its place must not hold that up.
fn read(file: &Path) -> Result<String, StoreError> {
    let mut options = File::options();
    let opened = options.read(true).custom_flags(libc::O_NONBLOCK).open(file);
    let opened = opened.map_err(|error| unusable(file, &error.kind().to_string()))?;
    if !opened.metadata().is_ok_and(|found| found.is_file()) {
        return Err(unusable(file, "it is no regular file"));
    }
    let mut text = String::new();
    let read = opened.take(LONGEST_CREDENTIALS).read_to_string(&mut text);
    read.map(|_| text).map_err(|error| unusable(file, &error.kind().to_string()))
}

/// The seed in a file, which may say other things in other lines.
fn seed(file: &Path, text: &str) -> Result<String, StoreError> {
    let of_user = |word: &&str| word.len() == 58 && word.starts_with("SU");
    let seed = text.split_whitespace().find(of_user);
    seed.map(ToOwned::to_owned).ok_or_else(|| unusable(file, "it does not hold the seed of a user, SU..."))
}

fn unusable(file: &Path, why: &str) -> StoreError {
    StoreError::misconfigured(format!("{} cannot be used to log in: {why}", file.display()))
}

/// None when this process took much memory meanwhile.
async fn in_moderation<T>(connecting: impl Future<Output = T>) -> Option<T> {
    let (mut connecting, before) = (pin!(connecting), resident_bytes());
    poll_fn(|context| {
        // The library reads for a while, and lets others have their turn. A grown buffer stays until it is dropped.
        if resident_bytes().saturating_sub(before) > MOST_FOR_CONNECTING {
            return Poll::Ready(None);
        }
        connecting.as_mut().poll(context).map(Some)
    })
    .await
}

/// Zero where it is not told.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
    kilobytes.and_then(|kilobytes| kilobytes.parse::<u64>().ok()).map_or(0, |kilobytes| kilobytes << 10)
}

impl Connection {
    /// Something arrived whole.
    pub fn heard(&self) {
        self.meter.begin_again(MOST_OF_NATS);
    }

    fn complaint(&self) -> String {
        complaint(&self.server, "nats", self.meter.most.load(Ordering::Relaxed))
    }

    fn silence(&self) -> MutexGuard<'_, Silence> {
        self.silence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_broken(&self) -> bool {
        self.trouble.borrow().broken || self.trouble.has_changed().is_err()
    }

    /// Of the server, as far as the first two numbers go.
    pub fn version(&self) -> Option<(u32, u32)> {
        let version = self.client.server_info().version;
        let mut numbers = version.split('.').map_while(|part| part.parse().ok());
        numbers.next().zip(numbers.next())
    }

    /// Denials so far: those that come later are about what is asked later.
    pub fn denials(&self) -> u64 {
        self.trouble.borrow().count
    }
}

impl Silence {
    fn lasts(&self, so_long: Duration) -> bool {
        self.pending > 0 && BootInstant::now().since(self.since) >= so_long
    }
}

impl Trouble {
    fn take_in(&mut self, event: &Event) -> bool {
        match event {
            Event::Disconnected | Event::Closed => {
                self.broken = true;
                true
            }
            Event::ServerError(error) => {
                // nats: Permissions Violation for Publish to "SUBJECT", in whatever case this server likes.
                let text = in_short(&error.to_string());
                let lower = text.to_lowercase();
                if !lower.contains("permissions violation") {
                    return false;
                }
                let text = text.trim_start_matches("nats: ").to_owned();
                if lower.contains("for subscription") {
                    self.deaf = Some(text.clone());
                }
                self.count += 1;
                self.denials.push_back(text);
                if self.denials.len() > MOST_DENIALS {
                    self.denials.pop_front();
                }
                true
            }
            Event::Connected
            | Event::LameDuckMode
            | Event::Draining
            | Event::SlowConsumer(_)
            | Event::ClientError(_) => false,
        }
    }

    fn concerns(&self, subject: &str, before: u64) -> bool {
        self.broken || self.denial(subject, before).is_some()
    }

    /// That a request on `subject` was refused after `before` other refusals, or that no answer will be heard.
    fn denial(&self, subject: &str, before: u64) -> Option<String> {
        let new = usize::try_from(self.count - before).unwrap_or(usize::MAX);
        let quoted = format!("\"{subject}\"");
        let refused = self.denials.iter().rev().take(new).find(|denial| denial.contains(&quoted));
        self.deaf.as_ref().or(refused).cloned()
    }
}

/// One request on a link, for as long as it is under way.
struct Exchange<'a> {
    connections: &'a Connections,
    connection: &'a Arc<Connection>,
    heard: bool,
}

impl<'a> Exchange<'a> {
    fn begin(connections: &'a Connections, connection: &'a Arc<Connection>) -> Self {
        let mut silence = connection.silence();
        if silence.pending == 0 {
            silence.since = BootInstant::now();
        }
        silence.pending += 1;
        drop(silence);
        Self { connections, connection, heard: false }
    }
}

impl Drop for Exchange<'_> {
    /// Also when the request is cut off from outside.
    fn drop(&mut self) {
        let mut silence = self.connection.silence();
        // What is cut off soon says nothing about its connection.
        let silent = !self.heard && silence.lasts(self.connections.patience());
        silence.pending -= 1;
        if self.heard {
            silence.since = BootInstant::now();
        }
        drop(silence);
        if silent {
            self.connections.discard(self.connection);
        }
    }
}
