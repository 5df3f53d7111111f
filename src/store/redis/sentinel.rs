//! Asks Sentinels where the master is.
//!
//! The hazard: a Sentinel that was cut off goes on naming the old master. So all are asked at once, and of those that
//! answer in time, the one that has seen the latest failover counts.

use super::address::Login;
use super::connection::{Client, Server};
use crate::store::StoreError;
use crate::store::error::worst;
use crate::store::socket::Place;
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::cmd;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long to wait for the others after the first answer.
const OTHERS_WAIT: Duration = Duration::from_millis(100);

/// The error of each Sentinel counts, also if another one is silent until the deadline.
pub async fn find(
    client: &Client,
    sentinels: &[Place],
    master: &str,
    login: &Login,
    deadline: Instant,
) -> Result<Place, StoreError> {
    let sentinels = sentinels.iter().map(|place| Server {
        name: format!("the Sentinel at {place}"),
        place: place.clone(),
        login: login.clone(),
        db: 0,
    });
    let mut asked: FuturesUnordered<_> = sentinels.map(|sentinel| ask(client, sentinel, master, deadline)).collect();
    let mut failures = Vec::new();
    let first = loop {
        match asked.next().await {
            Some(Ok(sighting)) => break sighting,
            Some(Err(failure)) => failures.push(failure),
            None => return Err(worst(&failures)),
        }
    };
    let others: Vec<_> = asked.take_until(sleep(OTHERS_WAIT)).collect().await;
    let latest = others.into_iter().flatten().chain([first]).max_by_key(|(epoch, _)| *epoch);
    Ok(latest.expect("there is the first").1)
}

/// The number of the last failover that it has seen, and where the master is since.
async fn ask(client: &Client, sentinel: Server, master: &str, deadline: Instant) -> Result<(u64, Place), StoreError> {
    let exchange = client.open(sentinel, deadline).await?;
    let name = exchange.place();
    let answer = exchange.ask(cmd("SENTINEL").arg("MASTER").arg(master)).await;
    let words: HashMap<String, String> = answer.map_err(|error: StoreError| {
        if !error.message.contains("No such master") {
            return error;
        }
        StoreError::misconfigured(format!(
            "{name} knows no master called {master}: name another after the last / of the store URL"
        ))
    })?;
    let number = |name| words.get(name).and_then(|word| word.parse().ok());
    let port = number("port").and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0);
    let (Some(host), Some(port)) = (words.get("ip"), port) else {
        return Err(StoreError::not_applied(format!("cannot understand {name}")));
    };
    Ok((number("config-epoch").unwrap_or(0), Place::Tcp { name: host.clone(), port }))
}
