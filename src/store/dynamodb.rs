//! The store `dynamodb://`: one item for each document in a table, changed only by conditional updates of one item.
//!
//! The hazard: DynamoDB compares and swaps one item, and looks at no clock. So ends are written from the upper bound of
//! the server's clock (`server_clock`) and judged by the lower. Other programs may use the same table with the same
//! four attributes (`item`), and the table's own TTL deletes items by a clock that we cannot see. So a shard's led mark
//! repeats what would be lost with its item. The store uses no transactions, because multi-region strongly consistent
//! tables do not have them.

mod address;
mod check;
mod connection;
mod failure;
mod item;
mod setup;
mod table;

pub use address::Address;
pub use table::Table;

use super::expiry::ServerTime;
use super::lease_store::documents::{
    Content, Documents, Draft, EachListed, Ends, Found, Key, Life, List, Listed, Marking, Over, Properties, Touch,
    Touched, random_name,
};
use super::{Delivery, Finding, StoreError, parallel};
use crate::time::{BootInstant, millis};
use item::{LOCK, NOBODY, SHARD, STANDBY, STORE, key_of, n, partition, s, ttl_of};
use std::time::Duration;
use table::{Change, Outcome};

/// How much later than a note's end DynamoDB may delete it.
const TTL_SLACK: Duration = Duration::from_hours(24);
/// How long a scratch item stays if its user may not delete it.
const SCRATCH_LASTS: Duration = Duration::from_mins(10);

/// Demands that the item is as it was found.
fn demand(change: &mut Change, found: &Found, exactly: bool) {
    if found.content == Content::Absent {
        return change.only_if("pk", None);
    }
    let (write, owner) = item::write_and_owner(&found.version);
    change.only_if("write", (!write.is_empty()).then(|| s(write)));
    if let Some(owner) = owner {
        change.only_if("ownerId", Some(s(owner)));
    }
    match &found.content {
        Content::Ours(ours) if exactly => {
            change.only_if("sequence", Some(n(ours.sequence)));
            change.only_if("expiresMs", if let Life::Ends(ends) = ours.life { Some(n(ends)) } else { None });
        }
        Content::Foreign { sign, .. } => change.only_if("ttl", Some(n(sign))),
        Content::Ours(_) | Content::Absent | Content::Unreadable(_) => {}
    }
}

impl Table {
    fn change(&self, key: Key<'_>, draft: &Draft<'_>, write: &str) -> Change {
        let mut change = Change::default();
        change.set("text", Some(s(draft.text)));
        change.set("write", Some(s(write)));
        change.set("session", draft.leadership.map(|of| s(of.session.as_str())));
        change.set("term", draft.leadership.map(|of| n(of.term)));
        let is_lock = matches!(key, Key::Shard(_));
        if draft.ends != Ends::Keep {
            let sent = BootInstant::now();
            let expires = match draft.ends {
                Ends::In(lasts) => Some(self.expiry(sent, lasts)),
                // Other programs need not wait for it.
                Ends::Now if is_lock => Some(0),
                Ends::Now => Some(self.expiry(sent, Duration::ZERO)),
                Ends::Keep | Ends::Never => None,
            };
            let ttl = match (key, expires) {
                (Key::Shard(_), expires) => Some(expires.unwrap_or(0)),
                (Key::Scratch(_), _) => Some(self.expiry(sent, SCRATCH_LASTS)),
                (_, expires) => expires.map(|expires| expires.saturating_add(millis(TTL_SLACK))),
            };
            change.set("sequence", Some(n(draft.sequence)));
            change.set("expiresMs", expires.map(n));
            change.set("ttl", ttl.map(|millis| n(ttl_of(millis))));
        }
        if is_lock || matches!(key, Key::Scratch(_)) {
            let formula = if draft.owner.is_some() { ":ownerId" } else { "if_not_exists(#ownerId, :ownerId)" };
            change.set_to("ownerId", formula, s(draft.owner.unwrap_or(NOBODY)));
        }
        change
    }
}

#[async_trait::async_trait]
impl Documents for Table {
    fn place(&self) -> String {
        format!("table {} in {}", self.name, self.server)
    }

    fn name(&self, key: Key<'_>) -> String {
        let (partition, sort) = key_of(key);
        format!("the item pk={partition}, sk={sort} of table {}", self.name)
    }

    fn remedy(&self, _: Key<'_>) -> String {
        "delete it, or use another table".to_owned()
    }

    fn properties(&self) -> Properties {
        let (marking, delivery) = (Marking::ByWriters, Delivery::Poll);
        let (is_shared, tells_time, is_metered) = (true, false, true);
        Properties { marking, delivery, is_shared, tells_time, is_metered, ..Properties::default() }
    }

    async fn get(&self, keys: &[Key<'_>], may_be_behind: bool) -> Result<Vec<Found>, StoreError> {
        let items = keys.iter().map(|key| self.get(key_of(*key), !may_be_behind));
        Ok(parallel::try_all(items).await?.iter().map(|item| item::read(item.as_ref())).collect())
    }

    async fn put(&self, key: Key<'_>, draft: Draft<'_>, over: Over<'_>) -> Result<Option<Found>, StoreError> {
        let write = &random_name()?;
        let mut change = self.change(key, &draft, write);
        let (Over::Exactly(found) | Over::Text(found)) = over;
        demand(&mut change, found, matches!(over, Over::Exactly(_)));
        match self.update(key_of(key), change).await? {
            Outcome::Done(item) => Ok(Some(item::read(item.as_ref()))),
            // An earlier copy of the same request was applied.
            Outcome::Refused(Some(item)) if item::text(&item, "write") == Some(write) => {
                Ok(Some(item::read(Some(&item))))
            }
            Outcome::Refused(_) => Ok(None),
        }
    }

    async fn touch(&self, touch: Touch<'_>) -> Result<Touched, StoreError> {
        let key = Key::Shard(touch.shard);
        let expires = self.expiry(BootInstant::now(), touch.lease);
        let mut change = Change::default();
        change.set("sequence", Some(n(touch.sequence)));
        change.set("expiresMs", Some(n(expires)));
        change.set("ttl", Some(n(ttl_of(expires))));
        change.only_if("session", Some(s(touch.leadership.session.as_str())));
        change.only_if("term", Some(n(touch.leadership.term)));
        change.only_if("ownerId", Some(s(touch.owner)));
        change.conditions.push("#sequence <= :sequence".to_owned());
        let item = match self.update(key_of(key), change).await? {
            Outcome::Done(item) => {
                let also = touch.also.is_empty().then(Vec::new);
                return Ok(Touched::Done { found: item::read(item.as_ref()), also });
            }
            Outcome::Refused(Some(item)) => Some(item),
            // The item is gone, or the server does not return it.
            Outcome::Refused(None) => self.get(key_of(key), true).await?,
        };
        let is_same = item::read(item.as_ref()).leadership() == Some(touch.leadership);
        Ok(if is_same { Touched::Overtaken } else { Touched::Refused })
    }

    async fn remove(&self, key: Key<'_>) -> Result<(), StoreError> {
        self.delete(key_of(key)).await
    }

    async fn list(&self, list: List<'_>, each: &mut EachListed<'_>) -> Result<(), StoreError> {
        let items = match list {
            List::Shards(prefix) => {
                let filter =
                    "(begins_with(#pk, :prefix) AND #sk = :lock) OR (#pk = :store AND begins_with(#sk, :prefix))";
                let prefix = format!("{SHARD}{prefix}");
                self.scan(filter, &[(":prefix", &prefix), (":lock", LOCK), (":store", STORE)]).await?
            }
            List::Standbys(prefix) => {
                let filter = "begins_with(#pk, :prefix) AND begins_with(#sk, :standby)";
                self.scan(filter, &[(":prefix", &format!("{SHARD}{prefix}")), (":standby", STANDBY)]).await?
            }
            List::Notes(shard) => {
                let items = self.query(partition(shard)).await?;
                items.into_iter().filter(|item| item::text(item, "sk") != Some(LOCK)).collect()
            }
        };
        let listed = items.into_iter().filter_map(|item| {
            let (shard, part) = item::listed(&item)?;
            Some(Listed { shard, part, found: item::read(Some(&item)) })
        });
        each(listed.collect());
        Ok(())
    }

    async fn prepare(&self) -> Result<Vec<String>, StoreError> {
        setup::prepare(self).await
    }

    async fn findings(&self) -> Result<Vec<Finding>, StoreError> {
        check::findings(self).await
    }
}
