//! A standby's subscription to the channels on which changes of its shards are announced.
//!
//! The hazard: messages that nobody reads pile up. So only a standby has a subscription, and it ends if more messages
//! arrive than its allowance permits.

use super::Hashes;
use super::address::Login;
use super::connection::Client;
use super::failure::SILENCE;
use crate::store::StoreError;
use crate::store::allowance::Allowance;
use crate::store::lease_store::documents::{Documents, EachSeen, Key};
use futures_util::{FutureExt, StreamExt};
use redis::aio::{PubSub, PubSubStream};
use redis::{RedisConnectionInfo, RedisError};
use tokio::time::timeout_at;

pub struct Subscription {
    channels: Vec<String>,
    messages: PubSubStream,
    allowance: Allowance,
}

impl Subscription {
    pub async fn begin(client: &Client, channels: &[String]) -> Result<Self, StoreError> {
        let deadline = client.deadline();
        let server = client.server(deadline).await?;
        let (stream, allowance) = client.connect(&server, deadline).await?;
        let Login { user, password } = &server.login;
        let mut login = RedisConnectionInfo::default().set_skip_set_lib_name();
        if let Some(password) = password {
            login = login.set_password(password.expose());
        }
        if let Some(user) = user {
            login = login.set_username(user);
        }
        let subscribed = timeout_at(deadline, async {
            let mut listener = PubSub::new(&login, stream).await?;
            listener.subscribe(channels).await?;
            Ok::<_, RedisError>(listener.into_on_message())
        });
        let subscribed = subscribed.await.unwrap_or_else(|_| Err(SILENCE.into()));
        let messages = subscribed.map_err(|error| client.unsent(&server, &error))?;
        Ok(Self { channels: channels.to_vec(), messages, allowance })
    }

    /// False: the connection has ended.
    async fn hears(&mut self) -> bool {
        self.allowance.begin_again();
        self.messages.next().await.is_some()
    }

    fn catch_up(&mut self) {
        while self.hears().now_or_never() == Some(true) {}
    }
}

impl Hashes {
    /// As [`Documents::watch`]. One connection serves all keys.
    pub(super) async fn follow(&self, keys: &[Key<'_>], each: &mut EachSeen<'_>) -> Result<(), StoreError> {
        let channels: Vec<String> = keys.iter().map(|&key| self.names.channel(key)).collect();
        // Taken, so that it is dropped if the caller cancels the wait.
        let kept = self.subscription.lock().take().filter(|subscription| subscription.channels == channels);
        let mut subscription = match kept {
            Some(subscription) => subscription,
            None => Subscription::begin(&self.client, &channels).await?,
        };
        loop {
            // What was announced up to now is in the documents that are read next.
            subscription.catch_up();
            for (index, found) in self.get(keys, false).await?.into_iter().enumerate() {
                if each(index, found).is_break() {
                    *self.subscription.lock() = Some(subscription);
                    return Ok(());
                }
            }
            if !subscription.hears().await {
                return Ok(());
            }
        }
    }
}
