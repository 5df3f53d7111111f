//! The messages between candidate, guard and backstop.
//!
//! The hazard: a message that is seen in part, or a peer that dies unnoticed. So messages are short and travel over a
//! sequenced-packet socketpair, which delivers each one whole. When it closes, the other side is gone. Each one carries
//! the instant at which it was sent, so that its receiver can tell how late it was woken. Nothing here allocates.
//!
//! Another hazard: a listener that is frozen for a while reads nothing, and the kernel keeps a few hundred messages. So
//! those that come without limit, and that COMMAND or a person can do without, leave most of that to the others.

use super::hooks::Hook;
use super::policy::Order;
use crate::election::{HookEnd, TreeEvent, Unhealthy};
use crate::sys;
use crate::time::BootInstant;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, MsgFlags, Shutdown, SockFlag, SockType, recv, send, shutdown, socketpair};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// Bytes. The longest message with the instant at which it was sent takes fewer.
const MOST: usize = 64;

/// From the guard or the backstop to the candidate. The init of a namespace and the keyboard process report to the
/// guard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// What happened to the tree: an event of the election. [`TreeEvent::GuardFailed`] and [`TreeEvent::Dead`], which
    /// says that it has no descendant left, are from the backstop.
    Tree(TreeEvent),
    Started {
        pid: i32,
    },
    /// The terminal stopped COMMAND with this signal. The candidate has the terminal again.
    Paused {
        signal: i32,
    },
    /// From the keyboard process: the terminal sent this signal to COMMAND's group.
    Key {
        signal: i32,
    },
    /// The terminal told COMMAND's group that it hung up.
    HungUp,
    /// The tree was killed. Each duration counts from the instant at which the kill was due.
    Killed {
        /// Until the guard was awake.
        woken: Duration,
        /// Until every visible process had been sent SIGKILL.
        signalled: Duration,
        /// Until no process was left.
        empty: Duration,
    },
    /// A hook other than the pre-start hook failed. That changes nothing.
    HookFailed(Hook, HookEnd),
    /// A health check failed. That changes nothing yet.
    CheckFailed(Unhealthy),
    /// From the backstop: it has forked the guard.
    Guarded {
        pid: i32,
    },
    /// From the guard: if it freezes from now on, its kill timer ends it.
    Armed,
    /// The worst lateness of the sender, guard or backstop, has changed to this.
    Late(Duration),
}

/// One end of a connection between two of these processes.
#[derive(Debug)]
pub struct Line(pub(super) OwnedFd);

/// The limit of a backstop, in a file in memory that the candidate writes.
///
/// The hazard: a line keeps the oldest of many messages. A backstop that was frozen for long would go by a limit that
/// has passed long ago, and kill a tree whose lease is renewed. A file has the latest.
#[derive(Debug)]
pub struct Limit(pub(super) File);

impl Limit {
    pub fn new(limit: BootInstant) -> io::Result<Self> {
        let new = Self(sys::memory_file(c"leaderrun limit")?);
        new.set(limit)?;
        Ok(new)
    }

    pub fn set(&self, limit: BootInstant) -> io::Result<()> {
        let halves = [limit.as_nanos().to_ne_bytes(); 2];
        self.0.write_all_at(halves.as_flattened(), 0)
    }

    /// None if it is just being set.
    pub fn get(&self) -> Option<BootInstant> {
        let mut halves = [[0; 8]; 2];
        self.0.read_exact_at(halves.as_flattened_mut(), 0).ok()?;
        (halves[0] == halves[1]).then(|| BootInstant::from_nanos(u64::from_ne_bytes(halves[0])))
    }
}

impl AsFd for Limit {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What was read from a line.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard<T> {
    /// A message, and when it was sent.
    Message(T, BootInstant),
    /// No message now.
    Silence,
    /// The other side is gone.
    Closed,
}

impl Line {
    /// Both ends of a new line.
    pub fn pair() -> io::Result<(Self, Self)> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (one, other) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
        Ok((Self(one), Self(other)))
    }

    /// Sends an order. It is lost if the buffer of a frozen listener is full; such a listener is left to the deadline.
    /// Signals for COMMAND are dropped before: the kernel, too, keeps only one of several that are alike.
    pub fn order(&self, order: Order) {
        if !matches!(order, Order::Signal(_)) || self.has_room() {
            self.send(order);
        }
    }

    pub fn report(&self, report: &Report) {
        if !matches!(report, Report::CheckFailed(_) | Report::Paused { .. }) || self.has_room() {
            self.send(report);
        }
    }

    /// Reports that there is no guard, and so no tree.
    pub fn report_nothing_started(&self, error: &io::Error) {
        self.report(&Report::Tree(TreeEvent::NotStarted(sys::refused(error).into())));
        self.report(&Report::Tree(TreeEvent::Dead));
    }

    /// Whether most of the buffer is free, because the listener has read enough. The kernel's measure is a quarter.
    fn has_room(&self) -> bool {
        poll(&mut [PollFd::new(self.0.as_fd(), PollFlags::POLLOUT)], PollTimeout::ZERO) == Ok(1)
    }

    /// Tells the other side that nothing more will be sent. Its messages are still heard.
    pub fn hang_up(&self) {
        let _ = shutdown(self.0.as_raw_fd(), Shutdown::Write);
    }

    fn send(&self, message: impl Serialize) {
        let mut packet = [0; MOST];
        let sent = postcard::to_slice(&(message, BootInstant::now()), &mut packet).expect("every message fits");
        let _ = send(self.0.as_raw_fd(), sent, MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT);
    }

    /// Whether the other side is gone, and has not only hung up.
    pub fn is_abandoned(&self) -> bool {
        let mut source = [PollFd::new(self.0.as_fd(), PollFlags::empty())];
        poll(&mut source, PollTimeout::ZERO).is_ok()
            && source[0].revents().is_some_and(|events| events.contains(PollFlags::POLLHUP))
    }

    /// Hears an [`Order`] or a [`Report`], whichever comes from the other side.
    pub fn hear<T: DeserializeOwned>(&self) -> Heard<T> {
        loop {
            let mut packet = [0; MOST];
            match recv(self.0.as_raw_fd(), &mut packet, MsgFlags::MSG_DONTWAIT) {
                Ok(0) => return Heard::Closed,
                // Both sides are the same executable, so each message can be read. Ignoring one is safe: deadlines need
                // none.
                Ok(length) => {
                    if let Ok((message, sent_at)) = postcard::from_bytes(&packet[..length]) {
                        return Heard::Message(message, sent_at);
                    }
                }
                Err(Errno::EAGAIN) => return Heard::Silence,
                // The other side is gone, and has not read all of ours. The kernel says so once, before its last
                // messages, and one of these may tell how COMMAND ended.
                Err(Errno::ECONNRESET | Errno::EINTR) => {}
                Err(_) => return Heard::Closed,
            }
        }
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::election::{CommandEnd, Interrupt, Reason, StartError};
    use crate::guard::hooks::Hook;
    use crate::lease::Deadline;

    #[test]
    fn the_longest_messages_fit() {
        let (here, there) = Line::pair().unwrap();
        let most = Duration::MAX;
        let end = HookEnd::NotStarted(StartError(i32::MIN));
        let failed = Unhealthy { last: end, failures: u32::MAX };
        let interrupt = Interrupt { signal: i32::MIN, command_alone: true };
        for order in [
            Order::Extend(Deadline::NONE),
            Order::Stop { reason: Reason::Asked, kill_after: Some(most) },
            Order::Late(most),
        ] {
            here.order(order);
        }
        let reports = [
            Report::Killed { woken: most, signalled: most, empty: most },
            Report::HookFailed(Hook::PostStop, end),
            Report::Tree(TreeEvent::Unhealthy(failed)),
            Report::Tree(TreeEvent::Interrupted(interrupt)),
        ];
        for report in &reports {
            there.report(report);
        }
        assert_eq!((heard::<Order>(&there).len(), heard::<Report>(&here)), (3, reports.to_vec()));
    }

    /// All that a listener finds that was frozen meanwhile.
    fn heard<T: DeserializeOwned>(listener: &Line) -> Vec<T> {
        std::iter::from_fn(|| match listener.hear() {
            Heard::Message(message, _) => Some(message),
            Heard::Silence | Heard::Closed => None,
        })
        .collect()
    }

    #[test]
    fn however_many_signals_and_failed_checks_come_what_matters_arrives() {
        const MANY: usize = 10_000;
        let (here, there) = Line::pair().unwrap();
        for _ in 0..MANY {
            here.order(Order::Signal(libc::SIGUSR1));
        }
        let last = [Order::Stop { reason: Reason::Asked, kill_after: None }, Order::Kill];
        for order in last {
            here.order(order);
        }
        let orders: Vec<Order> = heard(&there);
        assert!(orders.len() > 20 && orders.len() < MANY && orders.ends_with(&last), "{}", orders.len());
        // Once they are read, there is room again.
        here.order(Order::Signal(libc::SIGHUP));
        assert_eq!(heard::<Order>(&there), [Order::Signal(libc::SIGHUP)]);

        let failed = Unhealthy { last: HookEnd::Exited(1), failures: 1 };
        for _ in 0..MANY {
            there.report(&Report::CheckFailed(failed));
        }
        let last = [
            Report::Tree(TreeEvent::Unhealthy(failed)),
            Report::Tree(TreeEvent::Ended(CommandEnd::Exited(5))),
            Report::Tree(TreeEvent::Dead),
        ];
        for report in &last {
            there.report(report);
        }
        let reports: Vec<Report> = heard(&here);
        assert!(reports.len() > 20 && reports.len() < MANY && reports.ends_with(&last), "{}", reports.len());
    }

    #[test]
    fn the_last_reports_of_a_guard_that_has_not_read_all_orders_are_heard() {
        let (here, there) = Line::pair().unwrap();
        let ended = Report::Tree(TreeEvent::Ended(CommandEnd::Exited(5)));
        there.report(&ended);
        here.order(Order::Continue);
        drop(there);
        assert_eq!(heard::<Report>(&here), [ended]);
    }

    #[test]
    fn a_side_that_hangs_up_is_not_gone_before_it_closes() {
        let (here, there) = Line::pair().unwrap();
        there.hang_up();
        assert_eq!((here.hear::<Order>(), here.is_abandoned()), (Heard::Closed, false));
        drop(there);
        assert_eq!((here.hear::<Order>(), here.is_abandoned()), (Heard::Closed, true));
    }

    #[test]
    fn the_latest_limit_is_read_as_it_was_set_however_often() {
        let limit = Limit::new(BootInstant::NEVER).unwrap();
        let backstops = Limit(limit.0.try_clone().unwrap());
        assert_eq!(backstops.get(), Some(BootInstant::NEVER));
        for nanos in 1..1000 {
            let at = BootInstant::from_nanos(nanos * 5_000_000_000);
            limit.set(at).unwrap();
            assert_eq!(backstops.get(), Some(at));
        }
        limit.0.write_all_at(&[0; 8], 0).unwrap();
        assert_eq!(backstops.get(), None, "half of it is set");
    }
}
