//! What a candidate tells processes of its tree that ask whether its lease is still held, and for how long.
//!
//! The hazard: a script that asks the store before a dangerous step learns what was true when the store answered, and
//! needs the store's password for it. The candidate knows its own deadline, to the millisecond and without a request;
//! a candidate that is frozen or gone does not answer, which counts as no.
//!
//! The socket has a random name in the abstract namespace (unix(7)), told to COMMAND alone. It takes no input, so there
//! is nothing to be sent to it.

use crate::lease::{Candidate, Deadline, Session, Term};
use crate::time::BootInstant;
use serde::{Deserialize, Serialize};
use std::io;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::{UnixListener, UnixStream};

/// The variable by which COMMAND finds it.
pub const VARIABLE: &str = "LEADERRUN_SOCKET";

/// A candidate that runs answers within a moment.
const PATIENCE: Duration = Duration::from_secs(2);
/// No statement is longer.
const MOST: u64 = 4096;

/// What it says: one JSON object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statement {
    pub shard: String,
    pub owner: String,
    pub term: Term,
    /// Until the tree would be killed if the lease is not renewed; None where it does not expire. Zero when the tree
    /// is being stopped because the lease is lost.
    pub left: Option<Duration>,
}

/// The candidate's side.
pub struct Witness {
    listener: UnixListener,
    name: String,
    leadership: Option<Leadership>,
}

struct Leadership {
    shard: String,
    owner: String,
    term: Term,
    deadline: Deadline,
    lost: bool,
}

impl Witness {
    /// # Errors
    /// The kernel's.
    pub fn new() -> io::Result<Self> {
        let name = format!("leaderrun-{}", Session::random()?.as_str());
        Ok(Self { listener: UnixListener::bind(path(&name))?, name, leadership: None })
    }

    /// What `VARIABLE` is set to.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn began(&mut self, candidate: &Candidate, term: Term, deadline: Deadline) {
        let (shard, owner) = (candidate.shard.to_string(), candidate.owner.clone());
        self.leadership = Some(Leadership { shard, owner, term, deadline, lost: false });
    }

    pub fn extended(&mut self, deadline: Deadline) {
        if let Some(leadership) = &mut self.leadership {
            leadership.deadline = deadline;
        }
    }

    /// The tree has to go.
    pub fn lost(&mut self) {
        if let Some(leadership) = &mut self.leadership {
            leadership.lost = true;
        }
    }

    /// The tree is dead.
    pub fn ended(&mut self) {
        self.leadership = None;
    }

    /// Answers whoever asks, for ever. Cancelling it loses nobody.
    pub async fn testify(&self) {
        loop {
            let Ok((stream, _)) = self.listener.accept().await else {
                // Out of descriptors, say: whoever asks gets no answer, and the election goes on.
                tokio::time::sleep(PATIENCE).await;
                continue;
            };
            let statement = self.leadership.as_ref().map(|leadership| leadership.statement(BootInstant::now()));
            let text = serde_json::to_vec(&statement).expect("a statement is plain data");
            // It fits into the empty buffer of a new socket, or its reader has gone.
            let _ = stream.try_write(&text);
        }
    }
}

impl Leadership {
    fn statement(&self, now: BootInstant) -> Statement {
        let left = match self.deadline.kill_at {
            _ if self.lost => Some(Duration::ZERO),
            BootInstant::NEVER => None,
            kill_at => Some(kill_at.since(now)),
        };
        Statement { shard: self.shard.clone(), owner: self.owner.clone(), term: self.term, left }
    }
}

/// Asks the candidate whose witness has this name. None when it has no tree.
///
/// # Errors
/// Why there is no answer: it is gone, frozen, or in another network namespace.
pub async fn ask(name: &str) -> io::Result<Option<Statement>> {
    let asked = async {
        let stream = UnixStream::connect(path(name)).await?;
        let mut text = Vec::new();
        stream.take(MOST).read_to_end(&mut text).await?;
        serde_json::from_slice(&text).map_err(io::Error::other)
    };
    tokio::time::timeout(PATIENCE, asked).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// A path that begins with NUL is a name in the abstract namespace.
fn path(name: &str) -> String {
    format!("\0{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn until(kill_at: u64) -> Deadline {
        let at = |seconds: u64| BootInstant::from_nanos(seconds * 1_000_000_000);
        Deadline { term_at: at(kill_at - 2), kill_at: at(kill_at), backstop_at: at(kill_at + 1) }
    }

    fn told(deadline: Deadline, lost: bool, now: u64) -> Option<Duration> {
        let (shard, owner) = ("shard".to_owned(), "owner".to_owned());
        let leadership = Leadership { shard, owner, term: Term(5), deadline, lost };
        leadership.statement(BootInstant::from_nanos(now * 1_000_000_000)).left
    }

    #[test]
    fn what_is_left_is_counted_to_the_kill_and_nothing_is_left_of_a_lost_lease() {
        assert_eq!(told(until(10), false, 4), Some(Duration::from_secs(6)));
        assert_eq!(told(until(10), false, 11), Some(Duration::ZERO));
        assert_eq!(told(until(10), true, 4), Some(Duration::ZERO));
        assert_eq!(told(Deadline::NONE, false, 4), None);
        assert_eq!(told(Deadline::NONE, true, 4), Some(Duration::ZERO));
    }

    #[test]
    fn a_witness_that_is_gone_is_no_witness() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        assert!(runtime.block_on(ask("leaderrun-nobody")).is_err());
    }
}
