//! The candidate's event loop. It carries out the election's actions, feeds the answers back, and decides nothing.
//!
//! The hazard: a store that hangs must not keep the loop from hearing a signal or the guard. So every request is a task
//! of its own with a bound on its time, and the loop only waits for the next event.

use crate::election::{Action, Booking, Election, Event, Outcome, Settings, StartError, TreeEvent, View};
use crate::lease::{Candidate, Deadline, Term};
use crate::notes::history::History;
use crate::notes::jobs::{Job, JobGate};
use crate::runner::notices::Log;
use crate::runner::requests::Requests;
use crate::runner::rotation::Schedule;
use crate::runner::tasks::{Kind, Tasks};
use crate::runner::trace;
use crate::slots::Campaign;
use crate::store::Takeover;
use crate::time::BootInstant;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// How long a candidate that has nothing else left to do waits for its notes to be written.
const LAST_NOTES: Duration = Duration::from_secs(1);

/// How long after COMMAND's start the history gets an entry. A COMMAND that ends sooner is written once, not twice.
const BEGINS_AFTER: Duration = Duration::from_secs(1);

/// What an election needs from its host: a timer that wakes it, the signals that ask it to stop, and its tree.
pub trait Host {
    /// The next thing that happens here: [`Event::Tick`] at `wake_at`, [`Event::Asked`], [`Event::Tree`],
    /// [`Event::Late`] or [`Event::StandbyTasksDead`]. Cancelling it loses no event.
    fn next(&mut self, wake_at: BootInstant) -> impl Future<Output = io::Result<Event>>;

    /// Starts the guard with `deadline`; the guard starts COMMAND. `campaign` has the files that must stay open
    /// meanwhile. An error says why nothing was started.
    fn start(
        &mut self,
        candidate: &Candidate,
        term: Term,
        deadline: Deadline,
        takeover: Takeover,
        campaign: &Campaign,
    ) -> Result<(), StartError>;

    /// Shows an action to people, and does what is the host's of it: what concerns the guard, the tree and the standby
    /// tasks, except for the start.
    fn carry_out(&mut self, action: &Action);

    /// Shows people an event before the election handles it.
    fn saw(&mut self, _event: &Event) {}

    fn show(&mut self, _view: View) {}
}

/// What a candidate does in addition to the election.
#[derive(Clone, Debug)]
pub struct Options {
    /// Announces itself in the store while it is a standby.
    pub announces: bool,
    /// Counts the standbys before it hands over by itself. Where other candidates do not announce themselves, a count
    /// says nothing.
    pub counts: bool,
    pub job: Option<Job>,
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
    let once = options.job.as_ref().and_then(Job::once).cloned();
    let mut driver = Driver {
        election: Election::new(settings, BootInstant::now(), seed),
        log: Log::of(&candidate, campaign.has_slots()),
        requests: Requests {
            campaign: Arc::new(campaign),
            candidate: Arc::new(candidate),
            timeout: settings.timing.request_timeout,
            job_gate: options.job.clone().map(|job| Arc::new(JobGate::new(job))),
        },
        tasks: Tasks::default(),
        history: Arc::new(History::new(once)),
        options,
        events: VecDeque::from([Event::Tick]),
        outcome: None,
    };
    loop {
        driver.handle_events(host);
        if let Some(outcome) = driver.outcome {
            // Bounded, because safety does not depend on these notes.
            let written = async {
                while driver.tasks.has(Kind::Note) {
                    driver.tasks.next().await;
                }
            };
            let _ = tokio::time::timeout(LAST_NOTES, written).await;
            return Ok(outcome);
        }
        let wake_at = driver.election.wake_at();
        // In a fixed order, so that a simulation can be replayed. Tasks come first: their number is bounded, while
        // people may send signals without end.
        tokio::select! {
            biased;
            event = driver.tasks.next() => driver.events.extend(event),
            event = host.next(wake_at) => driver.events.push_back(event?),
        }
    }
}

struct Driver {
    election: Election,
    requests: Requests,
    tasks: Tasks,
    history: Arc<History>,
    options: Options,
    log: Log,
    events: VecDeque<Event>,
    outcome: Option<Outcome>,
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
                self.tasks.write(Kind::Note, self.requests.clone().index());
            }
            for action in self.election.handle(BootInstant::now(), event) {
                trace::action(&action);
                host.carry_out(&action);
                self.carry_out(action, host);
            }
        }
        self.look_after_tasks();
        host.show(self.election.view(self.requests.campaign.store().takeover_warning()));
    }

    /// Starts and ends the tasks that last as long as a state of the election.
    fn look_after_tasks(&mut self) {
        let requests = self.requests.clone();
        if !self.election.is_standby() {
            self.tasks.cancel(Kind::Change);
        } else if self.election.wants_change() && !self.tasks.has(Kind::Change) {
            self.tasks.ask(Kind::Change, requests.clone().changed());
        }
        if self.election.is_leading() {
            if !self.tasks.has(Kind::Doubt) {
                self.tasks.ask(Kind::Doubt, requests.clone().doubted());
            }
            if !self.tasks.has(Kind::Rotation)
                && let Some(schedule) = self.options.schedule.clone()
            {
                self.tasks.ask(Kind::Rotation, async move {
                    schedule.comes().await;
                    Event::RotationDue
                });
            }
        } else {
            self.tasks.cancel(Kind::Doubt);
            self.tasks.cancel(Kind::Rotation);
        }
        let announced = self.tasks.has(Kind::Announcement);
        if announced && !self.election.is_standby() {
            self.tasks.cancel(Kind::Announcement);
            self.tasks.write(Kind::Note, requests.withdraw());
        } else if !announced && self.options.announces && self.election.is_waiting() {
            self.tasks.write(Kind::Announcement, requests.announce());
        }
    }

    fn carry_out(&mut self, action: Action, host: &mut impl Host) {
        let requests = self.requests.clone();
        match action {
            Action::Claim => self.ask(requests.claim()),
            Action::Observe => self.ask(requests.observe()),
            Action::Renew { term, sequence } => self.tasks.ask(Kind::Renewal, requests.renew(term, sequence)),
            Action::Release { term } => self.ask(requests.release(term)),
            // Like the answers to renewals, a leader's answer does not matter after its leadership.
            Action::ReadOrders if self.election.is_leading() => self.tasks.ask(Kind::Renewal, requests.orders()),
            Action::ReadOrders => self.ask(requests.orders()),
            Action::CountStandbys if self.options.counts => self.tasks.ask(Kind::Renewal, requests.count_standbys()),
            Action::CountStandbys => self.events.push_back(Event::Counted { answer: Ok(None) }),
            Action::Book { term, behind } => self.tasks.ask(Kind::Entry, requests.book(term, behind)),
            Action::Settle { term, ran } => self.tasks.ask(Kind::Entry, requests.settle(term, ran)),
            Action::ForgetHandover { term } => {
                let leader = requests.leader();
                self.tasks.write(Kind::Note, requests.forget_handover(leader, term));
            }
            Action::ForgetRenewals => self.tasks.cancel(Kind::Renewal),
            Action::Start { term, deadline, takeover } => {
                self.log.say_leading(true);
                let candidate = requests.leader();
                if let Err(error) = host.start(&candidate, term, deadline, takeover, &requests.campaign) {
                    self.events.push_back(Event::Tree(TreeEvent::NotStarted(error)));
                    self.events.push_back(Event::Tree(TreeEvent::Dead));
                }
                if self.history.open(&candidate, term) {
                    self.save(Kind::Beginning, BEGINS_AFTER);
                }
            }
            Action::Ended { term, how } => {
                self.tasks.cancel(Kind::Beginning);
                self.history.close(term, &how);
                self.save(Kind::Note, Duration::ZERO);
            }
            // The host has done its part.
            Action::Extend(_)
            | Action::Stop(_)
            | Action::Seize
            | Action::StartStandbyTasks
            | Action::StopStandbyTasks { .. }
            | Action::KillStandbyTasks
            | Action::SeizeStandbyTasks
            | Action::LeaderChanged(_)
            | Action::ReleaseOver { .. } => {}
            Action::Say(notice) => self.log.say(&notice, &requests.leader().shard),
            Action::End(outcome) => self.outcome = Some(outcome),
        }
    }

    /// Starts a request and aborts the one before, which was given up: the rest of an old release would end a new
    /// claim.
    fn ask(&mut self, request: impl Future<Output = Event> + Send + 'static) {
        self.tasks.cancel(Kind::Request);
        self.tasks.ask(Kind::Request, request);
    }

    fn save(&mut self, kind: Kind, after: Duration) {
        let leader = self.requests.leader();
        self.tasks.write(kind, self.requests.clone().save(leader, Arc::clone(&self.history), after));
    }
}
