//! `get_lock=NAME`: the lock of GET_LOCK that is held in addition to the lease, so that leaderrun and programs that elect
//! with `GET_LOCK('NAME', ...)` exclude each other.
//!
//! The hazards:
//!
//! - The lock lives as long as its session, and the session as long as its connection. So it would be free as soon as
//!   the candidate is killed, while the tree still runs. Therefore guard and backstop inherit an `Anchor` of it.
//! - The session may end while we lead: a restart, KILL, a server that finds it idle. So each renewal makes the session
//!   confirm that it holds the lock, and takes the lock again if it does not. If another program was faster, the
//!   leadership ends. For the same reason the server may end a session that is silent: not before the lease ends.
//! - A connection may be lost to us and not to the server, which then keeps the lock for nobody. So we remember which
//!   sessions were ours, and kill such a session. Every user may do that to sessions of its own.
//! - Behind a proxy that gives each statement another session, the lock would belong to the next client. So the session
//!   that took it must be the one that answers.

use super::connection::Connection;
use super::failure::Site;
use super::server::Server;
use super::statement::text;
use crate::store::anchor::Anchor;
use crate::store::{Holder, StoreError};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout, timeout_at};

/// How many lost sessions to remember. The server has noticed by then that the older ones are lost.
const MOST_LOST: usize = 16;
/// The pause between two attempts while a session of ours ends.
const PAUSE: Duration = Duration::from_millis(20);

pub struct GetLock {
    pub name: String,
    anchor: Anchor,
    /// Only one task at a time takes the lock: two sessions of ours would keep each other out.
    gate: tokio::sync::Mutex<()>,
    slot: Mutex<Slot>,
}

#[derive(Default)]
struct Slot {
    /// Some while we hold the lock, as far as we know.
    held: Option<Arc<Held>>,
    /// Sessions of ours that may hold the lock although we lost them.
    lost: VecDeque<i64>,
}

impl Slot {
    fn lose(&mut self, id: i64) {
        self.lost.truncate(MOST_LOST - 1);
        self.lost.push_front(id);
    }
}

pub enum Taken {
    Ours,
    Theirs(Holder),
}

/// A session that holds the lock, and the task that watches its connection.
struct Held {
    id: i64,
    questions: mpsc::Sender<(String, oneshot::Sender<Option<i64>>)>,
    end: watch::Receiver<()>,
    task: JoinHandle<()>,
}

impl Drop for Held {
    /// Closes the connection.
    fn drop(&mut self) {
        self.task.abort();
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

    fn is_open(&self) -> bool {
        !self.task.is_finished()
    }

    /// The number that the session answers.
    async fn ask(&self, question: String) -> Option<i64> {
        let (answer, answered) = oneshot::channel();
        self.questions.send((question, answer)).await.ok()?;
        answered.await.ok()?
    }
}

impl GetLock {
    /// Prepares the lock, and its anchor.
    ///
    /// # Errors
    /// The kernel has no sockets left.
    pub fn new(name: &str) -> Result<Self, StoreError> {
        let anchor = Anchor::new().map_err(|error| {
            StoreError::not_applied(format!("the operating system gives no pair of sockets: {error}"))
        })?;
        Ok(Self { name: name.to_owned(), anchor, gate: tokio::sync::Mutex::default(), slot: Mutex::default() })
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self) -> Option<Arc<Held>> {
        self.slot().held.clone().filter(|held| held.is_open())
    }

    /// Whether the session is ours, even if we can no longer reach it.
    pub fn is_ours(&self, id: i64) -> bool {
        let slot = self.slot();
        slot.held.as_ref().is_some_and(|held| held.id == id) || slot.lost.contains(&id)
    }

    /// Closes when the session ends that holds the lock; None if there is none.
    pub fn end(&self) -> Option<watch::Receiver<()>> {
        self.held().map(|held| held.end.clone())
    }

    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.anchor.descriptor()
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
        let _gate = timeout_at(deadline, self.gate.lock()).await.map_err(|_| silent())?;
        if let Some(held) = self.held() {
            // If the session is silent, there must be time left for another one.
            if timeout(server.bound / 3, held.ask(self.confirmation())).await == Ok(Some(1)) {
                return Ok(Taken::Ours);
            }
        }
        self.abandon();
        let mut connection = server.connect(deadline).await?;
        // From here on this session may hold the lock.
        self.slot().lose(connection.id);
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
                // Before the slot, because nothing may start under a lock without its anchor.
                self.anchor.hold(&connection.descriptor).map_err(|error| {
                    StoreError::not_applied(format!("the operating system keeps no descriptor: {error}"))
                })?;
                *self.slot() = Slot { held: Some(Arc::new(Held::keep(connection))), lost: VecDeque::new() };
                return Ok(Taken::Ours);
            }
            if !self.is_ours(holder) {
                self.slot().lost.retain(|&id| id != connection.id);
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
        if let Some(held) = self.held() {
            // Closing the connection frees it too, but not at once.
            let freed = held.ask(format!("SELECT RELEASE_LOCK({})", text(&self.name)));
            if timeout(server.bound / 3, freed).await == Ok(Some(1)) {
                self.slot().held = None;
            }
        }
        self.abandon();
    }

    /// Closes the connection that held the lock, if there is one.
    pub fn abandon(&self) {
        let mut slot = self.slot();
        if let Some(held) = slot.held.take() {
            slot.lose(held.id);
        }
        drop(slot);
        self.anchor.let_go();
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
