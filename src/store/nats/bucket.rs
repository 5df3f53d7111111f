//! The bucket as JetStream keeps it: a stream with one message for each key, read and written in JetStream's own JSON.
//!
//! The hazard: a read may come from a replica that is behind. So nothing here uses direct gets, whatever the bucket's
//! configuration: the stream's leader answers. Even that leader may have been voted out without knowing it. So a read
//! only ever leads to a write that names the revision that was read, and the majority decides on that write.

use super::address::{Address, MARKER, SCRATCH, api};
use super::connection::Connections;
use super::failure::Failure;
use super::jetstream::{Acknowledgement, ApiError, Entry, Found, Info, RawMessage, Stamp, Subjects};
use crate::lease::show;
use crate::store::allowance::{self, MOST_LISTED, MOST_NAMES_OF_NATS, MOST_OF_NATS};
use crate::store::{ErrorKind, StoreError};
use async_nats::{HeaderMap, Message};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

/// Another process has written the key meanwhile.
const WRONG_LAST_SEQUENCE: [u16; 2] = [10071, 10164];
/// The marker's text once an operator has vouched for the bucket.
const NEW: &str = "leaderrun: this bucket was new when this was written; do not delete it";
const NO_MESSAGE: u16 = 10037;
pub const NO_STREAM: u16 = 10059;
const NO_JETSTREAM: [u16; 2] = [10039, 10076];
const OTHER_STREAM: u16 = 10060;
/// "Replicas are not supported in non-clustered mode", which is not the server's failure.
const NO_REPLICAS: u16 = 10074;
pub const STREAM_NAME_TAKEN: u16 = 10058;

pub struct Bucket {
    pub connections: Connections,
    /// False if it belongs to other programs.
    pub is_ours: bool,
}

/// The result of a conditional write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    Done {
        revision: u64,
    },
    /// The key was not at the expected revision.
    Conflict,
}

/// The reason why JetStream did not do a request.
pub enum Refusal {
    Api(ApiError),
    Error(StoreError),
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self::Error(error)
    }
}

impl Bucket {
    pub fn address(&self) -> &Address {
        self.connections.address()
    }

    /// The content of a key, from the leader of the stream.
    ///
    /// # Errors
    /// The server's error, or that there is no such bucket.
    pub async fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        let request = json!({ "last_by_subj": self.address().subject(key) });
        let name = format!("STREAM.MSG.GET.{}", self.address().stream());
        let answer = match self.ask(&name, &request).await {
            Ok(answer) => answer,
            Err(Refusal::Api(error)) if error.err_code == NO_MESSAGE => return Ok(None),
            Err(refusal) => return Err(self.failed(&name, refusal)),
        };
        let found: Found = self.read(&name, answer)?;
        let message = found.message.and_then(RawMessage::decoded);
        message.map(Some).ok_or_else(|| self.senseless(&name))
    }

    /// Writes the key if it is at revision `expected`; zero stands for a key that holds nothing.
    ///
    /// # Errors
    /// Unknown if it may have been written.
    pub async fn put(&self, key: &str, value: Vec<u8>, expected: u64) -> Result<Put, StoreError> {
        self.store(key, HeaderMap::new(), value, Some(expected)).await
    }

    /// Returns when everything is stored that the stream's leader had accepted before this was called.
    pub async fn earlier_writes_are_stored(&self) -> Result<(), StoreError> {
        self.store(SCRATCH, HeaderMap::new(), b"what came before this?".to_vec(), None).await.map(drop)
    }

    /// Whether the stream may be kept by several servers.
    ///
    /// # Errors
    /// There is no connection.
    pub async fn may_be_replicated(&self) -> Result<bool, StoreError> {
        let info = self.connections.connection().await?.client.server_info();
        // Another server keeps it if this one does not, and of that one we know nothing.
        Ok(info.cluster.is_some() || !info.jetstream)
    }

    /// Like [`Bucket::put`], of a value that the server forgets after `lasts`, if the bucket allows that.
    ///
    /// # Errors
    /// Unknown if it may have been written.
    pub async fn put_for(
        &self,
        key: &str,
        value: Vec<u8>,
        expected: u64,
        lasts: Option<Duration>,
    ) -> Result<Put, StoreError> {
        let mut headers = HeaderMap::new();
        if let Some(lasts) = lasts {
            headers.insert("Nats-TTL", format!("{}s", lasts.as_millis().div_ceil(1000)));
        }
        self.store(key, headers, value, Some(expected)).await
    }

    /// Replaces revision `expected` by the mark of a deletion.
    ///
    /// # Errors
    /// Unknown if it may have been written.
    pub async fn delete(&self, key: &str, expected: u64) -> Result<Put, StoreError> {
        let mut headers = HeaderMap::new();
        headers.insert("KV-Operation", "DEL");
        self.store(key, headers, Vec::new(), Some(expected)).await
    }

    async fn store(
        &self,
        key: &str,
        mut headers: HeaderMap,
        value: Vec<u8>,
        expected: Option<u64>,
    ) -> Result<Put, StoreError> {
        if let Some(expected) = expected {
            headers.insert("Nats-Expected-Last-Subject-Sequence", expected.to_string());
        }
        // The subject may belong to a stream that is not a bucket.
        headers.insert("Nats-Expected-Stream", self.address().stream());
        let subject = self.address().subject(key);
        let answer = match self.connections.request(&subject, Some(headers), value).await {
            Ok(answer) => answer,
            Err(Failure::Error(error)) => return Err(error),
            Err(Failure::NoResponders) => return Err(self.why_nobody_responds().await),
        };
        // An answer that cannot be read does not show whether the write was done.
        let read = serde_json::from_slice::<Acknowledgement>(&answer.payload);
        match read.ok().map(|answer| (answer.error, answer.seq)) {
            Some((None, Some(revision))) if revision > 0 => Ok(Put::Done { revision }),
            Some((Some(error), _)) if WRONG_LAST_SEQUENCE.contains(&error.err_code) => Ok(Put::Conflict),
            Some((Some(error), _)) if error.err_code == OTHER_STREAM => Err(StoreError::misconfigured(format!(
                "the subjects of bucket {} in {} belong to another stream than {}",
                self.address().bucket,
                self.address().server(),
                self.address().stream()
            ))),
            Some((Some(error), _)) => Err(match self.refused(&subject, &error) {
                // A cluster may say this about a write that it has begun.
                error if error.kind == ErrorKind::NotApplied => StoreError::unknown(error.message),
                error => error,
            }),
            _ => Err(StoreError::unknown(self.senseless(&subject).message)),
        }
    }

    /// The bucket's state. None if there is no such bucket.
    pub async fn info(&self) -> Result<Option<Info>, StoreError> {
        let name = format!("STREAM.INFO.{}", self.address().stream());
        match self.ask(&name, &Value::Null).await {
            Ok(answer) => self.read(&name, answer).map(Some),
            Err(Refusal::Api(error)) if error.err_code == NO_STREAM => Ok(None),
            Err(refusal) => Err(self.failed(&name, refusal)),
        }
    }

    /// # Errors
    /// An election cannot work on this bucket, or cannot rely on it.
    pub fn usable(&self, info: &Info) -> Result<(), StoreError> {
        self.fit(info)?;
        let max_age = info.config.max_age;
        if max_age == 0 {
            return Ok(());
        }
        let (address, age) = (self.address(), show(Duration::from_nanos(max_age)));
        let (name, server) = (&address.bucket, address.server());
        let advice = match &address.lock_key {
            Some(lock) if lock.bucket == *name => format!(
                "as a lock of other programs needs it, and leases must not be forgotten: name another bucket, and write \
                 lock_key={name}/{}",
                lock.key
            ),
            _ => "set its TTL (max_age) to 0, for leases end by themselves".to_owned(),
        };
        let colon = if advice.starts_with("as") { "," } else { ":" };
        Err(StoreError::misconfigured(format!(
            "bucket {name} in {server} forgets its records after {age}{colon} {advice}"
        )))
    }

    /// # Errors
    /// No lock can rely on this bucket.
    pub fn fit(&self, info: &Info) -> Result<(), StoreError> {
        let address = self.address();
        let (name, server, config) = (&address.bucket, address.server(), &info.config);
        let all = address.subject(">");
        let wrong = if config.mirror.is_some() {
            "is a mirror, which takes no writes: name the bucket that it mirrors".to_owned()
        } else if !config.subjects.contains(&all) {
            format!("does not take the subjects {all}: it is no key-value bucket: use another one")
        } else if config.sealed {
            "is sealed, so nothing can be written: use another one".to_owned()
        } else if config.no_ack {
            "does not acknowledge writes: turn no_ack off".to_owned()
        } else if config.retention != "limits" {
            format!("forgets what was read (retention {}): use another one", config.retention)
        } else if (config.max_msgs > 0 || config.max_bytes > 0) && config.discard != "new" {
            "drops old records when it is full, and so leases that are held: set discard to new, or remove max_msgs and \
             max_bytes"
                .to_owned()
        } else {
            return Ok(());
        };
        Err(StoreError::misconfigured(format!("bucket {name} in {server} {wrong}")))
    }

    /// The bucket's state, and every key that holds a value or the mark of a deletion. The server sends the keys in
    /// pages of many thousands.
    ///
    /// # Errors
    /// The server's error, or that there is no such bucket.
    pub async fn keys(&self) -> Result<(Info, BTreeSet<String>), StoreError> {
        let name = format!("STREAM.INFO.{}", self.address().stream());
        let (all, mut told, mut keys) = (self.address().subject(""), 0, BTreeSet::new());
        loop {
            let request = json!({ "subjects_filter": format!("{all}>"), "offset": told });
            let answer = self.ask_much(&name, &request, MOST_NAMES_OF_NATS).await;
            let mut answer = answer.map_err(|refusal| self.failed(&name, refusal))?;
            let subjects = answer.pointer_mut("/state/subjects").map(Value::take).unwrap_or_default();
            let page: Subjects = self.read(&name, subjects)?;
            let total = answer.get("total").and_then(Value::as_u64).unwrap_or(0);
            let page = page.unwrap_or_default();
            told += page.len() as u64;
            let is_last = page.is_empty() || told >= total;
            keys.extend(page.into_keys().filter_map(|subject| subject.strip_prefix(&all).map(str::to_owned)));
            if keys.len() > MOST_LISTED {
                return Err(allowance::too_long(&self.address().server()));
            }
            if is_last {
                return Ok((self.read(&name, answer)?, keys));
            }
        }
    }

    /// Removes all traces of the key, even the mark of a deletion, if it is still at `revision`.
    ///
    /// # Errors
    /// The server's error; candidates need not have the permission for this.
    pub async fn sweep(&self, key: &str, revision: u64) -> Result<(), StoreError> {
        let name = format!("STREAM.PURGE.{}", self.address().stream());
        let request = json!({ "filter": self.address().subject(key), "seq": revision + 1 });
        self.request(&name, &request).await.map(drop)
    }

    /// The server's time. Stores nothing.
    pub async fn time(&self, info: &Info) -> Result<Stamp, StoreError> {
        match info.time() {
            Some(time) => Ok(time),
            None => self.time_without_writing().await,
        }
    }

    /// The time at which a consumer was made, which the server forgets again. For servers that do not tell their time
    /// otherwise, if nothing may be stored.
    async fn time_without_writing(&self) -> Result<Stamp, StoreError> {
        let stream = self.address().stream();
        let name = format!("CONSUMER.CREATE.{stream}");
        let request = json!({
            "stream_name": stream,
            "config": {
                "filter_subject": self.address().subject(SCRATCH),
                "deliver_policy": "new",
                "ack_policy": "explicit",
                "replay_policy": "instant",
                "inactive_threshold": 1_000_000_000,
                "mem_storage": true,
                "num_replicas": 1,
            },
        });
        let answer = self.request(&name, &request).await?;
        let created = answer.get("created").and_then(Value::as_str).and_then(Stamp::read);
        created.ok_or_else(|| self.senseless(&name))
    }

    /// The time from the stamp on a message that was just stored. For servers that do not tell their time otherwise.
    pub async fn probed_time(&self) -> Result<Stamp, StoreError> {
        let expected = self.get(SCRATCH).await?.map_or(0, |before| before.revision);
        // If this is refused, another process has stored a message meanwhile, and its stamp will do.
        self.put(SCRATCH, b"what is the time?".to_vec(), expected).await?;
        let after = self.get(SCRATCH).await?;
        let after =
            after.ok_or_else(|| StoreError::unknown(format!("the key {SCRATCH} vanished while it was used")))?;
        Ok(after.stamp)
    }

    /// The marker, which says since when the bucket remembers.
    pub async fn marker(&self) -> Result<Option<Entry>, StoreError> {
        Ok(self.get(MARKER).await?.filter(|message| message.value.is_some()))
    }

    /// Marks that the bucket remembers from now on. False if it did so before.
    pub async fn mark(&self) -> Result<bool, StoreError> {
        let expected = match self.get(MARKER).await? {
            Some(message) if message.value.is_some() => return Ok(false),
            Some(deleted) => deleted.revision,
            None => 0,
        };
        let text = "leaderrun: this bucket remembers since this was written; do not delete it";
        Ok(self.put(MARKER, text.into(), expected).await? != Put::Conflict)
    }

    /// Marks that the bucket has never been used. See [`Bucket::is_new`].
    pub async fn vouch(&self) -> Result<(), StoreError> {
        for _ in 0..super::MOST_ATTEMPTS {
            let expected = self.get(MARKER).await?.map_or(0, |marker| marker.revision);
            if self.put(MARKER, NEW.into(), expected).await? != Put::Conflict {
                return Ok(());
            }
        }
        Err(StoreError::unknown(format!(
            "the marker of bucket {} changes faster than it can be written",
            self.address().bucket
        )))
    }

    /// Whether an operator vouched that nobody has used the bucket before its marker was written.
    pub fn is_new(marker: &Entry) -> bool {
        marker.value.as_deref() == Some(NEW.as_bytes())
    }

    /// Sends a request to JetStream.
    ///
    /// # Errors
    /// JetStream's refusal, or why there is no answer.
    pub async fn ask(&self, name: &str, request: &Value) -> Result<Value, Refusal> {
        self.ask_much(name, request, MOST_OF_NATS).await
    }

    /// As [`Bucket::ask`], where every refusal is an error.
    pub async fn request(&self, name: &str, request: &Value) -> Result<Value, StoreError> {
        self.ask(name, request).await.map_err(|refusal| self.failed(name, refusal))
    }

    async fn ask_much(&self, name: &str, request: &Value, most: usize) -> Result<Value, Refusal> {
        let payload = if request.is_null() { Vec::new() } else { request.to_string().into_bytes() };
        let answer: Message = match self.connections.request_much(&api(name), None, payload, most).await {
            Ok(answer) => answer,
            Err(Failure::Error(error)) => return Err(error.into()),
            Err(Failure::NoResponders) => return Err(self.without_jetstream().await.into()),
        };
        let mut answer: Value = serde_json::from_slice(&answer.payload).map_err(|_| self.senseless(name))?;
        match answer.get_mut("error").map(Value::take) {
            None => Ok(answer),
            Some(error) => Err(Refusal::Api(self.read(name, error)?)),
        }
    }

    /// The error for a refusal.
    pub fn failed(&self, what: &str, refusal: Refusal) -> StoreError {
        match refusal {
            Refusal::Api(error) => self.refused(what, &error),
            Refusal::Error(error) => error,
        }
    }

    fn refused(&self, what: &str, error: &ApiError) -> StoreError {
        let server = self.address().server();
        let ApiError { code, err_code, description } = error;
        if *err_code == NO_STREAM {
            return self.missing();
        }
        if NO_JETSTREAM.contains(err_code) {
            return StoreError::misconfigured(format!(
                "{server} has no JetStream for this account: {description}: start nats-server with -js, or enable \
                 jetstream for the account"
            ));
        }
        let message = format!("{server} refused {what}: {description} (error {err_code})");
        if *code >= 500 && *err_code != NO_REPLICAS {
            StoreError::not_applied(message)
        } else {
            StoreError::misconfigured(message)
        }
    }

    pub fn missing(&self) -> StoreError {
        let Address { bucket, .. } = self.address();
        let advice = if self.is_ours {
            "make it with leaderctl store init"
        } else {
            "the programs whose key lock_key= names have to make it"
        };
        StoreError::misconfigured(format!("no bucket {bucket} in {}: {advice}", self.address().server()))
    }

    /// The error if JetStream is missing. Only one case is certain: in the others, the server may have just started.
    async fn without_jetstream(&self) -> StoreError {
        let server = self.address().server();
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
            Ok(Some(_)) => StoreError::not_applied(format!(
                "bucket {} in {} does not respond: it may be electing a leader, or not take the subjects of a bucket",
                self.address().bucket,
                self.address().server()
            )),
            Ok(None) => self.missing(),
            // Whatever happened in between, the write was not done.
            Err(error) if error.kind == ErrorKind::Unknown => StoreError::not_applied(error.message),
            Err(error) => error,
        }
    }

    pub fn read<T: for<'a> Deserialize<'a>>(&self, what: &str, answer: Value) -> Result<T, StoreError> {
        serde_json::from_value(answer).map_err(|_| self.senseless(what))
    }

    fn senseless(&self, what: &str) -> StoreError {
        StoreError::unknown(format!("cannot understand the answer of {} to {what}", self.address().server()))
    }
}
