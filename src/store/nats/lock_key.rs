//! `lock_key=BUCKET/KEY`: a key of other programs that is held in addition to the lease, so that leaderrun and programs
//! that elect with a leader record in a key-value bucket exclude each other.
//!
//! Such programs create the key if nothing is in it, update it at the revision that they wrote last, and delete it when
//! they stop. It ends by itself, because the server forgets it.
//!
//! Some of them do not wait for that: they read in the record when it expires, by their own clock, and then replace it.
//! To them a record without that time has expired since the year 1. So ours has it under each name that they may look
//! for, later by a lease than the server forgets the record, because clocks differ; and every renewal says so again.
//!
//! The hazards:
//!
//! - The server cannot write two keys in one step. So a claim takes the key of the others first and the record second;
//!   a renewal counts only after both were written; and a release frees the key first, so that the standbys that the
//!   record wakes find it free. A process that dies in between leaves one of them to end by itself.
//! - The key has to last as long as our tree may live. So the time after which the server forgets it must not be
//!   shorter than the lease, and a bucket that forgets nothing would keep it for ever: both are refused. Our own
//!   records must not be forgotten, so they are in another bucket, unless the server can forget single messages.
//! - A key that is gone while we lead was deleted, or the server lost it. Then another program may have led meanwhile.
//!   So the leadership is lost; but the renewal that finds this takes the key again, so that no other program begins
//!   before our tree is dead.
//! - Several renewals may be under way. One follows the other here: each names the revision that the last one made.
//! - Nobody tells our standbys when another program frees the key. So they look again and again.

use super::MOST_ATTEMPTS;
use super::address::{Address, LockKey};
use super::bucket::{Bucket, Put};
use super::connection::Connections;
use super::jetstream::{Entry, Info};
use crate::lease::{Candidate, Session, Shard, Term, show};
use crate::store::error::in_short;
use crate::store::{ErrorKind, Finding, Holder, StoreError};
use crate::time::{BootInstant, millis, millis_of_rfc3339, rfc3339, wall_clock_millis};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

/// The first pause between looks while another program holds the key; later pauses are longer.
const FIRST_LOOK: Duration = Duration::from_millis(100);
const LAST_LOOK: Duration = Duration::from_secs(1);
/// No key gets as far: a microsecond of the year 2255.
const NO_REVISION: u64 = (1 << 53) - 1;
/// The names under which a leader record may tell who its writer is.
const NAMES: [&str; 11] =
    ["instance_id", "leader", "leader_id", "leaderId", "LeaderID", "holder", "owner", "id", "instance", "node", "name"];
const HOSTS: [&str; 2] = ["hostname", "host"];
const STARTED: [&str; 3] = ["started_at", "startedAt", "StartedAt"];

pub struct Lock {
    bucket: Bucket,
    key: String,
    /// Only one task at a time writes the key.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Some from a claim to the release: what we wrote last.
    held: Option<Held>,
    expiry: Option<Expiry>,
    /// When the key was taken, in milliseconds since 1970.
    started: u64,
    /// Whether the key was found gone since the claim. It is kept because the answer to the request that takes the key
    /// again may not arrive.
    lost: bool,
}

#[derive(Clone, Copy)]
struct Held {
    revision: u64,
    /// When the request was sent that wrote it.
    sent: BootInstant,
}

/// Why the server forgets the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expiry {
    /// The bucket forgets everything after this time.
    OfBucket(Duration),
    /// Each message says when.
    OfMessage,
}

pub enum Taken {
    Ours,
    Theirs(Holder),
}

pub enum Kept {
    Ours,
    /// Some if another program has the key.
    Lost(Option<Holder>),
}

/// Our leader record.
#[derive(Serialize)]
struct Record<'a> {
    instance_id: &'a str,
    hostname: &'a str,
    last_heartbeat: String,
    pid: u32,
    session: &'a str,
    lease_ms: u64,
    #[serde(flatten)]
    for_others: BTreeMap<&'static str, Value>,
}

/// What other programs read in a leader record: in snake case, in camel case, and as Go names a field without a tag.
fn for_others(owner: &str, term: Term, started: u64, expires: u64) -> BTreeMap<&'static str, Value> {
    let (term, started, expires) = (json!(term.0), json!(rfc3339(started)), json!(rfc3339(expires)));
    [
        (["leader_id", "leaderId", "LeaderID"], json!(owner)),
        (["term", "term", "Term"], term),
        (["started_at", "startedAt", "StartedAt"], started),
        (["expires_at", "expiresAt", "ExpiresAt"], expires),
    ]
    .into_iter()
    .flat_map(|(names, value)| names.map(|name| (name, value.clone())))
    .collect()
}

#[derive(Deserialize)]
struct Ours {
    session: Session,
}

impl Lock {
    /// Opens the bucket of the key. Sends no request yet.
    ///
    /// # Errors
    /// Misconfigured, if a file that the address names cannot be used.
    pub fn open(address: &Address, request_timeout: Duration) -> Result<Option<Self>, StoreError> {
        let Some(LockKey { bucket, key }) = address.lock_key.as_deref() else { return Ok(None) };
        let address = Address { bucket: bucket.clone(), ..address.clone() };
        let bucket = Bucket { connections: Connections::open(&address, request_timeout)?, is_ours: false };
        Ok(Some(Self { bucket, key: key.clone(), state: Mutex::default() }))
    }

    /// Takes the key, or confirms that we have it. `term` is the one that the claim will probably get: the renewals
    /// write the right one.
    ///
    /// # Errors
    /// The server's error, or that the key cannot be a lock.
    pub async fn take(&self, candidate: &Candidate, term: Term) -> Result<Taken, StoreError> {
        let info = self.info().await?;
        let expiry = self.expiry(&info, candidate.lease)?;
        let mut state = self.state.lock().await;
        state.expiry = Some(expiry);
        state.started = wall_clock_millis();
        for _ in 0..MOST_ATTEMPTS {
            let found = self.bucket.get(&self.key).await?;
            if let Some(entry) = &found
                && let Some(holder) = self.stranger(entry, candidate, &info)?
            {
                return Ok(Taken::Theirs(holder));
            }
            let expected = found.map_or(0, |entry| entry.revision);
            if self.write(&mut state, candidate, term, expected).await? {
                state.lost = false;
                return Ok(Taken::Ours);
            }
        }
        Err(self.contradicted())
    }

    /// Prolongs the key so that it lasts for a lease from `called` on.
    pub async fn renew(&self, candidate: &Candidate, term: Term, called: BootInstant) -> Result<Kept, StoreError> {
        let mut state = self.state.lock().await;
        if state.held.is_some_and(|held| held.sent >= called) {
            return Ok(if state.lost { Kept::Lost(None) } else { Kept::Ours });
        }
        if state.expiry.is_none() {
            state.expiry = Some(self.expiry(&self.info().await?, candidate.lease)?);
        }
        let mut expected = state.held.map(|held| held.revision);
        for _ in 0..MOST_ATTEMPTS {
            let revision = match expected.take() {
                Some(revision) => revision,
                None => match self.bucket.get(&self.key).await? {
                    Some(entry) if is_of(&entry, candidate) => entry.revision,
                    Some(entry) if entry.value.is_some() => {
                        state.lost = true;
                        return Ok(Kept::Lost(Some(self.holder_of(&entry, None))));
                    }
                    // A renewal that arrives after the release must not take the key for nobody.
                    _ if state.held.is_none() => return Ok(Kept::Lost(None)),
                    gone => {
                        state.lost = true;
                        gone.map_or(0, |deletion| deletion.revision)
                    }
                },
            };
            if self.write(&mut state, candidate, term, revision).await? {
                return Ok(if state.lost { Kept::Lost(None) } else { Kept::Ours });
            }
        }
        Err(self.contradicted())
    }

    /// Frees the key if the candidate's session has it. The tree must be dead. If this fails, the key ends by itself.
    pub async fn let_go(&self, candidate: &Candidate) {
        let freed = async {
            let mut state = self.state.lock().await;
            let mut known = state.held.take().map(|held| held.revision);
            for _ in 0..MOST_ATTEMPTS {
                let revision = match known.take() {
                    Some(revision) => revision,
                    None => match self.bucket.get(&self.key).await? {
                        Some(entry) if is_of(&entry, candidate) => entry.revision,
                        _ => break,
                    },
                };
                if self.bucket.delete(&self.key, revision).await? != Put::Conflict {
                    break;
                }
            }
            Ok::<(), StoreError>(())
        };
        let _ = timeout(self.bucket.connections.bound() / 3, freed).await;
    }

    /// The program that has the key, which may be one of ours.
    ///
    /// # Errors
    /// The server's error, or that the key cannot be a lock.
    pub async fn holder(&self) -> Result<Option<Holder>, StoreError> {
        let Some(entry) = self.bucket.get(&self.key).await?.filter(|entry| entry.value.is_some()) else {
            return Ok(None);
        };
        let info = self.info().await?;
        self.must_end(&entry, &info)?;
        Ok(Some(self.holder_of(&entry, Some(&info))))
    }

    /// Returns when nobody has the key.
    pub async fn freed(&self) -> Result<(), StoreError> {
        let mut pause = FIRST_LOOK;
        while self.bucket.get(&self.key).await?.is_some_and(|entry| entry.value.is_some()) {
            sleep(pause).await;
            pause = (pause * 2).min(LAST_LOOK);
        }
        Ok(())
    }

    /// Whether the key is where this shard's record is.
    pub fn is_record_of(&self, ours: &Bucket, shard: &Shard) -> bool {
        self.bucket.address().bucket == ours.address().bucket && self.key == super::key_of(shard)
    }

    pub fn is_ours(&self, shard: &Shard) -> StoreError {
        StoreError::misconfigured(format!(
            "{} is where the record of shard {shard} has to be: name another shard, or write lock_key=BUCKET/KEY",
            self.name()
        ))
    }

    /// False if another process wrote in between.
    async fn write(
        &self,
        state: &mut State,
        candidate: &Candidate,
        term: Term,
        expected: u64,
    ) -> Result<bool, StoreError> {
        let (ttl, lasts) = match state.expiry {
            Some(Expiry::OfBucket(lasts)) => (None, lasts),
            _ => (Some(candidate.lease), candidate.lease),
        };
        let now = wall_clock_millis();
        let record = Record {
            instance_id: &candidate.owner,
            hostname: &candidate.host,
            last_heartbeat: rfc3339(now),
            pid: candidate.pid,
            session: candidate.session.as_str(),
            lease_ms: millis(candidate.lease),
            for_others: for_others(&candidate.owner, term, state.started, now + millis(lasts + candidate.lease)),
        };
        let value = serde_json::to_vec(&record).expect("a record is plain data");
        let sent = BootInstant::now();
        match self.bucket.put_for(&self.key, value, expected, ttl).await? {
            Put::Done { revision } => {
                state.held = Some(Held { revision, sent });
                Ok(true)
            }
            Put::Conflict => Ok(false),
        }
    }

    /// The holder if it is not this candidate.
    fn stranger(&self, entry: &Entry, candidate: &Candidate, info: &Info) -> Result<Option<Holder>, StoreError> {
        if entry.value.is_none() || is_of(entry, candidate) {
            return Ok(None);
        }
        self.must_end(entry, info)?;
        Ok(Some(self.holder_of(entry, Some(info))))
    }

    fn must_end(&self, entry: &Entry, info: &Info) -> Result<(), StoreError> {
        if info.config.max_age > 0 || entry.lasts.is_some() {
            return Ok(());
        }
        Err(StoreError::misconfigured(format!(
            "{} was written without a TTL, so nobody could take it after its holder died: delete it",
            self.name()
        )))
    }

    fn holder_of(&self, entry: &Entry, info: Option<&Info>) -> Holder {
        let value = entry.value.as_deref().unwrap_or_default();
        let Described { name, host, since_millis } = described(value);
        let lasts = info.and_then(|info| match info.config.max_age {
            0 => entry.lasts,
            nanos => Some(Duration::from_nanos(nanos)),
        });
        // A server before 2.10 does not tell the time: then it is the most that may be left.
        let time = info.and_then(Info::time);
        let age = time.map_or(Duration::ZERO, |time| time.since(entry.stamp));
        Holder {
            owner: name,
            host,
            since_millis,
            expires_in: lasts.map(|lasts| lasts.saturating_sub(age)),
            renewed_ago: time.map(|_| age),
            foreign_lock: Some(self.name()),
            ..Holder::default()
        }
    }

    fn name(&self) -> String {
        format!("the key {} of bucket {}", self.key, self.bucket.address().bucket)
    }

    async fn info(&self) -> Result<Info, StoreError> {
        self.bucket.info().await?.ok_or_else(|| self.bucket.missing())
    }

    /// How the key ends.
    ///
    /// # Errors
    /// It would end too soon, or never, or the bucket cannot be relied on.
    fn expiry(&self, info: &Info, lease: Duration) -> Result<Expiry, StoreError> {
        let (name, config) = (&self.bucket.address().bucket, &info.config);
        self.bucket.fit(info)?;
        if config.max_age == 0 {
            return if config.allow_msg_ttl {
                Ok(Expiry::OfMessage)
            } else {
                Err(StoreError::misconfigured(format!(
                    "bucket {name} forgets nothing, so {} would never be free after its holder died: lock_key= wants a key \
                     in a bucket with a TTL (max_age): write lock_key=BUCKET/KEY",
                    self.name()
                )))
            };
        }
        let lasts = Duration::from_nanos(config.max_age);
        if lasts < lease + super::slack(info) {
            return Err(StoreError::misconfigured(format!(
                "bucket {name} forgets {} after {}, sooner than the lease of {} ends: choose a shorter --lease",
                self.key,
                show(lasts),
                show(lease + super::slack(info))
            )));
        }
        Ok(Expiry::OfBucket(lasts))
    }

    fn contradicted(&self) -> StoreError {
        StoreError::unknown(format!("{} changes faster than it can be taken", self.name()))
    }

    /// What `store check` says about the key.
    pub async fn check(&self, findings: &mut Vec<Finding>) -> Result<(), StoreError> {
        match self.try_out().await {
            Ok(Some(holder)) => findings.push(Finding::good(format!("held by {}", holder.named()))),
            Ok(None) => findings.push(Finding::good(format!("{} is free", self.name()))),
            Err(error) if error.kind == ErrorKind::Denied => {
                let (name, message) = (self.name(), error.message);
                findings.push(Finding::bad(format!("permission missing: read and write {name}: {message}")));
                return Ok(());
            }
            Err(error) if error.kind == ErrorKind::Misconfigured => {
                findings.push(Finding::bad(error.message));
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        findings.push(Finding::doubtful(format!(
            "the programs that take only {} have no terms, and nothing shows that one of them has stopped when the key \
             expires or is deleted: they have to stop by themselves before their time is over",
            self.name()
        )));
        let lasts = match self.info().await?.config.max_age {
            0 => "its lease".to_owned(),
            nanos => show(Duration::from_nanos(nanos)),
        };
        findings.push(Finding::doubtful(format!(
            "if {} is deleted or lost, another program may take it at once, and two can lead until leaderrun notices; and \
             after a leader died it stays for {lasts}",
            self.name()
        )));
        findings.push(Finding::doubtful(format!(
            "a program that reads in {} when it expires judges that by its own clock: if that is ahead of this one's by more \
             than {lasts}, it takes the key while COMMAND runs; and it must look for expires_at, expiresAt or ExpiresAt, as a \
             time in RFC 3339 (beside it stand leader_id, term and started_at, spelt in the same three ways)",
            self.name()
        )));
        Ok(())
    }

    /// Does everything that a claim does, and changes nothing. Returns the holder.
    async fn try_out(&self) -> Result<Option<Holder>, StoreError> {
        let info = self.info().await?;
        self.expiry(&info, Duration::ZERO)?;
        let holder = self.holder().await?;
        self.bucket.put_for(&self.key, Vec::new(), NO_REVISION, None).await?;
        Ok(holder)
    }
}

/// Whether the candidate's session wrote it.
fn is_of(entry: &Entry, candidate: &Candidate) -> bool {
    let value = entry.value.as_deref().unwrap_or_default();
    serde_json::from_slice::<Ours>(value).is_ok_and(|ours| ours.session == candidate.session)
}

/// What a leader record says of its writer.
#[derive(Debug, PartialEq, Eq)]
struct Described {
    name: String,
    host: Option<String>,
    since_millis: Option<u64>,
}

/// The writer, from a leader record or from a name by itself.
fn described(value: &[u8]) -> Described {
    let record = serde_json::from_slice::<Value>(value).unwrap_or_default();
    let find = |names: &[&str]| names.iter().find_map(|name| record.get(name)?.as_str());
    let short = |names: &[&str]| find(names).map(in_short).filter(|text| !text.is_empty());
    let whole = || in_short(record.as_str().unwrap_or(&String::from_utf8_lossy(value)));
    let name = Some(short(&NAMES).unwrap_or_else(whole)).filter(|name| !name.is_empty());
    Described {
        name: name.unwrap_or_else(|| "a program without a name".to_owned()),
        host: short(&HOSTS),
        since_millis: find(&STARTED).and_then(millis_of_rfc3339),
    }
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
            let expected = Described { name: name.to_owned(), host: host.map(str::to_owned), since_millis: None };
            assert_eq!(described(value.as_bytes()), expected, "{value}");
        }
    }
}
