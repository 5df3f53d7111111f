//! How a standby hears of a release: an ephemeral consumer on the shard's key, pushed to us.
//!
//! The hazard: a consumer may die without a word (its server restarted, the bucket was made again, the connection
//! hangs), and a standby would wait for news that never arrive. So every few seconds the server says that it is still
//! there, and which message was the last. A consumer that is silent, or has a gap, is replaced, and then the record is
//! read.
//!
//! Each renewal of the leader arrives this way too. It only shows that the lease goes on from now.

use super::Nats;
use super::address::key_of;
use super::bucket::Bucket;
use super::connection::{Connection, Connections};
use super::jetstream::{Stamp, is_deletion};
use super::record::{Content, Snapshot};
use crate::lease::Shard;
use crate::store::{ErrorKind, StoreError};
use crate::time::{BootInstant, nanos};
use async_nats::{Message, StatusCode, Subscriber};
use futures_util::StreamExt;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

/// How often the server says that it is there.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// A consumer that is silent for this long is gone.
pub const SILENCE: Duration = Duration::from_secs(11);
/// The server forgets a consumer without a listener after this time.
const INACTIVE: Duration = Duration::from_secs(10);
const LEAST_PAUSE: Duration = Duration::from_millis(100);
const MOST_PAUSE: Duration = Duration::from_secs(1);

/// Returns when the lease may be free.
///
/// # Errors
/// Only errors that trying again does not repair soon.
pub async fn changed(store: &Nats, shard: &Shard) -> Result<(), StoreError> {
    let mut pause = LEAST_PAUSE;
    loop {
        match listen(store, shard, &mut pause).await {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) => match error.kind {
                ErrorKind::NotApplied | ErrorKind::Unknown => {
                    sleep(pause).await;
                    pause = (pause * 2).min(MOST_PAUSE);
                }
                ErrorKind::Denied | ErrorKind::Misconfigured => {
                    sleep(MOST_PAUSE).await;
                    return Err(error);
                }
            },
        }
    }
}

/// Listens to a consumer. False if the consumer has to be replaced.
async fn listen(store: &Nats, shard: &Shard, pause: &mut Duration) -> Result<bool, StoreError> {
    let connections = &store.bucket.connections;
    let connection = connections.connection().await?;
    let before = connection.denials();
    let (inbox, mut messages) = open_inbox(connections, &connection).await?;
    let begun = BootInstant::now();
    let filter = ("filter_subject", json!(store.bucket.address().subject(&key_of(shard))));
    consume(&store.bucket, &inbox, filter, "new").await?;
    // From here on nothing is missed. This shows what came before.
    store.look(shard).await?;
    *pause = LEAST_PAUSE;
    let mut silent_at = Instant::now() + SILENCE;
    let mut last = 0;
    loop {
        let now = BootInstant::now();
        let Some(known) = store.known(shard) else { return Ok(true) };
        let end = match known.content {
            // The lease was released, or has expired.
            Content::Record(_) if known.left(now).is_zero() => return Ok(true),
            Content::Record(_) => Some(known.left(now)),
            Content::Deleted => return Ok(true),
            Content::Foreign => None,
        };
        tokio::select! {
            biased;
            message = messages.next() => {
                let Some(message) = message else { return Ok(false) };
                connection.heard();
                silent_at = Instant::now() + SILENCE;
                if last_before(&message).is_some_and(|told| told > last) {
                    return Ok(false);
                }
                if let Some((place, value)) = read(&message) {
                    last = place.sequence;
                    let content = Content::read(value);
                    let mut snapshot = Snapshot::new(place.revision, place.stamp, content, BootInstant::now());
                    // The server has just stored it.
                    snapshot.dated = true;
                    store.note(shard, snapshot, begun);
                }
            }
            error = connections.trouble(&connection, &inbox, before) => return Err(error),
            () = sleep(end.unwrap_or(SILENCE)), if end.is_some() => {}
            () = sleep_until(silent_at) => return Ok(false),
        }
    }
}

/// Subscribes to an inbox of our own, for the messages of a consumer.
pub async fn open_inbox(
    connections: &Connections,
    connection: &Arc<Connection>,
) -> Result<(String, Subscriber), StoreError> {
    let inbox = connection.client.new_inbox();
    let messages = connection.client.subscribe(inbox.clone()).await.map_err(|error| {
        connections.discard(connection);
        StoreError::not_applied(format!("cannot subscribe in {}: {error}", connection.server))
    })?;
    Ok((inbox, messages))
}

/// Makes a consumer that pushes what `filter` names into `inbox`, and a heartbeat. Returns the server's answer.
pub async fn consume(
    bucket: &Bucket,
    inbox: &str,
    filter: (&str, Value),
    deliver_policy: &str,
) -> Result<Value, StoreError> {
    let stream = bucket.address().stream();
    let mut config = json!({
        "deliver_subject": inbox,
        "deliver_policy": deliver_policy,
        "ack_policy": "none",
        "max_deliver": 1,
        "replay_policy": "instant",
        "idle_heartbeat": nanos(HEARTBEAT),
        "inactive_threshold": nanos(INACTIVE),
        "mem_storage": true,
        "num_replicas": 1,
    });
    config[filter.0] = filter.1;
    let name = format!("CONSUMER.CREATE.{stream}");
    bucket.request(&name, &json!({ "stream_name": stream, "config": config })).await
}

/// The number of the message before this heartbeat. None if it is none.
pub fn last_before(heartbeat: &Message) -> Option<u64> {
    let is_heartbeat = heartbeat.status == Some(StatusCode::IDLE_HEARTBEAT);
    let headers = heartbeat.headers.as_ref().filter(|_| is_heartbeat)?;
    headers.get("Nats-Last-Consumer")?.as_str().parse().ok()
}

/// A message of the stream: its place and its value. No value if it marks a deletion.
pub fn read(message: &Message) -> Option<(Place, Option<&[u8]>)> {
    let place = place(message.reply.as_ref()?.as_str())?;
    let deleted = message.headers.as_ref().is_some_and(|headers| {
        is_deletion(headers.iter().flat_map(|(name, values)| values.iter().map(|v| (name.as_ref(), v.as_str()))))
    });
    Some((place, (!deleted).then_some(&*message.payload)))
}

/// Where a message stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its number in the stream.
    pub revision: u64,
    /// Its number among those of the consumer.
    pub sequence: u64,
    pub stamp: Stamp,
    /// How many follow that the stream has already.
    pub pending: u64,
}

/// The place of a message, from the subject that acknowledges it:
/// `$JS.ACK.STREAM.CONSUMER.DELIVERIES.REVISION.SEQUENCE.NANOSECONDS.PENDING`. After `ACK` there may be a domain and an
/// account, and more parts may follow at the end.
fn place(reply: &str) -> Option<Place> {
    let tokens = reply.strip_prefix("$JS.ACK.")?.split('.').collect::<Vec<_>>();
    let from = if tokens.len() == 7 { 3 } else { 5 };
    let number = |index: usize| tokens.get(from + index)?.parse().ok();
    Some(Place { revision: number(0)?, sequence: number(1)?, stamp: Stamp(number(2)?), pending: number(3)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz;

    #[test]
    fn a_million_subjects_of_acknowledgements_tell_a_place_or_none() {
        let seeds = [
            "$JS.ACK.KV_b.xqnyZdQv.1.7.2.1795268611017220056.0",
            "$JS.ACK.hub.hash.KV_b.xqnyZdQv.1.7.2.1795268611017220056.0.r4nd",
        ];
        fuzz::bent_text("place of a message of JetStream", &seeds, |text, _| {
            let read = place(text);
            if let Some(Place { revision, sequence, stamp, pending }) = read {
                let written = format!("$JS.ACK.KV_b.c.1.{revision}.{sequence}.{}.{pending}", stamp.0);
                assert_eq!(place(&written), read);
            }
            (&read).into()
        });
    }

    #[test]
    fn the_place_of_a_message_is_read_in_both_forms() {
        let place_of = Place { revision: 7, sequence: 2, stamp: Stamp(1_795_268_611_017_220_056), pending: 0 };
        assert_eq!(place("$JS.ACK.KV_b.xqnyZdQv.1.7.2.1795268611017220056.0"), Some(place_of));
        assert_eq!(place("$JS.ACK._.hash.KV_b.xqnyZdQv.1.7.2.1795268611017220056.0"), Some(place_of));
        assert_eq!(place("$JS.ACK.hub.hash.KV_b.xqnyZdQv.1.7.2.1795268611017220056.0.r4nd"), Some(place_of));
        for bad in ["", "$JS.ACK.", "$JS.ACK.KV_b.c.1.x.2.3.0", "$JS.FC.KV_b.c.1.7.2.3.0", "$JS.ACK.1.2.3"] {
            assert_eq!(place(bad), None, "{bad}");
        }
    }
}
