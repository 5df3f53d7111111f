//! The scripts. Each reads, decides and writes at one instant in the server.
//!
//! A new connection may lead to a server that does not know the script. So the script is sent whole first, and then by
//! its hash: a renewal that first learns that its script is unknown may come too late.

use super::connection::{Client, Exchange};
use crate::store::{ErrorKind, StoreError};
use crate::time::whole_millis;
use redis::{RedisError, Value, cmd, from_redis_value};
use tokio::time::Instant;

pub const DOCUMENTS: &str = concat!(include_str!("call.lua"), include_str!("documents.lua"));
pub const LOCK_KEY: &str = concat!(include_str!("call.lua"), include_str!("lock_key.lua"));

pub struct Script {
    code: &'static str,
    hash: String,
}

impl Script {
    pub fn new(code: &'static str) -> Self {
        Self { code, hash: redis::Script::new(code).get_hash().to_owned() }
    }

    /// With `replicas`, what is done counts only once that many have confirmed it.
    pub async fn run(
        &self,
        client: &Client,
        keys: &[&str],
        arguments: &[&str],
        replicas: u32,
    ) -> Result<Vec<Value>, StoreError> {
        let mut exchange = client.exchange().await?;
        let mut answer = self.evaluate(&exchange, keys, arguments).await;
        let had_ended = exchange.used && answer.as_ref().is_err_and(RedisError::is_io_error);
        // The first attempt may have been applied, whatever happens to the second.
        let in_doubt =
            |error: StoreError| if had_ended { StoreError { kind: ErrorKind::Unknown, ..error } } else { error };
        if had_ended {
            exchange = client.new_exchange(exchange.deadline).await.map_err(in_doubt)?;
            answer = self.evaluate(&exchange, keys, arguments).await;
        }
        let answer = answer.map_err(|error| in_doubt(exchange.explain(&error)))?;
        let Value::Array(answer) = answer else { return Err(not_understood(exchange.place())) };
        if replicas > 0 && answer.first().and_then(text).is_some_and(|status| status == "done") {
            let left = exchange.deadline.saturating_duration_since(Instant::now());
            // Zero would mean for ever.
            let most = whole_millis(left * 3 / 4).max(1);
            let confirmed = exchange.ask(cmd("WAIT").arg(replicas).arg(most)).await;
            // The script was applied, so this error is `Unknown`.
            let confirmed = confirmed.map_err(|error| StoreError::unknown(exchange.explain(&error).message))?;
            let confirmed = from_redis_value(confirmed).unwrap_or(0);
            if confirmed < replicas {
                return Err(StoreError::unknown(format!(
                    "only {confirmed} of the {replicas} replicas that wait= asks for have confirmed the lease to {}",
                    exchange.place()
                )));
            }
        }
        Ok(answer)
    }

    async fn evaluate(&self, exchange: &Exchange<'_>, keys: &[&str], arguments: &[&str]) -> Result<Value, RedisError> {
        let call = |how: &str, script: &str| cmd(how).arg(script).arg(keys.len()).arg(keys).arg(arguments).take();
        if exchange.used {
            match exchange.ask(&call("EVALSHA", &self.hash)).await {
                Err(error) if error.code() == Some("NOSCRIPT") => {}
                answer => return answer,
            }
        }
        exchange.ask(&call("EVAL", self.code)).await
    }
}

pub fn not_understood(place: &str) -> StoreError {
    StoreError::unknown(format!("cannot understand the answer of {place}"))
}

/// Values of other programs may not be text.
pub fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.clone()),
        Value::Int(number) => Some(number.to_string()),
        _ => None,
    }
}
