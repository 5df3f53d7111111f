//! `DIR/SHARD.json`: who leads, for people, and the last term.
//!
//! The hazard: every user who may write the directory can put anything there. A file that cannot be read is never
//! replaced.

use super::{FileStore, explain, files};
use crate::lease::{Session, Shard, Term};
use crate::store::{Holder, StoreError};
use serde::{Deserialize, Serialize};

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) shard: String,
    pub(super) owner: String,
    pub(super) session: Session,
    pub(super) host: String,
    pub(super) pid: u32,
    pub(super) term: Term,
    pub(super) since_millis: u64,
    pub(super) released: bool,
}

impl Record {
    pub(super) fn read(text: &[u8]) -> Result<Self, String> {
        let record: Self = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        // No higher term could follow.
        if record.term == Term(u64::MAX) { Err("its term is the last one".to_owned()) } else { Ok(record) }
    }
}

impl FileStore {
    pub(super) fn read_record(&self, shard: &Shard) -> Result<Option<Record>, StoreError> {
        let path = self.path(shard, "json");
        let Some(text) = files::read(&path)? else { return Ok(None) };
        Record::read(&text).map(Some).map_err(|why| {
            let path = path.display();
            StoreError::misconfigured(format!(
                "the record {path} was written by another program ({why}): remove it, or name another directory"
            ))
        })
    }

    pub(super) fn write_record(&self, record: &Record, shard: &Shard) -> Result<(), StoreError> {
        let path = self.path(shard, "json");
        // Only the holder of the lock writes, so one name is enough for the draft.
        let draft = self.path(shard, "json.new");
        let text = serde_json::to_vec(record).expect("a record is plain data");
        files::replace(&path, &draft, &text).map_err(|error| explain("cannot write", &path, &error))
    }

    pub(super) fn holder(&self, shard: &Shard) -> Result<Holder, StoreError> {
        Ok(self.read_record(shard)?.map_or_else(
            || Holder { owner: "a process that has not written its record yet".to_owned(), ..Holder::default() },
            |record| Holder {
                owner: record.owner,
                session: Some(record.session),
                host: Some(record.host),
                pid: Some(record.pid),
                term: Some(record.term),
                since_millis: Some(record.since_millis),
                ..Holder::default()
            },
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_that_no_higher_one_could_follow_is_refused() {
        let (session, term) = (Session::from_record("s-1"), Term(u64::MAX));
        let (shard, owner, host) = ("db".to_owned(), "me".to_owned(), "host".to_owned());
        let record = Record { shard, owner, session, host, pid: 7, term, since_millis: 1, released: false };
        let read = Record::read(&serde_json::to_vec(&record).unwrap());
        assert_eq!(read, Err("its term is the last one".to_owned()));
    }
}
