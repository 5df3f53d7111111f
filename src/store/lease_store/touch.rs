//! A renewal on a server that can only compare: a write over the version that is known.
//!
//! The hazard: it may be refused because of an operator's write, or because of an earlier renewal of the same
//! leadership whose answer was lost. So after a refusal the renewal looks (`renewal`), and tries again. An operator's write
//! costs two more round trips, for which the lease must leave time.

use super::documents::{Documents, Draft, Ends, Found, Key, Over, Touch, Touched};
use crate::store::StoreError;

pub async fn by_put<D: Documents + ?Sized>(documents: &D, touch: Touch<'_>) -> Result<Touched, StoreError> {
    let known = touch.known.and_then(|found| Some((found, found.ours()?)));
    let Some((known, ours)) = known.filter(|(_, ours)| ours.leadership.as_ref() == Some(touch.leadership)) else {
        return Ok(Touched::Refused);
    };
    if ours.sequence > touch.sequence {
        return Ok(Touched::Overtaken);
    }
    let mut found = Some(known.clone());
    if ours.sequence < touch.sequence || touch.again {
        let draft = Draft {
            text: &ours.text,
            leadership: Some(touch.leadership),
            sequence: touch.sequence,
            ends: Ends::In(touch.lease),
            owner: None,
        };
        found = documents.put(Key::Shard(touch.shard), draft, Over::Exactly(known)).await?;
    }
    let Some(found) = found else { return Ok(Touched::Refused) };
    let also = if touch.also.is_empty() { Some(Vec::new()) } else { documents.get(touch.also, false).await.ok() };
    Ok(Touched::Done { found, also })
}

pub async fn get<D: Documents + ?Sized>(documents: &D, key: Key<'_>) -> Result<Found, StoreError> {
    let found = documents.get(&[key], false).await?.pop();
    found.ok_or_else(|| StoreError::unknown(format!("no answer about {}", documents.name(key))))
}
