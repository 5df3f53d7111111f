//! What the verbs that change something share.
//!
//! The hazard: an operator who gives up, or whose terminal is gone, leaves a verb half-way. So each verb changes one
//! note in one step, and then only waits and reports; a second run finds the work done.

use super::slots::{self, Slots, by_name};
use super::status::{self, Shown};
use super::unknown::{Unknown, never_led};
use super::{Client, allowed, fail, print_lines, say_retrying};
use crate::cli::start::Failure;
use crate::exit;
use crate::lease::{Shard, Term, show};
use crate::notes::history::{self, Ordered};
use crate::notes::orders::{self, Orders, PauseOrder};
use crate::notes::standbys::{self, Standby};
use crate::store::{Answer, Holder, Report, StoreError};
use crate::text::on_one_line;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tokio::time::sleep;

pub const LOOK_EVERY: Duration = Duration::from_millis(500);

pub struct Operator<'a> {
    pub client: Client<'a>,
    pub shard: &'a Shard,
    pub json: bool,
}

#[derive(Debug)]
pub enum Waited {
    Free,
    /// Its time is over, or an operator has ended or replaced it.
    PauseEnded,
}

pub struct Leaders {
    pub led: Vec<(Shard, Holder)>,
    /// Why there may be more leaders.
    pub hidden: Option<StoreError>,
    pub never_led: bool,
}

impl Leaders {
    pub fn terms(&self) -> impl Iterator<Item = (Shard, Term)> {
        self.led.iter().filter_map(|(shard, holder)| Some((shard.clone(), holder.term?)))
    }

    /// What they do: `one` for one leader, `several` for more.
    pub fn told(&self, shard: &Shard, one: &str, several: &str) -> String {
        let named = self.led.iter().map(|(led, holder)| match led {
            whole if whole == shard => holder.to_string(),
            slot => format!("{holder} of {slot}"),
        });
        let does = if self.led.len() == 1 { one } else { several };
        format!("{} {does}", named.collect::<Vec<_>>().join(", "))
    }
}

impl Operator<'_> {
    pub async fn inspect(&self) -> Answer<Report> {
        self.client.inspect(self.shard).await
    }

    pub async fn leaders(&self) -> Answer<Leaders> {
        let report = self.inspect().await?;
        let slots = Slots::of(self.client, self.shard).await?;
        let never_led = never_led(&report, &slots);
        let whole = report.holder.map(|holder| (self.shard.clone(), holder));
        let led = slots.led().map(|(slot, holder)| (slot.clone(), holder.clone()));
        Ok(Leaders { led: whole.into_iter().chain(led).collect(), hidden: slots.hidden, never_led })
    }

    /// None if the wait takes longer than `most`.
    pub async fn wait_until_free(
        &self,
        most: Option<Duration>,
        led: &[(Shard, Holder)],
        pause: &PauseOrder,
    ) -> Answer<Option<Waited>> {
        // A shard that is free is not checked again.
        let mut left: Vec<_> = led.iter().map(|(shard, _)| shard).collect();
        let look = async || {
            while let Some(shard) = left.last() {
                if self.client.inspect(shard).await?.holder.is_some() {
                    break;
                }
                left.pop();
            }
            // Read last, so that a candidate that gets the lease later reads the same pause.
            let stands = self.orders().await?.pause.is_some_and(|standing| standing.id == pause.id);
            Ok(match (stands, left.is_empty()) {
                (false, _) => Some(Waited::PauseEnded),
                (true, true) => Some(Waited::Free),
                (true, false) => None,
            })
        };
        look_until(most, look).await
    }

    pub async fn orders(&self) -> Answer<Orders> {
        self.client.ask(orders::read(self.client.store, self.shard)).await
    }

    pub async fn change(&self, edit: impl FnMut(&mut Orders) -> bool) -> Answer<Orders> {
        self.client.several(orders::change(self.client.store, self.shard, edit)).await
    }

    /// Gives an order in its `place`, unless another order (`is_other`) stands there and there is no `force`. Returns
    /// the other order, even if it was replaced.
    pub async fn give<T: Clone>(
        &self,
        place: impl Fn(&mut Orders) -> &mut Option<T>,
        order: &T,
        is_other: impl Fn(&T) -> bool,
        force: bool,
    ) -> Answer<Option<T>> {
        let mut other = None;
        let edit = |orders: &mut Orders| {
            let place = place(orders);
            other = place.clone().filter(&is_other);
            let gives = force || other.is_none();
            if gives {
                *place = Some(order.clone());
            }
            gives
        };
        self.change(edit).await?;
        Ok(other)
    }

    pub async fn take_back<T>(&self, place: impl Fn(&mut Orders) -> &mut Option<T>) -> Answer<Option<T>> {
        let mut taken = None;
        let edit = |orders: &mut Orders| {
            // On a retry after a lost answer, the order is already gone.
            taken = place(orders).take().or(taken.take());
            true
        };
        self.change(edit).await?;
        Ok(taken)
    }

    /// Notes in the history who ordered these ends. That only explains them, so failures are ignored.
    pub async fn note_in_history(&self, leaders: impl IntoIterator<Item = (&Shard, Term)>, ordered: &Ordered) {
        for (shard, term) in leaders {
            if self.client.ask(history::order(self.client.store, shard, term, ordered)).await.is_err() {
                return;
            }
        }
    }

    /// Announces a pause of a shard that nobody ever led, which would not be listed otherwise. Failures are ignored.
    pub async fn announce_pause(&self, pause: &PauseOrder, replaced: Option<&PauseOrder>) {
        if let Some(replaced) = replaced {
            self.withdraw_pause(replaced).await;
        }
        if self.inspect().await.is_ok_and(|report| report == Report::default()) {
            let _ =
                self.client.ask(standbys::announce_pause(self.client.store, self.shard, &pause.id, pause.left)).await;
        }
    }

    pub async fn withdraw_pause(&self, pause: &PauseOrder) {
        let _ = self.client.ask(standbys::withdraw_pause(self.client.store, self.shard, &pause.id)).await;
    }

    /// Prints what was done, or with --json the present state of the shard.
    pub async fn done(&self, sentence: &str) -> Result<ExitCode, Failure> {
        if !self.json {
            return print_lines([format!("{}: {}", self.shard, on_one_line(sentence.to_owned()))]);
        }
        let shown = Shown::read(self.client, self.shard).await;
        let shown = shown.map_err(|error| self.although(sentence, error))?;
        print_lines([status::as_json(self.shard, &shown)])
    }

    /// Says what was done before the failure: an operator who reads only the failure would do it again.
    pub fn although(&self, sentence: &str, mut error: StoreError) -> StoreError {
        error.message = format!("{}: {sentence}, but then: {}", self.shard, error.message);
        error
    }

    /// The slots of the shard. Refuses a shard that the store has never seen.
    pub async fn known_slots(&self, report: &Report) -> Result<Slots, Failure> {
        let slots = Slots::of(self.client, self.shard).await?;
        if never_led(report, &slots) {
            self.refuse_never_led().await?;
        }
        Ok(slots)
    }

    /// Refuses a shard that was [`never_led`], unless a pause or a standby makes it known.
    pub async fn refuse_never_led(&self) -> Result<(), Failure> {
        let Some(unknown) = Unknown::of_never_led(self.client, self.shard).await? else {
            return Ok(());
        };
        let is_paused = allowed(self.orders().await)?.is_some_and(|orders| orders.pause.is_some());
        if is_paused { Ok(()) } else { Err(unknown.refusal(self.shard)) }
    }

    pub fn refusal(&self, why: &str) -> Failure {
        Failure::of(exit::NOT_ACQUIRED, format!("{}: {why}", self.shard))
    }

    /// As [`Self::refusal`], for a verb that goes on with other shards.
    pub fn refuse(&self, why: &str) -> ExitCode {
        fail(exit::NOT_ACQUIRED, &format!("{}: {why}", self.shard))
    }

    /// The order stays in force, but had no effect in time.
    pub fn not_yet(&self, most: Option<Duration>, what: &str) -> ExitCode {
        let most = most.map(show).unwrap_or_default();
        self.refuse(&format!("{what} after {most}; the order stays in force"))
    }

    pub async fn standbys(&self, leader: &Holder) -> Answer<Vec<Standby>> {
        let all = slots::announced(self.client, self.shard.as_str()).await?.standbys;
        Ok(slots::waiting(&by_name(&all), self.shard, &slots::sessions([leader])).into_iter().cloned().collect())
    }
}

/// What to do about a leader that is another program.
pub fn takes_no_orders(leader: &Holder) -> String {
    format!("{leader} leads and takes no orders: stop it on its host")
}

/// Looks until it finds something. None if that takes longer than `most`. Reports an outage of the store once.
pub async fn look_until<T>(
    most: Option<Duration>,
    mut look: impl AsyncFnMut() -> Answer<Option<T>>,
) -> Answer<Option<T>> {
    let begun = Instant::now();
    let mut away = false;
    loop {
        match look().await {
            Ok(Some(found)) => return Ok(Some(found)),
            Ok(None) => {}
            Err(error) if error.exit_status() == exit::UNAVAILABLE => {
                if !std::mem::replace(&mut away, true) {
                    say_retrying(&error);
                }
            }
            Err(error) => return Err(error),
        }
        if most.is_some_and(|most| begun.elapsed() >= most) {
            return Ok(None);
        }
        sleep(LOOK_EVERY).await;
    }
}
