//! What a shard costs a month.
//!
//! The hazard: prices differ by region and change. These are list prices of 2026 in the cheapest region of each, for
//! the usual class of storage; objects of some hundred bytes, and traffic within the region, cost nothing that shows.

use super::address::{Address, Kind};
use crate::lease::Timing;
use std::time::Duration;

const MONTH: Duration = Duration::from_hours(730);
/// Candidates beside the leader.
const STANDBYS: f64 = 2.0;

/// Dollars for a thousand writes, and for a thousand reads.
fn per_thousand(kind: Kind) -> (f64, f64) {
    match kind {
        Kind::S3 | Kind::Gcs => (0.005, 0.0004),
        Kind::Azure => (0.0065, 0.0005),
    }
}

/// The price of a leader and two standbys, and what it is for. None where it is not known: a server that the user
/// named.
#[must_use]
pub fn price(address: &Address, timing: &Timing) -> Option<(String, String)> {
    if address.endpoint.is_some() {
        return None;
    }
    let every = |interval: Duration| MONTH.as_secs_f64() / interval.as_secs_f64();
    let (writes, reads) = (every(timing.renew_interval), STANDBYS * every(timing.retry_interval));
    let (write, read) = per_thousand(address.kind);
    let dollars = writes / 1000.0 * write + reads / 1000.0 * read;
    let meaning = format!(
        "a month, for a leader's {writes:.0} writes and the {reads:.0} reads of two standbys, at list prices of 2026"
    );
    Some((format!("${dollars:.2}"), meaning))
}
