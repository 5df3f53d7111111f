//! One host: the candidate with its driver, the guard and the backstop, COMMAND's tree, and what is under way between the
//! candidate and the store.
//!
//! What the processes of a host tell each other arrives at once, unless the receiver is frozen or the host suspended:
//! then it waits in the line. Everything that follows from it without a choice is done by [`Host::settle`].

use crate::clock::{Clock, Tick};
use crate::mutants::Mutant;
use crate::network::{Answer, Message, Place, Request, Way};
use crate::orders::Orders;
use crate::standby_tasks::StandbyTasks;
use crate::store::{Id, Kind, Store};
use crate::world::{Met, Start, World};
use leaderrun::internals::election::{Action, CommandEnd, Election, Event, Hold, Notice as Said, Stop, TreeEvent};
use leaderrun::internals::guard::policy::{Effect, Input, Order, Policy};
use leaderrun::internals::lease::{Deadline, Term};
use leaderrun::internals::store::{Claim, Observation, Renewal, StoreError};
use leaderrun::internals::time::BootInstant;
use std::collections::VecDeque;
use std::time::Duration;

/// As in the backstop: how long after its grace a guard whose candidate is gone may take.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "four facts that become true in any order")]
pub struct Host {
    pub id: Id,
    pub clock: Clock,
    pub suspended: bool,
    /// None once it was killed or has ended.
    pub candidate: Option<Candidate>,
    /// Some while the driver is about to start a guard, and hears nothing else.
    pub starting: Option<(Term, Deadline)>,
    /// Some from the start of a guard to the proof that its tree is dead.
    pub guard: Option<GuardHandle>,
    pub standby_tasks: StandbyTasks,
    pub messages: Vec<Message>,
    /// Of the tree that was started last.
    pub term: Option<Term>,
    /// Its candidate woke and did nothing, not even put off when to wake next.
    pub spins: bool,
    /// The lease that it holds was granted after a pause was ordered, which was not taken back since.
    pub granted_under_pause: bool,
    /// Its last renewal brought a pause, and its tree goes on as before.
    pub unheard: bool,
    /// The candidate wants a handover of this term, or an earlier one, to be forgotten.
    pub forgets: Option<Term>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Candidate {
    pub machine: Election,
    pub frozen: bool,
    line: Vec<TreeEvent>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    Runs,
    Frozen,
    Gone,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "four facts that become true in any order")]
pub struct GuardHandle {
    pub guard: Guard,
    pub backstop: Backstop,
    pub tree: Tree,
    command: Command,
    /// The host was suspended past the deadline, and woke in this tick: nobody can have killed the tree yet.
    pub excused: bool,
    /// The candidate kills it by its own hand.
    seized: bool,
    /// The backstop told the candidate that the tree is dead.
    proven: bool,
    /// Only for a mutant: the candidate believes that the tree is dead.
    disowned: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Guard {
    pub mode: Mode,
    policy: Policy,
    line: Vec<Input>,
    /// It ended otherwise than by its own decision.
    killed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Backstop {
    pub mode: Mode,
    limit: BootInstant,
    line: Vec<Notice>,
    candidate_gone: bool,
    told_failure: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Notice {
    Extend(Deadline),
    Closed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tree {
    Runs,
    /// It got the stop signal, which it may obey.
    Asked,
    /// It got SIGKILL, and is dead before the tick is over.
    Dying,
    Dead,
}

/// The process that the guard started: the first one of its tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Command {
    Lives,
    /// The guard has not seen it yet.
    Ended(CommandEnd),
    Reaped,
}

/// One of those that can kill a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Link {
    Candidate,
    Guard,
    Backstop,
}

/// What a host sees of the rest of the world.
pub struct Context<'a> {
    pub world: &'a World,
    pub tick: Tick,
    pub store: &'a Store,
    pub orders: Option<Orders>,
    /// Nothing gets from this host to the store, or nothing back.
    pub cut: Option<Way>,
}

impl Host {
    pub fn new(id: Id, clock: Clock, starts: Tick, world: &World) -> Self {
        let machine = Election::new(world.settings(), clock.at(starts), u64::from(id.0));
        let candidate = Some(Candidate { machine, frozen: false, line: Vec::new() });
        Self {
            id,
            clock,
            suspended: false,
            candidate,
            starting: None,
            guard: None,
            standby_tasks: StandbyTasks::Away,
            messages: Vec::new(),
            term: None,
            spins: false,
            granted_under_pause: false,
            unheard: false,
            forgets: None,
        }
    }

    /// Whether this process can do something now.
    pub fn is_able(&self, link: Link) -> bool {
        !self.suspended
            && match (link, &self.guard) {
                (Link::Candidate, _) => self.candidate.as_ref().is_some_and(|candidate| !candidate.frozen),
                (Link::Guard, Some(guard)) => guard.guard.mode == Mode::Runs,
                (Link::Backstop, Some(guard)) => guard.backstop.mode == Mode::Runs,
                (Link::Guard | Link::Backstop, None) => false,
            }
    }

    /// Whether the candidate's machine can take in an event now.
    pub fn listens(&self) -> bool {
        self.is_able(Link::Candidate) && self.starting.is_none()
    }

    /// Some process of the tree exists, though it may not get to run.
    pub fn has_tree(&self) -> bool {
        self.guard.as_ref().is_some_and(|guard| guard.tree != Tree::Dead)
    }

    /// The tree does things.
    pub fn runs_tree(&self) -> bool {
        self.has_tree() && !self.suspended && !self.guard.as_ref().is_some_and(|guard| guard.excused)
    }

    /// Whether this process has to do something in this tick because of the time.
    pub fn is_due(&self, link: Link, tick: Tick, mutant: Option<Mutant>) -> bool {
        let now = self.clock.at(tick);
        self.is_able(link)
            && match (link, &self.guard, &self.candidate) {
                (Link::Candidate, _, Some(candidate)) => self.starting.is_none() && candidate.machine.wake_at() <= now,
                (Link::Guard, Some(guard), _) => guard.guard.policy.wake_at() <= now,
                (Link::Backstop, Some(guard), _) => {
                    guard.guard.mode != Mode::Gone
                        && guard.backstop.limit <= now
                        && mutant != Some(Mutant::BackstopIgnoresDeadline)
                }
                _ => false,
            }
    }

    /// The timer of this process fires.
    pub fn wake(&mut self, link: Link, cx: &Context<'_>) {
        match link {
            Link::Candidate => {
                let before = self.candidate.clone();
                self.tell(Event::Tick, cx);
                // The driver's timer fires again at once.
                self.spins = self.candidate == before;
            }
            Link::Guard => self.guard_takes(Input::Tick, cx),
            Link::Backstop => {
                cx.world.meet(Met::BackstopKills);
                self.kill(Link::Guard, cx);
            }
        }
        self.settle(cx);
    }

    /// Whether the kernel's timer of a guard that is frozen has to fire in this tick.
    pub fn is_kill_timer_due(&self, tick: Tick, world: &World) -> bool {
        !self.suspended
            && !matches!(world.mutant, Some(Mutant::NoKillTimer | Mutant::BackstopIgnoresDeadline))
            && self.guard.as_ref().is_some_and(|GuardHandle { guard, .. }| {
                guard.mode == Mode::Frozen && guard.policy.kill_timer_at(world.contained) <= self.clock.at(tick)
            })
    }

    pub fn kill_timer_fires(&mut self, cx: &Context<'_>) {
        cx.world.meet(Met::KillTimerKills);
        self.kill(Link::Guard, cx);
    }

    /// SIGKILL.
    pub fn kill(&mut self, link: Link, cx: &Context<'_>) {
        match (link, &mut self.guard) {
            (Link::Candidate, _) => self.candidate_ends(),
            (Link::Guard, Some(guard)) => {
                (guard.guard.mode, guard.guard.killed) = (Mode::Gone, true);
                if cx.world.contained && cx.world.mutant != Some(Mutant::InitOutlivesGuard) {
                    cx.world.meet(Met::DiedWithItsGuard);
                    guard.kill();
                }
            }
            (Link::Backstop, Some(guard)) => guard.backstop.mode = Mode::Gone,
            (Link::Guard | Link::Backstop, None) => {}
        }
        self.settle(cx);
    }

    pub fn set_frozen(&mut self, link: Link, frozen: bool, cx: &Context<'_>) {
        let mode = if frozen { Mode::Frozen } else { Mode::Runs };
        match (link, &mut self.candidate, &mut self.guard) {
            (Link::Candidate, Some(candidate), _) => candidate.frozen = frozen,
            (Link::Guard, _, Some(guard)) => guard.guard.mode = mode,
            (Link::Backstop, _, Some(guard)) => guard.backstop.mode = mode,
            _ => {}
        }
        self.settle(cx);
    }

    /// The last process of the tree ends: killed, or of its own accord.
    pub fn tree_dies(&mut self, cx: &Context<'_>) {
        if let Some(guard) = &mut self.guard {
            let end = if guard.tree == Tree::Dying { CommandEnd::Signalled(9) } else { CommandEnd::Exited(0) };
            guard.tree = Tree::Dead;
            self.command_ended(end);
        }
        self.settle(cx);
    }

    /// COMMAND itself ends, and its descendants do not.
    pub fn command_ends(&mut self, cx: &Context<'_>) {
        self.command_ended(CommandEnd::Exited(0));
        self.settle(cx);
    }

    fn command_ended(&mut self, end: CommandEnd) {
        if let Some(guard) = &mut self.guard {
            guard.command = match guard.command {
                Command::Lives => Command::Ended(end),
                told => told,
            };
        }
    }

    /// The candidate takes in the answer to a request.
    pub fn hear(&mut self, index: usize, answer: Answer, cx: &Context<'_>) {
        let message = self.messages.remove(index);
        let mut paused = false;
        let from_reply = cx.world.mutant == Some(Mutant::CountFromReply);
        let sent = if from_reply { self.clock.at(cx.tick) } else { message.sent_at };
        let event = match answer {
            Answer::Claimed(answer) => Event::Claimed { sent, answer },
            Answer::Renewed(Ok(Renewal::Lost(_)), _) if cx.world.mutant == Some(Mutant::LossTakenForRenewal) => {
                Event::Renewed { sent, answer: Ok(Renewal::Renewed), orders: None }
            }
            Answer::Renewed(Ok(Renewal::Lost(_)), _) if cx.world.mutant == Some(Mutant::LossIgnored) => {
                Event::Renewed { sent, answer: Err(StoreError::unknown("ignored")), orders: None }
            }
            Answer::Renewed(answer @ Ok(Renewal::Renewed), orders) => {
                // One that a later renewal has passed by may be out of date: that one brings the orders.
                let is_renewal = |message: &Message| matches!(message.request, Request::Renew { .. });
                let latest = !self.messages.iter().any(|other| is_renewal(other) && other.sent > message.sent);
                paused = latest && orders == Some(Orders::Paused { keep: false }) && orders == cx.orders;
                let ignored = cx.world.mutant == Some(Mutant::OrdersWithRenewalIgnored);
                let orders = orders.filter(|_| !ignored);
                let orders = Some(orders.map(|orders| orders.directives(self.id)).unwrap_or_default());
                Event::Renewed { sent, answer, orders }
            }
            Answer::Renewed(answer, _) => Event::Renewed { sent, answer, orders: None },
            Answer::Released(answer) => Event::Released { answer },
        };
        self.tell(event, cx);
        self.settle(cx);
        let goes_on = |guard: &GuardHandle| guard.tree == Tree::Runs && guard.command == Command::Lives;
        self.unheard = paused && self.is_able(Link::Guard) && self.guard.as_ref().is_some_and(goes_on);
    }

    /// The candidate waits no longer for an answer.
    pub fn give_up(&mut self, index: usize, cx: &Context<'_>) {
        let silence = StoreError::unknown("no answer");
        let mut late = self.messages[index].clone();
        let answer = match late.request {
            Request::Claim { .. } => Answer::Claimed(Err(silence)),
            Request::Renew { .. } if cx.world.mutant == Some(Mutant::SilenceTakenForRenewal) => {
                Answer::Renewed(Ok(Renewal::Renewed), None)
            }
            Request::Renew { .. } => Answer::Renewed(Err(silence), None),
            Request::Release { .. } => Answer::Released(Err(silence)),
        };
        late.waiting = false;
        if late.matters() {
            self.messages.push(late);
        }
        self.hear(index, answer, cx);
    }

    pub fn is_overdue(&self, message: &Message, cx: &Context<'_>) -> bool {
        let timeout = cx.world.timing().request_timeout;
        message.waiting && self.listens() && self.clock.at(cx.tick) >= message.sent_at.plus(timeout)
    }

    /// Gives the candidate's machine one event, and carries out what it says, as the driver does.
    pub fn tell(&mut self, event: Event, cx: &Context<'_>) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let Some(candidate) = &mut self.candidate else { return };
            let now = self.clock.at(cx.tick);
            for action in candidate.machine.handle(now, event) {
                self.carry_out(&action, &mut events, cx);
            }
        }
    }

    fn carry_out(&mut self, action: &Action, events: &mut VecDeque<Event>, cx: &Context<'_>) {
        match *action {
            Action::Claim => {
                let judged = match cx.store.kind {
                    Kind::Atomic => None,
                    Kind::Conditional if cx.cut.is_some() => None,
                    Kind::Conditional => match cx.store.judge(self.id, cx.tick) {
                        Ok(judged) => Some(judged),
                        Err(record) => {
                            let (sent, holder) = (self.clock.at(cx.tick), record.holder(cx.tick));
                            return events.push_back(Event::Claimed { sent, answer: Ok(Claim::Refused(holder)) });
                        }
                    },
                };
                let read_lost = cx.store.kind == Kind::Conditional && judged.is_none();
                self.send(Request::Claim { judged }, read_lost, cx);
            }
            // A look is never held up: what it finds decides only whether a claim is worth making.
            Action::Observe => {
                let answer = match cx.cut {
                    None => Ok(cx.store.observe(cx.tick)),
                    Some(_) => Err(StoreError::not_applied("cut off")),
                };
                if answer == Ok(Observation::Free) {
                    cx.world.meet(Met::SeenFree);
                }
                events.push_back(Event::Observed { answer });
            }
            // Read and answered at once, like a look.
            Action::ReadOrders => {
                let orders = match cx.world.mutant {
                    Some(Mutant::OrdersReadBeforeClaim) => None,
                    _ => cx.orders,
                };
                self.granted_under_pause &= matches!(cx.orders, Some(Orders::Paused { .. }));
                let answer = match cx.cut {
                    None => Ok(orders.map(|orders| orders.directives(self.id)).unwrap_or_default()),
                    Some(_) => Err(StoreError::not_applied("cut off")),
                };
                events.push_back(Event::Ordered { answer });
            }
            Action::Book { .. } | Action::Settle { .. } => unreachable!("nobody runs a job here"),
            Action::CountStandbys => unreachable!("nobody hands over of itself here"),
            Action::ForgetHandover { term } => self.forgets = Some(term),
            Action::Renew { term, sequence } => self.send(Request::Renew { term, sequence }, false, cx),
            Action::Release { term } => self.send(Request::Release { term }, false, cx),
            Action::Start { term, deadline } => {
                assert!(self.guard.is_none(), "a second tree on one host");
                self.starting = Some((term, deadline));
                if cx.world.start == Start::AtOnce {
                    self.start(cx);
                }
            }
            Action::Extend(deadline) => {
                self.order(Order::Extend(deadline));
                if let Some(guard) = &mut self.guard {
                    guard.backstop.line.push(Notice::Extend(deadline));
                }
            }
            Action::Stop(Stop::Orderly { kill_after, .. }) => self.order(Order::Stop { kill_after }),
            Action::Stop(Stop::Losing { .. }) => self.order(Order::Lose),
            Action::Stop(Stop::Kill) => self.order(Order::Kill),
            Action::Seize => {
                if cx.world.mutant != Some(Mutant::CandidateNeverSeizes)
                    && let Some(guard) = &mut self.guard
                {
                    cx.world.meet(Met::CandidateSeizes);
                    guard.seized = true;
                }
            }
            Action::StartStandbyTasks | Action::StopStandbyTasks(_) | Action::SeizeStandbyTasks => {
                self.direct_standby_tasks(action, events, cx);
            }
            Action::ForgetRenewals => {
                for message in &mut self.messages {
                    message.waiting &= !matches!(message.request, Request::Renew { .. });
                }
                self.messages.retain(Message::matters);
            }
            Action::Say(Said::Leading(_)) => {
                self.granted_under_pause = matches!(cx.orders, Some(Orders::Paused { .. }));
            }
            Action::Say(Said::Held(Hold::Paused { .. })) => cx.world.meet(Met::PausedBeforeStart),
            Action::Say(Said::SteppingDown(Hold::HandedOver { .. })) => cx.world.meet(Met::SteppedDown),
            Action::Say(_) | Action::ReleaseOver { .. } | Action::Ended { .. } | Action::LeaderChanged(_) => {}
            Action::End(_) => self.candidate_ends(),
        }
    }

    /// The driver has the guard start COMMAND.
    pub fn start(&mut self, cx: &Context<'_>) {
        let Some((term, deadline)) = self.starting.take() else { return };
        if cx.world.start == Start::AfterAPauseAndALook
            && self.clock.at(cx.tick) >= deadline.term_at
            && let Some(candidate) = &mut self.candidate
        {
            cx.world.meet(Met::NotStarted);
            candidate.line.extend([TreeEvent::DeadlineReached, TreeEvent::Dead]);
            return;
        }
        self.term = Some(term);
        self.guard = Some(GuardHandle::new(deadline, cx));
    }

    fn send(&mut self, request: Request, lost: bool, cx: &Context<'_>) {
        let place = if lost || cx.cut == Some(Way::Requests) { Place::Lost } else { Place::OnTheWay };
        let sent_at = self.clock.at(cx.tick);
        self.messages.push(Message { request, sent: cx.tick, sent_at, waiting: true, place });
    }

    fn order(&mut self, order: Order) {
        if let Some(guard) = &mut self.guard {
            guard.guard.line.push(Input::Order(order));
        }
    }

    /// The process is no more: its lines close, and nobody waits for its answers.
    fn candidate_ends(&mut self) {
        (self.candidate, self.starting) = (None, None);
        // Their guards see to that, and no COMMAND of ours starts any more.
        self.standby_tasks = StandbyTasks::Away;
        for message in &mut self.messages {
            message.waiting = false;
        }
        self.messages.retain(Message::matters);
        if let Some(guard) = &mut self.guard {
            guard.guard.line.push(Input::CandidateGone);
            guard.backstop.line.push(Notice::Closed);
        }
    }

    /// Does what follows from what was done, until nothing does.
    pub fn settle(&mut self, cx: &Context<'_>) {
        loop {
            let before = self.guard.clone();
            if self.is_able(Link::Guard) {
                self.settle_guard(cx);
            }
            if self.is_able(Link::Backstop) {
                self.settle_backstop(cx);
            }
            if self.listens() {
                self.settle_candidate(cx);
            }
            if self.listens() {
                self.settle_standby_tasks(cx);
            }
            if self.candidate.is_none() && self.guard.as_ref().is_some_and(GuardHandle::is_over) {
                self.guard = None;
            }
            if self.guard == before {
                return;
            }
        }
    }

    fn settle_guard(&mut self, cx: &Context<'_>) {
        let Some(guard) = &mut self.guard else { return };
        if let Command::Ended(end) = guard.command {
            guard.command = Command::Reaped;
            guard.guard.line.insert(0, Input::CommandEnded);
            if let Some(candidate) = self.candidate.as_mut().filter(|_| !guard.disowned) {
                candidate.line.push(TreeEvent::Ended(end));
            }
        }
        if guard.tree == Tree::Dead {
            guard.guard.mode = Mode::Gone;
            guard.guard.line.clear();
            return;
        }
        for input in std::mem::take(&mut guard.guard.line) {
            self.guard_takes(input, cx);
        }
    }

    fn guard_takes(&mut self, input: Input, cx: &Context<'_>) {
        let now = self.clock.at(cx.tick);
        let Some(guard) = &mut self.guard else { return };
        let deaf = cx.world.mutant == Some(Mutant::GuardIgnoresDeadline);
        if deaf && matches!(input, Input::Order(Order::Extend(_))) {
            return;
        }
        for effect in guard.guard.policy.handle(now, input) {
            match effect {
                Effect::AskTree => {
                    guard.ask();
                    if cx.world.mutant == Some(Mutant::ReleaseBeforeDead)
                        && let Some(candidate) = &mut self.candidate
                    {
                        guard.disowned = true;
                        candidate.line.push(TreeEvent::Dead);
                    }
                }
                Effect::KillTree => {
                    if input == Input::Tick {
                        cx.world.meet(Met::GuardKillsInTime);
                    }
                    guard.kill();
                }
                Effect::ReportDeadline => {
                    if let Some(candidate) = &mut self.candidate {
                        candidate.line.push(TreeEvent::DeadlineReached);
                    }
                }
                Effect::ReportOverrun | Effect::Signal(_) | Effect::Continue => {}
                // Of hooks, and there are none.
                Effect::Start
                | Effect::ReportUnready(_)
                | Effect::RunPreStop
                | Effect::RunPostStop
                | Effect::KillHook
                | Effect::Finish => unreachable!("{effect:?}"),
            }
        }
    }

    fn settle_backstop(&mut self, cx: &Context<'_>) {
        let now = self.clock.at(cx.tick);
        let Some(guard) = &mut self.guard else { return };
        let backstop = &mut guard.backstop;
        for notice in std::mem::take(&mut backstop.line) {
            match notice {
                Notice::Extend(deadline) => backstop.limit = backstop.limit.max(deadline.backstop_at),
                Notice::Closed => {
                    backstop.candidate_gone = true;
                    backstop.limit = backstop.limit.min(now.plus(cx.world.timing().stop_grace).plus(PATIENCE));
                }
            }
        }
        if guard.guard.mode != Mode::Gone {
            return;
        }
        if guard.guard.killed
            && !backstop.told_failure
            && let Some(candidate) = &mut self.candidate
        {
            backstop.told_failure = true;
            candidate.line.push(TreeEvent::GuardFailed);
        }
        if guard.tree != Tree::Dead {
            return guard.kill();
        }
        backstop.mode = Mode::Gone;
        guard.proven = true;
        if backstop.candidate_gone
            && let Some(term) = self.term
        {
            cx.world.meet(Met::LastWill);
            self.send(Request::Release { term }, false, cx);
            if let Some(will) = self.messages.last_mut() {
                will.waiting = false;
            }
            self.messages.retain(Message::matters);
        }
    }

    fn settle_candidate(&mut self, cx: &Context<'_>) {
        let Some(candidate) = &mut self.candidate else { return };
        if let Some(guard) = &mut self.guard {
            if guard.backstop.mode == Mode::Gone && !guard.proven && !guard.seized {
                guard.seized = true;
                candidate.line.push(TreeEvent::GuardFailed);
            }
            if guard.seized {
                (guard.backstop.mode, guard.guard.mode) = (Mode::Gone, Mode::Gone);
                guard.kill();
            }
            if guard.is_over() {
                if !guard.disowned {
                    candidate.line.push(TreeEvent::Dead);
                }
                self.guard = None;
            }
        }
        for event in std::mem::take(&mut candidate.line) {
            self.tell(Event::Tree(event), cx);
        }
    }
}

impl GuardHandle {
    fn new(deadline: Deadline, cx: &Context<'_>) -> Self {
        let deaf = cx.world.mutant == Some(Mutant::GuardIgnoresDeadline);
        let policy = Policy::new(if deaf { Deadline::NONE } else { deadline }, cx.world.timing().stop_grace);
        Self {
            guard: Guard { mode: Mode::Runs, policy, line: Vec::new(), killed: false },
            backstop: Backstop {
                mode: Mode::Runs,
                limit: deadline.backstop_at,
                line: Vec::new(),
                candidate_gone: false,
                told_failure: false,
            },
            tree: Tree::Runs,
            command: Command::Lives,
            excused: false,
            seized: false,
            proven: false,
            disowned: false,
        }
    }

    fn ask(&mut self) {
        if self.tree == Tree::Runs {
            self.tree = Tree::Asked;
        }
    }

    fn kill(&mut self) {
        if self.tree != Tree::Dead {
            self.tree = Tree::Dying;
        }
    }

    /// Nothing is left of it.
    fn is_over(&self) -> bool {
        (self.guard.mode, self.backstop.mode, self.tree) == (Mode::Gone, Mode::Gone, Tree::Dead)
    }
}
