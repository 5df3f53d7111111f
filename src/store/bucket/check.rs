//! `leaderctl store check`: whether an election can rely on the bucket.
//!
//! The hazard: a bucket may look right and not be. A lifecycle rule deletes objects that are old, and the object of a
//! shard that nobody led for a while is old. A restored backup brings back a lease of the past.

use super::address::Kind;
use super::document::key_of;
use super::failure::MOST_SIGNATURE_AGE_SECONDS;
use super::objects::Objects;
use crate::store::lease_store::documents::Key;
use crate::store::{Finding, StoreError, expiry, round_trip};

/// What a check says beyond the trial of documents.
pub async fn findings(objects: &Objects) -> Result<Vec<Finding>, StoreError> {
    let mut findings = Vec::new();
    check_versioning(objects, &mut findings).await;
    check_lifecycle(objects, &mut findings).await;
    if objects.kind == Kind::S3 {
        findings.push(Finding::good(
            "replication cannot be seen from here: a replica is behind, so have all candidates use the one bucket",
        ));
    }
    let marker = key_of(Key::Marker);
    let (_, time) = round_trip::measure(|| objects.read(&marker)).await?;
    findings.extend(expiry::check(objects, time, "the server's", MOST_SIGNATURE_AGE_SECONDS));
    Ok(findings)
}

/// Old versions of a shard's object do no harm, but each renewal makes one.
async fn check_versioning(objects: &Objects, findings: &mut Vec<Finding>) {
    findings.push(match objects.ask("versioning", "GetBucketVersioning").await {
        None => Finding::good("versioning cannot be seen from here: each renewal would leave an old version behind"),
        Some(Ok(answer)) if answer.contains("<Status>Enabled</Status>") => Finding::doubtful(
            "versioning is on, so each renewal leaves an old version behind that is paid for: turn it off, or have a \
             lifecycle rule delete noncurrent versions after a day",
        ),
        Some(Ok(_)) => Finding::good("versioning is off"),
        Some(Err(error)) => Finding::good(format!("versioning cannot be seen: {error}")),
    });
}

async fn check_lifecycle(objects: &Objects, findings: &mut Vec<Finding>) {
    findings.push(match objects.ask("lifecycle", "GetLifecycleConfiguration").await {
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
