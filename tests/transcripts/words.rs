//! The actions of a story, in words.

use leaderrun::internals::election::{Action, CommandEnd, Outcome, StandbyStop, Stop};
use leaderrun::internals::lease::{Deadline, show};
use leaderrun::internals::time::BootInstant;
use std::time::Duration;

/// `12.5s`.
pub fn seconds(instant: BootInstant) -> String {
    let millis = instant.since(BootInstant::from_nanos(0)).as_millis();
    let tenths = format!("{}.{:03}", millis / 1000, millis % 1000);
    let digits = tenths.trim_end_matches('0');
    format!("{}{}s", digits, if digits.ends_with('.') { "0" } else { "" })
}

fn until(deadline: Deadline) -> String {
    if deadline == Deadline::NONE {
        return "no deadline".to_owned();
    }
    format!("stop signal at {}, SIGKILL at {}", seconds(deadline.term_at), seconds(deadline.kill_at))
}

fn then_kill(kill_after: Option<Duration>) -> String {
    kill_after.map_or("no SIGKILL".to_owned(), |after| format!("SIGKILL after {}", show(after)))
}

pub fn in_words(action: &Action) -> String {
    match action {
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
        Action::Start { deadline, .. } => format!("start command: {}", until(*deadline)),
        Action::Extend(deadline) => format!("extend the deadline: {}", until(*deadline)),
        Action::Stop(Stop::Orderly { reason, kill_after }) => {
            format!("stop command in order ({}): {}", reason, then_kill(*kill_after))
        }
        Action::Stop(Stop::Losing { certain: true, .. }) => "stop command: the lease is lost".to_owned(),
        Action::Stop(Stop::Losing { certain: false, .. }) => "stop command: the lease is about to end".to_owned(),
        Action::Stop(Stop::Kill) => "kill command".to_owned(),
        Action::Seize => "kill guard and tree without the guard".to_owned(),
        Action::ForgetRenewals => "ignore answers to renewals from here on".to_owned(),
        Action::StartStandbyTasks => "start the standby task".to_owned(),
        Action::StopStandbyTasks(StandbyStop::Orderly { kill_after }) => {
            format!("stop the standby task: {}", then_kill(Some(*kill_after)))
        }
        Action::StopStandbyTasks(StandbyStop::Kill) => "kill the standby task".to_owned(),
        Action::SeizeStandbyTasks => "kill the standby task without its guard".to_owned(),
        Action::LeaderChanged(Some(leader)) => format!("report the leader: {leader}"),
        Action::LeaderChanged(None) => "report that nobody leads".to_owned(),
        Action::Ended { term, how } => format!("record the end of term {term}: {how}"),
        Action::ReleaseOver { failed: None } => "report that the lease was given back".to_owned(),
        Action::ReleaseOver { failed: Some(_) } => "report that the lease was not given back".to_owned(),
        Action::Say(notice) => format!("log: {notice}"),
        Action::End(outcome) => format!("leave: {}", left(outcome)),
    }
}

fn left(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Ended(end @ (CommandEnd::Exited(_) | CommandEnd::Signalled(_))) => format!("command {end}"),
        Outcome::NotStarted(error) => format!("command was not started: {error}"),
        Outcome::EndedByKey(interrupt) => format!("the keyboard ended command by signal {}", interrupt.signal),
        Outcome::Overran => "command ran for too long".to_owned(),
        Outcome::Interrupted(signal) => format!("asked to by signal {signal} before command ran"),
        Outcome::NotAcquired(Some(obstacle)) => format!("not acquired: {obstacle}"),
        Outcome::NotAcquired(None) => "not acquired".to_owned(),
        Outcome::Unreachable(message) => format!("the store cannot be reached: {message}"),
        Outcome::Refused(error) => format!("the store refused: {}", error.message),
        Outcome::Lost(loss) => format!("lost: {loss}"),
        Outcome::Done(skipped) => format!("the job is done: {}", skipped.said),
    }
}
