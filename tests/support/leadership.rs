//! What runs around one leadership: the tree, guard and backstop, and the candidate's handle of them. A machine without I/O
//! and without chance. The model steps it through every order of events, the simulation by the clocks of its hosts.
//!
//! The guard's decisions are [`Policy`] as it is. Around it stands here what `src/guard.rs`, `src/guard/backstop.rs` and
//! `src/runner/guard_handle.rs` do with real processes:
//!
//! | there | here |
//! | --- | --- |
//! | the guard starts COMMAND, if it is not too late | [`Tree::Due`] |
//! | it reaps COMMAND, hears the candidate, wakes at its time, and ends when nothing is left | [`Leadership::guard_acts`] |
//! | it does what its policy says | [`Leadership::take`] |
//! | the kernel kills a frozen guard, and what dies with it | [`Leadership::wake`], [`Leadership::kill`] |
//! | the backstop kills a late guard, and the tree of one that is gone; gives the lease back | [`Leadership::backstop_acts`] |
//! | the candidate passes on what its election says | [`Leadership::carry_out`] |
//! | it kills the tree by its own hand, and knows when that is dead | [`Leadership::candidate_acts`] |
//!
//! What one of them tells another waits in a line while the receiver is frozen. While a host is suspended nobody calls
//! [`Leadership::settle`] or [`Leadership::wake`]. How COMMAND behaves, and how long a kill takes, is up to the caller: it
//! hears of the signals by [`Output`], and tells of ends by [`Leadership::command_ends`] and [`Leadership::tree_dies`].
//!
//! Not here: hooks, lateness, health checks, the terminal.

use leaderrun::internals::election::{Action, CommandEnd, HookEnd, Reason, TreeEvent};
use leaderrun::internals::guard::policy::{Effect, Input, Order, Policy};
use leaderrun::internals::lease::Deadline;
use leaderrun::internals::time::BootInstant;
use std::hash::{Hash, Hasher};
use std::time::Duration;

/// As in the backstop: how long after its grace a guard whose candidate is gone may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// One of those that can kill a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Link {
    Candidate,
    Guard,
    Backstop,
}

impl Link {
    pub const ALL: [Self; 3] = [Self::Candidate, Self::Guard, Self::Backstop];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    Runs,
    Frozen,
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tree {
    /// The guard is not there yet.
    Awaited,
    /// The guard starts it as soon as it runs.
    Due,
    Runs,
    /// It got the stop signal, which it may obey.
    Asked,
    /// It got SIGKILL.
    Dying,
    Dead,
}

/// The process that the guard started: the first one of its tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Command {
    Lives,
    /// The guard has not seen it yet.
    Ended(CommandEnd),
    Reaped,
}

/// What comes of it for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// The policy took this in.
    Heard(Input),
    /// The policy said this, and it was done.
    Did(Effect),
    /// The candidate is told.
    Told(TreeEvent),
    /// COMMAND runs.
    Started,
    /// The tree got SIGKILL, for the first time.
    Killed,
    /// The guard was killed, and COMMAND itself dies with it.
    GuardKilled,
    /// The backstop gives the lease back for a candidate that is gone.
    LastWill,
}

/// Nobody keeps a state with outputs that were not taken.
impl Hash for Output {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "facts that become true in any order")]
pub struct Leadership {
    /// Of each [`Link`].
    modes: [Mode; 3],
    pub tree: Tree,
    command: Command,
    pub policy: Policy,
    /// What the guard has not heard yet.
    guards_line: Vec<Input>,
    /// When the backstop kills the guard.
    limit: BootInstant,
    /// What the backstop has not heard yet.
    backstops_line: Vec<Input>,
    grace: Duration,
    /// The tree has a PID namespace, and dies with its guard.
    is_contained: bool,
    /// The guard was killed, and the backstop has not told the candidate yet.
    guard_failed: bool,
    /// The backstop knows that the candidate is gone.
    candidate_gone: bool,
    /// The backstop told the candidate that the tree is dead.
    proven: bool,
    /// The candidate kills the tree by its own hand.
    seized: bool,
    outputs: Vec<Output>,
}

impl Leadership {
    /// The guard is there, and starts COMMAND at the next [`Leadership::settle`].
    pub fn new(deadline: Deadline, grace: Duration, is_contained: bool) -> Self {
        Self {
            modes: [Mode::Runs; 3],
            tree: Tree::Due,
            command: Command::Lives,
            policy: Policy::new(deadline, grace),
            guards_line: Vec::new(),
            limit: deadline.backstop_at,
            backstops_line: Vec::new(),
            grace,
            is_contained,
            guard_failed: false,
            candidate_gone: false,
            proven: false,
            seized: false,
            outputs: Vec::new(),
        }
    }

    pub fn mode(&self, link: Link) -> Mode {
        self.modes[link as usize]
    }

    pub fn command_lives(&self) -> bool {
        self.command == Command::Lives
    }

    /// Nothing is left of it, and its candidate knows that, if there is one.
    pub fn is_over(&self) -> bool {
        let helpers_gone = self.mode(Link::Guard) == Mode::Gone && self.mode(Link::Backstop) == Mode::Gone;
        self.tree == Tree::Dead && helpers_gone && self.mode(Link::Candidate) != Mode::Frozen
    }

    /// What came of it since this was asked last, in order.
    pub fn take_outputs(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.outputs)
    }

    /// The candidate does what its election says of guard and tree.
    pub fn carry_out(&mut self, action: &Action) {
        self.send(Input::Order(match *action {
            Action::Extend(deadline) => Order::Extend(deadline),
            Action::Stop(stop) => match Order::of(stop, self.grace) {
                // Reasons are for hooks.
                Order::Stop { kill_after, .. } => Order::Stop { reason: Reason::Lost, kill_after },
                order => order,
            },
            Action::Seize => {
                self.seized = true;
                return;
            }
            // For others.
            _ => return,
        }));
    }

    /// Stops a process, or continues it.
    pub fn set_frozen(&mut self, link: Link, frozen: bool) {
        if self.mode(link) != Mode::Gone {
            self.modes[link as usize] = if frozen { Mode::Frozen } else { Mode::Runs };
        }
    }

    /// SIGKILL. The candidate may also have ended by itself: its lines close.
    pub fn kill(&mut self, link: Link) {
        if std::mem::replace(&mut self.modes[link as usize], Mode::Gone) == Mode::Gone {
            return;
        }
        match link {
            Link::Candidate => self.send(Input::CandidateGone),
            Link::Guard => {
                self.guard_failed = true;
                self.guards_line.clear();
                self.outputs.push(Output::GuardKilled);
                if self.is_contained || matches!(self.tree, Tree::Awaited | Tree::Due) {
                    self.kill_tree();
                }
            }
            Link::Backstop => self.backstops_line.clear(),
        }
    }

    /// COMMAND itself ends. Its descendants live on.
    pub fn command_ends(&mut self, end: CommandEnd) {
        if self.command_lives() {
            self.command = Command::Ended(end);
        }
    }

    /// The last process of the tree ends, and COMMAND like this if it still lives.
    pub fn tree_dies(&mut self, end: CommandEnd) {
        self.command_ends(end);
        self.tree = Tree::Dead;
    }

    /// When this process, or the kernel for it, has to do something because of the time. The kernel also kills a frozen
    /// guard that kills already, which src/guard.rs prevents: the worse case.
    pub fn wake_at(&self, link: Link) -> BootInstant {
        match (link, self.mode(link)) {
            (Link::Guard, Mode::Runs) if self.tree != Tree::Awaited => self.policy.wake_at(),
            (Link::Guard, Mode::Frozen) => self.policy.kill_timer_at(self.is_contained),
            (Link::Backstop, Mode::Runs) if self.mode(Link::Guard) != Mode::Gone => self.limit,
            _ => BootInstant::NEVER,
        }
    }

    pub fn wake(&mut self, link: Link, now: BootInstant) {
        match (link, self.mode(link)) {
            (Link::Guard, Mode::Runs) => self.take(now, Input::Tick),
            (Link::Guard, Mode::Frozen) | (Link::Backstop, Mode::Runs) => self.kill(Link::Guard),
            _ => {}
        }
    }

    /// What each does that needs no more time: first the guard, then the backstop, which sees its end, then the candidate.
    pub fn settle(&mut self, now: BootInstant) {
        if self.mode(Link::Guard) == Mode::Runs {
            self.guard_acts(now);
        }
        if self.mode(Link::Backstop) == Mode::Runs {
            self.backstop_acts(now);
        }
        if self.mode(Link::Candidate) == Mode::Runs {
            self.candidate_acts();
        }
    }

    fn guard_acts(&mut self, now: BootInstant) {
        match self.tree {
            Tree::Awaited => return,
            Tree::Due if now >= self.policy.start_by() => {
                self.tell(TreeEvent::DeadlineReached);
                self.tell(TreeEvent::Unready(HookEnd::Cut));
                self.tree = Tree::Dead;
            }
            Tree::Due => {
                self.tree = Tree::Runs;
                self.outputs.push(Output::Started);
            }
            Tree::Runs | Tree::Asked | Tree::Dying | Tree::Dead => {}
        }
        if let Command::Ended(end) = self.command {
            self.command = Command::Reaped;
            self.tell(TreeEvent::Ended(end));
            self.take(now, Input::CommandEnded);
        }
        let line = std::mem::take(&mut self.guards_line);
        if self.tree == Tree::Dead {
            self.modes[Link::Guard as usize] = Mode::Gone;
        } else {
            for input in line {
                self.take(now, input);
            }
        }
    }

    fn take(&mut self, now: BootInstant, input: Input) {
        self.outputs.push(Output::Heard(input));
        for effect in self.policy.handle(now, input) {
            self.outputs.push(Output::Did(effect));
            match effect {
                Effect::AskTree => {
                    if self.tree == Tree::Runs {
                        self.tree = Tree::Asked;
                    }
                }
                Effect::KillTree => self.kill_tree(),
                Effect::Report(event) => self.tell(event),
                Effect::Signal(_) | Effect::Continue => {}
                // Of hooks, and there are none.
                Effect::Start
                | Effect::RunPreStart
                | Effect::RunPreStop
                | Effect::RunPostStop
                | Effect::KillHook
                | Effect::Finish => {
                    unreachable!("{effect:?}")
                }
            }
        }
    }

    fn backstop_acts(&mut self, now: BootInstant) {
        for input in std::mem::take(&mut self.backstops_line) {
            match input {
                Input::Order(Order::Extend(deadline)) => self.limit = self.limit.max(deadline.backstop_at),
                Input::CandidateGone => {
                    self.candidate_gone = true;
                    self.limit = self.limit.min(now.plus(self.grace).plus(PATIENCE));
                }
                // For the guard.
                _ => {}
            }
        }
        if self.mode(Link::Guard) != Mode::Gone {
            return;
        }
        if std::mem::take(&mut self.guard_failed) && !self.candidate_gone {
            self.tell(TreeEvent::GuardFailed);
        }
        if self.tree != Tree::Dead {
            return self.kill_tree();
        }
        self.modes[Link::Backstop as usize] = Mode::Gone;
        self.proven = true;
        if self.candidate_gone {
            self.outputs.push(Output::LastWill);
        }
    }

    fn candidate_acts(&mut self) {
        if self.mode(Link::Backstop) == Mode::Gone && !self.proven && !self.seized {
            self.seized = true;
            self.tell(TreeEvent::GuardFailed);
        }
        if self.seized {
            self.kill_tree();
            self.kill(Link::Backstop);
            self.kill(Link::Guard);
        }
        if self.is_over() {
            self.tell(TreeEvent::Dead);
        }
    }

    fn kill_tree(&mut self) {
        match self.tree {
            Tree::Awaited | Tree::Due => self.tree = Tree::Dead,
            Tree::Runs | Tree::Asked => {
                self.tree = Tree::Dying;
                self.outputs.push(Output::Killed);
            }
            Tree::Dying | Tree::Dead => {}
        }
    }

    /// From the candidate to guard and backstop.
    fn send(&mut self, input: Input) {
        for (link, line) in [(Link::Guard, &mut self.guards_line), (Link::Backstop, &mut self.backstops_line)] {
            if self.modes[link as usize] != Mode::Gone {
                line.push(input);
            }
        }
    }

    fn tell(&mut self, event: TreeEvent) {
        self.outputs.push(Output::Told(event));
    }
}
