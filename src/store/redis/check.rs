//! `leaderctl store check`: what can be wrong with a server, beyond the trial of documents.
//!
//! The hazard: a server that answers may still be unusable. It may evict leases when its memory is full, forget
//! everything at a restart, or be a replica. And a missing permission shows only when it is needed, so the check tries
//! each one.

use super::failure::Failure;
use super::watch::Subscription;
use super::{Hashes, script};
use crate::store::lease_store::documents::Documents;
use crate::store::{ErrorKind, Finding, StoreError};
use redis::cmd;

const MISSING: &str = "permission missing";

/// What kind of server it is.
pub async fn identify(hashes: &Hashes) -> Result<Vec<Finding>, StoreError> {
    let mut findings = Vec::new();
    check_server(&hashes.place(), &info(hashes).await?, &mut findings);
    Ok(findings)
}

pub async fn findings(hashes: &Hashes) -> Result<Vec<Finding>, StoreError> {
    let mut findings = Vec::new();
    let info = info(hashes).await?;
    check_memory(&info, &mut findings);
    check_persistence(&info, &mut findings);
    check_replicas(hashes.replicas, &info, &mut findings);
    check_permissions(hashes, &mut findings).await?;
    Ok(findings)
}

/// Empty if this user may not ask: then the trial of documents says so.
async fn info(hashes: &Hashes) -> Result<Info, StoreError> {
    let exchange = hashes.client.exchange(hashes.client.deadline()).await?;
    match exchange.ask(cmd("INFO").arg("everything")).await {
        Ok(info) => Ok(Info(script::text(&info).unwrap_or_default())),
        Err(failure) if failure.has_code("NOPERM") => Ok(Info(String::new())),
        Err(failure) => Err(exchange.conclude(&failure)),
    }
}

fn check_server(place: &str, info: &Info, findings: &mut Vec<Finding>) {
    let Some(version) = info.field("redis_version") else { return };
    let name = match info.field("server_name") {
        Some("valkey") => format!("valkey {}", info.field("valkey_version").unwrap_or(version)),
        _ => format!("version {version}"),
    };
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    findings.push(if info.field("redis_mode") == Some("cluster") {
        Finding::bad(format!("{place} is a node of a Redis Cluster: use a server of its own, or one with Sentinels"))
    } else if info.field("role") == Some("slave") {
        Finding::bad(format!("{place} is a replica: the store has to be its master"))
    } else if major.is_some_and(|major| major < 5) {
        Finding::bad(format!("{place} has {name}: leaderrun needs 5.0 or later"))
    } else if info.field("run_id").is_none() && info.field("master_replid").is_none() {
        Finding::bad(format!("{place} does not say which run of the server it is, so a restart could not be noticed"))
    } else {
        Finding::good(format!("{place} has {name}"))
    });
}

fn check_memory(info: &Info, findings: &mut Vec<Finding>) {
    let Some(policy) = info.field("maxmemory_policy") else { return };
    let limit = info.field("maxmemory").and_then(|limit| limit.parse::<u64>().ok()).unwrap_or(0);
    findings.push(match (policy, limit) {
        ("noeviction", 0) => Finding::good("no limit of memory, and no eviction"),
        ("noeviction", _) => Finding::good("nothing is evicted when the memory is full: new leases are then refused"),
        (_, 0) => Finding::doubtful(format!(
            "maxmemory-policy is {policy}: were maxmemory set, leases could be evicted while they are held: set \
             noeviction"
        )),
        (_, _) => Finding::bad(format!(
            "maxmemory-policy is {policy}: when the memory is full, leases are evicted while they are held: set \
             noeviction"
        )),
    });
}

fn check_persistence(info: &Info, findings: &mut Vec<Finding>) {
    let Some(enabled) = info.field("aof_enabled") else { return };
    findings.push(if enabled != "1" {
        Finding::doubtful(
            "no append-only file: a restart forgets leases; leaders keep theirs, but there is no new leader for one lease \
             duration, and terms continue from the clock: set appendonly yes",
        )
    } else if info.field("aof_last_write_status").is_some_and(|status| status != "ok") {
        Finding::bad("the append-only file cannot be written: see the server's log")
    } else {
        Finding::good("the append-only file is on")
    });
}

fn check_replicas(wanted: u32, info: &Info, findings: &mut Vec<Finding>) {
    let Some(connected) = info.field("connected_slaves").and_then(|number| number.parse::<u32>().ok()) else { return };
    findings.push(match (connected, wanted) {
        (0, 0) => Finding::good("no replicas, and no wait="),
        (_, 0) => Finding::doubtful(format!(
            "{connected} replicas and no wait=: should the master be cut off from them and one be promoted, two can lead: \
             write wait={connected}"
        )),
        (_, _) if wanted > connected => Finding::bad(format!(
            "wait={wanted}, but {connected} replicas are connected: no lease is granted before there are more"
        )),
        (_, _) if wanted < connected => Finding::doubtful(format!(
            "wait={wanted} with {connected} replicas: should one be promoted that was not waited for, two can lead: write \
             wait={connected}"
        )),
        (_, _) => Finding::good(format!("wait={wanted}: all replicas have a lease before it counts")),
    });
}

/// Tries what an election needs besides documents.
async fn check_permissions(hashes: &Hashes, findings: &mut Vec<Finding>) -> Result<(), StoreError> {
    let channel = hashes.names.key("changed:check");
    let mut commands = vec![
        // The trial went over a connection that is not new, and a new one begins with this.
        ("EVAL", cmd("EVAL").arg("return 1").arg(0).take()),
        ("PUBLISH", cmd("PUBLISH").arg(&channel).arg("check").take()),
    ];
    if hashes.replicas > 0 {
        commands.push(("WAIT", cmd("WAIT").arg(0).arg(1).take()));
    }
    for (name, command) in commands {
        let exchange = hashes.client.exchange(hashes.client.deadline()).await?;
        if let Err(failure) = exchange.ask(&command).await {
            let error = exchange.conclude(&failure);
            if error.kind != ErrorKind::Denied {
                return Err(error);
            }
            let prefix = &hashes.names.prefix;
            // The text differs between versions, except for this word.
            let what = match &failure {
                Failure::Refused { text, .. } if text.contains(" channel") => {
                    format!("channels that begin with {prefix}, for the command {name}")
                }
                _ => format!("the command {name}"),
            };
            findings.push(Finding::bad(format!("{MISSING}: {what}: {error}")));
        }
    }
    match Subscription::begin(&hashes.client, std::slice::from_ref(&channel)).await {
        Ok(_) => Ok(()),
        Err(error) if error.kind == ErrorKind::Denied => {
            findings.push(Finding::bad(format!("{MISSING}: SUBSCRIBE to {}*: {error}", hashes.names.prefix)));
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// The answer to INFO.
struct Info(String);

impl Info {
    fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.0.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).filter(|value| !value.is_empty())
    }
}
