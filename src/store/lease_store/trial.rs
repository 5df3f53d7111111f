//! The trial of a server: rights, and whether it honours conditions, tried by writers that race.
//!
//! The hazard: a server may ignore a condition, or compare and write in two steps that others come between. The second
//! kind looks right until two candidates race, and then both lead. So many writers replace the same version of a
//! document at the same time, again and again. Exactly one may succeed. A server whose threads run on several
//! processors fails within a few races. One that fails in one race of a hundred may pass.

use super::documents::{Documents, Found, Key, List, Over, random_name};
use super::marker::lasting;
use super::touch;
use crate::store::error::denied;
use crate::store::{ErrorKind, Finding, StoreError, parallel};

/// Documents that writers race for at the same time.
const LANES: usize = 4;
const WRITERS: usize = 8;
const ROUNDS: usize = 16;
/// Races of a lane in which the server may fail to answer a writer.
const MOST_FAILURES: usize = 4;

/// Tries the conditions. Returns what to tell an operator: an error if the server does not honour them.
pub async fn run(documents: &dyn Documents) -> Result<Result<String, String>, StoreError> {
    let place = documents.place();
    let name = random_name()?;
    let names: Vec<String> = (0..LANES).map(|lane| format!("{name}-{lane}")).collect();
    let tried = parallel::all(names.iter().map(|name| lane(documents, Key::Scratch(name)))).await;
    for name in &names {
        // A user who may not delete leaves some hundred bytes, which nobody reads.
        let _ = documents.remove(Key::Scratch(name)).await;
    }
    for lane in tried {
        if let Some(how) = lane? {
            return Ok(Err(format!(
                "{place} does not honour conditional writes ({how}), so two candidates can both lead: use another server"
            )));
        }
    }
    Ok(Ok(format!("{place} honours conditional writes: each of {} races had one winner", LANES * ROUNDS)))
}

/// Races for one document. Returns what the server did wrong.
async fn lane(documents: &dyn Documents, key: Key<'_>) -> Result<Option<String>, StoreError> {
    let absent = touch::get(documents, key).await?;
    if !write(documents, key, &absent).await? {
        return Ok(Some("it refuses to create what does not exist".to_owned()));
    }
    if write(documents, key, &absent).await? {
        return Ok(Some("it overwrites what exists, although the write said that it must not exist".to_owned()));
    }
    let first = touch::get(documents, key).await?;
    let (mut standing, mut failures) = (first.clone(), 0);
    for round in 0..ROUNDS {
        let (mut winners, mut failure) = (0, None);
        for outcome in parallel::all((0..WRITERS).map(|_| write(documents, key, &standing))).await {
            match outcome {
                Ok(true) => winners += 1,
                Ok(false) => {}
                // It may have won, but the answer was lost. The others tell enough.
                Err(error) if error.kind == ErrorKind::Unknown => failure = Some(error),
                Err(error) => return Err(error),
            }
        }
        if winners > 1 {
            return Ok(Some(format!("{winners} of {WRITERS} writers won the same race")));
        }
        if let Some(failure) = failure {
            failures += 1;
            if failures > MOST_FAILURES {
                return Err(failure);
            }
        } else if round == 0 && winners == 0 {
            return Ok(Some("it refuses to replace the version that the write named".to_owned()));
        }
        standing = touch::get(documents, key).await?;
    }
    if write(documents, key, &first).await? {
        return Ok(Some("it overwrites a later version than the write named".to_owned()));
    }
    Ok(None)
}

/// False if the write was refused.
async fn write(documents: &dyn Documents, key: Key<'_>, over: &Found) -> Result<bool, StoreError> {
    let text = random_name()?;
    Ok(documents.put(key, lasting(&text), Over::Exactly(over)).await?.is_some())
}

/// Does with a scratch document what an election does with a shard's. False if further checks are pointless.
pub async fn rights(documents: &dyn Documents, findings: &mut Vec<Finding>) -> Result<bool, StoreError> {
    let name = random_name()?;
    let key = Key::Scratch(&name);
    let before = findings.len();
    let written = async {
        // The second write replaces what the first one made, which may be another right.
        for _ in 0..2 {
            let found = touch::get(documents, key).await?;
            write(documents, key, &found).await?;
        }
        Ok::<_, StoreError>(())
    };
    match written.await {
        Err(error) if error.kind == ErrorKind::Misconfigured => {
            findings.push(Finding::bad(error.message));
            return Ok(false);
        }
        written => findings.extend(denied(written)?.map(Finding::bad)),
    }
    // A leader can do without the list, and without deleting.
    let listed = documents.list(List::Shards(&name), &mut |_| {}).await;
    findings.extend(denied(listed)?.map(Finding::doubtful));
    findings.extend(denied(documents.remove(key).await)?.map(Finding::doubtful));
    if findings.len() == before {
        findings.push(Finding::good("may do all that an election needs: read, write, list and delete documents"));
    }
    Ok(true)
}
