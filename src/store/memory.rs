//! The reference: a store in memory that does exactly what the traits promise, judged by its own clock. For tests.

use super::{
    Administration, Claim, Delivery, Doubt, EachPage, Finding, Grant, Holder, Leases, Note, Notes, Observation, Page,
    Release, Renewal, Renewed, Report, Store, StoreError,
};
use crate::lease::{Candidate, Session, Shard, Term};
use crate::mutex::Mutex;
use crate::time::{BootInstant, wall_clock_millis};
use std::collections::{BTreeMap, HashMap};

#[derive(Debug, Default)]
pub struct Memory {
    shards: Mutex<HashMap<Shard, Entry>>,
    notes: Mutex<BTreeMap<(Shard, Page), Kept>>,
}

#[derive(Debug)]
struct Kept {
    text: String,
    until: BootInstant,
}

impl Kept {
    /// The note, or None if it has ended.
    fn note(&self, now: BootInstant) -> Option<Note> {
        let lasts = (self.until != BootInstant::NEVER).then(|| self.until.since(now));
        (now < self.until).then(|| Note::lasting(self.text.clone(), lasts))
    }
}

#[derive(Debug, Default)]
struct Entry {
    /// The term of the last leadership.
    term: u64,
    lease: Option<Lease>,
    /// The instant until which the tree of a revoked lease may be alive.
    vacant_from: Option<BootInstant>,
}

#[derive(Debug)]
struct Lease {
    owner: String,
    session: Session,
    sequence: u64,
    renewed: BootInstant,
    expires: BootInstant,
}

impl Memory {
    fn prolong(&self, candidate: &Candidate, sequence: u64) -> Renewal {
        let mut shards = self.shards.lock();
        let entry = shards.entry(candidate.shard.clone()).or_default();
        let holder = entry.holder();
        match &mut entry.lease {
            Some(lease) if lease.session == candidate.session && lease.sequence >= sequence => Renewal::Overtaken,
            Some(lease) if lease.session == candidate.session => {
                lease.sequence = sequence;
                lease.renewed = BootInstant::now();
                lease.expires = lease.renewed.plus(candidate.lease);
                Renewal::Renewed
            }
            Some(_) | None => Renewal::Lost(holder),
        }
    }
}

#[async_trait::async_trait]
impl Notes for Memory {
    async fn read(&self, shard: &Shard, page: &Page) -> Result<Option<Note>, StoreError> {
        Ok(self.notes.lock().get(&(shard.clone(), page.clone())).and_then(|kept| kept.note(BootInstant::now())))
    }

    async fn replace(
        &self,
        shard: &Shard,
        page: &Page,
        expected: Option<&str>,
        draft: Option<&Note>,
    ) -> Result<bool, StoreError> {
        let now = BootInstant::now();
        let mut notes = self.notes.lock();
        let place = (shard.clone(), page.clone());
        if notes.get(&place).and_then(|kept| kept.note(now)).map(|note| note.text).as_deref() != expected {
            return Ok(false);
        }
        match draft {
            Some(Note { text, lasts }) => {
                let until = lasts.map_or(BootInstant::NEVER, |lasts| now.plus(lasts));
                notes.insert(place, Kept { text: text.clone(), until });
            }
            None => drop(notes.remove(&place)),
        }
        Ok(true)
    }

    async fn standbys(&self, prefix: &str) -> Result<Vec<(Shard, Note)>, StoreError> {
        let now = BootInstant::now();
        let notes = self.notes.lock();
        let standbys = notes.iter().filter(|((_, page), _)| matches!(page, Page::Standby(_)));
        let found = standbys.filter(|((shard, _), _)| shard.as_str().starts_with(prefix));
        Ok(found.filter_map(|((shard, _), kept)| Some((shard.clone(), kept.note(now)?))).collect())
    }
}

impl Entry {
    fn holder(&self) -> Option<Holder> {
        let now = BootInstant::now();
        let lease = self.lease.as_ref().filter(|lease| now < lease.expires)?;
        Some(Holder {
            owner: lease.owner.clone(),
            session: Some(lease.session.clone()),
            term: Some(Term(self.term)),
            expires_in: Some(lease.expires.since(now)),
            renewed_ago: Some(now.since(lease.renewed)),
            ..Holder::default()
        })
    }
}

#[async_trait::async_trait]
impl Leases for Memory {
    async fn claim(&self, candidate: &Candidate) -> Result<Claim, StoreError> {
        let mut shards = self.shards.lock();
        let entry = shards.entry(candidate.shard.clone()).or_default();
        let mine = entry.lease.as_ref().is_some_and(|lease| lease.session == candidate.session);
        match entry.holder() {
            Some(holder) if !mine => Ok(Claim::Refused(holder)),
            Some(_) | None => {
                // At least the milliseconds since 1970, as in every store that may forget.
                entry.term = (entry.term + 1).max(wall_clock_millis());
                let renewed = BootInstant::now();
                let expires = renewed.plus(candidate.lease);
                let (owner, session) = (candidate.owner.clone(), candidate.session.clone());
                entry.lease = Some(Lease { owner, session, sequence: 0, renewed, expires });
                let start_after = entry.vacant_from.filter(|&vacant| BootInstant::now() < vacant);
                Ok(Claim::Granted(Grant { term: Term(entry.term), start_after, doubt: Doubt::default() }))
            }
        }
    }

    async fn observe(&self, shard: &Shard) -> Result<Observation, StoreError> {
        let holder = self.shards.lock().get(shard).and_then(Entry::holder);
        Ok(holder.map_or(Observation::Free, Observation::Held))
    }

    async fn renew_and_read(
        &self,
        candidate: &Candidate,
        _term: Term,
        sequence: u64,
        shards: &[Shard],
    ) -> Result<Renewed, StoreError> {
        let renewal = self.prolong(candidate, sequence);
        let mut orders = Vec::with_capacity(shards.len());
        for shard in shards {
            orders.push(self.read(shard, &Page::Orders).await?);
        }
        Ok(Renewed { renewal, orders: Some(orders) })
    }

    async fn release(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        let mut shards = self.shards.lock();
        let entry = shards.entry(candidate.shard.clone()).or_default();
        // A late request of an earlier leadership of the same session. Zero stands for any term.
        let earlier = term != Term(0) && term != Term(entry.term);
        if earlier || entry.lease.as_ref().is_none_or(|lease| lease.session != candidate.session) {
            return Ok(Release::NotHeld);
        }
        entry.lease = None;
        Ok(Release::Released)
    }

    async fn changed(&self, _shard: &Shard) -> Result<(), StoreError> {
        std::future::pending().await
    }
}

#[async_trait::async_trait]
impl Administration for Memory {
    async fn inspect(&self, shard: &Shard) -> Result<Report, StoreError> {
        let shards = self.shards.lock();
        let entry = shards.get(shard);
        Ok(Report { holder: entry.and_then(Entry::holder), last_term: entry.map(|entry| Term(entry.term)) })
    }

    async fn list_in_pages(&self, prefix: &str, each: &mut EachPage<'_>) -> Result<(), StoreError> {
        let shards = self.shards.lock();
        let known = shards.iter().filter(|(shard, entry)| entry.term > 0 && shard.as_str().starts_with(prefix));
        let report = |entry: &Entry| Report { holder: entry.holder(), last_term: Some(Term(entry.term)) };
        let mut list: Vec<_> = known.map(|(shard, entry)| (shard.clone(), report(entry))).collect();
        list.sort_by(|(one, _), (other, _)| one.cmp(other));
        each(list);
        Ok(())
    }

    async fn revoke(&self, shard: &Shard, term: Term) -> Result<Release, StoreError> {
        let mut shards = self.shards.lock();
        let entry = shards.entry(shard.clone()).or_default();
        let Some(lease) = entry.lease.take_if(|_| term == Term(entry.term)) else { return Ok(Release::NotHeld) };
        entry.vacant_from = Some(lease.expires);
        Ok(Release::Released)
    }

    async fn forget(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        let released = self.release(candidate, term).await?;
        if released == Release::Released {
            let shard = &candidate.shard;
            self.notes.lock().retain(|(of, _), _| of != shard);
            self.shards.lock().retain(|of, entry| of != shard || entry.term >= wall_clock_millis());
        }
        Ok(released)
    }

    async fn prepare(&self) -> Result<Vec<String>, StoreError> {
        Ok(Vec::new())
    }

    async fn check(&self) -> Result<Vec<Finding>, StoreError> {
        Ok(Vec::new())
    }
}

impl Store for Memory {
    fn delivery(&self) -> Delivery {
        Delivery::Poll
    }
}
