//! `leaderctl step-down`: the leader stops COMMAND in order and lets another candidate lead.

use super::PROGRAM;
use super::operator::Operator;
use super::slots::Slots;
use crate::cli::flags;
use crate::lease::{Shard, Term};
use crate::notes::orders::{self, HandoverOrder};
use crate::observe::terminal;
use crate::store::{Holder, Report, Store, StoreError};
use crate::text::on_one_line;
use clap::Args;
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[derive(Debug, Args)]
pub struct StepDownFlags {
    /// The name of the shard
    #[arg(value_name = "SHARD", value_parser = clap::value_parser!(Shard))]
    shard: Shard,

    /// The owner or host that may lead next [default: any other candidate]
    #[arg(long, value_name = "NAME", value_parser = name)]
    to: Option<String>,

    /// How long the order keeps other candidates back
    #[arg(long = "for", value_name = "DURATION", default_value = "30s", value_parser = flags::duration,
          allow_hyphen_values = true)]
    hold: Duration,

    /// Return when another candidate leads, or after this long
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, value_parser = flags::duration)]
    #[expect(clippy::option_option, reason = "an option with an optional value")]
    wait: Option<Option<Duration>>,

    /// Print the shard's state afterwards as one JSON object
    #[arg(long)]
    json: bool,
}

/// The longest that a handover may keep a shard without a leader.
const MOST_HOLD: Duration = Duration::from_hours(1);

fn name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > 256 || text.contains(char::is_control) {
        return Err("write an owner or a host, at most 256 bytes".to_owned());
    }
    Ok(text.to_owned())
}

impl StepDownFlags {
    /// # Errors
    /// One line that says what is wrong with the flags.
    pub fn check(&self) -> Result<(), String> {
        if self.hold.is_zero() || self.hold > MOST_HOLD {
            return Err(
                "--for must be more than 0 and at most 1h: the shard may have no leader for that long".to_owned()
            );
        }
        Ok(())
    }

    /// # Errors
    /// As [`orders::change`].
    pub async fn order(&self, store: &dyn Store, patience: Duration) -> Result<ExitCode, StoreError> {
        let operator = Operator { store, patience, shard: &self.shard, json: self.json };
        let Some(holder) = operator.inspect().await?.holder else {
            let slots = Slots::of(store, &self.shard, patience).await?;
            let more = slots.advice().or(slots.hidden.map(|hidden| hidden.message));
            return Ok(operator.refuse(
                &more.map_or("nobody leads".to_owned(), |more| format!("nobody leads it as a whole; {more}")),
            ));
        };
        let (term, session) = match (&holder.term, &holder.session) {
            (Some(term), Some(session)) => (*term, session.clone()),
            _ => return Ok(operator.refuse(&format!("{holder} leads and takes no orders: stop it on its host"))),
        };
        if let Some(to) = &self.to {
            if is_called(&holder, to) {
                return Ok(operator.refuse(&format!("{holder} already leads on \"{to}\": name another owner or host")));
            }
            if !store.is_metered() && !operator.knows_standby(to).await? {
                terminal::say(format_args!(
                    "{PROGRAM}: {}: no standby is called \"{}\": the shard may have no leader until --for is over",
                    self.shard,
                    on_one_line(to.clone())
                ));
            }
        }
        let order = orders::handover(term, Some(session), self.to.clone(), self.hold)
            .map_err(|error| StoreError::not_applied(format!("no random bytes: {error}")))?;
        let mut other: Option<HandoverOrder> = None;
        operator
            .change(|orders| {
                other = orders.handover.clone().filter(|handover| handover.term == term && handover.id != order.id);
                if other.is_some() {
                    return false;
                }
                orders.handover = Some(order.clone());
                true
            })
            .await?;
        if let Some(HandoverOrder { by, to, .. }) = other {
            let to = to.map(|to| format!(" to {to}")).unwrap_or_default();
            return Ok(operator.refuse(&format!("{by} has already ordered {holder} to hand over{to}")));
        }
        let ordered = format!("{holder} steps down when it next renews its lease");
        let Some(most) = self.wait else { return operator.done(&ordered).await };
        let begun = Instant::now();
        let told = operator.wait_until(most, |report| {
            // Until the hold is over, any other candidate only has the lease while it reads the order.
            let to = self.to.as_deref().filter(|_| begun.elapsed() < self.hold);
            successor(report, term, to)
        });
        let told = told.await;
        match told.map_err(|error| operator.although(&ordered, error))? {
            Some(successor) => operator.done(&format!("{holder} stepped down; {successor} leads")).await,
            None => Ok(operator.not_yet(most, "no other candidate leads")),
        }
    }
}

/// The leader of a later term. If `to` is some, only a leader with that name.
fn successor(report: &Report, term: Term, to: Option<&str>) -> Option<Holder> {
    let follows = |holder: &Holder| holder.term.is_none_or(|now| now > term);
    report.holder.clone().filter(|holder| follows(holder) && to.is_none_or(|to| is_called(holder, to)))
}

fn is_called(holder: &Holder, name: &str) -> bool {
    name == holder.owner || Some(name) == holder.host.as_deref()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_has_a_later_term_and_the_name_that_was_ordered() {
        let holder = |term| Holder {
            owner: "c1".to_owned(),
            host: Some("db1".to_owned()),
            term: Some(Term(term)),
            ..Holder::default()
        };
        let report = |term| Report { holder: Some(holder(term)), ..Report::default() };
        for to in [None, Some("c1"), Some("db1")] {
            assert_eq!(successor(&report(8), Term(7), to), Some(holder(8)), "{to:?}");
            assert_eq!(successor(&report(7), Term(7), to), None, "{to:?}");
        }
        assert_eq!(successor(&report(8), Term(7), Some("c0")), None);
        assert_eq!(successor(&Report::default(), Term(7), None), None);
    }
}
