//! The announcements of standbys, so that operators can count the candidates that could take over.
//!
//! The hazard: a host that is gone withdraws nothing. So an announcement expires by the store's clock, and a reader
//! sees a standby for up to [`LASTS`] after it crashed. Where each request costs money, a candidate announces itself
//! only if it was asked to.
//!
//! A pause of a shard that nobody ever led is announced here as well: no lease shows that there is such a shard, and a
//! store lists these notes without reading the orders of every name.

use super::update::{Edit, Start, remove, update};
use crate::lease::{Candidate, Session, Shard};
use crate::store::stable_hash::fnv1a;
use crate::store::{Answer, Note, Notes, Page, within};
use crate::time::{wall_clock_millis, whole_millis};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Between two announcements. The second one comes sooner, so that candidates that started together do not go on
/// announcing themselves together.
pub const EVERY: Duration = Duration::from_secs(20);
/// One announcement may be lost and the next one late, and the standby is still counted.
pub const LASTS: Duration = Duration::from_mins(1);

/// The note on [`Page::Standby`]. Fields are added, never renamed or removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standby {
    pub session: Session,
    pub owner: String,
    pub host: String,
    pub pid: u32,
    /// Milliseconds since 1970, by its own clock.
    pub since_millis: u64,
}

/// That a shard is paused. Its place among the standbys' is the id of the order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Paused {
    paused: Session,
}

#[derive(Debug, Default)]
pub struct Announced {
    pub standbys: Vec<(Shard, Standby)>,
    pub paused: Vec<Shard>,
}

pub async fn announce(store: &dyn Notes, candidate: &Candidate, timeout: Duration, report: impl Fn(&str)) {
    let standby = Standby {
        session: candidate.session.clone(),
        owner: candidate.owner.clone(),
        host: candidate.host.clone(),
        pid: candidate.pid,
        since_millis: wall_clock_millis(),
    };
    let text = serde_json::to_string(&standby).expect("a standby is plain data");
    let page = Page::Standby(candidate.session.clone());
    let mut standing = None;
    let mut pause = second_after(&candidate.session);
    loop {
        // It is another text if the note expired, or the answer to an earlier write was lost.
        let start = Start::Expect(standing.clone());
        let draft = || Edit::Replace(Some(Note::lasting(text.clone(), Some(LASTS))), ());
        let announced = update(store, &candidate.shard, &page, "announcement", start, |_| Ok(draft()));
        match within(timeout, announced).await {
            Ok(()) => standing = Some(text.clone()),
            Err(error) => report(&error.message),
        }
        tokio::time::sleep(std::mem::replace(&mut pause, EVERY)).await;
    }
}

/// From the first announcement to the second: by the random session, a quarter of the usual time to all of it.
fn second_after(session: &Session) -> Duration {
    let most = EVERY * 3 / 4;
    let part = fnv1a(session.as_str().bytes()) % whole_millis(most);
    EVERY - Duration::from_millis(part)
}

pub async fn withdraw(store: &dyn Notes, candidate: &Candidate) -> Answer<()> {
    remove(store, &candidate.shard, &Page::Standby(candidate.session.clone()), "announcement").await
}

pub async fn announce_pause(store: &dyn Notes, shard: &Shard, id: &Session, lasts: Option<Duration>) -> Answer<()> {
    let draft = Note::lasting(pause_text(id), lasts);
    store.replace(shard, &Page::Standby(id.clone()), None, Some(&draft)).await.map(drop)
}

pub async fn withdraw_pause(store: &dyn Notes, shard: &Shard, id: &Session) -> Answer<()> {
    store.replace(shard, &Page::Standby(id.clone()), Some(&pause_text(id)), None).await.map(drop)
}

fn pause_text(id: &Session) -> String {
    serde_json::to_string(&Paused { paused: id.clone() }).expect("it is plain data")
}

/// In the order of shards. Skips notes that another program wrote.
pub async fn announced(store: &dyn Notes, prefix: &str) -> Answer<Announced> {
    let mut notes = store.standbys(prefix).await?;
    notes.sort_by(|(one, _), (other, _)| one.cmp(other));
    let mut announced = Announced::default();
    for (shard, Note { text, .. }) in notes {
        if let Ok(standby) = serde_json::from_str(&text) {
            announced.standbys.push((shard, standby));
        } else if serde_json::from_str::<Paused>(&text).is_ok() && announced.paused.last() != Some(&shard) {
            announced.paused.push(shard);
        }
    }
    Ok(announced)
}

pub async fn others(store: &dyn Notes, candidate: &Candidate) -> Answer<usize> {
    let all = announced(store, candidate.shard.as_str()).await?.standbys;
    let others =
        |(shard, standby): &&(Shard, Standby)| *shard == candidate.shard && standby.session != candidate.session;
    Ok(all.iter().filter(others).count())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn candidates_that_start_together_soon_announce_themselves_one_after_another() {
        let pauses: Vec<Duration> = (0..200).map(|_| second_after(&Session::random().unwrap())).collect();
        assert!(pauses.iter().all(|&pause| pause > EVERY / 4 && pause <= EVERY), "{pauses:?}");
        let seconds: BTreeSet<u64> = pauses.iter().map(Duration::as_secs).collect();
        assert!(seconds.len() > 10, "{seconds:?}");
    }
}
