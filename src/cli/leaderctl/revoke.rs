//! `leaderctl revoke`: takes a lease away from its holder.
//!
//! The hazard: a host that does not answer may still run COMMAND. So this only takes the lease away: the next leader
//! starts nothing before the old lease would have ended, and by then the old tree is dead. It is for a leader that only
//! renews its lease. It does not make a takeover after a crash faster.
//!
//! A leader looks dead between two renewals. So it is watched for as long as its lease had left at the first check. An
//! outage of the store proves nothing: the lease is taken away only if a check at the end of the watch shows that it
//! was not renewed.

use super::operator::{look_until, takes_no_orders};
use super::prelude::*;
use crate::notes::history::{self, Ordered};
use crate::store::Release;
use std::time::Instant;

/// Some stores report the time left to the second, and clocks differ in their rates.
const UNCERTAINTY: Duration = Duration::from_millis(1500);
const SOON: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub struct RevokeFlags {
    /// The name of the shard
    shard: Shard,

    /// The term that status shows
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    term: u64,

    /// How long to watch for renewals [default: until the lease would end]
    #[arg(long = "for", value_name = "DURATION", value_parser = flags::duration, allow_hyphen_values = true)]
    watch: Option<Duration>,

    /// Do not watch: take the lease away even if it is renewed
    #[arg(long)]
    force: bool,

    /// Print the shard's state afterwards as one JSON object
    #[arg(long)]
    json: bool,
}

impl RevokeFlags {
    pub async fn order(&self, client: Client<'_>) -> Result<ExitCode, Failure> {
        let operator = Operator { client, shard: &self.shard, json: self.json };
        let term = Term(self.term);
        let report = operator.inspect().await?;
        let holder = match report.holder {
            None => {
                let slots = operator.known_slots(&report).await?.advice();
                return Err(operator.refusal(&format!("nobody holds the lease: there is nothing to revoke{slots}")));
            }
            Some(holder) if holder.is_foreign() => return Err(operator.refusal(&takes_no_orders(&holder))),
            Some(holder) if holder.term != Some(term) => {
                return Err(operator.refusal(&format!("term {term} does not lead: {holder} does")));
            }
            Some(holder) => holder,
        };
        if !self.force {
            match self.watch(&operator, &holder, term).await? {
                Verdict::Unrenewed => {}
                Verdict::Renewed(refusal) => return Err(operator.refusal(&refusal)),
                Verdict::Ended => return operator.done(&format!("the lease of term {term} has ended by itself")).await,
            }
        }
        match client.ask(client.store.revoke(&self.shard, term)).await? {
            Release::NotHeld => Err(operator.refusal(&format!("term {term} had already ended"))),
            Release::Released => {
                let ordered = Ordered::now(history::REVOKE, None, None);
                operator.note_in_history([(&self.shard, term)], &ordered).await;
                let host = holder.host.as_ref().map(|host| format!(" on {host}")).unwrap_or_default();
                let left = holder.expires_in.map(show).unwrap_or_default();
                let done = format!(
                    "took the lease of term {term} away; if {}{host} is alive, it stops COMMAND when it next renews; the next \
                     leader starts nothing before {left} from now",
                    holder.owner
                );
                operator.done(&done).await
            }
        }
    }

    async fn watch(&self, operator: &Operator<'_>, first: &Holder, term: Term) -> Answer<Verdict> {
        let begun = Instant::now();
        let Some(left) = first.expires_in else { return Ok(Verdict::Unrenewed) };
        let most = self.watch.unwrap_or(left + UNCERTAINTY);
        if most > SOON {
            say(format_args!("watching for {} whether {first} renews its lease", show(most)));
        }
        // The watch starts again after an outage, during which the leader could not renew either.
        let (mut seen_since, mut away) = (begun, false);
        let look = async || {
            // The answer shows the lease at a later instant.
            let asked = begun.elapsed();
            let report = match operator.inspect().await {
                Ok(report) => report,
                Err(error) if seen_since.elapsed() >= most => return Ok(Some(Err(error))),
                Err(error) => {
                    away = true;
                    return Err(error);
                }
            };
            let verdict = judge(&report, term, left, asked);
            if verdict != Verdict::Unrenewed || !away && seen_since.elapsed() >= most {
                return Ok(Some(Ok(verdict)));
            }
            if std::mem::take(&mut away) {
                seen_since = Instant::now();
            }
            Ok(None)
        };
        look_until(Duration::MAX, look).await?.expect("it looks without end")
    }
}

/// Judges the lease of `term`, which had `left` to go `since` ago.
fn judge(report: &Report, term: Term, left: Duration, since: Duration) -> Verdict {
    let Some(holder) = report.holder.as_ref().filter(|holder| holder.term == Some(term)) else { return Verdict::Ended };
    let unrenewed = left.saturating_sub(since);
    let longer = holder.expires_in.is_some_and(|now| now > unrenewed + UNCERTAINTY);
    // A short lease never has that much more time left. But a renewed one outlives its earlier end.
    if longer || since >= left + UNCERTAINTY {
        Verdict::Renewed(format!(
            "{holder} renews its lease: use step-down or pause, or revoke --force to take it away"
        ))
    } else {
        Verdict::Unrenewed
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Unrenewed,
    /// Why it is not taken away.
    Renewed(String),
    Ended,
}
