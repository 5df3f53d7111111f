//! The signals that a candidate acts on.
//!
//! The hazard: a signal with its default action kills the candidate where its COMMAND needs an orderly stop; and
//! taking over one that was ignored on purpose (nohup, a shell's `&`) undoes that purpose, for COMMAND as well,
//! since a handled signal gets its default action back on exec and an ignored one stays ignored. One that was blocked
//! as we began never comes, so what we listen to is unblocked, and COMMAND gets the mask that we were given.

use crate::sys;
use nix::sys::signal::Signal;
use std::future::poll_fn;
use std::io;
use std::task::Poll;
use tokio::signal::unix::{SignalKind, signal};

/// Always ours.
const OWN: [Signal; 2] = [Signal::SIGCHLD, Signal::SIGTERM];
/// Ours unless they were ignored when we began. SIGINT asks us to stop; the rest is COMMAND's.
const POLITE: [Signal; 6] =
    [Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGWINCH];

pub struct Signals(Vec<(Signal, tokio::signal::unix::Signal)>);

impl Signals {
    /// # Errors
    /// The kernel's.
    pub fn listen() -> io::Result<Self> {
        let polite = POLITE.into_iter().filter(|&signal| !sys::is_ignored(signal));
        let listen = |kind: Signal| Ok((kind, signal(SignalKind::from_raw(kind as i32))?));
        let signals = Self(OWN.into_iter().chain(polite).map(listen).collect::<io::Result<_>>()?);
        sys::unblock(signals.0.iter().map(|(signal, _)| *signal));
        Ok(signals)
    }

    /// The next one. Cancelling it loses none.
    pub async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (kind, signal) in &mut self.0 {
                if signal.poll_recv(context).is_ready() {
                    return Poll::Ready(*kind);
                }
            }
            Poll::Pending
        })
        .await
    }
}
