//! What may happen next.

use crate::host::{Host, Link, Mode, Tree};
use crate::network::{Place, Way};
use crate::orders::Orders;
use crate::standby_tasks::StandbyTasks;
use crate::store::Id;
use crate::world::{State, World};
use std::sync::Arc;

/// Requests are numbered by their place in the host's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    Tick,
    /// A timer fires.
    Wake(Id, Link),
    /// The kernel kills a frozen guard.
    KillTimer(Id),
    /// The candidate has its guard start COMMAND.
    Start(Id),
    /// A request arrives, is applied, and answered.
    Arrive(Id, usize),
    /// It arrives and is applied; its answer is held up.
    ArriveUnanswered(Id, usize),
    ArriveTwice(Id, usize),
    TurnAway(Id, usize),
    HoldUp(Id, usize),
    /// The candidate takes in an answer.
    Hear(Id, usize),
    /// The candidate waits no longer.
    TimeOut(Id, usize),
    /// The store tells a standby that the lease is free.
    News(Id),
    /// The tree obeys the stop signal.
    Obey(Id),
    /// SIGKILL has worked.
    Die(Id),
    /// What runs beside a standby ends, as it was told to.
    StandbyTasksDie(Id),
    End(Id),
    /// COMMAND itself ends; what it forked lives on.
    EndLeavingChildren(Id),
    Stop(Id),
    Kill(Id, Link),
    Freeze(Id, Link),
    Thaw(Id, Link),
    Suspend(Id),
    Resume(Id),
    Cut(Id, Way),
    Heal,
    Wipe,
    /// None: what was ordered is taken back.
    Order(Option<Orders>),
}

impl Step {
    /// For people: with the request instead of its number.
    pub fn show(&self, before: &State) -> String {
        match *self {
            Self::Arrive(id, index)
            | Self::ArriveUnanswered(id, index)
            | Self::ArriveTwice(id, index)
            | Self::TurnAway(id, index)
            | Self::HoldUp(id, index)
            | Self::Hear(id, index)
            | Self::TimeOut(id, index) => {
                let message = &before.hosts[usize::from(id.0)].messages[index];
                let text = format!("{self:?}");
                let verb = text.split('(').next().unwrap_or_default();
                format!("{verb}({id:?}'s {:?} of {})", message.request, message.sent)
            }
            _ => format!("{self:?}"),
        }
    }
}

type OnMessage = fn(Id, usize) -> Step;

const LINKS: [Link; 3] = [Link::Candidate, Link::Guard, Link::Backstop];

impl World {
    /// The clock ticks only when nothing is due.
    pub fn steps(&self, state: &State, steps: &mut Vec<Step>) {
        self.urgent(state, steps);
        if steps.is_empty() && state.tick < self.horizon {
            steps.push(Step::Tick);
        }
        Self::possible(state, steps);
        self.faults(state, steps);
    }

    /// What cannot wait for the next tick.
    fn urgent(&self, state: &State, steps: &mut Vec<Step>) {
        for host in &state.hosts {
            let (id, cx) = (host.id, self.context(state, host.id));
            if host.starting.is_some() && host.is_able(Link::Candidate) {
                steps.push(Step::Start(id));
            }
            if host.is_kill_timer_due(state.tick, self) {
                steps.push(Step::KillTimer(id));
            }
            let due = LINKS.into_iter().filter(|&link| host.is_due(link, state.tick, self.mutant));
            steps.extend(due.map(|link| Step::Wake(id, link)));
            for (index, message) in host.messages.iter().enumerate() {
                match &message.place {
                    Place::OnTheWay => steps.push(Step::Arrive(id, index)),
                    Place::Answered { late: false, .. } if host.listens() => {
                        steps.push(Step::Hear(id, index));
                    }
                    Place::Answered { .. } | Place::HeldUp | Place::Lost => {}
                }
                if host.is_overdue(message, &cx) {
                    steps.push(Step::TimeOut(id, index));
                }
            }
            if host.guard.as_ref().is_some_and(|guard| guard.tree == Tree::Dying) && !host.suspended {
                steps.push(Step::Die(id));
            }
            if host.standby_tasks == StandbyTasks::Dying && !host.suspended {
                steps.push(Step::StandbyTasksDie(id));
            }
        }
    }

    /// What may happen now or later or never, at no cost.
    fn possible(state: &State, steps: &mut Vec<Step>) {
        for host in &state.hosts {
            let id = host.id;
            for (index, message) in host.messages.iter().enumerate() {
                match &message.place {
                    Place::HeldUp => steps.push(Step::Arrive(id, index)),
                    Place::Answered { late: true, .. } if host.listens() => {
                        steps.push(Step::Hear(id, index));
                    }
                    Place::Answered { .. } | Place::OnTheWay | Place::Lost => {}
                }
            }
            // Told for nothing it would only claim in vain.
            let worthwhile = state.store.lease(state.tick).is_none_or(|record| record.session == id);
            if worthwhile
                && host.listens()
                && host.candidate.as_ref().is_some_and(|candidate| candidate.machine.wants_change())
                && state.cut.is_none_or(|(whose, _)| whose != id)
            {
                steps.push(Step::News(id));
            }
            if let Some(guard) = &host.guard {
                if guard.tree == Tree::Asked && !host.suspended {
                    steps.push(Step::Obey(id));
                }
                for (link, mode) in [(Link::Guard, guard.guard.mode), (Link::Backstop, guard.backstop.mode)] {
                    if mode == Mode::Frozen && !host.suspended {
                        steps.push(Step::Thaw(id, link));
                    }
                }
            }
            if host.standby_tasks == StandbyTasks::Asked && !host.suspended {
                steps.push(Step::StandbyTasksDie(id));
            }
            if host.candidate.as_ref().is_some_and(|candidate| candidate.frozen) && !host.suspended {
                steps.push(Step::Thaw(id, Link::Candidate));
            }
            if host.suspended {
                steps.push(Step::Resume(id));
            }
        }
        if state.cut.is_some() {
            steps.push(Step::Heal);
        }
    }

    fn faults(&self, state: &State, steps: &mut Vec<Step>) {
        let left = &state.left;
        let struck = |host: &&Arc<Host>| self.victim.is_none_or(|victim| victim == host.id);
        for host in state.hosts.iter().filter(struck) {
            let id = host.id;
            for (index, message) in host.messages.iter().enumerate() {
                if message.place == Place::OnTheWay {
                    let kinds: [(u8, OnMessage); 4] = [
                        (left.held_up, Step::HoldUp),
                        (left.held_up * u8::from(message.waiting), Step::ArriveUnanswered),
                        (left.doubled, Step::ArriveTwice),
                        (left.turned_away * u8::from(message.waiting), Step::TurnAway),
                    ];
                    steps.extend(kinds.iter().filter(|(left, _)| *left > 0).map(|(_, step)| step(id, index)));
                }
            }
            if host.suspended {
                continue;
            }
            for link in LINKS {
                let others = LINKS.into_iter().filter(|&other| other != link);
                // Who could kill the tree is never gone altogether, where the kernel does not.
                let dispensable = self.contained || !host.has_tree();
                if host.is_able(link) && (dispensable || others.into_iter().any(|other| host.is_able(other))) {
                    if left.kills > 0 {
                        steps.push(Step::Kill(id, link));
                    }
                    if left.freezes > 0 {
                        steps.push(Step::Freeze(id, link));
                    }
                }
            }
            if left.suspends > 0 && host.has_tree() {
                steps.push(Step::Suspend(id));
            }
            if left.stops > 0 && host.listens() {
                steps.push(Step::Stop(id));
            }
            if left.ends > 0 && host.guard.as_ref().is_some_and(|guard| guard.tree == Tree::Runs) {
                steps.extend([Step::End(id), Step::EndLeavingChildren(id)]);
            }
            if left.cuts > 0 && state.cut.is_none() {
                steps.extend([Step::Cut(id, Way::Requests), Step::Cut(id, Way::Answers)]);
            }
        }
        if left.wipes > 0 {
            steps.push(Step::Wipe);
        }
        if left.orders > 0 {
            let paused = |keep| Some(Orders::Paused { keep });
            let orders = [paused(false), paused(true), Orders::hand_over(&state.store), None];
            steps.extend(orders.into_iter().filter(|orders| *orders != state.orders).map(Step::Order));
        }
    }
}
