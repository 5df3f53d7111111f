//! `leaderctl store init` and `leaderctl store check`: the bucket, and whether an election can rely on it.
//!
//! The hazard: a bucket may look right and not be. A server that does not honour conditions lets two candidates lead
//! (`trial`). A lifecycle rule deletes objects that are old, and the object of a shard that nobody led for a while is
//! old. A restored backup brings back a lease of the past. And a missing permission shows only when it is needed, so the
//! check tries each one.

use super::address::Kind;
use super::failure::MOST_SIGNATURE_AGE_SECONDS;
use super::notes::{NOTES, STANDBYS};
use super::objects::{Condition, Outcome, unique};
use super::record::{Found, MARKER, name_of};
use super::trial::{self, Trial};
use super::{Bucket, MOST_ATTEMPTS, list, term};
use crate::lease::{Candidate, Shard, Term};
use crate::store::expiry::{self, ServerTime};
use crate::store::server_clock::{Wait, with_drift};
use crate::store::{
    Administration, EachPage, ErrorKind, Finding, Release, Report, Store, StoreError, parallel, round_trip,
};
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

    /// Tries the server, and writes the marker. It makes no bucket: its name, region and rules are an operator's choice.
    async fn prepare(&self) -> Result<Vec<String>, StoreError> {
        let (name, server) = (&self.objects.name, self.objects.server());
        if term::find_marker(self).await?.is_some() {
            return Ok(vec![format!(
                "{name}{MARKER} is there: {server} was tried before, and store check tries it again"
            )]);
        }
        let races = match trial::run(self).await? {
            Trial::Honest(races) => races,
            Trial::Dishonest(how) => return Err(StoreError::misconfigured(dishonest(server, &how))),
        };
        term::mark(self).await?;
        Ok(vec![
            format!("{server} honours conditions: each of {races} races had one winner"),
            format!("wrote {name}{MARKER}: {name} remembers from now on"),
        ])
    }

    async fn vouch(&self) -> Result<(), StoreError> {
        term::vouch(self).await
    }

    /// Checks everything that an election relies on.
    async fn check(&self) -> Result<Vec<Finding>, StoreError> {
        let (name, server) = (&self.objects.name, self.objects.server());
        let mut findings = Vec::new();
        if !check_objects(self, &mut findings).await? {
            return Ok(findings);
        }
        match trial::run(self).await {
            Ok(Trial::Honest(races)) => findings
                .push(Finding::good(format!("{server} honours conditions: each of {races} races had one winner"))),
            Ok(Trial::Dishonest(how)) => {
                findings.push(Finding::bad(dishonest(server, &how)));
                return Ok(findings);
            }
            // Reported already.
            Err(error) if error.kind == ErrorKind::Denied => {}
            Err(error) => return Err(error),
        }
        findings.push(match term::find_marker(self).await {
            Ok(Some(_)) => Finding::good(format!("{name}{MARKER} says since when {name} remembers")),
            Ok(None) => Finding::bad(format!(
                "{name} has no {MARKER}, without which nobody leads: write it with leaderctl store init"
            )),
            Err(error) if error.kind == ErrorKind::Denied => return Ok(findings),
            Err(error) if error.kind == ErrorKind::Misconfigured => Finding::bad(error.message),
            Err(error) => return Err(error),
        });
        check_versioning(self, &mut findings).await;
        check_lifecycle(self, &mut findings).await;
        if self.objects.kind() == Kind::S3 {
            findings.push(Finding::good(
                "replication cannot be seen from here: a replica is behind, so have all candidates use the one bucket",
            ));
        }
        check_clock(self, &mut findings).await?;
        Ok(findings)
    }
}

fn dishonest(server: &str, how: &str) -> String {
    format!("{server} does not honour conditional writes ({how}), so two candidates can both lead: use another server")
}

/// Does with a scratch object what an election does with a shard's. False if further checks are pointless.
async fn check_objects(store: &Bucket, findings: &mut Vec<Finding>) -> Result<bool, StoreError> {
    let objects = &store.objects;
    let key = format!("trial/{}", unique()?);
    let put = objects.put(&key, unique()?.into_bytes(), Condition::Absent).await.map(|outcome| {
        debug_assert!(matches!(outcome, Outcome::Done(_)), "the name is new");
    });
    if let Err(error) = &put
        && error.kind == ErrorKind::Misconfigured
    {
        findings.push(Finding::bad(error.message.clone()));
        return Ok(false);
    }
    let before = findings.len();
    permission(put, findings, Finding::bad)?;
    permission(objects.get(&key).await.map(drop), findings, Finding::bad)?;
    permission(objects.list("trial/", None).await.map(drop), findings, Finding::bad)?;
    permission(objects.delete(&key).await, findings, Finding::doubtful)?;
    if findings.len() == before {
        findings.push(Finding::good("may do all that an election needs: read, write, list and delete objects"));
    }
    Ok(true)
}

fn permission(
    tried: Result<(), StoreError>,
    findings: &mut Vec<Finding>,
    finding: fn(String) -> Finding,
) -> Result<(), StoreError> {
    match tried {
        Ok(()) => Ok(()),
        Err(error) if error.kind == ErrorKind::Denied => {
            findings.push(finding(format!("permission missing: {error}")));
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Old versions of a shard's object do no harm, but each renewal makes one.
async fn check_versioning(store: &Bucket, findings: &mut Vec<Finding>) {
    findings.push(match store.objects.ask("versioning", "GetBucketVersioning").await {
        None => Finding::good("versioning cannot be seen from here: each renewal would leave an old version behind"),
        Some(Ok(answer)) if answer.contains("<Status>Enabled</Status>") => Finding::doubtful(
            "versioning is on, so each renewal leaves an old version behind that is paid for: turn it off, or have a \
             lifecycle rule delete noncurrent versions after a day",
        ),
        Some(Ok(_)) => Finding::good("versioning is off"),
        Some(Err(error)) => Finding::good(format!("versioning cannot be seen: {error}")),
    });
}

async fn check_lifecycle(store: &Bucket, findings: &mut Vec<Finding>) {
    findings.push(match store.objects.ask("lifecycle", "GetLifecycleConfiguration").await {
        None => Finding::good("lifecycle rules cannot be seen from here: none may delete objects of this prefix"),
        Some(Ok(answer)) => judge_lifecycle(&answer),
        Some(Err(error)) if error.message.contains("NoSuchLifecycleConfiguration") => {
            Finding::good("no lifecycle rule deletes objects")
        }
        Some(Err(error)) => Finding::good(format!("lifecycle rules cannot be seen: {error}")),
    });
}

/// Judges the rules of a bucket, whichever objects they are for.
fn judge_lifecycle(answer: &str) -> Finding {
    let rules = answer.split("<Rule>").skip(1);
    let deletes = |rule: &&str| rule.contains("<Expiration>") && rule.contains("<Status>Enabled</Status>");
    let deletes_objects = |rule: &&str| {
        let (_, within) = rule.split_once("<Expiration>").unwrap_or_default();
        let (within, _) = within.split_once("</Expiration>").unwrap_or_default();
        within.contains("<Days>") || within.contains("<Date>")
    };
    if rules.filter(deletes).any(|rule| deletes_objects(&rule)) {
        Finding::doubtful(
            "a lifecycle rule deletes objects after a time: if it is for this prefix, terms and paused shards are \
             forgotten, so exclude the prefix or use another one",
        )
    } else {
        Finding::good("no lifecycle rule deletes objects")
    }
}

async fn check_clock(store: &Bucket, findings: &mut Vec<Finding>) -> Result<(), StoreError> {
    let objects = &store.objects;
    let (_, time) = round_trip::measure(|| objects.get(MARKER)).await?;
    findings.extend(expiry::check(objects, time, "the server's", MOST_SIGNATURE_AGE_SECONDS));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Verdict;

    #[test]
    fn a_rule_that_deletes_objects_is_doubtful_and_one_for_old_versions_is_good() {
        let rule =
            |inner: &str| format!("<LifecycleConfiguration><Rule><ID>x</ID>{inner}</Rule></LifecycleConfiguration>");
        let on = "<Status>Enabled</Status>";
        for (inner, verdict) in [
            (format!("{on}<Expiration><Days>30</Days></Expiration>"), Verdict::Doubtful),
            ("<Status>Disabled</Status><Expiration><Days>30</Days></Expiration>".to_owned(), Verdict::Good),
            (
                format!(
                    "{on}<NoncurrentVersionExpiration><NoncurrentDays>1</NoncurrentDays></NoncurrentVersionExpiration>"
                ),
                Verdict::Good,
            ),
            (
                format!("{on}<Expiration><ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker></Expiration>"),
                Verdict::Good,
            ),
        ] {
            assert_eq!(judge_lifecycle(&rule(&inner)).verdict, verdict, "{inner}");
        }
    }
}
