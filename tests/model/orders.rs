//! What operators may have ordered.

use crate::store::{Id, Store};
use leaderrun::internals::election::{Directives, Handover, Pause};
use leaderrun::internals::lease::Term;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Orders {
    Paused {
        keep: bool,
    },
    /// To anybody but `from`.
    HandedOver {
        term: Term,
        from: Id,
    },
}

impl Orders {
    /// Of the session that holds the lease. None if the lease is free.
    pub fn hand_over(store: &Store) -> Option<Self> {
        let (from, term) = store.contents.document?.leadership?;
        Some(Self::HandedOver { term, from })
    }

    pub fn directives(self, candidate: Id) -> Directives {
        let said = String::new();
        match self {
            Self::Paused { keep } => Directives { pause: Some(Pause { keep, left: None, said }), handover: None },
            Self::HandedOver { term, from } => {
                let (welcome, hold) = (candidate != from, Duration::from_secs(3));
                Directives { pause: None, handover: Some(Handover { term, welcome, hold, said }) }
            }
        }
    }
}
