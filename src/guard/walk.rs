//! Two walks over `/proc` that find the descendants of a process.
//!
//! One goes down from it, by way of each process's list of children. It costs as much as the tree, but not every kernel
//! has those lists, and a list that is read while children end may lack some. The other looks at all processes of the
//! machine, and costs as much: if hundreds of guards kill their trees at once, each in this way, none gets far.
//!
//! The hazards:
//!
//! - *Memory may be short when a kill is due.* So a walk allocates only when it is opened, unless the machine has more
//!   processes than were planned for.
//! - *A frozen helper reaps nothing.* A tree whose processes end as fast as they fork then leaves tens of thousands of
//!   zombies, and while a walk looks at each of them, the tree forks on. So a walk passes over zombies: they fork no
//!   more, and their children have another parent. `/proc` can lie about that as well, so a child of ours is reported
//!   all the same. If there are too many children to look below each, they are only reported ([`Found::Many`]): the
//!   caller reaps them, and the next walk finds what was missed.
//! - *Thousands that are killed at once wait for each other*, since all have the same libraries mapped
//!   (`i_mmap_rwsem`), and then for a processor: on a busy machine, for seconds. So what is killed is first given a
//!   real-time priority: the one below our own, because at a lower one it might wait for others' real-time processes. A
//!   priority is set by number, so whether it was the right process is checked afterwards.
//! - *A walk that sends the stop signal may last until SIGKILL is due*: among many busy processes, the kernel lets this
//!   one run for a few milliseconds every few seconds. So a walk can be given an end.
//! - *COMMAND may unmount `/proc`, or mount something over it.* So the walk keeps the directory open.
//! - *COMMAND may mount something over `/proc/PID`*, which hides that process. So for a number that cannot be read, the
//!   walk asks the kernel whether it is our child. Every descendant becomes our child once its other ancestors are
//!   dead.

mod procfs;

pub use procfs::{each_number, is_child, is_live_child, is_stopped};

use crate::sys::{self, Pinned, Scheduling};
use crate::time::BootInstant;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Whence, lseek};
use procfs::{Place, Seen, entry, hidden_child, is_gone, number, open_at, own_child, stat};
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// Processes to reserve space for. Memory that is not used is not taken.
const FORESEEN: usize = 1 << 15;
/// Processes that a machine usually has.
const USUAL: usize = 1 << 10;
/// Bytes of directory entries to read at once.
const ENTRIES: usize = 1 << 15;
/// The most threads that [`Walk::down`] looks at. In a larger tree it is no cheaper than a walk over everything.
const MOST_THREADS: usize = 256;

#[derive(Debug)]
pub struct Walk {
    proc: File,
    entries: Box<[u8]>,
    seen: Vec<Seen>,
    found_down: Alive,
    found_below: Alive,
}

/// The processes that lived when a walk found them, sorted, but no more than one over [`MOST_THREADS`].
#[derive(Debug)]
struct Alive(Vec<i32>);

/// What a walk has found, compared with the last one in the same direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing that the walk before it had not found.
    Nothing,
    New,
    /// All children of ours were reported, but they are too many to look below each.
    Many,
    /// Something of the tree could not be read, or it is too large.
    Part,
}

/// How far a walk down went.
#[derive(Default)]
struct Reach {
    threads: usize,
    /// There were more children of ours than it looked at.
    many: bool,
}

/// A process below the top of a walk.
#[derive(Debug)]
pub struct Process<'a> {
    pub pid: Pid,
    pub parent: Pid,
    /// It is a child of ours, and seems to have ended with all its threads.
    pub ended: bool,
    started: Option<u64>,
    proc: BorrowedFd<'a>,
}

impl Walk {
    /// Opens `/proc` and reserves memory.
    pub fn open() -> io::Result<Self> {
        let mut seen = Vec::with_capacity(FORESEEN);
        let nobody = Seen { pid: 0, parent: 0, started: None, ended: false, place: Place::Unknown };
        // This touches the pages, so that they exist. The others come when they are needed, if memory is left then.
        seen.resize(USUAL, nobody);
        seen.clear();
        let [found_down, found_below] = [(); 2].map(|()| Alive(Vec::with_capacity(MOST_THREADS + 1)));
        let entries = vec![0; ENTRIES].into_boxed_slice();
        Ok(Self { proc: File::open("/proc")?, entries, seen, found_down, found_below })
    }

    /// Calls `each` with the processes below `top`, except those in `earlier_children` and theirs, as the kernel's
    /// lists of children name them. Stops at `until`.
    pub fn down(
        &mut self,
        top: Pid,
        earlier_children: &HashSet<Pid>,
        until: BootInstant,
        mut each: impl FnMut(&mut Process<'_>),
    ) -> Found {
        self.seen.clear();
        let mut reach = Reach::default();
        let mut whole = self.add_children(top.as_raw(), earlier_children, until, &mut reach, &mut each).is_some();
        let mut at = 0;
        while at < self.seen.len() && reach.threads < MOST_THREADS {
            let Seen { pid, ended, .. } = self.seen[at];
            whole &= ended || self.add_children(pid, earlier_children, until, &mut reach, &mut each).is_some();
            at += 1;
        }
        if BootInstant::now() >= until {
            return Found::Part;
        }
        let found = self.found_down.replace(self.seen.iter().filter(|seen| !seen.ended));
        match reach {
            Reach { threads, .. } if threads >= MOST_THREADS || !whole => Found::Part,
            Reach { many: true, .. } => Found::Many,
            Reach { many: false, .. } => found,
        }
    }

    /// Adds the children of all threads of `pid`. None if they cannot all be read. Of ours, those that are too many
    /// only go to `each`: at the end of a long list are those that were forked last.
    fn add_children(
        &mut self,
        pid: i32,
        earlier_children: &HashSet<Pid>,
        until: BootInstant,
        reach: &mut Reach,
        each: &mut impl FnMut(&mut Process<'_>),
    ) -> Option<()> {
        if BootInstant::now() >= until {
            return None;
        }
        let Some(tasks) = open_at(self.proc.as_fd(), format_args!("{pid}/task")) else { return is_gone(pid) };
        let is_ours = pid == Pid::this().as_raw();
        let mut shows_itself = false;
        loop {
            let length = sys::read_directory(tasks.as_fd(), &mut self.entries).ok()?;
            if length == 0 {
                // Something is mounted over it.
                return if shows_itself { Some(()) } else { is_gone(pid) };
            }
            let mut rest = &self.entries[..length];
            while let Some((name, after)) = entry(rest) {
                rest = after;
                let Some(thread) = number(name) else { continue };
                shows_itself |= thread == pid;
                reach.threads += 1;
                if reach.threads > MOST_THREADS {
                    return None;
                }
                let Some(children) = open_at(tasks.as_fd(), format_args!("{thread}/children")) else {
                    // The thread has ended, or the kernel has no such lists.
                    match open_at(tasks.as_fd(), format_args!("{thread}")) {
                        Some(_) => return None,
                        None => continue,
                    }
                };
                each_number(children.as_fd(), |child| {
                    if earlier_children.contains(&Pid::from_raw(child)) || BootInstant::now() >= until {
                        return;
                    }
                    if is_ours && self.seen.len() >= MOST_THREADS {
                        reach.many = true;
                        each(&mut Process::of(own_child(child), self.proc.as_fd()));
                        return;
                    }
                    // Only its parent frees its number. A process that has the number now but another parent is another
                    // one, or it is found below that parent.
                    let seen = stat(self.proc.as_fd(), child).filter(|seen| seen.parent == pid);
                    let seen = if is_ours {
                        Some(Seen { ended: seen.is_some_and(|seen| seen.ended), ..own_child(child) })
                    } else {
                        seen.filter(|seen| !seen.ended)
                    };
                    if let Some(seen) = seen {
                        // At once: what is found next may take long, and what it has found may fork meanwhile.
                        each(&mut Process::of(seen, self.proc.as_fd()));
                        self.seen.push(seen);
                    }
                })?;
            }
        }
    }

    /// Calls `each` with every process below `top`, except those in `earlier_children` and theirs. Stops at `until`.
    pub fn below(
        &mut self,
        top: Pid,
        earlier_children: &HashSet<Pid>,
        until: BootInstant,
        mut each: impl FnMut(&mut Process<'_>),
    ) -> Found {
        self.look(until);
        for index in 0..self.seen.len() {
            if BootInstant::now() >= until {
                return Found::Part;
            }
            let place = place(&mut self.seen, index, top, earlier_children);
            let mut process = Process::of(self.seen[index], self.proc.as_fd());
            if place == Place::Below && (!process.ended || process.parent == Pid::this()) {
                each(&mut process);
            }
        }
        if BootInstant::now() >= until {
            return Found::Part;
        }
        self.found_below.replace(self.seen.iter().filter(|seen| seen.place == Place::Below && !seen.ended))
    }

    /// The children of this process, including ended ones.
    pub fn children(&mut self) -> HashSet<Pid> {
        self.look(BootInstant::NEVER);
        let ours = self.seen.iter().filter(|seen| seen.parent == Pid::this().as_raw());
        ours.map(|seen| Pid::from_raw(seen.pid)).collect()
    }

    /// Reads all processes, sorted by number.
    fn look(&mut self, until: BootInstant) {
        self.seen.clear();
        if lseek(&self.proc, 0, Whence::SeekSet).is_err() {
            return;
        }
        while let Ok(length) = sys::read_directory(self.proc.as_fd(), &mut self.entries) {
            if length == 0 {
                break;
            }
            let mut rest = &self.entries[..length];
            while let Some((name, after)) = entry(rest) {
                rest = after;
                let Some(pid) = number(name) else { continue };
                if BootInstant::now() >= until {
                    return;
                }
                self.seen.extend(stat(self.proc.as_fd(), pid).or_else(|| hidden_child(pid)));
            }
        }
        self.seen.sort_unstable_by_key(|seen| seen.pid);
    }
}

impl Alive {
    /// Takes note of what is alive now.
    fn replace<'a>(&mut self, alive: impl Iterator<Item = &'a Seen> + Clone) -> Found {
        let new = alive.clone().any(|seen| self.0.binary_search(&seen.pid).is_err());
        self.0.clear();
        self.0.extend(alive.map(|seen| seen.pid).take(MOST_THREADS + 1));
        self.0.sort_unstable();
        match (self.0.len() > MOST_THREADS, new) {
            (true, _) => Found::Part,
            (false, true) => Found::New,
            (false, false) => Found::Nothing,
        }
    }
}

impl<'a> Process<'a> {
    fn of(seen: Seen, proc: BorrowedFd<'a>) -> Self {
        let Seen { pid, parent, started, ended, place: _ } = seen;
        let [pid, parent] = [pid, parent].map(Pid::from_raw);
        Self { pid, parent, ended, started, proc }
    }

    /// False if it is gone, and its number may be another process's.
    pub fn signal(&self, signal: Signal) -> bool {
        // A child keeps its number until it is reaped, and only the caller reaps.
        if self.parent == Pid::this() {
            return kill(self.pid, signal).is_ok();
        }
        let Ok(pinned) = Pinned::new(self.pid) else { return false };
        stat(self.proc, self.pid.as_raw()).is_some_and(|now| now.started == self.started)
            && pinned.signal(signal).is_ok()
    }

    /// SIGKILL. From a caller with a real-time priority it also gets the next lower one, and so dies before others run
    /// on.
    pub fn kill(&self) {
        let below = Scheduling::current().map_or(0, |ours| ours.priority) - 1;
        let comes_first = below > 0 && Scheduling::real_time(below).give_to(self.pid).is_ok();
        if !self.signal(Signal::SIGKILL) && comes_first {
            let _ = Scheduling::SHARED.give_to(self.pid);
        }
    }
}

/// The place of the process at `index`, which is that of its first ancestor with a known place.
fn place(seen: &mut [Seen], index: usize, top: Pid, earlier_children: &HashSet<Pid>) -> Place {
    let parent_of = |seen: &[Seen], at: usize| seen.binary_search_by_key(&seen[at].parent, |entry| entry.pid).ok();
    let mut at = index;
    let mut steps = 0;
    let place = loop {
        let Seen { pid, parent, place, .. } = seen[at];
        if place != Place::Unknown {
            break place;
        }
        if earlier_children.contains(&Pid::from_raw(pid)) {
            break Place::Elsewhere;
        }
        if parent == top.as_raw() {
            break Place::Below;
        }
        match parent_of(seen, at) {
            // Numbers that were reused during the walk can form a circle.
            Some(parent) if steps < seen.len() => at = parent,
            _ => break Place::Elsewhere,
        }
        steps += 1;
    };
    // Store the place along the way, so that a deep chain is climbed once.
    let (mut at, last) = (index, at);
    loop {
        seen[at].place = place;
        if at == last {
            return place;
        }
        match parent_of(seen, at) {
            Some(parent) if seen[parent].place == Place::Unknown => at = parent,
            _ => return place,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::procfs::parse;
    use super::*;
    use crate::guard::priority::{self, Priority};
    use nix::sys::wait::{Id, WaitPidFlag, waitid};

    #[test]
    fn a_zombie_has_ended_unless_a_thread_of_it_lives_whatever_it_calls_itself() {
        for (state, threads, ended) in [("Z", 1, true), ("Z", 2, false), ("S", 1, false), ("T", 1, false)] {
            for name in ["a", ") S 1 1 1", "a) Z 0 0 (", "(((\n)))", ""] {
                let line =
                    format!("42 ({name}) {state} 7 42 1 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 {threads} 0 987654 1 2");
                let Seen { parent, started, ended: has_ended, .. } = parse(42, line.as_bytes()).unwrap();
                assert_eq!((parent, started, has_ended), (7, Some(987_654), ended), "{line}");
            }
        }
        assert_eq!(parse(42, b"42 (a) S 7 42 1"), None, "the kernel never writes that");
    }

    fn found_below(walk: &mut Walk, top: Pid, earlier_children: &HashSet<Pid>) -> (Vec<Pid>, Found) {
        let mut pids = Vec::new();
        let found = walk.down(top, earlier_children, BootInstant::NEVER, |process| pids.push(process.pid));
        (pids, found)
    }

    #[test]
    fn a_walk_down_finds_what_is_below_and_says_if_it_was_found_before() {
        let mut walk = Walk::open().unwrap();
        let nobody = HashSet::new();
        let two = "sleep 1000 & sleep 1000 & wait";
        let mut shell = std::process::Command::new("sh").args(["-c", two]).spawn().unwrap();
        let top = Pid::from_raw(i32::try_from(shell.id()).unwrap());
        let begun = std::time::Instant::now();
        let below = loop {
            let (below, found) = found_below(&mut walk, top, &nobody);
            if below.len() == 2 {
                assert_eq!(found, Found::New);
                break below;
            }
            assert!(begun.elapsed() < std::time::Duration::from_mins(1), "it is never found");
            std::thread::yield_now();
        };
        assert_eq!(found_below(&mut walk, top, &nobody), (below.clone(), Found::Nothing));
        // A walk over everything finds the same.
        let mut all = HashSet::new();
        let mut look = || {
            walk.below(top, &nobody, BootInstant::NEVER, |process| {
                all.insert(process.pid);
            })
        };
        assert_eq!([look(), look()], [Found::New, Found::Nothing]);
        assert_eq!(all, below.iter().copied().collect());
        // A walk whose time is over goes nowhere.
        let now = BootInstant::now();
        let never = |process: &mut Process<'_>| panic!("it reports {process:?}");
        assert_eq!(walk.down(top, &nobody, now, never), Found::Part);
        assert_eq!(walk.below(top, &nobody, now, never), Found::Part);
        walk.down(top, &nobody, BootInstant::NEVER, |process| process.kill());
        shell.wait().unwrap();
        assert_eq!(found_below(&mut walk, top, &nobody), (Vec::new(), Found::Nothing));
    }

    #[test]
    fn what_is_killed_dies_at_a_real_time_priority_where_that_is_allowed() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
        let walk = Walk::open().unwrap();
        let usual = Scheduling::current().unwrap();
        let ours = priority::raise(usual);
        Process { pid, parent: Pid::this(), ended: false, started: None, proc: walk.proc.as_fd() }.kill();
        priority::lower(usual);
        // The kernel still shows the priority of a process that nobody has waited for.
        waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).unwrap();
        let line = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let its = line.rsplit_once(')').unwrap().1.split_whitespace().nth(37).and_then(|its| its.parse().ok());
        child.wait().unwrap();
        let below = if let Priority::RealTime(ours) = ours { ours - 1 } else { 0 };
        assert_eq!(its, Some(below), "{line}");
    }

    #[test]
    fn a_child_is_ours_until_it_is_reaped_whatever_ended_it() {
        let real_time = libc::SIGRTMIN();
        for script in ["exit 1".to_owned(), "kill -9 $$".to_owned(), format!("kill -{real_time} $$")] {
            let mut child = std::process::Command::new("sh").args(["-c", &script]).spawn().unwrap();
            let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
            let begun = std::time::Instant::now();
            while is_live_child(pid) && begun.elapsed() < std::time::Duration::from_mins(1) {
                std::thread::yield_now();
            }
            assert!(is_child(pid) && !is_live_child(pid), "{script}");
            child.wait().unwrap();
            assert!(!is_child(pid) && !is_live_child(pid), "{script}");
        }
    }

    #[test]
    fn a_tree_of_many_threads_is_found_in_part() {
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let receiver = std::sync::Mutex::new(receiver);
        std::thread::scope(|scope| {
            for _ in 0..=MOST_THREADS {
                scope.spawn(|| receiver.lock().unwrap().recv());
            }
            let (_, found) = found_below(&mut Walk::open().unwrap(), Pid::this(), &HashSet::new());
            assert_eq!(found, Found::Part);
            drop(sender);
        });
    }

    #[test]
    fn ended_children_that_are_many_are_reported_without_a_look_at_each() {
        // A shell forks them: a child that this process forks has copies of the other tests' files for a moment.
        nix::sys::prctl::set_child_subreaper(true).unwrap();
        let many = format!("for i in $(seq {}); do sleep 1000 >/dev/null 2>&1 & echo $!; done", MOST_THREADS + 50);
        let output = std::process::Command::new("sh").args(["-c", &many]).output().unwrap();
        nix::sys::prctl::set_child_subreaper(false).unwrap();
        let pids = String::from_utf8(output.stdout).unwrap();
        let pids: HashSet<_> = pids.lines().map(|pid| Pid::from_raw(pid.parse().unwrap())).collect();
        for &pid in &pids {
            kill(pid, Signal::SIGKILL).unwrap();
            waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).unwrap();
        }
        let mut walk = Walk::open().unwrap();
        // Other tests start threads of this process as well, at times more than a walk down looks at.
        let begun = std::time::Instant::now();
        let found = std::iter::repeat_with(|| found_below(&mut walk, Pid::this(), &HashSet::new()))
            .find(|(_, found)| *found != Found::Part || begun.elapsed() > std::time::Duration::from_mins(1));
        let (reported, found) = found.unwrap();
        assert_eq!(found, Found::Many);
        assert!(pids.is_subset(&reported.into_iter().collect()));
        for &pid in &pids {
            waitid(Id::Pid(pid), WaitPidFlag::WEXITED).unwrap();
        }
    }

    #[test]
    fn earlier_children_and_their_descendants_are_skipped() {
        let seen = |pid, parent| Seen { pid, parent, started: Some(1), ended: false, place: Place::Unknown };
        // 5 and 6 form a circle.
        let mut all = vec![seen(2, 1), seen(3, 2), seen(4, 3), seen(5, 6), seen(6, 5), seen(7, 1), seen(8, 7)];
        let earlier_children = HashSet::from([Pid::from_raw(7)]);
        let mut below = Vec::new();
        for index in (0..all.len()).rev() {
            if place(&mut all, index, Pid::from_raw(1), &earlier_children) == Place::Below {
                below.push(all[index].pid);
            }
        }
        assert_eq!(below, [4, 3, 2]);
    }
}
