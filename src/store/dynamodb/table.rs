//! The requests: each writes or reads one item, and a failed condition is an outcome and not an error.

use super::connection::{self, Watch};
use super::failure::{self, Place};
use super::record::{self, Item, LOCK, TERM, n, partition};
use super::{Address, WallClock};
use crate::lease::Shard;
use crate::store::StoreError;
use crate::store::allowance::{self, MOST_LISTED};
use crate::store::expiry::ServerTime;
use crate::store::server_clock::Clock;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::operation::delete_item::DeleteItemError;
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue, ReturnValuesOnConditionCheckFailure as ReturnOnFailure};
use aws_smithy_runtime_api::client::http::SharedHttpClient;
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use std::collections::HashMap;
use std::error::Error;
use std::fmt::Display;
use std::time::Duration;

/// How many items one request looks at, whether they match or not. It must end in time, and leave others some of the
/// table's capacity.
const SCAN_PAGE: i32 = 250;

/// A table, the client to reach it, and what we know about the server's clock.
pub struct Table {
    pub client: Client,
    pub name: String,
    /// The server's name in messages.
    pub server: String,
    pub watch: Watch,
    wall_clock: WallClock,
}

/// The result of a conditional write.
#[derive(Debug)]
pub enum Outcome {
    /// Applied; the item as it was before.
    Done(Option<Item>),
    /// The condition failed; the item as it is, if it exists and the server returns it.
    Refused(Option<Item>),
}

/// An expression over attributes, written `#name`, and its values, written `:name`.
pub struct Expression {
    text: String,
    values: HashMap<String, AttributeValue>,
}

impl Expression {
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), values: HashMap::new() }
    }

    pub fn with(mut self, name: &str, value: AttributeValue) -> Self {
        self.values.insert(name.to_owned(), value);
        self
    }

    pub fn text(self, name: &str, value: &str) -> Self {
        self.with(name, AttributeValue::S(value.to_owned()))
    }

    pub fn number(self, name: &str, value: impl Display + Copy) -> Self {
        self.with(name, n(value))
    }
}

/// The attribute names in expressions: each `#name` stands for the attribute `name`, because half of ours are reserved
/// words.
fn names(expressions: &[&str]) -> HashMap<String, String> {
    let mut names = HashMap::new();
    for part in expressions.iter().flat_map(|expression| expression.split('#').skip(1)) {
        let end = part.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(part.len());
        names.insert(format!("#{}", &part[..end]), part[..end].to_owned());
    }
    names
}

pub type Key = (AttributeValue, AttributeValue);

pub fn lock_key(shard: &Shard) -> Key {
    (AttributeValue::S(partition(shard)), AttributeValue::S(LOCK.to_owned()))
}

pub fn term_key(shard: &Shard) -> Key {
    (AttributeValue::S(partition(shard)), AttributeValue::S(TERM.to_owned()))
}

/// The key of the marker, which says since when the table remembers.
pub fn marker_key() -> Key {
    (AttributeValue::S("LEADERRUN".to_owned()), AttributeValue::S("TABLE".to_owned()))
}

/// The key of a shard's led mark: the record that the shard was once led. It is not beside the shard's other items, so
/// a user who deletes all of those leaves it.
pub fn led_mark_key(shard: &Shard) -> Key {
    (AttributeValue::S("LEADERRUN".to_owned()), AttributeValue::S(partition(shard)))
}

impl ServerTime for Table {
    fn clock(&self) -> Clock {
        self.watch.clock()
    }

    fn wall_clock_millis(&self) -> u64 {
        (self.wall_clock)()
    }
}

impl Table {
    pub async fn open(
        network: SharedHttpClient,
        address: &Address,
        request_timeout: Duration,
        wall_clock: WallClock,
    ) -> Result<Self, StoreError> {
        let watch = Watch::default();
        let (client, server) = connection::connect(network, address, request_timeout, &watch).await?;
        Ok(Self { client, name: address.table.clone(), server, watch, wall_clock })
    }

    pub async fn get(&self, key: Key, consistent: bool) -> Result<Option<Item>, StoreError> {
        let request = self.client.get_item().table_name(&self.name).key("pk", key.0).key("sk", key.1);
        match request.consistent_read(consistent).send().await {
            Ok(answer) => Ok(answer.item),
            Err(error) => Err(self.failure("dynamodb:GetItem", &error)),
        }
    }

    /// One page of all items that match `filter`, from the end of the page before. Also returns the end of this page,
    /// None at the end of the table.
    pub async fn scan(&self, filter: Expression, from: Option<Item>) -> Result<(Vec<Item>, Option<Item>), StoreError> {
        let request = self
            .client
            .scan()
            .table_name(&self.name)
            .consistent_read(true)
            .limit(SCAN_PAGE)
            .set_exclusive_start_key(from)
            .set_expression_attribute_names(Some(names(&[&filter.text])))
            .set_expression_attribute_values(Some(filter.values))
            .filter_expression(filter.text);
        match request.send().await {
            Ok(answer) => {
                Ok((answer.items.unwrap_or_default(), answer.last_evaluated_key.filter(|key| !key.is_empty())))
            }
            Err(error) => Err(self.failure("dynamodb:Scan", &error)),
        }
    }

    /// The sort keys of all items of a shard.
    pub async fn sorts(&self, shard: &Shard) -> Result<Vec<String>, StoreError> {
        let condition = Expression::new("#pk = :pk").text(":pk", &partition(shard));
        let (mut sorts, mut from) = (Vec::new(), None);
        loop {
            let request = self
                .client
                .query()
                .table_name(&self.name)
                .consistent_read(true)
                .limit(SCAN_PAGE)
                .set_exclusive_start_key(from)
                .set_expression_attribute_names(Some(names(&[&condition.text, "#sk"])))
                .set_expression_attribute_values(Some(condition.values.clone()))
                .key_condition_expression(&condition.text)
                .projection_expression("#sk");
            let answer = request.send().await.map_err(|error| self.failure("dynamodb:Query", &error))?;
            sorts.extend(answer.items().iter().filter_map(|item| record::text(item, "sk").map(str::to_owned)));
            if sorts.len() > MOST_LISTED {
                return Err(allowance::too_long(&self.server));
            }
            from = answer.last_evaluated_key.filter(|key| !key.is_empty());
            if from.is_none() {
                return Ok(sorts);
            }
        }
    }

    /// Replaces the whole item.
    pub async fn put(&self, item: Item, condition: Expression) -> Result<Outcome, StoreError> {
        let request = self
            .client
            .put_item()
            .table_name(&self.name)
            .set_item(Some(item))
            .set_expression_attribute_names(Some(names(&[&condition.text])))
            .set_expression_attribute_values(Some(condition.values).filter(|values| !values.is_empty()))
            .condition_expression(condition.text)
            .return_values(ReturnValue::AllOld)
            .return_values_on_condition_check_failure(ReturnOnFailure::AllOld);
        match request.send().await {
            Ok(answer) => Ok(Outcome::Done(answer.attributes)),
            Err(error) => match error.as_service_error() {
                Some(PutItemError::ConditionalCheckFailedException(failed)) => {
                    Ok(Outcome::Refused(present(failed.item())))
                }
                _ => Err(self.failure("dynamodb:PutItem", &error)),
            },
        }
    }

    /// Changes some attributes. Makes the item if it is absent and the condition allows that.
    pub async fn update(&self, key: Key, update: &str, condition: Expression) -> Result<Outcome, StoreError> {
        let request = self
            .client
            .update_item()
            .table_name(&self.name)
            .key("pk", key.0)
            .key("sk", key.1)
            .set_expression_attribute_names(Some(names(&[update, &condition.text])))
            .set_expression_attribute_values(Some(condition.values))
            .update_expression(update)
            .condition_expression(condition.text)
            .return_values(ReturnValue::AllOld)
            .return_values_on_condition_check_failure(ReturnOnFailure::AllOld);
        match request.send().await {
            Ok(answer) => Ok(Outcome::Done(answer.attributes)),
            Err(error) => match error.as_service_error() {
                Some(UpdateItemError::ConditionalCheckFailedException(failed)) => {
                    Ok(Outcome::Refused(present(failed.item())))
                }
                _ => Err(self.failure("dynamodb:UpdateItem", &error)),
            },
        }
    }

    pub async fn delete(&self, key: Key, condition: Expression) -> Result<Outcome, StoreError> {
        let request = self
            .client
            .delete_item()
            .table_name(&self.name)
            .key("pk", key.0)
            .key("sk", key.1)
            .set_expression_attribute_names(Some(names(&[&condition.text])))
            .set_expression_attribute_values(Some(condition.values).filter(|values| !values.is_empty()))
            .condition_expression(condition.text)
            .return_values_on_condition_check_failure(ReturnOnFailure::AllOld);
        match request.send().await {
            Ok(answer) => Ok(Outcome::Done(answer.attributes)),
            Err(error) => match error.as_service_error() {
                Some(DeleteItemError::ConditionalCheckFailedException(failed)) => {
                    Ok(Outcome::Refused(present(failed.item())))
                }
                _ => Err(self.failure("dynamodb:DeleteItem", &error)),
            },
        }
    }

    pub fn failure<E>(&self, action: &str, error: &SdkError<E, HttpResponse>) -> StoreError
    where
        E: ProvideErrorMetadata + Error + 'static,
    {
        let place = Place {
            table: &self.name,
            server: &self.server,
            endpoint: self.watch.endpoint(),
            wall_clock_error: self.wall_clock_error(),
        };
        failure::failure(&place, action, error)
    }
}

fn present(item: Option<&Item>) -> Option<Item> {
    item.filter(|item| !item.is_empty()).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_an_expression_is_found_once() {
        let names = names(&["SET #ttl = :ttl, #beat = :beat", "#session = :me AND #beat < :beat"]);
        let mut found = names.iter().map(|(short, long)| format!("{short}={long}")).collect::<Vec<_>>();
        found.sort();
        assert_eq!(found, ["#beat=beat", "#session=session", "#ttl=ttl"]);
    }
}
