//! The log lines about an election: which notices become one, at which level, and which are not repeated.

use crate::election::{CommandEnd, LogEvent, Notice};
use crate::lease::{Candidate, Shard, Term};
use crate::store::Holder;
use std::env;
use std::mem::take;

pub(super) struct Log {
    owner: String,
    shard: Shard,
    /// The shard that we lead, as the store names it.
    led: Shard,
    has_slots: bool,
    /// The leader of the same shard in whose COMMAND this runs.
    outer: Option<String>,
    term: Option<Term>,
    /// The log has not said yet that the candidate leads. It says so when COMMAND starts, or when there is something
    /// else to say. A claim that starts nothing, because the job is done or the shard is paused, is a detail.
    unsaid: bool,
    /// The log has said in this wait whom the candidate waits for.
    waiting: bool,
    /// The leader that the candidate saw last in this wait.
    leader: Option<(String, Option<Term>)>,
}

/// The leader of `shard` in whose COMMAND this runs, as the environment names it.
fn outer(shard: &Shard) -> Option<String> {
    let outer: Shard = env::var("LEADERRUN_SHARD").ok()?.parse().ok()?;
    let whole = outer.parent().unwrap_or(outer);
    if whole == *shard { env::var("LEADERRUN_CANDIDATE").ok() } else { None }
}

impl Log {
    pub fn of(candidate: &Candidate, has_slots: bool) -> Self {
        Self {
            owner: candidate.owner.clone(),
            shard: candidate.shard.clone(),
            led: candidate.shard.clone(),
            has_slots,
            outer: outer(&candidate.shard),
            term: None,
            unsaid: false,
            waiting: false,
            leader: None,
        }
    }

    /// Whether another one leads than before. Slots have several leaders, and a store may not know the name of one.
    fn is_change(&mut self, holder: &Holder) -> bool {
        if self.has_slots || holder.doubt.is_some() || holder.owner.is_empty() {
            return false;
        }
        let leader = Some((holder.owner.clone(), holder.term));
        let before = std::mem::replace(&mut self.leader, leader);
        before.is_some() && before != self.leader
    }

    pub fn say_leading(&mut self, important: bool) {
        let Some(term) = self.term.filter(|_| take(&mut self.unsaid)) else { return };
        let shard = self.led.as_str();
        let owner = self.owner.as_str();
        let notice = Notice::Leading(term);
        let event = notice.event().into_str();
        if important {
            tracing::info!(event, shard, term = term.0, owner, "{notice}");
        } else {
            tracing::debug!(event, shard, term = term.0, owner, "{notice}");
        }
    }

    /// `led` is the shard that the candidate leads, if it does.
    pub fn say(&mut self, notice: &Notice, led: &Shard) {
        if let Notice::Leading(term) = notice {
            self.term = Some(*term);
            self.led = led.clone();
            self.waiting = false;
            self.leader = None;
            self.unsaid = true;
            return;
        }
        let nothing_was_led = matches!(notice, Notice::Released(_)) && (self.unsaid || self.term.is_none());
        self.say_leading(!nothing_was_led);
        let changed = matches!(notice, Notice::Waiting(holder) if self.is_change(holder));
        let shard = self.led.as_str();
        let owner = self.owner.as_str();
        let term = self.term.map(|term| term.0);
        let event = notice.event().into_str();
        let reason = notice.reason().map(|reason| reason.into_str());
        match notice {
            Notice::Waiting(holder) if changed => {
                let event = LogEvent::LeaderChanged.into_str();
                tracing::info!(event, shard, owner, "the leader changed: {holder} leads");
            }
            Notice::Waiting(holder) if !self.waiting && self.outer.as_ref() == Some(&holder.owner) => {
                self.waiting = true;
                tracing::error!(event, shard, owner, "{notice}, and this runs inside its command: it waits for itself");
            }
            Notice::Waiting(holder) if !self.waiting => {
                self.waiting = self.has_slots || holder.doubt.is_none();
                tracing::info!(event, shard, owner, "{notice}");
            }
            Notice::Waiting(_) | Notice::Staying(_) => tracing::debug!(event, shard, owner, "{notice}"),
            Notice::Released(_) if nothing_was_led => tracing::debug!(event, shard, term, owner, "{notice}"),
            Notice::Leading(_)
            | Notice::HoldingBack(..)
            | Notice::TroubleOver
            | Notice::Stopping { .. }
            | Notice::SteppingDown(_)
            | Notice::Held(_)
            | Notice::Restarting { end: CommandEnd::Exited(0), .. }
            | Notice::Relinquishing
            | Notice::Released(_) => tracing::info!(event, reason, shard, term, owner, "{notice}"),
            // A job that has succeeded may run again: also for who hides warnings.
            Notice::NotSettled(_) => tracing::error!(event, shard, term, owner, "{notice}"),
            _ => tracing::warn!(event, reason, shard, term, owner, "{notice}"),
        }
        if matches!(notice, Notice::Released(_) | Notice::NotReleased(_)) {
            self.term = None;
            self.led = self.shard.clone();
        }
    }
}
