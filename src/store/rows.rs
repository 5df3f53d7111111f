//! A table of leases with one row for each shard, as PostgreSQL and MySQL keep it: what a row means.
//!
//! The hazard: a row's values may be anything, because another program may have written them, or a user by hand. And a
//! statement may show the row as it was before or after the statement's own write. So the row alone does not prove that
//! a write was applied, unless only that write can have made it.

use super::allowance::{self, MOST_LISTED};
use super::notes::{self, NoteRead, Page};
use super::tls_mode::TlsMode;
use super::{EachPage, ErrorKind, Finding, Holder, Renewal, Report, StoreError};
use crate::lease::{Candidate, Session, Shard, Term};
use crate::time::whole_millis;
use std::time::Duration;

/// The session in the row of a lease that was revoked. No real session has this name.
pub const REVOKED: &str = "revoked";
/// The most rows in one answer.
pub const LIST_PAGE: usize = 500;
/// The most attempts of a claim or renewal. Each fails if another process writes in between.
pub const MOST_ATTEMPTS: usize = 5;
/// The most ended notes that one write removes. A write usually adds one.
pub const MOST_SWEPT: u32 = 100;
/// The names of the notes of standbys begin with this.
pub const STANDBY: &str = "standby/";
/// In milliseconds, 300 years. The calendars of these databases have an end.
pub const FOR_EVER: u64 = 10_000_000_000_000;

/// The name of `page` in a row.
pub fn page_name(page: &Page) -> String {
    match page {
        Page::Orders => "orders".to_owned(),
        Page::History => "history".to_owned(),
        Page::Standby(session) => format!("{STANDBY}{}", session.as_str()),
        Page::Runs => "runs".to_owned(),
        Page::Jobs => "jobs".to_owned(),
        Page::Once(job) => format!("once/{job}"),
    }
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// True if the lease was released, or its time is over.
    pub free: bool,
    pub released: bool,
    pub term: Term,
    pub session: Session,
    pub owner: String,
    pub host: String,
    pub pid: i64,
    pub beat: u64,
    pub sent: i64,
    pub lease: Duration,
    /// Since 1970.
    pub since: Duration,
    pub left: Duration,
}

impl Record {
    pub fn is_of(&self, candidate: &Candidate) -> bool {
        self.session == candidate.session
    }

    fn is_revoked(&self) -> bool {
        self.session.as_str() == REVOKED
    }

    pub fn holder(&self) -> Holder {
        if self.is_revoked() {
            let owner = format!("nobody (the lease of {} was revoked and has not ended)", self.owner);
            return Holder { owner, expires_in: Some(self.left), ..Holder::default() };
        }
        Holder {
            owner: self.owner.clone(),
            session: Some(self.session.clone()),
            host: Some(self.host.clone()).filter(|host| !host.is_empty()),
            pid: u32::try_from(self.pid).ok().filter(|&pid| pid != 0),
            term: Some(self.term),
            since_millis: Some(whole_millis(self.since)),
            expires_in: Some(self.left),
            renewed_ago: Some(self.lease.saturating_sub(self.left)),
            doubt: None,
            foreign_lock: None,
        }
    }
}

/// What the table has for a shard.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    Absent,
    Record(Record),
    /// A row that leaderrun did not write.
    Garbage,
}

impl Seen {
    /// As a list shows it.
    pub fn report(&self) -> Report {
        match self {
            Self::Record(record) => {
                Report { holder: (!record.free).then(|| record.holder()), last_term: Some(record.term) }
            }
            Self::Absent | Self::Garbage => Report { holder: Some(Holder::stranger()), last_term: None },
        }
    }

    /// What a renewal that changed no row found in its place. `again`: the statement was sent twice. None if the
    /// renewal must be sent again, because the row changed while the statement waited for it.
    pub fn instead_of_renewal(&self, candidate: &Candidate, term: Term, sequence: u64, again: bool) -> Option<Renewal> {
        match self {
            Self::Absent => Some(Renewal::Lost(None)),
            Self::Garbage => Some(Renewal::Lost(Some(Holder::stranger()))),
            _ if self.was_revoked(term) => Some(Renewal::Revoked),
            Self::Record(record) if !record.is_of(candidate) => {
                Some(Renewal::Lost(Some(record.holder()).filter(|_| !record.free)))
            }
            // It was released, or the row is from before our term: a restored row does not know us.
            Self::Record(record) if record.released || record.term < term => Some(Renewal::Lost(None)),
            // The statement was applied the first time.
            Self::Record(record) if record.term == term && record.beat == sequence && again => Some(Renewal::Renewed),
            Self::Record(record) if record.term > term || record.beat >= sequence => Some(Renewal::Overtaken),
            Self::Record(_) => None,
        }
    }

    /// Whether a release that was sent twice, and changed no row, was applied the first time.
    pub fn was_released(&self, candidate: &Candidate, sent: i64) -> bool {
        matches!(self, Self::Record(record) if record.released && record.is_of(candidate) && record.sent == sent)
    }

    /// Whether the row shows that the lease with this term was revoked.
    pub fn was_revoked(&self, term: Term) -> bool {
        matches!(self, Self::Record(record) if record.is_revoked() && record.term == term)
    }
}

/// A name for what a check writes and takes back.
pub fn scratch_name() -> Result<String, StoreError> {
    let random = Session::random();
    let random = random.map_err(|error| StoreError::not_applied(format!("no random bytes for a name: {error}")))?;
    Ok(format!("leaderctl-check-{}", random.as_str()))
}

/// What a look at a shard showed.
pub struct Look {
    pub seen: Seen,
    /// The holder of the session lock, if it is not one of our own sessions.
    pub stranger: Option<Holder>,
}

impl Look {
    pub fn holder(&self) -> Option<Holder> {
        match &self.seen {
            Seen::Record(record) if !record.free => Some(record.holder()),
            Seen::Record(_) | Seen::Absent | Seen::Garbage => self.stranger.clone(),
        }
    }

    pub fn report(&self) -> Report {
        let last_term = match &self.seen {
            Seen::Record(record) => Some(record.term),
            Seen::Absent | Seen::Garbage => None,
        };
        Report { holder: self.holder(), last_term }
    }
}

/// Lists the shards from their rows, in pages: the table may have many, and one request has limited time. `page` reads
/// those behind a name, in the order of their names. A name that is not text is None. A lock of other programs belongs
/// to one shard, and no row says to which.
pub async fn list<P: Future<Output = Result<Vec<(Option<String>, Seen)>, StoreError>> + Send>(
    server: &str,
    each: &mut EachPage<'_>,
    page: impl Fn(String) -> P + Send,
) -> Result<(), StoreError> {
    let (mut listed, mut last) = (0, String::new());
    loop {
        let rows = page(last).await?;
        let end = rows.last().filter(|_| rows.len() >= LIST_PAGE).map(|(name, _)| name.clone());
        // Another program may have written a name that no shard has.
        let shard = |(name, seen): (Option<String>, Seen)| Some((name?.parse::<Shard>().ok()?, seen.report()));
        let shards: Vec<_> = rows.into_iter().filter_map(shard).collect();
        listed += shards.len();
        if listed > MOST_LISTED {
            return Err(allowance::too_long(server));
        }
        each(shards);
        let Some(end) = end else { return Ok(()) };
        last = end.ok_or_else(|| StoreError::unknown(format!("cannot understand the answer of {server}")))?;
    }
}

/// Reads many notes. `page` reads some of them in one request.
pub async fn read_notes<'a, P: Future<Output = Result<Vec<NoteRead>, StoreError>> + Send>(
    wanted: &'a [(Shard, Page)],
    page: impl Fn(&'a [(Shard, Page)]) -> P + Send,
) -> Result<Vec<NoteRead>, StoreError> {
    let mut notes = Vec::with_capacity(wanted.len());
    for some in wanted.chunks(LIST_PAGE) {
        match page(some).await {
            Ok(read) => notes.extend(read),
            // It may be about one of them, and says nothing of the others.
            Err(error) => notes.extend(vec![notes::unless_store_fails(Err(error))?; some.len()]),
        }
    }
    Ok(notes)
}

/// The error about a row that leaderrun did not write.
pub fn foreign(shard: &Shard, table: &str) -> StoreError {
    StoreError::misconfigured(format!(
        "the row of shard {shard} in table {table} was written by something else: delete it, or use another table"
    ))
}

/// The error about a note that leaderrun did not write.
pub fn foreign_note(table: &str) -> StoreError {
    StoreError::misconfigured(format!("a row of table {table} was written by something else: delete it"))
}

/// Good, or what an operator must repair.
pub fn finding(tried: Result<(), StoreError>, good: &str) -> Result<Finding, StoreError> {
    match tried {
        Ok(()) => Ok(Finding::good(good)),
        Err(error) if matches!(error.kind, ErrorKind::Denied | ErrorKind::Misconfigured) => {
            Ok(Finding::bad(error.message))
        }
        Err(error) => Err(error),
    }
}

/// Whether a host of this name is another machine.
pub fn is_remote(name: &str) -> bool {
    name != "localhost" && !name.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

/// Whether the connection to another machine is encrypted. `strictest` and `ca` are options as the store has them.
pub fn encryption(encrypted: bool, mode: TlsMode, has_ca: bool, strictest: &str, ca: &str) -> Finding {
    let checked = match mode {
        TlsMode::VerifyFull | TlsMode::VerifyCa => true,
        TlsMode::Prefer | TlsMode::Require => has_ca,
        TlsMode::Disable => false,
    };
    match (encrypted, checked) {
        (true, true) => Finding::good("the connection is encrypted, and the server shows whose it is"),
        (true, false) => Finding::doubtful(format!(
            "the connection is encrypted, but the server is not verified: set {strictest} and {ca}=FILE"
        )),
        (false, _) => Finding::doubtful(format!("the connection is not encrypted: set {strictest}")),
    }
}
