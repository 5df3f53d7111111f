//! `leaderctl store init` and `leaderctl store check` for etcd.
//!
//! The hazard: a server that works today may be a member that is about to be alone, or the listed servers may be two
//! clusters. So a check asks every server that the URL names, and not only the first that answers.

use super::claim::given_back;
use super::connection::Connection;
use super::list::after_all;
use super::proto::{
    LEASE_REVOKE, LeaseRevokeRequest, Nothing, STATUS, StatusResponse, TXN, TxnRequest, TxnResponse, delete,
    delete_range, get, is_unchanged, put,
};
use super::record::{Base, Entry, EtcdLease, Last, Lock, View, read, written};
use super::unclaimed::UnclaimedLeases;
use super::{Etcd, MOST_ATTEMPTS, list};
use crate::lease::{Candidate, Session, Shard, Term};
use crate::store::{
    Administration, EachPage, ErrorKind, Finding, Page, Release, Report, StoreError, Verdict, round_trip,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SCRATCH_LEASE: Duration = Duration::from_secs(10);

#[async_trait::async_trait]
impl Administration for Etcd {
    async fn inspect(&self, shard: &Shard) -> Result<Report, StoreError> {
        self.client.operate(|connection| Box::pin(self.inspect_on(connection, shard))).await
    }

    async fn list_in_pages(&self, prefix: &str, each: &mut EachPage<'_>) -> Result<(), StoreError> {
        list::list(self, prefix, each).await
    }

    async fn revoke(&self, shard: &Shard, term: Term) -> Result<Release, StoreError> {
        self.client.operate(|connection| Box::pin(self.revoke_on(connection, shard, term))).await
    }

    async fn forget(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        let asked = AtomicBool::new(false);
        let forget = |connection| self.forget_on(connection, candidate, term, asked.swap(true, Ordering::Relaxed));
        self.client.operate(|connection| Box::pin(forget(connection))).await
    }

    async fn prepare(&self) -> Result<Vec<String>, StoreError> {
        let founded = self.client.bounded(async {
            let connection = self.client.connection().await?;
            let found = self.get(&connection, self.keys.base()).await?;
            let founded = match found.kvs.first() {
                Some(kv) => {
                    read::<Base>(&connection.server, kv)?;
                    false
                }
                None => self.found(&connection, None).await?,
            };
            Ok((founded, connection.server.clone()))
        });
        let (founded, server) = founded.await?;
        let prefix = &self.keys.prefix;
        Ok(vec![if founded {
            format!("wrote into etcd at {server} that the prefix {prefix} remembers from now on")
        } else {
            format!("the prefix {prefix} in etcd at {server} is there already")
        }])
    }

    async fn vouch(&self) -> Result<(), StoreError> {
        let vouched = self.client.bounded(async {
            let connection = self.client.connection().await?;
            let request = TxnRequest { success: vec![delete(&self.keys.young())], ..TxnRequest::default() };
            let _: TxnResponse = self.client.call(&connection, TXN, request).await?;
            Ok(())
        });
        vouched.await
    }

    async fn check(&self) -> Result<Vec<Finding>, StoreError> {
        let mut findings = Vec::new();
        check_members(self, &mut findings).await?;
        if self.client.user_is_of_no_use() {
            findings.push(Finding::doubtful("a user is named, but authentication is off in etcd: etcdctl auth enable"));
        }
        if findings.iter().any(|finding| finding.verdict == Verdict::Bad) {
            return Ok(findings);
        }
        if check_permissions(self, &mut findings).await? {
            check_prefix(self, &mut findings).await?;
            check_speed(self, &mut findings).await?;
        }
        Ok(findings)
    }
}

impl Etcd {
    async fn inspect_on(&self, connection: Arc<Connection>, shard: &Shard) -> Result<Report, StoreError> {
        let view = self.look(&connection, shard).await?;
        let holder = match &view.lock {
            Some(lock) => Some(self.holder(&connection, lock).await?),
            None => None,
        };
        Ok(Report { holder, last_term: view.last_known().map(Entry::<Last>::term) })
    }

    /// Deletes the lock, and leaves its etcd lease alone: while that lives, the next holder of the lock waits for the
    /// old holder's tree. The record of the last leadership stays too, unless it is not the one that was written with
    /// this lock.
    async fn revoke_on(&self, connection: Arc<Connection>, shard: &Shard, term: Term) -> Result<Release, StoreError> {
        let (lock_key, last_key) = (self.keys.lock(shard), self.keys.last(shard));
        for _ in 0..MOST_ATTEMPTS {
            let View { lock, last, .. } = self.look(&connection, shard).await?;
            let Some(lock) = lock.filter(|lock| lock.term() == term) else { return Ok(Release::NotHeld) };
            let mut success = vec![delete(&lock_key)];
            let last_revision = last.as_ref().map_or(0, |last| last.mod_revision);
            if let Some(last) = unreleased(&lock, last) {
                success.push(put(&last_key, written(&last), 0));
            }
            let request = TxnRequest {
                compare: vec![is_unchanged(&lock_key, lock.mod_revision), is_unchanged(&last_key, last_revision)],
                success,
                failure: Vec::new(),
            };
            let answer: TxnResponse = self.client.call(&connection, TXN, request).await?;
            if answer.succeeded {
                return Ok(Release::Released);
            }
        }
        Err(StoreError::not_applied(format!("the lock of shard {shard} changes faster than it can be taken away")))
    }

    /// Removes everything in one step. Terms count on from the revision, so nothing has to stay. `again` is true after
    /// a request whose answer was lost.
    async fn forget_on(
        &self,
        connection: Arc<Connection>,
        candidate: &Candidate,
        term: Term,
        again: bool,
    ) -> Result<Release, StoreError> {
        let (shard, keys) = (&candidate.shard, &self.keys);
        let (lock_key, last_key) = (keys.lock(shard), keys.last(shard));
        for _ in 0..MOST_ATTEMPTS {
            let View { lock, last, base, .. } = self.look(&connection, shard).await?;
            let mine = |lock: &Entry<Lock>| lock.record.session == candidate.session && lock.term() == term;
            let as_we_leave_it = |last: &Entry<Last>| {
                last.record.released && last.record.session == candidate.session && last.term() == term
            };
            let is_gone = again && lock.is_none() && last.as_ref().is_none_or(as_we_leave_it);
            let Some(lock) = lock.filter(mine) else {
                if is_gone {
                    self.known.lock().remove(shard);
                }
                return Ok(if is_gone { Release::Released } else { Release::NotHeld });
            };
            let mut success = vec![delete(&lock_key), delete(&keys.copy(shard))];
            // The base must stay if the terms counted from a higher base than the present one.
            let is_ahead = base.is_none_or(|base| lock.record.term_offset > base.term_offset());
            success.push(if is_ahead { put(&last_key, written(&given_back(&lock)), 0) } else { delete(&last_key) });
            success.extend([Page::Orders, Page::History, Page::Runs].map(|page| delete(&keys.note(shard, &page))));
            let many = keys.many_notes(shard).map(String::into_bytes);
            success.extend(many.map(|key| delete_range(key.clone(), after_all(&key))));
            let request =
                TxnRequest { compare: vec![is_unchanged(&lock_key, lock.mod_revision)], success, failure: Vec::new() };
            let answer: TxnResponse = self.client.call(&connection, TXN, request).await?;
            if answer.succeeded {
                UnclaimedLeases::revoke_later(&self.unclaimed, lock.lease);
                self.known.lock().remove(shard);
                return Ok(Release::Released);
            }
        }
        Err(StoreError::not_applied(format!("the lock of shard {shard} changes faster than it can be forgotten")))
    }
}

/// The record that must be beside a lock after the lock is gone, so that candidates wait for its tree. None: it is
/// there already.
fn unreleased(lock: &Entry<Lock>, last: Option<Entry<Last>>) -> Option<Last> {
    let etcd_lease = EtcdLease { id: lock.lease, lease_ms: lock.record.lease_ms };
    let (mut young, mut before) = (false, Vec::new());
    if let Some(Entry { record: last, .. }) = last {
        if last.etcd_lease.id == etcd_lease.id && !last.released {
            return None;
        }
        // The record was changed by hand. Candidates must also wait for the leader that it names.
        (young, before) = (last.young, last.before);
        if !last.released {
            before.push(last.etcd_lease);
        }
    }
    let Lock { session, term_offset, .. } = lock.record.clone();
    Some(Last { session, etcd_lease, term_offset, term: Some(lock.term().0), released: false, young, before })
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
        (Some(Ok(Entry { .. })), Some(young)) if young.lease == 0 => Finding::doubtful(format!(
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

    #[test]
    fn the_record_beside_a_revoked_lock_names_its_leadership() {
        let lease = |id| EtcdLease { id, lease_ms: 15_000 };
        let lock = Lock {
            owner: "o".to_owned(),
            session: Session::from_record("s"),
            host: "h".to_owned(),
            pid: 1,
            lease_ms: 15_000,
            since_ms: 1,
            term_offset: 3,
        };
        let lock = Entry { record: lock, create_revision: 9, mod_revision: 9, lease: 7 };
        let last = |id, released| {
            let session = Session::from_record("s");
            let (etcd_lease, before) = (lease(id), vec![lease(1)]);
            let record = Last { session, etcd_lease, term_offset: 3, term: None, released, young: true, before };
            Some(Entry { record, create_revision: 9, mod_revision: 9, lease: 0 })
        };
        assert!(unreleased(&lock, last(7, false)).is_none(), "it is left alone");
        let absent = unreleased(&lock, None).expect("it is written");
        assert_eq!(
            (absent.etcd_lease, absent.term, absent.released, absent.before),
            (lease(7), Some(12), false, Vec::new())
        );
        let released = unreleased(&lock, last(7, true)).expect("it is written");
        assert_eq!((released.released, released.young, released.before), (false, true, vec![lease(1)]));
        let other = unreleased(&lock, last(5, false)).expect("it is written");
        assert_eq!((other.etcd_lease, other.before), (lease(7), vec![lease(1), lease(5)]));
    }
}
