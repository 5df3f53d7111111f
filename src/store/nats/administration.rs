//! What operators do with the bucket: list, revoke, forget, `leaderctl store init`.
//!
//! The hazard: an operator may end a lease while its tree still runs. So `revoke` deletes the record as a user would,
//! and the mark of that deletion makes the next leader wait. `forget` removes the record of its own candidate, which
//! has no tree.

use super::address::{Address, NOTHING, is_note_of, key_of, led_mark_of};
use super::bucket::{Bucket, Put, Refusal, STREAM_NAME_TAKEN};
use super::failure::Failure;
use super::jetstream::{Info, Stamp};
use super::record::{Content, LedMark, Record, Snapshot};
use super::{Asks, MOST_ATTEMPTS, Nats, check, list, slack};
use crate::lease::{Candidate, Shard, Term};
use crate::store::{Administration, EachPage, ErrorKind, Finding, Release, Report, StoreError, parallel, steps};
use crate::time::BootInstant;
use serde_json::{Value, json};

#[async_trait::async_trait]
impl Administration for Nats {
    async fn inspect(&self, shard: &Shard) -> Result<Report, StoreError> {
        let report = self.inspect_record(shard).await?;
        match (&report.holder, &self.lock) {
            (None, Some(lock)) => Ok(Report { holder: lock.holder().await?, ..report }),
            _ => Ok(report),
        }
    }

    async fn list_in_pages(&self, prefix: &str, each: &mut EachPage<'_>) -> Result<(), StoreError> {
        list::list(self, prefix, each).await
    }

    async fn revoke(&self, shard: &Shard, term: Term) -> Result<Release, StoreError> {
        for _ in 0..MOST_ATTEMPTS {
            let Some(snapshot) = self.look(shard).await? else { return Ok(Release::NotHeld) };
            if snapshot.content == Content::Foreign {
                return Err(self.foreign(shard));
            }
            if snapshot.term() != Some(term.0) || snapshot.left(BootInstant::now()).is_zero() {
                return Ok(Release::NotHeld);
            }
            let snapshot = self.dated(shard, snapshot, Asks::Onlooker).await?;
            if snapshot.left(BootInstant::now()).is_zero() {
                return Ok(Release::NotHeld);
            }
            let lease_ms = snapshot.record().map_or(0, |record| record.lease_ms);
            self.mark_revoked(shard, term, lease_ms).await?;
            // Like a deletion by hand: the mark that it leaves makes the next leader wait.
            if self.bucket.delete(&key_of(shard), snapshot.revision).await? != Put::Conflict {
                return Ok(Release::Released);
            }
        }
        Err(StoreError::unknown(format!("the record of shard {shard} changes faster than it can be deleted")))
    }

    async fn forget(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        let release = self.forget_record(candidate, term).await?;
        if let Some(lock) = &self.lock {
            lock.let_go(candidate).await;
        }
        Ok(release)
    }

    /// Makes the bucket and its marker if they are missing.
    async fn prepare(&self) -> Result<Vec<String>, StoreError> {
        let bucket = &self.bucket;
        let address = bucket.address();
        let Address { bucket: name, .. } = address;
        let server = address.server();
        let mut lines = Vec::new();
        let made = if bucket.info().await?.is_none() { create(bucket).await? } else { false };
        let mut info = bucket.info().await?.ok_or_else(|| bucket.missing())?;
        bucket.usable(&info)?;
        lines.push(if made {
            let replicas = info.config.num_replicas;
            steps::made(format_args!("bucket {name} in {server}, in files, replicas: {replicas}"))
        } else {
            steps::is_there(format_args!("bucket {name} in {server}"))
        });
        if info.state.messages == 0 && !info.has_unique_revisions() && !info.is_clustered() {
            match begin_at_birth(bucket, &info).await {
                Ok(()) => info = bucket.info().await?.ok_or_else(|| bucket.missing())?,
                Err(error) if matches!(error.kind, ErrorKind::Denied | ErrorKind::Misconfigured) => {
                    lines.push(format!("left its revisions as they are: {error}"));
                }
                Err(error) => return Err(error),
            }
        }
        if info.has_unique_revisions() {
            lines.push("its revisions begin with the time when it was made".to_owned());
        }
        lines.push(steps::remembers("the bucket", bucket.mark().await?));
        Ok(lines)
    }

    async fn vouch(&self) -> Result<(), StoreError> {
        self.bucket.vouch().await
    }

    async fn check(&self) -> Result<Vec<Finding>, StoreError> {
        check::check(self).await
    }
}

/// The record by itself, without the key of other programs.
impl Nats {
    async fn inspect_record(&self, shard: &Shard) -> Result<Report, StoreError> {
        let report =
            self.look_dated(shard, Asks::Onlooker).await?.map(|snapshot| snapshot.report()).unwrap_or_default();
        if report != Report::default() {
            return Ok(report);
        }
        // A revocation deletes the record, and keeps its term in the mark.
        let mark = self.bucket.get(&led_mark_of(shard)).await?;
        let last_term = mark.as_ref().map(LedMark::read).and_then(|mark| mark.revoked).map(Term);
        Ok(Report { last_term, ..report })
    }

    /// The key goes last, and with it all marks of the shard: the next leader finds a new shard.
    async fn forget_record(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        let (shard, led_mark) = (&candidate.shard, led_mark_of(&candidate.shard));
        // Checks the permission to purge before anything is gone. The bound is 1, and the server takes that for no
        // bound: it would remove all of a key that exists, so this key holds nothing.
        self.bucket.sweep(NOTHING, 0).await?;
        let ours = |snapshot: &Snapshot| Self::is_ours(candidate, snapshot) && snapshot.term() == Some(term.0);
        if !self.look(shard).await?.is_some_and(|seen| ours(&seen)) {
            return Ok(Release::NotHeld);
        }
        let (info, keys) = self.bucket.keys().await?;
        let notes = keys.into_iter().filter(|key| is_note_of(key, shard)).map(|key| async move {
            match self.bucket.get(&key).await? {
                Some(note) => self.bucket.sweep(&key, note.revision).await,
                None => Ok(()),
            }
        });
        parallel::answers(notes).await?;
        let time = self.bucket.time(&info).await?.micros();
        let Some(snapshot) = self.look(shard).await?.filter(ours) else { return Ok(Release::NotHeld) };
        let slack = u64::try_from(slack(&info).as_micros()).unwrap_or(u64::MAX);
        let is_ahead = term.0 >= time.saturating_sub(slack);
        let Some(record) = snapshot.record().filter(|record| !is_ahead && !record.released) else {
            // The next term would be lower.
            return self.release_record(candidate, term).await;
        };
        // If we do not get as far as the key, the next leader writes another led mark.
        let record = Record { led_mark_ms: 0, term: Some(term.0), ..record.clone() };
        let Some(snapshot) = self.write(shard, record, snapshot.revision, None).await? else {
            return Ok(Release::NotHeld);
        };
        if let Some(entry) = self.bucket.get(&led_mark).await? {
            self.bucket.sweep(&led_mark, entry.revision).await?;
        }
        self.bucket.sweep(&key_of(shard), snapshot.revision).await?;
        self.seen.lock().remove(shard);
        Ok(Release::Released)
    }
}

/// Makes the bucket. False if another process has just made it.
async fn create(bucket: &Bucket) -> Result<bool, StoreError> {
    let address = bucket.address();
    let stream = address.stream();
    // As `nats kv add` makes it, without the parts that servers before 2.10 do not understand.
    let mut config = json!({
        "name": stream,
        "subjects": [address.subject(">")],
        "retention": "limits",
        "storage": "file",
        "discard": "new",
        "num_replicas": address.replicas,
        "max_msgs_per_subject": 1,
        "max_consumers": -1,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_msg_size": -1,
        "max_age": 0,
        "duplicate_window": 120_000_000_000_u64,
        "deny_delete": true,
        "deny_purge": false,
        "allow_rollup_hdrs": true,
        "allow_direct": true,
    });
    if let Some(time) = time_of_birth(bucket).await? {
        config["first_seq"] = json!(time.micros());
    }
    let name = format!("STREAM.CREATE.{stream}");
    match bucket.ask(&name, &config).await {
        Ok(_) => Ok(true),
        Err(Refusal::Api(error)) if error.err_code == STREAM_NAME_TAKEN => Ok(false),
        Err(refusal) => Err(bucket.failed(&name, refusal)),
    }
}

/// The number at which revisions will begin, so that no earlier bucket of this name had them: the server's time. None
/// if the server does not tell its time in advance, or cannot begin at a given number (before 2.10).
async fn time_of_birth(bucket: &Bucket) -> Result<Option<Stamp>, StoreError> {
    if bucket.connections.connection().await?.version() < Some((2, 10)) {
        return Ok(None);
    }
    let answer = match bucket.connections.request("$SYS.REQ.USER.INFO", None, Vec::new()).await {
        Ok(answer) => answer,
        Err(Failure::NoResponders) => return Ok(None),
        Err(Failure::Error(error)) if error.kind == ErrorKind::Denied => return Ok(None),
        Err(Failure::Error(error)) => return Err(error),
    };
    let answer: Value = serde_json::from_slice(&answer.payload).unwrap_or_default();
    Ok(answer["server"]["time"].as_str().and_then(Stamp::read))
}

/// Makes revisions begin there after the bucket was made, on a server that stands alone: a purge up to a number that is
/// not reached yet moves the next message there. (In a cluster of version 2.9, the servers disagreed after such a
/// purge.)
async fn begin_at_birth(bucket: &Bucket, info: &Info) -> Result<(), StoreError> {
    let Some(birth) = info.created() else { return Ok(()) };
    let name = format!("STREAM.PURGE.{}", bucket.address().stream());
    bucket.request(&name, &json!({ "seq": birth.micros() })).await.map(drop)
}
