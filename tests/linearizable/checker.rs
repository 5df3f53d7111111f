//! Whether a history is linearizable: whether there is one order of its operations, each at an instant between its call
//! and its answer, in which a sequential model gives the same answers. The search is Wing and Gong's, with Lowe's memory
//! of what was tried (the same set of operations done, and the same state). Where operations may also not have taken
//! place, what was tried in vain after some of them is in vain after more of them too, if the state is the same: nothing
//! is gained by using up what is not required. Without that, a history with many lost answers is not decided in any time.
//!
//! The hazard: an operation without an answer may have been applied, may be applied later, or never. Such operations
//! are not required: they may take their place in the order, up to their end, or none. So a client may have several of
//! them open at once, and call the next one. The tester in `stateright` allows a client one operation at a time and
//! knows no time, so it does not do here.
//!
//! The model also needs time, because leases expire. In an order of operations, an operation took place not before the
//! calls of all those before it, and not after the answers of all those that follow it. This window is what the model is
//! told, and all that it may conclude from.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;

/// Nanoseconds, by one clock for all clients.
pub type Instant = u64;

pub const NEVER: Instant = Instant::MAX;

/// Between which instants an operation took place.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// When it was called.
    pub called: Instant,
    pub earliest: Instant,
    pub latest: Instant,
}

pub trait Model {
    type State: Clone + Debug + Eq + Hash;
    type Call: Debug;

    fn start(&self) -> Self::State;

    /// The state after the call, with the answer that was given. None if this answer cannot be given now.
    fn step(&self, state: &Self::State, call: &Self::Call, window: Window) -> Option<Self::State>;
}

#[derive(Clone, Debug)]
pub struct Operation<C> {
    pub call: C,
    pub begun: Instant,
    /// It took place before this, if it did.
    pub ended: Instant,
    /// False if it may never have taken place.
    pub required: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    Linearizable,
    /// The best order explains all but these, as indices in the history: none of them can come next.
    Violation {
        order: Vec<usize>,
        state: String,
    },
    /// The search was given up.
    Undecided,
}

/// The most situations that are remembered: some hundred megabytes.
const MOST_SITUATIONS: usize = 1_000_000;

pub fn check<M: Model>(model: &M, history: &[Operation<M::Call>]) -> Verdict {
    let mut search = Search {
        model,
        history,
        by_end: (0..history.len()).collect(),
        required: bits(history, |operation| operation.required),
        done: bits(history, |_| false),
        order: Vec::new(),
        tried: HashMap::new(),
        situations: 0,
        best: (Vec::new(), String::new()),
        best_required: None,
    };
    search.by_end.sort_by_key(|&index| (!history[index].required, history[index].ended));
    match search.goes_on(&model.start(), 0, 0) {
        Some(true) => Verdict::Linearizable,
        Some(false) => Verdict::Violation { order: search.best.0, state: search.best.1 },
        None => Verdict::Undecided,
    }
}

type Bits = Vec<u64>;

fn bits<C>(history: &[Operation<C>], is_set: impl Fn(&Operation<C>) -> bool) -> Bits {
    let bits = |operations: &[Operation<C>]| {
        operations.iter().enumerate().fold(0, |bits, (index, operation)| bits | u64::from(is_set(operation)) << index)
    };
    history.chunks(64).map(bits).collect()
}

struct Search<'a, M: Model> {
    model: &'a M,
    history: &'a [Operation<M::Call>],
    /// The operations in the order in which they are tried: the required ones first, as they were answered. That is
    /// nearly the order in which they took place, and most histories need no other operation.
    by_end: Vec<usize>,
    /// A bit for each operation that is required.
    required: Bits,
    /// A bit for each operation that has its place in the order.
    done: Bits,
    order: Vec<usize>,
    /// The operations done that are not required, of each time that these required ones were done and left this state.
    tried: HashMap<(Bits, M::State), Vec<Bits>>,
    situations: usize,
    best: (Vec<usize>, String),
    best_required: Option<usize>,
}

impl<M: Model> Search<'_, M> {
    fn is_done(&self, index: usize) -> bool {
        self.done[index / 64] >> (index % 64) & 1 == 1
    }

    /// Whether this was not tried before. Remembers it.
    fn is_new(&mut self, state: &M::State) -> bool {
        let of_done = |wanted: bool| {
            let pairs = self.done.iter().zip(&self.required);
            pairs.map(|(done, required)| done & if wanted { *required } else { !required }).collect::<Bits>()
        };
        let (required, others) = (of_done(true), of_done(false));
        let is_within = |some: &Bits, all: &Bits| some.iter().zip(all).all(|(some, all)| some & !all == 0);
        let tried = self.tried.entry((required, state.clone())).or_default();
        if tried.iter().any(|fewer| is_within(fewer, &others)) {
            return false;
        }
        tried.retain(|more| !is_within(&others, more));
        tried.push(others);
        true
    }

    /// Whether the rest of the history can follow. `required` operations are done, and all that are done were called
    /// before `earliest`. None if that takes too long to find out.
    fn goes_on(&mut self, state: &M::State, earliest: Instant, required: usize) -> Option<bool> {
        let first = self.by_end.iter().find(|&&index| !self.is_done(index));
        let Some(&first) = first.filter(|&&index| self.history[index].required) else { return Some(true) };
        if self.best_required.is_none_or(|best| best < required) {
            self.best_required = Some(required);
            self.best = (self.order.clone(), format!("{state:?}"));
        }
        if self.situations >= MOST_SITUATIONS {
            return None;
        }
        if !self.is_new(state) {
            return Some(false);
        }
        self.situations += 1;
        let latest = self.history[first].ended;
        for place in 0..self.by_end.len() {
            let index = self.by_end[place];
            let operation = &self.history[index];
            if self.is_done(index) {
                continue;
            }
            let window = Window {
                called: operation.begun,
                earliest: earliest.max(operation.begun),
                latest: latest.min(operation.ended),
            };
            if window.earliest > window.latest {
                continue;
            }
            let Some(next) = self.model.step(state, &operation.call, window) else { continue };
            if !operation.required && next == *state {
                continue;
            }
            self.done[index / 64] |= 1 << (index % 64);
            self.order.push(index);
            let ends = self.goes_on(&next, window.earliest, required + usize::from(operation.required));
            self.order.pop();
            self.done[index / 64] &= !(1 << (index % 64));
            if ends != Some(false) {
                return ends;
            }
        }
        Some(false)
    }
}
