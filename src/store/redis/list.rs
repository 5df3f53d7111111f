//! Lists the shards, and the standbys.
//!
//! The hazard: KEYS would stop the server for all clients while it looks at every key. SCAN does not, but it may name a
//! key twice, and its cursor means nothing to another server. So one scan stays on one connection, and if that breaks,
//! the scan fails.

use super::notes::{NOTE, SESSION, STANDBY};
use super::{Redis, script};
use crate::lease::Shard;
use crate::store::allowance::{self, MOST_LISTED};
use crate::store::{EachPage, Report, StoreError};
use futures_util::stream::{self, StreamExt};
use redis::{Value, cmd};
use std::collections::BTreeSet;

/// How many places for keys one request looks at. In that time the server answers no other client, for some
/// microseconds.
const SCAN_PAGE: usize = 500;

/// How many shards one request shows, and how many such requests are under way at once: the server answers no other
/// client meanwhile.
const LOOK_PAGE: usize = 100;
const PAGES_AT_ONCE: usize = 4;

pub async fn list(store: &Redis, prefix: &str, each: &mut EachPage<'_>) -> Result<(), StoreError> {
    let shards: Vec<Shard> = shards(store, prefix).await?.into_iter().collect();
    let pages: Vec<Vec<Shard>> = shards.chunks(LOOK_PAGE).map(<[Shard]>::to_vec).collect();
    let mut pages = stream::iter(pages.into_iter().map(|shards| reports(store, shards))).buffered(PAGES_AT_ONCE);
    while let Some(page) = pages.next().await {
        each(page?);
    }
    Ok(())
}

async fn reports(store: &Redis, shards: Vec<Shard>) -> Result<Vec<(Shard, Report)>, StoreError> {
    let mut keys = Vec::with_capacity(4 + 2 * shards.len());
    keys.extend(shards.first().map(|shard| store.own_keys(shard)).into_iter().flatten());
    for shard in &shards {
        let [lock, last, ..] = store.own_keys(shard);
        keys.extend([lock, last]);
    }
    let replies = script::read_each(&store.client, &store.scripts.list, &keys).await?;
    let mut page = Vec::with_capacity(shards.len());
    for (shard, reply) in shards.into_iter().zip(replies) {
        let report = if reply.kind().is_empty() { look(store, &shard).await? } else { store.report(&shard, &reply)? };
        // It has vanished since it was found.
        if report != Report::default() {
            page.push((shard, report));
        }
    }
    Ok(page)
}

/// The report about a shard that something else may have written to.
async fn look(store: &Redis, shard: &Shard) -> Result<Report, StoreError> {
    // The lock of other programs belongs to one shard, and nothing says to which.
    match script::read(&store.client, &store.scripts.look, &store.own_keys(shard), &["0"]).await? {
        Some(reply) => store.report(shard, &reply),
        None => Ok(Report { holder: Some(store.foreign(shard)), last_term: None }),
    }
}

/// The shards that have a lock, or a record of the last leadership.
async fn shards(store: &Redis, prefix: &str) -> Result<BTreeSet<Shard>, StoreError> {
    let (lock, last) = (store.key("lock:"), store.key("last:"));
    // None of our other keys has such a name.
    let pattern = literally(&store.key("l")) + "???:" + &literally(prefix) + "*";
    let mut shards = BTreeSet::new();
    for key in keys(store, &pattern).await? {
        let name = key.strip_prefix(&lock).or_else(|| key.strip_prefix(&last));
        shards.extend(name.and_then(|name| name.parse::<Shard>().ok()));
    }
    Ok(shards)
}

/// The standbys of shards according to the notes, and the keys of those notes.
pub async fn standbys(store: &Redis, prefix: &str) -> Result<Vec<(Shard, String)>, StoreError> {
    let beginning = store.key(STANDBY);
    let found = keys(store, &(literally(&beginning) + &literally(prefix) + "*")).await?;
    let standbys = found.into_iter().filter_map(|key| {
        let (name, _) = key.strip_prefix(&beginning)?.split_once(SESSION)?;
        // The prefix may be longer than the shard's name.
        let shard = name.parse::<Shard>().ok().filter(|shard| shard.as_str().starts_with(prefix))?;
        Some((shard, key))
    });
    Ok(standbys.collect())
}

/// The keys of the notes of one shard.
pub async fn notes(store: &Redis, shard: &Shard) -> Result<Vec<String>, StoreError> {
    let beginning = store.key(NOTE);
    let found = keys(store, &(literally(&beginning) + "*:" + &literally(shard.as_str()) + "*")).await?;
    let is_ours = |key: &String| {
        let name = key.strip_prefix(&beginning).and_then(|rest| rest.split_once(':')).map(|(_, name)| name);
        name.is_some_and(|name| name.split_once(SESSION).map_or(name, |(name, _)| name) == shard.as_str())
    };
    Ok(found.into_iter().filter(is_ours).collect())
}

/// All keys that match, each once.
async fn keys(store: &Redis, pattern: &str) -> Result<BTreeSet<String>, StoreError> {
    let mut talk = store.client.talk(store.client.deadline()).await?;
    let mut found = BTreeSet::new();
    let mut cursor = b"0".to_vec();
    loop {
        let answer = talk.ask(cmd("SCAN").arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_PAGE)).await;
        let answer = answer.map_err(|failure| failure.conclude(store.client.about(talk.place(), &[])))?;
        let (next, keys) = page(answer).ok_or_else(|| script::not_understood(talk.place()))?;
        found.extend(keys);
        if found.len() > MOST_LISTED {
            return Err(allowance::too_long(talk.place()));
        }
        if next == b"0" {
            return Ok(found);
        }
        cursor = next;
        talk.go_on();
    }
}

/// The next cursor, and the keys. Keys that are not text are not ours.
fn page(answer: Value) -> Option<(Vec<u8>, Vec<String>)> {
    let Value::Array(parts) = answer else { return None };
    let [Value::BulkString(cursor), Value::Array(keys)] = <[Value; 2]>::try_from(parts).ok()? else { return None };
    let key = |value| match value {
        Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
        _ => None,
    };
    Some((cursor, keys.into_iter().filter_map(key).collect()))
}

/// A pattern that matches only `text`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_takes_nothing_but_letters_from_a_prefix() {
        assert_eq!(literally("leaderrun:{leases}:l"), "leaderrun:{leases}:l");
        assert_eq!(literally("a*b?[c]\\"), "a\\*b\\?\\[c\\]\\\\");
    }
}
