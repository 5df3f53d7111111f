//! `get_lock=NAME`: the lock of GET_LOCK that is held in addition to the lease, so that leaderrun and programs that
//! elect with `GET_LOCK('NAME', ...)` exclude each other.
//!
//! The hazards, beside those of every such lock (`session_lock`):
//!
//! - The session may end while we lead: a restart, KILL, a server that finds it idle. So each renewal makes the session
//!   confirm that it holds the lock, and takes the lock again if it does not. If another program was faster, the
//!   leadership ends. For the same reason the server may end a session that is silent: not before the lease ends.
//! - A session of ours that is lost to us and not to the server is ended, and no other one may be. A session's number
//!   does not show whose it is: after a restart the server counts from the beginning. So each session of ours first
//!   takes a lock with a name that nobody else knows, and what holds such a lock is ours.
//! - Behind a proxy that gives each statement another session, the lock would belong to the next client. So the session
//!   that took it must be the one that answers.

use super::connection::Connection;
use super::failure::Site;
use super::server::Server;
use super::statement::text;
use super::wire::Row;
use crate::lease::Session;
use crate::store::session_lock::{Keeper, SessionLock, Taken};
use crate::store::{Holder, StoreError};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout, timeout_at};

/// The pause between two attempts while a session of ours ends.
const PAUSE: Duration = Duration::from_millis(20);

pub struct GetLock {
    pub name: String,
    pub lock: SessionLock<Held>,
    /// The names of the locks that show which sessions are ours begin with this.
    prefix: String,
    /// How many sessions there were.
    sessions: AtomicU64,
}

/// A session that holds the lock, and the task that watches its connection.
pub struct Held {
    /// The number in the name of the lock that shows that it is ours.
    mark: u64,
    questions: mpsc::Sender<(String, oneshot::Sender<Option<i64>>)>,
    pub end: watch::Receiver<()>,
    task: JoinHandle<()>,
}

impl Drop for Held {
    /// Closes the connection.
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Keeper for Held {
    type Id = u64;

    fn id(&self) -> u64 {
        self.mark
    }

    fn is_open(&self) -> bool {
        !self.task.is_finished()
    }
}

impl Held {
    fn keep(mark: u64, mut connection: Connection) -> Self {
        let (questions, mut asked) = mpsc::channel::<(String, oneshot::Sender<Option<i64>>)>(1);
        let (opened, end) = watch::channel(());
        let task = tokio::spawn(async move {
            loop {
                let question = tokio::select! {
                    question = asked.recv() => question,
                    () = connection.ended() => None,
                };
                let Some((question, answer)) = question else { break };
                let mut outcomes = Vec::new();
                let Ok(()) = connection.ask(&question, &mut outcomes).await else { break };
                // An error means that nobody waits for it any more.
                let _ = answer.send(outcomes.first().and_then(|outcome| outcome.rows.first()?.number(0)));
            }
            drop(opened);
        });
        Self { mark, questions, end, task }
    }

    /// The number that the session answers.
    async fn ask(&self, question: String) -> Option<i64> {
        let (answer, answered) = oneshot::channel();
        self.questions.send((question, answer)).await.ok()?;
        answered.await.ok()?
    }
}

impl GetLock {
    /// # Errors
    /// As [`SessionLock::new`], and if the kernel gives no random bytes.
    pub fn new(name: &str) -> Result<Self, StoreError> {
        let random = Session::random();
        let random = random.map_err(|error| StoreError::not_applied(format!("no random bytes for a name: {error}")))?;
        Ok(Self {
            name: name.to_owned(),
            lock: SessionLock::new()?,
            prefix: format!("leaderrun-{}", random.as_str()),
            sessions: AtomicU64::new(0),
        })
    }

    /// The lock that shows that a session is ours.
    fn marking_lock(&self, mark: u64) -> String {
        // The server takes at most 64 letters.
        text(&format!("{}-{mark:x}", self.prefix))
    }

    /// The question for the session that holds the lock, and for our own sessions: see [`GetLock::read`].
    pub fn holder(&self) -> String {
        let own = self.lock.own().into_iter().map(|mark| format!(", IS_USED_LOCK({})", self.marking_lock(mark)));
        format!("SELECT IS_USED_LOCK({}){}", text(&self.name), own.collect::<String>())
    }

    /// The number of the session that holds the lock, and whether it is ours.
    fn read(holder: &Row) -> Option<(i64, bool)> {
        let id = holder.number(0)?;
        Some((id, (1..holder.0.len()).any(|column| holder.number(column) == Some(id))))
    }

    /// The holder of the lock in the answer to [`GetLock::holder`], unless it is one of our own sessions.
    pub fn stranger_in(&self, holder: &Row) -> Option<Holder> {
        Self::read(holder).filter(|&(_, is_ours)| !is_ours).map(|(id, _)| self.stranger(id))
    }

    fn confirmation(&self) -> String {
        format!("SELECT COALESCE(IS_USED_LOCK({}) = CONNECTION_ID(), 0)", text(&self.name))
    }

    /// Takes the lock, or confirms that we hold it.
    pub async fn take(&self, server: &Server, lease: Duration) -> Result<Taken, StoreError> {
        let deadline = server.deadline();
        let silent = || StoreError::not_applied(format!("{} did not answer in time", server.site.server));
        let _alone = timeout_at(deadline, self.lock.alone()).await.map_err(|_| silent())?;
        if let Some(held) = self.lock.held() {
            // If the session is silent, there must be time left for another one.
            if timeout(server.bound / 3, held.ask(self.confirmation())).await == Ok(Some(1)) {
                return Ok(Taken::Ours);
            }
        }
        self.lock.abandon();
        let mut connection = server.connect(deadline).await?;
        if connection.is_galera {
            return Err(StoreError::misconfigured(format!(
                "get_lock= excludes nobody on {}: it is a node of a Galera cluster, and the other nodes do not know its \
                 locks",
                server.site.server
            )));
        }
        let mark = self.sessions.fetch_add(1, Ordering::Relaxed);
        self.lock.may_hold(mark);
        let attempt = format!(
            "SET SESSION wait_timeout = {}; DO GET_LOCK({}, 0); SELECT GET_LOCK({}, 0); {}",
            patience(lease),
            self.marking_lock(mark),
            text(&self.name),
            self.holder()
        );
        loop {
            let rows = timeout_at(deadline, rows(&server.site, &mut connection, &attempt));
            let rows = rows.await.map_err(|_| silent())??;
            let Some((holder, is_ours)) = rows.get(1).and_then(Self::read) else { continue };
            if rows[0].number(0) == Some(1) {
                let (id, question) = (connection.id, self.confirmation());
                let confirmed = timeout_at(deadline, self::rows(&server.site, &mut connection, &question));
                let confirmed = confirmed.await.map_err(|_| silent())??.first().and_then(|row| row.number(0));
                if holder != id || confirmed != Some(1) {
                    return Err(StoreError::misconfigured(format!(
                        "get_lock= wants a session of its own, and {} does not give one, as a proxy does not: name the \
                         server itself",
                        server.site.server
                    )));
                }
                self.lock.anchor(&connection.descriptor)?;
                self.lock.keep(Held::keep(mark, connection));
                return Ok(Taken::Ours);
            }
            if !is_ours {
                self.lock.does_not_hold(mark);
                return Ok(Taken::Theirs(self.stranger(holder)));
            }
            // A server that has restarted since has ended this connection, too. That the session is gone already shows
            // with the next attempt.
            let mut outcomes = Vec::new();
            let killed = timeout_at(deadline, connection.ask(&format!("KILL {holder}"), &mut outcomes)).await;
            if let Err(trouble) = killed.map_err(|_| silent())?
                && trouble.is_broken()
            {
                return Err(server.site.unanswered(&trouble, false));
            }
            sleep(PAUSE).await;
        }
    }

    /// The holder of the lock, for people.
    fn stranger(&self, id: i64) -> Holder {
        let owner = format!("another program (holds the lock {:?} of GET_LOCK, connection {id})", self.name);
        Holder { owner, ..Holder::default() }
    }

    /// Frees the lock, so that the next one to ask finds it free. The tree must be dead.
    pub async fn let_go(&self, server: &Server) {
        if let Some(held) = self.lock.held() {
            // Closing the connection frees it too, but not at once.
            let freed = held.ask(format!("SELECT RELEASE_LOCK({})", text(&self.name)));
            if timeout(server.bound / 3, freed).await == Ok(Some(1)) {
                return self.lock.freed();
            }
        }
        self.lock.abandon();
    }
}

/// The first rows in the answers to those of the statements that have rows.
async fn rows(site: &Site, connection: &mut Connection, statements: &str) -> Result<Vec<Row>, StoreError> {
    let mut outcomes = Vec::new();
    let asked = connection.ask(statements, &mut outcomes).await;
    asked.map_err(|trouble| site.unanswered(&trouble, false))?;
    Ok(outcomes.into_iter().filter_map(|outcome| outcome.rows.into_iter().next()).collect())
}

/// After how many seconds of silence the server takes the session for dead: a lease, and an allowance for drift. Each
/// renewal asks the session after it has renewed the row, so the lease has ended by then, and the tree is dead.
fn patience(lease: Duration) -> u64 {
    (lease + lease / 10).as_secs().saturating_add(2)
}
