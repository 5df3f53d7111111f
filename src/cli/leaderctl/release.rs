//! `leaderctl release`: ends a lease that nobody renews any more.
//!
//! The hazard: a host that does not answer may still run COMMAND, and no operator far away can know. So this takes the
//! lease away, and nothing else: whoever is granted the next one starts nothing before the last one would have ended,
//! by which time its tree is dead. It does not make a takeover after a crash any faster than the lease; it ends what
//! a candidate goes on to renew that does nothing else any more, and records that something else left behind.

use super::desk::Desk;
use crate::cli::flags;
use crate::lease::{Shard, Term, show};
use crate::store::{Holder, Release, Report, Store, StoreError};
use clap::Args;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// What is left of a lease is told to the second by some stores, and by clocks of different rates.
const UNCERTAINTY: Duration = Duration::from_millis(1500);

#[derive(Debug, Args)]
pub struct ReleaseFlags {
    /// The name that is led
    #[arg(value_name = "SHARD", value_parser = clap::value_parser!(Shard))]
    shard: Shard,

    /// Which leadership, as status tells
    #[arg(long, value_name = "N")]
    term: u64,

    /// Watch for so long whether it is renewed
    #[arg(long = "for", value_name = "DURATION", default_value = "10s", value_parser = flags::duration,
          allow_hyphen_values = true)]
    watch: Duration,

    /// End it though it is renewed, and without watching
    #[arg(long)]
    force: bool,

    /// The shard's state afterwards, as one JSON object
    #[arg(long)]
    json: bool,
}

impl ReleaseFlags {
    /// # Errors
    /// As [`Store::revoke`].
    pub async fn order(&self, store: &dyn Store, patience: Duration) -> Result<ExitCode, StoreError> {
        let desk = Desk { store, patience, shard: &self.shard, json: self.json };
        let term = Term(self.term);
        let holder = match desk.inspect().await?.holder {
            None => return Ok(desk.refuse("nobody holds the lease")),
            Some(holder) if holder.term != Some(term) => {
                return Ok(desk.refuse(&format!("{holder} leads, and not term {term}")));
            }
            Some(holder) => holder,
        };
        if !self.force
            && let Some(refusal) = self.watch(&desk, &holder, term).await?
        {
            return Ok(desk.refuse(&refusal));
        }
        match super::bounded(patience, store.revoke(&self.shard, term)).await? {
            Release::NotHeld => Ok(desk.refuse(&format!("term {term} had ended already"))),
            Release::Released => {
                let host = holder.host.as_ref().map(|host| format!(" on {host}")).unwrap_or_default();
                let left = holder.expires_in.map(show).unwrap_or_default();
                desk.done(&format!(
                    "the lease of term {term} is ended; if {}{host} is alive it stops COMMAND when it next renews, and \
                     whoever is granted the lease next starts nothing before {left} from now",
                    holder.owner
                ))
                .await
            }
        }
    }

    /// Why the lease should not be ended.
    async fn watch(&self, desk: &Desk<'_>, first: &Holder, term: Term) -> Result<Option<String>, StoreError> {
        let begun = Instant::now();
        let Some(left) = first.expires_in else { return Ok(None) };
        let verdict = |report: &Report| match report.holder.as_ref().filter(|holder| holder.term == Some(term)) {
            None => Some(format!("term {term} has ended by itself")),
            Some(holder) => {
                let unrenewed = left.saturating_sub(begun.elapsed());
                let renewed = holder.expires_in.is_some_and(|now| now > unrenewed + UNCERTAINTY);
                renewed.then(|| {
                    format!(
                        "{holder} renews its lease: use step-down or pause; release --force takes it away all the same"
                    )
                })
            }
        };
        desk.wait_until(Some(self.watch), verdict).await
    }
}
