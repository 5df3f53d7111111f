//! What `leaderctl store check` says of the servers.
//!
//! The hazard: a server that answers may be the member of a cluster that is about to lose its majority, or the listed
//! servers may be two clusters. So a check asks every server that the URL names, and not only the first that answers.

use super::Keys;
use super::proto::{Nothing, STATUS, StatusResponse};
use crate::store::{Finding, StoreError};

pub async fn identify(keys: &Keys) -> Result<Vec<Finding>, StoreError> {
    let (mut findings, mut clusters, mut unreachable) = (Vec::new(), Vec::new(), Vec::new());
    for (index, server) in keys.client.address.hosts.iter().enumerate() {
        let status = keys.client.bounded(async {
            let connection = keys.client.connection_to(index);
            keys.client.call::<_, StatusResponse>(&connection, STATUS, Nothing {}).await
        });
        match status.await {
            Ok(status) => {
                clusters.push(status.header.as_ref().map_or(0, |header| header.cluster_id));
                findings.extend(check_status(&server.to_string(), &status));
            }
            Err(error) if error.kind.is_final() => return Err(error),
            Err(error) => unreachable.push(error),
        }
    }
    if clusters.is_empty() {
        return Err(unreachable.remove(0));
    }
    findings.extend(unreachable.into_iter().map(|error| Finding::doubtful(error.message)));
    clusters.dedup();
    if clusters.len() > 1 {
        findings.push(Finding::bad(
            "these servers belong to different clusters, so two candidates can both lead: name the servers of one cluster",
        ));
    }
    Ok(findings)
}

fn check_status(server: &str, status: &StatusResponse) -> Vec<Finding> {
    let version = &status.version;
    let mut findings = Vec::new();
    if status.leader == 0 {
        findings.push(Finding::bad(format!("etcd at {server} has no leader: too few members are up")));
    }
    for alarm in &status.errors {
        findings.push(Finding::bad(format!(
            "etcd at {server} has an alarm: {}: fix its cause (NOSPACE: compact and defragment), then etcdctl alarm \
             disarm",
            alarm.trim()
        )));
    }
    if findings.is_empty() {
        findings.push(Finding::good(format!("etcd {version} at {server} answers and has a leader")));
    }
    if may_revoke_what_was_renewed(version) {
        findings.push(Finding::doubtful(format!(
            "etcd {version} at {server} may end a lease that was renewed, if the disk of etcd's leader hangs, and two commands \
             may then run at once: upgrade to 3.4.31, 3.5.13 or later"
        )));
    }
    findings
}

/// Whether a member that led and whose disk hung still sends its revocations (etcd's issue 15247).
fn may_revoke_what_was_renewed(version: &str) -> bool {
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    match [(); 3].map(|()| numbers.next().unwrap_or(0)) {
        [3, 5, patch] => patch < 13,
        earlier_or_later => earlier_or_later < [3, 4, 31],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Verdict;

    fn verdicts(status: &StatusResponse) -> Vec<Verdict> {
        check_status("here", status).into_iter().map(|finding| finding.verdict).collect()
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        let revoking = ["2.3.8", "3.3.25", "3.4.30", "3.5.0", "3.5.0-rc.1", "3.5.12"].map(may_revoke_what_was_renewed);
        let mended = ["3.4.31", "3.5.13", "3.5.27", "3.6.0", "3.10.1", "4.0.0"].map(may_revoke_what_was_renewed);
        assert_eq!((revoking, mended), ([true; 6], [false; 6]));
    }

    #[test]
    fn a_member_that_cannot_serve_is_named() {
        let fine = StatusResponse { version: "3.4.31".into(), leader: 1, ..StatusResponse::default() };
        assert_eq!(verdicts(&fine), [Verdict::Good]);
        assert_eq!(verdicts(&StatusResponse { leader: 0, ..fine.clone() }), [Verdict::Bad]);
        let full = StatusResponse { errors: vec!["memberID:1 alarm:NOSPACE ".into()], ..fine };
        assert_eq!(verdicts(&full), [Verdict::Bad]);
    }
}
