//! `leaderctl store check`: whether an election can rely on the servers.
//!
//! The hazard: a server that works today may be a member that is about to be alone, or the listed servers may be two
//! clusters. So a check asks every server that the URL names, and not only the first that answers.

use super::Etcd;
use super::proto::{
    LEASE_REVOKE, LeaseRevokeRequest, Nothing, STATUS, StatusResponse, TXN, TxnRequest, TxnResponse, delete, get, put,
};
use super::record::{Base, read};
use super::unclaimed::UnclaimedLeases;
use crate::lease::Session;
use crate::store::{ErrorKind, Finding, StoreError, Verdict, round_trip};
use std::time::Duration;

const SCRATCH_LEASE: Duration = Duration::from_secs(10);

/// Tries everything that an election relies on.
pub async fn check(etcd: &Etcd) -> Result<Vec<Finding>, StoreError> {
    let mut findings = Vec::new();
    check_members(etcd, &mut findings).await?;
    if etcd.client.user_is_of_no_use() {
        findings.push(Finding::doubtful("a user is named, but authentication is off in etcd: etcdctl auth enable"));
    }
    if findings.iter().any(|finding| finding.verdict == Verdict::Bad) {
        return Ok(findings);
    }
    if check_permissions(etcd, &mut findings).await? {
        check_prefix(etcd, &mut findings).await?;
        check_speed(etcd, &mut findings).await?;
    }
    Ok(findings)
}

/// Checks each server that the URL names.
async fn check_members(etcd: &Etcd, findings: &mut Vec<Finding>) -> Result<(), StoreError> {
    let mut clusters = Vec::new();
    let mut unreachable = Vec::new();
    for (index, server) in etcd.client.servers().enumerate() {
        let status = etcd.client.bounded(async {
            let connection = etcd.client.dial(index, etcd.client.bound()).await?;
            let status: StatusResponse = etcd.client.call(&connection, STATUS, Nothing {}).await?;
            Ok(status)
        });
        match status.await {
            Ok(status) => {
                clusters.push(status.header.as_ref().map_or(0, |header| header.cluster_id));
                findings.extend(check_status(server, &status));
            }
            Err(error) if matches!(error.kind, ErrorKind::Denied | ErrorKind::Misconfigured) => {
                return Err(error);
            }
            Err(error) => unreachable.push(error),
        }
    }
    if clusters.is_empty() {
        let error = unreachable.into_iter().next();
        return Err(error.unwrap_or_else(|| StoreError::not_applied("no server is named")));
    }
    findings.extend(unreachable.into_iter().map(|error| Finding::doubtful(error.message)));
    clusters.dedup();
    if clusters.len() > 1 {
        findings.push(Finding::bad(
            "these servers belong to different clusters, so two candidates can both lead: name the servers of one cluster",
        ));
    }
    Ok(())
}

fn check_status(server: &str, status: &StatusResponse) -> Vec<Finding> {
    let version = &status.version;
    let mut findings = Vec::new();
    if status.leader == 0 {
        findings.push(Finding::bad(format!("etcd at {server} knows of no leader: too few members are up")));
    }
    if status.is_learner {
        findings.push(Finding::doubtful(format!(
            "etcd at {server} is a learner, which serves no requests: name another member"
        )));
    }
    for alarm in &status.errors {
        findings.push(if alarm.contains("NOSPACE") {
            Finding::bad(format!(
                "etcd at {server} is out of space and takes no writes: compact and defragment it, then etcdctl alarm \
                 disarm"
            ))
        } else {
            Finding::bad(format!("etcd at {server} has an alarm: {}", alarm.trim()))
        });
    }
    if is_older_than_3_4(version) {
        findings.push(Finding::doubtful(format!(
            "etcd at {server} is version {version}: leaderrun is tested with 3.4 and later"
        )));
    }
    if findings.is_empty() {
        findings.push(Finding::good(format!("etcd {version} at {server} answers and has a leader")));
    }
    findings
}

fn is_older_than_3_4(version: &str) -> bool {
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < (3, 4)
}

/// Does with a scratch key everything that an election does with a lock. False if further checks are pointless.
async fn check_permissions(etcd: &Etcd, findings: &mut Vec<Finding>) -> Result<bool, StoreError> {
    let session = Session::random()
        .map_err(|error| StoreError::not_applied(format!("no random bytes for the name of a scratch key: {error}")))?;
    let key = etcd.keys.scratch(&session);
    let connection = etcd.client.bounded(etcd.client.connection()).await?;
    let transaction = async |request: TxnRequest| -> Result<(), StoreError> {
        let call = async { Ok(etcd.client.call::<_, TxnResponse>(&connection, TXN, request).await?) };
        etcd.client.bounded(call).await.map(drop)
    };
    let before = findings.len();
    let reading = TxnRequest { success: vec![get(&key)], ..TxnRequest::default() };
    permission("to read", transaction(reading).await, findings)?;

    let unclaimed = UnclaimedLeases::new_lease(&etcd.unclaimed)?;
    permission(
        "to grant a lease",
        etcd.client.bounded(etcd.grant(&connection, unclaimed.id, SCRATCH_LEASE)).await,
        findings,
    )?;
    let writing = TxnRequest {
        success: vec![put(&key, b"leaderctl store check".to_vec(), unclaimed.id)],
        ..TxnRequest::default()
    };
    permission("to write", transaction(writing).await, findings)?;
    let keeping = async { Ok(etcd.keep_alive(&connection, unclaimed.id).await?) };
    permission("to keep a lease alive", etcd.client.bounded(keeping).await, findings)?;
    let asking = etcd.time_to_live(&connection, unclaimed.id);
    permission("to ask for the time to live of a lease", etcd.client.bounded(asking).await, findings)?;
    let deleting = TxnRequest { success: vec![delete(&key)], ..TxnRequest::default() };
    permission("to delete", transaction(deleting).await, findings)?;
    let revoking = async {
        let request = LeaseRevokeRequest { id: unclaimed.id };
        Ok(etcd.client.call::<_, Nothing>(&connection, LEASE_REVOKE, request).await?)
    };
    permission("to revoke a lease", etcd.client.bounded(revoking).await, findings)?;

    let may = findings.len() == before;
    if may {
        unclaimed.keep();
        let prefix = &etcd.keys.prefix;
        findings.push(Finding::good(format!(
            "may do all that an election needs: read and write below {prefix}/, and leases"
        )));
    }
    Ok(may)
}

fn permission<T>(what: &str, tried: Result<T, StoreError>, findings: &mut Vec<Finding>) -> Result<(), StoreError> {
    match tried {
        Ok(_) => Ok(()),
        Err(error) if error.kind == ErrorKind::Denied => {
            findings.push(Finding::bad(format!("permission missing {what}: {error}")));
            Ok(())
        }
        Err(error) => Err(error),
    }
}

async fn check_prefix(etcd: &Etcd, findings: &mut Vec<Finding>) -> Result<(), StoreError> {
    let prefix = &etcd.keys.prefix;
    let looked = etcd.client.bounded(async {
        let connection = etcd.client.connection().await?;
        let base = etcd.get(&connection, etcd.keys.base()).await?;
        let young = etcd.get(&connection, etcd.keys.young()).await?;
        Ok((connection.server.clone(), base.kvs.into_iter().next(), young.kvs.into_iter().next()))
    });
    let (server, base, young) = looked.await?;
    findings.push(match (base.map(|kv| read::<Base>(&server, &kv)), young) {
        (Some(Err(error)), _) => Finding::bad(error.message),
        (None, _) => Finding::doubtful(format!(
            "the prefix {prefix} does not say since when it remembers, so the first leader waits one lease: leaderctl \
             store init writes it"
        )),
        (Some(Ok(_)), Some(young)) if young.lease == 0 => Finding::doubtful(format!(
            "the key {prefix}/young is attached to no lease, so the first leader of every shard waits one lease: delete \
             it"
        )),
        (Some(Ok(_)), Some(_)) => Finding::good(format!(
            "the prefix {prefix} remembers since less than a day: the first leader of a shard waits until that is one \
             lease ago"
        )),
        (Some(Ok(_)), None) => Finding::good(format!("the prefix {prefix} has kept its records for more than a day")),
    });
    Ok(())
}

async fn check_speed(etcd: &Etcd, findings: &mut Vec<Finding>) -> Result<(), StoreError> {
    let connection = etcd.client.bounded(etcd.client.connection()).await?;
    let read = || etcd.client.bounded(async { Ok(etcd.get(&connection, etcd.keys.base()).await?) });
    let (_, time) = round_trip::measure(read).await?;
    findings.push(Finding::good(format!("a linearizable read takes {time:.1?}")));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdicts(status: &StatusResponse) -> Vec<Verdict> {
        check_status("here", status).into_iter().map(|finding| finding.verdict).collect()
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        for (version, old) in [("3.3.25", true), ("2.3.8", true), ("3.4.0", false), ("3.10.1", false), ("4.0.0", false)]
        {
            assert_eq!(is_older_than_3_4(version), old, "{version}");
        }
    }

    #[test]
    fn a_member_that_cannot_serve_is_named() {
        let fine = StatusResponse { version: "3.4.23".into(), leader: 1, ..StatusResponse::default() };
        assert_eq!(verdicts(&fine), [Verdict::Good]);
        assert_eq!(verdicts(&StatusResponse { leader: 0, ..fine.clone() }), [Verdict::Bad]);
        assert_eq!(verdicts(&StatusResponse { is_learner: true, ..fine.clone() }), [Verdict::Doubtful]);
        let full = StatusResponse { errors: vec!["memberID:1 alarm:NOSPACE ".into()], ..fine };
        assert_eq!(verdicts(&full), [Verdict::Bad]);
    }
}
