//! A lease that a verb holds while it changes what only one process may change at a time.

use super::PROGRAM;
use super::prelude::*;
use crate::lease::Candidate;
use crate::store::{Claim, Renewal};

pub struct OwnLease<'a> {
    client: Client<'a>,
    pub candidate: Candidate,
    pub term: Term,
    /// When its last claim or renewal was sent.
    pub sent: BootInstant,
    sequence: u64,
}

pub enum Taking<'a> {
    Taken(OwnLease<'a>),
    Held(Holder),
    /// A command of the last leader may live for this long.
    Later(Duration),
}

impl<'a> OwnLease<'a> {
    pub async fn take(client: Client<'a>, shard: &Shard, lease: Duration, verb: &str) -> Answer<Taking<'a>> {
        let mut candidate = Candidate::here(shard.clone(), None, lease).map_err(StoreError::no_random_bytes)?;
        candidate.owner = format!("{PROGRAM}-{verb}-{}-{}", candidate.host, candidate.pid);
        let mut own = Self { client, candidate, term: Term(0), sent: BootInstant::now(), sequence: 0 };
        match client.ask(client.store.claim(&own.candidate)).await {
            Ok(Claim::Granted(grant)) => {
                own.term = grant.term;
                let wait = grant.start_after.map(|until| until.since(BootInstant::now()));
                let Some(wait) = wait.filter(|wait| !wait.is_zero()) else { return Ok(Taking::Taken(own)) };
                own.give_back().await;
                Ok(Taking::Later(wait))
            }
            Ok(Claim::Refused(holder)) => Ok(Taking::Held(holder)),
            Err(error) => {
                if error.kind == ErrorKind::Unknown {
                    own.give_back().await;
                }
                Err(error)
            }
        }
    }

    /// False if it is lost.
    pub async fn renew(&mut self) -> Answer<bool> {
        let now = BootInstant::now();
        self.sequence += 1;
        let Self { client, candidate, term, .. } = self;
        let is_renewed = client.ask(client.store.renew(candidate, *term, self.sequence)).await? == Renewal::Renewed;
        if is_renewed {
            self.sent = now;
        }
        Ok(is_renewed)
    }

    /// A lease that cannot be released ends by itself.
    pub async fn give_back(&self) {
        let Self { client, candidate, term, .. } = self;
        if let Err(error) = client.ask(client.store.release(candidate, *term)).await {
            let Candidate { shard, lease, .. } = candidate;
            let (lease, why) = (show_seconds(*lease), error.message);
            say(format_args!("{shard}: nobody can lead for {lease}, because its lease could not be released: {why}"));
        }
    }
}
