//! The store `dynamodb://` against a real dynoxide.

mod check;
mod faults;
mod items;
mod neighbours;

use crate::support::claims::*;
use crate::support::dynamo::{Fate, Proxy, REGION, Server, millis_now};
use crate::support::prelude::*;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::AttributeValue;
use leaderrun::internals::store::dynamodb::{Address, Table};
use leaderrun::internals::store::lease_store::LeaseStore;
use std::collections::HashMap;
use tokio::time::sleep;

type Item = HashMap<String, AttributeValue>;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

fn address(endpoint: &str, table: &str) -> Address {
    Address::read(&format!("//{table}?region={REGION}&endpoint={endpoint}")).expect("it is a URL")
}

async fn store(endpoint: &str, table: &str) -> LeaseStore {
    LeaseStore::new(Table::open(&address(endpoint, table), REQUEST_TIMEOUT).await.expect("the address is right"))
}

fn text(text: &str) -> AttributeValue {
    AttributeValue::S(text.to_owned())
}

fn number(number: impl std::fmt::Display + Copy) -> AttributeValue {
    AttributeValue::N(number.to_string())
}

async fn item(client: &Client, table: &str, sort: &str) -> Option<Item> {
    let request = client.get_item().table_name(table).consistent_read(true);
    let request = request.key("pk", text("SHARD#db/main")).key("sk", text(sort));
    request.send().await.expect("the server answers").item
}

async fn delete(client: &Client, table: &str, partition: &str, sort: &str) {
    let request = client.delete_item().table_name(table).key("pk", text(partition)).key("sk", text(sort));
    request.send().await.expect("the server answers");
}

fn millis_in(item: &Item, name: &str) -> u64 {
    item[name].as_n().expect("a number").parse().expect("a whole number")
}
