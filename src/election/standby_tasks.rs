//! Standby tasks: the standby command, and the hook that learns who leads.
//!
//! The hazard: the lease is granted while they run, and COMMAND may need what they hold (a port, a directory). So they
//! are stopped at the grant, the lease is renewed meanwhile, and COMMAND starts only after they are shown to be dead.
//! If the lease is lost before that, the candidate is a standby again while they are dying, and starts them only
//! afterwards.

use super::state::State;
use super::{Action, Core, Event, GUARD_PATIENCE, HeldBack, Hold, Outcome};
use crate::lease::Term;
use crate::store::Holder;
use crate::time::BootInstant;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct StandbyTasks {
    phase: Phase,
    reported: Reported,
    /// A signal came: a second one means not to wait for them.
    asked: bool,
    /// Some if they are all that keeps the candidate from leaving.
    farewell: Option<Outcome>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// None of them is alive. This is shown, not assumed.
    Dead,
    /// They run, or are about to.
    Running,
    Stopping {
        /// A guard that works has stopped them by then.
        seize_at: BootInstant,
    },
    /// They are being killed without their guards.
    Seized,
}

/// The last report to them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Reported {
    Nothing,
    NobodyLeads,
    Leads(String, Option<Term>),
}

impl StandbyTasks {
    pub(super) const DEAD: Self =
        Self { phase: Phase::Dead, reported: Reported::Nothing, asked: false, farewell: None };

    pub(super) fn are_dead(&self) -> bool {
        self.phase == Phase::Dead
    }

    pub(super) fn wake_at(&self) -> BootInstant {
        match self.phase {
            Phase::Stopping { seize_at } => seize_at,
            Phase::Dead | Phase::Running | Phase::Seized => BootInstant::NEVER,
        }
    }
}

impl Core {
    /// Handles what an event means for them, before the election handles it.
    pub(super) fn standby_tasks_heard(&mut self, now: BootInstant, state: &mut State, event: &Event) {
        match event {
            Event::StandbyTasksDead => {
                let stopping = matches!(self.standby_tasks.phase, Phase::Stopping { .. } | Phase::Seized);
                assert!(stopping, "they are dead only after they were stopped");
                self.standby_tasks.phase = Phase::Dead;
                // They may have taken long to die: the orders may be out of date, and too little of the lease left.
                if let State::Leading(leadership) = state {
                    self.prepare_start(now, leadership);
                }
            }
            Event::Asked { .. } => {
                if let Phase::Stopping { seize_at } = &mut self.standby_tasks.phase
                    && self.standby_tasks.asked
                {
                    *seize_at = (*seize_at).min(now.plus(GUARD_PATIENCE));
                    self.actions.push(Action::KillStandbyTasks);
                }
                self.standby_tasks.asked = true;
            }
            _ => {}
        }
    }

    /// Runs them while the candidate is a standby that knows that it does not lead, and stops them otherwise.
    pub(super) fn start_or_stop_standby_tasks(&mut self, now: BootInstant, state: &State) {
        if !self.settings.standby_tasks {
            return;
        }
        let standby = matches!(state, State::Standby(_));
        let known = self.waiting.error.is_some() || self.waiting.obstacle().is_some();
        match self.standby_tasks.phase {
            Phase::Dead if standby && known => {
                self.standby_tasks.phase = Phase::Running;
                self.actions.push(Action::StartStandbyTasks);
            }
            Phase::Running if !standby => {
                let kill_after = self.settings.timing.stop_grace;
                self.standby_tasks.phase = Phase::Stopping { seize_at: now.plus(kill_after).plus(GUARD_PATIENCE) };
                self.standby_tasks.reported = Reported::Nothing;
                self.actions.push(Action::StopStandbyTasks { kill_after });
            }
            Phase::Stopping { seize_at } if now >= seize_at => {
                self.standby_tasks.phase = Phase::Seized;
                self.actions.push(Action::SeizeStandbyTasks);
            }
            Phase::Dead | Phase::Running | Phase::Stopping { .. } | Phase::Seized => {}
        }
        match self.standby_tasks.phase {
            Phase::Running => self.tell_who_leads(),
            Phase::Dead => self.actions.extend(self.standby_tasks.farewell.take().map(Action::End)),
            Phase::Stopping { .. } | Phase::Seized => {}
        }
    }

    fn tell_who_leads(&mut self) {
        let leader = match (&self.waiting.hold, &self.waiting.holder) {
            (Some(Hold { why: HeldBack::Paused, .. }), _) => None,
            // Some stores cannot name the leader.
            (None, Some(holder)) if !holder.owner.is_empty() && holder.doubt.is_none() => Some(holder.clone()),
            // Others go first, and may lead already; or nothing is known yet.
            (Some(_), _) | (None, Some(_) | None) => return,
        };
        let leads = |holder: &Holder| Reported::Leads(holder.owner.clone(), holder.term);
        let report = leader.as_ref().map_or(Reported::NobodyLeads, leads);
        if self.standby_tasks.reported != report {
            self.standby_tasks.reported = report;
            self.actions.push(Action::LeaderChanged(leader));
        }
    }

    /// The election is over. [`Action::End`] follows once they are dead as well.
    pub(super) fn end(&mut self, outcome: Outcome) -> State {
        if self.standby_tasks.are_dead() {
            self.actions.push(Action::End(outcome));
        } else {
            self.standby_tasks.farewell = Some(outcome);
        }
        State::Ended
    }
}
