//! The store `postgres://`: one row a shard in a table, judged by the server's clock.
//!
//! The hazards, and what stands against each:
//!
//! - Two candidates claim at once. `INSERT ... ON CONFLICT DO UPDATE ... WHERE` locks the row and then looks at the
//!   latest version of it, under READ COMMITTED as well: whoever comes second sees the first. Under a stricter isolation
//!   it fails (40001), which applied nothing. Every other write is an `UPDATE ... WHERE`, which does the same.
//! - A write arrives late: it waited for a row that somebody had locked, or in a connection that we gave up. A renewal
//!   names session, term and beat, and applies only over a lower beat. Claims and releases carry the instant at which
//!   they were sent, on the CLOCK_BOOTTIME that all processes of a session share; one that was sent before the last one
//!   that was applied does nothing.
//! - The table forgets: dropped, truncated, restored from a dump, recovered from a backup, or the server failed over to
//!   a replica that had not heard everything. A marker row says since when the table remembers. It is believed only if
//!   the transaction that it names wrote it (a restored row was written by another) and while the server's timeline is
//!   the one that it names (a failover and a recovery begin another). Else it is written anew, and whoever is granted a
//!   lease within a lease from then on has to wait (`Grant::start_after`), whatever the row says.
//! - Somebody deletes the row of a lease that is held. A rule on the table has it not happen (`provision`).
//! - The server's clock is set. Leases end by it, so they end early or late by that much. Nothing here can tell; a
//!   server whose clock is slewed, not set, has not the problem.
//! - Somebody ends a lease who does not hold it (`revoke`). Its row goes on as nobody's until the lease would have ended
//!   (`statement`), and only then is the next one granted.
//! - A pooler stands before the server (`session`, `listen`), or the connection is silent (`server`).

mod address;
mod advisory;
mod check;
mod failure;
mod grants;
mod notes;
mod secure;
mod server;
mod session;
mod statement;
mod watch;

pub use address::{Address, Place, TlsMode};

use super::allowance::{self, MOST_LISTED};
use super::{
    Administration, Claim, Delivery, Finding, Grant, Holder, Leases, Observation, Release, Renewal, Report, Store,
    StoreError, tls,
};
use crate::lease::{Candidate, Shard, Term};
use crate::time::BootInstant;
use advisory::{Advisory, Taken};
use failure::Site;
use grants::Relation;
use server::{Answer, Server};
use session::Session;
use statement::{LIST_PAGE, Record, Seen, integer, millis, number, numbers, seconds, text};
use std::os::fd::BorrowedFd;
use std::time::Duration;
use tokio_postgres::Row;
use watch::{News, POLL};

/// A claim or renewal that was contradicted asks again this often: somebody wrote in between.
const MOST_ATTEMPTS: usize = 5;
/// A stranger's advisory lock is looked at after so long, then less and less often.
const FIRST_LOOK: Duration = Duration::from_millis(100);
/// From the end of a connection to the next one.
const PAUSE: Duration = Duration::from_millis(50);

pub struct Postgres {
    server: Server,
    advisory: Option<Advisory>,
}

/// What a look at a shard showed.
struct Look {
    seen: Seen,
    /// Who holds the advisory lock, and is none of us.
    stranger: Option<Holder>,
}

impl Look {
    fn holder(&self) -> Option<Holder> {
        match &self.seen {
            Seen::Record(record) if !record.free => Some(record.holder()),
            Seen::Record(_) | Seen::Absent | Seen::Garbage => self.stranger.clone(),
        }
    }
}

impl Postgres {
    /// Connects to nothing yet.
    ///
    /// # Errors
    /// Misconfigured: no user, or files for TLS that cannot be used.
    #[expect(clippy::unused_async, reason = "as the other stores are opened")]
    pub async fn open(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        tls::install_provider();
        let server = Server::new(address, request_timeout)?;
        let advisory = address.advisory_lock.map(Advisory::new).transpose()?;
        Ok(Self { server, advisory })
    }

    fn garbage(&self, shard: &Shard) -> StoreError {
        let table = &self.server.statements.table;
        StoreError::misconfigured(format!(
            "the row of shard {shard} in table {table} was written by something else: delete it, or use another table"
        ))
    }

    fn not_understood(&self) -> StoreError {
        StoreError::unknown(format!("cannot understand the answer of {}", self.server.site.server))
    }

    fn first<'a>(&self, answer: &'a Answer) -> Result<&'a Row, StoreError> {
        answer.rows.first().ok_or_else(|| self.not_understood())
    }

    async fn look(&self, shard: &Shard) -> Result<Look, StoreError> {
        let ours = self.advisory.as_ref().map(Advisory::own_pids).unwrap_or_default();
        let name = shard.as_str();
        let parameters = [text(&name), numbers(&ours)];
        let answer = self.server.ask(|_| self.server.statements.look(), &parameters, self.server.deadline()).await?;
        let row = self.first(&answer)?;
        let seen = Seen::read(row);
        if seen == Seen::Garbage {
            return Err(self.garbage(shard));
        }
        let pid = row.try_get::<_, Option<i64>>(0).ok().flatten();
        let stranger = self.advisory.as_ref().zip(pid).map(|(advisory, pid)| {
            advisory.stranger(pid, row.try_get(1).unwrap_or_default(), row.try_get(2).unwrap_or_default())
        });
        Ok(Look { seen, stranger })
    }

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
            let statement = |session: &session::Session| self.server.statements.claim(session.has_timeline);
            let answer = self.server.ask(statement, &parameters, deadline).await?;
            let row = self.first(&answer)?;
            let seen = Seen::read(row);
            let term: Option<i64> = row.try_get(0).map_err(|_| self.not_understood())?;
            if let Some(term) = term {
                let term = Term(u64::try_from(term).map_err(|_| self.garbage(shard))?);
                let remembered = row.try_get(1).map_err(|_| self.not_understood())?;
                return Ok(Claim::Granted(Grant { term, start_after: start_after(*lease, remembered, &seen) }));
            }
            match seen {
                Seen::Garbage => return Err(self.garbage(shard)),
                Seen::Record(record) if !record.free && !record.is_of(candidate) => {
                    return Ok(Claim::Refused(record.holder()));
                }
                // Somebody was faster; the statement began before.
                Seen::Record(_) | Seen::Absent => {}
            }
        }
        Err(contradicted(shard))
    }

    async fn renew_row(&self, candidate: &Candidate, term: Term, beat: u64) -> Result<(Renewal, bool), StoreError> {
        let backend = self.advisory.as_ref().and_then(Advisory::backend);
        let (shard, session) = (candidate.shard.as_str(), candidate.session.as_str());
        let (term_number, beat_number, lease) = (integer(term.0), integer(beat), millis(candidate.lease));
        let (pid, started) = backend.map_or((0, 0), |backend| (i64::from(backend.pid), backend.started));
        let parameters = [
            text(&shard),
            text(&session),
            number(&term_number),
            number(&beat_number),
            number(&lease),
            number(&pid),
            number(&started),
        ];
        let (statement, deadline) = (self.server.statements.renew(), self.server.deadline());
        for _ in 0..MOST_ATTEMPTS {
            let answer = self.server.ask_urgently(&statement, &parameters, deadline).await?;
            let row = self.first(&answer)?;
            let flag = |column| row.try_get::<_, bool>(column).map_err(|_| self.not_understood());
            let (applied, locked) = (flag(0)?, flag(1)?);
            if applied {
                return Ok((Renewal::Renewed, locked));
            }
            match Seen::read(row) {
                Seen::Absent => return Ok((Renewal::Lost(None), locked)),
                Seen::Garbage => {
                    let owner = "something that writes other rows".to_owned();
                    return Ok((Renewal::Lost(Some(Holder { owner, ..Holder::default() })), locked));
                }
                Seen::Record(record) if !record.is_of(candidate) => {
                    return Ok((Renewal::Lost(Some(record.holder()).filter(|_| !record.free)), locked));
                }
                // Released, or the row is from before our term: what was restored does not know us.
                Seen::Record(record) if record.released || record.term < term => {
                    return Ok((Renewal::Lost(None), locked));
                }
                // It went twice, and was applied the first time.
                Seen::Record(record) if record.term == term && record.beat == beat && answer.again => {
                    return Ok((Renewal::Renewed, locked));
                }
                Seen::Record(record) if record.term > term || record.beat >= beat => {
                    return Ok((Renewal::Overtaken, locked));
                }
                // The row changed while the statement waited for it.
                Seen::Record(_) => {}
            }
        }
        Err(contradicted(&candidate.shard))
    }
}

fn contradicted(shard: &Shard) -> StoreError {
    StoreError::unknown(format!("the row of shard {shard} changes faster than it can be taken"))
}

/// When whatever tree ran before is surely dead. None when the table knows that it is.
///
/// `remembered`: for how many seconds; None where it began to just now. What was granted before that, and is not known,
/// is as long as what is asked for, or what the row speaks of. The end is counted from the answer, for the table may
/// have forgotten while the request was under way.
fn start_after(lease: Duration, remembered: Option<f64>, before: &Seen) -> Option<BootInstant> {
    let longest = match before {
        Seen::Record(record) => lease.max(record.lease),
        Seen::Absent | Seen::Garbage => lease,
    };
    let left = longest.saturating_sub(remembered.map_or(Duration::ZERO, seconds));
    (!left.is_zero()).then(|| BootInstant::now().plus(left))
}

/// Lets the advisory lock go unless the claim was granted, also when the claim is cut off.
struct Provisional<'a>(Option<&'a Advisory>);

impl Drop for Provisional<'_> {
    fn drop(&mut self) {
        if let Some(advisory) = self.0 {
            advisory.abandon();
        }
    }
}

#[async_trait::async_trait]
impl Leases for Postgres {
    async fn claim(&self, candidate: &Candidate) -> Result<Claim, StoreError> {
        let sent = BootInstant::now();
        let Some(advisory) = &self.advisory else { return self.claim_row(candidate, sent).await };
        // The lock first: who has the row and not the lock would keep others of us from it for nothing.
        let mut provisional = Provisional(Some(advisory));
        if let Taken::Theirs(stranger) = advisory.take(&self.server, candidate.lease).await? {
            // A leader of ours holds both, and its row tells more; our own, of a leadership that was lost, tells nothing.
            let holder = self.look(&candidate.shard).await?.holder();
            let holder = holder.filter(|holder| holder.session.as_ref() != Some(&candidate.session));
            return Ok(Claim::Refused(holder.unwrap_or(stranger)));
        }
        let claim = self.claim_row(candidate, sent).await?;
        match &claim {
            Claim::Granted(_) => provisional.0 = None,
            Claim::Refused(_) => advisory.let_go(&self.server).await,
        }
        Ok(claim)
    }

    async fn observe(&self, shard: &Shard) -> Result<Observation, StoreError> {
        Ok(self.look(shard).await?.holder().map_or(Observation::Free, Observation::Held))
    }

    async fn renew(&self, candidate: &Candidate, term: Term, beat: u64) -> Result<Renewal, StoreError> {
        let (renewal, locked) = self.renew_row(candidate, term, beat).await?;
        let Some(advisory) = &self.advisory else { return Ok(renewal) };
        match renewal {
            Renewal::Lost(_) => Ok(renewal),
            Renewal::Renewed | Renewal::Overtaken if locked && advisory.backend().is_some() => Ok(renewal),
            Renewal::Renewed | Renewal::Overtaken => match advisory.take(&self.server, candidate.lease).await? {
                Taken::Ours => Ok(renewal),
                Taken::Theirs(stranger) => Ok(Renewal::Lost(Some(stranger))),
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
        let before = match Seen::read(row) {
            // It went twice, and was applied the first time.
            Seen::Record(record) => answer.again && record.released && record.is_of(candidate) && record.sent == sent,
            Seen::Absent | Seen::Garbage => false,
        };
        Ok(if applied || before { Release::Released } else { Release::NotHeld })
    }

    async fn changed(&self, shard: &Shard) -> Result<(), StoreError> {
        loop {
            let mut subscription = self.server.subscribe().await?;
            let mut pause = FIRST_LOOK;
            loop {
                let look = self.look(shard).await?;
                let Some(holder) = look.holder() else { return Ok(()) };
                let at_most = match (&look.stranger, &self.advisory) {
                    _ if !subscription.pushes => Some(POLL),
                    // Whoever holds the lock alone tells nobody when it lets it go.
                    (Some(_), _) if holder.session.is_none() => {
                        pause = (pause * 2).min(POLL);
                        Some(pause)
                    }
                    // A lock outlives its row when its holder vanished, so the end of the row is not the end of it.
                    (_, Some(_)) => holder.expires_in.map(|left| left + POLL / 4),
                    (_, None) => None,
                };
                match subscription.news(std::slice::from_ref(shard), at_most).await {
                    News::Released(_) => return Ok(()),
                    News::Silence => {}
                    News::Ended => break,
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// One connection hears of them all. With an advisory lock there is no more than one.
    async fn any_changed(&self, shards: &[Shard]) -> Result<usize, StoreError> {
        if let [shard] = shards {
            return self.changed(shard).await.map(|()| 0);
        }
        loop {
            let mut subscription = self.server.subscribe().await?;
            loop {
                for (index, shard) in shards.iter().enumerate() {
                    if self.look(shard).await?.holder().is_none() {
                        return Ok(index);
                    }
                }
                match subscription.news(shards, (!subscription.pushes).then_some(POLL)).await {
                    News::Released(index) => return Ok(index),
                    News::Silence => {}
                    News::Ended => break,
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn doubted(&self, _shard: &Shard) {
        match &self.advisory {
            None => std::future::pending().await,
            Some(advisory) => {
                if let Some(end) = advisory.end() {
                    session::ended(end).await;
                }
            }
        }
    }

    fn with_lease_files(&self, _shard: &Shard, act: &mut dyn FnMut(&[BorrowedFd<'_>])) {
        match &self.advisory {
            None => act(&[]),
            Some(advisory) => act(&[advisory.tenure()]),
        }
    }
}

#[async_trait::async_trait]
impl Administration for Postgres {
    async fn inspect(&self, shard: &Shard) -> Result<Report, StoreError> {
        let look = self.look(shard).await?;
        let last_term = match &look.seen {
            Seen::Record(Record { term, .. }) => Some(*term),
            Seen::Absent | Seen::Garbage => None,
        };
        Ok(Report { holder: look.holder(), last_term })
    }

    /// What the rows tell. An advisory lock that a stranger holds is of one shard, and no row tells of which.
    async fn list(&self, prefix: &str) -> Result<Vec<(Shard, Report)>, StoreError> {
        let (mut list, mut after) = (Vec::new(), String::new());
        loop {
            let parameters = [text(&prefix), text(&after)];
            let statement = |_: &Session| self.server.statements.list();
            let answer = self.server.ask(statement, &parameters, self.server.deadline()).await?;
            for row in &answer.rows {
                // A name that is no shard's was written by something else.
                let Ok(Ok(shard)) = row.try_get::<_, &str>(0).map(str::parse::<Shard>) else { continue };
                let report = match Seen::read(row) {
                    Seen::Record(record) => {
                        Report { holder: (!record.free).then(|| record.holder()), last_term: Some(record.term) }
                    }
                    Seen::Absent | Seen::Garbage => Report { holder: Some(Holder::stranger()), last_term: None },
                };
                list.push((shard, report));
            }
            if list.len() > MOST_LISTED {
                return Err(StoreError::misconfigured(allowance::too_long(&self.server.site.server)));
            }
            let Some(end) = answer.rows.last().filter(|_| answer.rows.len() >= LIST_PAGE) else { break };
            after = end.try_get(0).map_err(|_| self.not_understood())?;
        }
        list.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(list)
    }

    /// The row stays: see `statement`. A session that holds the advisory lock keeps that until its holder notices.
    async fn revoke(&self, shard: &Shard, term: Term) -> Result<Release, StoreError> {
        let (shard, term_number) = (shard.as_str(), integer(term.0));
        let parameters = [text(&shard), number(&term_number), text(&self.server.channel)];
        let answer = self.server.ask(|_| self.server.statements.revoke(), &parameters, self.server.deadline()).await?;
        let row = self.first(&answer)?;
        let applied: bool = row.try_get(0).map_err(|_| self.not_understood())?;
        let before = match Seen::read(row) {
            // It went twice, and was applied the first time.
            Seen::Record(record) => answer.again && record.is_revoked() && record.term == term,
            Seen::Absent | Seen::Garbage => false,
        };
        Ok(if applied || before { Release::Released } else { Release::NotHeld })
    }

    /// The rule on the table lets a row be deleted that was released. A candidate that is granted the lease in between
    /// keeps the row, and its term.
    async fn forget(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        let (shard, session, statements) =
            (candidate.shard.as_str(), candidate.session.as_str(), &self.server.statements);
        let table = Relation { privileges: &["DELETE"], ..self.server.site.table.clone() };
        let site = Site { table, ..self.server.site.clone() };
        let delete = async |session: &str| {
            let parameters = [text(&shard), text(&session)];
            self.server.ask_about(&site, |_| statements.forget(), &parameters, self.server.deadline()).await
        };
        // Before anything is gone: no session has this name, but who may not delete is told so.
        delete("").await?;
        self.forget_notes(&candidate.shard).await?;
        let released = self.release(candidate, term).await?;
        if released == Release::Released {
            delete(session).await?;
        }
        Ok(released)
    }

    async fn prepare(&self) -> Result<Vec<String>, StoreError> {
        check::prepare(&self.server).await
    }

    async fn check(&self) -> Result<Vec<Finding>, StoreError> {
        check::check(&self.server, self.advisory.as_ref()).await
    }
}

impl Store for Postgres {
    /// Whoever finds the one that is kept in use makes another, and closes it afterwards.
    fn lanes(&self) -> usize {
        2
    }

    fn delivery(&self) -> Delivery {
        Delivery::Push
    }
}
