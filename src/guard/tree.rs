//! The tree: every descendant of this process, and every member of its cgroup.
//!
//! The hazards:
//!
//! - *A process may end between reading its number in `/proc` and signalling it*, and a stranger may get the number. So
//!   each process is pinned first, and its start time then shows that it is the one that was seen.
//! - *A process lives as long as any of its threads.* If its main thread has ended, it looks like a zombie. So zombies
//!   get the signals as well.
//! - *A tree can make orphans as fast as they are reaped*, and thousands of processes die slowly. So nobody reaps for
//!   long without looking at the clock, and between two looks at a dying tree there is a rest, even if ends are
//!   reported.
//! - *A tree that is killed process by process can fork as fast as it dies.* If it has a cgroup or a PID namespace of
//!   its own, the kernel first kills all of it in one step. Then the rest is killed one by one: zombies whose threads
//!   live on, which `cgroup.kill` skips, and processes that have left the cgroup.
//! - *No single check proves that the tree is dead.* "No child left" misses a process that entered another PID
//!   namespace and was adopted by its init. An empty cgroup misses a process that left it. So both must hold.
//! - *A process may not die*: the kernel waits for a device or a server, or the process may not be signalled. So what
//!   was killed again and again is looked at less and less often, unless a look finds something new.
//! - *Memory may be short when the kill is due.* So a kill allocates nothing ([`walk`](super::walk)).

use super::cgroup::Leaf;
use super::priority;
use super::walk::{Found, Process, Walk, is_live_child, is_stopped};
use crate::sys::{Birth, ChildState, wait_any};
use crate::time::BootInstant;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::WaitPidFlag;
use nix::unistd::{Pid, getpgid};
use std::collections::HashSet;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// How long ended children are reaped before the clock and the orders are looked at again. The kernel finds an ended
/// child by looking past those that live, which takes long if they are thousands.
pub const REAPS_FOR: Duration = Duration::from_millis(10);
/// If reaping took longer than this, there is a rest of the same length. Meanwhile processes can end: the kernel lets
/// none end while it looks for one that has.
const REAPS_WITHOUT_REST: Duration = Duration::from_micros(200);
/// How long the kernel has to kill a cgroup or a namespace before the processes are killed one by one.
const ONE_STEP: Duration = Duration::from_millis(20);
/// How long walks down the tree have to find all of it before all processes of the machine are looked at.
const WALKS_DOWN: Duration = Duration::from_secs(1);
/// How many walks down the tree look for processes to ask, unless one finds no more. They miss what is forked
/// meanwhile.
const WALKS_TO_ASK: usize = 4;
/// The longest rest while everything that was found is dying, unless looks take long.
const LONGEST_REST: Duration = Duration::from_millis(64);
/// The longest rest after a look that took long, as a multiple of it.
const LOOKS_TO_REST: u32 = 2;
/// The same, when a tree was killed so long ago that something keeps it from dying.
const LOOKS_TO_REST_LATER: u32 = 16;
const HANGS_AFTER: Duration = Duration::from_secs(10);
/// How long a guard and a backstop that work need at most to see that a killed tree has ended. A frozen one delays the
/// proof by this.
const HELPERS_PATIENCE: Duration = Duration::from_millis(20);

/// The descendants of this process, except children that it had before, and the members of the leaf.
#[derive(Debug, Default)]
pub struct Tree {
    earlier_children: HashSet<Pid>,
    /// None if `/proc` does not show the tree, for example because it belongs to another PID namespace.
    walk: Option<Walk>,
    /// The cgroup that COMMAND started in, if it has one.
    leaf: Option<Leaf>,
    /// The init of the tree's PID namespace, if it has one. Some until it is reaped; its end ends everything in the
    /// namespace.
    init: Option<Pid>,
    childless: bool,
    /// Some while children are reaped: since when.
    reaping_since: Option<BootInstant>,
    /// Some during the rest after reaping that took long: until when. Ended children may be left.
    reap_at: Option<BootInstant>,
    /// When the first kill was. None before it.
    killed_at: Option<BootInstant>,
    /// When to look again. None before the first kill.
    look_at: Option<BootInstant>,
    /// The rest after the last kill that found nothing new.
    rest: Duration,
    /// Some while kills find nothing alive but the helpers: since when.
    helpers_alone: Option<BootInstant>,
    /// Some once a helper that was stopped was killed: when.
    felled_at: Option<BootInstant>,
}

/// What a kill found.
struct Sight {
    /// False if all of it was found by an earlier kill.
    may_be_more: bool,
    /// True if nothing lives but what was spared.
    alone: bool,
}

impl Tree {
    /// A tree of this process, which has no children yet but `earlier_children`: those from before an exec, or that
    /// PID 1 adopts. They are not ours to kill.
    pub fn new(earlier_children: HashSet<Pid>, walk: Option<Walk>, leaf: Option<Leaf>) -> Self {
        let childless = earlier_children.is_empty();
        Self { earlier_children, walk, leaf, childless, ..Self::default() }
    }

    pub fn leaf(&self) -> Option<&Leaf> {
        self.leaf.as_ref()
    }

    /// A file that polls as POLLPRI when the cgroup becomes empty. None while a child is left: [`Tree::is_empty`] does
    /// not read the file then, and it stays ready until it is read.
    pub fn events(&self) -> Option<BorrowedFd<'_>> {
        self.leaf.as_ref().filter(|_| self.childless).map(Leaf::events)
    }

    /// Reaps one child, or reports its change of state. None when there is no more news, or when it is time to do
    /// something else. After None, [`Tree::is_empty`] is up to date.
    pub fn reap(&mut self, flags: WaitPidFlag) -> Option<(Pid, ChildState)> {
        let now = BootInstant::now();
        if self.reap_at.is_some_and(|reap_at| now < reap_at) {
            return None;
        }
        self.reap_at = None;
        let since = *self.reaping_since.get_or_insert(now);
        if now >= since.plus(REAPS_FOR) {
            self.rest_from_reaping(since);
            return None;
        }
        match wait_any(flags) {
            Ok(Some((pid, state))) => {
                if state.is_end() {
                    self.forget(pid);
                }
                self.childless = false;
                Some((pid, state))
            }
            Ok(None) => {
                self.rest_from_reaping(since);
                self.childless = self.only_earlier_children_are_left();
                None
            }
            Err(Errno::ECHILD) => {
                self.reaping_since = None;
                self.childless = true;
                None
            }
            Err(error) => panic!("waitid: {error}"),
        }
    }

    fn rest_from_reaping(&mut self, since: BootInstant) {
        self.reaping_since = None;
        let now = BootInstant::now();
        let took = now.since(since);
        // If it took longer than it may, this process was interrupted.
        self.reap_at = (took > REAPS_WITHOUT_REST).then(|| now.plus(took.min(REAPS_FOR)));
    }

    /// When to do what is due at `instant`, or to reap again.
    pub fn wake_at(&self, instant: BootInstant) -> BootInstant {
        self.reap_at.unwrap_or(instant).min(instant)
    }

    /// As `birth`, in the cgroup of this tree if it has one, and before `not_after`.
    pub fn birth<'a>(&'a self, birth: Birth<'a>, not_after: BootInstant) -> Birth<'a> {
        let not_after = not_after.since_boot().unwrap_or(Duration::MAX);
        Birth { cgroup: self.leaf.as_ref().map(Leaf::directory), not_after, ..birth }
    }

    /// Takes note that a child was started, which may be the init of a PID namespace.
    pub fn grew(&mut self, init: Option<Pid>) {
        self.childless = false;
        self.killed_at = None;
        self.look_at = None;
        self.init = self.init.or(init);
    }

    /// Takes note that a child was reaped: another process may get its number.
    pub fn forget(&mut self, pid: Pid) {
        self.earlier_children.remove(&pid);
        self.init.take_if(|init| *init == pid);
    }

    /// True when no process of the tree is left. For a caller that reaps elsewhere: an ended child that was not reaped
    /// counts as left.
    pub fn look(&mut self) -> bool {
        self.childless = match wait_any(WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) {
            Err(Errno::ECHILD) => true,
            Ok(_) => self.only_earlier_children_are_left(),
            Err(error) => panic!("waitid: {error}"),
        };
        self.is_empty()
    }

    /// True when no process of the tree is left: the kernel says that there is no child, which every orphan would be,
    /// and that the cgroup is empty, if there is one.
    pub fn is_empty(&self) -> bool {
        self.childless && self.leaf.as_ref().is_none_or(Leaf::is_empty)
    }

    /// True when only earlier children are left. They exist until they are reaped, so a look at `/proc` that misses one
    /// of them proves nothing.
    fn only_earlier_children_are_left(&mut self) -> bool {
        !self.earlier_children.is_empty()
            && self.walk.as_mut().is_some_and(|walk| walk.children() == self.earlier_children)
    }

    /// Sends SIGKILL to every process of the tree that can be found now, unless it rests after the last look. Returns
    /// when to look again, for processes that were forked meanwhile.
    pub fn kill(&mut self) -> BootInstant {
        match self.look_at {
            Some(look_at) if BootInstant::now() < look_at => look_at,
            Some(_) | None => self.kill_except(&[]).0,
        }
    }

    /// As [`Tree::kill`], for a tree with `helpers` in it: a guard, and perhaps a backstop.
    ///
    /// They are spared until nothing else has lived for a while. If a helper that works were killed earlier, and then
    /// the caller, nobody would kill the rest. It ends by itself when the tree is dead. A frozen one never ends, and
    /// keeps its children from becoming ours. So also returns whether the helpers that are left must be killed now.
    ///
    /// One that is seen to be stopped is killed at once: it reaps nothing, and what the tree leaves then would hide
    /// what lives. While its children become ours, they are in nobody's list, so a look waits for its end.
    pub fn kill_around(&mut self, helpers: &[Pid]) -> (BootInstant, bool) {
        let begun = BootInstant::now();
        if let Some(look_at) = self.look_at.filter(|&look_at| begun < look_at) {
            return (look_at, false);
        }
        for &helper in helpers.iter().filter(|&&helper| is_stopped(helper)) {
            let _ = kill(helper, Signal::SIGKILL);
            self.felled_at = Some(begun);
        }
        if self.felled_at.is_some_and(|felled_at| begun < felled_at.plus(HELPERS_PATIENCE))
            && helpers.iter().any(|&helper| is_live_child(helper))
        {
            let look_at = begun.plus(priority::SHORTEST_REST);
            self.look_at = Some(look_at);
            return (look_at, false);
        }
        let (next, Sight { may_be_more, alone }) = self.kill_except(helpers);
        let over = self.helpers_alone.get_or_insert(begun).plus(HELPERS_PATIENCE);
        if alone && begun >= over {
            return (self.kill_except(&[]).0, true);
        }
        let look_at = if alone {
            next.min(over)
        } else if may_be_more {
            self.helpers_alone = None;
            next
        } else {
            self.helpers_alone = None;
            // The helpers may kill as well. Together they must leave the processors to the processes that die.
            next.plus(2 * priority::rest_after(begun))
        };
        self.look_at = Some(look_at);
        (look_at, false)
    }

    /// Returns when to look again, and what it found.
    fn kill_except(&mut self, spared: &[Pid]) -> (BootInstant, Sight) {
        let begun = BootInstant::now();
        let sight = self.kill_what_is_found(begun, spared);
        let rest = priority::rest_after(begun);
        // Guards that look again and again would keep their trees from dying, and at a real-time priority all others
        // from working while the kernel does not let a process die.
        let hangs = self.killed_at.is_some_and(|killed_at| begun >= killed_at.plus(HANGS_AFTER));
        let looks = if hangs { LOOKS_TO_REST_LATER } else { LOOKS_TO_REST };
        let longest = LONGEST_REST.max(rest * looks);
        self.rest = if sight.may_be_more { Duration::ZERO } else { (self.rest * 2).clamp(rest, longest) };
        let look_at = BootInstant::now().plus(rest.max(self.rest));
        self.look_at = Some(look_at);
        (look_at, sight)
    }

    fn kill_what_is_found(&mut self, now: BootInstant, spared: &[Pid]) -> Sight {
        let mut alone = true;
        let first = *self.killed_at.get_or_insert(now);
        if let Some(init) = self.init {
            let _ = kill(init, Signal::SIGKILL);
        }
        if let Some(leaf) = &self.leaf {
            leaf.kill();
            alone &= leaf.is_empty();
        }
        let in_one_step = self.init.is_some() || self.leaf.is_some();
        if in_one_step && self.walk.is_some() && now < first.plus(ONE_STEP) {
            return Sight { may_be_more: true, alone: false };
        }
        if let Some(leaf) = &self.leaf {
            leaf.signal_each(Signal::SIGKILL, |_| true);
        }
        let Some(walk) = &mut self.walk else { return Sight { may_be_more: true, alone } };
        let mut signal = |process: &mut Process<'_>| {
            if !spared.contains(&process.pid) {
                process.kill();
                alone &= process.ended;
            }
        };
        let mut found = walk.down(Pid::this(), &self.earlier_children, BootInstant::NEVER, &mut signal);
        if found == Found::Part || now >= first.plus(WALKS_DOWN) {
            found = walk.below(Pid::this(), &self.earlier_children, BootInstant::NEVER, signal);
            // Something is left, and it was not seen.
            if alone {
                found = Found::Part;
            }
        }
        Sight { may_be_more: found != Found::Nothing, alone }
    }

    /// Sends `signals` once to each process of the tree, except those in the process group `except` and those in a PID
    /// namespace, where the init passes them on. Looks for them until `until` at most, and not at all after it.
    pub fn ask(&mut self, signals: [Signal; 2], except: Option<Pid>, until: BootInstant) {
        if BootInstant::now() >= until {
            return;
        }
        let passed_over: HashSet<Pid> = self.earlier_children.iter().copied().chain(self.init).collect();
        let is_of_group = |pid| except.is_some() && getpgid(Some(pid)).ok() == except;
        let mut asked = HashSet::new();
        if let Some(walk) = &mut self.walk {
            let mut ask = |process: &mut Process<'_>| {
                if asked.insert(process.pid) && !is_of_group(process.pid) {
                    for signal in signals {
                        process.signal(signal);
                    }
                }
            };
            let found = (0..WALKS_TO_ASK).map(|_| walk.down(Pid::this(), &passed_over, until, &mut ask));
            let misses_some = |found| matches!(found, Found::Many | Found::Part);
            if found.take_while(|found| *found != Found::Nothing).any(misses_some) {
                walk.below(Pid::this(), &passed_over, until, ask);
            }
        }
        if let Some(leaf) = self.leaf.as_ref().filter(|_| self.init.is_none()) {
            let is_meant = |pid| BootInstant::now() < until && !asked.contains(&pid) && !is_of_group(pid);
            for signal in signals {
                leaf.signal_each(signal, is_meant);
            }
        }
    }

    /// Sends SIGKILL to the process group of `leader`, a child that has not been reaped, and to every visible process
    /// below it.
    ///
    /// What it has started becomes our child when it ends, and is no longer found below it. So it is stopped first.
    pub fn kill_group(&mut self, leader: Pid) {
        let _ = killpg(leader, Signal::SIGSTOP);
        if let Some(walk) = &mut self.walk {
            walk.below(leader, &self.earlier_children, BootInstant::NEVER, |process| process.kill());
        }
        let _ = killpg(leader, Signal::SIGKILL);
    }

    /// Finds a child of `parent`, a child that has not been reaped.
    pub fn child_of(&mut self, parent: Pid) -> Option<Pid> {
        let mut found = None;
        let mut look = |process: &mut Process<'_>| {
            found = found.or(Some(process.pid).filter(|_| process.parent == parent));
        };
        let walk = self.walk.as_mut()?;
        if walk.down(parent, &HashSet::new(), BootInstant::NEVER, &mut look) == Found::Part {
            walk.below(parent, &HashSet::new(), BootInstant::NEVER, look);
        }
        found
    }
}

/// The children of this process, including ended ones. None of them belongs to a tree that is started later.
///
/// If `/proc` does not show them, none is known. While this process has a child then, it cannot show by itself that a
/// tree is dead, and relies on the backstop alone.
pub fn earlier_children(walk: Option<&mut Walk>) -> HashSet<Pid> {
    // Nearly always there is no child, and asking the kernel is cheaper than reading all of /proc.
    if wait_any(WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) == Err(Errno::ECHILD) {
        return HashSet::new();
    }
    walk.map(Walk::children).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::cgroup::Leaf;
    use std::fs::{self, File};
    use std::process::Command;
    use std::time::Instant;

    #[test]
    fn members_of_a_cgroup_are_asked_until_the_kill_is_due_and_no_longer() {
        const MANY: usize = 20_000;
        let scratch = tempfile::TempDir::new().unwrap();
        let mut member = Command::new("sleep").arg("1000").spawn().unwrap();
        for (name, text) in [
            ("cgroup.kill", String::new()),
            ("cgroup.events", String::new()),
            ("cgroup.procs", format!("{}\n", member.id()).repeat(MANY)),
        ] {
            fs::write(scratch.path().join(name), text).unwrap();
        }
        let leaf = Leaf::of(c"payload-1-1".to_owned(), File::open(scratch.path()).unwrap()).unwrap();
        let mut tree = Tree::new(HashSet::new(), None, Some(leaf));
        let begun = Instant::now();
        let until = BootInstant::now().plus(Duration::from_millis(100));
        tree.ask([Signal::SIGURG, Signal::SIGCONT], None, until);
        // All of them take minutes.
        assert!(begun.elapsed() < Duration::from_secs(90), "{:?}", begun.elapsed());
        member.kill().unwrap();
        member.wait().unwrap();
    }
}
