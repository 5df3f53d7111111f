//! Claims, looks, renewals and releases: each is one request.
//!
//! The hazards are those of the store: see its module.

use super::Mysql;
use super::server::Answer;
use super::statement::{integer, micros, place_of_renewal};
use super::table::refuse_engine;
use crate::lease::{Candidate, Shard, Term};
use crate::store::error::contradicted;
use crate::store::rows::{MOST_ATTEMPTS, REVOKED, Seen};
use crate::store::{
    Claim, ErrorKind, Grant, Leases, Note, Observation, Release, Renewal, Renewed, StoreError, Takeover,
};
use crate::time::BootInstant;
use std::time::Duration;

/// How the leadership ended that the row showed before the claim. Another claim of the same session may have come in
/// between; then it says that it expired.
fn takeover(answer: &Answer, inserted: bool) -> Takeover {
    let before = answer.outcomes.first().and_then(|outcome| outcome.rows.first());
    match before {
        None if inserted => Takeover::First,
        Some(row) if row.flag(1) == Some(true) => Takeover::Released,
        Some(row) if row.text(2) == Some(REVOKED) => Takeover::Revoked,
        Some(_) | None => Takeover::Expired,
    }
}

#[async_trait::async_trait]
impl Leases for Mysql {
    async fn claim(&self, candidate: &Candidate) -> Result<Claim, StoreError> {
        self.claim_row(candidate, BootInstant::now()).await
    }

    async fn observe(&self, shard: &Shard) -> Result<Observation, StoreError> {
        Ok(self.look(shard).await?.holder().map_or(Observation::Free, Observation::Held))
    }

    async fn renew_and_read(
        &self,
        candidate: &Candidate,
        term: Term,
        sequence: u64,
        shards: &[Shard],
    ) -> Result<Renewed, StoreError> {
        let (renewal, orders) = self.renew_row(candidate, term, sequence, shards).await?;
        Ok(Renewed { renewal, orders })
    }

    async fn release(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        let (server, sent) = (&self.server, integer(BootInstant::now().as_nanos()));
        let answer = server.ask(&server.site, &server.statements.release(candidate, term, sent)).await?;
        let before = answer.again && self.seen(&answer, 1)?.was_released(candidate, sent);
        let applied = answer.changed(0) == Some(1);
        Ok(if applied || before { Release::Released } else { Release::NotHeld })
    }

    async fn changed(&self, shard: &Shard) -> Result<(), StoreError> {
        self.wait_for_any_change(std::slice::from_ref(shard)).await.map(drop)
    }

    async fn any_changed(&self, shards: &[Shard]) -> Result<usize, StoreError> {
        self.wait_for_any_change(shards).await
    }
}

impl Mysql {
    async fn claim_row(&self, candidate: &Candidate, sent: BootInstant) -> Result<Claim, StoreError> {
        let (server, sent) = (&self.server, integer(sent.as_nanos()));
        let statements = server.statements.claim(candidate, sent);
        for _ in 0..MOST_ATTEMPTS {
            let answer = server.ask(&server.site, &statements).await?;
            let (updated, inserted) = (answer.changed(1) == Some(1), answer.changed(2) == Some(1));
            match self.seen(&answer, 4)? {
                Seen::Garbage => return Err(self.garbage(&candidate.shard)),
                // A row with the instant of this very claim is from the first of two attempts, which may have found
                // none.
                Seen::Record(record)
                    if record.is_of(candidate) && (updated || inserted || !record.free && record.sent == sent) =>
                {
                    let inserted = inserted || !updated;
                    return Ok(Claim::Granted(Grant {
                        term: record.term,
                        start_after: self.start_after(candidate, &answer, inserted).await?,
                        takeover: takeover(&answer, inserted),
                    }));
                }
                Seen::Record(record) if !record.free && !record.is_of(candidate) => {
                    return Ok(Claim::Refused(record.holder()));
                }
                // Another candidate was faster, or the lease is over again.
                Seen::Record(_) | Seen::Absent => {}
            }
        }
        Err(contradicted(&candidate.shard))
    }

    /// When every earlier tree is certainly dead. None if the table knows that it is.
    ///
    /// Leases from before the table remembers are unknown: they count as long as the one that is requested, or as the
    /// one in the row. The end is counted from the answer, because the table may have forgotten while the request was
    /// under way. A row that is missing may have been deleted by hand, unless that is prevented.
    async fn start_after(
        &self,
        candidate: &Candidate,
        answer: &Answer,
        inserted: bool,
    ) -> Result<Option<BootInstant>, StoreError> {
        let row = |statement: usize| answer.outcomes.get(statement).and_then(|outcome| outcome.rows.first());
        let memory = row(3).ok_or_else(|| self.not_understood())?;
        let identity = memory.words(0).ok_or_else(|| self.not_understood())?;
        if let Some(engine) = memory.text(4) {
            refuse_engine(&self.server.site.table, engine)?;
        }
        let believed = memory.text(1) == Some(identity.as_str());
        let is_protected = memory.flag(3).unwrap_or(false);
        let before = row(0).and_then(|row| row.number(0)).and_then(|millis| u64::try_from(millis).ok());
        let longest = Duration::from_millis(before.unwrap_or(0)).max(candidate.lease);
        let remembered = match memory.number(2) {
            Some(remembered) if believed && (is_protected || !inserted) => micros(remembered),
            _ => Duration::ZERO,
        };
        let left = longest.saturating_sub(remembered);
        let start_after = (!left.is_zero()).then(|| BootInstant::now().plus(left));
        if !believed {
            // If it fails, nobody may start a tree: a claim at the server that the marker names would not wait for it.
            // That must not make this claim, which was applied, look as if it was not.
            let server = &self.server;
            let noted = server.ask(&server.site, &server.statements.remember(&identity)).await;
            noted.map_err(|error| StoreError { kind: ErrorKind::Unknown, ..error })?;
        }
        Ok(start_after)
    }

    /// Renews, and reads the orders of `shards` behind it. That the notes cannot be read, or not in time, does no harm
    /// to the lease.
    ///
    /// The lease then ends by the clock of the server that answers, and a claim at another node of a cluster must not
    /// go by its own clock. It does not if the marker names the server that answers, because it waits for a lease after
    /// the marker names another one. So what is applied elsewhere does not count until the marker names the server, and
    /// the row is still ours.
    async fn renew_row(
        &self,
        candidate: &Candidate,
        term: Term,
        sequence: u64,
        shards: &[Shard],
    ) -> Result<(Renewal, Option<Vec<Option<Note>>>), StoreError> {
        let server = &self.server;
        let statements = server.statements.renew(candidate, term, sequence) + &self.orders_of(shards);
        let mut repeated = false;
        for _ in 0..MOST_ATTEMPTS {
            let answer = server.ask_for(2, &server.site, &statements).await?;
            let renewal = if answer.changed(0) == Some(1) {
                Some(Renewal::Renewed)
            } else {
                let again = repeated || answer.again;
                self.seen(&answer, 1)?.instead_of_renewal(candidate, term, sequence, again)
            };
            let Some(renewal) = renewal else { continue };
            let place = place_of_renewal(answer.outcomes.get(1));
            if renewal != Renewal::Renewed || matches!(place, Some((_, true))) {
                return Ok((renewal, Self::orders_in(&answer, 2, shards.len())));
            }
            repeated = true;
            if let Some((identity, _)) = place {
                let noted = server.ask(&server.site, &server.statements.remember(&identity)).await;
                noted.map_err(|error| StoreError { kind: ErrorKind::Unknown, ..error })?;
            }
        }
        Err(contradicted(&candidate.shard))
    }
}
