//! The bucket as JetStream keeps it: a stream with one message a key, asked by JetStream's own JSON.
//!
//! The hazard: a key may be read from a replica that is behind. So nothing here uses direct gets, however the bucket is
//! set up: the stream's leader answers. And even it may be one that was voted out and has not heard; so what a read
//! shows only ever leads to a write that names the revision it was read at, which the majority decides.

use super::address::{Address, MARKER, SCRATCH};
use super::connection::{Connections, Failure};
use crate::store::allowance::{self, MOST_LISTED, MOST_NAMES_OF_NATS, MOST_OF_NATS};
use crate::store::{ErrorKind, StoreError};
use async_nats::{HeaderMap, Message};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, UNIX_EPOCH};

/// "Somebody else has written the key meanwhile."
const WRONG_LAST_SEQUENCE: [u16; 2] = [10071, 10164];
const NO_MESSAGE: u16 = 10037;
pub const NO_STREAM: u16 = 10059;
const NO_JETSTREAM: [u16; 2] = [10039, 10076];
const OTHER_STREAM: u16 = 10060;
/// "Replicas are not supported in non-clustered mode", which is not the server's failure.
const NO_REPLICAS: u16 = 10074;
pub const STREAM_NAME_TAKEN: u16 = 10058;

pub struct Bucket {
    pub connections: Connections,
}

/// What a key holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub revision: u64,
    /// When the server stored it.
    pub stamp: Stamp,
    /// None where somebody deleted the key: a marker of that takes the place of what was there.
    pub value: Option<Vec<u8>>,
}

/// An instant on the server's clock, in nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp(pub u64);

impl Stamp {
    /// Zero where `earlier` is in truth later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    pub fn micros(self) -> u64 {
        self.0 / 1000
    }

    pub fn read(rfc3339: &str) -> Option<Self> {
        let since = humantime::parse_rfc3339(rfc3339).ok()?.duration_since(UNIX_EPOCH).ok()?;
        Some(Self(u64::try_from(since.as_nanos()).ok()?))
    }
}

/// What a conditional write came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    Done {
        revision: u64,
    },
    /// The key was not at the expected revision.
    Conflict,
}

/// A refusal by JetStream.
#[derive(Clone, Debug, Deserialize)]
pub struct ApiError {
    code: u16,
    #[serde(default)]
    pub err_code: u16,
    #[serde(default)]
    pub description: String,
}

/// Why JetStream did not do as it was asked.
pub enum Refusal {
    Api(ApiError),
    Error(StoreError),
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self::Error(error)
    }
}

#[derive(Debug, Deserialize)]
struct Acknowledgement {
    error: Option<ApiError>,
    seq: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Found {
    message: Option<RawMessage>,
}

#[derive(Debug, Deserialize)]
struct RawMessage {
    seq: u64,
    #[serde(default)]
    data: String,
    #[serde(default)]
    hdrs: String,
    time: String,
}

/// How many messages each subject has; null where there is none.
type Subjects = Option<HashMap<String, u64>>;

/// What JetStream tells of a bucket, as far as it matters here.
#[derive(Clone, Debug, Deserialize)]
pub struct Info {
    pub config: Config,
    pub state: State,
    cluster: Option<Cluster>,
    created: String,
    /// The server's time. Servers before 2.10 do not tell it.
    ts: Option<String>,
}

impl Info {
    pub fn created(&self) -> Option<Stamp> {
        Stamp::read(&self.created)
    }

    /// The server's clock.
    pub fn time(&self) -> Option<Stamp> {
        Stamp::read(self.ts.as_deref()?)
    }

    pub fn is_clustered(&self) -> bool {
        // Newer servers that stand alone name themselves as the leader of a cluster without a name.
        self.cluster.as_ref().is_some_and(|cluster| cluster.name.is_some())
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
#[derive(Default)]
pub struct Config {
    pub subjects: Vec<String>,
    pub retention: String,
    pub storage: String,
    pub discard: String,
    pub max_msgs: i64,
    pub max_bytes: i64,
    pub max_msgs_per_subject: i64,
    /// In nanoseconds.
    pub max_age: u64,
    pub num_replicas: u8,
    pub no_ack: bool,
    pub sealed: bool,
    pub mirror: Option<Value>,
    pub persist_mode: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct State {
    pub messages: u64,
    pub last_seq: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Cluster {
    name: Option<String>,
}

impl Bucket {
    pub fn address(&self) -> &Address {
        self.connections.address()
    }

    /// What the key holds, by the leader of the stream.
    ///
    /// # Errors
    /// What the server says, or that there is no such bucket.
    pub async fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        let request = json!({ "last_by_subj": self.address().subject(key) });
        let name = format!("STREAM.MSG.GET.{}", self.address().stream());
        let answer = match self.ask(&name, &request).await {
            Ok(answer) => answer,
            Err(Refusal::Api(error)) if error.err_code == NO_MESSAGE => return Ok(None),
            Err(Refusal::Api(error)) => return Err(self.refused(&name, &error)),
            Err(Refusal::Error(error)) => return Err(error),
        };
        let found: Found = self.read(&name, answer)?;
        let message = found.message.and_then(RawMessage::decoded);
        message.map(Some).ok_or_else(|| self.senseless(&name))
    }

    /// Writes the key if it is at revision `expected`; zero stands for a key that holds nothing.
    ///
    /// # Errors
    /// Unknown where it may have been written.
    pub async fn put(&self, key: &str, value: Vec<u8>, expected: u64) -> Result<Put, StoreError> {
        self.store(key, HeaderMap::new(), value, expected).await
    }

    /// Puts the mark of a deletion in the place of revision `expected`.
    ///
    /// # Errors
    /// Unknown where it may have been written.
    pub async fn delete(&self, key: &str, expected: u64) -> Result<Put, StoreError> {
        let mut headers = HeaderMap::new();
        headers.insert("KV-Operation", "DEL");
        self.store(key, headers, Vec::new(), expected).await
    }

    async fn store(&self, key: &str, mut headers: HeaderMap, value: Vec<u8>, expected: u64) -> Result<Put, StoreError> {
        headers.insert("Nats-Expected-Last-Subject-Sequence", expected.to_string());
        // The subject may be caught by a stream that is no bucket.
        headers.insert("Nats-Expected-Stream", self.address().stream());
        let subject = self.address().target(key);
        let answer = match self.connections.request(&subject, Some(headers), value).await {
            Ok(answer) => answer,
            Err(Failure::Error(error)) => return Err(error),
            Err(Failure::NoResponders) => return Err(self.why_nobody_responds().await),
        };
        // What cannot be read leaves open whether it was done.
        let read = serde_json::from_slice::<Acknowledgement>(&answer.payload);
        match read.ok().map(|answer| (answer.error, answer.seq)) {
            Some((None, Some(revision))) if revision > 0 => Ok(Put::Done { revision }),
            Some((Some(error), _)) if WRONG_LAST_SEQUENCE.contains(&error.err_code) => Ok(Put::Conflict),
            Some((Some(error), _)) if error.err_code == OTHER_STREAM => Err(StoreError::misconfigured(format!(
                "the subjects of bucket {} in {} are caught by another stream than {}",
                self.address().bucket,
                self.address().server(),
                self.address().stream()
            ))),
            Some((Some(error), _)) => Err(match self.refused(&subject, &error) {
                // A cluster may say so of what it has begun.
                error if error.kind == ErrorKind::NotApplied => StoreError::unknown(error.message),
                error => error,
            }),
            _ => Err(StoreError::unknown(self.senseless(&subject).message)),
        }
    }

    /// None where there is no such bucket.
    ///
    /// # Errors
    /// What the server says.
    pub async fn info(&self) -> Result<Option<Info>, StoreError> {
        let name = format!("STREAM.INFO.{}", self.address().stream());
        match self.ask(&name, &Value::Null).await {
            Ok(answer) => self.read(&name, answer).map(Some),
            Err(Refusal::Api(error)) if error.err_code == NO_STREAM => Ok(None),
            Err(Refusal::Api(error)) => Err(self.refused(&name, &error)),
            Err(Refusal::Error(error)) => Err(error),
        }
    }

    /// What there is of the bucket, and every key that holds something, or the mark of a deletion. The server tells them
    /// in pages of many thousands.
    ///
    /// # Errors
    /// What the server says, or that there is no such bucket.
    pub async fn keys(&self) -> Result<(Info, BTreeSet<String>), StoreError> {
        let name = format!("STREAM.INFO.{}", self.address().stream());
        let (all, mut told, mut keys) = (self.address().subject(""), 0, BTreeSet::new());
        loop {
            let request = json!({ "subjects_filter": format!("{all}>"), "offset": told });
            let mut answer = match self.ask_much(&name, &request, MOST_NAMES_OF_NATS).await {
                Ok(answer) => answer,
                Err(Refusal::Api(error)) => return Err(self.refused(&name, &error)),
                Err(Refusal::Error(error)) => return Err(error),
            };
            let subjects = answer.pointer_mut("/state/subjects").map(Value::take).unwrap_or_default();
            let page: Subjects = self.read(&name, subjects)?;
            let total = answer.get("total").and_then(Value::as_u64).unwrap_or(0);
            let page = page.unwrap_or_default();
            told += page.len() as u64;
            let is_last = page.is_empty() || told >= total;
            keys.extend(page.into_keys().filter_map(|subject| subject.strip_prefix(&all).map(str::to_owned)));
            if keys.len() > MOST_LISTED {
                return Err(StoreError::misconfigured(allowance::too_long(&self.address().server())));
            }
            if is_last {
                return Ok((self.read(&name, answer)?, keys));
            }
        }
    }

    /// Leaves nothing of the key, not even the mark of a deletion, if that is still of `revision`.
    ///
    /// # Errors
    /// What the server says; candidates need not be permitted to do this.
    pub async fn sweep(&self, key: &str, revision: u64) -> Result<(), StoreError> {
        let name = format!("STREAM.PURGE.{}", self.address().stream());
        let request = json!({ "filter": self.address().subject(key), "seq": revision + 1 });
        match self.ask(&name, &request).await {
            Ok(_) => Ok(()),
            Err(Refusal::Api(error)) => Err(self.refused(&name, &error)),
            Err(Refusal::Error(error)) => Err(error),
        }
    }

    /// The server's time. Stores nothing.
    ///
    /// # Errors
    /// What the server says.
    pub async fn time(&self, info: &Info) -> Result<Stamp, StoreError> {
        match info.time() {
            Some(time) => Ok(time),
            None => self.time_without_writing().await,
        }
    }

    /// The time at which a consumer was made, which the server forgets again: for servers that do not tell it
    /// otherwise, and where nothing is to be stored.
    ///
    /// # Errors
    /// What the server says.
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
        let answer = match self.ask(&name, &request).await {
            Ok(answer) => answer,
            Err(Refusal::Api(error)) => return Err(self.refused(&name, &error)),
            Err(Refusal::Error(error)) => return Err(error),
        };
        let created = answer.get("created").and_then(Value::as_str).and_then(Stamp::read);
        created.ok_or_else(|| self.senseless(&name))
    }

    /// The time by the stamp on something that was just stored, for servers that do not tell it otherwise.
    ///
    /// # Errors
    /// What the server says.
    pub async fn probed_time(&self) -> Result<Stamp, StoreError> {
        let expected = self.get(SCRATCH).await?.map_or(0, |before| before.revision);
        // What somebody else stored meanwhile serves as well.
        self.put(SCRATCH, b"what is the time?".to_vec(), expected).await?;
        let after = self.get(SCRATCH).await?;
        let after =
            after.ok_or_else(|| StoreError::unknown(format!("the key {SCRATCH} vanished while it was used")))?;
        Ok(after.stamp)
    }

    /// Since when the bucket remembers.
    ///
    /// # Errors
    /// What the server says.
    pub async fn marker(&self) -> Result<Option<Entry>, StoreError> {
        Ok(self.get(MARKER).await?.filter(|message| message.value.is_some()))
    }

    /// Writes down that the bucket remembers from now on. False when it did so before.
    ///
    /// # Errors
    /// What the server says.
    pub async fn mark(&self) -> Result<bool, StoreError> {
        let expected = match self.get(MARKER).await? {
            Some(message) if message.value.is_some() => return Ok(false),
            Some(deleted) => deleted.revision,
            None => 0,
        };
        let text = "leaderrun: this bucket remembers since this was written; do not delete it";
        Ok(self.put(MARKER, text.into(), expected).await? != Put::Conflict)
    }

    /// A request to JetStream.
    ///
    /// # Errors
    /// Its refusal, or why there is no answer.
    pub async fn ask(&self, name: &str, request: &Value) -> Result<Value, Refusal> {
        self.ask_much(name, request, MOST_OF_NATS).await
    }

    async fn ask_much(&self, name: &str, request: &Value, most: usize) -> Result<Value, Refusal> {
        let payload = if request.is_null() { Vec::new() } else { request.to_string().into_bytes() };
        let answer: Message = match self.connections.request_much(&self.address().api(name), None, payload, most).await
        {
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

    /// What a refusal means.
    pub fn refused(&self, what: &str, error: &ApiError) -> StoreError {
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
        StoreError::misconfigured(format!(
            "no bucket {bucket} in {}: make it with leaderctl store init",
            self.address().server()
        ))
    }

    /// Answers the one case that is for sure: the rest may be a server that has just started.
    async fn without_jetstream(&self) -> StoreError {
        let server = self.address().server();
        let info = match self.connections.connection().await {
            Ok(connection) => connection.client.server_info(),
            Err(error) => return error,
        };
        if let Some(domain) = &self.address().domain {
            return StoreError::not_applied(format!(
                "JetStream in domain {domain} does not respond by {server}: it may be starting, or be called otherwise"
            ));
        }
        if !info.jetstream && info.cluster.is_none() {
            return StoreError::misconfigured(format!("{server} runs without JetStream: start nats-server with -js"));
        }
        StoreError::not_applied(format!("JetStream in {server} does not respond: it may be starting"))
    }

    /// To a write: there is no bucket, or it has no leader for the moment.
    async fn why_nobody_responds(&self) -> StoreError {
        match self.info().await {
            Ok(Some(_)) => StoreError::not_applied(format!(
                "bucket {} in {} does not respond: it may be electing a leader, or not take the subjects of a bucket",
                self.address().bucket,
                self.address().server()
            )),
            Ok(None) => self.missing(),
            // Whatever came in between, the write was not done.
            Err(error) if error.kind == ErrorKind::Unknown => StoreError::not_applied(error.message),
            Err(error) => error,
        }
    }

    pub fn read<T: for<'a> Deserialize<'a>>(&self, what: &str, answer: Value) -> Result<T, StoreError> {
        serde_json::from_value(answer).map_err(|_| self.senseless(what))
    }

    fn senseless(&self, what: &str) -> StoreError {
        StoreError::unknown(format!("{} answered to {what} what makes no sense", self.address().server()))
    }
}

impl RawMessage {
    fn decoded(self) -> Option<Entry> {
        let headers = String::from_utf8(base64(&self.hdrs)?).unwrap_or_default();
        let value = if is_deletion(lines(&headers)) { None } else { Some(base64(&self.data)?) };
        Some(Entry { revision: self.seq, stamp: Stamp::read(&self.time)?, value })
    }
}

/// Whether headers say that the message only marks that the key was deleted, or its time ran out.
pub fn is_deletion<'a>(mut headers: impl Iterator<Item = (&'a str, &'a str)>) -> bool {
    headers.any(|(name, value)| {
        name.eq_ignore_ascii_case("KV-Operation") && ["DEL", "PURGE"].contains(&value.trim())
            || name.eq_ignore_ascii_case("Nats-Marker-Reason")
    })
}

/// The headers of a stored message, as they are on the wire.
fn lines(headers: &str) -> impl Iterator<Item = (&str, &str)> {
    headers.lines().filter_map(|line| line.split_once(':'))
}

/// RFC 4648, section 4. Padding is not insisted upon.
fn base64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0_u32, 0_u32);
    for byte in text.trim_end_matches('=').bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count & 0xff).ok()?);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{self, Fate};
    use proptest::prelude::*;

    #[test]
    fn base64_is_read_as_the_rfc_has_it() {
        for (text, bytes) in
            [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYg==", "foob"), ("Zm9vYmFy", "foobar")]
        {
            assert_eq!(base64(text).as_deref(), Some(bytes.as_bytes()));
        }
        assert_eq!(base64("+/8="), Some(vec![0xfb, 0xff]));
        assert_eq!(base64("Zm9*"), None);
    }

    #[test]
    fn a_stamp_is_read_with_its_nanoseconds() {
        assert_eq!(Stamp::read("1970-01-01T00:00:01.000000002Z"), Some(Stamp(1_000_000_002)));
        assert_eq!(Stamp::read("2026-11-21T13:43:31Z").map(Stamp::micros), Some(1_795_268_611_000_000));
        assert_eq!(Stamp::read("0001-01-01T00:00:00Z"), None);
        assert_eq!(Stamp::read("now"), None);
    }

    #[test]
    fn markers_of_deletion_are_told_from_records() {
        assert!(is_deletion(lines("NATS/1.0\r\nKV-Operation: DEL\r\n\r\n")));
        assert!(is_deletion(lines("NATS/1.0\r\nNats-Rollup: sub\r\nKV-Operation: PURGE\r\n\r\n")));
        assert!(is_deletion(lines("NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\n\r\n")));
        assert!(!is_deletion(lines("NATS/1.0\r\nNats-Expected-Stream: KV_b\r\n\r\n")));
        assert!(!is_deletion(lines("")));
    }

    fn in_base64(bytes: &[u8]) -> String {
        const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::new();
        for chunk in bytes.chunks(3) {
            let bits =
                chunk.iter().fold(0_usize, |bits, &byte| bits << 8 | usize::from(byte)) << (8 * (3 - chunk.len()));
            for index in 0..4 {
                let letter = char::from(LETTERS[bits >> (18 - 6 * index) & 63]);
                text.push(if index <= chunk.len() { letter } else { '=' });
            }
        }
        text
    }

    #[test]
    fn a_million_bytes_of_any_kind_survive_base64() {
        fuzz::bent("base64 in an answer of JetStream", &[b"", b"f", b"fo", b"{\"session\":\"s\"}"], |bytes, source| {
            let text = in_base64(bytes);
            assert_eq!(base64(&text).as_deref(), Some(bytes));
            let bent = String::from_utf8_lossy(&source.bend(&[text.as_bytes()])).into_owned();
            let read = base64(&bent);
            assert!(read.as_ref().is_none_or(|read| read.len() <= bent.len() / 4 * 3 + 2));
            (&read).into()
        });
    }

    #[test]
    fn a_million_messages_are_read_with_their_stamp_or_not_understood() {
        let ours = [
            r#"{"message":{"subject":"$KV.b.s","seq":7,"data":"e30=","time":"2026-11-21T13:43:31.017220056Z"}}"#,
            r#"{"message":{"seq":18446744073709551615,"hdrs":"TkFUUy8xLjANCktWLU9wZXJhdGlvbjogREVMDQoNCg==","time":"1970-01-01T00:00:01Z"}}"#,
        ];
        fuzz::bent_text("message of JetStream", &ours, |text, source| {
            let found = serde_json::from_str::<Found>(text).ok().and_then(|found| found.message);
            let entry = found.and_then(RawMessage::decoded);
            if let Some(entry) = &entry {
                let other = Stamp(source.number());
                assert!(entry.stamp.since(other).is_zero() || other.since(entry.stamp).is_zero());
                let rfc3339 = humantime::format_rfc3339_nanos(UNIX_EPOCH + Duration::from_nanos(entry.stamp.0));
                assert_eq!(Stamp::read(&rfc3339.to_string()), Some(entry.stamp));
            }
            (&entry).into()
        });
    }

    #[test]
    fn a_million_acknowledgements_are_read_or_not_understood() {
        let ours = [
            r#"{"stream":"KV_b","seq":7}"#,
            r#"{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 7"},"stream":"KV_b","seq":0}"#,
        ];
        fuzz::bent_text("acknowledgement of JetStream", &ours, |text, _| {
            let read = serde_json::from_str::<Acknowledgement>(text);
            if read.is_ok() { Fate::Accepted } else { Fate::Refused }
        });
    }

    proptest! {
        #[test]
        fn no_answer_makes_it_panic(data in ".{0,40}", hdrs in ".{0,40}", time in ".{0,40}") {
            let _ = RawMessage { seq: 1, data, hdrs, time }.decoded();
        }
    }
}
