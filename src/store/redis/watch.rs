//! A standby's subscription to the channels on which releases of its shards are published.
//!
//! The hazard: messages that nobody reads pile up. So a subscription lives only while a standby waits, and
//! from one wait to the next; a leader has none. It ends if more messages arrive than its allowance permits.

use super::Redis;
use super::connection::Client;
use crate::lease::Shard;
use crate::store::allowance::Allowance;
use crate::store::{Leases, Observation, StoreError, parallel};
use crate::time::BootInstant;
use futures_util::{FutureExt, StreamExt};
use redis::Msg;
use redis::aio::PubSubStream;
use std::collections::BTreeSet;
use std::time::Duration;

/// A subscription that ends sooner than this is not replaced at once.
const LEAST_LIFE: Duration = Duration::from_secs(1);

pub struct Subscription {
    channels: Vec<String>,
    messages: PubSubStream,
    allowance: Allowance,
    /// The indices of channels with messages that no caller has heard of yet.
    heard: BTreeSet<usize>,
    since: BootInstant,
}

impl Subscription {
    pub async fn begin(client: &Client, channels: &[String]) -> Result<Self, StoreError> {
        let (listener, allowance) = client.listen(channels).await?;
        let messages = listener.into_on_message();
        Ok(Self { channels: channels.to_vec(), messages, allowance, heard: BTreeSet::new(), since: BootInstant::now() })
    }

    pub fn is_of(&self, channels: &[String]) -> bool {
        self.channels == channels
    }

    /// The index of a channel with a message; None when the connection ended.
    pub async fn next(&mut self) -> Option<usize> {
        if self.heard.is_empty() {
            let message = self.messages.next().await?;
            self.take_in(&message);
        }
        // Several messages on one channel count as one. If the connection has ended, the next wait finds out.
        while let Some(Some(message)) = self.messages.next().now_or_never() {
            self.take_in(&message);
        }
        self.heard.pop_first()
    }

    fn take_in(&mut self, message: &Msg) {
        let place = self.channels.iter().position(|channel| channel == message.get_channel_name());
        self.heard.insert(place.unwrap_or_default());
        self.allowance.begin_again();
    }

    pub fn was_short(&self) -> bool {
        BootInstant::now().since(self.since) < LEAST_LIFE
    }
}

impl Redis {
    /// Waits until one of `shards` was released, and returns its index. One connection serves them all.
    pub(super) async fn wait_for_release(&self, shards: &[Shard]) -> Result<usize, StoreError> {
        let channels: Vec<String> = shards.iter().map(|shard| self.channel(shard)).collect();
        // Dropped with this future, if the caller cancels the wait.
        let mut known = self.subscription.lock().take().filter(|subscription| subscription.is_of(&channels));
        loop {
            let (mut subscription, mut heard) = if let Some(subscription) = known.take() {
                (subscription, None)
            } else {
                let subscription = Subscription::begin(&self.client, &channels).await?;
                // The shard may have been released before the subscription began.
                let looks = parallel::all(shards.iter().map(|shard| self.observe(shard))).await;
                let looks = looks.into_iter().collect::<Result<Vec<_>, _>>()?;
                (subscription, looks.iter().position(|look| *look == Observation::Free))
            };
            if heard.is_none() {
                heard = tokio::select! {
                    biased;
                    next = subscription.next() => next,
                    freed = self.key_freed(shards) => Some(freed?),
                };
            }
            if let Some(index) = heard {
                *self.subscription.lock() = Some(subscription);
                return Ok(index);
            }
            if subscription.was_short() {
                let channels = channels.join(" ");
                return Err(StoreError::not_applied(format!("the subscription to {channels} was ended by the server")));
            }
        }
    }
}
