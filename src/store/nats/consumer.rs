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
use async_nats::jetstream::consumer;
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::{self, Context};
use async_nats::{Message, StatusCode, Subscriber};
use futures_util::StreamExt;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast;
use tokio::time::timeout;

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
    /// What happens to the connection, also between two messages.
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
        let inbox = connection.client.new_inbox();
        let subjects: Vec<String> = keys.iter().map(|key| self.subject(key)).collect();
        let config = json!({
            "deliver_subject": inbox,
            "deliver_policy": "last_per_subject",
            "ack_policy": "none",
            "filter_subjects": subjects,
            "idle_heartbeat": HEARTBEAT.as_nanos(),
            "inactive_threshold": INACTIVE.as_nanos(),
            "mem_storage": true,
            "num_replicas": 1,
        });
        let request = json!({ "stream_name": self.stream(), "config": config });
        let events = connection.events.subscribe();
        let messages = connection.client.subscribe(inbox).await.map_err(|_| connections.lost(&connection))?;
        let made: consumer::Info = self.demand("CONSUMER.CREATE", &request).await?;
        Ok(Pushed { connections, connection, context, messages, events, last: 0, pending: made.num_pending })
    }
}

impl Pushed {
    /// The next message of the stream. Until nothing is pending, it is one that the stream had already.
    ///
    /// # Errors
    /// The consumer has to be replaced.
    pub async fn next(&mut self) -> Result<StreamMessage, StoreError> {
        let Self { connections, connection, context, messages, events, last, pending } = self;
        let server = &connection.server;
        loop {
            let pushed = connections.unless_it_fails(connection, events, "", timeout(SILENCE, messages.next())).await?;
            let silent = |_| StoreError::unknown(format!("{server} sent nothing for {}", show(SILENCE)));
            let message = pushed.map_err(silent)?.ok_or_else(|| connections.lost(connection))?;
            connection.meter.begin_again();
            if message.status == Some(StatusCode::IDLE_HEARTBEAT) {
                let sent = message.headers.as_ref().and_then(|headers| headers.get("Nats-Last-Consumer"));
                if sent.and_then(|sent| sent.as_str().parse().ok()).is_none_or(|sent: u64| sent <= *last) {
                    continue;
                }
            }
            let pushed = jetstream::Message { message, context: context.clone() };
            let Some(place) = pushed.info().ok().filter(|place| place.consumer_sequence == *last + 1) else {
                return Err(StoreError::unknown(format!("{server} skipped messages of a consumer")));
            };
            *last += 1;
            *pending = place.pending.min(*pending);
            let (sequence, time) = (place.stream_sequence, place.published);
            let Message { subject, headers, payload, .. } = pushed.message;
            return Ok(StreamMessage { subject, sequence, headers: headers.unwrap_or_default(), payload, time });
        }
    }

    /// As [`Pushed::next`], within the time of a request.
    pub async fn next_in_time(&mut self) -> Result<StreamMessage, StoreError> {
        let bound = self.connections.bound;
        timeout(bound, self.next()).await.unwrap_or_else(|_| {
            Err(StoreError::unknown(format!("{} sent no message within {}", self.connection.server, show(bound))))
        })
    }
}
