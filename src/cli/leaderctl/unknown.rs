//! A shard that was never led: the operator may have mistyped its name.
//!
//! The hazard: a pause of `nc-prd` succeeds, as it must before the first leader of a new shard, and `nc-prod` continues. So
//! a warning names the nearest known shard. Nothing depends on it: if the store does not answer, there is no warning.

use super::slots::{self, Slots};
use super::{PROGRAM, inspect};
use crate::lease::Shard;
use crate::observe::terminal;
use crate::slots::parent;
use crate::store::{Report, Store, within};
use crate::text;
use std::collections::BTreeSet;
use std::time::Duration;

/// A name of which the store knows nothing.
#[derive(Debug, PartialEq, Eq)]
pub struct Unknown {
    pub nearest: Option<Shard>,
}

impl Unknown {
    /// None if the shard, or a slot of it, was ever led, if a standby waits for it, and if that is not known.
    pub async fn find(store: &dyn Store, shard: &Shard, patience: Duration) -> Option<Self> {
        if inspect(store, shard, patience).await.ok()? != Report::default() {
            return None;
        }
        let slots = Slots::of(store, shard, patience).await.ok()?;
        if slots.hidden.is_some() || slots.names().next().is_some() {
            return None;
        }
        if store.is_metered() {
            return Some(Self { nearest: None });
        }
        let standbys = slots::standbys(store, shard.as_str(), patience).await.ok()?;
        if standbys.iter().any(|(of, _)| slots::is_waited_for(shard, of.as_str())) {
            return None;
        }
        let list = within(patience * 4, store.list("")).await.ok()?;
        Self::among(shard, list.iter().map(|(known, _)| known))
    }

    fn among<'a>(shard: &Shard, known: impl Iterator<Item = &'a Shard>) -> Option<Self> {
        let names: BTreeSet<Shard> = known.flat_map(|known| [Some(known.clone()), parent(known)]).flatten().collect();
        // The first leader of a slot is nothing new where others of its shard were led.
        if names.contains(shard) || parent(shard).is_some_and(|parent| names.contains(&parent)) {
            return None;
        }
        let nearest = text::nearest(shard.as_str(), names.iter().map(Shard::as_str));
        Some(Self { nearest: nearest.and_then(|nearest| names.iter().find(|name| name.as_str() == nearest)).cloned() })
    }

    pub fn say(&self, shard: &Shard) {
        terminal::say(format_args!("{PROGRAM}: nobody has led {shard} so far{}", self.meant()));
    }

    /// The nearest name as the end of a sentence. Empty if there is none.
    pub fn meant(&self) -> String {
        self.nearest.as_ref().map(|near| format!("; did you mean {near}?")).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_that_was_never_led_is_reported_with_the_nearest_name() {
        let known: Vec<Shard> = ["nc-prod", "db/1", "db/2", "z"].map(|name| name.parse().unwrap()).into();
        let among = |name: &str| Unknown::among(&name.parse().unwrap(), known.iter());
        let near = |name: &str| Some(Unknown { nearest: Some(name.parse().unwrap()) });
        assert_eq!(among("nc-prd"), near("nc-prod"));
        assert_eq!(among("nc-pord"), near("nc-prod"));
        assert_eq!(among("quite/another"), Some(Unknown { nearest: None }));
        for name in ["nc-prod", "db", "db/2", "db/3"] {
            assert_eq!(among(name), None, "{name}");
        }
    }
}
