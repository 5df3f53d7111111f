//! `leaderctl whose`: for which shard does a process of this host run?
//!
//! The helpers' command lines do not name the shard, so that `pkill -f` does not match them, and COMMAND's processes
//! can have any name. So this asks the candidates of this host which processes are theirs. All that they started is
//! below one of these, because the backstop and the guard adopt what loses its parent.

use super::prelude::*;
use crate::observe::query_socket::{self, Answer as Told, Survey};
use crate::sys;

#[derive(Debug, Args)]
pub struct WhoseFlags {
    /// A process of this host
    pid: u32,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl WhoseFlags {
    /// Asks no store.
    pub async fn answer(&self, patience: Duration) -> Result<ExitCode, Failure> {
        let Survey { answers, others, .. } = query_socket::ask_all(&[], patience).await;
        let told: Vec<Told> = answers.into_iter().chain(others).collect();
        let line = line_of(self.pid);
        let Some((told, leaderrun, role)) = line.iter().find_map(|&pid| owner_of(pid, self.pid, &told)) else {
            let why = format!("process {} belongs to no candidate of this host that answers", self.pid);
            return Err(Failure::of(exit::ctl::UNKNOWN_SHARD, why));
        };
        let statement = &told.statement;
        let term = statement.leadership.as_ref().map(|leads| leads.term.0);
        let line = if self.json {
            let answer = object! {
                pid: self.pid,
                role,
                leaderrun,
                shard: &statement.shard,
                store: &statement.store,
                owner: &statement.owner,
                term,
            };
            as_json(&answer)
        } else {
            let what = match role {
                "leaderrun" => told.process(),
                "tree" => format!("process {}, in the tree of {}", self.pid, told.process()),
                helper => format!("process {}, the {helper} of {}", self.pid, told.process()),
            };
            let does = term.map_or_else(|| "waits".to_owned(), |term| format!("leads with term {term}"));
            on_one_line(format!("{}: {what}, {}, {does} in {}", statement.shard, statement.owner, statement.store))
        };
        print_lines([line])
    }
}

/// A process and those above it, the nearest first.
fn line_of(pid: u32) -> Vec<u32> {
    let mut line = vec![pid];
    while let Some(parent) = line.last().and_then(|&pid| parent_of(pid)).filter(|parent| !line.contains(parent)) {
        line.push(parent);
    }
    line
}

/// The parent of a process; None if that is gone, or has none.
pub fn parent_of(pid: u32) -> Option<u32> {
    sys::stat_of(pid)?.get(1)?.parse().ok().filter(|&parent| parent > 0)
}

/// The candidate that has the process `pid`, the candidate's own process, and what `asked`, which is `pid` or below it,
/// is to it.
fn owner_of(pid: u32, asked: u32, told: &[Told]) -> Option<(&Told, u32, &'static str)> {
    told.iter().find_map(|told| {
        let leaderrun = told.pid()?;
        // A standby has none.
        let helpers = told.statement.leadership.as_ref().and_then(|leads| leads.helpers);
        let role = match helpers.map(|helpers| helpers.map(i32::cast_unsigned)) {
            _ if pid == leaderrun => "leaderrun",
            Some([backstop, _]) if pid == backstop => "backstop",
            Some([_, guard]) if pid == guard => "guard",
            _ => return None,
        };
        Some((told, leaderrun, if pid == asked { role } else { "tree" }))
    })
}
