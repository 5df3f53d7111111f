//! `lock_key=KEY`: the lock of other programs that is held in addition to the lease, so that leaderrun and programs
//! that take `SET KEY id NX PX ttl` exclude each other.
//!
//! The hazards:
//!
//! - The key must be held for as long as our tree may live. So each script writes it together with our own lock, at
//!   one instant and for the same time.
//! - A key that is gone while we lead was deleted, or the server has forgotten it. Then another program may have led
//!   meanwhile, and no trace of that is left. So the leadership is lost. But our tree lives on for a while: the renewal
//!   that finds the key gone takes it again in the same step, so that no other program begins before our tree is dead.
//!   For the same reason an operator who revokes our lease leaves the key where it is.
//! - Another program that gives the key back tells nobody. So a standby looks again and again while one holds it.
//! - A key that never expires would be held for ever if its holder died. So it is refused.
//!
//! What no script can see: whether another program that lost the key has stopped. That is its own affair.

use super::Redis;
use super::check::{MISSING, ask};
use super::script::Reply;
use crate::lease::{Shard, show};
use crate::store::error::in_short;
use crate::store::{Finding, Holder, Leases, Observation, StoreError, parallel};
use redis::{Value, cmd};
use serde::Deserialize;
use std::time::Duration;
use tokio::time::sleep;

/// The first pause between looks while another program holds the key; later pauses are longer.
const FIRST_LOOK: Duration = Duration::from_millis(100);
const LAST_LOOK: Duration = Duration::from_secs(1);
/// The longest key that is accepted.
const MOST_BYTES: usize = 512;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockKey {
    pub key: String,
    /// Where its holder describes itself, in JSON.
    pub info: Option<String>,
}

impl LockKey {
    /// Reads the two options of a URL.
    ///
    /// # Errors
    /// One line that says what is wrong, and what to write.
    pub fn read(scheme: &str, key: Option<String>, info: Option<String>, prefix: &str) -> Result<Option<Self>, String> {
        let Some(key) = key else {
            return match info {
                None => Ok(None),
                Some(_) => Err(format!("info_key= of {scheme}:// stands beside lock_key=: write both")),
            };
        };
        for (option, name) in [("lock_key", Some(&key)), ("info_key", info.as_ref())] {
            if name.is_some_and(|name| name.len() > MOST_BYTES) {
                return Err(format!("{option}= of {scheme}:// is longer than {MOST_BYTES} bytes"));
            }
            if name.is_some_and(|name| name.starts_with(&format!("{prefix}{{leases}}:"))) {
                return Err(format!(
                    "{option}= of {scheme}:// names a key of leaderrun itself: name the key of the other programs"
                ));
            }
        }
        if info.as_ref() == Some(&key) {
            return Err(format!("lock_key= and info_key= of {scheme}:// are the same key: name two"));
        }
        Ok(Some(Self { key, info }))
    }

    /// The keys, as they stand behind those of the shard.
    pub fn names(&self) -> impl Iterator<Item = String> {
        std::iter::once(self.key.clone()).chain(self.info.clone())
    }

    /// The program that holds the key, for people: from the value of the key, and what the other key says.
    pub fn holder(&self, value: &str, info: &str, expires_in: Duration) -> Holder {
        // A record that is not of this holder was left by another one.
        let info = serde_json::from_str::<Info>(info).unwrap_or_default();
        let info = if info.is_of(value) { info } else { Info::default() };
        let name = in_short(info.instance_id.as_deref().unwrap_or(value));
        let name = if name.is_empty() { "a program without a name" } else { &name };
        Holder {
            owner: format!("{name} (holds the key {})", self.key),
            host: info.hostname.map(|host| in_short(&host)).filter(|host| !host.is_empty()),
            expires_in: Some(expires_in),
            ..Holder::default()
        }
    }
}

/// What a holder says of itself.
#[derive(Default, Deserialize)]
struct Info {
    instance_id: Option<String>,
    hostname: Option<String>,
    /// In our own records: the value of the key.
    session: Option<String>,
}

impl Info {
    fn is_of(&self, value: &str) -> bool {
        [&self.session, &self.instance_id].into_iter().flatten().any(|id| id == value)
    }
}

impl Redis {
    /// The keys of a shard, and those of `lock_key=`.
    pub(super) fn keys(&self, shard: &Shard) -> Vec<String> {
        let foreign = self.lock_key.iter().flat_map(LockKey::names);
        self.own_keys(shard).into_iter().chain(foreign).collect()
    }

    /// The holder of the key, from a reply that ends with what it says of itself.
    pub(super) fn taker(&self, reply: &Reply, index: usize) -> Option<Holder> {
        let lock_key = self.lock_key.as_ref()?;
        Some(lock_key.holder(reply.word(index + 1), reply.last_word(), reply.millis(index + 2)))
    }

    /// Remembers the lease of a candidate that another program kept from leading. Its key ends by the server's clock,
    /// and nothing shows whether it was given back, so this is no rival that must be waited for.
    pub(super) fn taken_from(&self, shard: &Shard, lease_millis: u64) {
        let mut seen = self.seen.lock();
        let seen = seen.entry(shard.clone()).or_default();
        seen.lease_millis = lease_millis;
    }

    /// Returns the index of a shard that is free. Never returns without `lock_key=`.
    pub(super) async fn key_freed(&self, shards: &[Shard]) -> Result<usize, StoreError> {
        if self.lock_key.is_none() {
            return std::future::pending().await;
        }
        let mut pause = FIRST_LOOK;
        loop {
            sleep(pause).await;
            pause = (pause * 2).min(LAST_LOOK);
            let looks = parallel::all(shards.iter().map(|shard| self.observe(shard))).await;
            let looks = looks.into_iter().collect::<Result<Vec<_>, _>>()?;
            if let Some(index) = looks.iter().position(|look| *look == Observation::Free) {
                return Ok(index);
            }
        }
    }

    /// What `store check` says about the key.
    pub(super) async fn check_lock_key(&self, place: &str, findings: &mut Vec<Finding>) -> Result<(), StoreError> {
        let Some(lock_key) = &self.lock_key else { return Ok(()) };
        let before = findings.len();
        for key in lock_key.names() {
            let read = ask(self, cmd("GET").arg(&key)).await?;
            if read.as_ref().is_err_and(|failure| failure.has_code("WRONGTYPE")) {
                let text = format!("the key {key} in {place} is no string, so it is no lock: name another");
                findings.push(Finding::bad(text));
                continue;
            }
            // Never done: the two conditions contradict each other. But the server looks at permissions first.
            let written = ask(self, cmd("SET").arg(&key).arg("check").arg("NX").arg("XX")).await?;
            for failure in [read, written].into_iter().filter_map(Result::err) {
                if failure.has_code("NOPERM") {
                    let error = failure.conclude(self.client.about(place, &[]));
                    findings.push(Finding::bad(format!("{MISSING}: read and write the key {key}: {error}")));
                    break;
                }
            }
        }
        if findings.len() > before {
            return Ok(());
        }
        findings.push(self.state_of_lock_key(lock_key).await?);
        let key = &lock_key.key;
        findings.push(Finding::doubtful(format!(
            "the programs that take only {key} have no terms, and nothing shows that one of them has stopped when the key \
             expires or is deleted: they have to stop by themselves before their time is over"
        )));
        findings.push(Finding::doubtful(format!(
            "if the server forgets {key} (a restart without an append-only file, a failover, FLUSHALL), another program \
             may take it at once: leaderrun stops when it notices, and until then two can lead"
        )));
        Ok(())
    }

    async fn state_of_lock_key(&self, lock_key: &LockKey) -> Result<Finding, StoreError> {
        let key = &lock_key.key;
        let value = ask(self, cmd("GET").arg(key)).await?.unwrap_or(Value::Nil);
        let left = ask(self, cmd("PTTL").arg(key)).await?.unwrap_or(Value::Nil);
        let info = match &lock_key.info {
            Some(info) => ask(self, cmd("GET").arg(info)).await?.unwrap_or(Value::Nil),
            None => Value::Nil,
        };
        let text = |value| match value {
            Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            _ => String::new(),
        };
        Ok(match (value, left) {
            (Value::Nil, _) => Finding::good(format!("the key {key} is free")),
            (_, Value::Int(-1)) => Finding::bad(format!(
                "the key {key} never expires, so nobody could take it after its holder died: delete it, or give it an \
                 expiry"
            )),
            (value, left) => {
                let left = if let Value::Int(left) = left { u64::try_from(left).unwrap_or(0) } else { 0 };
                let left = Duration::from_millis(left);
                let holder = lock_key.holder(&text(value), &text(info), left);
                Finding::good(format!("the key {key} is held for {} more: {}", show(left), holder.owner))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn maplefile() -> LockKey {
        LockKey { key: "maplefile:leader:lock".into(), info: Some("maplefile:leader:info".into()) }
    }

    #[test]
    fn a_holder_is_named_as_it_describes_itself() {
        let left = Duration::from_secs(3);
        let info = r#"{"instance_id":"backend-7","hostname":"h7","started_at":"2026-11-21T13:43:31Z","more":[1]}"#;
        let holder = maplefile().holder("backend-7", info, left);
        assert_eq!(holder.owner, "backend-7 (holds the key maplefile:leader:lock)");
        assert_eq!((holder.host.as_deref(), holder.expires_in, holder.session), (Some("h7"), Some(left), None));
        let ours = r#"{"instance_id":"one","hostname":"here","session":"S-1","term":5}"#;
        assert!(maplefile().holder("S-1", ours, left).owner.starts_with("one ("));
    }

    #[test]
    fn a_record_that_another_holder_left_says_nothing() {
        for info in [r#"{"instance_id":"backend-6","hostname":"h6"}"#, "", "[]", "{", r#"{"instance_id":7}"#] {
            let holder = maplefile().holder("backend-7", info, Duration::ZERO);
            assert!(holder.owner.starts_with("backend-7 (") && holder.host.is_none(), "{holder:?}");
        }
        assert!(maplefile().holder(" ", "", Duration::ZERO).owner.starts_with("a program without a name ("));
    }
}
