//! A bucket: a stream with one message for each key, asked by requests to JetStream.
//!
//! The hazard: a read may come from a replica that is behind. So nothing here uses direct gets, whatever the bucket's
//! configuration: the stream's leader answers. Even that leader may have been voted out without knowing it. So a read
//! only ever leads to a write that names the revision that was read, and the majority decides on that write.

use super::connection::Connections;
use crate::lease::show;
use crate::store::{ErrorKind, StoreError};
use crate::time::millis_of_rfc3339;
use async_nats::HeaderMap;
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::publish::PublishAck;
use async_nats::jetstream::response::Response;
use async_nats::jetstream::stream::{self, DiscardPolicy, RawMessage, RetentionPolicy};
use async_nats::jetstream::{Error as ApiError, ErrorCode};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// How far apart the clocks of a cluster's servers may be.
const CLUSTER_SLACK: Duration = Duration::from_secs(5);
/// How far the time that `store init` asked for may be ahead of the bucket's birth, by any two clocks of a cluster.
const MOST_LABOUR_MICROS: u64 = 60_000_000;
/// How the server says that a key was not at the revision that a write named.
const ANOTHER_REVISION: [ErrorCode; 2] =
    [ErrorCode::STREAM_WRONG_LAST_SEQUENCE, ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT];

pub struct Bucket {
    pub connections: Arc<Connections>,
    pub name: String,
}

/// The state of a bucket, as the server described it.
#[derive(Debug, Deserialize)]
pub struct Info {
    #[serde(flatten)]
    pub stream: stream::Info,
    /// The server's time in its answer, in milliseconds since 1970.
    #[serde(rename = "ts", deserialize_with = "read_time")]
    pub millis: u64,
}

fn read_time<'de, D: Deserializer<'de>>(time: D) -> Result<u64, D::Error> {
    millis_of_rfc3339(&String::deserialize(time)?).ok_or_else(|| D::Error::custom("it tells no time"))
}

impl Info {
    pub fn is_clustered(&self) -> bool {
        // Servers that stand alone name themselves as the leader of a cluster without a name.
        self.stream.cluster.as_ref().is_some_and(|cluster| cluster.name.is_some())
    }

    /// How far its servers may be behind what one of them said.
    pub fn slack(&self) -> Duration {
        if self.is_clustered() { CLUSTER_SLACK } else { Duration::ZERO }
    }

    /// When it was made, which differs for a bucket that was made again.
    pub fn incarnation(&self) -> String {
        self.created_micros().to_string()
    }

    pub fn created_micros(&self) -> u64 {
        u64::try_from(self.stream.created.unix_timestamp_nanos() / 1000).unwrap_or(0)
    }

    /// Whether no earlier bucket of this name had its revisions: they begin with the time of its birth.
    pub fn has_unique_revisions(&self) -> bool {
        self.stream.state.last_sequence >= self.created_micros().saturating_sub(MOST_LABOUR_MICROS)
    }
}

impl Bucket {
    pub fn stream(&self) -> String {
        format!("KV_{}", self.name)
    }

    pub fn subject(&self, key: &str) -> String {
        format!("$KV.{}.{key}", self.name)
    }

    /// For messages.
    pub fn place(&self) -> String {
        format!("bucket {} in {}", self.name, self.connections.address.server())
    }

    /// # Errors
    /// No lease can rely on this bucket; or no lock, which the bucket may forget after a while (`may_forget`).
    pub async fn info(&self, may_forget: bool) -> Result<Info, StoreError> {
        let info: Info = self.demand("STREAM.INFO", &json!({})).await?;
        let config = &info.stream.config;
        let subjects = self.subject(">");
        let is_limited = config.max_messages > 0 || config.max_bytes > 0;
        // A mirror has no subjects.
        let wrong = if !config.subjects.contains(&subjects) {
            format!("does not take the subjects {subjects}: it is not a key-value bucket: use another one")
        } else if config.no_ack {
            "does not acknowledge writes: turn no_ack off".to_owned()
        } else if config.retention != RetentionPolicy::Limits {
            "forgets what was read (its retention is not limits): use another one".to_owned()
        } else if is_limited && config.discard != DiscardPolicy::New {
            "drops old records when it is full, and so leases that are held: set discard to new, or remove max_msgs and \
             max_bytes"
                .to_owned()
        } else if !may_forget && !config.max_age.is_zero() {
            format!(
                "forgets its records after {}, and leases must not be forgotten: set its TTL (max_age) to 0, or name \
                 another bucket than that of lock_key=",
                show(config.max_age)
            )
        } else {
            return Ok(info);
        };
        Err(StoreError::misconfigured(format!("{} {wrong}", self.place())))
    }

    /// What the key holds, or the mark of its deletion, from the leader of the stream.
    pub async fn get(&self, key: &str) -> Result<Option<StreamMessage>, StoreError> {
        #[derive(Deserialize)]
        struct Found {
            message: RawMessage,
        }
        let what = "STREAM.MSG.GET";
        let request = json!({ "last_by_subj": self.subject(key) });
        let found = self.ask::<Found>(what, &request, Some(ErrorCode::NO_MESSAGE_FOUND)).await?;
        found.map(|found| found.message.try_into()).transpose().map_err(|_| self.senseless(what))
    }

    /// Writes the key if it is at revision `expected`, where zero stands for a key that holds nothing; without one,
    /// whatever it holds. Returns its new revision; None if it was at another one.
    ///
    /// # Errors
    /// Unknown if it may have been written.
    pub async fn put(
        &self,
        key: &str,
        own: HeaderMap,
        text: &str,
        expected: Option<u64>,
    ) -> Result<Option<u64>, StoreError> {
        let mut headers = own.clone();
        if let Some(expected) = expected {
            headers.insert("Nats-Expected-Last-Subject-Sequence", expected.to_string());
        }
        // The subject may belong to a stream that is not a bucket.
        headers.insert("Nats-Expected-Stream", self.stream());
        let subject = self.subject(key);
        let (message, sent_twice) = self.connections.request(&subject, headers, text.into()).await?;
        // What was sent first may have been applied, whatever became of the second.
        let in_doubt = |error| if sent_twice { StoreError { kind: ErrorKind::Unknown, ..error } } else { error };
        let Some(message) = message else { return Err(in_doubt(self.why_nobody_responds().await)) };
        match serde_json::from_slice(&message.payload) {
            Ok(Response::Ok(PublishAck { sequence: revision @ 1.., .. })) => Ok(Some(revision)),
            Ok(Response::Ok(_)) | Err(_) => Err(self.senseless(&subject)),
            Ok(Response::Err { error }) if ANOTHER_REVISION.contains(&error.error_code()) => {
                if !sent_twice {
                    return Ok(None);
                }
                // Perhaps because of what was sent first.
                let stands = self.get(key).await.map_err(in_doubt)?;
                let has = |stands: &StreamMessage| own.iter().all(|own| stands.headers.iter().any(|of| of == own));
                Ok(stands.filter(|stands| stands.payload == text && has(stands)).map(|stands| stands.sequence))
            }
            // A cluster may say this about a write that it has begun.
            Ok(Response::Err { error }) => Err(self.refused(&subject, &error).after_a_part()),
        }
    }

    /// Sends a request about the stream to JetStream. None: it was refused with the code `none`.
    pub async fn ask<T: DeserializeOwned>(
        &self,
        what: &str,
        request: &Value,
        none: Option<ErrorCode>,
    ) -> Result<Option<T>, StoreError> {
        let subject = format!("$JS.API.{what}.{}", self.stream());
        let (answer, _) = self.connections.request(&subject, HeaderMap::new(), request.to_string().into()).await?;
        let Some(message) = answer else { return self.without_jetstream().await };
        match serde_json::from_slice(&message.payload) {
            Ok(Response::Ok(answer)) => Ok(Some(answer)),
            Ok(Response::Err { error }) if Some(error.error_code()) == none => Ok(None),
            Ok(Response::Err { error }) => Err(self.refused(what, &error)),
            Err(_) => Err(self.senseless(what)),
        }
    }

    /// As [`Bucket::ask`], where every refusal is an error.
    pub async fn demand<T: DeserializeOwned>(&self, what: &str, request: &Value) -> Result<T, StoreError> {
        self.ask(what, request, None).await?.ok_or_else(|| self.senseless(what))
    }

    /// The error for a refusal.
    pub fn refused(&self, what: &str, error: &ApiError) -> StoreError {
        let server = self.connections.address.server();
        match error.error_code() {
            ErrorCode::STREAM_NOT_FOUND => {
                let is_ours = self.name == self.connections.address.bucket;
                let by_others = "the programs whose key lock_key= names must create it";
                let advice = if is_ours { "create it with leaderctl store init" } else { by_others };
                StoreError::misconfigured(format!("no {}: {advice}", self.place()))
            }
            ErrorCode::JETSTREAM_NOT_ENABLED | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT => {
                StoreError::misconfigured(format!(
                    "{server} has no JetStream for this account: {error}: start nats-server with -js, or enable jetstream \
                     for the account"
                ))
            }
            code => {
                let message = format!("{server} refused {what}: {error}");
                // "Replicas are not supported in non-clustered mode" is not the server's failure.
                if error.code() >= 500 && code != ErrorCode::STREAM_REPLICAS_NOT_SUPPORTED {
                    StoreError::not_applied(message)
                } else {
                    StoreError::misconfigured(message)
                }
            }
        }
    }

    /// The error if JetStream is missing. Only one case is certain: in the others, the server may have just started.
    async fn without_jetstream<T>(&self) -> Result<T, StoreError> {
        let info = self.connections.connection().await?.client.server_info();
        let server = self.connections.address.server();
        Err(if !info.jetstream && info.cluster.is_none() {
            StoreError::misconfigured(format!("{server} runs without JetStream: start nats-server with -js"))
        } else {
            StoreError::not_applied(format!("JetStream in {server} does not respond: it may be starting"))
        })
    }

    /// The error for a write that nobody answered: there is no bucket, or it has no leader for the moment.
    async fn why_nobody_responds(&self) -> StoreError {
        match self.info(true).await {
            Ok(_) => StoreError::not_applied(format!(
                "{} does not respond: it may be electing a leader, or not take the subjects of a bucket",
                self.place()
            )),
            // Whatever happened in between, the write was not done.
            Err(error) if error.kind == ErrorKind::Unknown => StoreError::not_applied(error.message),
            Err(error) => error,
        }
    }

    fn senseless(&self, what: &str) -> StoreError {
        StoreError::unknown(format!("cannot understand the answer of {} to {what}", self.connections.address.server()))
    }
}
