//! A shard that the store has never seen: the operator may have mistyped its name, or named another store.
//!
//! The hazard: a pause of `nc-prd` succeeds, as it must before the first leader of a new shard, and `nc-prod`
//! continues; `wait nc-prd --free` would succeed while `nc-prod` is led. So verbs about past leaderships are refused,
//! and those that may come before the first leader go on with a warning. Both name the nearest known shard, if the
//! store lists them at no charge.

use super::allowed;
use super::prelude::*;
use crate::text;

pub struct Unknown {
    pub nearest: Option<String>,
}

/// Whether neither the shard nor a slot of it was ever led, as far as the store tells.
pub fn never_led(report: &Report, slots: &Slots) -> bool {
    *report == Report::default() && slots.hidden.is_none() && slots.names().next().is_none()
}

impl Unknown {
    /// For a verb that goes on. Warns also where the store does not tell.
    pub async fn warn(client: Client<'_>, shard: &Shard) {
        if let Some(unknown) = Self::of_never_led(client, shard).await.ok().flatten() {
            say(unknown.told(shard));
        }
    }

    /// For a shard that was [`never_led`]. None if a standby waits for it, or if other slots of its parent were led.
    pub async fn of_never_led(client: Client<'_>, shard: &Shard) -> Answer<Option<Self>> {
        let unlisted = Some(Self { nearest: None });
        if client.store.is_metered() {
            return Ok(unlisted);
        }
        let standbys = allowed(slots::announced(client, shard.as_str()).await)?.unwrap_or_default().standbys;
        if standbys.iter().any(|(of, _)| slots::is_waited_for(shard, of.as_str())) {
            return Ok(None);
        }
        let Some(list) = allowed(client.several(client.store.list("")).await)? else { return Ok(unlisted) };
        let known = list.into_iter().flat_map(|(known, _)| [known.parent(), Some(known)]).flatten();
        let names: BTreeSet<Shard> = known.collect();
        // A slot is known if its shard or other slots were led.
        if names.contains(shard) || shard.parent().is_some_and(|parent| names.contains(&parent)) {
            return Ok(None);
        }
        let nearest = text::nearest(shard.as_str(), names.iter().map(Shard::as_str));
        Ok(Some(Self { nearest: nearest.map(str::to_owned) }))
    }

    pub fn told(&self, shard: &Shard) -> String {
        match &self.nearest {
            Some(near) => format!("nobody has led {shard} so far; did you mean {near}?"),
            None => format!("nobody has led {shard} so far; leaderctl list shows the shards that were led"),
        }
    }
}
