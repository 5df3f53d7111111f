//! The standby tasks: the standby command, which starts again whenever it ends, and the hook that runs when the leader
//! changes.
//!
//! The hazard: COMMAND must not start while any of their processes is alive. So each task has a guard of its own, as
//! COMMAND has: the processes that it forks belong to that guard, die with the candidate, and are shown to be dead.
//! Both tasks may run at once. If the guard of one is killed, its processes become the candidate's, which cannot tell
//! to which task they belong. So killing the task that started first also kills the other one. COMMAND's tree is never
//! among them.

use crate::election::{Event, GUARD_PATIENCE, HookEnd, LogEvent, TreeEvent};
use crate::guard::Plan;
use crate::guard::contain::Containment;
use crate::guard::policy::Order;
use crate::guard::wire::Report;
use crate::lease::{Candidate, Deadline, Term, show};
use crate::runner::command::{Command, inherited};
use crate::runner::guard_handle::{GuardEvent, GuardHandle};
use crate::runner::or_never;
use crate::store::Holder;
use crate::time::BootInstant;
use nix::sys::signal::Signal;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// The shortest and the longest pause from a standby command's end to its next start. It doubles from one to the other.
const RESTART_AFTER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));
/// A standby command that ran at least this long was healthy.
const WELL_AFTER: Duration = Duration::from_mins(1);

const EVENT: &str = LogEvent::StandbyCommand.into_str();

type Environment = Vec<(OsString, OsString)>;

#[derive(Clone, Debug)]
pub struct Duties {
    pub standby: Option<OsString>,
    pub on_leader_change: Option<OsString>,
    pub hook_timeout: Duration,
    pub stop_signal: Signal,
    pub grace: Duration,
    pub containment: Arc<Containment>,
}

impl Duties {
    pub fn are_none(&self) -> bool {
        self.standby.is_none() && self.on_leader_change.is_none()
    }
}

pub struct StandbyTasks {
    duties: Duties,
    candidate: Candidate,
    phase: Phase,
    /// Some from its start to the proof that its tree is dead.
    standby: Option<Task>,
    hook: Option<Task>,
    restart_at: Option<Instant>,
    /// The last pause from an end of the standby command to its next start.
    pause: Option<Duration>,
    /// The next news for the hook, while the hook still runs for an earlier leader.
    news: Option<Environment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Dead,
    /// The tasks run, or are about to.
    Running,
    Stopping,
}

struct Task {
    guard: GuardHandle,
    since: BootInstant,
    /// Some after the command itself has ended, or could not be started.
    end: Option<HookEnd>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Standby,
    Hook,
}

impl StandbyTasks {
    pub fn new(duties: Duties, candidate: &Candidate) -> Self {
        Self {
            duties,
            candidate: candidate.clone(),
            phase: Phase::Dead,
            standby: None,
            hook: None,
            restart_at: None,
            pause: None,
            news: None,
        }
    }

    pub fn start(&mut self) {
        assert_eq!(self.phase, Phase::Dead, "they start once");
        self.phase = Phase::Running;
        self.pause = None;
        self.start_standby();
    }

    /// Stops the tasks, and lets none start. [`Event::StandbyTasksDead`] follows when none is left.
    pub fn stop(&mut self, stop: Order) {
        self.phase = Phase::Stopping;
        self.restart_at = None;
        self.news = None;
        if let Some(standby) = &self.standby {
            standby.guard.order(stop);
            tracing::debug!("stopping the standby command");
        }
        if let Some(hook) = &self.hook {
            hook.guard.order(Order::Kill);
        }
    }

    pub fn seize(&mut self) {
        self.handles().for_each(GuardHandle::seize);
    }

    pub fn signal(&self, signal: i32) {
        if let Some(standby) = &self.standby {
            standby.guard.order(Order::Signal(signal));
        }
    }

    /// Runs the hook with the new leader, or with nobody. This replaces earlier news that the hook has not received
    /// yet.
    pub fn leader_changed(&mut self, leader: Option<Holder>) {
        if self.duties.on_leader_change.is_some() && self.phase == Phase::Running {
            self.news = Some(of_leader(leader));
            self.start_hook();
        }
    }

    /// The trees that are not known to be dead.
    pub fn handles(&mut self) -> impl Iterator<Item = &mut GuardHandle> {
        self.standby.iter_mut().chain(&mut self.hook).map(|task| &mut task.guard)
    }

    /// Follows them until the candidate has to do something: handle this event, or (None) reap a tree that is being killed.
    /// Cancelling it loses no event.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            if self.phase == Phase::Stopping && self.standby.is_none() && self.hook.is_none() {
                self.phase = Phase::Dead;
                return Some(Event::StandbyTasksDead);
            }
            let (which, event) = tokio::select! {
                event = or_never(self.standby.as_mut().map(|task| task.guard.next())) => (Which::Standby, event),
                event = or_never(self.hook.as_mut().map(|task| task.guard.next())) => (Which::Hook, event),
                () = or_never(self.restart_at.map(sleep_until)) => {
                    self.restart_at = None;
                    self.start_standby();
                    continue;
                }
            };
            match event {
                GuardEvent::Tree(event) => self.tree_event(which, &event),
                GuardEvent::Seizing => return None,
                GuardEvent::Report(Report::Started { pid }) if which == Which::Standby => {
                    tracing::debug!(pid, "started the standby command");
                }
                // The tasks have no terminal that could stop them, and no health checks.
                GuardEvent::Report(_) | GuardEvent::Guarded(_) | GuardEvent::Late(_) => {}
            }
        }
    }

    fn tree_event(&mut self, which: Which, event: &TreeEvent) {
        let (task, name, about) = match which {
            Which::Standby => (&mut self.standby, "the standby command", EVENT),
            Which::Hook => (&mut self.hook, "the hook of --on-leader-change", LogEvent::HookFailed.into_str()),
        };
        let Some(Task { since, end, .. }) = task else { return };
        match event {
            TreeEvent::Ended(how) => *end = Some((*how).into()),
            TreeEvent::NotStarted(error) => *end = Some(HookEnd::NotStarted(*error)),
            TreeEvent::GuardFailed => tracing::warn!(event = about, "the guard of {name} was killed or did not answer"),
            TreeEvent::Interrupted(_)
            | TreeEvent::Overran
            | TreeEvent::DeadlineReached
            | TreeEvent::Started
            | TreeEvent::Unready(_)
            | TreeEvent::Unhealthy(_) => {}
            TreeEvent::Dead => {
                let end = *end;
                let ran = BootInstant::now().since(*since);
                *task = None;
                // Otherwise our own leadership, or our end, cut it short.
                if self.phase == Phase::Running {
                    match which {
                        Which::Standby => self.standby_ended(end, ran),
                        Which::Hook => self.hook_ended(end, ran),
                    }
                }
            }
        }
    }

    fn standby_ended(&mut self, end: Option<HookEnd>, ran: Duration) {
        let pause = self.restart_after(ran);
        let how = end.map_or_else(|| "was killed".to_owned(), |end| end.to_string());
        let line = format!("the standby command {how}; starting it again in {}", show(pause));
        if end == Some(HookEnd::Exited(0)) {
            tracing::info!(event = EVENT, "{line}");
        } else {
            tracing::warn!(event = EVENT, "{line}");
        }
    }

    /// Has the standby command start again, and returns after which pause.
    fn restart_after(&mut self, ran: Duration) -> Duration {
        let (first, most) = RESTART_AFTER;
        let grown = self.pause.filter(|_| ran < WELL_AFTER).map(|before| (before * 2).min(most));
        let pause = grown.unwrap_or(first);
        self.pause = Some(pause);
        self.restart_at = Some(Instant::now() + pause);
        pause
    }

    fn hook_ended(&mut self, end: Option<HookEnd>, ran: Duration) {
        let most = self.duties.hook_timeout;
        let how = match end {
            Some(HookEnd::Exited(0)) | None => None,
            Some(HookEnd::Signalled(9)) if ran >= most => {
                Some(format!("was killed: it took longer than {}", show(most)))
            }
            Some(end) => Some(end.to_string()),
        };
        if let Some(how) = how {
            tracing::warn!(event = LogEvent::HookFailed.into_str(), "the hook of --on-leader-change {how}");
        }
        self.start_hook();
    }

    fn start_standby(&mut self) {
        let Some(string) = self.duties.standby.clone() else { return };
        let environment = inherited(&self.candidate, false);
        match self.start_task(BootInstant::now(), string, environment, self.duties.grace, Deadline::NONE) {
            Ok(task) => self.standby = Some(task),
            Err(error) => {
                let pause = self.restart_after(Duration::ZERO);
                tracing::warn!(
                    event = EVENT,
                    "cannot start the guard of the standby command: {error}; retrying in {}",
                    show(pause)
                );
            }
        }
    }

    fn start_hook(&mut self) {
        let (None, Some(string)) = (&self.hook, &self.duties.on_leader_change) else { return };
        let Some(news) = self.news.take() else { return };
        let environment = inherited(&self.candidate, false).into_iter().chain(news).collect();
        // The guard kills the hook then, even if we are frozen.
        let since = BootInstant::now();
        let kill_at = since.plus(self.duties.hook_timeout);
        let deadline = Deadline { term_at: kill_at, kill_at, backstop_at: kill_at.plus(GUARD_PATIENCE) };
        match self.start_task(since, string.clone(), environment, Duration::ZERO, deadline) {
            Ok(task) => self.hook = Some(task),
            Err(error) => tracing::warn!("cannot start the guard of --on-leader-change: {error}"),
        }
    }

    fn start_task(
        &self,
        since: BootInstant,
        string: OsString,
        environment: Environment,
        grace: Duration,
        deadline: Deadline,
    ) -> io::Result<Task> {
        let plan = Plan {
            words: ["/bin/sh".into(), "-c".into(), string].map(OsString::into_vec).into(),
            stop_signal: self.duties.stop_signal as i32,
            grace,
            ..Plan::default()
        };
        let command = Command {
            plan,
            environment,
            job: Vec::new(),
            no_input: true,
            containment: Arc::clone(&self.duties.containment),
            // The tasks have no lease to give back.
            store_url: None,
        };
        let guard = GuardHandle::start(&command, &self.candidate, Term(0), deadline, &[])?;
        Ok(Task { guard, since, end: None })
    }
}

fn of_leader(leader: Option<Holder>) -> Environment {
    let Holder { owner, term, host, .. } = leader.unwrap_or_default();
    let term = term.map(|term| term.to_string()).unwrap_or_default();
    let mut news: Environment = vec![
        ("LEADERRUN_EVENT".into(), "leader-change".into()),
        ("LEADERRUN_LEADER".into(), owner.into()),
        ("LEADERRUN_LEADER_TERM".into(), term.into()),
    ];
    news.extend(host.map(|host| ("LEADERRUN_LEADER_HOST".into(), host.into())));
    news
}
