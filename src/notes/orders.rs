//! Operators' orders for the candidates of a shard: a pause, or a handover.
//!
//! The hazard: candidates that start later also read an order, and a candidate may obey it twice. So a handover names
//! the term that it ends, and keeps nobody from leading after a later term. A pause ends by the store's clock, not by
//! that of a host: with the note, or some time before it if a handover in the same note lasts longer.
//!
//! The lease, not an order, keeps two trees from running at once. A store that forgets its orders forgets the pause.

use super::update::{self, Edit, Start, update};
use crate::election::{Directives, Handover, Pause};
use crate::lease::{Candidate, Session, Shard, Term, host_name};
use crate::store::{Answer, Note, Notes, Page, StoreError};
use crate::text::on_one_line;
use crate::time::{wall_clock_millis, whole_millis};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How long after its hold a handover stays that nobody completes.
const HANDOVER_LASTS: Duration = Duration::from_mins(10);

/// The note on [`Page::Orders`]. Fields are added, never renamed or removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orders {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<PauseOrder>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handover: Option<HandoverOrder>,
    /// How long before the note the pause ends, if the handover lasts longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pause_ends_before_millis: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PauseOrder {
    /// A random id, new in each order, so that its writer recognises it.
    pub id: Session,
    pub by: String,
    /// By the clock of the operator's host, for people.
    pub since_millis: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// True if the present leader stays.
    #[serde(default)]
    pub keep: bool,
    /// Of a [host](super::hosts): only for shards whose names begin with this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// None: until an operator ends it. Not part of the text: the store tells this.
    #[serde(skip)]
    pub left: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandoverOrder {
    pub id: Session,
    pub by: String,
    pub since_millis: u64,
    pub term: Term,
    /// The session that led in that term, which does not follow itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Session>,
    /// The owner or host that may follow. None: any other candidate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    pub hold_millis: u64,
}

impl PauseOrder {
    fn said(&self) -> String {
        let reason = self.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        on_one_line(format!("by {}{reason}", self.by))
    }

    pub(super) fn said_of(&self, host: &str) -> String {
        on_one_line(format!("on {host} {}", self.said()))
    }

    pub fn is_for(&self, shard: &Shard) -> bool {
        self.prefix.as_ref().is_none_or(|prefix| shard.as_str().starts_with(prefix.as_str()))
    }
}

impl HandoverOrder {
    fn said(&self) -> String {
        let to = self.to.as_ref().map(|to| format!("to {to} ")).unwrap_or_default();
        on_one_line(format!("{to}by {}", self.by))
    }

    fn welcomes(&self, candidate: &Candidate) -> bool {
        match &self.to {
            Some(to) => *to == candidate.owner || *to == candidate.host,
            None => self.from.as_ref() != Some(&candidate.session),
        }
    }
}

impl Orders {
    pub fn directives(&self, candidate: &Candidate) -> Directives {
        Directives {
            pause: self.pause.as_ref().map(|pause| Pause { keep: pause.keep, left: pause.left, said: pause.said() }),
            handover: self.handover.as_ref().map(|handover| Handover {
                term: handover.term,
                welcome: handover.welcomes(candidate),
                hold: Duration::from_millis(handover.hold_millis),
                said: handover.said(),
            }),
        }
    }

    pub fn read(note: Option<&Note>, shard: &Shard) -> Answer<Self> {
        let Some(note) = note else { return Ok(Self::default()) };
        let mut orders: Self = serde_json::from_str(&note.text).map_err(|error| {
            StoreError::misconfigured(format!(
                "the orders of shard {shard} were written by another program ({error}): leaderctl resume {shard} \
                 --force removes them"
            ))
        })?;
        if let Some(pause) = &mut orders.pause {
            let before = Duration::from_millis(orders.pause_ends_before_millis.unwrap_or_default());
            pause.left = note.lasts.map(|lasts| lasts.saturating_sub(before));
        }
        orders.pause.take_if(|pause| pause.left == Some(Duration::ZERO));
        Ok(orders)
    }

    fn note(&self) -> Option<Note> {
        let handover = self.handover.as_ref();
        let handover_lasts = handover.map(|handover| HANDOVER_LASTS + Duration::from_millis(handover.hold_millis));
        let (lasts, before) = match &self.pause {
            Some(PauseOrder { left: Some(left), .. }) => {
                let lasts = (*left).max(handover_lasts.unwrap_or_default());
                (Some(lasts), lasts - *left)
            }
            Some(PauseOrder { left: None, .. }) => (None, Duration::ZERO),
            None => (Some(handover_lasts?), Duration::ZERO),
        };
        let before = Some(whole_millis(before)).filter(|&millis| millis > 0);
        let orders = Self { pause_ends_before_millis: before, ..self.clone() };
        Some(Note::lasting(serde_json::to_string(&orders).expect("orders are plain data"), lasts))
    }
}

pub async fn read(store: &dyn Notes, shard: &Shard) -> Answer<Orders> {
    Orders::read(store.read(shard, &Page::Orders).await?.as_ref(), shard)
}

/// Changes the orders. Calls `edit` again whenever another writer was faster; `edit` returns false if nothing needs to
/// change. After an unknown outcome it reads the note again. Returns the orders as they are now.
pub async fn change(store: &dyn Notes, shard: &Shard, mut edit: impl FnMut(&mut Orders) -> bool) -> Answer<Orders> {
    update(store, shard, &Page::Orders, "orders", Start::ReadAndMakeSure, |standing| {
        let before = Orders::read(standing, shard)?;
        let mut after = before.clone();
        if !edit(&mut after) || after == before {
            return Ok(Edit::Leave(before));
        }
        Ok(Edit::Replace(after.note(), after))
    })
    .await
}

pub async fn remove(store: &dyn Notes, shard: &Shard) -> Answer<()> {
    update::remove(store, shard, &Page::Orders, "orders").await
}

/// Removes a handover of `term` or an earlier one, because it is done.
pub async fn forget_handover(store: &dyn Notes, shard: &Shard, term: Term) -> Answer<()> {
    let edit = |orders: &mut Orders| orders.handover.take_if(|handover| handover.term <= term).is_some();
    change(store, shard, edit).await.map(drop)
}

pub fn operator() -> String {
    let user = nix::unistd::getuid();
    let named = || nix::unistd::User::from_uid(user).ok().flatten().map(|user| user.name);
    let name = std::env::var("SUDO_USER").ok().filter(|name| !name.is_empty()).or_else(named);
    let name = name.unwrap_or_else(|| format!("uid {user}"));
    let host = host_name().unwrap_or_default();
    on_one_line(format!("{name}@{host}"))
}

pub fn pause(reason: Option<String>, keep: bool, lasts: Option<Duration>) -> Answer<PauseOrder> {
    let id = Session::random().map_err(StoreError::no_random_bytes)?;
    let since_millis = wall_clock_millis();
    Ok(PauseOrder { id, by: operator(), since_millis, reason, keep, prefix: None, left: lasts })
}

pub fn handover(term: Term, from: Option<Session>, to: Option<String>, hold: Duration) -> Answer<HandoverOrder> {
    let hold_millis = whole_millis(hold);
    Ok(HandoverOrder {
        id: Session::random().map_err(StoreError::no_random_bytes)?,
        by: operator(),
        since_millis: wall_clock_millis(),
        term,
        from,
        to,
        hold_millis,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz;
    use crate::store::ErrorKind;
    use crate::store::lease_store::memory::reference;

    fn all() -> Orders {
        let id = || Session::from_record("s-9");
        let by = || "me@here".to_owned();
        let pause = PauseOrder {
            id: id(),
            by: by(),
            since_millis: 5,
            reason: Some("why\nnot".to_owned()),
            keep: true,
            prefix: Some("db/".to_owned()),
            left: Some(Duration::from_mins(1)),
        };
        let handover = HandoverOrder {
            id: id(),
            by: by(),
            since_millis: 5,
            term: Term(7),
            from: Some(Session::from_record("s-1")),
            to: None,
            hold_millis: 30_000,
        };
        Orders { pause: Some(pause), handover: Some(handover), ..Orders::default() }
    }

    #[tokio::test]
    async fn orders_are_changed_in_one_step_and_what_a_pause_has_left_is_kept() {
        let (store, shard) = (reference(), "db".parse().unwrap());
        let orders = all();
        let written = change(&store, &shard, |now| std::mem::replace(now, orders.clone()) != orders).await.unwrap();
        assert_eq!(written, orders);
        forget_handover(&store, &shard, Term(6)).await.unwrap();
        assert!(read(&store, &shard).await.unwrap().handover.is_some(), "it is of a later term");
        forget_handover(&store, &shard, Term(7)).await.unwrap();
        let now = read(&store, &shard).await.unwrap();
        let left = now.pause.unwrap().left.unwrap();
        assert!(now.handover.is_none() && left > Duration::from_secs(30) && left < Duration::from_secs(61), "{left:?}");
        change(&store, &shard, |now| now.pause.take().is_some()).await.unwrap();
        assert_eq!(store.read(&shard, &Page::Orders).await, Ok(None));
    }

    #[test]
    fn a_pause_that_ends_does_not_take_a_handover_with_it() {
        let shard: Shard = "db".parse().unwrap();
        let mut note = all().note().unwrap();
        let read = |note: &Note| Orders::read(Some(note), &shard).unwrap();
        assert_eq!(read(&note).pause, all().pause);
        note.lasts = note.lasts.map(|lasts| lasts - Duration::from_mins(1));
        assert_eq!((read(&note).pause, read(&note).handover), (None, all().handover));
        let long = Orders { pause: all().pause.map(|pause| PauseOrder { left: None, ..pause }), ..all() };
        assert_eq!((long.note().unwrap().lasts, read(&long.note().unwrap())), (None, long));
    }

    #[test]
    fn a_note_that_has_no_orders_is_refused_and_orders_are_told_in_one_line() {
        let shard: Shard = "db".parse().unwrap();
        for bad in ["null", "{\"pause\":1}", "{\"a\nb\":"] {
            let error = Orders::read(Some(&Note::for_ever(bad)), &shard).unwrap_err();
            fuzz::assert_is_one_line(&error.message);
            assert_eq!(error.kind, ErrorKind::Misconfigured);
        }
        let Directives { pause, handover } = all().directives(&Candidate::example());
        fuzz::assert_is_one_line(&pause.unwrap().said);
        fuzz::assert_is_one_line(&handover.unwrap().said);
    }
}
