//! How an election stands, for people.

use super::CommandEnd;
use crate::lease::{Term, show_seconds};
use crate::store::Holder;
use crate::time::BootInstant;
use std::fmt;
use std::time::Duration;

/// What orders keep a candidate from leading.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Hold {
    Paused {
        said: String,
        left: Option<Duration>,
    },
    /// Others go first, for so long.
    HandedOver {
        term: Term,
        said: String,
        left: Duration,
    },
    /// We gave this term up of ourselves. Others go first, until somebody has led or for so long.
    StandingBack {
        term: Term,
        said: String,
        left: Duration,
    },
}

/// How things stand, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    pub role: Role,
    /// The store's, and since when.
    pub trouble: Option<(String, BootInstant)>,
    /// What makes a takeover slow.
    pub hindrance: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Nobody was heard to be in the way yet, or somebody is.
    Standby(Option<Obstacle>),
    /// It holds the lease; whether COMMAND runs its tree tells.
    Leader(Term),
    /// It holds the lease, and COMMAND, which has ended so, will be started again.
    Restarting { term: Term, end: CommandEnd },
    /// It is about to leave, or to stand by again.
    Leaving,
}

/// What kept a candidate from leading.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Obstacle {
    Holder(Holder),
    Hold(Hold),
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Holder(holder) => write!(f, "{holder} leads"),
            Self::Hold(hold) => hold.fmt(f),
        }
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Paused { said, left: None } => write!(f, "paused {said}"),
            Self::Paused { said, left: Some(left) } => write!(f, "paused {said}, for another {}", show_seconds(*left)),
            Self::HandedOver { said, left, .. } => write!(f, "handed over {said}, for another {}", show_seconds(*left)),
            Self::StandingBack { said, left, .. } => {
                write!(f, "others go first {said}, for another {}", show_seconds(*left))
            }
        }
    }
}
