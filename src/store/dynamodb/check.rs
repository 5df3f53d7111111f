//! `leaderctl store init` and `leaderctl store check`: the table, and whether an election can rely on it.
//!
//! The hazard: a table may look right and not be. With other keys every request fails. Replicated without strong
//! consistency, two regions grant the same lease at once. With a TTL on one of our other attributes, DynamoDB deletes
//! leases that are held. And a missing permission shows only when it is needed, so the check tries each one.

use super::claim::unchanged;
use super::failure::MOST_SIGNATURE_AGE_SECONDS;
use super::list::report;
use super::record::{Item, LOCK, Record, n, number, partition};
use super::table::{Expression, Key, Outcome, Table, lock_key, marker_key};
use super::{DynamoDb, MOST_ATTEMPTS, list, notes, term};
use crate::lease::{Candidate, Session, Shard, Term, show};
use crate::store::expiry::{self, ServerTime};
use crate::store::server_clock::FIRST_GUESS;
use crate::store::{
    Administration, EachPage, ErrorKind, Finding, Release, Report, Store, StoreError, Verdict, parallel, round_trip,
};
use crate::time::BootInstant;
use aws_sdk_dynamodb::error::BuildError;
use aws_sdk_dynamodb::operation::create_table::CreateTableError;
use aws_sdk_dynamodb::operation::describe_table::DescribeTableError;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType, MultiRegionConsistency,
    ScalarAttributeType, TableDescription, TableStatus, TimeToLiveDescription, TimeToLiveSpecification,
    TimeToLiveStatus,
};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long to wait for a new table, which is ready after some seconds.
const MOST_CREATION: Duration = Duration::from_mins(1);
/// From one look at the server's clock to the next, while it has not passed a term.
const MOMENT: Duration = Duration::from_millis(100);
const TTL: &str = "ttl";
/// Our attributes with numbers that are not a time at which an item may be deleted.
const OUR_OTHER_NUMBERS: [&str; 9] =
    ["beat", "term", "leaseMs", "expiresMs", "pid", "sinceMs", "waitUntilMs", "waitMs", "createdMs"];
/// When scratch items expire that the check may not delete.
const SCRATCH_SECONDS: u64 = 600;

#[async_trait::async_trait]
impl Administration for DynamoDb {
    async fn inspect(&self, shard: &Shard) -> Result<Report, StoreError> {
        let sent = BootInstant::now();
        let item = self.table.get(lock_key(shard), true).await?;
        let mut holder = None;
        if let Some(item) = item {
            let record = self.read(shard, &item)?;
            holder = self.holder(shard, &record, sent);
        }
        Ok(report(holder, term::last(&self.table, shard).await?))
    }

    async fn list_in_pages(&self, prefix: &str, each: &mut EachPage<'_>) -> Result<(), StoreError> {
        each(list::list(self, prefix).await?);
        Ok(())
    }

    async fn revoke(&self, shard: &Shard, term: Term) -> Result<Release, StoreError> {
        let mut found = None;
        for _ in 0..MOST_ATTEMPTS {
            let sent = BootInstant::now();
            let item = match found.take() {
                Some(item) => item,
                None => match self.table.get(lock_key(shard), true).await? {
                    Some(item) => item,
                    None => return Ok(Release::NotHeld),
                },
            };
            let record = self.read(shard, &item)?;
            if !self.may_go(shard, &record, term, sent).await? {
                return Ok(Release::NotHeld);
            }
            // The term item stays as it is: it names a holder that did not release, and how long its tree may run.
            match self.table.delete(lock_key(shard), unchanged(&record)).await? {
                Outcome::Done(_) => {
                    self.unsee(shard);
                    return Ok(Release::Released);
                }
                // The item was renewed meanwhile, or is gone, or the server does not return it.
                Outcome::Refused(item) => found = item,
            }
        }
        Err(StoreError::not_applied(format!("the lock of shard {shard} changes faster than it can be revoked")))
    }

    /// The lock goes last, so that no candidate comes in between. The term item goes before it: alone, it would make
    /// the next leader wait.
    async fn forget(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        let (shard, beat) = (&candidate.shard, self.beat.load(Ordering::Relaxed));
        let item = self.table.get(lock_key(shard), true).await?;
        if !item.and_then(|item| Record::read(&item)).is_some_and(|record| record.is_of(candidate)) {
            return Ok(Release::NotHeld);
        }
        let sorts = self.table.sorts(shard).await?;
        let notes: Vec<String> = sorts.into_iter().filter(|sort| notes::is_note(sort)).collect();
        for some in notes.chunks(self.lanes()) {
            let there = || Expression::new("attribute_exists(#pk)");
            let deletions = some.iter().map(|sort| {
                self.table.delete((AttributeValue::S(partition(shard)), AttributeValue::S(sort.clone())), there())
            });
            parallel::all(deletions).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        }
        if self.is_past(term).await {
            term::forget(&self.table, candidate, term).await?;
        } else {
            term::mark_released(&self.table, candidate, term, None).await?;
        }
        self.remove(candidate, beat).await
    }

    /// Makes the table if it is missing, and what it needs in it.
    async fn prepare(&self) -> Result<Vec<String>, StoreError> {
        let table = &self.table;
        let Table { name, server, .. } = table;
        let mut lines = Vec::new();
        let existing = describe(table).await?;
        if existing.is_none() && create(table).await? {
            lines.push(format!("made table {name} in {server}, paid by the request"));
        } else {
            lines.push(format!("table {name} in {server} is there"));
        }
        let description = wait_until_active(table, existing).await?;
        if let Some(other) = other_keys(&description) {
            return Err(StoreError::misconfigured(format!(
                "table {name} in {server} has the keys {other}: leaderrun needs pk and sk, both strings: use another \
                 table"
            )));
        }
        lines.push(if term::mark_table(table).await? {
            "wrote down that the table remembers from now on".to_owned()
        } else {
            "the table says since when it remembers".to_owned()
        });
        lines.push(enable_ttl(table).await?);
        Ok(lines)
    }

    async fn vouch(&self) -> Result<(), StoreError> {
        term::vouch_for_table(&self.table).await
    }

    /// Checks everything that an election relies on.
    async fn check(&self) -> Result<Vec<Finding>, StoreError> {
        let table = &self.table;
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
}

impl DynamoDb {
    /// Whether a record that a read sent at `read_sent` showed is the lease of `term`, and may be deleted. Before it
    /// returns true it makes sure that the next candidate will know of the tree.
    async fn may_go(
        &self,
        shard: &Shard,
        record: &Record,
        term: Term,
        read_sent: BootInstant,
    ) -> Result<bool, StoreError> {
        let holder = self.holder(shard, record, read_sent);
        let (Some(holder), Some(ours)) = (holder, record.ours.as_ref()) else { return Ok(false) };
        let last = term::last(&self.table, shard).await?;
        let forgotten = last.is_none();
        if report(Some(holder), last).holder.is_none_or(|holder| holder.term != Some(term)) {
            return Ok(false);
        }
        if forgotten {
            term::remember(&self.table, shard, term, ours).await?;
        }
        Ok(true)
    }

    /// Whether the first term of a shard that begins now is higher, on other hosts too. Waits a moment if that may
    /// help.
    async fn is_past(&self, term: Term) -> bool {
        let give_up = BootInstant::now().plus(FIRST_GUESS);
        loop {
            let now = BootInstant::now();
            match self.table.clock().bounds(now).map(|bounds| bounds.lower) {
                Some(least) if least >= term.0 => return true,
                Some(_) if now < give_up => tokio::time::sleep(MOMENT).await,
                Some(_) | None => return false,
            }
        }
    }
}

/// Makes the table. False if another process has just made it.
async fn create(table: &Table) -> Result<bool, StoreError> {
    let wrong = |error: BuildError| StoreError::misconfigured(format!("cannot describe the table: {error}"));
    let attribute = |name: &str| {
        let definition = AttributeDefinition::builder().attribute_name(name);
        definition.attribute_type(ScalarAttributeType::S).build().map_err(wrong)
    };
    let key = |name: &str, kind| KeySchemaElement::builder().attribute_name(name).key_type(kind).build().map_err(wrong);
    let request = table
        .client
        .create_table()
        .table_name(&table.name)
        .attribute_definitions(attribute("pk")?)
        .attribute_definitions(attribute("sk")?)
        .key_schema(key("pk", KeyType::Hash)?)
        .key_schema(key("sk", KeyType::Range)?)
        .billing_mode(BillingMode::PayPerRequest);
    match request.send().await {
        Ok(_) => Ok(true),
        Err(error) => match error.as_service_error() {
            Some(CreateTableError::ResourceInUseException(_)) => Ok(false),
            _ => Err(table.failure("dynamodb:CreateTable", &error)),
        },
    }
}

/// The table's description. None if there is no such table.
async fn describe(table: &Table) -> Result<Option<TableDescription>, StoreError> {
    match table.client.describe_table().table_name(&table.name).send().await {
        Ok(answer) => Ok(answer.table),
        Err(error) => match error.as_service_error() {
            Some(DescribeTableError::ResourceNotFoundException(_)) => Ok(None),
            _ => Err(table.failure("dynamodb:DescribeTable", &error)),
        },
    }
}

async fn wait_until_active(
    table: &Table,
    mut description: Option<TableDescription>,
) -> Result<TableDescription, StoreError> {
    let start = BootInstant::now();
    let mut pause = Duration::from_millis(20);
    loop {
        match description {
            Some(description) if is_usable(&description) => return Ok(description),
            // The table is new, and not visible everywhere yet.
            Some(_) | None => {}
        }
        if BootInstant::now().since(start) > MOST_CREATION {
            return Err(StoreError::not_applied(format!(
                "table {} in {} is not ready after {}: try again later",
                table.name,
                table.server,
                show(MOST_CREATION)
            )));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(2));
        description = describe(table).await?;
    }
}

fn is_usable(description: &TableDescription) -> bool {
    matches!(description.table_status(), Some(TableStatus::Active | TableStatus::Updating))
}

/// A description of the keys, if they are not those that every request names.
fn other_keys(description: &TableDescription) -> Option<String> {
    let keys = description.key_schema().iter().map(|key| {
        let mut definitions = description.attribute_definitions().iter();
        let definition = definitions.find(|definition| definition.attribute_name() == key.attribute_name());
        let kind = definition.map_or("?", |definition| definition.attribute_type().as_str());
        format!("{} ({kind})", key.attribute_name())
    });
    let keys = keys.collect::<Vec<_>>();
    (keys != ["pk (S)", "sk (S)"]).then(|| keys.join(", "))
}

async fn ttl(table: &Table) -> Result<Option<TimeToLiveDescription>, StoreError> {
    match table.client.describe_time_to_live().table_name(&table.name).send().await {
        Ok(answer) => Ok(answer.time_to_live_description),
        Err(error) => Err(table.failure("dynamodb:DescribeTimeToLive", &error)),
    }
}

/// The attribute by which DynamoDB deletes items, if the table has a TTL.
fn ttl_attribute(description: Option<&TimeToLiveDescription>) -> Option<&str> {
    let enabled = description.filter(|ttl| {
        matches!(ttl.time_to_live_status(), Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling))
    });
    enabled?.attribute_name()
}

/// Turns the TTL on. Not every table can have one (multi-region strongly consistent tables cannot), and an election
/// does not need it.
async fn enable_ttl(table: &Table) -> Result<String, StoreError> {
    let without = |error: StoreError| match error.kind {
        ErrorKind::Misconfigured => {
            Ok(format!("left without TTL, so records of crashed leaders stay until the next claim: {error}"))
        }
        ErrorKind::NotApplied | ErrorKind::Unknown | ErrorKind::Denied => Err(error),
    };
    let description = match ttl(table).await {
        Ok(description) => description,
        Err(error) => return without(error),
    };
    match ttl_attribute(description.as_ref()) {
        Some(TTL) => return Ok("TTL is on attribute ttl".to_owned()),
        Some(other) => return Ok(format!("left TTL on attribute {other}: leaderctl store check says what that means")),
        None => {}
    }
    let specification = TimeToLiveSpecification::builder().enabled(true).attribute_name(TTL).build();
    let specification =
        specification.map_err(|error| StoreError::misconfigured(format!("cannot describe the TTL: {error}")))?;
    let request = table.client.update_time_to_live().table_name(&table.name).time_to_live_specification(specification);
    match request.send().await {
        Ok(_) => Ok("enabled TTL on attribute ttl".to_owned()),
        Err(error) => without(table.failure("dynamodb:UpdateTimeToLive", &error)),
    }
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
