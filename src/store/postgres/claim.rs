//! Claims, looks, renewals and releases: each is one statement, with the advisory lock if there is one.
//!
//! The hazards are those of the store: see its module.

use super::statement::{integer, millis, number, seconds, seen, text};
use super::{Postgres, connection};
use crate::lease::{Candidate, Shard, Term};
use crate::store::error::contradicted;
use crate::store::rows::{MOST_ATTEMPTS, Seen};
use crate::store::session_lock::{DOUBT_PAUSE, Taken};
use crate::store::{Claim, Doubt, ErrorKind, Grant, Leases, Note, Observation, Release, Renewal, Renewed, StoreError};
use crate::time::BootInstant;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long renewals go without orders after one that was to bring them has failed.
const ORDERS_APART_FOR: Duration = Duration::from_mins(1);

#[async_trait::async_trait]
impl Leases for Postgres {
    async fn claim(&self, candidate: &Candidate) -> Result<Claim, StoreError> {
        let sent = BootInstant::now();
        let Some(advisory) = &self.advisory else { return self.claim_row(candidate, sent).await };
        let server = &self.server;
        let look = async { Ok(self.look(&candidate.shard).await?.holder()) };
        let (take, let_go) = (advisory.take(server, candidate.lease), advisory.let_go(server));
        let claim = self.claim_row(candidate, sent);
        Box::pin(advisory.lock.claim(&candidate.session, take, look, claim, let_go)).await
    }

    async fn observe(&self, shard: &Shard) -> Result<Observation, StoreError> {
        Ok(self.look(shard).await?.holder().map_or(Observation::Free, Observation::Held))
    }

    async fn renew_and_read(
        &self,
        candidate: &Candidate,
        term: Term,
        sequence: u64,
        shards: &[Shard],
    ) -> Result<Renewed, StoreError> {
        let (renewal, locked, orders) = self.renew_with_orders(candidate, term, sequence, shards).await?;
        let Some(advisory) = &self.advisory else { return Ok(Renewed { renewal, orders }) };
        match renewal {
            Renewal::Lost(_) => Ok(Renewed::alone(renewal)),
            Renewal::Renewed | Renewal::Overtaken if locked && advisory.lock.held().is_some() => {
                Ok(Renewed { renewal, orders })
            }
            Renewal::Renewed | Renewal::Overtaken => match advisory.take(&self.server, candidate.lease).await? {
                Taken::Ours => Ok(Renewed { renewal, orders }),
                Taken::Theirs(stranger) => Ok(Renewed::alone(Renewal::Lost(Some(stranger)))),
            },
        }
    }

    async fn release(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        let sent = integer(BootInstant::now().as_nanos());
        // The lock first, so that the standbys that the row wakes find it free. The tree is dead.
        if let Some(advisory) = &self.advisory {
            advisory.let_go(&self.server).await;
        }
        let (shard, session, term) = (candidate.shard.as_str(), candidate.session.as_str(), integer(term.0));
        let parameters = [text(&shard), text(&session), number(&term), number(&sent), text(&self.server.channel)];
        let answer = self.server.ask(|_| self.server.statements.release(), &parameters, self.server.deadline()).await?;
        let row = self.first(&answer)?;
        let applied: bool = row.try_get(0).map_err(|_| self.not_understood())?;
        let before = answer.again && seen(row).was_released(candidate, sent);
        Ok(if applied || before { Release::Released } else { Release::NotHeld })
    }

    async fn changed(&self, shard: &Shard) -> Result<(), StoreError> {
        self.wait_for_change(shard).await
    }

    async fn any_changed(&self, shards: &[Shard]) -> Result<usize, StoreError> {
        self.wait_for_any_change(shards).await
    }

    async fn doubted(&self, _shard: &Shard) {
        let Some(advisory) = &self.advisory else { return std::future::pending().await };
        let end = advisory.lock.held().map(|connection| connection.end());
        match end {
            Some(end) => connection::ended(end).await,
            None => tokio::time::sleep(DOUBT_PAUSE).await,
        }
    }

    fn with_lease_files(&self, _shard: &Shard, act: &mut dyn FnMut(&[BorrowedFd<'_>])) {
        match &self.advisory {
            None => act(&[]),
            Some(advisory) => act(&[advisory.lock.descriptor()]),
        }
    }
}

impl Postgres {
    async fn claim_row(&self, candidate: &Candidate, sent: BootInstant) -> Result<Claim, StoreError> {
        let Candidate { shard, owner, session, host, pid, lease } = candidate;
        let (shard_name, session) = (shard.as_str(), session.as_str());
        let (pid, sent, lease_millis) = (i64::from(*pid), integer(sent.as_nanos()), millis(*lease));
        let parameters = [
            text(&shard_name),
            text(&session),
            text(owner),
            text(host),
            number(&pid),
            number(&sent),
            number(&lease_millis),
        ];
        let deadline = self.server.deadline();
        for _ in 0..MOST_ATTEMPTS {
            let statement = |connection: &connection::Connection| self.server.statements.claim(connection.has_timeline);
            let answer = self.server.ask(statement, &parameters, deadline).await?;
            let row = self.first(&answer)?;
            let seen = seen(row);
            let granted: Option<i64> = row.try_get(0).map_err(|_| self.not_understood())?;
            let granted = granted.map(u64::try_from).transpose().map_err(|_| self.garbage(shard))?.map(Term);
            let term = match &seen {
                // A row with the instant of this very claim is from the first of two attempts.
                Seen::Record(record) if record.is_of(candidate) && !record.free && record.sent == sent => {
                    granted.or(Some(record.term))
                }
                Seen::Record(_) | Seen::Absent | Seen::Garbage => granted,
            };
            if let Some(term) = term {
                let remembered = row.try_get(1).map_err(|_| self.not_understood())?;
                return Ok(Claim::Granted(Grant {
                    term,
                    start_after: start_after(*lease, remembered, &seen),
                    doubt: if matches!(seen, Seen::Absent) { Doubt::FirstUse } else { Doubt::Forgotten },
                }));
            }
            match seen {
                Seen::Garbage => return Err(self.garbage(shard)),
                Seen::Record(record) if !record.free && !record.is_of(candidate) => {
                    return Ok(Claim::Refused(record.holder()));
                }
                // Another candidate was faster; the statement began before its write.
                Seen::Record(_) | Seen::Absent => {}
            }
        }
        Err(contradicted(shard))
    }

    /// Renews, and reads the orders of `shards` in the same statement, unless that has failed a short time ago.
    ///
    /// A statement that names a table which is missing, denied or locked does nothing else either. The lease must not
    /// suffer from that.
    async fn renew_with_orders(
        &self,
        candidate: &Candidate,
        term: Term,
        sequence: u64,
        shards: &[Shard],
    ) -> Result<(Renewal, bool, Option<Vec<Option<Note>>>), StoreError> {
        let now = BootInstant::now().as_nanos();
        if shards.is_empty() || now < self.orders_apart_until.load(Ordering::Relaxed) {
            return self
                .renew_row(candidate, term, sequence, &[])
                .await
                .map(|(renewal, locked, _)| (renewal, locked, None));
        }
        match self.renew_row(candidate, term, sequence, shards).await {
            Ok(answer) => Ok(answer),
            Err(error) => {
                let until = BootInstant::now().plus(ORDERS_APART_FOR);
                self.orders_apart_until.store(until.as_nanos(), Ordering::Relaxed);
                match error.kind {
                    ErrorKind::Denied | ErrorKind::Misconfigured => {
                        let (renewal, locked, _) = self.renew_row(candidate, term, sequence, &[]).await?;
                        Ok((renewal, locked, None))
                    }
                    ErrorKind::NotApplied | ErrorKind::Unknown => Err(error),
                }
            }
        }
    }

    async fn renew_row(
        &self,
        candidate: &Candidate,
        term: Term,
        sequence: u64,
        shards: &[Shard],
    ) -> Result<(Renewal, bool, Option<Vec<Option<Note>>>), StoreError> {
        let backend = self.advisory.as_ref().and_then(|advisory| Some(advisory.lock.held()?.backend));
        let (shard, session) = (candidate.shard.as_str(), candidate.session.as_str());
        let (term_number, sequence_number, lease) = (integer(term.0), integer(sequence), millis(candidate.lease));
        let (pid, started) = backend.map_or((0, 0), |backend| (i64::from(backend.pid), backend.started));
        let orders_of: Vec<&str> = shards.iter().map(Shard::as_str).collect();
        let mut parameters = vec![
            text(&shard),
            text(&session),
            number(&term_number),
            number(&sequence_number),
            number(&lease),
            number(&pid),
            number(&started),
        ];
        parameters.extend(orders_of.iter().map(text));
        let (statement, deadline) = (self.server.statements.renew(shards.len()), self.server.deadline());
        for _ in 0..MOST_ATTEMPTS {
            let answer = self.server.ask_urgently(&self.server.site, &statement, &parameters, deadline).await?;
            let row = self.first(&answer)?;
            let flag = |column| row.try_get::<_, bool>(column).map_err(|_| self.not_understood());
            let (applied, locked) = (flag(0)?, flag(1)?);
            let is = |renewal| Ok((renewal, locked, Self::orders_in(row, shards.len())));
            if applied {
                return is(Renewal::Renewed);
            }
            if let Some(renewal) = seen(row).instead_of_renewal(candidate, term, sequence, answer.again) {
                return is(renewal);
            }
        }
        Err(contradicted(&candidate.shard))
    }
}

/// When every earlier tree is certainly dead. None if the table knows that it is.
///
/// `remembered` is for how many seconds the table has remembered; None if it has just begun to. Leases from before that
/// are unknown: they count as long as the one that is requested, or as the one in the row. The end is counted from the
/// answer, because the table may have forgotten while the request was under way.
fn start_after(lease: Duration, remembered: Option<f64>, before: &Seen) -> Option<BootInstant> {
    let longest = match before {
        Seen::Record(record) => lease.max(record.lease),
        Seen::Absent | Seen::Garbage => lease,
    };
    let left = longest.saturating_sub(remembered.map_or(Duration::ZERO, seconds));
    (!left.is_zero()).then(|| BootInstant::now().plus(left))
}
