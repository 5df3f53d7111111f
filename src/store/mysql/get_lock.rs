//! `get_lock=NAME`: the lock of GET_LOCK that is held in addition to the lease, so that leaderrun and programs that elect
//! with `GET_LOCK('NAME', ...)` exclude each other.
//!
//! The hazards, beside those of every such lock (`session_lock`):
//!
//! - The session may end while we lead: a restart, KILL, a server that finds it idle. So each renewal makes the session
//!   confirm that it holds the lock, and takes the lock again if it does not. If another program was faster, the
//!   leadership ends. For the same reason the server may end a session that is silent: not before the lease ends.
//! - Behind a proxy that gives each statement another session, the lock would belong to the next client. So the session
//!   that took it must be the one that answers.

use super::connection::Connection;
use super::failure::Site;
use super::server::Server;
use super::statement::text;
use crate::store::session_lock::{Keeper, SessionLock, Taken};
use crate::store::{Holder, StoreError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout, timeout_at};

/// The pause between two attempts while a session of ours ends.
const PAUSE: Duration = Duration::from_millis(20);

pub struct GetLock {
    pub name: String,
    pub lock: SessionLock<Held>,
}

/// A session that holds the lock, and the task that watches its connection.
pub struct Held {
    id: i64,
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
    type Id = i64;

    fn id(&self) -> i64 {
        self.id
    }

    fn is_open(&self) -> bool {
        !self.task.is_finished()
    }
}

impl Held {
    fn keep(mut connection: Connection) -> Self {
        let (questions, mut asked) = mpsc::channel::<(String, oneshot::Sender<Option<i64>>)>(1);
        let (opened, end) = watch::channel(());
        let id = connection.id;
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
        Self { id, questions, end, task }
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
    /// As [`SessionLock::new`].
    pub fn new(name: &str) -> Result<Self, StoreError> {
        Ok(Self { name: name.to_owned(), lock: SessionLock::new()? })
    }

    /// The question for the session that holds the lock.
    pub fn holder(&self) -> String {
        format!("SELECT IS_USED_LOCK({})", text(&self.name))
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
        self.lock.may_hold(connection.id);
        let attempt = format!(
            "SET SESSION wait_timeout = {}; SELECT GET_LOCK({}, 0); {}",
            patience(lease),
            text(&self.name),
            self.holder()
        );
        loop {
            let numbers = timeout_at(deadline, numbers(&server.site, &mut connection, &attempt));
            let numbers = numbers.await.map_err(|_| silent())??;
            let Some(holder) = numbers[1] else { continue };
            if numbers[0] == Some(1) {
                let (id, question) = (connection.id, self.confirmation());
                let confirmed = timeout_at(deadline, self::numbers(&server.site, &mut connection, &question));
                if holder != id || confirmed.await.map_err(|_| silent())??[0] != Some(1) {
                    return Err(StoreError::misconfigured(format!(
                        "get_lock= wants a session of its own, and {} does not give one, as a proxy does not: name the \
                         server itself",
                        server.site.server
                    )));
                }
                self.lock.anchor(&connection.descriptor)?;
                self.lock.keep(Held::keep(connection));
                return Ok(Taken::Ours);
            }
            if !self.lock.own().contains(&holder) {
                self.lock.does_not_hold(connection.id);
                return Ok(Taken::Theirs(self.stranger(holder)));
            }
            // That it is gone already, or is not ours after all, shows with the next attempt.
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
    pub fn stranger(&self, id: i64) -> Holder {
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

/// The numbers in the answers to those of the statements that have rows.
async fn numbers(site: &Site, connection: &mut Connection, statements: &str) -> Result<[Option<i64>; 2], StoreError> {
    let mut outcomes = Vec::new();
    let asked = connection.ask(statements, &mut outcomes).await;
    asked.map_err(|trouble| site.unanswered(&trouble, false))?;
    let mut numbers = outcomes.iter().filter_map(|outcome| outcome.rows.first()).map(|row| row.number(0));
    Ok([numbers.next().flatten(), numbers.next().flatten()])
}

/// After how many seconds of silence the server takes the session for dead. Each renewal breaks the silence, so not
/// before the lease has ended.
fn patience(lease: Duration) -> u64 {
    lease.as_secs().saturating_mul(2).saturating_add(10)
}
