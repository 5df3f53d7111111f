//! The scripts. Each decides by what it reads, and writes, at one instant in the server.
//!
//! A script is sent whole the first time on a connection, and by its hash from then on. If a renewal first had to learn
//! that the server does not know its script, it would come too late where round trips are slow.

use super::connection::{Client, Talk};
use super::failure::Failure;
use crate::store::StoreError;
use crate::store::kept_connection::once_more;
use crate::time::whole_millis;
use redis::{Cmd, Value, cmd};

pub struct Script {
    code: &'static str,
    hash: String,
    /// One bit that no other script has.
    bit: u32,
    /// Whether the keys are those of `lock_key=`.
    is_of_lock_key: bool,
}

impl Script {
    pub fn of_documents() -> Self {
        Self::new(include_str!("documents.lua"), 1, false)
    }

    pub fn of_lock_key() -> Self {
        Self::new(include_str!("lock_key.lua"), 2, true)
    }

    fn new(code: &'static str, bit: u32, is_of_lock_key: bool) -> Self {
        Self { code, hash: redis::Script::new(code).get_hash().to_owned(), bit, is_of_lock_key }
    }

    /// Runs it. With `replicas`, what is done counts only when so many of them have confirmed it.
    pub async fn run(
        &self,
        client: &Client,
        keys: &[&str],
        arguments: &[&str],
        replicas: u32,
    ) -> Result<Vec<Value>, StoreError> {
        let about = |talk: &Talk<'_>, failure: &Failure| {
            failure.conclude(client.about(talk.place(), if self.is_of_lock_key { keys } else { &[] }))
        };
        let deadline = client.deadline();
        let talk = client.talk(deadline).await?;
        let first = async {
            match self.evaluate(&talk, keys, arguments).await {
                Err(failure @ Failure::Broken(_)) if talk.used => Err(about(&talk, &failure)),
                Err(failure) => Ok(Err(about(&talk, &failure))),
                Ok(answer) => Ok(Ok((talk, answer))),
            }
        };
        let again = async {
            let talk = client.new_talk(deadline).await?;
            match self.evaluate(&talk, keys, arguments).await {
                Err(failure) => Err(about(&talk, &failure)),
                Ok(answer) => Ok(Ok((talk, answer))),
            }
        };
        let (talk, answer) = once_more(first, |_: &StoreError| true, again).await??;
        let Value::Array(answer) = answer else { return Err(not_understood(talk.place())) };
        if replicas > 0 && answer.first().is_some_and(|status| text(status).is_some_and(|status| status == "done")) {
            // The script was applied, whatever this error says.
            let confirmed = wait(&talk, replicas).await;
            let confirmed = confirmed.map_err(|failure| StoreError::unknown(about(&talk, &failure).message))?;
            if confirmed < replicas {
                return Err(StoreError::unknown(format!(
                    "only {confirmed} of the {replicas} replicas that wait= asks for have confirmed the lease to {}",
                    talk.place()
                )));
            }
        }
        Ok(answer)
    }

    async fn evaluate(&self, talk: &Talk<'_>, keys: &[&str], arguments: &[&str]) -> Result<Value, Failure> {
        let call = |how: &str| -> Cmd {
            let mut command = cmd(how);
            command.arg(if how == "EVAL" { self.code } else { &self.hash }).arg(keys.len()).arg(keys).arg(arguments);
            command
        };
        if talk.known_scripts() & self.bit != 0 {
            match talk.ask(&call("EVALSHA")).await {
                // The server's scripts were flushed.
                Err(failure) if failure.has_code("NOSCRIPT") => {}
                answer => return answer,
            }
        }
        let answer = talk.ask(&call("EVAL")).await;
        if answer.is_ok() {
            talk.know_script(self.bit);
        }
        answer
    }
}

pub fn not_understood(place: &str) -> StoreError {
    StoreError::unknown(format!("cannot understand the answer of {place}"))
}

/// Waits for replicas. Returns how many have everything that was written on this connection.
async fn wait(talk: &Talk<'_>, wanted: u32) -> Result<u32, Failure> {
    // Zero would mean for ever.
    let most = whole_millis(talk.left() * 3 / 4).max(1);
    match talk.ask(cmd("WAIT").arg(wanted).arg(most)).await? {
        Value::Int(number) => Ok(u32::try_from(number).unwrap_or(0)),
        _ => Err(Failure::Nonsense("WAIT".to_owned())),
    }
}

/// A word of an answer. Values of other programs may not be text.
pub fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.clone()),
        Value::Int(number) => Some(number.to_string()),
        _ => None,
    }
}
