//! `leaderctl store check`: whether an election can rely on the table.
//!
//! The hazard: a table may look right and not be. With other keys every request fails. Replicated without strong
//! consistency, two regions grant the same lease at once. With a TTL on one of our other attributes, DynamoDB deletes
//! leases that are held. And a missing permission shows only when it is needed, so the check tries each one.

use super::DynamoDb;
use super::description::{TTL, describe, is_usable, other_keys, ttl, ttl_attribute};
use super::failure::MOST_SIGNATURE_AGE_SECONDS;
use super::record::{Item, LOCK, n, number};
use super::table::{Expression, Key, Outcome, Table, marker_key};
use crate::lease::Session;
use crate::store::expiry::{self, ServerTime};
use crate::store::{ErrorKind, Finding, StoreError, Verdict, round_trip};
use aws_sdk_dynamodb::types::{AttributeValue, MultiRegionConsistency, TableDescription, TableStatus};

/// Our attributes with numbers that are not a time at which an item may be deleted.
const OUR_OTHER_NUMBERS: [&str; 9] =
    ["beat", "term", "leaseMs", "expiresMs", "pid", "sinceMs", "waitUntilMs", "waitMs", "createdMs"];
/// When scratch items expire that the check may not delete.
const SCRATCH_SECONDS: u64 = 600;

/// Checks everything that an election relies on.
pub async fn check(store: &DynamoDb) -> Result<Vec<Finding>, StoreError> {
    let table = &store.table;
    let mut findings = Vec::new();
    let strong = match describe(table).await {
        Ok(Some(description)) => check_description(table, &description, &mut findings),
        Ok(None) => {
            findings.push(Finding::bad(format!(
                "no table {} in {}: make it with leaderctl store init",
                table.name, table.server
            )));
            return Ok(findings);
        }
        Err(error) if error.kind == ErrorKind::Denied => {
            findings.push(Finding::doubtful(format!("cannot see the table's keys and replicas: {error}")));
            false
        }
        Err(error) => return Err(error),
    };
    if findings.iter().any(|finding| finding.verdict == Verdict::Bad) {
        return Ok(findings);
    }
    match ttl(table).await {
        Ok(description) => findings.push(check_ttl(ttl_attribute(description.as_ref()), strong)),
        Err(error) if matches!(error.kind, ErrorKind::Denied | ErrorKind::Misconfigured) => {
            findings.push(Finding::doubtful(format!("cannot see the table's TTL: {error}")));
        }
        Err(error) => return Err(error),
    }
    if !check_items(table, &mut findings).await? {
        return Ok(findings);
    }
    check_clock(table, &mut findings).await?;
    Ok(findings)
}

/// Checks the description. Returns whether the table is a multi-region strongly consistent one.
fn check_description(table: &Table, description: &TableDescription, findings: &mut Vec<Finding>) -> bool {
    let Table { name, server, .. } = table;
    match (other_keys(description), is_usable(description)) {
        (Some(other), _) => findings.push(Finding::bad(format!(
            "table {name} in {server} has the keys {other}: leaderrun needs pk and sk, both strings: use another table"
        ))),
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

/// Does with a scratch item everything that an election does with a lock. False if further checks are pointless.
async fn check_items(table: &Table, findings: &mut Vec<Finding>) -> Result<bool, StoreError> {
    let session = Session::random()
        .map_err(|error| StoreError::not_applied(format!("no random bytes for the name of a scratch item: {error}")))?;
    let partition = format!("SHARD#leaderctl-check-{}", session.as_str());
    let key: Key = (AttributeValue::S(partition), AttributeValue::S(LOCK.to_owned()));
    let item = Item::from([
        ("pk".to_owned(), key.0.clone()),
        ("sk".to_owned(), key.1.clone()),
        ("ownerId".to_owned(), AttributeValue::S("leaderctl store check".to_owned())),
        ("ttl".to_owned(), n(table.wall_clock_millis() / 1000 + SCRATCH_SECONDS)),
    ]);
    let absent = || Expression::new("attribute_not_exists(#pk)");
    let before = findings.len();

    let put = table.put(item.clone(), absent()).await;
    if let Err(error) = &put
        && error.kind == ErrorKind::Misconfigured
    {
        findings.push(Finding::bad(error.message.clone()));
        return Ok(false);
    }
    let conditions = if put.is_ok() { Some(table.put(item, absent()).await?) } else { None };
    permission("dynamodb:PutItem", put, findings)?;
    permission("dynamodb:GetItem", table.get(key.clone(), true).await, findings)?;
    let update = table.update(key.clone(), "SET #beat = :beat", absent_session().number(":beat", 1)).await;
    permission("dynamodb:UpdateItem", update, findings)?;
    let delete = table.delete(key, Expression::new("attribute_exists(#pk)")).await;
    permission("dynamodb:DeleteItem", delete, findings)?;

    if findings.len() == before {
        findings.push(Finding::good("may do all that an election needs: GetItem, PutItem, UpdateItem, DeleteItem"));
    }
    match conditions {
        None | Some(Outcome::Refused(Some(_))) => {}
        Some(Outcome::Refused(None)) => findings.push(Finding::doubtful(
            "the server does not return the item of a failed condition: a refused claim takes one more read",
        )),
        Some(Outcome::Done(_)) => {
            findings.push(Finding::bad(
                "the server ignores conditions, so two candidates can both lead: use another server",
            ));
        }
    }
    Ok(true)
}

fn absent_session() -> Expression {
    Expression::new("attribute_not_exists(#session)")
}

fn permission<T>(action: &str, tried: Result<T, StoreError>, findings: &mut Vec<Finding>) -> Result<(), StoreError> {
    match tried {
        Ok(_) => Ok(()),
        Err(error) if error.kind == ErrorKind::Denied => {
            findings.push(Finding::bad(format!("permission missing: {action}: {error}")));
            Ok(())
        }
        Err(error) => Err(error),
    }
}

async fn check_clock(table: &Table, findings: &mut Vec<Finding>) -> Result<(), StoreError> {
    let (marker, time) = match round_trip::measure(|| table.get(marker_key(), true)).await {
        Ok(measured) => measured,
        // Reported already.
        Err(error) if error.kind == ErrorKind::Denied => return Ok(()),
        Err(error) => return Err(error),
    };
    findings.push(match marker.map(|item| number::<u64>(&item, "createdMs")) {
        Some(Some(_)) => Finding::good("the table says since when it remembers"),
        Some(None) => Finding::bad(
            "the item pk=LEADERRUN, sk=TABLE was written by something else: delete it and run leaderctl store init",
        ),
        None => Finding::doubtful(
            "the table does not say since when it remembers, so the first leader waits one lease: leaderctl store \
             init writes it",
        ),
    });
    findings.extend(expiry::check(table, time, "DynamoDB's", MOST_SIGNATURE_AGE_SECONDS));
    Ok(())
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
