//! How many shards each host leads.

use super::balance::unevenness;
use super::prelude::*;
use crate::lease::BALANCE;
use std::cmp::Reverse;

/// `web4 leads 4 of 6, web2 2, web1 none`.
pub fn in_words<'a>(shares: impl IntoIterator<Item = (&'a str, usize)>) -> String {
    let mut shares: Vec<_> = shares.into_iter().collect();
    let all: usize = shares.iter().map(|(_, share)| share).sum();
    if all == 0 {
        return "nobody leads".to_owned();
    }
    shares.sort_by_key(|&(host, share)| (Reverse(share), host));
    let words = shares.iter().enumerate().map(|(at, (host, share))| match (at, share) {
        (0, share) => format!("{host} leads {share} of {all}"),
        (_, 0) => format!("{host} none"),
        (_, share) => format!("{host} {share}"),
    });
    on_one_line(words.collect::<Vec<_>>().join(", "))
}

/// With the hosts that are held back. None where there is one host, and, unless it is `wanted`, where an operator need
/// not know it.
pub fn told<'a>(
    shards: impl IntoIterator<Item = (&'a Shard, &'a Shown)>,
    waiting: impl IntoIterator<Item = &'a str>,
    held: &BTreeMap<String, PauseOrder>,
    wanted: bool,
) -> Option<String> {
    let mut leads: BTreeMap<&str, usize> = waiting.into_iter().map(|host| (host, 0)).collect();
    let counts = |(shard, shown): &(&Shard, &Shown)| shard.as_str() != BALANCE && !shown.is_job();
    for (_, shown) in shards.into_iter().filter(counts) {
        if let Some(host) = shown.report.holder.as_ref().and_then(|holder| holder.host.as_deref()) {
            *leads.entry(host).or_default() += 1;
        }
    }
    let may_lead = leads.iter().filter(|(host, _)| !held.contains_key(**host)).map(|(_, &count)| count);
    let is_uneven = unevenness(&may_lead.collect::<Vec<_>>()) > 1;
    if held.is_empty() && !is_uneven && !(wanted && leads.len() > 1) {
        return None;
    }
    let begin = if is_uneven { "uneven: " } else { "" };
    let all = in_words(leads.iter().map(|(host, count)| (*host, *count)));
    let backs = held.iter().map(|(host, order)| format!("{host} is {}", held_back(order)));
    Some(on_one_line([format!("{begin}{all}")].into_iter().chain(backs).collect::<Vec<_>>().join("; ")))
}

pub fn held_back(PauseOrder { by, prefix, left, .. }: &PauseOrder) -> String {
    let from = prefix.as_ref().map(|prefix| format!(" from {prefix}*")).unwrap_or_default();
    let left = left.map(|left| format!(" for another {}", show_seconds(left))).unwrap_or_default();
    on_one_line(format!("held back{from} by {by}{left}"))
}
