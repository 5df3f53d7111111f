//! What DynamoDB says of the table: its keys, whether it is ready, and by which attribute it deletes items (TTL).

use super::table::Table;
use crate::store::StoreError;
use aws_sdk_dynamodb::operation::describe_table::DescribeTableError;
use aws_sdk_dynamodb::types::{TableDescription, TableStatus, TimeToLiveDescription, TimeToLiveStatus};

/// The attribute that is meant for it.
pub const TTL: &str = "ttl";

/// The table's description. None if there is no such table.
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

/// A description of the keys, if they are not those that every request names.
pub fn other_keys(description: &TableDescription) -> Option<String> {
    let keys = description.key_schema().iter().map(|key| {
        let mut definitions = description.attribute_definitions().iter();
        let definition = definitions.find(|definition| definition.attribute_name() == key.attribute_name());
        let kind = definition.map_or("?", |definition| definition.attribute_type().as_str());
        format!("{} ({kind})", key.attribute_name())
    });
    let keys = keys.collect::<Vec<_>>();
    (keys != ["pk (S)", "sk (S)"]).then(|| keys.join(", "))
}

/// The description of the TTL.
pub async fn ttl(table: &Table) -> Result<Option<TimeToLiveDescription>, StoreError> {
    match table.client.describe_time_to_live().table_name(&table.name).send().await {
        Ok(answer) => Ok(answer.time_to_live_description),
        Err(error) => Err(table.failure("dynamodb:DescribeTimeToLive", &error)),
    }
}

/// The attribute by which DynamoDB deletes items, if the table has a TTL.
pub fn ttl_attribute(description: Option<&TimeToLiveDescription>) -> Option<&str> {
    let enabled = description.filter(|ttl| {
        matches!(ttl.time_to_live_status(), Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling))
    });
    enabled?.attribute_name()
}
