//! `leaderctl store check`: whether an election can rely on the table.

use super::setup::{TTL, describe, is_usable, ttl_attribute, wrong_keys};
use super::table::Table;
use crate::store::{ErrorKind, Finding, StoreError, Verdict};
use aws_sdk_dynamodb::types::{MultiRegionConsistency, TableDescription, TableStatus};

/// Our attributes with numbers that are not a time at which an item may be deleted.
const OUR_OTHER_NUMBERS: [&str; 3] = ["expiresMs", "sequence", "term"];

pub async fn findings(table: &Table) -> Result<Vec<Finding>, StoreError> {
    let mut findings = Vec::new();
    let strong = match describe(table).await {
        Ok(Some(description)) => check_description(table, &description, &mut findings),
        // The trial has said so.
        Ok(None) => return Ok(findings),
        Err(error) if error.kind == ErrorKind::Denied => {
            findings.push(Finding::doubtful(format!("cannot see the table's keys and replicas: {error}")));
            false
        }
        Err(error) => return Err(error),
    };
    if findings.iter().any(|finding| finding.verdict == Verdict::Bad) {
        return Ok(findings);
    }
    match ttl_attribute(table).await {
        Ok(attribute) => findings.push(check_ttl(attribute.as_deref(), strong)),
        Err(error) if matches!(error.kind, ErrorKind::Denied | ErrorKind::Misconfigured) => {
            findings.push(Finding::doubtful(format!("cannot see the table's TTL: {error}")));
        }
        Err(error) => return Err(error),
    }
    Ok(findings)
}

/// Returns whether the table is a multi-region strongly consistent one.
fn check_description(table: &Table, description: &TableDescription, findings: &mut Vec<Finding>) -> bool {
    let Table { name, server, .. } = table;
    match (wrong_keys(table, description), is_usable(description)) {
        (Some(wrong), _) => findings.push(Finding::bad(wrong)),
        (None, false) => {
            let status = description.table_status().map_or("unknown", TableStatus::as_str);
            findings.push(Finding::bad(format!("table {name} in {server} is {status}: wait until it is ACTIVE")));
        }
        (None, true) => findings.push(Finding::good(format!("table {name} in {server} has the keys pk and sk"))),
    }
    let strong = description.multi_region_consistency() == Some(&MultiRegionConsistency::Strong);
    let replicas = description.replicas().iter().filter_map(|replica| replica.region_name()).collect::<Vec<_>>();
    if !replicas.is_empty() {
        let regions = replicas.join(", ");
        findings.push(if strong {
            Finding::good(format!("the replicas in {regions} are strongly consistent"))
        } else {
            Finding::bad(format!(
                "the replicas in {regions} are not strongly consistent, so two regions can both grant a lease: use a \
                 table without replicas, or one with multi-region strong consistency"
            ))
        });
    }
    strong
}

fn check_ttl(attribute: Option<&str>, strong: bool) -> Finding {
    match attribute {
        Some(TTL) => Finding::good("TTL is on attribute ttl"),
        Some(ours) if OUR_OTHER_NUMBERS.contains(&ours) => Finding::bad(format!(
            "TTL is on attribute {ours}, so DynamoDB may delete leases that are held: move it to ttl"
        )),
        Some(other) => Finding::doubtful(format!(
            "TTL is on attribute {other} and not on ttl: records of crashed leaders stay until the next claim"
        )),
        None if strong => Finding::good("no TTL, which multi-region strongly consistent tables cannot have"),
        None => Finding::doubtful(
            "no TTL on attribute ttl: records of crashed leaders stay until the next claim; leaderctl store init \
             enables it",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ttl_on_one_of_our_numbers_is_bad_and_on_a_stranger_only_doubtful() {
        assert_eq!(check_ttl(Some("ttl"), false).verdict, Verdict::Good);
        assert_eq!(check_ttl(Some("term"), false).verdict, Verdict::Bad);
        assert_eq!(check_ttl(Some("validUntil"), false).verdict, Verdict::Doubtful);
        assert_eq!(check_ttl(None, false).verdict, Verdict::Doubtful);
        assert_eq!(check_ttl(None, true).verdict, Verdict::Good);
    }
}
