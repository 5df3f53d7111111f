//! What the keys are called, and how a script's answer shows a document.
//!
//! ```text
//! PREFIX{leases}:store                 hash: the marker; in its fields led:SHARD the led marks
//! PREFIX{leases}:lock:SHARD            hash: who leads, the last term, the operators' orders
//! PREFIX{leases}:note:history:SHARD, note:runs:, note:jobs:, note:once:SHARD=JOB
//! PREFIX{leases}:note:standby:SHARD=SESSION
//! PREFIX{leases}:check:NAME            what store check writes
//! PREFIX{leases}:changed:SHARD         channel: that the document changed
//! ```
//!
//! The hazard: people delete all keys with the name of a shard. So its led mark is in the marker's hash: if that is
//! deleted too, the server counts as one that has forgotten everything. The word in braces (a hash tag) keeps all keys
//! on one node, because a script may touch no others. Redis Cluster is refused all the same (`documents.lua`).

use super::script;
use crate::lease::{Session, Shard};
use crate::store::Page;
use crate::store::lease_store::documents::{Content, Found, Key, List, Ours, Part, Version};
use redis::Value;

/// After a shard's name, which cannot contain it.
const MARK: char = '=';
const STANDBY: &str = "note:standby:";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub key: String,
    /// The field of the marker's hash, for a led mark.
    pub field: String,
}

#[derive(Clone, Debug)]
pub struct Names {
    pub prefix: String,
}

impl Names {
    pub fn key(&self, what: &str) -> String {
        format!("{}{{leases}}:{what}", self.prefix)
    }

    pub fn marker(&self) -> String {
        self.key("store")
    }

    pub fn channel(&self, key: Key<'_>) -> String {
        let shard = if let Key::Shard(shard) = key { shard.as_str() } else { "" };
        self.key(&format!("changed:{shard}"))
    }

    pub fn place(&self, key: Key<'_>) -> Place {
        let own = |what: String| Place { key: self.key(&what), field: String::new() };
        match key {
            Key::Marker => Place { key: self.marker(), field: String::new() },
            Key::Led(shard) => Place { key: self.marker(), field: format!("led:{shard}") },
            Key::Shard(shard) => own(format!("lock:{shard}")),
            Key::Note(shard, page) => {
                let (word, of) = page.words();
                let of = of.map(|of| format!("{MARK}{of}")).unwrap_or_default();
                own(format!("note:{word}:{shard}{of}"))
            }
            Key::Scratch(name) => own(format!("check:{name}")),
        }
    }

    pub fn pattern(&self, list: List<'_>) -> String {
        let beginning = |what: &str| literally(&self.key(what));
        match list {
            List::Shards(prefix) => beginning("lock:") + &literally(prefix) + "*",
            List::Standbys(prefix) => beginning(STANDBY) + &literally(prefix) + "*",
            List::Notes(shard) => beginning("note:") + "*:" + &literally(shard.as_str()) + "*",
        }
    }

    pub fn listed(&self, list: List<'_>, key: &str) -> Option<(Shard, Part)> {
        let own = key.strip_prefix(&self.key(""))?;
        // A shard's name may have colons in it.
        let note = own.strip_prefix("note:");
        let (word, name) = note.unwrap_or(own).split_once(':')?;
        let (name, of) = name.split_once(MARK).map_or((name, None), |(name, of)| (name, Some(of)));
        let shard: Shard = name.parse().ok()?;
        let part = match (note, word, of) {
            (None, "lock", None) => Part::Lease,
            (None, ..) => return None,
            (Some(_), word, of) => Part::Note(Page::of_words(word, of)?),
        };
        // The prefix of a pattern may be longer than the shard's name.
        let is_listed = match list {
            List::Shards(prefix) | List::Standbys(prefix) => shard.as_str().starts_with(prefix),
            List::Notes(of) => shard == *of,
        };
        is_listed.then_some((shard, part))
    }
}

fn literally(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for c in text.chars() {
        if "*?[]\\".contains(c) {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

/// None: the script could not read it.
pub fn read(answer: &Value, incarnation: &str) -> Option<Found> {
    let Value::Array(words) = answer else { return None };
    let word = |index: usize| words.get(index).and_then(script::text).unwrap_or_default();
    let (content, write) = match word(0).as_str() {
        "unread" => return None,
        "absent" => (Content::Absent, word(1)),
        "strange" => (Content::Unreadable(word(1)), String::new()),
        _ => (ours(words).into(), word(1)),
    };
    Some(Found { content, version: Version { write, incarnation: incarnation.to_owned() } })
}

fn ours(words: &[Value]) -> Result<Ours, String> {
    let word = |index: usize| match words.get(index) {
        Some(Value::BulkString(bytes)) => String::from_utf8(bytes.clone()).map_err(|_| "it is not text".to_owned()),
        _ => Err("it is incomplete".to_owned()),
    };
    let number =
        |index: usize, what: &str| word(index)?.parse::<u64>().map_err(|_| format!("its {what} is not a number"));
    let (session, ends) = (word(3)?, word(6)?);
    let leads = !session.is_empty();
    let term = if leads { number(4, "term")? } else { 0 };
    let ends = if ends.is_empty() { None } else { Some(number(6, "end")?) };
    let session = leads.then(|| Session::from_record(&session));
    Ok(Ours::of(word(2)?, session, term, number(5, "sequence")?, ends))
}
