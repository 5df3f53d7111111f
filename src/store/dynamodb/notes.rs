//! Notes as items beside the lock: `ORDERS`, `HISTORY`, `STANDBY#SESSION`, `RUNS` and `ONCE#JOB` in the partition of
//! their shard.
//!
//! The hazard: DynamoDB compares, but knows no time while it does. So the end of a note is an attribute. It is written
//! from the upper bound of the server's clock (`server_clock`), and judged by the lower bound: no note ends early, and
//! each may stay for some seconds more. In those seconds two hosts may disagree on whether the note has ended. Writes
//! are compared and swapped all the same. DynamoDB's own TTL deletes by a clock that nobody here has seen, and compares
//! nothing. So a note that lasts for a time gets a `ttl` of a day more than that, and a note without an end gets none.
//!
//! Another hazard: a leader hears of orders by a stamp in its lock item, which is written after them, and a writer may
//! die in between, or be of a release that writes none. So the stamp holds no order: it only says that they changed,
//! and the leader reads them then. A stamp that is lost delays an order, and one that is left over costs a read. The
//! leader also reads them after every grant, and when what it read is a minute old.

use super::record::{Item, PARTITION, n, number, partition, shard_of, text, ttl_of};
use super::table::{Expression, Key, Outcome, lock_key};
use super::{DynamoDb, MOST_ATTEMPTS};
use crate::lease::{Session, Shard};
use crate::store::allowance::{self, MOST_LISTED};
use crate::store::expiry::ServerTime;
use crate::store::{ErrorKind, Note, Notes, Page, StoreError};
use crate::time::{BootInstant, millis};
use aws_sdk_dynamodb::types::AttributeValue;
use std::time::Duration;

const ORDERS: &str = "ORDERS";
const HISTORY: &str = "HISTORY";
/// Precedes the session in a sort key.
const STANDBY: &str = "STANDBY#";
const RUNS: &str = "RUNS";
/// Precedes the name of the job in a sort key.
const ONCE: &str = "ONCE#";
/// How much later than the note's end DynamoDB may delete it.
const TTL_SLACK: Duration = Duration::from_hours(24);
/// The most ended notes that one look at all notes deletes: its caller must not wait for a crowd.
const MOST_SWEPT: usize = 50;

/// How long a leader believes the orders that it read, while the stamp is the same.
const BELIEVED_FOR: Duration = Duration::from_mins(1);

/// What a leader knows of its shard's orders.
#[derive(Debug)]
pub struct Known {
    /// When the leadership began.
    since: BootInstant,
    /// The stamp that the last renewal showed.
    stamp: Option<String>,
    heard: Option<Heard>,
}

/// The orders as they were read.
#[derive(Debug)]
struct Heard {
    /// The stamp that was known before the request for them.
    stamp: Option<String>,
    note: Option<Note>,
    asked: BootInstant,
    answered: BootInstant,
}

impl Known {
    pub fn since(since: BootInstant) -> Self {
        Self { since, stamp: None, heard: None }
    }

    /// The one note, if it is as it was read. `stamp` is the one that the answer to a renewal showed.
    pub fn unless_changed(&mut self, stamp: Option<&str>) -> Option<[Option<Note>; 1]> {
        let now = BootInstant::now();
        let same = |heard: &&Heard| heard.stamp.as_deref() == stamp && now.since(heard.asked) < BELIEVED_FOR;
        let known = self.heard.as_ref().filter(same).and_then(|heard| heard.note_at(now));
        self.stamp = stamp.map(str::to_owned);
        known
    }

    /// Takes note of an answer to a request that was sent at `asked`, when `stamp` was known.
    fn hear(&mut self, stamp: Option<String>, note: Option<Note>, asked: BootInstant) {
        // An earlier request may be of an earlier leadership, whose stamp went with its item.
        if asked >= self.since && self.heard.as_ref().is_none_or(|heard| heard.asked <= asked) {
            self.heard = Some(Heard { stamp, note, asked, answered: BootInstant::now() });
        }
    }
}

impl Heard {
    /// The orders with what is left of their time. None once that has passed: then only a read shows whether they have
    /// ended.
    fn note_at(&self, now: BootInstant) -> Option<[Option<Note>; 1]> {
        let Some(note) = &self.note else { return Some([None]) };
        let Some(lasts) = note.lasts else { return Some([Some(note.clone())]) };
        let left = lasts.checked_sub(now.since(self.answered)).filter(|left| !left.is_zero())?;
        Some([Some(Note::lasting(note.text.clone(), Some(left)))])
    }
}

/// The stamp in a lock item.
pub fn stamp_in(item: &Item) -> Option<&str> {
    text(item, "ordersStamp")
}

/// The content of an item.
struct Kept {
    text: String,
    /// Server time, in milliseconds since 1970; an upper bound of when the note ends.
    expires_millis: Option<u64>,
}

impl Kept {
    /// Reads a note. None if we cannot have written it.
    fn read(item: &Item) -> Option<Self> {
        let expires_millis = match item.get("expiresMs") {
            Some(_) => Some(number(item, "expiresMs")?),
            None => None,
        };
        let text = text(item, "text").filter(|text| !text.is_empty())?.to_owned();
        Some(Self { text, expires_millis })
    }

    /// The note, or None if it has ended.
    fn note(self, now_millis: u64) -> Option<Note> {
        let left = self.expires_millis.map(|expires| Duration::from_millis(expires.saturating_sub(now_millis)));
        (left != Some(Duration::ZERO)).then_some(Note { text: self.text, lasts: left })
    }
}

fn sort(page: &Page) -> String {
    match page {
        Page::Orders => ORDERS.to_owned(),
        Page::History => HISTORY.to_owned(),
        Page::Standby(session) => format!("{STANDBY}{}", session.as_str()),
        Page::Runs => RUNS.to_owned(),
        Page::Once(job) => format!("{ONCE}{job}"),
    }
}

/// Whether an item in a shard's partition is a note, and not another program's item.
pub fn is_note(sort: &str) -> bool {
    [ORDERS, HISTORY, RUNS].contains(&sort) || [STANDBY, ONCE].iter().any(|mark| sort.starts_with(mark))
}

fn key(shard: &Shard, page: &Page) -> Key {
    (AttributeValue::S(partition(shard)), AttributeValue::S(sort(page)))
}

/// The condition that the item has exactly the text `expected` (None: no text) at `now_millis`.
fn stands(expected: Option<&str>, now_millis: u64) -> Expression {
    let condition = match expected {
        Some(expected) => {
            let standing = "#text = :expected AND (attribute_not_exists(#expiresMs) OR :now < #expiresMs)";
            Expression::new(standing).text(":expected", expected)
        }
        None => Expression::new("attribute_not_exists(#pk) OR #expiresMs <= :now"),
    };
    condition.number(":now", now_millis)
}

impl DynamoDb {
    /// Shows the leader, if there is one, that its orders have changed. They stand whether this succeeds or not.
    async fn stamp(&self, shard: &Shard) {
        let Ok(stamp) = Session::random() else { return };
        for attempt in 1.. {
            // Not in an item of the other library, whose candidates have no orders.
            let condition = Expression::new("attribute_exists(#beat)").text(":stamp", stamp.as_str());
            let stamped = self.table.update(lock_key(shard), "SET #ordersStamp = :stamp", condition).await;
            let Err(error) = stamped else { return };
            if attempt == MOST_ATTEMPTS || matches!(error.kind, ErrorKind::Denied | ErrorKind::Misconfigured) {
                tracing::warn!(
                    "a leader of {shard} hears of its new orders within a minute, not at once: {}",
                    error.message
                );
                return;
            }
        }
    }

    fn note_item(&self, shard: &Shard, page: &Page, draft: &Note) -> Item {
        let (pk, sk) = key(shard, page);
        let text = AttributeValue::S(draft.text.clone());
        let mut item = Item::from([("pk".to_owned(), pk), ("sk".to_owned(), sk), ("text".to_owned(), text)]);
        if let Some(lasts) = draft.lasts {
            let expires_millis = self.table.expiry(BootInstant::now(), lasts);
            item.insert("expiresMs".to_owned(), n(expires_millis));
            item.insert("ttl".to_owned(), n(ttl_of(expires_millis.saturating_add(millis(TTL_SLACK)))));
        }
        item
    }

    fn kept(&self, shard: &Shard, item: &Item) -> Result<Kept, StoreError> {
        Kept::read(item).ok_or_else(|| {
            let (table, sort) = (&self.table.name, text(item, "sk").unwrap_or("?"));
            StoreError::misconfigured(format!(
                "the note {sort} of shard {shard} in table {table} was written by something else: delete the item \
                 pk=SHARD#{shard}, sk={sort} or use another table"
            ))
        })
    }
}

#[async_trait::async_trait]
impl Notes for DynamoDb {
    async fn read(&self, shard: &Shard, page: &Page) -> Result<Option<Note>, StoreError> {
        let asked = BootInstant::now();
        let stamp = self.seen.lock().get(shard).and_then(|seen| seen.orders.as_ref()?.stamp.clone());
        let note = match self.table.get(key(shard, page), true).await? {
            // The answer has shown what time it is.
            Some(item) => self.kept(shard, &item)?.note(self.table.least_server_millis()),
            None => None,
        };
        if *page == Page::Orders
            && let Some(known) = self.seen.lock().get_mut(shard).and_then(|seen| seen.orders.as_mut())
        {
            known.hear(stamp, note.clone(), asked);
        }
        Ok(note)
    }

    async fn replace(
        &self,
        shard: &Shard,
        page: &Page,
        expected: Option<&str>,
        draft: Option<&Note>,
    ) -> Result<bool, StoreError> {
        if expected.is_none() && draft.is_none() {
            return Ok(Notes::read(self, shard, page).await?.is_none());
        }
        if self.table.clock().bounds(BootInstant::now()).is_none() {
            // No request has reached the server yet. Any answer shows what time it is.
            self.table.get(key(shard, page), true).await?;
        }
        let condition = stands(expected, self.table.least_server_millis());
        let outcome = match draft {
            Some(draft) => self.table.put(self.note_item(shard, page, draft), condition).await,
            None => self.table.delete(key(shard, page), condition).await,
        };
        let may_be_written = match &outcome {
            Ok(Outcome::Done(_)) => true,
            Ok(Outcome::Refused(_)) => false,
            Err(error) => error.kind == ErrorKind::Unknown,
        };
        if *page == Page::Orders && may_be_written {
            self.stamp(shard).await;
        }
        Ok(matches!(outcome?, Outcome::Done(_)))
    }

    async fn standbys(&self, prefix: &str) -> Result<Vec<(Shard, Note)>, StoreError> {
        let (mut standbys, mut ended) = (Vec::new(), Vec::new());
        let mut from = None;
        loop {
            let filter = Expression::new("begins_with(#pk, :prefix) AND begins_with(#sk, :standby)")
                .text(":prefix", &format!("{PARTITION}{prefix}"))
                .text(":standby", STANDBY);
            let (items, next) = self.table.scan(filter, from).await?;
            let now_millis = self.table.least_server_millis();
            for item in items {
                let Some(shard) = shard_of(&item) else { continue };
                match self.kept(&shard, &item)?.note(now_millis) {
                    Some(note) => standbys.push((shard, note)),
                    None => ended.push(item),
                }
            }
            if standbys.len() + ended.len() > MOST_LISTED {
                return Err(allowance::too_long(&self.table.server));
            }
            from = next;
            if from.is_none() {
                break;
            }
        }
        self.sweep(ended).await;
        Ok(standbys)
    }
}

impl DynamoDb {
    /// Deletes ended notes. No candidate returns to its own note, because a session is used once, and not every table
    /// has a TTL. A user who may only read leaves them there.
    async fn sweep(&self, ended: Vec<Item>) {
        for mut item in ended.into_iter().take(MOST_SWEPT) {
            let mut part = |name: &str| item.remove(name);
            let (Some(pk), Some(sk), Some(expires)) = (part("pk"), part("sk"), part("expiresMs")) else { continue };
            let same = Expression::new("#expiresMs = :expires").with(":expires", expires);
            if self.table.delete((pk, sk), same).await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::bend_item;
    use super::*;
    use crate::fuzz;

    #[test]
    fn a_million_items_of_notes_end_at_their_time_or_are_a_strangers() {
        fuzz::run("item of a note of dynamodb://", |source, input| {
            let expires = 1_795_268_611_017_u64;
            let mut item = Item::from([("text".to_owned(), AttributeValue::S("waits".to_owned()))]);
            if source.one_in(2) {
                item.insert("expiresMs".to_owned(), n(expires));
                item.insert("ttl".to_owned(), n(ttl_of(expires)));
            }
            bend_item(source, &mut item);
            input.show(|| format!("{item:?}"));
            let kept = Kept::read(&item);
            let fate = (&kept).into();
            if let Some(kept) = kept {
                assert_eq!(item["text"], AttributeValue::S(kept.text.clone()));
                assert_eq!(item.contains_key("expiresMs"), kept.expires_millis.is_some());
                let (expires, now) = (kept.expires_millis, source.number());
                let note = kept.note(now);
                assert_eq!(note.is_some(), expires.is_none_or(|expires| now < expires));
                let left = expires.map(|expires| Duration::from_millis(expires.saturating_sub(now)));
                assert!(note.is_none_or(|note| !note.text.is_empty() && note.lasts == left));
            }
            fate
        });
    }
}
