//! The guard: the small process that owns COMMAND and everything descended from it, and sees it dead in time.
//!
//! ```text
//! leaderrun            the candidate: elects, renews, forwards signals
//! └─ lr-guard       the backstop: does the guard's work when the guard does not
//!    └─ lr-guard    the guard
//!       └─ COMMAND ... the tree
//! ```
//!
//! The hazards, and what stands against each:
//!
//! - *The candidate is killed, frozen or hangs.* The guard knows the deadline and needs nobody to tell it. When
//!   its line closes, the candidate is gone, and the tree goes within the grace.
//! - *The guard is killed.* COMMAND dies with it (`PR_SET_PDEATHSIG`); what outlives COMMAND lands on the
//!   backstop, the next subreaper up, which kills it.
//! - *The guard is frozen.* At `backstop_at` the backstop and the candidate, each by itself, kill the guard
//!   (SIGKILL ends a stopped process as well), and the tree lands on them.
//! - *Two of the three* are killed or frozen: the third is enough, for each of them knows the deadline and
//!   inherits what the others leave. (All three killed in the same instant: COMMAND itself still dies, but what
//!   it forked lives on. Only a PID namespace could close that.)
//! - *A descendant hides* in its own session or process group, or double-forks: the guard is a subreaper, so
//!   every descendant becomes its child at the latest when its own parent dies. "No child left" is the proof.
//! - *A process number is reused* between looking and killing: see [`tree`].
//!
//! All three leave the terminal's signals and systemd's to the candidate: guard and backstop block every signal,
//! and have process groups of their own.

mod backstop;
pub mod hooks;
pub mod policy;
mod terminal;
pub mod tree;
pub mod wire;

use crate::election::{CommandEnd, HookEnd, StartError};
use crate::lease::Deadline;
use crate::sys::{self, ChildState};
use crate::time::{BootInstant, boot_timer, set_boot_timer};
use crate::will::Will;
use hooks::{Hook, Hooks, Reason, Runner};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::timerfd::TimerFd;
use nix::sys::wait::WaitPidFlag;
use nix::unistd::Pid;
use policy::{Effect, Input, Policy};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::process::ExitCode;
use std::time::Duration;
use terminal::Terminal;
use tree::Tree;
use wire::{Heard, Line};

/// What a respawned process finds as its name when it is to be backstop and guard. `pkill -f leaderrun` does not
/// match it, so what that leaves of a tree is still looked after.
pub const GUARD_NAME: &str = "lr-guard";

/// What the candidate tells its guard before it starts. It travels through memory, not through arguments, so
/// that `pkill -f COMMAND` does not name the guard as well.
#[derive(Debug, Serialize, Deserialize)]
pub struct Charge {
    pub command: Vec<Vec<u8>>,
    pub deadline: Deadline,
    pub grace: Duration,
    pub stop_signal: i32,
    pub hooks: Hooks,
    /// The candidate's process group, when COMMAND may have the terminal.
    pub terminal_group: Option<i32>,
    /// What to do once the tree is dead, should the candidate be gone.
    pub will: Option<Will>,
}

/// Becomes backstop and guard if this process was respawned to be them. The first thing that `main` does.
#[must_use]
pub fn run_if_respawned() -> Option<ExitCode> {
    let mut arguments = std::env::args_os();
    if arguments.next()? != GUARD_NAME {
        return None;
    }
    Some(match backstop::run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{GUARD_NAME}: {error}: this program is started by leaderrun alone");
            ExitCode::from(crate::exit::USAGE)
        }
    })
}

/// The guard's main loop. Returns once no descendant is left.
fn guard(charge: Charge, line: Line, mask: SigSet) -> io::Result<()> {
    nix::sys::prctl::set_child_subreaper(true)?;
    let _ = nix::sys::prctl::set_name(c"lr-guard");
    nix::unistd::setpgid(Pid::this(), Pid::from_raw(0))?;
    let mut watch = Watch::new()?;
    let boxes = charge.hooks.boxes();
    let mut guard = Guard {
        policy: Policy::with_hooks(BootInstant::now(), charge.deadline, charge.grace, boxes),
        tree: Tree::default(),
        command: None,
        group: None,
        stop_signal: Signal::try_from(charge.stop_signal).unwrap_or(Signal::SIGTERM),
        terminal: charge.terminal_group.and_then(|group| Terminal::open(Pid::from_raw(group))),
        line: Some(line),
        words: charge.command,
        mask,
        runner: Runner::new(charge.hooks, mask),
        just_ended: false,
        hook_ended: None,
        killing: false,
        finished: false,
    };
    if boxes.lead.is_some() {
        guard.run_hook(Hook::Lead, charge.deadline.term_at);
    } else {
        guard.start();
    }
    loop {
        guard.reap();
        if guard.tree.is_empty() && guard.has_settled() {
            if let Some(terminal) = &guard.terminal {
                terminal.take_back();
            }
            guard.take(Input::Empty);
            if guard.finished {
                return Ok(());
            }
            continue;
        }
        if std::mem::take(&mut guard.just_ended) {
            guard.take(Input::CommandEnded);
            continue;
        }
        while let Some(input) = guard.hear() {
            guard.take(input);
        }
        // An order that has come meanwhile is heard before COMMAND is started.
        if let Some(end) = guard.hook_ended.take() {
            guard.take(Input::HookEnded(end));
            continue;
        }
        guard.take(Input::Tick);
        if guard.killing {
            guard.tree.kill();
        }
        // While it is killed, the tree is looked at again at once: it may be forking as fast as it dies.
        let wake_at = if guard.killing { tree::next_look() } else { guard.policy.wake_at() };
        watch.wait(guard.line.as_ref(), wake_at)?;
    }
}

struct Guard {
    policy: Policy,
    tree: Tree,
    /// Some while COMMAND has not been reaped.
    command: Option<Pid>,
    /// COMMAND's process group: safe to signal while COMMAND has not been reaped.
    group: Option<Pid>,
    stop_signal: Signal,
    terminal: Option<Terminal>,
    /// None once the candidate is gone.
    line: Option<Line>,
    /// COMMAND, to be started.
    words: Vec<Vec<u8>>,
    mask: SigSet,
    runner: Runner,
    /// COMMAND was reaped, and what it left behind has not been dealt with.
    just_ended: bool,
    /// Some once the hook that ran was reaped, until the policy has heard of it.
    hook_ended: Option<HookEnd>,
    killing: bool,
    finished: bool,
}

impl Guard {
    fn start(&mut self) {
        let not_after = self.policy.start_by();
        let mut words = std::mem::take(&mut self.words).into_iter().map(OsString::from_vec);
        let program = words.next().unwrap_or_default();
        let arguments: Vec<OsString> = words.collect();
        let terminal = self.terminal.as_ref().and_then(Terminal::to_hand_over);
        match sys::start_command(&program, &arguments, self.mask, terminal, not_after) {
            Ok(child) => {
                let pid = Pid::from_raw(i32::try_from(child.id()).expect("process numbers fit"));
                self.command = Some(pid);
                self.group = Some(pid);
                if let Some(terminal) = &mut self.terminal {
                    terminal.set_borrower(pid);
                }
                self.tree.grew();
                self.report(&wire::Report::Started { pid: pid.as_raw() });
                self.take(Input::CommandStarted);
            }
            Err(error) if error.raw_os_error() == Some(libc::ETIME) => {
                self.report(&wire::Report::DeadlineReached);
                // Nothing has run.
                self.report(&wire::Report::Unready(HookEnd::Cut));
                self.take(Input::CommandNotStarted(Reason::Lost));
            }
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
                self.report(&wire::Report::NotStarted(StartError(errno)));
                self.take(Input::CommandNotStarted(Reason::NotStarted));
            }
        }
    }

    fn run_hook(&mut self, hook: Hook, not_after: BootInstant) {
        match self.runner.start(hook, &self.policy, not_after) {
            Ok(()) => self.tree.grew(),
            Err(end) => self.hook_over(hook, end),
        }
    }

    fn hook_over(&mut self, hook: Hook, end: HookEnd) {
        // What the policy makes of the one before COMMAND it says itself. Whoever is killed with the tree has not failed.
        if hook != Hook::Lead && end != HookEnd::Exited(0) && !self.killing {
            self.report(&wire::Report::HookFailed(hook, end));
        }
        self.hook_ended = Some(end);
    }

    /// The box of the hook that runs is over.
    fn kill_hook(&mut self) {
        if let Some((hook, pid)) = self.runner.kill() {
            self.tree.kill_below(pid);
            self.report(&wire::Report::HookFailed(hook, HookEnd::TimedOut));
            self.runner.forget();
        }
    }

    /// Whether the policy has heard of everything that ended.
    fn has_settled(&self) -> bool {
        !self.just_ended && self.hook_ended.is_none()
    }

    fn take(&mut self, input: Input) {
        for effect in self.policy.handle(BootInstant::now(), input) {
            match effect {
                Effect::Start => self.start(),
                Effect::ReportUnready(end) => self.report(&wire::Report::Unready(end)),
                Effect::RunLosing => self.run_hook(Hook::Losing, self.policy.end_by()),
                Effect::RunLost => {
                    self.killing = false;
                    self.run_hook(Hook::Lost, self.policy.end_by());
                }
                Effect::KillHook => self.kill_hook(),
                Effect::Finish => self.finished = true,
                Effect::AskTree => self.ask(),
                Effect::KillTree => self.killing = true,
                Effect::ReportDeadline => self.report(&wire::Report::DeadlineReached),
                Effect::Signal(signal) => {
                    if let (Some(command), Ok(signal)) = (self.command, Signal::try_from(signal)) {
                        let _ = nix::sys::signal::kill(command, signal);
                    }
                }
                Effect::Continue => {
                    if let Some(terminal) = &self.terminal {
                        terminal.hand_over();
                    }
                    self.signal_group(Signal::SIGCONT);
                }
            }
        }
    }

    /// The stop signal once to every process; SIGCONT after it, for what is stopped cannot obey.
    fn ask(&self) {
        if self.tree.is_empty() {
            return;
        }
        let signals = [self.stop_signal, Signal::SIGCONT];
        for signal in signals {
            self.signal_group(signal);
        }
        // Finding the others takes a look at every process of the machine.
        let others = self.tree.outside_of(self.group);
        for signal in signals {
            for process in &others {
                process.signal(signal);
            }
        }
    }

    fn signal_group(&self, signal: Signal) {
        if let Some(group) = self.group {
            let _ = nix::sys::signal::killpg(group, signal);
        }
    }

    /// Reaps every child that ended and looks after COMMAND's stops.
    fn reap(&mut self) {
        loop {
            match self.tree.reap(WaitPidFlag::WEXITED | WaitPidFlag::WSTOPPED) {
                Some((pid, ChildState::Exited(status))) => self.ended(pid, CommandEnd::Exited(status)),
                Some((pid, ChildState::Signalled(signal))) => self.ended(pid, CommandEnd::Signalled(signal)),
                Some((pid, ChildState::Stopped(signal))) if Some(pid) == self.command => self.stopped(signal),
                Some((_, ChildState::Stopped(_) | ChildState::Continued)) => {}
                None => return,
            }
        }
    }

    fn ended(&mut self, pid: Pid, end: CommandEnd) {
        if self.command == Some(pid) {
            self.report(&wire::Report::Ended(end));
            self.runner.command_end = Some(end);
            // From here on the group's number may become somebody else's.
            (self.command, self.group) = (None, None);
            self.just_ended = true;
        } else if let Some(hook) = self.runner.reaped(pid) {
            let end = match end {
                CommandEnd::Exited(status) => HookEnd::Exited(status),
                CommandEnd::Signalled(signal) => HookEnd::Signalled(signal),
            };
            self.hook_over(hook, end);
        }
    }

    /// COMMAND was stopped. Only what a terminal did concerns us: a SIGSTOP is somebody's own business.
    fn stopped(&mut self, signal: i32) {
        let Some(terminal) = &self.terminal else { return };
        match Signal::try_from(signal) {
            Ok(Signal::SIGTTIN | Signal::SIGTTOU) if terminal.hand_over() => {
                self.signal_group(Signal::SIGCONT);
            }
            Ok(Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU) => {
                terminal.take_back();
                self.report(&wire::Report::Paused { signal });
            }
            _ => {}
        }
    }

    fn hear(&mut self) -> Option<Input> {
        match self.line.as_ref()?.hear_order() {
            Heard::Message(order) => Some(Input::Order(order)),
            Heard::Silence => None,
            Heard::Closed => {
                self.line = None;
                Some(Input::CandidateGone)
            }
        }
    }

    fn report(&self, report: &wire::Report) {
        if let Some(line) = &self.line {
            line.report(report);
        }
    }
}

/// What a guard or backstop sleeps on: its line, a child's end, an instant of `CLOCK_BOOTTIME`.
struct Watch {
    children: SignalFd,
    timer: TimerFd,
}

impl Watch {
    fn new() -> io::Result<Self> {
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGCHLD);
        Ok(Self {
            children: SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?,
            timer: boot_timer()?,
        })
    }

    fn wait(&mut self, line: Option<&Line>, wake_at: BootInstant) -> io::Result<()> {
        set_boot_timer(&self.timer, wake_at)?;
        let mut sources = vec![
            PollFd::new(self.children.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.timer.as_fd(), PollFlags::POLLIN),
        ];
        sources.extend(line.map(|line| PollFd::new(line.as_fd(), PollFlags::POLLIN)));
        match poll(&mut sources, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        while let Ok(Some(_)) = self.children.read_signal() {}
        Ok(())
    }
}

/// The descriptors a respawned process finds under the numbers in its arguments.
fn adopt_all(numbers: impl Iterator<Item = OsString>) -> io::Result<Vec<OwnedFd>> {
    numbers
        .map(|number| {
            let number = number.to_str().and_then(|number| number.parse().ok());
            sys::adopt(number.ok_or_else(|| io::Error::other("not a descriptor"))?)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz;
    use crate::lease::Deadline;
    use policy::{Effect, Order};

    #[test]
    fn a_million_charges_are_read_as_they_were_written_and_kept_whatever_numbers_are_in_them() {
        let at = BootInstant::from_nanos;
        let deadline =
            Deadline { term_at: at(5_000_000_000), kill_at: at(9_000_000_000), backstop_at: at(9_500_000_000) };
        let ours = [deadline, Deadline::NONE].map(|deadline| {
            let charge = Charge {
                command: vec![b"sleep".to_vec(), vec![0xff, b'1']],
                deadline,
                grace: Duration::from_millis(2500),
                stop_signal: 15,
                hooks: Hooks { lost: Some(vec![0xff]), timeout: Duration::from_secs(2), ..Hooks::default() },
                terminal_group: Some(7),
                will: None,
            };
            serde_json::to_vec(&charge).unwrap()
        });
        let seeds: Vec<&[u8]> = ours.iter().map(Vec::as_slice).collect();
        fuzz::bent("charge of the guard", &seeds, |text, source| {
            let read = serde_json::from_slice::<Charge>(text);
            match &read {
                Ok(charge) => {
                    let written = serde_json::to_vec(charge).unwrap();
                    let again: Charge = serde_json::from_slice(&written).unwrap();
                    assert_eq!(serde_json::to_vec(&again).unwrap(), written);
                    let mut policy = Policy::new(charge.deadline, charge.grace);
                    let order = match source.below(4) {
                        0 => Order::Stop { kill_after: Some(source.duration()) },
                        1 => Order::Lose,
                        _ => Order::Continue,
                    };
                    let _ = policy.handle(at(source.number()), Input::Order(order));
                    let end = charge.deadline.kill_at.plus(charge.grace);
                    let killed = policy.handle(end, Input::Tick).contains(&Effect::KillTree);
                    assert!(killed || policy.wake_at() == BootInstant::NEVER, "{policy:?}");
                }
                Err(error) => assert!(!error.to_string().is_empty()),
            }
            (&read).into()
        });
    }
}
