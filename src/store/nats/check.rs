//! `leaderctl store check`: whether an election can rely on the bucket.
//!
//! The hazard: a bucket may look right and still forget. If records age away, or make room for others, leases end that
//! are held. A bucket in memory forgets them with its server, and a mirror accepts no writes. A missing permission
//! shows only when it is needed, so the check tries each one.

use super::address::{SCRATCH, api};
use super::bucket::{Bucket, Put};
use super::jetstream::Info;
use super::{Nats, watch};
use crate::lease::show;
use crate::store::{ErrorKind, Finding, StoreError, Verdict, round_trip};
use futures_util::StreamExt;
use serde_json::json;

/// Before this version, buckets worked in another way.
const OLDEST_VERSION: (u32, u32) = (2, 9);

/// Checks everything that an election relies on.
pub async fn check(store: &Nats) -> Result<Vec<Finding>, StoreError> {
    let bucket = &store.bucket;
    let mut findings = vec![version(bucket).await?];
    match bucket.info().await {
        Ok(Some(info)) => {
            config(bucket, &info, &mut findings);
            if is_bad(&findings) {
                return Ok(findings);
            }
        }
        Ok(None) => {
            findings.push(Finding::bad(bucket.missing().message));
            return Ok(findings);
        }
        Err(error) => permission("publish", &info_subject(bucket), Err(error), &mut findings)?,
    }
    permissions(bucket, &mut findings).await?;
    if is_bad(&findings) {
        return Ok(findings);
    }
    findings.push(Finding::good("may do all that an election needs: publish, read, subscribe"));
    findings.push(match bucket.marker().await? {
        Some(_) => Finding::good("the bucket says since when it remembers"),
        None => Finding::doubtful(
            "the bucket does not say since when it remembers, so the first leader waits one lease: leaderctl store \
             init writes it",
        ),
    });
    findings.push(round_trip(bucket).await?);
    if let Some(lock) = &store.lock {
        lock.check(&mut findings).await?;
    }
    Ok(findings)
}

fn is_bad(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.verdict == Verdict::Bad)
}

fn info_subject(bucket: &Bucket) -> String {
    api(&format!("STREAM.INFO.{}", bucket.address().stream()))
}

async fn version(bucket: &Bucket) -> Result<Finding, StoreError> {
    let connection = bucket.connections.connection().await?;
    let version = connection.client.server_info().version;
    Ok(if connection.version() >= Some(OLDEST_VERSION) {
        Finding::good(format!("{} runs version {version}", connection.server))
    } else {
        Finding::doubtful(format!("{} runs version {version}: nothing before 2.9 was tested", connection.server))
    })
}

fn config(bucket: &Bucket, info: &Info, findings: &mut Vec<Finding>) {
    let address = bucket.address();
    let (name, server, config) = (&address.bucket, address.server(), &info.config);
    if let Err(wrong) = bucket.usable(info) {
        return findings.push(Finding::bad(wrong.message));
    }
    let clustered = info.is_clustered();
    let before = findings.len();
    if config.storage != "file" {
        findings.push(Finding::doubtful(format!(
            "bucket {name} is kept in {}: it forgets who leads when its server ends, and the next leader waits one lease",
            config.storage
        )));
    }
    if config.persist_mode.as_deref().is_some_and(|mode| mode != "default") {
        findings.push(Finding::doubtful(format!(
            "bucket {name} acknowledges writes before they are kept (persist_mode): a crash of its server may forget \
             a leadership that goes on"
        )));
    }
    if clustered && config.num_replicas < 3 {
        findings.push(Finding::doubtful(format!(
            "bucket {name} has {} of 3 replicas: while one of its servers is down, no lease can be taken or renewed",
            config.num_replicas
        )));
    }
    if config.max_msgs_per_subject != 1 {
        findings.push(Finding::doubtful(format!(
            "bucket {name} keeps more than the last record of a key: set its history to 1, for each renewal is a record"
        )));
    }
    if config.max_msgs > 0 || config.max_bytes > 0 {
        findings.push(Finding::doubtful(format!(
            "bucket {name} has a limit of size: when it is full, no lease can be taken or renewed"
        )));
    }
    if !info.has_unique_revisions() {
        findings.push(Finding::doubtful(format!(
            "the revisions of bucket {name} begin with a low number, so they repeat if it is dropped and made again: do \
             not do that while anything leads, or have leaderctl store init make it (in clusters from version 2.10 on)"
        )));
    }
    if findings.len() == before {
        let replicas = config.num_replicas;
        findings.push(Finding::good(format!("bucket {name} in {server} is kept in files, replicas: {replicas}")));
    }
}

/// Does with a scratch key everything that an election does with a lock.
async fn permissions(bucket: &Bucket, findings: &mut Vec<Finding>) -> Result<(), StoreError> {
    let address = bucket.address();
    let stream = address.stream();
    let known = findings.len();
    let get_subject = api(&format!("STREAM.MSG.GET.{stream}"));
    let before = bucket.get(SCRATCH).await;
    let revision = before.as_ref().map_or(0, |entry| entry.as_ref().map_or(0, |entry| entry.revision));
    permission("publish", &get_subject, before.map(drop), findings)?;
    // Without the permission to read, the revision is not known and the write is a conflict. That shows the permission
    // too.
    let put = bucket.put(SCRATCH, b"leaderctl store check".to_vec(), revision).await;
    let again = match put {
        Ok(Put::Done { .. }) => Some(bucket.put(SCRATCH, b"a second time".to_vec(), revision).await?),
        Ok(Put::Conflict) | Err(_) => None,
    };
    permission("publish", &address.subject(">"), put.map(drop), findings)?;
    permission("publish", &api(&format!("CONSUMER.CREATE.{stream}")), hear(bucket).await, findings)?;
    if matches!(again, Some(Put::Done { .. })) {
        findings.push(Finding::bad(
            "the server ignores the revision that a write expects, so two can lead: use another server",
        ));
    }
    if findings.len() == known {
        // A key that stays does no harm, and some users may not purge.
        let filter = json!({ "filter": address.subject(SCRATCH) });
        let _ = bucket.request(&format!("STREAM.PURGE.{stream}"), &filter).await;
    }
    Ok(())
}

/// Waits for a push, which arrives over a subscription from a consumer.
async fn hear(bucket: &Bucket) -> Result<(), StoreError> {
    let address = bucket.address();
    let connection = bucket.connections.connection().await?;
    let before = connection.denials();
    let (inbox, mut messages) = watch::open_inbox(&bucket.connections, &connection).await?;
    let config = json!({
        "deliver_subject": inbox,
        "filter_subject": address.subject(">"),
        "deliver_policy": "last",
        "ack_policy": "none",
        "max_deliver": 1,
        "replay_policy": "instant",
        "mem_storage": true,
        "num_replicas": 1,
    });
    let stream = address.stream();
    let create = json!({ "stream_name": stream, "config": config });
    bucket.request(&format!("CONSUMER.CREATE.{stream}"), &create).await?;
    tokio::select! {
        message = messages.next() => match message {
            Some(_) => Ok(()),
            None => Err(StoreError::unknown(format!("the connection to {} broke", connection.server))),
        },
        error = bucket.connections.trouble(&connection, &inbox, before) => Err(error),
        () = tokio::time::sleep(bucket.connections.bound()) => Err(StoreError::unknown(format!(
            "{} pushes nothing within {}", connection.server, show(bucket.connections.bound())
        ))),
    }
}

fn permission(
    verb: &str,
    subject: &str,
    tried: Result<(), StoreError>,
    findings: &mut Vec<Finding>,
) -> Result<(), StoreError> {
    match tried {
        Ok(()) => Ok(()),
        Err(error) if error.kind == ErrorKind::Denied => {
            let missing = if error.message.to_lowercase().contains("for subscription") {
                "subscribe to the answers (_INBOX.>)".to_owned()
            } else {
                format!("{verb} to {subject}")
            };
            let text = format!("permission missing: {missing}: ");
            if findings.iter().all(|finding| !finding.text.starts_with(&text)) {
                findings.push(Finding::bad(text + &error.message));
            }
            Ok(())
        }
        Err(error) => Err(error),
    }
}

async fn round_trip(bucket: &Bucket) -> Result<Finding, StoreError> {
    let (_, time) = round_trip::measure(|| bucket.marker()).await?;
    Ok(Finding::good(format!("a round trip takes {time:.1?}")))
}
