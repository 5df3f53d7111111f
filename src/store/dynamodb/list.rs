//! Lists the shards, and their leaders.
//!
//! The hazard: a scan reads the whole table, and shows each item as of another instant. So a holder that the lock item
//! names is matched with the term item by the session in both.

use super::record::{LOCK, PARTITION, Record, TERM, shard_of};
use super::table::Expression;
use super::{DynamoDb, record, term};
use crate::lease::{Session, Shard, Term};
use crate::store::allowance::{self, MOST_LISTED};
use crate::store::{Holder, Report, StoreError};
use crate::time::BootInstant;
use std::collections::BTreeMap;

/// The last term, and its session.
pub type LastTerm = (Term, Option<Session>);

pub async fn list(store: &DynamoDb, prefix: &str) -> Result<Vec<(Shard, Report)>, StoreError> {
    let mut found: BTreeMap<Shard, (Option<Holder>, Option<LastTerm>)> = BTreeMap::new();
    let mut from = None;
    loop {
        let sent = BootInstant::now();
        let filter = Expression::new("begins_with(#pk, :prefix) AND #sk IN (:lock, :term)")
            .text(":prefix", &format!("{PARTITION}{prefix}"))
            .text(":lock", LOCK)
            .text(":term", TERM);
        let (items, ended) = store.table.scan(filter, from).await?;
        for item in items {
            let Some(shard) = shard_of(&item) else { continue };
            if record::text(&item, "sk") == Some(LOCK) {
                let record = Record::read(&item);
                let holder =
                    record.map_or_else(|| Some(Holder::stranger()), |record| store.holder(&shard, &record, sent));
                found.entry(shard).or_default().0 = holder;
            } else {
                let last = term::last_in(&store.table, &shard, &item);
                found.entry(shard).or_default().1 = last;
            }
        }
        if found.len() > MOST_LISTED {
            return Err(allowance::too_long(&store.table.server));
        }
        from = ended;
        if from.is_none() {
            break;
        }
    }
    Ok(found.into_iter().map(|(shard, (holder, last))| (shard, report(holder, last))).collect())
}

/// A report, from the lock item and the term item.
pub fn report(mut holder: Option<Holder>, last: Option<LastTerm>) -> Report {
    // The lock item has the term from the first renewal on. Before that, the term item has it.
    if let (Some(holder), Some((term, whose))) = (&mut holder, &last)
        && holder.session.is_some()
        && holder.session == *whose
    {
        holder.term.get_or_insert(*term);
    }
    Report { holder, last_term: last.map(|(term, _)| term) }
}
