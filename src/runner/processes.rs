//! The real host of a candidate: `CLOCK_BOOTTIME`, signals, and a tree of processes.
//!
//! The hazard: two kinds of signals arrive on the same path. The candidate obeys some itself, because it alone decides
//! when COMMAND ends. The others are for COMMAND, which must receive each one as if no process stood in between.

use crate::election::{Action, Event, Role, StandbyStop, StartError, Stop, TreeEvent, View};
use crate::guard::priority;
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
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::unix::AsyncFd;

/// Runs COMMAND as processes of this machine.
pub struct Processes {
    command: Command,
    signals: Signals,
    timer: Timer,
    /// Some from the start of a guard to the proof that its tree is dead.
    guard: Option<GuardHandle>,
    /// None of them is alive while there is a guard.
    standby_tasks: StandbyTasks,
    /// Some if the system has such sockets.
    query_socket: Option<QuerySocket>,
    /// Some if a service manager wants notifications.
    notifier: Option<Notifier>,
    /// Some if metrics are served.
    metrics: Option<Arc<Metrics>>,
    /// Some if the results of runs are written to a file.
    metrics_file: Option<MetricsFile>,
    /// Shows what the candidate waits for.
    line: Option<StatusLine>,
    /// True for a standby that knows what it waits for.
    waits: bool,
}

impl Processes {
    /// Prepares the host; starts no process.
    ///
    /// # Errors
    /// The kernel gave no timer or no signals.
    pub fn new(
        command: Command,
        candidate: &Candidate,
        standby_tasks: StandbyTasks,
        notifier: Option<Notifier>,
        metrics: Option<Arc<Metrics>>,
    ) -> io::Result<Self> {
        let query_socket = QuerySocket::new(candidate, &command.containment.to_string())
            .inspect_err(|error| tracing::debug!("no socket for questions: {error}"));
        let (signals, timer) = (Signals::listen()?, Timer::new()?);
        Ok(Self {
            command,
            signals,
            timer,
            guard: None,
            standby_tasks,
            query_socket: query_socket.ok(),
            notifier,
            metrics,
            metrics_file: None,
            line: None,
            waits: false,
        })
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
        self.tell(|observer| observer.asked_to_stop());
        Event::Asked { signal: signal as i32 }
    }

    /// The event that a signal means. None if the signal is not for the election.
    fn signalled(&mut self, signal: Signal) -> Option<Event> {
        match signal {
            Signal::SIGCHLD => self.reap(),
            Signal::SIGTERM | Signal::SIGINT => return Some(self.asked_to_stop(signal)),
            // A terminal that hangs up, or Ctrl-\, ends a standby; a service's reload does not.
            Signal::SIGHUP | Signal::SIGQUIT if self.guard.is_none() && self.command.terminal_group.is_some() => {
                return Some(self.asked_to_stop(signal));
            }
            _ => match &self.guard {
                Some(guard) => guard.signal(signal as i32),
                None => self.standby_tasks.signal(signal as i32),
            },
        }
        None
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
            GuardEvent::Started { pid } => {
                tracing::debug!(command_pid = pid, "started the command");
                self.tell(|observer| observer.started());
                return Some(Event::Tree(TreeEvent::Started));
            }
            GuardEvent::HookFailed(hook, end) => tracing::warn!("the --{hook} hook {end}"),
            GuardEvent::CheckFailed(failed) => tracing::warn!("{failed}"),
            GuardEvent::Paused => {
                // Stops us as the terminal stopped COMMAND, so that the shell gets its prompt back. Then `fg` wakes us
                // here. If nobody could wake us, the kernel did not stop us.
                let _ = kill(Pid::from_raw(0), Signal::SIGTSTP);
                self.with_guard(|guard| guard.resume());
            }
            GuardEvent::Tree(event) => {
                if event == TreeEvent::Dead {
                    self.guard = None;
                    priority::lower(self.command.containment.scheduling());
                    sys::unlock_memory();
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
        self.command.set_leadership(candidate, term, self.query_socket.as_ref(), notifies, slot);
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
        // From here on we may have to kill.
        if self.command.containment.raises() {
            priority::raise_nice(self.command.containment.scheduling());
            priority::stay_in_memory();
        }
        Ok(())
    }

    fn extend(&mut self, deadline: Deadline) {
        self.tell(|observer| observer.extended(deadline));
        self.with_guard(|guard| guard.extend(deadline));
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
        self.tell(|observer| observer.saw(event));
    }

    fn did(&mut self, action: &Action) {
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
        slot: Option<u32>,
    ) {
        self.environment = inherited(candidate, notifies);
        self.environment.push(("LEADERRUN_TERM".into(), term.to_string().into()));
        self.environment.extend(self.job.iter().map(|(name, value)| (name.into(), value.into())));
        self.environment.extend(slot.map(|slot| ("LEADERRUN_SLOT".into(), slot.to_string().into())));
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
    environment.push(("LEADERRUN_OWNER".into(), candidate.owner.clone().into()));
    environment
}
