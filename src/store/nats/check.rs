//! `leaderctl store check`: whether an election can rely on the bucket.
//!
//! The hazard: a bucket may look right and still forget. If records age away, or make room for others, leases end that
//! are held. A bucket in memory forgets them with its server. A missing permission
//! shows only when it is needed, so the check tries each one.

use super::bucket::{Bucket, Info};
use crate::store::{ErrorKind, Finding, StoreError};
use async_nats::jetstream::stream::{PersistenceMode, StorageType};

/// What kind of server it is, and what bucket.
pub async fn identify(bucket: &Bucket) -> Result<Vec<Finding>, StoreError> {
    let connection = bucket.connections.connection().await?;
    let version = connection.client.server_info().version;
    let mut findings = vec![Finding::good(format!("{} runs version {version}", connection.server))];
    match bucket.info(false).await {
        Ok(info) => findings.extend(config(bucket, &info)),
        // The trial of what this user may do names it.
        Err(error) if error.kind == ErrorKind::Denied => {}
        Err(error) if error.kind == ErrorKind::Misconfigured => findings.push(Finding::bad(error.message)),
        Err(error) => return Err(error),
    }
    Ok(findings)
}

fn config(bucket: &Bucket, info: &Info) -> Vec<Finding> {
    let config = &info.stream.config;
    let replicas = config.num_replicas;
    let doubts = [
        (
            config.storage != StorageType::File,
            "uses memory storage: it forgets who leads when its server ends, and the next leader waits one lease",
        ),
        (
            config.persist_mode.as_ref().is_some_and(|mode| *mode != PersistenceMode::Default),
            "acknowledges writes before they are kept (persist_mode): a crash of its server may forget a leadership that \
             goes on",
        ),
        (
            info.is_clustered() && replicas < 3,
            "has fewer than 3 replicas: while one of its servers is down, no lease can be taken or renewed",
        ),
        (
            !info.has_unique_revisions(),
            "has revisions that begin with a low number, so they repeat if it is dropped and made again: do not do \
             that while anything leads, or let leaderctl store init create it",
        ),
    ];
    let name = &bucket.name;
    let doubts = doubts.iter().filter(|(is_so, _)| *is_so);
    let doubts: Vec<_> = doubts.map(|(_, doubt)| Finding::doubtful(format!("bucket {name} {doubt}"))).collect();
    if doubts.is_empty() {
        return vec![Finding::good(format!("bucket {name} uses file storage, replicas: {replicas}"))];
    }
    doubts
}
