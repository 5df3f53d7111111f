//! A DynamoDB with one table, as far as the store uses it: four operations on single items, with conditions.
//!
//! The hazard: a table that is kinder than the real one hides faults. What is not understood panics; a read that did not
//! ask for consistency may be a second old; and the date of an answer may be a second old too, as its rendering is.

use crate::clock::{EPOCH_MILLIS, elapsed};
use crate::network::Network;
use crate::world::World;
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_runtime_api::http::StatusCode;
use aws_smithy_types::body::SdkBody;
use leaderrun::internals::lease::Shard;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

type Item = Map<String, Value>;
type Key = (String, String);

/// The most that a read may be behind.
const MOST_STALENESS: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct Table {
    items: Mutex<BTreeMap<Key, Vec<Version>>>,
}

/// What an item was, since when. The last one is what it is.
type Version = (Duration, Option<Item>);

/// The client of one host.
#[derive(Clone)]
pub struct Link {
    pub host: usize,
    pub network: Network,
    pub table: Arc<Table>,
    pub world: World,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the network of host {}", self.host)
    }
}

impl HttpClient for Link {
    fn http_connector(&self, _: &HttpConnectorSettings, _: &RuntimeComponents) -> SharedHttpConnector {
        SharedHttpConnector::new(self.clone())
    }
}

impl HttpConnector for Link {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let this = self.clone();
        HttpConnectorFuture::new(async move {
            let target = request.headers().get("x-amz-target").expect("an operation").to_owned();
            let operation = target.rsplit('.').next().expect("a name").to_owned();
            let body: Value = serde_json::from_slice(request.body().bytes().expect("not a stream")).expect("JSON");
            let writes = operation != "GetItem";
            let (network, host) = (this.network.clone(), this.host);
            let answer = network.call(host, writes, move || this.serve(&operation, &body)).await;
            let (status, body, date) = answer
                .map_err(|_| ConnectorError::io(std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into()))?;
            let mut response =
                HttpResponse::new(StatusCode::try_from(status).expect("a status"), SdkBody::from(body.to_string()));
            response.headers_mut().insert("date", httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(date)));
            Ok(response)
        })
    }
}

impl Link {
    /// The status, the body and the date of an answer.
    fn serve(&self, operation: &str, body: &Value) -> (u16, Value, u64) {
        let age = self.network.up_to(999);
        let now = EPOCH_MILLIS + u64::try_from(elapsed().as_millis()).expect("not so long");
        let date = (now - age) / 1000;
        if self.network.chance(10) {
            let name = "ProvisionedThroughputExceededException";
            return (400, json!({ "__type": format!("com.amazonaws.dynamodb.v20120810#{name}") }), date);
        }
        let (mut status, mut body) = self.table.apply(operation, body, self);
        // It was applied, and somebody between here and there made an error of that.
        if self.network.chance(5) {
            (status, body) = (500, json!({ "__type": "com.amazonaws.dynamodb.v20120810#InternalServerError" }));
        }
        (status, body, date)
    }
}

impl Table {
    /// Writes that the table remembers since then.
    pub fn mark(&self, created_millis: u64) {
        let (pk, sk) = ("LEADERRUN".to_owned(), "TABLE".to_owned());
        let item = json!({ "pk": { "S": pk }, "sk": { "S": sk }, "createdMs": { "N": created_millis.to_string() } });
        let item = item.as_object().cloned();
        self.items.lock().expect("nobody panicked").insert((pk, sk), vec![(Duration::ZERO, item)]);
    }

    /// It was dropped and created again.
    pub fn wipe(&self) {
        self.items.lock().expect("nobody panicked").clear();
    }

    /// Orders by a writer that tells no leader of them.
    pub fn put_unstamped(&self, shard: &Shard, text: &str) {
        let (pk, sk) = (format!("SHARD#{shard}"), "ORDERS".to_owned());
        let item = json!({ "pk": { "S": pk }, "sk": { "S": sk }, "text": { "S": text } });
        let version = (elapsed(), item.as_object().cloned());
        self.items.lock().expect("nobody panicked").entry((pk, sk)).or_default().push(version);
    }

    /// Somebody deleted the lock items by hand.
    pub fn delete_lock(&self) {
        self.items.lock().expect("nobody panicked").retain(|(_, sk), _| sk != "LOCK");
    }

    fn apply(&self, operation: &str, request: &Value, link: &Link) -> (u16, Value) {
        let mut items = self.items.lock().expect("nobody panicked");
        if operation == "Scan" {
            let filter = request["FilterExpression"].as_str().expect("a filter");
            let standing = items.values().filter_map(|versions| versions.last()?.1.as_ref());
            let found: Vec<&Item> =
                standing.filter(|item| Reader::new(filter, request, Some(item)).condition()).collect();
            return (200, json!({ "Items": found, "Count": found.len() }));
        }
        let given = |name: &str| request[name].as_object();
        let named = given("Key").or_else(|| given("Item")).expect("a key");
        let word = |name: &str| named[name]["S"].as_str().expect("a string").to_owned();
        let key = (word("pk"), word("sk"));
        let versions = items.entry(key.clone()).or_default();
        let present = versions.last().and_then(|(_, item)| item.clone());
        if operation == "GetItem" {
            let consistent = request["ConsistentRead"] == json!(true);
            let shown = if consistent || !link.network.chance(300) {
                present
            } else {
                let age = Duration::from_millis(link.network.up_to(999)).min(MOST_STALENESS);
                let then = elapsed().saturating_sub(age);
                versions.iter().rev().find(|(since, _)| *since <= then).and_then(|(_, item)| item.clone())
            };
            return (200, shown.map_or_else(|| json!({}), |item| json!({ "Item": item })));
        }
        let holds = request["ConditionExpression"].as_str().is_none_or(|text| {
            let mut reader = Reader::new(text, request, present.as_ref());
            reader.condition()
        });
        if !holds {
            let mut body = json!({
                "__type": "com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException",
                "message": "The conditional request failed",
            });
            if let Some(item) = present {
                body["Item"] = json!(item);
            }
            return (400, body);
        }
        let new = match operation {
            "PutItem" => given("Item").cloned(),
            "DeleteItem" => None,
            "UpdateItem" => {
                let mut item = present.clone().unwrap_or_else(|| named.clone());
                let text = request["UpdateExpression"].as_str().expect("an update");
                Reader::new(text, request, present.as_ref()).update(&mut item);
                Some(item)
            }
            other => panic!("what is {other}?"),
        };
        // By its holder, whose condition says so. To revoke a lease is no release.
        let by_its_holder = !request["ExpressionAttributeValues"][":me"].is_null();
        if key.1 == "LOCK"
            && new.is_none()
            && by_its_holder
            && let Some(session) = present.as_ref().and_then(|item| item["session"]["S"].as_str())
        {
            link.world.released(session);
        }
        versions.retain(|(since, _)| *since + 3 * MOST_STALENESS > elapsed());
        if versions.is_empty() {
            versions.push((Duration::ZERO, present.clone()));
        }
        versions.push((elapsed(), new));
        (200, present.map_or_else(|| json!({}), |item| json!({ "Attributes": item })))
    }
}

/// Reads an expression, and says what it comes to for an item.
struct Reader<'a> {
    words: Vec<String>,
    next: usize,
    request: &'a Value,
    item: Option<&'a Item>,
}

impl<'a> Reader<'a> {
    fn new(text: &str, request: &'a Value, item: Option<&'a Item>) -> Self {
        let mut spaced = String::new();
        for c in text.chars() {
            if "(),".contains(c) {
                spaced.extend([' ', c, ' ']);
            } else {
                spaced.push(c);
            }
        }
        let words = spaced.split_whitespace().map(str::to_owned).collect();
        Self { words, next: 0, request, item }
    }

    fn peek(&self) -> Option<&str> {
        self.words.get(self.next).map(String::as_str)
    }

    fn take(&mut self) -> String {
        let word = self.words.get(self.next).expect("more of the expression").clone();
        self.next += 1;
        word
    }

    fn accept(&mut self, word: &str) -> bool {
        let is = self.peek() == Some(word);
        self.next += usize::from(is);
        is
    }

    fn expect(&mut self, word: &str) {
        assert!(self.accept(word), "{word} is missing in {:?}", self.words);
    }

    fn condition(&mut self) -> bool {
        let holds = self.either();
        assert_eq!(self.peek(), None, "what is the rest of {:?}?", self.words);
        holds
    }

    fn either(&mut self) -> bool {
        let mut holds = self.both();
        while self.accept("OR") {
            holds |= self.both();
        }
        holds
    }

    fn both(&mut self) -> bool {
        let mut holds = self.one();
        while self.accept("AND") {
            holds &= self.one();
        }
        holds
    }

    fn one(&mut self) -> bool {
        if self.accept("(") {
            let holds = self.either();
            self.expect(")");
            return holds;
        }
        for (function, wanted) in [("attribute_exists", true), ("attribute_not_exists", false)] {
            if self.accept(function) {
                self.expect("(");
                let there = self.value().is_some();
                self.expect(")");
                return there == wanted;
            }
        }
        if self.accept("begins_with") {
            self.expect("(");
            let whole = self.value();
            self.expect(",");
            let part = self.value();
            self.expect(")");
            let text = |value: &Option<Value>| Some(value.as_ref()?["S"].as_str()?.to_owned());
            return text(&whole).zip(text(&part)).is_some_and(|(whole, part)| whole.starts_with(&part));
        }
        let left = self.value();
        let operator = self.take();
        if operator == "IN" {
            self.expect("(");
            let mut found = false;
            loop {
                let one = self.value();
                found |= left.is_some() && left == one;
                if !self.accept(",") {
                    break;
                }
            }
            self.expect(")");
            return found;
        }
        let right = self.value();
        let (Some(left), Some(right)) = (left, right) else { return false };
        let numbers = number(&left).zip(number(&right));
        match (operator.as_str(), numbers) {
            ("=", Some((left, right))) => left == right,
            ("=", None) => left == right,
            ("<", Some((left, right))) => left < right,
            ("<=", Some((left, right))) => left <= right,
            other => panic!("what is {other:?}?"),
        }
    }

    /// Of a `#name` in the item, or of a `:name` in the request.
    fn value(&mut self) -> Option<Value> {
        let word = self.take();
        if word.starts_with(':') {
            return Some(self.request["ExpressionAttributeValues"][&word].clone());
        }
        self.item?.get(&self.name(&word)).cloned()
    }

    fn name(&self, word: &str) -> String {
        self.request["ExpressionAttributeNames"][word].as_str().unwrap_or_else(|| panic!("what is {word}?")).to_owned()
    }

    fn update(&mut self, item: &mut Item) {
        while self.peek().is_some() {
            match self.take().as_str() {
                "SET" => loop {
                    let word = self.take();
                    let name = self.name(&word);
                    self.expect("=");
                    let mut value = self.value().expect("what is set is there");
                    if self.accept("+") {
                        let more = self.value().expect("what is added is there");
                        let sum = number(&value).expect("a number") + number(&more).expect("a number");
                        value = json!({ "N": sum.to_string() });
                    }
                    item.insert(name, value);
                    if !self.accept(",") {
                        break;
                    }
                },
                "REMOVE" => loop {
                    let word = self.take();
                    item.remove(&self.name(&word));
                    if !self.accept(",") {
                        break;
                    }
                },
                other => panic!("what is {other}?"),
            }
        }
    }
}

fn number(value: &Value) -> Option<i128> {
    value["N"].as_str().map(|digits| digits.parse().expect("a number"))
}
