//! Whether the server honours conditions, tried by writers that race.
//!
//! The hazard: a server may ignore a condition, or compare and write in two steps that others come between. The second
//! kind looks right until two candidates race, and then both lead. So many writers replace the same version of an
//! object at the same time, again and again. Exactly one may succeed. A server whose threads run on several
//! processors fails within a few races. One that fails in one race of a hundred may pass.

use super::Bucket;
use super::objects::{Condition, Objects, Outcome, Version, unique};
use crate::store::{ErrorKind, StoreError, parallel};

/// Objects that are fought for at the same time.
const LANES: usize = 4;
/// Writers of each.
const WRITERS: usize = 8;
/// Races for each, one after another.
const ROUNDS: usize = 16;
/// Races of a lane in which the server may fail to answer a writer.
const MOST_FAILURES: usize = 4;

/// How a trial ended.
pub enum Trial {
    /// Of so many races each had one winner.
    Honest(usize),
    /// The server said yes to both, or said yes where it should not.
    Dishonest(String),
}

pub async fn run(store: &Bucket) -> Result<Trial, StoreError> {
    let objects = &store.objects;
    let name = unique()?;
    let keys: Vec<String> = (0..LANES).map(|lane| format!("trial/{name}-{lane}")).collect();
    let tried = parallel::all(keys.iter().map(|key| lane(objects, key))).await;
    for key in &keys {
        // Nobody reads it; a user who may not delete keeps some hundred bytes.
        let _ = objects.delete(key).await;
    }
    for lane in tried {
        if let Some(fault) = lane? {
            return Ok(Trial::Dishonest(fault));
        }
    }
    Ok(Trial::Honest(LANES * ROUNDS))
}

/// What to tell an operator of a server that failed the trial.
pub fn dishonest(server: &str, how: &str) -> String {
    format!("{server} does not honour conditional writes ({how}), so two candidates can both lead: use another server")
}

/// Races for one object. Returns what the server did wrong.
async fn lane(objects: &Objects, key: &str) -> Result<Option<String>, StoreError> {
    let Outcome::Done(first) = write(objects, key, Condition::Absent).await? else {
        return Ok(Some("it refuses to write an object that is absent".to_owned()));
    };
    if matches!(write(objects, key, Condition::Absent).await?, Outcome::Done(_)) {
        return Ok(Some("it ignores If-None-Match".to_owned()));
    }
    let first = first.ok_or_else(|| objects.nameless())?;
    let (mut standing, mut failures) = (first.clone(), 0);
    for round in 0..ROUNDS {
        let writers = (0..WRITERS).map(|_| write(objects, key, Condition::Unchanged(&standing)));
        let (mut winners, mut failure) = (Vec::new(), None);
        for outcome in parallel::all(writers).await {
            match outcome {
                Ok(Outcome::Done(version)) => winners.push(version),
                Ok(Outcome::Refused) => {}
                // It may have won unheard; the others tell enough.
                Err(error) if error.kind == ErrorKind::Unknown => failure = Some(error),
                Err(error) => return Err(error),
            }
        }
        if winners.len() > 1 {
            return Ok(Some(format!("{} of {WRITERS} writers won the same race", winners.len())));
        }
        if let Some(failure) = failure {
            failures += 1;
            if failures > MOST_FAILURES {
                return Err(failure);
            }
        } else if round == 0 && winners.is_empty() {
            return Ok(Some("it refuses to replace the version that it named".to_owned()));
        }
        standing = known(objects, key, winners.pop().flatten()).await?;
    }
    if matches!(write(objects, key, Condition::Unchanged(&first)).await?, Outcome::Done(_)) {
        return Ok(Some("it ignores If-Match".to_owned()));
    }
    Ok(None)
}

async fn write(objects: &Objects, key: &str, condition: Condition<'_>) -> Result<Outcome, StoreError> {
    objects.put(key, unique()?.into_bytes(), condition).await
}

/// The version that was made, or else the one that a look shows.
async fn known(objects: &Objects, key: &str, made: Option<Version>) -> Result<Version, StoreError> {
    if let Some(version) = made {
        return Ok(version);
    }
    let found = objects.get(key).await?;
    let gone = || StoreError::unknown(format!("the object {}{key} vanished while it was tried", objects.name));
    found.map(|(_, version)| version).ok_or_else(gone)
}
