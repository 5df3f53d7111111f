//! A host: its clock, and the candidates on it, one after another. Each is `driver` as it is; `running` has what runs around
//! its leaderships.

use crate::clock::{Clock, Process, elapsed};
use crate::leadership::Link;
use crate::random::Random;
use crate::running::{Running, Temper};
use crate::world::World;
use leaderrun::internals::election::{Action, Event, Settings, StartError};
use leaderrun::internals::guard::orphan_release;
use leaderrun::internals::lease::{Candidate, Deadline, Session, Shard, Term, kept};
use leaderrun::internals::runner::driver::{self, Host, Options};
use leaderrun::internals::slots::Campaign;
use leaderrun::internals::store::{
    Administration, Claim, Delivery, Finding, Leases, Note, Notes, Observation, Page, Release, Renewed, Report, Store,
    StoreError, Takeover,
};
use leaderrun::internals::time::BootInstant;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

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
}

pub struct Machine {
    pub site: Arc<Site>,
    state: Mutex<State>,
}

struct State {
    random: Random,
    suspended: bool,
    /// No candidate is started any more.
    closed: bool,
    processes: Vec<Process>,
    candidate: Option<(Process, UnboundedSender<Event>)>,
    /// Those that are not over, and the last one.
    running: Vec<Arc<Running>>,
}

/// A process that a fault may strike: the candidate, or one of its last leadership.
pub struct Target {
    pub link: Link,
    candidate: Process,
    running: Option<Arc<Running>>,
}

impl Target {
    /// SIGSTOP, or SIGCONT.
    pub fn set_frozen(&self, frozen: bool) {
        match (self.link, frozen) {
            (Link::Candidate, true) => self.candidate.hold(),
            (Link::Candidate, false) => self.candidate.let_go(),
            (Link::Guard | Link::Backstop, _) => {}
        }
        if let Some(running) = &self.running {
            running.act(|leadership| leadership.set_frozen(self.link, frozen));
        }
    }

    /// SIGKILL.
    pub fn kill(&self) {
        match (self.link, &self.running) {
            (Link::Guard | Link::Backstop, Some(running)) => running.act(|leadership| leadership.kill(self.link)),
            // The end of its lines tells the others.
            _ => self.candidate.kill(),
        }
    }
}

impl Machine {
    pub fn new(site: Site, random: Random) -> Arc<Self> {
        let state = State {
            random,
            suspended: false,
            closed: false,
            processes: Vec::new(),
            candidate: None,
            running: Vec::new(),
        };
        Arc::new(Self { site: Arc::new(site), state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panicked")
    }

    /// A COMMAND of this host.
    pub fn temper(&self, grace: Duration) -> Temper {
        Temper::any(&mut self.state().random, grace)
    }

    pub fn millis(&self, least: u64, most: u64) -> Duration {
        self.state().random.millis(least, most)
    }

    pub fn process(&self) -> Process {
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
        let (processes, running) = {
            let mut state = self.state();
            state.suspended = false;
            (state.processes.clone(), state.running.clone())
        };
        self.site.world.resumed(self.site.index);
        processes.iter().for_each(Process::let_go);
        for running in running {
            running.act(|_| {});
        }
    }

    pub fn is_suspended(&self) -> bool {
        self.state().suspended
    }

    /// One of those that can kill the tree, as `draw` has it, or the candidate that has none. None where that would leave
    /// nobody who can.
    pub fn target(&self, draw: impl FnOnce() -> Link) -> Option<Target> {
        let running = self.state().running.last().cloned();
        let Some(running) = running.filter(|running| !running.is_alone()) else {
            let (candidate, _) = self.state().candidate.clone()?;
            let target = Target { link: Link::Candidate, candidate, running: None };
            return Some(target).filter(|target| !target.candidate.is_killed());
        };
        let link = draw();
        // All three at once is beyond what is promised.
        let others = Link::ALL.into_iter().filter(|&other| other != link && running.is_hindered(other)).count();
        let target = Target { link, candidate: running.candidate.clone(), running: Some(Arc::clone(&running)) };
        (others < 2 && !running.is_hindered(link)).then_some(target)
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
                let mut body = Body { machine: Arc::clone(&this), process: own, tell, inbox, running: None };
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

macro_rules! used_by {
    ($($role:ident { $($name:ident($($argument:ident: $type:ty),*) -> $answer:ty;)* })*) => {$(
        #[async_trait::async_trait]
        impl $role for UsedBy {
            $(async fn $name(&self, $($argument: $type),*) -> Result<$answer, StoreError> {
                self.run(self.store.$name($($argument),*)).await
            })*
        }
    )*};
}

used_by! {
    Notes {
        read(shard: &Shard, page: &Page) -> Option<Note>;
        replace(shard: &Shard, page: &Page, expected: Option<&str>, draft: Option<&Note>) -> bool;
        standbys(prefix: &str) -> Vec<(Shard, Note)>;
    }
    Leases {
        claim(candidate: &Candidate) -> Claim;
        observe(shard: &Shard) -> Observation;
        renew_and_read(candidate: &Candidate, term: Term, sequence: u64, shards: &[Shard]) -> Renewed;
        release(candidate: &Candidate, term: Term) -> Release;
        changed(shard: &Shard) -> ();
    }
    Administration {
        inspect(shard: &Shard) -> Report;
        list(prefix: &str) -> Vec<(Shard, Report)>;
        revoke(shard: &Shard, term: Term) -> Release;
        prepare() -> Vec<String>;
        check() -> Vec<Finding>;
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
    /// The last leadership.
    running: Option<Arc<Running>>,
}

impl Drop for Body {
    fn drop(&mut self) {
        if let Some(running) = &self.running {
            running.act(|leadership| leadership.kill(Link::Candidate));
        }
    }
}

impl Host for Body {
    async fn next(&mut self, wake_at: BootInstant) -> io::Result<Event> {
        tokio::select! {
            biased;
            Some(event) = self.inbox.recv() => Ok(event),
            () = self.process.clock.reaches(wake_at) => Ok(Event::Tick),
        }
    }

    fn start(
        &mut self,
        candidate: &Candidate,
        term: Term,
        deadline: Deadline,
        _: Takeover,
        _: &Campaign,
    ) -> Result<(), StartError> {
        let (own, lease) = ((self.process.clone(), self.tell.clone()), (candidate.clone(), term));
        let running = Running::start(&self.machine, own, lease, deadline);
        let mut state = self.machine.state();
        state.running.retain(|running| !running.is_alone());
        state.running.push(Arc::clone(&running));
        self.running = Some(running);
        Ok(())
    }

    fn carry_out(&mut self, action: &Action) {
        if let (Action::Extend(_) | Action::Stop(_) | Action::Seize, Some(running)) = (action, &self.running) {
            running.act(|leadership| leadership.carry_out(action));
        }
    }
}

/// A backstop whose candidate is gone gives the lease back.
pub async fn release_after_a_crash(machine: Arc<Machine>, candidate: Candidate, term: Term) {
    let process = machine.process();
    let run = async move {
        let store = (machine.site.open)(machine.site.index);
        let given = orphan_release::give_back(&*store, &candidate, term).await;
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
