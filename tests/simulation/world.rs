//! What happened, and whether it may: the one place that sees all hosts at once.

use crate::clock::{Process, elapsed};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// A host that was suspended has so long to kill what it then finds: nobody can have killed it before.
const TO_KILL_AFTER_A_RESUME: Duration = Duration::from_millis(600);

#[derive(Clone, Default)]
pub struct World(Arc<Mutex<Record>>);

#[derive(Default)]
pub struct Record {
    pub transcript: Vec<String>,
    pub breaches: Vec<String>,
    pub lives: Vec<Life>,
    pub faults: BTreeMap<&'static str, u64>,
    /// The store forgot the terms, and they were above what its clock shows.
    pub has_forgotten_terms: bool,
}

impl Record {
    /// From the end of one tree to the beginning of the next.
    pub fn gaps(&self) -> impl Iterator<Item = Duration> {
        self.lives.windows(2).filter_map(|pair| pair[1].from.checked_sub(pair[0].to?))
    }
}

/// One tree, from the start of COMMAND to the end of its last descendant.
#[derive(Clone)]
pub struct Life {
    pub host: usize,
    pub session: String,
    pub term: u64,
    pub from: Duration,
    pub to: Option<Duration>,
    process: Process,
    excused_until: Duration,
}

impl Life {
    /// Whether it does things.
    fn runs(&self) -> bool {
        self.to.is_none() && !self.process.is_held() && elapsed() >= self.excused_until
    }
}

impl World {
    fn state(&self) -> MutexGuard<'_, Record> {
        self.0.lock().expect("nobody panicked")
    }

    /// All that there is so far.
    pub fn take(&self) -> Record {
        std::mem::take(&mut self.state())
    }

    pub fn say(&self, line: &str) {
        self.state().transcript.push(format!("{:>9.3} {line}", elapsed().as_secs_f64()));
    }

    pub fn breach(&self, what: &str) {
        self.say(what);
        self.state().breaches.push(what.to_owned());
    }

    /// A fault strikes.
    pub fn fault(&self, kind: &'static str, line: &str) {
        self.say(&format!("{kind}: {line}"));
        *self.state().faults.entry(kind).or_default() += 1;
    }

    /// From now on a term may be lower than the last.
    pub fn forget_terms(&self) {
        self.state().has_forgotten_terms = true;
    }

    /// COMMAND starts. Answers the number of its life.
    pub fn begins(&self, host: usize, session: &str, term: u64, process: &Process) -> usize {
        self.say(&format!("host {host}: tree of term {term} begins"));
        let mut state = self.state();
        let last = state.lives.last().map(|life| life.term);
        // COMMAND may be started again in the same leadership, by the same candidate, once it is dead.
        let again = state.lives.last().is_some_and(|life| {
            life.term == term && life.session == session && life.to.is_some_and(|to| to <= elapsed())
        });
        let life = Life {
            host,
            session: session.to_owned(),
            term,
            from: elapsed(),
            to: None,
            process: process.clone(),
            excused_until: Duration::ZERO,
        };
        state.lives.push(life);
        let number = state.lives.len() - 1;
        let last = last.filter(|_| !state.has_forgotten_terms);
        drop(state);
        if !again && last.is_some_and(|last| last >= term) {
            self.breach(&format!("term {term} after term {last:?}"));
        }
        self.look();
        number
    }

    /// No process of a tree is left.
    pub fn ends(&self, number: usize) {
        let mut state = self.state();
        let life = &mut state.lives[number];
        life.to = Some(elapsed());
        let (host, term) = (life.host, life.term);
        let end = format!("host {host}: tree of term {term} is dead");
        drop(state);
        self.say(&end);
    }

    /// The store applied the release of a session's lease.
    pub fn released(&self, session: &str) {
        let lives = self.state().lives.iter().any(|life| life.session == session && life.to.is_none());
        if lives {
            self.breach(&format!("the lease of {session} was released while its tree lives"));
        }
    }

    /// A host was resumed: what runs there may have outlived its lease.
    pub fn resumed(&self, host: usize) {
        let until = elapsed() + TO_KILL_AFTER_A_RESUME;
        for life in self.state().lives.iter_mut().filter(|life| life.host == host && life.to.is_none()) {
            life.excused_until = until;
        }
        let this = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(TO_KILL_AFTER_A_RESUME).await;
            this.look();
        });
    }

    /// At most one tree runs. To be called whenever one begins to run.
    fn look(&self) {
        let running: Vec<u64> = self.state().lives.iter().filter(|life| life.runs()).map(|life| life.term).collect();
        if running.len() > 1 {
            self.breach(&format!("trees of the terms {running:?} run at once"));
        }
    }

    /// On which hosts trees are alive.
    pub fn alive(&self) -> Vec<usize> {
        self.state().lives.iter().filter(|life| life.to.is_none()).map(|life| life.host).collect()
    }

    pub fn somebody_leads(&self) -> bool {
        self.state().lives.iter().any(Life::runs)
    }

    pub fn breaches(&self) -> Vec<String> {
        self.state().breaches.clone()
    }
}
