//! The moves that spread leaders over hosts as evenly as the standbys allow, and no more moves than that takes.
//!
//! A greedy plan, from the host that leads most to the one that leads least, ends less even: a move may need another
//! one to make room. So this is a minimum-cost flow. A shard, or all slots of one, sends a leader to each host where it
//! may be led. The cost of a host is the square of what it leads, and a move costs less than any gain in evenness.
//! Cycles of changes with a negative cost are carried out until none is left; then no assignment costs less.

use crate::lease::{Shard, Term};
use std::cmp::Reverse;

/// A shard, or the slots of one, any of which any of its candidates may lead.
#[derive(Clone, Debug, Default)]
pub struct Family {
    pub led: Vec<Led>,
    pub waiting: Vec<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Led {
    pub shard: Shard,
    pub on: usize,
    pub stays: bool,
    pub term: Option<Term>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    pub shard: Shard,
    pub from: usize,
    pub to: usize,
}

pub fn loads(hosts: usize, families: &[Family]) -> Vec<usize> {
    let mut loads = vec![0; hosts];
    for led in families.iter().flat_map(|family| &family.led) {
        loads[led.on] += 1;
    }
    loads
}

pub fn unevenness(loads: &[usize]) -> usize {
    let most = loads.iter().max().copied().unwrap_or_default();
    most - loads.iter().min().copied().unwrap_or_default()
}

/// Added to the load of a host that is to lead nothing, so that a move from it gains more than all others together.
const EMPTIED: usize = 1 << 20;

/// The moves, those that even out the most first. Each shard moves at most once. The host `emptied` keeps only what
/// must stay or what no other host can take.
pub fn plan(hosts: usize, families: &[Family], emptied: Option<usize>) -> Vec<Move> {
    let mut spread = Spread::of(hosts, families, emptied);
    while let Some(changes) = spread.cheaper() {
        for (family, from, to) in changes {
            spread.counts[family][from].now -= 1;
            spread.counts[family][to].now += 1;
        }
    }
    let mut left = spread.moves(families);
    let mut loads = loads(hosts, families);
    let mut moves = Vec::new();
    while let Some(best) = (0..left.len()).max_by_key(|&index| {
        let Move { from, to, .. } = left[index];
        (signed(loads[from]) - signed(loads[to]), Reverse(index))
    }) {
        let next = left.remove(best);
        loads[next.from] -= 1;
        loads[next.to] += 1;
        moves.push(next);
    }
    moves
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    now: usize,
    before: usize,
    least: usize,
    most: usize,
}

/// A family, and from and to which host one of its leaders moves.
type Change = (usize, usize, usize);

struct Spread {
    hosts: usize,
    emptied: Option<usize>,
    counts: Vec<Vec<Count>>,
}

impl Spread {
    fn of(hosts: usize, families: &[Family], emptied: Option<usize>) -> Self {
        let counts = families.iter().map(|family| {
            let mut counts = vec![Count::default(); hosts];
            for Led { on, stays, .. } in &family.led {
                counts[*on].before += 1;
                counts[*on].least += usize::from(*stays);
            }
            for (host, count) in counts.iter_mut().enumerate() {
                count.now = count.before;
                count.most = count.before + family.waiting.get(host).copied().unwrap_or_default();
            }
            counts
        });
        Self { hosts, emptied, counts: counts.collect() }
    }

    /// A cycle of changes with a negative cost. It leads through the hosts and one more node, where load that one host
    /// gives away becomes that of another.
    fn cheaper(&self) -> Option<Vec<Change>> {
        let nodes = self.hosts + 1;
        let arcs = self.arcs();
        let mut cost = vec![0; nodes];
        let mut previous: Vec<Option<(usize, Option<usize>)>> = vec![None; nodes];
        let mut cheaper = None;
        for _ in 0..=nodes {
            cheaper = None;
            for &(from, to, price, family) in &arcs {
                if cost[from] + price < cost[to] {
                    cost[to] = cost[from] + price;
                    previous[to] = Some((from, family));
                    cheaper = Some(to);
                }
            }
            cheaper?;
        }
        let before = |node: usize| previous[node].expect("a node whose cost still falls is behind a cycle");
        // Far enough back, every node is part of the cycle.
        let first = (0..nodes).fold(cheaper?, |node, _| before(node).0);
        let (mut node, mut changes) = (first, Vec::new());
        loop {
            let (from, family) = before(node);
            changes.extend(family.map(|family| (family, from, node)));
            node = from;
            if node == first {
                return Some(changes);
            }
        }
    }

    /// From, to, price and family of each possible change. One leader more on a host costs the difference of squares.
    fn arcs(&self) -> Vec<(usize, usize, i64, Option<usize>)> {
        let total: usize = self.counts.iter().flatten().map(|count| count.now).sum();
        let weight = signed(total) + 1;
        let price = |from: usize, to: usize, counts: &[Count]| {
            let (out, into) = (counts[from], counts[to]);
            let possible = from != to && out.now > out.least && into.now < into.most;
            possible.then(|| i64::from(into.now >= into.before) - i64::from(out.now > out.before))
        };
        let pairs = (0..self.hosts).flat_map(|from| (0..self.hosts).map(move |to| (from, to)));
        let found = pairs.filter_map(|(from, to)| {
            let families = self.counts.iter().enumerate();
            let prices = families.filter_map(|(family, counts)| Some((price(from, to, counts)?, family)));
            prices.min().map(|(price, family)| (from, to, price, Some(family)))
        });
        let loads = (0..self.hosts).map(|host| {
            let more = if self.emptied == Some(host) { EMPTIED } else { 0 };
            signed(self.counts.iter().map(|counts| counts[host].now).sum::<usize>() + more)
        });
        let ends = loads.enumerate().flat_map(|(host, load)| {
            [(host, self.hosts, weight * (2 * load + 1), None), (self.hosts, host, -weight * (2 * load - 1), None)]
        });
        found.chain(ends).collect()
    }

    fn moves(&self, families: &[Family]) -> Vec<Move> {
        let mut moves = Vec::new();
        for (family, counts) in families.iter().zip(&self.counts) {
            let more = |(host, count): (usize, &Count)| vec![host; count.now.saturating_sub(count.before)];
            let mut targets = counts.iter().enumerate().flat_map(more);
            for (from, count) in counts.iter().enumerate() {
                let fewer = count.before.saturating_sub(count.now);
                let going = family.led.iter().filter(|led| led.on == from && !led.stays).take(fewer);
                moves.extend(going.zip(targets.by_ref()).map(|(led, to)| Move { shard: led.shard.clone(), from, to }));
            }
        }
        moves
    }
}

fn signed(count: usize) -> i64 {
    i64::try_from(count).expect("no fleet is that large")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// One family: where each of its leaders is and whether it stays, and how many standbys each host has.
    type Drawn = (Vec<(usize, bool)>, Vec<usize>);

    fn drawn(families: usize) -> impl Strategy<Value = (usize, Vec<Drawn>)> {
        (2..5_usize).prop_flat_map(move |hosts| {
            let led = vec((0..hosts, prop::bool::weighted(0.2)), 1..3);
            let waiting = vec(prop_oneof![2 => Just(0_usize), 2 => Just(1), 1 => Just(2)], hosts);
            (Just(hosts), vec((led, waiting), 0..families))
        })
    }

    fn families(drawn: &[Drawn]) -> Vec<Family> {
        let family = |(number, (led, waiting)): (usize, &Drawn)| {
            let slots = led.iter().enumerate().map(|(slot, &(on, stays))| {
                let shard = format!("queue/{number}#{}", slot + 1).parse().unwrap();
                Led { shard, on, stays, term: None }
            });
            Family { led: slots.collect(), waiting: waiting.clone() }
        };
        drawn.iter().enumerate().map(family).collect()
    }

    fn squares(loads: &[usize]) -> usize {
        loads.iter().map(|load| load * load).sum()
    }

    /// The fleet after the moves, each of which must be possible when its turn comes.
    fn carried_out(families: &[Family], moves: &[Move]) -> Vec<Family> {
        let mut families = families.to_vec();
        let mut seen = BTreeSet::new();
        for Move { shard, from, to } in moves {
            assert!(seen.insert(shard.clone()), "{shard} moves twice");
            let is_of = |led: &Led| led.shard == *shard;
            let family = families.iter_mut().find(|family| family.led.iter().any(is_of)).unwrap();
            assert!(family.waiting[*to] > 0, "nobody waits for {shard} on {to}");
            family.waiting[*to] -= 1;
            family.waiting[*from] += 1;
            let led = family.led.iter_mut().find(|led| is_of(led)).unwrap();
            assert!(led.on == *from && from != to && !led.stays, "{shard}");
            led.on = *to;
        }
        families
    }

    /// The least sum of squares, and the fewest moves that lead there: by trying everything.
    fn best(left: &[(usize, &Led)], room: &mut [Vec<usize>], loads: &mut [usize], moves: usize) -> (usize, usize) {
        let Some(((family, led), rest)) = left.split_first() else { return (squares(loads), moves) };
        let mut least = (usize::MAX, usize::MAX);
        for host in 0..loads.len() {
            if room[*family][host] == 0 || led.stays && host != led.on {
                continue;
            }
            room[*family][host] -= 1;
            loads[host] += 1;
            least = least.min(best(rest, room, loads, moves + usize::from(host != led.on)));
            loads[host] -= 1;
            room[*family][host] += 1;
        }
        least
    }

    proptest! {
        #[test]
        fn no_assignment_is_more_even_and_none_as_even_takes_fewer_moves((hosts, drawn) in drawn(5)) {
            let families = families(&drawn);
            let moves = plan(hosts, &families, None);
            let after = carried_out(&families, &moves);
            let left: Vec<_> =
                families.iter().enumerate().flat_map(|(at, family)| family.led.iter().map(move |led| (at, led))).collect();
            let mut room: Vec<_> = families.iter().map(|family| family.waiting.clone()).collect();
            for (family, led) in &left {
                room[*family][led.on] += 1;
            }
            let expected = best(&left, &mut room, &mut vec![0; hosts], 0);
            prop_assert_eq!((squares(&loads(hosts, &after)), moves.len()), expected);
        }

        #[test]
        fn a_plan_that_was_carried_out_leaves_nothing_to_move((hosts, drawn) in drawn(40)) {
            let families = families(&drawn);
            let after = carried_out(&families, &plan(hosts, &families, None));
            prop_assert_eq!(plan(hosts, &after, None), Vec::new());
        }
    }
}
