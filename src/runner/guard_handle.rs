//! The candidate's side of a tree: it starts guard and backstop, talks to them, and kills the tree itself when the
//! guard does not, even if the backstop is gone.
//!
//! The hazard: the guard's last report and the kernel's news of the guard's end arrive on different paths, in any
//! order. The tree counts as dead on one of two grounds only. Either the backstop reported it: it has no descendant
//! left, and the guard was one. Or the candidate itself, a subreaper above both, has no descendant left.
//!
//! The candidate may be killed while it kills the tree, and what it has not killed yet must then still have a guard. So
//! it kills the tree beside its guard and backstop, and these last, if they have not ended by themselves: a frozen one
//! never does, and keeps its children from becoming ours.

use crate::election::{GUARD_PATIENCE, Stop, TreeEvent};
use crate::guard::cgroup::Leaf;
use crate::guard::orphan_release::OrphanRelease;
use crate::guard::policy::Order;
use crate::guard::tree::{REAPS_FOR, Tree};
use crate::guard::walk::is_child;
use crate::guard::wire::{Heard, Limit, Line, Report};
use crate::guard::{GUARD_NAME, GuardSpec};
use crate::lease::{Candidate, Deadline, Term};
use crate::runner::command::Command;
use crate::runner::or_never;
use crate::sys::{self, Owned, wait_any};
use crate::time::BootInstant;
use nix::sys::signal::{Signal, kill, raise};
use nix::sys::wait::WaitPidFlag;
use nix::unistd::Pid;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

/// How long backstop and guard may take to get ready: far longer than on a machine that is overloaded.
const START_PATIENCE: Duration = Duration::from_secs(15);

/// One end of a line, with readiness events.
type Ear = AsyncFd<Owned<Line>>;

const GUARD: usize = 0;
const BACKSTOP: usize = 1;

/// One tree, from the start of its guard to the proof of its end.
#[derive(Debug)]
pub struct GuardHandle {
    /// The lines to guard and backstop. None once they are gone.
    ears: [Option<Ear>; 2],
    limit: Limit,
    /// From the stop signal to SIGKILL when the lease is being lost.
    grace: Duration,
    /// Some until the backstop has been reaped.
    backstop_pid: Option<Pid>,
    /// Some once the backstop has named it, until we have reaped it.
    guard_pid: Option<Pid>,
    /// All processes below this one that did not exist before.
    tree: Tree,
    /// True if we are killing the tree ourselves.
    seized: bool,
    /// When to kill again what is left of the tree.
    look_at: Instant,
    /// When guard or backstop count as frozen. Some until the guard's kill timer is set, and once the guard is gone: a
    /// backstop that works then ends as well.
    guard_missed_at: Option<Instant>,
    /// True if the backstop reported that it has no descendant left.
    proven: bool,
    /// True if [`TreeEvent::Dead`] was reported.
    dead: bool,
    /// The worst lateness of the guard, and of the backstop.
    late: [Duration; 2],
    events: VecDeque<GuardEvent>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuardEvent {
    Tree(TreeEvent),
    /// Backstop and guard run, as these processes. None: the guard is gone, or we kill the tree ourselves.
    Guarded(Option<[i32; 2]>),
    Report(Report),
    /// The worst lateness of guard and backstop has changed to this.
    Late(Duration),
    /// We are killing the tree ourselves: reap, and see what is left.
    Seizing,
}

impl GuardHandle {
    /// Starts backstop, guard and COMMAND, or nothing if it fails. `lease_files` stays open in guard and backstop, and
    /// nowhere below them.
    pub fn start(
        command: &Command,
        candidate: &Candidate,
        term: Term,
        deadline: Deadline,
        lease_files: &[BorrowedFd<'_>],
    ) -> io::Result<Self> {
        nix::sys::prctl::set_child_subreaper(true)?;
        let tree = command.containment.new_tree()?;
        let leaf = tree.leaf();
        let spec = GuardSpec {
            plan: command.plan.clone(),
            means: command.containment.means,
            deadline,
            listens: sys::listens(),
            orphan_release: command.store_url.clone().map(|store_url| OrphanRelease {
                store_url,
                candidate: candidate.clone(),
                term,
            }),
            leaf: leaf.map(|leaf| leaf.name().to_string_lossy().into_owned()),
        };
        let begin = || -> io::Result<_> {
            let spec = spec.in_memory()?;
            let (guard, guards_end) = Line::pair()?;
            let (backstop, backstops_end) = Line::pair()?;
            let limit = Limit::new(deadline.backstop_at)?;
            let mut inherited = vec![spec.as_fd(), guards_end.as_fd(), backstops_end.as_fd(), limit.as_fd()];
            inherited.extend(leaf.map(Leaf::directory));
            inherited.extend(lease_files);
            let ears = [sys::watch(guard)?, sys::watch(backstop)?];
            let empty = command.no_input.then(|| File::open("/dev/null")).transpose()?;
            let input = empty.as_ref().map(AsFd::as_fd);
            let environment = command.environment.iter().cloned();
            let failed = |error| backstops_end.report_nothing_started(&error);
            let backstop_pid = sys::respawn(GUARD_NAME, environment, input, &inherited, failed)?;
            Ok((ears, limit, backstop_pid))
        };
        let (ears, limit, backstop_pid) = begin().inspect_err(|_| leaf.into_iter().for_each(Leaf::remove))?;
        Ok(Self {
            ears: ears.map(Some),
            limit,
            grace: command.plan.grace,
            backstop_pid: Some(backstop_pid),
            guard_pid: None,
            tree,
            seized: false,
            guard_missed_at: Some(Instant::now() + START_PATIENCE),
            look_at: Instant::now(),
            proven: false,
            dead: false,
            late: [Duration::ZERO; 2],
            events: VecDeque::new(),
        })
    }

    pub fn extend(&self, deadline: Deadline) {
        if let Err(error) = self.limit.set(deadline.backstop_at) {
            tracing::warn!(
                "cannot tell the backstop of the renewal: {error}; it kills the command when the lease would have ended \
                 without it: raise the limit on file sizes (prlimit --fsize)"
            );
        }
        self.order(Order::Extend(deadline));
    }

    pub fn stop(&self, stop: Stop) {
        self.order(Order::of(stop, self.grace));
    }

    /// Kills the tree ourselves, and then what is left of guard and backstop, from now on until nothing is left.
    pub fn seize(&mut self) {
        if !self.seized {
            self.seized = true;
            // A guard that works kills with us, and goes on if we are killed.
            self.order(Order::Kill);
            self.events.push_back(GuardEvent::Guarded(None));
        }
    }

    /// Kills what can be found now. Returns when to look again.
    fn kill(&mut self) -> BootInstant {
        // Once the backstop has reaped the guard, another process may get its number.
        self.listen();
        let helpers = [self.backstop_pid, self.guard_pid].map(|helper| helper.unwrap_or(Pid::this()));
        let (next, helpers_are_left) = self.tree.kill_around(&helpers);
        if helpers_are_left {
            if let Some(backstop) = self.backstop_pid {
                let _ = kill(backstop, Signal::SIGKILL);
            }
            // The walk does not find it where /proc does not show it. The backstop may have reaped it.
            if let Some(guard) = self.guard_pid.filter(|&guard| is_child(guard)) {
                let _ = kill(guard, Signal::SIGKILL);
            }
        }
        next
    }

    /// Waits for the next event. Cancelling it loses none.
    pub async fn next(&mut self) -> GuardEvent {
        loop {
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            if self.seized && !self.dead {
                // Each process that ends cancels this wait. That must not postpone the next kill, so the instant is
                // kept.
                tokio::time::sleep_until(self.look_at).await;
                let next = self.kill();
                self.look_at = Instant::now() + next.since(BootInstant::now());
                return GuardEvent::Seizing;
            }
            let [guard, backstop] = &self.ears;
            let missed_at = self.guard_missed_at.filter(|_| !self.dead);
            tokio::select! {
                () = tokio::time::sleep_until(missed_at.unwrap_or(self.look_at)), if missed_at.is_some() => {
                    // Its report may have come while this process was frozen.
                    self.listen();
                    if self.guard_missed_at.is_some_and(|missed_at| missed_at <= Instant::now()) {
                        // The backstop is frozen: it would have killed what the guard has left.
                        self.seize();
                        self.tell(TreeEvent::GuardFailed);
                    }
                }
                Ok(mut ready) = or_never(guard.as_ref().map(Ear::readable)) => ready.clear_ready(),
                Ok(mut ready) = or_never(backstop.as_ref().map(Ear::readable)) => ready.clear_ready(),
                else => std::future::pending().await,
            }
            self.listen();
        }
    }

    fn reaped(&mut self, pid: Pid) {
        self.tree.forget(pid);
        self.backstop_pid.take_if(|backstop| *backstop == pid);
        self.guard_pid.take_if(|guard| *guard == pid);
    }

    /// Decides whether the tree is dead, as far as we can know now.
    fn judge(&mut self) {
        if self.backstop_pid.is_some() || self.dead {
            return;
        }
        // The last reports may still be unread.
        self.listen();
        if !self.proven && !self.seized {
            self.seize();
            self.tell(TreeEvent::GuardFailed);
        }
        if self.proven || self.tree.look() {
            self.dead = true;
            // The backstop has removed it already, unless it was killed.
            if let Some(leaf) = self.tree.leaf() {
                leaf.remove();
            }
            self.tell(TreeEvent::Dead);
        }
    }

    fn listen(&mut self) {
        for who in [GUARD, BACKSTOP] {
            while let Some(ear) = &self.ears[who] {
                match ear.get_ref().0.hear() {
                    Heard::Message(Report::Late(worst), _) => self.hear_late(who, worst),
                    Heard::Message(report, _) => self.hear(report),
                    Heard::Silence => break,
                    Heard::Closed => {
                        self.ears[who] = None;
                        if who == GUARD {
                            self.guard_pid = None;
                            self.events.push_back(GuardEvent::Guarded(None));
                            self.guard_missed_at = Some(Instant::now() + GUARD_PATIENCE);
                        }
                    }
                }
            }
        }
    }

    /// Reports the larger one to both, so that they agree, and the backstop does not kill before the guard has.
    fn hear_late(&mut self, who: usize, late: Duration) {
        let before = self.worst_late();
        self.late[who] = late;
        let worst = self.worst_late();
        if worst != before {
            for ear in self.ears.iter().flatten() {
                ear.get_ref().0.order(Order::Late(worst));
            }
            self.events.push_back(GuardEvent::Late(worst));
        }
    }

    fn worst_late(&self) -> Duration {
        self.late[0].max(self.late[1])
    }

    fn hear(&mut self, report: Report) {
        match report {
            Report::Started { .. }
            | Report::Paused { .. }
            | Report::HungUp
            | Report::HookFailed(..)
            | Report::CheckFailed(_) => self.events.push_back(GuardEvent::Report(report)),
            // It was heard first that the guard is gone.
            Report::Guarded { .. } if self.ears[GUARD].is_none() => {}
            Report::Guarded { pid } => {
                self.guard_pid = Some(Pid::from_raw(pid));
                if let Some(backstop) = self.backstop_pid {
                    self.events.push_back(GuardEvent::Guarded(Some([backstop.as_raw(), pid])));
                }
            }
            Report::Armed => self.guard_missed_at = self.guard_missed_at.filter(|_| self.ears[GUARD].is_none()),
            Report::Killed { woken, signalled, empty } => tracing::debug!(
                "killed the tree: the guard was awake {woken:.1?} after the kill was due, every process had SIGKILL after \
                 {signalled:.1?}, and none was left after {empty:.1?}"
            ),
            Report::Tree(TreeEvent::Dead) => {
                // The backstop may wait for this, as a sign that we are not frozen.
                self.ears[BACKSTOP].iter().for_each(|ear| ear.get_ref().0.hang_up());
                // Reported once the backstop itself has been reaped: until then it is one of our processes. While we
                // kill the tree ourselves, we also check ourselves that it is dead.
                self.proven |= !self.seized;
            }
            Report::Tree(event) => self.tell(event),
            // `listen` takes the first, because it knows who sent it. The second goes to the guard alone.
            Report::Late(_) | Report::Key { .. } => {}
        }
    }

    fn tell(&mut self, event: TreeEvent) {
        self.events.push_back(GuardEvent::Tree(event));
    }

    pub fn order(&self, order: Order) {
        self.ears[GUARD].iter().for_each(|ear| ear.get_ref().0.order(order));
    }
}

/// Reaps the processes that ended. Called on SIGCHLD, and on [`GuardEvent::Seizing`]. The kernel reports each child
/// once only, so `handles` must contain all our trees. Without any, the process was an orphan that became ours because
/// we are PID 1 or a subreaper.
pub fn reap<'a>(handles: impl IntoIterator<Item = &'a mut GuardHandle>) {
    let mut handles: Vec<&mut GuardHandle> = handles.into_iter().collect();
    let until = BootInstant::now().plus(REAPS_FOR);
    while let Ok(Some((pid, _))) = wait_any(WaitPidFlag::WEXITED) {
        for guard in &mut handles {
            guard.reaped(pid);
        }
        if BootInstant::now() >= until {
            // There may be more: we are called again once everything else that is due was done.
            let _ = raise(Signal::SIGCHLD);
            break;
        }
    }
    for guard in handles {
        guard.judge();
    }
}
