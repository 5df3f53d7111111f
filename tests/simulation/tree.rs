//! A tree of processes: COMMAND, which may end by itself or not obey, and what it leaves behind.

use crate::clock::Process;
use crate::random::Random;
use crate::watched::Watched;
use crate::world::World;
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[derive(Clone)]
pub struct Tree {
    world: World,
    /// Only stopped with its host.
    process: Process,
    /// The number of its life. None until COMMAND begins.
    number: Arc<Mutex<Option<usize>>>,
    stage: Watched<Stage>,
    temper: Temper,
}

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

    /// It runs until it is asked to stop.
    pub fn steady() -> Self {
        let ms = Duration::from_millis;
        Self { lasts: Duration::from_hours(24), obeys_after: Some(ms(5)), leaves_children: false, dies_in: ms(2) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    NotYet,
    Runs,
    /// COMMAND itself has ended, and left something behind.
    Leaderless,
    Dead,
}

impl Tree {
    pub fn new(world: &World, process: Process, temper: Temper) -> Self {
        Self { world: world.clone(), process, number: Arc::default(), stage: Watched::new(Stage::NotYet), temper }
    }

    pub fn begin(&self, host: usize, session: &str, term: u64) {
        *self.number.lock().expect("nobody panicked") = Some(self.world.begins(host, session, term, &self.process));
        self.advance(Stage::Runs);
        self.after(self.temper.lasts, Self::command_ends);
    }

    /// The stop signal.
    pub fn ask(&self) {
        if let Some(time) = self.temper.obeys_after {
            self.after(time, Self::command_ends);
        }
    }

    /// SIGKILL to all of it.
    pub fn kill(&self) {
        self.after(self.temper.dies_in, |tree| tree.advance(Stage::Dead));
    }

    /// COMMAND itself ends or is killed.
    pub fn command_ends(&self) {
        let left = self.temper.leaves_children && self.stage.get() < Stage::Leaderless;
        self.advance(if left { Stage::Leaderless } else { Stage::Dead });
    }

    /// Returns once COMMAND itself has ended.
    pub async fn ended(&self) {
        self.stage.wait_for(|stage| stage >= Stage::Leaderless).await;
    }

    /// Returns once nothing is left.
    pub async fn dead(&self) {
        self.stage.wait_for(|stage| stage == Stage::Dead).await;
    }

    pub fn is_dead(&self) -> bool {
        self.stage.get() == Stage::Dead
    }

    fn after(&self, time: Duration, then: fn(&Self)) {
        let this = self.clone();
        tokio::spawn(async move {
            let process = this.process.clone();
            process
                .run(async move {
                    tokio::time::sleep(time).await;
                    then(&this);
                })
                .await;
        });
    }

    fn advance(&self, to: Stage) {
        let before = self.stage.get();
        if before >= to {
            return;
        }
        self.stage.set(to);
        if let (Stage::Dead, Some(number)) = (to, *self.number.lock().expect("nobody panicked")) {
            self.world.ends(number);
        }
    }
}
