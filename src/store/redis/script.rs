//! The scripts. Each reads, decides and writes at one instant in the server.
//!
//! A new connection may lead to a server that does not know the script. So the script is sent whole first, and then by
//! its hash: a renewal that first learns that its script is unknown may come too late.

use super::connection::{Client, Exchange, Stage};
use crate::store::kept_connection::once_more;
use crate::store::{ErrorKind, StoreError};
use crate::time::whole_millis;
use redis::{FromRedisValue, Script, ToRedisArgs, cmd};
use tokio::time::Instant;

pub const DOCUMENTS: &str = concat!(include_str!("call.lua"), include_str!("documents.lua"));
pub const LOCK_KEY: &str = concat!(include_str!("call.lua"), include_str!("lock_key.lua"));

impl Client {
    /// Returns the status, and what is particular to it. If it `waits`, what is done counts only once as many replicas
    /// have confirmed it as the address asks for.
    pub async fn run<T: FromRedisValue>(
        &self,
        script: &str,
        keys: &[&str],
        words: &(impl ToRedisArgs + Sync),
        waits: bool,
    ) -> Result<(String, T), StoreError> {
        let exchange = self.exchange().await?;
        let has_ended = |error: &StoreError| exchange.stage == Stage::Used && error.cause.is_some();
        once_more(exchange.run(script, keys, words, waits), has_ended, async {
            self.new_exchange(exchange.deadline).await?.run(script, keys, words, waits).await
        })
        .await
    }
}

impl Exchange<'_> {
    async fn run<T: FromRedisValue>(
        &self,
        script: &str,
        keys: &[&str],
        words: &(impl ToRedisArgs + Sync),
        waits: bool,
    ) -> Result<(String, T), StoreError> {
        let call = |how: &str, script: &str| cmd(how).arg(script).arg(keys.len()).arg(keys).arg(words).take();
        let whole = call("EVAL", script);
        let mut answer = match self.stage {
            Stage::Login | Stage::New => self.ask(&whole).await,
            Stage::Used => self.ask(&call("EVALSHA", Script::new(script).get_hash())).await,
        };
        if answer.as_ref().is_err_and(|error: &StoreError| error.message.contains("NOSCRIPT")) {
            answer = self.ask(&whole).await;
        }
        let (status, answer): (String, T) = answer?;
        let replicas = self.client.address.replicas;
        if waits && replicas > 0 && status == "done" {
            let left = self.deadline.saturating_duration_since(Instant::now());
            // Zero would mean for ever.
            let most = whole_millis(left * 3 / 4).max(1);
            let confirmed = self.ask(cmd("WAIT").arg(replicas).arg(most)).await;
            // The script was applied.
            let confirmed: u32 = confirmed.map_err(|error| StoreError { kind: ErrorKind::Unknown, ..error })?;
            if confirmed < replicas {
                return Err(StoreError::unknown(format!(
                    "only {confirmed} of the {replicas} replicas that wait= asks for have confirmed the lease to {}",
                    self.place()
                )));
            }
        }
        Ok((status, answer))
    }
}

pub fn not_understood(place: &Client) -> StoreError {
    StoreError::unknown(format!("cannot understand the answer of {place}"))
}
