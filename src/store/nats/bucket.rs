//! A bucket: a stream with one message for each key, asked by requests to JetStream.
//!
//! The hazard: a read may come from a replica that is behind. So nothing here uses direct gets, whatever the bucket's
//! configuration: the stream's leader answers. Even that leader may have been voted out without knowing it. So a read
//! only ever leads to a write that names the revision that was read, and the majority decides on that write.

use super::connection::Connections;
use super::failure::Failure;
use crate::lease::show;
use crate::store::{ErrorKind, StoreError};
use async_nats::HeaderMap;
use async_nats::datetime::parse_rfc3339;
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::publish::PublishAck;
use async_nats::jetstream::response::Response;
use async_nats::jetstream::stream::{self, DiscardPolicy, RawMessage, RetentionPolicy};
use async_nats::jetstream::{Error as ApiError, ErrorCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::sync::Arc;

/// How far the time that `store init` asked for may be ahead of the birth of the bucket, by any two clocks of a cluster.
const MOST_LABOUR_MICROS: u64 = 60_000_000;
const OTHER_STREAM: ErrorCode = ErrorCode(10060);

pub struct Bucket {
    pub connections: Arc<Connections>,
    pub name: String,
    /// False if it belongs to other programs.
    pub is_ours: bool,
}

/// The result of a conditional write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    At(u64),
    /// The key was not at the expected revision. If it was sent twice, perhaps because of the first sending.
    Refused {
        sent_twice: bool,
    },
}

/// The state of a bucket.
#[derive(Debug)]
pub struct Info {
    pub stream: stream::Info,
    /// What time the server said it is, in microseconds since 1970.
    pub micros: u64,
}

impl Info {
    pub fn is_clustered(&self) -> bool {
        // Servers that stand alone name themselves as the leader of a cluster without a name.
        self.stream.cluster.as_ref().is_some_and(|cluster| cluster.name.is_some())
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

    fn server(&self) -> String {
        self.connections.address().server()
    }

    /// The bucket's state, and the server's time.
    pub async fn info(&self) -> Result<Info, StoreError> {
        let name = format!("STREAM.INFO.{}", self.stream());
        let answer: Value = self.demand(&name, &Value::Null).await?;
        let time = answer.get("ts").and_then(Value::as_str).and_then(|time| parse_rfc3339(time).ok());
        let micros = time.and_then(|time| u64::try_from(time.unix_timestamp_nanos() / 1000).ok());
        let stream = serde_json::from_value(answer).ok();
        let (stream, micros) = stream.zip(micros).ok_or_else(|| self.senseless(&name))?;
        Ok(Info { stream, micros })
    }

    /// What the key holds, or the mark of its deletion, from the leader of the stream.
    pub async fn get(&self, key: &str) -> Result<Option<StreamMessage>, StoreError> {
        #[derive(Deserialize)]
        struct Found {
            message: RawMessage,
        }
        let name = format!("STREAM.MSG.GET.{}", self.stream());
        match self.ask::<Found>(&name, &json!({ "last_by_subj": self.subject(key) })).await? {
            Ok(found) => found.message.try_into().map(Some).map_err(|_| self.senseless(&name)),
            Err(error) if error.error_code() == ErrorCode::NO_MESSAGE_FOUND => Ok(None),
            Err(error) => Err(self.refused(&name, &error)),
        }
    }

    /// Writes the key if it is at revision `expected`, where zero stands for a key that holds nothing; without one, whatever
    /// it holds.
    ///
    /// # Errors
    /// Unknown if it may have been written.
    pub async fn put(
        &self,
        key: &str,
        mut headers: HeaderMap,
        text: &str,
        expected: Option<u64>,
    ) -> Result<Written, StoreError> {
        if let Some(expected) = expected {
            headers.insert("Nats-Expected-Last-Subject-Sequence", expected.to_string());
        }
        // The subject may belong to a stream that is not a bucket.
        headers.insert("Nats-Expected-Stream", self.stream());
        let subject = self.subject(key);
        let answer = match self.connections.request(&subject, Some(headers), text.into()).await {
            Ok(answer) => answer,
            Err(Failure::Error(error)) => return Err(error),
            Err(Failure::NoResponders) => return Err(self.why_nobody_responds().await),
        };
        let error = match serde_json::from_slice(&answer.message.payload) {
            Ok(Response::Ok(PublishAck { sequence: revision @ 1.., .. })) => return Ok(Written::At(revision)),
            Ok(Response::Ok(_)) | Err(_) => return Err(self.senseless(&subject)),
            Ok(Response::Err { error }) => error,
        };
        match error.error_code() {
            ErrorCode::STREAM_WRONG_LAST_SEQUENCE | ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT => {
                Ok(Written::Refused { sent_twice: answer.sent_twice })
            }
            OTHER_STREAM => Err(StoreError::misconfigured(format!(
                "the subjects of bucket {} in {} belong to another stream than {}",
                self.name,
                self.server(),
                self.stream()
            ))),
            _ => Err(match self.refused(&subject, &error) {
                // A cluster may say this about a write that it has begun.
                error if error.kind == ErrorKind::NotApplied => StoreError::unknown(error.message),
                error => error,
            }),
        }
    }

    /// Replaces what the key holds by the mark of a deletion.
    pub async fn delete(
        &self,
        key: &str,
        mut headers: HeaderMap,
        expected: Option<u64>,
    ) -> Result<Written, StoreError> {
        headers.insert("KV-Operation", "DEL");
        self.put(key, headers, "", expected).await
    }

    /// # Errors
    /// No lease or lock can rely on this bucket.
    pub fn fit(&self, config: &stream::Config) -> Result<(), StoreError> {
        let all = self.subject(">");
        let wrong = if config.mirror.is_some() {
            "is a mirror, which takes no writes: name the bucket that it mirrors".to_owned()
        } else if !config.subjects.contains(&all) {
            format!("does not take the subjects {all}: it is no key-value bucket: use another one")
        } else if config.sealed {
            "is sealed, so nothing can be written: use another one".to_owned()
        } else if config.no_ack {
            "does not acknowledge writes: turn no_ack off".to_owned()
        } else if config.retention != RetentionPolicy::Limits {
            "forgets what was read (its retention is not limits): use another one".to_owned()
        } else if (config.max_messages > 0 || config.max_bytes > 0) && config.discard != DiscardPolicy::New {
            "drops old records when it is full, and so leases that are held: set discard to new, or remove max_msgs and \
             max_bytes"
                .to_owned()
        } else {
            return Ok(());
        };
        Err(StoreError::misconfigured(format!("bucket {} in {} {wrong}", self.name, self.server())))
    }

    /// # Errors
    /// An election cannot work on this bucket, or cannot rely on it.
    pub fn usable(&self, config: &stream::Config) -> Result<(), StoreError> {
        self.fit(config)?;
        if config.max_age.is_zero() {
            return Ok(());
        }
        let (name, lock) = (&self.name, self.connections.address().lock_key.as_ref());
        let advice = match lock.filter(|lock| lock.bucket == *name) {
            Some(lock) => format!(
                ", as a lock of other programs needs it, and leases must not be forgotten: name another bucket, and write \
                 lock_key={name}/{}",
                lock.key
            ),
            None => ": set its TTL (max_age) to 0, for leases end by themselves".to_owned(),
        };
        let (server, age) = (self.server(), show(config.max_age));
        Err(StoreError::misconfigured(format!("bucket {name} in {server} forgets its records after {age}{advice}")))
    }

    /// Sends a request to JetStream. The inner error is its refusal.
    pub async fn ask<T: DeserializeOwned>(
        &self,
        name: &str,
        request: &Value,
    ) -> Result<Result<T, ApiError>, StoreError> {
        let payload = if request.is_null() { String::new() } else { request.to_string() };
        let answer = match self.connections.request(&format!("$JS.API.{name}"), None, payload.into()).await {
            Ok(answer) => answer.message,
            Err(Failure::Error(error)) => return Err(error),
            Err(Failure::NoResponders) => return Err(self.without_jetstream().await),
        };
        match serde_json::from_slice(&answer.payload) {
            Ok(Response::Ok(answer)) => Ok(Ok(answer)),
            Ok(Response::Err { error }) => Ok(Err(error)),
            Err(_) => Err(self.senseless(name)),
        }
    }

    /// As [`Bucket::ask`], where every refusal is an error.
    pub async fn demand<T: DeserializeOwned>(&self, name: &str, request: &Value) -> Result<T, StoreError> {
        self.ask(name, request).await?.map_err(|error| self.refused(name, &error))
    }

    /// The error for a refusal.
    pub fn refused(&self, what: &str, error: &ApiError) -> StoreError {
        let server = self.server();
        match error.error_code() {
            ErrorCode::STREAM_NOT_FOUND => self.missing(),
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

    pub fn missing(&self) -> StoreError {
        let advice = if self.is_ours {
            "make it with leaderctl store init"
        } else {
            "the programs whose key lock_key= names have to make it"
        };
        StoreError::misconfigured(format!("no bucket {} in {}: {advice}", self.name, self.server()))
    }

    /// The error if JetStream is missing. Only one case is certain: in the others, the server may have just started.
    async fn without_jetstream(&self) -> StoreError {
        let server = self.server();
        let info = match self.connections.connection().await {
            Ok(connection) => connection.client.server_info(),
            Err(error) => return error,
        };
        if !info.jetstream && info.cluster.is_none() {
            return StoreError::misconfigured(format!("{server} runs without JetStream: start nats-server with -js"));
        }
        StoreError::not_applied(format!("JetStream in {server} does not respond: it may be starting"))
    }

    /// The error for a write that nobody answered: there is no bucket, or it has no leader for the moment.
    async fn why_nobody_responds(&self) -> StoreError {
        match self.info().await {
            Ok(_) => StoreError::not_applied(format!(
                "bucket {} in {} does not respond: it may be electing a leader, or not take the subjects of a bucket",
                self.name,
                self.server()
            )),
            // Whatever happened in between, the write was not done.
            Err(error) if error.kind == ErrorKind::Unknown => StoreError::not_applied(error.message),
            Err(error) => error,
        }
    }

    fn senseless(&self, what: &str) -> StoreError {
        StoreError::unknown(format!("cannot understand the answer of {} to {what}", self.server()))
    }
}
