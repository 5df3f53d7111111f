//! Notes as strings beside the locks: `note:orders:SHARD`, `note:history:SHARD`, `note:standby:SHARD=SESSION`,
//! `note:runs:SHARD`, `note:once:SHARD=JOB`.
//!
//! The hazard: a replica may answer with an older note. So a script reads notes as well, and first checks that this
//! server is the master.

use super::failure::written_by_something_else;
use super::script::Reply;
use super::{Redis, list, script};
use crate::lease::Shard;
use crate::store::notes::unless_store_fails;
use crate::store::{Note, NoteRead, Notes, Page, StoreError};
use crate::time::millis;
use futures_util::stream::{self, StreamExt};
use std::time::Duration;

/// The beginning of the key of every note.
pub const NOTE: &str = "note:";
const ORDERS: &str = "note:orders:";
const HISTORY: &str = "note:history:";
pub const STANDBY: &str = "note:standby:";
const RUNS: &str = "note:runs:";
const ONCE: &str = "note:once:";
/// The mark after a shard's name. It is not in the alphabet of shards.
pub const SESSION: char = '=';
/// How many notes one request reads, and how many such requests are under way at once: the server answers no other
/// client meanwhile, and the longest notes have to fit into what a connection may read (`allowance`).
const PAGE: usize = 100;
const PAGES_AT_ONCE: usize = 2;
/// The longest duration: the server adds the time to it, in 63 bits.
const MOST_MILLIS: u64 = 1 << 62;

impl Redis {
    pub(super) fn note_key(&self, shard: &Shard, page: &Page) -> String {
        match page {
            Page::Orders => self.key(&format!("{ORDERS}{shard}")),
            Page::History => self.key(&format!("{HISTORY}{shard}")),
            Page::Standby(session) => self.key(&format!("{STANDBY}{shard}{SESSION}{}", session.as_str())),
            Page::Runs => self.key(&format!("{RUNS}{shard}")),
            Page::Once(job) => self.key(&format!("{ONCE}{shard}{SESSION}{job}")),
        }
    }

    async fn read_note(&self, key: &str) -> Result<Option<Note>, StoreError> {
        let keys = [key.to_owned()];
        let reply = script::run(&self.client, &self.scripts.read_note, &keys, &[], None).await?;
        note_in(&reply, key)
    }

    /// Reads many notes in few requests. Returns what [`Redis::read_note`] returns of each.
    pub(super) async fn read_notes_at(&self, keys: &[String]) -> Result<Vec<NoteRead>, StoreError> {
        let pages: Vec<Vec<String>> = keys.chunks(PAGE).map(<[String]>::to_vec).collect();
        let mut pages = stream::iter(pages.into_iter().map(|keys| self.read_page(keys))).buffered(PAGES_AT_ONCE);
        let mut notes = Vec::with_capacity(keys.len());
        while let Some(page) = pages.next().await {
            notes.extend(page?);
        }
        Ok(notes)
    }

    async fn read_page(&self, keys: Vec<String>) -> Result<Vec<NoteRead>, StoreError> {
        let replies = script::read_each(&self.client, &self.scripts.read_notes, &keys).await?;
        let mut notes = Vec::with_capacity(keys.len());
        for (key, reply) in keys.iter().zip(&replies) {
            // By itself, what is wrong with a note has its own error.
            let note = if reply.kind().is_empty() { self.read_note(key).await } else { note_in(reply, key) };
            notes.push(unless_store_fails(note)?);
        }
        Ok(notes)
    }
}

fn note_in(reply: &Reply, key: &str) -> NoteRead {
    match reply.kind() {
        "nothing" => Ok(None),
        "text" if reply.garbled => Err(written_by_something_else(key, &reply.place)),
        // For a note without an end, the server reports a negative time.
        "text" => {
            let lasts = reply.number(2).map(Duration::from_millis);
            Ok(Some(Note::lasting(reply.word(1).to_owned(), lasts)))
        }
        _ => Err(reply.not_understood()),
    }
}

#[async_trait::async_trait]
impl Notes for Redis {
    async fn read(&self, shard: &Shard, page: &Page) -> Result<Option<Note>, StoreError> {
        self.read_note(&self.note_key(shard, page)).await
    }

    async fn replace(
        &self,
        shard: &Shard,
        page: &Page,
        expected: Option<&str>,
        draft: Option<&Note>,
    ) -> Result<bool, StoreError> {
        let text = draft.map_or("", |draft| draft.text.as_str());
        // The server accepts no duration of zero.
        let lasts = |lasts| millis(lasts).clamp(1, MOST_MILLIS).to_string();
        let lasts = draft.and_then(|draft| draft.lasts).map(lasts).unwrap_or_default();
        let arguments = [expected.unwrap_or_default(), text, &lasts];
        let keys = [self.note_key(shard, page)];
        let reply = script::run(&self.client, &self.scripts.replace_note, &keys, &arguments, None).await?;
        match reply.kind() {
            "replaced" => Ok(true),
            "other" => Ok(false),
            _ => Err(reply.not_understood()),
        }
    }

    async fn standbys(&self, prefix: &str) -> Result<Vec<(Shard, Note)>, StoreError> {
        let (shards, keys): (Vec<_>, Vec<_>) = list::standbys(self, prefix).await?.into_iter().unzip();
        let mut standbys = Vec::with_capacity(shards.len());
        for (shard, note) in shards.into_iter().zip(self.read_notes_at(&keys).await?) {
            // Skips notes that have vanished since they were found: their standbys wait no more.
            standbys.extend(note?.map(|note| (shard, note)));
        }
        Ok(standbys)
    }
}
