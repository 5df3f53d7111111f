//! How many shards each host leads.

use super::balance::{self, unevenness};
use super::status::Shown;
use crate::lease::{Shard, show_seconds};
use crate::notes::orders::PauseOrder;
use crate::text::on_one_line;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// `web4 leads 4 of 6, web2 2, web1 none`: the host that leads most comes first.
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

/// How many shards each host leads, and which ones are held back. None where there is one host.
pub fn told<'a>(
    shards: impl IntoIterator<Item = (&'a Shard, &'a Shown)>,
    waiting: impl IntoIterator<Item = &'a str>,
    held: &BTreeMap<String, PauseOrder>,
) -> Option<Told> {
    let mut leads: BTreeMap<&str, usize> = waiting.into_iter().map(|host| (host, 0)).collect();
    let counts = |(shard, shown): &(&Shard, &Shown)| {
        shard.as_str() != balance::OWN && shown.ledger.is_none() && shown.jobs.is_empty()
    };
    for (_, shown) in shards.into_iter().filter(counts) {
        if let Some(host) = shown.report.holder.as_ref().and_then(|holder| holder.host.as_deref()) {
            *leads.entry(host).or_default() += 1;
        }
    }
    let may_lead = leads.iter().filter(|(host, _)| !held.contains_key(**host)).map(|(_, &count)| count);
    let is_uneven = unevenness(&may_lead.collect::<Vec<_>>()) > 1;
    let begin = if is_uneven { "uneven: " } else { "" };
    let all = in_words(leads.iter().map(|(host, count)| (*host, *count)));
    let backs = held.iter().map(|(host, order)| format!("{host} is {}", held_back(order)));
    (leads.len() > 1 || !held.is_empty()).then(|| Told {
        needs_attention: is_uneven || !held.is_empty(),
        words: on_one_line([format!("{begin}{all}")].into_iter().chain(backs).collect::<Vec<_>>().join("; ")),
    })
}

#[derive(Debug, PartialEq, Eq)]
pub struct Told {
    pub needs_attention: bool,
    pub words: String,
}

/// By whom a host is held back, from what, and for how long.
pub fn held_back(PauseOrder { by, prefix, left, .. }: &PauseOrder) -> String {
    let from = prefix.as_ref().map(|prefix| format!(" from {prefix}*")).unwrap_or_default();
    let left = left.map(|left| format!(" for another {}", show_seconds(left))).unwrap_or_default();
    on_one_line(format!("held back{from} by {by}{left}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notes::orders;
    use crate::store::{Holder, Report};

    #[test]
    fn the_host_that_leads_most_comes_first_and_one_that_leads_nothing_is_named() {
        let told = in_words([("web1", 0), ("web2", 1), ("web3", 1), ("web4", 4)]);
        assert_eq!(told, "web4 leads 4 of 6, web2 1, web3 1, web1 none");
        assert_eq!(in_words([("web1", 0), ("web2", 0)]), "nobody leads");
        assert_eq!(in_words([("we\nb", 1)]), "we b leads 1 of 1");
    }

    #[test]
    fn hosts_that_lead_one_more_are_not_uneven_and_one_that_is_held_back_does_not_count() {
        let led = |names: &[(&str, &str)]| -> Vec<(Shard, Shown)> {
            let shown = |host: &str| Shown {
                report: Report {
                    holder: Some(Holder { host: Some(host.to_owned()), ..Holder::default() }),
                    last_term: None,
                },
                ..Shown::default()
            };
            names.iter().map(|(shard, host)| (shard.parse().unwrap(), shown(host))).collect()
        };
        let told = |led: &[(Shard, Shown)], waiting: &[&str], held: &BTreeMap<String, PauseOrder>| {
            told(led.iter().map(|(shard, shown)| (shard, shown)), waiting.iter().copied(), held)
        };
        let three = led(&[("a", "web1"), ("b", "web1"), ("c", "web2"), (balance::OWN, "web3")]);
        let nobody = BTreeMap::new();
        let even = told(&three, &["web2"], &nobody).unwrap();
        assert_eq!((even.needs_attention, even.words.as_str()), (false, "web1 leads 2 of 3, web2 1"));
        let uneven = told(&three, &["web4"], &nobody).unwrap();
        assert_eq!(
            (uneven.needs_attention, uneven.words.as_str()),
            (true, "uneven: web1 leads 2 of 3, web2 1, web4 none")
        );
        let order = PauseOrder { by: "me@here".to_owned(), left: None, ..orders::pause(None, true, None).unwrap() };
        let held = told(&three, &["web4"], &BTreeMap::from([("web4".to_owned(), order)])).unwrap();
        assert_eq!(held.words, "web1 leads 2 of 3, web2 1, web4 none; web4 is held back by me@here");
        assert_eq!(told(&led(&[("a", "web1")]), &["web1"], &nobody), None);
    }
}
