//! What runs beside a standby, taken as one: it may obey the stop signal at any time or never, as with guards that were
//! frozen, and dies within the tick when it is seized.

use crate::host::{Context, Host};
use crate::mutants::Mutant;
use crate::world::Met;
use leaderrun::internals::election::{Action, Event};
use std::collections::VecDeque;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StandbyTasks {
    Away,
    Run,
    /// They got the stop signal, which they may obey.
    Asked,
    /// They got SIGKILL, and are dead before the tick is over.
    Dying,
    /// The candidate has not heard of it.
    Dead,
}

impl StandbyTasks {
    pub fn are_alive(self) -> bool {
        match self {
            Self::Run | Self::Asked | Self::Dying => true,
            Self::Away | Self::Dead => false,
        }
    }
}

impl Host {
    /// Carries out what concerns them.
    pub fn direct_standby_tasks(&mut self, action: &Action, events: &mut VecDeque<Event>, cx: &Context<'_>) {
        let mutated = cx.world.mutant == Some(Mutant::StandbyTasksTakenForDead);
        match action {
            Action::StartStandbyTasks => {
                assert!(mutated || self.standby_tasks == StandbyTasks::Away, "they come when the last ones are dead");
                if self.term.is_some() {
                    cx.world.meet(Met::StandbyTasksBack);
                }
                self.standby_tasks = StandbyTasks::Run;
            }
            Action::StopStandbyTasks { .. } | Action::KillStandbyTasks => {
                self.standby_tasks = match (action, self.standby_tasks) {
                    (_, StandbyTasks::Dead) => StandbyTasks::Dead,
                    (Action::KillStandbyTasks, _) => StandbyTasks::Dying,
                    (_, _) => StandbyTasks::Asked,
                };
                if mutated {
                    events.push_back(Event::StandbyTasksDead);
                }
            }
            Action::SeizeStandbyTasks => {
                cx.world.meet(Met::StandbyTasksSeized);
                if self.standby_tasks == StandbyTasks::Asked {
                    self.standby_tasks = StandbyTasks::Dying;
                }
            }
            other => unreachable!("{other:?} does not concern them"),
        }
    }

    /// True if the candidate heard of their end.
    pub fn settle_standby_tasks(&mut self, cx: &Context<'_>) -> bool {
        if self.standby_tasks != StandbyTasks::Dead {
            return false;
        }
        self.standby_tasks = StandbyTasks::Away;
        if cx.world.mutant == Some(Mutant::StandbyTasksTakenForDead) {
            return false;
        }
        self.tell(Event::StandbyTasksDead, cx);
        if self.leadership.is_some() || self.starting.is_some() {
            cx.world.meet(Met::CommandWaited);
        }
        true
    }
}
