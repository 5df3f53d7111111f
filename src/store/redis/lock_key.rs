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
use super::script::{self, Script};
use crate::lease::{Candidate, Session, Term};
use crate::store::error::in_short;
use crate::store::foreign_lock::{self, ForeignLock, Hold};
use crate::store::{ErrorKind, Holder, StoreError};
use crate::time::{millis, millis_of_rfc3339, wall_clock_millis};
use parking_lot::Mutex;
use redis::cmd;
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;

const MOST_BYTES: usize = 512;

/// The ends of MapleFile's keys: the lock, and beside it what its holder says of itself.
const LOCK_ENDS: &str = ":leader:lock";
const INFO_ENDS: &str = ":leader:info";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    pub key: String,
    /// Where the holder describes itself, in JSON.
    pub info: Option<String>,
}

impl Keys {
    pub fn read(scheme: &str, key: Option<String>, prefix: &str) -> Result<Option<Self>, String> {
        let Some(key) = key else { return Ok(None) };
        if key.len() > MOST_BYTES {
            return Err(format!("lock_key= of {scheme}:// is longer than {MOST_BYTES} bytes"));
        }
        if key.starts_with(&format!("{prefix}{{leases}}:")) {
            return Err(format!(
                "lock_key= of {scheme}:// names a key of leaderrun itself: name the key of the other programs"
            ));
        }
        let info = key.strip_suffix(LOCK_ENDS).map(|name| format!("{name}{INFO_ENDS}"));
        Ok(Some(Self { key, info }))
    }

    fn names(&self) -> Vec<&str> {
        std::iter::once(&self.key).chain(&self.info).map(String::as_str).collect()
    }

    fn holder(&self, value: &str, info: &str, expires_in: Option<Duration>) -> Holder {
        // An earlier holder may have left the record.
        let info = serde_json::from_str::<Info>(info).unwrap_or_default();
        let info = if info.is_of(value) { info } else { Info::default() };
        let name = in_short(info.instance_id.as_deref().unwrap_or(value));
        let time = |text: Option<String>| text.as_deref().and_then(millis_of_rfc3339);
        // By the holder's clock, so only for people.
        let renewed_ago =
            time(info.last_heartbeat).map(|at| Duration::from_millis(wall_clock_millis().saturating_sub(at)));
        Holder {
            owner: if name.is_empty() { "a program without a name".to_owned() } else { name },
            host: info.hostname.map(|host| in_short(&host)).filter(|host| !host.is_empty()),
            since_millis: time(info.started_at),
            expires_in,
            renewed_ago,
            foreign_lock: Some(format!("the key {}", self.key)),
            ..Holder::default()
        }
    }
}

#[derive(Default, Deserialize)]
struct Info {
    instance_id: Option<String>,
    hostname: Option<String>,
    started_at: Option<String>,
    last_heartbeat: Option<String>,
    /// In our own records: the beginning of the key's value.
    session: Option<String>,
}

impl Info {
    fn is_of(&self, value: &str) -> bool {
        let session = value.split(' ').next();
        self.instance_id.as_deref() == Some(value) || (self.session.is_some() && self.session.as_deref() == session)
    }
}

pub struct LockKey {
    keys: Keys,
    client: Arc<Client>,
    script: Script,
    replicas: u32,
    /// When it was taken, in milliseconds since 1970.
    started: Mutex<u64>,
}

impl LockKey {
    pub fn new(keys: &Keys, client: &Arc<Client>, replicas: u32) -> Self {
        let (keys, client) = (keys.clone(), Arc::clone(client));
        Self { keys, client, script: Script::new(script::LOCK_KEY), replicas, started: Mutex::default() }
    }

    async fn ask(&self, words: &[&str], replicas: u32) -> Result<Hold, StoreError> {
        let names = self.keys.names();
        let answer = self.script.run(&self.client, &names, words, replicas).await.map_err(|error| {
            if error.kind != ErrorKind::Denied {
                return error;
            }
            // The server does not say which key it means.
            let message = format!("{error}: lock_key= needs permission to read and write {} too", names.join(" and "));
            StoreError { message, ..error }
        })?;
        let word = |index: usize| answer.get(index).and_then(script::text).unwrap_or_default();
        let (key, place) = (&self.keys.key, &self.client);
        match word(0).as_str() {
            "done" => Ok(Hold::Held),
            "lost" => Ok(Hold::Lost),
            "held" => {
                let left = word(2).parse().ok().map(Duration::from_millis);
                Ok(Hold::Taken(self.keys.holder(&word(1), &word(3), left)))
            }
            "eternal" => Err(StoreError::misconfigured(format!(
                "the key {key} in {place}, which lock_key= names, never expires, so nobody could take it after its holder \
                 died: delete it, or give it an expiry"
            ))),
            "strange" => Err(StoreError::misconfigured(format!(
                "the key {} in {place} is not a string, so it is not a lock: name another with lock_key=",
                word(1)
            ))),
            _ => Err(script::not_understood(&place.to_string())),
        }
    }
}

#[async_trait::async_trait]
impl ForeignLock for LockKey {
    fn name(&self) -> String {
        format!("the key {}", self.keys.key)
    }

    async fn holder(&self, session: Option<&Session>) -> Result<Option<Holder>, StoreError> {
        let looked = self.ask(&["look", session.map_or("", Session::as_str)], 0).await?;
        Ok(if let Hold::Taken(holder) = looked { Some(holder) } else { None })
    }

    async fn take(&self, candidate: &Candidate, term: Term, again: bool) -> Result<Hold, StoreError> {
        if !again {
            *self.started.lock() = wall_clock_millis();
        }
        let record = foreign_lock::record(candidate, term, *self.started.lock()).to_string();
        let (session, term) = (candidate.session.as_str(), term.to_string());
        let lease = millis(candidate.lease).to_string();
        let ask = async |how: &str| self.ask(&[how, session, &term, &lease, &record], self.replicas).await;
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
        self.ask(&["let go", candidate.session.as_str(), &term.to_string()], 0).await.map(drop)
    }

    async fn try_out(&self) -> Result<Option<Holder>, StoreError> {
        for key in self.keys.names() {
            // The two conditions exclude each other, so nothing is written. But the server checks permissions first.
            match self.client.request(cmd("SET").arg(key).arg("check").arg("NX").arg("XX")).await {
                Err(error) if error.kind == ErrorKind::Denied => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
        self.holder(None).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn maplefile() -> Keys {
        Keys { key: "maplefile:leader:lock".into(), info: Some("maplefile:leader:info".into()) }
    }

    #[test]
    fn a_record_that_another_holder_left_says_nothing() {
        for info in [r#"{"instance_id":"backend-6","hostname":"h6"}"#, "", "[]", "{", r#"{"instance_id":7}"#] {
            let holder = maplefile().holder("backend-7", info, None);
            assert!(holder.owner == "backend-7" && holder.host.is_none(), "{holder:?}");
        }
        assert_eq!(maplefile().holder(" ", "", None).owner, "a program without a name");
    }
}
