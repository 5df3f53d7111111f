//! A standby's subscription to the channels on which changes of its shards are announced.
//!
//! The hazard: messages that nobody reads pile up. So a subscription lives only while a standby waits, and
//! from one wait to the next; a leader has none. It ends if more messages arrive than its allowance permits.

use super::Hashes;
use super::connection::Client;
use crate::store::StoreError;
use crate::store::allowance::Allowance;
use crate::store::lease_store::documents::{Documents, EachSeen, Key};
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

    /// The index of a channel with a message; None when the connection ended.
    async fn next(&mut self) -> Option<usize> {
        if self.heard.is_empty() {
            let message = self.messages.next().await?;
            self.take_in(&message);
        }
        self.catch_up();
        self.heard.pop_first()
    }

    /// Takes in what has arrived. Several messages on one channel count as one. If the connection has ended, the next
    /// wait finds out.
    fn catch_up(&mut self) {
        while let Some(Some(message)) = self.messages.next().now_or_never() {
            self.take_in(&message);
        }
    }

    fn take_in(&mut self, message: &Msg) {
        let place = self.channels.iter().position(|channel| channel == message.get_channel_name());
        self.heard.insert(place.unwrap_or_default());
        self.allowance.begin_again();
    }
}

impl Hashes {
    /// As [`Documents::watch`]. One connection serves all keys.
    pub(super) async fn follow(&self, keys: &[Key<'_>], each: &mut EachSeen<'_>) -> Result<(), StoreError> {
        let channels: Vec<String> = keys.iter().map(|&key| self.names.channel(key)).collect();
        // Dropped with this future, if the caller cancels the wait.
        let mut known = self.subscription.lock().take().filter(|subscription| subscription.channels == channels);
        loop {
            let mut subscription = match known.take() {
                Some(subscription) => subscription,
                None => Subscription::begin(&self.client, &channels).await?,
            };
            subscription.catch_up();
            // What has been heard up to now is in what this shows.
            subscription.heard.clear();
            let mut stands: Vec<_> = self.get(keys, false).await?.into_iter().enumerate().collect();
            loop {
                for (index, found) in stands {
                    if each(index, found).is_break() {
                        *self.subscription.lock() = Some(subscription);
                        return Ok(());
                    }
                }
                let Some(index) = subscription.next().await else { break };
                let Some(key) = keys.get(index) else { break };
                let found = self.get(std::slice::from_ref(key), false).await?;
                stands = found.into_iter().map(|found| (index, found)).collect();
            }
            if BootInstant::now().since(subscription.since) < LEAST_LIFE {
                let channels = channels.join(" ");
                return Err(StoreError::not_applied(format!("the subscription to {channels} was ended by the server")));
            }
        }
    }
}
