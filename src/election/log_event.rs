//! What a log line is about, in one word: its `event` in JSON.

/// What a log line is about. Words are added, never renamed or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    pub const ALL: [Self; 25] = [
        Self::Waiting,
        Self::LeaderChanged,
        Self::Leading,
        Self::HoldingBack,
        Self::Trouble,
        Self::TroubleOver,
        Self::Stopping,
        Self::Killing,
        Self::OrdersUnread,
        Self::LedgerUnwritten,
        Self::HookFailed,
        Self::Restarting,
        Self::GaveUp,
        Self::Staying,
        Self::Uncounted,
        Self::Lost,
        Self::Released,
        Self::NotReleased,
        Self::Skipped,
        Self::NotAcquired,
        Self::StandbyCommand,
        Self::Listening,
        Self::Ended,
        Self::Warning,
        Self::Detail,
    ];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::LeaderChanged => "leader-changed",
            Self::Leading => "leading",
            Self::HoldingBack => "holding-back",
            Self::Trouble => "trouble",
            Self::TroubleOver => "trouble-over",
            Self::Stopping => "stopping",
            Self::Killing => "killing",
            Self::OrdersUnread => "orders-unread",
            Self::LedgerUnwritten => "ledger-unwritten",
            Self::HookFailed => "hook-failed",
            Self::Restarting => "restarting",
            Self::GaveUp => "gave-up",
            Self::Staying => "staying",
            Self::Uncounted => "uncounted",
            Self::Lost => "lost",
            Self::Released => "released",
            Self::NotReleased => "not-released",
            Self::Skipped => "skipped",
            Self::NotAcquired => "not-acquired",
            Self::StandbyCommand => "standby-command",
            Self::Listening => "listening",
            Self::Ended => "ended",
            Self::Warning => "warning",
            Self::Detail => "detail",
        }
    }
}
