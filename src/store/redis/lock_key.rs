//! `lock_key=KEY`: the lock of programs that take `SET KEY id NX PX ttl`, held beside the lease.
//!
//! The hazards:
//!
//! - A key that never expires would be held for ever if its holder died. So it is refused.
//! - A key that was gone, and is taken again until our tree is dead, has another value than one that was held all the
//!   time.
//! - A request may arrive late, when the same candidate leads again, and would free the key under a tree that runs. So
//!   the value names the term too, and a request of an earlier leadership changes nothing.
//! - A renewal may arrive after the release, and would take the key for nobody. So it takes no key that is gone. Only a
//!   second request does that, which follows the answer.
//!
//! Whether another program that lost the key has stopped, no script can see.

use super::connection::Client;
use super::script;
use crate::lease::{Candidate, Term};
use crate::store::foreign_lock::{self, ForeignLock, Hold, writer_of};
use crate::store::{ErrorKind, Holder, StoreError};
use crate::time::{millis, wall_clock_millis};
use parking_lot::Mutex;
use redis::{ToRedisArgs, cmd};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// The ends of MapleFile's keys: the lock, and beside it what its holder says of itself.
const LOCK_ENDS: &str = ":leader:lock";
const INFO_ENDS: &str = ":leader:info";

pub struct LockKey {
    key: String,
    /// Where the holder describes itself, in JSON.
    info: Option<String>,
    client: Arc<Client>,
    /// When it was taken, in milliseconds since 1970.
    started: Mutex<u64>,
}

impl LockKey {
    pub fn new(key: &str, client: &Arc<Client>) -> Self {
        let info = key.strip_suffix(LOCK_ENDS).map(|name| format!("{name}{INFO_ENDS}"));
        Self { key: key.to_owned(), info, client: Arc::clone(client), started: Mutex::default() }
    }

    fn keys(&self) -> Vec<&str> {
        std::iter::once(&self.key).chain(&self.info).map(String::as_str).collect()
    }

    async fn ask(&self, words: &(impl ToRedisArgs + Sync), waits: bool) -> Result<Hold, StoreError> {
        let keys = self.keys();
        let answer = self.client.run(script::LOCK_KEY, &keys, words, waits).await.map_err(|error| {
            if error.kind != ErrorKind::Denied {
                return error;
            }
            // The server does not say which key it means.
            let message = format!("{error}: lock_key= needs permission to read and write {} too", keys.join(" and "));
            StoreError { message, ..error }
        });
        let (status, words): (String, Vec<Vec<u8>>) = answer?;
        // Those of other programs may not be text.
        let word = |index: usize| String::from_utf8_lossy(words.get(index).map_or(&[], Vec::as_slice));
        let (key, place) = (&self.key, &self.client);
        match status.as_str() {
            "done" => Ok(Hold::Held),
            "lost" => Ok(Hold::Lost),
            "held" => {
                let (value, info) = (word(0), word(2));
                let record: Value = serde_json::from_str(&info).unwrap_or_default();
                // An earlier holder may have left the record. Ours names the session, with which the value begins.
                let is_its = record["instance_id"] == *value
                    || value.split(' ').next().is_some_and(|of| record["session"] == of);
                Ok(Hold::Taken(Holder {
                    expires_in: word(1).parse().ok().map(Duration::from_millis),
                    foreign_lock: Some(self.name()),
                    ..writer_of(if is_its { info.as_bytes() } else { value.as_bytes() })
                }))
            }
            "eternal" => Err(StoreError::misconfigured(format!(
                "the key {key} in {place}, which lock_key= names, never expires, so nobody could take it after its holder \
                 died: delete it, or give it an expiry"
            ))),
            "strange" => Err(StoreError::misconfigured(format!(
                "the key {} in {place} is not a string, so it is not a lock: name another with lock_key=",
                word(0)
            ))),
            _ => Err(script::not_understood(place)),
        }
    }
}

#[async_trait::async_trait]
impl ForeignLock for LockKey {
    fn name(&self) -> String {
        format!("the key {}", self.key)
    }

    async fn holder(&self, candidate: Option<&Candidate>) -> Result<Option<Holder>, StoreError> {
        let session = candidate.map_or("", |candidate| candidate.session.as_str());
        let looked = self.ask(&("look", session), false).await?;
        Ok(if let Hold::Taken(holder) = looked { Some(holder) } else { None })
    }

    async fn take(&self, candidate: &Candidate, term: Term, again: bool) -> Result<Hold, StoreError> {
        if !again {
            *self.started.lock() = wall_clock_millis();
        }
        let record = foreign_lock::record(candidate, term, *self.started.lock()).to_string();
        let (session, lease) = (candidate.session.as_str(), millis(candidate.lease));
        let ask = async |how: &str| self.ask(&(how, session, term.0, lease, &record), true).await;
        if !again {
            return ask("take").await;
        }
        match ask("confirm").await? {
            // Somebody waits for the answer, so the key was not let go.
            Hold::Lost => ask("regain").await,
            hold @ (Hold::Held | Hold::Taken(_)) => Ok(hold),
        }
    }

    async fn let_go(&self, candidate: &Candidate, term: Term) -> Result<(), StoreError> {
        self.ask(&("let go", candidate.session.as_str(), term.0), false).await.map(drop)
    }

    async fn try_out(&self) -> Result<Option<Holder>, StoreError> {
        for key in self.keys() {
            // The two conditions exclude each other, so nothing is written. But the server checks permissions first.
            match self.client.ask::<()>(cmd("SET").arg(key).arg("check").arg("NX").arg("XX")).await {
                Err(error) if error.kind == ErrorKind::Denied => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        self.holder(None).await
    }
}
