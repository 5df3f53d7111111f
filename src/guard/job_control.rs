//! What the terminal does to COMMAND: it stops COMMAND, and its keyboard ends it. The design is written in
//! [`foreground`](super::foreground).

use super::Guard;
use super::foreground::{Foreground, Lent};
use super::policy::Order;
use super::wire::{Heard, Report};
use crate::election::{CommandEnd, Interrupt, TreeEvent};
use crate::time::BootInstant;
use nix::sys::signal::Signal;
use std::time::Duration;

/// How often a COMMAND that waits for the terminal of its pipeline asks for it.
const ASKS_EVERY: Duration = Duration::from_millis(200);

impl Guard {
    /// Handles a stop of COMMAND by the terminal, or in its foreground, where nobody else could read the keyboard then.
    /// Elsewhere a SIGSTOP is the sender's business.
    pub(super) fn stopped(&mut self, signal: i32) {
        match Signal::try_from(signal) {
            Ok(Signal::SIGTTIN | Signal::SIGTTOU) => self.ask_for_terminal(),
            Ok(Signal::SIGTSTP) => self.pause(signal),
            Ok(Signal::SIGSTOP) if self.terminal.as_ref().is_some_and(Foreground::borrower_has_it) => {
                self.pause(signal);
            }
            _ => {}
        }
    }

    /// COMMAND is stopped until it has the terminal.
    pub(super) fn ask_for_terminal(&mut self) {
        self.ask_terminal_at = BootInstant::NEVER;
        let Some(terminal) = &mut self.terminal else { return };
        match terminal.lend() {
            Lent::ToCommand => self.pass_on(Order::Continue),
            Lent::ToSibling => self.ask_terminal_at = BootInstant::now().plus(ASKS_EVERY),
            Lent::ToOthers => self.pause(libc::SIGTTIN),
        }
    }

    /// COMMAND is stopped as a job is: so is the candidate's group then.
    fn pause(&mut self, signal: i32) {
        if let Some(terminal) = &self.terminal {
            terminal.take_back();
            self.report(&Report::Paused { signal });
        }
    }

    pub(super) fn hear_keyboard(&mut self) {
        while let Some(keyboard) = &self.keyboard {
            match keyboard.hear() {
                Heard::Message(Report::Key { signal: libc::SIGHUP }, _) => self.report(&Report::HungUp),
                Heard::Message(Report::Key { signal }, sent_at) => {
                    self.interrupted(Interrupt { signal, command_alone: true }, sent_at);
                }
                // It reports nothing else.
                Heard::Message(..) => {}
                Heard::Silence => return,
                Heard::Closed => self.keyboard = None,
            }
        }
    }

    /// A key was typed that may end COMMAND, if COMMAND has not ended by it already. A COMMAND that goes on is left
    /// alone.
    pub(super) fn interrupted(&mut self, interrupt: Interrupt, at: BootInstant) {
        self.key = Some((interrupt, at));
        if self.command_end.is_some() {
            self.report(&Report::Tree(TreeEvent::Interrupted(interrupt)));
        }
    }

    pub(super) fn settle_terminal(&mut self) {
        if let Some(terminal) = &self.terminal {
            terminal.settle(matches!(self.command_end, Some(CommandEnd::Signalled(_))));
        }
    }
}
