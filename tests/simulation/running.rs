//! A leadership on its host: [`Leadership`] by the host's clock, around a COMMAND that may end by itself, or not obey, and
//! may leave something behind.

use crate::clock::Process;
use crate::host::{Machine, Site, release_after_a_crash};
use crate::leadership::{Leadership, Link, Mode, Output, Tree};
use crate::random::Random;
use leaderrun::internals::election::{CommandEnd, Event};
use leaderrun::internals::guard::policy::Effect;
use leaderrun::internals::lease::{Candidate, Deadline, Term};
use leaderrun::internals::time::BootInstant;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;

/// What kind of COMMAND it is.
#[derive(Clone, Copy, Debug)]
pub struct Temper {
    /// It ends by itself then.
    pub lasts: Duration,
    /// How long it takes to obey the stop signal. None where it does not.
    pub obeys_after: Option<Duration>,
    /// What it forked lives on when it ends, until it is killed.
    pub leaves_children: bool,
    /// How long SIGKILL takes to work.
    pub dies_in: Duration,
}

impl Temper {
    pub fn any(random: &mut Random, grace: Duration) -> Self {
        let grace = u64::try_from(grace.as_millis()).expect("not so long");
        Self {
            lasts: random.millis(1, 120_000),
            obeys_after: random.per_mille(700).then(|| random.millis(1, grace * 2)),
            leaves_children: random.per_mille(300),
            dies_in: random.millis(1, 200),
        }
    }
}

pub struct Running {
    leadership: Mutex<Leadership>,
    /// Something was done to it.
    changed: Notify,
    site: Arc<Site>,
    pub candidate: Process,
    /// Only stopped with its host.
    tree: Process,
    temper: Temper,
    /// The number of its life, once COMMAND has begun.
    life: OnceLock<usize>,
    tell: UnboundedSender<Event>,
    lease: (Candidate, Term),
}

impl Running {
    /// The guard is there after `exec`.
    pub fn start(
        machine: &Arc<Machine>,
        (candidate, tell): (Process, UnboundedSender<Event>),
        lease: (Candidate, Term),
        deadline: Deadline,
    ) -> Arc<Self> {
        let site = Arc::clone(&machine.site);
        let grace = site.settings.timing.stop_grace;
        let temper = machine.temper(grace);
        let exec = machine.millis(1, 40);
        let mut leadership = Leadership::new(deadline, grace, false);
        leadership.tree = Tree::Awaited;
        let this = Arc::new(Self {
            leadership: Mutex::new(leadership),
            changed: Notify::new(),
            site,
            candidate,
            tree: machine.process(),
            temper,
            life: OnceLock::new(),
            tell,
            lease,
        });
        this.later(exec, Self::guard_comes);
        tokio::spawn(Arc::clone(&this).run(Arc::clone(machine)));
        this
    }

    fn leadership(&self) -> MutexGuard<'_, Leadership> {
        self.leadership.lock().expect("nobody panicked")
    }

    /// Does something to it. What follows comes at once, unless its host is suspended.
    pub fn act<T>(&self, act: impl FnOnce(&mut Leadership) -> T) -> T {
        self.changed.notify_one();
        act(&mut self.leadership())
    }

    /// Whether this process cannot do anything now.
    pub fn is_hindered(&self, link: Link) -> bool {
        match link {
            Link::Candidate => self.candidate.is_killed() || self.candidate.is_held(),
            Link::Guard | Link::Backstop => self.tree.is_held() || self.leadership().mode(link) != Mode::Runs,
        }
    }

    /// Neither guard nor backstop is left.
    pub fn is_alone(&self) -> bool {
        [Link::Guard, Link::Backstop].into_iter().all(|link| self.leadership().mode(link) == Mode::Gone)
    }

    async fn run(self: Arc<Self>, machine: Arc<Machine>) {
        while !self.settle(&machine) {
            // A host that is suspended wakes for nothing.
            let wakes = Link::ALL.into_iter().filter(|_| !self.tree.is_held());
            let wake_at = wakes.map(|link| self.leadership().wake_at(link)).min().unwrap_or(BootInstant::NEVER);
            tokio::select! {
                biased;
                () = self.changed.notified() => {}
                () = self.site.clock.reaches(wake_at) => {}
            }
        }
    }

    /// Does what is due. True once it is over.
    fn settle(self: &Arc<Self>, machine: &Arc<Machine>) -> bool {
        if self.tree.is_held() {
            return false;
        }
        let now = self.site.clock.now();
        let mut leadership = self.leadership();
        leadership.settle(now);
        for link in Link::ALL {
            if leadership.wake_at(link) <= now {
                leadership.wake(link, now);
                leadership.settle(now);
            }
        }
        let (outputs, is_over) = (leadership.take_outputs(), leadership.is_over());
        drop(leadership);
        for output in outputs {
            self.deliver(output, machine);
        }
        is_over
    }

    fn deliver(self: &Arc<Self>, output: Output, machine: &Arc<Machine>) {
        let (Site { index, world, .. }, (candidate, term)) = (&*self.site, &self.lease);
        match output {
            Output::Heard(_) => {}
            Output::Did(effect) => {
                if let Some(time) = self.temper.obeys_after.filter(|_| effect == Effect::AskTree) {
                    self.later(time, Self::command_ends);
                }
            }
            Output::Told(event) => drop(self.tell.send(Event::Tree(event))),
            Output::Started => {
                let life = world.begins(*index, candidate.session.as_str(), term.0, &self.tree);
                self.life.set(life).expect("it starts once");
                self.later(self.temper.lasts, Self::command_ends);
            }
            Output::Killed => self.later(self.temper.dies_in, Self::tree_dies),
            Output::GuardKilled => self.command_ends(),
            Output::LastWill => {
                tokio::spawn(release_after_a_crash(Arc::clone(machine), candidate.clone(), *term));
            }
        }
    }

    /// Does something after a while in which its host is not suspended.
    fn later(self: &Arc<Self>, time: Duration, act: fn(&Self)) {
        let this = Arc::clone(self);
        tokio::spawn(self.tree.run(async move {
            tokio::time::sleep(time).await;
            act(&this);
        }));
    }

    fn guard_comes(&self) {
        self.act(|leadership| {
            if leadership.tree == Tree::Awaited {
                leadership.tree = Tree::Due;
            }
        });
    }

    /// COMMAND itself ends, or what it left behind.
    fn command_ends(&self) {
        let leaves_children = self.temper.leaves_children && self.leadership().command_lives();
        if leaves_children {
            self.act(|leadership| leadership.command_ends(CommandEnd::Exited(0)));
        } else {
            self.tree_dies();
        }
    }

    fn tree_dies(&self) {
        let lived = self.leadership().tree != Tree::Dead;
        self.act(|leadership| leadership.tree_dies(CommandEnd::Exited(0)));
        if let Some(&life) = self.life.get().filter(|_| lived) {
            self.site.world.ends(life);
        }
    }
}
