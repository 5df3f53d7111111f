//! A story in fixed words: what the machines of all hosts heard and did, guards included, and when.
//!
//! The hazard: a trace that is made of names in the source changes when they do, and then shows nothing. So every event
//! and action is spelt out here by hand, without the text that people read; a type that is renamed or moved keeps its
//! words. No `match` has a `_`, so that what is added gets a name here.
//!
//! What is said to people is kept apart: a line that comes earlier, later or not at all is no other decision.

use crate::clock::elapsed;
use leaderrun::internals::election::{
    Action, Booking, CommandEnd, Directives, Ended, Event, Hold, HookEnd, Loss, Notice, Obstacle, Outcome, Ran,
    Skipped, StandbyStop, StartError, Stop, TreeEvent, Unhealthy,
};
use leaderrun::internals::guard::policy::{Effect, Input, Order};
use leaderrun::internals::lease::{Deadline, Term};
use leaderrun::internals::store::{Claim, ErrorKind, Holder, Observation, Release, Renewal, StoreError};
use leaderrun::internals::time::BootInstant;
use std::fmt::Write as _;
use std::time::Duration;

#[derive(Clone, Default, PartialEq, Eq)]
pub struct Trace {
    pub decisions: String,
    pub said: String,
}

impl Trace {
    pub fn heard(&mut self, host: usize, event: &Event) {
        self.decided(host, &format!("heard {}", event_words(event)));
    }

    pub fn did(&mut self, host: usize, action: &Action) {
        match action {
            Action::Say(notice) => {
                let _ = writeln!(self.said, "{} {host} {}", elapsed().as_nanos(), notice_words(notice));
            }
            // It repeats a notice, for the host.
            Action::ReleaseOver { .. } => {}
            other => self.decided(host, &format!("did {}", action_words(other))),
        }
    }

    pub fn guard_heard(&mut self, host: usize, input: Input) {
        self.decided(host, &format!("guard heard {}", input_words(input)));
    }

    pub fn guard_did(&mut self, host: usize, effect: Effect) {
        self.decided(host, &format!("guard did {}", effect_words(effect)));
    }

    pub fn tree(&mut self, host: usize, term: u64, what: &str) {
        self.decided(host, &format!("tree of {term} {what}"));
    }

    pub fn lease(&mut self, host: usize, term: Term, what: &str) {
        self.decided(host, &format!("lease of {} {what}", term.0));
    }

    fn decided(&mut self, host: usize, words: &str) {
        let _ = writeln!(self.decisions, "{} {host} {words}", elapsed().as_nanos());
    }

    /// A line for tests/golden.
    pub fn digest(&self) -> String {
        let [decisions, said] = [&self.decisions, &self.said].map(|text| (text.lines().count(), hash(text)));
        format!("{} steps {:016x}, {} said {:016x}", decisions.0, decisions.1, said.0, said.1)
    }
}

/// FNV-1a: a few lines, and the same everywhere and for ever.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn event_words(event: &Event) -> String {
    match event {
        Event::Tick => "tick".to_owned(),
        Event::Claimed { sent, answer } => format!("claimed sent {} {}", at(*sent), answered(answer, claim_words)),
        Event::Observed { answer } => format!("observed {}", answered(answer, observation_words)),
        Event::Changed(answer) => format!("changed {}", answered(answer, done)),
        Event::Doubted => "doubted".to_owned(),
        Event::Renewed { sent, answer, orders } => {
            let orders = or_dash(orders.as_ref(), mandate_words);
            format!("renewed sent {} {} orders {orders}", at(*sent), answered(answer, renewal_words))
        }
        Event::Released { answer } => format!("released {}", answered(answer, release_words)),
        Event::Ordered { answer } => format!("ordered {}", answered(answer, mandate_words)),
        Event::Booked { term, answer } => format!("booked {} {}", term.0, answered(answer, booking_words)),
        Event::Settled { term, answer } => format!("settled {} {}", term.0, answered(answer, done)),
        Event::Tree(event) => format!("tree {}", tree_words(event)),
        Event::Late(late) => format!("late {}", nanos(late.worst)),
        Event::RotationDue => "turn-over".to_owned(),
        Event::Counted { answer } => {
            format!("counted {}", answered(answer, |count| or_dash(count.as_ref(), ToString::to_string)))
        }
        Event::Asked { signal } => format!("asked {signal}"),
        Event::StandbyTasksDead => "dismissed".to_owned(),
    }
}

fn action_words(action: &Action) -> String {
    match action {
        Action::Claim => "claim".to_owned(),
        Action::Observe => "observe".to_owned(),
        Action::Renew { term, sequence } => format!("renew {} {sequence}", term.0),
        Action::Release { term } => format!("release {}", term.0),
        Action::ReadOrders => "read-orders".to_owned(),
        Action::CountStandbys => "count-standbys".to_owned(),
        Action::ForgetHandover { term } => format!("forget-handover {}", term.0),
        Action::Book { term, behind: _ } => format!("book {}", term.0),
        Action::Settle { term, ran } => format!("settle {} {}", term.0, or_dash(ran.as_ref(), ran_words)),
        Action::Start { term, deadline } => format!("start {} {}", term.0, deadline_words(*deadline)),
        Action::Extend(deadline) => format!("extend {}", deadline_words(*deadline)),
        Action::Stop(stop) => format!("stop {}", stop_words(*stop)),
        Action::Seize => "seize".to_owned(),
        Action::ForgetRenewals => "forget-renewals".to_owned(),
        Action::StartStandbyTasks => "attend".to_owned(),
        Action::StopStandbyTasks(StandbyStop::Orderly { kill_after }) => {
            format!("dismiss orderly {}", nanos(*kill_after))
        }
        Action::StopStandbyTasks(StandbyStop::Kill) => "dismiss kill".to_owned(),
        Action::ReleaseOver { failed } => format!("release-over {}", or_dash(failed.as_ref(), Clone::clone)),
        Action::SeizeStandbyTasks => "seize-attendants".to_owned(),
        Action::LeaderChanged(leader) => format!("leader-changed {}", or_dash(leader.as_ref(), holder_words)),
        Action::Ended { term, how } => format!("ended {} {}", term.0, ended_words(how)),
        Action::Say(notice) => format!("say {}", notice_words(notice)),
        Action::End(outcome) => format!("end {}", outcome_words(outcome)),
    }
}

/// Without the text in them.
fn notice_words(notice: &Notice) -> String {
    match notice {
        Notice::Waiting(holder) => format!("waiting {}", holder_words(holder)),
        Notice::Leading(term) => format!("leading {}", term.0),
        Notice::HoldingBack(_, wait) => format!("holding-back {}", nanos(*wait)),
        Notice::Trouble { message: _, lasting } => format!("trouble {}", nanos(*lasting)),
        Notice::TroubleOver => "trouble-over".to_owned(),
        Notice::Stopping { signal } => format!("stopping {signal}"),
        Notice::SteppingDown(hold) => format!("stepping-down {}", bar_words(hold)),
        Notice::Held(hold) => format!("barred {}", bar_words(hold)),
        Notice::OrdersUnread { message: _, running } => format!("orders-unread {running}"),
        Notice::NotEntered(_) => "not-entered".to_owned(),
        Notice::NotSettled(_) => "not-settled".to_owned(),
        Notice::Killing => "killing".to_owned(),
        Notice::Unready(end) => format!("unready {}", hook_end_words(*end)),
        Notice::Overran(most) => format!("overran {}", nanos(*most)),
        Notice::Restarting { end, pause, restart, limit } => {
            format!("restarting {} {} {restart} {limit}", end_words(*end), nanos(*pause))
        }
        Notice::GaveUp { end, restarts } => format!("gave-up {} {restarts}", end_words(*end)),
        Notice::Relinquishing => "relinquishing".to_owned(),
        Notice::Unhealthy(unhealthy) => format!("unhealthy {}", unhealthy_words(*unhealthy)),
        Notice::Staying(_) => "staying".to_owned(),
        Notice::Uncounted(_) => "uncounted".to_owned(),
        Notice::Late(late) => format!("late {}", nanos(late.worst)),
        Notice::Lost(loss) => format!("lost {}", loss_words(loss)),
        Notice::Released(term) => format!("released {}", term.0),
        Notice::NotReleased(_) => "not-released".to_owned(),
    }
}

fn input_words(input: Input) -> String {
    match input {
        Input::Order(order) => format!("order {}", order_words(order)),
        Input::CandidateGone => "candidate-gone".to_owned(),
        Input::CommandStarted => "command-started".to_owned(),
        Input::CommandNotStarted(reason) => format!("command-not-started {}", reason.as_str()),
        Input::CommandEnded => "command-ended".to_owned(),
        Input::HookEnded(end) => format!("hook-ended {}", hook_end_words(end)),
        Input::Empty => "empty".to_owned(),
        Input::Late(worst) => format!("measured-late {}", nanos(worst)),
        Input::Tick => "tick".to_owned(),
    }
}

fn order_words(order: Order) -> String {
    match order {
        Order::Extend(deadline) => format!("extend {}", deadline_words(deadline)),
        Order::Stop { kill_after } => format!("stop {}", or_dash(kill_after.as_ref(), |after| nanos(*after))),
        Order::Lose => "lose".to_owned(),
        Order::Kill => "kill".to_owned(),
        Order::Signal(signal) => format!("signal {signal}"),
        Order::Continue => "continue".to_owned(),
        Order::Because(reason) => format!("because {}", reason.as_str()),
        Order::Late(worst) => format!("late {}", nanos(worst)),
    }
}

fn effect_words(effect: Effect) -> String {
    match effect {
        Effect::Start => "start".to_owned(),
        Effect::ReportUnready(end) => format!("report-unready {}", hook_end_words(end)),
        Effect::RunPreStop => "run-losing".to_owned(),
        Effect::RunPostStop => "run-lost".to_owned(),
        Effect::KillHook => "kill-hook".to_owned(),
        Effect::AskTree => "ask-tree".to_owned(),
        Effect::KillTree => "kill-tree".to_owned(),
        Effect::ReportDeadline => "report-deadline".to_owned(),
        Effect::Signal(signal) => format!("signal {signal}"),
        Effect::Continue => "continue".to_owned(),
        Effect::Finish => "finish".to_owned(),
        Effect::ReportOverrun => "report overrun".to_owned(),
    }
}

fn answered<T>(answer: &Result<T, StoreError>, words: impl Fn(&T) -> String) -> String {
    match answer {
        Ok(answer) => words(answer),
        Err(error) => format!(
            "error {}",
            match error.kind {
                ErrorKind::NotApplied => "not-applied",
                ErrorKind::Unknown => "unknown",
                ErrorKind::Denied => "denied",
                ErrorKind::Misconfigured => "misconfigured",
            }
        ),
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as the words of other answers")]
fn done((): &()) -> String {
    "done".to_owned()
}

fn claim_words(claim: &Claim) -> String {
    match claim {
        Claim::Granted(grant) => {
            format!("granted {} start-after {}", grant.term.0, or_dash(grant.start_after.as_ref(), |after| at(*after)))
        }
        Claim::Refused(holder) => format!("refused {}", holder_words(holder)),
    }
}

fn observation_words(observation: &Observation) -> String {
    match observation {
        Observation::Free => "free".to_owned(),
        Observation::Held(holder) => format!("held {}", holder_words(holder)),
    }
}

fn renewal_words(renewal: &Renewal) -> String {
    match renewal {
        Renewal::Renewed => "done".to_owned(),
        Renewal::Overtaken => "overtaken".to_owned(),
        Renewal::Revoked => "revoked".to_owned(),
        Renewal::Lost(holder) => format!("lost {}", or_dash(holder.as_ref(), holder_words)),
    }
}

fn release_words(release: &Release) -> String {
    match release {
        Release::Released => "done".to_owned(),
        Release::NotHeld => "not-held".to_owned(),
    }
}

fn mandate_words(directives: &Directives) -> String {
    let pause = or_dash(directives.pause.as_ref(), |pause| {
        format!("keep {} left {}", pause.keep, or_dash(pause.left.as_ref(), |left| nanos(*left)))
    });
    let handover = or_dash(directives.handover.as_ref(), |handover| {
        format!("{} welcome {} hold {}", handover.term.0, handover.welcome, nanos(handover.hold))
    });
    format!("pause {pause} handover {handover}")
}

fn booking_words(booking: &Booking) -> String {
    match booking {
        Booking::Booked(_) => "done".to_owned(),
        Booking::Done(skipped) => skipped_words(skipped),
    }
}

fn skipped_words(skipped: &Skipped) -> String {
    format!("skipped {}", skipped.status)
}

fn tree_words(event: &TreeEvent) -> String {
    match event {
        TreeEvent::NotStarted(StartError(errno)) => format!("not-started {errno}"),
        TreeEvent::Unready(end) => format!("unready {}", hook_end_words(*end)),
        TreeEvent::Started => "started".to_owned(),
        TreeEvent::Unhealthy(unhealthy) => format!("unhealthy {}", unhealthy_words(*unhealthy)),
        TreeEvent::Ended(end) => format!("ended {}", end_words(*end)),
        TreeEvent::Interrupted(interrupt) => format!("interrupted {}", interrupt.signal),
        TreeEvent::Overran => "overran".to_owned(),
        TreeEvent::DeadlineReached => "deadline-reached".to_owned(),
        TreeEvent::GuardFailed => "guard-failed".to_owned(),
        TreeEvent::Dead => "dead".to_owned(),
    }
}

fn end_words(end: CommandEnd) -> String {
    match end {
        CommandEnd::Exited(status) => format!("exited {status}"),
        CommandEnd::Signalled(signal) => format!("signalled {signal}"),
    }
}

fn hook_end_words(end: HookEnd) -> String {
    match end {
        HookEnd::Exited(status) => format!("exited {status}"),
        HookEnd::Signalled(signal) => format!("signalled {signal}"),
        HookEnd::NotStarted(errno) => format!("not-started {errno}"),
        HookEnd::TimedOut => "timed-out".to_owned(),
        HookEnd::Cut => "cut".to_owned(),
    }
}

fn unhealthy_words(unhealthy: Unhealthy) -> String {
    format!("{} {}", hook_end_words(unhealthy.last.0), unhealthy.failures)
}

fn ran_words(ran: &Ran) -> String {
    format!("{} command {}", ended_words(&ran.how), or_dash(ran.end.as_ref(), |end| end_words(*end)))
}

fn ended_words(how: &Ended) -> String {
    match how {
        Ended::ByItself(end) => format!("by-itself {}", end_words(*end)),
        Ended::NotStarted(StartError(errno)) => format!("not-started {errno}"),
        Ended::Unready(end) => format!("unready {}", hook_end_words(*end)),
        Ended::Asked(signal) => format!("asked {signal}"),
        Ended::Paused => "paused".to_owned(),
        Ended::SteppedDown => "stepped-down".to_owned(),
        Ended::Overran => "overran".to_owned(),
        Ended::GaveUp { end, restarts } => format!("gave-up {} {restarts}", end_words(*end)),
        Ended::Relinquished => "relinquished".to_owned(),
        Ended::Unhealthy(unhealthy) => format!("unhealthy {}", unhealthy_words(*unhealthy)),
        Ended::Lost(loss) => format!("lost {}", loss_words(loss)),
    }
}

fn outcome_words(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Ended(end) => format!("ended {}", end_words(*end)),
        Outcome::NotStarted(StartError(errno)) => format!("not-started {errno}"),
        Outcome::EndedByKey(interrupt) => format!("ended by key {}", interrupt.signal),
        Outcome::Overran => "overran".to_owned(),
        Outcome::Interrupted(signal) => format!("interrupted {signal}"),
        Outcome::NotAcquired(obstacle) => format!(
            "not-acquired {}",
            or_dash(obstacle.as_ref(), |obstacle| match obstacle {
                Obstacle::Holder(holder) => holder_words(holder),
                Obstacle::Hold(hold) => bar_words(hold),
                Obstacle::Doubt(_, left) => format!("doubt {}", left.as_millis()),
            })
        ),
        Outcome::Unreachable(_) => "unreachable".to_owned(),
        Outcome::Refused(error) => answered::<()>(&Err(error.clone()), done),
        Outcome::Lost(loss) => format!("lost {}", loss_words(loss)),
        Outcome::Done(skipped) => skipped_words(skipped),
    }
}

fn loss_words(loss: &Loss) -> String {
    match loss {
        Loss::TakenBy(holder) => format!("taken {}", holder_words(holder)),
        Loss::Revoked => "revoked".to_owned(),
        Loss::RecordGone => "gone".to_owned(),
        Loss::DeadlinePassed => "deadline".to_owned(),
        Loss::GuardFailed => "guard-failed".to_owned(),
    }
}

fn bar_words(hold: &Hold) -> String {
    match hold {
        Hold::Paused { said: _, left } => format!("paused {}", or_dash(left.as_ref(), |left| nanos(*left))),
        Hold::HandedOver { term, said: _, left } => format!("handed-over {} {}", term.0, nanos(*left)),
        Hold::StandingBack { term, said: _, left } => format!("standing-back {} {}", term.0, nanos(*left)),
    }
}

fn stop_words(stop: Stop) -> String {
    match stop {
        Stop::Orderly { reason: _, kill_after } => {
            format!("orderly {}", or_dash(kill_after.as_ref(), |after| nanos(*after)))
        }
        Stop::Losing { .. } => "losing".to_owned(),
        Stop::Kill => "kill".to_owned(),
    }
}

fn holder_words(holder: &Holder) -> String {
    let session = holder.session.as_ref().map_or("-", |session| session.as_str());
    let time = |time: Option<Duration>| or_dash(time.as_ref(), |time| nanos(*time));
    let number = |number: Option<u64>| or_dash(number.as_ref(), ToString::to_string);
    format!(
        "{} {session} {} {} term {} since {} expires {} renewed {}",
        holder.owner,
        holder.host.as_deref().unwrap_or("-"),
        number(holder.pid.map(u64::from)),
        number(holder.term.map(|Term(term)| term)),
        number(holder.since_millis),
        time(holder.expires_in),
        time(holder.renewed_ago)
    )
}

fn deadline_words(deadline: Deadline) -> String {
    let Deadline { term_at, kill_at, backstop_at } = deadline;
    [term_at, kill_at, backstop_at].map(at).join(" ")
}

fn or_dash<T>(some: Option<&T>, words: impl Fn(&T) -> String) -> String {
    some.map_or("-".to_owned(), words)
}

fn at(instant: BootInstant) -> String {
    if instant == BootInstant::NEVER { "never".to_owned() } else { instant.as_nanos().to_string() }
}

fn nanos(duration: Duration) -> String {
    duration.as_nanos().to_string()
}
