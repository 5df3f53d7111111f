//! What the verbs that change something share.
//!
//! The hazard: an operator who gives up, or whose terminal is gone, leaves a verb half-way. So each verb changes one
//! note in one step, and then only waits and reports; a second run finds the work done.

use super::prelude::*;
use super::slots::Waiting;
use super::status;
use super::{allowed, fail, say_retrying};
use crate::notes::history::{self, Ordered};
use crate::notes::orders::Orders;
use crate::notes::standbys::Standby;
use std::time::Instant;
use tokio::time::sleep;

pub const LOOK_EVERY: Duration = Duration::from_millis(500);

pub struct Operator<'a> {
    pub client: Client<'a>,
    pub shard: &'a Shard,
    pub json: bool,
}

impl Operator<'_> {
    pub async fn inspect(&self) -> Answer<Report> {
        self.client.inspect(self.shard).await
    }

    pub async fn orders(&self) -> Answer<Orders> {
        self.client.ask(orders::read(self.client.store, self.shard)).await
    }

    async fn change(&self, edit: impl FnMut(&mut Orders) -> bool) -> Answer<Orders> {
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

    /// Returns the order, and what to add to "resumed" if that is not certain.
    pub async fn take_back<T>(
        &self,
        place: impl Fn(&mut Orders) -> &mut Option<T>,
    ) -> Answer<Option<(T, &'static str)>> {
        let mut taken = None;
        let edit = |orders: &mut Orders| {
            taken = match (place(orders).take(), taken.take()) {
                (Some(order), _) => Some((order, "")),
                // On a second try it is gone: an answer was lost, or another operator was faster.
                (None, earlier) => earlier.map(|(order, _)| (order, ", perhaps by another operator")),
            };
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
        let Some(unknown) = Unknown::of_never_led(self.client, self.shard).await? else { return Ok(()) };
        let is_paused = allowed(self.orders().await)?.is_some_and(|orders| orders.pause.is_some());
        if is_paused { Ok(()) } else { Err(Failure::of(exit::ctl::UNKNOWN_SHARD, unknown.told(self.shard))) }
    }

    pub fn refusal(&self, why: &str) -> Failure {
        Failure::of(exit::NOT_ACQUIRED, format!("{}: {why}", self.shard))
    }

    /// As [`Self::refusal`], for a verb that goes on with other shards.
    pub fn refuse(&self, why: &str) -> ExitCode {
        fail(exit::NOT_ACQUIRED, &format!("{}: {why}", self.shard))
    }

    /// The order stays in force, but had no effect in time.
    pub fn not_yet(&self, most: Duration, what: &str) -> ExitCode {
        self.refuse(&format!("{what} after {}; the order stays in force", show(most)))
    }

    pub async fn standbys(&self, leader: &Holder) -> Answer<Vec<Standby>> {
        let all = slots::announced(self.client, self.shard.as_str()).await?.standbys;
        Ok(Waiting::of(&all, [leader]).at(self.shard).into_iter().cloned().collect())
    }
}

/// What to do about a leader that is another program.
pub fn takes_no_orders(leader: &Holder) -> String {
    format!("{leader} leads and takes no orders: stop it on its host")
}

/// Looks until it finds something. None if that takes longer than `most`. Reports an outage of the store once.
pub async fn look_until<T>(most: Duration, mut look: impl AsyncFnMut() -> Answer<Option<T>>) -> Answer<Option<T>> {
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
        if begun.elapsed() >= most {
            return Ok(None);
        }
        sleep(LOOK_EVERY).await;
    }
}
