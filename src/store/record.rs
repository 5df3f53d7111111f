//! A whole document as one text: an object in a bucket, or an annotation of a Lease.
//!
//! The hazard: anybody may write there, and a record that a later release wrote may mean more than is read here.
//! Neither is ever replaced.

use super::StoreError;
use super::expiry::ServerTime;
use super::lease_store::documents::{Draft, Found, Ours, of_format, random_name};
use crate::lease::Session;
use crate::time::BootInstant;
use serde::{Deserialize, Serialize};

const FORMAT: u64 = 2;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    format: u64,
    /// Different in each write. S3 names a version by the MD5 of its bytes, so the same bytes would be an old version.
    pub write: String,
    text: String,
    session: Option<Session>,
    term: u64,
    sequence: u64,
    /// Server time, in milliseconds since 1970; an upper bound of the end. None: it does not end.
    ends_ms: Option<u64>,
}

impl Record {
    /// The record of a draft that is sent now, on the server's clock.
    pub fn new(draft: &Draft<'_>, over: &Found, time: &impl ServerTime) -> Result<Self, StoreError> {
        let (sequence, ends_ms) = draft.sequence_and_end(over, |lasts| time.expiry(BootInstant::now(), lasts));
        Ok(Self {
            format: FORMAT,
            write: random_name()?,
            text: draft.text.to_owned(),
            session: draft.leadership.map(|of| of.session.clone()),
            term: draft.leadership.map_or(0, |of| of.term.0),
            sequence,
            ends_ms,
        })
    }

    /// The error: why it is none of ours.
    pub fn read(text: &[u8]) -> Result<Self, String> {
        of_format(std::str::from_utf8(text).map_err(|_| "it is not text")?, FORMAT)
    }

    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("a record is plain data")
    }

    pub fn document(self) -> Ours {
        Ours::of(self.text, self.session, self.term, self.sequence, self.ends_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Term;
    use crate::store::expiry::Undated;
    use crate::store::lease_store::documents::{Content, Ends, Leadership, Life, Version};
    use std::time::Duration;

    #[test]
    fn a_record_is_read_as_it_was_written_and_one_of_an_earlier_build_is_named() {
        let leadership = Leadership { session: Session::from_record("s"), term: Term(7) };
        let absent = Found { content: Content::Absent, version: Version::default() };
        for leadership in [None, Some(leadership)] {
            for ends in [Ends::Never, Ends::In(Duration::from_secs(1))] {
                let leads = leadership.as_ref();
                let draft = Draft { text: "x", leadership: leads, sequence: 3, ends, wakes: false, owner: None };
                let record = Record::new(&draft, &absent, &Undated).expect("random bytes");
                let read = Record::read(record.json().as_bytes()).expect("it is ours");
                assert_eq!(read.write, record.write);
                let ours = read.document();
                assert_eq!((ours.text.as_str(), ours.leadership.as_ref(), ours.sequence), ("x", leads, 3));
                assert_eq!(matches!(ours.life, Life::Ends(1_800_000_001_000..)), ends != Ends::Never, "{ours:?}");
                // Another write keeps what stands.
                let over = Found { content: Content::Ours(ours.clone()), version: Version::default() };
                let kept = Record::new(&Draft { sequence: 0, ends: Ends::Keep, ..draft }, &over, &Undated);
                assert_eq!(kept.expect("random bytes").document(), ours);
            }
        }
        let why = Record::read(br#"{"format":1,"shard":"db","write":"x","term":3}"#).expect_err("another format");
        assert_eq!(why, "its format is 1, and this release reads 2");
    }
}
