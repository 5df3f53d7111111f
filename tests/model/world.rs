//! The world: hosts, the network between them and the store, true time, and what may go wrong.
//!
//! A step is one thing that happens. The clock ticks only when nothing is due: a process that can run does within a
//! tick what its deadline asks of it, a message arrives within the tick unless a fault is spent on it, and SIGKILL
//! works within the tick. In which order things happen within a tick is open.

use crate::clock::{Clock, TICK, TIMING, Tick};
use crate::host::{Context, Host};
use crate::leadership::Tree;
use crate::mutants::Mutant;
use crate::network::{Answer, Message, Place, Request, Way};
use crate::orders::Orders;
use crate::standby_tasks::StandbyTasks;
use crate::steps::Step;
use crate::store::{Contents, Id, Kind, Moment, Store, Taken, Touched};
use leaderrun::internals::election::{CommandEnd, Event, Settings};
use leaderrun::internals::lease::{Term, Timing, kept};
use leaderrun::internals::store::{Claim, Delivery, Grant, Holder, Release, Renewal, StoreError, Takeover};
use stateright::{Model, Property};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is explored: all that can happen from these beginnings with at most these faults until `horizon`.
#[derive(Clone)]
pub struct World {
    /// For each beginning, how fast each host's clock runs, in sixtieths.
    pub clocks: Vec<Vec<u64>>,
    /// Each candidate starts a tick after the one before it, instead of all of them at tick 0.
    pub staggered: bool,
    pub start: Start,
    pub store: Kind,
    pub faults: Faults,
    /// The only host that suffers, if there is but one.
    pub victim: Option<Id>,
    /// Something runs beside each standby.
    pub has_standby_tasks: bool,
    /// Each tree has a PID namespace of its own, which dies with its guard. Then all processes of a host may be struck.
    pub contained: bool,
    pub horizon: Tick,
    /// The breaches that are looked for.
    pub breaches: Vec<Breach>,
    pub mutant: Option<Mutant>,
    pub met: Arc<[AtomicU64; Met::ALL.len()]>,
}

/// What lies between the machine's decision to start COMMAND and COMMAND's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Nothing.
    AtOnce,
    /// The candidate may be frozen or killed.
    AfterAPause,
    /// The same; but the guard looks at the clock before it starts COMMAND, and does not when the stop signal is due.
    AfterAPauseAndALook,
}

/// How often each kind of fault may happen. It is part of the state, and counts down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Faults {
    /// A request or an answer arrives at any later time, or never.
    pub held_up: u8,
    /// A request is applied, and once more at any later time.
    pub doubled: u8,
    /// The store turns a request away: it was not applied.
    pub turned_away: u8,
    /// A host is cut off, one way or the other, until that is healed.
    pub cuts: u8,
    /// A candidate, guard or backstop is killed.
    pub kills: u8,
    /// A candidate, guard or backstop is stopped until it is continued.
    pub freezes: u8,
    /// A whole host stands still while its clock goes on.
    pub suspends: u8,
    /// Somebody sends SIGTERM to a candidate.
    pub stops: u8,
    /// COMMAND ends of its own accord, or leaves descendants behind.
    pub ends: u8,
    /// The store loses all it knows.
    pub wipes: u8,
    /// Another server answers, which lacks the last write.
    pub failovers: u8,
    /// The last write is undone: somebody restores an older copy.
    pub restores: u8,
    /// Somebody deletes the document.
    pub deletions: u8,
    /// Somebody sets the server's clock forward by a lease.
    pub clock_steps: u8,
    /// A server that ends leases itself restarts, which prolongs them.
    pub restarts: u8,
    /// An operator ends a leadership by force.
    pub revocations: u8,
    /// Another program takes the lock beside the lease.
    pub other_locks: u8,
    /// An operator orders something, or takes it back. No fault, but counted like one.
    pub orders: u8,
    /// Of all kinds together.
    pub total: u8,
}

impl Faults {
    pub const NONE: Self = Self { total: u8::MAX, ..Self::each(0) };

    /// So many: of the processes, the network, and a server that loses all it knows.
    pub fn any(total: u8) -> Self {
        Self {
            failovers: 0,
            restores: 0,
            deletions: 0,
            clock_steps: 0,
            restarts: 0,
            revocations: 0,
            other_locks: 0,
            orders: 0,
            ..Self::each(total)
        }
    }

    pub const fn each(times: u8) -> Self {
        Self {
            held_up: times,
            doubled: times,
            turned_away: times,
            cuts: times,
            kills: times,
            freezes: times,
            suspends: times,
            stops: times,
            ends: times,
            wipes: times,
            failovers: times,
            restores: times,
            deletions: times,
            clock_steps: times,
            restarts: times,
            revocations: times,
            other_locks: times,
            orders: times,
            total: times,
        }
    }

    fn spend(&mut self, kind: fn(&mut Self) -> &mut u8) {
        *kind(self) -= 1;
        self.total -= 1;
        if self.total == 0 {
            *self = Self { total: 0, ..Self::NONE };
        }
    }
}

/// What must never happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Breach {
    /// Two trees run at one instant.
    TwoTrees,
    /// A tree runs and its session does not hold the lease, which nothing but its end or its holder has ended.
    OutlivedLease,
    /// A tree was started under a term that is not above all earlier ones.
    TermNotRisen,
    /// A release was applied to the lease of a session whose tree lives.
    ReleasedAlive,
    /// A tree was started though a pause had been ordered before its lease was granted.
    StartedUnderPause,
    /// A renewal brought a pause to a leader that does not heed it.
    PauseUnheard,
    /// A tree runs on a host where something still runs beside its standby.
    BesideStandby,
    /// A tree runs while another program has the lock.
    BesideOther,
    /// A candidate's timer fires again and again, and nothing comes of it.
    Spins,
}

impl Breach {
    /// All but the waste.
    pub const HARMFUL: [Self; 5] =
        [Self::TwoTrees, Self::OutlivedLease, Self::TermNotRisen, Self::ReleasedAlive, Self::BesideOther];
}

macro_rules! worth_meeting {
    ($($met:ident)*) => {
        /// What makes a run worth looking at, counted while the model is explored.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Met {
            $($met),*
        }

        impl Met {
            pub const ALL: &[Self] = &[$(Self::$met),*];
        }
    };
}

worth_meeting! {
    TakenAfterCrash TakenAfterRelease SeenFree ClaimRecognised ClaimTooLate ClaimOvertaken RenewalLostAndRetried
    RenewalOvertaken RenewalTooLate DefiniteLoss StaleRelease Healed GuardKillsInTime BackstopKills CandidateSeizes
    LastWill ResumedTooLate NotStarted PausedBeforeStart SteppedDown CommandWaited StandbyTasksSeized StandbyTasksBack
    KillTimerKills DiedWithItsGuard HeldBack OtherLocked
}

impl Met {
    /// What can be met without operators, and without anything beside standbys: so many of the first ones.
    pub const UNORDERED: usize = 18;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    Host(Id),
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub tick: Tick,
    pub store: Store,
    pub hosts: Vec<Arc<Host>>,
    pub cut: Option<(Id, Way)>,
    pub orders: Option<Orders>,
    /// Who has the lock beside the lease.
    pub lock: Option<Owner>,
    pub left: Faults,
    /// The highest term under which a tree was started.
    pub last_term: Term,
    /// Breaches that are seen in a step and not in a state.
    pub breach: Option<Breach>,
}

impl State {
    fn host(&mut self, id: Id) -> &mut Host {
        Arc::make_mut(&mut self.hosts[usize::from(id.0)])
    }
}

impl World {
    pub fn timing(&self) -> Timing {
        let margin = match self.mutant {
            Some(Mutant::NoMargin) => TIMING.lease / 12,
            Some(Mutant::MarginWithoutSlew) => TIMING.margin - TIMING.lease / 12,
            _ => TIMING.margin,
        };
        Timing { margin, ..*TIMING }
    }

    pub fn settings(&self) -> Settings {
        Settings { standby_tasks: self.has_standby_tasks, ..Settings::new(self.timing(), true, Delivery::Push) }
    }

    pub fn meet(&self, met: Met) {
        self.met[met as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub fn context<'a>(&'a self, state: &'a State, id: Id) -> Context<'a> {
        let cut = state.cut.filter(|(whose, _)| *whose == id).map(|(_, way)| way);
        Context { world: self, tick: state.tick, store: &state.store, orders: state.orders, lock: state.lock, cut }
    }

    /// Applies a request to the store, which answers.
    fn apply(&self, state: &mut State, id: Id, message: &Message) -> Answer {
        let (now, sent, mutant) = (state.tick, message.sent, self.mutant);
        match &message.request {
            Request::Claim { judged } => {
                let judged = judged.expect("what could not be read is not sent");
                Answer::Claimed(Ok(self.claim(state, id, message, judged)))
            }
            &Request::Renew { term, sequence, known } => {
                let before = state.store.contents.document;
                let known = message.compared(known);
                let touched = state.store.renew((id, term), sequence, known, sent, now, mutant);
                if touched == Touched::Done && before.is_some_and(|document| document.skipped(sequence)) {
                    self.meet(Met::RenewalLostAndRetried);
                }
                self.touched(state, message, touched)
            }
            Request::Heal { term, sequence, read } => {
                let touched = state.store.heal((id, *term), *sequence, read, sent, now);
                if touched == Touched::Done {
                    self.meet(Met::Healed);
                }
                self.touched(state, message, touched)
            }
            &Request::Release { term, known } => {
                let holder = state.store.contents.document.and_then(|document| document.leadership);
                let answer = state.store.release(id, term, message.compared(known), now, mutant);
                match (&answer, holder) {
                    (Release::Released, Some((holder, _))) if state.hosts[usize::from(holder.0)].has_tree() => {
                        state.breach = Some(Breach::ReleasedAlive);
                    }
                    (Release::NotHeld, Some(_)) => self.meet(Met::StaleRelease),
                    _ => {}
                }
                Answer::Released(Ok(answer))
            }
        }
    }

    fn touched(&self, state: &mut State, message: &Message, touched: Touched) -> Answer {
        match touched {
            Touched::Done => {
                // The server that it reached is the one that counts from now on.
                if message.waiting {
                    state.store.mark(state.tick);
                }
                Answer::Renewed(Ok(Renewal::Renewed), state.orders)
            }
            Touched::Overtaken => {
                self.meet(Met::RenewalOvertaken);
                Answer::Renewed(Ok(Renewal::Overtaken), None)
            }
            Touched::Refused => {
                if !message.waiting {
                    self.meet(Met::RenewalTooLate);
                }
                Answer::Refused
            }
        }
    }

    fn claim(&self, state: &mut State, id: Id, message: &Message, mut judged: Contents) -> Claim {
        let now = state.tick;
        let mut sent = message.sent;
        if state.lock == Some(Owner::Other) {
            self.meet(Met::OtherLocked);
            return Claim::Refused(Holder::default());
        }
        let at = Moment { tick: now, now: state.hosts[usize::from(id.0)].clock.at(now) };
        loop {
            let before = state.store.contents.document;
            let seen = &mut Arc::make_mut(&mut state.hosts[usize::from(id.0)]).seen;
            if message.waiting {
                seen.samples(&state.store, at.now, self.mutant);
            }
            match state.store.take(id, &judged, seen, sent, at, self.mutant) {
                Taken::Granted { term, wait, again } => {
                    let crashed = |id: Id| state.hosts[usize::from(id.0)].candidate.is_none();
                    match before.map(|document| document.leadership) {
                        _ if again => self.meet(Met::ClaimRecognised),
                        Some(Some((holder, _))) if crashed(holder) => self.meet(Met::TakenAfterCrash),
                        Some(None) => self.meet(Met::TakenAfterRelease),
                        _ => {}
                    }
                    if self.faults.other_locks > 0 && message.waiting {
                        state.lock = Some(Owner::Host(id));
                    }
                    let start_after = wait.map(|wait| {
                        self.meet(Met::HeldBack);
                        match self.mutant {
                            Some(Mutant::WaitFromRequest) => message.sent_at.plus(kept(TICK * u32::from(wait))),
                            // The tree may have been renewed while the request was under way.
                            _ => at.now.plus(kept(TICK * u32::from(wait))),
                        }
                    });
                    return Claim::Granted(Grant { term, start_after, takeover: Takeover::Expired });
                }
                // The candidates that are there look again, and write again.
                Taken::Changed if message.waiting => {
                    self.meet(Met::ClaimOvertaken);
                    state.store.mark(now);
                    sent = now;
                    let host = Arc::make_mut(&mut state.hosts[usize::from(id.0)]);
                    match state.store.judge(id, &mut host.seen, at, self.mutant) {
                        Some(read) => judged = read,
                        None => return Claim::Refused(state.store.holder(now)),
                    }
                }
                Taken::Changed => return Claim::Refused(Holder::default()),
            }
        }
    }

    /// A request arrives; `answered_late`: its answer is held up.
    fn arrive(&self, state: &mut State, id: Id, index: usize, answered_late: bool) {
        let message = state.hosts[usize::from(id.0)].messages[index].clone();
        let answer = self.apply(state, id, &message);
        let lost = state.cut == Some((id, Way::Answers));
        if let (Answer::Claimed(Ok(Claim::Granted(_))), false) = (&answer, message.waiting) {
            self.meet(Met::ClaimTooLate);
        }
        self.with_host(state, id, |host, cx| {
            if !message.waiting {
                host.messages.remove(index);
            } else if lost {
                host.messages[index].place = Place::Lost;
            } else {
                host.is_answered(index, answer, answered_late, cx);
            }
        });
    }

    /// Changes one host, and does what follows of it there. It sees the store as it is.
    fn with_host(&self, state: &mut State, id: Id, change: impl FnOnce(&mut Host, &Context<'_>)) {
        let index = usize::from(id.0);
        let mut host = Arc::unwrap_or_clone(Arc::clone(&state.hosts[index]));
        let cx = self.context(state, id);
        change(&mut host, &cx);
        host.settle(&cx);
        if std::mem::take(&mut host.marks) {
            state.store.mark(state.tick);
        }
        // The connection that holds the lock is open for as long as one of its processes lives.
        let is_alone = host.leadership.is_none() || self.mutant == Some(Mutant::LockOfCandidateAlone);
        let lets_go = std::mem::take(&mut host.lets_go) || (host.candidate.is_none() && is_alone);
        state.lock = state.lock.filter(|&lock| lock != Owner::Host(id) || !lets_go);
        let started = host.leadership.is_some() && state.hosts[index].leadership.is_none();
        if started && host.granted_under_pause {
            state.breach = Some(Breach::StartedUnderPause);
        }
        if let (Some(done), Some(Orders::HandedOver { term, .. })) = (host.forgets.take(), state.orders)
            && term <= done
        {
            state.orders = None;
        }
        if let Some(term) = host.term.filter(|_| started) {
            if term <= state.last_term {
                state.breach = Some(Breach::TermNotRisen);
            }
            state.last_term = state.last_term.max(term);
        }
        state.hosts[index] = Arc::new(host);
    }

    fn breaches(state: &State, breach: Breach) -> bool {
        let running = || state.hosts.iter().filter(|host| host.runs_tree());
        let leased = |host: &Host| state.store.lease(state.tick) == Some(host.id);
        match breach {
            Breach::TwoTrees => running().count() > 1,
            Breach::OutlivedLease => !state.store.is_disturbed && running().any(|host| !leased(host)),
            Breach::BesideStandby => state.hosts.iter().any(|host| host.has_tree() && host.standby_tasks.are_alive()),
            Breach::BesideOther => state.lock == Some(Owner::Other) && running().next().is_some(),
            Breach::PauseUnheard => state.hosts.iter().any(|host| host.unheard),
            Breach::Spins => state.hosts.iter().any(|host| host.spins),
            Breach::TermNotRisen | Breach::ReleasedAlive | Breach::StartedUnderPause => state.breach == Some(breach),
        }
    }

    pub fn breach(&self, state: &State) -> Option<Breach> {
        self.breaches.iter().copied().find(|&breach| Self::breaches(state, breach))
    }
}

impl Model for World {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let begin = |clocks: &Vec<u64>| {
            let hosts = (0_u8..).zip(clocks).map(|(index, &sixtieths)| {
                let at_start = 1_000_000_000 * (100 + 50 * u64::from(index));
                let starts = if self.staggered { index } else { 0 };
                Arc::new(Host::new(Id(index), Clock { sixtieths, at_start, stood: 0 }, starts, self))
            });
            State {
                tick: 0,
                store: Store::new(
                    self.store,
                    self.faults.failovers + self.faults.restores > 0,
                    self.faults.clock_steps > 0,
                ),
                hosts: hosts.collect(),
                cut: None,
                orders: None,
                lock: None,
                left: self.faults,
                last_term: Term(0),
                breach: None,
            }
        };
        self.clocks.iter().map(begin).collect()
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if self.breach(state).is_none() {
            self.steps(state, steps);
        }
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        let mut state = before.clone();
        if let Some(fault) = step.fault() {
            state.left.spend(fault);
        }
        match step {
            Step::Tick => {
                state.tick += 1;
                for host in state.hosts.iter_mut().filter(|host| host.excused || host.suspended) {
                    let host = Arc::make_mut(host);
                    host.excused = false;
                    if host.suspended && self.mutant == Some(Mutant::ClockStopsInSuspend) {
                        host.clock.stood += 1;
                    }
                }
            }
            Step::Wake(id, link) => self.with_host(&mut state, id, |host, cx| host.wake(link, cx)),
            Step::Start(id) => self.with_host(&mut state, id, Host::start),
            Step::Arrive(id, index) => self.arrive(&mut state, id, index, false),
            Step::ArriveUnanswered(id, index) => self.arrive(&mut state, id, index, true),
            Step::ArriveTwice(id, index) => {
                let messages = &mut state.host(id).messages;
                messages.push(messages[index].echo());
                self.arrive(&mut state, id, index, false);
            }
            Step::TurnAway(id, index) => self.with_host(&mut state, id, |host, cx| {
                let answer = host.messages[index].request.fails(StoreError::not_applied("turned away"));
                host.is_answered(index, answer, false, cx);
            }),
            Step::HoldUp(id, index) => state.host(id).messages[index].place = Place::HeldUp,
            Step::Hear(id, index) => self.with_host(&mut state, id, |host, cx| {
                if let Place::Answered { answer, .. } = host.messages[index].place.clone() {
                    host.hear(index, answer, cx);
                }
            }),
            Step::TimeOut(id, index) => self.with_host(&mut state, id, |host, cx| host.give_up(index, cx)),
            Step::News(id) => self.with_host(&mut state, id, |host, cx| host.tell(Event::Changed(Ok(())), cx)),
            Step::Obey(id) | Step::Die(id) | Step::End(id) => self.with_host(&mut state, id, |host, _| {
                let killed = host.tree() == Tree::Dying;
                let end = if killed { CommandEnd::Signalled(9) } else { CommandEnd::Exited(0) };
                host.lead(|leadership| leadership.tree_dies(end));
            }),
            Step::EndLeavingChildren(id) => self.with_host(&mut state, id, |host, _| {
                host.lead(|leadership| leadership.command_ends(CommandEnd::Exited(0)));
            }),
            Step::StandbyTasksDie(id) => {
                self.with_host(&mut state, id, |host, _| host.standby_tasks = StandbyTasks::Dead);
            }
            Step::Stop(id) => self.with_host(&mut state, id, |host, cx| host.tell(Event::Asked { signal: 15 }, cx)),
            Step::Kill(id, link) => self.with_host(&mut state, id, |host, _| host.kill(link)),
            Step::Freeze(id, link) => self.with_host(&mut state, id, |host, _| host.set_frozen(link, true)),
            Step::Thaw(id, link) => self.with_host(&mut state, id, |host, _| host.set_frozen(link, false)),
            Step::Suspend(id) => state.host(id).suspended = true,
            Step::Resume(id) => {
                if state.hosts.iter().any(|host| host.id != id && host.runs_tree()) {
                    self.meet(Met::ResumedTooLate);
                }
                self.with_host(&mut state, id, |host, _| {
                    (host.suspended, host.excused) = (false, host.leadership.is_some());
                });
            }
            Step::Cut(id, way) => {
                state.cut = Some((id, way));
                for message in state.host(id).messages.iter_mut().filter(|_| way == Way::Requests) {
                    if message.place == Place::OnTheWay && message.waiting {
                        message.place = Place::Lost;
                    }
                }
            }
            Step::Heal => state.cut = None,
            Step::Order(orders) => state.orders = orders,
            Step::Wipe => state.store.wipe(),
            Step::FailOver => state.store.falls_back(false),
            Step::Restore => state.store.falls_back(true),
            Step::Delete => state.store.delete(),
            Step::SetClock => state.store.step(),
            Step::Restart => state.store.restart(state.tick),
            Step::Revoke => state.store.revoke(),
            Step::OtherLocks => state.lock = Some(Owner::Other),
            Step::OtherUnlocks => state.lock = None,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("no breach", |world: &Self, state| world.breach(state).is_none())]
    }
}
