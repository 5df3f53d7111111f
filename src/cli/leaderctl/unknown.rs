//! A shard that the store has never seen: the operator may have mistyped its name, or named another store.
//!
//! The hazard: a pause of `nc-prd` succeeds, as it must before the first leader of a new shard, and `nc-prod`
//! continues; `wait nc-prd --free` would succeed while `nc-prod` is led. So verbs about leaderships of the past are
//! refused, and those that may come before the first leader go on with a warning.

use super::slots::{self, Slots};
use super::{Client, say};
use crate::cli::start::Failure;
use crate::exit::ctl::UNKNOWN_SHARD;
use crate::lease::Shard;
use crate::store::{Answer, ErrorKind, Report};

/// Whether neither the shard nor a slot of it was ever led, as far as the store tells.
pub fn never_led(report: &Report, slots: &Slots) -> bool {
    *report == Report::default() && slots.hidden.is_none() && slots.names().next().is_none()
}

/// Whether a shard that was [`never_led`] is unknown: no standby waits for it, and no other slot of its shard was led.
/// True where the store denies the answer, or charges for it.
pub async fn is_unknown(client: Client<'_>, shard: &Shard) -> Answer<bool> {
    if client.store.is_metered() {
        return Ok(true);
    }
    let standbys = match slots::announced(client, shard.as_str()).await {
        Err(error) if error.kind == ErrorKind::Denied => Vec::new(),
        announced => announced?.standbys,
    };
    if standbys.iter().any(|(of, _)| slots::is_waited_for(shard, of.as_str())) {
        return Ok(false);
    }
    match shard.parent() {
        Some(parent) => Ok(Slots::of(client, &parent).await?.names().next().is_none()),
        None => Ok(true),
    }
}

/// Warns of a shard that was [`never_led`], for a verb that goes on. It does so also where the store does not tell.
pub async fn warn(client: Client<'_>, shard: &Shard) {
    if is_unknown(client, shard).await.unwrap_or(false) {
        say(told(shard));
    }
}

/// The refusal of a verb that does not go on.
pub fn refusal(shard: &Shard) -> Failure {
    Failure::Other { status: UNKNOWN_SHARD, message: told(shard) }
}

fn told(shard: &Shard) -> String {
    format!("nobody has led {shard} so far; leaderctl list shows the shards that were led")
}
