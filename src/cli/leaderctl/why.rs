//! `leaderctl why`: why does this host not lead?

use super::status;
use super::{bounded, fail, inspect, printed, rfc3339};
use crate::exit;
use crate::lease::{Shard, show};
use crate::orders::{self, Orders};
use crate::presence;
use crate::store::slotted;
use crate::store::{Report, Store, on_one_line};
use crate::witness::{self, Statement};
use clap::Args;
use serde::Serialize;
use std::io::{Write, stdout};
use std::process::ExitCode;
use std::time::Duration;

#[derive(Debug, Args)]
pub struct WhyFlags {
    /// The name that is led
    #[arg(value_name = "SHARD", value_parser = clap::value_parser!(Shard))]
    shard: Shard,

    /// Which host [default: this one, whose candidates are asked]
    #[arg(long, value_name = "NAME")]
    host: Option<String>,

    /// As one JSON object
    #[arg(long)]
    json: bool,
}

/// What `why --json` prints. Fields are added, never renamed or removed.
#[derive(Debug, Serialize)]
struct Answer<'a> {
    shard: &'a str,
    host: &'a str,
    leads: bool,
    /// Sentences, the weightiest first.
    because: Vec<String>,
}

impl WhyFlags {
    /// Answers also where the store does not: the candidates of this host may know since when.
    pub async fn answer(&self, store: &dyn Store, patience: Duration) -> ExitCode {
        let here = nix::unistd::gethostname().map(|host| host.to_string_lossy().into_owned()).unwrap_or_default();
        let host = self.host.clone().unwrap_or_else(|| here.clone());
        let candidates = if host == here { self.candidates().await } else { Vec::new() };
        let report = inspect(store, &self.shard, patience).await;
        let away = report.as_ref().is_err_and(|error| exit::of_store(error) == exit::UNAVAILABLE);
        // Who has not answered once is not waited for again.
        let orders = if away { None } else { Some(bounded(patience, orders::read(store, &self.shard)).await) };
        let mut because = Vec::new();
        let mut leads = false;
        match &report {
            Ok(report) => leads = by_record(report, &host, &mut because),
            Err(error) => because.push(format!("the store does not answer here: {}", error.message)),
        }
        match &orders {
            Some(Ok(orders)) => by_orders(orders, &mut because),
            Some(Err(error)) if report.is_ok() => because.push(format!("the orders cannot be read: {}", error.message)),
            Some(Err(_)) | None => {}
        }
        for statement in &candidates {
            by_candidate(statement, &mut because);
        }
        if candidates.is_empty() {
            let announced = if away { None } else { self.announced(store, &host, patience).await };
            because.push(match announced {
                Some(true) => format!("a standby of {host} has announced itself"),
                Some(false) | None if host == here => format!("no candidate for it runs on {host}"),
                Some(false) => format!("no standby of {host} has announced itself"),
                None => format!("whether a standby waits on {host} is not known: that store was not asked"),
            });
        }
        let because: Vec<String> = because.into_iter().map(on_one_line).collect();
        let written = if self.json {
            let answer = Answer { shard: self.shard.as_str(), host: &host, leads, because };
            writeln!(stdout(), "{}", serde_json::to_string(&answer).expect("an answer is plain data"))
        } else {
            let verdict = if leads { "leads" } else { "does not lead" };
            let mut out = stdout();
            writeln!(out, "{}: {host} {verdict}", self.shard)
                .and_then(|()| because.iter().try_for_each(|line| writeln!(out, "  {line}")))
        };
        match report {
            Ok(_) => printed(written),
            Err(error) => fail(exit::of_store(&error), &error.message),
        }
    }

    /// Of this host and shard, as far as they answer.
    async fn candidates(&self) -> Vec<Statement> {
        let mut told = Vec::new();
        // Who waits for a slot waits for any of its shard.
        let parent = slotted::parent(&self.shard).map(|(parent, _)| parent.to_string());
        for name in witness::all().unwrap_or_default() {
            if let Ok(statement) = witness::ask(&name).await
                && (statement.shard == self.shard.as_str() || Some(&statement.shard) == parent.as_ref())
            {
                told.push(statement);
            }
        }
        told
    }

    /// None where that is not known: it costs money, or the store does not answer.
    async fn announced(&self, store: &dyn Store, host: &str, patience: Duration) -> Option<bool> {
        if store.is_metered() {
            return None;
        }
        let standbys = bounded(patience, presence::standbys(store, self.shard.as_str())).await.ok()?;
        Some(standbys.iter().any(|(shard, standby)| *shard == self.shard && standby.host == host))
    }
}

/// Whether that host leads.
fn by_record(report: &Report, host: &str, because: &mut Vec<String>) -> bool {
    let Some(holder) = &report.holder else {
        because.push(match report.last_term {
            Some(term) => format!("nobody leads; the last term was {term}"),
            None => "nobody has ever led".to_owned(),
        });
        return false;
    };
    let on = holder.host.as_ref().map(|host| format!(" on {host}")).unwrap_or_default();
    let since = holder.since_millis.map(|since| format!(" since {}", rfc3339(since))).unwrap_or_default();
    let until = match holder.expires_in {
        Some(left) => format!(", with {} to go unless it renews", show(left)),
        None => String::new(),
    };
    because.push(format!("{holder} leads{on}{since}{until}"));
    holder.host.as_deref() == Some(host)
}

fn by_orders(orders: &Orders, because: &mut Vec<String>) {
    because.extend(orders.pause.as_ref().map(|pause| format!("paused {}", status::paused(pause))));
    because.extend(orders.handover.as_ref().map(|handover| format!("handover {}", status::handed_over(handover))));
}

fn by_candidate(statement: &Statement, because: &mut Vec<String>) {
    let Statement { owner, pid, standing, leadership, .. } = statement;
    let term = leadership.as_ref().map(|leads| format!(", term {}", leads.term)).unwrap_or_default();
    let obstacle = standing.obstacle.as_ref().map(|obstacle| format!(": {obstacle}")).unwrap_or_default();
    because.push(format!("the candidate {owner} (process {pid}) is {}{term}{obstacle}", standing.role));
    if let Some((message, lasting)) = &standing.trouble {
        because.push(format!("{owner} has had trouble with the store for {}: {message}", show(*lasting)));
    }
    if let Some(hindrance) = &standing.hindrance {
        because.push(format!("{owner}: {hindrance}"));
    }
}
