//! A member's leadership, and what ends it if the work does not.
//!
//! The hazard: the work is code of this process. It may block the runtime that should tell it to stop, forget to look
//! at the time, or be frozen together with everything that could kill it. So nothing here waits to be polled:
//!
//! - Every question (`is_valid`, `remaining`) is answered from the deadline and the clock at that moment.
//! - A separate thread, the keeper, sleeps on a `CLOCK_BOOTTIME` timer. It says when the work has to end, and aborts
//!   the process at `kill_at` if a [`Leadership`] still exists.
//! - If the keeper does not run (the process was stopped, or no processor is free), the kernel kills the process at
//!   `backstop_at`, by a timer that was set before. That ends a stopped process as well. PID 1 of a PID namespace gets
//!   no such signal from inside (`pid_namespaces(7)`): there the keeper is alone, and late after a freeze.
//!
//! [`Policy`], which also decides for the guard, decides whether a leadership may go on. The lease is released after
//! [`TreeEvent::Dead`], which is sent when the leadership has been ended and the last [`Leadership`] is dropped.

use super::error::Error;
use super::role::{Ending, Leader, Overrun, Role};
use crate::election::Role as Standing;
use crate::election::{Event, Obstacle, Reason, Stop, TreeEvent, View};
use crate::guard::policy::{Effect, Input, Order, Policy};
use crate::lease::{Candidate, Deadline, Term, show};
use crate::store::Store;
use crate::sys::KillTimer;
use crate::text::on_one_line;
use crate::time::{BootInstant, boot_timer, set_boot_timer};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::timerfd::TimerFd;
use parking_lot::{Mutex, MutexGuard};
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::{Arc, OnceLock, Weak, mpsc as threads};
use std::task::Poll;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};

/// The state that the threads of a member share.
pub(super) struct Shared {
    pub(super) candidate: Candidate,
    /// The process that made this. A process forked from it has a copy without threads, and with the same alarm.
    pid: u32,
    grace: Duration,
    overrun: Overrun,
    /// The timer that wakes the keeper.
    alarm: TimerFd,
    state: Mutex<State>,
    /// To the election.
    events: mpsc::UnboundedSender<Event>,
    /// The value of [`State::role`], for code that waits for a change.
    roles: watch::Sender<Role>,
    /// Gets each ending once.
    endings: Option<threads::Sender<(u64, Ending)>>,
    /// Set once the store is open.
    pub(super) inquiries: OnceLock<Inquiries>,
}

/// The means to ask the store something outside the election.
pub(super) struct Inquiries {
    /// The election's runtime, where the store's connections live.
    pub(super) runtime: Handle,
    /// Only the election keeps the store open.
    pub(super) store: Weak<dyn Store>,
    pub(super) timeout: Duration,
}

#[derive(Default)]
struct State {
    /// Some while what the election calls the tree is alive: from the start until [`TreeEvent::Dead`] is sent.
    active: Option<Active>,
    /// None if the work may overrun, and for PID 1.
    kill_timer: Option<KillTimer>,
    leader: Option<Leader>,
    waiting_for: Option<String>,
    trouble: Option<String>,
    /// The member was asked to leave the election.
    asked: bool,
    /// Work under this term overran, and no log line has said so yet.
    overran: Option<Term>,
    /// Why the last release failed. None if it did not.
    not_released: Option<String>,
    /// Some once the election is over.
    farewell: Option<Result<(), Error>>,
}

/// The leadership in progress.
struct Active {
    term: Term,
    policy: Policy,
    /// Some once the work was told to end.
    ending: Option<Ending>,
    /// `endings` was sent the ending.
    told: bool,
    /// The number of [`Leadership`]s.
    handles: usize,
    /// Keeps the store open: a lease that does not expire is held for as long as the store is.
    _store: Arc<dyn Store>,
}

impl Active {
    /// True while work may begin.
    fn may_begin(&self, now: BootInstant) -> bool {
        self.ending.is_none() && now < self.policy.wake_at()
    }

    /// How much longer the lease is certainly held.
    fn remaining(&self, now: BootInstant) -> Duration {
        match self.policy.ends_at().0 {
            _ if self.ending == Some(Ending::Lost) => Duration::ZERO,
            BootInstant::NEVER => Duration::MAX,
            kill_at => kill_at.since(now),
        }
    }
}

impl State {
    fn role(&self) -> Role {
        match &self.active {
            Some(Active { term, ending: Some(why), .. }) => Role::Ending { term: term.0, why: *why },
            _ if self.farewell.is_some() => Role::Stopped,
            Some(Active { term, ending: None, .. }) => Role::Leading { term: term.0 },
            None => Role::Standby { leader: self.leader.clone(), waiting_for: self.waiting_for.clone() },
        }
    }
}

impl Shared {
    pub(super) fn new(
        candidate: Candidate,
        grace: Duration,
        overrun: Overrun,
        endings: Option<threads::Sender<(u64, Ending)>>,
    ) -> io::Result<(Arc<Self>, mpsc::UnboundedReceiver<Event>)> {
        let (events, received) = mpsc::unbounded_channel();
        let is_init = nix::unistd::getpid().as_raw() == 1;
        let kill_timer = match overrun {
            Overrun::Abort if !is_init => Some(KillTimer::new()?),
            Overrun::Abort | Overrun::Warn => None,
        };
        let state = State { kill_timer, ..State::default() };
        let roles = watch::Sender::new(state.role());
        let state = Mutex::new(state);
        let shared = Self {
            candidate,
            pid: std::process::id(),
            grace,
            overrun,
            alarm: boot_timer()?,
            state,
            events,
            roles,
            endings,
            inquiries: OnceLock::new(),
        };
        Ok((Arc::new(shared), received))
    }

    /// True in a forked process: no leadership is valid there, and its state, whose lock may be taken for ever, and the
    /// timer that it shares are not touched.
    fn is_copy(&self) -> bool {
        std::process::id() != self.pid
    }

    /// None in a forked process.
    fn state(&self) -> Option<MutexGuard<'_, State>> {
        (!self.is_copy()).then(|| self.state.lock())
    }

    /// The leadership in progress, as it is now. The clock is asked last: the lock may have to be waited for.
    fn look<T>(&self, look: impl FnOnce(&Active, BootInstant) -> T) -> Option<T> {
        let state = self.state()?;
        state.active.as_ref().map(|active| look(active, BootInstant::now()))
    }

    /// Changes the state, sets both timers from it, and notifies everyone.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let changed = change(&mut state);
        if let Some(Active { term, ending: Some(why), told, .. }) = &mut state.active
            && !std::mem::replace(told, true)
            && let Some(endings) = &self.endings
        {
            let _ = endings.send((term.0, *why));
        }
        if let Some(Active { ending: Some(_), handles: 0, .. }) = state.active {
            state.active = None;
            self.tell(TreeEvent::Dead);
        }
        let active = state.active.as_ref();
        let wake_at = active.map_or(BootInstant::NEVER, |active| active.policy.wake_at());
        // Without a [`Leadership`] there is no work that could overrun.
        let held = active.filter(|active| active.handles > 0);
        let backstop_at = held.map_or(BootInstant::NEVER, |active| active.policy.ends_at().1);
        let over = state.farewell.is_some() && active.is_none();
        if let Some(kill_timer) = &mut state.kill_timer {
            kill_timer.set(backstop_at.since_boot()).expect("a timer that exists can be set");
        }
        // Wake the keeper to end once there is nothing left to keep.
        let wake_at = if over { BootInstant::from_nanos(0) } else { wake_at };
        set_boot_timer(&self.alarm, wake_at).expect("a timer that exists can be set");
        let overran = state.overran.take();
        drop(state);
        self.publish();
        if let Some(term) = overran {
            // Log only now, without the lock: the program's log subscriber may ask the member something, or block.
            let shard = self.candidate.shard.as_str();
            tracing::error!(shard, term = term.0, "the lease is about to end, and the work under it goes on");
        }
        changed
    }

    /// Publishes the role. It is read while no other thread can publish, so the last one published is the latest.
    fn publish(&self) {
        self.roles.send_if_modified(|role| {
            let now = self.state.lock().role();
            let changed = *role != now;
            *role = now;
            changed
        });
    }

    fn tell(&self, event: TreeEvent) {
        // If the election has failed, there is no receiver.
        let _ = self.events.send(Event::Tree(event));
    }

    /// Feeds the policy and carries out its effects.
    fn feed(&self, state: &mut State, input: Input, why: Ending) {
        let Some(active) = &mut state.active else { return };
        for effect in active.policy.handle(BootInstant::now(), input) {
            match effect {
                Effect::AskTree => {
                    active.ending.get_or_insert(why);
                }
                Effect::Report(TreeEvent::DeadlineReached) => {
                    active.ending.get_or_insert(Ending::Late);
                    self.tell(TreeEvent::DeadlineReached);
                }
                Effect::KillTree => {
                    if active.handles > 0 {
                        match self.overrun {
                            Overrun::Abort => self.abort(active.term),
                            Overrun::Warn => state.overran = Some(active.term),
                        }
                    }
                    if active.ending.is_none() {
                        active.ending = Some(Ending::Late);
                        self.tell(TreeEvent::DeadlineReached);
                    }
                }
                // A member has no hooks and no terminal.
                Effect::Start
                | Effect::Report(_)
                | Effect::RunPreStart
                | Effect::RunPreStop
                | Effect::RunPostStop
                | Effect::KillHook
                | Effect::Finish
                | Effect::Signal(_)
                | Effect::Continue => {}
            }
        }
        if why == Ending::Lost {
            active.ending = Some(Ending::Lost);
        }
    }

    fn abort(&self, term: Term) -> ! {
        let shard = &self.candidate.shard;
        let line = format!(
            "leaderrun: the lease on {shard} is about to end, and work under term {term} has not ended: aborting\n"
        );
        // A pipe without a reader must not keep the process alive.
        let stderr = io::stderr();
        let mut ready = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
        if poll(&mut ready, PollTimeout::ZERO).is_ok_and(|ready| ready > 0) {
            let _ = nix::unistd::write(&stderr, line.as_bytes());
        }
        std::process::abort();
    }

    /// A leadership begins.
    pub(super) fn begin(&self, term: Term, deadline: Deadline, store: &Arc<dyn Store>) {
        let policy = Policy::new(deadline, self.grace);
        self.change(|state| {
            state.not_released = None;
            state.active =
                Some(Active { term, policy, ending: None, told: false, handles: 0, _store: Arc::clone(store) });
            // The deadline may have passed on the way here.
            self.feed(state, Input::Tick, Ending::Late);
        });
    }

    pub(super) fn extend(&self, deadline: Deadline) {
        self.change(|state| {
            // Work that looked at the clock may have seen the end. That end stays, even if the lease is extended.
            self.feed(state, Input::Tick, Ending::Late);
            self.feed(state, Input::Order(Order::Extend(deadline)), Ending::Late);
        });
    }

    pub(super) fn stop(&self, stop: Stop) {
        self.change(|state| {
            let why = match stop {
                Stop::Orderly { reason: Reason::Paused | Reason::SteppedDown, .. } => Ending::Ordered,
                // A kill sends no stop signal, so this reason is never recorded.
                Stop::Orderly { .. } | Stop::Kill => Ending::Asked,
                Stop::Losing { certain: false, .. } => Ending::Late,
                Stop::Losing { certain: true, .. } => Ending::Lost,
            };
            self.feed(state, Input::Order(Order::of(stop, self.grace)), why);
        });
    }

    pub(super) fn not_released(&self, why: Option<String>) {
        self.state.lock().not_released = why;
    }

    pub(super) fn show(&self, view: View) {
        let mut state = self.state.lock();
        match view.role {
            Standing::Standby(obstacle) => {
                state.waiting_for = obstacle.as_ref().map(|obstacle| on_one_line(obstacle.to_string()));
                state.leader = match &obstacle {
                    Some(Obstacle::Holder(holder)) => Some(holder.into()),
                    Some(Obstacle::Hold(_) | Obstacle::Doubt(..)) | None => None,
                };
            }
            Standing::Leader(_) | Standing::Restarting { .. } | Standing::Leaving => {
                state.waiting_for = None;
                state.leader = None;
            }
        }
        state.trouble = view.trouble.map(|(message, _)| message);
        drop(state);
        self.publish();
    }

    /// Asks the election to end, once: after a second request it would not wait for the work.
    pub(super) fn ask(&self) {
        let Some(mut state) = self.state() else { return };
        if !std::mem::replace(&mut state.asked, true) {
            let _ = self.events.send(Event::Asked { signal: Signal::SIGTERM as i32 });
        }
    }

    /// The election is over. If it failed, work may still run.
    pub(super) fn over(&self, farewell: Result<(), Error>) {
        self.change(|state| {
            let not_released = state.not_released.take().map(Error::NotReleased);
            state.farewell = Some(farewell.and_then(|()| not_released.map_or(Ok(()), Err)));
            let lost = Order::Stop { reason: Reason::Lost, kill_after: Some(self.grace) };
            self.feed(state, Input::Order(lost), Ending::Lost);
        });
    }

    pub(super) fn farewell(&self) -> Option<Result<(), Error>> {
        let Some(state) = self.state() else { return Some(Err(Error::Stopped)) };
        state.farewell.clone().filter(|_| state.active.is_none())
    }

    pub(super) fn is_leader(&self) -> bool {
        let Some(state) = self.state() else { return false };
        let now = BootInstant::now();
        state.farewell.is_none() && state.active.as_ref().is_some_and(|active| active.may_begin(now))
    }

    pub(super) fn leader(&self) -> Option<Leader> {
        let state = self.state()?;
        let Some(active) = state.active.as_ref().filter(|active| !active.remaining(BootInstant::now()).is_zero())
        else {
            return state.leader.clone();
        };
        let Candidate { owner, host, pid, .. } = &self.candidate;
        Some(Leader { owner: owner.clone(), host: Some(host.clone()), pid: Some(*pid), term: Some(active.term.0) })
    }

    pub(super) async fn find_leader(&self) -> Result<Option<Leader>, Error> {
        // A forked process has no thread that would ask.
        let inquiries = self.inquiries.get().filter(|_| !self.is_copy()).ok_or(Error::Stopped)?;
        let store = inquiries.store.upgrade().ok_or(Error::Stopped)?;
        let shard = self.candidate.shard.clone();
        let timeout = inquiries.timeout;
        let asked = async move { tokio::time::timeout(timeout, store.inspect(&shard)).await };
        // The task is cancelled if the election ends meanwhile.
        let answer = inquiries.runtime.spawn(asked).await.map_err(|_| Error::Stopped)?;
        let silent = |_| Error::Unreachable(format!("the store did not answer within {}", show(timeout)).into());
        Ok(answer.map_err(silent)??.holder.as_ref().map(Leader::from))
    }

    pub(super) fn trouble(&self) -> Option<String> {
        self.state()?.trouble.clone()
    }

    pub(super) fn watch(&self) -> watch::Receiver<Role> {
        self.roles.subscribe()
    }

    /// Looks after each change of the role, until `found` finds what is waited for.
    pub(super) async fn until<T>(&self, found: impl Fn() -> Option<T>) -> T {
        let mut roles = self.watch();
        loop {
            roles.borrow_and_update();
            if let Some(found) = found() {
                return found;
            }
            // The sender lives as long as this.
            let _ = roles.changed().await;
        }
    }

    /// Takes the current leadership, if work may begin.
    pub(super) fn hold(self: &Arc<Self>) -> Option<Leadership> {
        if self.is_copy() {
            return None;
        }
        self.change(|state| {
            let open = state.farewell.is_none();
            let active = state.active.as_mut().filter(|active| open && active.may_begin(BootInstant::now()))?;
            active.handles += 1;
            Some(Leadership { shared: Arc::clone(self), term: active.term })
        })
    }

    /// Runs the keeper.
    pub(super) fn keep(&self) {
        loop {
            let mut alarm = [PollFd::new(self.alarm.as_fd(), PollFlags::POLLIN)];
            // After a signal or an error it only looks sooner.
            let _ = poll(&mut alarm, PollTimeout::NONE);
            let over = self.change(|state| {
                self.feed(state, Input::Tick, Ending::Late);
                state.farewell.is_some() && state.active.is_none()
            });
            if over {
                return;
            }
        }
    }
}

/// Proof of a leadership: while it [`is_valid`](Leadership::is_valid), no other member leads.
///
/// The lease is not given back before every `Leadership` of it has been dropped, so all code that relies on it should
/// own one: give each task and thread a clone. **Nothing waits for work that holds none.** And drop it when the work is
/// done: a process that still holds one at the deadline is aborted (see [`Overrun`]).
pub struct Leadership {
    shared: Arc<Shared>,
    term: Term,
}

impl Leadership {
    /// The fencing token: it rises with every leadership of the shard. Send it with everything you do, and have the
    /// other side refuse a lower one than it has seen. Only that closes the gap between checking the lease and acting.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.term.0
    }

    /// True while no other member can lead, by the clock now, without a request. It stays true for a while after the
    /// work was told to end, so that it can end in order.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// How long it stays valid if the lease is not renewed: work that begins now has to end in that time. Never more
    /// than the lease. Zero if it is not valid. [`Duration::MAX`] on a store whose leases do not expire (`file:`).
    ///
    /// Counted on `CLOCK_BOOTTIME`, which also runs while the machine is suspended.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.shared.look(Active::remaining).unwrap_or_default()
    }

    /// The reason why the work has to end, once it has to. For work that does not await.
    #[must_use]
    pub fn why_ending(&self) -> Option<Ending> {
        let why = |active: &Active, now| {
            if active.may_begin(now) { None } else { Some(active.ending.unwrap_or(Ending::Late)) }
        };
        self.shared.look(why).unwrap_or(Some(Ending::Lost))
    }

    /// Waits until the work has to end, and returns why. From then on at least the grace (see
    /// [`Builder::kill_after`](crate::Builder::kill_after)) is left to end it and to drop this, unless the process is
    /// suspended or frozen at that time.
    pub async fn ending(&self) -> Ending {
        let mut told = pin!(self.shared.until(|| self.why_ending()));
        // The clock is asked at each poll: after a freeze, a task may wake before the keeper, and go on with its work.
        poll_fn(|context| match self.why_ending() {
            Some(why) => Poll::Ready(why),
            None => told.as_mut().poll(context),
        })
        .await
    }
}

impl Clone for Leadership {
    fn clone(&self) -> Self {
        if let Some(mut state) = self.shared.state()
            && let Some(active) = &mut state.active
        {
            active.handles += 1;
        }
        Self { shared: Arc::clone(&self.shared), term: self.term }
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        if self.shared.is_copy() {
            return;
        }
        self.shared.change(|state| {
            if let Some(active) = &mut state.active {
                active.handles -= 1;
            }
        });
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership").field("term", &self.term()).field("remaining", &self.remaining()).finish()
    }
}

#[cfg(test)]
mod tests;
