//! The requests. A failed condition is an outcome, not an error.
//!
//! The hazard: a connection may have ended unnoticed, or ends before the answer. So a request is sent once more then.

use super::item::Item;
use crate::store::allowance;
use crate::store::expiry::ServerTime;
use crate::store::kept_connection::once_more;
use crate::store::server_clock::Clock;
use crate::store::{ErrorKind, StoreError};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue, ReturnValuesOnConditionCheckFailure as ReturnOnFailure};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Items that one request reads, whether they match or not: it must end in time, and leave capacity to others.
const PAGE: i32 = 250;

pub struct Table {
    pub(super) client: Client,
    pub(super) name: String,
    pub(super) server: String,
    /// Of a request.
    pub(super) bound: Duration,
    pub(super) clock: Arc<Mutex<Clock>>,
}

pub type Keys = (String, String);

#[derive(Debug)]
pub enum Outcome {
    /// Applied; the item as it is now.
    Done(Option<Item>),
    /// The condition failed; the item as it is, if it exists and the server returns it.
    Refused(Option<Item>),
}

/// A conditional change of one item.
#[derive(Default)]
pub struct Change {
    sets: Vec<String>,
    removes: Vec<String>,
    pub conditions: Vec<String>,
    values: HashMap<String, AttributeValue>,
}

impl Change {
    pub fn set(&mut self, name: &str, value: Option<AttributeValue>) {
        let Some(value) = value else { return self.removes.push(format!("#{name}")) };
        self.set_to(name, &format!(":{name}"), value);
    }

    /// Sets an attribute to the result of `formula`, which may use the value.
    pub fn set_to(&mut self, name: &str, formula: &str, value: AttributeValue) {
        self.sets.push(format!("#{name} = {formula}"));
        self.values.insert(format!(":{name}"), value);
    }

    pub fn only_if(&mut self, name: &str, value: Option<AttributeValue>) {
        let Some(value) = value else { return self.conditions.push(format!("attribute_not_exists(#{name})")) };
        self.conditions.push(format!("#{name} = :is_{name}"));
        self.values.insert(format!(":is_{name}"), value);
    }
}

/// Attributes are written `#name`, because half of ours are reserved words.
fn names(expression: &str) -> HashMap<String, String> {
    let mut names = HashMap::new();
    for part in expression.split('#').skip(1) {
        let end = part.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(part.len());
        names.insert(format!("#{}", &part[..end]), part[..end].to_owned());
    }
    names
}

impl ServerTime for Table {
    fn clock(&self) -> Clock {
        self.clock.lock().clone()
    }
}

/// Its errors have a cause if the connection broke.
async fn twice<T, F>(send: impl Fn() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let has_ended = |error: &StoreError| error.kind == ErrorKind::Unknown && error.cause.is_some();
    once_more(Box::pin(send()), has_ended, Box::pin(send())).await
}

impl Table {
    pub(super) async fn get(&self, (partition, sort): Keys, consistent: bool) -> Result<Option<Item>, StoreError> {
        let request = self.client.get_item().table_name(&self.name);
        let request = request.key("pk", AttributeValue::S(partition)).key("sk", AttributeValue::S(sort));
        let request = request.consistent_read(consistent);
        twice(|| async {
            match request.clone().send().await {
                Ok(answer) => Ok(answer.item.filter(|item| !item.is_empty())),
                Err(error) => Err(self.failure("dynamodb:GetItem", &error)),
            }
        })
        .await
    }

    /// Not a snapshot of one instant.
    pub(super) async fn scan(&self, filter: &str, values: &[(&str, &str)]) -> Result<Vec<Item>, StoreError> {
        let request = self.client.scan().table_name(&self.name).consistent_read(true).limit(PAGE);
        let request = request.set_expression_attribute_names(Some(names(filter))).filter_expression(filter);
        let request = values.iter().fold(request, |request, (name, value)| {
            request.expression_attribute_values(*name, AttributeValue::S((*value).to_owned()))
        });
        let mut items = request.into_paginator().items().send();
        let mut found = Vec::new();
        while let Some(item) = items.next().await {
            found.push(item.map_err(|error| self.failure("dynamodb:Scan", &error))?);
            allowance::listed(found.len(), &self.server)?;
        }
        Ok(found)
    }

    pub(super) async fn query(&self, partition: String) -> Result<Vec<Item>, StoreError> {
        let request = self.client.query().table_name(&self.name).consistent_read(true).limit(PAGE);
        let request = request.key_condition_expression("pk = :pk");
        let request = request.expression_attribute_values(":pk", AttributeValue::S(partition));
        let items: Result<_, _> = request.into_paginator().items().send().collect().await;
        items.map_err(|error| self.failure("dynamodb:Query", &error))
    }

    /// Creates the item if it is absent and the condition allows that.
    pub(super) async fn update(&self, (partition, sort): Keys, change: Change) -> Result<Outcome, StoreError> {
        let Change { sets, removes, conditions, values } = change;
        let removes = if removes.is_empty() { String::new() } else { format!(" REMOVE {}", removes.join(", ")) };
        let update = format!("SET {}{removes}", sets.join(", "));
        let condition = conditions.join(" AND ");
        let request = self
            .client
            .update_item()
            .table_name(&self.name)
            .key("pk", AttributeValue::S(partition))
            .key("sk", AttributeValue::S(sort))
            .set_expression_attribute_names(Some(names(&format!("{update} {condition}"))))
            .set_expression_attribute_values(Some(values))
            .update_expression(update)
            .condition_expression(condition)
            .return_values(ReturnValue::AllNew)
            .return_values_on_condition_check_failure(ReturnOnFailure::AllOld);
        twice(|| async {
            match request.clone().send().await {
                Ok(answer) => Ok(Outcome::Done(answer.attributes)),
                Err(error) => match error.as_service_error() {
                    Some(UpdateItemError::ConditionalCheckFailedException(failed)) => {
                        Ok(Outcome::Refused(failed.item().filter(|item| !item.is_empty()).cloned()))
                    }
                    _ => Err(self.failure("dynamodb:UpdateItem", &error)),
                },
            }
        })
        .await
    }

    pub(super) async fn delete(&self, (partition, sort): Keys) -> Result<(), StoreError> {
        let request = self.client.delete_item().table_name(&self.name);
        let request = request.key("pk", AttributeValue::S(partition)).key("sk", AttributeValue::S(sort));
        request.send().await.map(drop).map_err(|error| self.failure("dynamodb:DeleteItem", &error))
    }
}
