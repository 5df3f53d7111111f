//! What a guard runs: COMMAND or a standby task, and its environment.

use crate::guard::Plan;
use crate::guard::contain::Containment;
use crate::lease::Candidate;
use crate::observe::systemd;
use crate::store::url::Secret;
use std::ffi::OsString;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub struct Command {
    pub plan: Plan,
    pub environment: Vec<(OsString, OsString)>,
    /// The variables that tell COMMAND about its run, if its runs are counted.
    pub job: Vec<(&'static str, String)>,
    /// True if standard input is empty. Otherwise the command has ours.
    pub no_input: bool,
    pub containment: Arc<Containment>,
    /// The store in which the backstop gives the lease back if we are killed; None where the kernel does that.
    pub store_url: Option<Secret>,
}

/// Our environment for a child. It leaves out our own settings (a store URL may hold a password) and the service
/// manager's variables for us alone, and adds our shard and owner.
pub(super) fn inherited(candidate: &Candidate, notifies: bool) -> Vec<(OsString, OsString)> {
    let ours = |name: &OsString| {
        name.as_encoded_bytes().starts_with(b"LEADERRUN_")
            || systemd::WATCHDOG.iter().any(|&ours| name == ours)
            || (name == systemd::SOCKET && !notifies)
    };
    let mut environment: Vec<_> = std::env::vars_os().filter(|(name, _)| !ours(name)).collect();
    environment.push(("LEADERRUN_SHARD".into(), candidate.shard.as_str().into()));
    environment.push(("LEADERRUN_CANDIDATE".into(), candidate.owner.clone().into()));
    environment
}
