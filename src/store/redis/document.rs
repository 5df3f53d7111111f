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

use crate::lease::{Session, Shard};
use crate::store::Page;
use crate::store::lease_store::documents::{Content, Found, Key, List, Ours, Part, Version};

/// After a shard's name, which cannot contain it.
const MARK: char = '=';

/// A document, as the scripts show it.
pub type Shown = Vec<Vec<u8>>;

/// A key, and for a led mark the field of the marker's hash.
pub type Place = (String, String);

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
        let own = match key {
            Key::Marker => "store".to_owned(),
            Key::Led(shard) => return (self.marker(), format!("led:{shard}")),
            Key::Shard(shard) => format!("lock:{shard}"),
            Key::Note(shard, page) => {
                let (word, of) = page.words();
                let of = of.map(|of| format!("{MARK}{of}")).unwrap_or_default();
                format!("note:{word}:{shard}{of}")
            }
            Key::Scratch(name) => format!("check:{name}"),
        };
        (self.key(&own), String::new())
    }

    pub fn pattern(&self, list: List<'_>) -> String {
        let beginning = |what: &str| literally(&self.key(what));
        match list {
            List::Shards(prefix) => beginning("lock:") + &literally(prefix) + "*",
            List::Standbys(prefix) => beginning("note:standby:") + &literally(prefix) + "*",
            List::Notes(shard) => beginning("note:") + "*:" + &literally(shard.as_str()) + "*",
        }
    }

    pub fn listed(&self, list: List<'_>, key: &str) -> Option<(Shard, Part)> {
        let own = key.strip_prefix(&self.key(""))?;
        let (shard, part): (Shard, Part) = if let Some(shard) = own.strip_prefix("lock:") {
            (shard.parse().ok()?, Part::Lease)
        } else {
            // A shard's name may have colons in it.
            let (word, name) = own.strip_prefix("note:")?.split_once(':')?;
            let (shard, of) = name.split_once(MARK).map_or((name, None), |(shard, of)| (shard, Some(of)));
            (shard.parse().ok()?, Part::Note(Page::of_words(word, of)?))
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
    text.chars().flat_map(|c| "*?[]\\".contains(c).then_some('\\').into_iter().chain([c])).collect()
}

pub fn read(shown: &Shown, incarnation: &str) -> Found {
    let words: Result<Vec<&str>, _> = shown.iter().map(|word| std::str::from_utf8(word)).collect();
    let (content, write) = match words.as_deref() {
        Ok(&["absent", write]) => (Content::Absent, write),
        Ok(&["strange", why]) => (Content::Unreadable(why.to_owned()), ""),
        Ok(&[_, write, text, session, term, sequence, ends]) => {
            (ours(text, session, [term, sequence, ends]).into(), write)
        }
        Ok(_) => (Content::Unreadable("it is incomplete".to_owned()), ""),
        Err(_) => (Content::Unreadable("it is not text".to_owned()), ""),
    };
    Found { content, version: Version { write: write.to_owned(), incarnation: incarnation.to_owned() } }
}

fn ours(text: &str, session: &str, [term, sequence, ends]: [&str; 3]) -> Result<Ours, String> {
    let number = |text: &str, what| text.parse::<u64>().map_err(|_| format!("its {what} is not a number"));
    let session = Some(session).filter(|session| !session.is_empty()).map(Session::from_record);
    let term = if session.is_some() { number(term, "term")? } else { 0 };
    let ends = if ends.is_empty() { None } else { Some(number(ends, "end")?) };
    Ok(Ours::of(text.to_owned(), session, term, number(sequence, "sequence")?, ends))
}
