//! What may happen next.

use crate::host::Host;
use crate::leadership::{Link, Mode, Tree};
use crate::network::{Place, Way};
use crate::orders::Orders;
use crate::standby_tasks::StandbyTasks;
use crate::store::{Id, Kind};
use crate::world::{Faults, Owner, State, World};
use std::sync::Arc;

/// Requests are numbered by their place in the host's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    Tick,
    /// A timer fires. That of a frozen guard is the kernel's, which kills it.
    Wake(Id, Link),
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
    FailOver,
    Restore,
    Delete,
    SetClock,
    Restart,
    Revoke,
    /// Another program takes the lock.
    OtherLocks,
    OtherUnlocks,
    /// None: what was ordered is taken back.
    Order(Option<Orders>),
}

impl Step {
    /// The fault that it takes, if any.
    pub fn fault(&self) -> Option<fn(&mut Faults) -> &mut u8> {
        Some(match self {
            Self::HoldUp(..) | Self::ArriveUnanswered(..) => |left| &mut left.held_up,
            Self::ArriveTwice(..) => |left| &mut left.doubled,
            Self::TurnAway(..) => |left| &mut left.turned_away,
            Self::Cut(..) => |left| &mut left.cuts,
            Self::Kill(..) => |left| &mut left.kills,
            Self::Freeze(..) => |left| &mut left.freezes,
            Self::Suspend(_) => |left| &mut left.suspends,
            Self::Stop(_) => |left| &mut left.stops,
            Self::End(_) | Self::EndLeavingChildren(_) => |left| &mut left.ends,
            Self::Wipe => |left| &mut left.wipes,
            Self::FailOver => |left| &mut left.failovers,
            Self::Restore => |left| &mut left.restores,
            Self::Delete => |left| &mut left.deletions,
            Self::SetClock => |left| &mut left.clock_steps,
            Self::Restart => |left| &mut left.restarts,
            Self::Revoke => |left| &mut left.revocations,
            Self::OtherLocks => |left| &mut left.other_locks,
            Self::Order(_) => |left| &mut left.orders,
            _ => return None,
        })
    }

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

impl World {
    /// The clock ticks only when nothing is due.
    pub fn steps(&self, state: &State, steps: &mut Vec<Step>) {
        self.urgent(state, steps);
        if steps.is_empty() && state.tick < self.horizon {
            steps.push(Step::Tick);
        }
        self.possible(state, steps);
        self.faults(state, steps);
    }

    /// What cannot wait for the next tick.
    fn urgent(&self, state: &State, steps: &mut Vec<Step>) {
        for host in &state.hosts {
            let (id, cx) = (host.id, self.context(state, host.id));
            if host.starting.is_some() && host.is_able(Link::Candidate) {
                steps.push(Step::Start(id));
            }
            let due = Link::ALL.into_iter().filter(|&link| host.is_due(link, state.tick, self.mutant));
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
            if host.tree() == Tree::Dying && !host.suspended {
                steps.push(Step::Die(id));
            }
            if host.standby_tasks == StandbyTasks::Dying && !host.suspended {
                steps.push(Step::StandbyTasksDie(id));
            }
        }
    }

    /// What may happen now or later or never, at no cost.
    fn possible(&self, state: &State, steps: &mut Vec<Step>) {
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
            let at = host.moment(&self.context(state, id));
            let worthwhile = state.lock != Some(Owner::Other)
                && state.store.judge(id, &mut host.seen.clone(), at, self.mutant).is_some();
            if worthwhile
                && host.listens()
                && host.candidate.as_ref().is_some_and(|candidate| candidate.machine.wants_change())
                && state.cut.is_none_or(|(whose, _)| whose != id)
            {
                steps.push(Step::News(id));
            }
            if host.suspended {
                steps.push(Step::Resume(id));
                continue;
            }
            if host.tree() == Tree::Asked {
                steps.push(Step::Obey(id));
            }
            if host.standby_tasks == StandbyTasks::Asked {
                steps.push(Step::StandbyTasksDie(id));
            }
            let frozen = Link::ALL.into_iter().filter(|&link| host.mode(link) == Mode::Frozen);
            steps.extend(frozen.map(|link| Step::Thaw(id, link)));
        }
        if state.cut.is_some() {
            steps.push(Step::Heal);
        }
        if state.lock == Some(Owner::Other) {
            steps.push(Step::OtherUnlocks);
        }
    }

    fn faults(&self, state: &State, steps: &mut Vec<Step>) {
        let mut left = state.left;
        if left.total == 0 {
            return;
        }
        let mut add = |step: Step| {
            if step.fault().is_some_and(|fault| *fault(&mut left) > 0) {
                steps.push(step);
            }
        };
        let struck = |host: &&Arc<Host>| self.victim.is_none_or(|victim| victim == host.id);
        for host in state.hosts.iter().filter(struck) {
            let id = host.id;
            for (index, message) in host.messages.iter().enumerate() {
                if message.place == Place::OnTheWay {
                    add(Step::HoldUp(id, index));
                    add(Step::ArriveTwice(id, index));
                    if message.waiting {
                        add(Step::ArriveUnanswered(id, index));
                        add(Step::TurnAway(id, index));
                    }
                }
            }
            if host.suspended {
                continue;
            }
            for link in Link::ALL {
                let mut others = Link::ALL.into_iter().filter(|&other| other != link);
                // Who could kill the tree is never gone altogether, where the kernel does not.
                let dispensable = self.contained || !host.has_tree();
                if host.is_able(link) && (dispensable || others.any(|other| host.is_able(other))) {
                    add(Step::Kill(id, link));
                    add(Step::Freeze(id, link));
                }
            }
            if host.has_tree() {
                add(Step::Suspend(id));
            }
            if host.listens() {
                add(Step::Stop(id));
            }
            if host.tree() == Tree::Runs {
                add(Step::End(id));
                add(Step::EndLeavingChildren(id));
            }
            if state.cut.is_none() {
                add(Step::Cut(id, Way::Requests));
                add(Step::Cut(id, Way::Answers));
            }
        }
        add(Step::Wipe);
        add(Step::FailOver);
        let document = state.store.contents.document;
        let candidates = || state.hosts.iter().filter(|host| host.candidate.is_some());
        // Only who has seen the last term, or the clock, can tell. The pages say so.
        if candidates().all(|host| host.seen.knows(&state.store.contents, state.last_term)) {
            add(Step::Restore);
        }
        if state.lock.is_none() {
            add(Step::OtherLocks);
        }
        if self.store == Kind::Leasing {
            add(Step::Restart);
        } else if candidates().all(|host| host.seen.knows_date()) {
            add(Step::SetClock);
        }
        if document.is_some() {
            add(Step::Delete);
        }
        if document.is_some_and(|document| document.leadership.is_some()) {
            add(Step::Revoke);
        }
        let paused = |keep| Some(Orders::Paused { keep });
        let orders = [paused(false), paused(true), Orders::hand_over(&state.store), None];
        orders.into_iter().filter(|orders| *orders != state.orders).map(Step::Order).for_each(add);
    }
}
