//! Asks Sentinels where the master is.
//!
//! The hazard: a Sentinel that was cut off goes on naming the old master. So all Sentinels are asked at once, and among
//! those that answer in time, the one counts that has seen the latest failover.

use super::address::Login;
use super::connection::Client;
use crate::store::url::Host;
use crate::store::{ErrorKind, StoreError};
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::{Value, cmd, from_redis_value_ref};
use std::collections::HashMap;
use std::time::Duration;

/// How long to wait for the others after the first answer.
const OTHERS_WAIT: Duration = Duration::from_millis(100);

/// The master, according to one Sentinel.
struct Sighting {
    host: Host,
    /// Rises with every failover.
    epoch: u64,
}

/// Finds the master. The caller must bound the time: nothing here does if no Sentinel answers.
pub async fn find(client: &Client, sentinels: &[Host], master: &str, login: &Login) -> Result<Host, StoreError> {
    let mut asked: FuturesUnordered<_> =
        sentinels.iter().map(|sentinel| ask(client, sentinel, master, login)).collect();
    let mut best: Option<Sighting> = None;
    let mut failure: Option<StoreError> = None;
    while best.is_none() {
        match asked.next().await {
            Some(Ok(sighting)) => best = Some(sighting),
            Some(Err(error)) => {
                // An error that an operator must repair is more useful than an outage.
                let outage = |error: &StoreError| error.kind == ErrorKind::NotApplied;
                if failure.as_ref().is_none_or(|known| outage(known) && !outage(&error)) {
                    failure = Some(error);
                }
            }
            None => break,
        }
    }
    let Some(mut best) = best else {
        return Err(failure.unwrap_or_else(|| StoreError::not_applied("there is no Sentinel to ask")));
    };
    let _ = tokio::time::timeout(OTHERS_WAIT, async {
        while let Some(other) = asked.next().await {
            best = match other {
                Ok(other) if other.epoch > best.epoch => other,
                Ok(_) | Err(_) => continue,
            };
        }
    })
    .await;
    Ok(best.host)
}

async fn ask(client: &Client, sentinel: &Host, master: &str, login: &Login) -> Result<Sighting, StoreError> {
    let place = sentinel.with_port(super::address::SENTINEL_PORT);
    let answer = client.ask_sentinel(sentinel, login, cmd("SENTINEL").arg("MASTER").arg(master)).await;
    let answer = answer.map_err(|error| {
        if error.message.contains("No such master") {
            StoreError::misconfigured(format!(
                "the Sentinel at {place} knows no master called {master}: name another after the last / of the store \
                 URL"
            ))
        } else if error.kind == ErrorKind::Unknown {
            // No request was sent to the master.
            StoreError::not_applied(error.message)
        } else {
            error
        }
    })?;
    read(&answer).ok_or_else(|| StoreError::not_applied(format!("cannot understand the Sentinel at {place}")))
}

fn read(answer: &Value) -> Option<Sighting> {
    let words: HashMap<String, String> = from_redis_value_ref(answer).ok()?;
    let value = |name| words.get(name).map(String::as_str);
    let port = value("port")?.parse().ok().filter(|&port: &u16| port != 0)?;
    let host = Host { name: value("ip")?.to_owned(), port: Some(port) };
    Some(Sighting { host, epoch: value("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz;

    #[test]
    fn a_million_answers_of_sentinels_name_a_master_with_a_port_or_nothing() {
        let words = ["name", "m", "ip", "10.0.0.5", "port", "6379", "flags", "master", "config-epoch", "3"];
        fuzz::run("answer of a Sentinel", |source, input| {
            let mut values: Vec<Value> = words.iter().map(|word| Value::BulkString((*word).into())).collect();
            for _ in 0..source.below(3) {
                let at = source.below(values.len());
                match source.below(4) {
                    0 => values.truncate(at + 1),
                    1 => values[at] = Value::Int(source.signed()),
                    2 => values[at] = Value::BulkString(source.number().to_string().into()),
                    _ => values[at] = Value::BulkString(source.bend(&[b"port", b"6379", b"config-epoch"])),
                }
            }
            let answer = if source.one_in(16) { Value::Nil } else { Value::Array(values) };
            input.show(|| format!("{answer:?}"));
            let read = self::read(&answer);
            assert!(read.as_ref().is_none_or(|sighting| sighting.host.port.is_some_and(|port| port > 0)));
            (&read).into()
        });
    }
}
