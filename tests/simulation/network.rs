//! The network between the hosts and the store: what it does to a request, and to its answer.
//!
//! The hazard: every combination that a real network can make of one request has to come, or the protocols are tested
//! against a kinder one. A request may be lost, late by more than a lease, applied twice, or applied and its answer
//! lost; a host may be cut off one way only.

use crate::clock::by_the_stores_clock;
use crate::random::Random;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::oneshot;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    Requests,
    Answers,
}

/// Nothing listens there.
pub struct Refused;

#[derive(Clone)]
pub struct Network(Arc<Mutex<State>>);

struct State {
    random: Random,
    /// True once messages may go astray.
    rough: bool,
    cuts: BTreeSet<(usize, Way)>,
    down: bool,
    /// How long a message takes, in milliseconds, at least and at most.
    latency: (u64, u64),
}

/// One copy of a request.
struct Fate {
    there: Duration,
    back: Duration,
    lost: bool,
    answer_lost: bool,
}

impl Network {
    pub fn new(random: Random) -> Self {
        Self(Arc::new(Mutex::new(State { random, rough: false, cuts: BTreeSet::new(), down: false, latency: (1, 8) })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nobody panicked")
    }

    pub fn set_rough(&self, rough: bool) {
        self.state().rough = rough;
    }

    pub fn set_latency(&self, least: u64, most: u64) {
        self.state().latency = (least, most);
    }

    /// From now on these ways to and from a host let nothing through, or are mended.
    pub fn set_cut(&self, host: usize, ways: &[Way], cut: bool) {
        let mut state = self.state();
        state.cuts.retain(|(other, way)| *other != host || !ways.contains(way));
        state.cuts.extend(ways.iter().filter(|_| cut).map(|&way| (host, way)));
    }

    pub fn set_down(&self, down: bool) {
        self.state().down = down;
    }

    /// A number for whatever else is up to chance on the way.
    pub fn chance(&self, per_mille: u64) -> bool {
        let mut state = self.state();
        state.rough && state.random.per_mille(per_mille)
    }

    /// Has the store `serve` a request of `host`. Never returns where no answer comes.
    ///
    /// # Errors
    /// When nothing listens.
    pub async fn call<A: Send + 'static>(
        &self,
        host: usize,
        serve: impl Fn() -> A + Send + Sync + 'static,
    ) -> Result<A, Refused> {
        let copies = self.state().fates(host).ok_or(Refused)?;
        let serve = Arc::new(serve);
        let (answered, answer) = oneshot::channel();
        let answered = Arc::new(Mutex::new(Some(answered)));
        for fate in copies.into_iter().filter(|fate| !fate.lost) {
            let (network, serve, answered) = (self.clone(), Arc::clone(&serve), Arc::clone(&answered));
            // It goes its way whatever becomes of its sender.
            tokio::spawn(async move {
                tokio::time::sleep(fate.there).await;
                if network.state().down {
                    return;
                }
                let answer = by_the_stores_clock(|| serve());
                tokio::time::sleep(fate.back).await;
                if fate.answer_lost || network.state().cuts.contains(&(host, Way::Answers)) {
                    return;
                }
                if let Some(answered) = answered.lock().expect("nobody panicked").take() {
                    let _ = answered.send(answer);
                }
            });
        }
        drop(answered);
        match answer.await {
            Ok(answer) => Ok(answer),
            Err(_) => std::future::pending().await,
        }
    }
}

impl State {
    /// What becomes of a request that `host` sends now; None where nothing listens.
    fn fates(&mut self, host: usize) -> Option<Vec<Fate>> {
        if self.down && !self.cuts.contains(&(host, Way::Requests)) {
            return None;
        }
        let mut fates = vec![self.fate(host)];
        if self.rough && self.random.per_mille(15) {
            fates.push(self.fate(host));
        }
        Some(fates)
    }

    fn fate(&mut self, host: usize) -> Fate {
        let cut = self.cuts.contains(&(host, Way::Requests));
        let (there, back) = (self.way(), self.way());
        let (lost, answer_lost) = (self.random.per_mille(15), self.random.per_mille(25));
        Fate { there, back, lost: cut || (self.rough && lost), answer_lost: self.rough && answer_lost }
    }

    fn way(&mut self) -> Duration {
        let (least, most) = self.latency;
        match self.rough {
            // Longer than most leases here.
            true if self.random.per_mille(8) => self.random.millis(1_000, 20_000),
            true if self.random.per_mille(40) => self.random.millis(100, 1_500),
            _ => self.random.millis(least, most),
        }
    }
}
