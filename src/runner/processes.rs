//! The real host of a candidate: `CLOCK_BOOTTIME`, signals, and a tree of processes.
//!
//! The hazard: two kinds of signals arrive on the same path. The candidate obeys some itself, because it alone decides
//! when COMMAND ends. The others are for COMMAND, which must receive each one as if no process stood in between. What a
//! terminal does is written in [`foreground`](crate::guard::foreground).

use crate::election::{Action, Booking, Event, LogEvent, Notice, Reason, Role, StartError, TreeEvent, View};
use crate::guard::foreground::{self, Foreground};
use crate::guard::policy::Order;
use crate::guard::priority;
use crate::guard::quota::Quota;
use crate::guard::wire::Report;
use crate::lease::{Candidate, Deadline, Term};
use crate::observe::metrics::Metrics;
use crate::observe::metrics_file::MetricsFile;
use crate::observe::query_socket::QuerySocket;
use crate::observe::systemd::Notifier;
use crate::observe::waiting::WaitingLog;
use crate::observe::{Observer, terminal};
use crate::runner::command::{Command, inherited};
use crate::runner::driver::Host;
use crate::runner::guard_handle::{self, GuardEvent, GuardHandle};
use crate::runner::or_never;
use crate::runner::signals::Signals;
use crate::runner::standby_tasks::StandbyTasks;
use crate::runner::timer::Timer;
use crate::slots::Campaign;
use crate::store::Takeover;
use crate::sys;
use crate::time::BootInstant;
use nix::sys::mman::munlockall;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{self, IsTerminal};
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// How long after its SIGHUP a shell has ended, and the terminal with it.
const HANGS_UP_WITHIN: Duration = Duration::from_secs(1);

/// Signals that come this soon after a request to stop belong to it: timeout(1) sends one to leaderrun, and then one to
/// the whole group that it is in.
const ONE_REQUEST: Duration = Duration::from_millis(500);

#[derive(Default)]
pub struct Observers {
    pub query_socket: Option<QuerySocket>,
    pub notifier: Option<Notifier>,
    pub metrics: Option<Arc<Metrics>>,
    pub metrics_file: Option<MetricsFile>,
    pub(crate) waiting: Option<WaitingLog>,
}

impl Observers {
    fn tell(&mut self, mut tell: impl FnMut(&mut dyn Observer)) {
        self.waiting.iter_mut().for_each(|waiting| tell(waiting));
        self.query_socket.iter_mut().for_each(|query_socket| tell(query_socket));
        self.notifier.iter_mut().for_each(|notifier| tell(notifier));
        self.metrics.iter_mut().for_each(|metrics| tell(metrics));
        self.metrics_file.iter_mut().for_each(|file| tell(file));
    }
}

pub struct Processes {
    command: Command,
    signals: Signals,
    timer: Timer,
    /// Some from the start of a guard to the proof that its tree is dead.
    guard: Option<GuardHandle>,
    /// None of them is alive while there is a guard.
    standby_tasks: StandbyTasks,
    observers: Observers,
    /// The last request to stop, and when it came.
    asked: Option<(Signal, Instant)>,
    /// The terminal stopped COMMAND, and then us.
    paused: bool,
    /// The terminal, from the start of a guard to the proof that its tree is dead.
    terminal: Option<Foreground>,
    /// When to look whether the terminal is gone, after a SIGHUP.
    look_at_terminal: Option<Instant>,
    /// Our memory is locked. It is from the first renewal on: before that a short COMMAND has ended, and to lock and
    /// unlock takes a tenth of such a run.
    locked: bool,
    /// True for a standby that knows what it waits for.
    waits: bool,
    late: Duration,
}

impl Processes {
    /// Prepares the host; starts no process.
    pub fn new(command: Command, standby_tasks: StandbyTasks, observers: Observers) -> io::Result<Self> {
        Ok(Self {
            command,
            signals: Signals::listen()?,
            timer: Timer::new()?,
            guard: None,
            standby_tasks,
            observers,
            asked: None,
            paused: false,
            terminal: None,
            look_at_terminal: None,
            locked: false,
            waits: false,
            late: Duration::ZERO,
        })
    }

    fn with_guard(&mut self, act: impl FnOnce(&mut GuardHandle)) {
        if let Some(guard) = &mut self.guard {
            act(guard);
        }
    }

    /// None if it was asked just now.
    fn asked_to_stop(&mut self, signal: Signal) -> Option<Event> {
        if self.asked.is_some_and(|(_, at)| at.elapsed() < ONE_REQUEST) {
            return None;
        }
        self.asked = Some((signal, Instant::now()));
        Some(Event::Asked { signal: signal as i32 })
    }

    /// The event that a signal means. None if the signal is not for the election.
    fn signalled(&mut self, signal: Signal) -> Option<Event> {
        match signal {
            Signal::SIGCHLD => self.reap(),
            Signal::SIGTERM | Signal::SIGINT => return self.asked_to_stop(signal),
            // Ctrl-\ ends a standby. A COMMAND that runs decides for itself.
            Signal::SIGQUIT if self.guard.is_none() && self.command.plan.terminal_group.is_some() => {
                return self.asked_to_stop(signal);
            }
            Signal::SIGCONT => {
                if take(&mut self.paused) {
                    self.with_guard(|guard| guard.order(Order::Continue));
                }
            }
            Signal::SIGHUP if self.terminal_is_gone() => return self.hung_up(),
            Signal::SIGHUP => {
                self.look_at_terminal = self.command.plan.terminal_group.map(|_| Instant::now() + HANGS_UP_WITHIN);
                self.pass_on(signal);
            }
            _ => self.pass_on(signal),
        }
        None
    }

    fn pass_on(&self, signal: Signal) {
        match &self.guard {
            Some(guard) => guard.order(Order::Signal(signal as i32)),
            None => self.standby_tasks.signal(signal as i32),
        }
    }

    fn terminal_is_gone(&self) -> bool {
        self.command.plan.terminal_group.is_some() && !foreground::has_terminal()
    }

    /// The terminal is gone. That is a request to stop, but no second one: it would kill a COMMAND that is stopping.
    fn hung_up(&mut self) -> Option<Event> {
        self.look_at_terminal = None;
        if self.asked.is_some() { None } else { self.asked_to_stop(Signal::SIGHUP) }
    }

    pub fn asked(&self) -> Option<Signal> {
        self.asked.map(|(signal, _)| signal)
    }

    fn reap(&mut self) {
        guard_handle::reap(self.guard.iter_mut().chain(self.standby_tasks.handles()));
    }

    fn guard_event(&mut self, event: GuardEvent) -> Option<Event> {
        match event {
            GuardEvent::Guarded(helpers) => {
                self.observers.tell(|observer| observer.guarded(helpers));
                None
            }
            GuardEvent::Report(report) => self.reported(&report),
            GuardEvent::Late(worst) => {
                self.late = worst;
                self.command.plan.measure.map(|measure| Event::Late(measure.late(worst)))
            }
            GuardEvent::Tree(event) => {
                if event == TreeEvent::Dead {
                    self.tree_dead();
                }
                Some(Event::Tree(event))
            }
            GuardEvent::Seizing => {
                self.reap();
                None
            }
        }
    }

    fn reported(&mut self, report: &Report) -> Option<Event> {
        match report {
            Report::Started { pid } => {
                tracing::debug!(command_pid = pid, "started the command");
                return Some(Event::Tree(TreeEvent::Started));
            }
            Report::HookFailed(hook, end) => {
                tracing::warn!(event = LogEvent::HookFailed.into_str(), "the --{hook} hook {end}");
            }
            Report::CheckFailed(failed) => tracing::warn!(event = LogEvent::HookFailed.into_str(), "{failed}"),
            Report::HungUp if self.terminal_is_gone() => return self.hung_up(),
            Report::HungUp => self.look_at_terminal = Some(Instant::now() + HANGS_UP_WITHIN),
            Report::Paused { signal } => self.command_paused(*signal),
            // The guard handle has heard these.
            _ => {}
        }
        None
    }

    fn command_paused(&mut self, signal: i32) {
        let goes_on = match Signal::try_from(signal) {
            Ok(Signal::SIGTSTP) => !foreground::can_be_continued(),
            // The candidate has the terminal now, so Ctrl-C ends it. Who stopped COMMAND continues it.
            Ok(Signal::SIGSTOP) if !foreground::can_be_continued() => return,
            Ok(Signal::SIGSTOP) => false,
            _ => self.terminal.as_ref().is_some_and(Foreground::owner_has_it),
        };
        if goes_on {
            // Nobody could wake us after Ctrl-Z, or the shell has put us in the foreground since.
            self.with_guard(|guard| guard.order(Order::Continue));
        } else {
            // The shell's SIGCONT continues COMMAND as well.
            self.paused = true;
            // Stops us as the terminal stopped COMMAND, so that the shell gets its prompt back. But a stop goes on
            // without a terminal (`kill %1`): a candidate that is stopped does not give the lease back.
            if self.asked.is_none() || signal != libc::SIGTTIN {
                let _ = kill(Pid::from_raw(0), Signal::SIGTSTP);
            }
        }
    }

    fn tree_dead(&mut self) {
        self.guard = None;
        self.paused = false;
        if let Some(terminal) = self.terminal.take() {
            terminal.recover();
        }
        priority::lower(self.command.containment.means.scheduling);
        if take(&mut self.locked) {
            let _ = munlockall();
        }
        self.reap();
    }
}

impl Host for Processes {
    async fn next(&mut self, wake_at: BootInstant) -> io::Result<Event> {
        self.timer.set(wake_at)?;
        loop {
            let event = tokio::select! {
                signal = self.signals.next() => self.signalled(signal),
                event = or_never(self.guard.as_mut().map(GuardHandle::next)) => self.guard_event(event),
                () = or_never(self.look_at_terminal.map(sleep_until)) => {
                    self.look_at_terminal = None;
                    if self.terminal_is_gone() { self.hung_up() } else { None }
                }
                event = self.standby_tasks.next() => {
                    if event.is_none() {
                        self.reap();
                    }
                    event
                }
                () = self.timer.reached() => Some(Event::Tick),
                () = or_never(self.observers.query_socket.as_ref().map(QuerySocket::answer_all)) => None,
                () = terminal::due() => {
                    terminal::flush();
                    None
                }
                () = or_never(self.observers.waiting.as_ref().map(WaitingLog::due)) => {
                    self.observers.waiting.as_mut().expect("it was due").say();
                    None
                }
                () = or_never(self.observers.notifier.as_ref().map(Notifier::due)) => {
                    self.observers.notifier.as_mut().expect("it was due").send_news();
                    None
                }
            };
            if let Some(event) = event {
                return Ok(event);
            }
        }
    }

    fn start(
        &mut self,
        candidate: &Candidate,
        term: Term,
        deadline: Deadline,
        takeover: Takeover,
        campaign: &Campaign,
    ) -> Result<(), StartError> {
        assert!(self.standby_tasks.handles().next().is_none(), "a standby task outlived the standby");
        let notifies = self.observers.notifier.as_ref().is_some_and(Notifier::is_commands);
        if let Some(measure) = &mut self.command.plan.measure {
            // What was measured is taken over. Until then, a quota tells what may come.
            let quota = Quota::find();
            measure.under_a_quota = quota.is_some();
            measure.presumed = self.late.max(quota.map_or(Duration::ZERO, |quota| quota.presumed_lateness()));
        }
        let told = [("LEADERRUN_TERM", term.to_string()), ("LEADERRUN_TAKEOVER", takeover.into_str().to_owned())];
        let slot = candidate.shard.slot().map(|slot| ("LEADERRUN_SLOT", slot.to_string()));
        let socket = self.observers.query_socket.as_ref().map(QuerySocket::variables);
        let told = told.into_iter().chain(slot).chain(socket.into_iter().flatten()).chain(self.command.job.clone());
        self.command.environment = inherited(candidate, notifies);
        self.command.environment.extend(told.map(|(name, value)| (name.into(), value.into())));
        self.observers.tell(|observer| observer.began(&candidate.shard, term, deadline));
        let command = &self.command;
        let mut started = Err(io::Error::other("the store did not answer"));
        campaign.leases().with_lease_files(&candidate.shard, &mut |lease_files| {
            started = GuardHandle::start(command, candidate, term, deadline, lease_files);
        });
        let guard = started.map_err(|error| {
            // The message at the program's end reports this to people.
            tracing::debug!("cannot start the guard: {error}");
            StartError::from(sys::refused(&error))
        })?;
        self.guard = Some(guard);
        self.terminal = self.command.plan.terminal_group.map(Pid::from_raw).and_then(Foreground::open);
        self.terminal.iter_mut().for_each(Foreground::save_modes);
        // From here on we may have to kill.
        if self.command.containment.means.raises {
            priority::raise_below_helpers(self.command.containment.means.scheduling);
        }
        Ok(())
    }

    fn saw(&mut self, event: &Event) {
        if let Event::Booked { answer: Ok(Booking::Booked(booked)), .. } = event {
            self.command.job.clone_from(&booked.variables);
            // A person has started it. This is no log line: --quiet does not hide it.
            if let Some(words) = booked.counts_as.as_ref().filter(|_| std::io::stderr().is_terminal()) {
                terminal::say(format_args!("leaderrun: {words}"));
            }
        }
        self.observers.tell(|observer| observer.saw(event));
    }

    fn carry_out(&mut self, action: &Action) {
        self.observers.tell(|observer| observer.did(action));
        match action {
            Action::Extend(deadline) => {
                self.with_guard(|guard| guard.extend(*deadline));
                if !self.locked && self.command.containment.means.raises {
                    priority::stay_in_memory();
                    self.locked = true;
                }
            }
            Action::Stop(stop) => self.with_guard(|guard| guard.stop(*stop)),
            Action::Seize => {
                if self.command.containment.means.raises {
                    priority::raise(self.command.containment.means.scheduling);
                }
                self.with_guard(GuardHandle::seize);
            }
            Action::StartStandbyTasks => self.standby_tasks.start(),
            Action::StopStandbyTasks { kill_after } => {
                self.standby_tasks.stop(Order::Stop { reason: Reason::Asked, kill_after: Some(*kill_after) });
            }
            Action::KillStandbyTasks => self.standby_tasks.stop(Order::Kill),
            Action::SeizeStandbyTasks => self.standby_tasks.seize(),
            Action::LeaderChanged(leader) => self.standby_tasks.leader_changed(leader.clone()),
            Action::Say(notice @ Notice::HoldingBack(..))
                if !tracing::enabled!(tracing::Level::INFO) && std::io::stderr().is_terminal() =>
            {
                terminal::say(format_args!("leaderrun: {notice}"));
            }
            _ => {}
        }
    }

    fn show(&mut self, view: View) {
        let waits = matches!(view.role, Role::Standby(Some(_)));
        if waits && !self.waits {
            tokio::spawn(free_memory_of_the_start());
        }
        self.waits = waits;
        self.observers.tell(|observer| observer.show(&view));
    }
}

/// Frees the memory of code that only the start needed: a standby uses a small part of the program. It waits a moment,
/// because the rest of the start is still to come.
async fn free_memory_of_the_start() {
    tokio::time::sleep(Duration::from_secs(1)).await;
    sys::forget_instructions();
}
