//! The query socket, on which a candidate answers questions from its host: how it is doing, and, for processes of its
//! tree, whether its lease is still held and for how long.
//!
//! A script that asks the store before a dangerous step learns what was true when the store answered, and needs the
//! store's password. The candidate knows its own deadline without a request. A candidate that is frozen or gone does
//! not answer, which counts as no.
//!
//! The hazard: every process of the network namespace can find the socket, which has an abstract name (unix(7)). It
//! reads no input, and its answers contain no secrets. But when a candidate is gone, any user may bind its name and
//! answer that the lease lasts for an hour. So `leaderctl verify` believes only an answer that proves the key that
//! COMMAND was given (`key`) and comes from the candidate's user. People see the process and the user that the kernel
//! names (`client`).

pub mod client;
mod key;

pub use client::{Answer, Survey, ask_all, ask_own};
pub use key::Key;

use super::Observer;
use crate::election::{Action, Event, Role, Stop, TreeEvent, View};
use crate::lease::{Candidate, Deadline, Late, Session, Shard, Term};
use crate::store::Location;
use crate::store::stable_hash::fnv1a;
use crate::text::on_one_line;
use crate::time::BootInstant;
use nix::sys::socket::{UnixAddr, getpeername};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};

pub const VARIABLE: &str = "LEADERRUN_SOCKET";
pub const KEY_VARIABLE: &str = "LEADERRUN_SOCKET_KEY";

const PREFIX: &str = "leaderrun-";
/// Begins the name of a socket whose process asks for a proof.
const ASKER: &str = "leaderctl-";
/// A running candidate answers at once.
const PATIENCE: Duration = Duration::from_secs(2);
/// Characters of a store's message. A statement that is cut off could not be read.
const MOST_LETTERS: usize = 500;

/// What a candidate answers: one JSON object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statement {
    /// The shard of the leadership, which may be a slot; without one, the candidate's.
    pub shard: String,
    pub slot_of: Option<String>,
    /// The store as messages name it, without a login.
    pub store: String,
    pub owner: String,
    pub pid: u32,
    /// Some while the candidate has a tree.
    pub leadership: Option<Leads>,
    pub standing: Standing,
    /// The kill methods, for people.
    pub containment: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leads {
    pub term: Term,
    /// Until the tree is killed if the lease is not renewed. None if it does not expire. Zero once the tree is being
    /// killed, or stopped because the lease is lost.
    pub left: Option<Duration>,
    pub late: Option<String>,
    /// Backstop and guard, once they run.
    pub helpers: Option<[i32; 2]>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// `standby`, `leader` or `leaving`.
    pub role: String,
    pub obstacle: Option<String>,
    /// The store's last error, and how long the trouble has lasted.
    pub trouble: Option<(String, Duration)>,
    /// What makes a takeover slower than it should be.
    pub takeover_warning: Option<String>,
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
            takeover_warning: view.takeover_warning.clone().map(brief),
        }
    }
}

fn brief(text: String) -> String {
    on_one_line(text).chars().take(MOST_LETTERS).collect()
}

pub struct QuerySocket {
    listener: UnixListener,
    name: String,
    key: Key,
    /// The answer without a leadership.
    base: Statement,
    view: View,
    leadership: Option<Leadership>,
}

struct Leadership {
    shard: Shard,
    term: Term,
    deadline: Deadline,
    lost: bool,
    helpers: Option<[i32; 2]>,
}

impl QuerySocket {
    pub fn new(candidate: &Candidate, store: &Location, containment: &str) -> io::Result<Self> {
        let name = format!("{}{}", beginning(&candidate.shard, store), Session::random()?.as_str());
        let view = View { role: Role::Standby(None), trouble: None, takeover_warning: None, late: Late::default() };
        let base = Statement {
            shard: candidate.shard.to_string(),
            slot_of: None,
            store: store.to_string(),
            owner: candidate.owner.clone(),
            pid: candidate.pid,
            leadership: None,
            standing: Standing::of(&view, BootInstant::now()),
            containment: containment.to_owned(),
        };
        let listener = UnixListener::bind(path(&name))?;
        Ok(Self { listener, name, key: Key::random()?, base, view, leadership: None })
    }

    pub fn variables(&self) -> [(&'static str, String); 2] {
        [(VARIABLE, self.name.clone()), (KEY_VARIABLE, self.key.to_text())]
    }

    /// Cancel-safe.
    pub async fn answer_all(&self) {
        loop {
            let Ok((stream, _)) = self.listener.accept().await else {
                // Descriptors may have run out. The election goes on.
                tokio::time::sleep(PATIENCE).await;
                continue;
            };
            let text = self.answer(&name_of_asker(&stream), BootInstant::now());
            // The answer fits into the empty buffer of a new socket.
            let _ = stream.try_write(&text);
        }
    }

    /// The name of the asker's own socket is its question: random, so that no old answer fits, and known before
    /// anything is read. An asker without such a name gets the statement alone.
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
        let mut statement = Statement { standing: Standing::of(&self.view, now), ..self.base.clone() };
        if let Some(leadership) = &self.leadership {
            let whole = std::mem::replace(&mut statement.shard, leadership.shard.to_string());
            statement.slot_of = Some(whole).filter(|whole| *whole != statement.shard);
            statement.leadership = Some(leadership.leads_at(now, self.view.late));
        }
        statement
    }
}

impl Observer for QuerySocket {
    fn began(&mut self, shard: &Shard, term: Term, deadline: Deadline) {
        self.leadership = Some(Leadership { shard: shard.clone(), term, deadline, lost: false, helpers: None });
    }

    fn guarded(&mut self, helpers: Option<[i32; 2]>) {
        if let Some(leadership) = &mut self.leadership {
            leadership.helpers = helpers;
            leadership.lost |= helpers.is_none();
        }
    }

    fn saw(&mut self, event: &Event) {
        if matches!(event, Event::Tree(TreeEvent::Dead)) {
            self.leadership = None;
        }
    }

    fn did(&mut self, action: &Action) {
        let Some(leadership) = &mut self.leadership else { return };
        match action {
            Action::Extend(deadline) => leadership.deadline = *deadline,
            Action::Stop(Stop::Losing { .. } | Stop::Kill) | Action::Seize => leadership.lost = true,
            _ => {}
        }
    }

    fn show(&mut self, view: &View) {
        self.view.clone_from(view);
    }
}

impl Leadership {
    fn leads_at(&self, now: BootInstant, late: Late) -> Leads {
        let left = match self.deadline.earlier(late.extra).kill_at {
            _ if self.lost => Some(Duration::ZERO),
            BootInstant::NEVER => None,
            kill_at => Some(kill_at.since(now)),
        };
        let late = (!late.worst.is_zero()).then(|| late.to_string());
        Leads { term: self.term, left, late, helpers: self.helpers }
    }
}

/// Begins the names of all candidates for `shard` in `store`, so that one that does not answer is known by its name.
/// The names are public, and the hash shows neither shard nor store.
pub fn beginning(shard: &Shard, store: &Location) -> String {
    let identity = store.identity();
    let bytes = shard.as_str().bytes().chain([b' ']).chain(identity.bytes());
    format!("{PREFIX}{:016x}-", fnv1a(bytes))
}

/// Reads proc_pid_net(5).
pub fn all() -> io::Result<Vec<String>> {
    let table = std::fs::read_to_string("/proc/net/unix")?;
    let names = table.lines().filter_map(|line| line.split(' ').next_back()?.strip_prefix('@'));
    // A listening socket appears once, and once more for each accepted connection.
    let names: BTreeSet<&str> = names.filter(|name| name.starts_with(PREFIX)).collect();
    Ok(names.into_iter().map(str::to_owned).collect())
}

/// Empty if the peer has no name. Tokio's accept does not return abstract names.
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

    #[test]
    fn a_host_that_is_late_has_less_time_left() {
        let at = |seconds: u64| BootInstant::from_nanos(seconds * 1_000_000_000);
        let deadline = Deadline { term_at: at(8), kill_at: at(10), backstop_at: at(11) };
        let (shard, term) = ("db".parse().unwrap(), Term(5));
        let leadership = Leadership { shard, term, deadline, lost: false, helpers: None };
        let millis = Duration::from_millis;
        let leads = leadership.leads_at(at(4), Late::new(millis(431), millis(2575), false));
        assert_eq!(leads.left, Some(millis(6000 - 1724)));
        let late =
            "the guard or the backstop was woken 431ms late, so the command is stopped 1s 724ms earlier than usual";
        assert_eq!(leads.late.as_deref(), Some(late));
        let leads = leadership.leads_at(at(4), Late::new(millis(1288), millis(2575), false));
        assert_eq!(leads.left, Some(millis(6000 - 2575)));
        let late = "the guard or the backstop was woken 1s 288ms late, which is outside the guarantee: raise --lease \
                    or the CPU limit";
        assert_eq!(leads.late.as_deref(), Some(late));
    }

    #[test]
    fn a_long_message_of_the_store_does_not_make_a_statement_unreadable() {
        let (long, now) = ("\u{1}\"".repeat(100_000), BootInstant::from_nanos(0));
        let trouble = Some((long.clone(), now));
        let view = View { role: Role::Standby(None), trouble, takeover_warning: Some(long), late: Late::default() };
        let text = serde_json::to_vec(&Standing::of(&view, now)).unwrap();
        assert!(text.len() < 4096, "{}", text.len());
    }
}
