//! `leaderctl watch`: a line for each change of a shard's leader, and for each pause, as it happens.
//!
//! The hazard: a notification of the store may be lost, and nobody reports a crash. So each shard is also checked every
//! few seconds. An outage of the store is reported once, and the checks continue. If no shard is named, all are listed
//! every few seconds in one request, because new ones may come.

use super::prelude::*;
use super::shard_notes::{add_notes, pauses};
use super::status::as_json;
use super::{list, say_retrying};
use crate::lease::Session;
use crate::store::{Delivery, Store};
use std::future::pending;
use tokio::time::{sleep, timeout};

/// How often a shard is checked if the store reports no change.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// The shortest time between two checks, however much the store reports.
const LOOKS_APART: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
pub struct WatchFlags {
    /// The shards to watch [default: all, including later ones]
    #[arg(value_name = "SHARD")]
    shards: Vec<Shard>,

    /// Show pauses also where a request costs money or burdens a cluster
    #[arg(long)]
    orders: bool,

    /// Print each change as one JSON object
    #[arg(long)]
    json: bool,
}

impl WatchFlags {
    /// Prints until the output cannot be written, or its reader is gone. Ends with an error only if the first check fails.
    pub async fn watch(&self, client: Client<'_>) -> Result<ExitCode, Failure> {
        let (mut list, mut failure) = self.look(client).await;
        if let Some(error) = failure {
            return Err(error.into());
        }
        if !self.shards.is_empty() && !client.store.is_metered() {
            for (shard, shown) in list.iter().filter(|(_, shown)| shown.report == Report::default()) {
                if Slots::of(client, shard).await.is_ok_and(|slots| never_led(&shown.report, &slots)) {
                    Unknown::warn(client, shard).await;
                }
            }
        }
        let mut known: BTreeMap<Shard, Shown> = BTreeMap::new();
        loop {
            let mut now: BTreeMap<Shard, Shown> = list.into_iter().collect();
            if failure.is_none() {
                // Nobody leads a shard that the store does not list any more.
                for shard in known.keys() {
                    now.entry(shard.clone()).or_default();
                }
            }
            for (shard, shown) in now {
                print_lines(self.changes(&shard, known.get(&shard), &shown))?;
                known.insert(shard, shown);
            }
            if failure.is_some() {
                sleep(LOOK_EVERY).await;
            }
            let is_led = |shard: &&Shard| known.get(*shard).is_some_and(|shown| shown.report.holder.is_some());
            let led: Vec<Shard> = self.shards.iter().filter(is_led).cloned().collect();
            until_it_may_have_changed(client.store, &led).await;
            let was_away = failure.is_some();
            (list, failure) = self.look(client).await;
            if let Some(error) = &failure
                && !was_away
            {
                say_retrying(error);
            }
        }
    }

    /// What could be read, and why the rest could not.
    async fn look(&self, client: Client<'_>) -> (Vec<(Shard, Shown)>, Option<StoreError>) {
        let (mut seen, mut failure) = (Vec::new(), None);
        let wanted = if self.shards.is_empty() { vec![None] } else { self.shards.iter().map(Some).collect() };
        for shard in wanted {
            match self.read(client, shard).await {
                Ok(read) => seen.extend(read),
                Err(error) => failure = Some(error),
            }
        }
        (seen, failure)
    }

    /// One shard, or all.
    async fn read(&self, client: Client<'_>, shard: Option<&Shard>) -> Answer<Vec<(Shard, Shown)>> {
        let list = match shard {
            Some(shard) => vec![(shard.clone(), client.inspect(shard).await?)],
            None if self.orders || !client.store.is_metered() => {
                slots::with_paused(client.store.list("").await?, slots::paused(client, "").await?)
            }
            None => client.store.list("").await?,
        };
        let mut list = list::shown(list, None);
        add_notes(client.store, &mut list, self.orders).await?;
        Ok(list)
    }

    /// What has changed since `known`; all that matters if that is None.
    fn changes(&self, shard: &Shard, known: Option<&Shown>, shown: &Shown) -> Vec<String> {
        let led = known.is_none_or(|known| identity(&known.report) != identity(&shown.report));
        // What could not be read has not ended.
        let pause = match known {
            None => pause_id(shown).is_some(),
            Some(known) => shown.orders.is_some() && known.orders.is_some() && pause_id(known) != pause_id(shown),
        };
        if self.json {
            return (led || pause).then(|| as_json(shard, shown)).into_iter().collect();
        }
        let leader = led.then(|| match &shown.report.holder {
            Some(holder) => format!("led by {holder}"),
            None => "free".to_owned(),
        });
        let pause = pause.then(|| match pauses(shown, ago).next() {
            Some((_, paused)) => on_one_line(paused),
            None => "not paused any more".to_owned(),
        });
        let now = rfc3339(wall_clock_millis());
        leader.into_iter().chain(pause).map(|what| format!("{now} {shard}: {what}")).collect()
    }
}

fn pause_id(shown: &Shown) -> Option<&Session> {
    pauses(shown, ago).next().map(|(pause, _)| &pause.id)
}

/// Returns when it is time to check again: soon after a release of one of `led`, the shards that were led at the last
/// check. Of a free shard, a store would report again and again that it is free.
pub async fn until_it_may_have_changed(store: &dyn Store, led: &[Shard]) {
    sleep(LOOKS_APART).await;
    let change = async {
        // A store may never report changes, such as where the user may not subscribe.
        if store.delivery() != Delivery::Push || led.is_empty() || store.any_changed(led).await.is_err() {
            pending::<()>().await;
        }
    };
    let _ = timeout(LOOK_EVERY, change).await;
}

/// What distinguishes two leaderships. A record may show its term a little later than its owner.
pub fn identity(report: &Report) -> Option<(&str, Option<&str>, Option<u64>)> {
    report.holder.as_ref().map(|Holder { owner, session, since_millis, .. }| {
        (owner.as_str(), session.as_ref().map(Session::as_str), *since_millis)
    })
}
