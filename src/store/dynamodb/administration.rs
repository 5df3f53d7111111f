//! What operators do with the table: list, revoke, forget, `leaderctl store init`.
//!
//! The hazard: an operator may end a lease while its tree still runs. So `revoke` deletes the lock item alone: the term
//! item names a holder that did not release, and the next leader waits for its tree. Where the term item names another
//! (a claim whose lock was revoked may take its term late), the wait is written there first.

use super::claim::unchanged;
use super::description::{TTL, describe, is_usable, other_keys, ttl, ttl_attribute};
use super::list::report;
use super::record::{Record, partition};
use super::table::{Expression, Outcome, Table, lock_key};
use super::{DynamoDb, MOST_ATTEMPTS, check, list, notes, term};
use crate::lease::{Candidate, Shard, Term, show};
use crate::store::expiry::ServerTime;
use crate::store::server_clock::FIRST_GUESS;
use crate::store::{Administration, EachPage, ErrorKind, Finding, Release, Report, Store, StoreError, parallel, steps};
use crate::time::BootInstant;
use aws_sdk_dynamodb::error::BuildError;
use aws_sdk_dynamodb::operation::create_table::CreateTableError;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType, TableDescription,
    TimeToLiveSpecification,
};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long to wait for a new table, which is ready after some seconds.
const MOST_CREATION: Duration = Duration::from_mins(1);
/// From one look at the server's clock to the next, while it has not passed a term.
const MOMENT: Duration = Duration::from_millis(100);

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
            lines.push(steps::made(format_args!("table {name} in {server}, paid by the request")));
        } else {
            lines.push(steps::is_there(format_args!("table {name} in {server}")));
        }
        let description = wait_until_active(table, existing).await?;
        if let Some(other) = other_keys(&description) {
            return Err(StoreError::misconfigured(format!(
                "table {name} in {server} has the keys {other}: leaderrun needs pk and sk, both strings: use another \
                 table"
            )));
        }
        lines.push(steps::remembers("the table", term::mark_table(table).await?));
        lines.push(enable_ttl(table).await?);
        Ok(lines)
    }

    async fn vouch(&self) -> Result<(), StoreError> {
        term::vouch_for_table(&self.table).await
    }

    async fn check(&self) -> Result<Vec<Finding>, StoreError> {
        check::check(self).await
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
        if report(Some(holder), last.clone()).holder.is_none_or(|holder| holder.term != Some(term)) {
            return Ok(false);
        }
        match last {
            None => term::remember(&self.table, shard, term, ours).await?,
            Some((_, whose)) if whose.as_ref() != Some(&ours.session) => {
                term::write_wait(&self.table, shard, ours).await?;
            }
            Some(_) => {}
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
