//! What an object looks like, and what it is called.
//!
//! ```text
//! leaderrun.json            the marker: since when the bucket remembers
//! shard/NAME                who leads, the last term, the operators' orders
//! led/NAME                  that the shard was led, and its longest lease
//! note/NAME/history, runs, jobs, once=JOB
//! standby/NAME/SESSION      that a standby is there
//! trial/NAME                what store init and store check write
//! ```
//!
//! The hazard: anybody who may write the bucket can put anything there, and an object that a later release wrote may mean
//! more than is read here. Neither is ever replaced.

use crate::lease::{Session, Shard, Term};
use crate::store::Page;
use crate::store::lease_store::documents::{Key, Leadership, Life, List, Ours, Part};
use serde::{Deserialize, Serialize};

/// The format of all objects.
const FORMAT: u64 = 2;

const SHARDS: &str = "shard/";
const NOTES: &str = "note/";
const STANDBYS: &str = "standby/";
/// Before the name of a job. It is not in the alphabet of jobs.
const MARK: char = '=';

/// An object.
#[derive(Debug, Serialize, Deserialize)]
pub struct Object {
    format: u64,
    /// Another one in each write. S3 names a version by the MD5 of its bytes, so the same bytes would be an old version.
    pub write: String,
    pub text: String,
    session: Option<Session>,
    term: u64,
    sequence: u64,
    /// Server time, in milliseconds since 1970; an upper bound of the end. None: it does not end.
    ends_ms: Option<u64>,
}

impl Object {
    pub fn new(write: String, ours: &Ours) -> Self {
        let ends_ms = if let Life::Ends(ends) = ours.life { Some(ends) } else { None };
        let (session, term) = match &ours.leadership {
            Some(Leadership { session, term }) => (Some(session.clone()), term.0),
            None => (None, 0),
        };
        Self { format: FORMAT, write, text: ours.text.clone(), session, term, sequence: ours.sequence, ends_ms }
    }

    /// # Errors
    /// Why it is not an object of ours.
    pub fn read(bytes: &[u8]) -> Result<Ours, String> {
        #[derive(Deserialize)]
        struct Format {
            format: u64,
        }
        match serde_json::from_slice(bytes).map_err(|error| error.to_string())? {
            Format { format: FORMAT } => {}
            Format { format } => return Err(format!("its format is {format}, and this release reads {FORMAT}")),
        }
        let Self { text, session, term, sequence, ends_ms, .. } =
            serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let leadership = session.map(|session| Leadership { session, term: Term(term) });
        Ok(Ours { text, leadership, sequence, life: ends_ms.map_or(Life::ForEver, Life::Ends) })
    }

    pub fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("an object is plain data")
    }
}

/// The name of a shard in a key. A '/' would make empty parts of some names, and a '#' ends a URL.
fn name_of(shard: &str) -> String {
    shard.replace('/', "=").replace('#', "!")
}

/// The shard of a name in a key. None if no shard is called so.
fn shard_of(name: &str) -> Option<Shard> {
    name.replace('=', "/").replace('!', "#").parse().ok()
}

/// The key of a document, without the prefix of the URL.
pub fn key_of(key: Key<'_>) -> String {
    match key {
        Key::Marker => "leaderrun.json".to_owned(),
        Key::Shard(shard) => shards(shard.as_str()),
        Key::Led(shard) => format!("led/{}", name_of(shard.as_str())),
        Key::Note(shard, page) => note(shard, page),
        Key::Scratch(name) => format!("trial/{name}"),
    }
}

fn note(shard: &Shard, page: &Page) -> String {
    let name = name_of(shard.as_str());
    match page {
        // They are in the shard's own document.
        Page::Orders => shards(shard.as_str()),
        Page::Standby(session) => format!("{STANDBYS}{name}/{}", session.as_str()),
        page => format!("{NOTES}{name}/{}", page.name(MARK)),
    }
}

fn shards(prefix: &str) -> String {
    format!("{SHARDS}{}", name_of(prefix))
}

/// What the keys of a list begin with.
pub fn beginnings(list: List<'_>) -> Vec<String> {
    match list {
        List::Shards(prefix) => vec![shards(prefix)],
        List::Standbys(prefix) => vec![format!("{STANDBYS}{}", name_of(prefix))],
        List::Notes(shard) => {
            let name = name_of(shard.as_str());
            vec![format!("{NOTES}{name}/"), format!("{STANDBYS}{name}/")]
        }
    }
}

/// The shard of a key in a list, and what it is to it. None for the key of anything else.
pub fn listed(key: &str) -> Option<(Shard, Part)> {
    if let Some(name) = key.strip_prefix(SHARDS) {
        return Some((shard_of(name)?, Part::Lease));
    }
    if let Some((name, session)) = key.strip_prefix(STANDBYS).and_then(|rest| rest.rsplit_once('/')) {
        return Some((shard_of(name)?, Part::Note(Page::Standby(Session::from_record(session)))));
    }
    let (name, page) = key.strip_prefix(NOTES)?.rsplit_once('/')?;
    Some((shard_of(name)?, Part::Note(Page::of_name(page, MARK)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(name: &str) -> Shard {
        name.parse().expect("a shard")
    }

    #[test]
    fn a_key_says_which_document_it_is() {
        for name in ["db", "a/b", "w#2"] {
            let shard = shard(name);
            assert_eq!(listed(&key_of(Key::Shard(&shard))), Some((shard.clone(), Part::Lease)));
            for page in [Page::History, Page::Runs, Page::Jobs, Page::Once("a-b".parse().expect("a job"))] {
                let key = key_of(Key::Note(&shard, &page));
                assert_eq!(listed(&key), Some((shard.clone(), Part::Note(page))), "{key}");
                assert!(beginnings(List::Notes(&shard)).iter().any(|folder| key.starts_with(folder)), "{key}");
            }
        }
        assert_eq!(listed("trial/x"), None);
    }

    #[test]
    fn an_object_is_read_as_it_was_written_and_one_of_an_earlier_build_is_named() {
        let session = Session::from_record("00000000-0000-4000-8000-000000000000");
        for leadership in [None, Some(Leadership { session, term: Term(7) })] {
            for life in [Life::ForEver, Life::Ends(9)] {
                let ours = Ours { text: "x".to_owned(), leadership: leadership.clone(), sequence: 3, life };
                assert_eq!(Object::read(&Object::new("w".to_owned(), &ours).bytes()), Ok(ours));
            }
        }
        let why = Object::read(br#"{"format":1,"shard":"db","write":"x","term":3}"#).expect_err("another format");
        assert_eq!(why, "its format is 1, and this release reads 2");
    }
}
