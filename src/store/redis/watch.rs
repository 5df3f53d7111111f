//! A standby's ear: a subscription to the channels on which releases of its shards are published.
//!
//! The hazard: messages that nobody takes pile up. So a subscription lives only while somebody waits for news, and
//! from one wait to the next; a leader has none. And where more come than its allowance has room for, it ends.

use super::connection::Client;
use crate::store::StoreError;
use crate::store::allowance::Allowance;
use crate::time::BootInstant;
use futures_util::{FutureExt, StreamExt};
use redis::Msg;
use redis::aio::PubSubStream;
use std::collections::BTreeSet;
use std::time::Duration;

/// One that ends sooner is not made again at once.
const LEAST_LIFE: Duration = Duration::from_secs(1);

pub struct Subscription {
    channels: Vec<String>,
    messages: PubSubStream,
    allowance: Allowance,
    /// Places of the channels on which there was news that nobody was told of yet.
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

    /// The place of the channel on which there was news; None when the connection ended.
    pub async fn next(&mut self) -> Option<usize> {
        if self.heard.is_empty() {
            let message = self.messages.next().await?;
            self.take_in(&message);
        }
        // Several on one channel are no more than one; and should it have ended, the next wait finds out.
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
