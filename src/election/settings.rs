//! The settings of an election.

use crate::lease::Timing;
use crate::store::Delivery;
use std::time::Duration;

/// The settings of an election. They do not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "each may be so or not, whatever the others are")]
pub struct Settings {
    pub timing: Timing,
    /// False if the lease lasts for as long as it is held open ([`Store::expires`](crate::store::Store::expires)).
    pub expires: bool,
    pub delivery: Delivery,
    /// A lock of other programs is held beside the lease. It is given back even after a definite loss.
    pub shares_lock: bool,
    pub patience: Patience,
    pub on_loss: OnLoss,
    /// The longest time that COMMAND may take for an orderly stop; None is no limit.
    pub stop_timeout: Option<Duration>,
    /// The longest time that COMMAND may run; None is no limit.
    pub max_run: Option<Duration>,
    /// COMMAND is a job: its run is booked before it starts, and one process runs it at most once.
    pub job_gate: bool,
    /// None: the leadership ends when COMMAND ends.
    pub restart: Option<Restart>,
    /// A leader hands over after this time, if another candidate waits.
    pub relinquish_after: Option<Duration>,
    /// There are standby tasks, which must be dead before COMMAND starts.
    pub standby_tasks: bool,
}

impl Settings {
    /// A candidate that waits for ever, and starts COMMAND once in each leadership, for as long as it runs.
    pub fn new(timing: Timing, expires: bool, delivery: Delivery) -> Self {
        Self {
            timing,
            expires,
            delivery,
            shares_lock: false,
            patience: Patience::Forever,
            on_loss: OnLoss::Standby,
            stop_timeout: None,
            max_run: None,
            job_gate: false,
            restart: None,
            relinquish_after: None,
            standby_tasks: false,
        }
    }
}

/// When a COMMAND that ended by itself is started again under the same lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Restart {
    pub when: RestartWhen,
    /// The most restarts in a row; then the lease is given up.
    pub limit: u32,
    /// The pause before the first restart. The pauses double.
    pub delay: Duration,
    /// A run of at least this long resets the number of restarts.
    pub healthy: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RestartWhen {
    OnFailure,
    Always,
}

/// How long a standby waits to lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Patience {
    Forever,
    /// It does not wait: one answer decides.
    Once,
    AtMost(Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum OnLoss {
    /// Wait to lead again
    Standby,
    /// Exit with status 79
    Exit,
}
