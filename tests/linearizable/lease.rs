//! The model of the lease of one shard: who holds it, in which term, how far its renewals have come, and since when
//! another candidate may have it.
//!
//! The hazard is time. A lease ends by the store's clock, and when the store acts on that, no answer tells. What holds:
//!
//! - A grant or renewal counts from its call (etcd begins to count before it writes the lock), so the lease lasts at least
//!   until one lease after that: its promised end, `until`. The store's clock may run a little faster than
//!   ours and count in whole milliseconds, so two parts in a hundred are taken off ([`promised_end`]).
//! - Before that instant nobody else can be granted the lease, and no answer may show it free. So where an operation
//!   took place certainly before it (its *latest* instant), such an answer is refused.
//! - From then on the lease may be over or not: nothing is concluded from it, until another session takes it. Stores
//!   judge in favour of the holder, and take their time.
//!
//! All clients measure by `CLOCK_BOOTTIME` of one machine. A machine that stalls makes windows wider, and so the model
//! more lenient, but never unjust.

use super::checker::{Instant, Model, NEVER, Window};
use std::time::Duration;

/// The number of a session in its history.
pub type Session = usize;

/// What the answers of a store leave open, though it keeps to its contract.
#[derive(Clone, Copy, Debug, Default)]
pub struct Leeway {
    /// The lease does not expire, and the name of its holder is written after the lock is taken, so it may still be that of
    /// the last one.
    pub is_of_kernel: bool,
    /// What a claim got that nobody heard of is given back by the client itself, some time later.
    pub gives_back: bool,
}

/// The holder that an answer names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// None for a name that is no candidate's: the mark of a lease that was revoked.
    pub session: Option<Session>,
    pub term: Option<u64>,
}

#[derive(Clone, Debug)]
pub enum Claimed {
    Granted {
        term: u64,
        /// The earliest instant at which a tree may start: that of the answer, or a later one.
        start: Instant,
    },
    Refused(Named),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewal {
    Renewed,
    Overtaken,
    Lost,
}

/// A call with its answer; None stands for an answer that did not arrive.
#[derive(Clone, Debug)]
pub enum Call {
    Claim {
        session: Session,
        number: usize,
        lease: Duration,
        answer: Option<Claimed>,
    },
    /// A claim that was not applied. It changes nothing.
    FailedClaim,
    /// A release, or on etcd the client, ends what an earlier claim of its session got, which nobody has heard, whatever
    /// its term.
    GiveBack {
        number: usize,
    },
    Renew {
        session: Session,
        term: u64,
        sequence: u64,
        lease: Duration,
        answer: Option<Renewal>,
    },
    /// None: it is free.
    Look {
        holder: Option<Named>,
    },
    /// None: of any term.
    Release {
        session: Session,
        term: Option<u64>,
        done: Option<bool>,
    },
    Revoke {
        term: u64,
        done: Option<bool>,
    },
}

impl Call {
    /// The same call without an answer. None if such a call shows nothing.
    pub fn unanswered(&self) -> Option<Self> {
        match self.clone() {
            Self::Claim { session, number, lease, .. } => Some(Self::Claim { session, number, lease, answer: None }),
            Self::Renew { session, term, sequence, lease, .. } => {
                Some(Self::Renew { session, term, sequence, lease, answer: None })
            }
            Self::Release { session, term, .. } => Some(Self::Release { session, term, done: None }),
            Self::Revoke { term, .. } => Some(Self::Revoke { term, done: None }),
            Self::Look { .. } | Self::FailedClaim | Self::GiveBack { .. } => None,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    holding: Option<Holding>,
    last: Last,
    /// The trees of revoked leases, which may be alive until then. Zero: they are certainly dead.
    revoked: Vec<(Session, Instant)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Holding {
    session: Session,
    /// The claim that was granted.
    claim: usize,
    /// False if no tree can have started yet, because the claim has no answer yet, or never had one.
    is_answered: bool,
    sequence: u64,
    until: Instant,
}

impl State {
    /// Whether the session has the lease by a claim whose answer nobody has heard.
    fn is_unheard(&self, session: Session) -> bool {
        let is_new = |holding: &Holding| holding.session == session && holding.sequence == 0;
        self.holding.as_ref().is_some_and(is_new) && !self.last.is_known
    }

    fn without_a_tree_of(&self, session: Session) -> Vec<(Session, Instant)> {
        let dead = |&(whose, until): &(Session, Instant)| (whose, if whose == session { 0 } else { until });
        self.revoked.iter().map(dead).collect()
    }
}

/// The last term, which is that of the holder if there is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Last {
    at_least: u64,
    /// False if it may be higher, because no answer has told it.
    is_known: bool,
}

impl Last {
    fn known(term: u64) -> Self {
        Self { at_least: term, is_known: true }
    }

    /// After a claim whose answer nobody has heard.
    fn unheard(self) -> Self {
        if self.is_known { Self { at_least: self.at_least + 1, is_known: false } } else { self }
    }

    fn may_be(self, term: u64) -> bool {
        if self.is_known { term == self.at_least } else { term >= self.at_least }
    }
}

/// Rounded down, so that states differ less.
fn promised_end(called: Instant, lease: Duration) -> Instant {
    let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).expect("it is some minutes");
    let end = called + nanos(lease - lease / 50);
    end - end % (nanos(lease) / 16)
}

#[derive(Default)]
pub struct Lease {
    pub leeway: Leeway,
}

impl Model for Lease {
    type State = State;
    type Call = Call;

    fn start(&self) -> State {
        State::default()
    }

    fn step(&self, state: &State, call: &Call, window: Window) -> Option<State> {
        match call {
            Call::Claim { session, number, lease, answer: None } => {
                // Nobody can tell two such claims, one after another, from one.
                Some(if state.is_unheard(*session) || Self::stands_in_the_way(state, *session, window) {
                    state.clone()
                } else {
                    let is_answered = state.holding.as_ref().is_some_and(|now| now.claim == *number && now.is_answered);
                    let granted = self.granted(state, (*session, *number, *lease), state.last.unheard(), window);
                    let holding = granted.holding.map(|holding| Holding { is_answered, ..holding });
                    State { holding, ..granted }
                })
            }
            Call::Claim { session, number, lease, answer: Some(Claimed::Granted { term, start }) } => {
                let is_dead = |&(whose, until): &(Session, Instant)| whose == *session || until <= *start;
                // The session may be told the term of an earlier claim, whose answer it did not hear.
                let is_higher = *term + u64::from(state.is_unheard(*session)) > state.last.at_least;
                if !is_higher || !state.revoked.iter().all(is_dead) {
                    return None;
                }
                if Self::stands_in_the_way(state, *session, window) {
                    return None;
                }
                Some(self.granted(state, (*session, *number, *lease), Last::known(*term), window))
            }
            Call::Claim { session, answer: Some(Claimed::Refused(named)), .. } => {
                let other = state.holding.as_ref().is_none_or(|holding| holding.session != *session);
                if other { self.shows(state, named, window) } else { None }
            }
            Call::FailedClaim => Some(state.clone()),
            Call::GiveBack { number } => Some(match &state.holding {
                Some(holding) if holding.claim == *number && holding.sequence == 0 => {
                    State { holding: None, ..state.clone() }
                }
                Some(_) | None => state.clone(),
            }),
            Call::Renew { session, term, sequence, lease, answer } => {
                self.renew(state, (*session, *term, *sequence, *lease), answer.as_ref(), window)
            }
            Call::Look { holder: None } => {
                let is_free = state.holding.as_ref().is_none_or(|holding| holding.until <= window.latest);
                is_free.then(|| state.clone())
            }
            Call::Look { holder: Some(named) } => self.shows(state, named, window),
            Call::Release { session, term, done } => Self::release(state, *session, *term, *done, window),
            Call::Revoke { term, done } => Self::revoke(state, *term, *done, window),
        }
    }
}

impl Lease {
    /// Whether another session certainly has the lease.
    fn stands_in_the_way(state: &State, session: Session, window: Window) -> bool {
        state.holding.as_ref().is_some_and(|holding| holding.session != session && holding.until > window.latest)
    }

    fn granted(
        &self,
        state: &State,
        (session, claim, lease): (Session, usize, Duration),
        last: Last,
        window: Window,
    ) -> State {
        let until = if self.leeway.is_of_kernel { NEVER } else { promised_end(window.called, lease) };
        // Who claims has no tree.
        let revoked = state.without_a_tree_of(session);
        let holding = Some(Holding { session, claim, is_answered: true, sequence: 0, until });
        State { holding, last, revoked }
    }

    /// Whether an answer may name this holder; if so, what it tells about the term is known from then on.
    fn shows(&self, state: &State, named: &Named, window: Window) -> Option<State> {
        if self.leeway.is_of_kernel && state.holding.is_some() {
            return Some(state.clone());
        }
        if named.session.is_none() {
            // The tree of a lease that was revoked, or has ended, may be waited for.
            let is_over = state.holding.as_ref().is_none_or(|holding| holding.until <= window.latest);
            return is_over.then(|| state.clone());
        }
        if named.session != state.holding.as_ref().map(|holding| holding.session) {
            return None;
        }
        match named.term {
            Some(term) if !state.last.may_be(term) => None,
            Some(term) => Some(State { last: Last::known(term), ..state.clone() }),
            None => Some(state.clone()),
        }
    }

    #[expect(clippy::match_same_arms, reason = "a row for each answer")]
    fn renew(
        &self,
        state: &State,
        (session, term, sequence, lease): (Session, u64, u64, Duration),
        answer: Option<&Renewal>,
        window: Window,
    ) -> Option<State> {
        let holding = state.holding.as_ref().filter(|holding| holding.session == session);
        let is_of_this_term = state.last.may_be(term);
        let renewed = |holding: &Holding| {
            let until = if self.leeway.is_of_kernel { NEVER } else { promised_end(window.called, lease) };
            let holding = Holding { sequence, until: until.max(holding.until), ..holding.clone() };
            Some(State { holding: Some(holding), ..state.clone() })
        };
        // The answer may be that to a repetition.
        let is_next = |holding: &Holding| holding.sequence < sequence + u64::from(answer.is_some());
        match (answer, holding) {
            (Some(Renewal::Renewed) | None, Some(holding)) if is_of_this_term && is_next(holding) => renewed(holding),
            (Some(Renewal::Overtaken), Some(holding)) if !is_of_this_term || holding.sequence >= sequence => {
                Some(state.clone())
            }
            (Some(Renewal::Lost), Some(holding)) if is_of_this_term && holding.until > window.latest => None,
            (Some(Renewal::Lost), _) => Some(state.clone()),
            (Some(Renewal::Renewed | Renewal::Overtaken), _) => None,
            (None, _) => Some(state.clone()),
        }
    }

    fn release(
        state: &State,
        session: Session,
        term: Option<u64>,
        done: Option<bool>,
        window: Window,
    ) -> Option<State> {
        let mine = state.holding.as_ref().filter(|holding| holding.session == session);
        let mine = mine.filter(|_| term.is_none_or(|term| state.last.may_be(term)));
        // Who releases has no tree, also if the lease was revoked before. Then the answer may be either.
        let revoked = state.without_a_tree_of(session);
        let was_revoked = revoked != state.revoked;
        let may_be_over = mine.is_none_or(|holding| holding.until <= window.latest);
        match done {
            // It may have been given back by an earlier call whose answer was lost: nothing of another is freed.
            Some(true) if mine.is_none() && !was_revoked && state.holding.is_some() => None,
            Some(false) if !may_be_over => None,
            Some(true) | None if mine.is_some() => Some(State { holding: None, revoked, ..state.clone() }),
            Some(_) | None => Some(State { revoked, ..state.clone() }),
        }
    }

    fn revoke(state: &State, term: u64, done: Option<bool>, window: Window) -> Option<State> {
        let holding = state.holding.as_ref().filter(|_| state.last.may_be(term));
        match (done, holding) {
            // It may have been taken away by another call at the same time.
            (Some(true), None) if state.revoked.is_empty() || state.holding.is_some() => None,
            (Some(false), Some(holding)) if state.last.is_known && holding.until > window.latest => None,
            (Some(true) | None, Some(holding)) => Some(Self::vacated(state, holding)),
            (Some(false), _) | (_, None) => Some(state.clone()),
        }
    }

    /// Nobody has the lease, but the tree of its holder may be alive.
    fn vacated(state: &State, holding: &Holding) -> State {
        let mut vacated = State { holding: None, ..state.clone() };
        vacated.revoked.retain(|(whose, _)| *whose != holding.session);
        vacated.revoked.push((holding.session, if holding.is_answered { holding.until } else { 0 }));
        vacated.revoked.sort_unstable();
        vacated
    }
}
