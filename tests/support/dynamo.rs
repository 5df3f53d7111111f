//! A real DynamoDB-compatible server for tests.

use super::prelude::*;
pub use super::server::AWS as ENVIRONMENT;
use super::server::{self, Daemon};
pub use super::wire::{Fate, Proxy, Request, Response, set_date};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType, TableStatus,
};
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

pub const REGION: &str = "eu-west-1";

pub struct Server(Daemon);

impl Server {
    /// Starts one on a free loopback port, which forgets all when it ends.
    pub fn start() -> Self {
        Self::start_with(false)
    }

    /// Starts one with a table `locks`, which keeps its data over a restart.
    pub fn durable() -> Self {
        let server = Self::start_with(true);
        server::prepare(&server);
        server
    }

    fn start_with(keeps: bool) -> Self {
        let launch = move |data: &Path, port: u16| {
            let mut command = server::mortal(std::env::var_os("TEST_DYNOXIDE").unwrap_or_else(|| "dynoxide".into()));
            command.args(["--host", server::listen_on(), "--log", "quiet", "--port", &port.to_string()]);
            if keeps {
                command.arg("--db-path").arg(data.join("db"));
            }
            command
        };
        let data = TempDir::new().expect("a scratch directory");
        Self(Daemon::start("dynoxide", data, launch, server::is_open))
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.0.port)
    }

    /// The SDK's client, for what the test does by hand.
    pub fn client(&self) -> Client {
        client(&self.endpoint())
    }

    /// Makes a table that has remembered for an hour, so that first leaders need not wait.
    pub async fn table(&self, name: &str) -> String {
        make_table(&self.client(), name, &[("pk", KeyType::Hash), ("sk", KeyType::Range)]).await;
        write_marker(&self.client(), name, millis_now() - 3_600_000).await;
        name.to_owned()
    }

    pub fn url(&self, table: &str) -> String {
        format!("dynamodb://{table}?region={REGION}&endpoint=http%3A%2F%2F127.0.0.1%3A{}", self.0.port)
    }
}

/// Runs what the SDK's client does, for tests that have no runtime.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
}

impl server::Server for Server {
    fn daemon(&self) -> &Daemon {
        &self.0
    }

    fn url(&self, address: SocketAddr) -> String {
        format!("dynamodb://locks?region={REGION}&endpoint=http://{address}")
    }

    fn environment(&self) -> &'static [(&'static str, &'static str)] {
        ENVIRONMENT
    }

    fn wipe(&mut self) {
        block_on(self.client().delete_table().table_name("locks").send()).expect("there is a table");
        server::prepare(self);
    }

    fn remove_lock(&mut self, shard: &str) {
        self.remove(shard, "LOCK");
    }

    fn remove_records(&mut self, shard: &str) {
        for sort in ["LOCK", "TERM", "HISTORY"] {
            self.remove(shard, sort);
        }
    }

    fn grow_old(&mut self) {
        block_on(write_marker(&self.client(), "locks", millis_now() - 3_600_000));
    }
}

impl Server {
    fn remove(&self, shard: &str, sort: &str) {
        let key = AttributeValue::S(format!("SHARD#{shard}"));
        let request = self.client().delete_item().table_name("locks").key("pk", key);
        block_on(request.key("sk", AttributeValue::S(sort.to_owned())).send()).expect("it can be deleted");
    }
}

pub fn millis_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    u64::try_from(since.as_millis()).expect("it is before the year 500 million")
}

pub fn client(endpoint: &str) -> Client {
    let rootless = TlsContext::builder().with_trust_store(TrustStore::empty()).build().expect("an empty trust store");
    let http = aws_smithy_http_client::Builder::new()
        .tls_provider(Provider::Rustls(CryptoMode::Ring))
        .tls_context(rootless)
        .build_https();
    let config = aws_sdk_dynamodb::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new(REGION))
        .credentials_provider(Credentials::new("test", "test", None, None, "test"))
        .endpoint_url(endpoint)
        .http_client(http);
    Client::from_conf(config.build())
}

/// Makes a table with these keys, all strings, and waits until it is there.
pub async fn make_table(client: &Client, name: &str, keys: &[(&str, KeyType)]) {
    let mut request = client.create_table().table_name(name).billing_mode(BillingMode::PayPerRequest);
    for (key, kind) in keys {
        let definition = AttributeDefinition::builder().attribute_name(*key).attribute_type(ScalarAttributeType::S);
        let element = KeySchemaElement::builder().attribute_name(*key).key_type(kind.clone());
        request = request
            .attribute_definitions(definition.build().expect("a whole definition"))
            .key_schema(element.build().expect("a whole element"));
    }
    request.send().await.expect("a table can be made");
    loop {
        let answer = client.describe_table().table_name(name).send().await.expect("the table is there");
        if answer.table().and_then(|table| table.table_status()) == Some(&TableStatus::Active) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub async fn write_marker(client: &Client, table: &str, created_millis: u64) {
    let text = format!(r#"{{"format":1,"what":"tried","created_ms":{created_millis},"incarnation":""}}"#);
    let texts = [("pk", "LEADERRUN"), ("sk", "TABLE"), ("text", &text), ("write", "by hand")];
    let mut item: HashMap<String, AttributeValue> =
        texts.map(|(name, value)| (name.to_owned(), AttributeValue::S(value.to_owned()))).into();
    item.insert("sequence".to_owned(), AttributeValue::N("0".to_owned()));
    let request = client.put_item().table_name(table).set_item(Some(item));
    request.send().await.expect("the marker can be written");
}

/// What IAM answers to whom a policy does not allow it.
pub fn denial() -> Fate {
    error_answer(400, "AccessDeniedException", "User x is not authorized")
}

pub fn error_answer(status: u16, code: &str, message: &str) -> Fate {
    Fate::Answer(Response {
        status,
        headers: vec![("content-type".to_owned(), "application/x-amz-json-1.0".to_owned())],
        body: format!(r#"{{"__type":"com.amazonaws.dynamodb.v20120810#{code}","message":"{message}"}}"#),
    })
}
