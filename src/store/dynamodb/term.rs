//! Terms, and how long a new leader has to wait for a tree that may still run.
//!
//! The hazard: a lock item that is absent does not say why. It was released, it never existed, or it was deleted: by an
//! operator, by DynamoDB's TTL, or with the whole table. After a deletion its holder may not know yet, and its tree
//! runs until its deadline. So beside the lock item is the term item, which nothing expires. It names the last holder,
//! and a release marks it before the lock item goes. If the lock is absent and the term item is not marked, the next
//! leader waits for one whole lease of that holder. If the term item is absent too, the shard is new or the table was
//! wiped: a marker item that is older than a lease shows which.
//!
//! A leader that has to wait may crash while it waits, and its successor would not know. So the wait is written by the
//! same update that takes the term, and every successor keeps it, whatever happened in between.

use super::record::{Item, Ours, n, number, text};
use super::table::{Expression, Outcome, Table, led_mark_key, marker_key, term_key};
use crate::lease::{Candidate, Session, Shard, Term};
use crate::store::expiry::ServerTime;
use crate::store::server_clock::{Wait, with_drift};
use crate::store::{Doubt, Grant, StoreError};
use crate::time::{BootInstant, millis};
use aws_sdk_dynamodb::types::AttributeValue;
use std::time::Duration;

/// Only the holder of the lock changes the term item, so even one retry is rare.
const MOST_ATTEMPTS: usize = 4;

/// The term item of a shard.
struct LastTerm {
    term: u64,
    holder: Option<Session>,
    lease: Option<Duration>,
    /// The longest lease that the led mark is known to record.
    led_mark: Duration,
    wait: Option<Wait>,
}

/// Takes the next term for a candidate that holds the lock.
///
/// The trees of the sessions in `dead` are known to be gone, because the lock item that named them had expired.
pub async fn take(table: &Table, candidate: &Candidate, dead: &[Session]) -> Result<Grant, StoreError> {
    for _ in 0..MOST_ATTEMPTS {
        let last = match take_after_a_known_end(table, candidate, dead).await? {
            Outcome::Done(last) => {
                let last = last.as_ref().map(|item| LastTerm::read(&table.name, &candidate.shard, item)).transpose()?;
                // The condition names attributes that an absent item does not have.
                let last = last.ok_or_else(|| StoreError::unknown("the term item vanished while it was changed"))?;
                if last.led_mark < candidate.lease {
                    write_led_mark(table, candidate).await?;
                }
                let now = BootInstant::now();
                let start_after = last.wait.and_then(|wait| over_at(wait, table, now));
                return Ok(Grant { term: Term(last.term + 1), start_after, doubt: Doubt::Forgotten });
            }
            // The item may exist, on a server that does not return it.
            Outcome::Refused(None) => table.get(term_key(&candidate.shard), true).await?,
            Outcome::Refused(item) => item,
        };
        let last = last.as_ref().map(|item| LastTerm::read(&table.name, &candidate.shard, item)).transpose()?;
        if let Some(grant) = take_after_an_unknown_end(table, candidate, last).await? {
            return Ok(grant);
        }
    }
    Err(StoreError::unknown(format!("the term of shard {} changes faster than it can be taken", candidate.shard)))
}

/// Marks that a leadership ended with its tree dead, so that no candidate waits for it. Call it before the lock goes.
///
/// The condition contains the term, so that a mark that arrives late does not end the session's next leadership; zero
/// means that the term is not known. Also writes the longest lease that the led mark is known to record.
pub async fn mark_released(
    table: &Table,
    candidate: &Candidate,
    term: Term,
    led_mark: Option<Duration>,
) -> Result<(), StoreError> {
    let condition = match term {
        Term(0) => Expression::new("#holder = :me"),
        term => Expression::new("#holder = :me AND #term = :term").number(":term", term),
    };
    let mut condition = condition.text(":me", candidate.session.as_str()).with(":true", AttributeValue::Bool(true));
    let mut update = "SET #released = :true".to_owned();
    if let Some(led_mark) = led_mark {
        condition = condition.number(":ledger", millis(led_mark));
        update.push_str(", #ledgerMs = :ledger");
    }
    // If it is refused, another session holds the term by now, and writes its own mark.
    table.update(term_key(&candidate.shard), &update, condition).await.map(drop)
}

/// Makes the shard look as if it was never led. Call it before the lock goes.
pub async fn forget(table: &Table, candidate: &Candidate, term: Term) -> Result<(), StoreError> {
    let led_mark = table.get(led_mark_key(&candidate.shard), true).await?;
    let ours = Expression::new("#holder = :me AND #term = :term").number(":term", term);
    // In this order: a leader that finds a term item with the lease of a led mark writes none.
    let outcome = table.delete(term_key(&candidate.shard), ours.text(":me", candidate.session.as_str())).await?;
    let (Outcome::Done(_), Some(led_mark)) = (outcome, led_mark) else { return Ok(()) };
    // A leader that comes from now on signs the led mark, and then the delete is refused.
    let same = text(&led_mark, "holder").map_or_else(
        || Expression::new("attribute_exists(#pk) AND attribute_not_exists(#holder)"),
        |holder| Expression::new("#holder = :holder").text(":holder", holder),
    );
    table.delete(led_mark_key(&candidate.shard), same).await.map(drop)
}

/// The last term, and its session.
pub async fn last(table: &Table, shard: &Shard) -> Result<Option<(Term, Option<Session>)>, StoreError> {
    let item = table.get(term_key(shard), true).await?;
    let last = item.map(|item| LastTerm::read(&table.name, shard, &item)).transpose()?;
    Ok(last.map(|last| (Term(last.term), last.holder)))
}

/// As [`last`], from an item that was read already. None if it cannot be read.
pub fn last_in(table: &Table, shard: &Shard, item: &Item) -> Option<(Term, Option<Session>)> {
    LastTerm::read(&table.name, shard, item).ok().map(|last| (Term(last.term), last.holder))
}

/// Writes the term item again for a present leadership that has lost it. Otherwise only its lock item would show that
/// its tree exists.
pub async fn remember(table: &Table, shard: &Shard, term: Term, ours: &Ours) -> Result<(), StoreError> {
    let (pk, sk) = term_key(shard);
    let item = Item::from([
        ("pk".to_owned(), pk),
        ("sk".to_owned(), sk),
        ("term".to_owned(), n(term)),
        ("holder".to_owned(), AttributeValue::S(ours.session.as_str().to_owned())),
        ("leaseMs".to_owned(), n(millis(ours.lease))),
    ]);
    table.put(item, Expression::new("attribute_not_exists(#pk)")).await.map(drop)
}

/// Has every next leader wait for a present leadership which the term item does not name, unless they wait longer anyway.
pub async fn write_wait(table: &Table, shard: &Shard, ours: &Ours) -> Result<(), StoreError> {
    let wait = with_drift(ours.lease);
    let condition = "attribute_exists(#pk) AND (attribute_not_exists(#waitUntilMs) OR #waitUntilMs < :until)";
    let condition = Expression::new(condition)
        .number(":until", table.server_millis(BootInstant::now().plus(wait)))
        .number(":wait", millis(wait));
    table.update(term_key(shard), "SET #waitUntilMs = :until, #waitMs = :wait", condition).await.map(drop)
}

/// Marks that the table remembers from now on. False if it did so before.
pub async fn mark_table(table: &Table) -> Result<bool, StoreError> {
    let created = table.server_millis(BootInstant::now());
    let (pk, sk) = marker_key();
    let item = Item::from([("pk".to_owned(), pk), ("sk".to_owned(), sk), ("createdMs".to_owned(), n(created))]);
    let outcome = table.put(item, Expression::new("attribute_not_exists(#pk)")).await?;
    Ok(matches!(outcome, Outcome::Done(_)))
}

/// Makes the marker one of a table that has always remembered.
pub async fn vouch_for_table(table: &Table) -> Result<(), StoreError> {
    let (pk, sk) = marker_key();
    let item = Item::from([("pk".to_owned(), pk), ("sk".to_owned(), sk), ("createdMs".to_owned(), n(0))]);
    table.put(item, Expression::new("attribute_exists(#pk)")).await.map(drop)
}

/// Nearly always the only request: the last leadership was released, was our own, or is known to be dead.
async fn take_after_a_known_end(table: &Table, candidate: &Candidate, dead: &[Session]) -> Result<Outcome, StoreError> {
    let mut holders = vec![(":me".to_owned(), &candidate.session)];
    holders.extend(dead.iter().enumerate().map(|(index, session)| (format!(":dead{index}"), session)));
    let names = holders.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    let mut condition = Expression::new(format!("#released = :true OR #holder IN ({names})"))
        .with(":true", AttributeValue::Bool(true))
        .number(":lease", millis(candidate.lease))
        .number(":one", 1);
    for (name, session) in &holders {
        condition = condition.text(name, session.as_str());
    }
    let update = "SET #term = #term + :one, #holder = :me, #leaseMs = :lease REMOVE #released";
    table.update(term_key(&candidate.shard), update, condition).await
}

/// `last` is None if the shard has no term item. Returns None if the item has changed meanwhile.
async fn take_after_an_unknown_end(
    table: &Table,
    candidate: &Candidate,
    last: Option<LastTerm>,
) -> Result<Option<Grant>, StoreError> {
    let (mut condition, term, start_after, doubt) = if let Some(last) = last {
        if last.led_mark < candidate.lease {
            write_led_mark(table, candidate).await?;
        }
        let now = BootInstant::now();
        let dead_at = now.plus(with_drift(last.lease.unwrap_or(candidate.lease)));
        let earlier = last.wait.and_then(|wait| over_at(wait, table, now));
        let same = last.holder.as_ref().map_or_else(
            || Expression::new("#term = :last AND attribute_not_exists(#holder)"),
            |holder| Expression::new("#term = :last AND #holder = :holder").text(":holder", holder.as_str()),
        );
        let start_after = Some(earlier.map_or(dead_at, |earlier| earlier.max(dead_at)));
        (same.number(":last", last.term), last.term + 1, start_after, Doubt::Forgotten)
    } else {
        let (by_marker, by_led_mark) =
            tokio::join!(wait_of_a_new_shard(table, candidate), wait_of_a_known_shard(table, candidate));
        let (by_marker, by_led_mark) = (by_marker?, by_led_mark?);
        let doubt = if by_led_mark.is_none() { Doubt::FirstUse } else { Doubt::Forgotten };
        let start_after = by_marker.max(by_led_mark);
        // Milliseconds since 1970 rise faster than leaderships do, so this is above every term of a table that was
        // wiped. The known server's time may be off by a second or two, but the wait for wiped leaderships lasts
        // longer.
        let term = table.server_millis(start_after.unwrap_or_else(BootInstant::now)) + 1;
        (Expression::new("attribute_not_exists(#pk)"), term, start_after, doubt)
    };
    condition = condition
        .number(":term", term)
        .text(":me", candidate.session.as_str())
        .number(":lease", millis(candidate.lease));
    let mut update = "SET #term = :term, #holder = :me, #leaseMs = :lease, #ledgerMs = :lease".to_owned();
    if let Some(start_after) = start_after {
        let wait = millis(start_after.since(BootInstant::now()));
        condition = condition.number(":until", table.server_millis(start_after)).number(":wait", wait);
        update.push_str(", #waitUntilMs = :until, #waitMs = :wait REMOVE #released");
    } else {
        update.push_str(" REMOVE #released, #waitUntilMs, #waitMs");
    }
    Ok(match table.update(term_key(&candidate.shard), &update, condition).await? {
        Outcome::Done(_) => Some(Grant { term: Term(term), start_after, doubt }),
        Outcome::Refused(_) => None,
    })
}

/// The wait of a shard without any item. A wiped table's leaders are dead one lease after the wipe; the marker says
/// when the table began.
async fn wait_of_a_new_shard(table: &Table, candidate: &Candidate) -> Result<Option<BootInstant>, StoreError> {
    let duration = with_drift(candidate.lease);
    let Some(marker) = table.get(marker_key(), true).await? else {
        mark_table(table).await?;
        return Ok(Some(BootInstant::now().plus(duration)));
    };
    let created: u64 = number(&marker, "createdMs").ok_or_else(|| {
        StoreError::misconfigured(format!(
            "the marker of table {} was written by something else: delete the item pk=LEADERRUN, sk=TABLE or use \
             another table",
            table.name
        ))
    })?;
    let wait = Wait { until_millis: created.saturating_add(millis(duration)), duration: candidate.lease };
    Ok(over_at(wait, table, BootInstant::now()))
}

/// Writes the led mark, and returns its earlier content. A led mark with a lease at least as long stays as it is.
async fn write_led_mark(table: &Table, candidate: &Candidate) -> Result<Option<Item>, StoreError> {
    let (pk, sk) = led_mark_key(&candidate.shard);
    let lease = n(millis(candidate.lease));
    let holder = AttributeValue::S(candidate.session.as_str().to_owned());
    let item = [("pk", pk), ("sk", sk), ("leaseMs", lease.clone()), ("holder", holder)];
    let item = item.map(|(name, value)| (name.to_owned(), value)).into();
    let condition = Expression::new("attribute_not_exists(#pk) OR #leaseMs < :lease").with(":lease", lease);
    match table.put(item, condition).await? {
        Outcome::Done(before) | Outcome::Refused(before @ Some(_)) => Ok(before),
        Outcome::Refused(None) => table.get(led_mark_key(&candidate.shard), true).await,
    }
}

/// Signs the led mark, so that it stays for our leadership: a process that forgets the shard deletes the mark only if
/// its signature has not changed.
async fn sign_led_mark(table: &Table, candidate: &Candidate) -> Result<(), StoreError> {
    for _ in 0..MOST_ATTEMPTS {
        let there = Expression::new("attribute_exists(#pk)").text(":me", candidate.session.as_str());
        match table.update(led_mark_key(&candidate.shard), "SET #holder = :me", there).await? {
            Outcome::Done(_) => return Ok(()),
            Outcome::Refused(_) => write_led_mark(table, candidate).await.map(drop)?,
        }
    }
    let shard = &candidate.shard;
    Err(StoreError::unknown(format!("the record that shard {shard} was led changes faster than it can be kept")))
}

/// A user deleted all items of a shard that was led: when its tree is certainly dead. Its lease was not renewed since
/// the lock became ours.
async fn wait_of_a_known_shard(table: &Table, candidate: &Candidate) -> Result<Option<BootInstant>, StoreError> {
    // A led mark with our own session proves no more: other leaders may have written it since.
    let led_mark = write_led_mark(table, candidate).await?;
    if led_mark.is_some() {
        sign_led_mark(table, candidate).await?;
    }
    Ok(led_mark.map(|mark| {
        let lease = number(&mark, "leaseMs").map_or(Duration::ZERO, Duration::from_millis);
        BootInstant::now().plus(with_drift(lease.max(candidate.lease)))
    }))
}

/// The end of the wait. None if it is over.
fn over_at(wait: Wait, table: &Table, now: BootInstant) -> Option<BootInstant> {
    wait.over_by(&table.clock(), table.wall_clock_millis(), now)
}

impl LastTerm {
    fn read(table: &str, shard: &Shard, item: &Item) -> Result<Self, StoreError> {
        let wait = number(item, "waitUntilMs").zip(number(item, "waitMs"));
        Ok(Self {
            term: number(item, "term").filter(|&term| term < u64::MAX).ok_or_else(|| {
                StoreError::misconfigured(format!(
                    "the term of shard {shard} in table {table} was written by something else: delete the item \
                     pk=SHARD#{shard}, sk=TERM or use another table"
                ))
            })?,
            holder: text(item, "holder").map(Session::from_record),
            lease: number(item, "leaseMs").map(Duration::from_millis),
            led_mark: number(item, "ledgerMs").map_or(Duration::ZERO, Duration::from_millis),
            wait: wait.map(|(until_millis, wait)| Wait { until_millis, duration: Duration::from_millis(wait) }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::bend_item;
    use super::*;
    use crate::fuzz;
    use crate::store::server_clock::Clock;

    #[test]
    fn a_million_term_items_are_followed_by_a_higher_term_or_named() {
        let text = |text: &str| AttributeValue::S(text.to_owned());
        let whole = [
            ("pk", text("SHARD#db/main")),
            ("sk", text("TERM")),
            ("term", n(1_795_268_611_017_u64)),
            ("holder", text("s-1")),
            ("leaseMs", n(15_000)),
            ("released", AttributeValue::Bool(true)),
            ("waitUntilMs", n(1_795_268_626_017_u64)),
            ("waitMs", n(15_150)),
        ];
        let shard: Shard = "db/main".parse().unwrap();
        fuzz::run("term item of dynamodb://", |source, input| {
            let mut item: Item = whole.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
            bend_item(source, &mut item);
            input.show(|| format!("{item:?}"));
            let read = LastTerm::read("locks", &shard, &item);
            match &read {
                Ok(last) => {
                    assert!(Term(last.term + 1) > Term(last.term));
                    let now = BootInstant::from_nanos(source.next() >> 8);
                    let mut clock = Clock::default();
                    if source.one_in(2) {
                        clock.sample(1_795_268_620, now, now);
                    }
                    if let Some(wait) = &last.wait {
                        let over = wait.over_by(&clock, source.number(), now);
                        // Whatever date it contains, the wait lasts no longer than it did when it was written.
                        assert!(over.is_none_or(|over| over > now && over <= now.plus(with_drift(wait.duration))));
                    }
                }
                Err(error) => {
                    fuzz::assert_is_one_line(&error.message);
                    assert!(error.message.contains("pk=SHARD#db/main, sk=TERM"), "{error}");
                }
            }
            (&read).into()
        });
    }
}
