//! What operators do with the bucket: list, revoke, forget, `leaderctl store init`.
//!
//! The hazard: an operator may end a lease while its tree still runs. So `revoke` writes into the object until when the
//! next leader has to wait. And no object of a shard is deleted: a deletion can come late, and then delete a next
//! leader's lease.

use super::notes::{NOTES, STANDBYS};
use super::objects::Condition;
use super::record::{Found, name_of};
use super::trial::{self, Trial, dishonest};
use super::{Bucket, MOST_ATTEMPTS, check, list, term};
use crate::lease::{Candidate, Shard, Term};
use crate::store::expiry::ServerTime;
use crate::store::server_clock::{Wait, with_drift};
use crate::store::{Administration, EachPage, Finding, Release, Report, Store, StoreError, parallel, steps};
use crate::time::{BootInstant, millis};

#[async_trait::async_trait]
impl Administration for Bucket {
    async fn inspect(&self, shard: &Shard) -> Result<Report, StoreError> {
        let sent = BootInstant::now();
        let Some(Found { record, .. }) = self.look(shard).await? else { return Ok(Report::default()) };
        let last_term = record.last_term();
        Ok(Report { holder: self.holder(shard, &record, sent), last_term })
    }

    async fn list_in_pages(&self, prefix: &str, each: &mut EachPage<'_>) -> Result<(), StoreError> {
        list::list_in_pages(self, prefix, each).await
    }

    async fn revoke(&self, shard: &Shard, term: Term) -> Result<Release, StoreError> {
        for _ in 0..MOST_ATTEMPTS {
            let sent = BootInstant::now();
            let Some(Found { record, version }) = self.look(shard).await? else { return Ok(Release::NotHeld) };
            let (Some(_), Some(lease)) = (self.holder(shard, &record, sent), record.lease.as_ref()) else {
                return Ok(Release::NotHeld);
            };
            if record.term != term.0 {
                return Ok(Release::NotHeld);
            }
            // Nothing that its holder sends can prolong the lease once this is written.
            let rest = with_drift(lease.duration());
            let until_millis = self.objects.server_millis(BootInstant::now()).saturating_add(millis(rest));
            let mut draft = record;
            draft.lease = None;
            let rest = Wait { until_millis, duration: rest };
            let earlier = draft.wait().filter(|earlier| earlier.until_millis > rest.until_millis);
            draft.set_wait(Some(earlier.unwrap_or(rest)));
            if self.write(shard, &draft, Condition::Unchanged(&version)).await? {
                return Ok(Release::Released);
            }
        }
        Err(StoreError::not_applied(format!("the object of shard {shard} changes faster than it can be revoked")))
    }

    /// The object stays, with its term alone: a deletion can come late, and then delete what a next leader wrote.
    async fn forget(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        let shard = &candidate.shard;
        let mine = |found: &Found| found.record.is_of(candidate) && found.record.term <= term.0;
        if !self.look(shard).await?.as_ref().is_some_and(mine) {
            return Ok(Release::NotHeld);
        }
        for folder in [NOTES, STANDBYS] {
            let listed = self.list_all(&format!("{folder}{}/", name_of(shard.as_str()))).await?;
            for some in listed.chunks(self.lanes()) {
                let deletions = some.iter().map(|listed| self.objects.delete(&listed.key));
                parallel::all(deletions).await.into_iter().collect::<Result<Vec<_>, _>>()?;
            }
        }
        for _ in 0..MOST_ATTEMPTS {
            let Some(Found { record, version }) = self.look(shard).await?.filter(mine) else {
                return Ok(Release::NotHeld);
            };
            let mut draft = record;
            (draft.lease, draft.orders, draft.forgotten, draft.term) = (None, None, true, term.0);
            if self.write(shard, &draft, Condition::Unchanged(&version)).await? {
                return Ok(Release::Released);
            }
        }
        Err(StoreError::not_applied(format!("the object of shard {shard} changes faster than it can be forgotten")))
    }

    /// Tries the server, and writes the marker. It makes no bucket: its name, region and rules are an operator's
    /// choice.
    async fn prepare(&self) -> Result<Vec<String>, StoreError> {
        let (name, server) = (&self.objects.name, self.objects.server());
        if term::find_marker(self).await?.is_some() {
            let step = steps::remembers(name, false);
            return Ok(vec![format!("{step}: {server} was tried before, and store check tries it again")]);
        }
        let races = match trial::run(self).await? {
            Trial::Honest(races) => races,
            Trial::Dishonest(how) => return Err(StoreError::misconfigured(dishonest(server, &how))),
        };
        term::mark(self).await?;
        Ok(vec![
            format!("{server} honours conditions: each of {races} races had one winner"),
            steps::remembers(name, true),
        ])
    }

    async fn vouch(&self) -> Result<(), StoreError> {
        term::vouch(self).await
    }

    async fn check(&self) -> Result<Vec<Finding>, StoreError> {
        check::check(self).await
    }
}
