//! The requests: each writes or reads one item, and a failed condition is an outcome and not an error.

use super::connection::{self, Watch};
use super::failure::{self, Place};
use super::item::{Item, n};
use super::{Address, WallClock};
use crate::store::StoreError;
use crate::store::allowance::{self, MOST_LISTED};
use crate::store::aws::BoundedClient;
use crate::store::expiry::ServerTime;
use crate::store::server_clock::Clock;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
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
const PAGE: i32 = 250;

/// A table, the client to reach it, and what we know about the server's clock.
pub struct Table {
    pub(super) client: Client,
    pub(super) name: String,
    /// The server's name in messages.
    pub(super) server: String,
    watch: Watch,
    wall_clock: WallClock,
}

/// The keys of an item.
pub type Keys = (String, String);

/// The result of a conditional update.
#[derive(Debug)]
pub enum Outcome {
    /// Applied; the item as it is now.
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

    /// Both conditions.
    pub fn and(mut self, other: &str) -> Self {
        self.text = format!("{} AND {other}", self.text);
        self
    }

    /// With the values of another expression too.
    pub fn with_all(mut self, other: Self) -> Self {
        self.values.extend(other.values);
        self
    }

    fn with(mut self, name: &str, value: AttributeValue) -> Self {
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

impl ServerTime for Table {
    fn clock(&self) -> Clock {
        self.watch.clock()
    }

    fn wall_clock_millis(&self) -> u64 {
        (self.wall_clock)()
    }
}

impl Table {
    pub(super) async fn open(
        address: &Address,
        request_timeout: Duration,
        wall_clock: WallClock,
    ) -> Result<Self, StoreError> {
        let watch = Watch::default();
        let network = SharedHttpClient::new(BoundedClient::default());
        let (client, server) = connection::connect(network, address, request_timeout, &watch).await?;
        Ok(Self { client, name: address.table.clone(), server, watch, wall_clock })
    }

    pub(super) async fn get(&self, (partition, sort): Keys, consistent: bool) -> Result<Option<Item>, StoreError> {
        let request = self.client.get_item().table_name(&self.name);
        let request = request.key("pk", AttributeValue::S(partition)).key("sk", AttributeValue::S(sort));
        match request.consistent_read(consistent).send().await {
            Ok(answer) => Ok(answer.item.filter(|item| !item.is_empty())),
            Err(error) => Err(self.failure("dynamodb:GetItem", &error)),
        }
    }

    /// All items of the table that match a filter, as of no common moment.
    pub(super) async fn scan(&self, filter: Expression) -> Result<Vec<Item>, StoreError> {
        let (mut found, mut from) = (Vec::new(), None);
        loop {
            let request = self
                .client
                .scan()
                .table_name(&self.name)
                .consistent_read(true)
                .limit(PAGE)
                .set_exclusive_start_key(from)
                .set_expression_attribute_names(Some(names(&[&filter.text])))
                .set_expression_attribute_values(Some(filter.values.clone()))
                .filter_expression(&filter.text);
            let answer = request.send().await.map_err(|error| self.failure("dynamodb:Scan", &error))?;
            from = self.gather(&mut found, answer.items, answer.last_evaluated_key)?;
            if from.is_none() {
                return Ok(found);
            }
        }
    }

    /// All items of a partition.
    pub(super) async fn query(&self, condition: Expression) -> Result<Vec<Item>, StoreError> {
        let (mut found, mut from) = (Vec::new(), None);
        loop {
            let request = self
                .client
                .query()
                .table_name(&self.name)
                .consistent_read(true)
                .limit(PAGE)
                .set_exclusive_start_key(from)
                .set_expression_attribute_names(Some(names(&[&condition.text])))
                .set_expression_attribute_values(Some(condition.values.clone()))
                .key_condition_expression(&condition.text);
            let answer = request.send().await.map_err(|error| self.failure("dynamodb:Query", &error))?;
            from = self.gather(&mut found, answer.items, answer.last_evaluated_key)?;
            if from.is_none() {
                return Ok(found);
            }
        }
    }

    /// Adds a page. Returns where the next one begins.
    fn gather(
        &self,
        found: &mut Vec<Item>,
        page: Option<Vec<Item>>,
        end: Option<Item>,
    ) -> Result<Option<Item>, StoreError> {
        found.extend(page.unwrap_or_default());
        if found.len() > MOST_LISTED {
            return Err(allowance::too_long(&self.server));
        }
        Ok(end.filter(|key| !key.is_empty()))
    }

    /// Changes some attributes. Makes the item if it is absent and the condition allows that.
    pub(super) async fn update(
        &self,
        (partition, sort): Keys,
        update: &str,
        condition: Expression,
    ) -> Result<Outcome, StoreError> {
        let request = self
            .client
            .update_item()
            .table_name(&self.name)
            .key("pk", AttributeValue::S(partition))
            .key("sk", AttributeValue::S(sort))
            .set_expression_attribute_names(Some(names(&[update, &condition.text])))
            .set_expression_attribute_values(Some(condition.values))
            .update_expression(update)
            .condition_expression(condition.text)
            .return_values(ReturnValue::AllNew)
            .return_values_on_condition_check_failure(ReturnOnFailure::AllOld);
        match request.send().await {
            Ok(answer) => Ok(Outcome::Done(answer.attributes)),
            Err(error) => match error.as_service_error() {
                Some(UpdateItemError::ConditionalCheckFailedException(failed)) => {
                    Ok(Outcome::Refused(failed.item().filter(|item| !item.is_empty()).cloned()))
                }
                _ => Err(self.failure("dynamodb:UpdateItem", &error)),
            },
        }
    }

    /// Deletes an item, whatever is in it.
    pub(super) async fn delete(&self, (partition, sort): Keys) -> Result<(), StoreError> {
        let request = self.client.delete_item().table_name(&self.name);
        let request = request.key("pk", AttributeValue::S(partition)).key("sk", AttributeValue::S(sort));
        request.send().await.map(drop).map_err(|error| self.failure("dynamodb:DeleteItem", &error))
    }

    pub(super) fn failure<E>(&self, action: &str, error: &SdkError<E, HttpResponse>) -> StoreError
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
