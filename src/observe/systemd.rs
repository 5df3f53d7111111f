//! Messages to the service manager, in the protocol of sd_notify(3): the service has started, its status, it is
//! stopping, and the watchdog's keep-alive.
//!
//! The hazards:
//!
//! - A watchdog must not be fed by a candidate that no longer works. So only the event loop feeds it, and not while a
//!   leader still has its tree after its lease has ended: the service manager may be able to kill what leaderrun
//!   cannot.
//! - A watchdog that is not fed during an outage of the store restarts every candidate and repairs nothing. So a
//!   standby that gets no answers feeds it.
//! - A service manager that does not read must not hold up the election. So what cannot be sent now is sent later.

use super::Observer;
use crate::election::{Event, Role, TreeEvent, View};
use crate::lease::{Deadline, Shard, Term};
use crate::store::{Claim, Renewal};
use crate::text::on_one_line;
use crate::time::BootInstant;
use std::ffi::{OsStr, OsString};
use std::io;
// std can send a datagram. The crates for this protocol add a global or a thread.
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;
// The service manager's watchdog does not count time in suspend, and neither does this clock.
use tokio::time::Instant;

/// See sd_notify(3).
pub const SOCKET: &str = "NOTIFY_SOCKET";
pub const WATCHDOG: [&str; 2] = ["WATCHDOG_USEC", "WATCHDOG_PID"];

const RETRY: Duration = Duration::from_millis(500);
/// systemd ignores a message of more than 4096 bytes.
const LONGEST_STATUS: usize = 2000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum Readiness {
    /// Once the store has answered, as a standby or as the leader
    Candidate,
    /// Once COMMAND has started for the first time
    Leader,
    /// When COMMAND says so; it gets `NOTIFY_SOCKET`
    Command,
}

pub struct Notifier {
    socket: UnixDatagram,
    manager: SocketAddr,
    readiness: Readiness,
    /// None if leases do not expire.
    lease: Option<Duration>,
    /// By the latest request that was granted.
    valid_until: BootInstant,
    leads: bool,
    slot: Option<u32>,
    wanted: Known,
    known: Known,
    feeding: Option<Feeding>,
    /// When to try again. None until the next step of the election.
    wake: Option<Instant>,
    complained: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Known {
    ready: bool,
    stopping: bool,
    status: String,
}

struct Feeding {
    every: Duration,
    next: Instant,
}

impl Notifier {
    /// None if the service manager wants no messages. `lease` is None if leases do not expire.
    pub fn from_environment(readiness: Readiness, lease: Option<Duration>) -> Option<Self> {
        let named = std::env::var_os(SOCKET).filter(|name| !name.is_empty())?;
        let [patience, watched] = WATCHDOG.map(std::env::var_os);
        let patience = watchdog(patience.as_deref(), watched.as_deref(), std::process::id());
        Self::new(&named, readiness, lease, patience)
            .inspect_err(|error| tracing::warn!("cannot notify the service manager at {SOCKET}: {error}"))
            .ok()
    }

    fn new(
        named: &OsString,
        readiness: Readiness,
        lease: Option<Duration>,
        patience: Option<Duration>,
    ) -> io::Result<Self> {
        let manager = address(named)?;
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        let feeding = patience.map(|patience| Feeding { every: patience / 2, next: Instant::now() });
        Ok(Self {
            socket,
            manager,
            readiness,
            lease,
            valid_until: BootInstant::from_nanos(0),
            leads: false,
            slot: None,
            wanted: Known::default(),
            known: Known::default(),
            wake: feeding.as_ref().map(|feeding| feeding.next),
            feeding,
            complained: false,
        })
    }

    pub fn is_commands(&self) -> bool {
        self.readiness == Readiness::Command
    }

    /// Waits until [`Self::send_news`] has something to do without a step of the election. Cancel-safe.
    pub async fn due(&self) {
        match self.wake {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    pub fn send_news(&mut self) {
        let now = Instant::now();
        let is_due = self.feeding.as_ref().is_some_and(|feeding| now >= feeding.next);
        let feeds = is_due && !self.has_overstayed(BootInstant::now());
        let message = message(&self.known, &self.wanted, feeds);
        if !message.is_empty() {
            match self.socket.send_to_addr(message.as_bytes(), &self.manager) {
                Ok(_) => self.known = self.wanted.clone(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wake = Some(now + self.feeding.as_ref().map_or(RETRY, |feeding| RETRY.min(feeding.every / 2)));
                    return;
                }
                Err(error) if !self.complained => {
                    self.complained = true;
                    tracing::warn!("cannot notify the service manager at {SOCKET}: {error}");
                }
                Err(_) => {}
            }
        }
        self.wake = None;
        if let Some(feeding) = &mut self.feeding {
            if feeds {
                feeding.next = now + feeding.every;
            }
            // Otherwise the step that ends the leadership feeds the watchdog.
            if feeds || !is_due {
                self.wake = Some(feeding.next);
            }
        }
    }

    /// The lease has ended and the leadership has not: the tree cannot be killed.
    fn has_overstayed(&self, now: BootInstant) -> bool {
        self.leads && now >= self.valid_until
    }
}

impl Observer for Notifier {
    fn began(&mut self, shard: &Shard, _: Term, _: Deadline) {
        self.slot = shard.slot();
    }

    fn saw(&mut self, event: &Event) {
        match event {
            Event::Claimed { sent, answer: Ok(Claim::Granted(_)) }
            | Event::Renewed { sent, answer: Ok(Renewal::Renewed), .. } => {
                let until = self.lease.map_or(BootInstant::NEVER, |lease| sent.plus(lease));
                self.valid_until = self.valid_until.max(until);
            }
            Event::Tree(TreeEvent::Started) => self.wanted.ready |= self.readiness == Readiness::Leader,
            Event::Asked { .. } => self.wanted.stopping = true,
            _ => {}
        }
    }

    fn show(&mut self, view: &View) {
        self.leads = matches!(view.role, Role::Leader(_) | Role::Restarting { .. });
        let heard = self.leads || matches!(view.role, Role::Standby(Some(_)));
        self.wanted.ready |= heard && self.readiness == Readiness::Candidate;
        self.slot = self.slot.filter(|_| self.leads);
        self.wanted.status = status(view, self.slot, self.wanted.stopping);
        self.send_news();
    }
}

fn message(known: &Known, wanted: &Known, feeds: bool) -> String {
    let status = format!("STATUS={}", wanted.status);
    let lines = [
        (wanted.ready && !known.ready, "READY=1"),
        (wanted.stopping && !known.stopping, "STOPPING=1"),
        (wanted.status != known.status, &status),
        (feeds, "WATCHDOG=1"),
    ];
    let lines: Vec<&str> = lines.into_iter().filter(|(is_news, _)| *is_news).map(|(_, line)| line).collect();
    lines.join("\n")
}

fn status(view: &View, slot: Option<u32>, stopping: bool) -> String {
    let role = match &view.role {
        Role::Standby(None) => "standby, the leader is not known yet".to_owned(),
        Role::Standby(Some(obstacle)) => format!("standby: {obstacle}"),
        Role::Leader(term) => format!("leading in term {term}{}", in_slot(slot)),
        Role::Restarting { term, end } => {
            format!("leading in term {term}{}; the command {end} and waits to be restarted", in_slot(slot))
        }
        Role::Leaving => "giving the lease back".to_owned(),
    };
    let stopping = if stopping { "stopping; " } else { "" };
    let trouble = view.trouble.as_ref().map(|(message, _)| format!("; trouble with the store: {message}"));
    let mut status = on_one_line(format!("{stopping}{role}{}", trouble.unwrap_or_default()));
    status.truncate(status.floor_char_boundary(LONGEST_STATUS));
    status
}

fn in_slot(slot: Option<u32>) -> String {
    slot.map(|slot| format!(" (slot {slot})")).unwrap_or_default()
}

/// The watchdog's timeout. Children inherit the variables, which may mean another process.
fn watchdog(microseconds: Option<&OsStr>, watched: Option<&OsStr>, me: u32) -> Option<Duration> {
    let number = |text: &OsStr| text.to_str()?.parse::<u64>().ok();
    if watched.is_some_and(|watched| number(watched) != Some(u64::from(me))) {
        return None;
    }
    microseconds.and_then(number).filter(|&microseconds| microseconds > 0).map(Duration::from_micros)
}

fn address(named: &OsStr) -> io::Result<SocketAddr> {
    match named.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        [b'/', ..] => SocketAddr::from_pathname(named),
        _ => Err(io::Error::other("it is neither a path nor a name with an @")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::election::Obstacle;
    use crate::lease::{Late, Term};
    use crate::store::Holder;
    use crate::time::at;

    const LEASE: Duration = Duration::from_secs(15);

    fn view(role: Role) -> View {
        View { role, trouble: None, takeover_warning: None, late: Late::default() }
    }

    fn behind(owner: &str) -> View {
        let holder = Holder { owner: owner.to_owned(), ..Holder::default() };
        view(Role::Standby(Some(Obstacle::Holder(holder))))
    }

    fn notifier_to(readiness: Readiness, lease: Option<Duration>) -> (Notifier, UnixDatagram, tempfile::TempDir) {
        let scratch = tempfile::TempDir::new().unwrap();
        let path = scratch.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager.set_nonblocking(true).unwrap();
        (Notifier::new(&path.into(), readiness, lease, None).unwrap(), manager, scratch)
    }

    fn heard(manager: &UnixDatagram) -> Vec<String> {
        let mut buffer = [0; 8192];
        let messages = std::iter::from_fn(|| manager.recv(&mut buffer).ok().map(|n| buffer[..n].to_vec()));
        let text: Vec<String> = messages.map(|message| String::from_utf8(message).unwrap()).collect();
        text.iter().flat_map(|message| message.lines().map(str::to_owned)).collect()
    }

    #[test]
    fn a_service_manager_that_does_not_read_is_notified_later() {
        let (mut notifier, manager, _scratch) = notifier_to(Readiness::Candidate, None);
        while notifier.wake.is_none() {
            notifier.known = Known::default();
            notifier.show(&view(Role::Leader(Term(1))));
        }
        heard(&manager);
        notifier.send_news();
        assert_eq!(heard(&manager), ["READY=1", "STATUS=leading in term 1"]);
        assert_eq!(notifier.wake, None);
    }

    #[test]
    fn a_leader_whose_tree_outlives_the_lease_is_not_fed() {
        let (mut notifier, _manager, _scratch) = notifier_to(Readiness::Candidate, Some(LEASE));
        notifier.show(&behind("somebody"));
        assert!(!notifier.has_overstayed(at(10)));
        notifier.saw(&Event::Renewed { sent: at(100), answer: Ok(Renewal::Renewed), orders: None });
        notifier.show(&view(Role::Leader(Term(1))));
        assert!(!notifier.has_overstayed(at(114)) && notifier.has_overstayed(at(115)));
        // An older answer does not shorten the lease.
        notifier.saw(&Event::Renewed { sent: at(105), answer: Ok(Renewal::Renewed), orders: None });
        notifier.saw(&Event::Renewed { sent: at(101), answer: Ok(Renewal::Renewed), orders: None });
        assert!(!notifier.has_overstayed(at(119)));
        notifier.show(&view(Role::Leaving));
        assert!(!notifier.has_overstayed(at(500)));
    }

    #[test]
    fn a_watchdog_that_was_not_fed_is_fed_when_the_leadership_ends() {
        let (mut notifier, manager, _scratch) = notifier_to(Readiness::Leader, Some(LEASE));
        notifier.feeding = Some(Feeding { every: Duration::from_mins(1), next: Instant::now() });
        notifier.show(&view(Role::Leader(Term(1))));
        assert_eq!(heard(&manager), ["STATUS=leading in term 1"]);
        assert_eq!(notifier.wake, None, "it does not spin");
        notifier.show(&behind("somebody"));
        assert_eq!(heard(&manager), ["STATUS=standby: somebody leads", "WATCHDOG=1"]);
        assert!(notifier.wake.is_some_and(|wake| wake > Instant::now() + Duration::from_secs(50)));
    }

    #[test]
    fn a_status_is_one_line_of_limited_length() {
        let text = status(&behind(&"é\n".repeat(3000)), None, false);
        assert!(text.len() <= LONGEST_STATUS && !text.contains('\n'), "{text}");
        let mut view = behind("b");
        view.trouble = Some(("no\nanswer".to_owned(), at(1)));
        assert_eq!(status(&view, None, false), "standby: b leads; trouble with the store: no answer");
    }
}
