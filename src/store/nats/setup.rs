//! `leaderctl store init`: makes the bucket.

use super::bucket::Bucket;
use crate::store::{ErrorKind, StoreError};
use crate::time::{millis_of_rfc3339, wall_clock_millis};
use async_nats::HeaderMap;
use async_nats::jetstream::ErrorCode;
use serde_json::{Value, json};

/// Makes the bucket if it is missing, and has its revisions begin with the time when it is made.
pub async fn prepare(bucket: &Bucket) -> Result<Vec<String>, StoreError> {
    let found = bucket.ask::<Value>("STREAM.INFO", &json!({}), Some(ErrorCode::STREAM_NOT_FOUND)).await?;
    let made = found.is_none() && create(bucket).await?;
    let mut info = bucket.info(false).await?;
    let place = bucket.place();
    let mut lines = vec![if made {
        format!("created {place}, with file storage, replicas: {}", info.stream.config.num_replicas)
    } else {
        format!("{place} exists")
    }];
    if info.stream.state.messages == 0 && !info.has_unique_revisions() && !info.is_clustered() {
        // Makes revisions begin there after the bucket was made, on a server that stands alone: a purge up to a number
        // that is not reached yet moves the next message there.
        match bucket.demand::<Value>("STREAM.PURGE", &json!({ "seq": info.created_micros() })).await.map(drop) {
            Ok(()) => info = bucket.info(false).await?,
            Err(error) if error.kind.is_final() => {
                lines.push(format!("its revisions begin with a low number: {error}"));
            }
            Err(error) => return Err(error),
        }
    }
    if info.has_unique_revisions() {
        lines.push("its revisions begin with the time when it was created".to_owned());
    }
    Ok(lines)
}

/// Makes the bucket as `nats kv add` does. False if another process has just made it.
async fn create(bucket: &Bucket) -> Result<bool, StoreError> {
    let config = json!({
        "name": bucket.stream(),
        "subjects": [bucket.subject(">")],
        "storage": "file",
        "retention": "limits",
        "discard": "new",
        "num_replicas": bucket.connections.address.replicas,
        "max_msgs_per_subject": 1,
        "max_consumers": -1,
        "max_msgs": -1,
        "max_bytes": -1,
        "duplicate_window": 120_000_000_000_u64,
        "deny_delete": true,
        "allow_rollup_hdrs": true,
        "allow_direct": true,
        "allow_msg_ttl": bucket.connections.connection().await?.is_of_version((2, 11)),
        "first_seq": time_of_birth(bucket).await?,
    });
    let made = bucket.ask::<Value>("STREAM.CREATE", &config, Some(ErrorCode::STREAM_NAME_EXIST)).await?;
    Ok(made.is_some())
}

/// The number at which revisions will begin, so that no earlier bucket of this name had them: the server's time, or
/// ours if it does not tell its own.
async fn time_of_birth(bucket: &Bucket) -> Result<u64, StoreError> {
    let told = match bucket.connections.request("$SYS.REQ.USER.INFO", HeaderMap::new(), Vec::new()).await {
        Err(error) if error.kind == ErrorKind::Denied => None,
        told => told?.0,
    };
    let told = told.and_then(|message| serde_json::from_slice::<Value>(&message.payload).ok());
    let millis = told.and_then(|told| millis_of_rfc3339(told["server"]["time"].as_str()?));
    Ok(millis.unwrap_or_else(wall_clock_millis) * 1000)
}
