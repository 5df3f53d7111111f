//! The candidate's hold on a tree: it starts guard and backstop, talks to them, and is the last of the three
//! that can kill the tree.
//!
//! The hazard: what the guard says last and what the kernel says of its end arrive on different ways, in any
//! order. The tree counts as dead on one of two grounds only: the backstop said so (it has no descendant left,
//! and the guard was one), or the candidate itself, a subreaper above both, has no descendant left.

use crate::election::{Dismissal, HookEnd, Stop, StopReason, TreeEvent};
use crate::guard::cgroup::Leaf;
use crate::guard::contain::Containment;
use crate::guard::hooks::{Hook, Hooks, Reason};
use crate::guard::orphan_release::OrphanRelease;
use crate::guard::policy::Order;
use crate::guard::tree::Tree;
use crate::guard::wire::{Heard, Line, Report};
use crate::guard::{GUARD_NAME, GuardSpec};
use crate::lease::{Candidate, Deadline, Term};
use crate::store::url::Secret;
use crate::sys::{self, Owned, wait_any};
use crate::time::BootInstant;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::WaitPidFlag;
use nix::unistd::Pid;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

/// An end of a line, watched.
type Ear = AsyncFd<Owned<Line>>;

/// One tree, from the start of its guard to the proof of its end.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "five facts that become true in any order")]
pub struct GuardHandle {
    guard: Ear,
    backstop: Ear,
    /// Some while the backstop has not been reaped.
    backstop_pid: Option<Pid>,
    /// Everything below this process that was not there before.
    tree: Tree,
    /// We are killing it ourselves.
    seized: bool,
    /// When to kill what is left of it next.
    look_at: Instant,
    guard_closed: bool,
    backstop_closed: bool,
    /// The backstop said that it has no descendant left.
    proven: bool,
    /// [`TreeEvent::Dead`] was told.
    dead: bool,
    news: VecDeque<News>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    Tree(TreeEvent),
    /// COMMAND runs as this process.
    Started {
        pid: i32,
    },
    /// The terminal stopped COMMAND.
    Paused,
    /// Which changes nothing.
    HookFailed(Hook, HookEnd),
    /// The tree is being killed by our own hand: reap, and look what is left.
    Seizing,
}

/// What is to run, and how it is to be stopped.
#[derive(Clone, Debug)]
pub struct Command {
    pub words: Vec<OsString>,
    pub environment: Vec<(OsString, OsString)>,
    /// Which job it is, in a variable, where its runs are counted.
    pub job: Option<(&'static str, String)>,
    pub stop_signal: Signal,
    pub grace: Duration,
    pub hooks: Hooks,
    /// Our process group, when COMMAND may have the terminal.
    pub terminal_group: Option<Pid>,
    /// Standard input is empty, instead of ours.
    pub no_input: bool,
    /// By what its tree can be killed.
    pub containment: Arc<Containment>,
    /// Where the lease is to be given back should we be killed; None where the kernel does that.
    pub store_url: Option<Secret>,
}

impl GuardHandle {
    /// Starts backstop, guard and COMMAND. `tenure` stays open in guard and backstop, and nowhere below them.
    ///
    /// # Errors
    /// The kernel's; then nothing was started.
    pub fn start(
        command: &Command,
        candidate: &Candidate,
        term: Term,
        deadline: Deadline,
        tenure: &[BorrowedFd<'_>],
    ) -> io::Result<Self> {
        nix::sys::prctl::set_child_subreaper(true)?;
        let tree = command.containment.new_tree()?;
        Self::start_in(&tree, command, candidate, term, deadline, tenure)
            .inspect_err(|_| tree.leaf().into_iter().for_each(Leaf::remove))
            .map(|(guard, backstop, backstop_pid)| Self {
                guard,
                backstop,
                backstop_pid: Some(backstop_pid),
                tree,
                seized: false,
                look_at: Instant::now(),
                guard_closed: false,
                backstop_closed: false,
                proven: false,
                dead: false,
                news: VecDeque::new(),
            })
    }

    fn start_in(
        tree: &Tree,
        command: &Command,
        candidate: &Candidate,
        term: Term,
        deadline: Deadline,
        tenure: &[BorrowedFd<'_>],
    ) -> io::Result<(Ear, Ear, Pid)> {
        let (containment, leaf) = (&command.containment, tree.leaf());
        let spec = write_spec(&GuardSpec {
            command: command.words.iter().map(|word| word.as_bytes().to_vec()).collect(),
            deadline,
            grace: command.grace,
            stop_signal: command.stop_signal as i32,
            hooks: command.hooks.clone(),
            terminal_group: command.terminal_group.map(Pid::as_raw),
            will: command.store_url.as_ref().map(|url| OrphanRelease::new(url, candidate, term)),
            scheduling: containment.scheduling(),
            walks: containment.walks(),
            leaf: leaf.map(|leaf| leaf.name().to_string_lossy().into_owned()),
            namespaces: containment.namespaces(),
            raises: containment.raises(),
        })?;
        let (guard, guards_end) = Line::pair()?;
        let (backstop, backstops_end) = Line::pair()?;
        let mut inherited = vec![spec.as_fd(), guards_end.as_fd(), backstops_end.as_fd()];
        inherited.extend(leaf.map(Leaf::directory));
        inherited.extend(tenure);
        let mut arguments = vec![OsString::from(candidate.shard.as_str())];
        arguments.extend(inherited.iter().map(|descriptor| descriptor.as_raw_fd().to_string().into()));
        let (guard, backstop) = (sys::watch(guard)?, sys::watch(backstop)?);
        let input = if command.no_input { Stdio::null() } else { Stdio::inherit() };
        let child = sys::respawn(GUARD_NAME, &arguments, command.environment.iter().cloned(), input, &inherited)?;
        let backstop_pid = Pid::from_raw(i32::try_from(child.id()).expect("process numbers fit"));
        Ok((guard, backstop, backstop_pid))
    }

    pub fn extend(&self, deadline: Deadline) {
        self.guard.get_ref().0.order(Order::Extend(deadline));
        self.backstop.get_ref().0.order(Order::Extend(deadline));
    }

    pub fn stop(&self, stop: Stop) {
        match stop {
            Stop::Orderly { reason, kill_after } => {
                // Its hooks are told, and the first of them runs before the stop signal.
                self.order(Order::Because(for_hooks(reason)));
                self.order(Order::Stop { kill_after });
            }
            Stop::Losing { .. } => self.order(Order::Lose),
            Stop::Kill => self.order(Order::Kill),
        }
    }

    /// The same for what runs beside a standby, which has no hooks.
    pub fn dismiss(&self, dismissal: Dismissal) {
        self.order(match dismissal {
            Dismissal::Orderly { kill_after } => Order::Stop { kill_after: Some(kill_after) },
            Dismissal::Kill => Order::Kill,
        });
    }

    /// Passes a signal on to COMMAND.
    pub fn signal(&self, signal: i32) {
        self.order(Order::Signal(signal));
    }

    /// Lets COMMAND go on that the terminal had stopped.
    pub fn resume(&self) {
        self.order(Order::Continue);
    }

    /// Kills backstop, guard and tree by our own hand, from here on until nothing is left.
    pub fn seize(&mut self) {
        if let Some(backstop) = self.backstop_pid {
            let _ = kill(backstop, Signal::SIGKILL);
        }
        self.seized = true;
    }

    /// Waits for the next news. Cancelling it loses none.
    pub async fn news(&mut self) -> News {
        loop {
            if let Some(news) = self.news.pop_front() {
                return news;
            }
            if self.seized && !self.dead {
                // Whoever waits here is cut short by each process that ends: that must not put off the next kill.
                tokio::time::sleep_until(self.look_at).await;
                let next = self.tree.kill();
                self.look_at = Instant::now() + next.since(BootInstant::now());
                return News::Seizing;
            }
            let (guard_closed, backstop_closed) = (self.guard_closed, self.backstop_closed);
            tokio::select! {
                Ok(mut ready) = self.guard.readable(), if !guard_closed => ready.clear_ready(),
                Ok(mut ready) = self.backstop.readable(), if !backstop_closed => ready.clear_ready(),
                else => std::future::pending().await,
            }
            self.listen();
        }
    }

    fn reaped(&mut self, pid: Pid) {
        self.tree.forget(pid);
        if Some(pid) == self.backstop_pid {
            self.backstop_pid = None;
        }
    }

    /// Whether the tree is dead, as far as that can be known now.
    fn judge(&mut self) {
        if self.backstop_pid.is_some() || self.dead {
            return;
        }
        // Its last words may not have been heard yet.
        self.listen();
        if !self.proven && !self.seized {
            self.seized = true;
            self.tell(TreeEvent::GuardFailed);
        }
        if self.proven || self.tree.look() {
            self.dead = true;
            // The backstop has done that, unless it was killed.
            if let Some(leaf) = self.tree.leaf() {
                leaf.remove();
            }
            self.tell(TreeEvent::Dead);
        }
    }

    fn listen(&mut self) {
        while !self.guard_closed {
            match self.guard.get_ref().0.hear_report() {
                Heard::Message(report) => self.hear(&report),
                Heard::Silence => break,
                Heard::Closed => self.guard_closed = true,
            }
        }
        while !self.backstop_closed {
            match self.backstop.get_ref().0.hear_report() {
                Heard::Message(report) => self.hear(&report),
                Heard::Silence => break,
                Heard::Closed => self.backstop_closed = true,
            }
        }
    }

    fn hear(&mut self, report: &Report) {
        match *report {
            Report::Started { pid } => self.news.push_back(News::Started { pid }),
            Report::Paused { .. } => self.news.push_back(News::Paused),
            Report::NotStarted(error) => self.tell(TreeEvent::NotStarted(error)),
            Report::Ended(end) => self.tell(TreeEvent::Ended(end)),
            Report::DeadlineReached => self.tell(TreeEvent::DeadlineReached),
            Report::Unready(end) => self.tell(TreeEvent::Unready(end)),
            Report::HookFailed(hook, end) => self.news.push_back(News::HookFailed(hook, end)),
            Report::GuardFailed => self.tell(TreeEvent::GuardFailed),
            Report::Killed { woken, signalled, empty } => tracing::debug!(
                "killed the tree: {woken:.1?} after it was due the guard was awake, after {signalled:.1?} each process had \
                 SIGKILL, after {empty:.1?} none was left"
            ),
            // While we are killing it ourselves we also see for ourselves that it is dead.
            Report::Dead if self.seized => {}
            // Told on when the backstop itself has been reaped: until then it is a process of ours.
            Report::Dead => self.proven = true,
        }
    }

    fn tell(&mut self, event: TreeEvent) {
        self.news.push_back(News::Tree(event));
    }

    fn order(&self, order: Order) {
        self.guard.get_ref().0.order(order);
    }
}

/// Reaps what ended; called when SIGCHLD came, and for [`News::Seizing`]. A child is reaped once only, so each of our
/// trees must hear of it: `custodies` are all that there are. Without any, what ended is an orphan that became ours
/// because we are PID 1 or a subreaper.
pub fn reap<'a>(handles: impl IntoIterator<Item = &'a mut GuardHandle>) {
    let mut handles: Vec<&mut GuardHandle> = handles.into_iter().collect();
    while let Ok(Some((pid, _))) = wait_any(WaitPidFlag::WEXITED) {
        for guard in &mut handles {
            guard.reaped(pid);
        }
    }
    for guard in handles {
        guard.judge();
    }
}

fn for_hooks(reason: StopReason) -> Reason {
    match reason {
        StopReason::Asked => Reason::Asked,
        StopReason::Paused => Reason::Paused,
        StopReason::SteppedDown => Reason::SteppedDown,
        StopReason::Relinquished => Reason::Relinquished,
        StopReason::Overran => Reason::Overran,
    }
}

fn write_spec(spec: &GuardSpec) -> io::Result<File> {
    let mut file = File::from(memfd_create(c"leaderrun charge", MFdFlags::MFD_CLOEXEC)?);
    serde_json::to_writer(&mut file, spec).map_err(io::Error::other)?;
    file.flush()?;
    file.rewind()?;
    Ok(file)
}
