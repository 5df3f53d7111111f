//! What `leaderctl store init` makes (the table and its TTL), and DynamoDB's description of it.

use super::table::Table;
use crate::lease::show;
use crate::store::{ErrorKind, StoreError};
use crate::time::BootInstant;
use aws_sdk_dynamodb::operation::create_table::CreateTableError;
use aws_sdk_dynamodb::operation::describe_table::DescribeTableError;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType, TableDescription, TableStatus,
    TimeToLiveSpecification, TimeToLiveStatus,
};
use std::time::Duration;
use tokio::time::sleep;

/// The attribute by which DynamoDB is to delete items.
pub const TTL: &str = "ttl";
/// How long to wait for a new table, which is ready after some seconds.
const MOST_CREATION: Duration = Duration::from_mins(1);

pub async fn prepare(table: &Table) -> Result<Vec<String>, StoreError> {
    let Table { name, server, .. } = table;
    let start = BootInstant::now();
    let mut description = describe(table).await?;
    let is_new = description.is_none() && create(table).await?;
    let mut pause = Duration::from_millis(20);
    // A new one is not visible everywhere yet.
    while !description.as_ref().is_some_and(is_usable) {
        if BootInstant::now().since(start) > MOST_CREATION {
            let most = show(MOST_CREATION);
            return Err(StoreError::not_applied(format!(
                "table {name} in {server} is not ready after {most}: try again later"
            )));
        }
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(2));
        description = describe(table).await?;
    }
    if let Some(wrong) = description.as_ref().and_then(|description| wrong_keys(table, description)) {
        return Err(StoreError::misconfigured(wrong));
    }
    let made = if is_new {
        format!("made table {name} in {server}, paid by the request")
    } else {
        format!("table {name} in {server} is there")
    };
    // Not every table can have a TTL (multi-region strongly consistent ones cannot), and an election does not need it.
    let ttl = match enable_ttl(table).await {
        Err(error) if error.kind == ErrorKind::Misconfigured => {
            format!("left without TTL, so records of crashed leaders stay until the next claim: {error}")
        }
        enabled => enabled?,
    };
    Ok(vec![made, ttl])
}

/// False if another process has just made it.
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
    match ttl_attribute(table).await?.as_deref() {
        Some(TTL) => return Ok("TTL is on attribute ttl".to_owned()),
        Some(other) => return Ok(format!("left TTL on attribute {other}: leaderctl store check says what that means")),
        None => {}
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

pub fn is_usable(description: &TableDescription) -> bool {
    matches!(description.table_status(), Some(TableStatus::Active | TableStatus::Updating))
}

pub fn wrong_keys(table: &Table, description: &TableDescription) -> Option<String> {
    let Table { name, server, .. } = table;
    let keys = description.key_schema().iter().map(|key| {
        let mut definitions = description.attribute_definitions().iter();
        let definition = definitions.find(|definition| definition.attribute_name() == key.attribute_name());
        let kind = definition.map_or("?", |definition| definition.attribute_type().as_str());
        format!("{} ({kind})", key.attribute_name())
    });
    let keys = keys.collect::<Vec<_>>();
    (keys != ["pk (S)", "sk (S)"]).then(|| {
        let other = keys.join(", ");
        format!(
            "table {name} in {server} has the keys {other}: leaderrun needs pk and sk, both strings: use another table"
        )
    })
}
