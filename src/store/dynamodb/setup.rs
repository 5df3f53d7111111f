//! What `leaderctl store init` makes: the table, and its TTL.

use super::description::{TTL, describe, is_usable, other_keys, ttl, ttl_attribute};
use super::table::Table;
use crate::lease::show;
use crate::store::{ErrorKind, StoreError, steps};
use crate::time::BootInstant;
use aws_sdk_dynamodb::error::BuildError;
use aws_sdk_dynamodb::operation::create_table::CreateTableError;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType, TableDescription,
    TimeToLiveSpecification,
};
use std::time::Duration;

/// How long to wait for a new table, which is ready after some seconds.
const MOST_CREATION: Duration = Duration::from_mins(1);

/// Makes the table if it is missing, and what it needs in it.
pub async fn prepare(table: &Table) -> Result<Vec<String>, StoreError> {
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
            "table {name} in {server} has the keys {other}: leaderrun needs pk and sk, both strings: use another table"
        )));
    }
    lines.push(enable_ttl(table).await?);
    Ok(lines)
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
