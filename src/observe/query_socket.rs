//! What a candidate tells those who ask on its host: how things stand with it, and to processes of its tree whether its
//! lease is still held, and for how long.
//!
//! The hazard: a script that asks the store before a dangerous step learns what was true when the store answered, and
//! needs the store's password for it. The candidate knows its own deadline, to the millisecond and without a request;
//! a candidate that is frozen or gone does not answer, which counts as no.
//!
//! The socket is in the abstract namespace (unix(7)), where every process of the same network namespace may find it. It
//! takes no input, so there is nothing to be sent to it, and what it tells are no secrets. But when a candidate is gone
//! its name is free: any user may bind it and answer that the lease lasts for an hour. So COMMAND believes only who knows
//! the key that it was told (`key`) and is of the candidate's user; and to people an answer is shown with the process and
//! the user that the kernel names (`ask`).

pub mod client;
mod key;

pub use client::{Answer, Survey, ask_all, ask_own};
pub use key::Key;

use crate::election::{Role, View};
use crate::lease::{Candidate, Deadline, Session, Shard, Term};
use crate::text::on_one_line;
use crate::time::BootInstant;
use nix::sys::socket::{UnixAddr, getpeername};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};

/// The variable by which COMMAND finds it.
pub const VARIABLE: &str = "LEADERRUN_SOCKET";
/// The variable by which COMMAND knows its answers from those of others.
pub const KEY_VARIABLE: &str = "LEADERRUN_SOCKET_KEY";

/// What the name of every candidate's socket begins with.
const PREFIX: &str = "leaderrun-";
/// What the name of the socket of a process that wants a proof begins with.
const ASKER: &str = "leaderctl-";
/// A candidate that runs answers within a moment.
const PATIENCE: Duration = Duration::from_secs(2);
/// Letters of what a store has said, at most: a statement that is cut off could not be read.
const MOST_LETTERS: usize = 500;

/// What it says: one JSON object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statement {
    /// Of the leadership, where it has one: maybe a slot.
    pub shard: String,
    /// The shard whose slot that is.
    #[serde(default)]
    pub slot_of: Option<String>,
    pub owner: String,
    pub pid: u32,
    /// Some while it has a tree.
    pub leadership: Option<Leads>,
    pub standing: Standing,
    /// By which means it kills a tree, in words; empty in a statement of an older candidate.
    #[serde(default)]
    pub containment: String,
}

/// Of a leadership with a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leads {
    pub term: Term,
    /// Until the tree would be killed if the lease is not renewed; None where it does not expire. Zero when the tree
    /// is being stopped because the lease is lost.
    pub left: Option<Duration>,
}

/// How things stand, in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// `standby`, `leader` or `leaving`.
    pub role: String,
    /// Who or what is in the way of a standby.
    pub obstacle: Option<String>,
    /// The store's trouble, and for how long it has lasted.
    pub trouble: Option<(String, Duration)>,
    /// What makes a takeover slow.
    pub hindrance: Option<String>,
}

impl Standing {
    fn of(view: &View, now: BootInstant) -> Self {
        let (role, obstacle) = match &view.role {
            Role::Standby(obstacle) => ("standby", obstacle.as_ref().map(ToString::to_string)),
            Role::Leader(_) | Role::Restarting { .. } => ("leader", None),
            Role::Leaving => ("leaving", None),
        };
        let trouble = view.trouble.as_ref();
        Self {
            role: role.to_owned(),
            obstacle: obstacle.map(brief),
            trouble: trouble.map(|(message, since)| (brief(message.clone()), now.since(*since))),
            hindrance: view.hindrance.clone().map(brief),
        }
    }
}

fn brief(text: String) -> String {
    on_one_line(text).chars().take(MOST_LETTERS).collect()
}

/// The candidate's side.
pub struct QuerySocket {
    listener: UnixListener,
    name: String,
    key: Key,
    shard: String,
    owner: String,
    pid: u32,
    containment: String,
    view: View,
    leadership: Option<Leadership>,
}

struct Leadership {
    /// A slot of the candidate's shard, where that has some.
    shard: Shard,
    term: Term,
    deadline: Deadline,
    lost: bool,
}

impl QuerySocket {
    /// # Errors
    /// The kernel's.
    pub fn new(candidate: &Candidate, containment: &str) -> io::Result<Self> {
        // Another random number than the session, which nobody needs to know.
        let name = format!("{PREFIX}{}", Session::random()?.as_str());
        Ok(Self {
            listener: UnixListener::bind(path(&name))?,
            name,
            key: Key::random()?,
            shard: candidate.shard.to_string(),
            owner: candidate.owner.clone(),
            pid: candidate.pid,
            containment: containment.to_string(),
            view: View { role: Role::Standby(None), trouble: None, hindrance: None },
            leadership: None,
        })
    }

    /// What COMMAND learns of it.
    #[must_use]
    pub fn variables(&self) -> [(&'static str, String); 2] {
        [(VARIABLE, self.name.clone()), (KEY_VARIABLE, self.key.told())]
    }

    pub fn show(&mut self, view: View) {
        self.view = view;
    }

    pub fn began(&mut self, shard: &Shard, term: Term, deadline: Deadline) {
        self.leadership = Some(Leadership { shard: shard.clone(), term, deadline, lost: false });
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

    /// Answers all who ask, for ever. Cancelling it loses nobody.
    pub async fn testify(&self) {
        loop {
            let Ok((stream, _)) = self.listener.accept().await else {
                // Out of descriptors, say: who asks gets no answer, and the election goes on.
                tokio::time::sleep(PATIENCE).await;
                continue;
            };
            let text = self.answer(&name_of_asker(&stream), BootInstant::now());
            // It fits into the empty buffer of a new socket, or its reader has gone.
            let _ = stream.try_write(&text);
        }
    }

    /// The name of the asker's own socket is its question: it is chosen at random, known before a word is read, and an
    /// answer to it answers no other. Who has no such name gets the statement alone.
    fn answer(&self, asker: &[u8], now: BootInstant) -> Vec<u8> {
        let mut text = serde_json::to_vec(&self.statement(now)).expect("a statement is plain data");
        if asker.starts_with(ASKER.as_bytes()) {
            let proof = self.key.proof(asker, &text);
            text.push(b'\n');
            text.extend(proof.into_bytes());
        }
        text
    }

    fn statement(&self, now: BootInstant) -> Statement {
        let led = self.leadership.as_ref().map(|leadership| leadership.shard.to_string());
        let slot_of = led.as_ref().filter(|led| **led != self.shard).map(|_| self.shard.clone());
        Statement {
            shard: led.unwrap_or_else(|| self.shard.clone()),
            slot_of,
            owner: self.owner.clone(),
            pid: self.pid,
            leadership: self.leadership.as_ref().map(|leadership| leadership.told(now)),
            standing: Standing::of(&self.view, now),
            containment: self.containment.clone(),
        }
    }
}

impl Leadership {
    fn told(&self, now: BootInstant) -> Leads {
        let left = match self.deadline.kill_at {
            _ if self.lost => Some(Duration::ZERO),
            BootInstant::NEVER => None,
            kill_at => Some(kill_at.since(now)),
        };
        Leads { term: self.term, left }
    }
}

/// The names of all witnesses of this network namespace, as proc_pid_net(5) lists them.
///
/// # Errors
/// Where `/proc` is not there.
pub fn all() -> io::Result<Vec<String>> {
    let table = std::fs::read_to_string("/proc/net/unix")?;
    Ok(listed(&table))
}

/// A listening socket stands there once as itself, and once for each connection that it has accepted.
fn listed(table: &str) -> Vec<String> {
    let names = table.lines().filter_map(|line| line.split(' ').next_back()?.strip_prefix('@'));
    let mut names: Vec<String> = names.filter(|name| name.starts_with(PREFIX)).map(str::to_owned).collect();
    names.sort();
    names.dedup();
    names
}

/// In the abstract namespace; empty where it has none there. Tokio's accept does not tell such names.
fn name_of_asker(stream: &UnixStream) -> Vec<u8> {
    let address = getpeername::<UnixAddr>(stream.as_raw_fd());
    address.ok().and_then(|address| address.as_abstract().map(<[u8]>::to_vec)).unwrap_or_default()
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
        let leadership = Leadership { shard: "db".parse().unwrap(), term: Term(5), deadline, lost };
        leadership.told(BootInstant::from_nanos(now * 1_000_000_000)).left
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
    fn a_store_that_says_very_much_does_not_make_a_statement_unreadable() {
        let (long, now) = ("\u{1}\"".repeat(100_000), BootInstant::from_nanos(0));
        let trouble = Some((long.clone(), now));
        let view = View { role: Role::Standby(None), trouble, hindrance: Some(long) };
        let text = serde_json::to_vec(&Standing::of(&view, now)).unwrap();
        assert!(text.len() < 4096, "{}", text.len());
    }

    #[test]
    fn witnesses_are_found_among_all_sockets() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
                     0000: 00000002 00000000 00010000 0001 01 123 @leaderrun-b\n\
                     0000: 00000003 00000000 00000000 0001 03 124 @leaderrun-b\n\
                     0000: 00000002 00000000 00010000 0001 01 125 /run/leaderrun-x\n\
                     0000: 00000002 00000000 00010000 0001 01 126\n\
                     0000: 00000002 00000000 00010000 0001 01 127 @leaderrun-a\n";
        assert_eq!(listed(table), ["leaderrun-a", "leaderrun-b"]);
    }
}
