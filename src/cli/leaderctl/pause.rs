//! `leaderctl pause` and `leaderctl resume`: nobody leads, for deploys and migrations.

use super::balance;
use super::operator::{look_until, takes_no_orders};
use super::prelude::*;
use crate::notes::history::{self, Ordered};
use crate::notes::standbys;
use std::time::Instant;

/// The shards that an order is for.
#[derive(Debug, Args)]
#[group(id = "targets", required = true, multiple = false)]
struct Targets {
    /// The name of the shard
    shard: Option<Shard>,

    /// Apply to each known shard whose name begins with this
    #[arg(long, value_name = "PREFIX")]
    prefix: Option<Prefix>,
}

impl Targets {
    /// An empty prefix is most likely an unset variable.
    fn check(&self, does: &str) -> Result<(), String> {
        if self.prefix.as_ref().is_some_and(|prefix| prefix.as_str().is_empty()) {
            return Err(format!("the prefix is empty: it would {does} every shard; name one"));
        }
        Ok(())
    }

    /// With the shards of slots, which may never be led themselves: a pause of all slots belongs to them.
    async fn find(&self, client: Client<'_>) -> Answer<Vec<Shard>> {
        let Some(prefix) = &self.prefix else { return Ok(self.shard.iter().cloned().collect()) };
        let list = client.store.list(prefix.as_str()).await?;
        let paused = slots::paused(client, prefix.as_str()).await?;
        let names = list.into_iter().flat_map(|(shard, _)| [shard.parent(), Some(shard)]).flatten().chain(paused);
        let names: BTreeSet<Shard> = names.filter(|name| name.as_str().starts_with(prefix.as_str())).collect();
        Ok(names.into_iter().collect())
    }

    /// After a line about each shard, says how many there were. Refuses a prefix of no shard.
    fn conclude(&self, done: &str, count: usize, all: usize, json: bool) -> Result<(), Failure> {
        let Some(prefix) = self.prefix.as_ref().map(Prefix::as_str) else { return Ok(()) };
        let shards = match all {
            0 => {
                let message = format!("no shard is known whose name begins with \"{prefix}\"");
                return Err(Failure::of(exit::ctl::UNKNOWN_SHARD, message));
            }
            1 => "shard",
            _ => "shards",
        };
        if !json {
            let of = if count == all { String::new() } else { format!(" of {all}") };
            print_lines([format!("{done} {count}{of} {shards} whose names begin with \"{prefix}\"")])?;
        }
        Ok(())
    }
}

/// Adds what was done before an error in the middle of several shards.
fn after(done: usize, all: usize, what: &str, failure: impl Into<Failure>) -> Failure {
    let failure: Failure = failure.into();
    if all > 1 { failure.and(&format!("{what} {done} of {all} shards")) } else { failure }
}

#[derive(Debug, Args)]
pub struct PauseFlags {
    #[command(flatten)]
    targets: Targets,

    /// End the pause after this long [default: when it is resumed]
    #[arg(long = "for", value_name = "DURATION", value_parser = flags::duration, allow_hyphen_values = true)]
    lasts: Option<Duration>,

    /// The reason, shown by status and by standbys
    #[arg(long, value_name = "TEXT", value_parser = flags::line::<500>)]
    reason: Option<String>,

    /// Let the present leader continue, but let nobody follow it
    #[arg(long)]
    keep: bool,

    /// Replace another pause
    #[arg(long)]
    force: bool,

    /// Return when nobody leads any more, or after this long
    #[arg(long, value_name = "DURATION", require_equals = true, conflicts_with = "keep", value_parser = flags::duration)]
    #[expect(clippy::option_option, reason = "without a value it waits without end")]
    wait: Option<Option<Duration>>,

    /// Print the shard's state afterwards as one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub struct ResumeFlags {
    #[command(flatten)]
    targets: Targets,

    /// Let the candidates of HOST lead again, after step-down --host
    #[arg(long, value_name = "HOST", group = "targets", conflicts_with = "force")]
    host: Option<String>,

    /// Remove the orders even if another program wrote them
    #[arg(long)]
    force: bool,

    /// Print the shard's state afterwards as one JSON object
    #[arg(long)]
    json: bool,
}

impl PauseFlags {
    pub fn check(&self) -> Result<(), String> {
        self.targets.check("pause")?;
        if self.lasts.is_some_and(|lasts| lasts < Duration::from_secs(1)) {
            return Err("--for must be at least 1s".to_owned());
        }
        Ok(())
    }

    pub async fn order(&self, client: Client<'_>) -> Result<ExitCode, Failure> {
        let shards = self.targets.find(client).await?;
        let all = shards.len();
        // All are paused before any of them is waited for.
        let (mut paused, mut status) = (Vec::new(), ExitCode::SUCCESS);
        for shard in &shards {
            let operator = Operator { client, shard, json: self.json };
            // Read before the order, because a leader may obey at once. Only the history needs them, so failures are
            // ignored.
            let led = if self.keep { None } else { Leaders::of(&operator).await.ok() };
            let led: BTreeSet<_> = led.iter().flat_map(Leaders::terms).collect();
            match self.pause(&operator).await {
                Ok(Ok(order)) => paused.push((operator, led, order)),
                Ok(Err(refusal)) => status = refusal,
                Err(error) => return Err(after(paused.len(), all, "paused", error)),
            }
        }
        let begun = Instant::now();
        for (operator, led, order) in &paused {
            let left = self.wait.map(|most| most.unwrap_or(Duration::MAX).saturating_sub(begun.elapsed()));
            let told = self.report(operator, led, order, left).await;
            let told = told.map_err(|error| after(paused.len(), all, "paused", error))?;
            if told != ExitCode::SUCCESS {
                status = told;
            }
        }
        self.targets.conclude("paused", paused.len(), all, self.json)?;
        Ok(status)
    }

    /// The exit status if the pause was refused.
    async fn pause(&self, operator: &Operator<'_>) -> Answer<Result<PauseOrder, ExitCode>> {
        let order = orders::pause(self.reason.clone(), self.keep, self.lasts)?;
        let is_other = |pause: &PauseOrder| pause.id != order.id;
        match operator.give(|orders| &mut orders.pause, &order, is_other, self.force).await? {
            None => {}
            Some(replaced) if self.force => withdraw(operator, &replaced).await,
            Some(PauseOrder { by, since_millis, reason, .. }) => {
                let since = dated(since_millis);
                let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
                let refusal = format!("already paused by {by} since {since}{reason}; use --force to replace it");
                return Ok(Err(operator.refuse(&refusal)));
            }
        }
        // A shard that nobody ever led would not be listed otherwise. Failures are ignored.
        let Operator { client, shard, .. } = *operator;
        if operator.inspect().await.is_ok_and(|report| report == Report::default()) {
            let _ = client.ask(standbys::announce_pause(client.store, shard, &order.id, order.left)).await;
        }
        Ok(Ok(order))
    }

    async fn report(
        &self,
        operator: &Operator<'_>,
        led: &BTreeSet<(Shard, Term)>,
        order: &PauseOrder,
        wait: Option<Duration>,
    ) -> Result<ExitCode, Failure> {
        let Operator { client, shard, .. } = *operator;
        let paused =
            self.lasts.map_or("paused until it is resumed".to_owned(), |lasts| format!("paused for {}", show(lasts)));
        let although = |error| operator.although(&paused, error);
        let leaders = Leaders::of(operator).await.map_err(although)?;
        if leaders.never_led {
            Unknown::warn(client, shard).await;
        }
        if !self.keep {
            let ordered = Ordered::now(history::PAUSE, self.reason.as_deref(), None);
            let led: BTreeSet<_> = led.iter().cloned().chain(leaders.terms()).collect();
            operator.note_in_history(led.iter().map(|(shard, term)| (shard, *term)), &ordered).await;
        }
        // Leaders that we cannot see may run beside what the operator does next.
        let hidden = leaders.hidden.as_ref().map(|hidden| format!("; {}", hidden.message)).unwrap_or_default();
        // The pause still keeps candidates from following another program, so it stays in force.
        let foreign = leaders.led.iter().map(|(_, holder)| holder).find(|holder| holder.is_foreign() && !self.keep);
        let foreign = foreign.map(|foreign| format!("{paused}, but {}", takes_no_orders(foreign)));
        let Some(most) = wait else {
            let who = match foreign {
                Some(told) => return Ok(operator.refuse(&told)),
                None if leaders.led.is_empty() && hidden.is_empty() => "nobody leads".to_owned(),
                None if leaders.led.is_empty() => "nobody leads it as a whole".to_owned(),
                None if self.keep => {
                    leaders.told(shard, "continues, and nobody follows", "continue, and nobody follows")
                }
                None => {
                    leaders.told(shard, "stops when it next renews its lease", "stop when they next renew their leases")
                }
            };
            return operator.done(&format!("{paused}; {who}{hidden}")).await;
        };
        if let Some(told) = foreign {
            say(format_args!("{shard}: {told}"));
        }
        // A shard that is free is not checked again.
        let mut left: Vec<_> = leaders.led.iter().map(|(shard, _)| shard).collect();
        let look = async || {
            while let Some(shard) = left.last() {
                if client.inspect(shard).await?.holder.is_some() {
                    break;
                }
                left.pop();
            }
            // Read last, so that a candidate that gets the lease later reads the same pause.
            let stands = operator.orders().await?.pause.is_some_and(|standing| standing.id == order.id);
            Ok((!stands || left.is_empty()).then_some(stands))
        };
        match (look_until(most, look).await.map_err(although)?, leaders.hidden.clone()) {
            (Some(true), None) => operator.done(&format!("{paused}; nobody leads")).await,
            (Some(true), Some(error)) => {
                let message = format!("{shard}: {paused}, and the pause stays in force; {}", error.message);
                Err(StoreError { message, ..error }.into())
            }
            (Some(false), _) => {
                let how = "its time is over, or it was resumed or replaced";
                Ok(operator.refuse(&format!("{paused}, but the pause ended during the wait: {how}")))
            }
            (None, _) => {
                let who = leaders.told(shard, "has not stopped", "have not all stopped");
                Ok(operator.not_yet(self.wait.flatten().unwrap_or_default(), &who))
            }
        }
    }
}

struct Leaders {
    led: Vec<(Shard, Holder)>,
    /// Why there may be more leaders.
    hidden: Option<StoreError>,
    never_led: bool,
}

impl Leaders {
    async fn of(operator: &Operator<'_>) -> Answer<Self> {
        let report = operator.inspect().await?;
        let slots = Slots::of(operator.client, operator.shard).await?;
        let never_led = never_led(&report, &slots);
        let whole = report.holder.map(|holder| (operator.shard.clone(), holder));
        let led = slots.led().map(|(slot, holder)| (slot.clone(), holder.clone()));
        Ok(Self { led: whole.into_iter().chain(led).collect(), hidden: slots.hidden, never_led })
    }

    fn terms(&self) -> impl Iterator<Item = (Shard, Term)> {
        self.led.iter().filter_map(|(shard, holder)| Some((shard.clone(), holder.term?)))
    }

    /// What they do: `one` for one leader, `several` for more.
    fn told(&self, shard: &Shard, one: &str, several: &str) -> String {
        let named = self.led.iter().map(|(led, holder)| match led {
            whole if whole == shard => holder.to_string(),
            slot => format!("{holder} of {slot}"),
        });
        let does = if self.led.len() == 1 { one } else { several };
        format!("{} {does}", named.collect::<Vec<_>>().join(", "))
    }
}

async fn withdraw(operator: &Operator<'_>, pause: &PauseOrder) {
    let Operator { client, shard, .. } = *operator;
    let _ = client.ask(standbys::withdraw_pause(client.store, shard, &pause.id)).await;
}

impl ResumeFlags {
    pub fn check(&self) -> Result<(), String> {
        self.targets.check("resume")
    }

    pub async fn order(&self, client: Client<'_>) -> Result<ExitCode, Failure> {
        if let Some(host) = &self.host {
            return balance::resume(host, self.json, client).await;
        }
        let shards = self.targets.find(client).await?;
        let all = shards.len();
        let mut resumed = 0;
        // The others are resumed even if that cannot be told.
        let mut told = Ok(ExitCode::SUCCESS);
        for shard in &shards {
            let operator = Operator { client, shard, json: self.json };
            let (was_paused, done) =
                self.resume(&operator).await.map_err(|error| after(resumed, all, "resumed", error))?;
            resumed += usize::from(was_paused);
            told = told.and(operator.done(&done).await);
        }
        let status = told.map_err(|error| after(resumed, all, "resumed", error))?;
        self.targets.conclude("resumed", resumed, all, self.json)?;
        Ok(status)
    }

    /// Returns whether there was a pause, and what was done.
    async fn resume(&self, operator: &Operator<'_>) -> Result<(bool, String), Failure> {
        let Operator { client, shard, .. } = *operator;
        let ended = match operator.take_back(|orders| &mut orders.pause).await {
            Err(error) if self.force && error.exit_status() == exit::CONFIGURATION => {
                client.several(orders::remove(client.store, shard)).await?;
                return Ok((true, "resumed: removed orders that another program wrote".to_owned()));
            }
            ended => ended?,
        };
        if let Some((ended, perhaps)) = ended {
            withdraw(operator, &ended).await;
            let PauseOrder { by, since_millis, .. } = ended;
            return Ok((true, format!("resumed{perhaps}; it was paused by {by} since {}", dated(since_millis))));
        }
        // What was found by its prefix is known, even if the pause has ended since.
        if self.targets.prefix.is_none() {
            operator.known_slots(&operator.inspect().await?).await?;
        }
        Ok((false, "not paused".to_owned()))
    }
}
