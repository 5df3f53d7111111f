//! What the keys are called, and what stands under one.
//!
//! ```text
//! PREFIX/base                the marker: since when the prefix remembers
//! PREFIX/young               beside it for a day: an etcd lease ends it
//! PREFIX/shard/SHARD         who leads, and the last term
//! PREFIX/lock/SHARD          beside it while somebody leads, on the leader's etcd lease
//! PREFIX/led/HASH            that the shard was led, and its longest lease
//! PREFIX/note/SHARD=orders, =history, =runs, =jobs, =once=JOB
//! PREFIX/standby/SHARD=SESSION
//! PREFIX/check/NAME          what store check writes
//! ```
//!
//! The hazard: anybody can put anything under a key. What cannot be read is named, and never replaced. And people
//! delete all keys with the name of a shard: its led mark is not among them.

use crate::lease::{Session, Shard};
use crate::store::Page;
use crate::store::lease_store::documents::{Draft, Key, List, Ours, Part, of_format};
use crate::store::stable_hash::fnv1a;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const FORMAT: u64 = 2;
/// The mark after a shard's name. It is not in the alphabet of shards.
const MARK: char = '=';

#[derive(Clone, Debug)]
pub struct Names {
    pub prefix: String,
}

impl Names {
    fn key(&self, name: &str) -> Vec<u8> {
        format!("{}/{name}", self.prefix).into_bytes()
    }

    pub fn of(&self, key: Key<'_>) -> Vec<u8> {
        self.key(&match key {
            Key::Marker => "base".to_owned(),
            Key::Shard(shard) => format!("shard/{shard}"),
            Key::Led(shard) => format!("led/{:016x}", fnv1a(shard.as_str().bytes())),
            Key::Note(shard, Page::Standby(session)) => format!("standby/{shard}{MARK}{}", session.as_str()),
            Key::Note(shard, page) => format!("note/{shard}{MARK}{}", page.name(MARK)),
            Key::Scratch(name) => format!("check/{name}"),
        })
    }

    /// The key beside a document, on the etcd lease that is the document's clock.
    pub fn beside(&self, key: Key<'_>) -> Option<Vec<u8>> {
        match key {
            Key::Marker => Some(self.key("young")),
            Key::Shard(shard) => Some(self.lock(shard)),
            Key::Led(_) | Key::Note(..) | Key::Scratch(_) => None,
        }
    }

    pub fn lock(&self, shard: &Shard) -> Vec<u8> {
        self.key(&format!("lock/{shard}"))
    }

    pub fn beginnings(&self, list: List<'_>) -> Vec<Vec<u8>> {
        match list {
            List::Shards(prefix) => vec![self.key(&format!("shard/{prefix}"))],
            List::Standbys(prefix) => vec![self.key(&format!("standby/{prefix}"))],
            List::Notes(shard) => ["note", "standby"].map(|kind| self.key(&format!("{kind}/{shard}{MARK}"))).into(),
        }
    }

    /// None for the key of anything else.
    pub fn listed(&self, key: &[u8]) -> Option<(Shard, Part)> {
        let name = std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix)?;
        let (kind, name) = name.strip_prefix('/')?.split_once('/')?;
        let (shard, note) = name.split_once(MARK).map_or((name, None), |(shard, note)| (shard, Some(note)));
        let part = match (kind, note) {
            ("shard", None) => Part::Lease,
            ("standby", Some(session)) => Part::Note(Page::Standby(Session::from_record(session))),
            ("note", Some("orders")) => Part::Note(Page::Orders),
            ("note", Some(note)) => Part::Note(Page::of_name(note, MARK)?),
            _ => return None,
        };
        Some((shard.parse().ok()?, part))
    }
}

/// A document, as it is kept: JSON, so that `etcdctl get` shows it to people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    format: u64,
    /// Different in each write, so that a writer knows its own.
    pub write: String,
    text: String,
    session: Option<Session>,
    term: u64,
    /// The etcd lease that is its clock; zero if it has none.
    #[serde(serialize_with = "to_hexadecimal", deserialize_with = "from_hexadecimal")]
    pub lease: i64,
    /// Of the marker: the incarnation since which nothing was forgotten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<String>,
}

impl Record {
    pub fn new(write: String, draft: &Draft<'_>, lease: i64, incarnation: Option<String>) -> Self {
        let session = draft.leadership.map(|leadership| leadership.session.clone());
        let term = draft.leadership.map_or(0, |leadership| leadership.term.0);
        let text = draft.text.to_owned();
        Self { format: FORMAT, write, text, session, term, lease, incarnation }
    }

    /// The error: why it is not a document of ours.
    pub fn read(value: &[u8]) -> Result<Self, String> {
        of_format(std::str::from_utf8(value).map_err(|_| "it is not text")?, FORMAT)
    }

    pub fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a record is plain data")
    }

    /// It says nothing of its end.
    pub fn document(self) -> Ours {
        Ours::of(self.text, self.session, self.term, 0, None)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
fn to_hexadecimal<S: Serializer>(number: &i64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{number:x}"))
}

fn from_hexadecimal<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    let number = i64::from_str_radix(&String::deserialize(deserializer)?, 16).ok();
    number.filter(|number| *number >= 0).ok_or_else(|| D::Error::custom("its lease is not a number"))
}

/// What a write compares: the revisions at which the keys were changed last. Zero: there is no such key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revisions {
    pub marker: i64,
    pub document: i64,
    pub beside: i64,
    pub lease: i64,
}

impl Revisions {
    pub fn text(self) -> String {
        serde_json::to_string(&self).expect("they are numbers")
    }

    pub fn read(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_led_mark_has_the_same_key_in_every_release() {
        let names = Names { prefix: "p".to_owned() };
        assert_eq!(names.of(Key::Led(&"db/main".parse().expect("a shard"))), b"p/led/ce95f71b99df0621");
    }
}
