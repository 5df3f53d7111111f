//! `leaderctl store check`: whether an election can rely on the bucket.
//!
//! The hazard: a bucket may look right and not be. A server that does not honour conditions lets two candidates lead
//! (`trial`). A lifecycle rule deletes objects that are old, and the object of a shard that nobody led for a while is
//! old. A restored backup brings back a lease of the past. And a missing permission shows only when it is needed, so
//! the check tries each one.

use super::address::Kind;
use super::failure::MOST_SIGNATURE_AGE_SECONDS;
use super::objects::{Condition, Outcome, unique};
use super::record::MARKER;
use super::trial::{self, Trial, dishonest};
use super::{Bucket, term};
use crate::store::expiry;
use crate::store::{ErrorKind, Finding, StoreError, round_trip};

/// Checks everything that an election relies on.
pub async fn check(store: &Bucket) -> Result<Vec<Finding>, StoreError> {
    let (name, server) = (&store.objects.name, store.objects.server());
    let mut findings = Vec::new();
    if !check_objects(store, &mut findings).await? {
        return Ok(findings);
    }
    match trial::run(store).await {
        Ok(Trial::Honest(races)) => {
            findings.push(Finding::good(format!("{server} honours conditions: each of {races} races had one winner")));
        }
        Ok(Trial::Dishonest(how)) => {
            findings.push(Finding::bad(dishonest(server, &how)));
            return Ok(findings);
        }
        // Reported already.
        Err(error) if error.kind == ErrorKind::Denied => {}
        Err(error) => return Err(error),
    }
    findings.push(match term::find_marker(store).await {
        Ok(Some(_)) => Finding::good(format!("{name}{MARKER} says since when {name} remembers")),
        Ok(None) => Finding::bad(format!(
            "{name} has no {MARKER}, without which nobody leads: write it with leaderctl store init"
        )),
        Err(error) if error.kind == ErrorKind::Denied => return Ok(findings),
        Err(error) if error.kind == ErrorKind::Misconfigured => Finding::bad(error.message),
        Err(error) => return Err(error),
    });
    check_versioning(store, &mut findings).await;
    check_lifecycle(store, &mut findings).await;
    if store.objects.kind() == Kind::S3 {
        findings.push(Finding::good(
            "replication cannot be seen from here: a replica is behind, so have all candidates use the one bucket",
        ));
    }
    check_clock(store, &mut findings).await?;
    Ok(findings)
}

/// Does with a scratch object what an election does with a shard's. False if further checks are pointless.
async fn check_objects(store: &Bucket, findings: &mut Vec<Finding>) -> Result<bool, StoreError> {
    let objects = &store.objects;
    let key = format!("trial/{}", unique()?);
    let put = objects.put(&key, unique()?.into_bytes(), Condition::Absent).await;
    let put =
        put.and_then(|outcome| if matches!(outcome, Outcome::Done(None)) { Err(objects.nameless()) } else { Ok(()) });
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
