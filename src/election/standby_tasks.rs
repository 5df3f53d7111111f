//! What runs beside a standby: the standby command, and the hook that is told who leads.
//!
//! The hazard: the lease is granted while they run, and COMMAND may need what they hold (a port, a directory). So they
//! are dismissed at the grant, the lease is renewed meanwhile, and COMMAND starts only once they are shown to be dead. A
//! lease that is lost meanwhile leaves them dying as a standby: they come back when they are dead, and not before.

use super::state::State;
use super::{Action, Dismissal, Event, Hold, Outcome};
use super::{Core, GUARD_PATIENCE};
use crate::lease::Term;
use crate::store::Holder;
use crate::time::BootInstant;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct StandbyTasks {
    phase: Phase,
    told: Told,
    /// Somebody asked us to leave: who asks again does not want to wait for them.
    asked: bool,
    /// Some once nothing but they keep us from leaving.
    farewell: Option<Outcome>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Shown: none of them is alive.
    Away,
    /// They run, or will.
    Present,
    Leaving {
        /// Guards that were told to stop them, and work, have done so before this.
        seize_at: BootInstant,
    },
    /// They are being killed past their guards.
    Seized,
}

/// What they were told last.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Told {
    Nothing,
    NobodyLeads,
    Leads(String, Option<Term>),
}

impl StandbyTasks {
    pub(super) const AWAY: Self = Self { phase: Phase::Away, told: Told::Nothing, asked: false, farewell: None };

    pub(super) fn are_away(&self) -> bool {
        self.phase == Phase::Away
    }

    pub(super) fn wake_at(&self) -> BootInstant {
        match self.phase {
            Phase::Leaving { seize_at } => seize_at,
            Phase::Away | Phase::Present | Phase::Seized => BootInstant::NEVER,
        }
    }
}

impl Core {
    /// What an event means for them before it means anything for the election.
    pub(super) fn standby_tasks_heard(
        &mut self,
        now: BootInstant,
        state: &mut State,
        event: &Event,
        actions: &mut Vec<Action>,
    ) {
        match event {
            Event::Dismissed => {
                let leaving = matches!(self.standby_tasks.phase, Phase::Leaving { .. } | Phase::Seized);
                assert!(leaving, "only who was dismissed is gone");
                self.standby_tasks.phase = Phase::Away;
                self.start_soon(now, state);
            }
            Event::Asked { .. } => {
                if let Phase::Leaving { seize_at } = &mut self.standby_tasks.phase
                    && self.standby_tasks.asked
                {
                    *seize_at = (*seize_at).min(now.plus(GUARD_PATIENCE));
                    actions.push(Action::Dismiss(Dismissal::Kill));
                }
                self.standby_tasks.asked = true;
            }
            Event::Tick
            | Event::Claimed { .. }
            | Event::Observed { .. }
            | Event::Changed(_)
            | Event::Doubted
            | Event::Renewed { .. }
            | Event::Released { .. }
            | Event::Ordered { .. }
            | Event::Booked { .. }
            | Event::Settled { .. }
            | Event::TurnOver
            | Event::Counted { .. }
            | Event::Tree(_) => {}
        }
    }

    /// They may have taken so long to die that too little of the lease is left, and that orders were read long ago.
    fn start_soon(&self, now: BootInstant, state: &mut State) {
        let least = self.settings.timing.least_to_start();
        if let State::Leading(leadership) = state {
            leadership.reading.begin_anew(now);
            if leadership.valid_until.since(now) < least {
                leadership.next_renewal = leadership.next_renewal.min(now);
            }
        }
    }

    /// Has them there while we are a standby that knows it does not lead, and away otherwise.
    pub(super) fn attend(&mut self, now: BootInstant, state: &State, actions: &mut Vec<Action>) {
        if !self.settings.standby_tasks {
            return;
        }
        let standby = match state {
            State::Standby(_) => true,
            State::Withdrawing { .. } | State::Leading(_) | State::Releasing(_) | State::Ended => false,
        };
        let known = self.waiting.error.is_some() || self.waiting.obstacle().is_some();
        match self.standby_tasks.phase {
            Phase::Away if standby && known => {
                self.standby_tasks.phase = Phase::Present;
                actions.push(Action::Attend);
            }
            Phase::Present if !standby => {
                let grace = self.settings.timing.stop_grace;
                self.standby_tasks.phase = Phase::Leaving { seize_at: now.plus(grace).plus(GUARD_PATIENCE) };
                self.standby_tasks.told = Told::Nothing;
                actions.push(Action::Dismiss(Dismissal::Orderly { kill_after: grace }));
            }
            Phase::Leaving { seize_at } if now >= seize_at => {
                self.standby_tasks.phase = Phase::Seized;
                actions.push(Action::SeizeStandbyTasks);
            }
            Phase::Away | Phase::Present | Phase::Leaving { .. } | Phase::Seized => {}
        }
        match self.standby_tasks.phase {
            Phase::Present => self.tell_who_leads(actions),
            Phase::Away => actions.extend(self.standby_tasks.farewell.take().map(Action::End)),
            Phase::Leaving { .. } | Phase::Seized => {}
        }
    }

    fn tell_who_leads(&mut self, actions: &mut Vec<Action>) {
        let leader = match (&self.waiting.hold, &self.waiting.holder) {
            (Some(Hold::Paused { .. }), _) => None,
            // Some stores cannot name whoever was quicker.
            (None, Some(holder)) if !holder.owner.is_empty() => Some(holder.clone()),
            // Others go first, and may have; or nothing was heard yet.
            (Some(Hold::HandedOver { .. } | Hold::StandingBack { .. }), _) | (None, Some(_) | None) => return,
        };
        let leads = |holder: &Holder| Told::Leads(holder.owner.clone(), holder.term);
        let told = leader.as_ref().map_or(Told::NobodyLeads, leads);
        if self.standby_tasks.told != told {
            self.standby_tasks.told = told;
            actions.push(Action::LeaderChanged(leader));
        }
    }

    /// The election is over; it is told once they are dead as well.
    pub(super) fn end(&mut self, outcome: Outcome, actions: &mut Vec<Action>) -> State {
        if self.standby_tasks.are_away() {
            actions.push(Action::End(outcome));
        } else {
            self.standby_tasks.farewell = Some(outcome);
        }
        State::Ended
    }

    /// How long until somebody who must be told of a new leader looks, where nothing else would.
    pub(super) fn look_for_leader(&mut self) -> Option<Duration> {
        self.settings.standby_tasks.then(|| self.random.about(self.settings.timing.retry_interval))
    }
}
