//! The store `nats://` against a real nats-server.

mod access;
mod check;
mod forgotten;
mod lock_key;
mod protocol;

use crate::support::claims::*;
use crate::support::nats::{BUCKET, Server};
use crate::support::prelude::*;
use crate::{REQUEST_TIMEOUT, open, open_with};
use serde_json::json;
use tokio::time::sleep;

/// A server with a bucket that nobody has used before.
async fn server() -> Server {
    let server = Server::start();
    ready(&server.own_url()).await;
    server
}

async fn ready(url: &str) {
    let store = open(url).await;
    store.prepare().await.expect("the bucket is made");
    store.vouch().await.expect("it is new");
}

/// Makes a bucket as other programs do, with some settings of their own.
fn make(server: &Server, bucket: &str, settings: &Value) {
    let mut config = json!({
        "name": format!("KV_{bucket}"), "subjects": [format!("$KV.{bucket}.>")], "storage": "file",
        "retention": "limits", "discard": "new", "max_msgs_per_subject": 1, "num_replicas": 1, "allow_direct": true,
    });
    config.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    let answer = server.client().api(&format!("STREAM.CREATE.KV_{bucket}"), &config);
    assert_eq!(answer["error"], Value::Null, "{answer}");
}

fn drop_bucket(server: &Server) {
    server.client().api(&format!("STREAM.DELETE.KV_{BUCKET}"), &Value::Null);
}

const SHORT: Duration = Duration::from_millis(1500);

fn short(owner: &str) -> Candidate {
    with_lease(owner, SHORT)
}

const KEY: &str = "=shard.db/main";

/// What does not come fails the test.
async fn in_time<T>(awaited: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, awaited).await.expect("it comes in time")
}

fn nobody_leads(server: &Server) -> bool {
    server.client().record(KEY).is_none_or(|document| document["lease"].is_null())
}
