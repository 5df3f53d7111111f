//! JetStream's answers: the entries and the properties of a bucket, in JetStream's own JSON.
//!
//! The hazard: a server of another version says more, or less. So this module reads only the parts that it needs, and
//! an answer that cannot be read is not an answer.

use serde::Deserialize;
use serde_json::Value;
use std::collections::HashMap;
use std::time::{Duration, UNIX_EPOCH};

/// The longest time from asking for the time to the birth of the bucket, by any two clocks of a cluster.
const MOST_LABOUR_MICROS: u64 = 60_000_000;

/// The content of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub revision: u64,
    /// When the server stored it.
    pub stamp: Stamp,
    /// None if the key was deleted: the mark of the deletion replaced the value.
    pub value: Option<Vec<u8>>,
    /// How long after that the server forgets it. None if its writer did not say.
    pub lasts: Option<Duration>,
}

/// An instant on the server's clock, in nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp(pub u64);

impl Stamp {
    /// Time since `earlier`; zero if `earlier` is later.
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

/// A refusal by JetStream.
#[derive(Clone, Debug, Deserialize)]
pub struct ApiError {
    pub code: u16,
    #[serde(default)]
    pub err_code: u16,
    #[serde(default)]
    pub description: String,
}

#[derive(Debug, Deserialize)]
pub struct Acknowledgement {
    pub error: Option<ApiError>,
    pub seq: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub struct Found {
    pub message: Option<RawMessage>,
}

#[derive(Debug, Deserialize)]
pub struct RawMessage {
    seq: u64,
    #[serde(default)]
    data: String,
    #[serde(default)]
    hdrs: String,
    time: String,
}

/// How many messages each subject has; null if there is none.
pub type Subjects = Option<HashMap<String, u64>>;

/// JetStream's description of a bucket, as far as we need it.
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

    /// Whether no earlier bucket of this name had its revisions: they begin with the time of its birth.
    pub fn has_unique_revisions(&self) -> bool {
        let earliest = |birth: Stamp| birth.micros().saturating_sub(MOST_LABOUR_MICROS);
        self.created().is_some_and(|birth| self.state.last_seq >= earliest(birth))
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
    /// Whether a message may say when it is forgotten.
    pub allow_msg_ttl: bool,
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

impl RawMessage {
    pub fn decoded(self) -> Option<Entry> {
        let headers = String::from_utf8(base64(&self.hdrs)?).unwrap_or_default();
        let value = if is_deletion(lines(&headers)) { None } else { Some(base64(&self.data)?) };
        let lasts = lines(&headers).find(|(name, _)| name.eq_ignore_ascii_case("Nats-TTL"));
        let lasts = lasts.and_then(|(_, lasts)| seconds(lasts.trim()));
        Some(Entry { revision: self.seq, stamp: Stamp::read(&self.time)?, value, lasts })
    }
}

/// A time to live, as a number of seconds or with a unit. None for "never".
fn seconds(text: &str) -> Option<Duration> {
    text.parse().map(Duration::from_secs).ok().or_else(|| humantime::parse_duration(text).ok())
}

/// Whether the headers say that the message only marks a deletion or an expiry of the key.
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

/// RFC 4648, section 4. Padding may be missing.
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
    fn markers_of_deletion_are_distinguished_from_records() {
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
}
