//! What a member is at a moment: a standby that waits, a leader, or a leader that has to stop.

use crate::store::Holder;
use crate::text::on_one_line;
use std::fmt;
use strum::Display;
use tokio::sync::watch;

/// The state of a [`Member`](crate::Member).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// It waits to lead.
    Standby {
        /// The leader, as far as is known.
        leader: Option<Leader>,
        /// What it waits for, as text: the leader's name, or that an operator has paused the shard.
        waiting_for: Option<String>,
    },
    /// It leads.
    Leading {
        /// The fencing token: it rises with every leadership of the shard.
        term: u64,
    },
    /// It has to stop leading, and a [`Leadership`](crate::Leadership) has not been dropped yet.
    Ending {
        /// The fencing token.
        term: u64,
        /// Why it has to stop.
        why: Ending,
    },
    /// It has left the election, for good.
    Stopped,
}

/// The leader, by the store's record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// Its owner name.
    pub owner: String,
    /// The name of its host.
    pub host: Option<String>,
    /// Its process number there.
    pub pid: Option<u32>,
    /// The fencing token.
    pub term: Option<u64>,
}

/// Why a leadership ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Display)]
#[non_exhaustive]
pub enum Ending {
    /// This member was asked to stop, or was dropped. The lease is renewed until the work has ended.
    #[strum(to_string = "asked to stop")]
    Asked,
    /// An operator paused the shard, or wants another member to lead. The lease is renewed until the work has ended.
    #[strum(to_string = "ordered by an operator")]
    Ordered,
    /// The lease could not be renewed in time and is about to end. Nobody else leads before that.
    #[strum(to_string = "the lease could not be renewed in time")]
    Late,
    /// Lost for certain: the store says that another candidate holds the lease, that an operator revoked it, or that
    /// there is no record of it. Or the election itself has failed.
    #[strum(to_string = "the lease is lost")]
    Lost,
}

/// What happens to work that still holds a [`Leadership`](crate::Leadership) when its time is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Overrun {
    /// The process is aborted. Nothing else stops a thread that does not want to stop, so nothing else keeps the
    /// promise.
    #[default]
    Abort,
    /// A log line says so, and the work goes on: **beside its successor's**. Choose this only if every effect of the
    /// work carries the term as a fencing token to something that checks it.
    Warn,
}

impl From<&Holder> for Leader {
    fn from(holder: &Holder) -> Self {
        let host = holder.host.clone().map(on_one_line);
        let owner = on_one_line(holder.owner.clone());
        Self { owner, host, pid: holder.pid, term: holder.term.map(|term| term.0) }
    }
}

/// The roles of a [`Member`](crate::Member), one after the other. Made by [`Member::watch`](crate::Member::watch).
//
// Every role that leaves it is a copy: a borrowed one is locked, and the next change of it would wait, in the thread
// that renews the lease.
#[derive(Clone)]
pub struct Roles {
    changes: watch::Receiver<Role>,
    /// [`Role::Stopped`] was seen. Nothing follows.
    over: bool,
}

impl Roles {
    pub(super) fn new(mut changes: watch::Receiver<Role>) -> Self {
        let over = *changes.borrow_and_update() == Role::Stopped;
        Self { changes, over }
    }

    /// The current role.
    #[must_use]
    pub fn current(&self) -> Role {
        self.changes.borrow().clone()
    }

    /// Waits for a role that this has not returned yet. It returns the latest: a slow reader may miss those in between.
    /// None after [`Role::Stopped`], which is the last.
    ///
    /// Cancel-safe.
    pub async fn changed(&mut self) -> Option<Role> {
        if self.over {
            return None;
        }
        self.changes.changed().await.ok()?;
        let role = self.changes.borrow_and_update().clone();
        self.over = role == Role::Stopped;
        Some(role)
    }
}

impl fmt::Debug for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Roles").field(&self.current()).finish()
    }
}
