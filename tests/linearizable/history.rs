//! What candidates did to one shard, as histories for the checker: that of its lease, and one of each of its notes.
//!
//! The hazard: a client that is not answered may send a request again by itself (over a new connection, as the stores
//! do), and what it reports is the second answer. The trait allows it: every method can be called twice. So where the
//! network loses answers, and where one is late, a call that writes stands in the history a second time, without an
//! answer: it may have taken place once more within the same interval.

use super::checker::{Instant, NEVER, Operation, Verdict, check};
use super::lease::{self, Claimed, Lease, Leeway};
use super::page::{self, Page};
use std::fmt::{Debug, Write as _};

/// An answer that takes so many nanoseconds may be that to a second request. The stores are more patient.
const LATE: Instant = 100_000_000;
/// How many notes of a shard are used.
pub const PAGES: usize = 2;

#[derive(Clone, Debug)]
pub enum Call {
    Lease(lease::Call),
    Page(usize, page::Call),
}

#[derive(Clone, Debug)]
pub struct Event {
    pub begun: Instant,
    /// None: no answer came, or one that says that the request may have been applied.
    pub ended: Option<Instant>,
    pub call: Call,
}

/// All that was done to one shard.
#[derive(Debug)]
pub struct History {
    pub seed: u64,
    pub shard: String,
    pub events: Vec<Event>,
    /// Whether answers may have been lost.
    pub is_disturbed: bool,
}

/// What was found in a history.
pub enum Found {
    Nothing,
    /// A transcript.
    Violation(String),
    Undecided,
}

impl History {
    pub fn judge(&self, leeway: Leeway) -> Found {
        let lease = self.of_lease(leeway);
        match self.found("the lease", &lease, check(&Lease { leeway }, &lease)) {
            Found::Nothing => {}
            other => return other,
        }
        for page in 0..PAGES {
            let operations = self.of_page(page);
            match self.found(&format!("note {page}"), &operations, check(&Page, &operations)) {
                Found::Nothing => {}
                other => return other,
            }
        }
        Found::Nothing
    }

    fn of_lease(&self, leeway: Leeway) -> Vec<Operation<lease::Call>> {
        let calls = self.events.iter().filter_map(|event| match &event.call {
            Call::Lease(call) => Some((event, call.clone())),
            Call::Page(..) => None,
        });
        let calls = calls.filter(|(event, call)| !(leeway.is_of_kernel && self.is_excused(event, call)));
        let mut operations = self.operations(calls, lease::Call::unanswered);
        for event in &self.events {
            let Call::Lease(lease::Call::Claim { session, number, ref answer, .. }) = event.call else { continue };
            if answer.is_none() {
                let call = lease::Call::GiveBack { number };
                if leeway.gives_back {
                    operations.push(Operation {
                        call: call.clone(),
                        begun: event.begun,
                        ended: NEVER,
                        required: false,
                    });
                }
                let releases = self.releases(session).filter(|release| release.begun > event.begun);
                operations.extend(releases.map(|release| {
                    let ended = release.ended.unwrap_or(NEVER);
                    Operation { call: call.clone(), begun: release.begun, ended, required: false }
                }));
            }
        }
        sorted(operations)
    }

    fn releases(&self, releasing: lease::Session) -> impl Iterator<Item = &Event> {
        self.events.iter().filter(move |event| {
            matches!(event.call, Call::Lease(lease::Call::Release { session, .. }) if session == releasing)
        })
    }

    /// On `file:`, a claim that finds the sockets of a lease that is being released holds the lock for a moment, and is
    /// refused in the end; so does a claim that cannot write its record, and fails. Who looks in that moment finds it
    /// locked.
    fn is_excused(&self, event: &Event, call: &lease::Call) -> bool {
        let refused = |call: &lease::Call| matches!(call, lease::Call::Claim { answer: Some(Claimed::Refused(_)), .. });
        let shown = refused(call) || matches!(call, lease::Call::Look { holder: Some(_) });
        let overlaps =
            |other: &&Event| other.begun < event.ended.unwrap_or(NEVER) && event.begun < other.ended.unwrap_or(NEVER);
        let others = self.events.iter().filter(|other| !std::ptr::eq(*other, event)).filter(overlaps);
        let is_vain = |call: &lease::Call| refused(call) || matches!(call, lease::Call::FailedClaim);
        shown && others.into_iter().any(|other| matches!(&other.call, Call::Lease(call) if is_vain(call)))
    }

    fn of_page(&self, wanted: usize) -> Vec<Operation<page::Call>> {
        let calls = self.events.iter().filter_map(|event| match &event.call {
            Call::Page(page, call) if *page == wanted => Some((event, call.clone())),
            Call::Page(..) | Call::Lease(_) => None,
        });
        sorted(self.operations(calls, page::Call::unanswered))
    }

    fn operations<'a, C: Clone>(
        &self,
        calls: impl Iterator<Item = (&'a Event, C)>,
        unanswered: fn(&C) -> Option<C>,
    ) -> Vec<Operation<C>> {
        let mut operations = Vec::new();
        for (event, call) in calls {
            let (begun, ended) = (event.begun, event.ended.unwrap_or(NEVER));
            let may_be_repeated = event.ended.is_some_and(|ended| self.is_disturbed || ended - begun > LATE);
            if let Some(again) = unanswered(&call).filter(|_| may_be_repeated) {
                operations.push(Operation { call: again, begun, ended, required: false });
            }
            operations.push(Operation { call, begun, ended, required: event.ended.is_some() });
        }
        operations
    }

    fn found<C: Debug>(&self, what: &str, operations: &[Operation<C>], verdict: Verdict) -> Found {
        let (order, state) = match verdict {
            Verdict::Linearizable => return Found::Nothing,
            Verdict::Undecided => return Found::Undecided,
            Verdict::Violation { order, state } => (order, state),
        };
        let mut told = format!("{what} of {} (seed {}):\n", self.shard, self.seed);
        let start = operations.first().map_or(0, |first| first.begun);
        let micros = |instant: Instant| (instant - start) / 1000;
        let mut tell = |mark: &str, operation: &Operation<C>| {
            let ended = if operation.ended == NEVER { "...".to_owned() } else { micros(operation.ended).to_string() };
            let _ = writeln!(told, "{mark} {:>9} {ended:>9}  {:?}", micros(operation.begun), operation.call);
        };
        for &index in &order {
            tell("  ", &operations[index]);
        }
        for (index, operation) in operations.iter().enumerate() {
            if !order.contains(&index) {
                tell(if operation.required { "??" } else { " ?" }, operation);
            }
        }
        let _ = write!(
            told,
            "in microseconds; none of those with ?? can follow the others, which leave {state}; those with ? need not have \
             taken place"
        );
        Found::Violation(told)
    }
}

/// In the order of their calls.
fn sorted<C>(mut operations: Vec<Operation<C>>) -> Vec<Operation<C>> {
    operations.sort_by_key(|operation| operation.begun);
    operations
}
