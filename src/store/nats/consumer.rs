//! What the server pushes: an ephemeral consumer of some keys, which begins with what they hold.
//!
//! The hazard: a consumer may die without a word (its server restarted, the bucket was made again, the connection
//! hangs), and a standby would wait for news that never arrive. So every few seconds the server says that it is still
//! there, and which message was the last. A consumer that is silent, or has a gap, is an error.

use super::bucket::Bucket;
use super::connection::{Connection, Connections};
use super::failure::Event;
use crate::lease::show;
use crate::store::StoreError;
use async_nats::jetstream::consumer::{self, AckPolicy, DeliverPolicy, IntoConsumerConfig, push};
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::{self, Context};
use async_nats::{Message, StatusCode, Subscriber};
use futures_util::StreamExt;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast;
use tokio::time::{sleep, timeout};

/// How often the server says that it is there, and after what silence it is not.
const HEARTBEAT: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_secs(11);
/// The server forgets a consumer without a listener after this time.
const INACTIVE: Duration = Duration::from_secs(10);

pub struct Pushed {
    connections: Arc<Connections>,
    connection: Arc<Connection>,
    context: Context,
    messages: Subscriber,
    events: broadcast::Receiver<Event>,
    /// The number of the last message.
    last: u64,
    /// How many messages are still to come that the stream has already.
    pub pending: u64,
}

impl Bucket {
    /// Has the server push what these keys hold, and then each change. The keys may have wildcards.
    pub async fn consume(&self, keys: &[String]) -> Result<Pushed, StoreError> {
        let (connections, connection) = (Arc::clone(&self.connections), self.connections.connection().await?);
        let context = jetstream::new(connection.client.clone());
        let mut events = connection.events.subscribe();
        let inbox = connection.client.new_inbox();
        let messages = connection.client.subscribe(inbox.clone()).await;
        let messages = messages.map_err(|_| StoreError::not_applied(connections.lost(&connection).message))?;
        let config = push::Config {
            deliver_subject: inbox.clone(),
            deliver_policy: DeliverPolicy::LastPerSubject,
            ack_policy: AckPolicy::None,
            filter_subjects: keys.iter().map(|key| self.subject(key)).collect(),
            idle_heartbeat: HEARTBEAT,
            inactive_threshold: INACTIVE,
            memory_storage: true,
            num_replicas: 1,
            ..push::Config::default()
        };
        let request = json!({ "stream_name": self.stream(), "config": config.into_consumer_config() });
        let made = self.demand("CONSUMER.CREATE", &request);
        let consumer::Info { num_pending: pending, .. } = tokio::select! {
            biased;
            error = connections.failure(&connection, &mut events, &inbox) => return Err(error),
            made = made => made?,
        };
        Ok(Pushed { connections, connection, context, messages, events, last: 0, pending })
    }
}

impl Pushed {
    /// The next message of the stream. Until nothing is pending, it is one that the stream had already.
    ///
    /// # Errors
    /// The consumer has to be replaced.
    pub async fn next(&mut self) -> Result<StreamMessage, StoreError> {
        let server = &self.connection.server;
        loop {
            let message = tokio::select! {
                biased;
                message = self.messages.next() => message.ok_or_else(|| self.connections.lost(&self.connection))?,
                error = self.connections.failure(&self.connection, &mut self.events, "") => return Err(error),
                () = sleep(SILENCE) => {
                    return Err(StoreError::unknown(format!("{server} sent nothing for {}", show(SILENCE))));
                }
            };
            self.connection.meter.begin_again();
            if message.status == Some(StatusCode::IDLE_HEARTBEAT) {
                let last = message.headers.as_ref().and_then(|headers| headers.get("Nats-Last-Consumer"));
                if last.and_then(|last| last.as_str().parse().ok()).is_none_or(|last: u64| last <= self.last) {
                    continue;
                }
            }
            let pushed = jetstream::Message { message, context: self.context.clone() };
            let place = pushed.info().ok().filter(|place| place.consumer_sequence == self.last + 1);
            let Some(place) = place else {
                return Err(StoreError::unknown(format!("{server} skipped messages of a consumer")));
            };
            self.last += 1;
            self.pending = self.pending.min(place.pending);
            let (sequence, time) = (place.stream_sequence, place.published);
            let Message { subject, headers, payload, .. } = pushed.message;
            return Ok(StreamMessage { subject, sequence, headers: headers.unwrap_or_default(), payload, time });
        }
    }

    /// As [`Pushed::next`], within a time.
    pub async fn next_within(&mut self, bound: Duration) -> Result<StreamMessage, StoreError> {
        timeout(bound, self.next()).await.unwrap_or_else(|_| {
            Err(StoreError::unknown(format!("{} sent no message within {}", self.connection.server, show(bound))))
        })
    }
}
