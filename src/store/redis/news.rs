//! A standby's ear: a subscription to the channel on which releases of a shard are published.
//!
//! The hazard: messages that nobody takes pile up. So a subscription lives only while somebody waits for news, and
//! from one wait to the next; a leader has none.

use super::link::Link;
use crate::store::StoreError;
use crate::time::BootInstant;
use futures_util::{FutureExt, StreamExt};
use redis::aio::PubSubStream;
use std::time::Duration;

/// One that ends sooner is not made again at once.
const LEAST_LIFE: Duration = Duration::from_secs(1);

pub struct Subscription {
    channel: String,
    messages: PubSubStream,
    since: BootInstant,
}

impl Subscription {
    pub async fn begin(link: &Link, channel: &str) -> Result<Self, StoreError> {
        let messages = link.listen(channel).await?.into_on_message();
        Ok(Self { channel: channel.to_owned(), messages, since: BootInstant::now() })
    }

    pub fn is_of(&self, channel: &str) -> bool {
        self.channel == channel
    }

    /// False when the connection ended.
    pub async fn next(&mut self) -> bool {
        if self.messages.next().await.is_none() {
            return false;
        }
        // Several are no more than one; and should it have ended, the next wait finds out.
        while let Some(Some(_)) = self.messages.next().now_or_never() {}
        true
    }

    pub fn was_short(&self) -> bool {
        BootInstant::now().since(self.since) < LEAST_LIFE
    }
}
