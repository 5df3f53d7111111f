//! A lease that a verb holds itself, while it changes what only one may change at a time.

use super::PROGRAM;
use crate::lease::{Candidate, Shard, Term, show_seconds};
use crate::observe::terminal;
use crate::store::{Answer, Claim, ErrorKind, Holder, Renewal, Store, StoreError, within};
use crate::text::on_one_line;
use crate::time::BootInstant;
use std::time::Duration;

pub struct OwnLease {
    pub candidate: Candidate,
    pub term: Term,
    /// When its last claim or renewal was sent.
    pub sent: BootInstant,
    sequence: u64,
}

pub enum Taking {
    Taken(OwnLease),
    Held(Holder),
    /// A command of the last leader may live for this long.
    Later(Duration),
}

impl OwnLease {
    /// Claims the lease on `shard` for `verb`.
    pub async fn take(
        store: &dyn Store,
        patience: Duration,
        shard: &Shard,
        lease: Duration,
        verb: &str,
    ) -> Answer<Taking> {
        let mut candidate = Candidate::here(shard.clone(), None, lease).map_err(StoreError::no_random_bytes)?;
        candidate.owner = format!("{PROGRAM}-{verb}-{}-{}", candidate.host, candidate.pid);
        let mut own = Self { candidate, term: Term(0), sent: BootInstant::now(), sequence: 0 };
        match within(patience, store.claim(&own.candidate)).await {
            Ok(Claim::Granted(grant)) => {
                own.term = grant.term;
                let wait = grant.start_after.map(|until| until.since(BootInstant::now()));
                let Some(wait) = wait.filter(|wait| !wait.is_zero()) else { return Ok(Taking::Taken(own)) };
                own.give_back(store, patience).await;
                Ok(Taking::Later(wait))
            }
            Ok(Claim::Refused(holder)) => Ok(Taking::Held(holder)),
            Err(error) => {
                if error.kind == ErrorKind::Unknown {
                    own.give_back(store, patience).await;
                }
                Err(error)
            }
        }
    }

    /// False if it is lost.
    pub async fn renew(&mut self, store: &dyn Store, patience: Duration) -> Answer<bool> {
        let now = BootInstant::now();
        self.sequence += 1;
        match within(patience, store.renew(&self.candidate, self.term, self.sequence)).await? {
            Renewal::Renewed => self.sent = now,
            Renewal::Lost(_) | Renewal::Revoked | Renewal::Overtaken => return Ok(false),
        }
        Ok(true)
    }

    /// A lease that cannot be released ends by itself.
    pub async fn give_back(&self, store: &dyn Store, patience: Duration) {
        if let Err(error) = within(patience, store.release(&self.candidate, self.term)).await {
            let Candidate { shard, lease, .. } = &self.candidate;
            let (lease, message) = (show_seconds(*lease), on_one_line(error.message));
            terminal::say(format_args!(
                "{PROGRAM}: {shard}: nobody can lead for {lease}, because its lease could not be released: {message}"
            ));
        }
    }
}
