//! What operators do with the leases of a server: list, revoke, forget, `leaderctl store init`.
//!
//! The hazard: an operator may end a lease while its tree still runs. So a lock is removed by a script, which records
//! at the same instant that it was not released, and the next leader waits.

use super::check;
use super::{Redis, list, script};
use crate::lease::{Candidate, Shard, Term};
use crate::store::{Administration, EachPage, Finding, Release, Report, StoreError, steps};
use crate::time::millis;

#[async_trait::async_trait]
impl Administration for Redis {
    async fn inspect(&self, shard: &Shard) -> Result<Report, StoreError> {
        self.report(shard, &self.look(shard).await?)
    }

    async fn list_in_pages(&self, prefix: &str, each: &mut EachPage<'_>) -> Result<(), StoreError> {
        list::list(self, prefix, each).await
    }

    async fn revoke(&self, shard: &Shard, term: Term) -> Result<Release, StoreError> {
        let channel = self.channel(shard);
        let reply = self.run(&self.scripts.revoke, shard, &[&term.to_string(), &channel], None).await?;
        match reply.kind() {
            "released" => Ok(Release::Released),
            "not held" => Ok(Release::NotHeld),
            _ => Err(reply.not_understood()),
        }
    }

    /// Removes the lock and the notes in one script. If a standby writes another note just then, that note stays
    /// behind.
    async fn forget(&self, candidate: &Candidate, _term: Term) -> Result<Release, StoreError> {
        let shard = &candidate.shard;
        let mut keys = self.keys(shard);
        let fixed = keys.len().to_string();
        keys.extend(list::notes(self, shard).await?);
        let (order, lease, channel) = (self.next_order(), millis(candidate.lease).to_string(), self.channel(shard));
        let arguments = [candidate.session.as_str(), &order, &lease, &channel, &fixed];
        let reply = script::run(&self.client, &self.scripts.forget, &keys, &arguments, None).await?;
        match reply.kind() {
            "released" => {
                self.seen.lock().remove(shard);
                Ok(Release::Released)
            }
            "not held" => Ok(Release::NotHeld),
            _ => Err(reply.not_understood()),
        }
    }

    async fn prepare(&self) -> Result<Vec<String>, StoreError> {
        let nobody = "leaderctl".parse::<Shard>().map_err(StoreError::unknown)?;
        let reply = self.run(&self.scripts.remember, &nobody, &[], None).await?;
        let known = reply.millis(0);
        Ok(vec![steps::remembers(&reply.place, known.is_zero())])
    }

    async fn vouch(&self) -> Result<(), StoreError> {
        let nobody = "leaderctl".parse::<Shard>().map_err(StoreError::unknown)?;
        self.run(&self.scripts.remember, &nobody, &["new"], None).await.map(drop)
    }

    async fn check(&self) -> Result<Vec<Finding>, StoreError> {
        check::check(self).await
    }
}
