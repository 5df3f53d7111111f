//! The candidate's event loop. It carries out the election's actions, feeds the answers back, and decides nothing.
//!
//! The hazard: a store that hangs must not keep the loop from hearing a signal or the guard. So every request is a task
//! of its own with a bound on its time, and the loop only waits for the next event.

use crate::election::{
    Action, Behind, Booking, CommandEnd, Election, Event, LogEvent, Notice, Outcome, Ran, Reason, Settings,
    StandbyStop, StartError, Stop, TreeEvent, View,
};
use crate::lease::{Candidate, Deadline, Shard, Term};
use crate::notes::history::History;
use crate::notes::jobs::{Job, JobGate};
use crate::notes::{orders, standbys};
use crate::runner::rotation::Schedule;
use crate::runner::trace;
use crate::slots::Campaign;
use crate::store::{Holder, StoreError, within};
use crate::time::BootInstant;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinError, JoinSet};

/// The shortest time from one doubt of the store to the next.
const DOUBTS_APART: Duration = Duration::from_millis(100);

/// How long a candidate that has nothing else left to do waits for its notes to be written.
const LAST_NOTES: Duration = Duration::from_secs(1);

/// How long after COMMAND's start the history gets an entry. A COMMAND that ends sooner is written once, not twice.
const BEGINS_AFTER: Duration = Duration::from_secs(1);

/// What an election needs from its host: a timer that wakes it, the signals that ask it to stop, and its tree.
pub trait Host {
    /// The next thing that happens here: [`Event::Tick`] at `wake_at`, [`Event::Asked`], [`Event::Tree`] or
    /// [`Event::StandbyTasksDead`]. Cancelling it loses no event.
    ///
    /// # Errors
    /// The operating system refused something that every candidate needs.
    fn next(&mut self, wake_at: BootInstant) -> impl Future<Output = io::Result<Event>>;

    /// Starts the guard with `deadline`; the guard starts COMMAND. `campaign` has the files that must stay open
    /// meanwhile.
    ///
    /// # Errors
    /// Why nothing was started.
    fn start(
        &mut self,
        candidate: &Candidate,
        term: Term,
        deadline: Deadline,
        campaign: &Campaign,
    ) -> Result<(), StartError>;

    /// Tells the guard a later deadline.
    fn extend(&mut self, deadline: Deadline);

    /// Has the guard stop the tree.
    fn stop(&mut self, stop: Stop);

    /// Kills the tree without the guard.
    fn seize(&mut self);

    /// The candidate is a standby: starts the standby tasks.
    fn start_standby_tasks(&mut self) {}

    /// Stops the standby tasks; [`Event::StandbyTasksDead`] follows.
    fn stop_standby_tasks(&mut self, stop: StandbyStop) {
        let _ = stop;
    }

    /// Kills the standby tasks without their guards.
    fn seize_standby_tasks(&mut self) {}

    /// Tells the standby tasks who leads; None if nobody does.
    fn leader_changed(&mut self, leader: Option<Holder>) {
        let _ = leader;
    }

    /// Reports that the lease of a leadership was given back, or why it was not.
    fn release_over(&mut self, failed: Option<String>) {
        let _ = failed;
    }

    /// Whether the log is the only place that shows people whom a standby waits for.
    fn logs_waiting(&self) -> bool {
        false
    }

    /// Shows people an event before the election handles it.
    fn saw(&mut self, event: &Event) {
        let _ = event;
    }

    /// Shows people an action before it is carried out.
    fn did(&mut self, action: &Action) {
        let _ = action;
    }

    /// Shows people the state of the election.
    fn show(&mut self, view: View) {
        let _ = view;
    }
}

/// What a candidate does in addition to the election.
#[derive(Clone, Debug)]
pub struct Options {
    /// Announces itself in the store while it is a standby.
    pub announces: bool,
    /// Counts the standbys before it hands over by itself. Where other candidates do not announce themselves, a count
    /// says nothing.
    pub counts: bool,
    /// The job, if COMMAND's runs are counted.
    pub job: Option<Job>,
    /// When to rotate, by the wall clock.
    pub schedule: Option<Schedule>,
}

/// Runs `candidate` in the election of its shard until it leaves, and returns how it ended.
pub async fn run(
    settings: Settings,
    candidate: Candidate,
    campaign: Campaign,
    host: &mut impl Host,
    options: Options,
    seed: u64,
) -> io::Result<Outcome> {
    assert_eq!(settings.job_gate, options.job.is_some(), "a job's runs are counted, and nothing else's");
    let job_gate = options.job.clone().map(|job| Arc::new(JobGate::new(job)));
    let led = candidate.shard.clone();
    let once = options.job.as_ref().and_then(Job::once).cloned();
    let mut driver = Driver {
        election: Election::new(settings, BootInstant::now(), seed),
        requests: Requests {
            campaign: Arc::new(campaign),
            candidate: Arc::new(candidate),
            timeout: settings.timing.request_timeout,
            job_gate,
        },
        one_at_a_time: JoinSet::new(),
        renewals: JoinSet::new(),
        entries: JoinSet::new(),
        changes: JoinSet::new(),
        doubts: JoinSet::new(),
        rotations: JoinSet::new(),
        notes: JoinSet::new(),
        beginnings: JoinSet::new(),
        history: Arc::new(History::new(once)),
        announcement: JoinSet::new(),
        options,
        term: None,
        led,
        logged: Logged::default(),
        events: VecDeque::from([Event::Tick]),
        outcome: None,
    };
    loop {
        driver.handle_events(host);
        if let Some(outcome) = driver.outcome {
            // Bounded, because safety does not depend on these notes.
            let written = async { while driver.notes.join_next().await.is_some() {} };
            let _ = tokio::time::timeout(LAST_NOTES, written).await;
            return Ok(outcome);
        }
        let wake_at = driver.election.wake_at();
        // In this order, so that a simulation can be replayed. The answers to the election's own requests come first:
        // their number is bounded, and people may send signals without end.
        tokio::select! {
            biased;
            Some(event) = driver.renewals.join_next() => driver.events.extend(heard(event)),
            Some(event) = driver.one_at_a_time.join_next() => driver.events.extend(heard(event)),
            Some(event) = driver.entries.join_next() => driver.events.extend(heard(event)),
            Some(event) = driver.doubts.join_next() => driver.events.extend(heard(event)),
            Some(event) = driver.changes.join_next() => driver.events.extend(heard(event)),
            Some(event) = driver.rotations.join_next() => driver.events.extend(heard(event)),
            Some(_) = driver.notes.join_next() => {}
            event = host.next(wake_at) => driver.events.push_back(event?),
        }
    }
}

struct Driver {
    election: Election,
    requests: Requests,
    /// Claims, looks and releases. Each ends the one before.
    one_at_a_time: JoinSet<Event>,
    renewals: JoinSet<Event>,
    /// Writes to the job's ledger. They are never cut short, because the next one depends on what they wrote.
    entries: JoinSet<Event>,
    /// A standby's wait for a change in the store.
    changes: JoinSet<Event>,
    /// A leader's wait for a doubt of the store: something that may have ended the lease.
    doubts: JoinSet<Event>,
    /// The wait for the schedule's next rotation, while we lead.
    rotations: JoinSet<Event>,
    /// Notes for people that are being written.
    notes: JoinSet<()>,
    /// Notes that a leadership has begun. Nothing waits for them.
    beginnings: JoinSet<()>,
    history: Arc<History>,
    /// Our announcement as a standby.
    announcement: JoinSet<()>,
    options: Options,
    /// The term of the present leadership, for the log.
    term: Option<Term>,
    /// The shard that we lead, as the store names it.
    led: Shard,
    logged: Logged,
    events: VecDeque<Event>,
    outcome: Option<Outcome>,
}

/// What the log has said.
#[derive(Default)]
struct Logged {
    /// In this wait, whom the candidate waits for.
    waiting: bool,
    /// The leader that the candidate saw last in this wait.
    leader: Option<(String, Option<Term>)>,
    leading: Leading,
}

impl Logged {
    /// Whether another one leads than before. Slots have several leaders, and a store may not know the name of one.
    fn is_change(&mut self, holder: &Holder, slots: bool) -> bool {
        if slots || holder.doubt.is_some() || holder.owner.is_empty() {
            return false;
        }
        let leader = Some((holder.owner.clone(), holder.term));
        let before = std::mem::replace(&mut self.leader, leader);
        before.is_some() && before != self.leader
    }
}

/// Whether the log has said that the candidate leads. It says so when COMMAND starts, or when there is something else
/// to say. A claim that starts nothing, because the job is done or the shard is paused, is a detail.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Leading {
    #[default]
    No,
    Unsaid(Term),
    Said,
}

impl Driver {
    /// Feeds the election until no event is left, and starts or ends what runs beside it.
    fn handle_events(&mut self, host: &mut impl Host) {
        while let Some(event) = self.events.pop_front() {
            trace::event(&event);
            host.saw(&event);
            if let Event::Tree(TreeEvent::Ended(end)) = event {
                self.history.command_ended(end);
            }
            if let Event::Booked { answer: Ok(Booking::Booked(_)), .. } | Event::Settled { answer: Ok(()), .. } = event
            {
                self.notes.spawn(self.requests.index());
            }
            for action in self.election.handle(BootInstant::now(), event) {
                trace::action(&action);
                host.did(&action);
                self.carry_out(action, host);
            }
        }
        if !self.election.is_standby() {
            cancel(&mut self.changes);
        } else if self.election.wants_change() && self.changes.is_empty() {
            self.changes.spawn(self.requests.changed());
        }
        if !self.election.is_leading() {
            cancel(&mut self.doubts);
        } else if self.doubts.is_empty() {
            self.doubts.spawn(self.requests.doubted());
        }
        if !self.election.is_leading() {
            cancel(&mut self.rotations);
        } else if let Some(schedule) = self.options.schedule.as_ref().filter(|_| self.rotations.is_empty()) {
            let comes = schedule.clone().comes();
            self.rotations.spawn(async move {
                comes.await;
                Event::RotationDue
            });
        }
        if !self.announcement.is_empty() && !self.election.is_standby() {
            cancel(&mut self.announcement);
            self.notes.spawn(self.requests.withdraw());
        } else if self.announcement.is_empty() && self.options.announces && self.election.is_waiting() {
            self.announcement.spawn(self.requests.announce());
        }
        host.show(self.election.view(self.requests.campaign.store().hindrance()));
    }

    fn carry_out(&mut self, action: Action, host: &mut impl Host) {
        match action {
            Action::Claim => self.ask(self.requests.claim()),
            Action::Observe => self.ask(self.requests.observe()),
            Action::Renew { term, sequence } => drop(self.renewals.spawn(self.requests.renew(term, sequence))),
            Action::Release { term } => self.ask(self.requests.release(term)),
            // Like the answers to renewals, a leader's answer does not matter after its leadership.
            Action::ReadOrders if self.election.is_leading() => drop(self.renewals.spawn(self.requests.orders())),
            Action::ReadOrders => self.ask(self.requests.orders()),
            Action::CountStandbys => drop(self.renewals.spawn(self.requests.count_standbys(self.options.counts))),
            Action::Book { term, behind } => drop(self.entries.spawn(self.requests.book(term, behind))),
            Action::Settle { term, ran } => drop(self.entries.spawn(self.requests.settle(term, ran))),
            Action::ForgetHandover { term } => drop(self.notes.spawn(self.requests.forget_handover(term))),
            Action::ForgetRenewals => cancel(&mut self.renewals),
            Action::Start { term, deadline } => {
                self.say_leading(true);
                let candidate = self.requests.leader();
                if let Err(error) = host.start(&candidate, term, deadline, &self.requests.campaign) {
                    self.events.push_back(Event::Tree(TreeEvent::NotStarted(error)));
                    self.events.push_back(Event::Tree(TreeEvent::Dead));
                }
                if self.history.open(&candidate, term) {
                    self.beginnings.spawn(self.requests.save(&self.history, BEGINS_AFTER));
                }
            }
            Action::Ended { term, how } => {
                cancel(&mut self.beginnings);
                self.history.close(term, &how);
                self.notes.spawn(self.requests.save(&self.history, Duration::ZERO));
            }
            Action::Extend(deadline) => host.extend(deadline),
            Action::Stop(stop) => host.stop(stop),
            Action::Seize => host.seize(),
            Action::StartStandbyTasks => host.start_standby_tasks(),
            Action::StopStandbyTasks(stop) => host.stop_standby_tasks(stop),
            Action::SeizeStandbyTasks => host.seize_standby_tasks(),
            Action::LeaderChanged(leader) => host.leader_changed(leader),
            Action::ReleaseOver { failed } => host.release_over(failed),
            Action::Say(notice) => self.say(&notice, host.logs_waiting()),
            Action::End(outcome) => self.outcome = Some(outcome),
        }
    }

    /// Starts a request and aborts the one before, which was given up: the rest of an old release would end a new
    /// claim.
    fn ask(&mut self, request: impl Future<Output = Event> + Send + 'static) {
        cancel(&mut self.one_at_a_time);
        self.one_at_a_time.spawn(request);
    }

    /// Says that we lead, unless it was said.
    fn say_leading(&mut self, important: bool) {
        let Leading::Unsaid(term) = self.logged.leading else { return };
        self.logged.leading = Leading::Said;
        let (shard, owner, notice) = (self.led.as_str(), self.requests.candidate.owner.as_str(), Notice::Leading(term));
        let event = notice.event().as_str();
        if important {
            tracing::info!(event, shard, term = term.0, owner, "{notice}");
        } else {
            tracing::debug!(event, shard, term = term.0, owner, "{notice}");
        }
    }

    fn say(&mut self, notice: &Notice, logs_waiting: bool) {
        match notice {
            Notice::Leading(term) => {
                self.term = Some(*term);
                self.led = self.requests.leader().shard.clone();
                self.logged = Logged { leading: Leading::Unsaid(*term), ..Logged::default() };
                return;
            }
            // Nothing was started.
            Notice::Released(_) if matches!(self.logged.leading, Leading::Unsaid(_)) => {
                self.say_leading(false);
                self.logged.leading = Leading::No;
            }
            _ => self.say_leading(true),
        }
        let (shard, owner) = (self.led.as_str(), self.requests.candidate.owner.as_str());
        let term = self.term.map(|term| term.0);
        let (event, reason) = (notice.event().as_str(), notice.reason().map(Reason::as_str));
        match notice {
            Notice::Waiting(holder) if self.logged.is_change(holder, self.requests.campaign.has_slots()) => {
                let event = LogEvent::LeaderChanged.as_str();
                tracing::info!(event, shard, owner, "the leader changed: {holder} leads");
            }
            Notice::Waiting(_) if logs_waiting && !self.logged.waiting => {
                self.logged.waiting = true;
                tracing::info!(event, shard, owner, "{notice}");
            }
            Notice::Waiting(_) | Notice::Staying(_) => tracing::debug!(event, shard, owner, "{notice}"),
            Notice::Released(_) if self.logged.leading == Leading::No => {
                tracing::debug!(event, shard, term, owner, "{notice}");
            }
            Notice::Leading(_)
            | Notice::HoldingBack(..)
            | Notice::TroubleOver
            | Notice::Stopping { .. }
            | Notice::SteppingDown(_)
            | Notice::Held(_)
            | Notice::Restarting { end: CommandEnd::Exited(0), .. }
            | Notice::Relinquishing
            | Notice::Released(_) => tracing::info!(event, reason, shard, term, owner, "{notice}"),
            Notice::Trouble { .. }
            | Notice::OrdersUnread { .. }
            | Notice::Overran(_)
            | Notice::Restarting { end: CommandEnd::Exited(_) | CommandEnd::Signalled(_), .. }
            | Notice::GaveUp { .. }
            | Notice::NotEntered(_)
            | Notice::NotSettled(_)
            | Notice::Uncounted(_)
            | Notice::Killing
            | Notice::Unready(_)
            | Notice::Unhealthy(_)
            | Notice::Late(_)
            | Notice::Lost(_)
            | Notice::NotReleased(_) => {
                tracing::warn!(event, reason, shard, term, owner, "{notice}");
            }
        }
        if matches!(notice, Notice::Released(_) | Notice::NotReleased(_)) {
            self.term = None;
            self.logged.leading = Leading::No;
            self.led = self.requests.candidate.shard.clone();
        }
    }
}

/// Makes requests to the store, each within its time, and turns their answers into events.
struct Requests {
    campaign: Arc<Campaign>,
    candidate: Arc<Candidate>,
    timeout: Duration,
    job_gate: Option<Arc<JobGate>>,
}

impl Requests {
    fn claim(&self) -> impl Future<Output = Event> + use<> {
        let (campaign, candidate, timeout) = self.parts();
        // Every lease counts from here, before anything is sent.
        let sent = BootInstant::now();
        async move { Event::Claimed { sent, answer: within(timeout, campaign.claim(&candidate)).await } }
    }

    fn observe(&self) -> impl Future<Output = Event> + use<> {
        let (campaign, candidate, timeout) = self.parts();
        async move { Event::Observed { answer: within(timeout, campaign.leases().observe(&candidate.shard)).await } }
    }

    fn renew(&self, term: Term, sequence: u64) -> impl Future<Output = Event> + use<> {
        let (campaign, candidate, timeout) = self.parts();
        let sent = BootInstant::now();
        async move {
            match within(timeout, campaign.renew(&candidate, term, sequence)).await {
                Ok((renewal, orders)) => Event::Renewed { sent, answer: Ok(renewal), orders },
                Err(error) => Event::Renewed { sent, answer: Err(error), orders: None },
            }
        }
    }

    fn release(&self, term: Term) -> impl Future<Output = Event> + use<> {
        let (campaign, candidate, timeout) = self.parts();
        async move { Event::Released { answer: within(timeout, campaign.leases().release(&candidate, term)).await } }
    }

    fn changed(&self) -> impl Future<Output = Event> + use<> {
        let (campaign, candidate, _) = self.parts();
        async move { Event::Changed(campaign.leases().changed(&candidate.shard).await) }
    }

    fn doubted(&self) -> impl Future<Output = Event> + use<> {
        let (campaign, candidate, _) = self.parts();
        async move {
            // A store that doubts all the time must not keep us busy.
            tokio::time::sleep(DOUBTS_APART).await;
            campaign.leases().doubted(&candidate.shard).await;
            Event::Doubted
        }
    }

    fn orders(&self) -> impl Future<Output = Event> + use<> {
        let (campaign, candidate, timeout) = self.parts();
        async move { Event::Ordered { answer: within(timeout, campaign.directives(&candidate)).await } }
    }

    /// Counts the other standbys. The answer is None if candidates do not announce themselves.
    fn count_standbys(&self, counts: bool) -> impl Future<Output = Event> + use<> {
        let (campaign, candidate, timeout) = self.parts();
        async move {
            let answer = if counts {
                within(timeout, standbys::others(&**campaign.store(), &candidate)).await.map(Some)
            } else {
                Ok(None)
            };
            Event::Counted { answer }
        }
    }

    fn book(&self, term: Term, behind: Behind) -> impl Future<Output = Event> + use<> {
        let ((campaign, candidate, timeout), job_gate) = (self.parts(), self.job_gate.clone());
        async move {
            let job_gate = job_gate.expect("only a job is booked");
            let booking = job_gate.book(&**campaign.store(), &candidate, term, &behind);
            Event::Booked { term, answer: within(timeout, booking).await }
        }
    }

    fn settle(&self, term: Term, ran: Option<Ran>) -> impl Future<Output = Event> + use<> {
        let ((campaign, candidate, timeout), job_gate) = (self.parts(), self.job_gate.clone());
        async move {
            let job_gate = job_gate.expect("only a job is booked");
            Event::Settled {
                term,
                answer: within(timeout, job_gate.settle(&**campaign.store(), &candidate.shard, ran.as_ref())).await,
            }
        }
    }

    fn index(&self) -> impl Future<Output = ()> + use<> {
        let ((campaign, candidate, timeout), job_gate) = (self.parts(), self.job_gate.clone());
        async move {
            let job_gate = job_gate.expect("only a job is booked");
            noted(within(timeout, job_gate.index(&**campaign.store(), &candidate.shard)).await);
        }
    }

    fn forget_handover(&self, term: Term) -> impl Future<Output = ()> + use<> {
        let ((campaign, _, timeout), leader) = (self.parts(), self.leader());
        async move { noted(within(timeout, orders::forget_handover(&**campaign.store(), &leader.shard, term)).await) }
    }

    fn save(&self, history: &Arc<History>, after: Duration) -> impl Future<Output = ()> + use<> {
        let ((campaign, _, timeout), leader, history) = (self.parts(), self.leader(), Arc::clone(history));
        async move {
            if !after.is_zero() {
                tokio::time::sleep(after).await;
            }
            noted(within(timeout, history.save(&**campaign.store(), &leader.shard)).await);
        }
    }

    fn announce(&self) -> impl Future<Output = ()> + use<> {
        let (campaign, candidate, timeout) = self.parts();
        async move { standbys::announce(&**campaign.store(), &candidate, timeout, not_noted).await }
    }

    fn withdraw(&self) -> impl Future<Output = ()> + use<> {
        let (campaign, candidate, timeout) = self.parts();
        async move { noted(within(timeout, standbys::withdraw(&**campaign.store(), &candidate)).await) }
    }

    /// The candidate, with the shard that it leads now: with slots, that is one slot's own shard.
    fn leader(&self) -> Arc<Candidate> {
        match self.campaign.place() {
            Some(place) => Arc::new(Candidate { shard: place.shard, ..(*self.candidate).clone() }),
            None => Arc::clone(&self.candidate),
        }
    }

    fn parts(&self) -> (Arc<Campaign>, Arc<Candidate>, Duration) {
        (Arc::clone(&self.campaign), Arc::clone(&self.candidate), self.timeout)
    }
}

fn cancel<T: 'static>(tasks: &mut JoinSet<T>) {
    tasks.abort_all();
    tasks.detach_all();
}

/// The event of a task that ended, or None if it was aborted. A panic goes on, because the election would wait forever
/// for the answer to that request.
fn heard(event: Result<Event, JoinError>) -> Option<Event> {
    match event {
        Ok(event) => Some(event),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => None,
        },
    }
}

/// Logs a failure to write a note only at debug level: the election reports the store's trouble already.
fn noted(written: Result<(), StoreError>) {
    if let Err(error) = written {
        not_noted(&error.message);
    }
}

fn not_noted(message: &str) {
    tracing::debug!("not written down: {message}");
}
