//! `leaderctl step-down`: the leader stops COMMAND and lets another candidate lead.
//!
//! The hazard: without a standby, the order leaves the shard without a leader until its hold is over. So it is refused
//! if no standby has announced itself, or none by the name in `--to`. Where standbys announce themselves only on
//! request, or this user may not read that, the order is given with a warning. And a leader may have read an order
//! before the operator takes it back, and still step down.

use super::balance::Drain;
use super::operator::{look_until, takes_no_orders};
use super::prelude::*;
use crate::notes::history::{self, Ordered};
use crate::notes::orders::HandoverOrder;
use crate::notes::standbys::Standby;
use std::time::Instant;

#[derive(Debug, Args)]
pub struct StepDownFlags {
    /// The name of the shard
    #[arg(value_name = "SHARD", required_unless_present = "host")]
    shard: Option<Shard>,

    /// Move all that HOST leads to other hosts, and let it lead nothing for a while
    #[arg(long, value_name = "HOST", value_parser = flags::line::<256>, conflicts_with_all = ["shard", "to", "cancel"])]
    host: Option<String>,

    /// With --host: only shards whose names begin with this
    #[arg(long, value_name = "PREFIX", requires = "host")]
    prefix: Option<Prefix>,

    /// The owner or host that may lead next [default: any other candidate]
    #[arg(long, value_name = "NAME", value_parser = flags::line::<256>)]
    to: Option<String>,

    /// Order it even if no standby is known, or none by the name of --to; with --host, also where nobody can follow
    #[arg(long)]
    force: bool,

    /// Take back an order that has not been carried out
    #[arg(long, conflicts_with_all = ["to", "hold", "wait", "force"])]
    cancel: bool,

    /// How long the order keeps other candidates back; with --host, how long that one leads nothing
    /// [default: 30s; 10m with --host]
    #[arg(long = "for", value_name = "DURATION", value_parser = flags::duration, allow_hyphen_values = true)]
    hold: Option<Duration>,

    /// Return when another candidate leads, or after this long; with --host, for each shard [default there: 1m]
    #[arg(long, value_name = "DURATION", require_equals = true, value_parser = flags::duration)]
    #[expect(clippy::option_option, reason = "without a value it waits without end")]
    wait: Option<Option<Duration>>,

    /// Print the shard's state afterwards as one JSON object; with --host, the moves
    #[arg(long)]
    json: bool,
}

const USUAL_HOLD: Duration = Duration::from_secs(30);
/// Of a host.
const USUAL_MAINTENANCE: Duration = Duration::from_mins(10);
/// For one shard of a host.
const USUAL_WAIT: Duration = Duration::from_mins(1);
const MOST_HOLD: Duration = Duration::from_hours(1);

impl StepDownFlags {
    pub fn check(&self) -> Result<(), String> {
        let hold = self.hold.unwrap_or(USUAL_HOLD);
        if self.host.is_some() && (hold < Duration::from_secs(1) || self.wait == Some(Some(Duration::ZERO))) {
            return Err("--for must be at least 1s, and --wait more than 0".to_owned());
        }
        if self.host.is_none() && (hold.is_zero() || hold > MOST_HOLD) {
            let why = "--for must be more than 0 and at most 1h: the shard may have no leader for that long";
            return Err(why.to_owned());
        }
        Ok(())
    }

    pub async fn order(&self, client: Client<'_>) -> Result<ExitCode, Failure> {
        if let Some(host) = &self.host {
            let drain = Drain {
                host,
                prefix: &self.prefix.clone().unwrap_or_default(),
                lasts: self.hold.unwrap_or(USUAL_MAINTENANCE),
                wait: self.wait.flatten().unwrap_or(USUAL_WAIT),
                force: self.force,
                json: self.json,
            };
            return drain.order(client).await;
        }
        let shard = self.shard.as_ref().expect("without a host it is required");
        let operator = Operator { client, shard, json: self.json };
        if self.cancel {
            return cancel(&operator).await;
        }
        let report = operator.inspect().await?;
        let Some(holder) = report.holder else {
            let slots = operator.known_slots(&report).await?.advice();
            let whole = if slots.is_empty() { "" } else { " it as a whole" };
            return Err(operator.refusal(&format!("nobody leads{whole}{slots}")));
        };
        let handover = Handover {
            to: self.to.as_deref(),
            force: self.force,
            hold: self.hold.unwrap_or(USUAL_HOLD),
            wait: self.wait.map(|most| most.unwrap_or(Duration::MAX)),
        };
        match handover.order(&operator, &holder).await? {
            Progress::Refused(why) => Err(operator.refusal(&why)),
            Progress::Ordered(told) | Progress::Followed { told, .. } => operator.done(&told).await,
            Progress::NotYet => {
                Ok(operator.not_yet(self.wait.flatten().unwrap_or_default(), "no other candidate leads"))
            }
        }
    }
}

#[derive(Debug)]
pub struct Handover<'a> {
    /// The owner or host that may lead next.
    pub to: Option<&'a str>,
    /// Order it even if nobody is known to follow.
    pub force: bool,
    pub hold: Duration,
    pub wait: Option<Duration>,
}

#[derive(Debug)]
pub enum Progress {
    /// Nothing was ordered, or the order is not in force any more.
    Refused(String),
    /// Nobody waited for more.
    Ordered(String),
    /// Another candidate leads.
    Followed { successor: Holder, told: String },
    /// Nobody else leads after the wait. The order stays in force.
    NotYet,
}

impl Handover<'_> {
    pub async fn order(&self, operator: &Operator<'_>, holder: &Holder) -> Answer<Progress> {
        let Some((term, session)) = holder.term.zip(holder.session.clone()) else {
            return Ok(Progress::Refused(takes_no_orders(holder)));
        };
        if let Some(to) = self.to.filter(|to| is_called(holder, to)) {
            return Ok(Progress::Refused(format!("{holder} already leads on \"{to}\": name another owner or host")));
        }
        let warning = match self.doubt(operator, holder).await? {
            Ok(warning) => warning,
            Err(refusal) => return Ok(Progress::Refused(refusal)),
        };
        let order = orders::handover(term, Some(session), self.to.map(str::to_owned), self.hold)?;
        let is_other = |handover: &HandoverOrder| handover.term == term && handover.id != order.id;
        let other = operator.give(|orders| &mut orders.handover, &order, is_other, false).await?;
        if let Some(HandoverOrder { by, to, .. }) = other {
            let to = to.map(|to| format!(" to {to}")).unwrap_or_default();
            return Ok(Progress::Refused(format!(
                "{by} has already ordered {holder} to hand over{to}; --cancel takes that back"
            )));
        }
        if let Some(what) = warning {
            say(format_args!("{}: {what}: the shard may have no leader until --for is over", operator.shard));
        }
        let by = Ordered::now(history::STEP_DOWN, None, self.to);
        operator.note_in_history([(operator.shard, term)], &by).await;
        let ordered = format!("{holder} steps down when it next renews its lease");
        let Some(most) = self.wait else { return Ok(Progress::Ordered(ordered)) };
        let begun = Instant::now();
        let look = async || {
            // Read first: a successor removes the order.
            let stands = operator.orders().await?.handover.is_some_and(|standing| standing.id == order.id);
            let report = operator.inspect().await?;
            // During the hold, other candidates only have the lease while they read the order.
            let to = self.to.filter(|_| begun.elapsed() < self.hold);
            Ok(match successor(report, term, to) {
                None if !stands => Some(None),
                successor => successor.map(Some),
            })
        };
        Ok(match look_until(most, look).await.map_err(|error| operator.although(&ordered, error))? {
            Some(Some(successor)) => {
                let told = format!("{holder} no longer leads; {successor} leads");
                Progress::Followed { successor, told }
            }
            Some(None) => Progress::Refused(
                "the order ended before another candidate was seen to lead: it was cancelled, or its time is over"
                    .to_owned(),
            ),
            None => Progress::NotYet,
        })
    }

    /// A warning if the followers are unknown. The inner error is a refusal, because there are none.
    async fn doubt(&self, operator: &Operator<'_>, holder: &Holder) -> Answer<Result<Option<String>, String>> {
        let is_metered = operator.client.store.is_metered();
        let waiting = match operator.standbys(holder).await {
            Ok(waiting) => waiting,
            // An outage is an error, because the order would fail as well. A name in `--to` may be mistyped, so an order
            // that names one must be forced.
            Err(error) => {
                let is_outage = matches!(error.kind, ErrorKind::NotApplied | ErrorKind::Unknown);
                let message = format!("the standbys cannot be read: {}", error.message);
                if self.force || !is_outage && (self.to.is_none() || is_metered) {
                    return Ok(Ok(Some(message)));
                }
                if is_outage {
                    return Err(error);
                }
                let message = format!("{}: {message}; --force orders it anyway", operator.shard);
                return Err(StoreError { message, ..error });
            }
        };
        let follows = |standby: &Standby| self.to.is_none_or(|to| standby.owner == to || standby.host == to);
        if waiting.iter().any(follows) {
            return Ok(Ok(None));
        }
        let called = self.to.map_or(" has announced itself".to_owned(), |to| format!(" is called \"{to}\""));
        let no_standby = format!("no standby{called}");
        if is_metered {
            return Ok(Ok(Some(format!("{no_standby} (on this store they announce themselves only with --announce)"))));
        }
        if self.force {
            return Ok(Ok(Some(no_standby)));
        }
        let there_are = match (self.to, waiting.is_empty()) {
            (None, _) => ", so nobody would lead until --for is over".to_owned(),
            (Some(_), true) => ": no standby has announced itself".to_owned(),
            (Some(_), false) => {
                let names = waiting.iter().map(|Standby { owner, host, .. }| format!("{owner} on {host}"));
                format!(": there are {}", names.collect::<Vec<_>>().join(", "))
            }
        };
        Ok(Err(on_one_line(format!("{no_standby}{there_are}; --force orders it anyway"))))
    }
}

async fn cancel(operator: &Operator<'_>) -> Result<ExitCode, Failure> {
    let cancelled = operator.take_back(|orders| &mut orders.handover).await?;
    let Some((HandoverOrder { by, to, term, .. }, perhaps)) = cancelled else {
        let slots = operator.known_slots(&operator.inspect().await?).await?.advice();
        return operator.done(&format!("nobody has ordered it to step down{slots}")).await;
    };
    let to = to.map(|to| format!(" to {to}")).unwrap_or_default();
    let what = format!("cancelled the order of {by} to hand over{to}{perhaps}");
    let report = operator.inspect().await.map_err(|error| operator.although(&what, error))?;
    let now = match report.holder {
        Some(holder) if holder.term == Some(term) => {
            format!("{holder} leads, and steps down if it has read it already")
        }
        Some(holder) => format!("{holder} leads: term {term} had already ended"),
        None => format!("term {term} had already ended, and any candidate may lead"),
    };
    operator.done(&format!("{what}; {now}")).await
}

/// The leader of a later term. If `to` is some, only a leader with that name.
fn successor(report: Report, term: Term, to: Option<&str>) -> Option<Holder> {
    let follows = |holder: &Holder| holder.doubt.is_none() && holder.term.is_none_or(|now| now > term);
    report.holder.filter(|holder| follows(holder) && to.is_none_or(|to| is_called(holder, to)))
}

fn is_called(holder: &Holder, name: &str) -> bool {
    name == holder.owner || Some(name) == holder.host.as_deref()
}
