//! The real host of a candidate: `CLOCK_BOOTTIME`, signals, and a tree of processes.
//!
//! The hazard: two kinds of signals arrive on the same path. The candidate obeys some itself, because it alone decides
//! when COMMAND ends. The others are for COMMAND, which must receive each one as if no process stood in between. What a
//! terminal does is written in [`foreground`](crate::guard::foreground).

use crate::election::{Action, Booking, Event, LogEvent, Notice, Role, StandbyStop, StartError, Stop, TreeEvent, View};
use crate::guard::foreground::{self, Foreground};
use crate::guard::priority;
use crate::guard::quota::Quota;
use crate::lease::{Candidate, Deadline, Term};
use crate::observe::Observer;
use crate::observe::metrics::Metrics;
use crate::observe::metrics_file::MetricsFile;
use crate::observe::query_socket::QuerySocket;
use crate::observe::status_line::StatusLine;
use crate::observe::systemd::{self, Notifier};
use crate::observe::terminal;
use crate::runner::driver::Host;
use crate::runner::guard_handle::{self, Command, GuardEvent, GuardHandle};
use crate::runner::signals::Signals;
use crate::runner::standby_tasks::{Happening, StandbyTasks};
use crate::slots::Campaign;
use crate::store::Holder;
use crate::sys::{self, Owned};
use crate::time::{BootInstant, boot_timer, set_boot_timer};
use nix::sys::signal::{Signal, kill};
use nix::sys::timerfd::TimerFd;
use nix::unistd::Pid;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep_until};

/// How long after its SIGHUP a shell has ended, and the terminal with it.
const HANGS_UP_WITHIN: Duration = Duration::from_secs(1);

/// Runs COMMAND as processes of this machine.
pub struct Processes {
    command: Command,
    signals: Signals,
    timer: Timer,
    /// Some from the start of a guard to the proof that its tree is dead.
    guard: Option<GuardHandle>,
    /// None of them is alive while there is a guard.
    standby_tasks: StandbyTasks,
    /// Some if the candidate answers questions from its host.
    query_socket: Option<QuerySocket>,
    /// Some if a service manager wants notifications.
    notifier: Option<Notifier>,
    /// Some if metrics are served.
    metrics: Option<Arc<Metrics>>,
    /// Some if the results of runs are written to a file.
    metrics_file: Option<MetricsFile>,
    /// Shows what the candidate waits for.
    line: Option<StatusLine>,
    /// The last signal that asked us to stop.
    asked: Option<Signal>,
    /// The terminal stopped COMMAND, and then us.
    paused: bool,
    /// The terminal, from the start of a guard to the proof that its tree is dead.
    terminal: Option<Foreground>,
    /// When to look whether the terminal is gone, after a SIGHUP.
    look_at_terminal: Option<Instant>,
    /// Our memory is locked. It is from the first renewal on: before that a short COMMAND has ended, and to lock and unlock
    /// takes a tenth of such a run.
    locked: bool,
    /// True for a standby that knows what it waits for.
    waits: bool,
    /// The worst lateness of the last guard and backstop.
    late: Duration,
}

impl Processes {
    /// Prepares the host; starts no process.
    ///
    /// # Errors
    /// The kernel gave no timer or no signals.
    pub fn new(
        command: Command,
        standby_tasks: StandbyTasks,
        notifier: Option<Notifier>,
        metrics: Option<Arc<Metrics>>,
    ) -> io::Result<Self> {
        let (signals, timer) = (Signals::listen()?, Timer::new()?);
        Ok(Self {
            command,
            signals,
            timer,
            guard: None,
            standby_tasks,
            query_socket: None,
            notifier,
            metrics,
            metrics_file: None,
            line: None,
            asked: None,
            paused: false,
            terminal: None,
            look_at_terminal: None,
            locked: false,
            waits: false,
            late: Duration::ZERO,
        })
    }

    /// Adds the socket that answers questions.
    #[must_use]
    pub(crate) fn with_query_socket(self, query_socket: Option<QuerySocket>) -> Self {
        Self { query_socket, ..self }
    }

    /// Adds a status line.
    #[must_use]
    pub(crate) fn with_line(self, line: Option<StatusLine>) -> Self {
        Self { line, ..self }
    }

    /// Adds the file of `--metrics-file`.
    #[must_use]
    pub(crate) fn with_metrics_file(self, metrics_file: Option<MetricsFile>) -> Self {
        Self { metrics_file, ..self }
    }

    fn with_guard(&mut self, act: impl FnOnce(&mut GuardHandle)) {
        if let Some(guard) = &mut self.guard {
            act(guard);
        }
    }

    fn tell(&mut self, mut tell: impl FnMut(&mut dyn Observer)) {
        self.line.iter_mut().for_each(|line| tell(line));
        self.query_socket.iter_mut().for_each(|query_socket| tell(query_socket));
        self.notifier.iter_mut().for_each(|notifier| tell(notifier));
        self.metrics.iter_mut().for_each(|metrics| tell(metrics));
        self.metrics_file.iter_mut().for_each(|file| tell(file));
    }

    fn asked_to_stop(&mut self, signal: Signal) -> Event {
        self.asked = Some(signal);
        self.tell(|observer| observer.asked_to_stop());
        Event::Asked { signal: signal as i32 }
    }

    /// The event that a signal means. None if the signal is not for the election.
    fn signalled(&mut self, signal: Signal) -> Option<Event> {
        match signal {
            Signal::SIGCHLD => self.reap(),
            Signal::SIGTERM | Signal::SIGINT => return Some(self.asked_to_stop(signal)),
            // Ctrl-\ ends a standby. A COMMAND that runs decides for itself.
            Signal::SIGQUIT if self.guard.is_none() && self.command.terminal_group.is_some() => {
                return Some(self.asked_to_stop(signal));
            }
            Signal::SIGCONT => {
                if std::mem::take(&mut self.paused) {
                    self.with_guard(|guard| guard.resume());
                }
            }
            Signal::SIGHUP if self.terminal_is_gone() => return self.hung_up(),
            Signal::SIGHUP => {
                self.look_at_terminal = self.command.terminal_group.map(|_| Instant::now() + HANGS_UP_WITHIN);
                self.pass_on(signal);
            }
            _ => self.pass_on(signal),
        }
        None
    }

    fn pass_on(&self, signal: Signal) {
        match &self.guard {
            Some(guard) => guard.signal(signal as i32),
            None => self.standby_tasks.signal(signal as i32),
        }
    }

    /// Whether the terminal that we had at the start is gone.
    fn terminal_is_gone(&self) -> bool {
        self.command.terminal_group.is_some() && !foreground::has_terminal()
    }

    /// The terminal is gone. That is a request to stop, but no second one: it would kill a COMMAND that is stopping.
    fn hung_up(&mut self) -> Option<Event> {
        self.look_at_terminal = None;
        if self.asked.is_some() { None } else { Some(self.asked_to_stop(Signal::SIGHUP)) }
    }

    /// The last signal that asked the candidate to stop, if one did.
    #[must_use]
    pub fn asked(&self) -> Option<Signal> {
        self.asked
    }

    fn reap(&mut self) {
        guard_handle::reap(self.guard.iter_mut().chain(self.standby_tasks.handles()));
    }

    fn standby_tasks_event(&mut self, happening: Happening) -> Option<Event> {
        if matches!(happening, Happening::Seizing) {
            self.reap();
        }
        self.standby_tasks.take(happening).then_some(Event::StandbyTasksDead)
    }

    fn guard_event(&mut self, event: GuardEvent) -> Option<Event> {
        match event {
            GuardEvent::Guarded { backstop, guard } => self.tell(|observer| observer.guarded(backstop, guard)),
            GuardEvent::Started { pid } => {
                tracing::debug!(command_pid = pid, "started the command");
                self.tell(|observer| observer.started());
                return Some(Event::Tree(TreeEvent::Started));
            }
            GuardEvent::HookFailed(hook, end) => {
                tracing::warn!(event = LogEvent::HookFailed.as_str(), "the --{hook} hook {end}");
            }
            GuardEvent::Late(worst) => {
                self.late = worst;
                return Some(Event::Late(worst));
            }
            GuardEvent::CheckFailed(failed) => tracing::warn!(event = LogEvent::HookFailed.as_str(), "{failed}"),
            GuardEvent::HungUp if self.terminal_is_gone() => return self.hung_up(),
            GuardEvent::HungUp => self.look_at_terminal = Some(Instant::now() + HANGS_UP_WITHIN),
            GuardEvent::Paused { signal } => {
                let has_it = self.terminal.as_ref().is_some_and(Foreground::owner_has_it);
                let is_key = signal == Signal::SIGTSTP as i32;
                let goes_on = if is_key { !foreground::can_be_continued() } else { has_it };
                if goes_on {
                    // Nobody could wake us after Ctrl-Z, or the shell has put us in the foreground since.
                    self.with_guard(|guard| guard.resume());
                } else {
                    // Stops us as the terminal stopped COMMAND, so that the shell gets its prompt back. Its SIGCONT
                    // continues COMMAND as well.
                    self.paused = true;
                    let _ = kill(Pid::from_raw(0), Signal::SIGTSTP);
                }
            }
            GuardEvent::Tree(event) => {
                if event == TreeEvent::Dead {
                    self.guard = None;
                    self.paused = false;
                    if let Some(terminal) = self.terminal.take() {
                        terminal.recover();
                    }
                    priority::lower(self.command.containment.scheduling());
                    if take(&mut self.locked) {
                        sys::unlock_memory();
                    }
                    self.tell(|observer| observer.ended());
                    self.reap();
                }
                return Some(Event::Tree(event));
            }
            GuardEvent::Seizing => self.reap(),
        }
        None
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
                happening = self.standby_tasks.next() => self.standby_tasks_event(happening),
                () = self.timer.reached() => Some(Event::Tick),
                () = or_never(self.query_socket.as_ref().map(QuerySocket::answer_all)) => None,
                () = terminal::due() => {
                    terminal::flush();
                    None
                }
                () = or_never(self.line.as_ref().map(StatusLine::due)) => {
                    self.line.as_mut().expect("it was due").redraw();
                    None
                }
                () = or_never(self.notifier.as_ref().map(Notifier::due)) => {
                    self.notifier.as_mut().expect("it was due").send_news();
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
        campaign: &Campaign,
    ) -> Result<(), StartError> {
        assert!(self.standby_tasks.handles().next().is_none(), "a standby task outlived the standby");
        let notifies = self.notifier.as_ref().is_some_and(Notifier::is_commands);
        let slot = campaign.place().map(|place| place.slot);
        if let Some(measure) = &mut self.command.measure {
            // What was measured is taken over. Until then, a quota tells what may come.
            let quota = Quota::find().map_or(Duration::ZERO, |quota| quota.presumed_lateness());
            measure.presumed = self.late.max(quota);
        }
        self.command.set_leadership(candidate, term, self.query_socket.as_ref(), notifies, campaign);
        self.tell(|observer| observer.began(&candidate.shard, slot, term, deadline));
        let command = &self.command;
        let mut started = Err(io::Error::other("the store did not answer"));
        campaign.leases().with_lease_files(&candidate.shard, &mut |lease_files| {
            started = GuardHandle::start(command, candidate, term, deadline, lease_files);
        });
        let guard = started.map_err(|error| {
            self.tell(|observer| observer.ended());
            // The message at the program's end reports this to people.
            tracing::debug!("cannot start the guard: {error}");
            StartError(sys::refused(&error).raw_os_error().unwrap_or(sys::NO_PROCESS))
        })?;
        self.guard = Some(guard);
        self.terminal = self.command.terminal_group.and_then(Foreground::open);
        self.terminal.iter_mut().for_each(Foreground::save_modes);
        // From here on we may have to kill.
        if self.command.containment.raises() {
            priority::raise_nice(self.command.containment.scheduling());
        }
        Ok(())
    }

    fn extend(&mut self, deadline: Deadline) {
        self.tell(|observer| observer.extended(deadline));
        self.with_guard(|guard| guard.extend(deadline));
        if !self.locked && self.command.containment.raises() {
            priority::stay_in_memory();
            self.locked = true;
        }
    }

    fn stop(&mut self, stop: Stop) {
        match stop {
            // The lease is renewed while COMMAND drains.
            Stop::Orderly { .. } => {}
            Stop::Losing { .. } | Stop::Kill => self.tell(|observer| observer.lost()),
        }
        self.with_guard(|guard| guard.stop(stop));
    }

    fn seize(&mut self) {
        self.tell(|observer| observer.lost());
        if self.command.containment.raises() {
            priority::raise(self.command.containment.scheduling());
        }
        self.with_guard(GuardHandle::seize);
    }

    fn start_standby_tasks(&mut self) {
        self.standby_tasks.start();
    }

    fn stop_standby_tasks(&mut self, stop: StandbyStop) {
        self.standby_tasks.stop(stop);
    }

    fn seize_standby_tasks(&mut self) {
        self.standby_tasks.seize();
    }

    fn leader_changed(&mut self, leader: Option<Holder>) {
        self.standby_tasks.leader_changed(leader);
    }

    fn logs_waiting(&self) -> bool {
        self.line.as_ref().is_some_and(StatusLine::is_logged)
    }

    fn saw(&mut self, event: &Event) {
        if let Event::Booked { answer: Ok(Booking::Booked(booked)), .. } = event {
            self.command.job.clone_from(&booked.variables);
            // A person has started it. This is no log line: --quiet does not hide it.
            if let Some(words) = booked.counts_as.as_ref().filter(|_| std::io::stderr().is_terminal()) {
                terminal::say(format_args!("leaderrun: {words}"));
            }
        }
        self.tell(|observer| observer.saw(event));
    }

    fn did(&mut self, action: &Action) {
        if let Action::Say(notice @ Notice::HoldingBack(..)) = action
            && !tracing::enabled!(tracing::Level::INFO)
            && std::io::stderr().is_terminal()
        {
            terminal::say(format_args!("leaderrun: {notice}"));
        }
        self.tell(|observer| observer.did(action));
    }

    fn show(&mut self, view: View) {
        let waits = matches!(view.role, Role::Standby(Some(_)));
        if waits && !self.waits {
            tokio::spawn(free_memory_of_the_start());
        }
        self.waits = waits;
        self.tell(|observer| observer.show(&view));
    }
}

/// Frees the memory of code that only the start needed: a standby uses a small part of the program. It waits a moment,
/// because the rest of the start is still to come.
async fn free_memory_of_the_start() {
    tokio::time::sleep(Duration::from_secs(1)).await;
    sys::forget_instructions();
}

/// The output of `future`. Without one, this never ends.
pub(crate) async fn or_never<T>(future: Option<impl Future<Output = T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// A timer on `CLOCK_BOOTTIME`. It also fires right after a suspend, during which tokio's own timers stand still.
pub(crate) struct Timer(AsyncFd<Owned<TimerFd>>);

impl Timer {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(sys::watch(boot_timer()?)?))
    }

    /// Sets the instant, and forgets whether the last one was reached.
    pub(crate) fn set(&mut self, instant: BootInstant) -> io::Result<()> {
        set_boot_timer(&self.0.get_ref().0, instant)
    }

    pub(crate) async fn reached(&self) {
        if let Ok(mut ready) = self.0.readable().await {
            ready.clear_ready();
        }
    }
}

impl Command {
    /// COMMAND's environment: ours, and facts about its leadership.
    fn set_leadership(
        &mut self,
        candidate: &Candidate,
        term: Term,
        query_socket: Option<&QuerySocket>,
        notifies: bool,
        campaign: &Campaign,
    ) {
        self.environment = inherited(candidate, notifies);
        self.environment.push(("LEADERRUN_TERM".into(), term.to_string().into()));
        self.environment.extend(self.job.iter().map(|(name, value)| ((*name).into(), value.into())));
        let slot = campaign.place().map(|place| place.slot.to_string());
        self.environment.extend(slot.map(|slot| ("LEADERRUN_SLOT".into(), slot.into())));
        let takeover = campaign.takeover().map(|takeover| takeover.as_str().into());
        self.environment.extend(takeover.map(|takeover| ("LEADERRUN_TAKEOVER".into(), takeover)));
        let variables = query_socket.map(QuerySocket::variables).into_iter().flatten();
        self.environment.extend(variables.map(|(name, value)| (name.into(), value.into())));
    }
}

/// Our environment for a child. It leaves out our own settings (a store URL may hold a password) and the service
/// manager's variables for us alone, and adds our shard and owner.
pub(crate) fn inherited(candidate: &Candidate, notifies: bool) -> Vec<(OsString, OsString)> {
    let ours = |name: &OsString| {
        name.as_encoded_bytes().starts_with(b"LEADERRUN_")
            || systemd::WATCHDOG.iter().any(|&ours| name == ours)
            || (name == systemd::SOCKET && !notifies)
    };
    let mut environment: Vec<_> = std::env::vars_os().filter(|(name, _)| !ours(name)).collect();
    environment.push(("LEADERRUN_SHARD".into(), candidate.shard.as_str().into()));
    environment.push(("LEADERRUN_CANDIDATE".into(), candidate.owner.clone().into()));
    environment
}
