//! The lock of other programs, held beside the lease.
//!
//! The hazards:
//!
//! - The lock must be held for as long as our tree may live. So it is taken after the lease, each renewal of the lease
//!   is followed by one of the lock, and it is given back before the lease. Revoking the lease does not free the lock.
//! - A lock that lives as long as a session of its server is freed as soon as its connection ends, though our tree
//!   still runs. So the guard keeps the connection open ([`ForeignLock::descriptor`]).
//! - If the lock is gone while we lead, another program may have led meanwhile. So the leadership is lost, except with
//!   PostgreSQL, where COMMAND goes on if the lock can be taken again. Our tree lives on for a while, so the lock is
//!   taken again, and no other program begins before the tree is dead. If the answer to that is lost, the next renewal
//!   must not believe that the lock was held all the time. So a lock that was taken again shows that ([`Hold::Lost`]).
//! - Another program that gives the lock back tells nobody. So a standby looks again and again while one holds it.

use super::error::in_short;
use super::{ErrorKind, Finding, Holder, StoreError};
use crate::lease::{Candidate, Term};
use crate::text::on_one_line;
use crate::time::{millis, millis_of_rfc3339, rfc3339, wall_clock_millis};
use serde_json::{Value, json};
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// The names under which a record may say who its writer is, and since when it leads.
const NAMES: [&str; 11] =
    ["instance_id", "leader", "leader_id", "leaderId", "LeaderID", "holder", "owner", "id", "instance", "node", "name"];
const HOSTS: [&str; 2] = ["hostname", "host"];
pub const STARTED: [&str; 3] = ["started_at", "startedAt", "StartedAt"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    Held,
    /// It was gone. We hold it again until the lease would end, but only a new claim makes it `Held`.
    Lost,
    Taken(Holder),
}

/// What a leader writes of itself into a lock that is a record: in the words of the other programs, and some of ours.
pub fn record(candidate: &Candidate, term: Term, started_millis: u64) -> Value {
    json!({
        "instance_id": candidate.owner,
        "hostname": candidate.host,
        "started_at": rfc3339(started_millis),
        "last_heartbeat": rfc3339(wall_clock_millis()),
        "pid": candidate.pid,
        "session": candidate.session,
        "lease_ms": millis(candidate.lease),
        "term": term,
    })
}

/// What a record, or a name by itself, says of its writer. Its times are those of the writer's clock: for people alone.
pub fn writer_of(value: &[u8]) -> Holder {
    let record = serde_json::from_slice::<Value>(value).unwrap_or_default();
    let find = |names: &[&str]| names.iter().find_map(|name| record.get(name)?.as_str());
    let short = |names: &[&str]| find(names).map(in_short).filter(|text| !text.is_empty());
    let time = |names: &[&str]| find(names).and_then(millis_of_rfc3339);
    let whole = || in_short(record.as_str().unwrap_or(&String::from_utf8_lossy(value)));
    let name = Some(short(&NAMES).unwrap_or_else(whole)).filter(|name| !name.is_empty());
    let ago = |at| Duration::from_millis(wall_clock_millis().saturating_sub(at));
    Holder {
        owner: name.unwrap_or_else(|| "a program without a name".to_owned()),
        host: short(&HOSTS),
        since_millis: time(&STARTED),
        renewed_ago: time(&["last_heartbeat"]).map(ago),
        ..Holder::default()
    }
}

/// A lock that other programs take too.
#[async_trait::async_trait]
pub trait ForeignLock: Send + Sync {
    /// Its name, for people; the same for all candidates of a shard.
    fn name(&self) -> String;

    /// Who has it, unless that is `candidate`.
    async fn holder(&self, candidate: Option<&Candidate>) -> Result<Option<Holder>, StoreError>;

    /// Takes it for as long as the lease lasts; if `again`, confirms that it was held since, and prolongs it.
    async fn take(&self, candidate: &Candidate, term: Term, again: bool) -> Result<Hold, StoreError>;

    /// Gives it back, if the candidate has it for this leadership or an earlier one. Term zero is any leadership.
    async fn let_go(&self, candidate: &Candidate, term: Term) -> Result<(), StoreError>;

    /// Returns when it may have been lost, as [`Leases::doubted`](super::Leases::doubted) does.
    async fn doubted(&self) {
        std::future::pending::<()>().await;
    }

    /// What must stay open while the tree lives: the guard inherits it.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Tries all that it takes to hold it, for `store check`. Who has it.
    async fn try_out(&self) -> Result<Option<Holder>, StoreError>;
}

/// What `store check` says of a lock.
pub async fn findings(lock: &dyn ForeignLock) -> Result<Vec<Finding>, StoreError> {
    let name = lock.name();
    let found = match lock.try_out().await {
        Ok(None) => Finding::good(format!("{name} is free")),
        Ok(Some(holder)) => Finding::good(format!("{name} is held by {}", on_one_line(holder.owner))),
        Err(error) if error.kind == ErrorKind::Denied => {
            return Ok(vec![Finding::bad(format!("permission missing: read and write {name}: {error}"))]);
        }
        Err(error) if error.kind == ErrorKind::Misconfigured => return Ok(vec![Finding::bad(error.message)]),
        Err(error) => return Err(error),
    };
    // A lock that lives as long as a session cannot be deleted.
    let doubt = lock.descriptor().is_none().then(|| {
        Finding::doubtful(format!(
            "the programs that take only {name} have no terms, and have to stop by themselves before their time is over; if \
             it is deleted or lost, another may take it at once, and two can lead until leaderrun notices: see \
             leaderrun-stores(7)"
        ))
    });
    Ok([Some(found), doubt].into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_writer_of_a_leader_record_is_named() {
        for (value, name, host) in [
            (r#"{"instance_id":"a","hostname":"h","session":"s"}"#, "a", Some("h")),
            (r#"{"leader":"b","host":"h"}"#, "b", Some("h")),
            (r#"{"LeaderID":"e","Term":2}"#, "e", None),
            ("\"c\"", "c", None),
            ("d 7\n", "d 7", None),
            ("{\"x\":1}", "{\"x\":1}", None),
            ("", "a program without a name", None),
        ] {
            let writer = writer_of(value.as_bytes());
            assert_eq!(
                (writer.owner.as_str(), writer.host.as_deref(), writer.since_millis),
                (name, host, None),
                "{value}"
            );
        }
    }
}
