//! The operators' orders.
//!
//! The hazard: an answer shows the orders as they were at the request, so a pause may be written between a look and a
//! claim. A leader therefore reads the orders *after* its grant, before it starts COMMAND. After that they come with
//! the answer to every renewal, or are read when that answer does not bring them. A standby that orders keep from
//! leading claims nothing, and reads them until they allow it.
//!
//! Answers may arrive in another order than their requests were sent. So orders that are older than those already heard
//! are ignored: a pause that is over must not stop COMMAND, and an order is not taken back by an earlier answer.

use super::state::{LEAST_PAUSE, Leadership, Request, Standby, State, Then, Tree, Waiting, log_is_due};
use super::{
    Action, Core, Directives, Ended, Handover, HeldBack, Hold, Next, Notice, Obstacle, Outcome, Patience, Pause,
};
use crate::store::{Answer, StoreError};
use crate::time::BootInstant;
use std::mem::take;

impl Core {
    pub(super) fn ordered(&mut self, now: BootInstant, state: &mut State, answer: Answer<Directives>) -> Next {
        match state {
            State::Standby(standby) if standby.request == Some(Request::Orders) => {
                standby.request = None;
                match answer {
                    Ok(directives) => {
                        self.orders_worked = true;
                        self.store_answered();
                        Some(if let Some(hold) = self.hold(now, None, &directives) {
                            self.wait_on_hold(now, hold)
                        } else {
                            self.waiting.hold = None;
                            State::Standby(Standby::about_to(Request::Claim, now))
                        })
                    }
                    Err(error) => self.standby_failed(now, standby, Request::Orders, error),
                }
            }
            State::Leading(leadership) => {
                let sent = leadership.reading.in_flight.take()?;
                match answer {
                    // A renewal brought later orders, which do not allow a start.
                    Ok(_) if sent < leadership.reading.heard => {
                        if !leadership.reading.cleared {
                            leadership.reading.stale = false;
                            leadership.reading.next = now;
                        }
                        None
                    }
                    Ok(directives) => {
                        let next = self.leader_ordered(now, leadership, sent, &directives);
                        let reading = &mut leadership.reading;
                        if take(&mut reading.stale) {
                            reading.next = now;
                        } else {
                            reading.cleared = true;
                        }
                        next
                    }
                    Err(error) => self.leader_without_orders(now, leadership, error),
                }
            }
            State::Standby(_) | State::Withdrawing { .. } | State::Releasing(_) | State::Ended => None,
        }
    }

    /// Handles the orders that came with the answer to a renewal sent at `sent`. If none came, they are read. They do not
    /// allow a start: some stores may bring orders that are a moment old.
    pub(super) fn renewal_brought(
        &mut self,
        now: BootInstant,
        leadership: &mut Leadership,
        sent: BootInstant,
        orders: Option<Directives>,
    ) -> Next {
        match orders {
            Some(directives) if sent >= leadership.reading.heard => {
                self.leader_ordered(now, leadership, sent, &directives)
            }
            Some(_) => None,
            None => {
                leadership.read_orders_soon(now);
                None
            }
        }
    }

    fn leader_ordered(
        &mut self,
        now: BootInstant,
        leadership: &mut Leadership,
        sent: BootInstant,
        directives: &Directives,
    ) -> Next {
        leadership.reading.heard = sent;
        leadership.reading.failures = 0;
        self.orders_worked = true;
        if let Some(hold) = self.hold(now, Some(leadership), directives) {
            if matches!(leadership.tree, Tree::Idle { .. }) {
                let then = self.ends_between_runs(now, leadership, Ended::ordered(&hold), Then::Held(hold));
                return Some(self.give_back(now, leadership, then));
            }
            if leadership.ending.is_none() {
                self.say(Notice::SteppingDown(hold.clone()));
                self.stop_in_order(now, leadership, Ended::ordered(&hold), self.settings.stop_timeout);
                leadership.ordered = Some(hold);
            } else if let Some(ordered) = &mut leadership.ordered {
                *ordered = hold;
            }
        } else if let Some(done) = directives.handover.as_ref().filter(|handover| handover.term < leadership.term) {
            self.actions.push(Action::ForgetHandover { term: done.term });
        }
        None
    }

    /// COMMAND goes on for as long as the lease lasts. It is not started before the orders are read.
    fn leader_without_orders(&mut self, now: BootInstant, leadership: &mut Leadership, error: StoreError) -> Next {
        let final_word = error.kind.is_final();
        if final_word && matches!(leadership.tree, Tree::Idle { .. }) {
            let then = if self.orders_worked {
                // It soon leads again, and may not be able to read them again.
                if log_is_due(self.given_back_unread, now) {
                    self.given_back_unread = Some(now);
                    self.say(Notice::OrdersUnread { message: error.message, running: false });
                }
                // Another candidate may have permission to read them.
                Then::Standby { pause: self.random.about(self.settings.timing.retry_interval) }
            } else {
                Then::End(Outcome::Refused(error))
            };
            let then = match leadership.runs.waiting {
                Some(end) => self.ends_between_runs(now, leadership, Ended::ByItself(end), then),
                None => then,
            };
            return Some(self.give_back(now, leadership, then));
        }
        leadership.reading.stale = false;
        leadership.reading.failures += 1;
        let failures = leadership.reading.failures;
        if !leadership.reading.cleared {
            let most = self.longest_pause(now, leadership, 4);
            let pause = self.random.backoff(failures, most);
            leadership.reading.next = now.plus(pause);
        }
        // If the store does not answer at all, the renewals report it.
        if leadership.ending.is_none() && (final_word || failures > 1) && log_is_due(leadership.reading.logged_at, now)
        {
            leadership.reading.logged_at = Some(now);
            let running = !matches!(leadership.tree, Tree::Idle { .. });
            self.say(Notice::OrdersUnread { message: error.message, running });
        }
        None
    }

    /// What keeps us from leading, or from going on. A handover holds us back for its time only once.
    fn hold(&mut self, now: BootInstant, leadership: Option<&Leadership>, directives: &Directives) -> Option<Hold> {
        let leads = leadership.map(|leadership| leadership.term);
        let runs = leadership.is_some_and(Leadership::has_begun);
        if let Some(Pause { left, said, .. }) = directives.pause.as_ref().filter(|pause| !(runs && pause.keep)) {
            return Some(Hold { why: HeldBack::Paused, said: said.clone(), left: *left });
        }
        let Handover { term, hold, said, .. } = directives.handover.as_ref().filter(|handover| !handover.welcome)?;
        let until = match self.yielding {
            _ if leads == Some(*term) => now.plus(*hold),
            _ if runs => return None,
            Some((seen, until)) if seen == *term => until,
            Some(_) | None => now.plus(*hold),
        };
        self.yielding = Some((*term, until));
        let left = until.since(now);
        (!left.is_zero()).then(|| Hold { why: HeldBack::HandedOver(*term), said: said.clone(), left: Some(left) })
    }

    /// Makes a standby that waits until the orders let it lead.
    pub(super) fn wait_on_hold(&mut self, now: BootInstant, hold: Hold) -> State {
        let pause = self.random.about(self.settings.timing.retry_interval);
        let pause = hold.left.map_or(pause, |left| pause.min(left).max(LEAST_PAUSE));
        self.wait_on(now, hold, Standby::about_to(Request::Orders, now.plus(pause)))
    }

    /// Waits as `standby` because of `hold`, unless the candidate does not wait.
    pub(super) fn wait_on(&mut self, now: BootInstant, hold: Hold, standby: Standby) -> State {
        if self.settings.patience == Patience::Once {
            return self.leave_for_good(now, Outcome::NotAcquired(Some(Obstacle::Hold(hold))));
        }
        if self.waiting.hold.as_ref().is_none_or(|known| known.said != hold.said) {
            self.say(Notice::Held(hold.clone()));
        }
        self.waiting = Waiting { until: self.waiting.until, error: None, holder: None, hold: Some(hold) };
        State::Standby(standby)
    }
}
