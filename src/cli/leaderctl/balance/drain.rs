//! `leaderctl step-down --host` and `resume --host`: a host leads nothing for a while, for maintenance.
//!
//! The hazard: what the host gives up, another of its candidates may take. So first the host is held back, and then its
//! leaders move, one after another. If that stops half-way, the host stays held back, and a second call goes on.

use super::super::prelude::*;
use super::plan::plan;
use super::{Fleet, Handover, LeftAlone, Operator, Progress, counted, in_turn};
use crate::notes::hosts;
use crate::text;
use std::io::{Write, stdout};

#[derive(Debug)]
pub struct Drain<'a> {
    pub host: &'a str,
    pub prefix: &'a Prefix,
    pub lasts: Duration,
    pub wait: Duration,
    pub force: bool,
    pub json: bool,
}

impl Drain<'_> {
    pub async fn order(&self, client: Client<'_>) -> Result<ExitCode, Failure> {
        let held = self.hold(client).await?;
        let (mut made, mut ended, mut left) = (Vec::new(), Vec::new(), Vec::new());
        let mut fleet = None;
        let work = async {
            let fleet = fleet.insert(Fleet::read(client, self.prefix, Some(self.host)).await?);
            let from = fleet.hosts.iter().position(|host| host == self.host);
            let planned = from.map(|_| plan(fleet.hosts.len(), &fleet.families, from)).unwrap_or_default();
            left.append(&mut fleet.left_alone);
            let alone =
                fleet.families.iter().flat_map(|family| &family.led).filter(|led| {
                    Some(led.on) == from && !led.stays && planned.iter().all(|next| next.shard != led.shard)
                });
            let alone: Vec<Shard> = alone.map(|led| led.shard.clone()).collect();
            let drained = fleet.carry_out(planned, self.wait, self.json, &mut made).await;
            for shard in alone {
                let refused = if drained.is_ok() && self.force {
                    self.stop(client, &shard).await?
                } else if client.store.is_metered() {
                    let announcing = "here they announce themselves only with leaderrun --announce always";
                    Some(format!("no other standby is known ({announcing})"))
                } else {
                    Some("no other standby".to_owned())
                };
                let shard = shard.to_string();
                match refused {
                    None => ended.push(shard),
                    Some(why) => left.push(LeftAlone { shard, why }),
                }
            }
            drained
        };
        let stopped = in_turn(client, work).await.err();
        self.report(held, fleet.as_ref(), &made, &ended, &left, stopped)
    }

    /// Holds the host back, and returns for how long; None: until it is resumed. A longer order stays, because another
    /// operator relies on it.
    async fn hold(&self, client: Client<'_>) -> Result<Option<Duration>, Failure> {
        let host = self.host;
        let refusal = |status, why: &str| Failure::of(status, format!("{host}: {why}"));
        let shard = hosts::shard_of(host).ok_or_else(|| {
            let why = "a host with such a name cannot be held back: it may have letters, digits and . _ - :";
            refusal(exit::USAGE, why)
        })?;
        let mut order = orders::pause(None, true, Some(self.lasts))?;
        order.prefix = Some(self.prefix.as_str()).filter(|prefix| !prefix.is_empty()).map(str::to_owned);
        let operator = Operator { client, shard: &shard, json: self.json };
        let is_longer = |standing: &PauseOrder| standing.left.is_none_or(|left| left > self.lasts);
        let stays =
            |standing: &PauseOrder| standing.id != order.id && (standing.prefix != order.prefix || is_longer(standing));
        match operator.give(|orders| &mut orders.pause, &order, stays, false).await? {
            None => Ok(Some(self.lasts)),
            Some(PauseOrder { by, prefix, left, .. }) if prefix == order.prefix => {
                say(format_args!("{host}: {by} already holds it back {}", for_how_long(left)));
                Ok(left)
            }
            Some(PauseOrder { by, prefix, .. }) => {
                let what = prefix.map_or("all shards".to_owned(), |prefix| format!("{prefix}*"));
                let why = format!("{by} holds it back from {what}; leaderctl resume --host {host} ends that");
                Err(refusal(exit::NOT_ACQUIRED, &why))
            }
        }
    }

    /// Stops what nobody can take. Returns why that is refused, if it is.
    async fn stop(&self, client: Client<'_>, shard: &Shard) -> Result<Option<String>, Failure> {
        let operator = Operator { client, shard, json: self.json };
        let Some(holder) = operator.inspect().await?.holder else { return Ok(None) };
        let handover = Handover { to: None, force: true, hold: super::HOLD, wait: None };
        match handover.order(&operator, &holder).await? {
            Progress::Refused(why) => Ok(Some(why)),
            Progress::Ordered(told) | Progress::Followed { told, .. } => {
                if !self.json {
                    let _ = writeln!(stdout(), "{shard}: {}", on_one_line(told));
                }
                Ok(None)
            }
            Progress::NotYet => unreachable!("it is not waited for"),
        }
    }

    /// The name of an unknown host may be mistyped, and then the host that was meant still leads.
    fn doubt(&self, Fleet { client, known, .. }: &Fleet<'_>) -> Option<String> {
        if known.contains(self.host) {
            return None;
        }
        let advice = match text::nearest(self.host, known.iter().map(String::as_str)) {
            Some(near) => format!("did you mean {near}?"),
            None if client.store.is_metered() => {
                "here standbys announce themselves only with leaderrun --announce always".to_owned()
            }
            None => "leaderctl list shows the hosts that lead".to_owned(),
        };
        let of = match self.prefix.as_str() {
            "" => String::new(),
            prefix => format!(" for a shard whose name begins with \"{prefix}\""),
        };
        Some(format!("no candidate of {} is known{of}; {advice}", self.host))
    }

    fn report(
        &self,
        held: Option<Duration>,
        fleet: Option<&Fleet<'_>>,
        made: &[super::Move],
        ended: &[String],
        left: &[LeftAlone],
        stopped: Option<Failure>,
    ) -> Result<ExitCode, Failure> {
        let until = format!("held back {}", for_how_long(held));
        let mut lines = Vec::new();
        if self.json {
            lines.push(as_json(&object! {
                host: self.host,
                held_for_seconds: held.map(|held| held.as_secs()),
                moves: fleet.map(|fleet| fleet.objects_of(made)).unwrap_or_default(),
                stopped: ended,
                left,
                why: stopped.as_ref().map(|failure| failure.message.as_str()),
            }));
        } else if let (Some(fleet), None) = (fleet, &stopped) {
            let told = fleet.told(&fleet.after(made));
            lines.push(on_one_line(format!("{}: {until}; now {told}", self.host)));
        }
        print_lines(lines)?;
        if let Some(doubt) = fleet.and_then(|fleet| self.doubt(fleet)) {
            say(doubt);
        }
        if !self.json {
            for LeftAlone { shard, why } in left {
                say(format_args!("{shard}: stays on {}: {why}", self.host));
            }
        }
        match stopped {
            Some(failure) => Err(failure.and(&format!("{}; {} stays {until}", counted(made.len()), self.host))),
            None if !left.is_empty() => Ok(ExitCode::from(exit::NOT_ACQUIRED)),
            None => Ok(ExitCode::SUCCESS),
        }
    }
}

fn for_how_long(held: Option<Duration>) -> String {
    held.map_or("until it is resumed".to_owned(), |held| format!("for {}", show_seconds(held)))
}

pub async fn resume(host: &str, json: bool, client: Client<'_>) -> Result<ExitCode, Failure> {
    let ended = match hosts::shard_of(host) {
        Some(shard) => Operator { client, shard: &shard, json }.take_back(|orders| &mut orders.pause).await?,
        None => None,
    };
    let line = match &ended {
        _ if json => as_json(&object! { host, was_held: ended.is_some() }),
        Some((PauseOrder { by, since_millis, .. }, perhaps)) => {
            format!("{host}: resumed{perhaps}; it was held back by {by} since {}", dated(*since_millis))
        }
        None => format!("{host}: not held back"),
    };
    print_lines([on_one_line(line)])
}
