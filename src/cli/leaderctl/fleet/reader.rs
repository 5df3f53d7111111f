//! Reads the fleet again and again, and keeps the snapshot.
//!
//! The hazard: a store has other work to do, and may charge for each request. So one list shows all leases, and a
//! shard's notes are read when its lease has changed. A leader writes its history later, much later if COMMAND has to
//! wait, so they are read for some seconds more, and until the history has the leadership. A pause may leave the lease
//! as it is, so the orders of the other shards are read in turn. And a slow reading is followed by a longer rest.

use super::super::list;
use super::super::prelude::*;
use super::super::slots::{Known, parent_pause};
use super::super::watch::identity;
use super::{Fleet, Reading, Seen, Snapshot};
use crate::notes::history::{self, Entry};
use crate::notes::jobs::index::Indexed;
use crate::store::{Store, parallel};
use crate::time::whole_millis;
use std::sync::Arc;
use tokio::time::sleep;

/// Between two readings where a request costs nothing.
const USUAL: Duration = Duration::from_secs(1);
/// The same where it costs money or burdens a cluster.
const FRUGAL: Duration = Duration::from_secs(30);
/// Readings take at most one part in this many of the time.
const REST: u32 = 10;
const LONGEST_REST: Duration = Duration::from_secs(10);
/// How long after a change of its lease a shard's notes may still change.
const CHANGES_WITHIN: Duration = Duration::from_secs(4);
/// The same if the history does not have the last leadership yet: COMMAND may have to wait for a lease or a hook.
const CHANGES_WITHIN_AT_MOST: Duration = Duration::from_mins(2);
/// A leadership that began less than this before the first reading may not have written its history.
const RECENT: Duration = Duration::from_secs(10);
/// How many shards' orders are read between two lists.
const IN_TURN: usize = 500;
/// How many shards' notes are read between two lists, so that leases are seen meanwhile.
const AT_ONCE: usize = 1000;
#[derive(Clone, Copy, Debug, Args)]
pub struct ReadingFlags {
    /// Time from one poll of the store to the next [default: 1s; 30s on DynamoDB, Kubernetes and object storage]
    #[arg(long, value_name = "DURATION", value_parser = interval)]
    interval: Option<Duration>,

    /// Count standbys also where a request costs money or burdens a cluster
    #[arg(long)]
    pub standbys: bool,

    /// Look for new pauses also there
    #[arg(long)]
    orders: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = crate::cli::flags::duration(text)?;
    if interval.is_zero() { Err("it leaves the store no rest: use a longer one".to_owned()) } else { Ok(interval) }
}

impl ReadingFlags {
    pub fn interval(self, store: &dyn Store) -> Duration {
        self.interval.unwrap_or(if store.is_metered() { FRUGAL } else { USUAL })
    }
}

pub struct Reader<'a> {
    client: Client<'a>,
    fleet: Arc<Fleet>,
    prefix: Prefix,
    interval: Duration,
    standbys: bool,
    orders: bool,
}

impl<'a> Reader<'a> {
    pub fn new(client: Client<'a>, prefix: Prefix, flags: ReadingFlags) -> Self {
        Self {
            interval: flags.interval(client.store),
            standbys: flags.standbys,
            orders: flags.orders || !client.store.is_metered(),
            fleet: Arc::default(),
            client,
            prefix,
        }
    }

    pub fn fleet(&self) -> Arc<Fleet> {
        Arc::clone(&self.fleet)
    }

    /// Never returns.
    pub async fn run(self) {
        let mut turn = None;
        loop {
            let begun = BootInstant::now();
            let is_behind = self.read(&mut turn).await.unwrap_or_else(|error| {
                self.fleet.lock().fail(&error);
                false
            });
            let took = BootInstant::now().since(begun);
            let rest = if is_behind { took } else { took * REST };
            sleep(self.interval.max(rest.min(LONGEST_REST))).await;
        }
    }

    /// Reads all leases, and the notes that may have changed. True if the notes of some shards were left for later.
    async fn read(&self, turn: &mut Option<Shard>) -> Answer<bool> {
        let begun = BootInstant::now();
        let announced = match slots::known(self.client, self.prefix.as_str(), self.standbys, self.orders).await {
            Err(error) if error.kind == ErrorKind::Denied => {
                self.fleet.lock().count(error.kind);
                Known::default()
            }
            known => known?,
        };
        let list = self.client.store.list(self.prefix.as_str()).await?;
        let now = BootInstant::now();
        let names = {
            let mut snapshot = self.fleet.lock();
            snapshot.take_in(list, announced, &self.prefix);
            snapshot.reading = Some(Reading { at: now, at_millis: wall_clock_millis(), took: now.since(begun) });
            snapshot.readings += 1;
            snapshot.trouble = None;
            self.to_read(&snapshot, turn)
        };
        for some in names.chunks(parallel::FEW) {
            let reads = some.iter().map(|(shard, whole)| self.notes_of(shard, *whole));
            for ((shard, _), noted) in some.iter().zip(parallel::all(reads).await) {
                match noted {
                    Err(error) if matches!(error.kind, ErrorKind::Denied | ErrorKind::Misconfigured) => {
                        self.fleet.lock().note_trouble(shard, error);
                    }
                    noted => self.fleet.lock().note(shard, noted?),
                }
            }
        }
        Ok(names.len() >= AT_ONCE)
    }

    /// The shards whose notes are to be read, and whether all of them.
    fn to_read(&self, snapshot: &Snapshot, turn: &mut Option<Shard>) -> Vec<(Shard, bool)> {
        let restless = |seen: &Seen| seen.noted.is_none_or(|noted| !seen.is_final_at(noted));
        let changing = snapshot.shards.iter().filter(|(_, seen)| restless(seen)).take(AT_ONCE);
        let mut names: Vec<_> = changing.map(|(shard, _)| (shard.clone(), true)).collect();
        if self.orders && names.len() < AT_ONCE {
            let after = turn.take();
            let later = snapshot.shards.iter().filter(|(shard, _)| after.as_ref().is_none_or(|after| *shard > after));
            let calm: Vec<_> =
                later.filter(|(_, seen)| !restless(seen)).map(|(shard, _)| shard.clone()).take(IN_TURN).collect();
            // After the end of the list, the next turn starts again.
            *turn = if calm.len() < IN_TURN { None } else { calm.last().cloned() };
            names.extend(calm.into_iter().map(|shard| (shard, false)));
        }
        names
    }

    /// The notes of a shard, and its history. Without `whole`, only its orders.
    async fn notes_of(&self, shard: &Shard, whole: bool) -> Answer<(Shown, Option<Vec<Entry>>)> {
        let client = self.client;
        let (mut noted, history) = if whole {
            let noted = Shown::of_notes(client, shard).await?;
            (noted, Some(client.ask(history::read(client.store, shard)).await?))
        } else {
            let orders = client.ask(orders::read(client.store, shard)).await?;
            (Shown { orders: Some(orders), ..Shown::default() }, None)
        };
        noted.parent_pause = parent_pause(client, shard).await?;
        Ok((noted, history))
    }
}

impl Seen {
    /// Whether notes that were read then will not change before the lease does.
    fn is_final_at(&self, instant: BootInstant) -> bool {
        let within = if self.is_told() { CHANGES_WITHIN } else { CHANGES_WITHIN_AT_MOST };
        self.changed.is_none_or(|changed| instant >= changed.plus(within))
    }
}

impl Snapshot {
    fn take_in(&mut self, list: Vec<(Shard, Report)>, announced: Known, prefix: &Prefix) {
        let (now, now_millis) = (BootInstant::now(), wall_clock_millis());
        let Known { standbys, paused } = announced;
        let standbys = standbys.as_deref();
        let mut list: BTreeMap<Shard, Report> = slots::with_paused(list, paused).into_iter().collect();
        // Of a shard that was never led, standbys are the only trace. A slot's standbys wait for its shard.
        for (shard, _) in standbys.into_iter().flatten() {
            let has_slots = || list.keys().any(|listed| listed.parent().as_ref() == Some(shard));
            if !list.contains_key(shard) && shard.as_str().starts_with(prefix.as_str()) && !has_slots() {
                list.insert(shard.clone(), Report::default());
            }
        }
        let is_first = self.reading.is_none();
        self.shards.retain(|shard, _| list.contains_key(shard));
        for (shard, Shown { report, standbys, .. }) in list::shown(list.into_iter().collect(), standbys) {
            let is_new = !self.shards.contains_key(&shard);
            let seen = self.shards.entry(shard).or_default();
            // The last term shows a leadership that came and went.
            let before = &seen.shown.report;
            if is_new || identity(before) != identity(&report) || before.last_term != report.last_term {
                let began = report.holder.as_ref().and_then(|holder| holder.since_millis);
                let is_recent = began.is_some_and(|began| now_millis.saturating_sub(began) < whole_millis(RECENT));
                if !is_first || is_recent {
                    seen.changed = Some(now);
                }
                seen.free_since = report.holder.is_none().then_some(now_millis).filter(|_| !is_first);
            }
            seen.shown.report = report;
            seen.shown.standbys = standbys;
        }
    }

    fn note(&mut self, shard: &Shard, (noted, history): (Shown, Option<Vec<Entry>>)) {
        let Some(seen) = self.shards.get_mut(shard) else { return };
        let now = BootInstant::now();
        seen.shown.orders = noted.orders;
        seen.shown.parent_pause = noted.parent_pause;
        seen.shown.trouble = None;
        if let Some(history) = history {
            seen.shown.ledger = noted.ledger;
            seen.shown.jobs = noted.jobs;
            seen.history = history;
            seen.noted = Some(now);
            let leads = seen.leads();
            let is_final = seen.is_final_at(now);
            seen.counters.count(&seen.history, leads, is_final);
            if let Some(ledger) = &seen.shown.ledger {
                seen.counters.take_in(Indexed::of_period(ledger), ledger.period);
            }
            for job in seen.shown.jobs.iter().filter(|job| job.job.once().is_some()) {
                seen.counters.take_in(job.clone(), None);
            }
            if seen.shown.report.holder.is_none()
                && let Some(end) = seen.history.last().and_then(|last| last.to_millis)
            {
                seen.free_since = Some(end);
            }
        }
        self.see_hosts(shard);
    }

    /// One note that cannot be read must not hide the others.
    fn note_trouble(&mut self, shard: &Shard, error: StoreError) {
        self.count(error.kind);
        if let Some(seen) = self.shards.get_mut(shard) {
            seen.noted = Some(BootInstant::now());
            seen.shown.trouble = Some(error.message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Term;

    #[test]
    fn an_end_that_may_still_come_is_not_counted_as_a_loss() {
        let shard: Shard = "db".parse().unwrap();
        let mut seen = Seen { changed: Some(BootInstant::now().minus(2 * CHANGES_WITHIN)), ..Seen::default() };
        // Its COMMAND waits, and so does its entry in the history.
        seen.shown.report.last_term = Some(Term(3));
        let mut snapshot = Snapshot { shards: [(shard.clone(), seen)].into(), ..Snapshot::default() };
        let mut history = Vec::new();
        for (term, counted) in [(1, 0), (2, 0), (3, 2)] {
            history.push(Entry::example(term));
            history[0].close_killed(1);
            snapshot.note(&shard, (Shown::default(), Some(history.clone())));
            let ends: u64 = snapshot.shards[&shard].counters.ends.iter().sum();
            assert_eq!(ends, counted, "{term}");
        }
    }
}
