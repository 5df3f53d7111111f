//! The signals that a candidate acts on.
//!
//! The hazard: the default action of a signal kills the candidate, although COMMAND needs an orderly stop. But handling
//! a signal that was ignored on purpose (nohup, a shell's `&`) undoes that purpose, for COMMAND as well: exec(2) resets
//! a handled signal to its default action, and keeps an ignored one ignored. And a signal that was blocked at the start
//! never comes. So leaderrun leaves most ignored signals alone, unblocks those that it handles, and starts COMMAND with
//! the mask that it was given itself.

use crate::sys;
use nix::sys::signal::Signal;
use std::future::poll_fn;
use std::io;
use std::task::Poll;
use tokio::signal::unix::{SignalKind, signal};

/// Signals that the candidate handles even if they were ignored at its start: it cannot do its work without them. For a
/// job that is stopped, a shell sends SIGCONT right after SIGTERM: what is to continue then is known to be stopping.
const OWN: [Signal; 3] = [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGCONT];
/// Signals that the candidate handles unless they were ignored at its start. SIGINT asks it to stop; the others are
/// passed on to COMMAND. What they mean at a terminal is written in [`foreground`](crate::guard::foreground).
const POLITE: [Signal; 6] =
    [Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGWINCH];

pub struct Signals(Vec<(Signal, tokio::signal::unix::Signal)>);

impl Signals {
    pub fn listen() -> io::Result<Self> {
        let polite = POLITE.into_iter().filter(|&signal| !sys::is_ignored(signal));
        let listen = |kind: Signal| Ok((kind, signal(SignalKind::from_raw(kind as i32))?));
        let signals = Self(OWN.into_iter().chain(polite).map(listen).collect::<io::Result<_>>()?);
        sys::unblock(signals.0.iter().map(|(signal, _)| *signal));
        Ok(signals)
    }

    /// Waits for the next signal. Cancel-safe.
    pub async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            let mut signals = self.0.iter_mut();
            let ready = signals.find_map(|(kind, signal)| signal.poll_recv(context).is_ready().then_some(*kind));
            ready.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}
