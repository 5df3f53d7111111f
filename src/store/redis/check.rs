//! `leaderctl store check`, beyond the trial of documents.

use super::watch::Subscription;
use super::{Hashes, script};
use crate::store::error::denied;
use crate::store::lease_store::documents::Documents;
use crate::store::{Finding, StoreError};
use redis::{InfoDict, cmd, from_redis_value};

pub async fn identify(hashes: &Hashes) -> Result<Vec<Finding>, StoreError> {
    let (place, info) = (hashes.place(), info(hashes).await?);
    let Some(version) = info.get::<String>("redis_version") else { return Ok(Vec::new()) };
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    Ok(vec![if info.get::<String>("role").is_some_and(|role| role == "slave") {
        Finding::bad(format!("{place} is a replica: the store has to be its master"))
    } else if major.is_some_and(|major| major < 5) {
        Finding::bad(format!("{place} has version {version}: leaderrun needs 5.0 or later"))
    } else {
        Finding::good(format!("{place} has version {version}"))
    }])
}

pub async fn findings(hashes: &Hashes) -> Result<Vec<Finding>, StoreError> {
    let mut findings = doubts(hashes.replicas, &info(hashes).await?);
    findings.extend(permissions(hashes).await?);
    Ok(findings)
}

/// Empty if this user may not ask, which the trial of documents reports.
async fn info(hashes: &Hashes) -> Result<InfoDict, StoreError> {
    let exchange = hashes.client.exchange().await?;
    match exchange.ask(cmd("INFO").arg("everything")).await {
        Ok(info) => from_redis_value(info).map_err(|_| script::not_understood(exchange.place())),
        Err(error) if error.code() == Some("NOPERM") => Ok(InfoDict::new("")),
        Err(error) => Err(exchange.explain(&error)),
    }
}

/// What is wrong with the settings, as far as INFO says. `wanted` is the number of replicas in `wait=`.
fn doubts(wanted: u32, info: &InfoDict) -> Vec<Finding> {
    let mut doubts = Vec::new();
    if let Some(policy) = info.get::<String>("maxmemory_policy").filter(|policy| policy != "noeviction") {
        let finding = if info.get("maxmemory") == Some(0_u64) { Finding::doubtful } else { Finding::bad };
        doubts.push(finding(format!(
            "maxmemory-policy is {policy}: when the memory is full, leases are evicted while they are held: set noeviction"
        )));
    }
    if info.get("aof_enabled") == Some(0_u32) {
        doubts.push(Finding::doubtful(
            "no append-only file, so a restart forgets leases: leaders that run renew theirs, but nobody else leads \
             for one lease, and terms continue from the clock: set appendonly yes",
        ));
    }
    match info.get::<u32>("connected_slaves") {
        Some(connected) if wanted > connected => doubts.push(Finding::bad(format!(
            "wait={wanted}, but {connected} replicas are connected: no lease is granted until there are more"
        ))),
        Some(connected) if wanted < connected => doubts.push(Finding::doubtful(format!(
            "wait={wanted}, but {connected} replicas are connected: if one is promoted that has not confirmed a lease, \
             two can lead: write wait={connected}"
        ))),
        Some(_) | None => {}
    }
    doubts
}

async fn permissions(hashes: &Hashes) -> Result<Vec<Finding>, StoreError> {
    let Hashes { client, names, replicas, .. } = hashes;
    let channel = names.key("changed:check");
    let mut commands = vec![
        // A new connection begins with EVAL, and the trial's connection was not new.
        cmd("EVAL").arg("return 1").arg(0).take(),
        cmd("PUBLISH").arg(&channel).arg("check").take(),
    ];
    if *replicas > 0 {
        commands.push(cmd("WAIT").arg(0).arg(1).take());
    }
    let mut missing = Vec::new();
    for command in commands {
        missing.extend(denied(client.request(&command).await.map(drop))?);
    }
    missing.extend(denied(Subscription::begin(client, std::slice::from_ref(&channel)).await.map(drop))?);
    Ok(missing.into_iter().map(Finding::bad).collect())
}
