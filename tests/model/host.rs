//! One host: the candidate with its driver, the leadership that it has begun, and what is under way between it and the
//! store.
//!
//! What the processes of a host tell each other arrives at once, unless the receiver is frozen or the host suspended:
//! then it waits in the line. Everything that follows from it without a choice is done by [`Host::settle`].

use crate::clock::{Clock, Tick};
use crate::leadership::{Leadership, Link, Mode, Output, Tree};
use crate::mutants::Mutant;
use crate::network::{Answer, Message, Place, Request, Way};
use crate::orders::Orders;
use crate::standby_tasks::StandbyTasks;
use crate::store::{Conclusion, Contents, Id, Moment, Seen, Store};
use crate::world::{Met, Owner, Start, World};
use leaderrun::internals::election::{Action, Election, Event, HeldBack, Hold, HookEnd, Notice as Said, TreeEvent};
use leaderrun::internals::guard::policy::{Effect, Input, Policy};
use leaderrun::internals::lease::{Deadline, Term};
use leaderrun::internals::store::{Claim, Observation, Renewal, StoreError};
use std::collections::VecDeque;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "facts that become true in any order")]
pub struct Host {
    pub id: Id,
    pub clock: Clock,
    pub suspended: bool,
    /// None once it was killed or has ended.
    pub candidate: Option<Candidate>,
    /// Some while the driver is about to start a guard, and hears nothing else.
    pub starting: Option<(Term, Deadline)>,
    /// Some from the start of a guard to the proof that its tree is dead.
    pub leadership: Option<Leadership>,
    /// It was suspended past the deadline, and woke in this tick: nobody can have killed the tree yet.
    pub excused: bool,
    /// Only for a mutant: the candidate believes that the tree is dead.
    disowned: bool,
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
    /// What its candidate remembers of the store.
    pub seen: Seen,
    /// Its candidate saw that the server has forgotten something.
    pub marks: bool,
    /// Its candidate lets go of the lock beside the lease.
    pub lets_go: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Candidate {
    pub machine: Election,
    pub frozen: bool,
    line: Vec<TreeEvent>,
}

enum Look {
    Free(Contents),
    Held,
    /// Nothing comes back.
    Lost,
}

/// What a host sees of the rest of the world.
pub struct Context<'a> {
    pub world: &'a World,
    pub tick: Tick,
    pub store: &'a Store,
    pub orders: Option<Orders>,
    pub lock: Option<Owner>,
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
            leadership: None,
            excused: false,
            disowned: false,
            standby_tasks: StandbyTasks::Away,
            messages: Vec::new(),
            term: None,
            spins: false,
            granted_under_pause: false,
            unheard: false,
            forgets: None,
            seen: Seen::NOTHING,
            marks: false,
            lets_go: false,
        }
    }

    /// Of a process that there is, or is no more.
    pub fn mode(&self, link: Link) -> Mode {
        match (link, &self.candidate, &self.leadership) {
            (Link::Candidate, Some(Candidate { frozen: true, .. }), _) => Mode::Frozen,
            (Link::Candidate, Some(_), _) => Mode::Runs,
            (Link::Guard | Link::Backstop, _, Some(leadership)) => leadership.mode(link),
            _ => Mode::Gone,
        }
    }

    /// Whether this process can do something now.
    pub fn is_able(&self, link: Link) -> bool {
        !self.suspended && self.mode(link) == Mode::Runs
    }

    /// Whether the candidate's machine can take in an event now.
    pub fn listens(&self) -> bool {
        self.is_able(Link::Candidate) && self.starting.is_none()
    }

    /// How far its tree is, if there is one.
    pub fn tree(&self) -> Tree {
        self.leadership.as_ref().map_or(Tree::Dead, |leadership| leadership.tree)
    }

    /// Some process of the tree exists, though it may not get to run.
    pub fn has_tree(&self) -> bool {
        self.tree() != Tree::Dead
    }

    /// The tree does things.
    pub fn runs_tree(&self) -> bool {
        self.has_tree() && !self.suspended && !self.excused
    }

    /// Whether this process, or the kernel for it, has to do something in this tick because of the time.
    pub fn is_due(&self, link: Link, tick: Tick, mutant: Option<Mutant>) -> bool {
        let sleeps = match (mutant, link) {
            (Some(Mutant::BackstopIgnoresDeadline), Link::Backstop) => true,
            (Some(Mutant::BackstopIgnoresDeadline | Mutant::NoKillTimer), Link::Guard) => {
                self.mode(link) == Mode::Frozen
            }
            _ => false,
        };
        let wake_at = match (link, &self.candidate, &self.leadership) {
            (Link::Candidate, Some(candidate), _) if self.listens() => candidate.machine.wake_at(),
            (Link::Guard | Link::Backstop, _, Some(leadership)) => leadership.wake_at(link),
            _ => return false,
        };
        !self.suspended && !sleeps && wake_at <= self.clock.at(tick)
    }

    /// The timer of this process fires.
    pub fn wake(&mut self, link: Link, cx: &Context<'_>) {
        match (link, self.mode(link)) {
            (Link::Candidate, _) => {
                let before = self.candidate.clone();
                self.tell(Event::Tick, cx);
                // The driver's timer fires again at once.
                self.spins = self.candidate == before;
                return;
            }
            (Link::Guard, Mode::Frozen) => cx.world.meet(Met::KillTimerKills),
            (Link::Guard, _) => {}
            (Link::Backstop, _) => cx.world.meet(Met::BackstopKills),
        }
        let now = self.clock.at(cx.tick);
        self.lead(|leadership| leadership.wake(link, now));
    }

    /// Does something to the leadership, if there is one.
    pub fn lead(&mut self, act: impl FnOnce(&mut Leadership)) {
        self.leadership.as_mut().map(act);
    }

    /// SIGKILL.
    pub fn kill(&mut self, link: Link) {
        match link {
            Link::Candidate => self.candidate_ends(),
            Link::Guard | Link::Backstop => self.lead(|leadership| leadership.kill(link)),
        }
    }

    pub fn set_frozen(&mut self, link: Link, frozen: bool) {
        if let Some(candidate) = self.candidate.as_mut().filter(|_| link == Link::Candidate) {
            candidate.frozen = frozen;
        }
        self.lead(|leadership| leadership.set_frozen(link, frozen));
    }

    /// An answer has come, to be taken in at once or later.
    pub fn is_answered(&mut self, index: usize, answer: Answer, late: bool, cx: &Context<'_>) {
        if self.listens() && !late {
            self.hear(index, answer, cx);
        } else {
            self.messages[index].place = Place::Answered { answer, late };
        }
    }

    /// The candidate takes in the answer to a request.
    pub fn hear(&mut self, index: usize, answer: Answer, cx: &Context<'_>) {
        let message = self.messages.remove(index);
        let answer = match answer {
            Answer::Refused => match self.conclude(&message, cx) {
                Some(answer) => Answer::Renewed(answer, None),
                None => return,
            },
            answer => answer,
        };
        let mut paused = false;
        let from_reply = cx.world.mutant == Some(Mutant::CountFromReply);
        let sent = if from_reply { self.clock.at(cx.tick) } else { message.sent_at };
        let event = match answer {
            Answer::Claimed(answer) => {
                if let Ok(Claim::Granted(grant)) = &answer {
                    self.seen.learns((grant.term, 0));
                    self.seen.granted = message.sent_at;
                }
                Event::Claimed { sent, answer }
            }
            Answer::Renewed(Ok(Renewal::Lost(_)), _) if cx.world.mutant == Some(Mutant::LossTakenForRenewal) => {
                Event::Renewed { sent, answer: Ok(Renewal::Renewed), orders: None }
            }
            Answer::Renewed(Ok(Renewal::Lost(_)), _) if cx.world.mutant == Some(Mutant::LossIgnored) => {
                Event::Renewed { sent, answer: Err(StoreError::unknown("ignored")), orders: None }
            }
            Answer::Renewed(answer @ Ok(Renewal::Renewed), orders) => {
                // One that a later renewal has passed by may be out of date: that one brings the orders.
                let latest = !self.messages.iter().any(|other| other.is_renewal() && other.sent > message.sent);
                self.seen.granted = self.seen.granted.max(message.sent_at);
                if let Request::Renew { term, sequence, .. } | Request::Heal { term, sequence, .. } = message.request {
                    self.seen.learns((term, sequence));
                }
                paused = latest && orders == Some(Orders::Paused { keep: false }) && orders == cx.orders;
                let ignored = cx.world.mutant == Some(Mutant::OrdersWithRenewalIgnored);
                let orders = orders.filter(|_| !ignored);
                let orders = Some(orders.map(|orders| orders.directives(self.id)).unwrap_or_default());
                Event::Renewed { sent, answer, orders }
            }
            Answer::Renewed(answer, _) => Event::Renewed { sent, answer, orders: None },
            Answer::Released(answer) => Event::Released { answer },
            Answer::Refused => unreachable!("it was concluded from"),
        };
        self.tell(event, cx);
        self.settle(cx);
        let goes_on = |leadership: &Leadership| leadership.tree == Tree::Runs && leadership.command_lives();
        self.unheard = paused && self.is_able(Link::Guard) && self.leadership.as_ref().is_some_and(goes_on);
    }

    /// The candidate waits no longer for an answer.
    pub fn give_up(&mut self, index: usize, cx: &Context<'_>) {
        let mut late = self.messages[index].clone();
        let answer = match late.request {
            Request::Renew { .. } | Request::Heal { .. } if cx.world.mutant == Some(Mutant::SilenceTakenForRenewal) => {
                Answer::Renewed(Ok(Renewal::Renewed), None)
            }
            _ => late.request.fails(StoreError::unknown("no answer")),
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
            Action::Claim => match self.look(cx) {
                Look::Held => {
                    let answer = Ok(Claim::Refused(cx.store.holder(cx.tick)));
                    events.push_back(Event::Claimed { sent: self.clock.at(cx.tick), answer });
                }
                Look::Free(judged) => self.send(Request::Claim { judged: Some(judged) }, false, cx),
                Look::Lost => self.send(Request::Claim { judged: None }, true, cx),
            },
            // A look is never held up: what it finds decides only whether a claim is worth making.
            Action::Observe => {
                let answer = match self.look(cx) {
                    Look::Free(_) => {
                        cx.world.meet(Met::SeenFree);
                        Ok(Observation::Free)
                    }
                    Look::Held => Ok(Observation::Held(cx.store.holder(cx.tick))),
                    Look::Lost => Err(StoreError::not_applied("cut off")),
                };
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
            Action::Renew { term, sequence } => {
                self.send(Request::Renew { term, sequence, known: cx.store.known_write() }, false, cx);
            }
            Action::Release { term } => {
                self.lets_go = true;
                self.send(Request::Release { term, known: cx.store.known_write() }, false, cx);
            }
            Action::Start { term, deadline, .. } => {
                assert!(self.leadership.is_none(), "a second tree on one host");
                self.starting = Some((term, deadline));
                if cx.world.start == Start::AtOnce {
                    self.start(cx);
                }
            }
            Action::Seize if cx.world.mutant == Some(Mutant::CandidateNeverSeizes) => {}
            Action::Extend(_) | Action::Stop(_) | Action::Seize => {
                if self.leadership.is_some() && *action == Action::Seize {
                    cx.world.meet(Met::CandidateSeizes);
                }
                self.lead(|leadership| leadership.carry_out(action));
            }
            Action::StartStandbyTasks
            | Action::StopStandbyTasks { .. }
            | Action::KillStandbyTasks
            | Action::SeizeStandbyTasks => {
                self.direct_standby_tasks(action, events, cx);
            }
            Action::ForgetRenewals => {
                for message in &mut self.messages {
                    message.waiting &= !message.is_renewal();
                }
                self.messages.retain(Message::matters);
            }
            Action::Say(Said::Leading(_)) => {
                self.granted_under_pause = matches!(cx.orders, Some(Orders::Paused { .. }));
            }
            Action::Say(Said::Held(Hold { why: HeldBack::Paused, .. })) => cx.world.meet(Met::PausedBeforeStart),
            Action::Say(Said::SteppingDown(Hold { why: HeldBack::HandedOver(_), .. })) => {
                cx.world.meet(Met::SteppedDown);
            }
            Action::Say(_) | Action::ReleaseOver { .. } | Action::Ended { .. } | Action::LeaderChanged(_) => {}
            Action::End(_) => self.candidate_ends(),
        }
    }

    /// The driver has the guard start COMMAND.
    pub fn start(&mut self, cx: &Context<'_>) {
        let Some((term, deadline)) = self.starting.take() else { return };
        let grace = cx.world.timing().stop_grace;
        let is_contained = cx.world.contained && cx.world.mutant != Some(Mutant::InitOutlivesGuard);
        let mut leadership = Leadership::new(deadline, grace, is_contained);
        if cx.world.start == Start::AfterAPause {
            // Nobody looks at the clock.
            leadership.tree = Tree::Runs;
        }
        if cx.world.mutant == Some(Mutant::GuardIgnoresDeadline) {
            leadership.policy = Policy::new(Deadline::NONE, grace);
        }
        (self.term, self.leadership) = (Some(term), Some(leadership));
    }

    pub fn moment(&self, cx: &Context<'_>) -> Moment {
        Moment { tick: cx.tick, now: self.clock.at(cx.tick) }
    }

    fn look(&mut self, cx: &Context<'_>) -> Look {
        if cx.cut.is_some() {
            return Look::Lost;
        }
        self.marks |= cx.store.contents.lacks_marker();
        let at = self.moment(cx);
        let judged = cx.store.judge(self.id, &mut self.seen, at, cx.world.mutant);
        judged.filter(|_| cx.lock != Some(Owner::Other)).map_or(Look::Held, Look::Free)
    }

    /// What the answer to a renewal is that was refused. None: another request is on the way.
    fn conclude(&mut self, message: &Message, cx: &Context<'_>) -> Option<Result<Renewal, StoreError>> {
        let (Request::Renew { term, sequence, .. } | Request::Heal { term, sequence, .. }) = message.request else {
            unreachable!("it was a renewal");
        };
        if cx.cut.is_some() {
            return Some(Err(StoreError::unknown("cut off")));
        }
        self.marks |= cx.store.contents.lacks_marker();
        let read = cx.store.contents;
        let request = match cx.store.conclude(self.id, term, &self.seen, self.moment(cx)) {
            Conclusion::Lost => {
                cx.world.meet(Met::DefiniteLoss);
                return Some(Ok(Renewal::Lost(None)));
            }
            Conclusion::Overtaken => return Some(Ok(Renewal::Overtaken)),
            Conclusion::Again => Request::Renew { term, sequence, known: cx.store.known_write() },
            Conclusion::Heal => Request::Heal { term, sequence, read },
        };
        self.messages.push(Message { request, place: Place::OnTheWay, ..*message });
        None
    }

    fn send(&mut self, request: Request, lost: bool, cx: &Context<'_>) {
        let place = if lost || cx.cut == Some(Way::Requests) { Place::Lost } else { Place::OnTheWay };
        let sent_at = self.clock.at(cx.tick);
        self.messages.push(Message { request, sent: cx.tick, sent_at, waiting: true, place });
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
        self.lead(|leadership| leadership.kill(Link::Candidate));
    }

    /// Does what follows from what was done, until nothing does.
    pub fn settle(&mut self, cx: &Context<'_>) {
        while !self.suspended {
            self.settle_leadership(cx);
            if !self.listens() || !self.hear_lines(cx) {
                return;
            }
        }
    }

    fn settle_leadership(&mut self, cx: &Context<'_>) {
        let Some(leadership) = &mut self.leadership else { return };
        leadership.settle(self.clock.at(cx.tick));
        let (outputs, is_over) = (leadership.take_outputs(), leadership.is_over());
        let mut line = Vec::new();
        let mut by_time = false;
        for output in outputs {
            match output {
                Output::Heard(input) => by_time = input == Input::Tick,
                Output::Did(Effect::KillTree) if by_time => cx.world.meet(Met::GuardKillsInTime),
                Output::Did(Effect::AskTree) if cx.world.mutant == Some(Mutant::ReleaseBeforeDead) => {
                    self.disowned = true;
                    line.push(TreeEvent::Dead);
                }
                Output::Told(TreeEvent::Ended(_) | TreeEvent::Dead) if self.disowned => {}
                Output::Told(event) => line.push(event),
                Output::GuardKilled if cx.world.contained => cx.world.meet(Met::DiedWithItsGuard),
                Output::LastWill => self.last_will(cx),
                Output::Did(_) | Output::Started | Output::Killed | Output::GuardKilled => {}
            }
        }
        if line.contains(&TreeEvent::Unready(HookEnd::Cut)) {
            cx.world.meet(Met::NotStarted);
        }
        if let Some(candidate) = &mut self.candidate {
            candidate.line.append(&mut line);
        }
        if is_over {
            (self.leadership, self.excused, self.disowned) = (None, false, false);
        }
    }

    /// The backstop releases the lease, and nobody waits for the answer.
    fn last_will(&mut self, cx: &Context<'_>) {
        let Some(term) = self.term else { return };
        cx.world.meet(Met::LastWill);
        self.lets_go = true;
        self.send(Request::Release { term, known: cx.store.known_write() }, false, cx);
        if let Some(will) = self.messages.last_mut() {
            will.waiting = false;
        }
        self.messages.retain(Message::matters);
    }

    /// True if the candidate heard something, of which more may follow.
    fn hear_lines(&mut self, cx: &Context<'_>) -> bool {
        let line = self.candidate.as_mut().map(|candidate| std::mem::take(&mut candidate.line)).unwrap_or_default();
        let heard = !line.is_empty();
        for event in line {
            self.tell(Event::Tree(event), cx);
        }
        let settled = self.listens() && self.settle_standby_tasks(cx);
        heard || settled
    }
}
