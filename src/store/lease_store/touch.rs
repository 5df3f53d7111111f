//! A renewal on a server that can only compare: a write over the version that is known.
//!
//! The hazard: it may be refused because of an operator's write, or because of an earlier renewal of the same
//! leadership whose answer was lost. So after a refusal it looks, and tries again. An operator's write costs two more
//! round trips, for which the lease must leave time.

use super::MOST_ATTEMPTS;
use super::documents::{Documents, Draft, Ends, Found, Key, Over, Touch, Touched};
use crate::store::StoreError;

pub async fn by_put<D: Documents + ?Sized>(documents: &D, touch: Touch<'_>) -> Result<Touched, StoreError> {
    let key = Key::Shard(touch.shard);
    let mut known = touch.known.filter(|known| known.leadership() == Some(touch.leadership)).cloned();
    let mut again = touch.again;
    for _ in 0..MOST_ATTEMPTS {
        let found = match known.take() {
            Some(known) => known,
            None => get(documents, key).await?,
        };
        let Some(ours) = found.ours().filter(|ours| ours.leadership.as_ref() == Some(touch.leadership)) else {
            return Ok(Touched::Refused);
        };
        if ours.sequence > touch.sequence {
            return Ok(Touched::Overtaken);
        }
        if ours.sequence < touch.sequence || again {
            let draft = Draft {
                text: &ours.text,
                leadership: Some(touch.leadership),
                sequence: touch.sequence,
                ends: Ends::In(touch.lease),
                owner: None,
            };
            known = documents.put(key, draft, Over::Exactly(&found)).await?;
            again &= known.is_none();
            continue;
        }
        let also = if touch.also.is_empty() { Some(Vec::new()) } else { documents.get(touch.also, false).await.ok() };
        return Ok(Touched::Done { found, also });
    }
    Err(StoreError::unknown(format!("{} changes faster than it can be renewed", documents.name(key))))
}

pub async fn get<D: Documents + ?Sized>(documents: &D, key: Key<'_>) -> Result<Found, StoreError> {
    let found = documents.get(&[key], false).await?.pop();
    found.ok_or_else(|| StoreError::unknown(format!("no answer about {}", documents.name(key))))
}
