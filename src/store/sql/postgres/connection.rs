//! One connection to the server, and the task that moves its bytes.
//!
//! The hazards:
//!
//! - A connection may be dead without any sign of it. So each one ends here: when its [`Connection`] is dropped, the
//!   socket is closed at once, whatever was under way on it, and no request waits for an answer any more.
//! - A statement that no request waits for may go on in the server, behind a row that is locked. So the server must
//!   give up too: each connection begins with a `statement_timeout`.
//! - The other side may be a pooler, which gives each transaction another server session. Nothing here relies on what
//!   an earlier statement left behind in the session, except code that first checks [`Connection::direct`].

use super::address::Address;
use super::failure;
use crate::store::allowance::{Allowance, Counted, MOST};
use crate::store::socket::Socket;
use crate::store::sql::places::Place;
use crate::store::sql::site::Site;
use crate::store::tls_mode::TlsMode;
use crate::store::{ErrorKind, StoreError};
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{broadcast, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_postgres::config::SslMode;
use tokio_postgres::error::{DbError, SqlState};
use tokio_postgres::tls::{MakeTlsConnect, NoTls, TlsConnect};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Config, Connection as Driver, Error, Row};
use tokio_postgres_rustls::MakeRustlsConnect;

/// The most notifications that wait to be read. If there are more, they count as news for every shard.
const INBOX: usize = 64;
/// The longest notification of any server. Shards' names are shorter.
const LONGEST_NOTIFICATION: usize = 8000;

/// A statement's parameters, each with its type. So preparing the statement needs no round trip, and no name, which a
/// pooler would lose.
pub type Parameters<'a> = [(&'a (dyn ToSql + Sync), Type)];

pub struct Connection {
    client: Client,
    allowance: Allowance,
    task: JoinHandle<()>,
    inbox: broadcast::Sender<Arc<str>>,
    /// The task has its sender.
    open: watch::Receiver<()>,
    pub backend: Backend,
    /// The server sees our own socket: there is no pooler in between.
    pub direct: bool,
    /// LISTEN was sent on it.
    listens: AtomicBool,
    /// Whether notifications arrive; empty until that was tested.
    pub pushes: OnceLock<bool>,
    /// How many requests are under way.
    pub in_use: AtomicUsize,
    /// The server can tell its timeline.
    pub has_timeline: bool,
}

/// The timeline of the server's log. A standby does not tell it, so it answers none of our requests.
const TIMELINE: &str = "substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)";
/// In its place where the server has another log, or does not let every user see it.
const NO_TIMELINE: &str = "CASE WHEN pg_is_in_recovery() THEN 'standby' ELSE '-' END";

/// The server's process at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backend {
    pub pid: i32,
    /// When the process started, in microseconds since 1970 by the server's clock: another process may get its pid
    /// later.
    pub started: i64,
}

/// What a connection needs to know in addition to the place.
pub struct Login<'a> {
    pub address: &'a Address,
    pub site: &'a Site,
    pub tls: Option<&'a MakeRustlsConnect>,
    /// None if the other side does not understand startup options.
    pub statement_timeout: Option<Duration>,
    pub channel: &'a str,
    pub has_timeline: bool,
    pub deadline: Instant,
    /// Set once the network connection is made: the rest is up to the server.
    pub reached: &'a AtomicBool,
}

/// The reason why there is no session.
pub enum Refusal {
    /// The other side is a pooler that accepts no startup options.
    NoOptions,
    /// The server has no write-ahead log to ask for its timeline.
    NoTimeline,
    /// The server is a standby.
    ReadOnly,
    Failed(StoreError),
}

impl Connection {
    /// Connects, logs in, and asks what is on the other side.
    pub async fn begin(login: &Login<'_>, place: &Place) -> Result<(Self, OwnedFd), Refusal> {
        let Login { address, site, .. } = login;
        let unreachable = |error: io::Error| Refusal::Failed(site.unreachable("PostgreSQL", &error));
        let socket = place.reach(login.deadline).await.map_err(unreachable)?;
        let name = place.name();
        login.reached.store(true, Ordering::Relaxed);
        let allowance = Allowance::of(MOST);
        let local_port = socket.local_port().map_err(unreachable)?;
        let descriptor = socket.descriptor().map_err(unreachable)?;

        let mut config = Config::new();
        config.user(&site.user).dbname(&address.database).application_name(&address.application_name);
        if let Some(password) = address.password() {
            config.password(password.expose());
        }
        if let Some(timeout) = login.statement_timeout {
            config.options(format!("-c statement_timeout={}", timeout.as_millis().max(1)));
        }
        // As in libpq: traffic that does not leave this machine needs no TLS.
        let connector = login.tls.filter(|_| name.is_some());
        config.ssl_mode(match (connector, address.tls_mode) {
            (None, _) => SslMode::Disable,
            (Some(_), TlsMode::Prefer) => SslMode::Prefer,
            (Some(_), _) => SslMode::Require,
        });
        let failed = |error: &Error| match error.code() {
            _ if allowance.is_exceeded() => {
                Refusal::Failed(StoreError::not_applied(allowance.complaint(&site.server, "PostgreSQL")))
            }
            Some(_) if login.statement_timeout.is_some() && refuses_options(error) => Refusal::NoOptions,
            _ => {
                let failure = failure::unconnected(site, error);
                let about_password = failure.message.contains("password").then(|| address.about_password()).flatten();
                Refusal::Failed(match about_password {
                    Some(advice) => StoreError { message: format!("{}: {advice}", failure.message), ..failure },
                    None => failure,
                })
            }
        };
        let (parts, client) = match connector {
            Some(connector) => {
                let tls = MakeTlsConnect::<Counted<Socket>>::make_tls_connect(
                    &mut connector.clone(),
                    name.unwrap_or_default(),
                );
                let Ok(tls) = tls;
                login_with(&config, socket, tls, login.channel, &allowance).await
            }
            None => login_with(&config, socket, NoTls, login.channel, &allowance).await,
        }
        .map_err(|error| failed(&error))?;
        let connection = Self::greet(login, client, allowance, parts, local_port).await?;
        Ok((connection, descriptor))
    }

    async fn greet(
        login: &Login<'_>,
        client: Client,
        allowance: Allowance,
        parts: Parts,
        local_port: Option<u16>,
    ) -> Result<Self, Refusal> {
        let mut connection = Self {
            client,
            allowance,
            task: parts.task,
            inbox: parts.inbox,
            open: parts.open,
            backend: Backend { pid: 0, started: 0 },
            direct: false,
            listens: AtomicBool::new(false),
            pushes: OnceLock::new(),
            in_use: AtomicUsize::new(0),
            has_timeline: login.has_timeline,
        };
        // Here it does no harm to find out whether the server can tell its timeline.
        let timeline = connection.timeline();
        // Only who holds an advisory lock asks later whether this process is still there. To tell it, the server looks
        // at all of its processes, and a thousand candidates that connect at once would wait for that.
        let started = if login.address.advisory_lock.is_some() {
            "(SELECT (extract(epoch FROM backend_start) * 1000000)::bigint FROM pg_stat_activity \
             WHERE pid = pg_backend_pid())"
        } else {
            "NULL::bigint"
        };
        let question = format!(
            "SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean, pg_backend_pid(), \
             {started}, inet_client_port(), CASE WHEN NOT pg_is_in_recovery() THEN {timeline} END"
        );
        let refusal = |error: &Error| match error.as_db_error() {
            Some(said) if login.has_timeline && knows_no_timeline(said.code()) => Refusal::NoTimeline,
            _ => {
                let StoreError { message, .. } = connection.unanswered(login.site, error);
                Refusal::Failed(StoreError::not_applied(message))
            }
        };
        let row = connection.ask(&question, &[]).await.map_err(|error| refusal(&error))?;
        let read = || {
            let row = row.first()?;
            let (pid, started) = (row.try_get(1).ok()?, row.try_get::<_, Option<i64>>(2).ok()?);
            let port = row.try_get::<_, Option<i32>>(3).ok()?;
            Some((row.try_get::<_, bool>(0).ok()?, Backend { pid, started: started.unwrap_or(0) }, port))
        };
        let Some((read_only, backend, port)) = read() else {
            let failure = StoreError { kind: ErrorKind::NotApplied, ..login.site.not_understood() };
            return Err(Refusal::Failed(failure));
        };
        if read_only {
            return Err(Refusal::ReadOnly);
        }
        connection.backend = backend;
        connection.direct = local_port.is_some() && port == local_port.map(i32::from);
        Ok(connection)
    }

    /// How its server tells the timeline, in SQL.
    pub fn timeline(&self) -> &'static str {
        if self.has_timeline { TIMELINE } else { NO_TIMELINE }
    }

    /// Sends one statement, in one round trip.
    pub async fn ask(&self, statement: &str, parameters: &Parameters<'_>) -> Result<Vec<Row>, Error> {
        self.client.query_typed(statement, parameters).await
    }

    /// Runs several statements in one transaction, without parameters.
    pub async fn run(&self, statements: &str) -> Result<(), Error> {
        self.client.batch_execute(statements).await
    }

    /// The error for a failure of [`Connection::ask`] or [`Connection::run`].
    pub fn unanswered(&self, site: &Site, error: &Error) -> StoreError {
        if self.allowance.is_exceeded() {
            StoreError::unknown(self.allowance.complaint(&site.server, "PostgreSQL"))
        } else {
            failure::unanswered(site, error)
        }
    }

    pub async fn listen(&self, statement: &str) -> Result<(), Error> {
        self.run(statement).await?;
        self.listens.store(true, Ordering::Relaxed);
        Ok(())
    }

    pub fn listens(&self) -> bool {
        self.listens.load(Ordering::Relaxed)
    }

    /// Whether it is open, with no request under way.
    pub fn is_idle(&self) -> bool {
        self.is_open() && self.in_use.load(Ordering::Relaxed) == 0
    }

    pub fn is_open(&self) -> bool {
        !self.client.is_closed() && !self.task.is_finished()
    }

    /// The notifications that arrive from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<str>> {
        self.inbox.subscribe()
    }

    /// A receiver that closes when the connection does.
    pub fn end(&self) -> watch::Receiver<()> {
        self.open.clone()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Otherwise the task would wait for answers that nobody wants, for ever on a dead connection.
        self.task.abort();
    }
}

/// Returns when the connection of `end` is closed.
pub async fn ended(mut end: watch::Receiver<()>) {
    while end.changed().await.is_ok() {}
}

/// Poolers have no code of their own for this.
fn refuses_options(error: &Error) -> bool {
    let said = error.as_db_error().map(DbError::message).unwrap_or_default();
    said.contains("startup parameter") || said.contains("options")
}

/// For servers with another log than PostgreSQL's, and for servers that do not let every user see it.
fn knows_no_timeline(code: &SqlState) -> bool {
    [SqlState::FEATURE_NOT_SUPPORTED, SqlState::UNDEFINED_FUNCTION, SqlState::INSUFFICIENT_PRIVILEGE].contains(code)
}

struct Parts {
    task: JoinHandle<()>,
    inbox: broadcast::Sender<Arc<str>>,
    open: watch::Receiver<()>,
}

async fn login_with<T>(
    config: &Config,
    socket: Socket,
    tls: T,
    channel: &str,
    allowance: &Allowance,
) -> Result<(Parts, Client), Error>
where
    T: TlsConnect<Counted<Socket>>,
    T::Stream: Send + 'static,
{
    let (client, mut connection) = config.connect_raw(Counted::new(socket, allowance), tls).await?;
    let (inbox, _) = broadcast::channel(INBOX);
    let (opened, open) = watch::channel(());
    let (news, channel) = (inbox.clone(), channel.to_owned());
    let task = tokio::spawn(async move {
        while let Some(Ok(message)) = next_message(&mut connection).await {
            let AsyncMessage::Notification(notification) = message else { continue };
            // No more of it is kept than the inbox holds.
            if notification.channel() == channel && notification.payload().len() <= LONGEST_NOTIFICATION {
                // An error means that nobody listens.
                let _ = news.send(notification.payload().into());
            }
        }
        drop(opened);
    });
    Ok((Parts { task, inbox, open }, client))
}

async fn next_message<T>(connection: &mut Driver<Counted<Socket>, T>) -> Option<Result<AsyncMessage, Error>>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    poll_fn(|context| connection.poll_message(context)).await
}
