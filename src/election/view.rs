//! The state of an election as people see it.

use super::CommandEnd;
use crate::lease::{Late, Term, show_seconds};
use crate::store::{Doubt, Holder};
use crate::time::BootInstant;
use std::fmt;
use std::time::Duration;

/// What keeps a standby from claiming though nobody leads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hold {
    pub why: HeldBack,
    /// Who ordered it, or what has happened.
    pub said: String,
    /// None: until an operator ends it.
    pub left: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HeldBack {
    /// An operator wants nobody to lead.
    Paused,
    /// An operator ordered that this term ends. Other candidates go first, for the time that is left.
    HandedOver(Term),
    /// We gave this term up by ourselves. Other candidates go first, until one has led or the time is over.
    StandingBack(Term),
}

impl Hold {
    /// The hold as it is when this much more time has passed.
    #[must_use]
    pub fn after(&self, passed: Duration) -> Self {
        Self { left: self.left.map(|left| left.saturating_sub(passed)), ..self.clone() }
    }
}

/// The state of an election as people see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    pub role: Role,
    /// Trouble with the store, and since when.
    pub trouble: Option<(String, BootInstant)>,
    /// Why a takeover may be slow.
    pub takeover_warning: Option<String>,
    /// How late guard and backstop were woken at the worst, lately or in the leadership before.
    pub late: Late,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// It waits for this; None while that is not known yet.
    Standby(Option<Obstacle>),
    /// It holds the lease. COMMAND may not run yet.
    Leader(Term),
    /// It holds the lease. COMMAND ended like this, and will be started again.
    Restarting { term: Term, end: CommandEnd },
    /// It is about to leave, or to become a standby again.
    Leaving,
}

/// What keeps a candidate from leading.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Obstacle {
    Holder(Holder),
    Hold(Hold),
    /// The store granted the lease, but cannot show that the tree before was stopped. That tree may live for this long.
    Doubt(Doubt, Duration),
}

impl From<Holder> for Obstacle {
    fn from(holder: Holder) -> Self {
        match holder.doubt {
            Some(doubt) => Self::Doubt(doubt, holder.expires_in.unwrap_or_default()),
            None => Self::Holder(holder),
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Holder(holder) => write!(f, "{holder} leads"),
            Self::Hold(hold) => hold.fmt(f),
            Self::Doubt(doubt, left) => {
                // The time first: a terminal cuts the end of a long line off.
                let why = match doubt {
                    Doubt::FirstUse => "first use of this store, which may have lost a lease",
                    Doubt::Forgotten => {
                        "the store may have forgotten a lease, and cannot show that the previous command was stopped"
                    }
                    Doubt::Revoked => "the lease was revoked, and the command of its leader may still run",
                };
                write!(f, "nobody starts for another {}: {why}", show_seconds(*left))
            }
        }
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.why {
            HeldBack::Paused => "paused",
            HeldBack::HandedOver(_) => "handed over",
            HeldBack::StandingBack(_) => "other candidates go first",
        };
        write!(f, "{what} {}", self.said)?;
        self.left.map_or(Ok(()), |left| write!(f, ", for another {}", show_seconds(left)))
    }
}
