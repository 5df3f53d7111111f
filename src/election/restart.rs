//! Restarts of a COMMAND that ended by itself, under the same lease.
//!
//! The hazards:
//!
//! - Between two runs there is a lease and no tree. Anything that would have stopped COMMAND ends the leadership then
//!   too: a signal, an order, the loss of the lease. A loss may also come after COMMAND has ended and before its tree
//!   is dead.
//! - An operator may have ordered a pause meanwhile, and rely on it: nothing may start. So the orders are read again
//!   before each run, as after a grant.
//! - The person at the keyboard wants COMMAND to end, and COMMAND catches Ctrl-C and exits with a status of its own.
//! - A COMMAND that cannot work on this host would keep the lease from hosts where it can. So when the allowed
//!   restarts are used up, the leader gives the lease up, and other candidates go first.

use super::state::{Leadership, Then, Tree};
use super::{Action, CommandEnd, Core, Ended, Notice, Outcome, Patience, Restart, RestartWhen};
use crate::time::BootInstant;
use std::time::Duration;

/// The pauses double up to this, unless the first one is longer.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// The runs of COMMAND in one leadership.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Runs {
    /// When the last one began.
    began: BootInstant,
    /// When COMMAND ended in it. Its descendants may live longer.
    pub(super) ended: Option<BootInstant>,
    /// Restarts since a run that lasted at least [`Restart::healthy`].
    restarts: u32,
    /// How the last one ended, while COMMAND waits to be started again.
    pub(super) waiting: Option<CommandEnd>,
}

impl Runs {
    pub(super) fn none_yet() -> Self {
        Self { began: BootInstant::NEVER, ended: None, restarts: 0, waiting: None }
    }

    /// A run begins now: the time of its hook does not count.
    pub(super) fn begin_run(&mut self, now: BootInstant) {
        self.began = now;
        self.ended = None;
    }
}

impl Leadership {
    /// COMMAND is being started.
    pub(super) fn begin_run(&mut self, now: BootInstant) {
        self.runs.begin_run(now);
        self.runs.waiting = None;
        self.end = None;
        self.interrupted = None;
    }

    /// Whether COMMAND was started in this leadership. Without that, operators and the history do not count it.
    pub(super) fn has_begun(&self) -> bool {
        !matches!(self.tree, Tree::Idle { .. }) || self.runs.waiting.is_some()
    }
}

impl Core {
    /// COMMAND runs, so its hook has not failed. `--max-run` counts from now.
    pub(super) fn command_started(&mut self, now: BootInstant, leadership: &mut Leadership) {
        self.unready = 0;
        leadership.runs.begin_run(now);
        if let Tree::Alive { overrun_at, .. } = &mut leadership.tree {
            *overrun_at = self.settings.max_run.map_or(BootInstant::NEVER, |most| now.plus(most));
        }
    }

    /// Whether a COMMAND that ended like this is started again, if nothing else has come since.
    pub(super) fn would_restart(&self, leadership: &Leadership, end: CommandEnd) -> bool {
        let wants = |restart: Restart| restart.when == RestartWhen::Always || end != CommandEnd::Exited(0);
        leadership.interrupted.is_none() && self.settings.restart.is_some_and(wants)
    }

    /// A leadership without a tree is about to end, and `then` follows. If COMMAND was started in it, records the end
    /// and begins a new wait, or leaves with what came of COMMAND (`-n`).
    pub(super) fn ends_between_runs(
        &mut self,
        now: BootInstant,
        leadership: &Leadership,
        how: Ended,
        then: Then,
    ) -> Then {
        let Some(end) = leadership.runs.waiting else { return then };
        let outcome = if let Ended::Lost(loss) = &how { Outcome::Lost(loss.clone()) } else { Outcome::Ended(end) };
        self.actions.push(Action::Ended { term: leadership.term, how });
        self.begin_waiting(now);
        if self.settings.patience == Patience::Once { Then::End(outcome) } else { then }
    }

    /// The tree is dead. Returns whether the leadership goes on with another run of COMMAND.
    pub(super) fn restarts(&mut self, now: BootInstant, leadership: &mut Leadership) -> bool {
        let (Some(restart), Some(Ended::ByItself(end))) = (self.settings.restart, &leadership.ending) else {
            return false;
        };
        let end = *end;
        if leadership.asked.is_some() || !self.would_restart(leadership, end) {
            return false;
        }
        let runs = &mut leadership.runs;
        if runs.ended.unwrap_or(now).since(runs.began) >= restart.healthy {
            runs.restarts = 0;
        }
        if runs.restarts >= restart.limit {
            let restarts = runs.restarts;
            leadership.ending = Some(Ended::GaveUp { end, restarts });
            self.say(Notice::GaveUp { end, restarts });
            return false;
        }
        runs.restarts += 1;
        runs.waiting = Some(end);
        let number = runs.restarts;
        let pause = self.random.grown(restart.delay, number, LONGEST_PAUSE.max(restart.delay));
        leadership.ending = None;
        leadership.lost = None;
        leadership.tree = Tree::Idle { not_before: Some(now.plus(pause)) };
        self.say(Notice::Restarting { end, pause, restart: number, limit: restart.limit });
        true
    }
}
