//! What a log line is about, in one word: its `event` in JSON.

use strum::{IntoStaticStr, VariantArray};

/// What a log line is about. Words are added, never renamed or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(const_into_str, serialize_all = "kebab-case")]
pub enum LogEvent {
    /// A standby knows for whom or what it waits.
    Waiting,
    /// A standby sees another leader than before.
    LeaderChanged,
    Leading,
    /// The lease is held, and COMMAND waits.
    HoldingBack,
    /// The store does not answer, or refuses.
    Trouble,
    TroubleOver,
    /// COMMAND is being stopped in order.
    Stopping,
    /// COMMAND is being killed, because it was asked again.
    Killing,
    OrdersUnread,
    /// The ledger of runs cannot be written.
    LedgerUnwritten,
    /// A hook or a check failed.
    HookFailed,
    Restarting,
    GaveUp,
    /// A handover is due, and the leader stays.
    Staying,
    /// The standbys cannot be counted.
    Uncounted,
    Lost,
    Released,
    NotReleased,
    /// The job had run.
    Skipped,
    /// COMMAND was not started, because another candidate leads or may lead.
    NotAcquired,
    StandbyCommand,
    Listening,
    /// leaderrun ends.
    Ended,
    /// Any other warning or failure.
    Warning,
    /// Any other line.
    Detail,
}

impl LogEvent {
    pub const ALL: &[Self] = Self::VARIANTS;
}
