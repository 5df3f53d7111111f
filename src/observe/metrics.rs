//! The metrics of a candidate, for probes and for Prometheus (see [`http`](crate::observe::http)).
//!
//! The hazard: a metric that says "leader" a moment too long sends work to a COMMAND that is being stopped. So the
//! metrics see each event before the election does, and each action before it is carried out, and every answer checks
//! the deadline against the clock.

mod series;

use super::Observer;
use crate::election::{Action, Event, Obstacle, Role, Stop, TreeEvent, View};
use crate::lease::{Candidate, Deadline, Late, Shard, Term, show_seconds};
use crate::store::Answer;
use crate::time::{BootInstant, rfc3339, wall_clock_millis};
use parking_lot::Mutex;
use prometheus::TextEncoder;
use serde::Serialize;
use series::Series;
use std::sync::Arc;
use std::time::Duration;

pub struct Metrics {
    candidate: Candidate,
    /// After this long without an answer, another candidate may lead.
    lease: Duration,
    state: Mutex<State>,
    series: Series,
}

#[derive(Default)]
struct State {
    view: Option<View>,
    heard: bool,
    /// Since the first failed request after the last answer.
    silent_since: Option<BootInstant>,
    /// Some once COMMAND is to start, until the leadership ends.
    leadership: Option<Leadership>,
}

struct Leadership {
    term: Term,
    deadline: Deadline,
    run: Run,
    /// The slot, if there is one.
    shard: Shard,
    /// COMMAND has run in this leadership before.
    again: bool,
}

impl State {
    fn late(&self) -> Late {
        self.view.as_ref().map_or(Late::default(), |view| view.late)
    }
}

enum Run {
    Starting,
    /// The start, in milliseconds since 1970.
    Running(u64),
    /// COMMAND has ended, or is being stopped because the lease is lost.
    Over,
    /// The tree is dead. The leadership ends, or COMMAND starts again.
    Dead,
}

/// The answer to `/leader`.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Leads {
    pub leader: bool,
    pub shard: String,
    pub owner: String,
    pub host: String,
    pub slot: Option<u32>,
    pub term: Option<Term>,
    pub since: Option<String>,
}

impl Metrics {
    pub fn new(candidate: &Candidate, lease: Duration) -> Self {
        let series = Series::new(candidate.shard.as_str());
        Self { candidate: candidate.clone(), lease, state: Mutex::default(), series }
    }

    fn saw(&self, now: BootInstant, event: &Event) {
        match event {
            Event::Tick
            | Event::Doubted
            | Event::StandbyTasksDead
            | Event::RotationDue
            | Event::Asked { .. }
            | Event::Late(_)
            | Event::Counted { answer: Ok(None) }
            | Event::Tree(TreeEvent::Unhealthy(_)) => {}
            // Silence counts from the request.
            Event::Claimed { sent, answer } => self.answered(*sent, answer),
            Event::Observed { answer } => self.answered(now, answer),
            Event::Changed(answer) | Event::Settled { answer, .. } => self.answered(now, answer),
            Event::Released { answer } => self.answered(now, answer),
            Event::Ordered { answer } => self.answered(now, answer),
            Event::Counted { answer } => self.answered(now, answer),
            Event::Booked { answer, .. } => self.answered(now, answer),
            Event::Renewed { sent, answer, .. } => {
                self.answered(*sent, answer);
                match answer {
                    Ok(_) => self.series.renewals.observe(now.since(*sent).as_secs_f64()),
                    Err(error) => {
                        self.series.renew_failures.with_label_values(&[error.kind.into_str()]).inc();
                    }
                }
            }
            Event::Tree(TreeEvent::Started) => self.started(),
            Event::Tree(
                TreeEvent::NotStarted(_)
                | TreeEvent::Unready(_)
                | TreeEvent::Ended(_)
                | TreeEvent::Interrupted(_)
                | TreeEvent::Overran
                | TreeEvent::DeadlineReached
                | TreeEvent::GuardFailed,
            ) => self.over(Run::Over),
            Event::Tree(TreeEvent::Dead) => self.over(Run::Dead),
        }
    }

    fn answered<T>(&self, asked: BootInstant, answer: &Answer<T>) {
        let mut known = self.state.lock();
        if answer.is_ok() {
            known.heard = true;
            known.silent_since = None;
        } else {
            known.silent_since.get_or_insert(asked);
        }
    }

    fn started(&self) {
        self.series.starts.inc();
        if let Some(leadership @ Leadership { run: Run::Starting, .. }) = &mut self.state.lock().leadership {
            leadership.run = Run::Running(wall_clock_millis());
            self.series.restarts.inc_by(leadership.again.into());
        }
    }

    fn over(&self, run: Run) {
        if let Some(leadership) = self.state.lock().leadership.as_mut().filter(|leadership| leadership.has_tree()) {
            leadership.run = run;
        }
    }

    /// Whether COMMAND runs under a lease that is not lost, and since when.
    pub fn leads(&self, now: BootInstant) -> Leads {
        let known = self.state.lock();
        let leading = known.leadership.as_ref().filter(|leadership| leadership.is_leading(now, known.late().extra));
        let Candidate { shard, owner, host, .. } = &self.candidate;
        Leads {
            leader: leading.is_some(),
            // The name by which the term can be verified.
            shard: leading.map_or(shard, |leadership| &leadership.shard).to_string(),
            owner: owner.clone(),
            host: host.clone(),
            slot: leading.and_then(|leadership| leadership.shard.slot()),
            term: leading.map(|leadership| leadership.term),
            since: leading.and_then(Leadership::since),
        }
    }

    /// Whether the candidate leads, or could lead.
    pub fn readiness(&self, now: BootInstant) -> Result<&'static str, String> {
        let known = self.state.lock();
        let silence = known.silent_since.map_or(Duration::ZERO, |since| now.since(since));
        match known.view.as_ref().map(|view| &view.role) {
            Some(Role::Leaving) => Err("it is leaving, or becoming a standby again".to_owned()),
            None | Some(Role::Standby(_) | Role::Leader(_) | Role::Restarting { .. }) if !known.heard => {
                Err("the store has not answered yet".to_owned())
            }
            _ if silence > self.lease => Err(format!("the store has not answered for {}", show_seconds(silence))),
            Some(Role::Leader(_) | Role::Restarting { .. }) => Ok("leader"),
            None | Some(Role::Standby(_)) => Ok("standby"),
        }
    }

    pub fn text(&self, now: BootInstant) -> String {
        self.update_gauges(now);
        // Fails only on a family without a name or samples, which the registry leaves out.
        TextEncoder::new().encode_to_string(&self.series.registry.gather()).unwrap_or_default()
    }

    fn update_gauges(&self, now: BootInstant) {
        let known = self.state.lock();
        let series = &self.series;
        let leadership = known.leadership.as_ref();
        let late = known.late();
        series.is_leader.set(leadership.is_some_and(|leadership| leadership.is_leading(now, late.extra)).into());
        series.term.set(leadership.map_or(0, |leadership| integer(leadership.term)));
        series.slot.set(leadership.and_then(|leadership| leadership.shard.slot()).map_or(0, i64::from));
        series.silence.set(known.silent_since.map_or(0.0, |since| now.since(since).as_secs_f64()));
        series.late.set(late.worst.as_secs_f64());
        series.beyond.set(late.beyond.into());
        series.deadline.reset();
        let with_tree = leadership.filter(|leadership| leadership.has_tree());
        if let Some(Deadline { term_at, kill_at, .. }) =
            with_tree.map(|leadership| leadership.deadline.earlier(late.extra))
            && kill_at != BootInstant::NEVER
        {
            for (signal, at) in [("stop", term_at), ("kill", kill_at)] {
                series.deadline.with_label_values(&[signal]).set(at.since(now).as_secs_f64());
            }
        }
        series.observed.reset();
        let role = known.view.as_ref().map(|view| &view.role);
        if let Some(Role::Standby(Some(Obstacle::Holder(holder)))) = role {
            let labels = [holder.owner.as_str(), holder.host.as_deref().unwrap_or_default()];
            series.observed.with_label_values(&labels).set(holder.term.map_or(0, integer));
        }
    }
}

impl Observer for Arc<Metrics> {
    fn began(&mut self, shard: &Shard, term: Term, deadline: Deadline) {
        let mut known = self.state.lock();
        let again = known.leadership.as_ref().is_some_and(|leadership| leadership.term == term);
        known.leadership = Some(Leadership { term, deadline, run: Run::Starting, shard: shard.clone(), again });
    }

    fn guarded(&mut self, helpers: Option<[i32; 2]>) {
        if helpers.is_none() {
            self.over(Run::Over);
        }
    }

    fn saw(&mut self, event: &Event) {
        Metrics::saw(self, BootInstant::now(), event);
    }

    fn did(&mut self, action: &Action) {
        match action {
            Action::Extend(deadline) => {
                if let Some(leadership) = &mut self.state.lock().leadership {
                    leadership.deadline = *deadline;
                }
            }
            Action::Stop(Stop::Losing { .. } | Stop::Kill) | Action::Seize => self.over(Run::Over),
            Action::Ended { how, .. } => {
                self.state.lock().leadership = None;
                self.series.ends.with_label_values(&[how.reason().into_str()]).inc();
            }
            // An orderly stop changes nothing here: the lease is renewed while COMMAND drains.
            _ => {}
        }
    }

    fn show(&mut self, view: &View) {
        self.state.lock().view = Some(view.clone());
    }
}

impl Leadership {
    fn is_leading(&self, now: BootInstant, extra: Duration) -> bool {
        match self.run {
            // The guard stops the tree at `term_at`. Its report may come later.
            Run::Running(_) => now < self.deadline.earlier(extra).term_at,
            Run::Starting | Run::Over | Run::Dead => false,
        }
    }

    fn since(&self) -> Option<String> {
        match self.run {
            Run::Running(since) => Some(rfc3339(since)),
            Run::Starting | Run::Over | Run::Dead => None,
        }
    }

    fn has_tree(&self) -> bool {
        !matches!(self.run, Run::Dead)
    }
}

fn integer(term: Term) -> i64 {
    i64::try_from(term.0).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::election::Reason;
    use crate::time::at;

    fn until(term_at: u64) -> Deadline {
        Deadline { term_at: at(term_at), kill_at: at(term_at + 5), backstop_at: at(term_at + 6) }
    }

    fn leading(deadline: Deadline) -> Arc<Metrics> {
        let candidate = Candidate::example();
        let mut metrics = Arc::new(Metrics::new(&candidate, Duration::from_secs(15)));
        metrics.began(&candidate.shard, Term(1_763_700_000_001), deadline);
        assert!(!metrics.leads(at(1)).leader, "COMMAND was not started yet");
        metrics.started();
        assert!(metrics.leads(at(1)).leader);
        metrics
    }

    const LOSING: Action = Action::Stop(Stop::Losing { reason: Reason::Lost, certain: true });

    #[test]
    fn it_leads_until_the_stop_that_a_loss_begins_and_no_longer() {
        for end in [LOSING, Action::Stop(Stop::Kill), Action::Seize] {
            let mut metrics = leading(until(10));
            metrics.did(&Action::Stop(Stop::Orderly { reason: Reason::Asked, kill_after: None }));
            assert!(metrics.leads(at(9)).leader, "it is renewed while it drains");
            metrics.did(&end);
            assert!(!metrics.leads(at(9)).leader, "{end:?}");
        }
        for end in [TreeEvent::DeadlineReached, TreeEvent::GuardFailed, TreeEvent::Dead] {
            let metrics = leading(until(10));
            Metrics::saw(&metrics, at(2), &Event::Tree(end));
            assert!(!metrics.leads(at(2)).leader, "{end:?}");
        }
    }

    #[test]
    fn a_deadline_that_has_come_counts_before_it_is_reported() {
        let mut metrics = leading(until(10));
        assert!(metrics.leads(at(9)).leader && !metrics.leads(at(10)).leader);
        metrics.did(&Action::Extend(until(20)));
        assert!(metrics.leads(at(19)).leader && !metrics.leads(at(20)).leader);
        assert!(leading(Deadline::NONE).leads(at(1_000_000)).leader);
    }
}
