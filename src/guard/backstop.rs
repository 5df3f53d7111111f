//! The backstop: the guard's parent, which kills the tree if the guard does not.
//!
//! The hazard: the guard may be killed or frozen while the tree lives on. So the backstop does nothing but wait, with a
//! limit of its own. If the candidate is gone as well, it gives the lease back once the tree is dead.
//!
//! A frozen candidate cannot give back a lock that one of its own connections holds. So when the tree is dead, the
//! backstop waits until the candidate hangs up, which says that it knows. At the limit it shuts that connection down.

use super::cgroup::Leaf;
use super::contain::Means;
use super::lateness::Caution;
use super::policy::Order;
use super::priority::Priority;
use super::sampler::Sampler;
use super::tree::Tree;
use super::walk::Walk;
use super::watch::Watch;
use super::wire::{Heard, Limit, Line, Report};
use super::{GuardSpec, guard, priority};
use crate::election::TreeEvent;
use crate::store::anchor;
use crate::sys::{self, ChildState, SingleThread};
use crate::time::BootInstant;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::SockType;
use nix::sys::wait::WaitPidFlag;
use nix::unistd::Pid;
use std::collections::HashSet;
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// How long after the time for a stop the backstop waits for a guard whose candidate is gone, and for a candidate once the
/// tree is dead.
const PATIENCE: Duration = Duration::from_secs(1);

/// Takes over a descriptor by its number.
fn adopt(number: Option<OsString>) -> io::Result<OwnedFd> {
    let number = number.and_then(|number| number.to_str()?.parse().ok());
    sys::adopt(number.ok_or_else(|| io::Error::other("a descriptor is missing"))?)
}

/// Runs the backstop, and forks the guard. `arguments` are the numbers of what the candidate hands down.
pub fn run(mut arguments: impl Iterator<Item = OsString>) -> io::Result<()> {
    let mut mask = SigSet::empty();
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&SigSet::all()), Some(&mut mask))?;
    // If SIGCHLD were ignored, the kernel would reap children before this process could.
    sys::default_action(Signal::SIGCHLD);
    let mut inherit = || -> io::Result<_> {
        let spec = GuardSpec::read(adopt(arguments.next())?.into())?;
        let [guards_line, line] = [Line(adopt(arguments.next())?), Line(adopt(arguments.next())?)];
        let latest = Limit(adopt(arguments.next())?.into());
        let leaf = match spec.leaf.clone() {
            Some(name) => Some((CString::new(name)?, File::from(adopt(arguments.next())?))),
            None => None,
        };
        // They must stay open while the tree lives.
        let lease_files = arguments.by_ref().map(|number| adopt(Some(number))).collect::<io::Result<Vec<_>>>()?;
        Ok((spec, guards_line, line, latest, leaf, lease_files))
    };
    let (spec, guards_line, line, latest, leaf, lease_files) =
        inherit().map_err(|error| io::Error::other(format!("{error}: only leaderrun starts this program")))?;
    let means = spec.means;
    let prepare = || -> io::Result<_> {
        nix::sys::prctl::set_child_subreaper(true)?;
        nix::unistd::setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
        let trees = [own_tree(means, leaf.as_ref())?, own_tree(means, leaf.as_ref())?];
        let single_thread = SingleThread::prove()?;
        Ok((trees, single_thread, single_thread.fork()?))
    };
    let ([tree, guards_tree], single_thread, forked) = match prepare() {
        Ok(prepared) => prepared,
        Err(error) => {
            line.report_nothing_started(&error);
            return Ok(());
        }
    };
    drop(leaf);
    let Some(guard_pid) = forked else {
        drop((line, latest, tree));
        // `lease_files` stay open until this process ends.
        let ended = guard(spec, guards_line, guards_tree, prepare_to_kill(means), mask, single_thread);
        sys::exit_at_once(u8::from(ended.is_err()));
    };
    // Until its line is closed here too, the candidate would not see the guard's end.
    drop((guards_line, guards_tree));
    line.report(&Report::Guarded { pid: guard_pid.as_raw() });
    let _ = nix::sys::prctl::set_name(c"lr-backstop");
    prepare_to_kill(means);
    let backstop = Backstop {
        guard: Some(guard_pid),
        tree,
        line: Some(line),
        candidate_lives: true,
        limit: spec.deadline.backstop_at,
        latest,
        caution: spec.plan.measure.map(Caution::from).unwrap_or_default(),
        sampler: spec.plan.measure.map(Sampler::new).transpose()?,
        without_candidate: BootInstant::NEVER,
        stop_time: spec.plan.grace.saturating_add(spec.plan.hooks.times().around_a_stop()),
    };
    let candidate_lives = backstop.run(lease_files)?;
    if let Some(orphan_release) = spec.orphan_release.filter(|_| !candidate_lives) {
        priority::lower(means.scheduling);
        // With all signals blocked: one that was sent to us (`killall leaderrun`) would end the release.
        orphan_release.make();
    }
    Ok(())
}

/// Opens the tree for one process alone: guard and backstop read the same files at the same time.
fn own_tree(means: Means, leaf: Option<&(CString, File)>) -> io::Result<Tree> {
    let leaf = leaf.map(|(name, directory)| Leaf::of(name.clone(), directory.try_clone()?)).transpose()?;
    Ok(Tree::new(HashSet::new(), means.walks.then(Walk::open).transpose()?, leaf))
}

fn prepare_to_kill(means: Means) -> Priority {
    if !means.raises {
        return Priority::Kept;
    }
    priority::stay_in_memory();
    priority::raise(means.scheduling)
}

struct Backstop {
    /// Some while the guard has not been reaped.
    guard: Option<Pid>,
    tree: Tree,
    /// None once the candidate has hung up, or is gone.
    line: Option<Line>,
    candidate_lives: bool,
    /// When the lease says that the guard is late: as read last from `latest`.
    limit: BootInstant,
    latest: Limit,
    caution: Caution,
    /// Some if the lease expires.
    sampler: Option<Sampler>,
    /// When a guard whose candidate is gone is late.
    without_candidate: BootInstant,
    /// The grace and the timeouts of the hooks around it.
    stop_time: Duration,
}

impl Backstop {
    /// Waits until the tree is dead. True if the candidate is still there.
    fn run(mut self, lease_files: Vec<OwnedFd>) -> io::Result<bool> {
        let mut watch = Watch::new()?;
        let mut failed = false;
        loop {
            failed |= self.reap();
            self.hear();
            self.measure_lateness();
            self.limit = self.latest.get().unwrap_or(self.limit);
            let late_at = self.limit.minus(self.caution.extra()).min(self.without_candidate);
            let wake_at = match self.guard {
                Some(guard) if BootInstant::now() >= late_at => {
                    let (next, guard_is_left) = self.tree.kill_around(&[guard]);
                    if guard_is_left {
                        // SIGKILL ends a stopped process as well.
                        let _ = kill(guard, Signal::SIGKILL);
                    }
                    next
                }
                Some(_) => self.sampler.as_ref().map_or(BootInstant::NEVER, Sampler::due).min(late_at),
                None => {
                    if std::mem::take(&mut failed) {
                        self.report(&Report::Tree(TreeEvent::GuardFailed));
                    }
                    if self.tree.is_empty() {
                        if let Some(leaf) = self.tree.leaf() {
                            leaf.remove();
                        }
                        let is_socket = |file: &OwnedFd| getsockopt(file, SockType).is_ok();
                        let (anchors, lease_files): (Vec<_>, Vec<_>) = lease_files.into_iter().partition(is_socket);
                        // Close the files that hold the lease before reporting that the tree is dead.
                        drop(lease_files);
                        self.report(&Report::Tree(TreeEvent::Dead));
                        self.outlast(&anchors, &mut watch);
                        return Ok(self.candidate_lives);
                    }
                    self.tree.kill()
                }
            };
            watch.wait(self.line.as_ref(), [None, None], None, self.tree.wake_at(wake_at));
        }
    }

    /// Waits until the candidate hangs up: it has heard that the tree is dead, or is gone. One that is being killed takes
    /// a moment to close its line. One that has not hung up by the limit is frozen, and its locks serve nobody. Without
    /// an anchor, nothing waits for it for long.
    fn outlast(&mut self, anchors: &[OwnedFd], watch: &mut Watch) {
        let at_most = if anchors.is_empty() { BootInstant::now().plus(PATIENCE) } else { BootInstant::NEVER };
        loop {
            self.hear();
            if self.line.is_none() {
                return;
            }
            self.limit = self.latest.get().unwrap_or(self.limit);
            let until = self.limit.min(at_most);
            if BootInstant::now() >= until {
                for anchor in anchors {
                    anchor::cut(anchor.as_fd());
                }
                return;
            }
            watch.wait(self.line.as_ref(), [None, None], None, until);
        }
    }

    /// Reaps children. True when the guard ended, but not by its own decision.
    fn reap(&mut self) -> bool {
        let mut failed = false;
        while let Some((pid, state)) = self.tree.reap(WaitPidFlag::WEXITED) {
            if Some(pid) == self.guard {
                self.guard = None;
                failed = state != ChildState::Exited(0);
            }
        }
        failed
    }

    fn hear(&mut self) {
        while let Some(line) = &self.line {
            match line.hear() {
                Heard::Message(order, sent_at) => {
                    if let Some(sampler) = &mut self.sampler {
                        sampler.heard(sent_at);
                    }
                    // The others are for the guard.
                    if let Order::Late(worst) = order {
                        self.caution.told(worst);
                    }
                }
                Heard::Silence => return,
                Heard::Closed => {
                    self.candidate_lives = !line.is_abandoned();
                    self.line = None;
                    self.without_candidate = BootInstant::now().plus(self.stop_time).plus(PATIENCE);
                }
            }
        }
    }

    fn measure_lateness(&mut self) {
        if let Some(worst) = self.sampler.as_mut().and_then(Sampler::sample) {
            self.caution.measured(worst);
            self.report(&Report::Late(worst));
        }
    }

    fn report(&self, report: &Report) {
        if let Some(line) = &self.line {
            line.report(report);
        }
    }
}
