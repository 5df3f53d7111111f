//! A host: its clock, and the processes on it: candidates one after another, and for each leadership a guard, a backstop
//! and a tree. The candidate is `driver` as it is; the guard's policy is `guard::policy` as it is, and around it here
//! stands what `guard`, `backstop` and `guard_handle` do with real processes.

use crate::clock::{Clock, Process, elapsed};
use crate::random::Random;
use crate::tree::{Temper, Tree};
use crate::watched::Watched;
use crate::world::World;
use leaderrun::internals::election::{Action, CommandEnd, Event, Settings, StartError, Stop, TreeEvent};
use leaderrun::internals::guard::orphan_release;
use leaderrun::internals::guard::policy::{Effect, Input, Order, Policy};
use leaderrun::internals::lease::{Candidate, Deadline, Session, Shard, Term, kept};
use leaderrun::internals::runner::driver::{self, Host, Options};
use leaderrun::internals::slots::Campaign;
use leaderrun::internals::store::{
    Administration, Claim, Delivery, EachPage, Finding, Leases, Note, Notes, Observation, Page, Release, Renewed,
    Report, Store, StoreError,
};
use leaderrun::internals::time::BootInstant;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// As in the backstop: how long after its grace a guard whose candidate is gone may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// Makes a host's client of the store.
pub type Open = Arc<dyn Fn(usize) -> Arc<dyn Store> + Send + Sync>;

/// What is known of a host from the start.
pub struct Site {
    pub index: usize,
    pub clock: Clock,
    pub shard: Shard,
    pub settings: Settings,
    pub world: World,
    pub open: Open,
    pub announces: bool,
    /// What its commands are like; None is anything.
    pub temper: Option<Temper>,
}

pub struct Machine {
    pub site: Site,
    state: Mutex<State>,
}

struct State {
    random: Random,
    suspended: bool,
    /// No candidate is started any more.
    closed: bool,
    processes: Vec<Process>,
    candidate: Option<(Process, UnboundedSender<Event>)>,
    links: Option<Links>,
}

/// The three that can kill a tree.
#[derive(Clone)]
pub struct Links {
    pub candidate: Process,
    pub guard: Process,
    pub backstop: Process,
}

impl Links {
    pub fn all(&self) -> [&Process; 3] {
        [&self.candidate, &self.guard, &self.backstop]
    }
}

impl Machine {
    pub fn new(site: Site, random: Random) -> Arc<Self> {
        let state =
            State { random, suspended: false, closed: false, processes: Vec::new(), candidate: None, links: None };
        Arc::new(Self { site, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panicked")
    }

    fn millis(&self, least: u64, most: u64) -> Duration {
        self.state().random.millis(least, most)
    }

    fn process(&self) -> Process {
        let process = Process::new(self.site.clock);
        let mut state = self.state();
        if state.suspended {
            process.hold();
        }
        state.processes.retain(|process| !process.is_killed());
        state.processes.push(process.clone());
        process
    }

    pub fn suspend(&self) {
        let mut state = self.state();
        state.suspended = true;
        state.processes.iter().for_each(Process::hold);
    }

    pub fn resume(&self) {
        let processes = {
            let mut state = self.state();
            state.suspended = false;
            state.processes.clone()
        };
        self.site.world.resumed(self.site.index);
        processes.iter().for_each(Process::let_go);
    }

    pub fn is_suspended(&self) -> bool {
        self.state().suspended
    }

    pub fn candidate(&self) -> Option<Process> {
        self.state().candidate.as_ref().map(|(process, _)| process.clone()).filter(|process| !process.is_killed())
    }

    pub fn links(&self) -> Option<Links> {
        self.state().links.clone()
    }

    /// SIGTERM to the candidate.
    pub fn ask(&self) {
        if let Some((_, inbox)) = &self.state().candidate {
            let _ = inbox.send(Event::Asked { signal: 15 });
        }
    }

    pub fn close(&self) {
        self.state().closed = true;
    }

    /// Runs one candidate after another, as a service manager does, until it is closed.
    pub async fn serve(self: Arc<Self>) {
        while !self.state().closed {
            let process = self.process();
            let (tell, inbox) = unbounded_channel();
            self.state().candidate = Some((process.clone(), tell.clone()));
            let (seed, session) = {
                let mut state = self.state();
                (state.random.next(), format!("session-{:016x}", state.random.next()))
            };
            let candidate = Candidate {
                shard: self.site.shard.clone(),
                owner: format!("host{}", self.site.index),
                session: Session::from_record(&session),
                host: format!("host{}", self.site.index),
                pid: 1,
                lease: kept(self.site.settings.timing.lease),
            };
            let this = Arc::clone(&self);
            let own = process.clone();
            let run = async move {
                let store = Arc::new(UsedBy { process: own.clone(), store: (this.site.open)(this.site.index) });
                let mut body = Body { machine: Arc::clone(&this), process: own, tell, inbox, lines: None };
                let announces = this.site.announces;
                let options = Options { announces, counts: announces, job: None, schedule: None };
                driver::run(this.site.settings, candidate, Campaign::new(store), &mut body, options, seed).await
            };
            let outcome = tokio::spawn(process.run(run)).await.expect("a candidate does not panic");
            process.kill();
            self.state().candidate = None;
            match outcome {
                Some(Ok(outcome)) => {
                    self.site.world.say(&format!("host {}: candidate ends: {outcome:?}", self.site.index));
                }
                Some(Err(error)) => panic!("{error}"),
                None => {}
            }
            let pause = self.millis(20, 3_000);
            tokio::time::sleep(pause).await;
        }
    }
}

/// A store as a process uses it: by its host's clock, and not while it is stopped. What the driver asks for runs in
/// tasks of their own.
struct UsedBy {
    process: Process,
    store: Arc<dyn Store>,
}

impl UsedBy {
    async fn run<T>(&self, future: impl Future<Output = T> + Send) -> T {
        match self.process.run(future).await {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }
}

#[async_trait::async_trait]
impl Notes for UsedBy {
    async fn read(&self, shard: &Shard, page: &Page) -> Result<Option<Note>, StoreError> {
        self.run(self.store.read(shard, page)).await
    }

    async fn replace(
        &self,
        shard: &Shard,
        page: &Page,
        expected: Option<&str>,
        draft: Option<&Note>,
    ) -> Result<bool, StoreError> {
        self.run(self.store.replace(shard, page, expected, draft)).await
    }

    async fn standbys(&self, prefix: &str) -> Result<Vec<(Shard, Note)>, StoreError> {
        self.run(self.store.standbys(prefix)).await
    }
}

#[async_trait::async_trait]
impl Leases for UsedBy {
    async fn claim(&self, candidate: &Candidate) -> Result<Claim, StoreError> {
        self.run(self.store.claim(candidate)).await
    }

    async fn observe(&self, shard: &Shard) -> Result<Observation, StoreError> {
        self.run(self.store.observe(shard)).await
    }

    async fn renew_and_read(
        &self,
        candidate: &Candidate,
        term: Term,
        sequence: u64,
        shards: &[Shard],
    ) -> Result<Renewed, StoreError> {
        self.run(self.store.renew_and_read(candidate, term, sequence, shards)).await
    }

    async fn release(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        self.run(self.store.release(candidate, term)).await
    }

    async fn changed(&self, shard: &Shard) -> Result<(), StoreError> {
        self.run(self.store.changed(shard)).await
    }
}

#[async_trait::async_trait]
impl Administration for UsedBy {
    async fn inspect(&self, shard: &Shard) -> Result<Report, StoreError> {
        self.run(self.store.inspect(shard)).await
    }

    async fn list_in_pages(&self, prefix: &str, each: &mut EachPage<'_>) -> Result<(), StoreError> {
        self.run(self.store.list_in_pages(prefix, each)).await
    }

    async fn revoke(&self, shard: &Shard, term: Term) -> Result<Release, StoreError> {
        self.run(self.store.revoke(shard, term)).await
    }

    async fn prepare(&self) -> Result<Vec<String>, StoreError> {
        self.run(self.store.prepare()).await
    }

    async fn check(&self) -> Result<Vec<Finding>, StoreError> {
        self.run(self.store.check()).await
    }
}

impl Store for UsedBy {
    fn delivery(&self) -> Delivery {
        self.store.delivery()
    }
}

/// The candidate's side of its host.
struct Body {
    machine: Arc<Machine>,
    process: Process,
    tell: UnboundedSender<Event>,
    inbox: UnboundedReceiver<Event>,
    /// Of the last leadership.
    lines: Option<Lines>,
}

struct Lines {
    guard: UnboundedSender<Order>,
    backstop: UnboundedSender<Deadline>,
    seize: Watched<bool>,
}

/// How a process ended: None while it runs, and then whether by its own decision.
type End = Watched<Option<bool>>;

/// Runs it as `process`, and tells of its end.
fn spawn(
    process: &Process,
    run: impl Future<Output = ()> + Send + 'static,
    then: impl FnOnce(bool) + Send + 'static,
) -> End {
    let end = Watched::new(None);
    let (process, running, ended) = (process.clone(), process.run(run), end.clone());
    tokio::spawn(async move {
        let own_decision = running.await.is_some();
        process.kill();
        then(own_decision);
        ended.set(Some(own_decision));
    });
    end
}

async fn has_ended(end: &End) -> bool {
    end.wait_for(|end| end.is_some()).await.expect("it has ended")
}

impl Host for Body {
    async fn next(&mut self, wake_at: BootInstant) -> io::Result<Event> {
        tokio::select! {
            biased;
            Some(event) = self.inbox.recv() => Ok(event),
            () = self.process.clock.reaches(wake_at) => Ok(Event::Tick),
        }
    }

    fn start(&mut self, candidate: &Candidate, term: Term, deadline: Deadline, _: &Campaign) -> Result<(), StartError> {
        let machine = &self.machine;
        let grace = machine.site.settings.timing.stop_grace;
        let temper = machine.site.temper.unwrap_or_else(|| Temper::any(&mut machine.state().random, grace));
        let tree = Tree::new(&machine.site.world, machine.process(), temper);
        let (guard, backstop) = (machine.process(), machine.process());
        machine.state().links =
            Some(Links { candidate: self.process.clone(), guard: guard.clone(), backstop: backstop.clone() });
        let (order, orders) = unbounded_channel();
        let (extend, extensions) = unbounded_channel();
        let seize = Watched::new(false);
        self.lines = Some(Lines { guard: order, backstop: extend, seize: seize.clone() });
        let exec = machine.millis(1, 40);
        let guards = Guard {
            tree: tree.clone(),
            deadline,
            grace,
            tell: self.tell.clone(),
            begin: (machine.site.index, candidate.session.as_str().to_owned(), term.0),
            world: machine.site.world.clone(),
        };
        let left = tree.clone();
        let guard_end = spawn(&guard, guards.run(orders, exec), move |own_decision| {
            if !own_decision {
                // COMMAND dies with it, what it forked does not.
                left.command_ends();
            }
        });
        let backstops = Backstop {
            tree: tree.clone(),
            limit: deadline.backstop_at,
            grace,
            tell: self.tell.clone(),
            guard: guard.clone(),
            guard_end,
            clock: machine.site.clock,
        };
        let (machine_again, candidate, lives) = (Arc::clone(machine), candidate.clone(), self.process.clone());
        let backstop_end = spawn(&backstop, backstops.run(extensions), move |own_decision| {
            if own_decision && lives.is_killed() {
                tokio::spawn(release_after_a_crash(machine_again, candidate, term));
            }
        });
        let tell = self.tell.clone();
        let watch = async move {
            let proven = tokio::select! {
                biased;
                proven = has_ended(&backstop_end) => {
                    if !proven {
                        let _ = tell.send(Event::Tree(TreeEvent::GuardFailed));
                    }
                    proven
                }
                _ = seize.wait_for(|seized| seized) => false,
            };
            if !proven {
                backstop.kill();
                guard.kill();
                tree.kill();
                tree.dead().await;
            }
            let _ = tell.send(Event::Tree(TreeEvent::Dead));
        };
        let process = self.process.clone();
        tokio::spawn(async move { process.run(watch).await });
        Ok(())
    }

    fn saw(&mut self, event: &Event) {
        self.machine.site.world.trace(self.machine.site.index, format_args!("heard {event:?}"));
    }

    fn carry_out(&mut self, action: &Action) {
        self.machine.site.world.trace(self.machine.site.index, format_args!("did {action:?}"));
        let Some(lines) = &self.lines else { return };
        match action {
            Action::Extend(deadline) => {
                let _ = lines.guard.send(Order::Extend(*deadline));
                let _ = lines.backstop.send(*deadline);
            }
            Action::Stop(stop) => {
                let _ = lines.guard.send(match *stop {
                    Stop::Orderly { kill_after, .. } => Order::Stop { kill_after },
                    Stop::Losing { .. } => Order::Lose,
                    Stop::Kill => Order::Kill,
                });
            }
            Action::Seize => {
                lines.seize.set(true);
            }
            _ => {}
        }
    }
}

struct Guard {
    tree: Tree,
    deadline: Deadline,
    grace: Duration,
    tell: UnboundedSender<Event>,
    begin: (usize, String, u64),
    world: World,
}

impl Guard {
    async fn run(self, mut orders: UnboundedReceiver<Order>, exec: Duration) {
        let tell = |event| drop(self.tell.send(Event::Tree(event)));
        tokio::time::sleep(exec).await;
        if BootInstant::now() >= self.deadline.term_at {
            tell(TreeEvent::DeadlineReached);
            return self.tree.kill();
        }
        let (host, session, term) = &self.begin;
        self.tree.begin(*host, session, *term);
        let mut policy = Policy::new(self.deadline, self.grace);
        let (mut candidate_lives, mut command_lives) = (true, true);
        let clock = crate::clock::here();
        loop {
            let input = tokio::select! {
                biased;
                () = self.tree.ended(), if command_lives => {
                    command_lives = false;
                    tell(TreeEvent::Ended(CommandEnd::Exited(0)));
                    Input::CommandEnded
                }
                () = self.tree.dead(), if !command_lives => return,
                order = orders.recv(), if candidate_lives => {
                    candidate_lives = order.is_some();
                    order.map_or(Input::CandidateGone, Input::Order)
                }
                () = clock.reaches(policy.wake_at()) => Input::Tick,
            };
            self.world.trace(*host, format_args!("guard heard {input:?}"));
            for effect in policy.handle(BootInstant::now(), input) {
                self.world.trace(*host, format_args!("guard did {effect:?}"));
                match effect {
                    Effect::AskTree => self.tree.ask(),
                    Effect::KillTree => self.tree.kill(),
                    Effect::ReportOverrun => tell(TreeEvent::Overran),
                    Effect::ReportDeadline => tell(TreeEvent::DeadlineReached),
                    Effect::Signal(_) | Effect::Continue => {}
                    // Of hooks, and there are none.
                    Effect::Start
                    | Effect::ReportUnready(_)
                    | Effect::RunPreStop
                    | Effect::RunPostStop
                    | Effect::KillHook
                    | Effect::Finish => unreachable!("{effect:?}"),
                }
            }
        }
    }
}

struct Backstop {
    tree: Tree,
    limit: BootInstant,
    grace: Duration,
    tell: UnboundedSender<Event>,
    guard: Process,
    guard_end: End,
    clock: Clock,
}

impl Backstop {
    async fn run(mut self, mut extensions: UnboundedReceiver<Deadline>) {
        let mut candidate_lives = true;
        let own_decision = loop {
            tokio::select! {
                biased;
                own_decision = has_ended(&self.guard_end) => break own_decision,
                extension = extensions.recv(), if candidate_lives => {
                    if let Some(deadline) = extension {
                        self.limit = self.limit.max(deadline.backstop_at);
                    } else {
                        candidate_lives = false;
                        self.limit = self.limit.min(BootInstant::now().plus(self.grace).plus(PATIENCE));
                    }
                }
                () = self.clock.reaches(self.limit) => {
                    self.guard.kill();
                    self.limit = BootInstant::NEVER;
                }
            }
        };
        if !own_decision {
            let _ = self.tell.send(Event::Tree(TreeEvent::GuardFailed));
        }
        if !self.tree.is_dead() {
            self.tree.kill();
        }
        self.tree.dead().await;
    }
}

/// A backstop whose candidate is gone gives the lease back.
async fn release_after_a_crash(machine: Arc<Machine>, candidate: Candidate, term: Term) {
    let process = machine.process();
    let run = async move {
        let store = (machine.site.open)(machine.site.index);
        let given = orphan_release::give_back(&*store, &candidate, term).await;
        let end = if given.is_ok() { "is given back by its backstop" } else { "is left to end" };
        machine.site.world.trace(machine.site.index, format_args!("lease of {term} {end}"));
        machine
            .site
            .world
            .say(&format!("host {}: release after a crash of term {term}: {given:?}", machine.site.index));
    };
    process.run(run).await;
    process.kill();
}

/// Waits until something is so.
pub async fn until(most: Duration, so: impl Fn() -> bool) -> bool {
    let give_up = elapsed() + most;
    while !so() {
        if elapsed() > give_up {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    true
}
