//! `DIR/SHARD.json`: who leads, for people, and the last term.
//!
//! The hazard: every user who may write the directory can put anything there. A file that cannot be read is an error
//! that names the file, and is never replaced.

use super::{FileStore, explain, files};
use crate::lease::{Session, Shard, Term};
use crate::store::{Holder, StoreError};
use serde::{Deserialize, Serialize};

/// `DIR/SHARD.json`.
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
                "the record {path} was written by something else ({why}): remove it, or name another directory"
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
    use crate::fuzz;

    fn record(term: u64) -> Record {
        Record {
            shard: "db/main".to_owned(),
            owner: "me \"and\" you".to_owned(),
            session: Session::from_record("s-1"),
            host: "host".to_owned(),
            pid: 7,
            term: Term(term),
            since_millis: 1_795_268_611_017,
            released: false,
        }
    }

    #[test]
    fn a_million_records_are_read_as_they_were_written_or_refused() {
        let ours = [record(1), record(u64::MAX), Record { released: true, ..record(1_795_268_611_017) }];
        let ours = ours.map(|record| serde_json::to_vec(&record).unwrap());
        let seeds: Vec<&[u8]> = ours.iter().map(Vec::as_slice).collect();
        fuzz::bent("record of file:", &seeds, |text, _| {
            let read = Record::read(text);
            match &read {
                Ok(record) => {
                    assert_eq!(Record::read(&serde_json::to_vec(record).unwrap()).as_ref(), Ok(record));
                    assert!(record.term.0.checked_add(1).is_some());
                }
                Err(why) => fuzz::assert_is_one_line(why),
            }
            (&read).into()
        });
    }
}
