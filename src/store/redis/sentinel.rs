//! Asks Sentinels where the master is.
//!
//! The hazard: a Sentinel that was cut off goes on naming the old master. So all are asked at once, and of those that
//! answer in time, the one that has seen the latest failover counts.

use super::address::Login;
use super::connection::{Client, Server};
use crate::store::error::worst;
use crate::store::socket::Place;
use crate::store::{ErrorKind, StoreError};
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::{Value, cmd, from_redis_value_ref};
use std::collections::HashMap;
use std::time::Duration;

/// How long to wait for the others after the first answer.
const OTHERS_WAIT: Duration = Duration::from_millis(100);

struct Sighting {
    place: Place,
    epoch: u64,
}

/// The caller must bound the time.
pub async fn find(client: &Client, sentinels: &[Place], master: &str, login: &Login) -> Result<Place, StoreError> {
    let mut asked: FuturesUnordered<_> =
        sentinels.iter().map(|sentinel| ask(client, sentinel, master, login)).collect();
    let mut failures = Vec::new();
    let mut best = loop {
        match asked.next().await {
            Some(Ok(sighting)) => break sighting,
            Some(Err(failure)) => failures.push(failure),
            None => return Err(worst(&failures)),
        }
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
    Ok(best.place)
}

async fn ask(client: &Client, place: &Place, master: &str, login: &Login) -> Result<Sighting, StoreError> {
    let name = format!("the Sentinel at {place}");
    let sentinel = Server { name: name.clone(), place: place.clone(), login: login.clone() };
    let exchange = client.open(sentinel, 0, client.deadline()).await?;
    let answer = exchange.ask(cmd("SENTINEL").arg("MASTER").arg(master)).await;
    let answer = answer.map_err(|error| {
        let error = exchange.explain(&error);
        if error.message.contains("No such master") {
            StoreError::misconfigured(format!(
                "{name} knows no master called {master}: name another after the last / of the store URL"
            ))
        } else if error.kind == ErrorKind::Unknown {
            // No request was sent to the master.
            StoreError::not_applied(error.message)
        } else {
            error
        }
    })?;
    read(&answer).ok_or_else(|| StoreError::not_applied(format!("cannot understand {name}")))
}

fn read(answer: &Value) -> Option<Sighting> {
    let words: HashMap<String, String> = from_redis_value_ref(answer).ok()?;
    let value = |name| words.get(name).map(String::as_str);
    let port = value("port")?.parse().ok().filter(|&port: &u16| port != 0)?;
    let place = Place::Tcp { name: value("ip")?.to_owned(), port };
    Some(Sighting { place, epoch: value("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0) })
}
