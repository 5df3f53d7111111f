//! `leaderctl watch`: a line for each change of a shard's leader, as it happens.
//!
//! The hazard: a notification of the store may be lost, and nobody reports a crash. So each shard is also checked every
//! few seconds. An outage of the store is reported once, and the checks continue.
//!
//! Nobody knows which shards there will be. So if none is named, all are listed every few seconds, in one request for
//! all.

use super::status::{Shown, as_json};
use super::{PROGRAM, inspect, rfc3339};
use crate::lease::Shard;
use crate::observe::terminal;
use crate::store::{Delivery, Holder, Report, Store, StoreError};
use crate::text::on_one_line;
use crate::time::wall_clock_millis;
use clap::Args;
use std::collections::BTreeMap;
use std::io::{Write, stdout};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// How often a shard is checked if the store reports no change.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// The shortest time between two checks, however much the store reports.
const LOOKS_APART: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
pub struct WatchFlags {
    /// The shards to watch [default: all, including later ones]
    #[arg(value_name = "SHARD", value_parser = clap::value_parser!(Shard))]
    shards: Vec<Shard>,

    /// Print each change as one JSON object
    #[arg(long)]
    json: bool,
}

/// Prints while somebody reads the output.
///
/// # Errors
/// If a first check fails.
pub async fn watch(store: Arc<dyn Store>, flags: &WatchFlags, patience: Duration) -> Result<(), StoreError> {
    if flags.shards.is_empty() {
        return watch_all(&*store, flags.json).await;
    }
    let mut watches = JoinSet::new();
    for shard in &flags.shards {
        let first = inspect(&*store, shard, patience).await?;
        let watch = Watch { store: Arc::clone(&store), shard: shard.clone(), json: flags.json, patience };
        watches.spawn(watch.follow(first));
    }
    while watches.join_next().await.is_some_and(|read| matches!(read, Ok(true))) {}
    Ok(())
}

async fn watch_all(store: &dyn Store, json: bool) -> Result<(), StoreError> {
    let mut known = BTreeMap::new();
    let mut list = store.list("").await?;
    let mut away = false;
    loop {
        let mut now: BTreeMap<Shard, Report> = list.into_iter().collect();
        // The store does not list it any more, so nobody leads it.
        for shard in known.keys() {
            now.entry(Shard::clone(shard)).or_default();
        }
        for (shard, report) in &now {
            let same = known.get(shard).is_some_and(|known| identity(known) == identity(report));
            if !same && !tell(shard, report, json) {
                return Ok(());
            }
        }
        known = now;
        list = loop {
            sleep(LOOK_EVERY).await;
            match store.list("").await {
                Ok(list) => break list,
                Err(error) if !away => {
                    away = true;
                    terminal::say(format_args!("{PROGRAM}: {}; retrying", on_one_line(error.message)));
                }
                Err(_) => {}
            }
        };
        away = false;
    }
}

struct Watch {
    store: Arc<dyn Store>,
    shard: Shard,
    json: bool,
    patience: Duration,
}

impl Watch {
    /// Returns false when nobody reads the output any more.
    async fn follow(self, first: Report) -> bool {
        let mut known = first;
        let mut away = false;
        if !tell(&self.shard, &known, self.json) {
            return false;
        }
        loop {
            until_it_may_have_changed(&*self.store, &self.shard).await;
            match inspect(&*self.store, &self.shard, self.patience).await {
                Ok(report) => {
                    away = false;
                    if identity(&report) != identity(&known) {
                        known = report;
                        if !tell(&self.shard, &known, self.json) {
                            return false;
                        }
                    }
                }
                Err(error) if !away => {
                    away = true;
                    terminal::say(format_args!("{PROGRAM}: {}; retrying", on_one_line(error.message)));
                    sleep(LOOK_EVERY).await;
                }
                Err(_) => sleep(LOOK_EVERY).await,
            }
        }
    }
}

/// Returns when it is time to check the shard again.
pub async fn until_it_may_have_changed(store: &dyn Store, shard: &Shard) {
    sleep(LOOKS_APART).await;
    if store.delivery() == Delivery::Push {
        // Whatever the result, a check follows.
        let _ = timeout(LOOK_EVERY, store.changed(shard)).await;
    } else {
        sleep(LOOK_EVERY).await;
    }
}

/// False if nobody reads the output any more.
fn tell(shard: &Shard, report: &Report, json: bool) -> bool {
    let mut out = stdout().lock();
    let written = if json {
        let shown = Shown { report: report.clone(), ..Shown::default() };
        writeln!(out, "{}", as_json(shard, &shown))
    } else {
        let what = match &report.holder {
            Some(holder) => format!("led by {}", on_one_line(holder.to_string())),
            None => "free".to_owned(),
        };
        writeln!(out, "{} {shard}: {what}", rfc3339(wall_clock_millis()))
    };
    written.and_then(|()| out.flush()).is_ok()
}

/// What distinguishes two leaderships. A record may show its term a little later than its owner.
fn identity(report: &Report) -> Option<(&str, Option<&str>, Option<u64>)> {
    report.holder.as_ref().map(|Holder { owner, session, since_millis, .. }| {
        (owner.as_str(), session.as_ref().map(crate::lease::Session::as_str), *since_millis)
    })
}
