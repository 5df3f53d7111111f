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
