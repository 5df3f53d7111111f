//! What an election is asked to do.

use crate::lease::Timing;
use crate::store::Delivery;
use std::time::Duration;

/// What an election is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    pub timing: Timing,
    /// False where the lease lasts while it is held open (see `Store::expires`).
    pub expires: bool,
    pub delivery: Delivery,
    pub patience: Patience,
    pub on_loss: OnLoss,
    /// How long COMMAND may take in an orderly stop; None is for ever.
    pub drain: Option<Duration>,
    /// How long COMMAND may run; None is for ever.
    pub max_run: Option<Duration>,
    /// COMMAND is a job: its run is entered into a ledger before it starts, and one process runs it once at the most.
    pub job_gate: bool,
    /// None: when COMMAND has ended, so has its leadership.
    pub restart: Option<Restart>,
    /// A leader hands over after so long, if somebody else is there.
    pub relinquish_after: Option<Duration>,
    /// Something runs beside a standby, and must be dead before COMMAND starts.
    pub standby_tasks: bool,
}

/// When COMMAND is started again that has ended by itself, under the same lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Restart {
    pub when: RestartWhen,
    /// So often in a row; then the lease is given up.
    pub limit: u32,
    /// Before the first of them. The pauses double.
    pub delay: Duration,
    /// A run that lasted so long begins a new row.
    pub healthy: Duration,
    /// COMMAND has our terminal: whoever interrupts it there means all of us.
    pub at_terminal: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RestartWhen {
    OnFailure,
    Always,
}

/// How long a standby waits for its leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Patience {
    Forever,
    /// One answer decides.
    Once,
    AtMost(Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnLoss {
    /// Become a standby again.
    Standby,
    Exit,
}
