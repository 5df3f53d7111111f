//! The log lines of `-vv`: each event and action of an election, in words.
//!
//! JSON has the values as well, which text leaves out (`observe::log`).

use crate::election::{Action, Booking, Directives, Event, Outcome, Stop, TreeEvent};
use crate::lease::{Deadline, show, show_seconds};
use crate::store::{Answer, Claim, Holder, Observation, Release, Renewal};
use crate::time::BootInstant;
use std::time::Duration;

pub(super) fn event(event: &Event) {
    // Nothing was heard: time has passed.
    if matches!(event, Event::Tick) {
        tracing::trace!(heard = ?event);
    } else {
        tracing::trace!(heard = ?event, "{}", heard(event, BootInstant::now()));
    }
}

pub(super) fn action(action: &Action) {
    // A line of the log is logged.
    if matches!(action, Action::Say(_)) {
        tracing::trace!(?action);
    } else {
        tracing::trace!(?action, "-> {}", done(action, BootInstant::now()));
    }
}

fn heard(event: &Event, now: BootInstant) -> String {
    match event {
        Event::Tick => "time has passed".to_owned(),
        Event::Claimed { sent, answer } => answered("claim", Some(now.since(*sent)), answer, |claim| match claim {
            Claim::Granted(grant) => match grant.start_after.map(|start_after| start_after.since(now)) {
                Some(wait) => format!("granted, term {}, to start in {}", grant.term, show(wait)),
                None => format!("granted, term {}", grant.term),
            },
            Claim::Refused(holder) => format!("refused: {}", leads(holder)),
        }),
        Event::Observed { answer } => answered("look", None, answer, |seen| match seen {
            Observation::Free => "nobody leads".to_owned(),
            Observation::Held(holder) => leads(holder),
        }),
        Event::Changed(answer) => answered("watch", None, answer, |()| "something changed".to_owned()),
        Event::Doubted => "the store saw something that may have ended the lease".to_owned(),
        Event::Renewed { sent, answer, orders: brought } => {
            answered("renewal", Some(now.since(*sent)), answer, |renewal| match (renewal, brought) {
                (Renewal::Renewed, Some(brought)) => format!("renewed; orders: {}", orders(brought)),
                (Renewal::Renewed, None) => "renewed".to_owned(),
                (Renewal::Overtaken, _) => "a later one came first".to_owned(),
                (Renewal::Lost(Some(holder)), _) => format!("lost: {}", leads(holder)),
                (Renewal::Revoked, _) => "lost: an operator revoked the lease".to_owned(),
                (Renewal::Lost(None), _) => "lost: the record is gone".to_owned(),
            })
        }
        Event::Released { answer } => answered("release", None, answer, |release| match release {
            Release::Released => "released".to_owned(),
            Release::NotHeld => "there was nothing to release".to_owned(),
        }),
        Event::Ordered { answer } => answered("orders", None, answer, orders),
        Event::Booked { answer, .. } => answered("ledger", None, answer, |booking| match booking {
            Booking::Booked(_) => "the run is entered".to_owned(),
            Booking::Done(skipped) => format!("no run is needed: {}", skipped.said),
        }),
        Event::Settled { answer, .. } => {
            answered("ledger", None, answer, |()| "the end of the run is written".to_owned())
        }
        Event::Tree(event) => tree(event),
        Event::Late(late) => format!("the guard or the backstop was woken {:.1?} late, at the worst", late.worst),
        Event::RotationDue => "the time has come to hand over".to_owned(),
        Event::Counted { answer } => answered("standbys", None, answer, |count| match count {
            Some(count) => format!("{count} others wait"),
            None => "they are not counted".to_owned(),
        }),
        Event::Asked { signal } => format!("signal {signal}"),
        Event::StandbyTasksDead => "the standby tasks are dead".to_owned(),
    }
}

pub fn done(action: &Action, now: BootInstant) -> String {
    match action {
        Action::Say(notice) => notice.to_string(),
        Action::Claim => "claim the lease".to_owned(),
        Action::Observe => "look at the lease".to_owned(),
        Action::Renew { sequence, .. } => format!("renew the lease (renewal {sequence})"),
        Action::Release { .. } => "release the lease".to_owned(),
        Action::ReadOrders => "read the orders".to_owned(),
        Action::CountStandbys => "count the standbys".to_owned(),
        Action::ForgetHandover { term } => format!("remove the order to hand over term {term}"),
        Action::Book { .. } => "enter the run into the ledger".to_owned(),
        Action::Settle { ran: Some(ran), .. } => format!("write into the ledger how the run ended: {}", ran.how),
        Action::Settle { ran: None, .. } => "remove the run from the ledger: it was not started".to_owned(),
        Action::Start { deadline, .. } => format!("start the command, {}", until(*deadline, now)),
        Action::Extend(deadline) => format!("move the deadline: {}", until(*deadline, now)),
        Action::Stop(Stop::Orderly { reason, kill_after }) => {
            let then = kill_after.map_or("no SIGKILL".to_owned(), |after| format!("SIGKILL after {}", show(after)));
            format!("stop the command ({reason}), {then}")
        }
        Action::Stop(Stop::Losing { certain: true, .. }) => "stop the command: the lease is lost".to_owned(),
        Action::Stop(Stop::Losing { certain: false, .. }) => "stop the command: the lease is about to end".to_owned(),
        Action::Stop(Stop::Kill) => "kill the command".to_owned(),
        Action::Seize => "kill the guard and the tree".to_owned(),
        Action::ForgetRenewals => "ignore answers to renewals from here on".to_owned(),
        Action::StartStandbyTasks => "start the standby tasks".to_owned(),
        Action::StopStandbyTasks { kill_after } => {
            format!("stop the standby tasks, SIGKILL after {}", show(*kill_after))
        }
        Action::KillStandbyTasks => "kill the standby tasks".to_owned(),
        Action::SeizeStandbyTasks => "kill the standby tasks and their guards".to_owned(),
        Action::LeaderChanged(Some(leader)) => format!("tell the standby tasks that {leader} leads"),
        Action::LeaderChanged(None) => "tell the standby tasks that nobody leads".to_owned(),
        Action::Ended { term, how } => format!("write into the history that term {term} ended: {how}"),
        Action::ReleaseOver { failed: None } => "the leadership is over".to_owned(),
        Action::ReleaseOver { failed: Some(why) } => format!("the leadership is over, and not released: {why}"),
        Action::End(outcome) => format!("leave: {}", left(outcome)),
    }
}

/// The answer to a request, and how long it took.
fn answered<T>(what: &str, took: Option<Duration>, answer: &Answer<T>, words: impl FnOnce(&T) -> String) -> String {
    let took = took.map(|took| format!(" (after {})", show(took))).unwrap_or_default();
    match answer {
        Ok(answer) => format!("{what}: {}{took}", words(answer)),
        Err(error) => format!("{what}: {}{took}", error.message),
    }
}

fn leads(holder: &Holder) -> String {
    match holder.expires_in {
        Some(left) => format!("{holder} leads for another {}", show_seconds(left)),
        None => format!("{holder} leads"),
    }
}

fn orders(directives: &Directives) -> String {
    let pause = directives.pause.as_ref().map(|pause| format!("paused {}", pause.said));
    let handover = directives.handover.as_ref().map(|handover| format!("term {} {}", handover.term, handover.said));
    let orders: Vec<String> = pause.into_iter().chain(handover).collect();
    if orders.is_empty() { "none".to_owned() } else { orders.join("; ") }
}

fn tree(event: &TreeEvent) -> String {
    match event {
        TreeEvent::NotStarted(error) => format!("the command was not started: {error}"),
        TreeEvent::Unready(end) => format!("the --pre-start hook {end}"),
        TreeEvent::Unhealthy(unhealthy) => unhealthy.to_string(),
        TreeEvent::Started => "the command was started".to_owned(),
        TreeEvent::Ended(end) => format!("the command {end}"),
        TreeEvent::Interrupted(interrupt) => format!("the keyboard sent it signal {}", interrupt.signal),
        TreeEvent::Overran => "the guard stops the command after its longest run".to_owned(),
        TreeEvent::DeadlineReached => "the guard reached the deadline".to_owned(),
        TreeEvent::GuardFailed => "the guard failed".to_owned(),
        TreeEvent::Dead => "the tree is dead".to_owned(),
    }
}

fn until(deadline: Deadline, now: BootInstant) -> String {
    if deadline == Deadline::NONE {
        return "without a deadline".to_owned();
    }
    let term = deadline.term_at.since(now);
    let kill = deadline.kill_at.since(now);
    format!("stop signal in {}, SIGKILL in {}", show(term), show(kill))
}

fn left(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Ended(end) => format!("the command {end}"),
        Outcome::NotStarted(error) => format!("the command was not started: {error}"),
        Outcome::EndedByKey(interrupt) => format!("the keyboard ended it with signal {}", interrupt.signal),
        Outcome::Overran => "the command ran for too long".to_owned(),
        Outcome::Interrupted(signal) => format!("signal {signal} before the command ran"),
        Outcome::NotAcquired(Some(obstacle)) => format!("not started: {obstacle}"),
        Outcome::NotAcquired(None) => "not started".to_owned(),
        Outcome::Unreachable(message) => message.clone(),
        Outcome::Refused(error) => error.message.clone(),
        Outcome::Lost(loss) => format!("lost: {loss}"),
        Outcome::Done(skipped) => skipped.said.clone(),
    }
}
