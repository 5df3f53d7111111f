//! What the keys are called, and what the header of a message says beside its text.
//!
//! ```text
//! =born                        the marker: since when the bucket remembers
//! =shard.SHARD                 who leads, the last term, the operators' orders
//! =led.SHARD                   that the shard was led, and its longest lease
//! =note.history.SHARD, =note.runs.SHARD, =note.jobs.SHARD, =note.once.JOB.SHARD
//! =standby.SESSION.SHARD       that a standby is there
//! =trial.NAME                  what store check writes
//! ```
//!
//! The hazard: anybody who may write the bucket can put anything there, and a message that a later release wrote may
//! mean more than is read here. Neither is ever replaced.

use crate::lease::{Session, Shard};
use crate::store::Page;
use crate::store::lease_store::documents::{
    Content, Draft, Ends, Found, Key, Life, List, Ours, Part, Version, of_format,
};
use crate::time::millis;
use async_nats::HeaderMap;
use async_nats::jetstream::message::StreamMessage;
use serde::{Deserialize, Serialize};

/// The name of the header, and the format of what is in it.
const HEADER: &str = "Leaderrun";
const FORMAT: u64 = 1;

/// How a message says that a key was deleted.
pub const OPERATION: &str = "KV-Operation";
pub const DELETION: &str = "DEL";

const SHARD: &str = "=shard.";
const LED: &str = "=led.";
const NOTE: &str = "=note.";
const STANDBY: &str = "=standby.";

/// What stands beside a text.
#[derive(Debug, Serialize, Deserialize)]
pub struct Header {
    format: u64,
    /// Different in each write.
    write: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    session: Option<Session>,
    term: u64,
    sequence: u64,
    /// How long the document counts from when the server stored it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lasts_ms: Option<u64>,
    /// The end, in milliseconds since 1970, of a document that was written again and kept its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ends_ms: Option<u64>,
}

impl Header {
    /// What stands beside the text of a draft that replaces `over`, in a write of this name.
    pub fn new(write: &str, draft: &Draft<'_>, over: &Found) -> Self {
        let (sequence, end) = draft.sequence_and_end(over, millis);
        let begins_anew = matches!(draft.ends, Ends::In(_) | Ends::Now);
        let (lasts_ms, ends_ms) = if begins_anew { (end, None) } else { (None, end) };
        Self {
            format: FORMAT,
            write: write.to_owned(),
            session: draft.leadership.map(|of| of.session.clone()),
            term: draft.leadership.map_or(0, |of| of.term.0),
            sequence,
            lasts_ms,
            ends_ms,
        }
    }

    pub fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(HEADER, serde_json::to_string(self).expect("it is plain data"));
        headers
    }

    /// The document of this text, if the server stored it then, in milliseconds since 1970.
    pub fn document(self, text: String, stored: u64) -> Ours {
        let ends = self.lasts_ms.map(|lasts| stored.saturating_add(lasts)).or(self.ends_ms);
        Ours::of(text, self.session, self.term, self.sequence, ends)
    }
}

/// The document in a message of this key, if there is one.
pub fn read(key: &str, message: Option<&StreamMessage>, incarnation: &str) -> Found {
    let write = message.map_or(0, |message| message.sequence).to_string();
    let content = match message {
        None => Content::Absent,
        // Who deletes the led mark leaves one that says at least that the shard was led.
        Some(message) if is_deletion(&message.headers) && key.starts_with(LED) => {
            Content::Ours(Ours { text: String::new(), leadership: None, sequence: 0, life: Life::ForEver })
        }
        Some(message) if is_deletion(&message.headers) => Content::Absent,
        Some(message) => ours(message).into(),
    };
    Found { content, version: Version { write, incarnation: incarnation.to_owned() } }
}

/// The error: why it is not ours.
fn ours(message: &StreamMessage) -> Result<Ours, String> {
    let text = String::from_utf8(message.payload.to_vec()).map_err(|_| "it is not text")?;
    let header = message.headers.get(HEADER).ok_or("it has no header Leaderrun")?;
    let header: Header = of_format(header.as_str(), FORMAT)?;
    Ok(header.document(text, stored_millis(message)))
}

/// When the server stored it, in milliseconds since 1970, rounded up.
pub fn stored_millis(message: &StreamMessage) -> u64 {
    u64::try_from(message.time.unix_timestamp_nanos()).unwrap_or(0).div_ceil(1_000_000)
}

/// Whether the message only says that the key was deleted, or that the server forgot it.
pub fn is_deletion(headers: &HeaderMap) -> bool {
    headers.get(OPERATION).is_some_and(|operation| [DELETION, "PURGE"].contains(&operation.as_str()))
        || headers.get("Nats-Marker-Reason").is_some()
}

/// The shard in a key: itself, but for what a key may not have there: a colon, the mark of a slot, and a dot at an end
/// or after another.
fn name_of(shard: &Shard) -> String {
    let (first, rest) = shard.as_str().strip_prefix('.').map_or(("", shard.as_str()), |rest| ("=2E", rest));
    let name = format!("{first}{}", rest.replace("..", ".=2E").replace(':', "=3A").replace('#', "=23"));
    name.strip_suffix('.').map_or(name.clone(), |name| format!("{name}=2E"))
}

/// The shard of a name in a key. None if no shard is called so.
fn shard_of(name: &str) -> Option<Shard> {
    let shard: Shard = name.replace("=2E", ".").replace("=3A", ":").replace("=23", "#").parse().ok()?;
    // A shard has one name. Another spelling belongs to no shard.
    (name_of(&shard) == name).then_some(shard)
}

/// The key of a document.
pub fn key_of(key: Key<'_>) -> String {
    match key {
        Key::Marker => "=born".to_owned(),
        Key::Scratch(name) => format!("=trial.{name}"),
        Key::Shard(shard) => format!("{SHARD}{}", name_of(shard)),
        Key::Led(shard) => format!("{LED}{}", name_of(shard)),
        Key::Note(shard, Page::Standby(session)) => format!("{STANDBY}{}.{}", session.as_str(), name_of(shard)),
        Key::Note(shard, page) => {
            // A dot ends the word, and the name of a job.
            let page = page.name(' ').replace('.', "=2E").replace(' ', ".");
            format!("{NOTE}{page}.{}", name_of(shard))
        }
    }
}

/// The keys of a list, with the wildcards of NATS.
pub fn filters(list: List<'_>) -> Vec<String> {
    match list {
        List::Shards(_) => vec![format!("{SHARD}>")],
        List::Standbys(_) => vec![format!("{STANDBY}>")],
        List::Notes(shard) => {
            let name = name_of(shard);
            let one = ["history", "runs", "jobs", "once.*"].map(|kind| format!("{NOTE}{kind}.{name}"));
            one.into_iter().chain([format!("{STANDBY}*.{name}")]).collect()
        }
    }
}

/// What a key in a list is. None for the key of anything else.
pub fn listed(key: &str) -> Option<(Shard, Part)> {
    if let Some(name) = key.strip_prefix(SHARD) {
        return Some((shard_of(name)?, Part::Lease));
    }
    if let Some((session, name)) = key.strip_prefix(STANDBY).and_then(|rest| rest.split_once('.')) {
        return Some((shard_of(name)?, Part::Note(Page::Standby(Session::from_record(session)))));
    }
    let (word, rest) = key.strip_prefix(NOTE)?.split_once('.')?;
    let (job, name) = if word == "once" { rest.split_once('.')? } else { ("", rest) };
    let job = job.replace("=2E", ".");
    Some((shard_of(name)?, Part::Note(Page::of_words(word, Some(&*job).filter(|job| !job.is_empty()))?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_nats::datetime::from_nanos;
    use proptest::prelude::*;

    fn message(headers: HeaderMap, payload: &str) -> StreamMessage {
        let time = from_nanos(1_795_268_611_017_220_056).expect("a time");
        StreamMessage { subject: "s".into(), sequence: 7, headers, payload: payload.to_owned().into(), time }
    }

    #[test]
    fn a_deletion_is_an_absence_with_a_version() {
        for (name, value) in [("KV-Operation", "DEL"), ("KV-Operation", "PURGE"), ("Nats-Marker-Reason", "MaxAge")] {
            let mut headers = HeaderMap::new();
            headers.insert(name, value);
            let of = |key| read(key, Some(&message(headers.clone(), "")), "i");
            assert_eq!((of("=shard.a").content, of("=shard.a").version.write.as_str()), (Content::Absent, "7"));
            assert!(of("=led.a").ours().is_some_and(|mark| mark.life == Life::ForEver));
        }
    }

    /// Whether a key is valid by the rules of NATS.
    fn is_key(key: &str) -> bool {
        let known = key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-/_=.".contains(&byte));
        known && !key.is_empty() && !key.starts_with('.') && !key.ends_with('.') && !key.contains("..")
    }

    #[test]
    fn a_plain_shard_is_in_its_key_as_it_is_and_others_are_escaped() {
        for (shard, name) in [
            ("web", "web"),
            ("db/main.eu-1_x", "db/main.eu-1_x"),
            ("a:b", "a=3Ab"),
            (".a.", "=2Ea=2E"),
            ("a...b", "a.=2E.b"),
            ("..a", "=2E.a"),
            ("a#2", "a=232"),
        ] {
            assert_eq!(key_of(Key::Shard(&shard.parse().unwrap())), format!("=shard.{name}"));
        }
        for key in
            ["=born", "=led.a", "=trial.a", "a", "=shard.=61", "=shard.a=2F", "=shard.a=2", "=shard.a..b", "=note.x.a"]
        {
            assert_eq!(listed(key), None, "{key}");
        }
    }

    proptest! {
        #[test]
        fn every_document_has_a_key_of_its_own(shard in "[A-Za-z0-9._/:-]{1,40}(#[1-9])?") {
            if let Ok(shard) = shard.parse::<Shard>() {
                let key = key_of(Key::Shard(&shard));
                prop_assert!(is_key(&key) && is_key(&key_of(Key::Led(&shard))), "{}", key);
                prop_assert_eq!(listed(&key), Some((shard.clone(), Part::Lease)));
                let (session, once) = (Session::random().unwrap(), Page::Once("..a.".parse().unwrap()));
                for page in [Page::History, Page::Standby(session), Page::Runs, Page::Jobs, once] {
                    let key = key_of(Key::Note(&shard, &page));
                    prop_assert!(is_key(&key), "{}", key);
                    prop_assert_eq!(listed(&key), Some((shard.clone(), Part::Note(page))));
                }
            }
        }
    }
}
