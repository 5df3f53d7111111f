//! `leaderctl store check`: what can be wrong with a server.
//!
//! The hazard: a server that answers may still be unusable. It may evict locks when its memory is full, forget
//! everything at a restart, or be a replica. And a missing permission shows only when it is needed, so the check tries
//! each one.

use super::connection::Talk;
use super::failure::Failure;
use super::watch::Subscription;
use super::{Redis, script};
use crate::lease::{Session, Shard, show};
use crate::store::{ErrorKind, Finding, StoreError, round_trip};
use crate::time::wall_clock_millis;
use redis::{Cmd, Value, cmd};
use std::time::Duration;

/// When scratch keys expire that the check may not delete.
const SCRATCH_MILLIS: u64 = 10_000;
pub const MISSING: &str = "permission missing";

/// Tries everything that an election relies on.
pub async fn check(store: &Redis) -> Result<Vec<Finding>, StoreError> {
    let mut findings = Vec::new();
    let talk = store.client.talk(store.client.deadline()).await?;
    let place = talk.place().to_owned();
    drop(talk);
    let info = match ask(store, cmd("INFO").arg("everything")).await? {
        Ok(info) => Info(text(&info)),
        Err(failure) => {
            permission(store, &place, "the command INFO", Err(failure), &mut findings)?;
            Info(String::new())
        }
    };
    check_server(&place, &info, &mut findings);
    if info.field("role") == Some("slave") {
        return Ok(findings);
    }
    check_memory(&info, &mut findings);
    check_persistence(&info, &mut findings);
    check_replicas(store.replicas, &info, &mut findings);
    check_permissions(store, &place, &mut findings).await?;
    store.check_lock_key(&place, &mut findings).await?;
    if !findings.iter().any(|finding| finding.text.starts_with(MISSING)) {
        check_memory_of_leases(store, &mut findings).await?;
    }
    Ok(findings)
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

/// Does with scratch keys everything that an election does.
async fn check_permissions(store: &Redis, place: &str, findings: &mut Vec<Finding>) -> Result<(), StoreError> {
    let session = Session::random()
        .map_err(|error| StoreError::not_applied(format!("no random bytes for the name of a scratch key: {error}")))?;
    let scratch = store.key(&format!("check:{}", session.as_str()));
    let hash = format!("{scratch}:hash");
    let channel = store.channel(&"check".parse().map_err(StoreError::unknown)?);
    let before = findings.len();
    // HSET is tried below, only if the check may delete the hash again.
    let mut commands = vec![
        ("TIME", cmd("TIME")),
        ("GET", cmd("GET").arg(&scratch).take()),
        ("SET", cmd("SET").arg(&scratch).arg("scratch").arg("PX").arg(SCRATCH_MILLIS).take()),
        ("PTTL", cmd("PTTL").arg(&scratch).take()),
        ("DEL", cmd("DEL").arg(&scratch).take()),
        ("HMGET", cmd("HMGET").arg(&hash).arg("field").take()),
        ("EVAL", cmd("EVAL").arg("return 1").arg(1).arg(&scratch).take()),
        ("EVALSHA", cmd("EVALSHA").arg("0".repeat(40)).arg(1).arg(&scratch).take()),
        ("PUBLISH", cmd("PUBLISH").arg(&channel).arg("check").take()),
    ];
    if store.replicas > 0 {
        commands.push(("WAIT", cmd("WAIT").arg(0).arg(1).take()));
    }
    let mut may_delete = true;
    for (name, command) in commands {
        let tried = ask(store, &command).await?;
        may_delete &= name != "DEL" || tried.is_ok();
        permission(store, place, &format!("the command {name}"), tried.map(drop), findings)?;
    }
    if may_delete {
        let tried = ask(store, cmd("HSET").arg(&hash).arg("field").arg("value")).await?;
        permission(store, place, "the command HSET", tried.map(drop), findings)?;
        let _ = ask(store, cmd("DEL").arg(&hash)).await?;
    }
    match Subscription::begin(&store.client, std::slice::from_ref(&channel)).await {
        Ok(_) => {}
        Err(error) if error.kind == ErrorKind::Denied => {
            findings.push(Finding::bad(format!("{MISSING}: SUBSCRIBE to {}*: {error}", store.prefix)));
        }
        Err(error) => return Err(error),
    }
    if findings.len() == before {
        findings.push(Finding::good("may do all that an election needs"));
    }
    Ok(())
}

fn permission(
    store: &Redis,
    place: &str,
    what: &str,
    tried: Result<(), Failure>,
    findings: &mut Vec<Finding>,
) -> Result<(), StoreError> {
    match tried {
        Ok(()) => Ok(()),
        // The server accepted the login, and that is all we need.
        Err(failure) if failure.has_code("NOSCRIPT") => Ok(()),
        Err(failure) => {
            let denied = failure.has_code("NOPERM");
            let error = failure.conclude(store.client.about(place, &[]));
            let what = match &failure {
                // The text differs between versions, except for these two words.
                Failure::Refused { text, .. } if text.contains(" key") => {
                    format!("keys that begin with {}, for {what}", store.prefix)
                }
                Failure::Refused { text, .. } if text.contains(" channel") => {
                    format!("channels that begin with {}, for {what}", store.prefix)
                }
                _ => what.to_owned(),
            };
            if denied {
                findings.push(Finding::bad(format!("{MISSING}: {what}: {error}")));
                return Ok(());
            }
            if error.kind == ErrorKind::NotApplied || error.kind == ErrorKind::Misconfigured {
                findings.push(Finding::bad(error.message));
                return Ok(());
            }
            Err(error)
        }
    }
}

/// For how long the server has remembered. Since 1970, if an operator vouched for it.
fn remembered(known: Duration) -> String {
    if known.as_millis() > u128::from(wall_clock_millis() / 2) {
        return "since it was new, as an operator said".to_owned();
    }
    format!("for {}", show(known))
}

/// Checks whether the scripts work, how fast, and what the server remembers.
async fn check_memory_of_leases(store: &Redis, findings: &mut Vec<Finding>) -> Result<(), StoreError> {
    let shard = "leaderctl-check".parse::<Shard>().map_err(StoreError::unknown)?;
    let keys = store.own_keys(&shard);
    let look = || script::run(&store.client, &store.scripts.look, &keys, &["0"], None);
    let (reply, time) = match round_trip::measure(look).await {
        Ok(measured) => measured,
        Err(error) if matches!(error.kind, ErrorKind::Misconfigured | ErrorKind::Denied) => {
            findings.push(Finding::bad(error.message));
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    findings.push(match reply.number(4).map(Duration::from_millis) {
        Some(known) => {
            Finding::good(format!("the server is known to have forgotten nothing, and to have remembered {}", remembered(known)))
        }
        None => Finding::doubtful(
            "the server was started, promoted or wiped since leaderrun last used it: no new leader for one lease duration; \
             leaderctl store init starts that time",
        ),
    });
    findings.push(Finding::good(format!("a round trip takes {time:.1?}")));
    Ok(())
}

/// Sends one command.
pub async fn ask(store: &Redis, command: &Cmd) -> Result<Result<Value, Failure>, StoreError> {
    let talk: Talk<'_> = store.client.talk(store.client.deadline()).await?;
    Ok(talk.ask(command).await)
}

fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => text.clone(),
        _ => String::new(),
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
