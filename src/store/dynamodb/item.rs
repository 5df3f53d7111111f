//! What an item looks like, and what it is called.
//!
//! | document | `pk` | `sk` |
//! | --- | --- | --- |
//! | the marker: since when the table remembers | `LEADERRUN` | `TABLE` |
//! | a shard's led mark | `LEADERRUN` | `SHARD#NAME` |
//! | a shard: who leads, the last term, the operators' orders | `SHARD#NAME` | `LOCK` |
//! | a note beside it | `SHARD#NAME` | `HISTORY`, `RUNS`, `JOBS`, `ONCE#JOB`, `STANDBY#SESSION` |
//! | what `store check` writes | `SHARD#leaderctl-check#NAME` | `LOCK` |
//!
//! The hazard: other programs write the item `LOCK` too. The Go library gurre/shardcoordinator knows `pk`, `sk`,
//! `ownerId` and `ttl`; it takes the item over once `ttl` is before its own clock, and deletes it on release. So these
//! four always tell the truth about our lease: `ttl` is in the future while a candidate of ours leads or has to be
//! waited for, and 0 once it is released. And an item counts as ours only while `ttl` agrees with the rest: a program
//! that changed only the four has left attributes of ours behind that mean nothing.

use crate::lease::{Session, Shard};
use crate::store::lease_store::documents::{Content, Found, Key, Life, Ours, Part, Version};
use crate::store::{Holder, Page};
use aws_sdk_dynamodb::types::AttributeValue;
use std::collections::HashMap;
use std::fmt::Display;

pub type Item = HashMap<String, AttributeValue>;

pub const STORE: &str = "LEADERRUN";
pub const SHARD: &str = "SHARD#";
pub const LOCK: &str = "LOCK";
pub const STANDBY: &str = "STANDBY#";
const MARK: char = '#';

/// The `ownerId` of an item that is written before anybody has led. (Once somebody has, the last name stays.)
pub const NOBODY: &str = "nobody";

pub fn key_of(key: Key<'_>) -> (String, String) {
    let of = |shard: &Shard, sort: &str| (partition(shard), sort.to_owned());
    match key {
        Key::Marker => (STORE.to_owned(), "TABLE".to_owned()),
        Key::Led(shard) => (STORE.to_owned(), partition(shard)),
        Key::Shard(shard) => of(shard, LOCK),
        Key::Note(shard, page) => {
            let (word, which) = page.words();
            let which = which.map(|which| format!("{MARK}{which}")).unwrap_or_default();
            of(shard, &(word.to_ascii_uppercase() + &which))
        }
        // No shard has such a name, so no list shows it.
        Key::Scratch(name) => (format!("{SHARD}leaderctl-check#{name}"), LOCK.to_owned()),
    }
}

pub fn partition(shard: &Shard) -> String {
    format!("{SHARD}{shard}")
}

pub fn listed(item: &Item) -> Option<(Shard, Part)> {
    let (partition, sort) = (text(item, "pk")?, text(item, "sk")?);
    if partition == STORE {
        return Some((sort.strip_prefix(SHARD)?.parse().ok()?, Part::Led));
    }
    let shard = partition.strip_prefix(SHARD)?.parse().ok()?;
    let part = match sort {
        LOCK => Part::Lease,
        sort => {
            let (word, of) = sort.split_once(MARK).map_or((sort, None), |(word, of)| (word, Some(of)));
            Part::Note(Page::of_words(&word.to_ascii_lowercase(), of)?)
        }
    };
    Some((shard, part))
}

/// Rounded up, because the Go library compares whole seconds.
pub fn ttl_of(expires_millis: u64) -> u64 {
    expires_millis.div_ceil(1000)
}

pub fn n(number: impl Display + Copy) -> AttributeValue {
    AttributeValue::N(number.to_string())
}

pub fn s(text: &str) -> AttributeValue {
    AttributeValue::S(text.to_owned())
}

pub fn text<'a>(item: &'a Item, name: &str) -> Option<&'a str> {
    item.get(name)?.as_s().ok().map(String::as_str)
}

fn number<N: std::str::FromStr>(item: &Item, name: &str) -> Option<N> {
    item.get(name)?.as_n().ok()?.parse().ok()
}

/// Made of the name of the write and of the owner, which only `LOCK` has.
fn version(id: &str, owner: Option<&str>) -> Version {
    let write = owner.map_or_else(|| id.to_owned(), |owner| format!("{id}\n{owner}"));
    Version { write, incarnation: String::new() }
}

/// The write is empty if another program wrote the item.
pub fn write_and_owner(version: &Version) -> (&str, Option<&str>) {
    version.write.split_once('\n').map_or((&version.write, None), |(id, owner)| (id, Some(owner)))
}

pub fn read(item: Option<&Item>) -> Found {
    let Some(item) = item else { return Found { content: Content::Absent, version: Version::default() } };
    let id = text(item, "write").unwrap_or_default();
    let owner = text(item, "ownerId").filter(|_| text(item, "sk") == Some(LOCK));
    let content = content(item, id, owner).unwrap_or_else(|why| Content::Unreadable(why.to_owned()));
    Found { content, version: version(id, owner) }
}

fn content(item: &Item, id: &str, owner: Option<&str>) -> Result<Content, &'static str> {
    if text(item, "sk") != Some(LOCK) {
        return ours(item, id).map(Content::Ours).ok_or("it has no text");
    }
    let owner = owner.ok_or("it has no ownerId (S)")?;
    let ttl: i64 = number(item, "ttl").ok_or("it has no ttl (N)")?;
    let agrees = |ours: &Ours| {
        let expires = if let Life::Ends(ends) = ours.life { ends } else { 0 };
        i64::try_from(ttl_of(expires)) == Ok(ttl)
    };
    Ok(ours(item, id).filter(agrees).map_or_else(|| foreign(owner, ttl), Content::Ours))
}

fn ours(item: &Item, id: &str) -> Option<Ours> {
    let text = text(item, "text").filter(|_| !id.is_empty())?.to_owned();
    let session = self::text(item, "session").map(Session::from_record);
    let term = if session.is_some() { number(item, "term")? } else { 0 };
    let ends = if item.contains_key("expiresMs") { Some(number(item, "expiresMs")?) } else { None };
    Some(Ours::of(text, session, term, number(item, "sequence")?, ends))
}

/// For the other program, its lease ends in the second after `ttl`.
fn foreign(owner: &str, ttl: i64) -> Content {
    let ends = u64::try_from(ttl.saturating_add(1)).unwrap_or(0).saturating_mul(1000);
    let holder =
        Holder { owner: owner.to_owned(), foreign_lock: Some("the shard's item".to_owned()), ..Holder::default() };
    Content::Foreign { holder, sign: ttl.to_string(), life: Life::Ends(ends) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_check_writes_is_listed_as_no_shard() {
        let listed_of = |key| {
            let (partition, sort) = key_of(key);
            listed(&[("pk".to_owned(), s(&partition)), ("sk".to_owned(), s(&sort))].into())
        };
        let shard = "db/main".parse().unwrap();
        assert!(listed_of(Key::Shard(&shard)).is_some_and(|(listed, _)| listed == shard));
        assert!(listed_of(Key::Scratch("7f3a-0")).is_none());
    }
}
