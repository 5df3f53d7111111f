//! What a service manager is told, in the words of sd_notify(3): that the service has started, how things stand, that
//! it is about to end, and to a watchdog that the election goes on.
//!
//! The hazards:
//!
//! - A watchdog that is fed by habit keeps up a candidate that has long stopped doing anything. It is fed from the
//!   event loop alone, and only a loop that comes round gives up requests, kills a tree in time and hears a signal. A
//!   leader that still has its tree after its lease has ended is not fed either: the service manager may kill what we
//!   may not.
//! - A watchdog that starves in an outage of the store restarts every candidate, and mends nothing. A standby that gets
//!   no answers is fed.
//! - A service manager that does not read must not hold up the election. Nothing here waits: what could not be sent is
//!   sent later.

use crate::election::{Role, View};
use crate::text::on_one_line;
use crate::time::BootInstant;
use clap::ValueEnum;
use std::ffi::{OsStr, OsString};
use std::io;
// A datagram now and then is little enough that std does it all; the crates for it add a global or a thread.
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;
// The service manager's watchdog does not count a suspend either.
use tokio::time::Instant;

/// Where the service manager listens, sd_notify(3).
pub const SOCKET: &str = "NOTIFY_SOCKET";
/// How long the watchdog waits, in microseconds, and for whom, sd_watchdog_enabled(3).
pub const WATCHDOG: [&str; 2] = ["WATCHDOG_USEC", "WATCHDOG_PID"];

/// When the service manager's queue was full.
const RETRY: Duration = Duration::from_millis(500);
/// systemd passes over a message of more than 4096 bytes.
const LONGEST_STATUS: usize = 2000;

/// When the service counts as started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Readiness {
    /// Once the store has answered: it waits behind somebody, or leads
    Candidate,
    /// Once COMMAND was started for the first time
    Leader,
    /// When COMMAND says so, which gets `NOTIFY_SOCKET`
    Command,
}

/// Tells the service manager that started us.
pub struct Notifier {
    socket: UnixDatagram,
    manager: SocketAddr,
    readiness: Readiness,
    /// None where leases do not expire.
    lease: Option<Duration>,
    /// Of the latest granted request.
    valid_until: BootInstant,
    leads: bool,
    /// Where the leadership has one of several slots.
    slot: Option<u32>,
    wanted: Told,
    told: Told,
    /// Some where a watchdog watches us.
    feeding: Option<Feeding>,
    /// When to look again, if nothing happens before. None while nothing is to be sent but after the next step.
    wake: Option<Instant>,
    /// It was said that the service manager cannot be told.
    complained: bool,
}

/// What the service manager knows of us.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Told {
    ready: bool,
    stopping: bool,
    status: String,
}

struct Feeding {
    /// Half of what the watchdog waits.
    every: Duration,
    next: Instant,
}

impl Notifier {
    /// None where no service manager wants to be told. `lease` is None where leases do not expire.
    #[must_use]
    pub fn from_environment(readiness: Readiness, lease: Option<Duration>) -> Option<Self> {
        let named = std::env::var_os(SOCKET).filter(|name| !name.is_empty())?;
        let [patience, watched] = WATCHDOG.map(std::env::var_os);
        let patience = watchdog(patience.as_deref(), watched.as_deref(), std::process::id());
        Self::new(&named, readiness, lease, patience)
            .inspect_err(|error| tracing::warn!("cannot tell the service manager at {SOCKET}: {error}"))
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
            wanted: Told::default(),
            told: Told::default(),
            wake: feeding.as_ref().map(|feeding| feeding.next),
            feeding,
            complained: false,
        })
    }

    /// Whether COMMAND is to tell it as well.
    #[must_use]
    pub fn is_commands(&self) -> bool {
        self.readiness == Readiness::Command
    }

    /// How things stand after a step of the election.
    pub fn show(&mut self, view: &View) {
        self.leads = matches!(view.role, Role::Leader(_) | Role::Restarting { .. });
        let heard = self.leads || matches!(view.role, Role::Standby(Some(_)));
        self.wanted.ready |= heard && self.readiness == Readiness::Candidate;
        self.slot = self.slot.filter(|_| self.leads);
        self.wanted.status = status(view, self.slot, self.wanted.stopping);
        self.attend();
    }

    /// COMMAND is about to be started, in this slot where the shard has some.
    pub fn began(&mut self, slot: Option<u32>) {
        self.slot = slot;
    }

    /// COMMAND was started.
    pub fn started(&mut self) {
        self.wanted.ready |= self.readiness == Readiness::Leader;
        self.attend();
    }

    /// Somebody asked us to stop.
    pub fn asked(&mut self) {
        self.wanted.stopping = true;
    }

    /// The lease is held, counted from `sent`.
    pub fn granted(&mut self, sent: BootInstant) {
        let until = self.lease.map_or(BootInstant::NEVER, |lease| sent.plus(lease));
        self.valid_until = self.valid_until.max(until);
    }

    /// Waits until [`Self::attend`] has something to do that no step of the election brings. Cancelling it
    /// loses nothing.
    pub async fn due(&self) {
        match self.wake {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    /// Sends what is to be sent.
    pub fn attend(&mut self) {
        let now = Instant::now();
        let is_due = self.feeding.as_ref().is_some_and(|feeding| now >= feeding.next);
        let feeds = is_due && !self.has_overstayed(BootInstant::now());
        let message = message(&self.told, &self.wanted, feeds);
        if !message.is_empty() {
            match self.socket.send_to_addr(message.as_bytes(), &self.manager) {
                Ok(_) => self.told = self.wanted.clone(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wake = Some(now + self.feeding.as_ref().map_or(RETRY, |feeding| RETRY.min(feeding.every / 2)));
                    return;
                }
                Err(error) if !self.complained => {
                    self.complained = true;
                    tracing::warn!("cannot tell the service manager at {SOCKET}: {error}");
                }
                Err(_) => {}
            }
        }
        self.wake = None;
        if let Some(feeding) = &mut self.feeding {
            if feeds {
                feeding.next = now + feeding.every;
            }
            // Else it is withheld, and the step that ends the leadership makes up for it.
            if feeds || !is_due {
                self.wake = Some(feeding.next);
            }
        }
    }

    /// The lease has ended, and still we have not become a standby: the tree cannot be killed.
    fn has_overstayed(&self, now: BootInstant) -> bool {
        self.leads && now >= self.valid_until
    }
}

/// What the service manager does not know yet, a line each.
fn message(told: &Told, wanted: &Told, feeds: bool) -> String {
    let status = format!("STATUS={}", wanted.status);
    let lines = [
        (wanted.ready && !told.ready, "READY=1"),
        (wanted.stopping && !told.stopping, "STOPPING=1"),
        (wanted.status != told.status, &status),
        (feeds, "WATCHDOG=1"),
    ];
    let lines: Vec<&str> = lines.into_iter().filter(|(is_news, _)| *is_news).map(|(_, line)| line).collect();
    lines.join("\n")
}

fn status(view: &View, slot: Option<u32>, stopping: bool) -> String {
    let role = match &view.role {
        Role::Standby(None) => "standby, has yet to hear who leads".to_owned(),
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

/// How long the watchdog waits, where there is one and it is ours: the variables are inherited by whoever is started.
fn watchdog(microseconds: Option<&OsStr>, watched: Option<&OsStr>, me: u32) -> Option<Duration> {
    let number = |text: &OsStr| text.to_str()?.parse::<u64>().ok();
    if watched.is_some_and(|watched| number(watched) != Some(u64::from(me))) {
        return None;
    }
    microseconds.and_then(number).filter(|&microseconds| microseconds > 0).map(Duration::from_micros)
}

/// A path, or a name in the abstract namespace that is written with an `@`.
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
    use crate::lease::Term;
    use crate::store::Holder;

    const LEASE: Duration = Duration::from_secs(15);

    fn at(seconds: u64) -> BootInstant {
        BootInstant::from_nanos(seconds * 1_000_000_000)
    }

    fn view(role: Role) -> View {
        View { role, trouble: None, hindrance: None }
    }

    fn behind(owner: &str) -> View {
        let holder = Holder { owner: owner.to_owned(), ..Holder::default() };
        view(Role::Standby(Some(Obstacle::Holder(holder))))
    }

    /// And the service manager whom it tells.
    fn told_by(readiness: Readiness, lease: Option<Duration>) -> (Notifier, UnixDatagram, tempfile::TempDir) {
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
    fn what_is_known_is_not_told_again() {
        let (mut notifier, manager, _scratch) = told_by(Readiness::Candidate, None);
        notifier.show(&view(Role::Standby(None)));
        assert_eq!(heard(&manager), ["STATUS=standby, has yet to hear who leads"]);
        notifier.show(&behind("somebody"));
        assert_eq!(heard(&manager), ["READY=1", "STATUS=standby: somebody leads"]);
        notifier.show(&behind("somebody"));
        assert!(heard(&manager).is_empty());
        notifier.asked();
        notifier.show(&view(Role::Leader(Term(4))));
        assert_eq!(heard(&manager), ["STOPPING=1", "STATUS=stopping; leading in term 4"]);
    }

    #[test]
    fn a_slot_is_told_of_from_its_start_to_the_end_of_its_leadership() {
        let (mut notifier, manager, _scratch) = told_by(Readiness::Command, None);
        notifier.began(Some(2));
        notifier.show(&view(Role::Leader(Term(4))));
        assert_eq!(heard(&manager), ["STATUS=leading in term 4 (slot 2)"]);
        notifier.show(&view(Role::Leaving));
        notifier.show(&view(Role::Leader(Term(5))));
        assert_eq!(heard(&manager), ["STATUS=giving the lease back", "STATUS=leading in term 5"]);
    }

    #[test]
    fn a_leader_that_waits_to_restart_its_command_says_so_and_is_ready() {
        let (mut notifier, manager, _scratch) = told_by(Readiness::Candidate, None);
        let end = crate::election::CommandEnd::Exited(3);
        notifier.show(&view(Role::Restarting { term: Term(4), end }));
        let status = "STATUS=leading in term 4; the command exited with 3 and waits to be restarted";
        assert_eq!(heard(&manager), ["READY=1", status]);
    }

    #[test]
    fn ready_comes_when_it_was_asked_for() {
        let (mut notifier, manager, _scratch) = told_by(Readiness::Leader, None);
        notifier.show(&behind("somebody"));
        notifier.show(&view(Role::Leader(Term(1))));
        assert!(!heard(&manager).contains(&"READY=1".to_owned()));
        notifier.started();
        notifier.started();
        assert_eq!(heard(&manager), ["READY=1"]);
        let (mut notifier, manager, _scratch) = told_by(Readiness::Command, None);
        notifier.show(&view(Role::Leader(Term(1))));
        notifier.started();
        assert_eq!(heard(&manager), ["STATUS=leading in term 1"]);
    }

    #[test]
    fn a_service_manager_that_does_not_read_is_told_later() {
        let (mut notifier, manager, _scratch) = told_by(Readiness::Candidate, None);
        while notifier.wake.is_none() {
            notifier.told = Told::default();
            notifier.show(&view(Role::Leader(Term(1))));
        }
        heard(&manager);
        notifier.attend();
        assert_eq!(heard(&manager), ["READY=1", "STATUS=leading in term 1"]);
        assert_eq!(notifier.wake, None);
    }

    #[test]
    fn a_leader_whose_tree_outlives_the_lease_is_not_fed() {
        let (mut notifier, _manager, _scratch) = told_by(Readiness::Candidate, Some(LEASE));
        notifier.show(&behind("somebody"));
        assert!(!notifier.has_overstayed(at(10)));
        notifier.granted(at(100));
        notifier.show(&view(Role::Leader(Term(1))));
        assert!(!notifier.has_overstayed(at(114)) && notifier.has_overstayed(at(115)));
        // An old answer takes nothing away.
        notifier.granted(at(105));
        notifier.granted(at(101));
        assert!(!notifier.has_overstayed(at(119)));
        notifier.show(&view(Role::Leaving));
        assert!(!notifier.has_overstayed(at(500)));
    }

    #[test]
    fn a_feeding_that_was_withheld_is_made_up_for() {
        let (mut notifier, manager, _scratch) = told_by(Readiness::Leader, Some(LEASE));
        notifier.feeding = Some(Feeding { every: Duration::from_mins(1), next: Instant::now() });
        notifier.show(&view(Role::Leader(Term(1))));
        assert_eq!(heard(&manager), ["STATUS=leading in term 1"]);
        assert_eq!(notifier.wake, None, "it does not spin");
        notifier.show(&behind("somebody"));
        assert_eq!(heard(&manager), ["STATUS=standby: somebody leads", "WATCHDOG=1"]);
        assert!(notifier.wake.is_some_and(|wake| wake > Instant::now() + Duration::from_secs(50)));
    }

    #[test]
    fn leases_that_do_not_expire_do_not_starve_a_watchdog() {
        let (mut notifier, _manager, _scratch) = told_by(Readiness::Candidate, None);
        notifier.granted(at(100));
        notifier.show(&view(Role::Leader(Term(1))));
        assert!(!notifier.has_overstayed(at(1_000_000)));
    }

    #[test]
    fn a_status_is_one_line_of_bearable_length() {
        let text = status(&behind(&"é\n".repeat(3000)), None, false);
        assert!(text.len() <= LONGEST_STATUS && !text.contains('\n'), "{text}");
        let mut view = behind("b");
        view.trouble = Some(("no\nanswer".to_owned(), at(1)));
        assert_eq!(status(&view, None, false), "standby: b leads; trouble with the store: no answer");
    }

    #[test]
    fn a_watchdog_is_obeyed_that_means_us() {
        let watchdog = |usec: Option<&'static str>, pid: Option<&'static str>| {
            watchdog(usec.map(OsStr::new), pid.map(OsStr::new), 7)
        };
        let half_a_second = Some(Duration::from_millis(500));
        assert_eq!(watchdog(Some("500000"), None), half_a_second);
        assert_eq!(watchdog(Some("500000"), Some("7")), half_a_second);
        assert_eq!(watchdog(Some("500000"), Some("8")), None);
        assert_eq!(watchdog(Some("500000"), Some("")), None);
        assert_eq!(watchdog(Some("0"), None), None);
        assert_eq!(watchdog(Some("soon"), None), None);
        assert_eq!(watchdog(None, Some("7")), None);
    }

    #[test]
    fn an_address_that_nobody_can_listen_at_is_refused() {
        for named in ["", "notify", "vsock:2:1234", "tcp://localhost"] {
            assert!(address(OsStr::new(named)).is_err(), "{named}");
        }
        assert!(address(OsStr::new("/run/systemd/notify")).is_ok());
        assert_eq!(address(OsStr::new("@a")).unwrap().as_abstract_name(), Some(&b"a"[..]));
    }
}
