//! `leaderctl store init` and `leaderctl store check`: the bucket, and whether an election can rely on it.
//!
//! The hazard: a bucket may look right and still forget. If records age away, or make room for others, leases end that
//! are held. A bucket in memory forgets them with its server, and a mirror accepts no writes. A missing permission
//! shows only when it is needed, so the check tries each one.

use super::address::{Address, NOTHING, SCRATCH, is_note_of, key_of, led_mark_of};
use super::bucket::{Bucket, Put, Refusal, STREAM_NAME_TAKEN};
use super::failure::Failure;
use super::jetstream::{Info, Stamp};
use super::record::{Content, Record, Snapshot};
use super::{Asks, MOST_ATTEMPTS, Nats, list, slack};
use crate::lease::{Candidate, Shard, Term, show};
use crate::store::{
    Administration, EachPage, ErrorKind, Finding, Release, Report, StoreError, Verdict, parallel, round_trip,
};
use crate::time::BootInstant;
use futures_util::StreamExt;
use serde_json::{Value, json};

/// The longest time from asking for the time to the birth of the bucket, by any two clocks of a cluster.
const MOST_LABOUR_MICROS: u64 = 60_000_000;
/// Before this version, buckets worked in another way.
const OLDEST_VERSION: (u32, u32) = (2, 9);

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
            format!("made bucket {name} in {server}, in files, replicas: {}", info.config.num_replicas)
        } else {
            format!("bucket {name} in {server} is there")
        });
        if info.state.messages == 0 && !numbers_are_unique(&info) && !info.is_clustered() {
            match begin_at_birth(bucket, &info).await {
                Ok(()) => info = bucket.info().await?.ok_or_else(|| bucket.missing())?,
                Err(error) if matches!(error.kind, ErrorKind::Denied | ErrorKind::Misconfigured) => {
                    lines.push(format!("left its revisions as they are: {error}"));
                }
                Err(error) => return Err(error),
            }
        }
        if numbers_are_unique(&info) {
            lines.push("its revisions begin with the time when it was made".to_owned());
        }
        lines.push(if bucket.mark().await? {
            "wrote down that the bucket remembers from now on".to_owned()
        } else {
            "the bucket says since when it remembers".to_owned()
        });
        Ok(lines)
    }

    async fn vouch(&self) -> Result<(), StoreError> {
        self.bucket.vouch().await
    }

    /// Checks everything that an election relies on.
    async fn check(&self) -> Result<Vec<Finding>, StoreError> {
        let bucket = &self.bucket;
        let mut findings = vec![version(bucket).await?];
        match bucket.info().await {
            Ok(Some(info)) => {
                config(bucket, &info, &mut findings);
                if is_bad(&findings) {
                    return Ok(findings);
                }
            }
            Ok(None) => {
                findings.push(Finding::bad(bucket.missing().message));
                return Ok(findings);
            }
            Err(error) => permission("publish", &info_subject(bucket), Err(error), &mut findings)?,
        }
        permissions(bucket, &mut findings).await?;
        if is_bad(&findings) {
            return Ok(findings);
        }
        findings.push(Finding::good("may do all that an election needs: publish, read, subscribe"));
        findings.push(match bucket.marker().await? {
            Some(_) => Finding::good("the bucket says since when it remembers"),
            None => Finding::doubtful(
                "the bucket does not say since when it remembers, so the first leader waits one lease: leaderctl store \
                 init writes it",
            ),
        });
        findings.push(round_trip(bucket).await?);
        if let Some(lock) = &self.lock {
            lock.check(&mut findings).await?;
        }
        Ok(findings)
    }
}

/// The record by itself, without the key of other programs.
impl Nats {
    async fn inspect_record(&self, shard: &Shard) -> Result<Report, StoreError> {
        let Some(snapshot) = self.look_dated(shard, Asks::Onlooker).await? else { return Ok(Report::default()) };
        Ok(snapshot.report())
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
        let record = Record { ledger_ms: 0, term: Some(term.0), ..record.clone() };
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

fn numbers_are_unique(info: &Info) -> bool {
    let earliest = |birth: Stamp| birth.micros().saturating_sub(MOST_LABOUR_MICROS);
    info.created().is_some_and(|birth| info.state.last_seq >= earliest(birth))
}

fn is_bad(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.verdict == Verdict::Bad)
}

fn info_subject(bucket: &Bucket) -> String {
    bucket.address().api(&format!("STREAM.INFO.{}", bucket.address().stream()))
}

async fn version(bucket: &Bucket) -> Result<Finding, StoreError> {
    let connection = bucket.connections.connection().await?;
    let version = connection.client.server_info().version;
    Ok(if connection.version() >= Some(OLDEST_VERSION) {
        Finding::good(format!("{} runs version {version}", connection.server))
    } else {
        Finding::doubtful(format!("{} runs version {version}: nothing before 2.9 was tested", connection.server))
    })
}

fn config(bucket: &Bucket, info: &Info, findings: &mut Vec<Finding>) {
    let address = bucket.address();
    let (name, server, config) = (&address.bucket, address.server(), &info.config);
    if let Err(wrong) = bucket.usable(info) {
        return findings.push(Finding::bad(wrong.message));
    }
    let clustered = info.is_clustered();
    let before = findings.len();
    if config.storage != "file" {
        findings.push(Finding::doubtful(format!(
            "bucket {name} is kept in {}: it forgets who leads when its server ends, and the next leader waits one lease",
            config.storage
        )));
    }
    if config.persist_mode.as_deref().is_some_and(|mode| mode != "default") {
        findings.push(Finding::doubtful(format!(
            "bucket {name} acknowledges writes before they are kept (persist_mode): a crash of its server may forget \
             a leadership that goes on"
        )));
    }
    if clustered && config.num_replicas < 3 {
        findings.push(Finding::doubtful(format!(
            "bucket {name} has {} of 3 replicas: while one of its servers is down, no lease can be taken or renewed",
            config.num_replicas
        )));
    }
    if config.max_msgs_per_subject != 1 {
        findings.push(Finding::doubtful(format!(
            "bucket {name} keeps more than the last record of a key: set its history to 1, for each renewal is a record"
        )));
    }
    if config.max_msgs > 0 || config.max_bytes > 0 {
        findings.push(Finding::doubtful(format!(
            "bucket {name} has a limit of size: when it is full, no lease can be taken or renewed"
        )));
    }
    if !numbers_are_unique(info) {
        findings.push(Finding::doubtful(format!(
            "the revisions of bucket {name} begin with a low number, so they repeat if it is dropped and made again: do \
             not do that while anything leads, or have leaderctl store init make it (in clusters from version 2.10 on)"
        )));
    }
    if findings.len() == before {
        let replicas = config.num_replicas;
        findings.push(Finding::good(format!("bucket {name} in {server} is kept in files, replicas: {replicas}")));
    }
}

/// Does with a scratch key everything that an election does with a lock.
async fn permissions(bucket: &Bucket, findings: &mut Vec<Finding>) -> Result<(), StoreError> {
    let address = bucket.address();
    let stream = address.stream();
    let known = findings.len();
    let get_subject = address.api(&format!("STREAM.MSG.GET.{stream}"));
    let before = bucket.get(SCRATCH).await;
    let revision = before.as_ref().map_or(0, |entry| entry.as_ref().map_or(0, |entry| entry.revision));
    permission("publish", &get_subject, before.map(drop), findings)?;
    // Without the permission to read, the revision is not known and the write is a conflict. That shows the permission
    // too.
    let put = bucket.put(SCRATCH, b"leaderctl store check".to_vec(), revision).await;
    let again = match put {
        Ok(Put::Done { .. }) => Some(bucket.put(SCRATCH, b"a second time".to_vec(), revision).await?),
        Ok(Put::Conflict) | Err(_) => None,
    };
    permission("publish", &address.target(">"), put.map(drop), findings)?;
    permission("publish", &address.api(&format!("CONSUMER.CREATE.{stream}")), hear(bucket).await, findings)?;
    if matches!(again, Some(Put::Done { .. })) {
        findings.push(Finding::bad(
            "the server ignores the revision that a write expects, so two can lead: use another server",
        ));
    }
    if findings.len() == known {
        // A key that stays does no harm, and some users may not purge.
        let filter = json!({ "filter": address.subject(SCRATCH) });
        let _ = bucket.request(&format!("STREAM.PURGE.{stream}"), &filter).await;
    }
    Ok(())
}

/// Waits for a push, which arrives over a subscription from a consumer.
async fn hear(bucket: &Bucket) -> Result<(), StoreError> {
    let address = bucket.address();
    let connection = bucket.connections.connection().await?;
    let before = connection.denials();
    let inbox = connection.client.new_inbox();
    let subscribed = connection.client.subscribe(inbox.clone()).await;
    let mut messages = subscribed
        .map_err(|error| StoreError::not_applied(format!("cannot subscribe in {}: {error}", connection.server)))?;
    let config = json!({
        "deliver_subject": inbox,
        "filter_subject": address.subject(">"),
        "deliver_policy": "last",
        "ack_policy": "none",
        "max_deliver": 1,
        "replay_policy": "instant",
        "mem_storage": true,
        "num_replicas": 1,
    });
    let stream = address.stream();
    let create = json!({ "stream_name": stream, "config": config });
    bucket.request(&format!("CONSUMER.CREATE.{stream}"), &create).await?;
    tokio::select! {
        message = messages.next() => match message {
            Some(_) => Ok(()),
            None => Err(StoreError::unknown(format!("the connection to {} broke", connection.server))),
        },
        error = bucket.connections.trouble(&connection, &inbox, before) => Err(error),
        () = tokio::time::sleep(bucket.connections.bound()) => Err(StoreError::unknown(format!(
            "{} pushes nothing within {}", connection.server, show(bucket.connections.bound())
        ))),
    }
}

fn permission(
    verb: &str,
    subject: &str,
    tried: Result<(), StoreError>,
    findings: &mut Vec<Finding>,
) -> Result<(), StoreError> {
    match tried {
        Ok(()) => Ok(()),
        Err(error) if error.kind == ErrorKind::Denied => {
            let missing = if error.message.to_lowercase().contains("for subscription") {
                "subscribe to the answers (_INBOX.>, or what inbox= says)".to_owned()
            } else {
                format!("{verb} to {subject}")
            };
            let text = format!("permission missing: {missing}: ");
            if findings.iter().all(|finding| !finding.text.starts_with(&text)) {
                findings.push(Finding::bad(text + &error.message));
            }
            Ok(())
        }
        Err(error) => Err(error),
    }
}

async fn round_trip(bucket: &Bucket) -> Result<Finding, StoreError> {
    let (_, time) = round_trip::measure(|| bucket.marker()).await?;
    Ok(Finding::good(format!("a round trip takes {time:.1?}")))
}
