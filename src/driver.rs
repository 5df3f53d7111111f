//! The candidate's event loop. It carries the machine's actions out and their answers in, and decides nothing.
//!
//! The hazard: a store that hangs must not keep the loop from hearing a signal or the guard. So every request is
//! a task of its own with a bound on its time, and the loop only ever waits for the next thing to happen.

use crate::custody::{self, Command, Custody, News};
use crate::election::{Action, Election, Event, Notice, Outcome, Settings, StartError, TreeEvent};
use crate::guard::{boot_timer, set_boot_timer};
use crate::lease::{Candidate, Term, show};
use crate::signals::Signals;
use crate::store::{Store, StoreError};
use crate::sys::{self, Owned};
use crate::time::BootInstant;
use nix::sys::signal::{Signal, kill};
use nix::sys::timerfd::TimerFd;
use nix::unistd::Pid;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinSet;

/// The least from one doubt of the store to the next.
const DOUBTS_APART: Duration = Duration::from_millis(100);

/// Runs `command` under the lease of `candidate.shard` and answers how it went.
///
/// # Errors
/// When the operating system refuses what every candidate needs: a timer, signals.
pub async fn run(
    settings: Settings,
    candidate: Candidate,
    store: Arc<dyn Store>,
    command: Command,
    seed: u64,
) -> io::Result<Outcome> {
    let mut signals = Signals::listen()?;
    let mut timer = Timer::new()?;
    let mut driver = Driver {
        election: Election::new(settings, BootInstant::now(), seed),
        requests: Requests { store, candidate: Arc::new(candidate), timeout: settings.timing.request_timeout },
        command,
        asked: JoinSet::new(),
        renewals: JoinSet::new(),
        news: JoinSet::new(),
        doubts: JoinSet::new(),
        custody: None,
        term: None,
        events: VecDeque::from([Event::Tick]),
        outcome: None,
    };
    loop {
        driver.settle();
        if let Some(outcome) = driver.outcome {
            return Ok(outcome);
        }
        timer.set(driver.election.wake_at())?;
        tokio::select! {
            () = timer.reached() => driver.events.push_back(Event::Tick),
            Some(event) = driver.asked.join_next() => driver.events.extend(event),
            Some(event) = driver.renewals.join_next() => driver.events.extend(event),
            Some(event) = driver.news.join_next() => driver.events.extend(event),
            Some(event) = driver.doubts.join_next() => driver.events.extend(event),
            signal = signals.next() => driver.signalled(signal),
            news = news_of(&mut driver.custody) => driver.tree_news(news),
        }
    }
}

async fn news_of(custody: &mut Option<Custody>) -> News {
    match custody {
        Some(custody) => custody.news().await,
        None => std::future::pending().await,
    }
}

struct Driver {
    election: Election,
    requests: Requests,
    command: Command,
    /// Claims, looks and releases: one at a time.
    asked: JoinSet<Event>,
    renewals: JoinSet<Event>,
    /// What a standby waits for.
    news: JoinSet<Event>,
    /// What a leader is warned by.
    doubts: JoinSet<Event>,
    /// Some from the start of a guard to the proof that its tree is dead.
    custody: Option<Custody>,
    /// Of the leadership that goes on, for the log.
    term: Option<Term>,
    events: VecDeque<Event>,
    outcome: Option<Outcome>,
}

impl Driver {
    /// Feeds the machine until nothing is left to feed it.
    fn settle(&mut self) {
        while let Some(event) = self.events.pop_front() {
            tracing::trace!(?event);
            for action in self.election.handle(BootInstant::now(), event) {
                tracing::trace!(?action);
                self.carry_out(action);
            }
        }
        if !self.election.is_standby() {
            self.news.abort_all();
            self.news.detach_all();
        } else if self.election.wants_news() && self.news.is_empty() {
            self.news.spawn(self.requests.changed());
        }
        if !self.election.is_leading() {
            self.doubts.abort_all();
            self.doubts.detach_all();
        } else if self.doubts.is_empty() {
            self.doubts.spawn(self.requests.doubted());
        }
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Claim => drop(self.asked.spawn(self.requests.claim())),
            Action::Observe => drop(self.asked.spawn(self.requests.observe())),
            Action::Renew { term, beat } => drop(self.renewals.spawn(self.requests.renew(term, beat))),
            Action::Release { term } => drop(self.asked.spawn(self.requests.release(term))),
            Action::ForgetRenewals => {
                self.renewals.abort_all();
                self.renewals.detach_all();
            }
            Action::Start { term, deadline } => {
                self.command.set_leadership(&self.requests.candidate, term);
                let (candidate, command) = (&self.requests.candidate, &self.command);
                let mut started = Err(io::Error::other("the store did not answer"));
                self.requests.store.with_tenure(&candidate.shard, &mut |tenure| {
                    started = Custody::start(command, candidate, term, deadline, tenure);
                });
                match started {
                    Ok(custody) => self.custody = Some(custody),
                    Err(error) => {
                        tracing::error!("cannot start the guard: {error}");
                        let error =
                            StartError(error.raw_os_error().filter(|&n| n != libc::ENOENT).unwrap_or(libc::EAGAIN));
                        self.events.push_back(Event::Tree(TreeEvent::NotStarted(error)));
                        self.events.push_back(Event::Tree(TreeEvent::Dead));
                    }
                }
            }
            Action::Extend(deadline) => self.with_custody(|custody| custody.extend(deadline)),
            Action::Stop(stop) => self.with_custody(|custody| custody.stop(stop)),
            Action::Seize => self.with_custody(Custody::seize),
            Action::Say(notice) => self.say(&notice),
            Action::End(outcome) => self.outcome = Some(outcome),
        }
    }

    fn with_custody(&mut self, act: impl FnOnce(&mut Custody)) {
        if let Some(custody) = &mut self.custody {
            act(custody);
        }
    }

    fn signalled(&mut self, signal: Signal) {
        match signal {
            Signal::SIGCHLD => match &mut self.custody {
                Some(custody) => custody.reap(),
                None => custody::reap_strangers(),
            },
            Signal::SIGTERM | Signal::SIGINT => self.events.push_back(Event::Asked { signal: signal as i32 }),
            // A terminal that hangs up, or Ctrl-\, ends a standby; a service's reload does not.
            Signal::SIGHUP | Signal::SIGQUIT if self.custody.is_none() && self.command.terminal_group.is_some() => {
                self.events.push_back(Event::Asked { signal: signal as i32 });
            }
            _ => self.with_custody(|custody| custody.signal(signal as i32)),
        }
    }

    fn tree_news(&mut self, news: News) {
        match news {
            News::Started { pid } => tracing::debug!(command_pid = pid, "started the command"),
            News::Paused => {
                // Stops us as the terminal stopped COMMAND, so that the shell gets its prompt back. Either a `fg`
                // wakes us here, or the kernel saw that nobody could and did not stop us.
                let _ = kill(Pid::from_raw(0), Signal::SIGTSTP);
                self.with_custody(|custody| custody.resume());
            }
            News::Tree(event) => {
                if event == TreeEvent::Dead {
                    self.custody = None;
                    custody::reap_strangers();
                }
                self.events.push_back(Event::Tree(event));
            }
        }
    }

    fn say(&mut self, notice: &Notice) {
        if let Notice::Leading(term) = notice {
            self.term = Some(*term);
        }
        let (shard, owner) = (self.requests.candidate.shard.as_str(), self.requests.candidate.owner.as_str());
        let term = self.term.map(|term| term.0);
        match notice {
            Notice::Waiting(_) => tracing::debug!(shard, owner, "{notice}"),
            Notice::Leading(_)
            | Notice::HoldingBack(_)
            | Notice::TroubleOver
            | Notice::Stopping { .. }
            | Notice::Released(_) => tracing::info!(shard, term, owner, "{notice}"),
            Notice::Trouble { .. } | Notice::Killing | Notice::Lost(_) | Notice::NotReleased(_) => {
                tracing::warn!(shard, term, owner, "{notice}");
            }
        }
        if matches!(notice, Notice::Released(_) | Notice::NotReleased(_)) {
            self.term = None;
        }
    }
}

/// Makes requests to the store, each within its time, and events of their answers.
struct Requests {
    store: Arc<dyn Store>,
    candidate: Arc<Candidate>,
    timeout: Duration,
}

impl Requests {
    fn claim(&self) -> impl Future<Output = Event> + use<> {
        let (store, candidate, timeout) = self.parts();
        // Everything counts from here, before anything is sent.
        let sent = BootInstant::now();
        async move { Event::Claimed { sent, answer: within(timeout, store.claim(&candidate)).await } }
    }

    fn observe(&self) -> impl Future<Output = Event> + use<> {
        let (store, candidate, timeout) = self.parts();
        async move { Event::Observed { answer: within(timeout, store.observe(&candidate.shard)).await } }
    }

    fn renew(&self, term: Term, beat: u64) -> impl Future<Output = Event> + use<> {
        let (store, candidate, timeout) = self.parts();
        let sent = BootInstant::now();
        async move { Event::Renewed { sent, answer: within(timeout, store.renew(&candidate, term, beat)).await } }
    }

    fn release(&self, term: Term) -> impl Future<Output = Event> + use<> {
        let (store, candidate, timeout) = self.parts();
        async move { Event::Released { answer: within(timeout, store.release(&candidate, term)).await } }
    }

    fn changed(&self) -> impl Future<Output = Event> + use<> {
        let (store, candidate, _) = self.parts();
        async move { Event::Changed(store.changed(&candidate.shard).await) }
    }

    fn doubted(&self) -> impl Future<Output = Event> + use<> {
        let (store, candidate, _) = self.parts();
        async move {
            // A store that doubts without end must not keep us busy.
            tokio::time::sleep(DOUBTS_APART).await;
            store.doubted(&candidate.shard).await;
            Event::Doubted
        }
    }

    fn parts(&self) -> (Arc<dyn Store>, Arc<Candidate>, Duration) {
        (Arc::clone(&self.store), Arc::clone(&self.candidate), self.timeout)
    }
}

/// A request that is cut off may have been applied, or may yet be.
async fn within<T>(timeout: Duration, request: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    match tokio::time::timeout(timeout, request).await {
        Ok(answer) => answer,
        Err(_) => Err(StoreError::unknown(format!("the store did not answer within {}", show(timeout)))),
    }
}

/// Wakes at an instant of `CLOCK_BOOTTIME`, also right after a suspend, which tokio's own timers sleep through.
struct Timer(AsyncFd<Owned<TimerFd>>);

impl Timer {
    fn new() -> io::Result<Self> {
        Ok(Self(sys::watch(boot_timer()?)?))
    }

    /// Setting it forgets that it was reached before.
    fn set(&mut self, instant: BootInstant) -> io::Result<()> {
        set_boot_timer(&self.0.get_ref().0, instant)
    }

    async fn reached(&self) {
        if let Ok(mut ready) = self.0.readable().await {
            ready.clear_ready();
        }
    }
}

impl Command {
    /// COMMAND's environment: ours without our own settings (a store URL may hold a password), and what it may
    /// want to know of its leadership.
    fn set_leadership(&mut self, candidate: &Candidate, term: Term) {
        let ours = |name: &OsString| name.as_encoded_bytes().starts_with(b"LEADERRUN_");
        self.environment = std::env::vars_os().filter(|(name, _)| !ours(name)).collect();
        let told = [
            ("LEADERRUN_SHARD", candidate.shard.to_string()),
            ("LEADERRUN_OWNER", candidate.owner.clone()),
            ("LEADERRUN_TERM", term.to_string()),
        ];
        self.environment.extend(told.map(|(name, value)| (name.into(), value.into())));
    }
}
