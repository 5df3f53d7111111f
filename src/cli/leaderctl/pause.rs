//! `leaderctl pause` and `leaderctl resume`: nobody leads, for deploys and migrations.

use super::age::dated;
use super::operator::Operator;
use super::unknown::Unknown;
use crate::cli::flags;
use crate::exit;
use crate::lease::{Shard, show};
use crate::notes::history::{self, Ordered};
use crate::notes::orders::{self, PauseOrder};
use crate::store::{Store, StoreError, within};
use clap::Args;
use std::process::ExitCode;
use std::time::Duration;

#[derive(Debug, Args)]
pub struct PauseFlags {
    /// The name of the shard
    #[arg(value_name = "SHARD", value_parser = clap::value_parser!(Shard))]
    shard: Shard,

    /// End the pause after this long [default: when it is resumed]
    #[arg(long = "for", value_name = "DURATION", value_parser = flags::duration, allow_hyphen_values = true)]
    lasts: Option<Duration>,

    /// The reason, shown by status and by standbys
    #[arg(long, value_name = "TEXT", value_parser = text)]
    reason: Option<String>,

    /// Let the present leader continue, but let nobody follow it
    #[arg(long)]
    keep: bool,

    /// Replace another pause
    #[arg(long)]
    force: bool,

    /// Return when nobody leads any more, or after this long
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, conflicts_with = "keep",
          value_parser = flags::duration)]
    #[expect(clippy::option_option, reason = "an option with an optional value")]
    wait: Option<Option<Duration>>,

    /// Print the shard's state afterwards as one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub struct ResumeFlags {
    /// The name of the shard
    #[arg(value_name = "SHARD", value_parser = clap::value_parser!(Shard))]
    shard: Shard,

    /// Remove the orders even if another program wrote them
    #[arg(long)]
    force: bool,

    /// Print the shard's state afterwards as one JSON object
    #[arg(long)]
    json: bool,
}

/// A text that others read on one line, and that some stores charge for.
fn text(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > 500 || text.contains(char::is_control) {
        return Err("write 1 to 500 bytes on one line".to_owned());
    }
    Ok(text.to_owned())
}

impl PauseFlags {
    /// # Errors
    /// One line that says what is wrong with the flags.
    pub fn check(&self) -> Result<(), String> {
        match self.lasts {
            Some(lasts) if lasts < Duration::from_secs(1) => Err("--for must be at least 1s".to_owned()),
            Some(_) | None => Ok(()),
        }
    }

    /// # Errors
    /// As [`orders::change`].
    pub async fn order(&self, store: &dyn Store, patience: Duration) -> Result<ExitCode, StoreError> {
        let operator = Operator { store, patience, shard: &self.shard, json: self.json };
        let order = orders::pause(self.reason.clone(), self.keep, self.lasts)
            .map_err(|error| StoreError::not_applied(format!("no random bytes: {error}")))?;
        let mut other: Option<PauseOrder> = None;
        operator
            .change(|orders| {
                other = orders.pause.clone().filter(|pause| pause.id != order.id);
                if other.is_some() && !self.force {
                    return false;
                }
                orders.pause = Some(order.clone());
                true
            })
            .await?;
        if let Some(other) = other.filter(|_| !self.force) {
            let (by, since) = (&other.by, dated(other.since_millis));
            let reason = other.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
            return Ok(
                operator.refuse(&format!("already paused by {by} since {since}{reason}; use --force to replace it"))
            );
        }
        let until = self.lasts.map_or("until it is resumed".to_owned(), |lasts| format!("for {}", show(lasts)));
        let paused = |error| operator.although(&format!("paused {until}"), error);
        let leaders = operator.leaders().await.map_err(paused)?;
        if leaders.led.is_empty()
            && let Some(unknown) = Unknown::find(store, &self.shard, patience).await
        {
            unknown.say(&self.shard);
        }
        if !self.keep {
            let ordered = Ordered::now(history::PAUSE, self.reason.as_deref(), None);
            operator.note_in_history(leaders.led.iter().map(|(shard, holder)| (shard, holder.term)), &ordered).await;
        }
        // Leaders that we cannot see may run beside what the operator does next.
        let hidden = leaders.hidden.as_ref().map(|hidden| format!("; {}", hidden.message)).unwrap_or_default();
        if self.wait.is_none() && leaders.led.is_empty() {
            let nobody = if hidden.is_empty() { "nobody leads" } else { "nobody leads it as a whole" };
            return operator.done(&format!("paused {until}; {nobody}{hidden}")).await;
        }
        if self.keep {
            let who = leaders.told(&self.shard, "continues, and nobody follows", "continue, and nobody follows");
            return operator.done(&format!("paused {until}; {who}{hidden}")).await;
        }
        let Some(most) = self.wait else {
            let stop = ("stops when it next renews its lease", "stop when they next renew their leases");
            return operator
                .done(&format!("paused {until}; {}{hidden}", leaders.told(&self.shard, stop.0, stop.1)))
                .await;
        };
        if !operator.wait_until_free(most, &leaders.led).await.map_err(paused)? {
            let who = leaders.told(&self.shard, "has not stopped", "have not all stopped");
            return Ok(operator.not_yet(most, &who));
        }
        match leaders.hidden {
            None => operator.done(&format!("paused {until}; nobody leads")).await,
            Some(error) => {
                let message =
                    format!("{}: paused {until}, and the pause stays in force; {}", self.shard, error.message);
                Err(StoreError { message, ..error })
            }
        }
    }
}

impl ResumeFlags {
    /// # Errors
    /// As [`orders::change`].
    pub async fn order(&self, store: &dyn Store, patience: Duration) -> Result<ExitCode, StoreError> {
        let operator = Operator { store, patience, shard: &self.shard, json: self.json };
        let mut ended: Option<PauseOrder> = None;
        let changed = operator
            .change(|orders| {
                // On a retry after a lost answer, the pause is already gone.
                ended = orders.pause.take().or(ended.take());
                true
            })
            .await;
        match changed {
            Err(error) if self.force && error.exit_status() == exit::CONFIGURATION => {
                within(patience * 4, orders::remove(store, &self.shard)).await?;
                return operator.done("resumed: removed orders that another program wrote").await;
            }
            changed => changed?,
        };
        match ended {
            Some(PauseOrder { by, since_millis, .. }) => {
                operator.done(&format!("resumed; it was paused by {by} since {}", dated(since_millis))).await
            }
            None => operator.done("not paused").await,
        }
    }
}
