//! The keys, and what each one holds.
//!
//! | key | what |
//! | --- | --- |
//! | `PREFIX/base` | since when this prefix remembers; the terms count from it |
//! | `PREFIX/young` | exists for at least a day from then on: an etcd lease ends it |
//! | `PREFIX/lock/SHARD` | who leads, attached to the leader's etcd lease |
//! | `PREFIX/last/SHARD` | who led last, and how that ended; attached to nothing |
//! | `PREFIX/led/HASH` | a copy of the last one while it has the lock, attached to its etcd lease |
//! | `PREFIX/note/orders/SHARD` | operators' orders for its candidates; a note's etcd lease ends it |
//! | `PREFIX/note/history/SHARD` | the history of its last leaderships |
//! | `PREFIX/note/standby/SHARD=SESSION` | the announcement of a standby |
//! | `PREFIX/note/runs/SHARD` | the last run of a job that runs once a period |
//! | `PREFIX/note/jobs/SHARD` | the index of the jobs that run once |
//! | `PREFIX/note/once/SHARD=JOB` | the run of a job that runs once |

use crate::lease::{Session, Shard};
use crate::store::Page;
use crate::store::stable_hash::fnv1a;

/// The mark after the shard's name in the key of a standby's note. It is not in the alphabet of shards.
pub const STANDBY_MARK: char = '=';

/// The keys under one prefix.
#[derive(Clone, Debug)]
pub struct Keys {
    pub prefix: String,
}

impl Keys {
    pub fn base(&self) -> Vec<u8> {
        format!("{}/base", self.prefix).into_bytes()
    }

    pub fn young(&self) -> Vec<u8> {
        format!("{}/young", self.prefix).into_bytes()
    }

    pub fn lock(&self, shard: &Shard) -> Vec<u8> {
        [self.locks().as_bytes(), shard.as_str().as_bytes()].concat()
    }

    pub fn last(&self, shard: &Shard) -> Vec<u8> {
        [self.lasts().as_bytes(), shard.as_str().as_bytes()].concat()
    }

    /// The key of the copy. It does not contain the shard's name, so a user who deletes all keys with that name does
    /// not delete it.
    pub fn copy(&self, shard: &Shard) -> Vec<u8> {
        format!("{}/led/{:016x}", self.prefix, fnv1a(shard.as_str().bytes())).into_bytes()
    }

    /// The beginning of the keys of locks.
    pub fn locks(&self) -> String {
        format!("{}/lock/", self.prefix)
    }

    /// The beginning of the keys of last leaderships.
    pub fn lasts(&self) -> String {
        format!("{}/last/", self.prefix)
    }

    pub fn note(&self, shard: &Shard, page: &Page) -> Vec<u8> {
        let (prefix, shard) = (&self.prefix, shard.as_str());
        let key = match page {
            Page::Orders => format!("{prefix}/note/orders/{shard}"),
            Page::History => format!("{prefix}/note/history/{shard}"),
            Page::Standby(session) => format!("{}{shard}{STANDBY_MARK}{}", self.standbys(), session.as_str()),
            Page::Runs => format!("{prefix}/note/runs/{shard}"),
            Page::Jobs => format!("{prefix}/note/jobs/{shard}"),
            Page::Once(job) => format!("{prefix}/note/once/{shard}{STANDBY_MARK}{job}"),
        };
        key.into_bytes()
    }

    /// The beginnings of the keys of those notes of which a shard may have several.
    pub fn many_notes(&self, shard: &Shard) -> [String; 2] {
        let once = format!("{}/note/once/{shard}{STANDBY_MARK}", self.prefix);
        [format!("{}{shard}{STANDBY_MARK}", self.standbys()), once]
    }

    /// The beginning of the keys of standbys' notes.
    pub fn standbys(&self) -> String {
        format!("{}/note/standby/", self.prefix)
    }

    pub fn scratch(&self, session: &Session) -> Vec<u8> {
        format!("{}/check/{}", self.prefix, session.as_str()).into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_of_a_record_has_the_same_key_in_every_release() {
        let keys = Keys { prefix: "p".to_owned() };
        assert_eq!(keys.copy(&"db/main".parse().unwrap()), b"p/led/ce95f71b99df0621");
    }
}
