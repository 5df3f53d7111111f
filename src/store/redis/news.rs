//! A standby's ear: a subscription to the channels on which releases of its shards are published.
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
    channels: Vec<String>,
    messages: PubSubStream,
    since: BootInstant,
}

impl Subscription {
    pub async fn begin(link: &Link, channels: &[String]) -> Result<Self, StoreError> {
        let messages = link.listen(channels).await?.into_on_message();
        Ok(Self { channels: channels.to_vec(), messages, since: BootInstant::now() })
    }

    pub fn is_of(&self, channels: &[String]) -> bool {
        self.channels == channels
    }

    /// The place of the channel on which there was news; None when the connection ended.
    pub async fn next(&mut self) -> Option<usize> {
        let message = self.messages.next().await?;
        // Several are no more than one; and should it have ended, the next wait finds out.
        while let Some(Some(_)) = self.messages.next().now_or_never() {}
        let heard = self.channels.iter().position(|channel| channel == message.get_channel_name());
        Some(heard.unwrap_or_default())
    }

    pub fn was_short(&self) -> bool {
        BootInstant::now().since(self.since) < LEAST_LIFE
    }
}
