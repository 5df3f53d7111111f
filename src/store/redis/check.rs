//! `leaderctl store check`, beyond the trial of documents.

use super::Hashes;
use crate::store::error::denied;
use crate::store::lease_store::documents::Documents;
use crate::store::{ErrorKind, Finding, StoreError};
use redis::{InfoDict, cmd};

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

/// Empty if this user may not ask, which the trial of documents reports.
async fn info(hashes: &Hashes) -> Result<InfoDict, StoreError> {
    match hashes.client.ask(cmd("INFO").arg("everything")).await {
        Err(error) if error.kind == ErrorKind::Denied => Ok(InfoDict::new("")),
        answer => answer,
    }
}

pub async fn findings(hashes: &Hashes) -> Result<Vec<Finding>, StoreError> {
    let (wanted, info) = (hashes.client.address.replicas, info(hashes).await?);
    let mut findings = Vec::new();
    if let Some(policy) = info.get::<String>("maxmemory_policy").filter(|policy| policy != "noeviction") {
        let finding = if info.get("maxmemory") == Some(0_u64) { Finding::doubtful } else { Finding::bad };
        findings.push(finding(format!(
            "maxmemory-policy is {policy}: when the memory is full, leases are evicted while they are held: set noeviction"
        )));
    }
    if info.get("aof_enabled") == Some(0_u32) {
        findings.push(Finding::doubtful(
            "no append-only file, so a restart forgets leases: leaders that run renew theirs, but nobody else leads \
             for one lease, and terms continue from the clock: set appendonly yes",
        ));
    }
    match info.get::<u32>("connected_slaves") {
        Some(connected) if wanted > connected => findings.push(Finding::bad(format!(
            "wait={wanted}, but {connected} replicas are connected: no lease is granted until there are more"
        ))),
        Some(connected) if wanted < connected => findings.push(Finding::doubtful(format!(
            "wait={wanted}, but {connected} replicas are connected: if one is promoted that has not confirmed a lease, \
             two can lead: write wait={connected}"
        ))),
        Some(_) | None => {}
    }
    let channels = [hashes.names.key("changed:check")];
    let wait = (wanted > 0).then(|| cmd("WAIT").arg(0).arg(1).take());
    // A new connection begins with EVAL, and the trial's connection was not new.
    let whole = cmd("EVAL").arg("return 1").arg(0).take();
    for command in [whole, cmd("PUBLISH").arg(&channels).arg("check").take()].into_iter().chain(wait) {
        findings.extend(denied(hashes.client.ask(&command).await)?.map(Finding::bad));
    }
    findings.extend(denied(hashes.client.subscribe(&channels).await.map(drop))?.map(Finding::bad));
    Ok(findings)
}
