//! What operators do with the keys: list, revoke, forget, `leaderctl store init`.
//!
//! The hazard: an operator may end a lease while its tree still runs. So `revoke` deletes the lock and not the etcd
//! lease: as long as that lives, the next leader waits. `forget` deletes all keys of a shard in one transaction.

use super::claim::given_back;
use super::connection::Connection;
use super::list::after_all;
use super::proto::{TXN, TxnRequest, TxnResponse, delete, delete_range, is_unchanged, put};
use super::record::{Base, Entry, EtcdLease, Last, Lock, View, read, written};
use super::unclaimed::UnclaimedLeases;
use super::{Etcd, MOST_ATTEMPTS, check, list};
use crate::lease::{Candidate, Shard, Term};
use crate::store::{Administration, EachPage, Finding, Page, Release, Report, StoreError, steps};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[async_trait::async_trait]
impl Administration for Etcd {
    async fn inspect(&self, shard: &Shard) -> Result<Report, StoreError> {
        self.client.operate(|connection| Box::pin(self.inspect_on(connection, shard))).await
    }

    async fn list_in_pages(&self, prefix: &str, each: &mut EachPage<'_>) -> Result<(), StoreError> {
        list::list(self, prefix, each).await
    }

    async fn revoke(&self, shard: &Shard, term: Term) -> Result<Release, StoreError> {
        self.client.operate(|connection| Box::pin(self.revoke_on(connection, shard, term))).await
    }

    async fn forget(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        let asked = AtomicBool::new(false);
        let forget = |connection| self.forget_on(connection, candidate, term, asked.swap(true, Ordering::Relaxed));
        self.client.operate(|connection| Box::pin(forget(connection))).await
    }

    async fn prepare(&self) -> Result<Vec<String>, StoreError> {
        let founded = self.client.bounded(async {
            let connection = self.client.connection().await?;
            let found = self.get(&connection, self.keys.base()).await?;
            let founded = match found.kvs.first() {
                Some(kv) => {
                    read::<Base>(&connection.server, kv)?;
                    false
                }
                None => self.found(&connection, None).await?,
            };
            Ok((founded, connection.server.clone()))
        });
        let (founded, server) = founded.await?;
        let prefix = &self.keys.prefix;
        Ok(vec![steps::remembers(format!("the prefix {prefix} in etcd at {server}"), founded)])
    }

    async fn vouch(&self) -> Result<(), StoreError> {
        let vouched = self.client.bounded(async {
            let connection = self.client.connection().await?;
            let request = TxnRequest { success: vec![delete(&self.keys.young())], ..TxnRequest::default() };
            let _: TxnResponse = self.client.call(&connection, TXN, request).await?;
            Ok(())
        });
        vouched.await
    }

    async fn check(&self) -> Result<Vec<Finding>, StoreError> {
        check::check(self).await
    }
}

impl Etcd {
    async fn inspect_on(&self, connection: Arc<Connection>, shard: &Shard) -> Result<Report, StoreError> {
        let view = self.look(&connection, shard).await?;
        let holder = match &view.lock {
            Some(lock) => Some(self.holder(&connection, lock).await?),
            None => None,
        };
        Ok(Report { holder, last_term: view.last_known().map(Entry::<Last>::term) })
    }

    /// Deletes the lock, and leaves its etcd lease alone: while that lives, the next holder of the lock waits for the
    /// old holder's tree. The record of the last leadership stays too, unless it is not the one that was written with
    /// this lock.
    async fn revoke_on(&self, connection: Arc<Connection>, shard: &Shard, term: Term) -> Result<Release, StoreError> {
        let (lock_key, last_key) = (self.keys.lock(shard), self.keys.last(shard));
        for _ in 0..MOST_ATTEMPTS {
            let View { lock, last, .. } = self.look(&connection, shard).await?;
            let Some(lock) = lock.filter(|lock| lock.term() == term) else { return Ok(Release::NotHeld) };
            let last_revision = last.as_ref().map_or(0, |last| last.mod_revision);
            let last = Last { term: Some(term.0), revoked: Some(term.0), ..unreleased(&lock, last) };
            let request = TxnRequest {
                compare: vec![is_unchanged(&lock_key, lock.mod_revision), is_unchanged(&last_key, last_revision)],
                success: vec![delete(&lock_key), put(&last_key, written(&last), 0)],
                failure: Vec::new(),
            };
            let answer: TxnResponse = self.client.call(&connection, TXN, request).await?;
            if answer.succeeded {
                return Ok(Release::Released);
            }
        }
        Err(StoreError::not_applied(format!("the lock of shard {shard} changes faster than it can be taken away")))
    }

    /// Removes everything in one step. Terms count on from the revision, so nothing has to stay. `again` is true after
    /// a request whose answer was lost.
    async fn forget_on(
        &self,
        connection: Arc<Connection>,
        candidate: &Candidate,
        term: Term,
        again: bool,
    ) -> Result<Release, StoreError> {
        let (shard, keys) = (&candidate.shard, &self.keys);
        let (lock_key, last_key) = (keys.lock(shard), keys.last(shard));
        for _ in 0..MOST_ATTEMPTS {
            let View { lock, last, base, .. } = self.look(&connection, shard).await?;
            let mine = |lock: &Entry<Lock>| lock.record.session == candidate.session && lock.term() == term;
            let as_we_leave_it = |last: &Entry<Last>| {
                last.record.released && last.record.session == candidate.session && last.term() == term
            };
            let is_gone = again && lock.is_none() && last.as_ref().is_none_or(as_we_leave_it);
            let Some(lock) = lock.filter(mine) else {
                if is_gone {
                    self.known.lock().remove(shard);
                }
                return Ok(if is_gone { Release::Released } else { Release::NotHeld });
            };
            let mut success = vec![delete(&lock_key), delete(&keys.copy(shard))];
            // The base must stay if the terms counted from a higher base than the present one.
            let is_ahead = base.is_none_or(|base| lock.record.term_offset > base.term_offset());
            success.push(if is_ahead { put(&last_key, written(&given_back(&lock)), 0) } else { delete(&last_key) });
            success.extend(
                [Page::Orders, Page::History, Page::Runs, Page::Jobs].map(|page| delete(&keys.note(shard, &page))),
            );
            let many = keys.many_notes(shard).map(String::into_bytes);
            success.extend(many.map(|key| delete_range(key.clone(), after_all(&key))));
            let request =
                TxnRequest { compare: vec![is_unchanged(&lock_key, lock.mod_revision)], success, failure: Vec::new() };
            let answer: TxnResponse = self.client.call(&connection, TXN, request).await?;
            if answer.succeeded {
                UnclaimedLeases::revoke_later(&self.unclaimed, lock.lease);
                self.known.lock().remove(shard);
                return Ok(Release::Released);
            }
        }
        Err(StoreError::not_applied(format!("the lock of shard {shard} changes faster than it can be forgotten")))
    }
}

/// The record that must be beside a lock after the lock is gone, so that candidates wait for its tree: the one that is
/// there, or another one.
fn unreleased(lock: &Entry<Lock>, last: Option<Entry<Last>>) -> Last {
    let etcd_lease = EtcdLease { id: lock.lease, lease_ms: lock.record.lease_ms };
    let (mut young, mut before, mut revoked) = (false, Vec::new(), None);
    if let Some(Entry { record: last, .. }) = last {
        if last.etcd_lease.id == etcd_lease.id && !last.released {
            return last;
        }
        // The record was changed by hand. Candidates must also wait for the leader that it names.
        (young, before, revoked) = (last.young, last.before, last.revoked);
        if !last.released {
            before.push(last.etcd_lease);
        }
    }
    let Lock { session, term_offset, .. } = lock.record.clone();
    let (released, term) = (false, Some(lock.term().0));
    Last { session, etcd_lease, term_offset, term, released, revoked, young, before }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Session;

    #[test]
    fn the_record_beside_a_revoked_lock_names_its_leadership() {
        let lease = |id| EtcdLease { id, lease_ms: 15_000 };
        let lock = Lock {
            owner: "o".to_owned(),
            session: Session::from_record("s"),
            host: "h".to_owned(),
            pid: 1,
            lease_ms: 15_000,
            since_ms: 1,
            term_offset: 3,
        };
        let lock = Entry { record: lock, create_revision: 9, mod_revision: 9, lease: 7 };
        let last = |id, released| {
            let session = Session::from_record("s");
            let (etcd_lease, before) = (lease(id), vec![lease(1)]);
            let (revoked, young, term) = (None, true, None);
            let record = Last { session, etcd_lease, term_offset: 3, term, released, revoked, young, before };
            Some(Entry { record, create_revision: 9, mod_revision: 9, lease: 0 })
        };
        let same = unreleased(&lock, last(7, false));
        assert_eq!((same.term, same.young, same.before), (None, true, vec![lease(1)]), "it is left alone");
        let absent = unreleased(&lock, None);
        assert_eq!(
            (absent.etcd_lease, absent.term, absent.released, absent.before),
            (lease(7), Some(12), false, Vec::new())
        );
        let released = unreleased(&lock, last(7, true));
        assert_eq!((released.released, released.young, released.before), (false, true, vec![lease(1)]));
        let other = unreleased(&lock, last(5, false));
        assert_eq!((other.etcd_lease, other.before), (lease(7), vec![lease(1), lease(5)]));
    }
}
