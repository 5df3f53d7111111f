//! What verbs report about slots.
//!
//! The hazard: slot 2 of `db` is the shard `db#2`, and `db` itself has only orders and standbys. So a plain look at
//! `db` shows that nobody leads, while its slots are led; and a plain look at `db#2` does not show a pause of `db`.

use super::{Client, allowed};
use crate::lease::{Session, Shard};
use crate::notes::orders::{self, PauseOrder};
use crate::notes::standbys::{self, Announced, Standby};
use crate::slots;
use crate::store::{Answer, ErrorKind, Holder, Report, StoreError};
use std::collections::{BTreeSet, HashMap, HashSet};

/// The slots of a shard that were ever led.
#[derive(Debug, Default)]
pub struct Slots {
    known: Vec<(Shard, Report)>,
    /// Why there may be more.
    pub hidden: Option<StoreError>,
}

impl Slots {
    pub async fn of(client: Client<'_>, shard: &Shard) -> Answer<Self> {
        match client.several(slots::inspect(client.store, shard)).await {
            Ok(known) => Ok(Self { known, hidden: None }),
            Err(error) if error.kind == ErrorKind::Denied => {
                let message = format!("cannot tell whether its slots are led: {}", error.message);
                Ok(Self { known: Vec::new(), hidden: Some(StoreError { message, ..error }) })
            }
            Err(error) => Err(error),
        }
    }

    pub fn led(&self) -> impl Iterator<Item = (&Shard, &Holder)> {
        self.known.iter().filter_map(|(slot, report)| Some((slot, report.holder.as_ref()?)))
    }

    pub fn names(&self) -> impl Iterator<Item = &Shard> {
        self.known.iter().map(|(slot, _)| slot)
    }

    /// The slots that are led, with advice to use these names. None if no slot is known to be led.
    pub fn led_as(&self) -> Option<String> {
        self.named("", "")
    }

    /// The same as a sentence, or why that is not known, after a semicolon.
    pub fn advice(&self) -> String {
        let hidden = || self.hidden.as_ref().map(|hidden| hidden.message.clone());
        let advice = self.named(" is led", " are led").or_else(hidden);
        advice.map(|advice| format!("; {advice}")).unwrap_or_default()
    }

    fn named(&self, one: &str, several: &str) -> Option<String> {
        let led = listed(self.led().map(|(slot, _)| slot));
        match self.led().count() {
            0 => None,
            1 => Some(format!("{led}{one}: use that name")),
            _ => Some(format!("{led}{several}: use one of these names")),
        }
    }
}

/// `db#1, db#2`.
pub fn listed<'a>(shards: impl Iterator<Item = &'a Shard>) -> String {
    shards.map(Shard::as_str).collect::<Vec<_>>().join(", ")
}

#[derive(Debug)]
pub struct ParentPause {
    pub parent: Shard,
    pub pause: PauseOrder,
}

pub async fn parent_pause(client: Client<'_>, shard: &Shard) -> Answer<Option<ParentPause>> {
    let Some(parent) = shard.parent() else { return Ok(None) };
    let pause = client.ask(orders::read(client.store, &parent)).await?.pause;
    Ok(pause.map(|pause| ParentPause { parent, pause }))
}

/// The standbys of the shards whose names begin with `prefix` (for a slot, also those of its shard), and the shards
/// that were paused before anybody led them.
pub async fn announced(client: Client<'_>, prefix: &str) -> Answer<Announced> {
    // The names of `db`'s slots may begin with the prefix although `db` does not.
    let above = prefix.split_once('#');
    let wider = above.map_or(prefix, |(shard, _)| shard);
    let mut announced = client.several(standbys::announced(client.store, wider)).await?;
    let is_meant = |name: &Shard| name.as_str().starts_with(prefix);
    announced.standbys.retain(|(of, _)| is_meant(of) || above.is_some_and(|(shard, _)| of.as_str() == shard));
    announced.paused.retain(is_meant);
    Ok(announced)
}

#[derive(Debug, Default)]
pub struct Known {
    /// None if they are not counted.
    pub standbys: Option<Vec<(Shard, Standby)>>,
    /// Shards that were paused before anybody led them.
    pub paused: Vec<Shard>,
}

/// As [`announced`]; on a metered store, only what is asked for. It is read before the list of leases, so that a
/// standby that leads by then is not counted.
pub async fn known(client: Client<'_>, prefix: &str, standbys: bool, orders: bool) -> Answer<Known> {
    let counts = standbys || !client.store.is_metered();
    if !counts && !orders {
        return Ok(Known::default());
    }
    let Announced { standbys, paused } = announced(client, prefix).await?;
    Ok(Known { standbys: counts.then_some(standbys), paused })
}

/// Shards that were paused before anybody led them. Empty if the store denies that.
pub async fn paused(client: Client<'_>, prefix: &str) -> Answer<Vec<Shard>> {
    Ok(allowed(announced(client, prefix).await)?.unwrap_or_default().paused)
}

pub fn with_paused(mut list: Vec<(Shard, Report)>, paused: Vec<Shard>) -> Vec<(Shard, Report)> {
    let mut names: BTreeSet<Shard> = paused.into_iter().collect();
    for (listed, _) in &list {
        names.remove(listed);
        // It has slots, which are listed.
        if let Some(parent) = listed.parent() {
            names.remove(&parent);
        }
    }
    list.extend(names.into_iter().map(|shard| (shard, Report::default())));
    list.sort_by(|(one, _), (other, _)| one.cmp(other));
    list
}

/// Whether a standby of `of` waits for `shard`, or for any slot of its parent.
pub fn is_waited_for(shard: &Shard, of: &str) -> bool {
    of == shard.as_str() || shard.parent().is_some_and(|parent| of == parent.as_str())
}

/// Standbys by the name that they wait for, so that a list of many shards need not look at every standby for each.
pub struct Waiting<'a>(HashMap<&'a str, Vec<&'a Standby>>);

impl<'a> Waiting<'a> {
    /// A candidate that leads by now does not wait, whatever it announced.
    pub fn of<'b>(standbys: &'a [(Shard, Standby)], leaders: impl IntoIterator<Item = &'b Holder>) -> Self {
        let leaders: HashSet<&Session> = leaders.into_iter().filter_map(|holder| holder.session.as_ref()).collect();
        let mut by_name: HashMap<_, Vec<_>> = HashMap::new();
        for (of, standby) in standbys.iter().filter(|(_, standby)| !leaders.contains(&standby.session)) {
            by_name.entry(of.as_str()).or_default().push(standby);
        }
        Self(by_name)
    }

    pub fn at(&self, shard: &Shard) -> Vec<&'a Standby> {
        let parent = shard.parent();
        let names = std::iter::once(shard).chain(&parent);
        names.filter_map(|name| self.0.get(name.as_str())).flatten().copied().collect()
    }
}
