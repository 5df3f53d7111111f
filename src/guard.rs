//! The guard: a small process that owns COMMAND and all its descendants, and kills them in time.
//!
//! ```text
//! leaderrun            the candidate: elects, renews, forwards signals
//! └─ lr-guard          the backstop: does the guard's work when the guard does not
//!    └─ lr-guard       the guard
//!       └─ COMMAND ... the tree
//! ```
//!
//! The hazards, and what answers each:
//!
//! - *The candidate is killed, frozen or hangs.* The guard knows the deadline and needs no message to act on it. When
//!   its line to the candidate closes, the candidate is gone, and the guard ends the tree within the grace.
//! - *The guard is killed.* COMMAND dies with it (`PR_SET_PDEATHSIG`). Survivors become children of the backstop, the
//!   next subreaper up, which kills them.
//! - *The guard is frozen.* At `backstop_at` the backstop and the candidate each kill the tree, and then the guard
//!   (SIGKILL also ends a stopped process). If they are frozen as well, the guard's kill timer ends it later in the
//!   margin, and COMMAND with it.
//! - *Two of the three* are killed or frozen. The third is enough: each of them knows the deadline and inherits what
//!   the others leave. So none of them kills another one that may still work, nor itself, before the tree is dead.
//! - *All three* are killed or frozen at the same instant. COMMAND itself still dies. Its descendants die only if the
//!   tree has a PID namespace (`init`) or a service manager kills the cgroup.
//! - *A descendant hides* in its own session or process group, or double-forks. The guard is a subreaper, so every
//!   descendant becomes its child when the descendant's own parent dies, or before.
//! - *A tree forks as fast as it is killed*, or hides from `/proc`: see [`contain`], [`cgroup`] and [`tree`].
//! - *The scheduler does not wake the guard*: see [`priority`], and [`lateness`] for what no priority prevents.
//!
//! Signals from the terminal and from systemd are for the candidate (see [`foreground`]). The guard and the backstop
//! block every signal, and each has its own process group.

mod backstop;
pub mod calls;
pub mod cgroup;
pub mod contain;
pub mod foreground;
pub mod health;
pub mod hooks;
mod init;
mod job_control;
mod keyboard;
pub mod lateness;
pub mod orphan_release;
pub mod policy;
pub mod priority;
pub mod quota;
mod sampler;
mod spec;
pub mod tree;
pub mod walk;
mod watch;
pub mod wire;

pub use spec::{GuardSpec, Plan};

use crate::election::{CommandEnd, HookEnd, Interrupt, Reason, StartError, TreeEvent};
use crate::observe::terminal;
use crate::sys::{self, Birth, ChildState, Companion, KillTimer, Listens, Namespaces, SingleThread, Started};
use crate::time::BootInstant;
use foreground::Foreground;
use health::Checker;
use hooks::{Hook, Hooks, how_it_ended};
use lateness::Caution;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::WaitPidFlag;
use nix::unistd::Pid;
use policy::{Effect, Input, Order, Policy};
use priority::Priority;
use sampler::Sampler;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::process::{Command, ExitCode};
use std::time::Duration;
use tree::Tree;
use watch::Watch;
use wire::{Heard, Line, Report};

/// The process name that makes a respawned leaderrun become backstop and guard. Their command lines have no word of
/// leaderrun's, so `pkill -f leaderrun` and `pkill -f SHARD` leave them, and they look after the tree.
pub const GUARD_NAME: &str = "lr-guard";

/// Becomes backstop and guard if this process was respawned for that. `main` calls this first.
#[must_use]
pub fn run_if_respawned() -> Option<ExitCode> {
    let mut arguments = std::env::args_os();
    if arguments.next()? != GUARD_NAME {
        return None;
    }
    Some(match backstop::run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::say_last(format_args!("{GUARD_NAME}: {error}"));
            ExitCode::from(crate::exit::USAGE)
        }
    })
}

/// Runs the guard's main loop until no descendant is left.
fn guard(
    spec: GuardSpec,
    line: Line,
    tree: Tree,
    priority: Priority,
    mask: SigSet,
    single_thread: SingleThread,
) -> io::Result<()> {
    let _ = nix::sys::prctl::set_name(c"lr-guard");
    let GuardSpec { plan, means, deadline, listens, .. } = spec;
    let set_up = || -> io::Result<_> {
        nix::sys::prctl::set_child_subreaper(true)?;
        nix::unistd::setpgid(Pid::this(), Pid::from_raw(0))?;
        Ok((Watch::new()?, KillTimer::new()?, plan.measure.map(Sampler::new).transpose()?))
    };
    // Otherwise it would look as if something had killed us.
    let not_started = TreeEvent::NotStarted(StartError(sys::NO_PROCESS));
    let (mut watch, kill_timer, sampler) = set_up().inspect_err(|_| line.report(&Report::Tree(not_started)))?;
    let mut policy = Policy::with_hooks(deadline, plan.grace, plan.hooks.times());
    policy.caution = plan.measure.map(Caution::from).unwrap_or_default();
    policy.max_run = plan.max_run;
    let mut words = plan.words.into_iter().map(OsString::from_vec);
    let mut program = Command::new(words.next().unwrap_or_default());
    program.args(words);
    let mut guard = Guard {
        policy,
        tree,
        program: Some(program),
        command: None,
        starting: None,
        init: None,
        inits_line: None,
        namespaces: means.namespaces,
        stop_signal: Signal::try_from(plan.stop_signal).unwrap_or(Signal::SIGTERM),
        terminal: plan.terminal_group.and_then(|group| Foreground::open(Pid::from_raw(group))),
        ask_terminal_at: BootInstant::NEVER,
        keyboard: None,
        key: None,
        command_end: None,
        listens,
        line: Some(line),
        birth: Birth {
            single_thread,
            mask,
            scheduling: means.scheduling,
            most_real_time: priority.most_of_command(),
            terminal: None,
            companion: None,
            listens: Listens::default(),
            cgroup: None,
            not_after: Duration::ZERO,
        },
        hooks: plan.hooks,
        hook: None,
        checker: plan.health.map(Checker::new),
        has_started: false,
        news: Some(Input::Begin),
        hook_ended: None,
        kill: None,
        finished: false,
        kill_timer,
        sampler,
    };
    guard.set_kill_timer();
    guard.report(&Report::Armed);
    loop {
        guard.reap();
        guard.hear_keyboard();
        // Orders that have arrived come first: one of them may forbid starting COMMAND, or move a deadline that has
        // passed.
        while let Some(input) = guard.hear() {
            guard.take(input);
        }
        guard.measure_lateness();
        if let Some(input) = guard.news.take().or_else(|| guard.hook_ended.take().map(Input::HookEnded)) {
            guard.take(input);
            continue;
        }
        if guard.tree.is_empty() {
            guard.settle_terminal();
            guard.report_kill();
            guard.take(Input::Empty);
            if guard.finished {
                return Ok(());
            }
            continue;
        }
        guard.take(Input::Tick);
        guard.look_after_health();
        if BootInstant::now() >= guard.ask_terminal_at {
            guard.ask_for_terminal();
        }
        // A tree that is being killed may fork as fast as it dies, so look at it again soon.
        let wake_at = if guard.policy.kills() { guard.kill() } else { guard.wake_at() };
        let command = guard.starting.as_ref().map(AsFd::as_fd).or(guard.inits_line.as_ref().map(AsFd::as_fd));
        let keyboard = guard.keyboard.as_ref().map(AsFd::as_fd);
        watch.wait(guard.line.as_ref(), [command, keyboard], guard.tree.events(), guard.tree.wake_at(wake_at));
    }
}

/// To the init, which asks its namespace to stop, and to the keyboard process, which ends.
const STOP: Order = Order::Stop { reason: Reason::Asked, kill_after: None };

/// COMMAND was stopped before it had begun.
const CUT: StartError = StartError(libc::ECANCELED);

/// The instants of a kill, for the report on how long it took.
#[derive(Clone, Copy, Debug)]
struct Kill {
    due: BootInstant,
    woken: BootInstant,
    /// Some once every visible process has been sent SIGKILL.
    signalled: Option<BootInstant>,
}

struct Guard {
    policy: Policy,
    tree: Tree,
    /// COMMAND and its arguments. Some until it is started.
    program: Option<Command>,
    /// Some while COMMAND has not been reaped. At first its init, if it has one.
    command: Option<Pid>,
    /// Some until it is known whether COMMAND has become its program, except in a PID namespace.
    starting: Option<Started>,
    /// The init of COMMAND's PID namespace, until it is reaped.
    init: Option<Pid>,
    /// The line to it, until that closes.
    inits_line: Option<Line>,
    namespaces: Option<Namespaces>,
    stop_signal: Signal,
    terminal: Option<Foreground>,
    /// When to ask again for the terminal that another process of the pipeline has.
    ask_terminal_at: BootInstant,
    /// To the process that sees what the keyboard sends to COMMAND.
    keyboard: Option<Line>,
    /// The last key that may end COMMAND, and when it was seen.
    key: Option<(Interrupt, BootInstant)>,
    /// How COMMAND ended. Some once it has.
    command_end: Option<CommandEnd>,
    listens: Listens,
    /// None once the candidate is gone.
    line: Option<Line>,
    /// With what every program below the guard starts.
    birth: Birth<'static>,
    hooks: Hooks,
    /// Some while a hook has not been reaped.
    hook: Option<(Hook, Started)>,
    /// Some if COMMAND's health is checked.
    checker: Option<Checker>,
    /// COMMAND has become its program.
    has_started: bool,
    /// Some at first, and from COMMAND's end, until the policy knows.
    news: Option<Input>,
    /// Some from the end of a hook until the policy knows.
    hook_ended: Option<HookEnd>,
    /// Some from the first kill until it is reported.
    kill: Option<Kill>,
    finished: bool,
    kill_timer: KillTimer,
    /// Some if the lease expires.
    sampler: Option<Sampler>,
}

impl Guard {
    fn start(&mut self) {
        let program = self.program.take().expect("COMMAND is started once");
        let (keyboard, keyboards_end) = self.terminal.as_ref().and_then(|_| Line::pair().ok()).unzip();
        let companion = keyboards_end.as_ref().map(|end| Companion { run: keyboard::run, line: end.as_fd() });
        let terminal = self.terminal.as_mut().and_then(Foreground::to_hand_over);
        let birth = self.tree.birth(self.birth, self.policy.start_by());
        let birth = Birth { terminal, companion, listens: self.listens, ..birth };
        let child = match self.namespaces {
            None => sys::start(program, birth).map(|started| self.starting.insert(started).pid),
            Some(namespaces) => init::start(namespaces, program, self.stop_signal, birth).map(|(init, line)| {
                self.inits_line = Some(line);
                *self.init.insert(init)
            }),
        };
        match child {
            Ok(child) => {
                self.keyboard = keyboard;
                self.tree.grew(self.init);
                self.set_command(child);
            }
            Err(error) => self.command_ended(Err(error.into())),
        }
    }

    fn set_command(&mut self, command: Pid) {
        self.command = Some(command);
        if let Some(terminal) = &mut self.terminal {
            terminal.borrower = Some(command);
        }
    }

    /// Hears whether COMMAND has become its program. `exited` as for [`Started::became_program`]. True: it could not.
    fn hear_exec(&mut self, exited: Option<bool>) -> bool {
        let Some(became_program) = self.starting.as_ref().and_then(|starting| starting.became_program(exited)) else {
            return false;
        };
        let pid = self.starting.take().expect("it was there").pid.as_raw();
        match became_program {
            Ok(true) => self.has_started(pid),
            // Its end is about to be seen.
            Ok(false) => {}
            Err(error) => {
                self.command_ended(Err(error.into()));
                return true;
            }
        }
        false
    }

    fn has_started(&mut self, pid: i32) {
        self.report(&Report::Started { pid });
        self.has_started = true;
        // `--max-run` counts from here.
        self.take(Input::CommandStarted);
        if let Some(checker) = &mut self.checker {
            checker.checks.command_started(BootInstant::now());
        }
    }

    fn wake_at(&self) -> BootInstant {
        let check = self.checker.as_ref().map_or(BootInstant::NEVER, |checker| checker.checks.wake_at());
        let sample = self.sampler.as_ref().map_or(BootInstant::NEVER, Sampler::due);
        self.policy.wake_at().min(check).min(sample).min(self.ask_terminal_at)
    }

    fn measure_lateness(&mut self) {
        if let Some(worst) = self.sampler.as_mut().and_then(Sampler::sample) {
            self.report(&Report::Late(worst));
            self.take(Input::Late(worst));
        }
    }

    /// Kills every process that can be found, and records when that was first done. Returns when to look again.
    fn kill(&mut self) -> BootInstant {
        // Without a cgroup and without /proc, nothing else finds a hook.
        if let Some((_, hook)) = &self.hook {
            let _ = nix::sys::signal::killpg(hook.pid, Signal::SIGKILL);
        }
        let next = self.tree.kill();
        if let Some(Kill { signalled: signalled @ None, .. }) = &mut self.kill {
            *signalled = Some(BootInstant::now());
        }
        next
    }

    fn report_kill(&mut self) {
        if let Some(Kill { due, woken, signalled: Some(signalled) }) = self.kill.take() {
            let [woken, signalled, empty] = [woken, signalled, BootInstant::now()].map(|instant| instant.since(due));
            self.report(&Report::Killed { woken, signalled, empty });
        }
    }

    /// Has the kernel kill this process if it is still frozen late in the margin. But not once it kills the tree: it
    /// may be the last that does, and the tree may be slow to die.
    fn set_kill_timer(&mut self) {
        let whole = self.namespaces.is_some();
        let at = if self.policy.kills() { BootInstant::NEVER } else { self.policy.kill_timer_at(whole) };
        let _ = self.kill_timer.set(at.since_boot());
    }

    fn take(&mut self, input: Input) {
        let now = BootInstant::now();
        let due = self.policy.wake_at().min(now);
        for effect in self.policy.handle(now, input) {
            match effect {
                Effect::Start => self.start(),
                Effect::RunPreStart => self.run_hook(Hook::PreStart, self.policy.start_by()),
                Effect::RunPreStop => self.run_hook(Hook::PreStop, self.policy.end_by()),
                Effect::RunPostStop => {
                    self.set_kill_timer();
                    self.run_hook(Hook::PostStop, self.policy.end_by());
                }
                Effect::KillHook => self.kill_hook(),
                Effect::Finish => self.finished = true,
                Effect::AskTree => self.ask(),
                Effect::KillTree => {
                    // COMMAND dies first, so that it needs no kill timer any more.
                    self.signal_group(Signal::SIGKILL);
                    self.set_kill_timer();
                    self.kill = Some(Kill { due, woken: now, signalled: None });
                }
                Effect::Report(event) => {
                    self.report(&Report::Tree(event));
                    // A job that the terminal stopped ends as well.
                    if let (TreeEvent::Overran, Some(terminal)) = (event, &self.terminal) {
                        terminal.wake_owner();
                    }
                }
                Effect::Signal(signal) => {
                    // Perhaps Ctrl-\, typed while the candidate's group has the terminal.
                    if signal == libc::SIGQUIT && self.terminal.is_some() {
                        self.interrupted(Interrupt { signal, command_alone: false }, now);
                    }
                    self.pass_on(Order::Signal(signal));
                }
                Effect::Continue => {
                    if let Some(terminal) = &mut self.terminal {
                        terminal.lend_again();
                    }
                    self.pass_on(Order::Continue);
                }
            }
        }
        if matches!(input, Input::Order(Order::Extend(_) | Order::Late(_)) | Input::Late(_)) {
            self.set_kill_timer();
        }
    }

    /// Sends the stop signal to every process once, and SIGCONT after it: a stopped process cannot obey.
    fn ask(&mut self) {
        if self.tree.is_empty() {
            return;
        }
        if let Some(line) = &self.inits_line {
            line.order(STOP);
        }
        // A stopped init cannot pass it on.
        if let Some(init) = self.init {
            let _ = kill(init, Signal::SIGCONT);
        }
        let signals = [self.stop_signal, Signal::SIGCONT];
        for signal in signals {
            self.signal_group(signal);
        }
        self.starting.iter().for_each(Started::cancel);
        // Finding the other processes takes longer, so the group goes first, and what is due next does not wait for
        // them.
        self.tree.ask(signals, self.group(), self.policy.asks_until());
    }

    /// COMMAND's process group. It is safe to signal while COMMAND has not been reaped. None in a PID namespace, where
    /// the init reaps COMMAND.
    fn group(&self) -> Option<Pid> {
        self.command.filter(|_| self.namespaces.is_none())
    }

    fn signal_group(&self, signal: Signal) {
        if let Some(group) = self.group() {
            let _ = nix::sys::signal::killpg(group, signal);
        }
    }

    /// Has COMMAND's parent do what an order says of COMMAND alone.
    fn pass_on(&self, order: Order) {
        match &self.inits_line {
            Some(line) => line.order(order),
            None => self.group().into_iter().for_each(|command| init::pass_on(order, command)),
        }
    }

    /// Reaps children that ended, and handles COMMAND's stops.
    fn reap(&mut self) {
        self.hear_exec(None);
        self.hear_init();
        loop {
            match self.tree.reap(WaitPidFlag::WEXITED | WaitPidFlag::WSTOPPED) {
                Some((pid, ChildState::Exited(status))) => self.ended(pid, CommandEnd::Exited(status)),
                Some((pid, ChildState::Signalled(signal))) => self.ended(pid, CommandEnd::Signalled(signal)),
                Some((pid, ChildState::Stopped(signal))) if Some(pid) == self.command => self.stopped(signal),
                Some((_, ChildState::Stopped(_) | ChildState::Continued)) => {}
                None => return,
            }
        }
    }

    fn ended(&mut self, pid: Pid, end: CommandEnd) {
        if self.init == Some(pid) {
            // Read its last reports first. Without one about COMMAND's end, the init was killed, and COMMAND with it.
            self.hear_init();
            self.init = None;
            if self.command.is_some() {
                let was_killed = self.has_started || self.policy.kills();
                let killed = was_killed.then_some(CommandEnd::Signalled(libc::SIGKILL));
                self.command_ended(killed.ok_or(StartError(sys::NO_PROCESS)));
            }
        } else if self.command == Some(pid) {
            // From here on another process group may get the number.
            self.command = None;
            if !self.hear_exec(Some(matches!(end, CommandEnd::Exited(_)))) {
                self.command_reaped(end);
            }
        } else if let Some((hook, started)) = self.hook.take_if(|(_, started)| started.pid == pid) {
            self.hook_over(hook, how_it_ended(&started, end));
        } else if let Some(check) = self.checker.as_mut().and_then(|checker| checker.reaped(pid)) {
            self.check_ended(how_it_ended(&check, end));
        }
    }

    /// COMMAND was reaped. One that was stopped before it had begun has never run.
    fn command_reaped(&mut self, end: CommandEnd) {
        let cut = !self.has_started && self.policy.reason().is_some();
        self.command_ended(if cut { Err(CUT) } else { Ok(end) });
    }

    fn command_ended(&mut self, end: Result<CommandEnd, StartError>) {
        self.news = Some(match end {
            Ok(end) => {
                self.report(&Report::Tree(TreeEvent::Ended(end)));
                Input::CommandEnded
            }
            Err(StartError(libc::ETIME)) => {
                self.report(&Report::Tree(TreeEvent::DeadlineReached));
                self.report(&Report::Tree(TreeEvent::Unready(HookEnd::Cut)));
                Input::CommandNotStarted(Reason::Lost)
            }
            Err(CUT) => {
                self.report(&Report::Tree(TreeEvent::Unready(HookEnd::Cut)));
                Input::CommandNotStarted(self.policy.reason().unwrap_or(Reason::Lost))
            }
            Err(error) => {
                self.report(&Report::Tree(TreeEvent::NotStarted(error)));
                Input::CommandNotStarted(Reason::NotStarted)
            }
        });
        self.command_end = end.ok();
        self.ask_terminal_at = BootInstant::NEVER;
        // Nothing else is left to see.
        if let Some(keyboard) = &self.keyboard {
            keyboard.order(STOP);
        }
        if let Some((interrupt, at)) = self.key
            // If it obeyed the key.
            && BootInstant::now().since(at) <= self.policy.grace
        {
            self.report(&Report::Tree(TreeEvent::Interrupted(interrupt)));
        }
        self.command = None;
        self.starting = None;
    }

    /// Reads what the init of COMMAND's PID namespace reports.
    fn hear_init(&mut self) {
        while let Some((init, line)) = self.init.zip(self.inits_line.as_ref()) {
            match line.hear() {
                Heard::Message(Report::Started { .. }, _) => {
                    // Where /proc does not show COMMAND, report its init instead.
                    let command = self.tree.child_of(init).unwrap_or(init);
                    self.set_command(command);
                    self.has_started(command.as_raw());
                }
                Heard::Message(Report::Tree(TreeEvent::Ended(end)), _) => self.command_reaped(end),
                Heard::Message(Report::Tree(TreeEvent::NotStarted(error)), _) => self.command_ended(Err(error)),
                Heard::Message(Report::Paused { signal }, _) => self.stopped(signal),
                // An init reports nothing else that matters now.
                Heard::Message(..) => {}
                Heard::Silence => return,
                // The init is dying, and the kernel kills the rest of its namespace before it can be reaped.
                Heard::Closed => self.inits_line = None,
            }
        }
    }

    fn hear(&mut self) -> Option<Input> {
        match self.line.as_ref()?.hear() {
            Heard::Message(order, sent_at) => {
                if let Some(sampler) = &mut self.sampler {
                    sampler.heard(sent_at);
                }
                Some(Input::Order(order))
            }
            Heard::Silence => None,
            Heard::Closed => {
                self.line = None;
                Some(Input::CandidateGone)
            }
        }
    }

    fn report(&self, report: &Report) {
        if let Some(line) = &self.line {
            line.report(report);
        }
    }
}
