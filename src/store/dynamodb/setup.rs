//! What `leaderctl store init` makes (the table and its TTL), and DynamoDB's description of it.

use super::item::key_of;
use super::table::Table;
use crate::lease::show;
use crate::store::lease_store::documents::Key;
use crate::store::{ErrorKind, StoreError};
use aws_sdk_dynamodb::operation::create_table::CreateTableError;
use aws_sdk_dynamodb::operation::describe_table::DescribeTableError;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType, TableDescription, TableStatus,
    TimeToLiveSpecification, TimeToLiveStatus,
};
use std::time::Duration;
use tokio::time::{sleep, timeout};

pub const TTL: &str = "ttl";
/// How long to wait for a new table, which usually takes some seconds.
const MOST_CREATION: Duration = Duration::from_mins(1);
const PAUSE: Duration = Duration::from_millis(250);

pub async fn prepare(table: &Table) -> Result<Vec<String>, StoreError> {
    let Table { name, server, .. } = table;
    let mut description = describe(table).await?;
    let is_new = description.is_none() && create(table).await?;
    let is_usable =
        |table: &TableDescription| matches!(table.table_status(), Some(TableStatus::Active | TableStatus::Updating));
    let is_ready = async {
        // A new table is not visible everywhere at once.
        while !description.as_ref().is_some_and(is_usable) {
            sleep(PAUSE).await;
            description = describe(table).await?;
        }
        Ok(())
    };
    timeout(MOST_CREATION, is_ready).await.unwrap_or_else(|_| {
        let most = show(MOST_CREATION);
        Err(StoreError::not_applied(format!("table {name} in {server} is not ready after {most}: try again later")))
    })?;
    // Fails for a table with other keys, which must not be changed.
    table.get(key_of(Key::Marker), true).await?;
    let made = if is_new {
        format!("created table {name} in {server}, with on-demand billing")
    } else {
        format!("table {name} in {server} exists")
    };
    // Multi-region strongly consistent tables cannot have a TTL, and an election does not need it.
    let ttl = match enable_ttl(table).await {
        Err(error) if error.kind == ErrorKind::Misconfigured => {
            format!("TTL is not enabled, so records of crashed leaders stay until the next claim: {error}")
        }
        enabled => enabled?,
    };
    Ok(vec![made, ttl])
}

/// False if another process was faster.
async fn create(table: &Table) -> Result<bool, StoreError> {
    let mut request = table.client.create_table().table_name(&table.name).billing_mode(BillingMode::PayPerRequest);
    for (name, kind) in [("pk", KeyType::Hash), ("sk", KeyType::Range)] {
        let definition = AttributeDefinition::builder().attribute_name(name).attribute_type(ScalarAttributeType::S);
        let key = KeySchemaElement::builder().attribute_name(name).key_type(kind);
        request = request
            .attribute_definitions(definition.build().expect("it has a name and a type"))
            .key_schema(key.build().expect("it has a name and a kind"));
    }
    match request.send().await {
        Ok(_) => Ok(true),
        Err(error) => match error.as_service_error() {
            Some(CreateTableError::ResourceInUseException(_)) => Ok(false),
            _ => Err(table.failure("dynamodb:CreateTable", &error)),
        },
    }
}

async fn enable_ttl(table: &Table) -> Result<String, StoreError> {
    if let Some(attribute) = ttl_attribute(table).await? {
        return Ok(format!("TTL is on attribute {attribute}"));
    }
    let specification = TimeToLiveSpecification::builder().enabled(true).attribute_name(TTL).build();
    let request = table.client.update_time_to_live().table_name(&table.name);
    let request = request.time_to_live_specification(specification.expect("it has all that it needs"));
    let enabled = request.send().await.map_err(|error| table.failure("dynamodb:UpdateTimeToLive", &error));
    enabled.map(|_| "enabled TTL on attribute ttl".to_owned())
}

pub async fn ttl_attribute(table: &Table) -> Result<Option<String>, StoreError> {
    let request = table.client.describe_time_to_live().table_name(&table.name);
    let answer = request.send().await.map_err(|error| table.failure("dynamodb:DescribeTimeToLive", &error))?;
    Ok(answer.time_to_live_description.and_then(|ttl| match ttl.time_to_live_status {
        Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling) => ttl.attribute_name,
        _ => None,
    }))
}

pub async fn describe(table: &Table) -> Result<Option<TableDescription>, StoreError> {
    match table.client.describe_table().table_name(&table.name).send().await {
        Ok(answer) => Ok(answer.table),
        Err(error) => match error.as_service_error() {
            Some(DescribeTableError::ResourceNotFoundException(_)) => Ok(None),
            _ => Err(table.failure("dynamodb:DescribeTable", &error)),
        },
    }
}
