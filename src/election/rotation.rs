//! Rotation: a leader hands over by itself.
//!
//! The hazards:
//!
//! - If no other candidate waits, a handover is only an outage. So the leader counts the standbys first, if it can. A
//!   standby may be gone by the time of the handover, so the old leader may lead again after a while. Without
//!   permission to count, a leader would never hand over, so it hands over without counting.
//! - Each host has its own clock for a schedule, and the clocks differ. The new leader may reach the scheduled time
//!   after it has taken over, and must not hand over again. So a leadership that has just begun ignores it.

use super::state::{Leadership, Then, Tree};
use super::{Core, Ended, Next, Notice};
use crate::store::{Answer, ErrorKind};
use crate::time::BootInstant;
use std::mem::{replace, take};
use std::time::Duration;

/// The time between two counts when no standby was found.
const COUNT_AGAIN: Duration = Duration::from_mins(1);
/// The time to the next count when the store could not be asked.
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// A leadership younger than this ignores the schedule: the clocks of two hosts differ by less.
const YOUNG: Duration = Duration::from_secs(30);

/// When a leadership is to end by itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Rotation {
    began: BootInstant,
    /// When to count the standbys.
    pub(super) next: BootInstant,
    pub(super) counting: bool,
    /// Whether to count again when no standby was found. Otherwise the leader waits for the next time of the schedule.
    insists: bool,
}

impl Rotation {
    pub(super) fn begun(now: BootInstant, lasts: Option<Duration>) -> Self {
        let next = lasts.map_or(BootInstant::NEVER, |lasts| now.plus(lasts));
        Self { began: now, next, counting: false, insists: lasts.is_some() }
    }

    /// A time of the schedule has come.
    pub(super) fn time_has_come(&mut self, now: BootInstant) {
        if now.since(self.began) >= YOUNG {
            self.next = now;
        }
    }
}

impl Leadership {
    pub(super) fn rotation_due(&self) -> BootInstant {
        let goes_on = self.has_begun() && self.ending.is_none() && self.asked.is_none();
        if goes_on && !self.rotation.counting { self.rotation.next } else { BootInstant::NEVER }
    }
}

impl Core {
    pub(super) fn counted(
        &mut self,
        now: BootInstant,
        leadership: &mut Leadership,
        answer: Answer<Option<usize>>,
    ) -> Next {
        if !take(&mut leadership.rotation.counting) {
            return None;
        }
        match answer {
            Ok(Some(0)) => {
                if leadership.rotation.insists {
                    leadership.rotation.next = now.plus(self.random.about(COUNT_AGAIN));
                }
                self.say(Notice::Staying("no standby waits".to_owned()));
                None
            }
            // If the store denies renewals as well, COMMAND goes on for as long as its lease lasts.
            Err(error) if error.kind == ErrorKind::Denied && leadership.failures == 0 => {
                if !replace(&mut self.uncounted, true) {
                    self.say(Notice::Uncounted(error.message));
                }
                self.relinquish(now, leadership)
            }
            Err(error) => {
                leadership.rotation.next = now.plus(self.random.about(ASK_AGAIN));
                self.say(Notice::Staying(error.message));
                None
            }
            Ok(Some(_) | None) => self.relinquish(now, leadership),
        }
    }

    fn relinquish(&mut self, now: BootInstant, leadership: &mut Leadership) -> Next {
        if leadership.ending.is_some() || leadership.asked.is_some() {
            // COMMAND may be started again after this. Then the handover is still due.
            leadership.rotation.next = now;
            return None;
        }
        match leadership.tree {
            Tree::Idle { .. } => {
                self.say(Notice::Relinquishing);
                let hold = self.after_rotation(leadership.term);
                let then = self.ends_between_runs(now, leadership, Ended::Relinquished, Then::Held(hold));
                return Some(self.give_back(now, leadership, then));
            }
            Tree::Alive { .. } => {
                self.say(Notice::Relinquishing);
                self.stop_in_order(now, leadership, Ended::Relinquished, self.settings.stop_timeout);
            }
            Tree::Seized { .. } => {}
        }
        None
    }
}
