//! PostgreSQL: its client, and the advisory lock of other programs.
//!
//! The hazards:
//!
//! - A server that does not wait for its disk may forget what it confirmed, and a pooler forgets settings. So each
//!   request begins with settings for its own transaction.
//! - A commit may be confirmed although no synchronous standby has it, because a user cancelled the wait. Only a
//!   warning says so. So this answer counts as unknown, and so do all later ones on the connection.
//! - LISTEN and an advisory lock need a session of their own. So they are used only where the connection has one for
//!   certain.

mod advisory;
mod watch;

use super::address::Address;
use super::client::{self, Cells, MOST_ROWS, is_true};
use super::failure::{Failure, Meaning, Site, Trouble};
use super::server::Server;
use super::{Rows, patience};
use crate::store::StoreError;
use crate::store::allowance::{Allowance, Counted, MOST, TooLong};
use crate::store::error::innermost;
use crate::store::foreign_lock::ForeignLock;
use crate::store::socket::{Place, Socket};
use crate::store::tls_mode::TlsMode;
use crate::text;
use advisory::Advisory;
use futures_util::TryStreamExt as _;
use rustls::ClientConfig;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{OnceCell, broadcast};
use tokio::task::JoinSet;
use tokio_postgres::config::SslMode;
use tokio_postgres::error::Severity;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{AsyncMessage, Client, Config, Error, SimpleQueryMessage};
use tokio_postgres_rustls::MakeRustlsConnect;

/// The most unread notifications. If there are more, they count as news for every shard.
const INBOX: usize = 64;

/// The timeline of the server's log. A standby does not tell it, and then every request there fails.
const TIMELINE: &str = "substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)";
/// The routine that warns of a cancelled wait for a synchronous standby. Its text is in the server's language.
const STANDBY_WAIT: &str = "SyncRepWaitForLSN";
/// In place of the timeline, where the server has another log or does not show it to every user.
const NO_TIMELINE: &str = "'-'";
/// The errors of such a server: not supported, no such function, denied.
const TIMELINE_ERRORS: [&str; 3] = ["0A000", "42883", "42501"];

pub fn open(address: &Address, request_timeout: Duration) -> Result<Rows<Connection>, StoreError> {
    let server = Arc::new(Server::new(address, request_timeout)?);
    let lock = address.advisory_lock.map(|key| Advisory::new(key, &server)).transpose()?;
    Ok(Rows::new(server, lock.map(|lock| Box::new(lock) as Box<dyn ForeignLock>)))
}

pub struct Connection {
    client: Client,
    allowance: Allowance,
    site: Site,
    /// Ends with the connection, or it would wait for answers for ever if that is dead.
    _task: JoinSet<()>,
    /// A commit on it may be on no standby.
    is_alone: Arc<AtomicBool>,
    /// What other sessions tell of. Closed with the connection.
    inbox: broadcast::Receiver<Arc<str>>,
    descriptor: OwnedFd,
    /// The server sees our own socket, so there is no pooler in between.
    direct: bool,
    /// Whether notifications arrive, once LISTEN was sent.
    hears: OnceCell<bool>,
    settings: String,
}

#[async_trait::async_trait]
impl client::Connection for Connection {
    const POLL: Duration = Duration::from_secs(2);
    const TAKES_SEVERAL: bool = true;

    async fn begin(server: &Server<Self>, site: Site, place: &Place, socket: Socket) -> Result<Self, StoreError> {
        let address = &server.address;
        let local = socket.local_port().and_then(|port| Ok((port, socket.descriptor()?)));
        let (port, descriptor) = local.map_err(|error| site.unreachable(&error))?;
        let mut config = Config::new();
        config.user(&site.user).dbname(&address.database).application_name(&address.application_name);
        if let Some(password) = address.password() {
            config.password(password.expose());
        }
        // As in libpq: traffic that does not leave this machine needs no TLS.
        config.ssl_mode(match (place.name(), address.tls_mode) {
            (None, _) | (_, TlsMode::Disable) => SslMode::Disable,
            (Some(_), TlsMode::Prefer) => SslMode::Prefer,
            (Some(_), _) => SslMode::Require,
        });
        let name = place.name().unwrap_or_default();
        let mut tls = MakeRustlsConnect::new(ClientConfig::clone(&server.tls));
        let Ok(tls) = MakeTlsConnect::<Counted<Socket>>::make_tls_connect(&mut tls, name);
        let allowance = Allowance::of(MOST);
        let connected = config.connect_raw(Counted::new(socket, &allowance), tls).await;
        let (client, mut driver) = connected.map_err(|error| unconnected(&site, error))?;
        let (news, inbox) = broadcast::channel(INBOX);
        let channel = server.statements.channel.clone();
        let is_alone = Arc::new(AtomicBool::new(false));
        let warned = Arc::clone(&is_alone);
        let mut task = JoinSet::new();
        task.spawn(async move {
            while let Some(Ok(message)) = poll_fn(|context| driver.poll_message(context)).await {
                match message {
                    AsyncMessage::Notification(notice) if notice.channel() == channel => {
                        let _ = news.send(notice.payload().into());
                    }
                    AsyncMessage::Notice(notice) if notice.routine() == Some(STANDBY_WAIT) => {
                        warned.store(true, Ordering::Relaxed);
                    }
                    _ => {}
                }
            }
        });
        let mut connection = Self {
            client,
            allowance,
            site,
            _task: task,
            is_alone,
            inbox,
            descriptor,
            direct: false,
            hears: OnceCell::new(),
            settings: String::new(),
        };
        connection.greet(port, patience(server.bound)).await?;
        Ok(connection)
    }

    fn is_open(&self) -> bool {
        !self.client.is_closed()
    }

    async fn tell(&self, statements: &str) -> Result<Vec<Cells>, Failure> {
        let rows = self.ask(&format!("{}; {statements}", self.settings)).await;
        let rows = rows.map_err(|trouble| self.site.unanswered(trouble))?;
        if self.is_alone.load(Ordering::Relaxed) {
            let cancelled = "a commit whose wait for a synchronous standby was cancelled";
            return Err(self.site.explained(Meaning::Unknown, cancelled).into());
        }
        Ok(rows)
    }

    async fn subscribe(server: &Server<Self>) -> Result<Option<broadcast::Receiver<Arc<str>>>, StoreError> {
        let shared = server.borrow().await?;
        let inbox = shared.connection.inbox.resubscribe();
        Ok(watch::hears(server, &shared.connection).await?.then_some(inbox))
    }
}

impl Connection {
    async fn greet(&mut self, port: Option<u16>, patience: Duration) -> Result<(), StoreError> {
        let question = |timeline: &str| {
            format!(
                "SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean, \
                 inet_client_port() = {}, CASE WHEN NOT pg_is_in_recovery() THEN {timeline} END",
                port.map_or("NULL".to_owned(), |port| port.to_string())
            )
        };
        let mut timeline = TIMELINE;
        let mut answer = self.ask(&question(timeline)).await;
        if matches!(&answer, Err(Trouble::Said { code, .. }) if TIMELINE_ERRORS.contains(&code.as_str())) {
            timeline = NO_TIMELINE;
            answer = self.ask(&question(timeline)).await;
        }
        let rows = answer.map_err(|trouble| self.site.unusable(&self.site.unanswered(trouble)))?;
        if is_true(&rows, 0) {
            return Err(self.site.explained(Meaning::NoWrites, "it is a standby, or read-only by its settings"));
        }
        self.direct = is_true(&rows, 1);
        let patience = patience.as_millis().max(1);
        self.settings = format!(
            "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; SELECT set_config('lock_timeout', '{patience}', true), \
             set_config('statement_timeout', '{patience}', true), set_config('leaderrun.timeline', {timeline}, true), \
             CASE WHEN current_setting('synchronous_commit') = 'off' \
             THEN set_config('synchronous_commit', 'local', true) END"
        );
        Ok(())
    }

    async fn ask(&self, statements: &str) -> Result<Vec<Cells>, Trouble> {
        let failed = |error: Error| match error.into() {
            // The library says only that the connection was closed.
            Trouble::Lost(_) if self.allowance.is_exceeded() => io::Error::other(TooLong).into(),
            trouble => trouble,
        };
        let mut answer = pin!(self.client.simple_query_raw(statements).await.map_err(failed)?);
        let mut rows = Vec::new();
        while let Some(message) = answer.try_next().await.map_err(failed)? {
            match message {
                SimpleQueryMessage::RowDescription(_) => rows.clear(),
                SimpleQueryMessage::Row(_) if rows.len() >= MOST_ROWS => return Err(Trouble::Garbled),
                SimpleQueryMessage::Row(row) => {
                    rows.push((0..row.len()).map(|index| row.get(index).map(str::to_owned)).collect());
                }
                _ => {}
            }
        }
        Ok(rows)
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        let Some(said) = error.as_db_error() else { return Self::Lost(Box::new(error)) };
        Self::Said {
            code: said.code().code().to_owned(),
            message: said.message().to_owned(),
            // A FATAL may have come after the commit.
            is_final: said.parsed_severity() != Some(Severity::Error),
        }
    }
}

fn unconnected(site: &Site, error: Error) -> StoreError {
    let Site { server, user, .. } = site;
    let failure = site.unconnected(match innermost(&error).as_str() {
        "password missing" => Trouble::Unfit(StoreError::denied(format!(
            "{server} asks for the password of user {user}: write it in the URL, or in PGPASSWORD"
        ))),
        method @ ("unsupported authentication method" | "unsupported SASL mechanism") => {
            Trouble::Unproven(method.to_owned())
        }
        "server does not support TLS" => Trouble::Unfit(site.without_tls("sslmode=prefer")),
        _ => error.into(),
    });
    // From which psql would read passwords.
    let usual = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".pgpass"));
    match std::env::var_os("PGPASSFILE").map(PathBuf::from).or_else(usual) {
        Some(file) if failure.message.contains("password") && file.exists() => StoreError {
            message: format!("{} (leaderrun does not read {})", failure.message, text::shown(&file.to_string_lossy())),
            ..failure
        },
        _ => failure,
    }
}
