//! `leaderctl forget`: deletes all that a store keeps of a shard.
//!
//! The hazard: if a leader's record is deleted, another leader starts beside it. So this first takes the lease of the
//! shard and of each slot, as a candidate does, unless the shard is led or may still have a tree. While it has the
//! leases, nobody else can lead. Then it deletes everything, the leases last. If it is stopped midway, its leases end
//! by themselves, and a second run continues.

use super::own_lease::{OwnLease, Taking};
use super::prelude::*;
use super::slots::listed;
use crate::store::{Page, Release, within};
use tokio::time::sleep;

/// A store keeps a term until its clock has passed that term; most terms are milliseconds.
pub const TERMS_APART: Duration = Duration::from_millis(3);

#[derive(Debug, Args)]
pub struct ForgetFlags {
    /// The name of the shard
    shard: Shard,

    /// The longest --lease of the shard's candidates
    #[arg(long, value_name = "DURATION", env = "LEADERRUN_LEASE", hide_env = true, default_value = "15s",
          value_parser = flags::duration)]
    lease: Duration,

    /// Print the shard's state afterwards as one JSON object
    #[arg(long)]
    json: bool,
}

impl ForgetFlags {
    pub fn check(&self) -> Result<(), String> {
        if self.lease < Duration::from_secs(1) || self.lease > Duration::from_hours(24) {
            return Err("--lease must be at least 1s and at most 1day".to_owned());
        }
        Ok(())
    }

    pub async fn order(&self, client: Client<'_>) -> Result<ExitCode, Failure> {
        let operator = Operator { client, shard: &self.shard, json: self.json };
        let report = operator.inspect().await?;
        if let Some(holder) = &report.holder {
            return Err(operator.refusal(&self.held(&self.shard, holder)));
        }
        let slots = Slots::of(client, &self.shard).await?;
        if let Some((slot, holder)) = slots.led().next() {
            return Err(operator.refusal(&self.held(slot, holder)));
        }
        if never_led(&report, &slots) && !self.has_notes(client).await? {
            operator.refuse_never_led().await?;
        }
        let names: Vec<Shard> = std::iter::once(&self.shard).chain(slots.names()).cloned().collect();
        if let Some(hidden) = slots.hidden {
            return Err(hidden.into());
        }
        let mut taken = Vec::new();
        if let Err(failure) = self.take_all(&operator, &names, &mut taken).await {
            give_back(&taken).await;
            return Err(failure);
        }
        sleep(TERMS_APART).await;
        let mut gone = Vec::new();
        let lost = self.forget_all(client, &mut taken, &mut gone).await;
        give_back(&taken).await;
        let lost = lost.map_err(|error| operator.although("forgotten in part: run this again", error))?;
        let others = if lost.is_some() { &gone[..] } else { &names[1..] };
        let and = if others.is_empty() { String::new() } else { format!(", as are {}", listed(others.iter())) };
        match lost {
            None => operator.done(&format!("forgotten{and}")).await,
            Some(lost) => Err(operator.refusal(&format!(
                "the lease of {lost} ended before all was deleted, so some of its notes may be gone{and}: run this again"
            ))),
        }
    }

    /// Takes all leases, and then checks that there are no more: before we had them all, a candidate may have taken a
    /// slot that was never led.
    async fn take_all<'a>(
        &self,
        operator: &Operator<'a>,
        names: &[Shard],
        taken: &mut Vec<OwnLease<'a>>,
    ) -> Result<(), Failure> {
        for name in names {
            if let Some(lost) = keep(taken).await? {
                return Err(operator.refusal(&format!(
                    "the lease of {lost} ended before those of all slots were taken: run this again, with a longer \
                     --lease"
                )));
            }
            taken.push(match OwnLease::take(operator.client, name, self.lease, "forget").await? {
                Taking::Taken(own) => own,
                Taking::Held(holder) => return Err(operator.refusal(&self.held(name, &holder))),
                Taking::Later(wait) => {
                    let (of, wait) = (self.of(name), show_seconds(wait));
                    let why = format!("a command of the last leader{of} may live for {wait}: try again after that");
                    return Err(operator.refusal(&why));
                }
            });
        }
        let slots = Slots::of(operator.client, &self.shard).await?;
        if let Some(slot) = slots.names().find(|name| !names.contains(name)) {
            return Err(operator.refusal(&format!("{slot} has been led since this began: run this again")));
        }
        slots.hidden.map_or(Ok(()), |hidden| Err(hidden.into()))
    }

    /// Deletes all that was taken. The shard itself comes last, because its orders and jobs apply to its slots. Returns
    /// the shard whose lease was lost meanwhile.
    async fn forget_all(
        &self,
        client: Client<'_>,
        taken: &mut Vec<OwnLease<'_>>,
        gone: &mut Vec<Shard>,
    ) -> Answer<Option<Shard>> {
        loop {
            if let Some(lost) = keep(taken).await? {
                return Ok(Some(lost));
            }
            let Some(one) = taken.last() else { return Ok(None) };
            // After this, it would delete what belongs to a new leader.
            let most = (self.lease * 3 / 4).saturating_sub(BootInstant::now().since(one.sent));
            let forgotten = within(most, client.store.forget(&one.candidate, one.term)).await?;
            let name = one.candidate.shard.clone();
            if forgotten == Release::NotHeld {
                return Ok(Some(name));
            }
            taken.pop();
            gone.push(name);
        }
    }

    /// Notes other than announcements.
    async fn has_notes(&self, client: Client<'_>) -> Answer<bool> {
        for page in [Page::Orders, Page::History, Page::Runs, Page::Jobs] {
            match client.ask(client.store.read(&self.shard, &page)).await {
                Ok(None) => {}
                Ok(Some(_)) => return Ok(true),
                // Another program's note is deleted, too.
                Err(error) if error.kind == ErrorKind::Misconfigured => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    fn of(&self, name: &Shard) -> String {
        if *name == self.shard { String::new() } else { format!(" of {name}") }
    }

    fn held(&self, name: &Shard, holder: &Holder) -> String {
        let left = holder.expires_in.map(|left| format!(", for {} if it is not renewed", show_seconds(left)));
        let host = holder.host.as_ref().map(|host| format!(" on {host}")).unwrap_or_default();
        let (of, left) = (self.of(name), left.unwrap_or_default());
        let stop = if holder.is_foreign() { "stop it on its host" } else { "stop its candidates" };
        format!("{holder}{host} has the lease{of}{left}: {stop}, then run leaderctl forget")
    }
}

/// Renews leases after a third of their time, for a shard with many slots in a slow store. Returns the shard of one
/// that was lost.
async fn keep(taken: &mut [OwnLease<'_>]) -> Answer<Option<Shard>> {
    for own in taken {
        let is_young = BootInstant::now().since(own.sent) < own.candidate.lease / 3;
        if !is_young && !own.renew().await? {
            return Ok(Some(own.candidate.shard.clone()));
        }
    }
    Ok(None)
}

async fn give_back(taken: &[OwnLease<'_>]) {
    for own in taken {
        own.give_back().await;
    }
}
