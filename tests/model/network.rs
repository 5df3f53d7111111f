//! What is under way between a candidate and the store.

use crate::clock::Tick;
use crate::orders::Orders;
use crate::store::Contents;
use leaderrun::internals::lease::Term;
use leaderrun::internals::store::{Claim, Release, Renewal, StoreError};
use leaderrun::internals::time::BootInstant;

/// A request, from when it is sent to when nobody waits for its answer and nothing can come of it any more.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Message {
    pub request: Request,
    pub sent: Tick,
    /// The same instant on the host's clock.
    pub sent_at: BootInstant,
    /// The candidate has not given up on it.
    pub waiting: bool,
    pub place: Place,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    /// With what was read, and judged to be free to take. None if nothing could be read.
    Claim {
        judged: Option<Contents>,
    },
    /// With the write that it prolongs.
    Renew {
        term: Term,
        sequence: u64,
        known: u8,
    },
    /// The leader's put over what was read, because the store forgot.
    Heal {
        term: Term,
        sequence: u64,
        read: Contents,
    },
    Release {
        term: Term,
        known: u8,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Arrives in this tick, unless a fault is spent on it.
    OnTheWay,
    /// Arrives whenever it likes, or never.
    HeldUp,
    /// It was applied; its answer has arrived (`late`: arrives whenever it likes, or never).
    Answered {
        answer: Answer,
        late: bool,
    },
    Lost,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    Claimed(Result<Claim, StoreError>),
    /// With the orders as they were when it was applied.
    Renewed(Result<Renewal, StoreError>, Option<Orders>),
    /// The document does not name the leadership.
    Refused,
    Released(Result<Release, StoreError>),
}

/// Which way a cut link lets nothing through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    Requests,
    Answers,
}

impl Request {
    pub fn fails(&self, error: StoreError) -> Answer {
        match self {
            Self::Claim { .. } => Answer::Claimed(Err(error)),
            Self::Renew { .. } | Self::Heal { .. } => Answer::Renewed(Err(error), None),
            Self::Release { .. } => Answer::Released(Err(error)),
        }
    }
}

impl Message {
    pub fn is_renewal(&self) -> bool {
        matches!(self.request, Request::Renew { .. } | Request::Heal { .. })
    }

    /// What is compared with the write that stands. None: whoever waits for the answer looks, and sends it again.
    pub fn compared(&self, known: u8) -> Option<u8> {
        (!self.waiting).then_some(known)
    }

    /// Something can still come of it.
    pub fn matters(&self) -> bool {
        self.waiting || matches!(self.place, Place::OnTheWay | Place::HeldUp)
    }

    /// A copy of a request that was applied.
    pub fn echo(&self) -> Self {
        Self { waiting: false, place: Place::HeldUp, ..self.clone() }
    }
}
