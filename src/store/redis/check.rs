//! `leaderctl store check`: what can be wrong with a server, beyond the trial of documents.

use super::failure::Failure;
use super::watch::Subscription;
use super::{Hashes, script};
use crate::store::lease_store::documents::Documents;
use crate::store::{ErrorKind, Finding, StoreError};
use redis::cmd;

const MISSING: &str = "permission missing";

pub async fn identify(hashes: &Hashes) -> Result<Vec<Finding>, StoreError> {
    let mut findings = Vec::new();
    check_server(&hashes.place(), &info(hashes).await?, &mut findings);
    Ok(findings)
}

pub async fn findings(hashes: &Hashes) -> Result<Vec<Finding>, StoreError> {
    let mut findings = doubts(hashes.replicas, &info(hashes).await?);
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
    findings.push(if info.field("role") == Some("slave") {
        Finding::bad(format!("{place} is a replica: the store has to be its master"))
    } else if major.is_some_and(|major| major < 5) {
        Finding::bad(format!("{place} has {name}: leaderrun needs 5.0 or later"))
    } else {
        Finding::good(format!("{place} has {name}"))
    });
}

/// What is not as it should be, with `wait=` for so many replicas. What the server does not say is not doubted.
fn doubts(wanted: u32, info: &Info) -> Vec<Finding> {
    let number = |name: &str| info.field(name).and_then(|number| number.parse::<u32>().ok());
    let mut doubts = Vec::new();
    if let Some(policy) = info.field("maxmemory_policy").filter(|policy| *policy != "noeviction") {
        let finding = if info.field("maxmemory") == Some("0") { Finding::doubtful } else { Finding::bad };
        doubts.push(finding(format!(
            "maxmemory-policy is {policy}: when the memory is full, leases are evicted while they are held: set noeviction"
        )));
    }
    if info.field("aof_enabled").is_some_and(|enabled| enabled != "1") {
        doubts.push(Finding::doubtful(
            "no append-only file: a restart forgets leases; leaders keep theirs, but there is no new leader for one lease \
             duration, and terms continue from the clock: set appendonly yes",
        ));
    } else if info.field("aof_last_write_status").is_some_and(|status| status != "ok") {
        doubts.push(Finding::bad("the append-only file cannot be written: see the server's log"));
    }
    match number("connected_slaves") {
        Some(connected) if wanted > connected => doubts.push(Finding::bad(format!(
            "wait={wanted}, but {connected} replicas are connected: no lease is granted before there are more"
        ))),
        Some(connected) if wanted < connected => doubts.push(Finding::doubtful(format!(
            "wait={wanted} with {connected} replicas: should one be promoted that was not waited for, two can lead: write \
             wait={connected}"
        ))),
        Some(_) | None => {}
    }
    doubts
}

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

struct Info(String);

impl Info {
    fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.0.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).filter(|value| !value.is_empty())
    }
}
