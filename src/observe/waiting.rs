//! A log line, once in a long while, about what a standby waits for.
//!
//! The hazard: what a standby knows of the holder is as old as its last look, which may be long ago if the store
//! reports changes. So the line counts down from when it heard of the lease, and says that the leader may renew.

use crate::election::{Event, HeldBack, Hold, LogEvent, Obstacle, Role, View};
use crate::lease::{Candidate, Deadline, Shard, Term, show, show_seconds};
use crate::observe::Observer;
use crate::store::{Claim, Observation};
use crate::text::on_one_line;
use crate::time::BootInstant;
use std::mem::take;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// After this the log says that the store has not answered the first request.
const FIRST: Duration = Duration::from_secs(2);
/// Seldom enough not to fill a log, but today's log has one.
const EVERY: Duration = Duration::from_hours(1);

pub(crate) struct WaitingLog {
    shard: String,
    owner: String,
    store: String,
    answered: bool,
    early: bool,
    /// Some while the candidate waits, with since when.
    waits: Option<(View, BootInstant)>,
    heard: Heard,
    next: Instant,
}

#[derive(Clone, Copy)]
struct Heard {
    holder: BootInstant,
    orders: BootInstant,
}

impl WaitingLog {
    pub(crate) fn new(candidate: &Candidate, store: String) -> Self {
        let now = BootInstant::now();
        Self {
            shard: candidate.shard.to_string(),
            owner: candidate.owner.clone(),
            store,
            answered: false,
            early: false,
            waits: None,
            heard: Heard { holder: now, orders: now },
            next: Instant::now() + EVERY,
        }
    }

    /// Returns when it is time for [`WaitingLog::say`]. Cancel-safe.
    pub(crate) async fn due(&self) {
        if self.waits.is_none() {
            std::future::pending::<()>().await;
        }
        sleep_until(self.next).await;
    }

    pub(crate) fn say(&mut self) {
        let now = BootInstant::now();
        self.next = Instant::now() + EVERY;
        if take(&mut self.early) && self.answered {
            return;
        }
        if let Some((view, since)) = &self.waits {
            let line = if self.answered {
                line(view, *since, self.heard, now)
            } else {
                let waited = show(Duration::from_secs(now.since(*since).as_secs()));
                format!("waiting {waited}: {} has not answered yet", self.store)
            };
            let shard = &self.shard;
            let owner = &self.owner;
            tracing::info!(event = LogEvent::Waiting.into_str(), shard, owner, "{line}");
        }
    }
}

impl Observer for WaitingLog {
    fn began(&mut self, _: &Shard, _: Term, _: Deadline) {
        self.waits = None;
    }

    fn saw(&mut self, event: &Event) {
        match event {
            Event::Claimed { answer: Ok(Claim::Refused(_)), .. }
            | Event::Observed { answer: Ok(Observation::Held(_)) } => self.heard.holder = BootInstant::now(),
            Event::Ordered { answer: Ok(_) } => self.heard.orders = BootInstant::now(),
            _ => {}
        }
        self.answered |= matches!(event, Event::Claimed { .. } | Event::Observed { .. });
    }

    fn show(&mut self, view: &View) {
        match (&view.role, &mut self.waits) {
            (Role::Standby(_), Some((shown, _))) => shown.clone_from(view),
            (Role::Standby(_), None) => {
                self.waits = Some((view.clone(), BootInstant::now()));
                self.early = !self.answered;
                self.next = Instant::now() + if self.early { FIRST } else { EVERY };
            }
            (Role::Leader(_) | Role::Restarting { .. } | Role::Leaving, _) => self.waits = None,
        }
    }
}

fn line(view: &View, since: BootInstant, heard: Heard, now: BootInstant) -> String {
    let waited = show(Duration::from_secs(now.since(since).as_secs()));
    let obstacle = match &view.role {
        Role::Standby(Some(obstacle)) => obstacle_at(obstacle, since, heard, now),
        Role::Standby(None) | Role::Leader(_) | Role::Restarting { .. } | Role::Leaving => {
            "the leader is not known yet".to_owned()
        }
    };
    let why = match &view.trouble {
        Some((message, since)) => {
            let lasting = show(Duration::from_secs(now.since(*since).as_secs()));
            format!("trouble with the store for {lasting}: {message}; before that {obstacle}")
        }
        None => obstacle,
    };
    let takeover_warning =
        view.takeover_warning.as_ref().map(|takeover_warning| format!("; {takeover_warning}")).unwrap_or_default();
    on_one_line(format!("waiting {waited}: {why}{takeover_warning}"))
}

fn obstacle_at(obstacle: &Obstacle, since: BootInstant, heard: Heard, now: BootInstant) -> String {
    match obstacle {
        Obstacle::Holder(holder) => match holder.expires_in {
            Some(left) => {
                let left = left.saturating_sub(now.since(heard.holder));
                format!("{holder} leads for another {} unless it renews", show_seconds(left))
            }
            None => format!("{holder} leads"),
        },
        // A standby stands back from the beginning of its wait.
        Obstacle::Hold(hold @ Hold { why: HeldBack::StandingBack(_), .. }) => hold.after(now.since(since)).to_string(),
        Obstacle::Hold(hold) => hold.after(now.since(heard.orders)).to_string(),
        Obstacle::Doubt(doubt, left) => {
            Obstacle::Doubt(*doubt, left.saturating_sub(now.since(heard.holder))).to_string()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::{Late, Term};
    use crate::store::Holder;
    use crate::time::at;

    fn waiting_for(who: &str) -> View {
        View {
            role: Role::Standby(Some(holder(who, None))),
            trouble: None,
            takeover_warning: None,
            late: Late::default(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_standby_says_once_an_hour_that_it_waits() {
        let mut line = WaitingLog::new(&Candidate::example(), "the store".to_owned());
        let began = Instant::now();
        let waited = async |line: &WaitingLog| {
            line.due().await;
            (Instant::now() - began).as_secs().div_ceil(60)
        };
        line.show(&View { role: Role::Standby(None), ..waiting_for("") });
        assert_eq!((waited(&line).await, began.elapsed().as_secs()), (1, 2), "there may be no answer");
        line.answered = true;
        line.say();
        line.show(&waiting_for("db3"));
        assert_eq!(waited(&line).await, 61);
        line.say();
        line.show(&waiting_for("db4"));
        assert_eq!(waited(&line).await, 121, "another leader is not another wait");
        line.show(&View { role: Role::Leader(Term(8)), ..waiting_for("") });
        assert!(tokio::time::timeout(Duration::from_hours(9), line.due()).await.is_err(), "a leader does not wait");
    }

    fn shown(obstacle: Option<Obstacle>, trouble: Option<(String, BootInstant)>) -> String {
        let view = View { role: Role::Standby(obstacle), trouble, takeover_warning: None, late: Late::default() };
        line(&view, at(100), Heard { holder: at(160), orders: at(162) }, at(165))
    }

    fn holder(owner: &str, expires_in: Option<u64>) -> Obstacle {
        let expires_in = expires_in.map(Duration::from_secs);
        Obstacle::Holder(Holder { owner: owner.to_owned(), term: Some(Term(7)), expires_in, ..Holder::default() })
    }

    #[test]
    fn the_rest_of_a_lease_is_counted_down_from_when_it_was_heard() {
        for (left, shown_as) in [(12, "7s"), (2, "0s")] {
            let expected = format!("waiting 1m 5s: db3 (term 7) leads for another {shown_as} unless it renews");
            assert_eq!(shown(Some(holder("db3", Some(left))), None), expected);
        }
        assert_eq!(shown(Some(holder("db3", None)), None), "waiting 1m 5s: db3 (term 7) leads");
        assert_eq!(shown(None, None), "waiting 1m 5s: the leader is not known yet");
    }

    #[test]
    fn trouble_with_the_store_comes_first_and_nothing_in_it_moves_the_cursor() {
        let trouble = ("cannot reach redis at 10.0.0.5:6379:\u{1b}[2J\nrefused".to_owned(), at(150));
        assert_eq!(
            shown(Some(holder("db\r3", None)), Some(trouble)),
            "waiting 1m 5s: trouble with the store for 15s: cannot reach redis at 10.0.0.5:6379: [2J refused; \
             before that db 3 (term 7) leads"
        );
    }
}
